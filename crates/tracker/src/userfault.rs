//! Synchronous write-protection: whoever writes to a watched page waits until the page is noted and let through. Costs a writer some microseconds and two
//! thread switches for the first write to a page, works from Linux 5.19 on, and is the only mechanism that announces a write *before* it happens: what
//! copy-on-write needs.
//!
//! ```text
//!   writer ──fault──> whoever reads the userfaultfd ──> (copies the page) ──> WriteLog::wrote: note, then unprotect ──> writer goes on
//! ```

use crate::{Error, Protector, Result, Tracker};
use fermata_linux::Userfault;
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use std::{
    io,
    ops::Range,
    sync::{Arc, Mutex},
};

const MECHANISM: &str = "userfault";

/// With more runs of written pages than this, all the memory is protected at once.
const RUNS_MAX: usize = 4096;

/// Tracks a mapping of guest memory through faults that somebody else reads and hands to the [`WriteLog`].
#[derive(Debug)]
pub struct UserfaultTracker(WriteLog);

/// Where the reader of faults notes writes. Cheap to clone; all clones are one log.
#[derive(Debug, Clone)]
pub struct WriteLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    range: Range<u64>,
    userfault: Arc<Userfault>,
    /// Every page that is not protected is in here: pages are noted and opened, and forgotten and protected, under this lock only.
    written: Mutex<PageSet>,
}

impl UserfaultTracker {
    /// Watches `range` from now on. It must be registered with the userfaultfd, which must have been made for [`fermata_linux::Writes::Sync`].
    ///
    /// From now on somebody must read its faults and hand each write to the log, or writers sleep for ever.
    pub fn new(range: Range<u64>, userfault: Arc<Userfault>) -> Result<(Self, WriteLog)> {
        let log = WriteLog(Arc::new(Shared { range, userfault, written: Mutex::default() }));
        log.0.protect()?;
        Ok((Self(log.clone()), log))
    }
}

impl WriteLog {
    /// Notes a write that is about to happen, then lets the writer through. Who wants the page as it was must have copied it before.
    ///
    /// `InvalidInput` if the address is not watched.
    pub fn wrote(&self, address: u64) -> io::Result<()> {
        let shared = &*self.0;
        if !shared.range.contains(&address) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("address {address:#x} is not in the watched memory")));
        }
        let page = ((address - shared.range.start) / PAGE_SIZE as u64) as PageNumber;
        self.wrote_all(page..page + 1)
    }

    /// The same for several pages, all of which count as written from now on, whether they are or not.
    ///
    /// `InvalidInput` if they are not watched.
    pub fn wrote_all(&self, pages: Range<PageNumber>) -> io::Result<()> {
        let shared = &*self.0;
        let [start, end] = [pages.start, pages.end].map(|page| shared.range.start + u64::from(page) * PAGE_SIZE as u64);
        if pages.is_empty() || end > shared.range.end {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("pages {pages:?} are not in the watched memory")));
        }
        let mut written = shared.written.lock().expect("nobody panics with the lock");
        written.insert_range(pages);
        // Opened under the lock: a `take` in between would forget the page and leave it open.
        shared.userfault.unprotect(start..end)
    }
}

impl Shared {
    fn protect(&self) -> Result<()> {
        self.protect_range(self.range.clone())
    }

    fn protect_range(&self, range: Range<u64>) -> Result<()> {
        let failed = |source| Error::Io { mechanism: MECHANISM, what: "write-protecting the memory", source };
        self.userfault.protect(range).map_err(failed)
    }

    /// Protects the pages that are open, in runs. The kernel takes longer for many calls than for one over all the memory.
    fn protect_again(&self, written: &PageSet) -> Result<()> {
        let mut pages = written.iter().peekable();
        let mut runs: Vec<Range<u64>> = Vec::new();
        while let Some(first) = pages.next() {
            let mut end = first;
            while pages.next_if_eq(&(end + 1)).is_some() {
                end += 1;
            }
            if runs.len() == RUNS_MAX {
                return self.protect();
            }
            let address = |page: u64| self.range.start + page * PAGE_SIZE as u64;
            runs.push(address(first.into())..address(u64::from(end) + 1));
        }
        runs.into_iter().try_for_each(|run| self.protect_range(run))
    }
}

impl Tracker for UserfaultTracker {
    fn mechanism(&self) -> &'static str {
        MECHANISM
    }

    fn take(&mut self) -> Result<PageSet> {
        let shared = &*self.0.0;
        let mut written = shared.written.lock().expect("nobody panics with the lock");
        // If this fails half way, the set still names every page that may be open.
        shared.protect_again(&written)?;
        Ok(std::mem::take(&mut *written))
    }

    fn expect_writes(&mut self, pages: Range<PageNumber>) -> Result<()> {
        // That they are protected as well does no harm.
        self.0.0.written.lock().expect("nobody panics with the lock").insert_range(pages);
        Ok(())
    }

    fn protector(&self) -> Option<Arc<dyn Protector>> {
        Some(self.0.0.clone())
    }
}

impl Protector for Shared {
    fn protect(&self, pages: &[Range<PageNumber>], each: &mut dyn FnMut(Range<PageNumber>)) -> Result<()> {
        let mut written = self.written.lock().expect("nobody panics with the lock");
        let open: PageSet = pages.iter().flat_map(|run| run.clone()).filter(|page| written.contains(*page)).collect();
        // All others are protected already: nobody opens a page but under this lock.
        self.protect_again(&open)?;
        *written -= &open;
        open.iter().for_each(|page| each(page..page + 1));
        Ok(())
    }
}
