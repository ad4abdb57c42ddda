//! The memory of a rank: watched for writes, and captured at an instant while it is saved behind the running program.
//!
//! ```text
//!   capture: what was written since the last capture is protected again, and to be saved
//!   writer ──fault──> page is to be saved still? copied first ──> noted, opened, and with it those that are likely to be next ──> writer goes on
//!   saver: copies, and pages that nobody has written to since
//! ```
//!
//! Who faults and who saves take a page under one lock, so that each is saved as it was at the capture.

use super::{around::Around, wire::Pages};
use fermata_checkpoint::consistent::Ccn;
use fermata_linux::{FaultKind, OwnMemory, Userfault, Writes, clock::Stopwatch, own_memory::Pieces, probe};
use fermata_tracker::{
    Tracker,
    userfault::{UserfaultTracker, WriteLog},
};
use fermata_types::{PAGE_SIZE, PageBuf, PageNumber, PageSet};
use std::{
    io,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Address space that a rank's memory can grow in: 64 GiB.
const RESERVE: u64 = 64 << 30;
/// How long a reader of faults sleeps where there are none.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pages that the saver takes at a time.
pub(super) const BATCH: usize = 32;

/// Reserves the memory of this rank.
pub(super) fn reserve() -> io::Result<(OwnMemory, Pieces)> {
    OwnMemory::reserve(RESERVE)
}

/// The memory of a rank, watched if it is ever captured.
#[derive(Debug)]
pub(super) struct Area {
    memory: OwnMemory,
    used: u64,
    watch: Option<Watch>,
    capture: Mutex<Capture>,
    faults: AtomicU64,
    fault_ns: AtomicU64,
}

/// Who sees writes.
#[derive(Debug)]
struct Watch {
    tracker: Mutex<UserfaultTracker>,
    log: WriteLog,
    userfault: Arc<Userfault>,
}

impl Watch {
    fn begin(range: Range<u64>) -> io::Result<Self> {
        let (descriptor, _) = probe::userfaultfd()?;
        let userfault = Arc::new(Userfault::new(descriptor, Writes::Sync)?);
        userfault.register(range.clone(), false)?;
        let (tracker, log) = UserfaultTracker::new(range, userfault.clone()).map_err(io::Error::other)?;
        Ok(Self { tracker: Mutex::new(tracker), log, userfault })
    }
}

fn unseen(error: io::Error) -> io::Error {
    let why = format!(
        "checkpoints need userfaultfd, which this process cannot have: {error}; `fermata doctor` says what to do, and --every 0s goes without checkpoints"
    );
    io::Error::new(error.kind(), why)
}

/// What is being saved.
#[derive(Debug, Default)]
struct Capture {
    ccn: Ccn,
    /// To be saved, and unchanged since the capture.
    left: PageSet,
    /// As they were at the capture.
    copies: Vec<(PageNumber, Box<PageBuf>)>,
    /// Given to be saved for a checkpoint that is not permanent: the next one needs them if it is aborted.
    owed: PageSet,
}

/// What a capture cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// Pages that were copied because the program was about to write to them.
    pub copied: u64,
    /// How long it waited for that.
    pub waited: Duration,
}

impl Area {
    /// Watches the memory of which `used` bytes were given out. What it holds now counts as saved if `saved`.
    pub fn watch(memory: OwnMemory, used: u64, saved: bool) -> io::Result<Arc<Self>> {
        let mut area = Self::unwatched(memory, used, saved);
        let start = area.memory.range().start;
        area.watch = Some(Watch::begin(start..start + area.used).map_err(unseen)?);
        Ok(Arc::new(area))
    }

    /// The same for a rank that is never captured: this asks nothing of the kernel.
    pub fn unwatched(memory: OwnMemory, used: u64, saved: bool) -> Self {
        let used = used.max(1).next_multiple_of(PAGE_SIZE as u64);
        let owed = if saved { PageSet::new() } else { pages(used) };
        let capture = Mutex::new(Capture { owed, ..Capture::default() });
        Self { memory, used, watch: None, capture, faults: AtomicU64::new(0), fault_ns: AtomicU64::new(0) }
    }

    /// Bytes that are captured.
    pub fn used(&self) -> u64 {
        self.used
    }

    pub fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    fn watched(&self) -> io::Result<&Watch> {
        self.watch.as_ref().ok_or_else(|| io::Error::other("there were to be no checkpoints, and its memory is not watched"))
    }

    /// Lets writers through, for ever.
    pub fn serve(&self) -> io::Result<()> {
        let Watch { log, userfault, .. } = self.watched()?;
        let (mut faults, mut around) = (Vec::new(), Around::new((self.used / PAGE_SIZE as u64) as PageNumber));
        loop {
            userfault.wait(&mut faults, PATIENCE)?;
            let watch = Stopwatch::start();
            for fault in faults.drain(..).filter(|fault| fault.kind == FaultKind::Write) {
                let pages = around.of(((fault.address - self.memory.range().start) / PAGE_SIZE as u64) as PageNumber);
                self.let_through(pages, log)?;
            }
            self.fault_ns.fetch_add(watch.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Opens pages that are about to be written to, and copies those of them before that are to be saved still. Both under the lock: two threads of the program may fault on
    /// one page, and when the second fault is answered it may be protected again, for the next capture.
    fn let_through(&self, pages: Range<PageNumber>, log: &WriteLog) -> io::Result<()> {
        let mut capture = self.lock();
        for page in pages.clone() {
            if capture.left.remove(page) {
                let mut copy = Box::new([0; PAGE_SIZE]);
                self.memory.read_at(u64::from(page) * PAGE_SIZE as u64, &mut *copy)?;
                capture.copies.push((page, copy));
                self.faults.fetch_add(1, Ordering::Relaxed);
            }
        }
        log.wrote_all(pages)
    }

    /// Captures the memory as it is now, for this checkpoint; once more, if it was captured for it before: then what was written since is saved again. The program must
    /// stand still, or what it writes meanwhile must be captured once more. Returns how many pages are to be saved.
    pub fn capture(&self, ccn: Ccn, full: bool) -> io::Result<u64> {
        let mut capture = self.lock();
        let written = self.take()?;
        let mut left = if full { pages(self.used) } else { written };
        if capture.ccn == ccn {
            left |= &capture.left;
        } else {
            left |= &capture.owed;
            self.faults.store(0, Ordering::Relaxed);
            self.fault_ns.store(0, Ordering::Relaxed);
        }
        capture.owed |= &left;
        capture.ccn = ccn;
        capture.copies.clear();
        capture.left = left;
        Ok(capture.left.len())
    }

    fn take(&self) -> io::Result<PageSet> {
        self.watched()?.tracker.lock().unwrap_or_else(PoisonError::into_inner).take().map_err(io::Error::other)
    }

    /// Some pages of the capture, up to [`BATCH`]. False if there are none left, or if the capture is not this one any more.
    pub fn save_some(&self, into: &mut Pages) -> io::Result<bool> {
        let mut capture = self.lock();
        if capture.ccn != into.ccn {
            return Ok(false);
        }
        // Copies first: each holds memory. From behind: the others need not be moved.
        if !capture.copies.is_empty() {
            let others = capture.copies.len().saturating_sub(BATCH);
            capture.copies.drain(others..).for_each(|(page, content)| into.push(page, &content));
            return Ok(true);
        }
        let mut content = [0; PAGE_SIZE];
        for _ in 0..BATCH {
            let Some(page) = capture.left.min() else { break };
            self.memory.read_at(u64::from(page) * PAGE_SIZE as u64, &mut content)?;
            capture.left.remove(page);
            into.push(page, &content);
        }
        Ok(!capture.left.is_empty() || !capture.copies.is_empty())
    }

    /// A checkpoint is over.
    pub fn over(&self, ccn: Ccn, permanent: bool) {
        let mut capture = self.lock();
        if capture.ccn != ccn {
            return;
        }
        if permanent {
            capture.owed.clear();
        }
        // Nobody saves it any more, and no copies are needed.
        capture.ccn = 0;
        capture.left.clear();
        capture.copies.clear();
    }

    /// What the last capture cost so far.
    pub fn faults(&self) -> Faults {
        Faults { copied: self.faults.load(Ordering::Relaxed), waited: Duration::from_nanos(self.fault_ns.load(Ordering::Relaxed)) }
    }

    fn lock(&self) -> MutexGuard<'_, Capture> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pages(used: u64) -> PageSet {
    PageSet::from_iter(0..(used / PAGE_SIZE as u64) as PageNumber)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn saved(area: &Area, ccn: Ccn) -> BTreeMap<PageNumber, u64> {
        let (mut pages, mut more) = (BTreeMap::new(), true);
        while more {
            let mut some = Pages::new(ccn, BATCH);
            more = area.save_some(&mut some).unwrap();
            pages.extend(some.iter().map(|(page, content)| (page, u64::from_ne_bytes(content[..8].try_into().unwrap()))));
        }
        pages
    }

    #[test]
    fn pages_are_saved_as_they_were() {
        const PAGES: usize = 100;
        const WORDS: usize = PAGE_SIZE / 8;
        let (memory, mut pieces) = reserve().unwrap();
        let words = pieces.take::<u64>(PAGES * WORDS).unwrap();
        let area = Area::watch(memory, pieces.used(), true).unwrap();
        let server = area.clone();
        std::thread::spawn(move || server.serve());
        (0..50).for_each(|page| words[page * WORDS] = 1);
        area.capture(1, false).unwrap();
        (20..60).for_each(|page| words[page * WORDS] = 2);
        assert!(area.faults().copied >= 30);
        // Neighbours may be saved with them.
        let pages = saved(&area, 1);
        assert!((0..50).all(|page| pages.contains_key(&page)) && pages.len() < PAGES, "{pages:?}");
        assert!(pages.iter().all(|(page, value)| *value == u64::from(*page < 50)), "{pages:?}");
        // Aborted: what was saved for it is owed still.
        area.over(1, false);
        words[70 * WORDS] = 3;
        area.capture(2, false).unwrap();
        assert!(saved(&area, 1).is_empty());
        let value = |page| {
            if page < 20 {
                1
            } else if page < 60 {
                2
            } else {
                3 * u64::from(page == 70)
            }
        };
        let pages = saved(&area, 2);
        assert!((0..60).chain([70]).all(|page| pages.contains_key(&page)), "{pages:?}");
        assert!(pages.iter().all(|(page, saved)| *saved == value(*page)), "{pages:?}");
        area.over(2, true);
        area.capture(3, false).unwrap();
        assert!(saved(&area, 3).is_empty());
        area.over(3, true);
        area.capture(4, true).unwrap();
        assert_eq!(saved(&area, 4).len(), PAGES);
    }

    #[test]
    fn memory_that_is_never_captured_is_not_watched() {
        let (memory, mut pieces) = reserve().unwrap();
        let words = pieces.take::<u64>(PAGE_SIZE / 8).unwrap();
        let area = Area::unwatched(memory, pieces.used(), false);
        words[0] = 1;
        assert!(area.capture(1, false).unwrap_err().to_string().contains("not watched"));
        let refused = unseen(io::Error::from_raw_os_error(1)).to_string();
        assert!(refused.contains("userfaultfd") && refused.contains("fermata doctor") && refused.contains("--every 0s"), "{refused}");
    }

    #[test]
    fn what_is_copied_ahead_and_written_again_is_saved_again() {
        let (memory, mut pieces) = reserve().unwrap();
        let words = pieces.take::<u64>(10 * PAGE_SIZE / 8).unwrap();
        let area = Area::watch(memory, pieces.used(), true).unwrap();
        let server = area.clone();
        std::thread::spawn(move || server.serve());
        words[0] = 1;
        words[PAGE_SIZE / 8] = 1;
        assert_eq!(area.capture(1, false).unwrap(), 2);
        assert_eq!(saved(&area, 1), BTreeMap::from([(0, 1), (1, 1)]));
        words[0] = 2;
        assert_eq!(area.capture(1, false).unwrap(), 1);
        assert_eq!(saved(&area, 1), BTreeMap::from([(0, 2)]));
        area.over(1, false);
        area.capture(2, false).unwrap();
        assert_eq!(saved(&area, 2), BTreeMap::from([(0, 2), (1, 1)]));
    }
}
