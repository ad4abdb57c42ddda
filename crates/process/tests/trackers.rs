//! What every tracker must do that watches memory of this process, `auto` among them: with what it names copied and nothing else, the copy is the memory. Those that watch a guest's memory are held to the same in
//! `crates/tracker/tests/conformance.rs`.
//!
//! As an area takes: nobody writes meanwhile. A test that fails says its seed.

use fermata_linux::{AreaMemory, trials::drop_from_mapping};
use fermata_process::{Tracking, tracking};
use fermata_tracker::Tracker;
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use random::Random;
#[cfg(target_arch = "x86_64")]
use std::collections::BTreeSet;
use std::{
    fs::File,
    io::{self, Read, Write as _},
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

// Not all draw in all ways.
#[allow(dead_code)]
#[path = "../../testkit/src/random.rs"]
mod random;

const PAGES: PageNumber = 2048;
/// They share the pages out evenly.
const WRITERS: usize = 4;
const ROUNDS: usize = 60;

/// Every test, for every tracker.
macro_rules! conform {
    ($($name:ident: $tracking:expr;)*) => {$(
        mod $name {
            use super::*;

            tests! { $tracking => each_page_once whole_tables_dropped expected hostile_writers }
        }
    )*};
}

macro_rules! tests {
    ($tracking:expr => $($test:ident)*) => {$(
        #[test]
        fn $test() {
            super::$test($tracking);
        }
    )*};
}

conform! {
    auto: Tracking::Auto;
    assisted: Tracking::Assisted;
    protect: Tracking::Protect;
    emulate: Tracking::Emulate;
    soft_dirty: Tracking::SoftDirty;
    compare: Tracking::Compare;
    difference: Tracking::Difference;
}

/// The soft-dirty bits are the process's: one test at a time has them.
static SOFT_DIRTY: Mutex<()> = Mutex::new(());

/// Memory under a tracker, and a copy of it that is kept up to date by what the tracker says and nothing else.
struct Rig {
    tracking: Tracking,
    // Before the memory, which it watches.
    tracker: Box<dyn Tracker>,
    memory: AreaMemory,
    copy: Vec<u8>,
    _alone: Option<MutexGuard<'static, ()>>,
}

impl Rig {
    /// None, with a word, where this host cannot do it.
    fn new(tracking: Tracking) -> Option<Self> {
        let alone = (tracking == Tracking::SoftDirty).then(|| SOFT_DIRTY.lock().unwrap_or_else(PoisonError::into_inner));
        let mut memory = AreaMemory::new("trackers", u64::from(PAGES) * PAGE_SIZE as u64).unwrap();
        // Some of it is there before anybody watches.
        memory.as_mut_slice().chunks_mut(100 * PAGE_SIZE).for_each(|pages| pages[8] = 1);
        let mut tracker = match tracking::start(tracking, &memory, true) {
            Ok(tracker) => tracker,
            Err(error) => {
                // Past what holds a test's output back. Nobody needs to hear it.
                let _ = writeln!(io::stderr(), "skipped: {tracking}: {error}");
                return None;
            }
        };
        // What was written before, if it names that.
        tracker.take().unwrap();
        let copy = memory.as_slice().to_vec();
        Some(Self { tracking, tracker, memory, copy, _alone: alone })
    }

    fn write(&mut self, page: PageNumber, value: u64) {
        store(self.memory.as_mut_slice(), page as usize * PAGE_SIZE, value);
    }

    /// Asks the tracker, and copies what it names, as a checkpoint does.
    fn take(&mut self) -> PageSet {
        let words = self.tracker.take_words().unwrap();
        let memory = self.memory.as_slice();
        let mut copy = |at: Range<usize>| self.copy[at.clone()].copy_from_slice(&memory[at]);
        for page in &words.whole {
            let at = page as usize * PAGE_SIZE;
            copy(at..at + PAGE_SIZE);
        }
        for (page, mask) in &words.parts {
            let named = (0..PAGE_SIZE / 8).filter(|word| mask[word / 64] & 1 << (word % 64) != 0);
            named.map(|word| *page as usize * PAGE_SIZE + word * 8).for_each(|at| copy(at..at + 8));
        }
        words.pages()
    }

    fn verify(&self, when: &str) {
        let pages = self.memory.as_slice().chunks_exact(PAGE_SIZE).zip(self.copy.chunks_exact(PAGE_SIZE));
        let missed: Vec<_> = pages.enumerate().filter(|(_, (memory, copy))| memory != copy).map(|(page, _)| page).collect();
        let (tracking, some) = (self.tracking, &missed[..missed.len().min(8)]);
        assert!(missed.is_empty(), "{tracking} {when}: {} pages were missed, among them {some:?}", missed.len());
    }
}

fn store(memory: &mut [u8], at: usize, value: u64) {
    memory[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn bytes(pages: &Range<PageNumber>) -> Range<usize> {
    pages.start as usize * PAGE_SIZE..pages.end as usize * PAGE_SIZE
}

/// The plain contract, one step after the other: what was written is named once, what was only read is not named.
fn each_page_once(tracking: Tracking) {
    let Some(mut rig) = Rig::new(tracking) else { return };
    assert!(rig.take().is_empty(), "nobody has written yet");
    // The ends, both sides of where page tables and huge pages meet, and one in the middle of nowhere.
    let pages = [0, 1, 511, 512, 513, 1024, 2000, PAGES - 1];
    for round in 1..4 {
        for page in pages {
            rig.write(page, round);
            assert_eq!(rig.take(), PageSet::from_iter([page]), "{tracking}");
        }
        pages.into_iter().for_each(|page| rig.write(page, round + 10));
        assert!(rig.memory.as_slice().iter().map(|byte| u64::from(*byte)).sum::<u64>() > 0, "all of it is read");
        assert_eq!(rig.take(), PageSet::from_iter(pages), "{tracking}");
        assert!(rig.take().is_empty(), "{tracking}: they were named already");
        rig.verify("after a round");
    }
}

/// With all pages of a page table written and then dropped from the mapping, the kernel may free the table, and the notes in it.
fn whole_tables_dropped(tracking: Tracking) {
    if tracking == Tracking::SoftDirty {
        // Its notes are in that table alone: so it says, and wants locked memory.
        return;
    }
    let Some(mut rig) = Rig::new(tracking) else { return };
    for round in 1..4 {
        (0..PAGES).for_each(|page| rig.write(page, round));
        drop_from_mapping(rig.memory.as_mut_slice()).unwrap();
        rig.take();
        rig.verify("after whole page tables were dropped");
        rig.write(600, round + 100);
        rig.write(2000, round + 100);
        rig.take();
        rig.verify("after a write behind that");
    }
}

/// Writes that pass this mapping's page table, as those do that the kernel makes through pinned pages: named once if they were expected, whenever that was said.
fn expected(tracking: Tracking) {
    let Some(mut rig) = Rig::new(tracking) else { return };
    for round in 1..4_u64 {
        let past = |rig: &Rig, page: u64| rig.memory.file().write_at(page * PAGE_SIZE as u64, &round.to_le_bytes()).unwrap();
        rig.tracker.expect_writes(5..7).unwrap();
        [5, 6, 511, 512].into_iter().for_each(|page| past(&rig, page));
        rig.tracker.expect_writes(511..513).unwrap();
        assert_eq!(rig.take(), PageSet::from_iter([5, 6, 511, 512]), "{tracking}");
        rig.verify("after expected writes");
        rig.write(5, round + 100);
        rig.write(512, round + 100);
        assert_eq!(rig.take(), PageSet::from_iter([5, 512]), "{tracking}: an expectation is for once");
        rig.verify("after a write behind that");
    }
}

/// Each of its ways sees what was written under it, and before and behind the turns.
#[cfg(target_arch = "x86_64")]
#[test]
fn auto_goes_through_its_ways_and_misses_nothing() {
    let Some(mut rig) = Rig::new(Tracking::Auto) else { return };
    if rig.tracker.mechanism() != "scan" {
        // The kernel takes no note of writes: there is one way.
        return;
    }
    let (mut ways, mut nth) = (BTreeSet::new(), 0);
    while ways.len() < 3 && nth < 200_000 {
        ways.insert(rig.tracker.mechanism());
        let page = (nth * 7 % u64::from(PAGES)) as PageNumber;
        nth += 1;
        rig.write(page, nth);
        assert_eq!(rig.take(), PageSet::from_iter([page]), "cycle {nth}");
    }
    rig.verify("in the end");
    assert_eq!(ways, ["emulate", "protect", "scan"].into());
}

/// Several threads at once, system calls, holes, and pages that go out of the mapping.
fn hostile_writers(tracking: Tracking) {
    let Some(mut rig) = Rig::new(tracking) else { return };
    let (mut random, source) = (Random::anew(), File::open("/dev/urandom").unwrap());
    let stretch = |random: &mut Random| {
        let first = random.below(u64::from(PAGES)) as PageNumber;
        first..(first + 1 + random.below(8) as PageNumber).min(PAGES)
    };
    for round in 0..ROUNDS {
        let mut touched = everybody_writes(rig.memory.as_mut_slice(), &mut random);
        if tracking != Tracking::SoftDirty {
            let dropped = bytes(&stretch(&mut random));
            drop_from_mapping(&mut rig.memory.as_mut_slice()[dropped]).unwrap();
        }
        let (read, hole) = (stretch(&mut random), stretch(&mut random));
        rig.tracker.expect_writes(read.clone()).unwrap();
        (&source).read_exact(&mut rig.memory.as_mut_slice()[bytes(&read)]).unwrap();
        let at = bytes(&hole);
        rig.tracker.expect_writes(hole.clone()).unwrap();
        rig.memory.discard(at.start as u64..at.end as u64).unwrap();
        touched |= everybody_writes(rig.memory.as_mut_slice(), &mut random);
        touched.insert_range(read);
        touched.insert_range(hole);
        let named = rig.take();
        let more = (&named - &touched).len();
        assert_eq!(more, 0, "{tracking}, round {round}: pages were named that nobody touched, of {}", touched.len());
        rig.verify(&format!("in round {round}"));
    }
}

/// Each thread to its part. Returns the pages.
fn everybody_writes(memory: &mut [u8], random: &mut Random) -> PageSet {
    let part = memory.len() / WRITERS;
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (nth, mine) in memory.chunks_mut(part).enumerate() {
            let mut random = Random::new(random.number());
            threads.push(scope.spawn(move || {
                let mut touched = PageSet::new();
                for _ in 0..1 + random.below(40) {
                    let at = random.below(mine.len() as u64 - 8) as usize;
                    store(mine, at, random.number());
                    let first = nth * part + at;
                    touched.insert_range((first / PAGE_SIZE) as PageNumber..((first + 7) / PAGE_SIZE) as PageNumber + 1);
                }
                touched
            }));
        }
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(PageSet::new(), |all, some| all | some)
    })
}
