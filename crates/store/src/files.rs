//! Every change that the store makes to files of its own goes through [`Medium`]: the seam where tests tear and lose writes. Files that tell
//! who is present (`holds/`) are apart: they mean nothing after a crash.

use crate::{Error, Result, chunks::Chunks, cipher::Sealing};
use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tempfile::TempPath;

/// The operations that change files. What they are not asked to sync may be lost in a crash.
pub(crate) trait Medium: Send + Sync {
    /// A new file, which only its owner can use.
    fn create(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
    }
    /// A new directory, which only its owner can enter.
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)
    }
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }
    /// Gives a file its name, unless there is one of this name.
    fn rename_new(&self, from: TempPath, to: &Path) -> io::Result<()> {
        from.persist_noclobber(to).map_err(|error| error.error)
    }
    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(path)
    }
    /// How many bytes there is room for.
    fn room(&self, directory: &Path) -> io::Result<u64> {
        let found = rustix::fs::statvfs(directory)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
    /// Commits a transaction of the index. LMDB does that in its own way: all of it is durable afterwards, or none of it happened.
    fn commit(&self, transaction: heed::RwTxn<'_>) -> heed::Result<()> {
        transaction.commit()
    }
}

/// The file system as it is.
pub(crate) struct FileSystem;

impl Medium for FileSystem {}

/// A file being written under `tmp/`, locked for as long as it is there. Dropped before it has a place, it is removed.
pub(crate) struct TempFile {
    medium: Arc<dyn Medium>,
    file: File,
    path: PathBuf,
    /// What is encrypted is written from the beginning to the end.
    chunks: Option<Chunks>,
    placed: bool,
}

impl TempFile {
    /// A new empty file in `directory`.
    pub fn create(medium: Arc<dyn Medium>, directory: &Path, sealing: &Sealing) -> Result<Self> {
        loop {
            let (file, path) = tempfile::Builder::new()
                .prefix("pack-")
                .make_in(directory, |path| medium.create(path))
                .and_then(|temp| temp.keep().map_err(|error| error.error))
                .map_err(Error::io("create a file in", directory))?;
            let temp = Self { medium: medium.clone(), file, path, chunks: sealing.clone().map(Chunks::new), placed: false };
            if temp.lock()? {
                return Ok(temp);
            }
        }
    }

    /// False when a sweep took the file for a dead one between its creation and its lock.
    fn lock(&self) -> Result<bool> {
        match self.file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", &self.path)(error)),
        }
        let links = self.file.metadata().map_err(Error::io("look at", &self.path))?.nlink();
        Ok(links > 0)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        let Some(chunks) = &mut self.chunks else { return self.write(bytes, offset) };
        assert_eq!(offset, chunks.length(), "what is encrypted is written in order");
        let (at, sealed) = chunks.push(bytes);
        if sealed.is_empty() { Ok(()) } else { self.write(&sealed, at) }
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.medium.write_at(&self.file, bytes, offset).map_err(Error::io("write", &self.path))
    }

    /// Writes what is left to be written. Afterwards nothing more is.
    fn finish(&mut self) -> Result<()> {
        let Some((at, sealed)) = self.chunks.as_mut().map(Chunks::finish) else { return Ok(()) };
        self.write(&sealed, at)
    }

    /// The file with its lock, which lasts as long as this does.
    pub fn held(&self) -> Result<File> {
        self.file.try_clone().map_err(Error::io("keep open", &self.path))
    }

    /// Makes the file durable and gives it its place. `to` is `<shelf>/<directory>/<name>`; the directory may be new.
    pub fn place(mut self, to: &Path) -> Result<()> {
        self.finish()?;
        let medium = self.medium.clone();
        medium.sync(&self.file).map_err(Error::io("sync", &self.path))?;
        let directory = to.parent().expect("a place has a directory");
        let shelf = directory.parent().expect("a directory of packs has a parent");
        make_directory(&*medium, directory)?;
        // Also when it was there: whoever made it may have died before it was durable.
        medium.sync_directory(shelf).map_err(Error::io("sync", shelf))?;
        medium.rename(&self.path, to).map_err(Error::io("rename a finished pack to", to))?;
        self.placed = true;
        medium.sync_directory(directory).map_err(Error::io("sync", directory))
    }
}

/// Something that is written from its beginning to its end.
pub(crate) trait Sink {
    /// Adds bytes behind those that are there, which are so many.
    fn append(&mut self, bytes: &[u8], length: u64) -> Result<()>;
    /// What errors call it.
    fn path(&self) -> &Path;
}

impl Sink for TempFile {
    fn append(&mut self, bytes: &[u8], length: u64) -> Result<()> {
        self.write_at(bytes, length)
    }

    fn path(&self) -> &Path {
        self.path()
    }
}

impl Sink for Vec<u8> {
    fn append(&mut self, bytes: &[u8], _: u64) -> Result<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }

    fn path(&self) -> &Path {
        Path::new("memory")
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.placed {
            // Nothing is lost when this fails: the next open sweeps the file.
            let _ = self.medium.remove(&self.path);
        }
    }
}

/// Makes a directory that only its owner can enter. True if it was not there before.
pub(crate) fn make_directory(medium: &dyn Medium, path: &Path) -> Result<bool> {
    match medium.make_directory(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Error::io("create the directory", path)(error)),
    }
}

/// Makes a directory and all above it, durably.
pub(crate) fn make_directories(medium: &dyn Medium, path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_directories(medium, parent)?;
    make_directory(medium, path)?;
    medium.sync_directory(parent).map_err(Error::io("sync", parent))
}

/// Removes a directory with all in it, if it is there.
pub(crate) fn remove_tree(medium: &dyn Medium, directory: &Path) -> Result<()> {
    match medium.remove_tree(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", directory)(error)),
        _ => Ok(()),
    }
}

/// Takes a lock with `try_lock`. False if somebody holds it.
///
/// Who has let go of a lock may seem to hold it a little longer: a process that it is just beginning has all its files open until it executes its program.
pub(crate) fn locked(path: &Path, try_lock: impl Fn() -> std::result::Result<(), TryLockError>) -> Result<bool> {
    const LOOKS: u32 = 100;
    for _ in 0..LOOKS {
        match try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", path)(error)),
        }
    }
    Ok(false)
}

/// Removes the files in a directory whose names begin so and whose writers are dead: nobody holds their lock.
pub(crate) fn sweep(medium: &dyn Medium, directory: &Path, prefix: &str) -> Result<()> {
    let entries = std::fs::read_dir(directory).map_err(Error::io("list", directory))?.filter_map(io::Result::ok);
    for path in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes())).map(|entry| entry.path()) {
        let Ok(file) = OpenOptions::new().write(true).open(&path) else { continue };
        if file.try_lock().is_ok() {
            tracing::info!(path = %path.display(), "removing what a dead writer left");
            let _ = medium.remove(&path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_let_go_of_soon_is_waited_for() {
        let held = tempfile::NamedTempFile::new().expect("a file");
        held.as_file().lock().expect("it can be locked");
        let again = File::open(held.path()).expect("it is there");
        let attempt = || locked(held.path(), || again.try_lock()).expect("locks work here");
        assert!(!attempt(), "it is held");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(50));
                held.as_file().unlock().expect("it is locked");
            });
            assert!(attempt(), "it was let go of");
        });
    }
}
