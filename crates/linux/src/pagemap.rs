//! `PAGEMAP_SCAN` on `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst; Linux 6.7).

use std::{fs::File, io, ops::Range, os::fd::AsRawFd};

/// `struct pm_scan_arg` of `<linux/fs.h>`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of `<linux/fs.h>`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

const PAGEMAP_SCAN: u64 = (3 << 30) | ((size_of::<ScanArg>() as u64) << 16) | ((b'f' as u64) << 8) | 16;
const WP_MATCHING: u64 = 1;
const CHECK_WPASYNC: u64 = 2;
const WRITTEN: u64 = 2;
const SOFT_DIRTY: u64 = 1 << 7;

/// Regions asked for in one call; more are found by calling again.
const BATCH: usize = 16 * 1024;

/// The page map of a process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    found: Vec<PageRegion>,
}

impl std::fmt::Debug for PageRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start, self.end)
    }
}

impl Pagemap {
    /// Opens the page map of a process of ours.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{pid}/pagemap"))?, found: vec![PageRegion::default(); BATCH] })
    }

    /// Calls `each` with every stretch of addresses written since the last call, and protects it again.
    ///
    /// The range must be registered for asynchronous write-protection with [`crate::Userfault::register`]. The kernel does this atomically for each
    /// page, not for the range: for one instant of all of it, stop the writers.
    pub fn take_written(&mut self, range: Range<u64>, mut each: impl FnMut(Range<u64>)) -> io::Result<()> {
        self.walk(range, WP_MATCHING | CHECK_WPASYNC, WRITTEN, &mut each)
    }

    /// Calls `each` with every stretch of addresses whose soft-dirty bits are set.
    pub fn soft_dirty(&mut self, range: Range<u64>, mut each: impl FnMut(Range<u64>)) -> io::Result<()> {
        self.walk(range, 0, SOFT_DIRTY, &mut each)
    }

    fn walk(&mut self, range: Range<u64>, flags: u64, category: u64, each: &mut dyn FnMut(Range<u64>)) -> io::Result<()> {
        let mut at = range.start;
        while at < range.end {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                flags,
                start: at,
                end: range.end,
                vec: self.found.as_mut_ptr() as u64,
                vec_len: self.found.len() as u64,
                category_mask: category,
                return_mask: category,
                ..ScanArg::default()
            };
            // SAFETY: `arg` and the buffer that it points to live through the call, and the kernel writes at most `vec_len` regions.
            let regions = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &mut arg) };
            if regions < 0 {
                return Err(io::Error::last_os_error());
            }
            self.found[..regions as usize].iter().for_each(|region| each(region.start..region.end));
            if arg.walk_end <= at {
                return Err(io::Error::other("PAGEMAP_SCAN does not advance"));
            }
            at = arg.walk_end;
        }
        Ok(())
    }
}

/// Clears the soft-dirty bits of all of this process.
pub fn clear_soft_dirty() -> io::Result<()> {
    std::fs::write("/proc/self/clear_refs", "4")
}
