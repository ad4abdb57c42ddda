//! Which pages of memory, a guest's or a program's, were written: one trait, one file a mechanism.
//!
//! - [`scan`]: `PAGEMAP_SCAN` over memory under asynchronous write-protection
//! - [`userfault`]: synchronous write-protection: a write waits until it is noted
//! - [`compare`]: comparison of all memory by hash
//! - [`kvm`]: KVM's dirty log or dirty ring for the guest's processors, beside a scan for everybody else
//! - [`trap`]: writes as signals: page tracking and emulation, for memory of the process itself
//! - [`soft_dirty`]: the soft-dirty bits of the page tables
//! - [`difference`]: another tracker, made finer: word by word; [`words`]: what such a one names
//! - [`choice`]: which of them this host can do, and which one to take
//!
//! A tracker knows addresses and pages. It knows neither what is in them nor who wants to know.

pub mod choice;
pub mod compare;
pub mod difference;
pub mod kvm;
pub mod scan;
pub mod soft_dirty;
#[cfg(target_arch = "x86_64")]
pub mod trap;
pub mod userfault;
pub mod words;

pub use choice::{Choice, Standing};
pub use compare::CompareTracker;
pub use difference::DifferenceTracker;
pub use kvm::{KvmNotes, KvmTracker};
pub use scan::ScanTracker;
pub use soft_dirty::SoftDirtyTracker;
#[cfg(target_arch = "x86_64")]
pub use trap::TrapTracker;
pub use userfault::{UserfaultTracker, WriteLog};
pub use words::{ALL_WORDS, WordMask, Words};

use fermata_linux::Behind;
use fermata_types::{PageNumber, PageSet};
use std::{io, ops::Range, sync::Arc};

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused.
    #[error("{mechanism}: {what} failed: {source}")]
    Io {
        /// The tracker.
        mechanism: &'static str,
        /// What was asked of the kernel.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// This host cannot do it.
    #[error("the tracker {tracker} does not work here: {why}; `fermata doctor` says which do")]
    Unavailable {
        /// The tracker.
        tracker: Choice,
        /// What is missing.
        why: String,
    },
}

/// What trackers return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Watches memory for writes: a guest's, or an area of a program.
///
/// A page whose content changed between two calls of `take` is named by the second one; naming another page is allowed and only costs time, as long as it is there: one that still has to be restored must not be named, for its content would be taken from a hole.
/// Pages are numbered from the start of the guest's memory.
pub trait Tracker: Send {
    /// The mechanism, as people call it: `scan`.
    fn mechanism(&self) -> &'static str;

    /// Pages written since the last call, or since the tracker was made. From now on they are watched again.
    ///
    /// For one instant of all the memory, the writers must stand still.
    fn take(&mut self) -> Result<PageSet>;

    /// The same as finely as the mechanism knows: words of pages, or pages.
    fn take_words(&mut self) -> Result<Words> {
        Ok(self.take()?.into())
    }

    /// Somebody writes to these pages before the next `take` whom this tracker may not see, or did: the kernel for a system call or through pages that it has pinned, a device, whoever punched
    /// a hole. The next `take` names those of them whose content changed, at least.
    ///
    /// Without a default: a tracker that stands on page tables misses what goes past them, and only comparison of everything has nothing to do here.
    fn expect_writes(&mut self, pages: Range<PageNumber>) -> Result<()>;

    /// Has pages that were just taken copied into this buffer behind the writers: as they are now, each at the latest before somebody writes to it. From here
    /// on writes past the page tables have to be expected before they happen. Gives the buffer back where the mechanism cannot hold a write back.
    fn copy_behind(&mut self, _pages: &[PageNumber], buffer: Vec<u8>) -> Result<Behind, Vec<u8>> {
        Err(buffer)
    }

    /// A way to watch single pages again, if this tracker has one. It works beside `take`, and from any thread.
    fn protector(&self) -> Option<Arc<dyn Protector>> {
        None
    }
}

/// Watches single pages again between two calls of [`Tracker::take`].
pub trait Protector: Send + Sync {
    /// Watches these stretches of pages from now on: a page of them that the next `take` names was written after this call began. Those that had been written
    /// before are told to `written`, and are the caller's to remember: `take` names them no more.
    ///
    /// After an error any of the pages may have been written, and any may be watched.
    fn protect(&self, pages: &[Range<PageNumber>], written: &mut dyn FnMut(Range<PageNumber>)) -> Result<()>;
}
