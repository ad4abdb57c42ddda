//! What this host's kernel lets us do, found out by really doing it on a little memory of our own.

use crate::{FaultKind, Mapping, Pagemap, Userfault, Writes, pagemap};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::{
    fs::OpenOptions,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
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
/// How long a trial waits for what comes at once.
const PATIENCE: Duration = Duration::from_secs(2);
const PAGE: usize = 4096;
const PAGES: usize = 16;

/// Tries asynchronous write-protection and `PAGEMAP_SCAN`: protects some pages of ours, writes to two, and asks which were written.
pub fn write_tracking() -> Result<Reach, Refusal> {
    let refused = |step| move |source| Refusal { step, source };
    let (descriptor, reach) = userfaultfd().map_err(refused("userfaultfd(2)"))?;
    let userfault = Userfault::new(descriptor, Writes::Async).map_err(refused("asynchronous write-protection (UFFD_FEATURE_WP_ASYNC)"))?;
    let memory = trial().map_err(refused("mapping memory for a trial"))?;
    let range = memory.range();
    userfault.register(range.clone(), false).map_err(refused("UFFDIO_REGISTER of shared memory"))?;
    userfault.protect(range.clone()).map_err(refused("UFFDIO_WRITEPROTECT"))?;
    memory.write(3 * PAGE as u64, 1);
    memory.write(7 * PAGE as u64, 1);
    let mut written = Vec::new();
    Pagemap::open(std::process::id())
        .and_then(|mut pagemap| pagemap.take_written(range.clone(), |found| written.extend(found.step_by(PAGE))))
        .map_err(refused("PAGEMAP_SCAN"))?;
    if written != [3, 7].map(|page| range.start + page * PAGE as u64) {
        return Err(refused("PAGEMAP_SCAN")(io::Error::other("it does not name the pages that were written")));
    }
    Ok(reach)
}

/// Tries synchronous write-protection: protects some pages of ours, writes to one in a thread, and lets that thread through.
pub fn write_faults() -> Result<Reach, Refusal> {
    let refused = |step| move |source| Refusal { step, source };
    let (descriptor, reach) = userfaultfd().map_err(refused("userfaultfd(2)"))?;
    let memory = trial().map_err(refused("mapping memory for a trial"))?;
    let range = memory.range();
    let userfault =
        Userfault::new(descriptor, Writes::Sync).map_err(refused("write-protection of shared memory (UFFD_FEATURE_WP_HUGETLBFS_SHMEM)"))?;
    userfault.register(range.clone(), false).map_err(refused("UFFDIO_REGISTER of shared memory"))?;
    userfault.protect(range.clone()).map_err(refused("UFFDIO_WRITEPROTECT"))?;
    std::thread::scope(|scope| {
        scope.spawn(|| memory.write(5 * PAGE as u64, 1));
        let mut faults = Vec::new();
        let waited = userfault.wait(&mut faults, PATIENCE);
        let answer = match (waited, faults.first()) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(fault)) if fault.kind == FaultKind::Write && fault.address == range.start + 5 * PAGE as u64 => Ok(reach),
            (Ok(()), _) => Err(io::Error::other("a write was not announced")),
        };
        let opened = userfault.unprotect(range.clone());
        // Closed before the scope waits for the writer, who must not sleep on whatever happened.
        drop(userfault);
        opened.and(answer).map_err(refused("waiting for a write"))
    })
}

/// Tries the soft-dirty bits: clears them, writes to two pages of ours, and asks which were written.
pub fn soft_dirty() -> Result<(), Refusal> {
    let refused = |step| move |source| Refusal { step, source };
    let memory = trial().map_err(refused("mapping memory for a trial"))?;
    let range = memory.range();
    (0..PAGES as u64).for_each(|page| memory.write(page * PAGE as u64, 1));
    pagemap::clear_soft_dirty().map_err(refused("clearing soft-dirty bits"))?;
    memory.write(3 * PAGE as u64, 2);
    memory.write(7 * PAGE as u64, 2);
    let mut written = Vec::new();
    Pagemap::open(std::process::id())
        .and_then(|mut pagemap| pagemap.soft_dirty(range.clone(), |found| written.extend(found.step_by(PAGE))))
        .map_err(refused("reading soft-dirty bits"))?;
    if written != [3, 7].map(|page| range.start + page * PAGE as u64) {
        return Err(refused("soft-dirty bits")(io::Error::other("this kernel has none (CONFIG_MEM_SOFT_DIRTY)")));
    }
    Ok(())
}

/// Whether KVM can run a guest here.
pub fn virtualization() -> Virtualization {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !flags.split_ascii_whitespace().any(|flag| flag == "vmx" || flag == "svm") {
        return Virtualization::NoProcessor;
    }
    kvm().map_or_else(Virtualization::NoDevice, |()| Virtualization::Usable)
}

/// Whether `/dev/kvm` opens, whatever the processor is said to have.
pub fn kvm() -> io::Result<()> {
    OpenOptions::new().read(true).write(true).open("/dev/kvm").map(drop)
}

/// Makes a userfaultfd for this process, in the same ways and the same order as the library that is preloaded into QEMU.
pub fn userfaultfd() -> io::Result<(OwnedFd, Reach)> {
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
fn trial() -> io::Result<Mapping> {
    let file = memfd_create("fermata-probe", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, (PAGES * PAGE) as u64)?;
    Mapping::new(&file, (PAGES * PAGE) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trial_ends_with_an_answer() {
        // What the answer is depends on the host.
        for answer in [write_tracking(), write_faults()] {
            match answer {
                Ok(reach) => assert!(matches!(reach, Reach::Kernel | Reach::User)),
                Err(refusal) => assert!(!refusal.to_string().is_empty()),
            }
        }
        let _ = virtualization();
    }
}
