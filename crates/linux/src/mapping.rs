//! Shared memory mapped into this process, written and read as a guest does it: by several threads at once, and while others look on.
//!
//! For trials of the kernel, tests and benches. Guests' memory in production is mapped by QEMU and by the disks' servers, not by this.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::{
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd},
    sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering},
};

/// All of a file, mapped shared.
#[derive(Debug)]
pub struct Mapping {
    start: u64,
    bytes: u64,
}

/// Ways to let memory go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discard {
    /// Only out of this mapping; the file keeps its content (`MADV_DONTNEED`).
    Mapped,
    /// Out of the file: it reads as zeros from now on (`MADV_REMOVE`, which punches a hole).
    Content,
}

impl Mapping {
    /// Maps this many bytes from the start of the file. The file must stay at least as long as the mapping lives.
    pub fn new(file: impl AsFd, bytes: u64) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice; nobody else knows it.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes as usize, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)? };
        Ok(Self { start: start as u64, bytes })
    }

    /// Its addresses in this process.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes
    }

    /// Stores 8 bytes at an offset that is a multiple of 8.
    pub fn write(&self, offset: u64, value: u64) {
        self.word(offset).store(value, Ordering::Relaxed);
    }

    /// Stores bytes as a processor does: 1, 2, 4 or 8 that are aligned in one step, others one by one.
    pub fn store(&self, offset: u64, content: &[u8]) {
        self.check(&(offset..offset + content.len() as u64));
        let at = (self.start + offset) as *mut u8;
        // SAFETY: within the mapping, as checked, and only touched as atomics or by the kernel.
        unsafe {
            match *content {
                [a, b] if offset.is_multiple_of(2) => AtomicU16::from_ptr(at.cast()).store(u16::from_le_bytes([a, b]), Ordering::Relaxed),
                [a, b, c, d] if offset.is_multiple_of(4) => {
                    AtomicU32::from_ptr(at.cast()).store(u32::from_le_bytes([a, b, c, d]), Ordering::Relaxed);
                }
                [a, b, c, d, e, f, g, h] if offset.is_multiple_of(8) => self.write(offset, u64::from_le_bytes([a, b, c, d, e, f, g, h])),
                _ => (0..).zip(content).for_each(|(nth, byte)| AtomicU8::from_ptr(at.add(nth)).store(*byte, Ordering::Relaxed)),
            }
        }
    }

    /// Loads 8 bytes from an offset that is a multiple of 8.
    pub fn read(&self, offset: u64) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.bytes, "{offset:#x} is not a word of {:#x} bytes", self.bytes);
        // SAFETY: aligned, and within the mapping, which lives as long as `self`. It is only ever read and written through atomics, by the kernel,
        // or by a guest, never through references to plain memory.
        unsafe { AtomicU64::from_ptr((self.start + offset) as *mut u64) }
    }

    /// Has the kernel write to the memory: read(2) from a file into it. Returns how many bytes came.
    pub fn fill_from(&self, file: impl AsFd, at: Range<u64>) -> io::Result<usize> {
        self.check(&at);
        // SAFETY: the range lies within the mapping, and no reference to plain memory points there.
        let read = unsafe { libc::read(file.as_fd().as_raw_fd(), (self.start + at.start) as *mut _, (at.end - at.start) as usize) };
        if read < 0 { Err(io::Error::last_os_error()) } else { Ok(read as usize) }
    }

    /// Lets memory at these offsets go; they must be multiples of the page size.
    pub fn discard(&self, at: Range<u64>, how: Discard) -> io::Result<()> {
        self.check(&at);
        let advice = match how {
            Discard::Mapped => Advice::LinuxDontNeed,
            Discard::Content => Advice::LinuxRemove,
        };
        // SAFETY: the range lies within the mapping. Its content may change by this, as it may at any time: it is memory shared with others.
        unsafe { madvise((self.start + at.start) as *mut _, (at.end - at.start) as usize, advice)? };
        Ok(())
    }

    fn check(&self, at: &Range<u64>) {
        assert!(at.start <= at.end && at.end <= self.bytes, "{at:x?} is not within {:#x} bytes", self.bytes);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; references into it live no longer than `self`.
        let _ = unsafe { munmap(self.start as *mut _, self.bytes as usize) };
    }
}
