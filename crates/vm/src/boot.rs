//! The files that a guest boots from: a kernel and its initial RAM disk. QEMU reads them when it starts, and hands them to the guest whenever it boots.
//!
//! A checkpoint keeps what is in them, since a guest that went back to it may boot anew: elsewhere, or after somebody has put another kernel where this one was.

use crate::{MachineConfig, Result};
use fermata_store::Writer;
use fermata_types::BlobName;
use std::{collections::BTreeMap, path::Path, sync::Arc};

/// The blob of the kernel in a machine's [`PartState`](fermata_types::PartState), and the name of the file.
const KERNEL: &str = "kernel";
/// The same of the initial RAM disk.
const INITRD: &str = "initrd";

/// A file to boot from.
#[derive(Debug, Clone)]
pub enum BootFile {
    /// No checkpoint of the machine has it yet.
    Fresh(Arc<[u8]>),
    /// The checkpoint has it that the machine stands on.
    Kept(BlobName),
}

/// Those of a machine, by name.
pub type BootFiles = BTreeMap<&'static str, BootFile>;

impl MachineConfig {
    /// The files that it boots from, by name.
    pub fn boot_files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        [(KERNEL, &self.kernel), (INITRD, &self.initrd)].into_iter().filter_map(|(name, path)| Some((name, path.as_deref()?)))
    }
}

/// Has the checkpoint name them, and puts into it what none has yet.
pub(crate) fn save(files: &BootFiles, storage: &mut Writer, blobs: &mut BTreeMap<String, BlobName>) -> Result<()> {
    for (name, file) in files {
        let blob = match file {
            BootFile::Fresh(content) => storage.put_blob(content)?,
            BootFile::Kept(blob) => *blob,
        };
        blobs.insert((*name).to_owned(), blob);
    }
    Ok(())
}

/// They are in this checkpoint now.
pub(crate) fn keep(files: &mut BootFiles, blobs: &BTreeMap<String, BlobName>) {
    for (name, file) in files {
        if let Some(blob) = blobs.get(*name) {
            *file = BootFile::Kept(*blob);
        }
    }
}
