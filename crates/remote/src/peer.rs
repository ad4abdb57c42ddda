//! A directory of another host, by a Fermata that stands before it there: `ssh HOST fermata peer DIRECTORY`.
//!
//! Who asks writes a line of JSON and the bytes that it announces, and so does who answers, one request after the other (`docs/formats/remote.md`). Who wants several
//! things at a time opens several.

use crate::{Connection, Patience, address::Host, limit::Limit};
use fermata_linux::random;
use fermata_store::remote::Remote;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    env, fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// What who answers says first.
const GREETING: &str = "fermata peer 1\n";
/// A line of JSON at most.
const LINE_MAX: u64 = 64 << 10;
/// The bytes behind one at most. What is put is a pack, a list of objects that they are in, or a piece of an image: some ten MiB.
const BODY_MAX: u64 = 1 << 30;
/// Bytes that travel between two looks at the limit.
const PIECE: usize = 64 << 10;
/// Before it is tried once more; twice as long each time.
const AGAIN: Duration = Duration::from_millis(500);
/// Of what the program that leads there said last, what is told.
const SAID_MAX: u64 = 600;

/// What can be asked for; as in [`Remote`]. Behind a put come its bytes, behind a swap what there is to be before, and what after.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    Get { name: String, most: u64 },
    Tail { name: String, most: u64 },
    Range { name: String, from: u64, length: u64 },
    Put { name: String, bytes: u64 },
    Swap { name: String, before: Option<u64>, bytes: u64 },
    Remove { name: String },
    List { prefix: String },
}

impl Request {
    fn name(&self) -> &str {
        match self {
            Self::Get { name, .. } | Self::Tail { name, .. } | Self::Range { name, .. } | Self::Put { name, .. } => name,
            Self::Swap { name, .. } | Self::Remove { name } => name,
            Self::List { prefix } => prefix.trim_end_matches('/'),
        }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Done,
    /// There is no such object.
    Absent,
    /// So many bytes follow: of the object, or JSON of the names and lengths of several.
    Bytes(u64),
    Swapped(bool),
    /// It cannot be done, and trying again will not help.
    Failed(String),
}

/// Answers for a directory, which is made if there is none, until who asks has gone.
pub fn serve(directory: &Path, mut from: impl BufRead, mut to: impl Write) -> io::Result<()> {
    let place = Connection::directory(directory, None)?;
    to.write_all(GREETING.as_bytes())?;
    to.flush()?;
    while let Some(request) = read_line::<Request>(&mut from)? {
        let (before, bytes) = match &request {
            Request::Put { bytes, .. } => (None, read_body(&mut from, *bytes, None)?),
            Request::Swap { before, bytes, .. } => {
                (before.map(|length| read_body(&mut from, length, None)).transpose()?, read_body(&mut from, *bytes, None)?)
            }
            _ => (None, Vec::new()),
        };
        let (answer, body) =
            answer(&place, &request, before, bytes).unwrap_or_else(|error| (Answer::Failed(error.to_string()), Vec::new()));
        write_line(&mut to, &answer)?;
        to.write_all(&body)?;
        to.flush()?;
    }
    Ok(())
}

fn answer(place: &Connection, request: &Request, before: Option<Vec<u8>>, bytes: Vec<u8>) -> io::Result<(Answer, Vec<u8>)> {
    if !is_name(request.name()) {
        return Err(io::Error::other(format!("{:?} is no name of an object", request.name())));
    }
    let found = |object: Option<Vec<u8>>| object.map_or((Answer::Absent, Vec::new()), |bytes| (Answer::Bytes(bytes.len() as u64), bytes));
    Ok(match request {
        Request::Get { name, most } => found(place.get(name, (*most).min(BODY_MAX))?),
        Request::Tail { name, most } => found(place.tail(name, (*most).min(BODY_MAX))?),
        Request::Range { name, from, length } => found(place.range(name, *from, (*length).min(BODY_MAX))?),
        Request::Put { name, .. } => (place.put(name, bytes).map(|()| Answer::Done)?, Vec::new()),
        Request::Swap { name, .. } => (Answer::Swapped(place.swap(name, before.as_deref(), bytes)?), Vec::new()),
        Request::Remove { name } => (place.remove(name).map(|()| Answer::Done)?, Vec::new()),
        Request::List { prefix } => found(Some(serde_json::to_vec(&place.list(prefix)?)?)),
    })
}

/// Who asks may be allowed no more than this directory, so a name must not lead out of it.
fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-=".contains(&byte);
    name.split('/').all(|part| !["", ".", ".."].contains(&part) && part.bytes().all(plain))
}

fn read_line<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) => Err(io::Error::other("a line was cut off")),
    }
}

fn write_line(to: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Whoever announces much and sends little gets no memory for it.
fn read_body(from: &mut impl Read, length: u64, limit: Option<&Limit>) -> io::Result<Vec<u8>> {
    if length > BODY_MAX {
        return Err(io::Error::other(format!("{length} bytes are announced, and {BODY_MAX} may be")));
    }
    let mut body = Vec::new();
    while (body.len() as u64) < length {
        let piece = (length - body.len() as u64).min(PIECE as u64);
        let read = from.take(piece).read_to_end(&mut body)?;
        if (read as u64) < piece {
            return Err(io::Error::other("the end is missing"));
        }
        wait_for(read, limit);
    }
    Ok(body)
}

/// So many bytes travel.
fn wait_for(bytes: usize, limit: Option<&Limit>) {
    if let Some(limit) = limit {
        thread::sleep(limit.wait(bytes));
    }
}

/// One who answers, for one request after the other.
struct Line {
    /// Of this host, the program that leads there.
    program: Option<Program>,
    stream: BufReader<UnixStream>,
}

struct Program {
    name: String,
    child: Child,
    /// What it has to say to people.
    said: File,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Line {
    /// Reads the greeting.
    fn begin(stream: UnixStream, program: Option<Program>, stalled: Duration) -> io::Result<Self> {
        stream.set_read_timeout(Some(stalled))?;
        stream.set_write_timeout(Some(stalled))?;
        let mut line = Self { program, stream: BufReader::new(stream) };
        let mut greeting = Vec::new();
        let read = line.stream.by_ref().take(GREETING.len() as u64).read_to_end(&mut greeting);
        let greeting = String::from_utf8_lossy(&greeting).into_owned();
        match read {
            Ok(_) if greeting == GREETING => Ok(line),
            Ok(_) if !greeting.is_empty() => Err(io::Error::other(format!(
                "what answers begins with {greeting:?}, and is no `fermata peer` of this version: its shell must print nothing of its own, and find `fermata`"
            ))),
            Ok(_) => Err(line.failed(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(line.failed(error)),
        }
    }

    fn over_ssh(host: &Host, directory: &Path, stalled: Duration) -> io::Result<Self> {
        let ssh = env::var("FERMATA_SSH").unwrap_or_else(|_| "ssh".to_owned());
        let (ours, theirs) = UnixStream::pair()?;
        let said = tempfile::tempfile()?;
        let mut command = Command::new(&ssh);
        command.args(["-T", "-o", "ServerAliveInterval=15", "-o", "ConnectTimeout=20"]);
        if let Some(port) = host.port {
            command.args(["-p", &port.to_string()]);
        }
        // A shell takes the words apart there.
        let quoted = directory.to_string_lossy().replace('\'', r"'\''");
        command.arg(&host.name).arg(format!("fermata peer '{quoted}'"));
        command.stdin(Stdio::from(OwnedFd::from(theirs.try_clone()?))).stdout(Stdio::from(OwnedFd::from(theirs))).stderr(said.try_clone()?);
        let child = command.spawn().map_err(|error| io::Error::new(error.kind(), format!("{ssh}: {error}")))?;
        // The command holds the other end, and whoever reads would never see it closed.
        drop(command);
        Self::begin(ours, Some(Program { name: format!("{ssh} {}", host.name), child, said }), stalled)
    }

    /// What went wrong, and what the program that leads there says of it.
    fn failed(&mut self, error: io::Error) -> io::Error {
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            return io::Error::new(io::ErrorKind::TimedOut, "it does not answer");
        }
        let Some(program) = &mut self.program else { return error };
        let _ = program.child.kill();
        let ended = program.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let mut said = String::new();
        let length = program.said.metadata().map_or(0, |about| about.len());
        let _ = program.said.seek(io::SeekFrom::Start(length.saturating_sub(SAID_MAX)));
        let _ = program.said.read_to_string(&mut said);
        match said.lines().map(str::trim).rfind(|line| !line.is_empty()) {
            None => io::Error::other(format!("{} ended: {ended}", program.name)),
            Some(last) => io::Error::other(format!("{} said: {last}", program.name)),
        }
    }

    fn ask(&mut self, request: &Request, bodies: &[&[u8]], limit: Option<&Limit>) -> io::Result<(Answer, Vec<u8>)> {
        self.exchange(request, bodies, limit).map_err(|error| self.failed(error))
    }

    fn exchange(&mut self, request: &Request, bodies: &[&[u8]], limit: Option<&Limit>) -> io::Result<(Answer, Vec<u8>)> {
        write_line(self.stream.get_mut(), request)?;
        for piece in bodies.iter().flat_map(|body| body.chunks(PIECE)) {
            wait_for(piece.len(), limit);
            self.stream.get_mut().write_all(piece)?;
        }
        let answer = read_line(&mut self.stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let length = if let Answer::Bytes(length) = answer { length } else { 0 };
        let body = read_body(&mut self.stream, length, limit)?;
        Ok((answer, body))
    }
}

/// Opens a line.
type Dial = Box<dyn Fn() -> io::Result<Line> + Send + Sync>;

/// A directory of another host.
pub(crate) struct Peer {
    address: String,
    dial: Dial,
    /// Lines that nobody uses at present.
    idle: Mutex<Vec<Line>>,
    limit: Option<Limit>,
    retries: usize,
    /// Somebody has answered. Before that, trying again will not help: it is a wrong name, or a key that is not taken there.
    reached: AtomicBool,
}

impl Peer {
    /// Nothing is asked of it yet.
    pub fn over_ssh(host: &Host, directory: &Path, limit: Option<Limit>, patience: Patience) -> Self {
        let address = format!("ssh://{host}{}", directory.display());
        let (host, directory) = (host.clone(), directory.to_owned());
        let dial = Box::new(move || Line::over_ssh(&host, &directory, patience.stalled));
        Self { address, dial, idle: Mutex::default(), limit, retries: patience.retries, reached: AtomicBool::new(false) }
    }

    fn ask(&self, request: &Request, bodies: &[&[u8]]) -> io::Result<(Answer, Vec<u8>)> {
        // Nobody can tell whether a line that broke has taken the change along, so a swap gets one that is known to work, and is done once.
        let once = matches!(request, Request::Swap { .. });
        let mut tried = 0;
        loop {
            let idle = if once { None } else { self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() };
            // One that nobody used for long may have been closed, which is no failure.
            let (used, line) = (idle.is_some(), idle.map_or_else(|| (self.dial)(), Ok));
            let dialled = line.is_ok();
            self.reached.fetch_or(dialled, Ordering::Relaxed);
            match line.and_then(|mut line| Ok((line.ask(request, bodies, self.limit.as_ref())?, line))) {
                Ok(((Answer::Failed(why), _), line)) => {
                    self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                    return Err(io::Error::other(why));
                }
                Ok((answer, line)) => {
                    self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                    return Ok(answer);
                }
                Err(_) if used => {}
                Err(error) if tried == self.retries || (once && dialled) || !self.reached.load(Ordering::Relaxed) => return Err(error),
                Err(_) => {
                    thread::sleep(AGAIN * (1 << tried.min(6)));
                    tried += 1;
                }
            }
        }
    }

    fn object(&self, request: &Request, most: u64) -> io::Result<Option<Vec<u8>>> {
        match self.ask(request, &[])? {
            (Answer::Absent, _) => Ok(None),
            (Answer::Bytes(length), bytes) if length <= most => Ok(Some(bytes)),
            (answer, _) => Err(unexpected(&answer)),
        }
    }

    fn done(&self, request: &Request, bodies: &[&[u8]]) -> io::Result<()> {
        match self.ask(request, bodies)?.0 {
            Answer::Done => Ok(()),
            answer => Err(unexpected(&answer)),
        }
    }
}

fn unexpected(answer: &Answer) -> io::Error {
    io::Error::other(format!("it answers {answer:?}, which was not asked for"))
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

impl Remote for Peer {
    fn get(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.object(&Request::Get { name: name.to_owned(), most }, most)
    }

    fn tail(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.object(&Request::Tail { name: name.to_owned(), most }, most)
    }

    fn range(&self, name: &str, from: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        self.object(&Request::Range { name: name.to_owned(), from, length }, length)
    }

    fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        self.done(&Request::Put { name: name.to_owned(), bytes: bytes.len() as u64 }, &[&bytes])
    }

    fn swap(&self, name: &str, before: Option<&[u8]>, bytes: Vec<u8>) -> io::Result<bool> {
        let request = Request::Swap { name: name.to_owned(), before: before.map(|before| before.len() as u64), bytes: bytes.len() as u64 };
        match self.ask(&request, &[before.unwrap_or_default(), &bytes])?.0 {
            Answer::Swapped(swapped) => Ok(swapped),
            answer => Err(unexpected(&answer)),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.done(&Request::Remove { name: name.to_owned() }, &[])
    }

    fn unique(&self) -> io::Result<[u8; 16]> {
        random::bytes()
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        let listed = self.object(&Request::List { prefix: prefix.to_owned() }, BODY_MAX)?.unwrap_or_default();
        Ok(serde_json::from_slice(&listed)?)
    }
}

#[cfg(test)]
impl Peer {
    /// One that is answered by a thread.
    pub fn of_thread(directory: &Path, limit: Option<Limit>) -> Self {
        let directory = directory.to_owned();
        let dial = move || {
            let (ours, theirs) = UnixStream::pair()?;
            let (directory, from) = (directory.clone(), BufReader::new(theirs.try_clone()?));
            thread::spawn(move || serve(&directory, from, theirs));
            Line::begin(ours, None, Duration::from_secs(20))
        };
        Self {
            address: "ssh://thread/".to_owned(),
            dial: Box::new(dial),
            idle: Mutex::default(),
            limit,
            retries: 0,
            reached: AtomicBool::new(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, atomic::AtomicUsize};

    fn said_to(server_is_told: &[u8]) -> (tempfile::TempDir, String, io::Result<()>) {
        let directory = tempfile::tempdir().unwrap();
        let mut said = Vec::new();
        let ended = serve(&directory.path().join("inner"), server_is_told, &mut said);
        (directory, String::from_utf8(said).unwrap(), ended)
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        for name in ["../out", "/tmp/out", "a/../../out", "a//b", ".", "", "a/.."] {
            let put = format!("{{\"put\":{{\"name\":\"{name}\",\"bytes\":3}}}}\nabc");
            let swap = format!("{{\"swap\":{{\"name\":\"{name}\",\"before\":null,\"bytes\":3}}}}\nabc");
            let (directory, said, ended) = said_to(format!("{put}{swap}").as_bytes());
            ended.unwrap();
            assert_eq!(said.matches("is no name of an object").count(), 2, "{name}: {said}");
            let entries: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(entries, ["inner"], "{name}");
        }
        assert!(said_to(b"{\"put\":{\"name\":\"a/.b-_=\",\"bytes\":3}}\nabc").1.ends_with("\"done\"\n"));
    }

    #[test]
    fn nonsense_ends_it_and_takes_no_memory() {
        for told in [
            &b"{\"put\":{\"name\":\"a\",\"bytes\":18446744073709551615}}\nabc"[..],
            b"{\"put\":{\"name\":\"a\",\"bytes\":1000000000}}\nabc",
            b"{\"get\":{\"name\":\"a\",\"most\":-1}}\n",
            b"{\"list\":{}}\n",
            b"\0\0\0\n",
            b"{\"get\":",
            &vec![b'['; 1 << 20],
        ] {
            let (directory, said, ended) = said_to(told);
            assert!(ended.is_err() && said == GREETING, "{said}");
            assert!(!directory.path().join("inner/a").exists());
        }
    }

    /// One who answers as the test wants, each time that somebody dials.
    fn answered_by(answer: impl Fn(usize, UnixStream) + Send + Sync + Clone + 'static, retries: usize) -> Peer {
        let dialled = AtomicUsize::new(0);
        let dial = move || {
            let (ours, theirs) = UnixStream::pair()?;
            let (answer, time) = (answer.clone(), dialled.fetch_add(1, Ordering::Relaxed));
            thread::spawn(move || answer(time, theirs));
            Line::begin(ours, None, Duration::from_millis(300))
        };
        Peer { address: String::new(), dial: Box::new(dial), idle: Mutex::default(), limit: None, retries, reached: AtomicBool::new(false) }
    }

    #[test]
    fn what_does_not_answer_cuts_off_or_lies_is_an_error() {
        let says = |text: &'static str| {
            move |_, mut stream: UnixStream| {
                let _ = stream.write_all(text.as_bytes());
                // It stays, or it goes when all is said.
                if text.ends_with('.') {
                    let _ = stream.read(&mut [0; 1024]);
                } else {
                    thread::sleep(Duration::from_secs(2));
                }
            }
        };
        for (text, told) in [
            ("", "does not answer"),
            ("Welcome to this host!\n", "no `fermata peer`"),
            ("fermata peer 1\n", "does not answer"),
            ("fermata peer 1\n{\"bytes\":10}\nabc.", "the end is missing"),
            ("fermata peer 1\n{\"bytes\":99999999999}\n", "are announced"),
            ("fermata peer 1\n{\"bytes\":3}\nabc", "was not asked for"),
            ("fermata peer 1\n\"swapped\"\n", "invalid type"),
            ("fermata peer 1\n\"done\"\n", "was not asked for"),
        ] {
            let error = answered_by(says(text), 0).get("a", 2).expect_err(text).to_string();
            assert!(error.contains(told), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_line_that_breaks_is_opened_again_but_not_for_a_swap() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_owned();
        let third = move |time: usize, stream: UnixStream| {
            if time >= 2 {
                let _ = serve(&at, BufReader::new(stream.try_clone().unwrap()), stream);
            } else {
                let _ = (&stream).write_all(GREETING.as_bytes());
            }
        };
        answered_by(third.clone(), 2).put("a", b"abc".to_vec()).unwrap();
        assert_eq!(std::fs::read(directory.path().join("a")).unwrap(), b"abc");
        answered_by(third.clone(), 1).put("a", b"abc".to_vec()).unwrap_err();
        answered_by(third, 2).swap("a", Some(b"abc"), b"def".to_vec()).unwrap_err();
        // Where nobody ever answered nothing is tried again.
        let dialled = Arc::new(AtomicUsize::new(0));
        let count = dialled.clone();
        let silent = move |_, stream| {
            count.fetch_add(1, Ordering::Relaxed);
            drop::<UnixStream>(stream);
        };
        answered_by(silent, 8).get("a", 1).unwrap_err();
        assert_eq!(dialled.load(Ordering::Relaxed), 1);
    }
}
