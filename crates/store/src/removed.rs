//! Removed checkpoints that something still remembers: for those who descend from them, and so that an index built again does not bring back
//! those whose records still lie in packs. See `docs/formats/index.md`.

use crate::{
    Error, Record, Result, Store, chunks,
    cipher::Sealing,
    collect::Turn,
    files::Medium,
    index::{Index, ScanFrom},
    refs::parent_of_removed,
    seal,
};
use fermata_types::CheckpointId;
use heed::{RoTxn, RwTxn};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    path::{Path, PathBuf},
};

const FILE: &str = "removed";
const NO_PARENT: &str = "-";

/// Writes them when these checkpoints were `fetched`, or one of them is told to be removed since somebody died who had fetched it. Waits for a collection.
pub(crate) fn tell_of(store: &Store, ids: &[CheckpointId], fetched: bool) -> Result<()> {
    let told = read(&store.0.path, &store.0.sealing)?;
    if !fetched && !ids.iter().any(|id| told.contains_key(id)) {
        return Ok(());
    }
    let _turn = Turn::alone(store, true)?;
    write(store)
}

/// Removed checkpoints that are remembered, with the parents that are said of them.
fn all(index: &Index, read: &RoTxn<'_>) -> Result<BTreeMap<CheckpointId, Option<CheckpointId>>> {
    let mut all = BTreeMap::new();
    index.scan(read, &index.removed, ScanFrom::Start, |key, parent| {
        let what = &"a removed checkpoint";
        let parent = if parent.is_empty() { None } else { Some(index.checkpoint_id(parent, what)?) };
        all.insert(index.checkpoint_id(key, what)?, parent);
        Ok(true)
    })?;
    Ok(all)
}

/// Writes the removed checkpoints to a file beside the packs, if they are others than those that it has.
pub(crate) fn write(store: &Store) -> Result<()> {
    let inner = &store.0;
    let now = all(&inner.index, &*inner.index.read()?)?;
    let text = if now.is_empty() { String::new() } else { seal::seal(&lines(&now), seal::LINE) };
    let path = path(&inner.path);
    let before = content(&inner.path, &inner.sealing).unwrap_or_default();
    if text.as_bytes() == before {
        return Ok(());
    }
    replace(&*inner.medium, &inner.path, &path, &chunks::sealed(&inner.sealing, text.as_bytes()))
}

fn lines(removed: &BTreeMap<CheckpointId, Option<CheckpointId>>) -> String {
    let line = |(id, parent): (&CheckpointId, &Option<CheckpointId>)| match parent {
        Some(parent) => format!("{id} {parent}\n"),
        None => format!("{id} {NO_PARENT}\n"),
    };
    removed.iter().map(line).collect()
}

fn replace(medium: &dyn Medium, directory: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |error| Error::io("write", path)(error);
    // One collection at a time comes here, and what a killed one left is written over.
    let fresh = path.with_extension("new");
    match medium.remove(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let file = medium.create(&fresh).map_err(failed)?;
    medium.write_at(&file, bytes, 0).map_err(failed)?;
    medium.sync(&file).map_err(failed)?;
    medium.rename(&fresh, path).map_err(failed)?;
    medium.sync_directory(directory).map_err(failed)
}

/// The removed checkpoints, with their parents, that the file of this store tells of.
///
/// A damaged line is passed over: at worst a checkpoint that was removed is there again, and without the others nothing could be built again at all.
pub(crate) fn read(store: &Path, sealing: &Sealing) -> Result<BTreeMap<CheckpointId, Option<CheckpointId>>> {
    match content(store, sealing) {
        // Of what is encrypted there are no lines to be passed over.
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidData => Ok(BTreeMap::new()),
        content => Ok(parse(&content?)),
    }
}

/// Whether the file of this store is as it was written, or not there.
pub(crate) fn is_whole(store: &Path, sealing: &Sealing) -> Result<bool> {
    let bytes = match content(store, sealing) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidData => return Ok(false),
        content => content?,
    };
    // Earlier versions did not seal it.
    Ok(seal::is_sealed(&bytes, seal::LINE) || lines(&parse(&bytes)).as_bytes() == bytes)
}

/// Where the file of a store lies.
pub(crate) fn path(store: &Path) -> PathBuf {
    store.join(FILE)
}

/// The bytes of the file, none where there is no file.
fn content(store: &Path, sealing: &Sealing) -> Result<Vec<u8>> {
    let path = path(store);
    match chunks::read(&path, sealing) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(Error::io("read", &path)),
    }
}

fn parse(bytes: &[u8]) -> BTreeMap<CheckpointId, Option<CheckpointId>> {
    let entry = |line: &str| {
        let (id, parent) = line.split_once(' ')?;
        let parent = if parent == NO_PARENT { None } else { Some(parent.parse().ok()?) };
        Some((id.parse().ok()?, parent))
    };
    String::from_utf8_lossy(bytes).lines().filter_map(entry).collect()
}

/// Enters a removed checkpoint.
pub(crate) fn enter(index: &Index, write: &mut RwTxn<'_>, id: &CheckpointId, parent: Option<&CheckpointId>) -> Result<()> {
    index.put(write, &index.removed, id.as_bytes(), parent.map_or(&[][..], |parent| parent.as_bytes()))
}

/// Whether a line leads to a checkpoint, or in a circle.
pub(crate) fn leads_to(index: &Index, read: &RoTxn<'_>, from: Option<CheckpointId>, to: &CheckpointId) -> Result<bool> {
    let (mut at, mut seen) = (from, HashSet::from([*to]));
    while let Some(id) = at {
        if !seen.insert(id) {
            return Ok(true);
        }
        at = match index.get(read, &index.records, id.as_bytes())? {
            Some(bytes) => Record::decode(&bytes, &id, index.path())?.parent,
            None => parent_of_removed(index, read, &id)?.flatten(),
        };
    }
    Ok(false)
}

/// Removed checkpoints that one that is there has as its parent.
pub(crate) fn parents(index: &Index, read: &RoTxn<'_>) -> Result<HashSet<CheckpointId>> {
    let mut parents = HashSet::new();
    index.scan(read, &index.records, ScanFrom::Start, |key, bytes| {
        let id = index.checkpoint_id(key, &"a record")?;
        if let Some(parent) = Record::decode(bytes, &id, index.path())?.parent
            && index.has(read, &index.removed, parent.as_bytes())?
        {
            parents.insert(parent);
        }
        Ok(true)
    })?;
    Ok(parents)
}

/// Has every removed checkpoint lead past those that are removed, too, so that none between is needed any more.
pub(crate) fn shorten(index: &Index, write: &mut RwTxn<'_>) -> Result<()> {
    let removed = all(index, write)?;
    for (id, ancestor) in shortened(&removed) {
        if removed[&id] != ancestor {
            enter(index, write, &id, ancestor.as_ref())?;
        }
    }
    Ok(())
}

/// Where removed checkpoints lead: from their parents to the nearest ancestors that were not removed.
fn shortened(removed: &BTreeMap<CheckpointId, Option<CheckpointId>>) -> HashMap<CheckpointId, Option<CheckpointId>> {
    let mut led = HashMap::new();
    for id in removed.keys() {
        let (mut line, mut at) = (Vec::new(), Some(*id));
        let ancestor = loop {
            let Some(id) = at else { break None };
            if let Some(ancestor) = led.get(&id) {
                break *ancestor;
            }
            let Some(parent) = removed.get(&id) else { break Some(id) };
            // Should what remotes said lead in a circle, it leads nowhere.
            led.insert(id, None);
            line.push(id);
            at = *parent;
        };
        led.extend(line.into_iter().map(|id| (id, ancestor)));
    }
    led
}

#[cfg(test)]
mod tests;
