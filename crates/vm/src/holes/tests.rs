//! A guest that gives back what it has, takes it again and looks, while its pages are being restored and a checkpoint is kept up to date.

use super::*;
use crate::{
    faults::{Fate, FaultServer},
    held::Held,
    pager::Pager,
};
use fermata_linux::{Mapping, Userfault, Writes, launch, probe};
use fermata_store::{Cost, Record, Store};
use fermata_tracker::{Choice, ScanTracker, Tracker, UserfaultTracker};
use fermata_types::{PartKind, PartState, Root};
use std::{
    collections::BTreeMap,
    io::{self, Write},
    process::{Command, Stdio},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

const PAGES: PageNumber = 4096;
const BYTES: u64 = PAGES as u64 * PAGE_SIZE as u64;
/// Pages of one guest that lie together.
const BLOCK: PageNumber = 16;
const GUESTS: PageNumber = 3;
const ROUNDS: usize = 10_000;

/// The first word of a page in the checkpoint; every third page is zero.
fn restored(page: PageNumber) -> u64 {
    if page.is_multiple_of(3) { 0 } else { u64::from(page) << 32 | 7 }
}

/// A checkpoint of a memory, in a store of its own.
fn checkpoint(store: &Store) -> Root {
    let mut writer = store.writer().unwrap();
    let mut content = [0; PAGE_SIZE];
    let mut changes = Vec::new();
    for page in (0..PAGES).filter(|page| restored(*page) != 0) {
        content[..8].copy_from_slice(&restored(page).to_ne_bytes());
        changes.push((page, Some(writer.put_page(&content).unwrap().0)));
    }
    let ram = writer.update_table(&Root::empty(PAGES.into()), &changes).unwrap();
    let tables = BTreeMap::from([("ram".to_owned(), ram)]);
    let part = PartState { name: "m1".into(), kind: PartKind::Machine, tables, blobs: BTreeMap::new(), details: serde_json::Value::Null };
    let record = Record {
        parent: None,
        experiment: "holes".into(),
        branch: "main".into(),
        message: None,
        created_ns: 1,
        after_ns: None,
        time_virtual_ns: 1,
        began_ns: None,
        events: 0,
        waiting: Vec::new(),
        spec: serde_json::Value::Null,
        parts: vec![part],
        images: Vec::new(),
        cost: Cost::default(),
    };
    writer.commit(&record).unwrap();
    ram
}

/// The memory of this process in place of a QEMU's, being restored.
struct Rig {
    memory: Arc<Memory>,
    mapping: Arc<Mapping>,
    tracker: Box<dyn Tracker>,
    _faults: FaultServer,
    _store: tempfile::TempDir,
}

impl Rig {
    /// None, with a word, where this host cannot do it.
    fn new(choice: Choice) -> Option<Self> {
        if let Err(error) = choice.settle() {
            // Past what holds a test's output back.
            writeln!(io::stderr(), "skipped: {error}").unwrap();
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let root = checkpoint(&store);
        let path = format!("/dev/shm/fermata-holes-{}-{choice}-{:?}", std::process::id(), thread::current().id());
        let ram = Arc::new(MemoryFile::create(path.as_ref(), BYTES).unwrap());
        let mapping = Arc::new(Mapping::new(&*ram, BYTES).unwrap());
        let writes = if choice == Choice::Userfault { Writes::Sync } else { Writes::Async };
        let userfault = Arc::new(Userfault::new(probe::userfaultfd().unwrap().0, writes).unwrap());
        userfault.register(mapping.range(), true).unwrap();
        let (tracker, log): (Box<dyn Tracker>, _) = if choice == Choice::Userfault {
            let (tracker, log) = UserfaultTracker::new(mapping.range(), userfault.clone()).unwrap();
            (Box::new(tracker), Some(log))
        } else {
            (Box::new(ScanTracker::new(std::process::id(), mapping.range(), userfault.clone()).unwrap()), None)
        };
        let mut child = Command::new("cat");
        child.stdout(Stdio::null());
        let memory = Arc::new(Memory {
            ram: ram.clone(),
            range: mapping.range(),
            userfault,
            log,
            held: Arc::new(Held::new(ram)),
            holes: Holes::default(),
            letting_through: Mutex::new(()),
            pager: OnceLock::new(),
            fate: Fate::new(Arc::new(launch(child).unwrap())),
        });
        assert!(memory.pager.set(Pager::new(store, root, &memory)).is_ok());
        Some(Self { _faults: FaultServer::start(memory.clone()), memory, mapping, tracker, _store: directory })
    }

    /// Takes what was written, and copies it as a checkpoint does.
    fn take(&mut self, copy: &mut [u64]) -> PageSet {
        let written = self.tracker.take().unwrap() | self.memory.holes.take_written();
        let mut word = [0; 8];
        for page in &written {
            self.memory.ram.read_at(u64::from(page) * PAGE_SIZE as u64, &mut word).unwrap();
            copy[page as usize] = u64::from_ne_bytes(word);
        }
        written
    }
}

/// Numbers that look random and are the same every time (SplitMix64: Steele, Lea and Flood 2014).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: PageNumber) -> PageNumber {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % u64::from(end)) as PageNumber
    }
}

/// One of several that share the memory, each with blocks of pages of its own: it knows what they must hold, and looks.
fn guest(memory: &Memory, mapping: &Mapping, number: PageNumber) {
    let mut expected: Vec<_> = (0..PAGES).map(restored).collect();
    let mut numbers = Numbers(number.into());
    for round in 0..ROUNDS {
        let start = (numbers.below(PAGES / BLOCK / GUESTS) * GUESTS + number) * BLOCK;
        let first = start + numbers.below(BLOCK);
        match numbers.below(4) {
            0 => {
                let pages = first..first + 1 + numbers.below(start + BLOCK - first);
                let at = |page: PageNumber| u64::from(page) * PAGE_SIZE as u64;
                memory.punch(at(pages.start), at(pages.end) - at(pages.start)).unwrap();
                pages.for_each(|page| expected[page as usize] = 0);
            }
            1 => {
                expected[first as usize] = (round as u64) << 8 | 255;
                mapping.write(u64::from(first) * PAGE_SIZE as u64, expected[first as usize]);
            }
            _ => {
                let found = mapping.read(u64::from(first) * PAGE_SIZE as u64);
                assert_eq!(found, expected[first as usize], "guest {number}, round {round}: page {first}");
            }
        }
    }
}

fn give_back_and_look(choice: Choice) {
    let Some(mut rig) = Rig::new(choice) else { return };
    let mut copy: Vec<_> = (0..PAGES).map(restored).collect();
    let (memory, mapping, ended) = (rig.memory.clone(), rig.mapping.clone(), AtomicBool::new(false));
    let pager = memory.pager.get().unwrap();
    thread::scope(|scope| {
        let guests: Vec<_> = (0..GUESTS)
            .map(|number| {
                scope.spawn({
                    let (memory, mapping) = (&*memory, &*mapping);
                    move || guest(memory, mapping, number)
                })
            })
            .collect();
        // Everything is brought in, again and again; and single pages, as for a device.
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                pager.fill().unwrap();
            }
        });
        scope.spawn(|| {
            let mut numbers = Numbers(99);
            while !ended.load(Ordering::Relaxed) {
                pager.bring_in(numbers.below(PAGES), 1).unwrap();
            }
        });
        while !guests.iter().all(|guest| guest.is_finished()) {
            rig.take(&mut copy);
        }
        ended.store(true, Ordering::Relaxed);
    });
    rig.take(&mut copy);
    for page in 0..PAGES {
        assert_eq!(mapping.read(u64::from(page) * PAGE_SIZE as u64), copy[page as usize], "{choice}: page {page}");
    }
    assert!(rig.take(&mut copy).is_empty(), "{choice}: nobody has written since");
}

#[test]
fn what_was_given_back_never_returns() {
    give_back_and_look(Choice::Scan);
}

#[test]
fn what_was_given_back_never_returns_where_writes_wait() {
    give_back_and_look(Choice::Userfault);
}

/// Pages that were never touched, never written and never scanned: nothing but the report tells of them.
#[test]
fn a_page_that_was_not_written_counts_as_written_when_it_is_given_back() {
    for choice in [Choice::Scan, Choice::Userfault] {
        let Some(mut rig) = Rig::new(choice) else { return };
        let mut copy: Vec<_> = (0..PAGES).map(restored).collect();
        // Brought in and clean, and not there yet.
        assert_eq!(rig.mapping.read(4 * PAGE_SIZE as u64), restored(4));
        assert!(rig.take(&mut copy).is_empty());
        rig.memory.punch(4 * PAGE_SIZE as u64, 2 * PAGE_SIZE as u64).unwrap();
        assert_eq!(rig.take(&mut copy), (4..6).collect());
        assert_eq!((copy[4], copy[5], copy[7]), (0, 0, restored(7)));
        rig.memory.pager.get().unwrap().fill().unwrap();
        assert!([4, 5].iter().all(|page| rig.mapping.read(page * PAGE_SIZE as u64) == 0));
    }
}

#[test]
fn a_checkpoint_gets_what_was_there_before_it_is_given_back() {
    let Some(rig) = Rig::new(Choice::Userfault) else { return };
    rig.memory.pager.get().unwrap().fill().unwrap();
    let held = rig.memory.held.hold((4..6).collect());
    rig.memory.punch(0, BYTES).unwrap();
    let copies = held.next(100).unwrap().unwrap();
    let found: Vec<_> = copies.iter().map(|(page, content)| (page, u64::from_ne_bytes(content[..8].try_into().unwrap()))).collect();
    assert_eq!(found, [(4, restored(4)), (5, restored(5))]);
    assert!((0..u64::from(PAGES)).all(|page| rig.mapping.read(page * PAGE_SIZE as u64) == 0));
}

/// The other end is QEMU, which a guest may have taken over.
#[test]
fn nonsense_is_refused() {
    let Some(mut rig) = Rig::new(Choice::Scan) else { return };
    let (socket, ours) = UnixStream::pair().unwrap();
    let _puncher = Puncher::start(ours, rig.memory.clone());
    // Goes before it, and so the thread ends.
    let mut qemu = socket;
    let mut ask = |offset: u64, bytes: u64| {
        qemu.write_all(&[offset.to_ne_bytes(), bytes.to_ne_bytes()].concat()).unwrap();
        let mut error = [0; 4];
        qemu.read_exact(&mut error).unwrap();
        i32::from_ne_bytes(error)
    };
    let page = PAGE_SIZE as u64;
    for (offset, bytes) in [(1, page), (page, 1), (0, BYTES + page), (BYTES, page), (u64::MAX - page + 1, page), (u64::MAX, u64::MAX)] {
        assert_eq!(ask(offset, bytes), INVALID, "{offset:#x} {bytes:#x}");
    }
    assert!(rig.take(&mut vec![0; PAGES as usize]).is_empty());
    assert_eq!([ask(page, page), ask(BYTES, 0), ask(0, BYTES)], [0; 3]);
    assert_eq!(rig.take(&mut vec![0; PAGES as usize]).len(), u64::from(PAGES));
}

#[test]
fn a_pause_does_not_wait_for_whoever_installs_a_page() {
    let holes = Arc::new(Holes::default());
    let installing = holes.shut();
    let (tell, told) = std::sync::mpsc::channel();
    let asking = thread::spawn({
        let holes = holes.clone();
        move || tell.send(holes.take_written())
    });
    let answer = told.recv_timeout(Duration::from_secs(60));
    drop(installing);
    asking.join().unwrap().unwrap();
    assert_eq!(answer, Ok(PageSet::new()));
}

#[test]
fn a_machine_whose_pages_nobody_serves_any_more_is_ended_and_says_so() {
    let Some(rig) = Rig::new(Choice::Scan) else { return };
    // A panic of our own on the way of every page.
    let panic = || {
        let _spoiled = rig.memory.holes.state.write().unwrap();
        std::panic::resume_unwind(Box::new("with the lock"));
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panic)).is_err());
    let mapping = rig.mapping.clone();
    let guest = thread::spawn(move || mapping.read(PAGE_SIZE as u64));
    let watch = fermata_linux::clock::Stopwatch::start();
    while rig.memory.fate.child.ended().is_none() {
        assert!(watch.elapsed() < Duration::from_secs(60), "the guest hangs, and nobody is told");
        thread::sleep(Duration::from_millis(1));
    }
    let failure = rig.memory.fate.failure().expect("it is told why");
    assert!(failure.contains("panicked"), "{failure}");
    // Without its userfaultfd the memory is ordinary memory, and the thread ends.
    drop(rig);
    guest.join().unwrap();
}
