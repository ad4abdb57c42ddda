//! Memory of this process that is a file too: a program has it as plain slices, while others look at it, and watch over it, from beside.
//!
//! We read it with `pread` and not through the mapping: the program holds the only references to it, and a page that nobody has touched stays a hole.

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap},
};
use std::{
    fs::File,
    io,
    ops::Range,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
};

/// Slices begin at multiples of this: no two of them share a cache line.
const ALIGNMENT: u64 = 64;

mod sealed {
    pub trait Plain: Copy + Default + 'static {}
}

/// Numbers that are their bytes, whichever these are.
pub trait Plain: sealed::Plain {}

macro_rules! plain {
    ($($number:ty)*) => {
        $(impl sealed::Plain for $number {}
        impl Plain for $number {})*
    };
}

plain!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64);

/// The bytes of some numbers, in this machine's order.
pub fn bytes_of<T: Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: `Plain` is sealed, and its types have no padding; the slice is as long as the numbers and lives as long.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// Numbers from as many bytes. False if there are not as many.
pub fn fill_from_bytes<T: Plain>(numbers: &mut [T], bytes: &[u8]) -> bool {
    if size_of_val(numbers) != bytes.len() {
        return false;
    }
    // SAFETY: `Plain` is sealed, and any bytes are a value of its types; the slice is as long as the numbers, and borrowed like them.
    let raw = unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast::<u8>(), bytes.len()) };
    raw.copy_from_slice(bytes);
    true
}

/// Memory that stays until the process ends.
#[derive(Debug)]
pub struct OwnMemory {
    file: File,
    range: Range<u64>,
}

/// Hands out the memory, each piece once.
#[derive(Debug)]
pub struct Pieces {
    start: u64,
    used: u64,
    bytes: u64,
}

impl OwnMemory {
    /// Reserves so many bytes of zeros. They take no memory before they are touched.
    pub fn reserve(bytes: u64) -> io::Result<(Self, Pieces)> {
        let file = File::from(memfd_create("fermata", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, bytes)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; nobody else knows it. It is never unmapped.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes as usize, protection, MapFlags::SHARED | MapFlags::NORESERVE, &file, 0)? } as u64;
        Ok((Self { file, range: start..start + bytes }, Pieces { start, used: 0, bytes }))
    }

    /// Its addresses.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Reads at an offset; holes read as zeros and stay holes. What somebody writes there meanwhile may be had in part.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    /// Writes at an offset of which no piece has been handed out yet.
    pub fn write_at(&self, pieces: &Pieces, offset: u64, from: &[u8]) -> io::Result<()> {
        if offset < pieces.used || offset.saturating_add(from.len() as u64) > pieces.bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{offset:#x} is not memory that can be written from beside")));
        }
        self.file.write_all_at(from, offset)
    }
}

impl AsFd for OwnMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Pieces {
    /// The next piece: so many numbers, zeros unless something was written there before. `OutOfMemory` if the reserve is at its end.
    pub fn take<T: Plain>(&mut self, count: usize) -> io::Result<&'static mut [T]> {
        let start = self.used.next_multiple_of(ALIGNMENT);
        let end = (count as u64).checked_mul(size_of::<T>() as u64).and_then(|bytes| start.checked_add(bytes));
        let Some(end) = end.filter(|end| *end <= self.bytes) else {
            return Err(io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!("{count} numbers more are beyond the reserve of {} bytes", self.bytes),
            ));
        };
        self.used = end;
        // SAFETY: within the mapping, which is never unmapped; aligned to more than any number needs; no other piece has these bytes, for `used` only grows and
        // there is one `Pieces` for a mapping. Any bytes are a value of a `Plain` type. Others read the memory through the kernel only, and write only where no piece is.
        Ok(unsafe { std::slice::from_raw_parts_mut((self.start + start) as *mut T, count) })
    }

    /// Bytes up to the end of the last piece.
    pub fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_apart_and_seen_in_the_file() {
        let (memory, mut pieces) = OwnMemory::reserve(1 << 20).unwrap();
        memory.write_at(&pieces, 4096, &[7; 8]).unwrap();
        let first = pieces.take::<u8>(3).unwrap();
        let second = pieces.take::<f64>(2).unwrap();
        first.fill(1);
        second[1] = 2.5;
        let rest = pieces.take::<u64>(1000).unwrap();
        assert_eq!(rest[(4096 - 128) / 8], u64::from_ne_bytes([7; 8]));
        let mut seen = [0; 128];
        memory.read_at(0, &mut seen).unwrap();
        assert_eq!(seen[..4], [1, 1, 1, 0]);
        assert_eq!(seen[72..80], 2.5f64.to_ne_bytes());
        assert!(memory.write_at(&pieces, 0, &[1]).is_err());
        assert!(pieces.take::<u64>(1 << 20).is_err());
        assert!(pieces.take::<u64>(usize::MAX).is_err());
    }

    #[test]
    fn numbers_and_bytes() {
        let mut numbers = [0u32; 2];
        assert!(fill_from_bytes(&mut numbers, bytes_of(&[1.5f32, 2.0])));
        assert_eq!(numbers, [1.5f32.to_bits(), 2f32.to_bits()]);
        assert!(!fill_from_bytes(&mut numbers, &[0; 7]));
    }
}
