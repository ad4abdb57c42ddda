//! Golden images on a remote: a table of their blocks, like that of a disk that stands on nothing, and a record that says how large they are.

use super::{CopyStage, Name, Remote, damaged, get, list, push::Push, shelf::Shelf};
use crate::{
    Error, ImageHasher, ImageReader, Progress, Result, Store,
    files::{TempFile, make_directory},
    hash,
    image_names::name_of,
    node::{Node, Stored},
    table,
};
use fermata_types::{FANOUT, ImageId, NodeName, PAGE_SIZE, PageName, PageNumber, Root, ZERO_PAGE};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs::File,
    os::unix::fs::MetadataExt,
    path::Path,
};

const IMAGES: &str = "images/";
/// Bytes of a record at most.
const RECORD_MAX: u64 = 256;
const VERSION: &str = "fermata image 1";
/// Stands for the node of a table that names nothing.
const NO_NODE: &str = "-";
/// Bytes of a disk at most: as many blocks as have numbers.
const BYTES_MAX: u64 = (1 << 32) * PAGE_SIZE as u64;
/// What is written to an image at once.
const RUN_BYTES: usize = 1 << 20;
/// Blocks between two words about how far it is.
const TOLD_EVERY: u64 = 1 << 10;

/// What a golden image is called on a remote. Each sending has a number of its own, so that what is about to be removed is never what somebody sends just then.
pub(super) fn name(id: &ImageId, number: &str) -> String {
    format!("{IMAGES}{id}-{number}")
}

/// The records of golden images on a remote, by the images.
pub(super) fn all(remote: &dyn Remote) -> Result<BTreeMap<ImageId, BTreeSet<String>>> {
    let mut all = BTreeMap::<_, BTreeSet<_>>::new();
    for (name, _) in list(remote, IMAGES)? {
        if let Some(id) = name.split_once('-').and_then(|(id, _)| id.parse().ok()) {
            all.entry(id).or_default().insert(format!("{IMAGES}{name}"));
        }
    }
    Ok(all)
}

/// What a remote says about a golden image.
pub(super) fn record(remote: &dyn Remote, object: &str) -> Result<ImageRecord> {
    let bytes = get(remote, object, RECORD_MAX)?.ok_or_else(|| damaged(remote, object, "it was there a moment ago, and is gone"))?;
    ImageRecord::decode(&bytes).ok_or_else(|| damaged(remote, object, "it is no record of an image"))
}

/// What a remote says about a golden image.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImageRecord {
    /// Bytes that the guest sees.
    pub bytes: u64,
    /// Of its blocks: those of zeros are not named.
    node: Option<NodeName>,
}

impl ImageRecord {
    pub fn encode(&self) -> Vec<u8> {
        let node = self.node.map_or_else(|| NO_NODE.to_owned(), |node| node.to_string());
        format!("{VERSION}\n{}\n{node}\n", self.bytes).into_bytes()
    }

    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [VERSION, bytes, node, ""] = std::str::from_utf8(bytes).ok()?.split('\n').collect::<Vec<_>>()[..] else { return None };
        let bytes = bytes.parse().ok().filter(|bytes| (1..=BYTES_MAX).contains(bytes))?;
        let node = if node == NO_NODE { None } else { Some(node.parse().ok()?) };
        Some(Self { bytes, node })
    }

    pub fn root(&self) -> Root {
        Root { pages: self.bytes.div_ceil(PAGE_SIZE as u64), node: self.node }
    }
}

/// The record of a golden image on a remote. None: it does not have it.
pub(super) fn find(remote: &dyn Remote, id: &ImageId) -> Result<Option<ImageRecord>> {
    let object = all(remote)?.remove(id).and_then(|objects| objects.into_iter().next());
    object.map(|object| record(remote, &object)).transpose()
}

/// Makes an image whose table and blocks are here. None: what the remote describes is not the image of this id.
pub(super) fn make(
    shelf: &mut Shelf<'_>,
    id: &ImageId,
    record: &ImageRecord,
    progress: &mut dyn FnMut(CopyStage, Progress),
) -> Result<Option<Made>> {
    make_directory(&*shelf.store.0.medium, &shelf.store.images_dir())?;
    let (root, mut made, mut hasher) = (record.root(), Made::create(shelf.store, record.bytes)?, ImageHasher::new(record.bytes));
    let (mut content, mut done, total) = ([0; PAGE_SIZE], 0, root.pages);
    let mut is_one = true;
    if let Some(node) = root.node {
        is_one = for_each(shelf, &node, table::top_level(&root)?, 0, &mut |shelf, block, page| {
            if block >= root.pages || page == ZERO_PAGE {
                return Ok(false);
            }
            shelf.page(&page, &mut content)?;
            hasher.block(block, &content);
            made.put(block, &content)?;
            if done % TOLD_EVERY == 0 {
                progress(CopyStage::Images, Progress { done: block, total });
                (shelf.store.0.rest())();
            }
            done += 1;
            Ok(true)
        })?;
    }
    progress(CopyStage::Images, Progress { done: total, total });
    Ok((is_one && hasher.finish() == *id).then_some(made))
}

/// Hands over the blocks that a table names, in order, with only a node of each level at hand: it may name the same node again and again. Ends where `each` wants that,
/// and says whether it did not.
fn for_each(
    shelf: &mut Shelf<'_>,
    name: &NodeName,
    level: u8,
    first: u64,
    each: &mut dyn FnMut(&mut Shelf<'_>, u64, PageName) -> Result<bool>,
) -> Result<bool> {
    let node = shelf.fetched_level(name, level)?;
    for (index, entry) in node.iter() {
        let block = first + index as u64 * table::span(level);
        let goes_on = match level {
            0 => each(shelf, block, PageName(entry))?,
            _ => for_each(shelf, &NodeName(entry), level - 1, block, each)?,
        };
        if !goes_on {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An image that is made, before it has its place: a file of a known length whose blocks come in order, and that is a hole where none came.
pub(super) struct Made {
    file: TempFile,
    bytes: u64,
    /// What is to be written next, and where.
    run: Vec<u8>,
    at: u64,
}

impl Made {
    fn create(store: &Store, bytes: u64) -> Result<Self> {
        // In the open like every golden image: whoever reads it knows nothing of the store.
        let mut file = TempFile::create(store.0.medium.clone(), &store.path().join("tmp"), &None)?;
        // Its length.
        file.write_at(&[0], bytes - 1)?;
        Ok(Self { file, bytes, run: Vec::with_capacity(RUN_BYTES), at: 0 })
    }

    fn put(&mut self, block: u64, content: &[u8; PAGE_SIZE]) -> Result<()> {
        let at = block * PAGE_SIZE as u64;
        if self.run.len() == RUN_BYTES || self.at + self.run.len() as u64 != at {
            self.flush()?;
            self.at = at;
        }
        self.run.extend_from_slice(&content[..PAGE_SIZE.min((self.bytes - at) as usize)]);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.run.is_empty() {
            self.file.write_at(&self.run, self.at)?;
            self.run.clear();
        }
        Ok(())
    }

    /// Gives it its place among the images of the store. Others can open it afterwards. Also returns what keeps it there while no checkpoint stands on it yet.
    pub fn place(mut self, to: &Path) -> Result<File> {
        self.flush()?;
        let held = self.file.held()?;
        self.file.place(to)?;
        held.lock_shared().map_err(Error::io("lock", to))?;
        // A lock becomes another one by being let go of first.
        match held.metadata().map_err(Error::io("look at", to))?.nlink() {
            0 => Err(Error::missing(to.display().to_string(), "somebody collected garbage in the same instant: pull again")),
            _ => Ok(held),
        }
    }
}

/// An image that somebody else has put into its place, and has open: he has found it to be what its name says. It is kept there as well.
pub(super) fn in_use(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    if file.try_lock().is_ok() {
        return None;
    }
    // Who collects is not waited for: he may wait for us.
    file.try_lock_shared().ok()?;
    file.metadata().is_ok_and(|found| found.nlink() > 0).then_some(file)
}

/// An image that is to be sent.
pub(super) struct Sender<'a> {
    pub store: &'a Store,
    pub id: ImageId,
    /// What the remote has, or will have once all that was sent before is there.
    pub there: &'a mut HashSet<Name>,
}

impl Sender<'_> {
    /// Sends what the image holds: its blocks, then its table from the leaves up, then its record.
    pub fn send(&mut self, push: &mut Push<'_>, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        let reader = self.store.open_image(&self.id).ok_or_else(|| {
            Error::refused(format!("golden image {} is not open", self.id), "put it back where it was, or push with --no-images")
        })?;
        let blocks = reader.blocks();
        for first in (0..blocks).step_by(FANOUT) {
            progress(CopyStage::Images, Progress { done: first, total: blocks });
            for (index, page) in self.leaf(&*reader, first)? {
                if self.there.insert(page.0) {
                    let mut content = [0; PAGE_SIZE];
                    let block = first + index as u64;
                    reader.read_block(block as PageNumber, &mut content).map_err(|error| self.unreadable(error))?;
                    if hash::page(&content) != page {
                        return Err(Error::ImageChanged { image: self.id, detail: format!("block {block} is not what it was") });
                    }
                    push.page(&page, &content)?;
                }
            }
        }
        push.settle()?;
        let node = self.send_table(&*reader, push)?;
        push.settle()?;
        reader.check().map_err(|error| self.unreadable(error))?;
        push.put_image(&self.id, &ImageRecord { bytes: reader.bytes(), node })?;
        progress(CopyStage::Images, Progress { done: blocks, total: blocks });
        Ok(())
    }

    fn unreadable(&self, error: std::io::Error) -> Error {
        Error::io("read", Path::new(&format!("golden image {}", self.id)))(error)
    }

    /// The names of the blocks of a leaf, without those of zeros.
    fn leaf(&self, reader: &dyn ImageReader, first: u64) -> Result<Vec<(usize, PageName)>> {
        let mut names = Vec::new();
        for index in 0..FANOUT.min((reader.blocks() - first) as usize) {
            let block = (first + index as u64) as PageNumber;
            let name = match self.store.image_block(&self.id, block) {
                Some(name) => name,
                None => {
                    let mut content = [0; PAGE_SIZE];
                    reader.read_block(block, &mut content).map_err(|error| self.unreadable(error))?;
                    name_of(&content)
                }
            };
            names.extend((name != ZERO_PAGE).then_some((index, name)));
        }
        Ok(names)
    }

    /// The node at the top.
    fn send_table(&mut self, reader: &dyn ImageReader, push: &mut Push<'_>) -> Result<Option<NodeName>> {
        let root = Root::empty(reader.blocks());
        // What the nodes of the level below are called, each with its place in that level.
        let mut below: Vec<(u64, Name)> = Vec::new();
        for first in (0..root.pages).step_by(FANOUT) {
            let names = self.leaf(reader, first)?.into_iter().map(|(index, name)| (index as u64, name.0));
            below.extend(self.send_node(0, names, push)?.map(|name| (first / FANOUT as u64, name.0)));
        }
        for level in 1..root.levels() as u8 {
            let mut above = Vec::new();
            for group in below.chunk_by(|a, b| a.0 / FANOUT as u64 == b.0 / FANOUT as u64) {
                above.extend(self.send_node(level, group.iter().copied(), push)?.map(|name| (group[0].0 / FANOUT as u64, name.0)));
            }
            below = above;
        }
        Ok(below.first().map(|(_, name)| NodeName(*name)))
    }

    /// Sends a node, unless it is there. None: it would have no entries.
    fn send_node(&mut self, level: u8, below: impl Iterator<Item = (u64, Name)>, push: &mut Push<'_>) -> Result<Option<NodeName>> {
        let mut entries = [None; FANOUT];
        below.for_each(|(place, name)| entries[(place % FANOUT as u64) as usize] = Some(name));
        let Some(node) = Node::new(level, &entries) else { return Ok(None) };
        let name = node.name();
        if self.there.insert(name.0) {
            push.node(&name, &Stored::encode_full(&node))?;
        }
        Ok(Some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        for record in [ImageRecord { bytes: 1, node: None }, ImageRecord { bytes: BYTES_MAX, node: Some(NodeName([0xab; 32])) }] {
            assert_eq!(ImageRecord::decode(&record.encode()), Some(record));
        }
        for bad in ["", "fermata image 1\n0\n-\n", "fermata image 2\n1\n-\n", "fermata image 1\n1\n-", "fermata image 1\n1\nab\n"] {
            assert_eq!(ImageRecord::decode(bad.as_bytes()), None, "{bad:?}");
        }
        let most = format!("{VERSION}\n{}\n-\n", BYTES_MAX + 1);
        assert_eq!(ImageRecord::decode(most.as_bytes()), None);
    }
}
