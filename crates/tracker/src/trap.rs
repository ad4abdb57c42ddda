//! Writes as signals, for memory of the process itself: a first write to a page opens it (page tracking, PT), or every write is done by the handler elsewhere and
//! its words are noted (emulation, Emul). Needs nothing of the kernel but `mprotect`.
//!
//! A store costs the program a signal: under PT the first to each page, under emulation every one. Under emulation a page stays closed, and what is named are words; an
//! instruction that cannot be decoded opens its page, which is then named as a whole.
//!
//! A system call that writes to a closed page fails with `EFAULT`: [`Tracker::expect_writes`] opens pages for it. Pages that the kernel has pinned (registered buffers of io_uring) are written behind
//! the page tables, closed or not: they, too, have to be expected, in each cycle.

use crate::{Error, Result, Tracker, Words};
use fermata_linux::{AreaMemory, Behind, MemoryFile, Trap, Trapping, traps::Noted};
use fermata_types::{PageNumber, PageSet};
use std::{io, ops::Range};

/// Tracks an area of this process.
#[derive(Debug)]
pub struct TrapTracker {
    trap: Trap,
    trapping: Trapping,
}

impl TrapTracker {
    /// Watches from now on.
    pub fn new(memory: &AreaMemory, trapping: Trapping) -> Result<Self> {
        let tracker = Self { trap: Trap::new(memory, trapping).map_err(failed(trapping, "watching writes by signals"))?, trapping };
        tracker.arm()?;
        Ok(tracker)
    }

    /// The same, but watches nothing until [`arm`](Self::arm).
    pub fn resting(memory: &AreaMemory, trapping: Trapping) -> Result<Self> {
        Ok(Self { trap: Trap::new(memory, trapping).map_err(failed(trapping, "watching writes by signals"))?, trapping })
    }

    /// Watches from now on, whatever was written before.
    pub fn arm(&self) -> Result<()> {
        self.trap.arm().map_err(failed(self.trapping, "closing the memory"))
    }

    /// Watches nothing until [`arm`](Self::arm).
    pub fn rest(&self) -> Result<()> {
        self.trap.rest().map_err(failed(self.trapping, "opening the memory"))
    }

    /// From now on, the other way.
    pub fn turn(&mut self, trapping: Trapping) {
        self.trapping = trapping;
        self.trap.set(trapping);
    }

    /// Has the first emulated store to each page that there is cost no more than the others. Holes stay holes.
    pub fn populate(&self, file: &MemoryFile) -> Result<()> {
        let populate = || self.trap.populate(&file.populated()?);
        populate().map_err(failed(self.trapping, "mapping the memory once more"))
    }

    /// After so many emulated stores pages are opened instead, until stores are counted anew.
    pub fn limit(&self, stores: u64) {
        self.trap.limit(stores);
    }

    /// Stores that were emulated since the last call.
    pub fn take_stores(&self) -> u64 {
        self.trap.take_stores()
    }
}

impl Tracker for TrapTracker {
    fn mechanism(&self) -> &'static str {
        name(self.trapping)
    }

    fn take(&mut self) -> Result<PageSet> {
        let mut pages = PageSet::new();
        self.trap.take(|page, _| _ = pages.insert(page)).map_err(failed(self.trapping, "closing the memory again"))?;
        Ok(pages)
    }

    fn take_words(&mut self) -> Result<Words> {
        let mut words = Words::default();
        let each = |page, noted| match noted {
            Noted::Whole => _ = words.whole.insert(page),
            Noted::Words(mask) if mask == [0; 8] => {}
            Noted::Words(mask) => words.parts.push((page, mask)),
        };
        self.trap.take(each).map_err(failed(self.trapping, "closing the memory again"))?;
        Ok(words)
    }

    fn expect_writes(&mut self, pages: Range<PageNumber>) -> Result<()> {
        self.trap.open(pages).map_err(failed(self.trapping, "opening pages"))
    }

    fn copy_behind(&mut self, pages: &[PageNumber], buffer: Vec<u8>) -> Result<Behind, Vec<u8>> {
        Ok(self.trap.copy_behind(pages, buffer))
    }
}

fn name(trapping: Trapping) -> &'static str {
    match trapping {
        Trapping::Open => "protect",
        Trapping::Emulate => "emulate",
    }
}

fn failed(trapping: Trapping, what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::Io { mechanism: name(trapping), what, source }
}
