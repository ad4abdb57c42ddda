//! Fetching checkpoints from a remote: what this store lacks of them is fetched, and goes through the writer like any checkpoint that is taken here.

use super::{
    CopyStage, Name, Remote, apart, check_format, damaged, image,
    image::{ImageRecord, Made},
    in_parallel, lines,
    lines::Link,
    record,
    shelf::{Fetched, Shelf, Spot},
};
use crate::{
    Error, Progress, Record, Result, Store, Writer, hash,
    hold::Presence,
    pack,
    refs::{parent_of_removed, remaining},
    removed,
    table::{Nodes as _, NodesMut as _},
};
use fermata_types::{BlobName, CheckpointId, ImageId, NodeName, PageBuf, PageName, ZERO_PAGE};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs::File,
    path::PathBuf,
    sync::Arc,
};

/// Checkpoints that are fetched together at most: the nodes of all that they lack are in memory meanwhile.
const GROUP_MAX: usize = 64;

/// How to pull.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// Packs fetched at a time.
    pub jobs: usize,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self { jobs: 4 }
    }
}

/// What was pulled.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulled {
    /// Checkpoints that the store has now and had not.
    pub checkpoints: u64,
    /// Packs that were fetched.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Golden images that were made.
    pub images: u64,
    /// Checkpoints that could not be had, for something of them is damaged or is not there, and why.
    pub left_out: Vec<(CheckpointId, String)>,
}

impl Store {
    /// Fetches checkpoints of an experiment from a remote: only what this store lacks travels. All that comes is checked against its name, and a checkpoint
    /// can be seen here once all of it is durable. Interrupted, it leaves packs that are not fetched again.
    ///
    /// An ancestor that is neither wanted nor here counts as removed, and so does one that is left out because the remote has not all of it. A checkpoint that was removed here comes back. Waits for a collection in the end, so it must
    /// not be called with a [`Writer`] in the same thread.
    pub fn pull(
        &self,
        remote: &dyn Remote,
        experiment: &str,
        ids: &[CheckpointId],
        options: &PullOptions,
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<Pulled> {
        self.begin_pull(remote, experiment, ids, options)?.finish(progress)
    }

    /// The same as [`pull`](Self::pull) in steps, so that golden images can be fetched before the checkpoints that stand on them.
    pub fn begin_pull<'a>(
        &'a self,
        remote: &'a dyn Remote,
        experiment: &str,
        ids: &[CheckpointId],
        options: &PullOptions,
    ) -> Result<Pull<'a>> {
        // What is here, and is not fetched for that reason, stays until all is entered.
        self.begin(remote, experiment, ids, options, Some(Presence::writer(self)?))
    }

    /// The same without `presence` for somebody who is present already, and ends it by [`Pull::finish_present`].
    pub(super) fn begin<'a>(
        &'a self,
        remote: &'a dyn Remote,
        experiment: &str,
        ids: &[CheckpointId],
        options: &PullOptions,
        presence: Option<Presence>,
    ) -> Result<Pull<'a>> {
        check_format(remote, false)?;
        self.0.forget_if_collected()?;
        let jobs = options.jobs.max(1);
        let (wanted, damaged) = self.lacking(remote, experiment, ids, jobs)?;
        let mut pull = Pull {
            shelf: Shelf::new(self, remote, jobs),
            ids: ids.to_vec(),
            wanted,
            images: Vec::new(),
            partial: presence.is_some(),
            presence,
            whole: HashSet::new(),
            stands_on: Vec::new(),
            gaps: HashMap::new(),
            told: Pulled::default(),
        };
        damaged.into_iter().try_for_each(|(id, error)| pull.leave_out(id, error))?;
        Ok(pull)
    }

    /// The records of those that are not here, parents before children; and those whose records are damaged.
    fn lacking(&self, remote: &dyn Remote, experiment: &str, ids: &[CheckpointId], jobs: usize) -> Result<(Vec<Wanted>, Vec<Damaged>)> {
        let index = &self.0.index;
        let lacking: BTreeSet<_> = {
            let read = index.read()?;
            let is_here = |id: &CheckpointId| index.has(&read, &index.records, id.as_bytes());
            ids.iter().map(|id| Ok((!is_here(id)?).then_some(*id))).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect()
        };
        let lacking: Vec<_> = lacking.into_iter().collect();
        let (mut records, mut damaged) = (HashMap::new(), Vec::new());
        in_parallel(
            jobs,
            &lacking,
            |id| apart(record(remote, experiment, id)),
            |id, found| {
                match found {
                    Ok((record, bytes)) => _ = records.insert(*id, Wanted { id: *id, record, bytes, between: Vec::new() }),
                    Err(error) => damaged.push((*id, error)),
                }
                Ok(())
            },
        )?;
        self.find_ancestors(remote, experiment, &mut records)?;
        let mut ordered = Vec::new();
        for id in lacking {
            // Up to the first that is here, or was taken already; no checkpoint is its own ancestor, for its id is the hash of what names its parent.
            let mut line: Vec<Wanted> = Vec::new();
            let mut at = Some(id);
            while let Some(wanted) = at.and_then(|id| records.remove(&id)) {
                at = nearest(&wanted.between, &wanted.record);
                line.push(wanted);
            }
            ordered.extend(line.into_iter().rev());
        }
        Ok((ordered, damaged))
    }

    /// Of those whose parents do not come and are not here: who was between them and the nearest that is.
    fn find_ancestors(&self, remote: &dyn Remote, experiment: &str, records: &mut HashMap<CheckpointId, Wanted>) -> Result<()> {
        let mut found = Vec::new();
        for wanted in records.values() {
            let is_there = |id: &CheckpointId| Ok(records.contains_key(id) || is_known(self, id)?);
            // Where it is damaged who they were, it is as if nobody had told.
            let (nearest, mut between) = apart(lines::nearest(remote, experiment, wanted.record.parent, is_there))?.unwrap_or_default();
            if let Some(id) = nearest.filter(|id| !records.contains_key(id)) {
                between.extend(self.removed_link(&id)?);
            }
            found.push((wanted.id, between));
        }
        for (id, between) in found {
            if let Some(wanted) = records.get_mut(&id) {
                wanted.between = between;
            }
        }
        Ok(())
    }

    /// What is remembered of a removed checkpoint: a collection may forget it before all is entered.
    pub(super) fn removed_link(&self, id: &CheckpointId) -> Result<Option<Link>> {
        let index = &self.0.index;
        let read = index.read()?;
        let is_removed = !index.has(&read, &index.records, id.as_bytes())? && parent_of_removed(index, &read, id)?.is_some();
        Ok(if is_removed { Some((*id, remaining(index, &read, Some(*id))?)) } else { None })
    }
}

/// Whether a checkpoint is here, or was.
fn is_known(store: &Store, id: &CheckpointId) -> Result<bool> {
    let index = &store.0.index;
    let read = index.read()?;
    Ok(index.has(&read, &index.records, id.as_bytes())? || parent_of_removed(index, &read, id)?.is_some())
}

/// A checkpoint that cannot be had, and why.
type Damaged = (CheckpointId, Error);

/// A checkpoint that is fetched.
struct Wanted {
    id: CheckpointId,
    record: Record,
    bytes: Vec<u8>,
    /// From its parent up to the nearest ancestor that is here or comes, as far as the remote tells.
    between: Vec<Link>,
}

impl Wanted {
    fn blobs(&self) -> impl Iterator<Item = &BlobName> {
        self.record.parts.iter().flat_map(|part| part.blobs.values())
    }
}

/// What of a checkpoint is looked after.
#[derive(Default)]
struct Contents {
    /// Nodes that were looked at.
    seen: HashSet<Name>,
    /// Those that the store lacks, each after those below it.
    nodes: Vec<NodeName>,
    pages: HashSet<PageName>,
}

/// The nearest ancestor of a checkpoint that is here or comes, by who was between.
fn nearest(between: &[Link], record: &Record) -> Option<CheckpointId> {
    between.last().map_or(record.parent, |(_, ancestor)| *ancestor)
}

/// A pull under way.
pub struct Pull<'a> {
    shelf: Shelf<'a>,
    /// All that was asked for.
    ids: Vec<CheckpointId>,
    wanted: Vec<Wanted>,
    /// Golden images that came, open, so that none is collected before the checkpoints are here that stand on it.
    images: Vec<File>,
    /// None if whoever asked for it is present.
    presence: Option<Presence>,
    /// Whether checkpoints that cannot be had are left out. Else they fail it.
    partial: bool,
    /// Nodes below which all is here, for whoever stands on all these golden images.
    whole: HashSet<Name>,
    stands_on: Vec<ImageId>,
    /// Of each one that was left out: itself, and who was between it and the nearest ancestor that is here.
    gaps: HashMap<CheckpointId, Vec<Link>>,
    told: Pulled,
}

impl Pull<'_> {
    /// The records of the checkpoints that come.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.wanted.iter().map(|wanted| &wanted.record)
    }

    /// Makes a golden image again from what the remote has of it, among the images of the store, and says where it lies; none: the remote does not have it. It is there
    /// whole or not at all, and is what its id says.
    pub fn image(&mut self, id: &ImageId, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<Option<PathBuf>> {
        let Some(record) = image::find(self.shelf.remote, id)? else { return Ok(None) };
        let made = self.make_image(id, &record, progress)?;
        let made = made.ok_or_else(|| damaged(self.shelf.remote, &format!("images/{id}"), "what it describes is another image"))?;
        let path = self.shelf.store.own_image(id);
        // One that somebody else has fetched meanwhile, and that a machine may stand on by now, must not become another file.
        let held = match image::in_use(&path) {
            Some(held) => held,
            None => made.place(&path)?,
        };
        self.images.push(held);
        Ok(Some(path))
    }

    /// Fetches and makes what the remote calls an image by this record. None: it is another one.
    pub(super) fn make_image(
        &mut self,
        id: &ImageId,
        record: &ImageRecord,
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<Option<Made>> {
        self.shelf.look(progress)?;
        let top = Spot::top(&record.root(), None)?;
        self.shelf.fetch_tables(top.into_iter().collect(), Vec::new(), progress)??;
        let made = image::make(&mut self.shelf, id, record, progress)?;
        self.shelf.nodes.clear();
        Ok(made)
    }

    /// Fetches all that is lacking, and puts the checkpoints into the store.
    pub fn finish(mut self, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<Pulled> {
        let (store, ids) = (self.shelf.store, self.ids.clone());
        let mut presence = self.presence.take();
        let pulled = self.finish_present(&mut presence, progress)?;
        removed::tell_of(store, &ids, pulled.checkpoints > 0)?;
        Ok(pulled)
    }

    /// The same for somebody who is present already, and who no longer is when it has succeeded. It waits for no collection: [`removed::tell_of`] is to be called.
    pub(super) fn finish_present(
        mut self,
        presence: &mut Option<Presence>,
        progress: &mut dyn FnMut(CopyStage, Progress),
    ) -> Result<Pulled> {
        let total = self.wanted.len() as u64;
        let wanted = std::mem::take(&mut self.wanted);
        if total > 0 {
            self.shelf.look(progress)?;
        }
        for (number, group) in (0..).zip(wanted.chunks(GROUP_MAX)) {
            self.bring(group, Progress { done: number * GROUP_MAX as u64, total }, progress)?;
        }
        let Self { shelf, images, told, .. } = self;
        let (packs, bytes) = shelf.fetched;
        if total > 0 || !images.is_empty() {
            shelf.clear();
        }
        presence.take();
        Ok(Pulled { packs, bytes, images: images.len() as u64, ..told })
    }

    /// Fetches what is lacking of these checkpoints, and puts them into the store. Those before them are there.
    fn bring(&mut self, group: &[Wanted], before: Progress, progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        self.fetch_all(group, progress)?;
        for (done, wanted) in (before.done..).zip(group) {
            progress(CopyStage::Enter, Progress { done, ..before });
            match apart(self.enter(wanted))? {
                Ok(()) => self.told.checkpoints += 1,
                Err(error) => {
                    let mut gap = vec![(wanted.id, wanted.record.parent)];
                    gap.extend(self.between(wanted));
                    self.gaps.insert(wanted.id, gap);
                    self.leave_out(wanted.id, error)?;
                }
            }
        }
        // What the next ones share with these is in the store.
        self.shelf.nodes.clear();
        Ok(())
    }

    /// Goes on without a checkpoint, if that is wanted.
    fn leave_out(&mut self, id: CheckpointId, error: Error) -> Result<()> {
        if !self.partial {
            return Err(error);
        }
        self.told.left_out.push((id, error.to_string()));
        Ok(())
    }

    /// Who was between a checkpoint and the nearest of its ancestors that is here, those that were left out among them.
    fn between(&self, wanted: &Wanted) -> Vec<Link> {
        let mut between = wanted.between.clone();
        if let Some(gap) = nearest(&between, &wanted.record).and_then(|id| self.gaps.get(&id)) {
            between.extend(gap);
        }
        between
    }

    /// The tops of a checkpoint's tables, each beside that of its nearest ancestor if that is here, and stands on no other golden images.
    fn tops(&self, wanted: &Wanted) -> Result<Vec<Spot>> {
        let Record { parts, images, .. } = &wanted.record;
        let store = self.shelf.store;
        let mut ancestor = None;
        if let Some(id) = nearest(&self.between(wanted), &wanted.record) {
            ancestor =
                store.record_in(&*store.0.index.read()?, &id)?.filter(|record| record.images.iter().all(|image| images.contains(image)));
        }
        let mut tops = Vec::new();
        for part in parts {
            let beside = ancestor.iter().flat_map(|record| &record.parts).find(|beside| beside.name == part.name);
            for (name, root) in &part.tables {
                tops.extend(Spot::top(root, beside.and_then(|beside| beside.tables.get(name)))?);
            }
        }
        Ok(tops)
    }

    /// Fetches every pack that has something that is needed. Who needs something that is damaged finds it so again.
    fn fetch_all(&mut self, wanted: &[Wanted], progress: &mut dyn FnMut(CopyStage, Progress)) -> Result<()> {
        let mut blobs: Vec<Name> = Vec::new();
        for blob in wanted.iter().flat_map(Wanted::blobs) {
            if !self.shelf.has_blob(blob)? {
                blobs.push(blob.0);
            }
        }
        let mut tops = Vec::new();
        for wanted in wanted {
            tops.extend(apart(self.tops(wanted))?.unwrap_or_default());
        }
        self.shelf.fetch_tables(tops, blobs, progress).map(drop)
    }

    /// Puts a checkpoint into the store.
    fn enter(&mut self, wanted: &Wanted) -> Result<()> {
        let mut writer = self.shelf.store.writer()?;
        writer.stand_on(&wanted.record.images);
        for blob in wanted.blobs() {
            if !self.shelf.has_blob(blob)? {
                let bytes = self.shelf.object(blob.as_bytes(), pack::Kind::Blob, "blob")?;
                self.shelf.check(blob.as_bytes(), hash::blob(&bytes).as_bytes())?;
                writer.put_blob(&bytes)?;
            }
        }
        if !self.stands_on.iter().all(|image| wanted.record.images.contains(image)) {
            self.whole.clear();
        }
        self.stands_on.clone_from(&wanted.record.images);
        let mut contents = Contents::default();
        for top in self.tops(wanted)? {
            self.below(top, &writer, &mut contents)?;
        }
        let Contents { seen, nodes, pages } = contents;
        self.put_pages(&mut writer, pages)?;
        for name in &nodes {
            let Fetched { node, base } = self.shelf.nodes[name].clone();
            // Without its base it is stored in full.
            let base = base.and_then(|base| Some((base, writer.load(&base).ok()?)));
            writer.save(Arc::unwrap_or_clone(node), base)?;
        }
        writer.commit_copy(&wanted.id, &wanted.bytes, &wanted.record, &self.between(wanted))?;
        self.whole.extend(seen);
        Ok(())
    }

    /// Finds out what is to be looked after from this node on down: also below those that are here, unless it is known that all below them is.
    fn below(&mut self, spot: Spot, writer: &Writer, contents: &mut Contents) -> Result<()> {
        let Spot { node: name, level, .. } = spot;
        if spot.is_whole() || self.whole.contains(&name.0) || !contents.seen.insert(name.0) {
            return Ok(());
        }
        let is_known = writer.node_is_known(&name)?;
        if !is_known && !self.shelf.nodes.contains_key(&name) {
            // It was damaged when it was looked for; or it was here, of a checkpoint that was removed, and since then a collection has hidden it.
            let fetched = self.shelf.node(&name, level)?;
            self.shelf.nodes.insert(name, fetched);
        }
        let node = self.shelf.fetched_level(&name, level)?;
        if level == 0 {
            contents.pages.extend(node.iter().map(|(_, page)| PageName(page)));
        } else {
            spot.below(self.shelf.store, &node).into_iter().try_for_each(|below| self.below(below, writer, contents))?;
        }
        if !is_known {
            contents.nodes.push(name);
        }
        Ok(())
    }

    fn put_pages(&mut self, writer: &mut Writer, pages: HashSet<PageName>) -> Result<()> {
        let mut placed = Vec::with_capacity(pages.len());
        for name in pages {
            if name != ZERO_PAGE && !writer.claim(&name)? {
                placed.push((self.shelf.catalog().find(name.as_bytes()), name));
            }
        }
        // Those of one frame together.
        placed.sort_unstable();
        for (_, name) in placed {
            let bytes = self.shelf.object(name.as_bytes(), pack::Kind::Pages, "page")?;
            let page: &PageBuf = bytes.as_slice().try_into().expect("a page has its size");
            self.shelf.check(name.as_bytes(), hash::page(page).as_bytes())?;
            writer.put_page(page)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        VerifyOptions,
        remote::tests::{Place, history, push, store},
    };

    #[test]
    fn many_come_in_groups_and_nothing_of_one_is_kept_for_the_next() {
        let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
        let (from, to) = (store(here.path()), store(there.path()));
        let ids = history(&from, GROUP_MAX as u64 + 10);
        ids.chunks(8).for_each(|some| _ = push(&from, &place, some).unwrap());
        let options = PullOptions::default();
        let mut pull = to.begin_pull(&place, "lab", &ids, &options).unwrap();
        let wanted = std::mem::take(&mut pull.wanted);
        pull.shelf.look(&mut |_, _| {}).unwrap();
        pull.bring(&wanted[..GROUP_MAX], Progress { done: 0, total: 0 }, &mut |_, _| {}).unwrap();
        assert!(pull.shelf.nodes.is_empty());
        drop(pull);
        assert_eq!(to.records().unwrap().len(), GROUP_MAX);
        // One that is cut off after the first of them leaves those here, whole.
        let there = tempfile::tempdir().unwrap();
        let cut = store(there.path());
        let entered = std::cell::Cell::new(0);
        let pull = cut.begin_pull(&place, "lab", &ids, &options).unwrap();
        let cut_off = pull.finish(&mut |stage, _| {
            if stage == CopyStage::Enter {
                entered.set(entered.get() + 1);
            } else if entered.get() == GROUP_MAX {
                place.fail_after(Some(0));
            }
        });
        cut_off.unwrap_err();
        place.fail_after(None);
        assert_eq!(cut.records().unwrap().len(), GROUP_MAX);
        for store in [&to, &cut] {
            assert_eq!(store.pull(&place, "lab", &ids, &options, &mut |_, _| {}).unwrap().checkpoints, 10);
            assert!(store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap().damage.is_empty());
            assert_eq!(store.record(&ids[ids.len() - 1]).unwrap(), from.record(&ids[ids.len() - 1]).unwrap());
        }
    }

    #[test]
    fn who_copies_can_rest_between_the_pieces() {
        thread_local! {
            static RESTS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
        }
        let rest = || RESTS.set(RESTS.get() + 1);
        let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
        let (from, to) = (store(here.path()), store(there.path()));
        let ids = history(&from, 3);
        for store in [&from, &to] {
            store.rest_by(rest);
            store.rest_by(|| panic!("the first one stays"));
        }
        push(&from, &place, &ids).unwrap();
        let sent = RESTS.replace(0);
        to.pull(&place, "lab", &ids, &PullOptions::default(), &mut |_, _| {}).unwrap();
        assert!(sent > 0 && RESTS.get() >= ids.len() as u32, "{sent} and {}", RESTS.get());
    }
}
