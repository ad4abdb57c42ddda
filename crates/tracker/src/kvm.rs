//! KVM's dirty log or dirty ring: what the guest's processors write, noted by KVM in its own page tables.
//!
//! Neither names what QEMU writes: its devices, and the system calls it makes. To see both, the memory is mapped twice in the process that runs the machine:
//!
//! ```text
//!   processors ──> KVM's memory slot ──> second mapping ─┐
//!                  (KVM takes note)                      ├─> one file
//!   QEMU's devices ────────────────────> first mapping ──┘
//!                  (asynchronous write-protection, PAGEMAP_SCAN)
//! ```
//!
//! A scan protects the first mapping only, and so leaves KVM's page tables alone. What KVM itself writes for the guest (its clock, for one) goes through the
//! slot and is noted. Pages that a lazy restore has to bring in are missing in both mappings: [`fermata_linux::Userfault::register_alias`].

use crate::{Choice, Error, Result, ScanTracker, Tracker};
use fermata_types::{PAGE_SIZE, PageSet};
use std::{io, ops::Range};

/// Where KVM's notes come from. Only the process that made the virtual machine can ask for them (`EIO` for all others).
pub trait KvmNotes: Send {
    /// Calls `each` with stretches of the memory, as byte offsets, that processors have written since the last call, and has them noted again from now on.
    fn take(&mut self, each: &mut dyn FnMut(Range<u64>)) -> io::Result<()>;
}

/// Tracks memory that is mapped twice.
#[derive(Debug)]
pub struct KvmTracker<N> {
    mechanism: &'static str,
    notes: N,
    /// Found by a question that failed half way; KVM would not name them a second time.
    found: PageSet,
    first_mapping: ScanTracker,
}

impl<N: KvmNotes> KvmTracker<N> {
    /// Watches from now on: the scan the first mapping, the notes the second. `choice` is what the notes come from, log or ring.
    pub fn new(choice: Choice, first_mapping: ScanTracker, notes: N) -> Result<Self> {
        let mechanism = if choice == Choice::KvmRing { "kvm-ring" } else { "kvm-log" };
        let mut tracker = Self { mechanism, notes, found: PageSet::new(), first_mapping };
        // What was written before is not ours to tell.
        tracker.take()?;
        Ok(tracker)
    }
}

impl<N: KvmNotes> Tracker for KvmTracker<N> {
    fn mechanism(&self) -> &'static str {
        self.mechanism
    }

    fn take(&mut self) -> Result<PageSet> {
        let page = |offset: u64| (offset / PAGE_SIZE as u64) as u32;
        let found = &mut self.found;
        let mut note = |written: Range<u64>| _ = found.insert_range(page(written.start)..page(written.end));
        let failed = |source| Error::Io { mechanism: self.mechanism, what: "reading KVM's notes", source };
        self.notes.take(&mut note).map_err(failed)?;
        self.found |= self.first_mapping.take()?;
        Ok(std::mem::take(&mut self.found))
    }
}
