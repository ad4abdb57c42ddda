//! The tree of checkpoints, as the store has it. Needs no keeper.

use crate::{Error, Result};
use fermata_store::{Record, Store};
use fermata_types::{CheckpointId, PageNumber, Root, VirtualTime};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A checkpoint in its tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its id.
    pub id: CheckpointId,
    /// What is kept of it.
    pub record: Record,
    /// Branches whose newest it is.
    pub heads: Vec<String>,
    /// Its tags.
    pub tags: Vec<String>,
}

/// How one page table or blob of a part differs between two checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The part.
    pub part: String,
    /// Which table or blob: `ram`, `blocks`, `devices`.
    pub of: String,
    /// Pages in all; for a blob 1.
    pub pages: u64,
    /// Pages that differ; for a blob 1 or 0.
    pub differing: u64,
    /// Pages that only the first names.
    pub only_a: u64,
    /// Pages that only the second names.
    pub only_b: u64,
    /// Stretches of pages that differ: first page and count, in order.
    pub stretches: Vec<(PageNumber, u32)>,
}

/// All checkpoints, of one experiment or of all; parents before children.
pub fn log(store: &Store, experiment: Option<&str>) -> Result<Vec<Entry>> {
    let mut records = store.records()?;
    let names: BTreeSet<_> = records.iter().map(|(_, record)| record.experiment.clone()).collect();
    let mut marks = BTreeMap::new();
    for name in names.iter().filter(|name| experiment.is_none_or(|wanted| wanted == *name)) {
        marks.insert(name.clone(), Marks::of(store, name)?);
    }
    // One that was taken in between: names that were read before the records lead to none that is missing.
    let known: BTreeSet<_> = records.iter().map(|(id, _)| *id).collect();
    if !marks.values().flat_map(Marks::all).all(|id| known.contains(id)) {
        records = store.records()?;
    }
    let entry = |(id, record): (CheckpointId, Record)| Some(marks.get(&record.experiment)?.entry(id, record));
    Ok(records.into_iter().filter_map(entry).collect())
}

/// The newest checkpoints of an experiment, so many at most, by when they were taken. Costs the same however many there are.
pub fn newest(store: &Store, experiment: &str, count: usize) -> Result<Vec<Entry>> {
    let records = store.newest(experiment, count)?;
    let marks = Marks::of(store, experiment)?;
    Ok(records.into_iter().map(|(id, record)| marks.entry(id, record)).collect())
}

/// A checkpoint of an experiment and those that lead to it, the newest first, so many at most. Costs the same however many there are.
pub fn leading_to(store: &Store, experiment: &str, head: CheckpointId, count: usize) -> Result<Vec<Entry>> {
    let marks = Marks::of(store, experiment)?;
    let (mut entries, mut next) = (Vec::new(), Some(head));
    while let Some(id) = next.filter(|_| entries.len() < count) {
        let record = store.record(&id)?;
        // What was taken over from another experiment is that one's.
        if record.experiment != experiment {
            break;
        }
        next = record.parent;
        entries.push(marks.entry(id, record));
    }
    Ok(entries)
}

/// One checkpoint.
pub fn entry(store: &Store, id: CheckpointId) -> Result<Entry> {
    let record = store.record(&id)?;
    Ok(Marks::of(store, &record.experiment)?.entry(id, record))
}

/// The newest checkpoint at or before an instant of virtual time, on the line that leads to `head`.
pub fn at_or_before(store: &Store, head: CheckpointId, at: VirtualTime) -> Result<(CheckpointId, Record)> {
    let (mut id, mut record) = (head, store.record(&head)?);
    while record.time_virtual_ns > at.ns {
        let Some(parent) = record.parent else {
            return Err(Error::Refused(format!(
                "there is no way to {at}: the line that leads to {} begins with {} at {}. `fermata log --at {at}` tells whether another line has one",
                head.short(),
                id.short(),
                VirtualTime::from_ns(record.time_virtual_ns)
            )));
        };
        (id, record) = (parent, store.record(&parent)?);
    }
    Ok((id, record))
}

/// The names that an experiment has for its checkpoints, in order.
struct Marks {
    heads: HashMap<CheckpointId, Vec<String>>,
    tags: HashMap<CheckpointId, Vec<String>>,
}

impl Marks {
    fn of(store: &Store, experiment: &str) -> Result<Self> {
        let by_id = |names: BTreeMap<String, CheckpointId>| {
            let mut by_id: HashMap<CheckpointId, Vec<String>> = HashMap::new();
            names.into_iter().for_each(|(name, id)| by_id.entry(id).or_default().push(name));
            by_id
        };
        Ok(Self { heads: by_id(store.branches(experiment)?), tags: by_id(store.tags(experiment)?) })
    }

    fn all(&self) -> impl Iterator<Item = &CheckpointId> {
        self.heads.keys().chain(self.tags.keys())
    }

    fn entry(&self, id: CheckpointId, record: Record) -> Entry {
        let of = |names: &HashMap<CheckpointId, Vec<String>>| names.get(&id).cloned().unwrap_or_default();
        Entry { heads: of(&self.heads), tags: of(&self.tags), id, record }
    }
}

/// How two checkpoints differ, part by part. Costs what differs: equal subtrees are skipped.
pub fn diff(store: &Store, a: &Record, b: &Record) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    let names: BTreeSet<_> = a.parts.iter().chain(&b.parts).map(|part| part.name.clone()).collect();
    for name in names {
        let [a, b] = [a, b].map(|record| record.parts.iter().find(|part| part.name == name));
        let tables: BTreeSet<_> = [a, b].into_iter().flatten().flat_map(|part| part.tables.keys().cloned()).collect();
        for of in tables {
            let [a, b] = [a, b].map(|part| part.and_then(|part| part.tables.get(&of)).copied());
            changes.push(table_change(store, &name, of, a, b)?);
        }
        let blobs: BTreeSet<_> = [a, b].into_iter().flatten().flat_map(|part| part.blobs.keys().cloned()).collect();
        for of in blobs {
            let [a, b] = [a, b].map(|part| part.and_then(|part| part.blobs.get(&of)));
            let differing = u64::from(a != b);
            let (only_a, only_b) = (u64::from(b.is_none()), u64::from(a.is_none()));
            changes.push(Change { part: name.clone(), of, pages: 1, differing, only_a, only_b, stretches: Vec::new() });
        }
    }
    Ok(changes)
}

fn table_change(store: &Store, part: &str, of: String, a: Option<Root>, b: Option<Root>) -> Result<Change> {
    let pages = a.or(b).map_or(0, |root| root.pages);
    let [a, b] = [a, b].map(|root| root.unwrap_or(Root::empty(pages)));
    let mut change = Change { part: part.to_owned(), of, pages, differing: 0, only_a: 0, only_b: 0, stretches: Vec::new() };
    store.diff(&a, &b, &mut |page, in_a, in_b| {
        change.differing += 1;
        change.only_a += u64::from(in_b.is_none());
        change.only_b += u64::from(in_a.is_none());
        match change.stretches.last_mut() {
            Some((first, count)) if *first + *count == page => *count += 1,
            _ => change.stretches.push((page, 1)),
        }
        Ok(())
    })?;
    Ok(change)
}
