//! What is around the frames of a pack: header, table of contents, trailer.

use super::{Kind, name_at, u16_at, u32_at, u64_at};
use crate::hash;
use crc32fast::Hasher;
use fermata_types::PackId;

/// Bytes of the header.
pub(crate) const HEADER: usize = 16;
/// Bytes of the trailer.
pub(crate) const TRAILER: usize = 64;
/// The version written.
pub(crate) const VERSION: u32 = 2;
/// A version that is read too: without a checksum.
const UNGUARDED: u32 = 1;
/// Where in the trailer the checksum lies, of all that comes before it in the file.
pub(crate) const SUM: usize = 52;
/// Frames in a pack at most.
pub(crate) const FRAMES_MAX: usize = 1 << 26;
/// Bytes of a table of contents at most.
pub(crate) const CONTENTS_MAX: u64 = 2 << 30;

const MAGIC: &[u8; 8] = b"FERMPACK";
const MAGIC_END: &[u8; 8] = b"FERM-END";
const ENTRY: usize = 16;

/// One frame in the table of contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub kind: Kind,
    pub offset: u64,
    /// Of the whole frame.
    pub length: u32,
    /// Names of the objects, in their places.
    pub names: Vec<[u8; 32]>,
}

/// The table of contents of a pack.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub entries: Vec<Entry>,
    /// Names in all entries.
    objects: usize,
}

impl Contents {
    pub fn push(&mut self, entry: Entry) {
        self.objects += entry.names.len();
        self.entries.push(entry);
    }

    /// Every object in the order in which they lie: its frame, its place in it, its name.
    pub fn objects(&self) -> impl Iterator<Item = (&Entry, u16, &[u8; 32])> {
        self.entries.iter().flat_map(|entry| (0..).zip(&entry.names).map(move |(place, name)| (entry, place, name)))
    }

    /// Bytes of the encoding.
    pub fn length(&self) -> u64 {
        (4 + self.entries.len() * ENTRY + self.objects * 32) as u64
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length() as usize);
        bytes.extend((self.entries.len() as u32).to_le_bytes());
        for entry in &self.entries {
            bytes.extend(entry.offset.to_le_bytes());
            bytes.extend(entry.length.to_le_bytes());
            bytes.extend((entry.names.len() as u16).to_le_bytes());
            bytes.extend([entry.kind.to_byte(), 0]);
            entry.names.iter().for_each(|name| bytes.extend(name));
        }
        bytes
    }

    /// Decodes a table that lies at `at` in its pack. The error says what is wrong.
    pub fn decode(bytes: &[u8], at: u64) -> Result<Self, String> {
        let mut contents = Self::default();
        let mut rest = bytes.get(4..).ok_or("a table of contents without a count")?;
        let count = u32_at(bytes, 0) as usize;
        let mut end = HEADER as u64;
        for index in 0..count {
            let head = rest.get(..ENTRY).ok_or_else(|| format!("the table of contents ends in entry {index} of {count}"))?;
            let (offset, length, objects) = (u64_at(head, 0), u32_at(head, 8), usize::from(u16_at(head, 12)));
            let kind = Kind::from_byte(head[14]).filter(|_| head[15] == 0).ok_or_else(|| format!("entry {index} is of no known kind"))?;
            if offset != end {
                return Err(format!("entry {index} does not follow the one before"));
            }
            // Whoever reads a frame takes memory for as many bytes as are said here.
            if !kind.allows_stored(objects, length as usize) {
                return Err(format!("entry {index}, of {objects} objects in {length} bytes, is beyond the limits"));
            }
            end += u64::from(length);
            let names = rest.get(ENTRY..ENTRY + objects * 32).ok_or_else(|| format!("entry {index} has not all its names"))?;
            contents.push(Entry { kind, offset, length, names: (0..objects).map(|i| name_at(names, i * 32)).collect() });
            rest = &rest[ENTRY + objects * 32..];
        }
        if !rest.is_empty() || end != at {
            return Err("the table of contents does not fit the frames".into());
        }
        Ok(contents)
    }
}

pub(crate) fn header() -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

/// Why a header is not one of ours.
pub(crate) enum Foreign {
    Damaged(String),
    Version(u32),
}

pub(crate) fn check_header(bytes: &[u8; HEADER]) -> Result<(), Foreign> {
    if &bytes[..8] != MAGIC || bytes[12..] != [0; 4] {
        return Err(Foreign::Damaged("this is no header of a pack".into()));
    }
    match u32_at(bytes, 8) {
        VERSION | UNGUARDED => Ok(()),
        version => Err(Foreign::Version(version)),
    }
}

/// The id of a pack, and the trailer that goes behind this table of contents, which lies at `at`. `sum` has been given all that lies before the table.
pub(crate) fn trailer(contents: &[u8], at: u64, mut sum: Hasher) -> (PackId, [u8; TRAILER]) {
    let id = hash::contents(contents);
    let mut bytes = [0; TRAILER];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..16].copy_from_slice(&(contents.len() as u64).to_le_bytes());
    bytes[16..48].copy_from_slice(id.as_bytes());
    bytes[48..SUM].copy_from_slice(&VERSION.to_le_bytes());
    sum.update(contents);
    sum.update(&bytes[..SUM]);
    bytes[SUM..56].copy_from_slice(&sum.finalize().to_le_bytes());
    bytes[56..].copy_from_slice(MAGIC_END);
    (id, bytes)
}

/// Where the table of contents lies and how long it is, by the trailer of a pack of this length and id.
pub(crate) fn check_trailer(bytes: &[u8; TRAILER], id: &PackId, pack_length: u64) -> Result<(u64, u64), String> {
    let known = match u32_at(bytes, 48) {
        VERSION => true,
        UNGUARDED => bytes[SUM..56] == [0; 4],
        _ => false,
    };
    if &bytes[56..] != MAGIC_END || !known {
        return Err("this is no trailer of a pack".into());
    }
    if &bytes[16..48] != id.as_bytes() {
        return Err("the trailer names another pack".into());
    }
    let (at, length) = (u64_at(bytes, 0), u64_at(bytes, 8));
    let fits = at >= HEADER as u64 && length <= CONTENTS_MAX && at.checked_add(length + TRAILER as u64) == Some(pack_length);
    fits.then_some((at, length)).ok_or_else(|| format!("a table of contents of {length} bytes at {at} does not fit the file"))
}

/// The checksum in a trailer that was checked; none: the pack is of a version without.
pub(crate) fn sum(bytes: &[u8; TRAILER]) -> Option<u32> {
    (u32_at(bytes, 48) != UNGUARDED).then(|| u32_at(bytes, SUM))
}
