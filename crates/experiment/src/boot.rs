//! The files that guests boot from, by what is in them: kernels and initial RAM disks.

use crate::{Error, Result};
use fermata_store::{Store, blob_name};
use fermata_types::BlobName;
use fermata_vm::{BootFile, BootFiles, MachineConfig, Place};
use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, Weak},
};

/// A checkpoint keeps no file that is larger, as blobs are no larger.
const BYTES_MAX: u64 = 256 << 20;

/// What was in a file when it looked like this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: (u64, u64),
    bytes: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Remembers what is in which file, so that none is read for each machine that starts.
#[derive(Debug, Default)]
pub(crate) struct Known {
    names: Mutex<HashMap<PathBuf, (Stamp, BlobName)>>,
    /// Those that some machine has yet to put into its first checkpoint: most machines of an experiment boot from the same.
    contents: Mutex<HashMap<BlobName, Weak<[u8]>>>,
}

impl Known {
    /// What is in a file.
    fn name(&self, path: &Path) -> io::Result<BlobName> {
        let stamp = Stamp::of(&fs::metadata(path)?);
        let known = || self.names.lock().expect("nobody panics with the lock");
        if let Some((_, name)) = known().get(path).filter(|(seen, _)| *seen == stamp) {
            return Ok(*name);
        }
        let name = blob_name(&fs::read(path)?);
        // One that is written while it is read is read again the next time.
        if Stamp::of(&fs::metadata(path)?) == stamp {
            known().insert(path.to_owned(), (stamp, name));
        }
        Ok(name)
    }

    /// What is in the files that a new machine is about to boot from.
    pub fn names(&self, config: &MachineConfig) -> Result<BTreeMap<&'static str, BlobName>> {
        let mut names = BTreeMap::new();
        for (name, path) in config.boot_files() {
            if fs::metadata(path).map_err(reading(path))?.len() > BYTES_MAX {
                tracing::warn!("{} is larger than 256 MiB: checkpoints do not keep it, so it has to stay where it is", path.display());
                continue;
            }
            names.insert(name, self.name(path).map_err(reading(path))?);
        }
        Ok(names)
    }

    /// What a machine that was just started has read, for its first checkpoint.
    pub fn read(&self, config: &MachineConfig, names: &BTreeMap<&'static str, BlobName>) -> Result<BootFiles> {
        let wanted = config.boot_files().filter_map(|(name, path)| Some((name, path, names.get(name)?)));
        wanted.map(|(name, path, blob)| Ok((name, BootFile::Fresh(self.content(path, blob)?)))).collect()
    }

    fn content(&self, path: &Path, blob: &BlobName) -> Result<Arc<[u8]>> {
        if self.name(path).map_err(reading(path))? != *blob {
            return Err(Error::Refused(format!("{} was written while the machine started that boots from it: try again", path.display())));
        }
        let mut contents = self.contents.lock().expect("nobody panics with the lock");
        if let Some(content) = contents.get(blob).and_then(Weak::upgrade) {
            return Ok(content);
        }
        let content: Arc<[u8]> = fs::read(path).map_err(reading(path))?.into();
        contents.insert(*blob, Arc::downgrade(&content));
        Ok(content)
    }

    /// Gives a machine that waits for a checkpoint the files that this had: those that are not where they were come from the store.
    pub fn put_in_place(
        &self,
        config: &MachineConfig,
        names: &BTreeMap<&'static str, BlobName>,
        store: &Store,
        place: &mut Place,
    ) -> Result<()> {
        for (name, path) in config.boot_files() {
            let Some(blob) = names.get(name) else { continue };
            if self.name(path).is_ok_and(|found| found == *blob) {
                continue;
            }
            let own = place.directory.join(name);
            fs::write(&own, store.read_blob(blob)?).map_err(|source| Error::Io { what: "writing", path: own.clone(), source })?;
            place.boot.insert(name, own);
        }
        Ok(())
    }
}

fn reading(path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Io { what: "reading", path: path.clone(), source }
}
