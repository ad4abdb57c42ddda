//! Collecting garbage: packs lose what no checkpoint needs, while checkpoints are taken, read and removed by any process.
//!
//! 1. **Mark** what all checkpoints and holds need: a bit for each object of each pack that is there now (`mark`).
//! 2. **Hide** what is dead: its entries in the index become *doomed*. It can still be read, but the sieve does not find it any more, so a
//!    checkpoint that has the same page stores it again.
//! 3. **Wait** until all writers that were there are over. They may have relied on what is hidden now; those that began later cannot.
//! 4. **Mark** what their checkpoints need. What was hidden and is alive after all is found again. From now on nothing can come to refer to what
//!    is hidden.
//! 5. **Remove** dead packs: first their entries, then the file. **Rewrite** packs that are mostly dead, or many and small: the new pack is made
//!    durable, the index finds its objects there, the old pack is removed (`rewrite`). Readers that looked before look again.
//!
//! What was committed and removed again meanwhile counts as alive: its pack may be newer than the marks, and stays with all that it stands on.
//!
//! Packs that cannot be read stay as they are, and all in them becomes doomed too: nothing new is to rely on it.
//!
//! Each step leaves a whole store, so being killed anywhere only leaves work to the next collection: entries that are hidden, and files of packs
//! that nothing names. Who collects or verifies takes turns by a lock that nobody else takes.

mod abandoned;
mod due;
mod images;
mod in_order;
mod rewrite;

use crate::{
    Error, Progress, Result, Store, files, hash,
    hold::Present,
    index::Location,
    mark::Marker,
    node::Stored,
    pack::{Kind, TOLD_APART_BYTES},
    rebuild::{self, entries},
    removed,
};
use fermata_types::{CheckpointId, PackId};
use heed::RwTxn;
use in_order::{BATCH, Object};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashSet},
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

/// A pack is small that is shorter than this: a thirty-second of one that a collection writes.
const SMALL_BYTES: u64 = 8 << 20;
/// So many small packs are too many.
const MANY: usize = 32;
/// Putting them together leaves as much room on the disk for checkpoints that come meanwhile.
const ROOM_LEFT: u64 = 256 << 20;

/// How often a collection looks who descends from whom beside others who commit, before they wait for it.
const LOOKS: usize = 3;

/// How to collect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CollectOptions {
    /// A pack that holds anything dead is rewritten when less than this part of its bytes is alive, in percent. 0: packs only go as a whole.
    /// 100: nothing dead is left. Many small packs are put together, unless it is 0.
    pub rewrite_below: u8,
    /// Wait for the checkpoints that are being written when the collection begins, and for another collection. Else what they might still
    /// refer to is left to the next collection, and beside another one this one is refused.
    pub wait: bool,
    /// Only say what would go.
    pub dry_run: bool,
}

impl Default for CollectOptions {
    fn default() -> Self {
        Self { rewrite_below: 50, wait: true, dry_run: false }
    }
}

/// What a collection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CollectStage {
    /// Finds what is alive; counts checkpoints.
    Mark,
    /// Hides what is dead from new checkpoints; counts objects.
    Hide,
    /// Waits for checkpoints being written that may refer to it; counts them.
    Wait,
    /// Copies what is alive out of packs that are mostly dead, or many and small, in the order in which it will be read; counts packs.
    Rewrite,
    /// Removes what is dead; counts objects.
    Remove,
}

/// What a collection did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Checkpoints that are alive.
    pub checkpoints: u64,
    /// Packs before.
    pub packs: u64,
    /// Packs that went, those rewritten among them.
    pub packs_removed: u64,
    /// Of these, packs whose living part was copied into others.
    pub packs_rewritten: u64,
    /// Packs that these copies went to.
    pub packs_written: u64,
    /// Bytes of all packs before.
    pub bytes_before: u64,
    /// Bytes of all packs after; on a dry run an estimate.
    pub bytes_after: u64,
    /// Bytes of dead objects in packs that stay; about.
    pub bytes_dead: u64,
    /// Pages, nodes, blobs and records that were dead and went.
    pub objects_removed: u64,
    /// Files of packs that nothing named, left behind by a crash, and their bytes; not counted above.
    pub orphans: u64,
    /// Their bytes.
    pub orphan_bytes: u64,
    /// Golden images that came from a remote, and that no checkpoint stands on any more; not counted above.
    pub images: u64,
    /// What they took on the disk.
    pub image_bytes: u64,
    /// Bytes of packs that a pull fetched that was cut off, and that nobody took up for a day; not counted above.
    #[serde(default)]
    pub abandoned_bytes: u64,
    /// Checkpoints being written that kept this collection from removing anything; run it again when they are over.
    pub waiting_for: u64,
    /// Packs that cannot be read, and why. They stay.
    pub damaged: Vec<String>,
}

impl Store {
    /// Removes from the packs what no checkpoint needs any more. Checkpoints may be taken, read and removed meanwhile, by any process.
    ///
    /// What is held ([`Store::hold`]) stays. Interrupted at any point it leaves a whole store, and the next collection goes on. Fails with
    /// `Corrupt` if the tables of a checkpoint cannot be read: remove that checkpoint first. Fails, too, when a pack that may be whole cannot be read just now, or when it
    /// cannot be seen who is present or what is held. Must not be called with a [`crate::Writer`] in
    /// the same thread, for it waits for writers.
    pub fn collect(&self, options: &CollectOptions, progress: &mut dyn FnMut(CollectStage, Progress)) -> Result<Collected> {
        let _turn = Turn::alone(self, options.wait)?;
        self.0.forget();
        Collection::begin(self, options, progress)?.run()
    }

    /// Which checkpoints live processes hold ([`Store::hold`]). Fails when that cannot be seen of one.
    pub fn held(&self) -> Result<HashSet<CheckpointId>> {
        Ok(Present::look(self)?.held.into_iter().collect())
    }
}

/// A file that those who collect and those who verify lock in turn.
pub(crate) struct Turn {
    _file: File,
}

impl Turn {
    fn open(store: &Store) -> Result<(PathBuf, File)> {
        let path = store.path().join("collecting");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        Ok((path.clone(), file.map_err(Error::io("open", &path))?))
    }

    /// While this is there, nobody else collects or verifies.
    pub fn alone(store: &Store, wait: bool) -> Result<Self> {
        let (path, file) = Self::open(store)?;
        if wait {
            file.lock().map_err(Error::io("lock", &path))?;
            return Ok(Self { _file: file });
        }
        if !files::locked(&path, || file.try_lock())? {
            return Err(Error::refused("another collection or a verification of this store is under way", "wait until it has ended"));
        }
        Ok(Self { _file: file })
    }

    /// While this is there, nothing is collected. None where nobody can collect, for the store can only be read.
    pub fn together(store: &Store) -> Result<Option<Self>> {
        match Self::open(store) {
            Ok((path, file)) => {
                file.lock_shared().map_err(Error::io("lock", &path))?;
                Ok(Some(Self { _file: file }))
            }
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What becomes of a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Keep,
    Rewrite,
    /// One of many small ones: rewritten with the others.
    PutTogether,
    Remove,
}

/// What became of the entries of some packs.
#[derive(Default)]
struct Forgotten {
    /// Those that went.
    removed: u64,
    /// Those that are still there, by pack.
    left: BTreeMap<u32, u64>,
}

/// A collection under way. See the top of this file for the steps and why they are safe.
struct Collection<'a> {
    store: &'a Store,
    options: &'a CollectOptions,
    progress: &'a mut dyn FnMut(CollectStage, Progress),
    marker: Marker<'a>,
    /// Packs of which something was hidden, and what becomes of them.
    fates: BTreeMap<u32, Fate>,
    /// Checkpoints that were held when we last looked, of which there was no record, and nobody who might be bringing it.
    unknown: HashSet<CheckpointId>,
    /// Removed checkpoints when we last looked.
    trash: Vec<CheckpointId>,
    /// Checkpoints that were removed before all this began: their records are in the packs that we know, or in none.
    removed_before: Vec<CheckpointId>,
    /// What they had stored.
    removed_bytes: u64,
    told: Collected,
}

impl<'a> Collection<'a> {
    fn begin(store: &'a Store, options: &'a CollectOptions, progress: &'a mut dyn FnMut(CollectStage, Progress)) -> Result<Self> {
        let index = &store.0.index;
        let (removed_before, removed_bytes, trash) = {
            let read = index.read()?;
            let ids = |db| index.checkpoint_ids(&read, db, &"a removed checkpoint");
            (ids(&index.removed)?, index.removed_bytes(&read)?, ids(&index.trash)?)
        };
        // After that, for what is removed from then on counts as alive: it may lie in packs that are not among these.
        let packs = index.all_packs(&*index.read()?)?;
        let told = Collected { packs: packs.len() as u64, ..Collected::default() };
        let marker = Marker::new(store, packs)?;
        let (fates, unknown) = (BTreeMap::new(), HashSet::new());
        Ok(Self { store, options, progress, marker, fates, unknown, trash, removed_before, removed_bytes, told })
    }

    fn run(mut self) -> Result<Collected> {
        self.told.damaged = self.marker.damaged.values().map(ToString::to_string).collect();
        self.told.bytes_before = self.marker.packs.values().map(|pack| pack.length).sum();
        self.told.bytes_after = self.told.bytes_before;
        self.mark()?;
        self.decide()?;
        let files = self.unnamed()?;
        if self.options.dry_run {
            self.estimate(&files)?;
            self.remove_images(self.lock_images())?;
            self.remove_abandoned()?;
            return Ok(self.told);
        }
        self.unhide()?;
        self.hide()?;
        // Whoever wrote a checkpoint until here may have relied on what is hidden now; whoever begins after cannot. So when these are over, and
        // their checkpoints are marked, nothing new can come to refer to what is hidden.
        let writers = Present::look(self.store)?.writers;
        if !self.options.wait && !writers.is_empty() {
            self.told.waiting_for = writers.len() as u64;
            return Ok(self.told);
        }
        self.wait(writers)?;
        let images = self.lock_images();
        self.mark()?;
        self.remove_images(images)?;
        self.unhide()?;
        removed::write(self.store)?;
        self.remove_dead()?;
        self.remove_orphans(files)?;
        self.remove_abandoned()?;
        self.rewrite()?;
        self.empty_trash()?;
        removed::write(self.store)?;
        self.count_off()?;
        self.store.0.forget_if_collected()?;
        Ok(self.told)
    }

    /// Marks what all checkpoints and holds need that are there now.
    fn mark(&mut self) -> Result<()> {
        let index = &self.store.0.index;
        let (mut ids, trash) = {
            let read = index.read()?;
            (index.checkpoint_ids(&read, &index.records, &"a record")?, index.checkpoint_ids(&read, &index.trash, &"a removed checkpoint")?)
        };
        // Holds are looked at after the records: what was removed in between, and held before it was, is seen in either.
        let present = Present::look(self.store)?;
        self.told.checkpoints = ids.len() as u64;
        let before: HashSet<_> = std::mem::replace(&mut self.trash, trash.clone()).into_iter().collect();
        ids.extend(trash.into_iter().filter(|id| !before.contains(id)));
        ids.retain(|id| !self.marker.has(id));
        let total = ids.len() as u64;
        for (done, id) in ids.iter().enumerate() {
            (self.progress)(CollectStage::Mark, Progress { done: done as u64, total });
            self.marker.mark(id)?;
        }
        self.mark_held(&present)?;
        (self.progress)(CollectStage::Mark, Progress { done: total, total });
        Ok(())
    }

    /// Marks what is held. One that is neither there nor in the trash is being committed or fetched, and whoever does that is present as a writer; or somebody asks for it in
    /// vain, and holds it for a moment only.
    fn mark_held(&mut self, present: &Present) -> Result<()> {
        let mut unknown = HashSet::new();
        for id in &present.held {
            if !self.marker.mark(id)? && present.writers.is_empty() {
                unknown.insert(*id);
            }
        }
        if let Some(id) = unknown.intersection(&self.unknown).next() {
            let what = format!("checkpoint {id} is held, but there is no record of it that tells what it needs");
            return Err(Error::refused(what, "end what runs from it, then collect again"));
        }
        self.unknown = unknown;
        Ok(())
    }

    fn decide(&mut self) -> Result<()> {
        for (number, marks) in &self.marker.packs {
            let (alive, bytes_alive) = (marks.alive(), marks.bytes_alive());
            if alive == marks.objects() {
                continue;
            }
            let is_low = bytes_alive * 100 < marks.bytes() * u64::from(self.options.rewrite_below) || self.options.rewrite_below >= 100;
            let fate = match alive {
                0 => Fate::Remove,
                _ if is_low && marks.bytes() - bytes_alive > TOLD_APART_BYTES => Fate::Rewrite,
                _ => Fate::Keep,
            };
            self.fates.insert(*number, fate);
        }
        self.put_small_ones_together()?;
        let dead = |pack: &u32| self.marker.packs[pack].bytes() - self.marker.packs[pack].bytes_alive();
        self.told.bytes_dead = self.packs_that(Fate::Keep).iter().map(dead).sum();
        Ok(())
    }

    /// Many small packs are copied into few, though nothing in them may be dead: each checkpoint has one, and what is read together lies in as many, in frames that hold little else of it. Each
    /// page is copied once for that, since packs of some hundred checkpoints are small no more. Where the disk is nearly full they stay: it frees nothing.
    fn put_small_ones_together(&mut self) -> Result<()> {
        let goes = |number| self.fates.get(number).is_some_and(|fate| *fate != Fate::Keep);
        let small = self.marker.packs.iter().filter(|(number, marks)| marks.length < SMALL_BYTES && !goes(number));
        let small: Vec<_> = small.map(|(number, _)| *number).collect();
        if small.len() < MANY || self.options.rewrite_below == 0 {
            return Ok(());
        }
        let inner = &self.store.0;
        let directory = inner.shelf().directory;
        let room = inner.medium.room(&directory).map_err(Error::io("look at the room in", &directory))?;
        let bytes: u64 = small.iter().map(|number| self.marker.packs[number].length).sum();
        if room >= bytes.min(rewrite::TOGETHER_BYTES) + ROOM_LEFT {
            self.fates.extend(small.into_iter().map(|number| (number, Fate::PutTogether)));
        }
        Ok(())
    }

    fn estimate(&mut self, files: &[(PathBuf, PackId)]) -> Result<()> {
        for (number, fate) in &self.fates {
            let marks = &self.marker.packs[number];
            let freed = match fate {
                Fate::Keep => continue,
                Fate::Rewrite | Fate::PutTogether => marks.bytes() - marks.bytes_alive(),
                Fate::Remove => marks.length,
            };
            self.told.packs_rewritten += u64::from(*fate != Fate::Remove);
            self.told.packs_removed += 1;
            self.told.objects_removed += (marks.objects() - marks.alive()) as u64;
            self.told.bytes_after -= freed;
        }
        for (path, _) in files {
            self.told.orphans += 1;
            self.told.orphan_bytes += path.metadata().map_or(0, |file| file.len());
        }
        Ok(())
    }

    /// The files of packs that the index does not name. No crash leaves one that cannot be read: whoever built the index again left it out, and it stays.
    fn unnamed(&mut self) -> Result<Vec<(PathBuf, PackId)>> {
        let (index, shelf) = (&self.store.0.index, self.store.0.shelf());
        let mut unnamed = Vec::new();
        let files = shelf.list()?;
        let read = index.read()?;
        for (path, id) in files {
            unnamed.extend((!index.has(&read, &index.pack_numbers, id.as_bytes())?).then_some((path, id)));
        }
        drop(read);
        unnamed.retain(|(_, id)| match rebuild::read(&shelf, id) {
            Ok(_) => true,
            // Whoever failed to commit it has just removed it.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => false,
            Err(error) => {
                self.told.damaged.push(error.to_string());
                false
            }
        });
        Ok(unnamed)
    }

    /// Hides what is dead from the sieve, in packs that go and are rewritten; and in all packs nodes, whose bases may go. Dead pages in packs
    /// that stay are left to be found: they cost nothing more.
    fn hide(&mut self) -> Result<()> {
        let index = &self.store.0.index;
        let fates = self.fates.clone();
        let goes = |object: &Object| !object.is_alive && (fates[&object.pack] != Fate::Keep || object.kind == Kind::Nodes);
        let packs: Vec<_> = fates.keys().copied().collect();
        self.each_entry(CollectStage::Hide, &packs, goes, |write, object, is_doomed| match is_doomed {
            true => Ok(()),
            false => index.put(write, index.of_kind(object.kind), &object.name, object.location.encode_doomed(true).as_ref()),
        })?;
        self.doom_damaged()?;
        index.write(|write| index.count_collection(write))
    }

    /// What is alive after all is hidden no more.
    fn unhide(&mut self) -> Result<()> {
        let index = &self.store.0.index;
        for names in std::mem::take(&mut self.marker.doomed).chunks(BATCH) {
            index.write(|write| {
                names.iter().try_for_each(|(kind, name)| {
                    let db = index.of_kind(*kind);
                    match index.get(write, db, name)?.filter(|bytes| Location::is_doomed(bytes)).as_deref().and_then(Location::decode) {
                        Some(location) => index.put(write, db, name, location.encode().as_ref()),
                        None => Ok(()),
                    }
                })
            })?;
        }
        Ok(())
    }

    fn wait(&mut self, writers: Vec<(PathBuf, File)>) -> Result<()> {
        let total = writers.len() as u64;
        for (done, (path, file)) in writers.into_iter().enumerate() {
            (self.progress)(CollectStage::Wait, Progress { done: done as u64, total });
            file.lock_shared().map_err(Error::io("lock", &path))?;
        }
        Ok(())
    }

    /// Removes the packs of which nothing is alive, and from the index what is hidden of those that stay.
    fn remove_dead(&mut self) -> Result<()> {
        let marks = &self.marker.packs;
        // A checkpoint that was being written meanwhile may have brought something back to life.
        self.fates
            .iter_mut()
            .filter(|(pack, fate)| **fate == Fate::Remove && marks[*pack].alive() > 0)
            .for_each(|(_, fate)| *fate = Fate::Rewrite);
        // What came to life as a whole stays: written anew it would be the very same pack.
        self.fates.retain(|pack, fate| *fate == Fate::PutTogether || marks[pack].alive() < marks[pack].objects());
        let [stay, go] = [Fate::Keep, Fate::Remove].map(|fate| self.packs_that(fate));
        self.told.objects_removed += self.forget_dead(&stay)?.removed;
        self.remove_packs(&go)
    }

    fn packs_that(&self, fate: Fate) -> Vec<u32> {
        self.fates.iter().filter(|(_, other)| **other == fate).map(|(pack, _)| *pack).collect()
    }

    /// Takes what is dead and hidden of these packs out of the index.
    fn forget_dead(&mut self, packs: &[u32]) -> Result<Forgotten> {
        let index = &self.store.0.index;
        let mut forgotten = Forgotten::default();
        self.each_entry(
            CollectStage::Remove,
            packs,
            |_| true,
            |write, object, is_doomed| {
                if object.is_alive || !is_doomed {
                    *forgotten.left.entry(object.pack).or_default() += 1;
                    return Ok(());
                }
                forgotten.removed += 1;
                index.delete(write, index.of_kind(object.kind), &object.name).map(drop)
            },
        )?;
        Ok(forgotten)
    }

    /// Removes packs in which nothing alive lies any more: first from the index, then the files.
    fn remove_packs(&mut self, packs: &[u32]) -> Result<()> {
        if packs.is_empty() {
            return Ok(());
        }
        let Forgotten { left, .. } = self.forget_dead(packs)?;
        let inner = &self.store.0;
        for (pack, left) in &left {
            // Cannot be; but a pack too many does no harm, and one too few does.
            let path = inner.shelf().place(&self.marker.packs[pack].id);
            self.told.damaged.push(format!("{}: {left} objects in it are still in use, so it stays", path.display()));
        }
        let gone: Vec<_> = packs.iter().filter(|pack| !left.contains_key(pack)).map(|pack| (pack, &self.marker.packs[pack])).collect();
        inner.index.write(|write| {
            for (pack, marks) in &gone {
                inner.index.delete(write, &inner.index.packs, &pack.to_be_bytes())?;
                inner.index.delete(write, &inner.index.pack_numbers, marks.id.as_bytes())?;
            }
            inner.index.count_collection(write)
        })?;
        for (_, marks) in gone {
            self.told.packs_removed += 1;
            self.told.bytes_after -= marks.length;
            self.told.objects_removed += (marks.objects() - marks.alive()) as u64;
            inner.remove_unnamed(&inner.shelf().place(&marks.id), &marks.id)?;
        }
        Ok(())
    }

    /// Removes packs that nothing named before the writers were over that might still have named them: what a crash left behind.
    fn remove_orphans(&mut self, files: Vec<(PathBuf, PackId)>) -> Result<()> {
        for (path, id) in files {
            let length = path.metadata().map_or(0, |file| file.len());
            if self.store.0.remove_unnamed(&path, &id)? {
                self.told.orphans += 1;
                self.told.orphan_bytes += length;
            }
        }
        Ok(())
    }

    /// Forgets removed checkpoints that nobody holds, once the files of their packs are gone for good.
    fn empty_trash(&mut self) -> Result<()> {
        let inner = &self.store.0;
        for directory in entries(&inner.shelf().directory)?.into_iter().filter(|path| path.is_dir()) {
            inner.medium.sync_directory(&directory).map_err(Error::io("sync", &directory))?;
        }
        let index = &inner.index;
        let held = index.write(|write| {
            // One that was fetched again since all was marked may have been held and removed once more. So this look comes when nothing can be removed any more.
            let held: HashSet<_> = Present::look(self.store)?.held.into_iter().collect();
            for id in self.trash.iter().filter(|id| !held.contains(*id)) {
                index.delete(write, &index.trash, id.as_bytes())?;
            }
            Ok(held)
        })?;
        self.forget_removed(&held)
    }

    /// Forgets removed checkpoints that nobody descends from, whose records lie in no pack any more.
    fn forget_removed(&self, held: &HashSet<CheckpointId>) -> Result<()> {
        if self.removed_before.is_empty() || !self.marker.damaged.is_empty() {
            // Nobody knows whose records lie in packs that cannot be read.
            return Ok(());
        }
        let index = &self.store.0.index;
        // Whoever stood on one that is held no more, and went on from it, is there by now. All records are looked at for this, and nobody is to
        // wait with a commit meanwhile; so what was seen counts only if nothing was committed since, and in the end somebody waits after all.
        for _ in 0..LOOKS {
            let read = index.read()?;
            let (seen, parents) = (read.id(), removed::parents(index, &read)?);
            drop(read);
            if index.write(|write| if write.id() == seen + 1 { self.forget_all_but(&parents, held, write) } else { Ok(false) })? {
                return Ok(());
            }
        }
        index.write(|write| self.forget_all_but(&removed::parents(index, write)?, held, write)).map(drop)
    }

    fn forget_all_but(&self, parents: &HashSet<CheckpointId>, held: &HashSet<CheckpointId>, write: &mut RwTxn<'_>) -> Result<bool> {
        let index = &self.store.0.index;
        removed::shorten(index, write)?;
        let is_remembered = |id: &CheckpointId| parents.contains(id) || held.contains(id) || self.marker.has(id);
        for id in self.removed_before.iter().filter(|id| !is_remembered(id)) {
            // Fetched again since, and perhaps removed again: it is remembered.
            let mut is_there = index.has(write, &index.records, id.as_bytes())? || index.has(write, &index.trash, id.as_bytes())?;
            for pack in self.marker.packs_of_record(id) {
                is_there |= index.has(write, &index.packs, &pack.to_be_bytes())?;
            }
            if !is_there {
                index.delete(write, &index.removed, id.as_bytes())?;
            }
        }
        Ok(true)
    }

    /// What was removed before all this began is collected.
    fn count_off(&self) -> Result<()> {
        let index = &self.store.0.index;
        if self.removed_bytes == 0 {
            return Ok(());
        }
        index.write(|write| {
            let left = index.removed_bytes(write)?.saturating_sub(self.removed_bytes);
            index.set_removed_bytes(write, left)
        })
    }
}

/// Whether these bytes are what the name says. Of a node that is stored as a delta that is seen only together with its base.
pub(crate) fn check_object(kind: Kind, name: &[u8; 32], bytes: &[u8]) -> Result<(), String> {
    let fits = match kind {
        Kind::Pages => bytes.try_into().is_ok_and(|page| hash::page(page).0 == *name),
        Kind::Blob => hash::blob(bytes).0 == *name,
        Kind::Record => hash::record(bytes).0 == *name,
        Kind::Nodes => match Stored::decode(bytes)? {
            Stored::Full(node) => node.name().0 == *name,
            Stored::Delta(_) => true,
        },
    };
    if fits { Ok(()) } else { Err("the content does not fit the name".into()) }
}

#[cfg(test)]
mod tests;
