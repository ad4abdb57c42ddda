//! The names of a golden image's blocks by number: what the index, which finds a block by its name, cannot tell. A cache in a file: when it is lost or damaged,
//! names are found by reading the image (`docs/formats/golden.md`).

use crate::{
    Result, Store,
    chunks::Source,
    cipher::{Sealing, hidden, shown},
    files::TempFile,
    hash,
};
use fermata_types::{ImageId, PAGE_SIZE, PageName, PageNumber, ZERO_PAGE};
use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

const NAME: usize = 32;
/// How the name of a file of names ends, behind the id of its image.
const ENDING: &str = ".names";
/// A group of names and the hash that vouches for them are a page long.
const GROUP: u64 = (PAGE_SIZE / NAME) as u64 - 1;

/// Writes the names of one image.
pub(crate) struct NamesWriter {
    image: ImageId,
    file: TempFile,
    group: Vec<u8>,
    groups: u64,
}

impl NamesWriter {
    pub fn create(store: &Store, image: ImageId) -> Result<Self> {
        let file = TempFile::create(store.0.medium.clone(), &store.path().join("tmp"), &store.0.sealing)?;
        Ok(Self { image, file, group: Vec::with_capacity(PAGE_SIZE), groups: 0 })
    }

    /// The names of the next blocks.
    pub fn add(&mut self, names: impl Iterator<Item = PageName>) -> Result<()> {
        for name in names {
            self.group.extend_from_slice(name.as_bytes());
            if self.group.len() == GROUP as usize * NAME {
                self.write()?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        self.group.resize(GROUP as usize * NAME, 0);
        let check = check(&self.image, self.groups, &self.group);
        self.group.extend_from_slice(&check);
        self.file.write_at(&self.group, self.groups * PAGE_SIZE as u64)?;
        self.group.clear();
        self.groups += 1;
        Ok(())
    }

    /// Gives the file its place.
    pub fn finish(mut self, store: &Store) -> Result<()> {
        if !self.group.is_empty() {
            self.write()?;
        }
        self.file.place(&path(store, &self.image))
    }
}

/// The names of the images that somebody has open.
#[derive(Default)]
pub(crate) struct ImageNames(Mutex<HashMap<ImageId, Arc<Names>>>);

struct Names {
    source: Source,
    /// The last group that was looked at: blocks are asked for in order, more or less.
    last: Mutex<Option<(u64, Vec<u8>)>>,
}

impl Store {
    /// The name of a golden image's block, if that is known without reading the image. The image must have been added.
    pub fn image_block(&self, image: &ImageId, block: PageNumber) -> Option<PageName> {
        let names = {
            let mut open = self.0.image_names.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match open.get(image) {
                Some(names) => names.clone(),
                None => {
                    let names = Arc::new(Names { source: Source::open(&path(self, image), &self.0.sealing).ok()?, last: Mutex::default() });
                    open.insert(*image, names.clone());
                    names
                }
            }
        };
        names.get(image, block).inspect_err(|error| tracing::debug!(%error, %image, "the name of a block must be found by reading it")).ok()
    }

    /// Whether names are kept for all blocks of the image. They may still turn out to be damaged.
    pub(crate) fn has_image_names(&self, image: &ImageId, blocks: u64) -> bool {
        Source::open(&path(self, image), &self.0.sealing).is_ok_and(|file| file.length() == blocks.div_ceil(GROUP) * PAGE_SIZE as u64)
    }

    /// Forgets files that were replaced.
    pub(crate) fn forget_image_names(&self, image: &ImageId) {
        self.0.image_names.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(image);
    }
}

impl Names {
    fn get(&self, image: &ImageId, block: PageNumber) -> io::Result<PageName> {
        let (group, at) = (u64::from(block) / GROUP, (u64::from(block) % GROUP) as usize * NAME);
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if last.as_ref().is_none_or(|(number, _)| *number != group) {
            *last = Some((group, read_group(&self.source, image, group)?));
        }
        let (_, page) = last.as_ref().expect("it was just read");
        Ok(PageName(page[at..at + NAME].try_into().expect("a name is 32 bytes")))
    }
}

/// A group with the hash that it was seen to fit.
fn read_group(source: &Source, image: &ImageId, group: u64) -> io::Result<Vec<u8>> {
    let mut page = vec![0; PAGE_SIZE];
    source.read_exact_at(&mut page, group * PAGE_SIZE as u64)?;
    let (names, vouched) = page.split_at(GROUP as usize * NAME);
    if check(image, group, names) != vouched {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("group {group} of the names does not fit its hash")));
    }
    Ok(page)
}

/// Where the first group lies in a file of names that does not fit its hash, or is cut short; none: the file is whole.
pub(crate) fn fault(path: &Path, image: &ImageId, sealing: &Sealing) -> io::Result<Option<u64>> {
    let source = match Source::open(path, sealing) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(Some(0)),
        source => source?,
    };
    for group in 0..source.length().div_ceil(PAGE_SIZE as u64) {
        match read_group(&source, image, group) {
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) => {
                return Ok(Some(group * PAGE_SIZE as u64));
            }
            read => read?,
        };
    }
    Ok(None)
}

/// What vouches for a group of names: that it is whole, where it belongs, and of this image.
fn check(image: &ImageId, group: u64, names: &[u8]) -> [u8; NAME] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(image.as_bytes()).update(&group.to_le_bytes()).update(names);
    *hasher.finalize().as_bytes()
}

fn path(store: &Store, image: &ImageId) -> PathBuf {
    let called = ImageId(hidden(&store.0.sealing, image.as_bytes()));
    store.images_dir().join(format!("{called}{ENDING}"))
}

/// The image whose names are in the file with this name.
pub(crate) fn image_of(file: &str, sealing: &Sealing) -> Option<ImageId> {
    let called: ImageId = file.strip_suffix(ENDING)?.parse().ok()?;
    Some(ImageId(shown(sealing, called.as_bytes())))
}

/// The name of a block by its content.
pub(crate) fn name_of(page: &fermata_types::PageBuf) -> PageName {
    if hash::is_zero(page) { ZERO_PAGE } else { hash::page(page) }
}
