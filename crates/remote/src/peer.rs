//! A directory of another host, by a Fermata that stands before it there: one whom `ssh HOST fermata peer DIRECTORY` begins, or one who listens for HTTP.
//!
//! Who asks writes a line of JSON and the bytes that it announces, and so does who answers, one request after the other (`docs/formats/remote.md`). Who wants several
//! things at a time opens several lines.

mod http;
mod ssh;
mod wire;

pub use http::{Token, listen};
pub use wire::serve;

use crate::{Patience, address::Host, limit::Limit};
use fermata_linux::random;
use fermata_store::remote::Remote;
use http::Posting;
use ssh::Piped;
use std::{
    fmt, io,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};
use wire::{Answer, BODY_MAX, Request};

/// Before it is tried once more; twice as long each time.
const AGAIN: Duration = Duration::from_millis(500);

/// A way to somebody who answers, for one request after the other. After an error it is of no use any more.
trait Line: Send {
    /// Behind the request come the bytes that it announces; of the answer, those that it does.
    fn ask(&mut self, request: &Request, bodies: &[&[u8]], limit: Option<&Arc<Limit>>) -> io::Result<(Answer, Vec<u8>)>;
}

/// Opens a line: somebody there has said the greeting.
type Dial = Box<dyn Fn() -> io::Result<Box<dyn Line>> + Send + Sync>;

/// A directory of another host.
pub(crate) struct Peer {
    address: String,
    dial: Dial,
    /// Lines that nobody uses at present.
    idle: Mutex<Vec<Box<dyn Line>>>,
    limit: Option<Arc<Limit>>,
    retries: usize,
    /// Somebody has answered. Before that, trying again will not help: it is a wrong name, or a key that is not taken there.
    reached: AtomicBool,
}

impl Peer {
    /// Nothing is asked of it yet.
    pub fn over_ssh(host: &Host, directory: &Path, limit: Option<Limit>, patience: Patience) -> Self {
        let address = format!("ssh://{host}{}", directory.display());
        let (host, directory) = (host.clone(), directory.to_owned());
        let dial = move || Ok(Box::new(Piped::over_ssh(&host, &directory, patience.stalled)?) as Box<dyn Line>);
        Self::new(address, Box::new(dial), limit, patience.retries)
    }

    /// Nothing is asked of it yet.
    pub fn over_http(url: &str, token: Token, limit: Option<Limit>, patience: Patience) -> io::Result<Self> {
        let posting = Posting::new(url, token, patience.stalled)?;
        let dial = move || Ok(Box::new(posting.begin()?) as Box<dyn Line>);
        Ok(Self::new(url.to_owned(), Box::new(dial), limit, patience.retries))
    }

    fn new(address: String, dial: Dial, limit: Option<Limit>, retries: usize) -> Self {
        Self { address, dial, idle: Mutex::default(), limit: limit.map(Arc::new), retries, reached: AtomicBool::new(false) }
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
                Ok((answer, line)) => {
                    let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                    // Each swap dials, and a push swaps for as long as it lasts: one more line every time would be a process more on both hosts.
                    if !once || idle.is_empty() {
                        idle.push(line);
                    }
                    return match answer {
                        (Answer::Failed(why), _) => Err(io::Error::other(why)),
                        answer => Ok(answer),
                    };
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
            let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
            let (directory, from) = (directory.clone(), io::BufReader::new(theirs.try_clone()?));
            thread::spawn(move || serve(&directory, from, theirs));
            Ok(Box::new(Piped::begin(ours, None, Duration::from_secs(20))?) as Box<dyn Line>)
        };
        Self::new("ssh://thread/".to_owned(), Box::new(dial), limit, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufReader, Read, Write},
        os::unix::net::UnixStream,
        sync::atomic::AtomicUsize,
    };
    use wire::GREETING;

    /// For whoever answers, on a busy host and a slow disk, too.
    const LONG: Duration = Duration::from_secs(20);

    /// One who answers as the test wants, each time that somebody dials.
    fn answered_by(answer: impl Fn(usize, UnixStream) + Send + Sync + Clone + 'static, retries: usize, patience: Duration) -> Peer {
        let dialled = AtomicUsize::new(0);
        let dial = move || {
            let (ours, theirs) = UnixStream::pair()?;
            let (answer, time) = (answer.clone(), dialled.fetch_add(1, Ordering::Relaxed));
            thread::spawn(move || answer(time, theirs));
            Ok(Box::new(Piped::begin(ours, None, patience)?) as Box<dyn Line>)
        };
        Peer::new(String::new(), Box::new(dial), None, retries)
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
                    let _ = stream.read_to_end(&mut Vec::new());
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
            let patience = if told == "does not answer" { Duration::from_millis(300) } else { LONG };
            let error = answered_by(says(text), 0, patience).get("a", 2).expect_err(text).to_string();
            assert!(error.contains(told), "{text:?}: {error}");
        }
    }

    #[test]
    fn swaps_do_not_gather_lines() {
        let directory = tempfile::tempdir().unwrap();
        let peer = Peer::of_thread(directory.path(), None);
        let lines = || peer.idle.lock().unwrap().len();
        assert!(peer.swap("a", None, b"0".to_vec()).unwrap());
        assert_eq!(lines(), 1);
        peer.get("a", 1).unwrap();
        for time in 0..3 {
            let (before, after) = (time.to_string(), (time + 1).to_string());
            assert!(peer.swap("a", Some(before.as_bytes()), after.into_bytes()).unwrap());
            // Nor do those that come to nothing.
            assert!(!peer.swap("a", Some(before.as_bytes()), Vec::new()).unwrap());
            peer.swap("../a", None, Vec::new()).unwrap_err();
        }
        assert_eq!((lines(), peer.get("a", 1).unwrap()), (1, Some(b"3".to_vec())));
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
        answered_by(third.clone(), 2, LONG).put("a", b"abc".to_vec()).unwrap();
        assert_eq!(std::fs::read(directory.path().join("a")).unwrap(), b"abc");
        answered_by(third.clone(), 1, LONG).put("a", b"abc".to_vec()).unwrap_err();
        answered_by(third, 2, LONG).swap("a", Some(b"abc"), b"def".to_vec()).unwrap_err();
        // Where nobody ever answered nothing is tried again.
        let dialled = Arc::new(AtomicUsize::new(0));
        let count = dialled.clone();
        let silent = move |_, stream| {
            count.fetch_add(1, Ordering::Relaxed);
            drop::<UnixStream>(stream);
        };
        answered_by(silent, 8, LONG).get("a", 1).unwrap_err();
        assert_eq!(dialled.load(Ordering::Relaxed), 1);
    }
}
