//! The soft-dirty bits of the page tables (Documentation/admin-guide/mm/soft-dirty.rst): a walk over them tells what was written since they were cleared. The nearest
//! that Linux has to a scan of the processor's own dirty bits; many kernels are built without, Debian's with them.
//!
//! The bits of shared memory go with its entries in the page table: a page that was written and then dropped from the mapping (`MADV_DONTNEED`, a swap, a collapse into a huge page) before the
//! next `take` is not named. A huge page that is mapped as such is named as a whole. So nothing takes this by itself, and who asks for it should have the area locked in memory (mlock(2)) and not in
//! huge pages.
//!
//! Clearing is for the whole process, and each such tracker of it sees that of another: there can be one at a time, and it takes all of the process's time.

use crate::{Error, Result, Tracker};
use fermata_linux::{Pagemap, Place, pagemap, probe};
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

const MECHANISM: &str = "soft-dirty";

/// The bits are the process's: one tracker at a time.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Tracks an area of this process.
#[derive(Debug)]
pub struct SoftDirtyTracker {
    place: Arc<Place>,
    pagemap: Pagemap,
    found: PageSet,
    _only: Only,
}

#[derive(Debug)]
struct Only;

impl Drop for Only {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}

impl SoftDirtyTracker {
    /// Watches from now on. Tries first whether this kernel has the bits.
    pub fn new(place: Arc<Place>) -> Result<Self> {
        let failed = |what| move |source| Error::Io { mechanism: MECHANISM, what, source };
        if TAKEN.swap(true, Ordering::AcqRel) {
            return Err(failed("beginning")(io::Error::other("another area of this process is watched by the same bits")));
        }
        let only = Only;
        probe::soft_dirty().map_err(|refusal| failed(refusal.step)(refusal.source))?;
        let pagemap = Pagemap::open(std::process::id()).map_err(failed("opening the page map"))?;
        pagemap::clear_soft_dirty().map_err(failed("clearing the bits"))?;
        Ok(Self { place, pagemap, found: PageSet::new(), _only: only })
    }
}

impl Tracker for SoftDirtyTracker {
    fn mechanism(&self) -> &'static str {
        MECHANISM
    }

    fn take(&mut self) -> Result<PageSet> {
        let (range, found) = (self.place.range(), &mut self.found);
        let page = |address: u64| ((address - range.start) / PAGE_SIZE as u64) as u32;
        self.pagemap
            .soft_dirty(range.clone(), |written| _ = found.insert_range(page(written.start)..page(written.end)))
            .and_then(|()| pagemap::clear_soft_dirty())
            .map_err(|source| Error::Io { mechanism: MECHANISM, what: "reading the bits", source })?;
        Ok(std::mem::take(&mut self.found))
    }

    fn expect_writes(&mut self, pages: Range<PageNumber>) -> Result<()> {
        self.found.insert_range(pages);
        Ok(())
    }
}
