//! Journeys to checkpoints and instants, and forks.

use super::When;
use fermata_types::{CheckpointId, Perturbation};
use serde::{Deserialize, Serialize};

/// Takes a run back (or forward) to a checkpoint, or to an instant.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GotoRequest {
    /// The checkpoint: id, unique beginning of one, tag, branch, each with `~N`; `~N` alone counts from the one that the run stands on. With an instant: where
    /// the line leads that it lies on; empty for the run's own.
    pub to: String,
    /// Which run; needed only if there are several.
    pub run: Option<String>,
    /// Load everything before the guest runs, instead of when it is touched.
    pub eager: bool,
    /// Leave it paused. At an instant it is, unless it is to go on.
    pub paused: bool,
    /// The instant to go to: to the nearest checkpoint at or before it, from which the run then runs until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
    /// Go on from that instant, instead of standing still there.
    #[serde(default)]
    pub go_on: bool,
    /// Have the links do otherwise than they did, from the checkpoint on; none: as they did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbation: Option<Perturbation>,
}

/// Starts a second run from a checkpoint, beside the first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ForkRequest {
    /// The checkpoint; none: the newest of the run.
    pub from: Option<String>,
    /// The name of the new run and its branch; none: one is made up.
    pub name: Option<String>,
    /// Which run's newest checkpoint, when `from` is none.
    pub run: Option<String>,
    /// Do not tell the guest that it is a copy: it will draw the same random numbers.
    pub same_randomness: bool,
    /// Load everything before the guest runs.
    pub eager: bool,
    /// Leave it paused.
    pub paused: bool,
    /// Have the links do otherwise than they did; none: as they did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbation: Option<Perturbation>,
}

/// A run that was just brought to a checkpoint: the answer of `goto` and `fork`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Resumed {
    /// The name of the run.
    pub run: String,
    /// Where it is now.
    pub checkpoint: CheckpointId,
    /// From the request to the guest's first instruction.
    pub resume_ms: f64,
    /// Whether a spare process stood ready.
    pub warm: bool,
    /// Virtual time at which it goes on.
    pub time_virtual_ns: u64,
    /// The branch it grows from now on.
    pub branch: String,
    /// If an instant was asked for: how it came there from that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Reached>,
    /// What its links do otherwise than they did, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbation: Option<Perturbation>,
}

/// How a run came to an instant of virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// The instant that was asked for.
    pub asked_ns: u64,
    /// Virtual time at which it is now, as far as one can tell from outside.
    pub time_virtual_ns: u64,
    /// How much later that is than what was asked for.
    pub late_ns: u64,
    /// How much virtual time passed in it on the way there.
    pub ran_ns: u64,
    /// It went to the checkpoint first. Else the instant was still to come, and it ran on from where it was.
    pub went: bool,
    /// It stands still there.
    pub paused: bool,
}
