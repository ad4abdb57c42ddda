//! Keeping and forgetting: what a policy keeps of an experiment, and removing the rest.

use crate::{Entry, Result, history};
use fermata_store::{Candidate, Keep, Removal, Removed, Store, Why};
use fermata_types::CheckpointId;
use std::collections::BTreeSet;

/// How the names of tags begin that last as long as a trial: whoever makes it holds the checkpoint first and tags it then, and forgets both the other way round.
pub const TRIAL: &str = "fermata-trial-";

/// A checkpoint, and why it stays; for no reason: it goes.
pub type Verdict = (Entry, BTreeSet<Why>);

/// What would become of each checkpoint of an experiment, parents before children. Runs stand on `stands`.
pub fn verdicts(store: &Store, experiment: &str, keep: &Keep, stands: &[CheckpointId], now_ns: u64) -> Result<Vec<Verdict>> {
    let entries = history::log(store, Some(experiment))?;
    let abandoned = abandoned(store, entries.iter())?;
    let candidate = |entry: &Entry| Candidate {
        id: entry.id,
        parent: entry.record.parent,
        branch: entry.record.branch.clone(),
        created_ns: entry.record.created_ns,
        tagged: entry.tags.iter().any(|tag| !abandoned.contains(tag)),
        head: !entry.heads.is_empty(),
        run: stands.contains(&entry.id),
    };
    let why = keep.verdicts(&entries.iter().map(candidate).collect::<Vec<_>>(), now_ns);
    Ok(entries.into_iter().zip(why).collect())
}

/// Tags that a trial has left behind whose process was killed: nobody holds their checkpoints.
fn abandoned<'e>(store: &Store, entries: impl Iterator<Item = &'e Entry>) -> Result<BTreeSet<String>> {
    let of_trials = |entry: &'e Entry| entry.tags.iter().filter(|tag| tag.starts_with(TRIAL)).map(move |tag| (entry.id, tag));
    let tags: Vec<_> = entries.flat_map(of_trials).collect();
    if tags.is_empty() {
        return Ok(BTreeSet::new());
    }
    let held = store.held()?;
    Ok(tags.into_iter().filter(|(id, _)| !held.contains(id)).map(|(_, tag)| tag.clone()).collect())
}

/// Removes what stays for no reason, and the tags of trials that were killed. Refused if one of the checkpoints was tagged meanwhile; then none is removed.
pub fn remove(store: &Store, verdicts: &[Verdict]) -> Result<Removed> {
    if let Some((Entry { record, .. }, _)) = verdicts.first() {
        for tag in abandoned(store, verdicts.iter().map(|(entry, _)| entry))? {
            // Somebody may have taken it away. If it is still there, so is its checkpoint.
            let _ = store.untag(&record.experiment, &tag);
        }
    }
    let checkpoints: Vec<_> = verdicts.iter().filter(|(_, why)| why.is_empty()).map(|(entry, _)| entry.id).collect();
    if checkpoints.is_empty() {
        return Ok(Removed::default());
    }
    Ok(store.remove(&Removal { checkpoints, ..Removal::default() })?)
}
