//! Removing checkpoints from a remote, and what nothing there needs any more.
//!
//! Hosts may push meanwhile, and a place for objects has no locks. So what is about to go is announced first: whoever begins to push then does not count on it. Those
//! who began before have a lease, and are waited for. What they brought counts when it is looked a second time what is needed; that is put into packs that stay, and
//! only then the announced packs are removed. After a crash at any step the remote is whole, and the next one who removes goes on with what was announced.
//!
//! Where a node is found everything below it is believed to be there. So no pack stays that has a node which nothing needs; and what stays is needed for that reason.

use super::{
    CopyStage, Name, Remote,
    catalog::{Place, RemotePack, packs_on},
    check_format, damaged, image,
    image::ImageRecord,
    lease,
    lease::{Claim, Going},
    lines, list, place,
    push::{Push, Uploads},
    record, record_name,
    shelf::Shelf,
    unescape,
};
use crate::{Error, Progress, Record, Result, Store, hash, node::Stored, pack::Kind, refs::parents_first};
use fermata_types::{BlobName, CheckpointId, ImageId, NodeName, PackId, PageBuf, PageName, ZERO_PAGE};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    thread,
    time::Duration,
};

/// A pack of which less is needed, in percent, is written anew.
const REWRITE_BELOW: u64 = 50;
/// Packs below so many bytes are put together when there are so many of them.
const SMALL_BYTES: u64 = 4 << 20;
const SMALL_MANY: usize = 16;

/// What to remove from a remote, and how.
#[derive(Debug, Clone)]
pub struct PruneOptions {
    /// Checkpoints, by experiment. None of them may be the head of a branch there, or tagged.
    pub checkpoints: BTreeMap<String, BTreeSet<CheckpointId>>,
    /// Only find out what would go.
    pub dry_run: bool,
    /// Transfers at a time.
    pub jobs: usize,
    /// Between two looks whether pushes have ended.
    pub look_every: Duration,
    /// A push that gives no sign of life over so many looks is taken for dead; 0: whoever calls knows that all pushes under way are.
    pub looks: u32,
}

impl Default for PruneOptions {
    fn default() -> Self {
        Self { checkpoints: BTreeMap::new(), dry_run: false, jobs: 4, look_every: Duration::from_secs(5), looks: 60 }
    }
}

/// What was removed from a remote, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Pruned {
    /// Checkpoints.
    pub checkpoints: u64,
    /// Golden images that no checkpoint stands on.
    pub images: u64,
    /// Packs that went.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that were needed of them, and were written anew.
    pub rewritten_bytes: u64,
    /// Pushes that were taken for dead.
    pub dead_pushes: u64,
    /// Checkpoints that stay, for a branch or a tag has come to be on them meanwhile.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub stayed: BTreeSet<CheckpointId>,
}

impl Store {
    /// Removes checkpoints from a remote, and all that is needed by none of those that stay. The store is where packs are kept meanwhile; what is in it does not matter.
    pub fn prune_remote(
        &self,
        remote: &dyn Remote,
        options: &PruneOptions,
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<Pruned> {
        check_format(remote, false)?;
        for (experiment, ids) in &options.checkpoints {
            self.check_unnamed(remote, experiment, ids)?;
        }
        let mut prune = Prune { shelf: Shelf::new(self, remote, options.jobs.max(1)), remote, options, told: Pruned::default() };
        if options.dry_run {
            prune.plan(&Going::look(remote)?, progress)?;
        } else {
            prune.all(progress)?;
        }
        let Prune { shelf, told, .. } = prune;
        shelf.clear();
        Ok(told)
    }

    fn check_unnamed(&self, remote: &dyn Remote, experiment: &str, ids: &BTreeSet<CheckpointId>) -> Result<()> {
        match self.remote_refs(remote, experiment)?.into_iter().find(|(_, id)| ids.contains(id)) {
            None => Ok(()),
            Some((name, id)) => Err(Error::refused(
                format!("checkpoint {} is where {name} is on {remote}", id.short()),
                "what a branch or a tag is on stays there; push the branch further, or name others",
            )),
        }
    }
}

/// What somebody sees on a remote before he looks into its packs, which then have all that is below it: the contents of an object come before it.
struct Needs {
    records: Vec<Record>,
    /// The records of golden images. An image comes before who stands on it.
    images: BTreeMap<ImageId, BTreeSet<String>>,
    packs: HashSet<PackId>,
}

/// What is needed.
#[derive(Default)]
struct Live {
    names: HashSet<Name>,
    /// With their levels.
    nodes: Vec<(u8, NodeName)>,
    /// Nodes that are stored upon others.
    bases: HashMap<NodeName, NodeName>,
    /// The record to believe of each golden image.
    images: BTreeMap<ImageId, String>,
}

/// A push that is waited for: what it said last, for how many looks that has been so, and after how many it is taken for dead.
struct Awaited {
    text: Vec<u8>,
    looks: u32,
    patience: u32,
}

struct Prune<'a> {
    shelf: Shelf<'a>,
    remote: &'a dyn Remote,
    options: &'a PruneOptions,
    told: Pruned,
}

impl Prune<'_> {
    fn all(&mut self, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        let mut claim = Claim::take(self.remote)?;
        for (experiment, ids) in &self.options.checkpoints {
            self.remove_records(experiment, ids)?;
        }
        let more = self.plan(&claim.going, progress)?;
        claim.announce(more)?;
        self.wait(&mut claim, progress)?;
        // What came meanwhile counts, and what stays is to be whole.
        let needs = self.needs()?;
        self.look_again(&claim.going, progress)?;
        claim.announce(Going { packs: self.shelf.catalog().going.clone(), ..Going::default() })?;
        let live = self.mark(&needs, &claim.going, true, progress)?;
        self.told.rewritten_bytes = self.rewrite(&live, &claim.going, progress)?;
        claim.check()?;
        let total = claim.going.packs.len() as u64;
        claim.going.images.iter().try_for_each(|object| self.remove(object))?;
        for (done, pack) in (0..).zip(&claim.going.packs) {
            progress(CopyStage::Remove, Progress { done, total });
            self.remove(&super::catalog::pack_name(pack))?;
        }
        claim.end()
    }

    /// Looks what is there. What stands on a pack that cannot be read is not known, and must not go.
    fn look_again(&mut self, going: &Going, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        self.shelf.look_again(going, false, progress)?;
        match self.shelf.catalog().unreadable.first() {
            None => Ok(()),
            Some(why) => Err(Error::refused(
                format!("a pack at {} cannot be read, and what stands on it is not known: {why}", self.remote),
                "restore or remove that pack, then `fermata remote verify --repair`",
            )),
        }
    }

    fn remove(&self, object: &str) -> Result<()> {
        self.remote.remove(object).map_err(Error::io("remove", &place(self.remote, object)))
    }

    /// Removes records. Those who descend from them learn from whom they descend now.
    ///
    /// From the oldest on: whoever dies on the way leaves none that nothing after it descends from. Such a one would be taken for the end of a line, and every policy keeps those.
    fn remove_records(&mut self, experiment: &str, ids: &BTreeSet<CheckpointId>) -> Result<()> {
        let there: HashSet<_> = super::checkpoints_on(self.remote, experiment)?.into_iter().collect();
        let (mut records, mut stored) = (BTreeMap::new(), HashMap::new());
        for id in ids {
            let (record, bytes) = record(self.remote, experiment, id)?;
            let (parent, _) = lines::nearest(self.remote, experiment, record.parent, |id| Ok(there.contains(id)))?;
            records.insert(*id, Record { parent, ..record });
            stored.insert(*id, bytes);
        }
        let oldest_first = parents_first(records);
        let mut ancestors: HashMap<CheckpointId, Option<CheckpointId>> = HashMap::new();
        for (id, record) in &oldest_first {
            // A parent that goes, too, came before.
            let ancestor = record.parent.and_then(|parent| ancestors.get(&parent).copied().unwrap_or(Some(parent)));
            lines::put(self.remote, experiment, &(*id, ancestor))?;
            ancestors.insert(*id, ancestor);
        }
        let removed = oldest_first.iter().try_for_each(|(id, _)| self.remove(&record_name(experiment, id)));
        // What a branch or a tag has come to be on since it was looked is put back, whatever failed: nothing below it has gone yet. See `Store::set_remote_ref`.
        let named: BTreeSet<_> = self.shelf.store.remote_refs(self.remote, experiment)?.into_values().collect();
        for id in named.intersection(ids) {
            let object = record_name(experiment, id);
            self.remote.put(&object, stored[id].clone()).map_err(Error::io("write", &place(self.remote, &object)))?;
            self.told.stayed.insert(*id);
        }
        removed
    }

    fn needs(&self) -> Result<Needs> {
        let records = self.records()?;
        let images = image::all(self.remote)?;
        let packs = packs_on(self.remote)?.into_iter().map(|(id, _)| id).collect();
        Ok(Needs { records, images, packs })
    }

    /// The records that stay.
    fn records(&self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for (name, _) in list(self.remote, "records/")? {
            let named = name.split_once('/').and_then(|(experiment, id)| Some((unescape(experiment)?, id.parse().ok()?)));
            // What else lies there is none of ours.
            let Some((experiment, id)): Option<(String, CheckpointId)> = named else { continue };
            // What is there again though it was removed somebody has just pushed: it is to be whole.
            if !self.options.dry_run || !self.options.checkpoints.get(&experiment).is_some_and(|gone| gone.contains(&id)) {
                records.push(record(self.remote, &experiment, &id)?.0);
            }
        }
        Ok(records)
    }

    /// What is to go, beside what is announced already.
    fn plan(&mut self, going: &Going, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<Going> {
        let needs = self.needs()?;
        self.look_again(going, progress)?;
        let live = self.mark(&needs, going, false, progress)?;
        self.told.checkpoints = self.options.checkpoints.values().map(|ids| ids.difference(&self.told.stayed).count() as u64).sum();
        let mut more = Going::default();
        let is_needed = |id: &ImageId, object: &String| live.images.get(id) == Some(object);
        for (id, objects) in needs.images {
            self.told.images += u64::from(!live.images.contains_key(&id));
            more.images.extend(objects.into_iter().filter(|object| !is_needed(&id, object) && !going.images.contains(object)));
        }
        let mut small = Vec::new();
        for (number, pack) in (0..).zip(&self.shelf.catalog().packs) {
            let needed = self.needed(number, pack, &live);
            if self.shelf.catalog().going.contains(&pack.id) || needed.is_none_or(|percent| percent < REWRITE_BELOW) {
                more.packs.insert(pack.id);
            } else if pack.length < SMALL_BYTES {
                small.push(pack.id);
            }
        }
        if small.len() >= SMALL_MANY {
            more.packs.extend(small);
        }
        let goes = |(number, pack): (u32, &RemotePack)| {
            more.packs.contains(&pack.id).then(|| (pack.length, self.needed_bytes(number, pack, &live)))
        };
        for (length, needed) in (0..).zip(&self.shelf.catalog().packs).filter_map(goes).collect::<Vec<_>>() {
            self.told.packs += 1;
            self.told.bytes += length;
            self.told.rewritten_bytes += needed;
        }
        Ok(more)
    }

    /// How much of a pack is needed, in percent. None: it must not stay, for it has a node that is not needed, or that stands upon one that is not.
    fn needed(&self, number: u32, pack: &RemotePack, live: &Live) -> Option<u64> {
        let is_sound = |name: &Name, at: Place| {
            let base = live.bases.get(&NodeName(*name));
            self.is_needed(name, at, live) && base.is_none_or(|base| live.names.contains(&base.0))
        };
        for (frame, entry) in (0..).zip(&pack.contents.entries).filter(|(_, entry)| entry.kind == Kind::Nodes) {
            if !(0..).zip(&entry.names).all(|(place, name)| is_sound(name, Place { pack: number, frame, place })) {
                return None;
            }
        }
        // The number that each pack begins with is needed by nobody, and by none less in another pack.
        let number_of_its_own =
            pack.contents.entries.first().filter(|entry| entry.kind == Kind::Blob && !live.names.contains(&entry.names[0]));
        let own = number_of_its_own.map_or(0, |entry| u64::from(entry.length));
        let all: u64 = pack.contents.entries.iter().map(|entry| u64::from(entry.length)).sum();
        Some(self.needed_bytes(number, pack, live) * 100 / (all - own).max(1))
    }

    /// Whether an object is needed, and is not found elsewhere.
    fn is_needed(&self, name: &Name, at: Place, live: &Live) -> bool {
        live.names.contains(name) && self.shelf.catalog().find(name) == Some(at)
    }

    fn needed_bytes(&self, number: u32, pack: &RemotePack, live: &Live) -> u64 {
        let of_frame = |(frame, entry): (u32, &crate::pack::contents::Entry)| {
            let needed =
                (0..).zip(&entry.names).filter(|(place, name)| self.is_needed(name, Place { pack: number, frame, place: *place }, live));
            u64::from(entry.length) * needed.count() as u64 / entry.names.len() as u64
        };
        (0..).zip(&pack.contents.entries).map(of_frame).sum()
    }

    /// What records need. `whole`: also what is in packs that stay, and all that is below that.
    fn mark(&mut self, needs: &Needs, going: &Going, whole: bool, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<Live> {
        let mut live = Live::default();
        let mut wave: Vec<NodeName> = Vec::new();
        for part in needs.records.iter().flat_map(|record| &record.parts) {
            wave.extend(part.tables.values().filter_map(|root| root.node));
            live.names.extend(part.blobs.values().map(|blob| blob.0));
        }
        for id in needs.records.iter().flat_map(|record| &record.images).collect::<BTreeSet<_>>() {
            let Some(objects) = needs.images.get(id) else { continue };
            let object = objects.iter().find(|object| !going.images.contains(*object)).or(objects.first()).expect("it has one");
            wave.extend(image::record(self.remote, object)?.root().node);
            live.images.insert(*id, object.clone());
        }
        let catalog = self.shelf.catalog();
        let stays = |pack: &&RemotePack| whole && needs.packs.contains(&pack.id) && !catalog.going.contains(&pack.id);
        let nodes = catalog.packs.iter().filter(stays).flat_map(|pack| &pack.contents.entries).filter(|entry| entry.kind == Kind::Nodes);
        wave.extend(nodes.flat_map(|entry| &entry.names).map(|name| NodeName(*name)));
        while !wave.is_empty() {
            wave = self.mark_wave(wave, &mut live, whole, progress)?;
        }
        Ok(live)
    }

    /// Looks at these nodes, and says which ones come next.
    fn mark_wave(
        &mut self,
        wave: Vec<NodeName>,
        live: &mut Live,
        whole: bool,
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<Vec<NodeName>> {
        let mut fresh = Vec::new();
        for name in wave.into_iter().filter(|name| live.names.insert(name.0)) {
            fresh.push((self.shelf.catalog().find(&name.0), name));
        }
        // Those of one frame together.
        fresh.sort_unstable();
        self.shelf.fetch(fresh.iter().map(|(_, name)| &name.0), progress)?;
        let (mut next, total) = (Vec::new(), fresh.len() as u64);
        for (done, (at, name)) in (0..).zip(fresh) {
            progress(CopyStage::Mark, Progress { done, total });
            let fetched = self.shelf.any_node(&name)?;
            for (_, entry) in fetched.node.iter().filter(|(_, entry)| *entry != ZERO_PAGE.0) {
                if fetched.node.level > 0 {
                    next.push(NodeName(entry));
                } else {
                    live.names.insert(entry);
                }
            }
            live.nodes.push((fetched.node.level, name));
            if let Some(base) = fetched.base {
                let stays = at.is_some_and(|at| !self.shelf.catalog().goes(&at));
                next.extend((whole && stays).then_some(base));
                live.bases.insert(name, base);
            }
        }
        Ok(next)
    }

    /// Waits until those who pushed when it was announced what goes have ended, or are dead.
    fn wait(&mut self, claim: &mut Claim<'_>, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        let mut awaited = BTreeMap::new();
        let patience = self.options.looks;
        awaited.extend(lease::pushes(self.remote)?.into_iter().map(|(name, text)| (name, Awaited { text, looks: 0, patience })));
        let mut total = awaited.len() as u64;
        while !awaited.is_empty() {
            progress(CopyStage::Wait, Progress { done: total - awaited.len() as u64, total });
            let is_silent = |(_, push): &(&String, &Awaited)| push.looks >= push.patience;
            let silent: BTreeSet<_> = awaited.iter().filter(is_silent).map(|(name, _)| name.clone()).collect();
            if !silent.is_empty() {
                // One that lives all the same finds its lease gone, and begins anew: it costs what it has sent.
                claim.announce(Going { dead: silent.clone(), ..Going::default() })?;
                for name in silent {
                    lease::break_lease(self.remote, &name)?;
                    awaited.remove(&name);
                    self.told.dead_pushes += 1;
                }
                // Whoever began before that was announced may count on what those had sent, and nobody has looked after these yet.
                let patience = PruneOptions::default().looks;
                for (name, text) in lease::pushes(self.remote)? {
                    total += u64::from(!awaited.contains_key(&name));
                    awaited.entry(name).or_insert(Awaited { text, looks: 0, patience });
                }
            }
            if awaited.is_empty() {
                break;
            }
            thread::sleep(self.options.look_every);
            let mut now: BTreeMap<_, _> = lease::pushes(self.remote)?.into_iter().collect();
            awaited = awaited
                .into_iter()
                .filter_map(|(name, push)| {
                    let text = now.remove(&name)?;
                    let looks = if text == push.text { push.looks + 1 } else { 0 };
                    Some((name, Awaited { text, looks, ..push }))
                })
                .collect();
        }
        Ok(())
    }

    /// Puts what is needed of packs that go, and is nowhere else, into packs that stay. How many bytes that took.
    fn rewrite(&mut self, live: &Live, going: &Going, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<u64> {
        let (store, remote) = (self.shelf.store, self.remote);
        let uploads = Uploads::new(remote, self.options.jobs.max(1));
        thread::scope(|scope| {
            for _ in 0..self.options.jobs.max(1) {
                scope.spawn(|| uploads.serve());
            }
            let mut push = Push::new(store, remote, &uploads, None, HashSet::new());
            let sent = self.send(&mut push, live, going, progress);
            uploads.close();
            sent.map(|()| push.told.bytes)
        })
    }

    fn send(&mut self, push: &mut Push<'_>, live: &Live, going: &Going, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        let (mut objects, mut nodes) = (Vec::new(), HashSet::new());
        for (number, pack) in (0..).zip(&self.shelf.catalog().packs).filter(|(_, pack)| self.shelf.catalog().going.contains(&pack.id)) {
            for (frame, entry) in (0..).zip(&pack.contents.entries) {
                let needed = (0..)
                    .zip(&entry.names)
                    .filter(|(place, name)| self.is_needed(name, Place { pack: number, frame, place: *place }, live));
                match entry.kind {
                    Kind::Nodes => nodes.extend(needed.map(|(_, name)| *name)),
                    kind => objects.extend(needed.map(|(_, name)| (kind, *name))),
                }
            }
        }
        self.shelf.fetch(objects.iter().map(|(_, name)| name).chain(&nodes), progress)?;
        let total = (objects.len() + nodes.len()) as u64;
        for (done, (kind, name)) in (0..).zip(&objects) {
            progress(CopyStage::Rewrite, Progress { done, total });
            self.send_object(push, *kind, name)?;
        }
        push.settle()?;
        let mut from_below: Vec<_> = live.nodes.iter().filter(|(_, name)| nodes.contains(&name.0)).collect();
        from_below.sort_unstable();
        for (done, (_, name)) in (objects.len() as u64..).zip(from_below) {
            progress(CopyStage::Rewrite, Progress { done, total });
            let bytes = self.shelf.object(name.as_bytes(), Kind::Nodes, "node")?;
            let bytes = match live.bases.get(name) {
                Some(base) if !live.names.contains(&base.0) => Stored::encode_full(&self.shelf.any_node(name)?.node),
                _ => bytes,
            };
            push.node(name, &bytes)?;
        }
        push.settle()?;
        for (id, object) in live.images.iter().filter(|(_, object)| going.images.contains(*object)) {
            let record: ImageRecord = image::record(self.remote, object)?;
            push.put_image(id, &record)?;
        }
        Ok(())
    }

    fn send_object(&mut self, push: &mut Push<'_>, kind: Kind, name: &Name) -> Result<()> {
        match kind {
            Kind::Pages => {
                let bytes = self.shelf.object(name, kind, "page")?;
                let page: &PageBuf = bytes.as_slice().try_into().expect("a page has its size");
                self.shelf.check(name, hash::page(page).as_bytes())?;
                push.page(&PageName(*name), page)
            }
            Kind::Blob => {
                let bytes = self.shelf.object(name, kind, "blob")?;
                self.shelf.check(name, hash::blob(&bytes).as_bytes())?;
                push.blob(&BlobName(*name), &bytes)
            }
            Kind::Nodes | Kind::Record => Err(damaged(self.remote, "packs/", "what is needed there is neither page nor blob")),
        }
    }
}
