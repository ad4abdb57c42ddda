//! Golden images of a checkpoint that is not here yet: their blocks are read from the remote when somebody asks for them, like pages, while the images come behind.
//!
//! Which table of blocks is that of an image is the remote's word until all of the image is here and its id can be found out. If it was another one, machines may have
//! read what they should not have: they stand still for good then, and nothing of what they did becomes a checkpoint.
//!
//! What the remote lacks of it is waited for like a remote that is lost, before machines run, too.
//!
//! Nothing of an image is written down before it is whole: a crash leaves no part of one, but packs that are not fetched again.

use super::{
    Away, CopyStage, damaged,
    image::{self, ImageRecord},
    pull::Pull,
};
use crate::{
    Error, ImageReader, Progress, Result, Store,
    table::{Nodes as _, top_level},
};
use fermata_types::{ImageId, PageBuf, PageNumber};
use std::{
    io,
    path::Path,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Told where an image lies that has come: from then on it must be read there.
pub(super) type Came<'a> = &'a mut dyn FnMut(&ImageId, &Path) -> Result<()>;

/// A golden image on its way.
pub(super) struct Arriving {
    store: Store,
    remote: String,
    id: ImageId,
    /// What the remote said of it at first: all that is read of it is of this table, and so is what is looked at in the end.
    record: ImageRecord,
    came: AtomicBool,
}

impl ImageReader for Arriving {
    fn blocks(&self) -> u64 {
        self.record.root().pages
    }

    fn bytes(&self) -> u64 {
        self.record.bytes
    }

    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> io::Result<()> {
        let root = self.record.root();
        let found = match self.store.away().filter(|away| away.record.images.contains(&self.id)) {
            Some(away) => away.lookup(&root, block),
            None => self.store.lookup(&root, block),
        };
        let read = found.and_then(|name| match name {
            Some(name) => self.store.read_page(&name, into),
            None => {
                into.fill(0);
                Ok(())
            }
        });
        read.map_err(|error| io::Error::other(format!("block {block} of golden image {} at {}: {error}", self.id.short(), self.remote)))
    }
}

impl Away {
    /// A golden image that the checkpoint stands on and that is nowhere here, as the remote has it. It can be read until the checkpoint is here; before that, whoever
    /// [fetches](Away::fetch) tells where it lies then. None: the remote does not have it. To be asked before all is fetched. Fails if the remote has packs that cannot
    /// be read, and lacks something of the image.
    pub fn image(&self, id: &ImageId) -> Result<Option<Arc<dyn ImageReader>>> {
        if !self.record.images.contains(id) {
            return Ok(None);
        }
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = images.iter().find(|image| image.id == *id) {
            return Ok(Some(known.clone()));
        }
        let Some(record) = image::find(&*self.remote, id)? else { return Ok(None) };
        let root = record.root();
        if !self.catalog().unreadable.is_empty() {
            // As when it was begun: nobody stands on what will have to be waited for.
            self.store.check_remote_image(&*self.remote, &root)?;
        }
        // A table that is not there, or is none of so many blocks, is found before anybody stands on it.
        if let Some(top) = root.node
            && self.store.0.load(&top)?.node.level != top_level(&root)?
        {
            return Err(damaged(&*self.remote, &format!("images/{id}"), "its table is not that of as many blocks"));
        }
        let image = Arc::new(Arriving { store: self.store.clone(), remote: self.remote(), id: *id, record, came: AtomicBool::new(false) });
        images.push(image.clone());
        Ok(Some(image))
    }

    /// Has the images come that are read from the remote. They come first: pages that lie in them need not come again.
    pub(super) fn bring_images(&self, pull: &mut Pull<'_>, came: Came<'_>, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        let images = self.images.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for image in images.iter().filter(|image| !image.came.load(Ordering::Relaxed)) {
            // Even if somebody else had it come meanwhile: it is still to be seen that machines have read the same.
            let Some(made) = pull.make_image(&image.id, &image.record, progress)? else { return Err(self.lies(image)) };
            let path = self.store.own_image(&image.id);
            let _held = match image::in_use(&path) {
                Some(held) => held,
                None => made.place(&path)?,
            };
            came(&image.id, &path)?;
            image.came.store(true, Ordering::Relaxed);
            tracing::info!("golden image {} is here", image.id.short());
        }
        Ok(())
    }

    fn lies(&self, image: &Arriving) -> Error {
        let lie = format!(
            "what {} has as golden image {} is another image. Machines may have read of it: they stand still for good, and `fermata down` ends them",
            image.remote, image.id
        );
        self.give_up(lie.clone());
        Error::refused(lie, "push the image again from where it is whole, to another place")
    }
}
