//! Disks: golden images, branches above them, and the server through which a guest reaches them.
//!
//! - [`golden`]: immutable images outside the store, raw or qcow2, and their names; `coming`: one that is on its way here
//! - [`overlay`]: the branching disk: image, page table, and what this run wrote
//! - `ext4`: which blocks of a file system are free, and its files; `freed`: which blocks a cut may leave out; [`files`]: which files differ
//! - [`cut`]: what was written between two instants, and how it is saved
//! - `map`: where each block lies
//! - [`layers`]: the two traits by which a disk reaches the store
//! - [`server`]: a disk on a Unix socket, as QEMU's `vhost-user-blk-pci` expects it
//! - `device`: virtio block requests
//! - [`page_map`]: which pages of guest memory equal a block; `pairs`: what a request says of that; `names`: what such a block is called in a checkpoint
//! - [`part`]: the disk as a part of an experiment
//! - [`still`]: the disk of a checkpoint without a server, read like a file; as an image for others
//! - `fuzzing`: what fuzzers call, only with that feature
//!
//! **A request** goes from the guest's ring through the worker of the room `vhost` to `device`, which hands the guest's buffers as they lie in its RAM to
//! [`Disk::read`] or [`Disk::write`]; there they go straight into system calls on the overlay or the image.
//!
//! **A cut** is taken while QEMU has stopped the rings, and costs microseconds. It is saved while the guest writes on.
//!
//! This room does not know QEMU's processes, what a machine is made of, when a checkpoint is taken, or how the store keeps a block. It reads no clock but the
//! one it is handed.

mod coming;
pub mod cut;
mod device;
mod error;
mod ext4;
pub mod files;
mod freed;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod golden;
pub mod layers;
mod map;
mod names;
pub mod overlay;
pub mod page_map;
mod pairs;
pub mod part;
pub mod server;
pub mod still;

pub use cut::{Cut, CutId};
pub use device::Counters;
pub use error::{Error, Result};
pub use freed::FreeSpace;
pub use golden::{Format, Golden};
pub use layers::{EachBlock, Pages, Sink};
pub use overlay::{Disk, DiskOptions, Settled};
pub use page_map::PageMap;
pub use part::{DiskDetails, DiskPart, ImageDetails};
pub use server::{Server, ServerOptions};
