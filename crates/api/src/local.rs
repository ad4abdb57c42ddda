//! What needs no keeper: the history in the store, who keeps what on this host, and starting a keeper.

use crate::{
    client::Client,
    spec::Spec,
    values::{Checkpoint, Difference, Ended, Experiment, GotoRequest, Problem, Resumed, Tag},
};
use std::{
    env,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// What `fermata up` starts.
#[derive(Debug, Clone)]
pub struct UpRequest {
    /// What the experiment is.
    pub spec: Spec,
    /// Milliseconds between checkpoints by the clock; none: as the specification says.
    pub every_ms: Option<u64>,
    /// The store.
    pub store: PathBuf,
}

fn not_yet<T>() -> Result<T, Problem> {
    Err(Problem::new("this is not built yet"))
}

/// The store that is meant: the one given, else `$FERMATA_STORE`, else `fermata` in the user's data directory.
pub fn store_path(given: Option<PathBuf>) -> PathBuf {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    given.or_else(|| variable("FERMATA_STORE")).unwrap_or_else(|| {
        let data = variable("XDG_DATA_HOME").filter(|path| path.is_absolute());
        let data = data.or_else(|| variable("HOME").map(|home| home.join(".local/share")));
        data.unwrap_or_else(|| PathBuf::from("/var/lib")).join("fermata")
    })
}

/// Where keepers live: `$FERMATA_RUN_DIR`, else `/dev/shm/fermata-UID`. One directory an experiment in it.
pub fn run_root() -> PathBuf {
    env::var_os("FERMATA_RUN_DIR").filter(|value| !value.is_empty()).map(PathBuf::from).unwrap_or_else(|| {
        // The owner of our own entry in /proc: the user id, without a system call.
        let user = std::fs::metadata("/proc/self").map_or(0, |process| process.uid());
        PathBuf::from(format!("/dev/shm/fermata-{user}"))
    })
}

/// Starts a keeper for the experiment, and waits until its machines run.
pub fn up(_request: UpRequest) -> Result<Experiment, Problem> {
    not_yet()
}

/// Keeps the experiment in this process until it is told to end.
pub fn up_in_foreground(_request: UpRequest, _ready: &mut dyn FnMut(&Experiment)) -> Result<(), Problem> {
    not_yet()
}

/// The body of a keeper's process.
pub fn keep(_run_dir: &Path) -> Result<(), Problem> {
    not_yet()
}

/// Starts a keeper for an experiment that has none, and goes to a checkpoint of it.
pub fn revive(_store: &Path, _experiment: Option<&str>, _request: &GotoRequest) -> Result<Resumed, Problem> {
    not_yet()
}

/// Clears away what a dead keeper left in its run directory. Its checkpoints stay.
pub fn bury(_experiment: &str) -> Result<Ended, Problem> {
    not_yet()
}

/// The keeper of a living experiment.
pub fn client(_experiment: &str) -> Result<Client, Problem> {
    not_yet()
}

/// Experiments of this user on this host, of one store or of all, living and dead.
pub fn experiments(_store: Option<&Path>) -> Result<Vec<Experiment>, Problem> {
    Ok(Vec::new())
}

/// All checkpoints, children after their parents; of one experiment or of all in the store.
pub fn log(_store: &Path, _experiment: Option<&str>) -> Result<Vec<Checkpoint>, Problem> {
    not_yet()
}

/// One checkpoint: id, unique beginning of one, tag or branch, each with `~N`.
pub fn show(_store: &Path, _experiment: Option<&str>, _checkpoint: &str) -> Result<Checkpoint, Problem> {
    not_yet()
}

/// How two checkpoints differ.
pub fn diff(_store: &Path, _experiment: Option<&str>, _a: &str, _b: &str) -> Result<Difference, Problem> {
    not_yet()
}

/// Tags a checkpoint.
pub fn tag(_store: &Path, _experiment: Option<&str>, _checkpoint: &str, _name: &str) -> Result<Tag, Problem> {
    not_yet()
}

/// Takes a tag away.
pub fn untag(_store: &Path, _experiment: Option<&str>, _name: &str) -> Result<Tag, Problem> {
    not_yet()
}

/// All tags.
pub fn tags(_store: &Path, _experiment: Option<&str>) -> Result<Vec<Tag>, Problem> {
    not_yet()
}
