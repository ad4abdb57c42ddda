//! The words of Fermata as types. Every room speaks in these and no room explains them again.
//!
//! - [`composition`]: what the pages of a guest's memory are for
//! - [`id`]: names of things by the hash of what they are, and ids of what has no content
//! - [`names`]: what people call values
//! - [`page`]: page size, page numbers, sets of pages, the root of a page table
//! - [`part`]: the state of one part of an experiment inside a checkpoint
//! - [`perturbation`]: what is made different in a replay
//! - [`sieve`]: how many pages of a checkpoint fell into which class
//! - [`time`]: virtual time
//!
//! This room knows no file, no process and no clock, and imports nothing of ours.

pub mod composition;
pub mod id;
pub mod names;
pub mod page;
pub mod part;
pub mod perturbation;
pub mod sieve;
pub mod time;

pub use composition::{Composition, Use};
pub use id::{BlobName, CheckpointId, ImageId, MachineId, NodeName, PackId, PageName, ParseIdError};
pub use page::{FANOUT, Mapped, PAGE_SIZE, POISON, POISON_PAGE, PageBuf, PageNumber, PageSet, Root, ZERO_PAGE};
pub use part::{PartKind, PartState};
pub use perturbation::Perturbation;
pub use sieve::{ClassTimes, Distances, PageCounts};
pub use time::VirtualTime;
