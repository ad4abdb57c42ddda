//! QEMU machines: launch, device state, RAM capture and lazy restore.
//!
//! - [`config`]: what a machine is, and QEMU's command line
//! - [`machine`]: one QEMU process and the guest in it
//! - [`part`]: the machine as a part of an experiment: what a checkpoint takes of it
//! - [`pager`]: lazy restore: pages come when they are touched
//! - [`agent`]: commands inside the guest
//! - `monitor`, `device_state`, `staging`: QMP, QEMU's state stream, copies of pages
//! - `shim/shim.c`: the library preloaded into QEMU, which makes its userfaultfd
//!
//! It knows no disk image, no other machine and no timeline. A disk is a socket that somebody else serves. Nothing here depends on a patched QEMU.

pub mod agent;
pub mod config;
mod device_state;
mod error;
pub mod machine;
mod monitor;
pub mod pager;
pub mod part;
mod staging;

pub use agent::{Agent, Execution};
pub use config::{Accel, MachineConfig, Place};
pub use error::{Error, Result};
pub use machine::{Machine, Restore, Status, qemu_program};
pub use pager::Paging;
pub use part::{DEVICES, MachineDetails, MachinePart, OtherWriters, RAM, ram_pages};
