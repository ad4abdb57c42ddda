//! Frames: a few objects together, compressed when that makes them smaller.

use super::{u16_at, u32_at};
use fermata_types::PAGE_SIZE;
use std::{io, ops::Range};
use zstd::bulk::{Compressor, Decompressor};

/// Bytes of the header of a frame.
pub(crate) const HEADER: usize = 12;
/// Pages in a frame at most.
pub(crate) const PAGES_MAX: usize = 16;
/// Raw bytes of a frame of nodes at most.
pub(crate) const NODES_RAW_MAX: usize = 64 << 10;
/// Nodes in a frame at most.
pub(crate) const NODES_MAX: usize = 4096;
/// Bytes of a blob at most.
pub(crate) const BLOB_MAX: usize = 256 << 20;
/// Bytes of a record at most.
pub(crate) const RECORD_MAX: usize = 16 << 20;

/// Fast enough to run behind a guest on the core that the guest leaves free.
const ZSTD_LEVEL: i32 = 1;

/// Pages that shrink by less than this part of them are not worth compressing.
const WORTH_IT: usize = 16;
/// Frames that are not tried after one that was not worth it, at most.
const UNTRIED_MAX: u32 = 7;

const RAW: u8 = 0;
const ZSTD: u8 = 1;

/// What the objects of a frame are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Pages,
    Nodes,
    Blob,
    Record,
}

impl Kind {
    pub fn to_byte(self) -> u8 {
        match self {
            Self::Pages => 1,
            Self::Nodes => 2,
            Self::Blob => 3,
            Self::Record => 4,
        }
    }

    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Pages,
            2 => Self::Nodes,
            3 => Self::Blob,
            4 => Self::Record,
            _ => return None,
        })
    }

    /// Objects in a frame of this kind at most, and raw bytes.
    fn limits(self) -> (usize, usize) {
        match self {
            Self::Pages => (PAGES_MAX, PAGES_MAX * PAGE_SIZE),
            Self::Nodes => (NODES_MAX, NODES_RAW_MAX),
            Self::Blob => (1, BLOB_MAX),
            Self::Record => (1, RECORD_MAX),
        }
    }

    /// Whether a frame of this kind may have so many objects and so many raw bytes.
    pub fn allows(self, objects: usize, raw: usize) -> bool {
        let (objects_max, raw_max) = self.limits();
        (1..=objects_max).contains(&objects) && raw <= raw_max && (self != Self::Pages || raw == objects * PAGE_SIZE)
    }

    /// Whether a frame of this kind may have so many objects, and as it is stored so many bytes: no more than its content raw.
    pub fn allows_stored(self, objects: usize, length: usize) -> bool {
        let (objects_max, raw_max) = self.limits();
        (1..=objects_max).contains(&objects) && (HEADER..=HEADER + raw_max).contains(&length)
    }

    /// Whether a frame of this kind has many small objects: it takes little memory, and who needs one of them may soon need another.
    pub fn is_of_many(self) -> bool {
        matches!(self, Self::Pages | Self::Nodes)
    }
}

/// A frame, decompressed. Its objects are not yet checked against their names.
#[derive(Debug)]
pub(crate) struct Frame {
    pub kind: Kind,
    pub objects: usize,
    pub raw: Vec<u8>,
}

impl Frame {
    /// Decodes a whole frame, header and all. The error says what is wrong.
    pub fn decode(bytes: &[u8], unpacker: &mut Decompressor<'static>) -> Result<Self, String> {
        if bytes.len() < HEADER {
            return Err(format!("a frame of {} bytes has no header", bytes.len()));
        }
        let kind = Kind::from_byte(bytes[0]).ok_or_else(|| format!("frame kind {}", bytes[0]))?;
        let objects = usize::from(u16_at(bytes, 2));
        let raw_length = u32_at(bytes, 4) as usize;
        let stored = &bytes[HEADER..];
        if u32_at(bytes, 8) as usize != stored.len() {
            return Err(format!("the frame says {} bytes where {} lie", u32_at(bytes, 8), stored.len()));
        }
        // Before anything is allocated: the header may ask for any length.
        if !kind.allows(objects, raw_length) {
            return Err(format!("a frame of {objects} objects in {raw_length} bytes is beyond the limits"));
        }
        let raw = match bytes[1] {
            RAW => stored.to_vec(),
            ZSTD => unpacker.decompress(stored, raw_length).map_err(|error| format!("not decompressible: {error}"))?,
            codec => return Err(format!("frame codec {codec}")),
        };
        if raw.len() != raw_length {
            return Err(format!("{} bytes instead of {raw_length}", raw.len()));
        }
        Ok(Self { kind, objects, raw })
    }

    /// The bytes of one object.
    pub fn object(&self, place: usize) -> Result<&[u8], String> {
        let range = self.range(place).ok_or_else(|| format!("no object {place} among {}", self.objects))?;
        self.raw.get(range).ok_or_else(|| format!("object {place} reaches beyond the frame"))
    }

    fn range(&self, place: usize) -> Option<Range<usize>> {
        if place >= self.objects {
            return None;
        }
        match self.kind {
            Kind::Pages => Some(place * PAGE_SIZE..(place + 1) * PAGE_SIZE),
            Kind::Blob | Kind::Record => Some(0..self.raw.len()),
            Kind::Nodes => {
                let lengths = self.raw.get(..self.objects * 4)?;
                let mut start = lengths.len();
                for before in 0..place {
                    start = start.checked_add(u32_at(lengths, before * 4) as usize)?;
                }
                Some(start..start.checked_add(u32_at(lengths, place * 4) as usize)?)
            }
        }
    }
}

/// Encodes frames into a buffer that it keeps.
pub(crate) struct Encoder {
    compressor: Compressor<'static>,
    buffer: Vec<u8>,
    /// Frames of pages to come that are not tried, and how many it were the last time.
    untried: u32,
    dense: u32,
}

impl Encoder {
    pub fn new() -> io::Result<Self> {
        Ok(Self { compressor: Compressor::new(ZSTD_LEVEL)?, buffer: Vec::new(), untried: 0, dense: 0 })
    }

    /// The frame of these objects, header and all.
    pub fn encode(&mut self, kind: Kind, objects: usize, raw: &[u8]) -> io::Result<&[u8]> {
        assert!(kind.allows(objects, raw.len()), "a frame of {objects} objects in {} bytes", raw.len());
        let room = HEADER + zstd::zstd_safe::compress_bound(raw.len());
        if self.buffer.len() < room {
            self.buffer.resize(room, 0);
        }
        let (codec, stored) = match self.compress(kind, raw)? {
            Some(compressed) => (ZSTD, compressed),
            None => {
                self.buffer[HEADER..HEADER + raw.len()].copy_from_slice(raw);
                (RAW, raw.len())
            }
        };
        self.buffer[0] = kind.to_byte();
        self.buffer[1] = codec;
        self.buffer[2..4].copy_from_slice(&(objects as u16).to_le_bytes());
        self.buffer[4..8].copy_from_slice(&(raw.len() as u32).to_le_bytes());
        self.buffer[8..12].copy_from_slice(&(stored as u32).to_le_bytes());
        Ok(&self.buffer[..HEADER + stored])
    }

    /// Compresses behind the header. None if that makes it no smaller, or if it is not tried: pages come with others of their kind, and numbers with a fraction, or what is
    /// encrypted or compressed already, hardly shrink, at the price of all else that is done with them.
    fn compress(&mut self, kind: Kind, raw: &[u8]) -> io::Result<Option<usize>> {
        if kind == Kind::Pages && self.untried > 0 {
            self.untried -= 1;
            return Ok(None);
        }
        let compressed = self.compressor.compress_to_buffer(raw, &mut self.buffer[HEADER..])?;
        if kind == Kind::Pages {
            let shrinks = compressed < raw.len() - raw.len() / WORTH_IT;
            self.dense = if shrinks { 0 } else { (2 * self.dense + 1).min(UNTRIED_MAX) };
            self.untried = self.dense;
        }
        Ok((compressed < raw.len()).then_some(compressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_types::PageBuf;

    /// The codec of the frame of these pages.
    fn codec(encoder: &mut Encoder, pages: &[PageBuf]) -> u8 {
        let raw = pages.concat();
        let bytes = encoder.encode(Kind::Pages, pages.len(), &raw).unwrap().to_vec();
        assert_eq!(Frame::decode(&bytes, &mut Decompressor::new().unwrap()).unwrap().raw, raw);
        bytes[1]
    }

    #[test]
    fn what_does_not_shrink_is_seldom_tried() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let dense: [PageBuf; 2] = std::array::from_fn(|_| std::array::from_fn(|_| random()));
        let mut encoder = Encoder::new().unwrap();
        let plain = [[7; PAGE_SIZE]; 2];
        (0..20).for_each(|_| assert_eq!(codec(&mut encoder, &dense), RAW));
        // What shrinks again is found soon, and tried each time from then on.
        let found = (0..20).position(|_| codec(&mut encoder, &plain) == ZSTD).unwrap();
        assert!(found <= UNTRIED_MAX as usize, "{found}");
        (0..20).for_each(|_| assert_eq!(codec(&mut encoder, &plain), ZSTD));
        // Blobs and nodes are always tried.
        assert_eq!(codec(&mut encoder, &dense), RAW);
        assert_eq!(encoder.encode(Kind::Blob, 1, &[0; 1000]).unwrap()[1], ZSTD);
    }
}
