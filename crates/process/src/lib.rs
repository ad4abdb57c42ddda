//! Checkpoints of programs on the host. A program puts the data that must outlive it into a critical data area, writes it between `begin` and `commit`, and
//! finds it after a crash as it was at the last commit.
//!
//! ```no_run
//! # use fermata_process::{CriticalArea, Options};
//! # fn main() -> Result<(), fermata_process::Error> {
//! let store = fermata_store::Store::open(std::path::Path::new("/var/lib/orders"))?;
//! let mut area = CriticalArea::open(&store, "orders", 1 << 30, Options::default())?;
//! let mut cycle = area.begin()?;
//! cycle[..8].copy_from_slice(&42_u64.to_le_bytes());
//! cycle.commit()?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`critical`]: [`CriticalArea`]: an area that grows a line of checkpoints in a store; [`Cycle`]: from `begin` to `commit`
//! - [`area`]: [`Area`]: the memory itself under a tracker, for whoever makes the records of checkpoints (several areas in one, or several processes)
//! - [`capture`]: [`Capture`]: what was written, taken at one instant, apart from the memory
//! - `copier`: who copies behind the program what a commit captured, where each page is copied before it is written to
//! - `follower`: who sends commits to a backup, one after the other, behind the program
//! - `fuzzing`: what fuzzers call, only with that feature
//! - [`heap`]: [`Heap`]: an allocator that places structures inside an area
//! - `line`: who writes captures to the store, one after the other, behind the program; [`Pending`]: a commit that is being written
//! - `pruner`: who removes what is older than the last so many commits of an area, behind the program
//! - [`ranks`]: programs of several ranks that send each other messages, and consistent checkpoints of them
//! - `record`: records of what is no machine
//! - [`mod@receive`]: a backup that puts what it receives into a store, from which the area opens on another host
//! - [`replica`]: commits on their way to a backup: [`Replica`] sends, [`Backup`] receives and takes over, without any store
//! - [`tracking`]: [`Tracking`]: how writes are found; `auto`: the cheapest way, by what was measured
//!
//! An area is memory of fixed size at a fixed address, so that pointers within it hold after a restart. Between two commits the program does with it what it
//! likes. This room does not know what is in an area, and saves nothing else of the program: no stack, no registers, no open files.

pub mod area;
#[cfg(target_arch = "x86_64")]
mod auto;
pub mod capture;
mod copier;
pub mod critical;
mod error;
mod follower;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod heap;
mod line;
mod pruner;
pub mod ranks;
pub mod receive;
mod record;
pub mod replica;
pub mod tracking;

pub use area::{Area, Options};
pub use capture::Capture;
pub use critical::{CriticalArea, Cycle};
pub use error::{Error, Result};
pub use heap::{Heap, HeapError, Placed};
pub use line::Pending;
pub use receive::{Received, Receiving, receive};
pub use replica::{Backup, Replica};
pub use tracking::Tracking;
