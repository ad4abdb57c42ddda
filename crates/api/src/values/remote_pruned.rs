//! What `fermata remote prune` tells.

use fermata_store::remote::Pruned;
use fermata_types::CheckpointId;
use serde::{Deserialize, Serialize};

/// What was removed from a remote, or would be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RemotePruned {
    /// The remote's address.
    pub remote: String,
    /// Nothing was removed: this is what would be.
    pub dry_run: bool,
    /// The checkpoints, parents before children.
    pub removed: Vec<RemovedThere>,
    /// Checkpoints that stay.
    pub kept: u64,
    /// What became of what they had there.
    #[serde(flatten)]
    pub freed: Pruned,
}

/// A checkpoint that went from a remote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RemovedThere {
    /// The experiment.
    pub experiment: String,
    /// Its id.
    pub id: CheckpointId,
    /// The branch that it grew on.
    pub branch: String,
    /// When it was taken: RFC 3339, UTC.
    pub created: String,
}
