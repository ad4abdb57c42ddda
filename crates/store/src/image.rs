//! Golden images: disk images outside the store, whose blocks are known to it by hash and never copied into it.

use crate::{
    Error, Result, Store,
    image_names::{NamesWriter, name_of},
    index::{ImageEntry, Location, Settling},
};
use fermata_types::{ImageId, PAGE_SIZE, PageBuf, PageName, PageNumber, ZERO_PAGE};
use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Blocks hashed between two transactions: 256 MiB.
const WINDOW: u64 = 1 << 16;
/// Blocks read at once: 1 MiB.
const READ: u64 = 256;

/// Reads 4 KiB blocks of a golden image as the guest sees them.
pub trait ImageReader: Send + Sync {
    /// How many blocks the image has. The last one may be cut short in the image: it is read as if zeros followed.
    fn blocks(&self) -> u64;

    /// How many bytes a guest sees: fewer than its blocks have where the last one is cut short.
    fn bytes(&self) -> u64 {
        self.blocks() * PAGE_SIZE as u64
    }

    /// Reads one block.
    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> std::io::Result<()>;

    /// Reads neighbouring blocks, as many as `into` holds. Worth doing at once where the image allows it.
    fn read_blocks(&self, first: PageNumber, into: &mut [u8]) -> std::io::Result<()> {
        let (blocks, _) = into.as_chunks_mut::<PAGE_SIZE>();
        blocks.iter_mut().zip(first..).try_for_each(|(into, block)| self.read_block(block, into))
    }

    /// The next blocks from this one on that may hold anything but zeros. None: there are only zeros from there to the end.
    fn next_blocks(&self, from: u64) -> std::io::Result<Option<Range<u64>>> {
        Ok((from < self.blocks()).then(|| from..self.blocks()))
    }

    /// Fails if what was read may not be the image's. Asked before names are learned from it: afterwards they vouch for what is read.
    fn check(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// How far something long has come, in its own unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Done so far.
    pub done: u64,
    /// All there is to do.
    pub total: u64,
}

/// How the name of an image file of the store's own ends, behind its id.
const OWN: &str = ".raw";

impl Store {
    /// Where the store keeps what it knows of golden images, and those that came from a remote.
    pub fn images_dir(&self) -> PathBuf {
        self.path().join("images")
    }

    /// Where a golden image lies that came from a remote: as the guest sees it, byte by byte. It may not be there.
    pub fn own_image(&self, id: &ImageId) -> PathBuf {
        self.images_dir().join(format!("{id}{OWN}"))
    }

    /// The golden images that came from remotes.
    pub fn own_images(&self) -> BTreeMap<ImageId, PathBuf> {
        let entries = std::fs::read_dir(self.images_dir()).into_iter().flatten().flatten();
        let id = |path: &Path| path.file_name()?.to_str()?.strip_suffix(OWN)?.parse().ok();
        entries.filter_map(|entry| Some((id(&entry.path())?, entry.path()))).collect()
    }

    /// Registers a golden image: hashes its blocks (first time only; `progress` counts blocks and may be shown to a person), so that equal
    /// pages are not stored again. The store keeps the reader, and reads pages that lie in the image through it.
    ///
    /// When it is cut short, the next call begins again from the start of the image.
    pub fn add_image(&self, id: ImageId, reader: Arc<dyn ImageReader>, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let index = &self.0.index;
        let blocks = reader.blocks();
        if blocks > 1 << 32 {
            return Err(Error::refused(format!("golden image {id} has {blocks} blocks"), "an image may have 16 TiB at most"));
        }
        let known = index.image(&*index.read()?, &id)?;
        let mut entry = match known {
            Some(entry) if entry.blocks != blocks => {
                let detail = format!("it had {} blocks and now has {blocks}", entry.blocks);
                return Err(Error::ImageChanged { image: id, detail });
            }
            Some(entry) => entry,
            None => self.register(&id, blocks)?,
        };
        if !entry.complete {
            self.add_blocks(&id, &entry, &*reader, progress)?;
            entry.complete = true;
            index.write(|write| index.set_image(write, &id, &entry))?;
        } else if !self.has_image_names(&id, blocks)
            && let Err(error) = self.add_blocks(&id, &entry, &*reader, progress)
        {
            tracing::info!(%error, image = %id, "the names of its blocks are not kept, and found by reading it");
        }
        self.0.images.write().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(entry.number, (id, reader));
        Ok(())
    }

    /// How to read a golden image that somebody has open.
    pub(crate) fn open_image(&self, id: &ImageId) -> Option<Arc<dyn ImageReader>> {
        let open = self.0.images.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        open.values().find(|(image, _)| image == id).map(|(_, reader)| reader.clone())
    }

    fn register(&self, id: &ImageId, blocks: u64) -> Result<ImageEntry> {
        let index = &self.0.index;
        index.write(|write| {
            // Another process may have been faster.
            if let Some(entry) = index.image(write, id)? {
                return Ok(entry);
            }
            let entry = ImageEntry { number: index.next_image(write)?, blocks, complete: false };
            index.set_image(write, id, &entry)?;
            Ok(entry)
        })
    }

    fn add_blocks(&self, id: &ImageId, entry: &ImageEntry, reader: &dyn ImageReader, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let index = &self.0.index;
        let mut kept = NamesWriter::create(self, *id)?;
        for first in (0..entry.blocks).step_by(WINDOW as usize) {
            progress(Progress { done: first, total: entry.blocks });
            let end = entry.blocks.min(first + WINDOW);
            let names = hash_window(reader, first, end).and_then(|names| reader.check().map(|()| names));
            let names = names.map_err(Error::io("read", Path::new(&format!("golden image {id}"))))?;
            kept.add(names.iter().copied())?;
            let mut names: Vec<_> = names.into_iter().zip(first as PageNumber..).filter(|(name, _)| *name != ZERO_PAGE).collect();
            names.sort_unstable();
            names.dedup_by_key(|(name, _)| *name);
            index.write(|write| {
                for (name, block) in &names {
                    let location = Location::Image { image: entry.number, block: *block };
                    index.put_new(write, &index.pages, name.as_bytes(), location.encode().as_ref(), Settling::AtOnce)?;
                }
                Ok(())
            })?;
        }
        kept.finish(self)?;
        self.forget_image_names(id);
        progress(Progress { done: entry.blocks, total: entry.blocks });
        Ok(())
    }
}

/// Names of the blocks, by two threads.
fn hash_window(reader: &dyn ImageReader, first: u64, end: u64) -> std::io::Result<Vec<PageName>> {
    let middle = first + (end - first) / 2;
    std::thread::scope(|scope| {
        let other = scope.spawn(|| hash_blocks(reader, middle, end));
        let mut names = hash_blocks(reader, first, middle)?;
        let others = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        names.extend(others?);
        Ok(names)
    })
}

fn hash_blocks(reader: &dyn ImageReader, first: u64, end: u64) -> std::io::Result<Vec<PageName>> {
    let mut names = Vec::with_capacity((end - first) as usize);
    let mut buffer = vec![0; READ as usize * PAGE_SIZE];
    let mut at = first;
    while at < end {
        let count = READ.min(end - at);
        let bytes = &mut buffer[..count as usize * PAGE_SIZE];
        reader.read_blocks(at as PageNumber, bytes)?;
        let (pages, _) = bytes.as_chunks::<PAGE_SIZE>();
        names.extend(pages.iter().map(name_of));
        at += count;
    }
    Ok(names)
}
