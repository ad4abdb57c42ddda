//! `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst): the kernel searches it by `PAGEMAP_SCAN` (Linux 6.7; 6.8 for soft-dirty bits), or it is read, an entry for
//! each page.

use std::{
    fs::File,
    io,
    ops::Range,
    os::{fd::AsRawFd, unix::fs::FileExt},
};

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

/// Of an entry: what [`SOFT_DIRTY`] is of a region.
const ENTRY_SOFT_DIRTY: u64 = 1 << 55;

/// What one entry is about.
const PAGE: u64 = 4096;

/// Regions, or entries, asked for in one call; more are found by calling again.
const BATCH: usize = 16 * 1024;

/// The page map of a process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    found: Vec<PageRegion>,
    /// None as long as the kernel searches for us.
    entries: Vec<[u8; 8]>,
}

impl std::fmt::Debug for PageRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start, self.end)
    }
}

impl Pagemap {
    /// Opens the page map of a process of ours.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{pid}/pagemap"))?, found: vec![PageRegion::default(); BATCH], entries: Vec::new() })
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
        if self.entries.is_empty() {
            match self.walk(range.clone(), 0, SOFT_DIRTY, &mut each) {
                // Before Linux 6.7 nothing is known of the call, and in 6.7 not of these bits. It says so before it finds anything.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => self.entries = vec![[0; 8]; BATCH],
                done => return done,
            }
        }
        self.read(range, ENTRY_SOFT_DIRTY, &mut each)
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

    fn read(&mut self, range: Range<u64>, bit: u64, each: &mut dyn FnMut(Range<u64>)) -> io::Result<()> {
        let is_set = |entry: &[u8; 8]| u64::from_ne_bytes(*entry) & bit != 0;
        let mut at = range.start;
        while at < range.end {
            let pages = self.entries.len().min(((range.end - at) / PAGE) as usize);
            let entries = &mut self.entries[..pages];
            self.file.read_exact_at(entries.as_flattened_mut(), at / PAGE * 8)?;
            for alike in entries.chunk_by(|one, next| is_set(one) == is_set(next)) {
                let end = at + alike.len() as u64 * PAGE;
                if is_set(&alike[0]) {
                    each(at..end);
                }
                at = end;
            }
        }
        Ok(())
    }
}

/// Clears the soft-dirty bits of all of this process.
pub fn clear_soft_dirty() -> io::Result<()> {
    std::fs::write("/proc/self/clear_refs", "4")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    /// More than is asked for in one call, and not a multiple of it.
    const PAGES: u64 = 2 * BATCH as u64 + 100;
    const PRESENT: u64 = 1 << 3;
    const ENTRY_PRESENT: u64 = 1 << 63;

    /// By another bit, which every kernel has.
    #[test]
    fn entries_are_read_as_they_are_searched() {
        let file = memfd_create("fermata-pagemap", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, PAGES * PAGE).unwrap();
        let memory = Mapping::new(&file, PAGES * PAGE).unwrap();
        let batch = BATCH as u64;
        let touched = [0, 1, 511, 512, batch - 2, batch - 1, batch, batch + 5, 2 * batch, PAGES - 1];
        touched.into_iter().for_each(|page| memory.write(page * PAGE, 1));
        let range = memory.range();
        let mut pagemap = Pagemap { entries: vec![[0; 8]; BATCH], ..Pagemap::open(std::process::id()).unwrap() };
        let mut pages = Vec::new();
        let mut note = |found: Range<u64>| pages.extend(found.step_by(PAGE as usize).map(|at| (at - range.start) / PAGE));
        pagemap.read(range.clone(), ENTRY_PRESENT, &mut note).unwrap();
        // Some before them may have come along.
        assert!(touched.iter().all(|page| pages.contains(page)) && pages.len() < 1000, "{pages:?}");
        let mut searched = Vec::new();
        let mut note = |found: Range<u64>| searched.extend(found.step_by(PAGE as usize).map(|at| (at - range.start) / PAGE));
        match pagemap.walk(range.clone(), 0, PRESENT, &mut note) {
            // Before Linux 6.7.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {}
            done => done.map(|()| assert_eq!(pages, searched)).unwrap(),
        }
    }
}
