//! Keeps the line of an area short, for a program that commits again and again: what is older than its last so many commits goes, behind the program.
//!
//! ```text
//!   line ──committed──> Pruner ──every ten seconds──> thread: removes what is too old, and frees the space when that is worth it
//!                          └──in the end, if it is waited for──> removes what is too old
//! ```
//!
//! No commit waits for this but for the store's transaction, which has many of them at once. What is tagged stays, and so does what another branch stands on.

use crate::{Error, Result};
use fermata_linux::priority;
use fermata_store::{Removal, Store};
use fermata_types::CheckpointId;
use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread,
    time::Duration,
};

const EVERY: Duration = Duration::from_secs(10);
/// Removed in one transaction.
const AT_ONCE: usize = 256;

/// Dropped, it ends its thread, and waits for nothing: what ends anywhere only leaves work to the next one.
#[derive(Debug)]
pub(crate) struct Pruner {
    committed: Sender<CheckpointId>,
    kept: Arc<Mutex<Kept>>,
    _ends: Sender<()>,
}

impl Pruner {
    /// Keeps so many commits of an area, one at least, whose newest is this one.
    pub fn start(store: &Store, area: &str, newest: Option<CheckpointId>, keep: u32) -> Result<Self> {
        let (ends, ended) = channel();
        let (committed, fresh) = channel();
        let kept = Arc::new(Mutex::new(Kept::new(store, area, newest, keep, fresh)));
        let (of_thread, store, owner) = (kept.clone(), store.clone(), area.to_owned());
        let work = move || {
            priority::go_last();
            loop {
                let removed = lock(&of_thread).remove();
                // Without the lock: who waits for the end does not wait for this.
                tell(&owner, removed.and_then(|()| store.collect_if_due(&mut |_, _| {}).map(drop)));
                if ended.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        thread::Builder::new().name("fermata-prune".into()).spawn(work).map_err(Error::io(area, "starting a thread"))?;
        Ok(Self { committed, kept, _ends: ends })
    }

    /// One more is durable.
    pub fn committed(&self, id: CheckpointId) {
        // Whoever takes it is there as long as this is.
        let _ = self.committed.send(id);
    }

    /// Ends when nothing is there that is too old. Its space is left to the next one: to free it may take long.
    pub fn finish(self) {
        let mut kept = lock(&self.kept);
        let removed = kept.remove();
        tell(&kept.area, removed);
    }
}

/// Nobody's commit fails by this.
fn tell(area: &str, freed: fermata_store::Result<()>) {
    if let Err(error) = freed {
        // There are more than need be; the next round tries again.
        tracing::warn!("area {area}: commits that are not to be kept any longer could not be removed, or their space not freed: {error}");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The commits of an area that are there.
#[derive(Debug)]
struct Kept {
    store: Store,
    area: String,
    keep: usize,
    /// The newest of earlier programs, until theirs are in the line.
    unread: Option<CheckpointId>,
    /// The oldest first.
    line: VecDeque<CheckpointId>,
    /// What became durable since.
    fresh: Receiver<CheckpointId>,
}

impl Kept {
    fn new(store: &Store, area: &str, newest: Option<CheckpointId>, keep: u32, fresh: Receiver<CheckpointId>) -> Self {
        let (store, area, keep) = (store.clone(), area.to_owned(), keep.max(1) as usize);
        Self { store, area, keep, unread: newest, line: VecDeque::new(), fresh }
    }

    /// Those of earlier programs. What lies behind one that cannot be read stays, and so does what was taken over from another experiment.
    fn read(&mut self) {
        let mut next = self.unread.take();
        while let Some(id) = next
            && let Ok(record) = self.store.record(&id)
            && record.experiment == self.area
        {
            self.line.push_front(id);
            next = record.parent;
        }
    }

    fn remove(&mut self) -> fermata_store::Result<()> {
        self.read();
        self.line.extend(self.fresh.try_iter());
        let (tags, heads) = (self.store.tags(&self.area)?, self.store.branches(&self.area)?);
        let stays: HashSet<_> = tags.into_values().chain(heads.into_values()).collect();
        while self.line.len() > self.keep {
            let count = (self.line.len() - self.keep).min(AT_ONCE);
            let going: Vec<_> = self.line.iter().take(count).filter(|id| !stays.contains(*id)).copied().collect();
            self.remove_all(going)?;
            self.line.drain(..count);
        }
        Ok(())
    }

    fn remove_all(&self, checkpoints: Vec<CheckpointId>) -> fermata_store::Result<()> {
        let remove = |checkpoints| self.store.remove(&Removal { checkpoints, ..Removal::default() }).map(drop);
        match remove(checkpoints.clone()) {
            // Somebody else has removed some of them.
            Err(fermata_store::Error::Missing { .. }) => {
                remove(checkpoints.into_iter().filter(|id| self.store.record(id).is_ok()).collect())
            }
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CriticalArea, Options, Tracking};
    use fermata_linux::clock::Stopwatch;

    const SOON: Duration = Duration::from_secs(60);

    fn opened(store: &Store, options: Options) -> CriticalArea {
        let (options, watch) = (options.tracking(Tracking::Compare).anywhere(), Stopwatch::start());
        loop {
            match CriticalArea::open(store, "kept", 4096, options.clone()) {
                // A program that another test starts has the lock, too, until it is that program.
                Err(Error::Refused { .. }) if watch.elapsed() < SOON => thread::yield_now(),
                opened => return opened.unwrap(),
            }
        }
    }

    fn commits(area: &mut CriticalArea, count: usize) -> Vec<CheckpointId> {
        (0..count).map(|_| area.begin().unwrap().commit().unwrap()).collect()
    }

    fn left(store: &Store) -> Vec<CheckpointId> {
        store.records().unwrap().into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn the_last_ones_stay_and_what_is_tagged() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(place.path()).unwrap();
        let mut area = opened(&store, Options::default());
        let ids = commits(&mut area, 9);
        store.tag("kept", "good", &ids[1]).unwrap();
        let remove = |id| store.remove(&Removal { checkpoints: vec![id], ..Removal::default() }).unwrap();
        remove(ids[2]);
        let (committed, fresh) = channel();
        let mut kept = Kept::new(&store, "kept", area.head(), 3, fresh);
        kept.read();
        assert_eq!(kept.line, ids.iter().filter(|id| **id != ids[2]).copied().collect::<Vec<_>>());
        // Behind its back.
        remove(ids[4]);
        kept.remove().unwrap();
        assert_eq!(left(&store), [ids[1], ids[6], ids[7], ids[8]]);
        let more = commits(&mut area, 2);
        more.iter().for_each(|id| committed.send(*id).unwrap());
        kept.remove().unwrap();
        assert_eq!(left(&store), [ids[1], ids[8], more[0], more[1]]);
        assert_eq!(commits(&mut area, 1).len(), 1, "the line grows on");
    }

    #[test]
    fn an_area_that_is_opened_to_keep_few_loses_what_earlier_programs_left() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(place.path()).unwrap();
        let ids = commits(&mut opened(&store, Options::default()), 5);
        let area = opened(&store, Options::default().keep_last(2));
        let watch = Stopwatch::start();
        while left(&store).len() > 2 && watch.elapsed() < SOON {
            thread::yield_now();
        }
        assert_eq!(left(&store), ids[3..]);
        assert_eq!(area.head(), Some(ids[4]));
    }
}
