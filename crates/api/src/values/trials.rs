//! What `fermata try` and `fermata bisect` tell.

use crate::bisect::Verdict;
use fermata_types::CheckpointId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What came of a checkpoint that was lived through under several conditions: what `fermata try` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// The experiment.
    pub experiment: String,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Its virtual time.
    pub time_virtual_ns: u64,
    /// Virtual time from there to the beginning of the script.
    pub for_ns: u64,
    /// What came of each condition, in the order in which they were given.
    pub trials: Vec<TriedOnce>,
}

/// What came of it under one condition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TriedOnce {
    /// What was different: `loss`, `CC`.
    pub condition: BTreeMap<String, String>,
    /// What came of it; none if it could not be tried.
    #[serde(flatten)]
    pub outcome: Option<Outcome>,
    /// Why it could not be tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Has a guest do with fewer processors than its machine has, or with all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpusRequest {
    /// `m1`, or `run:m1`; empty if there is only one machine.
    pub machine: String,
    /// How many are to be online.
    pub online: u32,
    /// How long to wait for the guest agent, milliseconds.
    pub wait_ms: u64,
}

/// The processors of a guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus {
    /// The machine, as `run:machine`.
    pub machine: String,
    /// How many are online.
    pub online: u32,
    /// How many it has.
    pub cpus: u32,
}

/// What came of a script in a fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The fork.
    pub run: String,
    /// The script's exit status; 128 and the signal when one ended it.
    pub status: i32,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
    /// Virtual time when it began.
    pub began_ns: u64,
    /// Virtual time when it had ended.
    pub ended_ns: u64,
}

/// The first bad checkpoint of a line: what `fermata bisect` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bisected {
    /// The experiment.
    pub experiment: String,
    /// The newest checkpoint that is known to be good.
    pub good: CheckpointId,
    /// The first bad one; none if it is one of several, since those before it could not be told.
    pub first_bad: Option<CheckpointId>,
    /// The checkpoints of which the first bad one is one, the oldest first; the last is known to be bad.
    pub suspects: Vec<CheckpointId>,
    /// What was tried, in that order.
    pub steps: Vec<BisectStep>,
}

/// One checkpoint that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BisectStep {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Its virtual time.
    pub time_virtual_ns: u64,
    /// What was made of it: `good`, `bad`, `skip`.
    pub verdict: Verdict,
    /// What came of the script.
    #[serde(flatten)]
    pub outcome: Outcome,
}
