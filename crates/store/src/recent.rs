//! Checkpoints by when they were taken: the newest are found without a look at the others, and so are the experiments.

use crate::{
    Record, Result, Store,
    index::{Index, ScanFrom},
    refs,
};
use fermata_types::CheckpointId;
use heed::{RoTxn, RwTxn};

/// Bytes behind the name of the experiment: a NUL, when it was taken, and the id.
const BEHIND: usize = 1 + 8 + 32;

impl Store {
    /// The record of a checkpoint that is about to be taken, with its place behind its parent if the clock was set back since that was taken.
    pub fn in_line(&self, record: Record) -> Record {
        // A parent that is gone, or cannot be read, is in nobody's order; whoever commits finds out.
        let after_ns = record.parent.and_then(|parent| self.record(&parent).ok()).map(|parent| parent.order_ns());
        Record { after_ns: after_ns.filter(|after| *after >= record.created_ns), ..record }
    }

    /// The newest checkpoints of an experiment, so many at most: by when they were taken, and none before one that grew from it, whatever the clock said. A parent is
    /// the nearest ancestor that was not removed.
    pub fn newest(&self, experiment: &str, count: usize) -> Result<Vec<(CheckpointId, Record)>> {
        let index = &self.0.index;
        let read = index.read()?;
        let prefix = prefix(experiment);
        let mut ids = Vec::new();
        index.scan(&read, &index.recent, ScanFrom::At(&prefix), |key, _| {
            if ids.len() == count || !key.starts_with(&prefix) {
                return Ok(false);
            }
            ids.push(index.checkpoint_id(&key[key.len().saturating_sub(32)..], &"a checkpoint by its age")?);
            Ok(true)
        })?;
        ids.into_iter().map(|id| Ok((id, self.record_in(&read, &id)?.ok_or_else(|| refs::no_checkpoint(&id))?))).collect()
    }

    /// The experiments that have checkpoints.
    pub fn experiments(&self) -> Result<Vec<String>> {
        let index = &self.0.index;
        let read = index.read()?;
        let mut names = Vec::new();
        let mut behind: Option<Vec<u8>> = None;
        loop {
            let mut first = None;
            index.scan(&read, &index.recent, behind.as_deref().map_or(ScanFrom::Start, ScanFrom::Behind), |key, _| {
                first = key.len().checked_sub(BEHIND).map(|end| key[..end].to_vec());
                Ok(false)
            })?;
            let Some(name) = first else { break };
            names.push(String::from_utf8_lossy(&name).into_owned());
            behind = Some([&name[..], &[0]].concat());
        }
        names.sort();
        Ok(names)
    }
}

/// Enters a record, by its id and by its age.
pub(crate) fn put(index: &Index, write: &mut RwTxn<'_>, id: &CheckpointId, record: &Record, bytes: &[u8]) -> Result<()> {
    index.put(write, &index.records, id.as_bytes(), bytes)?;
    put_age(index, write, id, record)
}

/// Takes a record out.
pub(crate) fn delete(index: &Index, write: &mut RwTxn<'_>, id: &CheckpointId, record: &Record) -> Result<()> {
    index.delete(write, &index.records, id.as_bytes())?;
    index.delete(write, &index.recent, &key(id, record)).map(drop)
}

fn put_age(index: &Index, write: &mut RwTxn<'_>, id: &CheckpointId, record: &Record) -> Result<()> {
    // A record with a name that cannot be one is not ours to judge here: it is found by its id.
    if refs::check_name("experiment", &record.experiment).is_err() {
        return Ok(());
    }
    index.put(write, &index.recent, &key(id, record), &[])
}

/// Fills in the ages of an index from before there were any.
pub(crate) fn fill(index: &Index) -> Result<()> {
    let is_filled =
        |read: &RoTxn<'_>| Ok::<_, crate::Error>(index.count(read, &index.recent)? > 0 || index.count(read, &index.records)? == 0);
    if is_filled(&*index.read()?)? {
        return Ok(());
    }
    index.write(|write| {
        // Somebody else may have been faster.
        if is_filled(write)? {
            return Ok(());
        }
        let mut records = Vec::new();
        index.scan(write, &index.records, ScanFrom::Start, |key, value| {
            let id = index.checkpoint_id(key, &"a record")?;
            // One that is damaged is found by `verify`, and in the way of nothing else.
            records.extend(Record::decode(value, &id, index.path()).ok().map(|record| (id, record)));
            Ok(true)
        })?;
        records.iter().try_for_each(|(id, record)| put_age(index, write, id, record))
    })
}

fn prefix(experiment: &str) -> Vec<u8> {
    [experiment.as_bytes(), &[0]].concat()
}

/// The newest first.
fn key(id: &CheckpointId, record: &Record) -> Vec<u8> {
    [&prefix(&record.experiment)[..], &(!record.order_ns()).to_be_bytes(), id.as_bytes()].concat()
}
