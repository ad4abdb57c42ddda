//! The processes of ranks from a beginning until one of them dies or all are done, whatever is made of what they say.

use super::{
    host::{Error, Event, Options, Way, failed},
    hosts::Hosts,
    links::{Listener, Stream},
    mode::Transport,
    mpirun, runtime,
    wire::{Frame, Token, VERSION},
};
use fermata_linux::{clock::Stopwatch, random};
use fermata_types::id::hex;
use std::{
    io,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// How long ranks may take to come.
const COMING: Duration = Duration::from_secs(60);
/// How long one may take to say who it is.
const GREETING: Duration = Duration::from_secs(10);
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// Frames that wait to be looked at: ranks that send more wait.
const FRAMES: usize = 64;

/// Why a life did not begin.
pub(super) enum Beginning {
    Died(String),
    Failed(Error),
}

impl From<Error> for Beginning {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<fermata_store::Error> for Beginning {
    fn from(error: fermata_store::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// The processes of all ranks.
pub(super) struct Life<'a> {
    pub options: &'a Options,
    hosts: &'a mut Hosts,
    children: Children,
    streams: Vec<Stream>,
    frames: mpsc::Receiver<(usize, Option<Frame>)>,
    answers: Vec<Option<String>>,
    // Sockets are in it.
    _directory: tempfile::TempDir,
}

/// Processes that end with us.
enum Children {
    /// One for each rank.
    Ranks(Vec<Child>),
    /// What has started the ranks, and ends them.
    Mpirun(Child),
    /// What has started the ranks of a host, for each that has some. They end when their coordinator hangs up.
    Hosts(Vec<(usize, Child)>),
}

impl Drop for Children {
    fn drop(&mut self) {
        let mut all: Vec<_> = match self {
            Self::Ranks(ranks) => ranks.iter_mut().collect(),
            Self::Hosts(hosts) => hosts.iter_mut().map(|(_, child)| child).collect(),
            Self::Mpirun(child) => return mpirun::end(child),
        };
        // All at once, then they are waited for.
        all.iter_mut().for_each(|child| _ = child.kill());
        all.iter_mut().for_each(|child| _ = child.wait());
    }
}

impl Drop for Life<'_> {
    /// Whoever listens to a rank holds its connection, and one on another host does not end with what started it.
    fn drop(&mut self) {
        self.streams.iter().for_each(Stream::hang_up);
    }
}

impl Children {
    /// Who has died, if somebody has. A host may be lost with it.
    fn dead(&mut self, hosts: &mut Hosts) -> Option<String> {
        match self {
            Self::Ranks(ranks) => {
                ranks.iter_mut().enumerate().find_map(|(rank, child)| Some(format!("rank {rank} ended with {}", child.try_wait().ok()??)))
            }
            Self::Mpirun(child) => Some(format!("mpirun ended with {}", child.try_wait().ok()??)),
            Self::Hosts(shells) => shells.iter_mut().find_map(|(host, shell)| Some(hosts.ended(*host, shell.try_wait().ok()??))),
        }
    }

    /// Ranks that were started here.
    fn pids(&self) -> Option<Vec<u32>> {
        match self {
            Self::Ranks(ranks) => Some(ranks.iter().map(Child::id).collect()),
            Self::Mpirun(_) | Self::Hosts(_) => None,
        }
    }
}

impl<'a> Life<'a> {
    pub fn begin(way: &dyn Way, options: &'a Options, hosts: &'a mut Hosts, watch: &mut dyn FnMut(Event)) -> Result<Self, Beginning> {
        let directory = tempfile::Builder::new().prefix("fermata-").tempdir().map_err(failed("make a directory for sockets"))?;
        let listener = match options.is_far() {
            false => Listener::new(options.transport, directory.path(), "coordinator"),
            true => Listener::at(hosts.address(options)?),
        };
        let listener = listener.map_err(failed("listen for the ranks"))?;
        let token: Token = random::bytes().map_err(failed("draw a token"))?;
        let mut children = start(options, hosts, &listener, &token)?;
        let ccn = way.ccn();
        let pids = children.pids();
        let early = pids.is_some();
        if let Some(pids) = pids {
            watch(Event::Started { pids, ccn });
        }
        let arrived = gather(options.ranks, &listener, &token, &mut children, hosts)?;
        if !early {
            watch(Event::Started { pids: arrived.iter().map(|arrived| arrived.pid).collect(), ccn });
        }
        let (mut streams, addresses): (Vec<_>, Vec<_>) = arrived.into_iter().map(|arrived| (arrived.stream, arrived.address)).unzip();
        let gone = |rank: usize| move |error: io::Error| Beginning::Died(format!("rank {rank} cannot be told where to begin: {error}"));
        for (rank, stream) in streams.iter_mut().enumerate() {
            let every_ns = options.every.map_or(0, |every| every.as_nanos() as u64);
            let start = Frame::Start { mode: options.mode.to_byte(), every_ns, addresses: addresses.clone() };
            start.write(stream).map_err(gone(rank))?;
            let mut lost = None;
            let (restored, late) = way.restore(rank, &mut |offset, bytes| {
                if lost.is_none() {
                    lost = Frame::Contents { offset, bytes: bytes.to_vec() }.write(stream).err();
                }
                Ok(())
            })?;
            let mut frames = late.into_iter().map(Frame::Late).chain([Frame::Go { restored }]);
            lost.map_or(Ok(()), Err).and_then(|()| frames.try_for_each(|frame| frame.write(stream))).map_err(gone(rank))?;
        }
        let (sender, frames) = mpsc::sync_channel(FRAMES);
        for (rank, stream) in streams.iter().enumerate() {
            let stream = stream.try_clone().map_err(failed("listen to a rank"))?;
            let sender = sender.clone();
            thread::spawn(move || listen(rank, stream, &sender));
        }
        let answers = vec![None; options.ranks];
        Ok(Self { options, hosts, children, streams, frames, answers, _directory: directory })
    }

    /// What a rank says next, within this time. Fails with who died.
    pub fn hear(&mut self, within: Duration) -> Result<Option<(usize, Frame)>, String> {
        match self.frames.recv_timeout(within) {
            Ok((rank, Some(frame))) => Ok(Some((rank, frame))),
            Ok((rank, None)) => Err(self.obituary(rank)),
            Err(_) => Ok(None),
        }
    }

    /// What a rank says that has nothing to do with checkpoints. Within: who died.
    pub fn heard(&mut self, rank: usize, frame: Frame) -> Result<Result<(), String>, Error> {
        match frame {
            Frame::Done(answer) => self.answers[rank] = Some(answer),
            Frame::Failed(why) => return Err(Error::Program { rank, why }),
            Frame::Lost { peer } => return Ok(Err(format!("rank {rank} lost its connection to rank {peer}"))),
            _ => return Ok(Err(format!("rank {rank} says what no rank says"))),
        }
        Ok(Ok(()))
    }

    /// Tells a rank. Fails with who died.
    pub fn tell(&mut self, rank: usize, frame: &Frame) -> Result<(), String> {
        frame.write(&mut self.streams[rank]).map_err(|_| self.obituary(rank))
    }

    /// What all had to say, once all are done.
    pub fn answers(&self) -> Option<Vec<String>> {
        self.answers.iter().cloned().collect()
    }

    fn obituary(&mut self, rank: usize) -> String {
        // The process ends a little after its socket.
        thread::sleep(BETWEEN_LOOKS);
        self.children.dead(self.hosts).unwrap_or_else(|| format!("rank {rank} hung up"))
    }

    /// All are done: they end by themselves.
    pub fn end(&mut self) -> Result<(), Error> {
        // Who is gone already needs to hear nothing.
        self.streams.iter_mut().for_each(|stream| _ = Frame::Exit.write(stream));
        match &mut self.children {
            Children::Ranks(ranks) => ranks.iter_mut().for_each(|child| _ = child.wait()),
            Children::Hosts(hosts) => hosts.iter_mut().for_each(|(_, child)| _ = child.wait()),
            Children::Mpirun(child) => {
                let status = child.wait().map_err(failed("wait for mpirun"))?;
                if !status.success() {
                    return Err(Error::Ended(format!("mpirun ended with {status}")));
                }
            }
        }
        Ok(())
    }
}

fn start(options: &Options, hosts: &mut Hosts, listener: &Listener, token: &Token) -> Result<Children, Beginning> {
    let token = hex(token);
    if options.transport == Transport::Mpi {
        // It does not say where it could not get to.
        if let Some(lost) = hosts.look() {
            return Err(Beginning::Died(lost));
        }
        hosts.place(options.ranks);
        return Ok(Children::Mpirun(mpirun::start(options, hosts, listener, &token)?));
    }
    let address = listener.address().map_err(failed("listen for the ranks"))?.to_string();
    if !options.hosts.is_empty() {
        hosts.place(options.ranks);
        return Ok(Children::Hosts(hosts.start(options, &address, &token)?));
    }
    let mut children = Children::Ranks(Vec::with_capacity(options.ranks));
    for rank in 0..options.ranks {
        let mut command = Command::new(&options.program);
        command.args(&options.args).envs(options.environment.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        command.env(runtime::ADDRESS, &address).env(runtime::RANK, rank.to_string()).env(runtime::TOKEN, &token);
        let child = command.spawn().map_err(failed(format!("start {}", options.program.display())))?;
        if let Children::Ranks(ranks) = &mut children {
            ranks.push(child);
        }
    }
    Ok(children)
}

/// A rank that has said where it is.
struct Arrived {
    stream: Stream,
    pid: u32,
    address: String,
}

/// Waits until all ranks have said where they listen.
fn gather(ranks: usize, listener: &Listener, token: &Token, children: &mut Children, hosts: &mut Hosts) -> Result<Vec<Arrived>, Beginning> {
    let clock = Stopwatch::start();
    listener.set_nonblocking().map_err(failed("listen for the ranks"))?;
    let mut arrived: Vec<Option<Arrived>> = (0..ranks).map(|_| None).collect();
    while arrived.iter().any(Option::is_none) {
        match listener.accept() {
            Ok(stream) => {
                if let Some((rank, who)) = greet(stream, token)?
                    && let Some(place) = arrived.get_mut(rank).filter(|place| place.is_none())
                {
                    *place = Some(who);
                    hosts.came(rank);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Some(dead) = children.dead(hosts) {
                    return Err(Beginning::Died(format!("{dead} before it began")));
                }
                if clock.elapsed() > COMING {
                    let why = format!("not all ranks came within {} s", COMING.as_secs());
                    let missing = arrived.iter().position(Option::is_none).filter(|_| matches!(children, Children::Hosts(_)));
                    return Err(Beginning::Died(missing.map_or(why.clone(), |rank| hosts.lose(hosts.of(rank), &why))));
                }
                thread::sleep(BETWEEN_LOOKS);
            }
            Err(error) => return Err(failed("listen for the ranks")(error).into()),
        }
    }
    Ok(arrived.into_iter().flatten().collect())
}

/// Who it is that has connected, if it is one of ours.
///
/// # Errors
/// It is, and speaks otherwise.
fn greet(mut stream: Stream, token: &Token) -> Result<Option<(usize, Arrived)>, Error> {
    let mut hear = || {
        stream.set_blocking()?;
        stream.set_read_timeout(Some(GREETING))?;
        let heard = Frame::read(&mut stream)?;
        stream.set_read_timeout(None)?;
        io::Result::Ok(heard)
    };
    match hear() {
        Ok(Some(Frame::Hello { token: theirs, version, rank, pid, address })) if theirs == *token => {
            if version != VERSION {
                return Err(Error::Refused(format!(
                    "the program was built with another Fermata: its ranks speak version {version}, and this one speaks version {VERSION}; build it with the Fermata that is to run it"
                )));
            }
            Ok(Some((rank as usize, Arrived { stream, pid, address })))
        }
        // Anybody may connect, and say anything.
        _ => Ok(None),
    }
}

/// Hands over what a rank says until it hangs up.
fn listen(rank: usize, stream: Stream, frames: &mpsc::SyncSender<(usize, Option<Frame>)>) {
    // Small: what is longer, which is pages, is read to where it belongs and not copied once more.
    let mut stream = io::BufReader::with_capacity(4 << 10, stream);
    while let Ok(Some(frame)) = Frame::read(&mut stream) {
        if frames.send((rank, Some(frame))).is_err() {
            return;
        }
    }
    let _ = frames.send((rank, None));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_of_another_fermata_is_told_from_a_stranger() {
        let directory = tempfile::tempdir().unwrap();
        let listener = Listener::new(Transport::Unix, directory.path(), "coordinator").unwrap();
        let token = [3; 16];
        let greeted = |theirs: Token, version: u16| {
            let mut rank = Stream::connect(&listener.address().unwrap()).unwrap();
            Frame::Hello { token: theirs, version, rank: 2, pid: 7, address: "unix:/x".into() }.write(&mut rank).unwrap();
            greet(listener.accept().unwrap(), &token)
        };
        assert!(matches!(greeted(token, VERSION), Ok(Some((2, Arrived { pid: 7, .. })))));
        assert!(matches!(greeted([4; 16], VERSION + 1), Ok(None)));
        let why = greeted(token, VERSION + 1).err().expect("it is another's").to_string();
        assert!(why.contains("version 2") && why.contains("build it with the Fermata"), "{why}");
    }
}
