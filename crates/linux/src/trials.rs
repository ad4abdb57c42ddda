//! What programs and the system do to memory beside writing to it, for tests: huge pages, pages that go out of a mapping, and children that touch it.

use rustix::{
    mm::{Advice, madvise},
    process::WaitOptions,
};
use std::{io, ops::Range};

/// `MADV_COLLAPSE` of `<asm-generic/mman-common.h>` (Linux 6.1).
const COLLAPSE: i32 = 25;

/// Asks for huge pages (`MADV_HUGEPAGE`), and has the kernel make them of those that are there (`MADV_COLLAPSE`), whatever the system is set to.
pub fn collapse(memory: &mut [u8]) -> io::Result<()> {
    // SAFETY: changes how memory is mapped, and not what is in it.
    unsafe {
        madvise(memory.as_mut_ptr().cast(), memory.len(), Advice::LinuxHugepage)?;
        if libc::madvise(memory.as_mut_ptr().cast(), memory.len(), COLLAPSE) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Drops whole pages out of their mapping (`MADV_DONTNEED`). What is mapped shared keeps its content, and other memory reads as zeros.
pub fn drop_from_mapping(memory: &mut [u8]) -> io::Result<()> {
    assert!(memory.len().is_multiple_of(4096), "{} bytes are no pages", memory.len());
    // SAFETY: whole pages (the kernel refuses what does not begin with one) that are borrowed mutably, and bytes may have any value.
    unsafe { madvise(memory.as_mut_ptr().cast(), memory.len(), Advice::LinuxDontNeed)? };
    Ok(())
}

/// Has a child process (fork(2)) write to the first byte, and says by which signal it died; none if it could.
pub fn write_in_child(memory: &mut [u8]) -> io::Result<Option<i32>> {
    let at = memory.as_mut_ptr();
    // SAFETY: the child does nothing but close its descriptors and write, and ends.
    let child = match unsafe { libc::fork() } {
        ..0 => return Err(io::Error::last_os_error()),
        // SAFETY: memory that is borrowed mutably, or none any more, which is what is to be found out.
        0 => unsafe {
            // The locks of others' areas are among them, and dying may take a while.
            libc::close_range(0, u32::MAX, 0);
            at.write_volatile(at.read_volatile().wrapping_add(1));
            libc::_exit(0);
        },
        child => child,
    };
    let ended = loop {
        match rustix::process::waitpid(rustix::process::Pid::from_raw(child), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    Ok(ended.and_then(|(_, status)| status.terminating_signal()))
}

/// Bytes of this process's memory in a range that are mapped by huge pages.
pub fn mapped_huge(range: &Range<u64>) -> io::Result<u64> {
    let (mut within, mut bytes) = (false, 0);
    for line in std::fs::read_to_string("/proc/self/smaps")?.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((from, _)) = first.split_once('-') {
            within = u64::from_str_radix(from, 16).is_ok_and(|from| range.contains(&from));
        } else if within && matches!(first, "ShmemPmdMapped:" | "FilePmdMapped:") {
            bytes += words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024;
        }
    }
    Ok(bytes)
}
