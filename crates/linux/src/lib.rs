//! Safe wrappers of the kernel interfaces that Fermata stands on. The only room with `unsafe`.
//!
//! - [`userfault`]: userfaultfd: write-protection, and pages that come when they are touched
//! - [`pagemap`]: which pages of a process were written
//! - [`maps`]: where a file is mapped in another process
//! - [`memory_file`]: guest RAM as a file on tmpfs
//! - [`area_memory`]: memory of a program at an address of its own
//! - [`traps`]: writes to such memory as signals (SIGSEGV); `emulate`: doing such a write elsewhere, by decoding it
//! - `zeroed`: tables that a signal handler may use
//! - [`behind`]: copying such memory behind the program, each page before it is written to
//! - [`mapping`]: such a file mapped here, for trials and tests
//! - [`trials`]: what else is done to memory, for tests: huge pages, and children that touch it
//! - [`own_memory`]: memory of this process that others watch
//! - `kvm` (feature `kvm`): a tiny guest under KVM, and KVM's notes of what it writes, for tests and benches
//! - `uring` (feature `uring`): reads through io_uring, for tests
//! - [`launch`]: child processes that die with us, and descriptors they hand over
//! - [`probe`]: what this kernel lets us do
//! - [`mounts`]: what is mounted where, and taking it away
//! - [`writeback`]: whether written files could be kept
//! - [`lock`], [`signals`]: how processes know of each other's lives and ends
//! - [`priority`], [`pace`]: who goes first, and who rests meanwhile
//! - [`clock`], [`random`]: the only places where time and randomness come in; [`timer`]: how to wait for an instant
//!
//! It knows no guest, no page table of ours and no store.

#![allow(unsafe_code)]

pub mod area_memory;
pub mod behind;
pub mod clock;
#[cfg(target_arch = "x86_64")]
mod emulate;
#[cfg(all(feature = "kvm", target_arch = "x86_64"))]
pub mod kvm;
pub mod launch;
pub mod lock;
pub mod mapping;
pub mod maps;
pub mod memory_file;
pub mod mounts;
pub mod own_memory;
pub mod pace;
pub mod pagemap;
pub mod priority;
pub mod probe;
pub mod random;
pub mod signals;
pub mod timer;
#[cfg(target_arch = "x86_64")]
pub mod traps;
pub mod trials;
#[cfg(feature = "uring")]
pub mod uring;
pub mod userfault;
pub mod writeback;
mod zeroed;

pub use area_memory::{AreaMemory, Place};
pub use behind::Behind;
pub use launch::{Child, launch};
pub use mapping::{Discard, Mapping};
pub use memory_file::MemoryFile;
pub use own_memory::OwnMemory;
pub use pagemap::Pagemap;
pub use timer::Timer;
#[cfg(target_arch = "x86_64")]
pub use traps::{Trap, Trapping, WordMask};
pub use userfault::{Fault, FaultKind, Installed, Userfault, Writes};

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// The effective user id.
pub fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The effective group id.
pub fn group_id() -> u32 {
    rustix::process::getegid().as_raw()
}

/// Leaves the terminal: the calling process, which must not lead a process group, begins a session of its own (setsid(2)).
pub fn leave_terminal() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// Has a descriptor lead nowhere (`/dev/null`) from now on, in this process alone. A child of `fork` has those of threads that it does not have, and nobody in it closes them: as long as it lives, whoever is at the other end would not
/// see that the parent has ended.
pub fn lead_nowhere(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    // SAFETY: the kernel is given two numbers. The second is an open descriptor afterwards as before, and stays its owner's to close.
    match unsafe { libc::dup3(nowhere.as_raw_fd(), descriptor.as_raw_fd(), libc::O_CLOEXEC) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
