//! Guest RAM as a file on tmpfs, mapped shared by QEMU and by the device backends.
//!
//! We read it with `pread`, not through a mapping: reading a hole through a mapping would fill it, and a page that is being restored must not be
//! filled by an onlooker.

use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, fstatfs, fstatvfs, memfd_create, seek};
use std::{
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

/// `TMPFS_MAGIC`, statfs(2).
const TMPFS: i64 = 0x0102_1994;

/// A file of fixed size on tmpfs. Unlinked when dropped.
#[derive(Debug)]
pub struct MemoryFile {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl MemoryFile {
    /// Makes the file, all holes. `InvalidInput` if the directory is not on tmpfs.
    pub fn create(path: &Path, bytes: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let made = Self { file, path: path.to_owned(), bytes };
        if fstatfs(&made.file)?.f_type as i64 != TMPFS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not on tmpfs", path.display())));
        }
        made.file.set_len(bytes)?;
        Ok(made)
    }

    /// Makes a file without a name, all holes, in the kernel's own tmpfs; `label` is shown in `/proc/PID/maps`. It goes when nobody has it open or mapped.
    pub fn unnamed(label: &str, bytes: u64) -> io::Result<Self> {
        let file = File::from(memfd_create(label, MemfdFlags::CLOEXEC)?);
        file.set_len(bytes)?;
        Ok(Self { file, path: PathBuf::new(), bytes })
    }

    /// Where the file is; empty if it has no name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads at an offset; holes read as zeros and stay holes.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }

    /// Writes at an offset.
    pub fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.file.write_all_at(from, offset)
    }

    /// Empties the file: every page becomes a hole again, in every mapping of it.
    pub fn clear(&self) -> io::Result<()> {
        self.punch(0..self.bytes)
    }

    /// Makes holes of these bytes, which should be whole pages, in every mapping of the file: a hole reads as zeros.
    pub fn punch(&self, at: Range<u64>) -> io::Result<()> {
        Ok(fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at.start, at.end.saturating_sub(at.start))?)
    }

    /// The stretches that are not holes, as byte offsets `(from, to)`.
    pub fn populated(&self) -> io::Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        let mut at = 0;
        while at < self.bytes {
            let from = match seek(&self.file, SeekFrom::Data(at)) {
                Ok(from) => from,
                Err(rustix::io::Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            let to = seek(&self.file, SeekFrom::Hole(from))?;
            found.push((from, to));
            at = to;
        }
        Ok(found)
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Bytes free on the file system of `path`, and whether it is a tmpfs.
pub fn room(path: &Path) -> io::Result<(u64, bool)> {
    let directory = File::open(path)?;
    let space = fstatvfs(&directory)?;
    Ok((space.f_bavail * space.f_frsize, fstatfs(&directory)?.f_type as i64 == TMPFS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_stay_holes_when_read() {
        let path = PathBuf::from(format!("/dev/shm/fermata-test-{}", std::process::id()));
        let file = MemoryFile::create(&path, 1 << 20).unwrap();
        file.write_at(8192, &[7; 12288]).unwrap();
        file.punch(12288..20480).unwrap();
        file.read_at(65536, &mut [0; 4096]).unwrap();
        assert_eq!(file.populated().unwrap(), [(8192, 12288)]);
        file.clear().unwrap();
        assert_eq!(file.populated().unwrap(), []);
        drop(file);
        assert!(!path.exists());
    }
}
