//! Lazy restore: the machine runs while its pages still lie in the store.
//!
//! The RAM file starts as one hole, registered with QEMU's userfaultfd. Three ways bring a page in, and the kernel lets exactly one of them win
//! (`UFFDIO_COPY` refuses a page that is there): the guest touches it, a device backend is about to touch it, or the background reader gets to it. That one
//! begins with the working set, the pages that were touched first when the checkpoint was restored before, and goes on in the order in which pages lie in
//! the store. Pages come in write-protected, so the tracker takes them for what they are: clean.

use crate::{Error, Result, faults::Memory};
use fermata_linux::{Installed, priority};
use fermata_store::Store;
use fermata_types::{PAGE_SIZE, PageName, PageNumber, PageSet, Root};
use std::{
    io,
    ops::Range,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
};

/// Zero pages brought in at a time around one that was touched, as the kernel does for files ("fault-around").
const ZERO_AROUND: u32 = 16;
static ZEROS: [u8; ZERO_AROUND as usize * PAGE_SIZE] = [0; ZERO_AROUND as usize * PAGE_SIZE];

/// Pages remembered as touched, at most: 64 MiB of memory, and 64 KiB to keep.
pub const WORKING_SET_MAX: usize = 16 * 1024;

/// How far a lazy restore is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paging {
    /// Pages that the guest had to wait for.
    pub touched: u64,
    /// Pages that lie in the store; 0 as long as they are not counted.
    pub wanted: u64,
    /// How many of them were brought in.
    pub restored: u64,
    /// All pages that lie in the store are in.
    pub complete: bool,
    /// A page could not be had from the store; the machine was ended before it could see a wrong one.
    pub failure: Option<String>,
}

/// Serves the missing pages of one machine for as long as the machine lives.
pub(crate) struct Pager {
    shared: Arc<Shared>,
    filler: Mutex<Option<JoinHandle<()>>>,
}

/// Pages that are being brought in ahead of a machine that is to go on.
pub(crate) struct Filling {
    go_on: mpsc::Sender<()>,
    first_is_there: mpsc::Receiver<()>,
}

impl Filling {
    /// Waits for the first pages, and has all others come behind the machine.
    pub fn go_on(self) {
        // Either fails if reading ended early, which was told.
        let _ = self.first_is_there.recv();
        let _ = self.go_on.send(());
    }
}

struct Shared {
    store: Store,
    root: Root,
    // The memory holds its pager.
    memory: Weak<Memory>,
    /// How often somebody waited for a page.
    touched: AtomicU64,
    /// The first of these pages, in the order in which they were touched.
    touched_first: Mutex<Vec<PageNumber>>,
    wanted: AtomicU64,
    restored: AtomicU64,
    complete: AtomicBool,
    there: There,
}

/// Pages that are known to be there: a bit for each.
struct There(Box<[AtomicU64]>);

impl There {
    fn new(pages: u64) -> Self {
        Self((0..pages.div_ceil(u64::BITS.into())).map(|_| AtomicU64::new(0)).collect())
    }

    fn place(&self, page: PageNumber) -> Option<(&AtomicU64, u64)> {
        Some((self.0.get((page / u64::BITS) as usize)?, 1 << (page % u64::BITS)))
    }

    fn add(&self, pages: Range<PageNumber>) {
        for (word, bit) in pages.filter_map(|page| self.place(page)) {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    fn has(&self, page: PageNumber) -> bool {
        self.place(page).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }
}

impl Pager {
    pub fn new(store: Store, root: Root, memory: &Arc<Memory>) -> Self {
        let shared = Shared {
            store,
            root,
            memory: Arc::downgrade(memory),
            touched: AtomicU64::new(0),
            touched_first: Mutex::default(),
            wanted: AtomicU64::new(0),
            restored: AtomicU64::new(0),
            complete: AtomicBool::new(false),
            there: There::new(root.pages),
        };
        Self { shared: Arc::new(shared), filler: Mutex::default() }
    }

    /// Starts bringing in the pages that `first` names, which are there when [`Filling::go_on`] returns; then the working set; and once it is told to go on, all others. In the
    /// end it tells `remember` which pages somebody had to wait for.
    ///
    /// What is dropped without a word is taken for the end: nothing more is brought in.
    pub fn fill_behind(
        &self,
        first: impl FnOnce() -> Vec<PageNumber> + Send + 'static,
        working_set: Vec<PageNumber>,
        remember: impl FnOnce(Vec<PageNumber>) + Send + 'static,
    ) -> Filling {
        let (go_on, told) = mpsc::channel();
        let (is_there, first_is_there) = mpsc::channel();
        let shared = self.shared.clone();
        let early = std::thread::spawn({
            let shared = shared.clone();
            move || {
                let first = shared.fill_first(first());
                // Nobody waits for it any more if the machine could not be restored.
                let _ = is_there.send(());
                // Meanwhile the devices are loaded, and somebody waits for those.
                priority::go_last();
                first.and_then(|()| shared.fill_first(working_set))
            }
        });
        let fill = move || {
            // What a remote has lost of it may be sent there again, and comes with all others then.
            if let Err(error) = early.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                tracing::warn!("of the pages that were to come first some do not: {error}");
            }
            if told.recv().is_ok() {
                // The guest runs, and waits for pages that it touches. As many threads as there are processors would else take half of its time until all is there.
                priority::go_last();
                // What is still on a remote is fetched by somebody else, and comes one page at a time until then.
                if !shared.store.await_away(&|| shared.memory().is_some()) {
                    return Ok(());
                }
                shared.fill()?;
                remember(shared.touched_first.lock().expect("nobody panics with the lock").clone());
            }
            Ok(())
        };
        let filler = std::thread::spawn(move || {
            if let Err(error) = fill() {
                let error: Error = error;
                // The guest may never touch the page that cannot be read; if it does, the server of faults ends the machine.
                tracing::warn!("restoring in the background ended early: {error}");
            }
        });
        *self.filler.lock().expect("nobody panics with the lock") = Some(filler);
        Filling { go_on, first_is_there }
    }

    /// Brings in everything now.
    pub fn fill(&self) -> Result<()> {
        self.shared.fill()
    }

    /// Brings in these pages, for a device backend that is about to touch them through a mapping of its own.
    pub fn bring_in(&self, first: PageNumber, pages: u32) -> io::Result<()> {
        if self.shared.complete.load(Ordering::Acquire) {
            return Ok(());
        }
        // Rings are touched for each request: what is there must cost nothing.
        (first..first.saturating_add(pages)).filter(|page| !self.shared.there.has(*page)).try_for_each(|page| {
            // A disk that cannot answer would leave the guest hanging without a word.
            let failed = |error: &Error| {
                if let Some(memory) = self.shared.memory.upgrade() {
                    memory.fate.give_up(page.into(), error);
                }
            };
            self.shared.bring_in(page).inspect_err(failed).map(drop).map_err(io::Error::other)
        })
    }

    /// Whether these pages are all there.
    pub fn is_there(&self, first: PageNumber, pages: u32) -> bool {
        self.shared.complete.load(Ordering::Acquire) || (first..first.saturating_add(pages)).all(|page| self.shared.there.has(page))
    }

    /// Brings in a page that somebody waits for.
    pub fn touched(&self, page: PageNumber) -> Result<()> {
        self.shared.bring_in(page)?;
        self.shared.touched.fetch_add(1, Ordering::Relaxed);
        let mut first = self.shared.touched_first.lock().expect("nobody panics with the lock");
        if first.len() < WORKING_SET_MAX {
            first.push(page);
        }
        Ok(())
    }

    /// How far it is.
    pub fn paging(&self) -> Paging {
        Paging {
            touched: self.shared.touched.load(Ordering::Relaxed),
            wanted: self.shared.wanted.load(Ordering::Relaxed),
            restored: self.shared.restored.load(Ordering::Relaxed),
            complete: self.shared.complete.load(Ordering::Acquire),
            failure: None,
        }
    }

    /// Waits for the background reader to see that the machine ends.
    pub fn join(&self) {
        let filler = self.filler.lock().expect("nobody panics with the lock").take();
        if let Some(filler) = filler {
            let _ = filler.join();
        }
    }
}

impl Shared {
    /// The memory, as long as its machine lives.
    fn memory(&self) -> Option<Arc<Memory>> {
        self.memory.upgrade().filter(|memory| !memory.fate.ending.load(Ordering::Acquire))
    }

    fn bring_in(&self, page: PageNumber) -> Result<()> {
        match self.kept(page)? {
            Some(name) => {
                let mut content = [0; PAGE_SIZE];
                self.store.read_page(&name, &mut content)?;
                self.install_kept(page, &content)?;
            }
            None => {
                let around = self.zeros_from(page)?;
                self.install(page, &ZEROS[..around as usize * PAGE_SIZE])?;
            }
        }
        Ok(())
    }

    /// What a page is called in the store; none if it is zero. One that the guest has given back is, whatever it was in the checkpoint.
    fn kept(&self, page: PageNumber) -> Result<Option<PageName>> {
        if self.memory().is_some_and(|memory| memory.holes.shut().contains(page)) {
            return Ok(None);
        }
        Ok(self.store.lookup(&self.root, page)?)
    }

    /// How many pages from this zero page on are zero too, within its aligned neighbourhood.
    fn zeros_from(&self, page: PageNumber) -> Result<u32> {
        let end = u64::from(page / ZERO_AROUND + 1) * u64::from(ZERO_AROUND);
        let mut next = page + 1;
        while u64::from(next) < end.min(self.root.pages) && self.kept(next)?.is_none() {
            next += 1;
        }
        Ok(next - page)
    }

    fn install_kept(&self, page: PageNumber, content: &[u8]) -> Result<()> {
        let Some(memory) = self.memory() else { return Ok(()) };
        // From here until it is in: the guest may have given it back since it was read.
        let holes = memory.holes.shut();
        let content = if holes.contains(page) { &ZEROS[..PAGE_SIZE] } else { content };
        if self.install(page, content)? == Installed::New {
            self.restored.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn install(&self, page: PageNumber, content: &[u8]) -> Result<Installed> {
        // Of a machine that is gone nobody misses a page.
        let Some(memory) = self.memory() else { return Ok(Installed::Already) };
        let address = memory.range.start + u64::from(page) * PAGE_SIZE as u64;
        let installed = memory.userfault.install(address, content).map_err(memory.io("installing a page of"))?;
        // Of several it may have stopped at one that was there, which may be the first.
        let pages = if installed == Installed::New { content.len() / PAGE_SIZE } else { 1 };
        self.there.add(page..page + pages as u32);
        Ok(installed)
    }

    /// The working set: pages in the order in which they were once touched.
    fn fill_first(&self, pages: Vec<PageNumber>) -> Result<()> {
        let mut wanted = Vec::with_capacity(pages.len());
        let mut seen = PageSet::new();
        for page in pages {
            if u64::from(page) >= self.root.pages || !seen.insert(page) {
                continue;
            }
            match self.kept(page)? {
                Some(name) => wanted.push((page, name)),
                None => _ = self.install(page, &ZEROS[..PAGE_SIZE])?,
            }
        }
        self.read(wanted)?;
        Ok(())
    }

    fn fill(&self) -> Result<()> {
        let mut wanted = Vec::new();
        self.store.for_each_page(&self.root, &mut |page, name| {
            wanted.push((page, name));
            Ok(())
        })?;
        self.wanted.store(wanted.len() as u64, Ordering::Relaxed);
        let complete = self.read(wanted)?;
        self.complete.store(complete, Ordering::Release);
        Ok(())
    }

    /// False if the machine ended before all was read.
    fn read(&self, wanted: Vec<(PageNumber, PageName)>) -> Result<bool> {
        let failed = OnceLock::new();
        self.store.read_pages(wanted, &|page, content| match self.install_kept(page, content) {
            Ok(()) => self.memory().is_some(),
            Err(error) => {
                // Of several the first one says it.
                let _ = failed.set(error);
                false
            }
        })?;
        failed.into_inner().map_or_else(|| Ok(self.memory().is_some()), Err)
    }
}
