//! A guest's memory under a tracker, and a copy of it that is kept up to date by what the tracker says and nothing else.

use fermata_linux::{
    FaultKind, Mapping, MemoryFile, Userfault, Writes,
    kvm::{FlatGuest, Noting, Processor},
    probe,
};
use fermata_tracker::{Choice, CompareTracker, KvmNotes, KvmTracker, Protector, ScanTracker, Tracker, UserfaultTracker, WriteLog};
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use std::{
    fmt::Display,
    io::{self, Write as _},
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Says what is not tried on this host, past what holds a test's output back.
pub fn skipped(why: impl Display) {
    // Nobody needs to hear it.
    let _ = writeln!(io::stderr(), "skipped: {why}");
}

/// Somebody whose writes the tracker has to see.
pub trait Writer: Send {
    /// Stores each value at the start of its page.
    fn write(&mut self, writes: &[(PageNumber, u64)]);
}

struct Thread(Arc<Mapping>);

impl Writer for Thread {
    fn write(&mut self, writes: &[(PageNumber, u64)]) {
        writes.iter().for_each(|(page, value)| self.0.write(u64::from(*page) * PAGE_SIZE as u64, *value));
    }
}

/// A processor of a guest under KVM, whose memory is mapped a second time.
impl Writer for Processor {
    fn write(&mut self, writes: &[(PageNumber, u64)]) {
        let writes: Vec<_> = writes.iter().map(|(page, value)| (u64::from(*page) * PAGE_SIZE as u64, *value as u32)).collect();
        Processor::write(self, &writes).expect("the processor runs");
    }
}

struct Notes(Arc<FlatGuest>);

impl KvmNotes for Notes {
    fn take(&mut self, each: &mut dyn FnMut(Range<u64>)) -> io::Result<()> {
        self.0.take_written(each)
    }
}

/// What a page holds before anybody wrote to it, when memory is being restored; every third one is zero.
pub fn restored(page: PageNumber) -> [u8; PAGE_SIZE] {
    if page.is_multiple_of(3) { [0; PAGE_SIZE] } else { [(page % 251) as u8 + 1; PAGE_SIZE] }
}

pub struct Rig {
    pub choice: Choice,
    pub pages: PageNumber,
    pub writers: Vec<Box<dyn Writer>>,
    /// What QEMU has mapped: everything but the other writers goes through it.
    pub memory: Arc<Mapping>,
    pub userfault: Arc<Userfault>,
    /// Named since the last [`Rig::verify`].
    pub named: PageSet,
    tracker: Box<dyn Tracker>,
    copy: Vec<u8>,
    ram: Arc<MemoryFile>,
    _server: Server,
}

impl Rig {
    /// Memory on the tmpfs of `directory`: holes, or pages that have to be restored when they are touched. None, with a word, where this host cannot do it.
    pub fn new(choice: Choice, directory: &Path, pages: PageNumber, lazy: bool) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let noting = match choice {
            Choice::KvmLog => Some(Noting::Log),
            Choice::KvmRing => Some(Noting::Ring),
            Choice::KvmStore => Some(Noting::Stores),
            _ => None,
        };
        let base = if noting.is_some() { Choice::Scan } else { choice };
        if let Err(error) = base.settle() {
            skipped(error);
            return None;
        }
        let bytes = u64::from(pages) * PAGE_SIZE as u64;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(directory).join(format!("fermata-conformance-{}-{number}", std::process::id()));
        let ram = Arc::new(MemoryFile::create(&path, bytes).expect("memory on a tmpfs"));
        let memory = Arc::new(Mapping::new(&*ram, bytes).expect("a mapping"));
        // Firmware is there before anybody watches; where pages can be huge, it comes as huge ones.
        if !lazy {
            (0..pages).step_by(100).for_each(|page| memory.write(u64::from(page) * PAGE_SIZE as u64 + 8, 1));
        }
        let writes = match choice {
            Choice::Userfault => Writes::Sync,
            Choice::Compare => Writes::Unwatched,
            _ => Writes::Async,
        };
        let (descriptor, _) = probe::userfaultfd().expect("it was tried");
        let userfault = Arc::new(Userfault::new(descriptor, writes).expect("it was tried"));
        userfault.register(memory.range(), lazy).expect("shared memory");
        let (tracker, log): (Box<dyn Tracker>, _) = match choice {
            Choice::Userfault => {
                let (tracker, log) = UserfaultTracker::new(memory.range(), userfault.clone()).expect("a tracker");
                (Box::new(tracker), Some(log))
            }
            Choice::Compare => (Box::new(CompareTracker::new(ram.clone()).expect("a tracker")), None),
            _ => (Box::new(scan(&memory, &userfault)), None),
        };
        let thread = || Box::new(Thread(memory.clone())) as Box<dyn Writer>;
        let (tracker, writers): (_, Vec<_>) = match noting {
            None => (tracker, (0..3).map(|_| thread()).collect()),
            Some(noting) => {
                let guest = FlatGuest::new(&*ram, bytes, 2, noting);
                let (guest, processors) = guest.inspect_err(|error| skipped(format_args!("no guest under KVM: {error}"))).ok()?;
                if lazy {
                    userfault.register_alias(guest.memory(), memory.range().start).expect("shared memory");
                }
                let writers = processors.into_iter().map(|processor| Box::new(processor) as Box<dyn Writer>);
                let tracker = KvmTracker::new(choice, scan(&memory, &userfault), Notes(guest)).expect("a tracker");
                (Box::new(tracker), writers.chain([thread()]).collect())
            }
        };
        let server = Server::start(&memory, &userfault, log);
        let mut copy: Vec<_> = (0..pages).flat_map(restored).collect();
        if !lazy {
            ram.read_at(0, &mut copy).expect("memory can be read");
        }
        let named = PageSet::new();
        Some(Self { choice, pages, writers, memory, userfault, named, tracker, copy, ram, _server: server })
    }

    /// The memory itself, for mappings that the tracker does not see.
    pub fn file(&self) -> &MemoryFile {
        &self.ram
    }

    /// The tracker's way to watch single pages again.
    pub fn protector(&self) -> Option<Arc<dyn Protector>> {
        self.tracker.protector()
    }

    /// Says that pages are written past the tracker.
    pub fn expect(&mut self, pages: Range<PageNumber>) {
        self.tracker.expect_writes(pages).expect("pages can be expected");
    }

    /// How many pages the tracker may name in a round that nobody touched.
    pub fn surplus(&self) -> u64 {
        0
    }

    /// Asks the tracker, and copies what it names, as a checkpoint does.
    pub fn take(&mut self) -> PageSet {
        let named = self.tracker.take().expect("the tracker answers");
        self.copy(&named);
        self.named |= &named;
        named
    }

    /// Copies pages, also those that others than the guest have reported.
    pub fn copy(&mut self, pages: &PageSet) {
        for page in pages {
            let at = page as usize * PAGE_SIZE;
            self.ram.read_at(at as u64, &mut self.copy[at..at + PAGE_SIZE]).expect("memory can be read");
        }
    }

    /// Compares the copy with all memory, while nobody writes. Begins a new count of `named`.
    pub fn verify(&mut self, when: &str) {
        let mut all = vec![0; self.copy.len()];
        self.ram.read_at(0, &mut all).expect("memory can be read");
        let pages = || all.chunks_exact(PAGE_SIZE).zip(self.copy.chunks_exact(PAGE_SIZE)).enumerate();
        let missed: Vec<_> = pages().filter(|(_, (memory, copy))| memory != copy).map(|(page, _)| page).collect();
        assert!(
            missed.is_empty(),
            "{} {when}: {} pages were missed, among them {:?}",
            self.choice,
            missed.len(),
            &missed[..missed.len().min(8)]
        );
        self.named.clear();
    }
}

fn scan(memory: &Mapping, userfault: &Arc<Userfault>) -> ScanTracker {
    ScanTracker::new(std::process::id(), memory.range(), userfault.clone()).expect("a tracker")
}

/// Reads the faults of the memory, and answers them as a machine's server does.
struct Server {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(memory: &Arc<Mapping>, userfault: &Arc<Userfault>, log: Option<WriteLog>) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let (ended, start, userfault) = (ending.clone(), memory.range().start, userfault.clone());
        let thread = std::thread::spawn(move || {
            let mut faults = Vec::new();
            while !ended.load(Ordering::Acquire) {
                faults.clear();
                userfault.wait(&mut faults, Duration::from_millis(20)).expect("faults can be read");
                for fault in &faults {
                    match (fault.kind, &log) {
                        (FaultKind::Write, Some(log)) => log.wrote(fault.address).expect("the writer goes on"),
                        (FaultKind::Write, None) => panic!("nobody watches writes"),
                        (FaultKind::Missing, _) => {
                            let page = (fault.address - start) / PAGE_SIZE as u64;
                            userfault.install(start + page * PAGE_SIZE as u64, &restored(page as PageNumber)).expect("a page is installed");
                        }
                    }
                }
            }
        });
        Self { ending, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking(), "the server of faults panicked");
    }
}
