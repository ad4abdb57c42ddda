//! Building the index again from packs alone.

use crate::{
    Error, Record, Result, Store,
    cipher::Sealing,
    files::{FileSystem, Medium, locked, make_directory, remove_tree},
    index::{self, Index},
    keys, lmdb,
    node::Stored,
    pack::{Kind, PackFile, Published, Shelf},
    recent, refs, removed,
    writer::{Form, add_objects},
};
use fermata_types::{CheckpointId, NodeName, PackId};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
};

/// What building the index again found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Rebuilt {
    /// Packs entered.
    pub packs: u64,
    /// Checkpoints entered.
    pub checkpoints: u64,
    /// Packs that cannot be read, and why. They stay where they are, and nothing of them is in the index.
    pub damaged: Vec<(PathBuf, Error)>,
}

/// A pack as the index has to know it.
pub(crate) struct Found {
    pack: Published,
    full_nodes: HashSet<NodeName>,
    /// Nodes stored as deltas, and their bases.
    deltas: HashMap<NodeName, NodeName>,
    /// Records, and their bytes. A pack of rewritten objects has any number of them.
    records: Vec<(CheckpointId, Record, Vec<u8>)>,
}

impl Found {
    fn form(&self, name: &NodeName, full_nodes: &HashSet<NodeName>) -> Form {
        match self.deltas.get(name) {
            None => Form::Full,
            Some(base) if full_nodes.contains(base) => Form::Delta,
            Some(_) => Form::Broken,
        }
    }
}

impl Store {
    /// Builds the index of a store again from its packs, for when it is lost or damaged. Nobody may have the store open.
    ///
    /// Branches and tags are taken over from the old index if that can still be read. A branch that it does not tell of gets its youngest
    /// checkpoint as its head. Golden images are hashed again when they are next opened. Checkpoints that were removed come back unless the
    /// garbage was collected since, or the old index can still be read.
    pub fn rebuild_index(path: &Path) -> Result<Rebuilt> {
        Self::rebuild_on(path, Arc::new(FileSystem))
    }

    pub(crate) fn rebuild_on(path: &Path, medium: Arc<dyn Medium>) -> Result<Rebuilt> {
        let store = path.canonicalize().map_err(Error::io("find", path))?;
        let sync = |directory: &Path| medium.sync_directory(directory).map_err(Error::io("sync", directory));
        let rename = |from: &Path, to: &Path| medium.rename(from, to).map_err(Error::io("rename", from));
        let (lock, sealing) = keys::open(&store, &*medium, None)?;
        if !locked(&store.join("format"), || lock.try_lock())? {
            return Err(Error::refused(format!("the store {} is open", store.display()), "end everything that uses it first"));
        }
        let (fresh, old, current) = (store.join("index.new"), store.join("index.old"), store.join("index"));
        remove_tree(&*medium, &fresh)?;
        make_directory(&*medium, &fresh)?;
        let interrupted = !Index::is_there(&current);
        let mut kept = kept(if interrupted { &old } else { &current }, &sealing);
        kept.removed.extend(removed::read(&store, &sealing)?);
        let rebuilt = fill(&fresh, &Shelf { directory: store.join("packs"), sealing }, kept, &medium)?;
        sync(&fresh)?;
        if interrupted {
            // The old index may be all that tells of tags: it stays until the new one is in place.
            remove_tree(&*medium, &current)?;
        } else {
            remove_tree(&*medium, &old)?;
            rename(&current, &old)?;
        }
        // Between the two renames there is no index. A store is not opened then: it asks for this function.
        rename(&fresh, &current)?;
        sync(&store)?;
        remove_tree(&*medium, &old)?;
        Ok(rebuilt)
    }
}

/// What an index has that packs have not.
#[derive(Default)]
struct Kept {
    refs: BTreeMap<Vec<u8>, CheckpointId>,
    /// Removed checkpoints with their parents.
    removed: BTreeMap<CheckpointId, Option<CheckpointId>>,
    /// Checkpoints that were there. The file that lists removed ones may be older, from before they came again.
    there: HashSet<CheckpointId>,
}

/// Fills a new index from all packs.
fn fill(fresh: &Path, shelf: &Shelf, kept: Kept, medium: &Arc<dyn Medium>) -> Result<Rebuilt> {
    let index = Index::open(fresh, medium.clone(), shelf.sealing.clone())?;
    let mut rebuilt = Rebuilt::default();
    let mut known = HashMap::new();
    let packs = shelf.list()?;
    // In packs that a collection left there may be nodes whose bases it took away: nobody needs them, and nobody must find them.
    let mut full_nodes = HashSet::new();
    for (_, id) in &packs {
        full_nodes.extend(readable(shelf, id)?.map(|found| found.full_nodes).unwrap_or_default());
    }
    for (path, id) in packs {
        match readable(shelf, &id)? {
            Ok(mut found) => {
                found.records.retain(|(id, ..)| kept.there.contains(id) || !kept.removed.contains_key(id));
                index.write(|write| {
                    add_objects(&index, write, &found.pack, |name| found.form(name, &full_nodes))?;
                    found.records.iter().try_for_each(|(id, record, bytes)| recent::put(&index, write, id, record, bytes))
                })?;
                rebuilt.packs += 1;
                known.extend(found.records.into_iter().map(|(id, record, _)| (id, record)));
            }
            Err(error) => rebuilt.damaged.push((path, error)),
        }
    }
    rebuilt.checkpoints = known.len() as u64;
    let mut all = heads(&known);
    all.extend(kept.refs.into_iter().filter(|(_, id)| known.contains_key(id)));
    index.write(|write| {
        let mut gone = kept.removed.iter().filter(|(id, _)| !known.contains_key(*id));
        gone.try_for_each(|(id, parent)| removed::enter(&index, write, id, parent.as_ref()))?;
        all.iter().try_for_each(|(key, id)| index.put(write, &index.refs, key, id.as_bytes()))
    })?;
    index.settle()?;
    Ok(rebuilt)
}

/// What can be read of an index that may be damaged.
fn kept(path: &Path, sealing: &Sealing) -> Kept {
    let salvage = |name| {
        let (entries, ended) = lmdb::salvage(&path.join(Index::FILE), name);
        if let Err(fault) = ended {
            tracing::warn!(?fault, kept = entries.len(), "{name} of the old index may be lost: it is damaged");
        }
        entries.into_iter().filter_map(move |(key, value)| index::salvaged(sealing, name, &key, &value))
    };
    let id = |bytes: &[u8]| bytes.try_into().ok().map(CheckpointId);
    if !Index::is_there(path) {
        return Kept::default();
    }
    Kept {
        refs: salvage("refs").filter_map(|(key, value)| Some((key, id(&value)?))).collect(),
        removed: salvage("removed").filter_map(|(key, parent)| Some((id(&key)?, id(&parent)))).collect(),
        there: salvage("recent").filter_map(|(key, _)| id(key.last_chunk::<32>()?)).collect(),
    }
}

/// The youngest checkpoint of every branch.
fn heads(records: &HashMap<CheckpointId, Record>) -> BTreeMap<Vec<u8>, CheckpointId> {
    let mut branches: BTreeMap<Vec<u8>, Vec<CheckpointId>> = BTreeMap::new();
    for (id, record) in records {
        // A record with a name that cannot be one is not ours to judge here: it is found by its id.
        if let Ok(key) = refs::branch_key(&record.experiment, &record.branch) {
            branches.entry(key).or_default().push(*id);
        }
    }
    let parents: HashSet<_> = records.values().filter_map(|record| Some((record.parent?, &record.experiment, &record.branch))).collect();
    let head = |ids: &[CheckpointId]| {
        let grew_on = |id: &CheckpointId| parents.contains(&(*id, &records[id].experiment, &records[id].branch));
        ids.iter().copied().max_by_key(|id| (!grew_on(id), records[id].order_ns(), *id))
    };
    branches.into_iter().filter_map(|(key, ids)| Some((key, head(&ids)?))).collect()
}

pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::io("list", directory)(error);
    std::fs::read_dir(directory).map_err(failed)?.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

/// A pack, or why it is damaged. One that only now cannot be read is an error: without it checkpoints would seem to be gone.
fn readable(shelf: &Shelf, id: &PackId) -> Result<Result<Found>> {
    match read(shelf, id) {
        Err(error) if !matches!(error, Error::Corrupt { .. } | Error::Unsupported { .. }) => Err(error),
        read => Ok(read),
    }
}

pub(crate) fn read(shelf: &Shelf, id: &PackId) -> Result<Found> {
    let file = PackFile::open(shelf, id)?;
    let contents = file.contents(id)?;
    let (mut full_nodes, mut deltas, mut records) = (HashSet::new(), HashMap::new(), Vec::new());
    for entry in &contents.entries {
        let corrupt = |detail: String| Error::corrupt(file.path(), entry.offset, "a frame", detail);
        match entry.kind {
            Kind::Pages | Kind::Blob => continue,
            Kind::Nodes | Kind::Record => {}
        }
        let frame = file.frame(entry.offset, entry.length, &"a frame")?;
        if frame.kind != entry.kind || frame.objects != entry.names.len() {
            return Err(corrupt("it is not what the table of contents says".into()));
        }
        if frame.kind == Kind::Record {
            let id = CheckpointId(entry.names[0]);
            records.push((id, Record::decode(&frame.raw, &id, file.path())?, frame.raw));
            continue;
        }
        for (place, name) in entry.names.iter().enumerate() {
            match frame.object(place).and_then(Stored::decode).map_err(corrupt)? {
                Stored::Full(_) => _ = full_nodes.insert(NodeName(*name)),
                Stored::Delta(delta) => _ = deltas.insert(NodeName(*name), delta.base),
            }
        }
    }
    let pack = Published { id: *id, path: file.path().to_owned(), contents };
    Ok(Found { pack, full_nodes, deltas, records })
}
