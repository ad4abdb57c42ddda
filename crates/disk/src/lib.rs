//! Disks: golden images, branches above them, and the server through which a guest reaches them.
//!
//! - [`golden`]: immutable images outside the store, raw or qcow2, and their names
//! - [`overlay`]: the branching disk: image, page table, and what this run wrote
//! - `ext4`: which blocks of a file system are free; `freed`: which of them a cut may leave out
//! - [`cut`]: what was written between two instants, and how it is saved
//! - `map`: where each block lies; `segments`: scattered memory for system calls
//! - [`layers`]: the two traits by which a disk reaches the store
//! - [`server`]: a disk on a Unix socket, as QEMU's `vhost-user-blk-pci` expects it
//! - `session`: one connection: the vhost-user protocol and the worker; `ring`: one virtqueue; `device`: virtio block requests
//! - [`guest`]: guest RAM, brought in before it is touched and reported after it was written; `dirty`: the pages so reported
//! - [`page_map`]: which pages of guest memory equal a block; `pairs`: what a request says of that; `names`: what such a block is called in a checkpoint
//! - [`part`]: the disk as a part of an experiment
//! - `fuzzing`: what fuzzers call, only with that feature
//!
//! **A request** goes from the guest's ring through `session`'s worker, which holds the connection's lock for that one request, to `device`, which hands the
//! guest's buffers as they lie in its RAM to [`Disk::read`] or [`Disk::write`]; there they go straight into system calls on the overlay or the image.
//!
//! **A cut** is taken while QEMU has stopped the rings, and costs microseconds. It is saved while the guest writes on.
//!
//! This room does not know QEMU's processes, what a machine is made of, when a checkpoint is taken, or how the store keeps a block. It reads no clock but the
//! one it is handed.

pub mod cut;
mod device;
mod dirty;
mod error;
mod ext4;
mod freed;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod golden;
pub mod guest;
pub mod layers;
mod map;
mod names;
pub mod overlay;
pub mod page_map;
mod pairs;
pub mod part;
mod ring;
mod segments;
pub mod server;
mod session;

/// Where `dirty` takes its atomics and locks from; `tests/interleavings.rs` puts others in this place.
use std::sync;

pub use cut::{Cut, CutId};
pub use device::Counters;
pub use dirty::DirtyPages;
pub use error::{Error, Result};
pub use freed::FreeSpace;
pub use golden::{Format, Golden};
pub use guest::{MemoryWatch, Region};
pub use layers::{Pages, Sink};
pub use overlay::{Disk, DiskOptions, Settled};
pub use page_map::PageMap;
pub use part::{DiskDetails, DiskPart, ImageDetails};
pub use segments::{Input, Output};
pub use server::{Server, ServerOptions};
pub use session::Running;
