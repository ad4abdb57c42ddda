//! What every tracker must do, whatever it is made of: with pages copied only when it names them, the copy is the memory.
//!
//! The writers are hostile: threads, the kernel, a device backend, and memory that goes away under them.
//!
//! Trackers of a program's own memory, signals, differences and `auto` among them, are held to the same in `crates/process/tests/trackers.rs`.

#[path = "conformance/rig.rs"]
mod rig;

use fermata_linux::{
    Discard, Mapping, MemoryFile,
    kvm::{FlatGuest, Noting},
};
use fermata_tracker::{Choice, Protector};
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use rig::{Rig, skipped};
use std::{
    collections::HashMap,
    fs::{self, File},
    ops::Range,
    path::Path,
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

const PAGES: PageNumber = 4096;
const SHM: &str = "/dev/shm";

/// Every test, for every tracker.
macro_rules! conform {
    ($($name:ident: $choice:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn each_page_once() {
                super::each_page_once($choice);
            }

            #[test]
            fn whole_tables_discarded() {
                super::whole_tables_discarded($choice);
            }

            #[test]
            fn hostile_writers() {
                super::hostile_writers($choice, Path::new(SHM), 12);
            }

            #[test]
            fn watched_again() {
                super::watched_again($choice);
            }

            #[test]
            fn what_was_watched_before_it_was_read_holds() {
                super::what_was_watched_before_it_was_read_holds($choice);
            }

            #[test]
            fn expected() {
                super::expected($choice);
            }

            #[test]
            fn huge_pages() {
                super::huge_pages($choice);
            }

            #[test]
            fn lazy_restore() {
                super::lazy_restore($choice);
            }
        }
    )*};
}

conform! {
    scan: Choice::Scan;
    userfault: Choice::Userfault;
    compare: Choice::Compare;
    kvm_log: Choice::KvmLog;
    kvm_ring: Choice::KvmRing;
    kvm_store: Choice::KvmStore;
}

/// Why KVM's notes are not enough by themselves.
#[test]
fn kvm_notes_only_what_processors_write() {
    for noting in [Noting::Log, Noting::Ring, Noting::Stores] {
        let bytes = u64::from(PAGES) * PAGE_SIZE as u64;
        let path = Path::new(SHM).join(format!("fermata-conformance-{}-{noting:?}", std::process::id()));
        let ram = MemoryFile::create(&path, bytes).expect("memory on a tmpfs");
        let (guest, mut processors) = match FlatGuest::new(&ram, bytes, 1, noting) {
            Ok(made) => made,
            Err(error) => return skipped(format_args!("no guest under KVM: {error}")),
        };
        let device = Mapping::new(&ram, bytes).expect("a mapping");
        processors[0].write(&[(PAGE_SIZE as u64, 1)]).expect("the processor runs");
        device.write(2 * PAGE_SIZE as u64, 1);
        let mut noted = Vec::new();
        guest.take_written(|written| noted.push(written)).expect("KVM answers");
        let size = if noting == Noting::Stores { 4 } else { PAGE_SIZE as u64 };
        assert_eq!((noted.len(), noted[0].clone()), (1, PAGE_SIZE as u64..PAGE_SIZE as u64 + size));
    }
}

/// Numbers that look random and are the same every time (SplitMix64: Steele, Lea and Flood 2014).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Some pages that lie together.
    fn stretch(&mut self, pages: PageNumber, at_most: u64) -> Range<PageNumber> {
        let first = self.below(u64::from(pages)) as PageNumber;
        first..(first + 1 + self.below(at_most) as PageNumber).min(pages)
    }
}

fn bytes(pages: &Range<PageNumber>) -> Range<u64> {
    u64::from(pages.start) * PAGE_SIZE as u64..u64::from(pages.end) * PAGE_SIZE as u64
}

/// The plain contract, one step after the other: what was written is named once, what was only read is not named.
fn each_page_once(choice: Choice) {
    let Some(mut rig) = Rig::new(choice, Path::new(SHM), PAGES, false) else { return };
    assert!(rig.take().is_empty(), "nobody has written yet");
    // The ends, both sides of where page tables and huge pages meet, and one in the middle of nowhere.
    let pages = [0, 1, 511, 512, 513, 1024, 2047, 3000, PAGES - 1];
    for round in 1..4 {
        for (nth, page) in pages.into_iter().enumerate() {
            let writer = nth % rig.writers.len();
            rig.writers[writer].write(&[(page, round)]);
            assert_eq!(rig.take(), PageSet::from_iter([page]));
        }
        let all: Vec<_> = pages.iter().map(|page| (*page, round + 10)).collect();
        rig.writers[0].write(&all);
        rig.writers[1].write(&all);
        (0..PAGES).for_each(|page| _ = rig.memory.read(u64::from(page) * PAGE_SIZE as u64));
        assert_eq!(rig.take(), PageSet::from_iter(pages));
        assert!(rig.take().is_empty(), "they were named already");
        rig.verify("after a round");
    }
}

/// With all pages of a page table written and then dropped from the mapping, the kernel may free the table, and the notes in it.
fn whole_tables_discarded(choice: Choice) {
    let Some(mut rig) = Rig::new(choice, Path::new(SHM), PAGES, false) else { return };
    for round in 1..4 {
        let all: Vec<_> = (0..PAGES).map(|page| (page, round)).collect();
        rig.writers[0].write(&all);
        rig.memory.discard(bytes(&(0..PAGES)), Discard::Mapped).expect("MADV_DONTNEED");
        rig.take();
        rig.verify("after whole page tables were dropped");
        rig.writers[1].write(&[(600, round + 100), (2000, round + 100)]);
        rig.take();
        rig.verify("after a write behind that");
    }
}

/// Everybody writes at once, and takes go on under them, as when a checkpoint copies ahead. Then they stand still.
fn hostile_writers(choice: Choice, directory: &Path, rounds: u64) {
    let Some(mut rig) = Rig::new(choice, directory, PAGES, false) else { return };
    let value = AtomicU64::new(1);
    for round in 0..rounds {
        let others = Mutex::new(PageSet::new());
        let mut writers = std::mem::take(&mut rig.writers);
        let (memory, pages, protector) = (rig.memory.clone(), rig.pages, rig.protector());
        let backend = Mapping::new(rig.file(), memory.range().end - memory.range().start).expect("a mapping");
        let mut touched = thread::scope(|scope| {
            let mut threads = Vec::new();
            for (nth, writer) in writers.iter_mut().enumerate() {
                let (value, mut numbers) = (&value, Numbers(round << 8 | nth as u64));
                threads.push(scope.spawn(move || {
                    let mut touched = PageSet::new();
                    for _ in 0..60 {
                        let some = 1 + numbers.below(32);
                        let batch: Vec<_> =
                            (0..some).map(|_| (numbers.below(pages.into()) as PageNumber, value.fetch_add(1, Ordering::Relaxed))).collect();
                        writer.write(&batch);
                        touched.extend(batch.iter().map(|(page, _)| *page));
                    }
                    touched
                }));
            }
            threads.push(scope.spawn(|| kernel_writes(&memory, pages, Numbers(round << 8 | 100))));
            threads.push(scope.spawn(|| backend_writes(&backend, pages, &value, &others, Numbers(round << 8 | 101))));
            if let Some(protector) = &protector {
                threads.push(scope.spawn(|| protects(&**protector, pages, &others, Numbers(round << 8 | 103))));
            }
            threads.push(scope.spawn(|| discards(&memory, pages, &others, Numbers(round << 8 | 102))));
            while !threads.iter().all(|thread| thread.is_finished()) {
                rig.take();
                let reported = std::mem::take(&mut *others.lock().expect("nobody panics"));
                rig.copy(&reported);
            }
            threads.into_iter().map(|thread| thread.join().expect("a writer")).fold(PageSet::new(), |all, some| all | some)
        });
        rig.writers = writers;
        rig.take();
        let reported = others.into_inner().expect("nobody panics");
        rig.copy(&reported);
        touched |= reported;
        let more = (&rig.named - &touched).len();
        assert!(more <= rig.surplus(), "{choice}: {more} pages were named that nobody touched, of {}", touched.len());
        rig.verify(&format!("in round {round}"));
    }
}

/// read(2) into the memory: the kernel is the writer, and stops at no user-space handler.
fn kernel_writes(memory: &Mapping, pages: PageNumber, mut numbers: Numbers) -> PageSet {
    let source = File::open("/dev/urandom").expect("randomness");
    let mut touched = PageSet::new();
    for _ in 0..60 {
        let stretch = numbers.stretch(pages, 4);
        let at = bytes(&stretch);
        // Beginning and ending in the middle of a page.
        let asked = at.start + 100..at.end - 100;
        let read = memory.fill_from(&source, asked.clone()).expect("the kernel writes");
        assert_eq!(read as u64, asked.end - asked.start);
        touched.insert_range(stretch);
    }
    touched
}

/// A device backend writes through its own mapping, and reports it afterwards.
fn backend_writes(backend: &Mapping, pages: PageNumber, value: &AtomicU64, report: &Mutex<PageSet>, mut numbers: Numbers) -> PageSet {
    let mut touched = PageSet::new();
    for _ in 0..200 {
        let page = numbers.below(pages.into()) as PageNumber;
        backend.write(u64::from(page) * PAGE_SIZE as u64 + 64, value.fetch_add(1, Ordering::Relaxed));
        report.lock().expect("nobody panics").insert(page);
        touched.insert(page);
    }
    touched
}

/// Pages are watched again between two takes; who asks for that keeps what was written before.
fn protects(protector: &dyn Protector, pages: PageNumber, report: &Mutex<PageSet>, mut numbers: Numbers) -> PageSet {
    for _ in 0..100 {
        let stretches: Vec<_> = (0..3).map(|_| numbers.stretch(pages, 32)).collect();
        let mut keep = |written: Range<PageNumber>| _ = report.lock().expect("nobody panics").insert_range(written);
        protector.protect(&stretches, &mut keep).expect("pages are watched again");
    }
    PageSet::new()
}

/// Memory goes out of the mapping, which changes nothing, and out of the file, which its owner reports.
fn discards(memory: &Mapping, pages: PageNumber, report: &Mutex<PageSet>, mut numbers: Numbers) -> PageSet {
    let mut touched = PageSet::new();
    for _ in 0..60 {
        memory.discard(bytes(&numbers.stretch(pages, 64)), Discard::Mapped).expect("MADV_DONTNEED");
        let stretch = numbers.stretch(pages, 4);
        memory.discard(bytes(&stretch), Discard::Content).expect("MADV_REMOVE");
        report.lock().expect("nobody panics").insert_range(stretch.clone());
        touched.insert_range(stretch);
    }
    touched
}

/// The plain contract of watching pages again: what was written before is told there, what is written after by the next take.
fn watched_again(choice: Choice) {
    let Some(mut rig) = Rig::new(choice, Path::new(SHM), PAGES, false) else { return };
    let Some(protector) = rig.protector() else { return println!("{choice} cannot watch single pages again") };
    let protect = |stretches: &[Range<PageNumber>]| {
        let mut told = PageSet::new();
        protector.protect(stretches, &mut |written| _ = told.insert_range(written)).expect("pages are watched again");
        told
    };
    for round in 1..4 {
        rig.writers[0].write(&[(5, round), (6, round), (700, round), (PAGES - 1, round)]);
        assert_eq!(protect(&[4..6, 700..701, 1000..1100]), PageSet::from_iter([5, 700]));
        assert!(protect(&[4..6, 700..701]).is_empty(), "they were told already");
        rig.writers[1].write(&[(700, round + 100)]);
        rig.copy(&PageSet::from_iter([5]));
        assert_eq!(rig.take(), PageSet::from_iter([6, 700, PAGES - 1]));
        assert!(protect(std::slice::from_ref(&(0..PAGES))).is_empty(), "the take named them");
        rig.verify("after pages were watched again");
    }
}

/// What a page-to-block map stands on: a page that is read after it was watched again, and is named by no take since, still holds what was read.
fn what_was_watched_before_it_was_read_holds(choice: Choice) {
    const FEW: PageNumber = 64;
    let Some(mut rig) = Rig::new(choice, Path::new(SHM), PAGES, false) else { return };
    let Some(protector) = rig.protector() else { return println!("{choice} cannot watch single pages again") };
    let (memory, writing) = (rig.memory.clone(), AtomicU64::new(1));
    // What was read; none while it is being read.
    let known = Mutex::new(HashMap::new());
    let read = |page: PageNumber| {
        known.lock().expect("nobody panics").insert(page, None);
        protector.protect(std::slice::from_ref(&(page..page + 1)), &mut |_| ()).expect("pages are watched again");
        let value = memory.read(u64::from(page) * PAGE_SIZE as u64);
        if let Some(entry) = known.lock().expect("nobody panics").get_mut(&page) {
            *entry = Some(value);
        }
    };
    let mut held = 0;
    for round in 0..30 {
        let mut writers = std::mem::take(&mut rig.writers);
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for (nth, writer) in writers.iter_mut().enumerate() {
                let (writing, mut numbers) = (&writing, Numbers(round << 8 | nth as u64));
                threads.push(scope.spawn(move || {
                    (0..300)
                        .for_each(|_| writer.write(&[(numbers.below(FEW.into()) as PageNumber, writing.fetch_add(1, Ordering::Relaxed))]));
                }));
            }
            let (read, mut numbers) = (&read, Numbers(round << 8 | 100));
            threads.push(scope.spawn(move || (0..300).for_each(|_| read(numbers.below(FEW.into()) as PageNumber))));
            while !threads.iter().all(|thread| thread.is_finished()) {
                let named = rig.take();
                known.lock().expect("nobody panics").retain(|page, _| !named.contains(*page));
            }
        });
        rig.writers = writers;
        // Some more that nobody writes to any more, or none would hold.
        (0..FEW).step_by(5).for_each(read);
        let named = rig.take();
        let mut known = known.lock().expect("nobody panics");
        known.retain(|page, _| !named.contains(*page));
        for (page, value) in &*known {
            assert_eq!(*value, Some(memory.read(u64::from(*page) * PAGE_SIZE as u64)), "{choice}, round {round}: page {page}");
        }
        held += known.len();
    }
    assert!(held > 0, "nothing was left to compare");
}

/// Writes that pass this mapping's page table, as those do that the kernel makes through pinned pages: named once if they were expected, whenever that was said.
fn expected(choice: Choice) {
    let Some(mut rig) = Rig::new(choice, Path::new(SHM), PAGES, false) else { return };
    let backend = Mapping::new(rig.file(), u64::from(PAGES) * PAGE_SIZE as u64).expect("a mapping");
    for round in 1..4 {
        rig.expect(5..7);
        backend.write(5 * PAGE_SIZE as u64, round);
        backend.write(6 * PAGE_SIZE as u64, round);
        backend.write(511 * PAGE_SIZE as u64, round);
        backend.write(512 * PAGE_SIZE as u64, round);
        rig.expect(511..513);
        assert_eq!(rig.take(), PageSet::from_iter([5, 6, 511, 512]));
        rig.verify("after expected writes");
        rig.writers[0].write(&[(5, round + 100), (512, round + 100)]);
        assert_eq!(rig.take(), PageSet::from_iter([5, 512]), "an expectation is for once");
        rig.verify("after a write behind that");
    }
}

/// A tmpfs whose pages are huge where they can.
fn huge_pages(choice: Choice) {
    let place = tempfile::tempdir().expect("a directory");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "huge=always,size=256m", "tmpfs"]).arg(place.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        skipped("no tmpfs with huge pages can be mounted here");
        return;
    }
    let done = thread::scope(|scope| {
        let huge = || {
            let memory = fs::read_to_string("/proc/meminfo").expect("Linux");
            memory.lines().any(|line| line.strip_prefix("ShmemHugePages:").is_some_and(|pages| !pages.trim_start().starts_with("0 ")))
        };
        let writers = scope.spawn(|| hostile_writers(choice, place.path(), 6));
        let mut seen = false;
        while !writers.is_finished() {
            seen |= huge();
            thread::yield_now();
        }
        if !seen {
            skipped("huge pages: the kernel has none to give");
        }
        writers.join()
    });
    let unmounted = Command::new("umount").arg(place.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()), "the tmpfs is still in use");
    if let Err(panic) = done {
        std::panic::resume_unwind(panic);
    }
}

/// Pages that a restore brings in are clean, whoever touched them; a write to them is not.
fn lazy_restore(choice: Choice) {
    if choice == Choice::Compare {
        skipped("a comparison cannot tell what was brought in from what was written; a restore under it is not lazy");
        return;
    }
    let Some(mut rig) = Rig::new(choice, Path::new(SHM), PAGES, true) else { return };
    let mut numbers = Numbers(7);
    let mut left: Vec<_> = (0..PAGES).collect();
    let mut value = 1;
    while !left.is_empty() {
        // Touched by reading, touched by writing, and brought in behind the guest.
        for _ in 0..20 {
            rig.memory.read(numbers.below(PAGES.into()) * PAGE_SIZE as u64 + 8);
        }
        let mut written = PageSet::new();
        for _ in 0..20 {
            let (writer, page) = (numbers.below(rig.writers.len() as u64), numbers.below(PAGES.into()) as PageNumber);
            rig.writers[writer as usize].write(&[(page, value)]);
            written.insert(page);
            value += 1;
        }
        for _ in 0..40 {
            let Some(page) = (!left.is_empty()).then(|| left.swap_remove(numbers.below(left.len() as u64) as usize)) else { break };
            let address = rig.memory.range().start + u64::from(page) * PAGE_SIZE as u64;
            rig.userfault.install(address, &rig::restored(page)).expect("a page is installed");
        }
        assert_eq!(rig.take(), written);
    }
    rig.verify("when all is restored");
}
