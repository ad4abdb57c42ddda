//! `PAGEMAP_SCAN` over memory under asynchronous write-protection: a first write costs the writer half a microsecond in the kernel and nobody is
//! woken; a scan reads and arms a gigabyte in about a millisecond. Keeps no pre-image.

use crate::{Error, Protector, Result, Tracker};
use fermata_linux::{Pagemap, Userfault};
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

const MECHANISM: &str = "scan";

/// Tracks one mapping of guest memory in another process.
#[derive(Debug)]
pub struct ScanTracker {
    pagemap: Pagemap,
    range: Range<u64>,
    /// To be named by the next take: found by a scan that failed half way (the kernel watches them again, and would not name them a second time), or expected.
    found: PageSet,
    protector: Arc<ScanProtector>,
    // Closing the last copy of the descriptor would end the protection.
    _userfault: Arc<Userfault>,
}

/// Asks with a page map of its own, so that nobody waits for a scan of all the memory.
#[derive(Debug)]
struct ScanProtector {
    pagemap: Mutex<Pagemap>,
    start: u64,
}

impl ScanTracker {
    /// Watches `range` of process `pid` from now on. The range must be registered with the userfaultfd of that process.
    pub fn new(pid: u32, range: Range<u64>, userfault: Arc<Userfault>) -> Result<Self> {
        let failed = |what| move |source| Error::Io { mechanism: MECHANISM, what, source };
        let open = || Pagemap::open(pid).map_err(failed("opening the page map"));
        let (pagemap, protector) = (open()?, Arc::new(ScanProtector { pagemap: Mutex::new(open()?), start: range.start }));
        userfault.protect(range.clone()).map_err(failed("write-protecting the memory"))?;
        Ok(Self { pagemap, range, found: PageSet::new(), protector, _userfault: userfault })
    }
}

impl Tracker for ScanTracker {
    fn mechanism(&self) -> &'static str {
        MECHANISM
    }

    fn take(&mut self) -> Result<PageSet> {
        let found = &mut self.found;
        let start = self.range.start;
        let page = |address: u64| ((address - start) / PAGE_SIZE as u64) as u32;
        self.pagemap
            .take_written(self.range.clone(), |written| {
                found.insert_range(page(written.start)..page(written.end));
            })
            .map_err(|source| Error::Io { mechanism: MECHANISM, what: "PAGEMAP_SCAN", source })?;
        Ok(std::mem::take(&mut self.found))
    }

    fn expect_writes(&mut self, pages: Range<PageNumber>) -> Result<()> {
        self.found.insert_range(pages);
        Ok(())
    }

    fn protector(&self) -> Option<Arc<dyn Protector>> {
        Some(self.protector.clone())
    }
}

impl Protector for ScanProtector {
    fn protect(&self, pages: &[Range<PageNumber>], written: &mut dyn FnMut(Range<PageNumber>)) -> Result<()> {
        let address = |page: PageNumber| self.start + u64::from(page) * PAGE_SIZE as u64;
        let page = |address: u64| ((address - self.start) / PAGE_SIZE as u64) as PageNumber;
        let mut pagemap = self.pagemap.lock().expect("nobody panics with the lock");
        // The scan notes and protects each page in one step, and the kernel has flushed the processors' translations when it returns.
        pages
            .iter()
            .try_for_each(|run| {
                pagemap.take_written(address(run.start)..address(run.end), |found| written(page(found.start)..page(found.end)))
            })
            .map_err(|source| Error::Io { mechanism: MECHANISM, what: "PAGEMAP_SCAN", source })
    }
}
