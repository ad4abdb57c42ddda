//! What each tracker costs: the first write to a page, and asking which were written; small and large memory, few and many written pages.

use fermata_linux::{
    FaultKind, Mapping, MemoryFile, Userfault, Writes,
    clock::Stopwatch,
    kvm::{FlatGuest, Noting},
    probe,
};
use fermata_testkit::report::{Figure, Report, quantile};
use fermata_tracker::{Choice, CompareTracker, KvmNotes, KvmTracker, ScanTracker, Tracker, UserfaultTracker, WriteLog};
use fermata_types::{PAGE_SIZE, PageNumber};
use std::{
    io,
    ops::Range,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

const SIZES_MIB: [u64; 2] = [64, 1024];
const FEW: u32 = 256;
/// One page in so many.
const MANY: u32 = 4;
const ROUNDS: usize = 7;
const TRACKERS: [Choice; 5] = [Choice::Scan, Choice::Userfault, Choice::Compare, Choice::KvmLog, Choice::KvmRing];

/// Writes to these pages.
type Write = Box<dyn FnMut(&[PageNumber])>;

fn main() {
    let mut report = Report::new("trackers");
    let sizes = if std::env::args().any(|argument| argument == "--short") { 1 } else { SIZES_MIB.len() };
    for mib in SIZES_MIB.into_iter().take(sizes) {
        let pages = (mib << 20) as u32 / PAGE_SIZE as u32;
        for (load, written) in [("few", FEW), ("many", pages / MANY)] {
            let measured: Vec<_> = TRACKERS.into_iter().filter_map(|choice| Some((choice, measure(choice, mib << 20, written)?))).collect();
            tell(&mut report, &format!("{mib} MiB, {load}"), &measured);
        }
    }
    report.print();
}

/// Medians, and what the same writes cost when nobody watches.
struct Measured {
    write_ns: f64,
    take_ms: f64,
    unwatched_ns: f64,
    /// Writing and asking, all in all.
    interval_ms: f64,
}

fn tell(report: &mut Report, case: &str, measured: &[(Choice, Measured)]) {
    let mut add = |name: String, value, unit, rival: &str, rival_value, at_least: &str, holds| {
        let (rival, at_least) = (rival.to_owned(), at_least.to_owned());
        report.add(Figure { name, value, unit, rival, rival_value, at_least, holds });
    };
    for (choice, cost) in measured {
        add(format!("{case}: {choice} write"), cost.write_ns, "ns", "second write", Some(cost.unwatched_ns), "reported", true);
        add(format!("{case}: {choice} take"), cost.take_ms, "ms", "", None, "reported", true);
    }
    // Guests under KVM are measured on their processors, not on ours: they are no rivals of these.
    let plain = |choice: &Choice| matches!(choice, Choice::Scan | Choice::Userfault | Choice::Compare);
    let auto = Choice::Auto.settle().expect("one of them works");
    let of = |choice| measured.iter().find(|(found, _)| *found == choice).map(|(_, cost)| cost.interval_ms);
    let others = measured.iter().filter(|(choice, _)| plain(choice) && *choice != auto).map(|(_, cost)| cost.interval_ms);
    let best = others.fold(f64::INFINITY, f64::min);
    if let Some(ours) = of(auto) {
        add(format!("{case}: auto, all"), ours, "ms", "best other", Some(best), "the cheapest", ours <= best);
    }
}

fn measure(choice: Choice, bytes: u64, written: u32) -> Option<Measured> {
    let mut subject = Subject::new(choice, bytes)?;
    let pages = (bytes / PAGE_SIZE as u64) as u32;
    let (mut writes, mut again, mut takes, mut all) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS as u32 {
        // Spread over all memory, and other pages each time.
        let stride = pages / written;
        let list: Vec<_> = (0..written).map(|nth| nth * stride + round % stride).collect();
        let watch = Stopwatch::start();
        (subject.write)(&list);
        let first = watch.elapsed();
        let watch = Stopwatch::start();
        (subject.write)(&list);
        let second = watch.elapsed();
        let watch = Stopwatch::start();
        let named = subject.tracker.take().expect("the tracker answers");
        let take = watch.elapsed();
        assert!(list.iter().all(|page| named.contains(*page)), "{choice} missed a page");
        writes.push(first.as_nanos() as f64 / f64::from(written));
        again.push(second.as_nanos() as f64 / f64::from(written));
        takes.push(take.as_secs_f64() * 1e3);
        all.push((first + take).as_secs_f64() * 1e3);
    }
    let median = |values: &[f64]| quantile(values, 0.5);
    Some(Measured { write_ns: median(&writes), take_ms: median(&takes), unwatched_ns: median(&again), interval_ms: median(&all) })
}

/// Memory, all of it there, who writes to it, and the tracker.
struct Subject {
    write: Write,
    tracker: Box<dyn Tracker>,
    _server: Option<Server>,
    _memory: (Arc<MemoryFile>, Arc<Mapping>),
}

impl Subject {
    /// None, with a word, where this host cannot do it.
    fn new(choice: Choice, bytes: u64) -> Option<Self> {
        let noting = match choice {
            Choice::KvmLog => Some(Noting::Log),
            Choice::KvmRing => Some(Noting::Ring),
            _ => None,
        };
        let base = if noting.is_some() { Choice::Scan } else { choice };
        base.settle().inspect_err(|error| fermata_testkit::skipped!("{error}")).ok()?;
        let path = PathBuf::from(format!("/dev/shm/fermata-trackers-{}", std::process::id()));
        let ram = Arc::new(MemoryFile::create(&path, bytes).expect("memory on a tmpfs"));
        let memory = Arc::new(Mapping::new(&*ram, bytes).expect("a mapping"));
        (0..bytes).step_by(PAGE_SIZE).for_each(|at| memory.write(at + 8, at + 1));
        let kinds = [(Choice::Userfault, Writes::Sync), (Choice::Compare, Writes::Unwatched)];
        let writes = kinds.iter().find(|(kind, _)| *kind == choice).map_or(Writes::Async, |(_, writes)| *writes);
        let (descriptor, _) = probe::userfaultfd().expect("it was tried");
        let userfault = Arc::new(Userfault::new(descriptor, writes).expect("it was tried"));
        userfault.register(memory.range(), false).expect("shared memory");
        let scan = || ScanTracker::new(std::process::id(), memory.range(), userfault.clone()).expect("a tracker");
        let (mut write, mut server): (Write, _) = (writer(memory.clone()), None);
        let tracker: Box<dyn Tracker> = match (choice, noting) {
            (Choice::Userfault, _) => {
                let (tracker, log) = UserfaultTracker::new(memory.range(), userfault.clone()).expect("a tracker");
                server = Some(Server::start(userfault.clone(), log));
                Box::new(tracker)
            }
            (Choice::Compare, _) => Box::new(CompareTracker::new(ram.clone()).expect("a tracker")),
            (_, Some(noting)) => {
                let guest = FlatGuest::new(&*ram, bytes, 1, noting);
                let (guest, mut processors) = guest.inspect_err(|error| fermata_testkit::skipped!("no guest under KVM: {error}")).ok()?;
                let mut processor = processors.pop().expect("it has one");
                write = Box::new(move |pages| {
                    let list: Vec<_> = pages.iter().map(|page| (u64::from(*page) * PAGE_SIZE as u64, 1)).collect();
                    processor.write(&list).expect("the processor runs");
                });
                Box::new(KvmTracker::new(choice, scan(), Notes(guest)).expect("a tracker"))
            }
            (_, None) => Box::new(scan()),
        };
        let mut subject = Self { write, tracker, _server: server, _memory: (ram, memory) };
        // The processors' page tables are filled by the first writes; that is not what is measured.
        let all: Vec<_> = (0..(bytes / PAGE_SIZE as u64) as u32).collect();
        (subject.write)(&all);
        subject.tracker.take().expect("the tracker answers");
        Some(subject)
    }
}

fn writer(memory: Arc<Mapping>) -> Write {
    let mut value = 0;
    Box::new(move |pages| {
        value += 1;
        pages.iter().for_each(|page| memory.write(u64::from(*page) * PAGE_SIZE as u64, value));
    })
}

struct Notes(Arc<FlatGuest>);

impl KvmNotes for Notes {
    fn take(&mut self, each: &mut dyn FnMut(Range<u64>)) -> io::Result<()> {
        self.0.take_written(each)
    }
}

/// Lets writers through, as the thread of a machine does that reads its faults.
struct Server {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(userfault: Arc<Userfault>, log: WriteLog) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let ended = ending.clone();
        let thread = std::thread::spawn(move || {
            let mut faults = Vec::new();
            while !ended.load(Ordering::Acquire) {
                faults.clear();
                userfault.wait(&mut faults, Duration::from_millis(50)).expect("faults can be read");
                let writes = faults.iter().filter(|fault| fault.kind == FaultKind::Write);
                writes.for_each(|fault| log.wrote(fault.address).expect("the writer goes on"));
            }
        });
        Self { ending, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
