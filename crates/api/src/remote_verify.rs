//! Looking whether a remote still has all that it had, and sending again what it lost.

use crate::{
    convert::problem,
    housekeeping, local,
    remotes::{self, Broken, CopyRequest},
    values::{Activity, Problem},
};
use fermata_store::{
    Store,
    remote::{PushOptions, Pushed, Remote, is_damage},
};
use fermata_types::CheckpointId;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
};

/// What was found of a remote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RemoteVerified {
    /// The remote's address.
    pub remote: String,
    /// By experiment.
    pub experiments: Vec<ExperimentThere>,
    /// What is wrong with packs that cannot be used. Nothing may need them.
    pub unreadable: BTreeSet<String>,
    /// What was sent again; none: nobody asked for it, or there was nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repaired: Option<Repaired>,
}

/// What was found of an experiment on a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExperimentThere {
    /// Its name.
    pub experiment: String,
    /// Its checkpoints there.
    pub checkpoints: u64,
    /// Those of them of which something is not there; after a repair, of which something still is not.
    pub broken: Vec<Broken>,
}

/// What was sent again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repaired {
    /// Checkpoints that are whole again.
    pub checkpoints: u64,
    /// Packs that were sent.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Why some could not be sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Broken>,
}

/// Looks whether all that checkpoints on a remote are made of is there: of one experiment, or of every one that is there. With `repair`, what is not and is here is sent again.
/// `busy` is told how far it is.
pub fn verify(store: &Path, request: &CopyRequest, repair: bool, busy: &mut dyn FnMut(Activity)) -> Result<RemoteVerified, Problem> {
    let (opened, remote) = (local::made(store)?, remotes::connect(store, request)?);
    let remote = &*remote;
    let mut found = look(&opened, remote, request, busy)?;
    let broken: BTreeSet<CheckpointId> = found.broken().map(|broken| broken.checkpoint).collect();
    if repair && !broken.is_empty() {
        let mut repaired = send(&opened, remote, &remotes::entry(store, request)?, request, &broken, busy)?;
        found = look(&opened, remote, request, busy)?;
        let left: HashSet<_> = found.broken().map(|broken| broken.checkpoint).collect();
        repaired.checkpoints = broken.iter().filter(|id| !left.contains(*id)).count() as u64;
        found.repaired = Some(repaired);
    }
    Ok(found)
}

impl RemoteVerified {
    /// Checkpoints of which something is not there.
    pub fn broken(&self) -> impl Iterator<Item = &Broken> {
        self.experiments.iter().flat_map(|experiment| &experiment.broken)
    }
}

fn look(store: &Store, remote: &dyn Remote, request: &CopyRequest, busy: &mut dyn FnMut(Activity)) -> Result<RemoteVerified, Problem> {
    let there = store.remote_experiments(remote).map_err(problem)?;
    let names = match request.experiment.as_str() {
        "" => there,
        one if there.iter().any(|name| name == one) => vec![one.to_owned()],
        one => return Err(Problem::new(format!("{remote} has no checkpoint of {one}"))),
    };
    let mut found = RemoteVerified { remote: remote.to_string(), experiments: Vec::new(), unreadable: BTreeSet::new(), repaired: None };
    for experiment in names {
        let ids = store.remote_checkpoints(remote, &experiment).map_err(problem)?;
        let mut report = |progress| busy(housekeeping::activity(("looking whether all is there", "checkpoints"), progress));
        let verified = store.verify_remote(remote, &experiment, &ids, found.experiments.is_empty(), &mut report).map_err(problem)?;
        let broken = verified.broken.into_iter().map(|(checkpoint, why)| Broken { checkpoint, why: why.to_string() });
        found.experiments.push(ExperimentThere { experiment, checkpoints: ids.len() as u64, broken: broken.collect() });
        found.unreadable.extend(verified.unreadable);
    }
    Ok(found)
}

/// Sends again what is here of these checkpoints.
fn send(
    store: &Store,
    remote: &dyn Remote,
    entry: &remotes::RemoteEntry,
    request: &CopyRequest,
    broken: &BTreeSet<CheckpointId>,
    busy: &mut dyn FnMut(Activity),
) -> Result<Repaired, Problem> {
    let here: Vec<_> = store.records().map_err(problem)?.into_iter().filter(|(id, _)| broken.contains(id)).collect();
    remotes::open_images_of(store, here.iter().map(|(_, record)| record), busy)?;
    let ids: Vec<_> = here.into_iter().map(|(id, _)| id).collect();
    let options = PushOptions { jobs: request.jobs, images: !request.without_images, identity: entry.identity.clone() };
    let mut repair = |ids: &[CheckpointId]| {
        store.repair_remote(remote, ids, &options, &mut |stage, progress| busy(remotes::activity(stage, "sending", "pages", progress)))
    };
    let mut repaired = Repaired::default();
    let count = |repaired: &mut Repaired, pushed: &Pushed| {
        repaired.packs += pushed.packs;
        repaired.bytes += pushed.bytes;
    };
    match repair(&ids) {
        Ok(pushed) => count(&mut repaired, &pushed),
        // One that is not whole here either keeps nothing from the others.
        Err(error) if is_not_here(&error) => {
            for id in &ids {
                match repair(&[*id]) {
                    Ok(pushed) => count(&mut repaired, &pushed),
                    Err(error) if is_not_here(&error) => repaired.failed.push(Broken { checkpoint: *id, why: error.to_string() }),
                    Err(error) => return Err(problem(error)),
                }
            }
        }
        Err(error) => return Err(problem(error)),
    }
    Ok(repaired)
}

fn is_not_here(error: &fermata_store::Error) -> bool {
    is_damage(error) || matches!(error, fermata_store::Error::ImageNotOpen { .. } | fermata_store::Error::ImageChanged { .. })
}
