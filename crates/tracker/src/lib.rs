//! Which pages of a guest's memory were written: one trait, one file a mechanism.
//!
//! - [`scan`]: `PAGEMAP_SCAN` over memory under asynchronous write-protection
//!
//! A tracker knows addresses and pages. It knows neither what is in them nor who wants to know.

pub mod scan;

pub use scan::ScanTracker;

use fermata_types::PageSet;
use std::io;

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
}

/// What trackers return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Watches a guest's memory for writes.
///
/// A page that is written between two calls of `take` is named by the second one; naming a page that was not written is allowed and only costs time, as long as
/// the page is there: one that still has to be restored must not be named, for its content would be taken from a hole.
/// Pages are numbered from the start of the guest's memory.
pub trait Tracker: Send {
    /// The mechanism, as people call it: `scan`.
    fn mechanism(&self) -> &'static str;

    /// Pages written since the last call, or since the tracker was made. From now on they are watched again.
    ///
    /// For one instant of all the memory, the writers must stand still.
    fn take(&mut self) -> Result<PageSet>;
}
