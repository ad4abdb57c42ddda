//! Writing a checkpoint: the sieve, new nodes, and the commit.

use crate::{
    Error, Record, Result, Store,
    error::Named,
    hash,
    index::{Index, Location, Read},
    node::{Delta, Node, Stored},
    pack::{Kind, PackBuilder, Published, frame::BLOB_MAX},
    refs,
    store::Inner,
    table::{self, Change, Loaded, Nodes, NodesMut},
};
use fermata_types::{BlobName, CheckpointId, ImageId, NodeName, PageBuf, PageName, Root, ZERO_PAGE};
use heed::RwTxn;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// Lookups after which a writer looks at the index as it is now. LMDB cannot reuse what an old reader may still see.
const LOOKUPS_MAX: u32 = 4096;

/// One class of the sieve, as decided by content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Zero throughout: never stored.
    Zero,
    /// Equal to a block of a golden image that is open: found there.
    OnDisk,
    /// In the store already, or put before in this checkpoint.
    Known,
    /// Written to the pack.
    New,
}

/// A checkpoint being written: one pack. Dropped without commit, it leaves nothing.
///
/// After an I/O error the writer writes nothing more: drop it and write the checkpoint again.
pub struct Writer {
    store: Store,
    builder: PackBuilder,
    read: Option<(Read<'static>, u32)>,
    pages: HashSet<PageName>,
    blobs: HashSet<BlobName>,
    nodes: HashMap<NodeName, Arc<Loaded>>,
    /// Golden images that pages were found in, by number.
    images: HashMap<u32, ImageId>,
    /// Images that pages may be found in; none: all that are open.
    allowed: Option<Vec<ImageId>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writer({})", self.store.path().display())
    }
}

impl Writer {
    pub(crate) fn new(store: &Store) -> Result<Self> {
        // Known pages of others' packs are only named here, not held. Whoever removes packs must spare those that were there when a writer
        // that still lives began: the locked file in `tmp/` tells that it lives.
        Ok(Self {
            store: store.clone(),
            builder: PackBuilder::new(store.0.medium.clone(), &store.path().join("tmp"))?,
            read: None,
            pages: HashSet::new(),
            blobs: HashSet::new(),
            nodes: HashMap::new(),
            images: HashMap::new(),
            allowed: None,
        })
    }

    /// From now on pages may be found in these golden images only, not in every one that is open: those that the record will list.
    pub fn stand_on(&mut self, images: &[ImageId]) {
        self.allowed = Some(images.to_vec());
    }

    /// The store that the checkpoint goes to.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Puts one page through the sieve.
    pub fn put_page(&mut self, page: &PageBuf) -> Result<(PageName, Class)> {
        if hash::is_zero(page) {
            return Ok((ZERO_PAGE, Class::Zero));
        }
        let name = hash::page(page);
        if self.pages.contains(&name) {
            return Ok((name, Class::Known));
        }
        match self.locate(&name)? {
            Some(Location::Pack { .. }) => return Ok((name, Class::Known)),
            Some(Location::Image { image, .. }) if self.image_is_open(image) => return Ok((name, Class::OnDisk)),
            // In an image that this checkpoint does not stand on: it must not come to depend on it.
            Some(Location::Image { .. }) | None => {}
        }
        self.builder.add_page(&name, page)?;
        self.pages.insert(name);
        Ok((name, Class::New))
    }

    /// Keeps a run of bytes with the checkpoint; at most 256 MiB.
    pub fn put_blob(&mut self, bytes: &[u8]) -> Result<BlobName> {
        if bytes.len() > BLOB_MAX {
            return Err(Error::refused(format!("a blob of {} bytes", bytes.len()), "keep what is larger than 256 MiB in pages"));
        }
        self.read = None;
        let name = hash::blob(bytes);
        let inner = &self.store.0;
        let known = inner.index.get(&*inner.index.read()?, &inner.index.blobs, name.as_bytes())?.is_some();
        if !known && !self.blobs.contains(&name) {
            self.builder.add_blob(&name, bytes)?;
            self.blobs.insert(name);
        }
        Ok(name)
    }

    /// A table like `base` but for `changes` (sorted by page, each page once; None: no longer named). `base` may come from this writer.
    pub fn update_table(&mut self, base: &Root, changes: &[Change]) -> Result<Root> {
        self.read = None;
        table::update(self, base, changes)
    }

    /// Bytes written to the pack so far, including what was still buffered, without the record.
    pub fn stored_bytes(&mut self) -> Result<u64> {
        self.read = None;
        self.builder.flush()?;
        Ok(self.builder.length())
    }

    /// Makes the checkpoint durable and moves its branch to it: first the pack, then in one transaction index, record and ref.
    ///
    /// Refused if the branch exists and its head is not `record.parent`, and if the record does not list a golden image that a page was found
    /// in. When this fails, nothing of the checkpoint is visible.
    pub fn commit(mut self, record: &Record) -> Result<CheckpointId> {
        self.read = None;
        let inner = self.store.0.clone();
        let reference = refs::branch_key(&record.experiment, &record.branch)?;
        let bytes = record.encode()?;
        let id = hash::record(&bytes);
        if let Some(image) = self.images.values().find(|image| !record.images.contains(image)) {
            let what = format!("the checkpoint has pages of golden image {image}, but its record does not list it");
            return Err(Error::refused(what, "list every image that the parts stand on"));
        }
        // Here for an early answer; what counts is the same question in the transaction.
        check_parent(&inner, &*inner.index.read()?, &reference, record)?;
        let published = self.builder.publish(&id, &bytes, &inner.shelf())?;
        let nodes = self.nodes;
        let committed = inner.index.write(|write| {
            check_parent(&inner, write, &reference, record)?;
            add_objects(&inner.index, write, &published, |name| nodes.get(name).is_some_and(|node| node.base.is_none()))?;
            inner.index.put(write, &inner.index.records, id.as_bytes(), &bytes)?;
            inner.index.put(write, &inner.index.refs, &reference, id.as_bytes())
        });
        if let Err(error) = committed {
            let seen = inner.index.read().and_then(|read| Ok(inner.index.get(&read, &inner.index.records, id.as_bytes())?.is_some()));
            if let Ok(false) = seen {
                // Nothing names this pack, and on a full disk its space is needed.
                let _ = std::fs::remove_file(&published.path);
            }
            return Err(error);
        }
        nodes.into_iter().for_each(|(name, node)| inner.nodes.insert(name, node));
        Ok(id)
    }

    fn locate(&mut self, name: &PageName) -> Result<Option<Location>> {
        let index = &self.store.0.index;
        let fresh = self.read.take().filter(|(_, lookups)| *lookups < LOOKUPS_MAX);
        let (read, lookups) = match fresh {
            Some(fresh) => fresh,
            None => (index.read_owned()?, 0),
        };
        let location = index.location(&read, &index.pages, name.as_bytes(), &Named("page", name.as_bytes()));
        self.read = Some((read, lookups + 1));
        location
    }

    fn image_is_open(&mut self, number: u32) -> bool {
        if self.images.contains_key(&number) {
            return true;
        }
        let open = self.store.0.images.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        match open.get(&number) {
            Some((image, _)) if self.allowed.as_ref().is_none_or(|allowed| allowed.contains(image)) => {
                self.images.insert(number, *image).is_none()
            }
            _ => false,
        }
    }

    fn node_is_known(&self, name: &NodeName) -> Result<bool> {
        let inner = &self.store.0;
        if self.nodes.contains_key(name) || inner.nodes.get(name).is_some() {
            return Ok(true);
        }
        Ok(inner.index.get(&*inner.index.read()?, &inner.index.nodes, name.as_bytes())?.is_some())
    }

    /// The node as a delta to what `old` stands on, if that is near enough.
    fn delta(&self, node: &Node, old: Option<(NodeName, Arc<Loaded>)>) -> Result<Option<Delta>> {
        let Some((old_name, old)) = old else { return Ok(None) };
        let (base_name, base) = match old.base {
            None => (old_name, old),
            Some(base) => (base, self.load(&base)?),
        };
        if base.base.is_some() {
            return Ok(None);
        }
        Ok(Delta::between(&base.node, base_name, node))
    }
}

impl Nodes for Writer {
    fn load(&self, name: &NodeName) -> Result<Arc<Loaded>> {
        match self.nodes.get(name) {
            Some(loaded) => Ok(loaded.clone()),
            None => self.store.0.load(name),
        }
    }

    fn misplaced(&self, name: &NodeName, detail: String) -> Error {
        self.store.0.misplaced(name, detail)
    }
}

impl NodesMut for Writer {
    fn save(&mut self, node: Node, old: Option<(NodeName, Arc<Loaded>)>) -> Result<NodeName> {
        let name = node.name();
        if self.node_is_known(&name)? {
            return Ok(name);
        }
        let base = match self.delta(&node, old)? {
            Some(delta) => {
                let base = delta.base;
                self.builder.add_node(&name, &Stored::Delta(delta).encode())?;
                Some(base)
            }
            None => {
                self.builder.add_node(&name, &Stored::encode_full(&node))?;
                None
            }
        };
        self.nodes.insert(name, Arc::new(Loaded { node, base }));
        Ok(name)
    }
}

fn check_parent(inner: &Inner, read: &heed::RoTxn<'_>, reference: &[u8], record: &Record) -> Result<()> {
    let index = &inner.index;
    let branch = format!("{}/{}", record.experiment, record.branch);
    if let Some(head) = index.get(read, &index.refs, reference)? {
        let head = index.checkpoint_id(head, &format!("branch {branch}"))?;
        if record.parent != Some(head) {
            let parent = record.parent.map_or_else(|| "none".into(), |parent| parent.to_string());
            let what = format!("branch {branch} is at {head}, not at {parent}, the parent of this checkpoint: somebody else moved it");
            return Err(Error::refused(what, "checkpoint to another branch, or go to the head of this one first"));
        }
    }
    match &record.parent {
        Some(parent) if index.get(read, &index.records, parent.as_bytes())?.is_none() => {
            Err(Error::missing(format!("checkpoint {parent}, the parent of this one"), "it was removed, or belongs to another store"))
        }
        _ => Ok(()),
    }
}

/// Enters a pack and everything in it. `is_full` tells which nodes are stored full.
pub(crate) fn add_objects(index: &Index, write: &mut RwTxn<'_>, pack: &Published, is_full: impl Fn(&NodeName) -> bool) -> Result<()> {
    let number = index.number_pack(write, &pack.id)?;
    let entries = pack.contents.entries.iter();
    let mut objects: Vec<_> = entries
        .filter(|entry| entry.kind != Kind::Record)
        .flat_map(|entry| entry.names.iter().zip(0..).map(move |(name, place)| (entry, name, place)))
        .collect();
    // Neighbours in the tree go in one after the other.
    objects.sort_unstable_by_key(|(_, name, _)| **name);
    for (entry, name, place) in objects {
        let location = Location::Pack { pack: number, offset: entry.offset, place, length: entry.length }.encode();
        match entry.kind {
            // A node that others are deltas to must be found full, even if somebody else stored it as a delta meanwhile.
            Kind::Nodes if is_full(&NodeName(*name)) => index.put(write, &index.nodes, name, location.as_ref())?,
            Kind::Nodes => _ = index.put_new(write, &index.nodes, name, location.as_ref())?,
            Kind::Blob | Kind::Record => _ = index.put_new(write, &index.blobs, name, location.as_ref())?,
            Kind::Pages => {
                let before = index.put_new(write, &index.pages, name, location.as_ref())?.map(Location::decode);
                if let Some(None | Some(Location::Image { .. })) = before {
                    index.put(write, &index.pages, name, location.as_ref())?;
                }
            }
        }
    }
    Ok(())
}
