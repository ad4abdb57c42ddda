//! Golden images that came from a remote go when no checkpoint stands on them any more. All others are the user's.
//!
//! Who has one open holds its lock, shared: a machine that may take a checkpoint upon it, or a pull whose checkpoints are not entered yet. Those that nobody has open
//! are locked here before it is looked for the last time what checkpoints stand on, so none can come to stand on what goes.

use super::Collection;
use crate::{Error, Result};
use fermata_types::ImageId;
use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

/// The unit in which a file system tells how much a file takes.
const SECTOR: u64 = 512;

/// A golden image that nobody can open meanwhile.
pub(super) struct Locked {
    id: ImageId,
    path: PathBuf,
    file: File,
}

impl Locked {
    fn new(id: ImageId, path: PathBuf) -> Option<Self> {
        let file = File::open(&path).ok()?;
        file.try_lock().ok()?;
        Some(Self { id, path, file })
    }

    /// What it takes on the disk; none if another file has come to lie at its path.
    fn bytes(&self) -> Option<u64> {
        let [ours, there] = [self.file.metadata().ok()?, fs::metadata(&self.path).ok()?];
        ((ours.dev(), ours.ino()) == (there.dev(), there.ino())).then(|| ours.blocks() * SECTOR)
    }
}

impl Collection<'_> {
    /// Those that no checkpoint stands on, as far as was looked, and that nobody has open. Nobody opens them as long as these are there.
    pub(super) fn lock_images(&self) -> Vec<Locked> {
        let idle = self.store.own_images().into_iter().filter(|(id, _)| !self.marker.stands_on(id));
        idle.filter_map(|(id, path)| Locked::new(id, path)).collect()
    }

    /// Removes those of them that still no checkpoint stands on.
    pub(super) fn remove_images(&mut self, locked: Vec<Locked>) -> Result<()> {
        for image in locked.into_iter().filter(|image| !self.marker.stands_on(&image.id)).collect::<Vec<_>>() {
            let Some(bytes) = image.bytes() else { continue };
            if !self.options.dry_run {
                self.store.0.medium.remove(&image.path).map_err(Error::io("remove", &image.path))?;
            }
            self.told.images += 1;
            self.told.image_bytes += bytes;
        }
        Ok(())
    }
}
