//! Sending checkpoints to a remote: what it lacks of them is packed anew and put there.

use super::{
    CopyStage, Name, Remote,
    catalog::{Catalog, pack_name},
    checkpoints_on, identity, image,
    image::ImageRecord,
    lease::{Going, Lease, unique},
    lines, place, record_name,
};
use crate::{
    Error, Hold, Progress, Record, Result, Store,
    error::Named,
    hash,
    index::Location,
    node::Stored,
    pack::PackBuilder,
    table::{Nodes as _, top_level},
};
use fermata_types::{BlobName, CheckpointId, ImageId, NodeName, PAGE_SIZE, PackId, PageBuf, PageName, ZERO_PAGE};
use std::{
    borrow::Cow,
    collections::{BTreeSet, HashSet, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// A pack is sent when it has so many bytes: large enough for the way, small enough to be sent again.
const PACK_BYTES: u64 = 32 << 20;
/// Checkpoints that are planned and sent together at most: each is held, by an open file.
const GROUP_MAX: usize = 256;

type Records = Vec<(CheckpointId, Record)>;

/// How to push.
#[derive(Debug, Clone)]
pub struct PushOptions {
    /// Packs sent at a time.
    pub jobs: usize,
    /// Send the golden images, too. Else a checkpoint can be used only where its images are; pages of memory that lie in one are sent all the same.
    pub images: bool,
    /// What the remote is: another place is refused. None: whatever is there, and an empty place becomes a remote.
    pub identity: Option<String>,
}

impl Default for PushOptions {
    fn default() -> Self {
        Self { jobs: 4, images: true, identity: None }
    }
}

/// What was pushed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pushed {
    /// Checkpoints that the remote has now and had not.
    pub checkpoints: u64,
    /// Pages that were sent.
    pub pages: u64,
    /// Packs that were made for it.
    pub packs: u64,
    /// Bytes that were sent, without records.
    pub bytes: u64,
    /// Golden images that the remote has now and had not.
    pub images: u64,
    /// Checkpoints that were removed here before they could be sent.
    pub gone: Vec<CheckpointId>,
}

impl Store {
    /// Puts checkpoints on a remote: only what it lacks travels, and a checkpoint can be seen there once all of it is there. Interrupted, it leaves packs
    /// there that are not sent again. What somebody removes here meanwhile is sent if it was begun, and else left out.
    ///
    /// Golden images that the remote lacks must be open: see [`Store::remote_images`].
    pub fn push(
        &self,
        remote: &dyn Remote,
        ids: &[CheckpointId],
        options: &PushOptions,
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<Pushed> {
        self.send(remote, ids, options, false, progress)
    }

    /// The same for a remote of which something was lost: also of checkpoints whose records are there it is sent what is not, and no node that is there is taken to have all
    /// that is below it. Golden images that are open come along in the same way. What is in packs whose tables of contents can be read counts as there.
    pub fn repair_remote(
        &self,
        remote: &dyn Remote,
        ids: &[CheckpointId],
        options: &PushOptions,
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<Pushed> {
        self.send(remote, ids, options, true, progress)
    }

    fn send(
        &self,
        remote: &dyn Remote,
        ids: &[CheckpointId],
        options: &PushOptions,
        repair: bool,
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<Pushed> {
        identity::settle(remote, options.identity.as_deref())?;
        Lease::during(remote, |lease| {
            let going = Going::look(remote)?;
            let (mut records, gone) = self.still_here(ids)?;
            // Those of checkpoints that are there already, too: they may have been sent without.
            let mut images: BTreeSet<_> =
                records.iter().filter(|_| options.images).flat_map(|(_, record)| record.images.iter().copied()).collect();
            let mut shown = BTreeSet::new();
            if !images.is_empty() {
                shown = staying_images(remote, &going)?;
                images.retain(|image| if repair { self.open_image(image).is_some() } else { !shown.contains(image) });
            }
            let experiments: HashSet<_> = records.iter().map(|(_, record)| record.experiment.clone()).collect();
            let mut known = HashSet::new();
            for experiment in experiments {
                known.extend(checkpoints_on(remote, &experiment)?);
            }
            records.retain(|(id, _)| repair || !known.contains(id));
            if records.is_empty() && images.is_empty() {
                return Ok(Pushed { gone, ..Pushed::default() });
            }
            let jobs = options.jobs.max(1);
            let catalog = Catalog::read(self, remote, jobs, &going, repair, &mut |at| progress(CopyStage::Look, at))?;
            let through = repair.then(HashSet::new);
            let mut plan = Plan { store: self, there: catalog.staying().copied().collect(), fresh: HashSet::new(), through };
            drop(catalog);
            let uploads = Uploads::new(remote, jobs);
            thread::scope(|scope| {
                for _ in 0..jobs {
                    scope.spawn(|| uploads.serve());
                }
                let mut push = Push::new(self, remote, &uploads, Some(lease), known);
                (push.told.gone, push.shown) = (gone, shown);
                let sent = push.all(&mut plan, &images, &records, progress);
                uploads.close();
                sent.map(|()| push.told)
            })
        })
    }

    /// The records of checkpoints, and those that somebody has removed.
    fn still_here(&self, ids: &[CheckpointId]) -> Result<(Records, Vec<CheckpointId>)> {
        let (mut records, mut gone) = (Vec::with_capacity(ids.len()), Vec::new());
        for id in ids {
            match self.record(id) {
                Ok(record) => records.push((*id, record)),
                Err(Error::Missing { .. }) => gone.push(*id),
                Err(error) => return Err(error),
            }
        }
        Ok((records, gone))
    }

    /// The golden images that a remote has.
    pub fn remote_images(&self, remote: &dyn Remote) -> Result<BTreeSet<ImageId>> {
        staying_images(remote, &Going::look(remote)?)
    }
}

/// The golden images of which a remote has a record that is not about to go.
fn staying_images(remote: &dyn Remote, going: &Going) -> Result<BTreeSet<ImageId>> {
    let stays = |(id, objects): (ImageId, BTreeSet<String>)| objects.iter().any(|object| !going.images.contains(object)).then_some(id);
    Ok(image::all(remote)?.into_iter().filter_map(stays).collect())
}

/// What a remote lacks of a checkpoint.
struct Wanted {
    id: CheckpointId,
    experiment: String,
    /// The nearest ancestor that is here.
    parent: Option<CheckpointId>,
    pages: Vec<PageName>,
    /// Those below a node come before it. Beside each one the base that it may be sent as a delta to: one that was there before.
    nodes: Vec<(NodeName, Option<NodeName>)>,
    blobs: Vec<BlobName>,
}

/// Finds out what is lacking.
struct Plan<'a> {
    store: &'a Store,
    /// What the remote has, or will have once all that was planned is sent.
    there: HashSet<Name>,
    /// Of them the nodes of the checkpoint that is being planned.
    fresh: HashSet<NodeName>,
    /// Those below which it was looked, where what is there vouches for nothing below it. None: it does.
    through: Option<HashSet<NodeName>>,
}

impl Plan<'_> {
    fn wanted(&mut self, id: &CheckpointId, record: &Record) -> Result<Wanted> {
        let (experiment, parent) = (record.experiment.clone(), record.parent);
        let mut wanted = Wanted { id: *id, experiment, parent, pages: Vec::new(), nodes: Vec::new(), blobs: Vec::new() };
        self.fresh.clear();
        for part in &record.parts {
            for root in part.tables.values() {
                if let Some(node) = root.node {
                    self.below(&node, top_level(root)?, &mut wanted)?;
                }
            }
            wanted.blobs.extend(part.blobs.values().filter(|blob| self.there.insert(blob.0)));
        }
        self.in_the_order_of_packs(&mut wanted.pages)?;
        Ok(wanted)
    }

    fn below(&mut self, name: &NodeName, level: u8, wanted: &mut Wanted) -> Result<()> {
        let is_lacking = self.there.insert(name.0);
        if !self.through.as_mut().map_or(is_lacking, |through| through.insert(*name)) {
            return Ok(());
        }
        let loaded = self.store.0.load_level(name, level)?;
        for (_, entry) in loaded.node.iter() {
            match level {
                // The page of zeros is named where one lies over a golden image's, and is stored nowhere.
                0 if entry != ZERO_PAGE.0 && self.there.insert(entry) => wanted.pages.push(PageName(entry)),
                0 => {}
                _ => self.below(&NodeName(entry), level - 1, wanted)?,
            }
        }
        if !is_lacking {
            return Ok(());
        }
        self.fresh.insert(*name);
        let was_there = |base: &NodeName| self.there.contains(&base.0) && !self.fresh.contains(base);
        wanted.nodes.push((*name, loaded.base.filter(was_there)));
        Ok(())
    }

    /// Pages that lie in one frame are read together.
    fn in_the_order_of_packs(&self, pages: &mut Vec<PageName>) -> Result<()> {
        let inner = &self.store.0;
        let read = inner.index.read()?;
        let mut placed = Vec::with_capacity(pages.len());
        for name in pages.drain(..) {
            match inner.locate_page(&read, &name)? {
                Location::Image { image, block } => placed.push((true, image, u64::from(block), 0, name)),
                Location::Pack { pack, offset, place, .. } => placed.push((false, pack, offset, place, name)),
            }
        }
        placed.sort_unstable();
        pages.extend(placed.into_iter().map(|(.., name)| name));
        Ok(())
    }
}

/// Sends.
pub(super) struct Push<'a> {
    store: &'a Store,
    remote: &'a dyn Remote,
    uploads: &'a Uploads<'a>,
    /// None for whoever needs none, since he removes.
    lease: Option<&'a Lease<'a>>,
    builder: Option<PackBuilder<Vec<u8>>>,
    /// Checkpoints that the remote had before.
    known: HashSet<CheckpointId>,
    /// Golden images whose records it has.
    shown: BTreeSet<ImageId>,
    pub told: Pushed,
}

impl<'a> Push<'a> {
    pub fn new(
        store: &'a Store,
        remote: &'a dyn Remote,
        uploads: &'a Uploads<'a>,
        lease: Option<&'a Lease<'a>>,
        known: HashSet<CheckpointId>,
    ) -> Self {
        Self { store, remote, uploads, lease, builder: None, known, shown: BTreeSet::new(), told: Pushed::default() }
    }

    /// Sends golden images, and then the checkpoints that stand on them.
    fn all(
        &mut self,
        plan: &mut Plan<'_>,
        images: &BTreeSet<ImageId>,
        records: &[(CheckpointId, Record)],
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<()> {
        for id in images {
            image::Sender { store: self.store, id: *id, there: &mut plan.there }.send(self, progress)?;
        }
        let (mut done, count) = (0, records.len() as u64);
        for group in records.chunks(GROUP_MAX) {
            let mut wanted = Vec::with_capacity(group.len());
            for (id, _) in group {
                progress(CopyStage::Compare, Progress { done, total: count });
                wanted.extend(self.held(plan, id)?);
                done += 1;
            }
            let total = self.told.pages + wanted.iter().map(|(wanted, _)| wanted.pages.len() as u64).sum::<u64>();
            self.send_all(wanted, total, progress)?;
        }
        Ok(())
    }

    /// What the remote lacks of a checkpoint, which stays here until that is sent. None: somebody has removed it.
    ///
    /// It is held before anything is planned: the next ones count on what was planned on its account.
    fn held(&mut self, plan: &mut Plan<'_>, id: &CheckpointId) -> Result<Option<(Wanted, Hold)>> {
        // Its record is read again: its parent may have gone since.
        match self.store.hold(id).and_then(|hold| Ok((hold, self.store.record(id)?))) {
            Ok((hold, record)) => Ok(Some((plan.wanted(id, &record)?, hold))),
            Err(Error::Missing { .. }) => {
                self.told.gone.push(*id);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub fn page(&mut self, name: &PageName, content: &PageBuf) -> Result<()> {
        self.builder()?.add_page(name, content)?;
        self.told.pages += 1;
        self.seal_if(PACK_BYTES).map(drop)
    }

    /// Sends a node in the form in which it is stored. Those below it come before it.
    pub fn node(&mut self, name: &NodeName, stored: &[u8]) -> Result<()> {
        self.builder()?.add_node(name, stored)?;
        if self.seal_if(PACK_BYTES)? { self.uploads.settle() } else { Ok(()) }
    }

    /// Waits until all that was sent is there.
    pub fn settle(&mut self) -> Result<()> {
        self.seal_if(0)?;
        self.uploads.settle()
    }

    /// The record of a golden image, when all of it is there, unless that is there, too.
    pub fn put_image(&mut self, id: &ImageId, record: &ImageRecord) -> Result<()> {
        if self.shown.contains(id) {
            return Ok(());
        }
        let object = image::name(id, &unique(self.remote)?);
        let show = || self.remote.put(&object, record.encode()).map_err(Error::io("write", &place(self.remote, &object)));
        self.counted_on(std::slice::from_ref(&object), show)?;
        self.told.images += 1;
        Ok(())
    }

    /// Shows objects that stand on all that was there; and takes them back if somebody has removed any of that since, and taken us for dead.
    fn counted_on(&self, objects: &[String], show: impl FnOnce() -> Result<()>) -> Result<()> {
        let check = || self.lease.map_or(Ok(()), Lease::check);
        check()?;
        // It is looked where showing them failed, too: some may be there.
        let (shown, checked) = (show(), check());
        if self.lease.is_some_and(Lease::is_lost) {
            objects.iter().for_each(|object| _ = self.remote.remove(object));
        }
        shown.and(checked)
    }

    pub fn blob(&mut self, name: &BlobName, bytes: &[u8]) -> Result<()> {
        self.builder()?.add_blob(name, bytes)?;
        self.seal_if(PACK_BYTES).map(drop)
    }

    /// Sends checkpoints, several small ones together: packs are to be few and large.
    fn send_all(&mut self, all: Vec<(Wanted, Hold)>, total: u64, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        let mut group = Vec::new();
        let mut packs = self.told.packs;
        for (wanted, hold) in all {
            self.send_contents(&wanted, total, progress)?;
            group.push((wanted, hold));
            if self.told.packs > packs {
                self.complete(std::mem::take(&mut group))?;
                packs = self.told.packs;
            }
        }
        self.complete(group)
    }

    /// Sends what nodes and records name.
    fn send_contents(&mut self, wanted: &Wanted, total: u64, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        let mut content = [0; PAGE_SIZE];
        for name in &wanted.pages {
            self.store.read_page(name, &mut content)?;
            self.page(name, &content)?;
            progress(CopyStage::Transfer, Progress { done: self.told.pages, total });
        }
        for name in &wanted.blobs {
            let bytes = self.store.read_blob(name)?;
            self.blob(name, &bytes)?;
        }
        Ok(())
    }

    /// Sends the nodes and records of checkpoints whose contents were sent. Nobody may see a node before what is below it is there, nor a record.
    fn complete(&mut self, group: Vec<(Wanted, Hold)>) -> Result<()> {
        self.settle()?;
        for (name, base) in group.iter().flat_map(|(wanted, _)| &wanted.nodes) {
            let bytes = self.stored(name, base.as_ref())?;
            self.node(name, &bytes)?;
        }
        self.settle()?;
        let records: Vec<_> = group.iter().map(|(wanted, _)| record_name(&wanted.experiment, &wanted.id)).collect();
        self.counted_on(&records, || group.iter().try_for_each(|(wanted, _)| self.record(wanted)))?;
        self.told.checkpoints += group.len() as u64;
        Ok(())
    }

    /// A node in the form in which it is sent.
    fn stored(&self, name: &NodeName, base: Option<&NodeName>) -> Result<Vec<u8>> {
        let inner = &self.store.0;
        let (stored, _) = inner.stored_node(name)?;
        Ok(match &stored {
            // A collection may have given it another base, or none, since that was asked.
            Stored::Delta(delta) if base == Some(&delta.base) => stored.encode(),
            _ => Stored::encode_full(&inner.load(name)?.node),
        })
    }

    fn record(&self, wanted: &Wanted) -> Result<()> {
        let index = &self.store.0.index;
        let bytes = {
            let read = index.read()?;
            // It is held, so that one that is removed meanwhile is still whole.
            let bytes = index.record(&read, &wanted.id)?;
            bytes
                .map(Cow::into_owned)
                .ok_or_else(|| Error::missing(Named("checkpoint", wanted.id.as_bytes()).to_string(), "it was removed meanwhile"))?
        };
        let object = record_name(&wanted.experiment, &wanted.id);
        // Who descends from one that will not be there is not to lose its line.
        let parent = Record::decode(&bytes, &wanted.id, &place(self.remote, &object))?.parent;
        if let Some(parent) = parent.filter(|parent| wanted.parent != Some(*parent) && !self.known.contains(parent)) {
            lines::remember(self.remote, &wanted.experiment, &(parent, wanted.parent))?;
        }
        self.remote.put(&object, bytes).map_err(Error::io("write", &place(self.remote, &object)))
    }

    fn builder(&mut self) -> Result<&mut PackBuilder<Vec<u8>>> {
        Ok(match &mut self.builder {
            Some(builder) => builder,
            none => {
                let mut builder = PackBuilder::new(Vec::with_capacity(PACK_BYTES as usize), self.store.0.rest())?;
                // So that no pack is ever called as one that is about to be removed; and that those of a push that was taken for dead are known.
                let number = self.lease.map_or_else(|| unique(self.remote), |lease| Ok(lease.number().to_owned()))?;
                builder.add_blob(&hash::blob(number.as_bytes()), number.as_bytes())?;
                none.insert(builder)
            }
        })
    }

    /// Sends the pack if it has so many bytes.
    fn seal_if(&mut self, least: u64) -> Result<bool> {
        let Some(builder) = self.builder.take_if(|builder| builder.length() >= least) else { return Ok(false) };
        let (id, bytes) = builder.into_bytes()?;
        self.told.packs += 1;
        self.told.bytes += bytes.len() as u64;
        self.uploads.send(id, bytes)?;
        Ok(true)
    }
}

/// Packs on their way, several at a time.
pub(super) struct Uploads<'a> {
    remote: &'a dyn Remote,
    /// That wait at most.
    most: usize,
    state: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    packs: VecDeque<(PackId, Vec<u8>)>,
    under_way: usize,
    closed: bool,
    error: Option<Error>,
}

impl<'a> Uploads<'a> {
    pub fn new(remote: &'a dyn Remote, most: usize) -> Self {
        Self { remote, most, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, until: impl Fn(&Queue) -> bool) -> MutexGuard<'_, Queue> {
        self.changed.wait_while(self.lock(), |queue| !until(queue)).unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a pack over; fails if one before it did.
    fn send(&self, id: PackId, bytes: Vec<u8>) -> Result<()> {
        let mut queue = self.wait(|queue| queue.packs.len() < self.most || queue.error.is_some());
        if let Some(error) = queue.error.take() {
            return Err(error);
        }
        queue.packs.push_back((id, bytes));
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until all are there.
    fn settle(&self) -> Result<()> {
        let mut queue = self.wait(|queue| queue.error.is_some() || queue.packs.is_empty() && queue.under_way == 0);
        queue.error.take().map_or(Ok(()), Err)
    }

    /// No more come, and those that wait are not sent.
    pub fn close(&self) {
        let mut queue = self.lock();
        queue.packs.clear();
        queue.closed = true;
        self.changed.notify_all();
    }

    /// Sends until it is closed.
    pub fn serve(&self) {
        loop {
            let mut queue = self.wait(|queue| queue.closed || !queue.packs.is_empty());
            let Some((id, bytes)) = queue.packs.pop_front() else { return };
            queue.under_way += 1;
            self.changed.notify_all();
            drop(queue);
            let object = pack_name(&id);
            let sent = self.remote.put(&object, bytes).map_err(Error::io("write", &place(self.remote, &object)));
            let mut queue = self.lock();
            queue.under_way -= 1;
            if let Err(error) = sent {
                queue.error.get_or_insert(error);
            }
            self.changed.notify_all();
        }
    }
}
