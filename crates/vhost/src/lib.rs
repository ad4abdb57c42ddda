//! Back ends of the vhost-user protocol: what every device has in common that a guest reaches through rings in its memory, and that we serve from outside QEMU.
//!
//! - [`backend`]: the traits of what is served: features, configuration, and what becomes of a request
//! - [`server`]: a back end on a Unix socket, as QEMU's `vhost-user` devices expect it
//! - [`session`]: one connection: the protocol and the worker; `messages`: what QEMU says on it; [`ring`]: one virtqueue; `spin`: how long the worker looks for the next request
//! - [`guest`]: guest RAM, brought in before it is touched and reported after it was written; `dirty`: the pages so reported
//! - [`segments`]: scattered memory for system calls
//! - `fuzzing`: what the fuzz targets of all back ends share, only with that feature
//!
//! **Requests** go from the guest's ring through the worker of [`Link`], which holds the connection's lock for one request, to a [`Device`]. **What a device has to
//! say by itself** goes the other way, through [`Link::offer`], into buffers that the guest has laid into a ring for that.
//!
//! This room does not know what a disk or a network is, QEMU's processes, or when a checkpoint is taken. It knows no clock.

pub mod backend;
mod dirty;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod guest;
mod messages;
pub mod ring;
pub mod segments;
pub mod server;
pub mod session;
mod spin;

/// Where `dirty` takes its atomics and locks from; `tests/interleavings.rs` puts others in this place.
use std::sync;

pub use backend::{Backend, Chain, Device, Handled, worth_telling};
pub use dirty::DirtyPages;
pub use error::{Error, Result};
pub use guest::{GuestRam, MemoryWatch, Region, Tracking, WriteWatch};
pub use ring::Offer;
pub use segments::{Input, Output, Pieces};
pub use server::{Server, ServerOptions};
pub use session::{Absent, Link, Running};
