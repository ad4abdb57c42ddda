//! What an experiment and its runs do, and how they end.

use super::{Loading, Machine, SwappedOut};
use fermata_types::{CheckpointId, Perturbation};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What an experiment does: the answer of `up` and `ls`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Its name.
    pub name: String,
    /// `running`; `dead` when its keeper is gone without having been told to; `swapped` when it was swapped out.
    pub state: ExperimentState,
    /// Process id of the keeper.
    pub keeper_pid: u32,
    /// The store.
    pub store: PathBuf,
    /// Milliseconds between checkpoints by the clock; none: only on request.
    pub every_ms: Option<u64>,
    /// Its runs. The last that was known of them, if the keeper is dead.
    pub runs: Vec<Run>,
    /// Whether a spare process stands ready for the next `goto` or `fork`.
    pub spare_ready: bool,
    /// Why the last checkpoint by the clock failed, or removing what is not to be kept, if it did; or that the keeper lives and does not answer.
    pub trouble: Option<String>,
    /// How much of it is still on a remote, if it runs before all of it is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loading: Option<Loading>,
    /// Since when it is swapped out, and where to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swapped: Option<Box<SwappedOut>>,
}

/// Whether somebody keeps an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExperimentState {
    /// Its keeper answers.
    Running,
    /// Its keeper is gone.
    Dead,
    /// It was swapped out, and nobody keeps it.
    Swapped,
}

/// A live execution that grows a branch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// The branch that it grows.
    pub branch: String,
    /// The checkpoint that it stands on.
    pub head: Option<CheckpointId>,
    /// Its virtual time now, as far as one can tell from outside; none where nobody told.
    #[serde(default)]
    pub time_virtual_ns: Option<u64>,
    /// Its machines.
    pub machines: Vec<Machine>,
    /// What its links do otherwise than they did when it was lived through first, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbation: Option<Perturbation>,
}

/// Stops the machines of a run, or lets them go on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRequest {
    /// Which run; needed only if there are several.
    pub run: Option<String>,
    /// When they go on: guests that have suspended themselves to RAM sleep on. For whoever takes back a pause of his own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asleep: bool,
}

/// Ends a run, or all of an experiment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DownRequest {
    /// Which run; none: the experiment with all its runs.
    pub run: Option<String>,
}

/// What is gone now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The experiment.
    pub experiment: String,
    /// Its runs that ended.
    pub runs: Vec<String>,
}

/// What a keeper is busy with, for a progress bar.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// In words; empty when it is not busy.
    pub what: String,
    /// How much is done.
    pub done: u64,
    /// Of how much; 0: unknown.
    pub total: u64,
    /// `bytes`, `pages`, `steps`.
    pub unit: String,
}
