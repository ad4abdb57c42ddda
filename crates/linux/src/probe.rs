//! What this host's kernel lets us do, found out by really doing it on a little memory of our own.

use crate::{Pagemap, Userfault};
use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};
use std::{
    fs::OpenOptions,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// Which faults a userfaultfd that can be had here serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The kernel's own too, as KVM needs.
    Kernel,
    /// Only those of user code: enough for TCG.
    User,
}

/// A step of a trial that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct Refusal {
    /// What was tried.
    pub step: &'static str,
    /// The kernel's answer.
    pub source: io::Error,
}

/// Whether the processor's own virtualization can be used.
#[derive(Debug)]
pub enum Virtualization {
    /// The processor has it and `/dev/kvm` opens.
    Usable,
    /// `/proc/cpuinfo` shows neither `vmx` nor `svm`. `/dev/kvm` may be there all the same, and a stock kernel would not run under it.
    NoProcessor,
    /// The processor has it, but `/dev/kvm` does not open.
    NoDevice(io::Error),
}

const USERFAULTFD_IOC_NEW: u64 = 0xAA00;
const USER_MODE_ONLY: i32 = 1;
const PAGE: usize = 4096;
const PAGES: usize = 16;

/// Tries asynchronous write-protection and `PAGEMAP_SCAN`: protects some pages of ours, writes to two, and asks which were written.
pub fn write_tracking() -> Result<Reach, Refusal> {
    let refused = |step| move |source| Refusal { step, source };
    let (descriptor, reach) = userfaultfd().map_err(refused("userfaultfd(2)"))?;
    let userfault = Userfault::new(descriptor).map_err(refused("asynchronous write-protection (UFFD_FEATURE_WP_ASYNC)"))?;
    let mut memory = Trial::new().map_err(refused("mapping memory for a trial"))?;
    let range = memory.start..memory.start + (PAGES * PAGE) as u64;
    userfault.register(range.clone(), false).map_err(refused("UFFDIO_REGISTER of shared memory"))?;
    userfault.protect(range.clone()).map_err(refused("UFFDIO_WRITEPROTECT"))?;
    memory.write(3);
    memory.write(7);
    let mut written = Vec::new();
    Pagemap::open(std::process::id())
        .and_then(|mut pagemap| pagemap.take_written(range.clone(), |found| written.extend(found.step_by(PAGE))))
        .map_err(refused("PAGEMAP_SCAN"))?;
    if written != [3, 7].map(|page| range.start + page * PAGE as u64) {
        return Err(refused("PAGEMAP_SCAN")(io::Error::other("it does not name the pages that were written")));
    }
    Ok(reach)
}

/// Whether KVM can run a guest here.
pub fn virtualization() -> Virtualization {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !flags.split_ascii_whitespace().any(|flag| flag == "vmx" || flag == "svm") {
        return Virtualization::NoProcessor;
    }
    match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Ok(_) => Virtualization::Usable,
        Err(error) => Virtualization::NoDevice(error),
    }
}

/// Makes a userfaultfd in the same ways and the same order as the library that is preloaded into QEMU.
fn userfaultfd() -> io::Result<(OwnedFd, Reach)> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    if let Ok(descriptor) = system_call(flags) {
        return Ok((descriptor, Reach::Kernel));
    }
    if let Ok(device) = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd") {
        // SAFETY: the request takes an integer and returns a descriptor that nobody else owns.
        let descriptor = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags) };
        if descriptor >= 0 {
            // SAFETY: as above, the descriptor is ours alone.
            return Ok((unsafe { OwnedFd::from_raw_fd(descriptor) }, Reach::Kernel));
        }
    }
    Ok((system_call(flags | USER_MODE_ONLY)?, Reach::User))
}

fn system_call(flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes an integer and touches no memory of ours.
    let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made it for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// A little shared memory, as guests have it.
struct Trial {
    start: u64,
}

impl Trial {
    fn new() -> io::Result<Self> {
        let file = memfd_create("fermata-probe", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, (PAGES * PAGE) as u64)?;
        // SAFETY: a new mapping at an address of the kernel's choice; nobody else knows it.
        let start = unsafe { mmap(std::ptr::null_mut(), PAGES * PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)? };
        Ok(Self { start: start as u64 })
    }

    fn write(&mut self, page: usize) {
        assert!(page < PAGES, "the trial has {PAGES} pages");
        // SAFETY: within the mapping, which lives as long as `self` and is borrowed by nobody. Volatile: the write itself is what we are after.
        unsafe { ((self.start as usize + page * PAGE) as *mut u8).write_volatile(1) }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`, to which no reference was handed out.
        let _ = unsafe { munmap(self.start as *mut _, PAGES * PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trial_ends_with_an_answer() {
        // What the answer is depends on the host.
        match write_tracking() {
            Ok(reach) => assert!(matches!(reach, Reach::Kernel | Reach::User)),
            Err(refusal) => assert!(!refusal.to_string().is_empty()),
        }
        let _ = virtualization();
    }
}
