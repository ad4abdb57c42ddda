//! Places that a store is copied to and from: object storage, directories, directories of other hosts.
//!
//! - [`Address`]: what a person calls such a place
//! - [`open`]: reaches it
//! - `Connection`: object storage or a directory; it implements [`Remote`] on `object_store`
//! - `Peer`: a directory of another host, for which [`serve`] or [`listen`] answers there
//! - [`Sealed`]: a place of which its owner can read nothing
//! - `limit`: how fast bytes may travel
//!
//! This room moves objects, and knows no checkpoints: what they are called and what is in them is the affair of `fermata_store::remote`.

mod address;
mod limit;
mod peer;
mod sealed;
#[cfg(test)]
mod tests;

pub use address::{Address, Host};
pub use peer::{Token, listen, serve};
pub use sealed::Sealed;

use axum::body::Bytes;
use fermata_linux::{clock::Stopwatch, pace, random};
use fermata_store::remote::{COPIED_AT_ONCE, Remote};
use futures_util::TryStreamExt as _;
use limit::Limit;
use object_store::{
    ClientOptions, Error, GetOptions, GetRange, GetResultPayload, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
    RetryConfig, UpdateVersion, aws::AmazonS3Builder, local::LocalFileSystem, path::Path as Name,
};
use peer::Peer;
use std::{
    fmt, fs, io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::runtime::Runtime;

/// A place that is tried again and again for so long is gone.
const RETRY: Duration = Duration::from_secs(60);
const RETRIES: usize = 8;
/// Of a request, once it is connected: for so long nothing may come.
const STALLED: Duration = Duration::from_secs(60);
/// The same where a guest waits for what it asks for.
const STALLED_SOON: Duration = Duration::from_secs(5);
/// A connection that carries fewer bytes a second is given up, and tried again.
const SLOWEST: u64 = 16 << 10;
/// What is sent at once to object storage: the least that S3 takes as a part.
const PART: usize = 5 << 20;
/// Memory that an object gets before any of it is here, whatever length it is said to have.
const AHEAD: u64 = 1 << 20;
/// What is written to a directory before a rest.
const WRITTEN: usize = 1 << 20;
/// In a directory: what is to become an object that is swapped, under the lock.
const SWAPPING: &str = "swapping";
/// What is no larger is sent in time on any line.
const SMALL: usize = 64 << 10;

/// Chooses whose ciphers TLS is spoken with in this process. Every HTTP client asks for that when it is made, even one that speaks no TLS.
pub fn choose_ciphers() {
    // Somebody else may have chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// How long a place is waited for.
#[derive(Debug, Clone, Copy)]
struct Patience {
    retries: usize,
    stalled: Duration,
}

/// Reaches a place, and moves at most so many bytes a second each way. S3's keys, region and endpoint come from the environment, under the names that
/// its other clients use (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT_URL`); for another host there is `ssh`, or what `FERMATA_SSH` names;
/// for HTTP a [`Token`].
///
/// Nothing is asked of it yet. A directory is made if there is none, when something is put there.
pub fn open(address: &Address, bytes_per_second: Option<u64>) -> io::Result<Box<dyn Remote>> {
    with_patience(address, bytes_per_second, Patience { retries: RETRIES, stalled: STALLED })
}

/// The same for somebody who waits: what fails is told soon, and tried again by whoever asked.
pub fn open_impatient(address: &Address) -> io::Result<Box<dyn Remote>> {
    with_patience(address, None, Patience { retries: 0, stalled: STALLED_SOON })
}

fn with_patience(address: &Address, bytes_per_second: Option<u64>, patience: Patience) -> io::Result<Box<dyn Remote>> {
    let limit = bytes_per_second.map(Limit::new);
    Ok(match address {
        Address::Directory(path) => Box::new(Connection::directory(path, limit)?),
        Address::S3 { bucket, prefix } => Box::new(Connection::s3(bucket, prefix, limit, patience)?),
        Address::Ssh { host, directory } => Box::new(Peer::over_ssh(host, directory, limit, patience)),
        Address::Http(url) => Box::new(Peer::over_http(url, Token::of_environment()?, limit, patience)?),
    })
}

/// Object storage or a directory, reached.
struct Connection {
    address: Address,
    /// None: a directory that was not there when somebody looked.
    place: OnceLock<Arc<dyn ObjectStore>>,
    /// The same with more time: for parts of objects, and what is as large. None: it takes no time.
    patient: Option<Arc<dyn ObjectStore>>,
    base: Name,
    runtime: Runtime,
    limit: Option<Limit>,
}

impl Connection {
    fn directory(path: &Path, limit: Option<Limit>) -> io::Result<Self> {
        Self::new(Address::Directory(path.to_owned()), OnceLock::new(), None, Name::default(), limit)
    }

    fn s3(bucket: &str, prefix: &str, limit: Option<Limit>, patience: Patience) -> io::Result<Self> {
        Self::s3_of(AmazonS3Builder::from_env(), bucket, prefix, limit, patience)
    }

    fn s3_of(builder: AmazonS3Builder, bucket: &str, prefix: &str, limit: Option<Limit>, patience: Patience) -> io::Result<Self> {
        choose_ciphers();
        let retry = RetryConfig { max_retries: patience.retries, retry_timeout: RETRY, ..RetryConfig::default() };
        // However slow a line is, an object may take as long as some of it still comes. What is sent has to be there within that time: it sees no progress.
        let reach = |silence: Duration| -> io::Result<Arc<dyn ObjectStore>> {
            let client = ClientOptions::new().with_timeout_disabled().with_read_timeout(silence).with_allow_http(true);
            let builder = builder.clone().with_bucket_name(bucket).with_client_options(client).with_retry(retry.clone());
            Ok(Arc::new(builder.build().map_err(told)?))
        };
        let patient = reach(patience.stalled + Duration::from_secs(PART as u64 / SLOWEST))?;
        let address = Address::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() };
        Self::new(address, reach(patience.stalled)?.into(), Some(patient), Name::from(prefix), limit)
    }

    fn new(
        address: Address,
        place: OnceLock<Arc<dyn ObjectStore>>,
        patient: Option<Arc<dyn ObjectStore>>,
        base: Name,
        limit: Option<Limit>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        Ok(Self { address, place, patient, base, runtime, limit })
    }

    /// None: it is a directory that is not there, and nothing is in it. Who only looks makes none: what should be mounted there may not be.
    fn place(&self) -> io::Result<Option<&Arc<dyn ObjectStore>>> {
        if let (None, Address::Directory(path)) = (self.place.get(), &self.address) {
            match fs::metadata(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
                Ok(about) if !about.is_dir() => return Err(io::ErrorKind::NotADirectory.into()),
                Ok(_) => {}
            }
            let place = LocalFileSystem::new_with_prefix(path).map_err(told)?.with_fsync(true);
            // Another thread may have been as fast.
            let _ = self.place.set(Arc::new(place));
        }
        Ok(self.place.get())
    }

    /// The same for whoever puts something there.
    fn made_place(&self) -> io::Result<&Arc<dyn ObjectStore>> {
        if let (None, Address::Directory(path)) = (self.place.get(), &self.address) {
            make_directories(path)?;
        }
        self.place()?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn name(&self, object: &str) -> Name {
        Name::from_iter(self.base.parts().chain(Name::from(object).parts()))
    }

    fn read(&self, object: &str, range: Option<GetRange>, most: u64) -> io::Result<Option<(Vec<u8>, UpdateVersion)>> {
        let Some(place) = self.place()? else { return Ok(None) };
        let options = GetOptions { range, ..GetOptions::default() };
        self.runtime.block_on(async {
            let got = match place.get_opts(&self.name(object), options).await {
                Err(Error::NotFound { .. }) => return Ok(None),
                got => got.map_err(told)?,
            };
            let length = got.range.end - got.range.start;
            if length > most {
                let detail = format!("it has {length} bytes, and may have {most}");
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, detail));
            }
            let version = UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
            let mut bytes = Vec::with_capacity(length.min(AHEAD) as usize);
            match got.payload {
                // Here and now: a thread of its own for each piece would only take turns with this one.
                GetResultPayload::File(file, _) => {
                    while bytes.len() < length as usize {
                        let at = bytes.len();
                        bytes.resize((at + COPIED_AT_ONCE).min(length as usize), 0);
                        self.wait(bytes.len() - at).await;
                        file.read_exact_at(&mut bytes[at..], got.range.start + at as u64)?;
                        pace::rest();
                    }
                }
                GetResultPayload::Stream(mut pieces) => {
                    while let Some(piece) = pieces.try_next().await.map_err(told)? {
                        self.wait(piece.len()).await;
                        bytes.extend_from_slice(&piece);
                        if bytes.len() as u64 > most {
                            return Err(io::Error::other("more bytes come than it has"));
                        }
                    }
                }
            }
            Ok(Some((bytes, version)))
        })
    }

    /// Until so many bytes may travel.
    async fn wait(&self, bytes: usize) {
        if let Some(limit) = &self.limit {
            tokio::time::sleep(limit.wait(bytes)).await;
        }
    }

    /// Writes it in parts of so many bytes, each when it may travel.
    fn write_in_parts(&self, place: &dyn ObjectStore, object: &str, mut bytes: Bytes, part: usize) -> io::Result<()> {
        let is_here = matches!(self.address, Address::Directory(_));
        self.runtime.block_on(async {
            let mut upload = place.put_multipart(&self.name(object)).await.map_err(told)?;
            while !bytes.is_empty() {
                let part = bytes.split_to(part.min(bytes.len()));
                self.wait(part.len()).await;
                let watch = Stopwatch::start();
                let pieces = (0..part.len()).step_by(COPIED_AT_ONCE).map(|at| part.slice(at..part.len().min(at + COPIED_AT_ONCE)));
                if let Err(error) = upload.put_part(pieces.collect()).await {
                    let _ = upload.abort().await;
                    return Err(told(error));
                }
                if is_here {
                    tokio::time::sleep(pace::rest_after(watch.elapsed())).await;
                }
            }
            upload.complete().await.map(drop).map_err(told)
        })
    }

    /// Whether it was as it should be, and is changed now. Directories have no such request: whoever changes a ref of one holds a lock meanwhile.
    fn swap_file(directory: &Path, object: &str, before: Option<&[u8]>, bytes: &[u8]) -> io::Result<bool> {
        make_directories(directory)?;
        let lock = fs::OpenOptions::new().write(true).create(true).truncate(false).open(directory.join("lock"))?;
        lock.lock()?;
        let path = directory.join(object);
        let now = match fs::File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            file => {
                // What is longer than it should be is not what it should be, however long it is.
                let (mut now, most) = (Vec::new(), before.map_or(0, <[u8]>::len) as u64 + 1);
                io::Read::read_to_end(&mut io::Read::take(file?, most), &mut now)?;
                Some(now)
            }
        };
        if now.as_deref() != before {
            return Ok(false);
        }
        let parent = path.parent().expect("it lies in the directory");
        make_directories(parent)?;
        // Not beside the object: who lists what lies there would take for an object what somebody left who died here. And anew, for after a crash what lay here
        // may have got its other name all the same.
        let fresh = directory.join(SWAPPING);
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        io::Write::write_all(&mut file, bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        fs::File::open(parent)?.sync_all()?;
        Ok(true)
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl Remote for Connection {
    fn get(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        Ok(self.read(name, None, most)?.map(|(bytes, _)| bytes))
    }

    fn tail(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(place) = self.place()? else { return Ok(None) };
        // Not as a range from the end: servers differ in what they make of one that is longer than the object.
        let length = match self.runtime.block_on(place.head(&self.name(name))) {
            Err(Error::NotFound { .. }) => return Ok(None),
            head => head.map_err(told)?.size,
        };
        let from = length.saturating_sub(most);
        if from == 0 {
            return self.get(name, most);
        }
        Ok(self.read(name, Some(GetRange::Bounded(from..length)), most)?.map(|(bytes, _)| bytes))
    }

    fn range(&self, name: &str, from: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        let read = self.read(name, Some(GetRange::Bounded(from..from.saturating_add(length))), length)?;
        Ok(read.map(|(bytes, _)| bytes))
    }

    fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        let place = match &self.patient {
            Some(patient) if bytes.len() > SMALL => patient,
            _ => self.made_place()?,
        };
        let part = if self.patient.is_some() { PART } else { WRITTEN };
        if bytes.len() > part {
            return self.write_in_parts(&**place, name, bytes.into(), part);
        }
        self.runtime.block_on(async {
            self.wait(bytes.len()).await;
            place.put(&self.name(name), PutPayload::from(bytes)).await.map(drop).map_err(told)
        })
    }

    fn swap(&self, name: &str, before: Option<&[u8]>, bytes: Vec<u8>) -> io::Result<bool> {
        if let Address::Directory(directory) = &self.address {
            return Self::swap_file(directory, name, before, &bytes);
        }
        // What is longer than it should be is not what it should be, however long it is: none of it is read.
        let now = match self.read(name, None, before.map_or(0, <[u8]>::len) as u64) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => return Ok(false),
            now => now?,
        };
        let (now, version) = now.map_or((None, None), |(bytes, version)| (Some(bytes), Some(version)));
        if now.as_deref() != before {
            return Ok(false);
        }
        let mode = version.map_or(PutMode::Create, PutMode::Update);
        let object = self.name(name);
        let options = PutOptions { mode, ..PutOptions::default() };
        match self.runtime.block_on(self.made_place()?.put_opts(&object, bytes.into(), options)) {
            Ok(_) => Ok(true),
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(told(error)),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let Some(place) = self.place()? else { return Ok(()) };
        match (self.runtime.block_on(place.delete(&self.name(name))), &self.address) {
            // A crash of the host must not bring back what went before something else was changed. The store of objects syncs only what it writes.
            (Ok(()), Address::Directory(directory)) => {
                let path = directory.join(name);
                fs::File::open(path.parent().expect("it lies in the directory"))?.sync_all()
            }
            (Ok(()) | Err(Error::NotFound { .. }), _) => Ok(()),
            (Err(error), _) => Err(told(error)),
        }
    }

    fn unique(&self) -> io::Result<[u8; 16]> {
        random::bytes()
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        let Some(place) = self.place()? else { return Ok(Vec::new()) };
        if let Address::Directory(directory) = &self.address {
            let (mut found, prefix) = (Vec::new(), prefix.trim_end_matches('/'));
            list_directory(&directory.join(prefix), prefix, &mut found)?;
            return Ok(found);
        }
        let base = self.base.as_ref();
        let within = |name: &Name| name.as_ref().strip_prefix(base).map(|rest| rest.trim_start_matches('/').to_owned());
        self.runtime.block_on(async {
            let prefix = self.name(prefix.trim_end_matches('/'));
            let listed = place.list(Some(&prefix)).try_collect::<Vec<_>>().await;
            match listed {
                Err(Error::NotFound { .. }) => Ok(Vec::new()),
                listed => {
                    Ok(listed.map_err(told)?.into_iter().filter_map(|object| Some((within(&object.location)?, object.size))).collect())
                }
            }
        })
    }
}

/// The objects in a directory that is called so, and how many bytes each has. The store of objects leaves out what it cannot look at: that would count as gone, and whoever
/// removes would take away what it needs.
fn list_directory(directory: &Path, called: &str, found: &mut Vec<(String, u64)>) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        // What is called otherwise is none of ours; what has a `#` in its name is being written, or left by one who died.
        let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| !name.contains('#')) else { continue };
        let called = if called.is_empty() { name.to_owned() } else { format!("{called}/{name}") };
        match fs::metadata(&path) {
            // It has just gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
            Ok(about) if about.is_dir() => list_directory(&path, &called, found)?,
            Ok(about) if about.is_file() => found.push((called, about.len())),
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Makes a directory and all above it, durably: a crash of the host must not take away what is put there.
fn make_directories(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_directories(parent)?;
    match fs::create_dir(path) {
        // Somebody else was faster, and may not have come to the next line.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made?,
    }
    fs::File::open(parent)?.sync_all()
}

/// What went wrong, with all of its causes: the innermost says most.
fn told(error: impl std::error::Error) -> io::Error {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    io::Error::other(text)
}
