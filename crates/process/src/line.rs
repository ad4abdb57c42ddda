//! The line of checkpoints of one area, and the thread that writes it: captures come in order, and each stands on the one before.
//!
//! ```text
//!   commit() ──Capture──> queue ──> thread: pages, table, record, durable ──> Pending
//!                                      │ fails
//!                                      └──> its pages are owed: the area has them in its next capture; the next commit says so
//! ```
//!
//! A capture that was queued behind one that failed must not be written: its checkpoint would lack the other's pages. It fails, too.

use crate::{Area, Capture, Error, Result, capture::read_page, pruner::Pruner, record::record};
use fermata_linux::clock::Stopwatch;
use fermata_store::{Cost, Hold, Record, Store};
use fermata_types::{CheckpointId, PAGE_SIZE, PageNumber, PageSet, PartKind, PartState};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Commits of an area that are captured and not written, or not sent, at most: each has a copy of what it captured.
const UNDER_WAY: usize = 4;

/// The branch of the store that an area grows.
pub(crate) const BRANCH: &str = "main";

/// A commit that is being written behind the program. Dropping it does not stop it; what goes wrong is then told by the next commit.
#[derive(Debug)]
#[must_use = "whether the commit became a checkpoint is told by `wait`, or by the next commit"]
pub struct Pending {
    durable: Arc<Answer<CheckpointId>>,
    backups: Vec<Arc<Answer<()>>>,
}

/// What becomes of something that another thread does.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    result: Mutex<Option<Result<T>>>,
    there: Condvar,
}

/// What another thread is not done with.
#[derive(Debug)]
pub(crate) struct UnderWay<T>(Mutex<VecDeque<Arc<Answer<T>>>>);

impl<T: Clone> UnderWay<T> {
    pub fn add(&self, answer: Arc<Answer<T>>) {
        let mut under_way = lock(&self.0);
        under_way.retain(|answer| answer.poll().is_none());
        under_way.push_back(answer);
    }

    /// Waits until there is none.
    pub fn drain(&self) {
        lock(&self.0).drain(..).for_each(|answer| _ = answer.wait());
    }

    /// Waits until one more may be under way.
    pub fn make_room(&self) {
        let mut under_way = lock(&self.0);
        under_way.retain(|answer| answer.poll().is_none());
        while under_way.len() >= UNDER_WAY {
            let first = under_way.pop_front();
            // What becomes of it is told elsewhere.
            first.into_iter().for_each(|first| _ = first.wait());
        }
    }
}

impl<T> Default for UnderWay<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl Pending {
    /// Waits until it is durable and every backup of the area has it ([`crate::CriticalArea::back_up_to`]), and says which checkpoint it is.
    ///
    /// [`Error::Backup`]: it is durable here, and a backup has not got it.
    pub fn wait(&self) -> Result<CheckpointId> {
        let id = self.wait_durable()?;
        self.wait_replicated().map(|()| id)
    }

    /// The same without waiting; none as long as it is being written or sent.
    pub fn poll(&self) -> Option<Result<CheckpointId>> {
        let id = match self.durable.poll()? {
            Ok(id) => id,
            Err(error) => return Some(Err(error)),
        };
        let sent = self.backups.iter().map(|backup| backup.poll()).collect::<Option<Result<()>>>()?;
        Some(sent.map(|()| id))
    }

    /// Waits until it is durable here, and for no backup.
    pub(crate) fn wait_durable(&self) -> Result<CheckpointId> {
        self.durable.wait()
    }

    /// The same, and says every so often that it is being waited for. Fails first with what saying so failed with.
    pub(crate) fn wait_durable_saying(&self, every: Duration, say: &mut dyn FnMut() -> Result<()>) -> Result<Result<CheckpointId>> {
        loop {
            match self.durable.wait_for(every) {
                Some(result) => return Ok(result),
                None => say()?,
            }
        }
    }

    /// Waits until every backup of the area has it, and not for the disk.
    pub fn wait_replicated(&self) -> Result<()> {
        self.backups.iter().try_for_each(|backup| backup.wait())
    }

    pub(crate) fn with_backups(self, backups: Vec<Arc<Answer<()>>>) -> Self {
        Self { backups, ..self }
    }
}

impl<T> Default for Answer<T> {
    fn default() -> Self {
        Self { result: Mutex::default(), there: Condvar::new() }
    }
}

impl<T: Clone> Answer<T> {
    pub fn give(&self, result: Result<T>) {
        *lock(&self.result) = Some(result);
        self.there.notify_all();
    }

    pub fn poll(&self) -> Option<Result<T>> {
        lock(&self.result).clone()
    }

    pub fn wait(&self) -> Result<T> {
        let result = lock(&self.result);
        let result = self.there.wait_while(result, |result| result.is_none()).unwrap_or_else(|poisoned| poisoned.into_inner());
        result.clone().expect("waited for")
    }

    /// Waits for so long at most.
    fn wait_for(&self, time: Duration) -> Option<Result<T>> {
        let result = lock(&self.result);
        self.there.wait_timeout_while(result, time, |result| result.is_none()).unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

struct Job {
    capture: Arc<Capture>,
    /// It has all of the area, and not only what changed.
    is_whole: bool,
    message: Option<String>,
    pause: Duration,
    /// Failures that the area knew of when it was captured.
    era: u64,
    answer: Arc<Answer<CheckpointId>>,
}

/// What the thread and the program share.
#[derive(Default)]
struct State {
    head: Option<Head>,
    /// Of captures that failed: what the area has to capture again.
    owed: (PageSet, PageSet),
    /// Not told by a commit yet.
    failure: Option<Error>,
    failures: u64,
    queued: usize,
    /// Removes what is not to be kept, if that was said.
    pruner: Option<Pruner>,
}

#[derive(Clone)]
struct Head {
    hold: Arc<Hold>,
    state: Arc<PartState>,
}

/// The line of one area. Dropped, it writes what is queued first.
pub(crate) struct Line {
    name: String,
    store: Store,
    shared: Arc<(Mutex<State>, Condvar)>,
    era: u64,
    under_way: UnderWay<CheckpointId>,
    queue: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Line({}, {:?})", self.name, self.head())
    }
}

impl Line {
    /// The line of this name, and the state of the area at its head; none if it is new.
    pub fn open(store: &Store, name: &str) -> Result<(Self, Option<PartState>)> {
        let head = match store.branch_to_grow(name, BRANCH)? {
            None => None,
            Some(id) => {
                let hold = Arc::new(store.hold(&id)?);
                let mut parts = store.record(&id)?.parts;
                let part = parts.pop().filter(|part| parts.is_empty() && part.kind == PartKind::Process && part.name == name);
                let state = part.ok_or_else(|| Error::foreign(name, format!("{} is of an experiment", id.short())))?;
                Some(Head { hold, state: Arc::new(state) })
            }
        };
        let state = head.as_ref().map(|head| (*head.state).clone());
        let shared = Arc::new((Mutex::new(State { head, ..State::default() }), Condvar::new()));
        let (queue, jobs) = channel();
        let (of_thread, into, owner) = (shared.clone(), store.clone(), name.to_owned());
        let work = move || write_all(&into, &owner, &of_thread, &jobs);
        let thread = std::thread::Builder::new().name("fermata-area".into()).spawn(work).map_err(Error::io(name, "starting a thread"))?;
        let (name, store, under_way) = (name.to_owned(), store.clone(), UnderWay::default());
        Ok((Self { name, store, shared, era: 0, under_way, queue: Some(queue), thread: Some(thread) }, state))
    }

    /// The checkpoint that was made durable last.
    pub fn head(&self) -> Option<CheckpointId> {
        lock(&self.shared.0).head.as_ref().map(|head| head.hold.id())
    }

    /// Removes what is older than the last so many from now on, behind all others.
    pub fn keep_last(&self, commits: u32) -> Result<()> {
        // Under the lock: each checkpoint is the head here, or told of later.
        let mut state = lock(&self.shared.0);
        let head = state.head.as_ref().map(|head| head.hold.id());
        state.pruner = Some(Pruner::start(&self.store, &self.name, head, commits)?);
        Ok(())
    }

    /// Removes what is too old by now, if it was said how many are kept, and nothing from then on.
    pub fn stop_pruning(&self) {
        let pruner = lock(&self.shared.0).pruner.take();
        pruner.into_iter().for_each(Pruner::finish);
    }

    /// Hands what failed back to the area; the failure itself, once.
    pub fn recover(&mut self, area: &mut Area) -> Result<()> {
        let mut state = lock(&self.shared.0);
        // What fails from here on, the area does not know of: whatever it captures next must not be written then.
        self.era = state.failures;
        let (pages, dropped) = std::mem::take(&mut state.owed);
        area.owe(&pages, &dropped);
        match state.failure.take() {
            None => Ok(()),
            Some(error) => Err(Error::Earlier { area: self.name.clone(), source: Box::new(error) }),
        }
    }

    /// Waits until a capture may be queued without there being too many.
    pub fn make_room(&self) {
        self.under_way.make_room();
    }

    /// Queues a capture of what changed.
    pub fn write(&self, capture: Arc<Capture>, message: Option<String>, pause: Duration) -> Pending {
        self.queue(capture, false, message, pause)
    }

    /// Queues one of all that there is, whatever was there before.
    pub fn write_whole(&self, capture: Arc<Capture>, message: Option<String>) -> Pending {
        self.queue(capture, true, message, Duration::ZERO)
    }

    fn queue(&self, capture: Arc<Capture>, is_whole: bool, message: Option<String>, pause: Duration) -> Pending {
        let answer = Arc::new(Answer::default());
        self.under_way.add(answer.clone());
        let mut state = lock(&self.shared.0);
        state.queued += 1;
        let job = Job { capture, is_whole, message, pause, era: self.era, answer: answer.clone() };
        drop(state);
        let queue = self.queue.as_ref().expect("open until dropped");
        if let Err(refused) = queue.send(job) {
            // The thread has panicked. Its captures are lost to it, but not to the memory.
            let error = Error::io(&self.name, "writing behind the program")(io::Error::other("the thread that writes has ended"));
            fail(&self.shared, refused.0, error);
        }
        Pending { durable: answer, backups: Vec::new() }
    }

    /// Waits until nothing is queued.
    pub fn drain(&self) {
        let state = lock(&self.shared.0);
        let is_gone = || self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        let busy = |state: &mut State| state.queued > 0 && !is_gone();
        drop(self.shared.1.wait_while(state, busy).unwrap_or_else(|poisoned| poisoned.into_inner()));
    }

    /// A page as the newest durable checkpoint has it.
    pub fn read_page(&self, page: PageNumber, into: &mut [u8; PAGE_SIZE]) -> Result<()> {
        let head = lock(&self.shared.0).head.clone();
        match head {
            None => into.fill(0),
            Some(head) => read_page(&self.store, &head.state, page, into)?,
        }
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        drop(self.queue.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Work that others wait for: a panic is an error of it. They would wait for ever if the thread ended by one.
pub(crate) fn caught<T, E>(work: impl FnOnce() -> Result<T, E>, failed: impl FnOnce(io::Error) -> E) -> Result<T, E> {
    // What it leaves half done is dropped, as after an error.
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(failed(io::Error::other("a bug of Fermata: it panicked, see what it wrote to stderr"))))
}

fn write_all(store: &Store, name: &str, shared: &(Mutex<State>, Condvar), jobs: &Receiver<Job>) {
    for job in jobs {
        let (head, failures) = {
            let state = lock(&shared.0);
            (state.head.clone(), state.failures)
        };
        if job.era != failures {
            let first = lock(&shared.0).failure.clone();
            fail(shared, job, stands_on(name, first));
            continue;
        }
        match caught(|| write(store, name, head, &job), Error::io(name, "writing behind the program")) {
            Ok(head) => {
                let id = head.hold.id();
                let mut state = lock(&shared.0);
                state.head = Some(head);
                state.queued -= 1;
                state.pruner.iter().for_each(|pruner| pruner.committed(id));
                drop(state);
                shared.1.notify_all();
                job.answer.give(Ok(id));
            }
            Err(error) => fail(shared, job, error),
        }
    }
}

/// Why a commit fails that was captured before one failed on which it stands. Who waits for this one alone is to hear what went wrong, if no commit has said so yet.
fn stands_on(name: &str, first: Option<Error>) -> Error {
    match first {
        Some(first) => Error::Earlier { area: name.to_owned(), source: Box::new(first) },
        None => {
            let source = io::Error::other("an earlier commit was not written, and this one stands on it");
            Error::io(name, "writing behind the program")(source)
        }
    }
}

fn fail(shared: &(Mutex<State>, Condvar), job: Job, error: Error) {
    let (pages, dropped) = job.capture.touched();
    let mut state = lock(&shared.0);
    state.owed.0 |= pages;
    state.owed.1 |= dropped;
    state.failures += 1;
    state.queued -= 1;
    // The first one is what the others follow from.
    state.failure.get_or_insert(error.clone());
    drop(state);
    shared.1.notify_all();
    job.answer.give(Err(error));
}

fn write(store: &Store, name: &str, head: Option<Head>, job: &Job) -> Result<Head> {
    let watch = Stopwatch::start();
    let mut writer = store.writer()?;
    let base = head.as_ref().filter(|_| !job.is_whole);
    let (part, pages) = job.capture.put(base.map(|head| &*head.state), &mut writer)?;
    let stored_bytes = writer.stored_bytes()?;
    let cost = Cost {
        pause_ns: job.pause.as_nanos() as u64,
        save_ns: watch.elapsed().as_nanos() as u64,
        stored_bytes,
        stored_by_part: BTreeMap::from([(name.to_owned(), stored_bytes)]),
        pages,
        parts: BTreeMap::from([(name.to_owned(), pages)]),
        ..Cost::default()
    };
    let pages: u64 = part.tables.values().map(|root| root.pages).sum();
    let spec = serde_json::json!({ "name": name, "area": { "pages": pages } });
    let parent = head.as_ref().map(|head| head.hold.id());
    let record = Record { message: job.message.clone(), ..record(parent, name, BRANCH, spec, vec![part.clone()], cost) };
    let hold = writer.commit_held(&store.in_line(record))?;
    Ok(Head { hold: Arc::new(hold), state: Arc::new(part) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Tracking};

    /// Whoever waits for it alone would not hear of it otherwise.
    #[test]
    fn a_commit_that_stands_on_one_that_failed_says_why_that_did() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(&place.path().join("store")).unwrap();
        let (line, _) = Line::open(&store, "orders").unwrap();
        let mut area = Area::new("of a line", PAGE_SIZE, Options::default().tracking(Tracking::Compare)).unwrap();
        std::fs::rename(place.path().join("store/packs"), place.path().join("away")).unwrap();
        // Both are there before the first is begun.
        let mut state = lock(&line.shared.0);
        let mut answers = Vec::new();
        for value in 1..=2 {
            area.as_mut_slice()[0] = value;
            let (capture, answer) = (Arc::new(area.capture().unwrap()), Arc::new(Answer::default()));
            answers.push(answer.clone());
            state.queued += 1;
            let job = Job { capture, is_whole: false, message: None, pause: Duration::ZERO, era: 0, answer };
            line.queue.as_ref().unwrap().send(job).unwrap();
        }
        drop(state);
        let errors: Vec<_> = answers.iter().map(|answer| answer.wait().unwrap_err().to_string()).collect();
        assert!(errors[1].contains(&errors[0]) && errors[1].contains("commit again"), "{errors:?}");
    }

    #[test]
    fn who_waits_says_so_until_it_is_there() {
        let answer = Arc::new(Answer::default());
        let pending = Pending { durable: answer.clone(), backups: Vec::new() };
        let mut said = 0;
        let failed = |what: &str| Error::refused("orders", what, "nothing");
        let waited = pending.wait_durable_saying(Duration::from_millis(1), &mut || {
            said += 1;
            if said == 3 {
                answer.give(Err(failed("it is over")));
            }
            Ok(())
        });
        assert!(waited.unwrap().is_err() && said == 3);
        let pending = Pending { durable: Arc::default(), backups: Vec::new() };
        assert!(pending.wait_durable_saying(Duration::ZERO, &mut || Err(failed("nobody listens"))).is_err());
    }
}
