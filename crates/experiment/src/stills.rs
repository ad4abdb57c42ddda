//! What a checkpoint has of its machines, without running them: disks as they were, and memories as core files, to be read and written out.

use crate::{
    Error, Result,
    images::{find_image, images_of},
    plan::part,
};
use fermata_disk::{DiskDetails, Golden, still};
use fermata_store::{Contents, Hold, Progress, Record, Result as StoreResult, Still, Store};
use fermata_types::{CheckpointId, ImageId, PartKind};
use fermata_vm::CoreFile;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs::File, io, os::unix::fs::FileExt as _, sync::Arc};

/// How an image of a part is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    /// The memory of a machine as an ELF core.
    Core,
    /// A disk in QEMU's format.
    Qcow2,
    /// A disk byte by byte.
    Raw,
}

impl ImageFormat {
    /// The parts that have such an image.
    pub fn kind(self) -> PartKind {
        match self {
            Self::Core => PartKind::Machine,
            Self::Qcow2 | Self::Raw => PartKind::Disk,
        }
    }
}

/// A checkpoint whose parts are looked at. Nobody's collection takes anything of it meanwhile.
pub struct Stills {
    store: Store,
    record: Record,
    images: BTreeMap<ImageId, Arc<Golden>>,
    hold: Hold,
}

impl Stills {
    /// Holds the checkpoint and opens the golden images that it stands on. `progress` is told what takes long.
    pub fn open(store: &Store, id: &CheckpointId, progress: &mut dyn FnMut(&str, Progress)) -> Result<Self> {
        let hold = store.hold(id)?;
        let record = store.record(id)?;
        let images = images_of(&record)?.into_iter();
        let images = images.map(|(id, image)| Ok((id, find_image(store, &image, progress)?))).collect::<Result<_>>()?;
        Ok(Self { store: store.clone(), record, images, hold })
    }

    /// The checkpoint.
    pub fn id(&self) -> CheckpointId {
        self.hold.id()
    }

    /// What is kept of it.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The names of its parts of this kind.
    pub fn parts(&self, kind: PartKind) -> impl Iterator<Item = &str> {
        self.record.parts.iter().filter(move |part| part.kind == kind).map(|part| part.name.as_str())
    }

    /// A disk, by its name as a part: `m1/disk0`.
    pub fn disk(&self, name: &str) -> Result<Still> {
        let state = part(&self.record, &self.id().short(), name)?;
        let image = DiskDetails::from_state(state)?.image.and_then(|image| self.images.get(&image.id).cloned());
        Ok(still::still(&self.store, state, image)?)
    }

    /// The memory of a machine.
    pub fn core(&self, machine: &str) -> Result<CoreFile> {
        Ok(CoreFile::new(&self.store, part(&self.record, &self.id().short(), machine)?)?)
    }
}

/// Writes contents into an empty file, where zeros become holes. `each` is told how many bytes are done, and says whether to go on; false if it did not.
pub fn write_out(contents: &dyn Contents, format: ImageFormat, file: &File, each: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
    let mut ended = false;
    let mut go_on = |done| -> StoreResult<()> {
        ended = !each(done);
        if ended { Err(io::Error::from(io::ErrorKind::Interrupted).into()) } else { Ok(()) }
    };
    let written = match format {
        ImageFormat::Qcow2 => file.try_clone().map_err(|error| Error::Store(error.into())).and_then(|same| {
            still::write_qcow2(contents, same, &mut go_on)?;
            Ok(())
        }),
        ImageFormat::Core | ImageFormat::Raw => write_raw(contents, file, &mut go_on).map_err(Error::Store),
    };
    match written {
        Err(_) if ended => Ok(false),
        written => written.map(|()| true),
    }
}

fn write_raw(contents: &dyn Contents, file: &File, each: &mut dyn FnMut(u64) -> StoreResult<()>) -> StoreResult<()> {
    file.set_len(contents.bytes())?;
    contents.for_each_piece(&mut |at, piece| {
        file.write_all_at(piece, at)?;
        each(at + piece.len() as u64)
    })
}
