//! Reads a finished pack. Nothing in it is trusted: lengths are checked here, objects against their names by who asked for them.

use super::{
    Frame, Kind, Shelf,
    contents::{self, Contents, Entry, Foreign},
};
use crate::{Error, Result, chunks::Source, hash};
use crc32fast::Hasher;
use fermata_types::PackId;
use std::{
    cell::RefCell,
    fmt::Display,
    io,
    path::{Path, PathBuf},
};
use zstd::bulk::Decompressor;

thread_local! {
    // A context is 100 KiB and more: made once a thread, not once a page.
    static UNPACKER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// The frame whose bytes these are. The error says what is wrong.
fn unpack(bytes: &[u8]) -> Result<Frame, String> {
    UNPACKER.with_borrow_mut(|unpacker| {
        let unpacker = match unpacker {
            Some(unpacker) => unpacker,
            None => unpacker.insert(Decompressor::new().map_err(|error| format!("cannot start to decompress: {error}"))?),
        };
        Frame::decode(bytes, unpacker)
    })
}

/// The same of a frame that a table of contents tells of, if it is of that kind. Who reads pages of whoever sent the pack takes no memory for a blob, which may have
/// thousands of times as many bytes as are stored of it.
pub(crate) fn unpack_entry(bytes: &[u8], entry: &Entry) -> Result<Frame, String> {
    match bytes.first().copied().and_then(Kind::from_byte) == Some(entry.kind) {
        true => unpack(bytes),
        false => Err("the frame is of another kind than the table of contents says".into()),
    }
}

/// A pack, open for reading.
#[derive(Debug)]
pub(crate) struct PackFile {
    source: Source,
    path: PathBuf,
}

impl PackFile {
    pub fn open(shelf: &Shelf, id: &PackId) -> Result<Self> {
        let path = shelf.place(id);
        let source = Source::open(&path, &shelf.sealing).map_err(|error| failed("open", &path, 0, &"the pack", error))?;
        let pack = Self { source, path };
        let mut header = [0; contents::HEADER];
        pack.read_at(&mut header, 0, &"header of the pack")?;
        contents::check_header(&header).map_err(|foreign| match foreign {
            Foreign::Damaged(detail) => Error::corrupt(&pack.path, 0, "header of the pack", detail),
            Foreign::Version(version) => Error::Unsupported { path: pack.path.clone(), what: format!("pack format version {version}") },
        })?;
        Ok(pack)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file as it lies there.
    pub fn stored(&self) -> u64 {
        self.source.stored()
    }

    /// The frame at this place, for the object named.
    pub fn frame(&self, offset: u64, length: u32, object: &dyn Display) -> Result<Frame> {
        let mut bytes = Vec::new();
        self.span(offset, length as usize, object, &mut bytes)?;
        self.decode(&bytes, offset, object)
    }

    /// The frame of an entry of the table of contents, for the object named.
    pub fn frame_of(&self, entry: &Entry, object: &dyn Display) -> Result<Frame> {
        let mut bytes = Vec::new();
        self.span(entry.offset, entry.length as usize, object, &mut bytes)?;
        unpack_entry(&bytes, entry).map_err(|detail| Error::corrupt(&self.path, entry.offset, object, detail))
    }

    /// The bytes at this place, whatever lies there, for the object named.
    pub fn span(&self, offset: u64, length: usize, object: &dyn Display, into: &mut Vec<u8>) -> Result<()> {
        // Before anything is allocated: the index may ask for any length.
        if offset.checked_add(length as u64).is_none_or(|end| end > self.source.length()) {
            let detail = format!("it should reach to byte {offset} + {length}, but the file ends at {}", self.source.length());
            return Err(Error::corrupt(&self.path, offset, object, detail));
        }
        into.resize(length, 0);
        self.read_at(into, offset, object)
    }

    /// The frame whose bytes, which lie at this place, are these.
    pub fn decode(&self, bytes: &[u8], offset: u64, object: &dyn Display) -> Result<Frame> {
        unpack(bytes).map_err(|detail| Error::corrupt(&self.path, offset, object, detail))
    }

    /// The table of contents, checked against the id of the pack.
    pub fn contents(&self, id: &PackId) -> Result<Contents> {
        const OBJECT: &str = "table of contents";
        let trailer = self.trailer()?;
        let (at, length) = contents::check_trailer(&trailer, id, self.source.length())
            .map_err(|detail| Error::corrupt(&self.path, self.trailer_at(), "trailer of the pack", detail))?;
        let mut bytes = vec![0; length as usize];
        self.read_at(&mut bytes, at, &OBJECT)?;
        if hash::contents(&bytes) != *id {
            return Err(Error::corrupt(&self.path, at, OBJECT, "it does not fit the pack's name"));
        }
        Contents::decode(&bytes, at).map_err(|detail| Error::corrupt(&self.path, at, OBJECT, detail))
    }

    /// The checksum of all bytes before it, in a pack whose table of contents was read; none: the pack is of a version without.
    pub fn sum(&self) -> Result<Option<u32>> {
        Ok(contents::sum(&self.trailer()?))
    }

    /// The checksum as it is now of all bytes before the one in the trailer. `sum` has been given all that lies before `at`.
    pub fn sum_from(&self, mut at: u64, mut sum: Hasher) -> Result<u32> {
        const PIECE: u64 = 1 << 20;
        let end = self.trailer_at() + contents::SUM as u64;
        let mut bytes = Vec::new();
        while at < end {
            self.span(at, PIECE.min(end - at) as usize, &"table of contents", &mut bytes)?;
            sum.update(&bytes);
            at += bytes.len() as u64;
        }
        Ok(sum.finalize())
    }

    fn trailer_at(&self) -> u64 {
        self.source.length().saturating_sub(contents::TRAILER as u64)
    }

    fn trailer(&self) -> Result<[u8; contents::TRAILER]> {
        let mut trailer = [0; contents::TRAILER];
        self.read_at(&mut trailer, self.trailer_at(), &"trailer of the pack")?;
        Ok(trailer)
    }

    fn read_at(&self, into: &mut [u8], offset: u64, object: &dyn Display) -> Result<()> {
        self.source.read_exact_at(into, offset).map_err(|error| failed("read", &self.path, offset, object, error))
    }
}

/// What is not as it was written is damage.
fn failed(action: &'static str, path: &Path, offset: u64, object: &dyn Display, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::corrupt(path, offset, object, "the file ends too early"),
        io::ErrorKind::InvalidData => Error::corrupt(path, offset, object, error.to_string()),
        _ => Error::io(action, path)(error),
    }
}
