//! Writing a checkpoint: the sieve, new nodes, and the commit.

use crate::{
    Error, Record, Result, Store,
    error::Named,
    hash,
    hold::{Hold, Presence},
    index::{Index, Location, Read, Settling},
    node::{Delta, Node, Stored},
    pack::{Kind, PackBuilder, Published, frame::BLOB_MAX},
    recent, refs, removed,
    store::Inner,
    table::{self, Change, Loaded, Nodes, NodesMut},
};
use fermata_types::{BlobName, CheckpointId, ClassTimes, ImageId, NodeName, PageBuf, PageCounts, PageName, PageNumber, Root, ZERO_PAGE};
use heed::RwTxn;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

/// Lookups after which a writer looks at the index as it is now. LMDB cannot reuse what an old reader may still see.
const LOOKUPS_MAX: u32 = 4096;

/// One class of the sieve, as decided by content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Free in the guest: never stored. Whoever puts pages knows; the store does not.
    Free,
    /// Zero throughout: never stored.
    Zero,
    /// Known to equal a block of a disk of the same checkpoint, by who moved it between the two.
    Mapped,
    /// Equal to a block of a golden image that is open: found there.
    OnDisk,
    /// Put before in this checkpoint, as new.
    Within,
    /// In a pack of an earlier checkpoint.
    Known {
        /// How many checkpoints ago it was stored, in the order in which the store got its packs; the newest is 1. A collection that
        /// rewrites a pack makes what is in it as new as that.
        distance: u32,
    },
    /// Written to the pack.
    New,
}

impl Class {
    /// Counts one page of this class.
    pub fn count_into(self, counts: &mut PageCounts) {
        match self {
            Self::Free => counts.free += 1,
            Self::Zero => counts.zero += 1,
            Self::Mapped => counts.mapped += 1,
            Self::OnDisk => counts.on_disk += 1,
            Self::Within => {
                counts.known += 1;
                counts.within += 1;
            }
            Self::Known { distance } => {
                counts.known += 1;
                counts.distances.add(distance);
            }
            Self::New => counts.new += 1,
        }
    }

    /// The time that is counted for pages of this class.
    fn time_in(self, times: &mut ClassTimes) -> &mut u64 {
        match self {
            Self::Free => &mut times.free,
            Self::Zero => &mut times.zero,
            Self::Mapped => &mut times.mapped,
            Self::OnDisk => &mut times.on_disk,
            Self::Within | Self::Known { .. } => &mut times.known,
            Self::New => &mut times.new,
        }
    }
}

/// The index as it was a short while ago.
struct Snapshot {
    read: Read<'static>,
    /// The number that the next pack gets.
    next_pack: u32,
    lookups: u32,
}

/// A checkpoint being written: one pack. Dropped without commit, it leaves nothing.
///
/// After an I/O error the writer writes nothing more: drop it and write the checkpoint again.
pub struct Writer {
    store: Store,
    builder: PackBuilder,
    snapshot: Option<Snapshot>,
    pages: HashSet<PageName>,
    blobs: HashSet<BlobName>,
    nodes: HashMap<NodeName, Arc<Loaded>>,
    /// Golden images that pages were found in, by number.
    images: HashMap<u32, ImageId>,
    /// Images that pages may be found in; none: all that are open.
    allowed: Option<Vec<ImageId>>,
    clock: Option<fn() -> Duration>,
    times: ClassTimes,
    /// Tells a collection to spare what was there when this writer began.
    _presence: Presence,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writer({})", self.store.path().display())
    }
}

impl Writer {
    pub(crate) fn new(store: &Store) -> Result<Self> {
        // Known pages of others' packs are only named here, not held. This comes before the first look at the index.
        let presence = Presence::writer(store)?;
        store.0.forget_if_collected()?;
        Ok(Self {
            store: store.clone(),
            builder: store.0.new_pack()?,
            snapshot: None,
            pages: HashSet::new(),
            blobs: HashSet::new(),
            nodes: HashMap::new(),
            images: HashMap::new(),
            allowed: None,
            clock: None,
            times: ClassTimes::default(),
            _presence: presence,
        })
    }

    /// From now on pages may be found in these golden images only, not in every one that is open: those that the record will list.
    pub fn stand_on(&mut self, images: &[ImageId]) {
        self.allowed = Some(images.to_vec());
    }

    /// Looks at this clock before and after each page; without one no times are counted.
    pub fn time_by(&mut self, clock: fn() -> Duration) {
        self.clock = Some(clock);
    }

    /// Does something that tells pages of a class, and counts its time for it.
    pub fn timed<T>(&mut self, class: Class, work: impl FnOnce(&mut Self) -> T) -> T {
        let Some(clock) = self.clock else { return work(self) };
        let all = |writer: &Self| writer.times.classes().map(|(_, ns)| ns).sum::<u64>();
        let (began, before) = (clock(), all(self));
        let done = work(self);
        // Less what counted for pages that were put meanwhile.
        let within = Duration::from_nanos(all(self) - before);
        self.count_time(class, clock().saturating_sub(began).saturating_sub(within));
        done
    }

    /// What telling each class took so far, ns.
    pub fn times(&self) -> ClassTimes {
        self.times
    }

    fn count_time(&mut self, class: Class, spent: Duration) {
        *class.time_in(&mut self.times) += spent.as_nanos() as u64;
    }

    /// The store that the checkpoint goes to.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Puts one page through the sieve.
    pub fn put_page(&mut self, page: &PageBuf) -> Result<(PageName, Class)> {
        let Some(clock) = self.clock else { return self.sieve(page) };
        let began = clock();
        let put = self.sieve(page)?;
        self.count_time(put.1, clock().saturating_sub(began));
        Ok(put)
    }

    fn sieve(&mut self, page: &PageBuf) -> Result<(PageName, Class)> {
        if hash::is_zero(page) {
            return Ok((ZERO_PAGE, Class::Zero));
        }
        let name = hash::page(page);
        if self.pages.contains(&name) {
            return Ok((name, Class::Within));
        }
        match self.locate(&name)? {
            (Some(Location::Pack { pack, .. }), next_pack) => {
                return Ok((name, Class::Known { distance: next_pack.saturating_sub(pack) }));
            }
            (Some(Location::Image { image, .. }), _) if self.image_is_open(image) => return Ok((name, Class::OnDisk)),
            // In an image that this checkpoint does not stand on: it must not come to depend on it.
            (Some(Location::Image { .. }) | None, _) => {}
        }
        self.builder.add_page(&name, page)?;
        self.pages.insert(name);
        Ok((name, Class::New))
    }

    /// Whether a page of this name will be there for whoever reads this checkpoint, so that it may be named without being put.
    pub fn claim(&mut self, name: &PageName) -> Result<bool> {
        if self.pages.contains(name) {
            return Ok(true);
        }
        Ok(match self.locate(name)?.0 {
            Some(Location::Pack { .. }) => true,
            Some(Location::Image { image, .. }) => self.image_is_open(image),
            None => false,
        })
    }

    /// What a page table says of one page. The table may come from this writer.
    pub fn lookup(&self, root: &Root, page: PageNumber) -> Result<Option<PageName>> {
        table::lookup(self, root, page)
    }

    /// Keeps a run of bytes with the checkpoint; at most 256 MiB.
    pub fn put_blob(&mut self, bytes: &[u8]) -> Result<BlobName> {
        if bytes.len() > BLOB_MAX {
            return Err(Error::refused(format!("a blob of {} bytes", bytes.len()), "keep what is larger than 256 MiB in pages"));
        }
        self.snapshot = None;
        let name = hash::blob(bytes);
        if !self.blobs.contains(&name) && self.store.0.lasting_blob(&name)?.is_none() {
            self.builder.add_blob(&name, bytes)?;
            self.blobs.insert(name);
        }
        Ok(name)
    }

    /// A table like `base` but for `changes` (sorted by page, each page once; None: no longer named). `base` may come from this writer.
    ///
    /// What does not change is not looked at. So `base` must be of the checkpoint that will be the parent, and somebody must hold that if it may be
    /// removed meanwhile (see [`Store::hold`]).
    pub fn update_table(&mut self, base: &Root, changes: &[Change]) -> Result<Root> {
        self.snapshot = None;
        table::update(self, base, changes)
    }

    /// Bytes written to the pack so far, including what was still buffered, without the record.
    pub fn stored_bytes(&mut self) -> Result<u64> {
        self.snapshot = None;
        self.builder.flush()?;
        Ok(self.builder.length())
    }

    /// Makes the checkpoint durable and moves its branch to it: first the pack, then in one transaction index, record and ref.
    ///
    /// Refused if the branch exists and its head is not `record.parent`, and if the record does not list a golden image that a page was found
    /// in. When this fails, nothing of the checkpoint is visible; what goes wrong once it is permanent is no failure.
    pub fn commit(self, record: &Record) -> Result<CheckpointId> {
        Ok(self.commit_held(record)?.id())
    }

    /// The same, and holds the checkpoint before anybody else can remove it.
    pub fn commit_held(mut self, record: &Record) -> Result<Hold> {
        self.snapshot = None;
        let inner = self.store.0.clone();
        let reference = refs::branch_key(&record.experiment, &record.branch)?;
        let bytes = record.encode()?;
        let id = hash::record(&bytes);
        if let Some(image) = self.images.values().find(|image| !record.images.contains(image)) {
            let what = format!("the checkpoint has pages of golden image {image}, but its record does not list it");
            return Err(Error::refused(what, "list every image that the parts stand on"));
        }
        if refs::parent_of_removed(&inner.index, &*inner.index.read()?, &id)?.is_some() {
            return Err(Error::refused(format!("checkpoint {id} was removed, and this one is the very same"), "take another one"));
        }
        // Here for an early answer; what counts is the same question in the transaction.
        check_parent(&inner, &*inner.index.read()?, &reference, record)?;
        self.enter(&id, record, &bytes, |write| {
            check_parent(&inner, write, &reference, record)?;
            inner.index.put(write, &inner.index.refs, &reference, id.as_bytes())
        })
    }

    /// Makes a checkpoint durable that was taken elsewhere, whose record has these bytes. No branch moves, and it may have been removed here before.
    pub(crate) fn commit_copy(
        self,
        id: &CheckpointId,
        bytes: &[u8],
        record: &Record,
        between: &[(CheckpointId, Option<CheckpointId>)],
    ) -> Result<()> {
        let inner = self.store.0.clone();
        let index = &inner.index;
        let enter = self.enter(id, record, bytes, |write| {
            let was_removed = index.delete(write, &index.removed, id.as_bytes())?;
            index.delete(write, &index.trash, id.as_bytes())?;
            for (removed, ancestor) in between {
                if !is_known(index, write, removed)? {
                    removed::enter(index, write, removed, ancestor.as_ref())?;
                }
            }
            if (was_removed || !between.is_empty()) && removed::leads_to(index, write, record.parent, id)? {
                let what = format!("checkpoint {} would descend from itself, by what is said about removed ones", id.short());
                return Err(Error::refused(what, "look whether the remote is the right one"));
            }
            // Whatever something leads to is known from then on: when it comes after all, it is looked whether it leads back there.
            let ends = [record.parent, between.last().and_then(|(_, ancestor)| *ancestor)];
            for end in ends.into_iter().flatten() {
                if !is_known(index, write, &end)? {
                    removed::enter(index, write, &end, None)?;
                }
            }
            Ok(())
        });
        enter.map(drop)
    }

    /// Makes the pack durable, and then in one transaction all that is in it, the record, and what is changed besides.
    fn enter(
        mut self,
        id: &CheckpointId,
        record: &Record,
        bytes: &[u8],
        besides: impl FnOnce(&mut RwTxn<'_>) -> Result<()>,
    ) -> Result<Hold> {
        self.snapshot = None;
        let inner = self.store.0.clone();
        let hold = Hold::ahead(&self.store, *id)?;
        let published = self.builder.publish(id, bytes, &inner.shelf())?;
        let nodes = self.nodes;
        let mut entered = false;
        let committed = inner.index.write(|write| {
            besides(write)?;
            // A collection removes packs that nothing names, and does so under this lock.
            std::fs::metadata(&published.path).map_err(Error::io("find", &published.path))?;
            let is_full = |name: &NodeName| nodes.get(name).is_some_and(|node| node.base.is_none());
            add_objects(&inner.index, write, &published, |name| if is_full(name) { Form::Full } else { Form::Delta })?;
            recent::put(&inner.index, write, id, record, bytes)?;
            entered = true;
            Ok(())
        });
        if let Err(error) = committed {
            let seen = inner.index.read().and_then(|read| inner.index.has(&read, &inner.index.records, id.as_bytes()));
            match seen {
                // Others see it already. Parts that were told that it was dropped would owe to the next one what this one has, upon another base.
                Ok(true) if entered => tracing::warn!("checkpoint {} is permanent, though its commit failed: {error}", id.short()),
                Ok(false) => {
                    // On a full disk its space is needed. Another process that pulls the same checkpoint at the same time may have made the very same pack, and entered it.
                    let _ = inner.remove_unnamed(&published.path, &published.id);
                    return Err(error);
                }
                Ok(true) | Err(_) => return Err(error),
            }
        }
        nodes.into_iter().for_each(|(name, node)| inner.nodes.insert(name, node));
        inner.settle_soon();
        Ok(hold)
    }

    /// Where a page lies, and the number of the next pack as of then.
    fn locate(&mut self, name: &PageName) -> Result<(Option<Location>, u32)> {
        let index = &self.store.0.index;
        let mut snapshot = match self.snapshot.take().filter(|snapshot| snapshot.lookups < LOOKUPS_MAX) {
            Some(fresh) => fresh,
            None => {
                let read = index.read_owned()?;
                Snapshot { next_pack: index.next_pack(&read)?, read, lookups: 0 }
            }
        };
        snapshot.lookups += 1;
        let location = index.lasting(&snapshot.read, &index.pages, name.as_bytes(), &Named("page", name.as_bytes()));
        let next_pack = snapshot.next_pack;
        self.snapshot = Some(snapshot);
        Ok((location?, next_pack))
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

    /// Whether the node will be there for whoever reads this checkpoint. The cache cannot tell: what is in it may be gone from the store.
    pub(crate) fn node_is_known(&self, name: &NodeName) -> Result<bool> {
        Ok(self.nodes.contains_key(name) || self.store.0.lasting_node(name)?.is_some())
    }

    /// The node as a delta to what `old` stands on, if that is near enough.
    fn delta(&self, node: &Node, old: Option<(NodeName, Arc<Loaded>)>) -> Result<Option<Delta>> {
        let Some((old_name, old)) = old else { return Ok(None) };
        let (base_name, base) = match old.base {
            None => (old_name, old),
            Some(base) => (base, self.load(&base)?),
        };
        let Some(delta) = Delta::between(&base.node, base_name, node) else { return Ok(None) };
        Ok(self.is_base(&base_name, &base)?.then_some(delta))
    }

    /// Whether a node lies in the store full and to stay, so that others may stand on it.
    fn is_base(&self, name: &NodeName, loaded: &Loaded) -> Result<bool> {
        if let Some(own) = self.nodes.get(name) {
            return Ok(own.base.is_none());
        }
        match self.store.0.lasting_node(name)? {
            None => Ok(false),
            Some(place) if loaded.at == Some(place) => Ok(loaded.base.is_none()),
            // A collection moved it, or it is known here from having been written: look at what lies there.
            Some(_) => self.store.0.look_again(name),
        }
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
        // What is doomed may be what others stand on, and is replaced by no delta.
        let delta = if self.store.0.finds_node(&name)? { None } else { self.delta(&node, old)? };
        let base = match delta {
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
        self.nodes.insert(name, Arc::new(Loaded { node, base, at: None }));
        Ok(name)
    }
}

fn check_parent(inner: &Inner, read: &heed::RoTxn<'_>, reference: &[u8], record: &Record) -> Result<()> {
    let index = &inner.index;
    let branch = format!("{}/{}", record.experiment, record.branch);
    if let Some(head) = index.get(read, &index.refs, reference)? {
        let head = index.checkpoint_id(&head, &format!("branch {branch}"))?;
        // Of a parent that was removed meanwhile, what counts is the ancestor that remains: there its branch is now.
        if refs::remaining(index, read, record.parent)? != Some(head) {
            let parent = record.parent.map_or_else(|| "none".into(), |parent| parent.short());
            let what =
                format!("branch {branch} is at {}, not at {parent}, the parent of this checkpoint: another keeper grows it", head.short());
            let advice = "`fermata goto` to that parent begins a branch of its own there; to the branch by its name, goes on from its head";
            return Err(Error::refused(what, advice));
        }
    }
    let Some(parent) = &record.parent else { return Ok(()) };
    if is_known(index, read, parent)? {
        return Ok(());
    }
    Err(Error::missing(format!("checkpoint {parent}, the parent of this one"), "it was removed, or belongs to another store"))
}

/// Whether a checkpoint is here, or was and is remembered.
fn is_known(index: &Index, read: &heed::RoTxn<'_>, id: &CheckpointId) -> Result<bool> {
    Ok(index.has(read, &index.records, id.as_bytes())? || refs::parent_of_removed(index, read, id)?.is_some())
}

/// How a node is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Full,
    Delta,
    /// As a delta to a base that is gone: of no use.
    Broken,
}

/// Enters a pack and everything in it. `form` tells how a node is stored.
pub(crate) fn add_objects(index: &Index, write: &mut RwTxn<'_>, pack: &Published, form: impl Fn(&NodeName) -> Form) -> Result<()> {
    let number = index.number_pack(write, &pack.id)?;
    let entries = pack.contents.entries.iter();
    let mut objects: Vec<_> = entries
        .filter(|entry| entry.kind != Kind::Record)
        .flat_map(|entry| entry.names.iter().zip(0..).map(move |(name, place)| (entry, name, place)))
        .collect();
    // Neighbours in the tree go in one after the other.
    objects.sort_by_cached_key(|(_, name, _)| index.called(name));
    let pages = objects.iter().filter(|(entry, ..)| entry.kind == Kind::Pages).count();
    let settling = index.settling(write, &index.pages, pages)?;
    for (entry, name, place) in objects {
        let location = Location::Pack { pack: number, offset: entry.offset, place, length: entry.length }.encode();
        let (db, before) = match entry.kind {
            // A node that others are deltas to must be found full, even if somebody else stored it as a delta meanwhile.
            Kind::Nodes if form(&NodeName(*name)) == Form::Full => {
                index.put(write, &index.nodes, name, location.as_ref())?;
                continue;
            }
            Kind::Nodes if form(&NodeName(*name)) == Form::Broken => continue,
            Kind::Nodes => (&index.nodes, index.put_new(write, &index.nodes, name, location.as_ref(), Settling::Later)?),
            Kind::Blob | Kind::Record => (&index.blobs, index.put_new(write, &index.blobs, name, location.as_ref(), Settling::Later)?),
            Kind::Pages => (&index.pages, index.put_new(write, &index.pages, name, location.as_ref(), settling)?),
        };
        // Whoever stores a delta found no such node before (see `save`). One that is doomed came since, so that the collection that dooms it waits for this writer, and takes
        // it back.
        let is_doomed = |before: &[u8]| entry.kind != Kind::Nodes && Location::is_doomed(before);
        let goes = |before: &[u8]| is_doomed(before) || !matches!(Location::decode(before), Some(Location::Pack { .. }));
        if before.as_deref().is_some_and(goes) {
            index.put(write, db, name, location.as_ref())?;
        }
    }
    Ok(())
}
