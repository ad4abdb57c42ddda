//! What `fermata prune` tells.

use super::Collected;
use fermata_store::Keep;
use fermata_types::CheckpointId;
use serde::{Deserialize, Serialize};

/// What became of the checkpoints of an experiment under a policy: what `fermata prune` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pruned {
    /// The experiment.
    pub experiment: String,
    /// What is kept.
    pub keep: Keep,
    /// Nothing was removed: this is what would be.
    pub dry_run: bool,
    /// All that there were, children before parents.
    pub checkpoints: Vec<PrunedCheckpoint>,
    /// What was freed, if that was asked for.
    pub collected: Option<Collected>,
}

/// A checkpoint that stays or goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PrunedCheckpoint {
    /// Its id.
    pub id: CheckpointId,
    /// The branch that it grew on.
    pub branch: String,
    /// When it was taken: RFC 3339, UTC.
    pub created: String,
    /// Virtual time at the instant.
    pub time_virtual_ns: u64,
    /// Bytes that it added to the store. What others share with it stays.
    pub stored_bytes: u64,
    /// Why it stays; for no reason: it goes.
    pub stays: Vec<Stays>,
}

/// Why a checkpoint stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stays {
    /// `tag`, `head` (of a branch), `run` (stands on it), `fork` (several grew from it), `end` (nothing grew from it), `rule`.
    pub why: String,
    /// Which tags, branches or rule.
    pub which: Vec<String>,
}
