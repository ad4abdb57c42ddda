//! Golden images: immutable disk images outside the store, read only, raw or qcow2.
//!
//! Somebody may write to the file all the same, while guests read it. Its bytes have no checksums of their own, so after each read the open file is asked whether
//! it is still the one that was hashed, and the bytes are given out only then. The kernel sets a file's time before it puts in the bytes of a write, so whoever has
//! read new bytes sees the new time. What is not seen is a write in the same tick of the kernel's clock (4 ms at most, and less since Linux 6.13) as the one that
//! finished the image, and a write whose author puts the time back. The latter still shows in a time that nobody can set, the one of the last change of any kind: a checkpoint
//! that finds another one there reads all of the image again before it takes a block's name for a page.

use crate::{Error, Result, coming::Coming};
use fermata_store::{ImageHasher, ImageReader, Progress, is_sealed_json, seal_json};
use fermata_types::{ImageId, PAGE_SIZE, PageBuf, PageNumber};
use fermata_vhost::segments::{Output, with_output};
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, Mapping, qcow2::Qcow2};
use rustix::fs::{SeekFrom, Stat};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// Bytes of a sector, the unit in which a virtio disk is addressed.
pub const SECTOR_SIZE: u64 = 512;

/// Bytes hashed or read in one go.
const CHUNK: usize = 1 << 20;

/// Blocks are numbered with 32 bits.
pub(crate) const SIZE_MAX: u64 = (1 << 32) * PAGE_SIZE as u64;

/// How an image file is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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
    fn of(stat: &Stat) -> Self {
        let ns = |seconds, ns: i128| i128::from(seconds) * 1_000_000_000 + ns;
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            // Never negative.
            file_size: stat.st_size as u64,
            modified_ns: ns(stat.st_mtime, stat.st_mtime_nsec.into()),
            changed_ns: ns(stat.st_ctime, stat.st_ctime_nsec.into()),
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

type Access = Box<FormatAccess<imago::file::File>>;

enum Content {
    Raw(File),
    /// The lock is taken for writing only to open the file anew.
    Qcow2 {
        access: RwLock<Access>,
        file: File,
    },
}

/// A golden image, open. It is never written to.
pub struct Golden(Source);

/// Where a golden image is read.
enum Source {
    Here(ImageFile),
    /// From afar, until it has come.
    Coming(Coming),
}

impl std::fmt::Debug for Golden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Golden");
        shown.field("path", &self.path()).field("size", &self.size()).field("id", &self.id()).finish_non_exhaustive()
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
        Ok(Self(Source::Here(ImageFile::open(path, format, cache_dir, progress)?)))
    }

    /// An image that will lie at `path`, byte by byte, and is read by `from` until it has [come](Self::came). Whether it is the one that is called `id` nobody knows before.
    pub fn coming(id: ImageId, path: PathBuf, from: Arc<dyn ImageReader>) -> Result<Self> {
        Ok(Self(Source::Coming(Coming::new(id, path, from)?)))
    }

    /// An image that was coming is here, and open: from now on it is read here.
    pub fn came(&self, whole: Arc<Self>) {
        if let Source::Coming(coming) = &self.0 {
            coming.came(whole);
        }
    }

    /// The file that it is; or what it is read by as long as it has not come.
    fn file(&self) -> std::result::Result<&ImageFile, &Coming> {
        match &self.0 {
            Source::Here(file) => Ok(file),
            Source::Coming(coming) => coming.whole().map_or(Err(coming), Self::file),
        }
    }

    /// The name of the image's content.
    pub fn id(&self) -> ImageId {
        match &self.0 {
            Source::Here(file) => file.id,
            Source::Coming(coming) => coming.id,
        }
    }

    /// Bytes that the guest sees: the image's size, rounded up to whole sectors of 512.
    pub fn size(&self) -> u64 {
        match &self.0 {
            Source::Here(file) => file.size,
            Source::Coming(coming) => coming.size,
        }
    }

    /// The image file, as an absolute path without links.
    pub fn path(&self) -> &Path {
        match &self.0 {
            Source::Here(file) => &file.path,
            Source::Coming(coming) => &coming.path,
        }
    }

    /// How the file is laid out.
    pub fn format(&self) -> Format {
        match &self.0 {
            Source::Here(file) => file.format,
            Source::Coming(_) => Format::Raw,
        }
    }

    /// Keeps the file where it is, as long as this is open, from whoever asks for its lock before he removes it. Fails if it is removed already.
    pub fn hold(&self) -> Result<()> {
        self.file().map_or(Ok(()), ImageFile::hold)
    }

    /// Fails with [`Error::Changed`] if the image is not the one named `id`.
    pub fn expect(&self, id: &ImageId) -> Result<()> {
        if self.id() == *id {
            return Ok(());
        }
        Err(Error::Changed { path: self.path().to_owned(), what: format!("its content is {}, expected {}", self.id().short(), id.short()) })
    }

    /// Fails with [`Error::Changed`] if the file was written to or replaced since it was opened. Reads the content only if something was done to the file that
    /// may have been a write: it got another name, owner or mode, or its time was set.
    pub fn check_unchanged(&self) -> Result<()> {
        self.file().map_or(Ok(()), ImageFile::check_unchanged)
    }

    /// How often the image had to be read again. What somebody read of it before the last time may never have been in it, even if all is well now. Waits for nobody.
    pub fn times_read_again(&self) -> u64 {
        self.file().map_or(0, |file| file.times_read_again.load(Ordering::SeqCst))
    }

    /// Fills `len` bytes of `output` with the disk's bytes from `offset` on; zeros behind the end of the image. Fails if the file is not what it was: what is in
    /// `output` then is not to be used.
    pub(crate) fn read(&self, offset: u64, len: usize, output: &mut Output<'_>) -> io::Result<()> {
        match self.file() {
            Ok(file) => file.read(offset, len, output),
            Err(coming) => coming.read(offset, len, output),
        }
    }

    /// Fills `into` with the disk's bytes from `offset` on; zeros behind the end of the image. Fails if the file is not what it was.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let len = into.len();
        with_output(into, |output| self.read(offset, len, output))
    }

    /// Files that had this content when they were read last, by what is remembered in `cache_dir`: they may be gone, or others by now.
    pub fn seen(id: &ImageId, cache_dir: &Path) -> Vec<(PathBuf, Format)> {
        let caches = fs::read_dir(cache_dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let of_json = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "json");
        let known = caches.filter(of_json).filter_map(|cache| Known::read(&cache)).filter(|known| known.id == *id);
        let mut seen: Vec<_> = known.map(|known| (known.path, known.format)).collect();
        seen.sort();
        seen
    }
}

impl ImageReader for Golden {
    fn blocks(&self) -> u64 {
        self.size().div_ceil(PAGE_SIZE as u64)
    }

    fn bytes(&self) -> u64 {
        self.size()
    }

    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> io::Result<()> {
        self.read_blocks(block, into)
    }

    fn read_blocks(&self, first: PageNumber, into: &mut [u8]) -> io::Result<()> {
        match self.file() {
            Ok(file) => file.read_blocks(first, into),
            Err(_) => self.read_at(u64::from(first) * PAGE_SIZE as u64, into),
        }
    }

    fn next_blocks(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        let (block, blocks) = (PAGE_SIZE as u64, self.blocks());
        match self.file() {
            Ok(file) => Ok(file.next_data(from * block)?.map(|(start, end)| from.max(start / block)..end.div_ceil(block))),
            Err(_) => Ok((from < blocks).then_some(from..blocks)),
        }
    }

    fn check(&self) -> io::Result<()> {
        self.file().map_or(Ok(()), |file| file.look().map_err(io::Error::other))
    }
}

/// The file of a golden image.
struct ImageFile {
    path: PathBuf,
    format: Format,
    size: u64,
    id: ImageId,
    fingerprint: Fingerprint,
    content: Content,
    /// The file was seen to differ, and not yet to be as it was.
    differs: AtomicBool,
    /// [`Fingerprint::changed_ns`] of when all of it was read last.
    last_read: Mutex<i128>,
    /// What was read of it then was not what it is to be.
    is_other: AtomicBool,
    times_read_again: AtomicU64,
}

impl ImageFile {
    fn open(path: &Path, format: Option<Format>, cache_dir: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Self> {
        let path = fs::canonicalize(path).map_err(Error::io("cannot find the image", path))?;
        let file = File::open(&path).map_err(Error::io("cannot open the image", &path))?;
        let metadata = file.metadata().map_err(Error::io("cannot examine the image", &path))?;
        if !metadata.is_file() {
            return Err(Error::Unsupported { path, what: "it is not a regular file".into() });
        }
        let stat = rustix::fs::fstat(&file).map_err(|error| Error::io("cannot examine the image", &path)(error.into()))?;
        let fingerprint = Fingerprint::of(&stat);
        let format = match format {
            Some(format) => format,
            None => detect(&file).map_err(Error::io("cannot read the image", &path))?,
        };
        let (content, size) = match format {
            Format::Raw => (Content::Raw(file), metadata.len().next_multiple_of(SECTOR_SIZE)),
            Format::Qcow2 => {
                let access = open_qcow2(&path, &file)?;
                let size = access.size().next_multiple_of(SECTOR_SIZE);
                (Content::Qcow2 { access: RwLock::new(access), file }, size)
            }
        };
        if size == 0 || size > SIZE_MAX {
            return Err(Error::Unsupported { path, what: format!("a disk has 1 byte to 16 TiB, this one {size} bytes") });
        }
        let mut image = Self {
            path,
            format,
            size,
            id: ImageId([0; 32]),
            last_read: Mutex::new(fingerprint.changed_ns),
            fingerprint,
            content,
            differs: AtomicBool::new(false),
            is_other: AtomicBool::new(false),
            times_read_again: AtomicU64::new(0),
        };
        image.id = image.identify(cache_dir, progress)?;
        Ok(image)
    }

    fn hold(&self) -> Result<()> {
        let failed = |error| Error::io("cannot keep the image", &self.path)(error);
        self.file().lock_shared().map_err(failed)?;
        match rustix::fs::fstat(self.file()).map_err(|error| failed(error.into()))?.st_nlink {
            0 => Err(failed(io::ErrorKind::NotFound.into())),
            _ => Ok(()),
        }
    }

    fn check_unchanged(&self) -> Result<()> {
        self.compare(rustix::fs::stat(&self.path))?;
        // Whoever panicked with the lock had not replaced what is in it.
        let mut last_read = self.last_read.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let changed_ns = self.compare(rustix::fs::fstat(self.file()))?.changed_ns;
        if *last_read != changed_ns {
            tracing::info!(path = %self.path.display(), "something was done to a golden image: all of it is read again");
            let id = self.hash(&mut |_| {}).map_err(|source| self.unreadable(source))?;
            if self.compare(rustix::fs::fstat(self.file()))?.changed_ns != changed_ns {
                return Err(self.changed("something is being done to it: it changed while it was read".into()));
            }
            *last_read = changed_ns;
            self.times_read_again.fetch_add(1, Ordering::SeqCst);
            self.is_other.store(id != self.id, Ordering::SeqCst);
        }
        if self.is_other.load(Ordering::SeqCst) { Err(self.other_content()) } else { Ok(()) }
    }

    fn other_content(&self) -> Error {
        self.changed("it was written to, and its time was set back: its content is another one".into())
    }

    fn file(&self) -> &File {
        match &self.content {
            Content::Raw(file) | Content::Qcow2 { file, .. } => file,
        }
    }

    /// What the file looks like now, if that does not tell of a write.
    fn compare(&self, stat: rustix::io::Result<Stat>) -> Result<Fingerprint> {
        let stat = stat.map_err(|error| Error::io("cannot find the golden image", &self.path)(error.into()))?;
        let now = Fingerprint::of(&stat);
        self.fingerprint.difference(&now).map_or(Ok(now), |what| Err(self.changed(what)))
    }

    fn changed(&self, what: String) -> Error {
        Error::Changed { path: self.path.clone(), what }
    }

    fn read(&self, offset: u64, len: usize, output: &mut Output<'_>) -> io::Result<()> {
        let (read, unchanged) = self.read_and_look(offset, len, output);
        // First the cause, then what came of it.
        unchanged.map_err(io::Error::other)?;
        read
    }

    /// Reads, and tells how that went, and whether the file is what it was.
    fn read_and_look(&self, offset: u64, len: usize, output: &mut Output<'_>) -> (io::Result<()>, Result<()>) {
        self.renew();
        let within = (self.size.saturating_sub(offset)).min(len as u64) as usize;
        let (read, unchanged) = match &self.content {
            Content::Raw(file) => (output.read_at(file, offset, within), self.look()),
            Content::Qcow2 { access, .. } => {
                // Held until we have looked: who opens the file anew must not make us forget that this read may have used what was in memory before.
                let access = access.read().unwrap_or_else(|poisoned| poisoned.into_inner());
                (read_qcow2(&access, offset, within, output), self.look())
            }
        };
        (read.and_then(|()| output.zero(len - within)), unchanged)
    }

    /// Fails if the open file is not what it was, and tells it once. To be asked after each read: one `fstat`, 0.6 us where a 4 KiB read from the page cache took 2
    /// to 3, and a request for 4 KiB to the server, one at a time, 85. The path is not looked at, for what lies there now does not change what the open file reads.
    fn look(&self) -> Result<()> {
        let unchanged = self.compare(rustix::fs::fstat(self.file())).map(drop);
        if let Err(error) = &unchanged {
            if !self.differs.swap(true, Ordering::SeqCst) {
                tracing::warn!(%error, "a golden image in use has changed: what guests read of it ends with an I/O error until it is as it was");
            }
        } else if self.is_other.load(Ordering::SeqCst) {
            return Err(self.other_content());
        } else if self.differs.load(Ordering::SeqCst) {
            return Err(self.changed("it was written to, and put back, while it was read".into()));
        }
        unchanged
    }

    /// A file that was put back, with its time, serves again: it may have been a mistake. Of a qcow2 file some tables are kept in memory, perhaps from the time
    /// when it was another one, and so it is opened anew.
    fn renew(&self) {
        let as_it_was = || self.compare(rustix::fs::fstat(self.file())).is_ok();
        if !self.differs.load(Ordering::SeqCst) || !as_it_was() {
            return;
        }
        let mut access = match &self.content {
            Content::Raw(_) => None,
            Content::Qcow2 { access, .. } => Some(access.write().unwrap_or_else(|poisoned| poisoned.into_inner())),
        };
        if let Some(access) = &mut access {
            match open_qcow2(&self.path, self.file()) {
                Ok(anew) if as_it_was() => **access = anew,
                // The reading that follows tells it.
                _ => return,
            }
        }
        self.differs.store(false, Ordering::SeqCst);
        tracing::info!(path = %self.path.display(), "a golden image that had changed is as it was: it is read again");
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
                let access = access.read().unwrap_or_else(|poisoned| poisoned.into_inner());
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
        let known = Known::read(cache)?;
        let same =
            known.path == self.path && known.format == self.format && known.size == self.size && known.fingerprint == self.fingerprint;
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
        let mut hasher = ImageHasher::new(self.size);
        let mut chunk = vec![0; CHUNK];
        let mut offset = 0;
        while let Some((start, end)) = self.next_data(offset)? {
            // Chunks begin at blocks, and data may begin and end in the middle of one.
            offset = offset.max(start / PAGE_SIZE as u64 * PAGE_SIZE as u64);
            let end = end.next_multiple_of(PAGE_SIZE as u64);
            while offset < end {
                let len = ((end - offset) as usize).min(CHUNK);
                self.read_blocks((offset / PAGE_SIZE as u64) as PageNumber, &mut chunk[..len])?;
                let (blocks, _) = chunk[..len].as_chunks();
                blocks.iter().zip(offset / PAGE_SIZE as u64..).for_each(|(block, number)| hasher.block(number, block));
                offset += len as u64;
                progress(Progress { done: offset.min(self.size), total: self.size });
            }
        }
        progress(Progress { done: self.size, total: self.size });
        Ok(hasher.finish())
    }

    /// The store compares each block with its name, and so a block that is right is given out though others may not be. A guest whose memory is being restored
    /// from an image that somebody only touched runs on.
    fn read_blocks(&self, first: PageNumber, into: &mut [u8]) -> io::Result<()> {
        let len = into.len();
        with_output(into, |output| self.read_and_look(u64::from(first) * PAGE_SIZE as u64, len, output).0)
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

impl Known {
    /// None: it is not what was written, or is of another version.
    fn read(cache: &Path) -> Option<Self> {
        let known = fs::read(cache).ok().filter(|known| is_sealed_json(known))?;
        serde_json::from_slice::<Self>(&known).ok().filter(|known| known.version == CACHE_VERSION)
    }
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
fn open_qcow2(path: &Path, file: &File) -> Result<Access> {
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
    Ok(Box::new(FormatAccess::new(image)))
}

fn read_qcow2(access: &Access, offset: u64, len: usize, output: &mut Output<'_>) -> io::Result<()> {
    let mut at = 0;
    let mut chunk = vec![0; len.min(256 << 10)];
    while at < len {
        let now = chunk.len().min(len - at);
        access.read(&mut chunk[..now], offset + at as u64)?;
        output.put(&chunk[..now])?;
        at += now;
    }
    Ok(())
}
