//! Keeping a store in order: removing, collecting, verifying, counting. None of it needs a keeper, and none of it disturbs one.

use crate::{
    convert::{self, problem},
    keeping, local,
    spec::Keep,
    values::{
        Activity, CollectOptions, Collected, Experiment, ExperimentState, Problem, Pruned, PrunedCheckpoint, Removed, Stats, Stays,
        Verified, VerifyOptions,
    },
};
use fermata_experiment::open_own_images;
use fermata_linux::clock::wall_ns;
use fermata_store::{BranchName, CollectStage, Progress, Removal, Store, VerifyStage, Why};
use fermata_timeline::retention::{self, Verdict};
use std::path::Path;

/// What to remove of an experiment.
#[derive(Debug, Clone, Default)]
pub struct RemoveRequest {
    /// The experiment.
    pub experiment: String,
    /// These checkpoints: ids, unique beginnings of them, tags or branches, each with `~N`.
    pub checkpoints: Vec<String>,
    /// These branches, with the checkpoints that no other branch leads to.
    pub branches: Vec<String>,
    /// All of it.
    pub all: bool,
    /// Also what is tagged, and the tags with it.
    pub force: bool,
    /// Only say what would go.
    pub dry_run: bool,
}

/// Removes checkpoints. Their bytes stay until [`collect`].
///
/// A checkpoint that a live run stands on may go: the run goes on, and its next checkpoint becomes a child of the nearest one that remains. A branch that
/// a live run grows, or all of a live experiment, is a [`Problem`].
pub fn remove(store: &Path, request: &RemoveRequest) -> Result<Removed, Problem> {
    let opened = local::open(store)?;
    check_nobody_grows(&keeping::experiments(Some(store))?, request)?;
    let experiment = &request.experiment;
    let resolve = |text: &String| opened.resolve(text, Some(experiment)).map_err(problem);
    let removal = Removal {
        checkpoints: request.checkpoints.iter().map(resolve).collect::<Result<_, _>>()?,
        branches: request.branches.iter().map(|branch| BranchName { experiment: experiment.clone(), branch: branch.clone() }).collect(),
        experiments: if request.all { vec![experiment.clone()] } else { vec![] },
        force: request.force,
        dry_run: request.dry_run,
    };
    opened.remove(&removal).map_err(problem)
}

/// Whoever lives in what is to go as a whole would bring a part of it back with the next checkpoint.
fn check_nobody_grows(known: &[Experiment], request: &RemoveRequest) -> Result<(), Problem> {
    let name = &request.experiment;
    let Some(living) = known.iter().find(|known| known.name == *name && known.state == ExperimentState::Running) else { return Ok(()) };
    if request.all {
        return Err(Problem::new(format!("{name} is running: end it with `fermata down -e {name}` before all of it is removed")));
    }
    match living.runs.iter().find(|run| request.branches.contains(&run.branch)) {
        None => Ok(()),
        Some(run) => Err(Problem::new(format!(
            "run {} grows branch {}: end it with `fermata down {0} -e {name}`, or name the checkpoints that shall go",
            run.name, run.branch
        ))),
    }
}

/// What is to be kept of an experiment.
#[derive(Debug, Clone, Default)]
pub struct PruneRequest {
    /// The experiment.
    pub experiment: String,
    /// What is kept; none: as the specification of its latest checkpoint says.
    pub keep: Option<Keep>,
    /// Only say what would go.
    pub dry_run: bool,
}

/// Removes the checkpoints that a policy does not keep, as [`remove`] does.
pub fn prune(store: &Path, request: &PruneRequest) -> Result<Pruned, Problem> {
    let opened = local::open(store)?;
    let PruneRequest { experiment, keep, dry_run } = request;
    let keep = match keep {
        Some(keep) => keep.clone(),
        None => kept_by_specification(&opened, experiment)?,
    };
    let living = keeping::experiments(Some(store))?;
    let stands: Vec<_> = living
        .iter()
        .filter(|living| living.name == *experiment)
        .flat_map(|living| living.runs.iter().filter_map(|run| run.head))
        .collect();
    let verdicts = retention::verdicts(&opened, experiment, &keep, &stands, wall_ns()).map_err(problem)?;
    if !dry_run {
        retention::remove(&opened, &verdicts).map_err(problem)?;
    }
    let checkpoints = verdicts.into_iter().rev().map(pruned).collect();
    Ok(Pruned { experiment: experiment.clone(), keep, dry_run: *dry_run, checkpoints, collected: None })
}

fn kept_by_specification(store: &Store, experiment: &str) -> Result<Keep, Problem> {
    let latest = fermata_timeline::history::newest(store, experiment, 1).map_err(problem)?.pop();
    let latest = latest.ok_or_else(|| Problem::new(format!("there is no checkpoint of {experiment}: nothing to remove")))?;
    let said = latest.record.spec.get("keep").cloned().ok_or_else(|| {
        Problem::new(format!(
            "what is to be kept of {experiment} is not said: --keep 'last 20, every 1m for 1h' does, and so does the key `keep` of its specification"
        ))
    })?;
    serde_json::from_value(said).map_err(|error| Problem::new(format!("the specification of checkpoint {}: {error}", latest.id.short())))
}

fn pruned((entry, why): Verdict) -> PrunedCheckpoint {
    let stays = |why| match why {
        Why::Tagged => Stays { why: "tag".to_owned(), which: entry.tags.clone() },
        Why::Head => Stays { why: "head".to_owned(), which: entry.heads.clone() },
        Why::Run => Stays { why: "run".to_owned(), which: vec![] },
        Why::Fork => Stays { why: "fork".to_owned(), which: vec![] },
        Why::End => Stays { why: "end".to_owned(), which: vec![] },
        Why::Rule(rule) => Stays { why: "rule".to_owned(), which: vec![rule] },
    };
    PrunedCheckpoint {
        stays: why.into_iter().map(stays).collect(),
        id: entry.id,
        branch: entry.record.branch.clone(),
        created: convert::rfc3339(entry.record.created_ns),
        time_virtual_ns: entry.record.time_virtual_ns,
        stored_bytes: entry.record.cost.stored_bytes,
    }
}

/// Frees the space of what was removed. `busy` is told how far it is.
pub fn collect(store: &Path, options: &CollectOptions, busy: &mut dyn FnMut(Activity)) -> Result<Collected, Problem> {
    let what = |stage| match stage {
        CollectStage::Mark => ("finding what is needed", "checkpoints"),
        CollectStage::Hide => ("hiding what is not needed", "objects"),
        CollectStage::Wait => ("waiting for checkpoints being written", "checkpoints"),
        CollectStage::Rewrite => ("copying what is needed out of old packs", "packs"),
        CollectStage::Remove => ("removing what is not needed", "objects"),
        _ => ("collecting", "steps"),
    };
    local::open(store)?.collect(options, &mut |stage, progress| busy(activity(what(stage), progress))).map_err(problem)
}

/// Reads everything and checks it. Damage is no [`Problem`]: it is in the answer. `busy` is told how far it is.
pub fn verify(store: &Path, options: &VerifyOptions, busy: &mut dyn FnMut(Activity)) -> Result<Verified, Problem> {
    let what = |stage| match stage {
        VerifyStage::Packs => ("reading packs", "bytes"),
        VerifyStage::Index => ("comparing the index", "entries"),
        VerifyStage::Checkpoints => ("walking checkpoints", "checkpoints"),
        VerifyStage::Images => ("reading golden images", "blocks"),
        VerifyStage::Damage => ("finding out what the damage touches", "checkpoints"),
        _ => ("verifying", "steps"),
    };
    let opened = local::open(store)?;
    // Those that came from a remote are the store's own, and are read as well. One that cannot be opened counts as not looked at.
    let mut report = |what: &str, progress: Progress| busy(activity((what, "bytes"), progress));
    let _open = if options.quick { Vec::new() } else { open_own_images(&opened, &mut report) };
    opened.verify(options, &mut |stage, progress| busy(activity(what(stage), progress))).map_err(problem)
}

/// Counts what is in the store; what was measured when checkpoints were taken, of one experiment or of all.
pub fn stats(store: &Path, experiment: Option<&str>) -> Result<Stats, Problem> {
    local::open(store)?.stats(experiment).map_err(problem)
}

/// Work that is under way, and in what it is counted.
pub(crate) fn activity((what, unit): (&str, &str), progress: Progress) -> Activity {
    Activity { what: what.to_owned(), done: progress.done, total: progress.total, unit: unit.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Run;

    #[test]
    fn what_a_run_grows_does_not_go_as_a_whole() {
        let run = |name: &str, branch: &str| Run {
            name: name.into(),
            branch: branch.into(),
            head: None,
            time_virtual_ns: None,
            perturbation: None,
            machines: vec![],
        };
        let experiment = |name: &str, state| Experiment {
            name: name.into(),
            state,
            keeper_pid: 1,
            store: "/store".into(),
            every_ms: None,
            runs: vec![run("main", "main.2"), run("what-if", "what-if")],
            spare_ready: false,
            trouble: None,
            loading: None,
            swapped: None,
        };
        let known = [experiment("lives", ExperimentState::Running), experiment("dead", ExperimentState::Dead)];
        let check = |experiment: &str, branches: &[&str], all: bool| {
            let branches = branches.iter().map(|branch| (*branch).to_owned()).collect();
            check_nobody_grows(&known, &RemoveRequest { experiment: experiment.into(), branches, all, ..RemoveRequest::default() })
        };
        assert!(check("lives", &["main"], false).is_ok());
        assert!(check("lives", &["main", "main.2"], false).unwrap_err().message.contains("`fermata down main -e lives`"));
        assert!(check("lives", &[], true).unwrap_err().message.contains("`fermata down -e lives`"));
        assert!(check("dead", &["main.2"], true).is_ok());
        assert!(check("other", &["main.2"], true).is_ok());
    }
}
