//! What an ext4 file system has on a disk, which blocks are free and which files there are: read from the disk alone, as a recovery after a crash at that instant would
//! find it.
//!
//! - [`partitions`]: where on a disk file systems may begin
//! - [`layout`]: the superblock, and where the journal lies
//! - [`journal`]: what the journal holds that has not reached its place yet
//! - [`free`]: the bitmaps of blocks
//! - [`files`]: directories, inodes, and where the content of files lies
//! - `crc32c`: the checksum of the journal's blocks
//!
//! Only reading, and nothing is taken on trust: a guest may have written anything. What is not understood is [`Unclear`], and then no block counts as free. The
//! names of fields and features are those of the kernel's documentation of the format (Documentation/filesystems/ext4).

mod crc32c;
pub mod files;
pub mod free;
pub mod journal;
pub mod layout;
pub mod partitions;
#[cfg(test)]
mod tests;

pub use layout::Layout;

/// A disk as of one instant.
pub trait Source {
    /// Bytes of the disk.
    fn size(&self) -> u64;

    /// Reads bytes from an offset on. Fails where they do not all lie on the disk.
    fn read(&self, at: u64, into: &mut [u8]) -> crate::Result<()>;
}

/// Why nothing can be said, in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unclear(pub String);

impl From<crate::Error> for Unclear {
    fn from(error: crate::Error) -> Self {
        Self(format!("it cannot be read: {error}"))
    }
}

/// The result of reading what a guest wrote.
pub type Known<T> = Result<T, Unclear>;

fn unclear<T>(why: impl Into<String>) -> Known<T> {
    Err(Unclear(why.into()))
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

/// The journal is big-endian, the rest of the file system little-endian.
fn be16(bytes: &[u8], at: usize) -> u16 {
    le16(bytes, at).swap_bytes()
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    le32(bytes, at).swap_bytes()
}
