//! Every change that the store makes to files of its own, LMDB's apart, goes through [`Medium`]: the seam where tests tear and lose writes.

use crate::{Error, Result};
use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// The operations that change files. What they are not asked to sync may be lost in a crash.
pub(crate) trait Medium: Send + Sync {
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }
    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
}

/// The file system as it is.
pub(crate) struct FileSystem;

impl Medium for FileSystem {}

/// A file being written under `tmp/`, locked for as long as it is there. Dropped before it has a place, it is removed.
pub(crate) struct TempFile {
    file: File,
    path: PathBuf,
    placed: bool,
}

impl TempFile {
    /// A new empty file in `directory`.
    pub fn create(directory: &Path) -> Result<Self> {
        loop {
            let (file, path) = tempfile::Builder::new()
                .prefix("pack-")
                .make_in(directory, |path| OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path))
                .and_then(|temp| temp.keep().map_err(|error| error.error))
                .map_err(Error::io("create a file in", directory))?;
            let temp = Self { file, path, placed: false };
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

    pub fn write_at(&self, medium: &dyn Medium, bytes: &[u8], offset: u64) -> Result<()> {
        medium.write_at(&self.file, bytes, offset).map_err(Error::io("write", &self.path))
    }

    /// Makes the file durable and gives it its place. `to` is `<shelf>/<directory>/<name>`; the directory may be new.
    pub fn place(mut self, medium: &dyn Medium, to: &Path) -> Result<()> {
        medium.sync(&self.file).map_err(Error::io("sync", &self.path))?;
        let directory = to.parent().expect("a place has a directory");
        let shelf = directory.parent().expect("a directory of packs has a parent");
        if make_directory(directory)? {
            medium.sync_directory(shelf).map_err(Error::io("sync", shelf))?;
        }
        medium.rename(&self.path, to).map_err(Error::io("rename a finished pack to", to))?;
        self.placed = true;
        medium.sync_directory(directory).map_err(Error::io("sync", directory))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.placed {
            // Nothing is lost when this fails: the next open sweeps the file.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes a directory that only its owner can enter. True if it was not there before.
pub(crate) fn make_directory(path: &Path) -> Result<bool> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(Error::io("create the directory", path)(error)),
    }
}

/// Removes the files in `tmp/` whose writers are dead: nobody holds their lock.
pub(crate) fn sweep(directory: &Path) -> Result<()> {
    let entries = std::fs::read_dir(directory).map_err(Error::io("list", directory))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let Ok(file) = OpenOptions::new().write(true).open(&path) else { continue };
        if file.try_lock().is_ok() {
            tracing::info!(path = %path.display(), "removing what a dead writer left");
            let _ = std::fs::remove_file(&path);
        }
    }
    Ok(())
}
