//! Memory of a program that is mapped at an address of its own, and comes back there after a restart.
//!
//! It is a file without a name, so that it can be had through more than one mapping. A child of `fork` does not inherit it: what the child wrote would change
//! the parent's memory behind the back of whoever watches it.

use crate::MemoryFile;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mprotect, munmap};
use std::{
    io,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

/// Where areas are laid: between where Linux puts programs and heaps (0x55..., 0x56...) and where it maps files and stacks (0x7f...).
const FIRST: u64 = 0x6000_0000_0000;
/// Each begins at a multiple of this, in one of so many places.
const STEP: u64 = 1 << 36;
const PLACES: u64 = 256;

/// Mappings that places were cut into, beyond one for each.
static PIECES: AtomicI64 = AtomicI64::new(0);

/// Memory of fixed size, shared by nobody.
#[derive(Debug)]
pub struct AreaMemory {
    place: Arc<Place>,
    file: Arc<MemoryFile>,
}

/// Addresses that are mapped as long as somebody holds this.
#[derive(Debug)]
pub struct Place {
    start: u64,
    bytes: u64,
    /// Mappings that it is cut into beyond the one, about: threads that open pages beside each other may be off by a few.
    pieces: AtomicI64,
}

/// How many pieces there may be. Each run of open pages is a mapping of its own, and the kernel lets a process have so many (`vm.max_map_count`): a quarter of
/// them is left to the program, or it could start no thread and map no memory.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) fn pieces_max() -> i64 {
    static MAX: OnceLock<i64> = OnceLock::new();
    *MAX.get_or_init(|| {
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse().ok());
        // What Linux has where nobody sets it.
        mappings.unwrap_or(65_530) / 4 * 3
    })
}

impl Place {
    /// Maps these stretches, `(from, to)` in bytes, as far as they are not: who writes there first has no fault of a missing page. Linux 5.14. A hole of the file would be filled.
    pub fn populate(&self, stretches: &[(u64, u64)]) -> io::Result<()> {
        for (from, to) in stretches {
            let (from, to) = ((*from).min(self.bytes), (*to).min(self.bytes));
            // SAFETY: within our own mapping; what is there is only mapped.
            unsafe { madvise((self.start + from) as *mut _, (to - from) as usize, Advice::LinuxPopulateRead)? };
        }
        Ok(())
    }

    /// The addresses.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes
    }

    /// Closes it to writes, or opens it. What is left out is so already: it is one piece again.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) fn protect(&self, range: Range<u64>, close: bool) -> io::Result<()> {
        let flags = if close { MprotectFlags::READ } else { MprotectFlags::READ | MprotectFlags::WRITE };
        self.set(range, flags)?;
        PIECES.fetch_sub(self.pieces.swap(0, Relaxed), Relaxed);
        Ok(())
    }

    /// Opens some of it, of whose two neighbours so many are open. `OutOfMemory`: there would be too many pieces ([`pieces_max`]). For handlers, too.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) fn open(&self, range: Range<u64>, beside: i64) -> io::Result<()> {
        let more = 2 - 2 * beside;
        if PIECES.load(Relaxed) + more > pieces_max() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.set(range, MprotectFlags::READ | MprotectFlags::WRITE)?;
        self.pieces.fetch_add(more, Relaxed);
        PIECES.fetch_add(more, Relaxed);
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn pieces(&self) -> i64 {
        self.pieces.load(Relaxed)
    }

    fn set(&self, range: Range<u64>, flags: MprotectFlags) -> io::Result<()> {
        assert!(self.start <= range.start && range.start <= range.end && range.end <= self.range().end);
        // SAFETY: pages of our own mapping. Writes to closed ones come to a handler.
        unsafe { mprotect(range.start as *mut _, (range.end - range.start) as usize, flags)? };
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        PIECES.fetch_sub(*self.pieces.get_mut(), Relaxed);
        // SAFETY: exactly the mapping made in `AreaMemory::at` or `Place::second`. Slices of it live no longer than the `AreaMemory`, which holds this.
        let _ = unsafe { munmap(self.start as *mut _, self.bytes as usize) };
    }
}

impl AreaMemory {
    /// New memory, all zero. The address follows from the name, so that it is likely to be free in the next process, too.
    pub fn new(name: &str, bytes: u64) -> io::Result<Self> {
        // FNV-1a: any spread will do.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let mut last = None;
        for nth in 0..PLACES {
            match Self::at(FIRST + (hash.wrapping_add(nth) % PLACES) * STEP, bytes) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = Some(error),
                other => return other,
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::AlreadyExists.into()))
    }

    /// New memory, all zero, at this address and no other. `AlreadyExists` if something is mapped there.
    pub fn at(address: u64, bytes: u64) -> io::Result<Self> {
        if !address.is_multiple_of(4096) || address == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{address:#x} is no place for pages")));
        }
        let file = MemoryFile::unnamed("fermata-area", bytes)?;
        let place = Place::map(address as *mut _, bytes, MapFlags::FIXED_NOREPLACE, &file)?;
        Ok(Self { place: Arc::new(place), file: Arc::new(file) })
    }

    /// Its addresses.
    pub fn range(&self) -> Range<u64> {
        self.place.range()
    }

    /// Its addresses, kept mapped.
    pub fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// The file under it, for trackers, which read it.
    pub fn file(&self) -> &Arc<MemoryFile> {
        &self.file
    }

    /// A second mapping of the same memory, to write to where this one is closed.
    pub fn second(&self) -> io::Result<Place> {
        Place::map(std::ptr::null_mut(), self.place.bytes, MapFlags::empty(), &self.file)
    }

    /// What is in it.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped for as long as `self` lives, and written only by who has it mutably.
        unsafe { std::slice::from_raw_parts(self.place.start as *const u8, self.place.bytes as usize) }
    }

    /// What is in it, to be written. A write may be a fault that a tracker serves.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: mapped for as long as `self` lives, and borrowed mutably as a whole.
        unsafe { std::slice::from_raw_parts_mut(self.place.start as *mut u8, self.place.bytes as usize) }
    }

    /// Writes past those who watch the mapping.
    pub fn fill(&mut self, offset: u64, content: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, content)
    }

    /// Sets whole pages to zero and gives their memory back, past those who watch the mapping.
    pub fn discard(&mut self, at: Range<u64>) -> io::Result<()> {
        if at.is_empty() { Ok(()) } else { self.file.punch(at) }
    }
}

impl Place {
    fn map(address: *mut core::ffi::c_void, bytes: u64, flags: MapFlags, file: &MemoryFile) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which replaces no other: at an address of the kernel's choice, or with FIXED_NOREPLACE.
        let start = unsafe { mmap(address, bytes as usize, access, MapFlags::SHARED | flags, file, 0)? } as u64;
        let place = Self { start, bytes, pieces: AtomicI64::new(0) };
        if !address.is_null() && start != address as u64 {
            // A kernel that does not know the flag takes the address for a wish.
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        // SAFETY: our own mapping; only children of this process see the difference.
        unsafe { madvise(start as *mut _, bytes as usize, Advice::LinuxDontFork)? };
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_at_its_address_and_takes_nobodys() {
        let mut memory = AreaMemory::new("a test", 1 << 20).unwrap();
        let range = memory.range();
        memory.as_mut_slice()[4096] = 7;
        assert_eq!(AreaMemory::at(range.start, 4096).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let second = AreaMemory::new("a test", 4096).unwrap();
        assert_ne!(second.range().start, range.start);
        memory.discard(4096..8192).unwrap();
        assert_eq!(memory.as_slice()[4096], 0);
        drop(memory);
        assert_eq!(AreaMemory::at(range.start, 1 << 20).unwrap().range(), range);
    }
}
