//! A backup of an area that grows a line in a store: it gets each commit, from a thread of its own, in the order in which they were made.

use crate::{
    Area, Capture, Error, Replica, Result,
    line::{Answer, UnderWay, caught},
};
use std::{
    convert::identity,
    io::{self, Read, Write},
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

/// A backup that says nothing for so long is lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is told that the program is there, where there is nothing to send: a host that loses its power closes no stream.
const BEAT: Duration = Duration::from_secs(5);

struct Job {
    capture: Arc<Capture>,
    answer: Arc<Answer<()>>,
}

/// The way to a backup. A thread has it, and a child of `fork`, which does not have the thread, lets go of it all the same.
#[derive(Clone)]
struct Way(Arc<UnixStream>);

impl Read for Way {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(into)
    }
}

impl Write for Way {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self.0).flush()
    }
}

/// Dropped, it sends what is queued first.
pub(crate) struct Follower {
    socket: PathBuf,
    way: Way,
    under_way: UnderWay<()>,
    /// Why it got no more from some commit on.
    failure: Arc<OnceLock<Error>>,
    queue: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Follower({})", self.socket.display())
    }
}

impl Follower {
    /// Comes to whoever receives at this socket. The first commit that is sent has to have all of the area.
    pub fn connect(socket: &Path, area: &Area) -> Result<Self> {
        let lost = lost(area.name(), socket);
        let connect = || {
            let stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            let way = Way(Arc::new(stream));
            Replica::greet(way.clone(), area).map(|replica| (replica, way))
        };
        let (replica, way) = connect().map_err(&lost)?;
        let (queue, jobs) = channel();
        let failure = Arc::new(OnceLock::new());
        let of_thread = failure.clone();
        let work = move || send_all(replica, &jobs, &of_thread, lost, BEAT);
        let thread = std::thread::Builder::new().name("fermata-backup".into()).spawn(work);
        let thread = thread.map_err(Error::io(area.name(), "starting a thread"))?;
        let (socket, under_way) = (socket.to_owned(), UnderWay::default());
        Ok(Self { socket, way, under_way, failure, queue: Some(queue), thread: Some(thread) })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// In a child of `fork`, which does not have the thread: lets go of the way, so that the backup sees when the parent has ended, and leaves the rest alone.
    pub fn abandon(self) {
        // Where it cannot be done, the backup sees it by the silence.
        let _ = fermata_linux::lead_nowhere(self.way.0.as_fd());
        std::mem::forget(self);
    }

    /// Waits until nothing is queued.
    pub fn drain(&self) {
        self.under_way.drain();
    }

    /// Whether it has got all so far, as far as that is known.
    pub fn check(&self) -> Result<()> {
        self.failure.get().cloned().map_or(Ok(()), Err)
    }

    /// Waits until a commit may be queued without there being too many.
    pub fn make_room(&self) {
        self.under_way.make_room();
    }

    /// Queues a commit.
    pub fn send(&self, capture: Arc<Capture>) -> Arc<Answer<()>> {
        let answer = Arc::new(Answer::default());
        self.under_way.add(answer.clone());
        let job = Job { capture, answer: answer.clone() };
        if let Err(refused) = self.queue.as_ref().expect("open until dropped").send(job) {
            let area = refused.0.capture.area().to_owned();
            answer.give(Err(lost(&area, &self.socket)(io::Error::other("the thread that sends has ended"))));
        }
        answer
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        drop(self.queue.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn lost(area: &str, socket: &Path) -> impl Fn(io::Error) -> Error + Send + 'static {
    let (area, backup) = (area.to_owned(), socket.display().to_string());
    move |source| Error::Backup { area: area.clone(), backup: backup.clone(), source: Arc::new(source) }
}

/// After the first commit that is not acknowledged nobody knows what the other side has, and none is sent any more.
fn send_all(
    mut replica: Replica<impl Read + Write>,
    jobs: &Receiver<Job>,
    failure: &OnceLock<Error>,
    lost: impl Fn(io::Error) -> Error,
    beat: Duration,
) {
    // A beat that does not get through is no commit that is missing there. The next one finds out, and what the other side has to say.
    let mut is_heard = true;
    loop {
        match jobs.recv_timeout(beat) {
            Ok(Job { capture, answer }) => {
                let result = match failure.get() {
                    None => {
                        let sent = caught(|| replica.send(&capture), identity);
                        sent.map_err(&lost).inspect_err(|error| _ = failure.set(error.clone()))
                    }
                    Some(failure) => Err(failure.clone()),
                };
                answer.give(result);
            }
            Err(RecvTimeoutError::Timeout) => is_heard = is_heard && failure.get().is_none() && replica.beat().is_ok(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backup, Options, Tracking};
    use fermata_types::PAGE_SIZE;
    use std::{os::unix::net::UnixListener, thread};

    fn area(name: &str) -> Area {
        Area::new(name, 4 * PAGE_SIZE, Options::default().tracking(Tracking::Compare)).unwrap()
    }

    #[test]
    fn a_program_that_commits_nothing_is_heard_of() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let replica = Replica::greet(ours, &area("idle")).unwrap();
        let (queue, jobs) = channel();
        let work = move || send_all(replica, &jobs, &OnceLock::new(), lost("idle", Path::new("nowhere")), Duration::from_millis(1));
        let thread = thread::spawn(work);
        let mut said = [1; 8 + 3 * 8 + "idle".len() + 3 * 8];
        theirs.read_exact(&mut said).unwrap();
        assert!(said[said.len() - 3 * 8..] == [0; 3 * 8], "{said:?}");
        drop(queue);
        thread.join().unwrap();
    }

    #[test]
    fn a_child_that_lets_go_does_not_keep_the_way_open() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let follower = Follower::connect(&socket, &area("forked")).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        // Shorter than between two beats, which would else be heard for ever.
        theirs.set_read_timeout(Some(BEAT / 2)).unwrap();
        // The thread keeps its descriptor, as in a child.
        follower.abandon();
        theirs.read_to_end(&mut Vec::new()).unwrap();
    }

    /// Where what comes back makes the thread panic.
    struct Panics;

    impl Read for Panics {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            panic!("as the test wants it")
        }
    }

    impl Write for Panics {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_waits_for_a_thread_that_panics_is_told() {
        let mut area = area("panicking");
        let replica = Replica::greet(Panics, &area).unwrap();
        let (queue, jobs) = channel();
        let answers: Vec<Arc<Answer<()>>> = (0..2).map(|_| Arc::default()).collect();
        for answer in &answers {
            queue.send(Job { capture: Arc::new(area.capture().unwrap()), answer: answer.clone() }).unwrap();
        }
        drop(queue);
        send_all(replica, &jobs, &OnceLock::new(), lost("panicking", Path::new("nowhere")), BEAT);
        for answer in answers {
            let error = answer.poll().expect("it is given").unwrap_err().to_string();
            assert!(error.contains("panicked"), "{error}");
        }
    }

    #[test]
    fn beats_may_come_before_and_between_commits() {
        let mut area = area("beating");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let receiver = thread::spawn(move || {
            let mut backup = Backup::accept(theirs, 4 * PAGE_SIZE).unwrap();
            while backup.receive().unwrap().is_some() {}
            (backup.commits(), backup.as_slice()[0])
        });
        let mut replica = Replica::greet(ours, &area).unwrap();
        replica.beat().unwrap();
        for value in 1..3 {
            area.as_mut_slice()[0] = value;
            replica.send(&area.capture().unwrap()).unwrap();
            replica.beat().unwrap();
            replica.beat().unwrap();
        }
        drop(replica);
        assert_eq!(receiver.join().unwrap(), (2, 2));
    }
}
