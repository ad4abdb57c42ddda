//! Holds: what a live process needs stays in the store, whoever removes and collects.

use crate::{
    Error, Result, Store,
    cipher::{hidden, shown},
    error::Named,
    rebuild::entries,
};
use fermata_types::CheckpointId;
use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Begins the names of files of writers.
const WRITER: &str = "writer-";

/// Keeps all that a checkpoint is made of in the store, even when the checkpoint is removed and the garbage collected, until it is dropped
/// or the process ends.
#[derive(Debug)]
pub struct Hold {
    id: CheckpointId,
    _presence: Presence,
}

impl Hold {
    /// The checkpoint that is held.
    pub fn id(&self) -> CheckpointId {
        self.id
    }

    /// Holds a checkpoint that is about to be committed.
    pub(crate) fn ahead(store: &Store, id: CheckpointId) -> Result<Self> {
        Ok(Self { id, _presence: Presence::new(&directory(store), &format!("{}-", called(store, &id)))? })
    }
}

impl Store {
    /// Holds a checkpoint: its pages can be read until the hold is dropped, whatever others remove. Missing if there is no such checkpoint.
    pub fn hold(&self, id: &CheckpointId) -> Result<Hold> {
        // The file comes first. Whoever removes the checkpoint after we have seen it, and then collects, finds the file.
        let hold = Hold::ahead(self, *id)?;
        let index = &self.0.index;
        match index.get(&*index.read()?, &index.records, id.as_bytes())? {
            Some(_) => Ok(hold),
            // What is to be committed stays from then on.
            None if self.away().is_some_and(|away| away.id() == *id) => Ok(hold),
            None => Err(Error::missing(Named("checkpoint", id.as_bytes()).to_string(), "look for the right one with `log`")),
        }
    }
}

/// A file in `holds/` that is locked as long as somebody is there.
#[derive(Debug)]
pub(crate) struct Presence {
    path: PathBuf,
    _file: File,
}

impl Presence {
    pub fn writer(store: &Store) -> Result<Self> {
        Self::new(&directory(store), WRITER)
    }

    fn new(directory: &Path, prefix: &str) -> Result<Self> {
        loop {
            let (file, path) = tempfile::Builder::new()
                .prefix(prefix)
                .make_in(directory, |path| OpenOptions::new().write(true).create_new(true).mode(0o600).open(path))
                .and_then(|temp| temp.keep().map_err(|error| error.error))
                .map_err(Error::io("create a file in", directory))?;
            let locked = match file.try_lock() {
                Ok(()) => file.metadata().map_err(Error::io("look at", &path))?.nlink() > 0,
                Err(TryLockError::WouldBlock) => false,
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
            };
            // Not locked: somebody took it for a dead one's between its creation and its lock.
            if locked {
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        // Nothing is lost when this fails: a file that nobody has locked is swept.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What a checkpoint is called in the names of files.
fn called(store: &Store, id: &CheckpointId) -> CheckpointId {
    CheckpointId(hidden(&store.0.sealing, id.as_bytes()))
}

fn directory(store: &Store) -> PathBuf {
    store.path().join("holds")
}

/// Who was present at one instant, of the living.
#[derive(Default)]
pub(crate) struct Present {
    pub held: Vec<CheckpointId>,
    /// Locked by writers.
    pub writers: Vec<(PathBuf, File)>,
}

impl Present {
    /// Looks who is there, and sweeps the files of the dead. Whoever cannot be seen is not taken for absent: then this fails.
    pub fn look(store: &Store) -> Result<Self> {
        let mut present = Self::default();
        for path in entries(&directory(store))? {
            let file = match OpenOptions::new().write(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(Error::io("open", &path))?,
            };
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            match file.try_lock() {
                Ok(()) => _ = std::fs::remove_file(&path),
                Err(TryLockError::WouldBlock) if name.starts_with(WRITER) => present.writers.push((path, file)),
                Err(TryLockError::WouldBlock) => {
                    let id = name.split_once('-').and_then(|(id, _)| id.parse::<CheckpointId>().ok());
                    present.held.extend(id.map(|id| CheckpointId(shown(&store.0.sealing, id.as_bytes()))));
                }
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
            }
        }
        Ok(present)
    }
}
