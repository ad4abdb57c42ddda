//! QEMU machines: launch, device state, RAM capture and lazy restore.
//!
//! - [`config`]: what a machine is, and QEMU's command line; `program`: which QEMU that is for
//! - [`machine`]: one QEMU process and the guest in it; its `start`: how that comes to be
//! - [`boot`]: the files that it boots from, which a checkpoint keeps
//! - [`part`]: the machine as a part of an experiment: what a checkpoint takes of it
//! - [`pager`]: lazy restore: pages come when they are touched; `interrupts`: those that are to be there first
//! - [`agent`]: commands inside the guest
//! - [`known`]: pages that equal blocks of disks, and need not be copied; `untold`: pages that nobody wrote, looked at all the same
//! - [`capture`]: when a checkpoint copies pages; `held`: copy-on-write; `staging`: copies of pages
//! - [`free`]: which pages are free in the guest, and what the others are for
//! - `changed`: what the pages are for in which two checkpoints differ
//! - `holes`, `shim/punches.c`: pages that the guest gives back through its balloon
//! - `watch`, `faults`: which tracker watches the machine, and who answers its userfaultfd
//! - [`core_file`]: the memory of a checkpoint as an ELF core; `processor`: the registers in it
//! - `monitor`, `device_state`: QMP, QEMU's state stream; `lines`: what QEMU and the agent may say at once
//! - `fuzzing`: what fuzzers call, only with that feature
//! - `shim/shim.c`: the library preloaded into QEMU, which makes its userfaultfd
//! - `notes`, `shim/notes.c`: KVM's dirty log, asked for inside QEMU
//!
//! It knows no disk image, no other machine and no timeline. A disk is a socket that somebody else serves. Nothing here depends on a patched QEMU.

pub mod agent;
pub mod boot;
pub mod capture;
mod changed;
pub mod config;
pub mod core_file;
mod device_state;
mod error;
mod faults;
pub mod free;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod held;
mod holes;
mod interrupts;
pub mod known;
mod lines;
pub mod machine;
mod monitor;
mod notes;
pub mod pager;
pub mod part;
mod processor;
mod program;
mod staging;
mod untold;
mod watch;

pub use agent::{Agent, Begun, Execution, Visit};
pub use boot::{BootFile, BootFiles};
pub use capture::{CaptureMode, CaptureOptions};
pub use changed::changed_by_use;
pub use config::{Accel, CMDLINE_MAX, CONTROL_ADDRESS, CONTROL_PREFIX, MachineConfig, NETS_MAX, Net, Place, SERVICES_ADDRESS};
pub use core_file::{CoreFile, CoreTold};
pub use error::{Error, Result};
pub use fermata_tracker::{Choice as TrackerChoice, Standing as TrackerStanding};
pub use free::FreePages;
pub use known::KnownPages;
pub use machine::{GLANCE, Machine, Restore, Running, Status, Stopping};
pub use pager::{Paging, WORKING_SET_MAX};
pub use part::{DEVICES, FIRMWARE, MAP, MachineDetails, MachinePart, OtherWriters, PATIENCE, RAM, SCAN, ram_pages};
pub use program::{Version as QemuVersion, qemu_program};
