//! Removing checkpoints from remotes.

use crate::{
    convert::{self, problem},
    local,
    remotes::{self, CopyRequest},
    spec::Keep,
    values::{Activity, Problem, RemotePruned, RemovedThere},
};
use fermata_linux::clock::wall_ns;
use fermata_store::{
    Candidate, Record,
    remote::{PruneOptions, RefName},
};
use fermata_types::CheckpointId;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// What to remove from a remote.
#[derive(Debug, Clone, Default)]
pub struct RemotePruneRequest {
    /// The remote; the experiment, none: every one that is there; checkpoints, by the beginnings of their ids.
    pub copy: CopyRequest,
    /// What is kept of each experiment; none: all that is not named.
    pub keep: Option<Keep>,
    /// Only say what would go.
    pub dry_run: bool,
    /// Take pushes under way for dead at once.
    pub take_pushes_for_dead: bool,
}

/// Removes checkpoints from a remote, and all that none of the others there needs. `busy` is told how far it is.
pub fn prune(store: &Path, request: &RemotePruneRequest, busy: &mut dyn FnMut(Activity)) -> Result<RemotePruned, Problem> {
    let (opened, remote) = (local::open(store)?, remotes::connect(store, &request.copy)?);
    let remote = &*remote;
    let experiments = match request.copy.experiment.as_str() {
        "" => opened.remote_experiments(remote).map_err(problem)?,
        one => vec![one.to_owned()],
    };
    let (mut removed, mut all) = (Vec::new(), 0);
    let mut left: BTreeSet<&String> = request.copy.names.iter().collect();
    for experiment in experiments {
        let records = opened.remote_records(remote, &experiment, request.copy.jobs).map_err(problem)?;
        all += records.len() as u64;
        let mut gone = BTreeSet::new();
        if let Some(keep) = &request.keep {
            let refs = opened.remote_refs(remote, &experiment).map_err(problem)?;
            gone.extend(not_kept(keep, &records, &refs));
        }
        for name in &request.copy.names {
            let named: Vec<_> = records.iter().map(|(id, _)| *id).filter(|id| id.to_string().starts_with(name.as_str())).collect();
            match named[..] {
                [] => continue,
                [one] => _ = gone.insert(one),
                _ => return Err(Problem::new(format!("\"{name}\" fits several checkpoints on {remote}: give more digits"))),
            }
            left.remove(name);
        }
        let told = |(id, record): (CheckpointId, Record)| RemovedThere {
            experiment: experiment.clone(),
            id,
            branch: record.branch,
            created: convert::rfc3339(record.created_ns),
        };
        removed.extend(records.into_iter().filter(|(id, _)| gone.contains(id)).map(told));
    }
    if let Some(name) = left.first() {
        return Err(Problem::new(format!("{remote} has no checkpoint \"{name}\": name them by the beginnings of their ids")));
    }
    let mut options = PruneOptions { dry_run: request.dry_run, jobs: request.copy.jobs, ..PruneOptions::default() };
    if request.take_pushes_for_dead {
        options.looks = 0;
    }
    for gone in &removed {
        options.checkpoints.entry(gone.experiment.clone()).or_default().insert(gone.id);
    }
    let freed = opened.prune_remote(remote, &options, &mut |stage, progress| busy(remotes::activity(stage, "fetching", "bytes", progress)));
    let freed = freed.map_err(problem)?;
    removed.retain(|gone| !freed.stayed.contains(&gone.id));
    let kept = all - removed.len() as u64;
    Ok(RemotePruned { remote: remote.to_string(), dry_run: request.dry_run, removed, kept, freed })
}

fn not_kept(keep: &Keep, records: &[(CheckpointId, Record)], refs: &BTreeMap<RefName, CheckpointId>) -> Vec<CheckpointId> {
    let named = |id: &CheckpointId, is: fn(&RefName) -> bool| refs.iter().any(|(name, at)| at == id && is(name));
    let candidates: Vec<_> = records
        .iter()
        .map(|(id, record)| Candidate {
            id: *id,
            parent: record.parent,
            branch: record.branch.clone(),
            created_ns: record.created_ns,
            tagged: named(id, |name| matches!(name, RefName::Tag(_))),
            head: named(id, |name| matches!(name, RefName::Branch(_))),
            run: false,
        })
        .collect();
    let verdicts = keep.verdicts(&candidates, wall_ns());
    candidates.iter().zip(verdicts).filter(|(_, why)| why.is_empty()).map(|(candidate, _)| candidate.id).collect()
}
