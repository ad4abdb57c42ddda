//! Golden images: immutable disk images outside the store, read only, raw or qcow2.

use crate::{Error, Result};
use fermata_store::{ImageReader, Progress, is_sealed_json, seal_json};
use fermata_types::{ImageId, PAGE_SIZE, PageBuf, PageNumber};
use fermata_vhost::segments::{Output, with_output};
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, Mapping, qcow2::Qcow2};
use rustix::fs::SeekFrom;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File, Metadata},
    io::{self, Read, Write},
    os::unix::fs::{FileExt as _, MetadataExt},
    path::{Path, PathBuf},
};

/// Bytes of a sector, the unit in which a virtio disk is addressed.
pub const SECTOR_SIZE: u64 = 512;

/// Bytes hashed or read in one go.
const CHUNK: usize = 1 << 20;

/// Blocks are numbered with 32 bits.
const SIZE_MAX: u64 = (1 << 32) * PAGE_SIZE as u64;

/// How an image file is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Format {
    /// The bytes of the disk, as they are.
    Raw,
    /// QEMU's format, version 2 or 3, without a backing file.
    Qcow2,
}

/// What tells one state of a file from another without reading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Device of the file system.
    pub device: u64,
    /// Number of the file in it.
    pub inode: u64,
    /// Bytes of the file.
    pub file_size: u64,
    /// Last change of the content, ns since 1970.
    pub modified_ns: i128,
    /// Last change of the content or of the file's own data (owner, links), ns since 1970.
    pub changed_ns: i128,
}

impl Fingerprint {
    fn of(metadata: &Metadata) -> Self {
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            file_size: metadata.size(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// What differs in a way that may touch the content; a new link or owner does not.
    fn difference(&self, now: &Self) -> Option<String> {
        if (self.device, self.inode) != (now.device, now.inode) {
            Some(format!("another file lies at this path (inode {}:{}, was {}:{})", now.device, now.inode, self.device, self.inode))
        } else if self.file_size != now.file_size {
            Some(format!("its size is {} bytes, was {}", now.file_size, self.file_size))
        } else if self.modified_ns != now.modified_ns {
            Some(format!("it was written to (modified at {} ns since 1970, was {})", now.modified_ns, self.modified_ns))
        } else {
            None
        }
    }
}

enum Content {
    Raw(File),
    Qcow2 { access: Box<FormatAccess<imago::file::File>>, file: File },
}

/// A golden image, open. It is never written to.
pub struct Golden {
    path: PathBuf,
    format: Format,
    size: u64,
    id: ImageId,
    fingerprint: Fingerprint,
    content: Content,
}

impl std::fmt::Debug for Golden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Golden").field("path", &self.path).field("size", &self.size).field("id", &self.id).finish_non_exhaustive()
    }
}

impl Golden {
    /// Opens an image and finds out its id.
    ///
    /// `format`: none to tell it by the file's first bytes. A raw image that begins like a qcow2 file must be named raw, and a guest that writes such
    /// bytes cannot fool us, since an image is never written to.
    ///
    /// The id is the hash of all content (`docs/formats/golden.md`), so finding it reads the whole image once; `progress` is told bytes. It is kept in a small
    /// file in `cache_dir`, where the next call finds it as long as path, inode, size and times are the same.
    pub fn open(path: &Path, format: Option<Format>, cache_dir: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Self> {
        let path = fs::canonicalize(path).map_err(Error::io("cannot find the image", path))?;
        let file = File::open(&path).map_err(Error::io("cannot open the image", &path))?;
        let metadata = file.metadata().map_err(Error::io("cannot examine the image", &path))?;
        if !metadata.is_file() {
            return Err(Error::Unsupported { path, what: "it is not a regular file".into() });
        }
        let fingerprint = Fingerprint::of(&metadata);
        let format = match format {
            Some(format) => format,
            None => detect(&file).map_err(Error::io("cannot read the image", &path))?,
        };
        let (content, size) = match format {
            Format::Raw => (Content::Raw(file), metadata.len().next_multiple_of(SECTOR_SIZE)),
            Format::Qcow2 => open_qcow2(&path, file)?,
        };
        if size == 0 || size > SIZE_MAX {
            return Err(Error::Unsupported { path, what: format!("a disk has 1 byte to 16 TiB, this one {size} bytes") });
        }
        let mut golden = Self { path, format, size, id: ImageId([0; 32]), fingerprint, content };
        golden.id = golden.identify(cache_dir, progress)?;
        Ok(golden)
    }

    /// The name of the image's content.
    pub fn id(&self) -> ImageId {
        self.id
    }

    /// Bytes that the guest sees: the image's size, rounded up to whole sectors of 512.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The image file, as an absolute path without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the file is laid out.
    pub fn format(&self) -> Format {
        self.format
    }

    /// What the file looked like when it was opened.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Fails with [`Error::Changed`] if the image is not the one named `id`.
    pub fn expect(&self, id: &ImageId) -> Result<()> {
        if self.id == *id {
            return Ok(());
        }
        Err(Error::Changed { path: self.path.clone(), what: format!("its content is {}, expected {}", self.id.short(), id.short()) })
    }

    /// Fails with [`Error::Changed`] if the file was written to or replaced since it was opened. Does not read the content.
    pub fn check_unchanged(&self) -> Result<()> {
        let file = match &self.content {
            Content::Raw(file) | Content::Qcow2 { file, .. } => file,
        };
        for metadata in [file.metadata(), fs::metadata(&self.path)] {
            let metadata = metadata.map_err(Error::io("cannot find the golden image", &self.path))?;
            if let Some(what) = self.fingerprint.difference(&Fingerprint::of(&metadata)) {
                return Err(Error::Changed { path: self.path.clone(), what });
            }
        }
        Ok(())
    }

    /// Fills `len` bytes of `output` with the disk's bytes from `offset` on; zeros behind the end of the image.
    pub(crate) fn read(&self, offset: u64, len: usize, output: &mut Output<'_>) -> io::Result<()> {
        let within = (self.size.saturating_sub(offset)).min(len as u64) as usize;
        match &self.content {
            Content::Raw(file) => output.read_at(file, offset, within)?,
            Content::Qcow2 { access, .. } => {
                let mut at = 0;
                let mut chunk = vec![0; within.min(256 << 10)];
                while at < within {
                    let now = chunk.len().min(within - at);
                    access.read(&mut chunk[..now], offset + at as u64)?;
                    output.put(&chunk[..now])?;
                    at += now;
                }
            }
        }
        output.zero(len - within)
    }

    /// Fills `into` with the disk's bytes from `offset` on; zeros behind the end of the image.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let len = into.len();
        with_output(into, |output| self.read(offset, len, output))
    }

    /// The first bytes at or after `offset` that may not be zero: start and end. None: zeros to the end.
    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        match &self.content {
            Content::Raw(file) => match rustix::fs::seek(file, SeekFrom::Data(offset)) {
                Ok(start) => {
                    let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
                    Ok(Some((start, end)))
                }
                Err(rustix::io::Errno::NXIO) => Ok(None),
                // A file system without holes: everything is data.
                Err(rustix::io::Errno::INVAL) => Ok((offset < self.size).then_some((offset, self.size))),
                Err(error) => Err(error.into()),
            },
            Content::Qcow2 { access, .. } => {
                let mut at = offset;
                while at < self.size {
                    let (mapping, len) = access.get_mapping(at, self.size - at)?;
                    match mapping {
                        Mapping::Eof { .. } => return Ok(None),
                        _ if len == 0 => return Ok(None),
                        Mapping::Zero { .. } => at += len,
                        _ => return Ok(Some((at, at + len))),
                    }
                }
                Ok(None)
            }
        }
    }

    /// Finds the id in the cache, or by reading everything.
    fn identify(&self, cache_dir: &Path, progress: &mut dyn FnMut(Progress)) -> Result<ImageId> {
        let cache = cache_dir.join(format!("image-{}.json", &blake3::hash(self.path.as_os_str().as_encoded_bytes()).to_hex()[..24]));
        if let Some(id) = self.cached(&cache) {
            return Ok(id);
        }
        let id = self.hash(progress).map_err(|source| self.unreadable(source))?;
        self.check_unchanged()?;
        // A cache that cannot be written costs time at the next start, no more.
        if let Err(error) = self.remember(&cache, id) {
            tracing::warn!(path = %cache.display(), %error, "cannot keep the id of a golden image");
        }
        Ok(id)
    }

    fn unreadable(&self, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                Error::Corrupt { path: self.path.clone(), what: source.to_string() }
            }
            _ => Error::Io { what: "cannot read the image", path: self.path.clone(), source },
        }
    }

    fn cached(&self, cache: &Path) -> Option<ImageId> {
        let known = fs::read(cache).ok().filter(|known| is_sealed_json(known))?;
        let known: Known = serde_json::from_slice(&known).ok()?;
        let same = known.version == CACHE_VERSION
            && known.path == self.path
            && known.format == self.format
            && known.size == self.size
            && known.fingerprint == self.fingerprint;
        same.then_some(known.id)
    }

    fn remember(&self, cache: &Path, id: ImageId) -> io::Result<()> {
        let known = Known {
            version: CACHE_VERSION,
            path: self.path.clone(),
            format: self.format,
            size: self.size,
            fingerprint: self.fingerprint.clone(),
            id,
        };
        let dir = cache.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(dir)?;
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(seal_json(&known)?.as_bytes())?;
        file.persist(cache)?;
        Ok(())
    }

    /// The BLAKE3 hash of the size and every block that is not zero, each after its number.
    fn hash(&self, progress: &mut dyn FnMut(Progress)) -> io::Result<ImageId> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.size.to_le_bytes());
        let mut chunk = vec![0; CHUNK];
        let mut offset = 0;
        while let Some((start, end)) = self.next_data(offset)? {
            // Chunks begin at blocks, and data may begin and end in the middle of one.
            offset = offset.max(start / PAGE_SIZE as u64 * PAGE_SIZE as u64);
            let end = end.next_multiple_of(PAGE_SIZE as u64);
            while offset < end {
                let len = ((end - offset) as usize).min(CHUNK);
                self.read_at(offset, &mut chunk[..len])?;
                for (i, block) in chunk[..len].chunks_exact(PAGE_SIZE).enumerate() {
                    if !is_zero(block) {
                        hasher.update(&(offset / PAGE_SIZE as u64 + i as u64).to_le_bytes());
                        hasher.update(block);
                    }
                }
                offset += len as u64;
                progress(Progress { done: offset.min(self.size), total: self.size });
            }
        }
        progress(Progress { done: self.size, total: self.size });
        Ok(ImageId(*hasher.finalize().as_bytes()))
    }
}

impl ImageReader for Golden {
    fn blocks(&self) -> u64 {
        self.size.div_ceil(PAGE_SIZE as u64)
    }

    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> io::Result<()> {
        self.read_blocks(block, into)
    }

    fn read_blocks(&self, first: PageNumber, into: &mut [u8]) -> io::Result<()> {
        self.read_at(u64::from(first) * PAGE_SIZE as u64, into)
    }
}

/// Counts up when the definition of the id changes, or what vouches for it.
const CACHE_VERSION: u32 = 2;

/// What is known of an image from an earlier start.
#[derive(Serialize, Deserialize)]
struct Known {
    version: u32,
    path: PathBuf,
    format: Format,
    size: u64,
    fingerprint: Fingerprint,
    id: ImageId,
}

fn detect(mut file: &File) -> io::Result<Format> {
    let mut magic = [0; 4];
    let mut filled = 0;
    while filled < magic.len() {
        match file.read(&mut magic[filled..])? {
            0 => break,
            got => filled += got,
        }
    }
    Ok(if magic == *b"QFI\xfb" { Format::Qcow2 } else { Format::Raw })
}

/// Refuses what would make the content depend on another file, then lets the library read the rest.
fn open_qcow2(path: &Path, file: File) -> Result<(Content, u64)> {
    let unsupported = |what: &str| Error::Unsupported { path: path.to_owned(), what: what.to_owned() };
    let corrupt = |what: String| Error::Corrupt { path: path.to_owned(), what };
    let mut header = [0; 80];
    let got = file.read_at(&mut header, 0).map_err(Error::io("cannot read the image", path))?;
    if got < 72 || header[..4] != *b"QFI\xfb" {
        return Err(corrupt("its qcow2 header is missing or cut short".into()));
    }
    let number = |at: usize| u64::from_be_bytes(header[at..at + 8].try_into().expect("eight bytes of the header"));
    let version = u32::from_be_bytes(header[4..8].try_into().expect("four bytes of the header"));
    if number(8) != 0 {
        return Err(unsupported(
            "it has a backing file, and a golden image must stand alone; flatten it with `qemu-img convert -O qcow2 IMAGE FLAT.qcow2`",
        ));
    }
    if u32::from_be_bytes(header[32..36].try_into().expect("four bytes of the header")) != 0 {
        return Err(unsupported("it is encrypted; decrypt it with `qemu-img convert`"));
    }
    // Bit 2 of the incompatible features: the data lies in another file. Bit 1: known to be damaged.
    if version >= 3 && number(72) & 4 != 0 {
        return Err(unsupported("its data lies in another file; make one file of it with `qemu-img convert -O qcow2 IMAGE FLAT.qcow2`"));
    }
    if version >= 3 && number(72) & 2 != 0 {
        return Err(corrupt("its own header says so".into()));
    }
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => corrupt(source.to_string()),
        io::ErrorKind::Unsupported => unsupported(&source.to_string()),
        _ => Error::Io { what: "cannot read the image", path: path.to_owned(), source },
    };
    let same_file = file.try_clone().map_err(Error::io("cannot open the image", path))?;
    let storage = imago::file::File::from_open_file(same_file, imago::StorageOpenOptions::new().write(false)).map_err(failed)?;
    let image = Qcow2::<imago::file::File>::builder(storage).open(DenyImplicitOpenGate::default()).map_err(failed)?;
    let access = Box::new(FormatAccess::new(image));
    let size = access.size().next_multiple_of(SECTOR_SIZE);
    Ok((Content::Qcow2 { access, file }, size))
}

fn is_zero(block: &[u8]) -> bool {
    // Sixteen bytes at a time: the compiler turns this into vector instructions.
    block.chunks_exact(16).all(|chunk| u128::from_ne_bytes(chunk.try_into().expect("chunks of sixteen")) == 0)
}
