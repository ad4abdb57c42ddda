//! A backup of an area that grows a line in a store: it gets each commit, from a thread of its own, in the order in which they were made.

use crate::{
    Area, Capture, Error, Replica, Result,
    line::{Answer, UnderWay},
};
use std::{
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

/// A backup that says nothing for so long is lost.
const PATIENCE: Duration = Duration::from_secs(60);

struct Job {
    capture: Arc<Capture>,
    answer: Arc<Answer<()>>,
}

/// Dropped, it sends what is queued first.
pub(crate) struct Follower {
    socket: PathBuf,
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
            Replica::greet(stream, area)
        };
        let replica = connect().map_err(&lost)?;
        let (queue, jobs) = channel();
        let failure = Arc::new(OnceLock::new());
        let of_thread = failure.clone();
        let work = move || send_all(replica, &jobs, &of_thread, lost);
        let thread = std::thread::Builder::new().name("fermata-backup".into()).spawn(work);
        let thread = thread.map_err(Error::io(area.name(), "starting a thread"))?;
        let (socket, under_way) = (socket.to_owned(), UnderWay::default());
        Ok(Self { socket, under_way, failure, queue: Some(queue), thread: Some(thread) })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
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
fn send_all(mut replica: Replica<UnixStream>, jobs: &Receiver<Job>, failure: &OnceLock<Error>, lost: impl Fn(io::Error) -> Error) {
    for Job { capture, answer } in jobs {
        let result = match failure.get() {
            None => replica.send(&capture).map_err(&lost).inspect_err(|error| _ = failure.set(error.clone())),
            Some(failure) => Err(failure.clone()),
        };
        answer.give(result);
    }
}
