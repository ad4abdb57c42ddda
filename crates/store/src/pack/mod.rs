//! Pack files, byte for byte as in `docs/formats/pack.md`.
//!
//! - [`frame`]: a group of objects, compressed
//! - [`contents`]: header, table of contents and trailer
//! - [`build`]: writes a pack
//! - [`read`]: reads frames of a finished pack
//! - [`shelf`]: where packs lie

pub(crate) mod build;
pub(crate) mod contents;
pub(crate) mod frame;
pub(crate) mod read;
pub(crate) mod shelf;

pub(crate) use build::{PackBuilder, Published, TOLD_APART_BYTES};
pub(crate) use frame::{Frame, Kind};
pub(crate) use read::{PackFile, unpack_entry};
pub(crate) use shelf::Shelf;

/// Little-endian integers out of a slice whose length was checked.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(crate) fn name_at(bytes: &[u8], at: usize) -> [u8; 32] {
    bytes[at..at + 32].try_into().expect("32 bytes")
}
