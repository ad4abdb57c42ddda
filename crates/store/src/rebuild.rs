//! Building the index again from packs alone.

use crate::{
    Error, Record, Result, Store,
    files::{FileSystem, Medium},
    index::Index,
    node::Stored,
    pack::{Kind, PackFile, Published, place},
    refs,
    store::open_format,
    writer::add_objects,
};
use fermata_types::{CheckpointId, NodeName, PackId};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::TryLockError,
    io,
    path::{Path, PathBuf},
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
struct Found {
    pack: Published,
    full_nodes: HashSet<NodeName>,
    id: CheckpointId,
    bytes: Vec<u8>,
    record: Record,
}

impl Store {
    /// Builds the index of a store again from its packs, for when it is lost or damaged. Nobody may have the store open.
    ///
    /// Branches and tags are taken over from the old index if that can still be read. A branch that it does not tell of gets its youngest
    /// checkpoint as its head. Golden images are hashed again when they are next opened.
    pub fn rebuild_index(path: &Path) -> Result<Rebuilt> {
        let store = path.canonicalize().map_err(Error::io("find", path))?;
        let medium = FileSystem;
        let lock = open_format(&store, &medium)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::refused(format!("the store {} is open", store.display()), "end everything that uses it first"));
            }
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", &store.join("format"))(error)),
        }
        let (fresh, old, current) = (store.join("index.new"), store.join("index.old"), store.join("index"));
        remove(&fresh)?;
        crate::files::make_directory(&fresh)?;
        let kept = if current.join(Index::FILE).exists() { kept_refs(&current) } else { kept_refs(&old) };
        let rebuilt = fill(&fresh, &store.join("packs"), kept)?;
        // Between the two renames there is no index. A store is not opened then: it asks for this function.
        remove(&old)?;
        if current.exists() {
            medium.rename(&current, &old).map_err(Error::io("rename", &current))?;
        }
        medium.rename(&fresh, &current).map_err(Error::io("rename", &fresh))?;
        medium.sync_directory(&store).map_err(Error::io("sync", &store))?;
        remove(&old)?;
        Ok(rebuilt)
    }
}

/// Fills a new index from all packs.
fn fill(fresh: &Path, shelf: &Path, kept: BTreeMap<Vec<u8>, CheckpointId>) -> Result<Rebuilt> {
    let index = Index::open(fresh)?;
    let mut rebuilt = Rebuilt::default();
    let mut known = HashMap::new();
    for (path, id) in list(shelf)? {
        match read(shelf, &id) {
            Ok(found) => {
                index.write(|write| {
                    add_objects(&index, write, &found.pack, |name| found.full_nodes.contains(name))?;
                    index.put(write, &index.records, found.id.as_bytes(), &found.bytes)
                })?;
                rebuilt.packs += 1;
                known.insert(found.id, found.record);
            }
            Err(error @ (Error::Corrupt { .. } | Error::Unsupported { .. })) => rebuilt.damaged.push((path, error)),
            Err(error) => return Err(error),
        }
    }
    rebuilt.checkpoints = known.len() as u64;
    let mut all = heads(&known);
    all.extend(kept.into_iter().filter(|(_, id)| known.contains_key(id)));
    index.write(|write| all.iter().try_for_each(|(key, id)| index.put(write, &index.refs, key, id.as_bytes())))?;
    Ok(rebuilt)
}

/// The refs of an index, none if it cannot be read.
fn kept_refs(path: &Path) -> BTreeMap<Vec<u8>, CheckpointId> {
    let mut kept = BTreeMap::new();
    if !path.join(Index::FILE).exists() {
        return kept;
    }
    let read = Index::open(path).and_then(|index| {
        index.scan(&*index.read()?, &index.refs, &[0], |key, value| {
            kept.insert(key.to_vec(), index.checkpoint_id(value, &"a ref")?);
            Ok(true)
        })
    });
    if let Err(error) = read {
        tracing::warn!(%error, "branches and tags of the old index are lost");
    }
    kept
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
        ids.iter().copied().max_by_key(|id| (!grew_on(id), records[id].created_ns, *id))
    };
    branches.into_iter().filter_map(|(key, ids)| Some((key, head(&ids)?))).collect()
}

/// Every pack on the shelf. Other files are none of ours.
fn list(shelf: &Path) -> Result<Vec<(PathBuf, PackId)>> {
    let mut found = Vec::new();
    for directory in entries(shelf)? {
        if !directory.is_dir() {
            continue;
        }
        for path in entries(&directory)? {
            let id = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".pack")?.parse::<PackId>().ok());
            found.extend(id.filter(|id| place(shelf, id) == path).map(|id| (path, id)));
        }
    }
    found.sort();
    Ok(found)
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::io("list", directory)(error);
    std::fs::read_dir(directory).map_err(failed)?.map(|entry| Ok(entry.map_err(failed)?.path())).collect()
}

fn read(shelf: &Path, id: &PackId) -> Result<Found> {
    let file = PackFile::open(shelf, id)?;
    let contents = file.contents(id)?;
    let mut full_nodes = HashSet::new();
    let mut record = None;
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
            record = Some((id, Record::decode(&frame.raw, &id, file.path())?, frame.raw));
            continue;
        }
        for (place, name) in entry.names.iter().enumerate() {
            if let Stored::Full(_) = frame.object(place).and_then(Stored::decode).map_err(corrupt)? {
                full_nodes.insert(NodeName(*name));
            }
        }
    }
    let (checkpoint, record, bytes) = record.ok_or_else(|| Error::corrupt(file.path(), None, "the pack", "it has no record"))?;
    let pack = Published { id: *id, path: file.path().to_owned(), contents };
    Ok(Found { pack, full_nodes, id: checkpoint, bytes, record })
}

fn remove(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", directory)(error)),
        _ => Ok(()),
    }
}
