//! Keeping and forgetting: what a policy keeps of an experiment, and removing the rest.

use crate::{Entry, Result, history};
use fermata_store::{Candidate, Keep, Removal, Removed, Store, Why};
use fermata_types::CheckpointId;
use std::collections::BTreeSet;

/// A checkpoint, and why it stays; for no reason: it goes.
pub type Verdict = (Entry, BTreeSet<Why>);

/// What would become of each checkpoint of an experiment, parents before children. Runs stand on `stands`.
pub fn verdicts(store: &Store, experiment: &str, keep: &Keep, stands: &[CheckpointId], now_ns: u64) -> Result<Vec<Verdict>> {
    let entries = history::log(store, Some(experiment))?;
    let candidate = |entry: &Entry| Candidate {
        id: entry.id,
        parent: entry.record.parent,
        branch: entry.record.branch.clone(),
        created_ns: entry.record.created_ns,
        tagged: !entry.tags.is_empty(),
        head: !entry.heads.is_empty(),
        run: stands.contains(&entry.id),
    };
    let why = keep.verdicts(&entries.iter().map(candidate).collect::<Vec<_>>(), now_ns);
    Ok(entries.into_iter().zip(why).collect())
}

/// Removes what stays for no reason. Refused if one of them was tagged meanwhile; then nothing is removed.
pub fn remove(store: &Store, verdicts: &[Verdict]) -> Result<Removed> {
    let checkpoints: Vec<_> = verdicts.iter().filter(|(_, why)| why.is_empty()).map(|(entry, _)| entry.id).collect();
    if checkpoints.is_empty() {
        return Ok(Removed::default());
    }
    Ok(store.remove(&Removal { checkpoints, ..Removal::default() })?)
}
