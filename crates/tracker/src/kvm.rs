//! KVM's dirty log or dirty ring: what the guest's processors write, noted by KVM in its own page tables. Or its read-only memory: every store, with its words, which
//! KVM decodes and whoever runs the guest does.
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

use crate::{Choice, Error, Result, ScanTracker, Tracker, WordMask, Words};
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use std::{collections::BTreeMap, io, ops::Range};

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
    /// Found by a question that failed half way, which KVM would not name a second time, or expected.
    found: PageSet,
    words: BTreeMap<PageNumber, WordMask>,
    first_mapping: ScanTracker,
}

impl<N: KvmNotes> KvmTracker<N> {
    /// Watches from now on: the scan the first mapping, the notes the second. `choice` is what the notes come from: log, ring or stores.
    pub fn new(choice: Choice, first_mapping: ScanTracker, notes: N) -> Result<Self> {
        let mechanism = match choice {
            Choice::KvmRing => "kvm-ring",
            Choice::KvmStore => "kvm-store",
            _ => "kvm-log",
        };
        let mut tracker = Self { mechanism, notes, found: PageSet::new(), words: BTreeMap::new(), first_mapping };
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
        Ok(self.take_words()?.pages())
    }

    fn take_words(&mut self) -> Result<Words> {
        let Self { found, words, .. } = self;
        let mut note = |written: Range<u64>| note(found, words, written);
        let failed = |source| Error::Io { mechanism: self.mechanism, what: "reading KVM's notes", source };
        self.notes.take(&mut note).map_err(failed)?;
        self.found |= self.first_mapping.take()?;
        let whole = std::mem::take(&mut self.found);
        let parts = std::mem::take(&mut self.words).into_iter().filter(|(page, _)| !whole.contains(*page)).collect();
        Ok(Words { whole, parts })
    }

    fn expect_writes(&mut self, pages: Range<PageNumber>) -> Result<()> {
        self.found.insert_range(pages);
        Ok(())
    }
}

/// Pages, or words of pages.
fn note(pages: &mut PageSet, words: &mut BTreeMap<PageNumber, WordMask>, written: Range<u64>) {
    const PAGE: u64 = PAGE_SIZE as u64;
    if written.start.is_multiple_of(PAGE) && written.end.is_multiple_of(PAGE) {
        pages.insert_range((written.start / PAGE) as u32..(written.end / PAGE) as u32);
        return;
    }
    for word in written.start / 8..written.end.div_ceil(8) {
        let (page, nth) = ((word * 8 / PAGE) as u32, (word % 512) as usize);
        words.entry(page).or_default()[nth / 64] |= 1 << (nth % 64);
    }
}
