//! Runs a program of ranks: starts a process for each, coordinates their checkpoints, and when one dies takes all of them back to the last permanent one.
//!
//! Going back means that all processes end, the living too, and others begin with what the checkpoint has. Nothing of an earlier life can be left over then: neither in a process nor on a
//! socket.

use super::{
    links::{Listener, Stream},
    messages::Parcel,
    mode::{Mode, Transport},
    runtime,
    stable::{Kept, Stable},
    wire::{Cost, Frame, RANKS_MAX, Token},
};
use fermata_checkpoint::consistent::{Ccn, Coordinator, Order, Tell, Whole};
use fermata_linux::{clock::Stopwatch, random};
use fermata_store::Store;
use fermata_types::{CheckpointId, id::hex};
use serde::Serialize;
use std::{
    io,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

/// What the protocol wants done.
type Orders = Vec<Order<Arc<Parcel>>>;

/// How often the protocol is reminded of time.
const TICK: Duration = Duration::from_secs(1);
/// How long ranks may take to come.
const COMING: Duration = Duration::from_secs(60);
/// How long one may take to answer what it need not think about.
const ANSWERING: u32 = 30;
/// How long one may take to say who it is.
const GREETING: Duration = Duration::from_secs(10);
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// Frames that wait to be looked at: ranks that send more wait.
const FRAMES: usize = 64;

/// What to run, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many ranks.
    pub ranks: usize,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// More environment for it.
    pub environment: Vec<(String, String)>,
    /// What the run is called in the store.
    pub name: String,
    /// Time between the beginnings of two checkpoints; none: no checkpoints.
    pub every: Option<Duration>,
    /// How checkpoints are taken.
    pub mode: Mode,
    /// How messages travel.
    pub transport: Transport,
    /// Go on from the last permanent checkpoint of the last run of this name, if there is one.
    pub resume: bool,
    /// Keep the checkpoints that were replaced by later ones.
    pub keep: bool,
    /// Seconds after which a checkpoint that is not whole is given up.
    pub patience: u32,
    /// How often all may go back without a new permanent checkpoint in between.
    pub retries: u32,
}

impl Options {
    /// A program with so many ranks, and the defaults.
    pub fn new(name: &str, ranks: usize, program: impl Into<PathBuf>) -> Self {
        Self {
            ranks,
            program: program.into(),
            args: Vec::new(),
            environment: Vec::new(),
            name: name.to_owned(),
            every: Some(Duration::from_secs(10)),
            mode: Mode::default(),
            transport: Transport::default(),
            resume: false,
            keep: false,
            patience: 600,
            retries: 10,
        }
    }
}

/// What happens in a run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// All ranks were started: their process ids. The number of the checkpoint that they begin from is 0 for the beginning.
    Started {
        /// By rank.
        pids: Vec<u32>,
        /// Where they go on.
        ccn: Ccn,
    },
    /// A checkpoint was begun.
    Began(Ccn),
    /// A checkpoint is permanent, and every rank knows.
    Permanent(Taken),
    /// A checkpoint was given up; the one before stays.
    Aborted(Ccn),
    /// Ranks died, and all go back.
    Back {
        /// What was seen.
        why: String,
    },
}

/// A checkpoint that was taken, and what it cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// Its number.
    pub ccn: Ccn,
    /// Its id in the store.
    pub id: CheckpointId,
    /// From its beginning until all ranks knew that it is permanent, ns.
    pub elapsed_ns: u64,
    /// Bytes that all ranks wrote.
    pub written_bytes: u64,
    /// Bytes that the store grew by.
    pub stored_bytes: u64,
    /// Pages copied because a rank was about to write to them, of all ranks.
    pub copied_pages: u64,
    /// How long ranks stood still, on average, ns.
    pub blocked_ns: u64,
    /// How long the one stood still that stood longest, ns.
    pub blocked_most_ns: u64,
}

/// What came out of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// What each rank had to say, by rank.
    pub answers: Vec<String>,
    /// How long it took, ns.
    pub elapsed_ns: u64,
    /// The branch in the store.
    pub branch: String,
    /// The checkpoints that became permanent.
    pub checkpoints: Vec<Taken>,
    /// How many were given up.
    pub aborted: u64,
    /// How often all went back.
    pub rollbacks: u64,
}

/// Why a program of ranks did not come to its end. What was permanent stays so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It cannot be run as it was asked for.
    #[error("{0}")]
    Refused(String),
    /// The operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// The store refused.
    #[error(transparent)]
    Store(#[from] fermata_store::Error),
    /// The program says that it cannot go on.
    #[error("rank {rank} says: {why}")]
    Program {
        /// Which rank.
        rank: usize,
        /// What it says.
        why: String,
    },
    /// It dies again and again.
    #[error(
        "the ranks went back {times} times without a new checkpoint in between; the last time because {why}. See what the program prints; a shorter --every may help, and --resume goes on from the last checkpoint"
    )]
    Hopeless {
        /// How often.
        times: u32,
        /// What was seen last.
        why: String,
    },
}

fn failed(action: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
    let action = action.into();
    move |source| Error::Io { action, source }
}

/// Runs a program to its end.
pub fn run(store: &Store, options: &Options, watch: &mut dyn FnMut(Event)) -> Result<Outcome, Error> {
    if options.ranks == 0 || options.ranks > RANKS_MAX {
        return Err(Error::Refused(format!("{} ranks; there can be from 1 to {RANKS_MAX}", options.ranks)));
    }
    let spec = serde_json::json!({"ranks": options.ranks, "program": options.program, "args": options.args});
    let mut stable = Stable::new(store.clone(), &options.name, options.ranks, spec, options.keep)?;
    if options.resume {
        stable.resume()?;
    }
    let clock = Stopwatch::start();
    let mut tally = Tally::default();
    let mut in_vain = 0;
    loop {
        let before = stable.ccn();
        let why = match Life::begin(&mut stable, options, watch) {
            Ok(mut life) => match life.live(&mut stable, &mut tally, watch)? {
                End::Done(answers) => {
                    life.end();
                    let Tally { checkpoints, aborted, rollbacks } = tally;
                    let elapsed_ns = clock.elapsed().as_nanos() as u64;
                    return Ok(Outcome { answers, elapsed_ns, branch: stable.branch().to_owned(), checkpoints, aborted, rollbacks });
                }
                End::Died(why) => why,
            },
            Err(Beginning::Died(why)) => why,
            Err(Beginning::Failed(error)) => return Err(error),
        };
        stable.drop_tentative();
        in_vain = if stable.ccn() > before { 1 } else { in_vain + 1 };
        if in_vain > options.retries {
            return Err(Error::Hopeless { times: in_vain, why });
        }
        tally.rollbacks += 1;
        watch(Event::Back { why });
    }
}

/// What is counted over all lives.
#[derive(Debug, Default)]
struct Tally {
    checkpoints: Vec<Taken>,
    aborted: u64,
    rollbacks: u64,
}

/// How a life ended.
enum End {
    Done(Vec<String>),
    Died(String),
}

/// Why a life did not begin.
enum Beginning {
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

/// The processes of all ranks, from a beginning until one of them dies or all are done.
struct Life<'a> {
    options: &'a Options,
    children: Children,
    streams: Vec<Stream>,
    frames: mpsc::Receiver<(usize, Option<Frame>)>,
    coordinator: Coordinator<Arc<Parcel>>,
    answers: Vec<Option<String>>,
    /// The checkpoint on its way.
    current: Option<Current>,
    began: Stopwatch,
    /// When the next checkpoint begins and the protocol is reminded, since `began`.
    next: Option<Duration>,
    next_tick: Duration,
    /// Ticks for which somebody has not answered.
    silent: u32,
    // Sockets are in it.
    _directory: tempfile::TempDir,
}

/// A checkpoint on its way.
struct Current {
    since: Stopwatch,
    costs: Vec<Cost>,
    kept: Option<Kept>,
}

/// Processes that end with us.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        // All at once, then they are waited for.
        self.0.iter_mut().for_each(|child| _ = child.kill());
        self.0.iter_mut().for_each(|child| _ = child.wait());
    }
}

impl Children {
    fn dead(&mut self) -> Option<String> {
        self.0.iter_mut().enumerate().find_map(|(rank, child)| Some(format!("rank {rank} ended with {}", child.try_wait().ok()??)))
    }
}

impl<'a> Life<'a> {
    fn begin(stable: &mut Stable, options: &'a Options, watch: &mut dyn FnMut(Event)) -> Result<Self, Beginning> {
        let directory = tempfile::Builder::new().prefix("fermata-").tempdir().map_err(failed("make a directory for sockets"))?;
        let listener = Listener::new(options.transport, directory.path(), "coordinator").map_err(failed("listen for the ranks"))?;
        let token: Token = random::bytes().map_err(failed("draw a token"))?;
        let mut children = start(options, &listener, &token)?;
        let ccn = stable.ccn();
        watch(Event::Started { pids: children.0.iter().map(Child::id).collect(), ccn });
        let arrived = gather(options.ranks, &listener, &token, &mut children)?;
        let (mut streams, addresses): (Vec<_>, Vec<_>) = arrived.into_iter().unzip();
        let gone = |rank: usize| move |error: io::Error| Beginning::Died(format!("rank {rank} cannot be told where to begin: {error}"));
        for (rank, stream) in streams.iter_mut().enumerate() {
            let start = Frame::Start { mode: options.mode.to_byte(), addresses: addresses.clone() };
            start.write(stream).map_err(gone(rank))?;
            let mut lost = None;
            let restored = stable.restore(rank, &mut |offset, bytes| {
                if lost.is_none() {
                    lost = Frame::Contents { offset, bytes: bytes.to_vec() }.write(stream).err();
                }
                Ok(())
            })?;
            lost.map_or(Ok(()), Err).and_then(|()| Frame::Go(restored).write(stream)).map_err(gone(rank))?;
        }
        let (sender, frames) = mpsc::sync_channel(FRAMES);
        for (rank, stream) in streams.iter().enumerate() {
            let stream = stream.try_clone().map_err(failed("listen to a rank"))?;
            let sender = sender.clone();
            thread::spawn(move || listen(rank, stream, &sender));
        }
        Ok(Self {
            options,
            children,
            streams,
            frames,
            coordinator: Coordinator::new(options.ranks, ccn, options.patience),
            answers: vec![None; options.ranks],
            current: None,
            began: Stopwatch::start(),
            next: options.every,
            next_tick: TICK,
            silent: 0,
            _directory: directory,
        })
    }

    fn live(&mut self, stable: &mut Stable, tally: &mut Tally, watch: &mut dyn FnMut(Event)) -> Result<End, Error> {
        loop {
            let orders = self.remind(stable, watch);
            if self.silent > ANSWERING {
                return Ok(End::Died(format!("ranks {:?} do not answer", self.coordinator.unanswered())));
            }
            if let Err(why) = self.follow(orders, stable, tally, watch) {
                return Ok(End::Died(why));
            }
            let due = self.next.map_or(self.next_tick, |next| next.min(self.next_tick));
            let orders = match self.frames.recv_timeout(due.saturating_sub(self.began.elapsed())) {
                Ok((rank, Some(frame))) => match self.heard(rank, frame, stable)? {
                    Ok(orders) => orders,
                    Err(why) => return Ok(End::Died(why)),
                },
                Ok((rank, None)) => return Ok(End::Died(self.obituary(rank))),
                Err(_) => continue,
            };
            if let Err(why) = self.follow(orders, stable, tally, watch) {
                return Ok(End::Died(why));
            }
            if let Some(answers) = self.answers.iter().cloned().collect() {
                // Permanent, though not everybody has heard of it; nobody needs to any more.
                let ccn = self.coordinator.ccn();
                if let Some(taken) = self.current.take().and_then(|current| current.taken(ccn)) {
                    tally.checkpoints.push(taken.clone());
                    watch(Event::Permanent(taken));
                }
                return Ok(End::Done(answers));
            }
        }
    }

    fn obituary(&mut self, rank: usize) -> String {
        // The process ends a little after its socket.
        thread::sleep(BETWEEN_LOOKS);
        self.children.dead().unwrap_or_else(|| format!("rank {rank} hung up"))
    }

    /// What is due by the clock.
    fn remind(&mut self, stable: &mut Stable, watch: &mut dyn FnMut(Event)) -> Orders {
        let now = self.began.elapsed();
        let mut orders = Vec::new();
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.silent = if self.coordinator.unanswered().is_empty() { 0 } else { self.silent + 1 };
            orders.extend(self.coordinator.tick());
        }
        if let (Some(next), Some(every)) = (self.next, self.options.every)
            && now >= next
        {
            self.next = Some((next + every).max(now));
            if self.coordinator.is_idle() {
                orders.extend(self.begin_checkpoint(stable, watch));
            }
        }
        orders
    }

    fn begin_checkpoint(&mut self, stable: &mut Stable, watch: &mut dyn FnMut(Event)) -> Orders {
        let ccn = self.coordinator.ccn() + 1;
        if let Err(error) = stable.begin(ccn) {
            tracing::warn!("no checkpoint was begun: {error}");
            return Vec::new();
        }
        watch(Event::Began(ccn));
        self.current = Some(Current { since: Stopwatch::start(), costs: Vec::new(), kept: None });
        self.coordinator.begin()
    }

    /// What a rank says. Within: who died.
    fn heard(&mut self, rank: usize, frame: Frame, stable: &mut Stable) -> Result<Result<Orders, String>, Error> {
        match frame {
            Frame::Pages(pages) => {
                if let Err(error) = stable.put_pages(rank, &pages) {
                    tracing::warn!("checkpoint {} is given up: {error}", pages.ccn);
                    return Ok(Ok(self.coordinator.abort()));
                }
            }
            Frame::State { ccn, used, state } => stable.put_state(rank, ccn, used, state),
            Frame::Answer(answer) => return Ok(Ok(self.coordinator.heard(rank, answer))),
            Frame::Cost(cost) => {
                if let Some(current) = self.current.as_mut().filter(|_| cost.ccn == self.coordinator.ccn()) {
                    current.costs.push(cost);
                }
            }
            Frame::Done(answer) => self.answers[rank] = Some(answer),
            Frame::Failed(why) => return Err(Error::Program { rank, why }),
            Frame::Lost { peer } => return Ok(Err(format!("rank {rank} lost its connection to rank {peer}"))),
            _ => return Ok(Err(format!("rank {rank} says what no rank says"))),
        }
        Ok(Ok(Vec::new()))
    }

    /// Does what the protocol says. Fails with who died.
    fn follow(&mut self, orders: Orders, stable: &mut Stable, tally: &mut Tally, watch: &mut dyn FnMut(Event)) -> Result<(), String> {
        let mut orders = std::collections::VecDeque::from(orders);
        while let Some(order) = orders.pop_front() {
            match order {
                Order::Tell(rank, told) => {
                    if matches!(told, Tell::Abort(_)) {
                        stable.drop_tentative();
                    }
                    Frame::Tell(told).write(&mut self.streams[rank]).map_err(|_| self.obituary(rank))?;
                }
                Order::Persist(whole) => orders.extend(self.persist(&whole, stable)),
                Order::Over { ccn, permanent } => {
                    let taken = self.current.take().filter(|_| permanent).and_then(|current| current.taken(ccn));
                    match taken {
                        Some(taken) => {
                            tally.checkpoints.push(taken.clone());
                            watch(Event::Permanent(taken));
                        }
                        None => {
                            tally.aborted += 1;
                            watch(Event::Aborted(ccn));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn persist(&mut self, whole: &Whole<Arc<Parcel>>, stable: &mut Stable) -> Orders {
        match (stable.persist(whole), &mut self.current) {
            (Ok(kept), Some(current)) => {
                current.kept = Some(kept);
                self.coordinator.persisted(true)
            }
            (Ok(_), None) => self.coordinator.persisted(true),
            (Err(error), _) => {
                tracing::warn!("checkpoint {} is given up: {error}", whole.ccn);
                self.coordinator.persisted(false)
            }
        }
    }

    /// All are done: they end by themselves.
    fn end(&mut self) {
        // Who is gone already needs to hear nothing.
        self.streams.iter_mut().for_each(|stream| _ = Frame::Exit.write(stream));
        self.children.0.iter_mut().for_each(|child| _ = child.wait());
    }
}

impl Current {
    fn taken(self, ccn: Ccn) -> Option<Taken> {
        let kept = self.kept?;
        let blocked = self.costs.iter().map(|cost| cost.blocked_ns);
        Some(Taken {
            ccn,
            id: kept.id,
            elapsed_ns: self.since.elapsed().as_nanos() as u64,
            written_bytes: kept.written,
            stored_bytes: kept.stored,
            copied_pages: self.costs.iter().map(|cost| cost.copied).sum(),
            blocked_ns: blocked.clone().sum::<u64>() / self.costs.len().max(1) as u64,
            blocked_most_ns: blocked.max().unwrap_or(0),
        })
    }
}

fn start(options: &Options, listener: &Listener, token: &Token) -> Result<Children, Error> {
    let address = listener.address().map_err(failed("listen for the ranks"))?.to_string();
    let token = hex(token);
    let mut children = Children(Vec::with_capacity(options.ranks));
    for rank in 0..options.ranks {
        let mut command = Command::new(&options.program);
        command.args(&options.args).envs(options.environment.iter().map(|(name, value)| (name, value))).stdin(Stdio::null());
        command.env(runtime::ADDRESS, &address).env(runtime::RANK, rank.to_string()).env(runtime::TOKEN, &token);
        let child = command.spawn().map_err(failed(format!("start {}", options.program.display())))?;
        children.0.push(child);
    }
    Ok(children)
}

/// Waits until all ranks have said where they listen.
fn gather(ranks: usize, listener: &Listener, token: &Token, children: &mut Children) -> Result<Vec<(Stream, String)>, Beginning> {
    let clock = Stopwatch::start();
    listener.set_nonblocking().map_err(failed("listen for the ranks"))?;
    let mut arrived: Vec<Option<(Stream, String)>> = (0..ranks).map(|_| None).collect();
    while arrived.iter().any(Option::is_none) {
        match listener.accept() {
            Ok(stream) => {
                if let Some((rank, stream, address)) = greet(stream, token)
                    && let Some(place) = arrived.get_mut(rank).filter(|place| place.is_none())
                {
                    *place = Some((stream, address));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Some(dead) = children.dead() {
                    return Err(Beginning::Died(format!("{dead} before it began")));
                }
                if clock.elapsed() > COMING {
                    return Err(Beginning::Died(format!("not all ranks came within {} s", COMING.as_secs())));
                }
                thread::sleep(BETWEEN_LOOKS);
            }
            Err(error) => return Err(failed("listen for the ranks")(error).into()),
        }
    }
    Ok(arrived.into_iter().flatten().collect())
}

/// Who it is that has connected, if it is one of ours.
fn greet(mut stream: Stream, token: &Token) -> Option<(usize, Stream, String)> {
    stream.set_blocking().ok()?;
    stream.set_read_timeout(Some(GREETING)).ok()?;
    let Ok(Some(Frame::Hello { token: theirs, rank, address })) = Frame::read(&mut stream) else { return None };
    stream.set_read_timeout(None).ok()?;
    (theirs == *token).then_some((rank as usize, stream, address))
}

/// Hands over what a rank says until it hangs up.
fn listen(rank: usize, stream: Stream, frames: &mpsc::SyncSender<(usize, Option<Frame>)>) {
    let mut stream = io::BufReader::with_capacity(256 << 10, stream);
    while let Ok(Some(frame)) = Frame::read(&mut stream) {
        if frames.send((rank, Some(frame))).is_err() {
            return;
        }
    }
    let _ = frames.send((rank, None));
}
