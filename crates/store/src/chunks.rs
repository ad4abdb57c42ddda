//! Files of the store, in the open or encrypted. Whoever reads and writes them knows of neither.
//!
//! An encrypted file is a row of chunks, each sealed by itself, so that one can be read, and one can be damaged, without the others. The first one has 16 bytes, the
//! header of a pack, without which that cannot be opened; the others 4 KiB, and the last one what is left, and says that it is the last. Each vouches for its number,
//! and for the file by the nonce of the second one, the first in which files differ: so none can be put in another's place.

use crate::{
    cipher::{Cipher, OVERHEAD, Sealing},
    pack::contents,
};
use std::{borrow::Cow, fs::File, io, os::unix::fs::FileExt, path::Path, sync::Arc};

/// Plain bytes of the first chunk, and of the others.
const FIRST: usize = contents::HEADER;
const CHUNK: usize = 4 << 10;
const FIRST_SEALED: u64 = (FIRST + OVERHEAD) as u64;
const SEALED: u64 = (CHUNK + OVERHEAD) as u64;
/// What tells one file from another: how its second chunk begins. Nothing before that is there.
type Mark = [u8; 24];

/// Where a chunk begins in the plain bytes.
fn plain_at(number: u64) -> u64 {
    number.checked_sub(1).map_or(0, |before| FIRST as u64 + before * CHUNK as u64)
}

/// Where a chunk begins in the file.
fn sealed_at(number: u64) -> u64 {
    number.checked_sub(1).map_or(0, |before| FIRST_SEALED + before * SEALED)
}

/// The chunk that a plain byte is in.
fn chunk_of(at: u64) -> u64 {
    at.checked_sub(FIRST as u64).map_or(0, |behind| 1 + behind / CHUNK as u64)
}

/// How many chunks and how many plain bytes a file of this length has; none: nothing that was sealed has this length.
fn measure(bytes: u64) -> Option<(u64, u64)> {
    let Some(rest) = bytes.checked_sub(FIRST_SEALED).filter(|rest| *rest > 0) else {
        return Some((1, bytes.checked_sub(OVERHEAD as u64)?));
    };
    let chunks = 1 + rest.div_ceil(SEALED);
    // Only a file without any bytes ends with a chunk without any.
    (bytes - sealed_at(chunks - 1) > OVERHEAD as u64).then(|| (chunks, bytes - chunks * OVERHEAD as u64))
}

fn about(mark: &Mark, number: u64, is_last: bool) -> [u8; 33] {
    let mut about = [0; 33];
    about[..24].copy_from_slice(mark);
    about[24..32].copy_from_slice(&number.to_le_bytes());
    about[32] = is_last.into();
    about
}

/// Seals what is written from the beginning on.
pub(crate) struct Chunks {
    cipher: Arc<Cipher>,
    mark: Mark,
    /// Chunks that were sealed.
    count: u64,
    /// What may be the last of it.
    rest: Vec<u8>,
}

impl Chunks {
    pub fn new(cipher: Arc<Cipher>) -> Self {
        Self { cipher, mark: [0; 24], count: 0, rest: Vec::new() }
    }

    /// Plain bytes so far.
    pub fn length(&self) -> u64 {
        plain_at(self.count) + self.rest.len() as u64
    }

    /// Takes the next bytes; returns what is to be written, and where.
    pub fn push(&mut self, bytes: &[u8]) -> (u64, Vec<u8>) {
        self.rest.extend(bytes);
        let (at, mut sealed) = (sealed_at(self.count), Vec::new());
        let bytes = std::mem::take(&mut self.rest);
        let mut left = bytes.as_slice();
        // One always stays: it may be the last.
        while let Some((chunk, rest)) =
            left.split_at_checked(if self.count == 0 { FIRST } else { CHUNK }).filter(|(_, rest)| !rest.is_empty())
        {
            self.seal(chunk, false, &mut sealed);
            left = rest;
        }
        self.rest.extend(left);
        (at, sealed)
    }

    /// What is to be written when all is there, and where.
    pub fn finish(&mut self) -> (u64, Vec<u8>) {
        let (at, mut sealed) = (sealed_at(self.count), Vec::new());
        let rest = std::mem::take(&mut self.rest);
        self.seal(&rest, true, &mut sealed);
        (at, sealed)
    }

    fn seal(&mut self, chunk: &[u8], is_last: bool, into: &mut Vec<u8>) {
        let from = into.len();
        self.cipher.seal(&about(&self.mark, self.count, is_last), chunk, into);
        if self.count == 1 {
            self.mark = *into[from..].first_chunk().expect("what is sealed begins with a nonce");
        }
        self.count += 1;
    }
}

/// All of a file at once, as it is to be written.
pub(crate) fn sealed<'a>(sealing: &Sealing, bytes: &'a [u8]) -> Cow<'a, [u8]> {
    let Some(cipher) = sealing else { return bytes.into() };
    let mut chunks = Chunks::new(cipher.clone());
    let (_, mut sealed) = chunks.push(bytes);
    sealed.extend(chunks.finish().1);
    sealed.into()
}

/// All of a file at once. The error is `InvalidData` if it is not what was written.
pub(crate) fn read(path: &Path, sealing: &Sealing) -> io::Result<Vec<u8>> {
    let source = Source::open(path, sealing)?;
    let mut bytes = vec![0; source.length() as usize];
    source.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// A file, open for reading.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    /// Plain bytes.
    length: u64,
    seal: Option<Seal>,
}

struct Seal {
    cipher: Arc<Cipher>,
    mark: Mark,
    chunks: u64,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} chunks", self.chunks)
    }
}

impl Source {
    pub fn open(path: &Path, sealing: &Sealing) -> io::Result<Self> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let Some(cipher) = sealing else { return Ok(Self { file, length: bytes, seal: None }) };
        let (chunks, length) = measure(bytes).ok_or_else(|| wrong("nothing that was encrypted here has its length"))?;
        let mut mark = Mark::default();
        if chunks > 1 {
            file.read_exact_at(&mut mark, sealed_at(1))?;
        }
        Ok(Self { file, length, seal: Some(Seal { cipher: cipher.clone(), mark, chunks }) })
    }

    /// Plain bytes of the file.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes of the file as it lies there.
    pub fn stored(&self) -> u64 {
        self.length + self.seal.as_ref().map_or(0, |seal| seal.chunks * OVERHEAD as u64)
    }

    /// Fills `into` with the plain bytes from an offset on. The error is `UnexpectedEof` if there are not so many, `InvalidData` if they are not what was written.
    pub fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        let Some(seal) = &self.seal else { return self.file.read_exact_at(into, at) };
        let end = at.checked_add(into.len() as u64).filter(|end| *end <= self.length).ok_or(io::ErrorKind::UnexpectedEof)?;
        if into.is_empty() {
            return Ok(());
        }
        let (first, last) = (chunk_of(at), chunk_of(end - 1));
        let span = sealed_at(first)..sealed_at(last + 1).min(self.stored());
        let mut sealed = vec![0; (span.end - span.start) as usize];
        self.file.read_exact_at(&mut sealed, span.start)?;
        let (mut left, mut skip, mut done) = (sealed.as_mut_slice(), (at - plain_at(first)) as usize, 0);
        for number in first..=last {
            let (chunk, rest) = left.split_at_mut((sealed_at(number + 1).min(self.stored()) - sealed_at(number)) as usize);
            left = rest;
            let mark = if number < 2 { Mark::default() } else { seal.mark };
            let about = about(&mark, number, number + 1 == seal.chunks);
            let plain = seal.cipher.unseal(&about, chunk).ok_or_else(|| wrong("it is not what was encrypted there"))?;
            let part = &plain[skip..plain.len().min(skip + into.len() - done)];
            into[done..][..part.len()].copy_from_slice(part);
            (skip, done) = (0, done + part.len());
        }
        Ok(())
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 31 % 251) as u8).collect()
    }

    fn sealing(key: u8) -> Sealing {
        Some(Arc::new(Cipher::new(&[key; 32], None)))
    }

    const LENGTHS: [usize; 9] = [0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + CHUNK - 1, FIRST + CHUNK, FIRST + CHUNK + 1, 3 * CHUNK + 7];

    #[test]
    fn any_piece_of_a_file_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for (length, sealing) in LENGTHS.into_iter().flat_map(|length| [(length, sealing(1)), (length, None)]) {
            let content = bytes(length);
            std::fs::write(&path, sealed(&sealing, &content)).unwrap();
            let source = Source::open(&path, &sealing).unwrap();
            assert_eq!((source.length(), source.stored()), (length as u64, path.metadata().unwrap().len()));
            assert_eq!(read(&path, &sealing).unwrap(), content);
            for from in [0, 1, FIRST - 1, FIRST, FIRST + CHUNK, 2 * CHUNK + 5] {
                for count in [0, 1, FIRST, CHUNK, CHUNK + 1, 2 * CHUNK] {
                    let mut piece = vec![0; count];
                    let result = source.read_exact_at(&mut piece, from as u64);
                    match content.get(from..from + count) {
                        Some(expected) => assert_eq!(result.map(|()| piece.as_slice()).unwrap(), expected),
                        None if count > 0 => assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof),
                        None => {}
                    }
                }
            }
        }
    }

    #[test]
    fn it_is_the_same_in_however_many_pieces_it_is_written() {
        let (content, sealing) = (bytes(3 * CHUNK + 7), sealing(1));
        for piece in [10, FIRST, 1000, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let mut chunks = Chunks::new(sealing.clone().unwrap());
            let mut file = Vec::new();
            for part in content.chunks(piece) {
                let (at, sealed) = chunks.push(part);
                assert!(sealed.is_empty() || at == file.len() as u64);
                file.extend(sealed);
            }
            assert_eq!(chunks.length(), content.len() as u64);
            file.extend(chunks.finish().1);
            assert!(file == *sealed(&sealing, &content), "in pieces of {piece}");
        }
    }

    #[test]
    fn what_was_changed_cut_or_exchanged_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let made_of = |bytes: &[u8]| sealed(&sealing(1), bytes).into_owned();
        let good = made_of(&bytes(3 * CHUNK + 7));
        let other = made_of(&[&bytes(100)[..], &[7], &bytes(3 * CHUNK + 7)[101..]].concat());
        let refused = |bytes: &[u8], key| {
            std::fs::write(&path, bytes).unwrap();
            matches!(read(&path, &sealing(key)), Err(error) if error.kind() == io::ErrorKind::InvalidData)
        };
        assert!(!refused(&good, 1) && refused(&good, 2));
        for at in (0..good.len()).step_by(997) {
            let mut bad = good.clone();
            bad[at] ^= 4;
            assert!(refused(&bad, 1), "byte {at}");
        }
        let chunk = |number: u64| sealed_at(number) as usize..sealed_at(number + 1) as usize;
        for number in 0..4 {
            assert!(refused(&good[..chunk(number).start], 1), "cut to {number}");
        }
        let from_other = [&good[..chunk(2).start], &other[chunk(2)], &good[chunk(3).start..]].concat();
        let exchanged = [&good[chunk(0)], &good[chunk(2)], &good[chunk(1)], &good[chunk(3).start..]].concat();
        assert!(from_other.len() == good.len() && refused(&from_other, 1));
        assert!(exchanged.len() == good.len() && refused(&exchanged, 1));
        assert!(refused(&[&good[..], &good[..]].concat(), 1));
    }
}
