//! What `fermata backup` tells.

use crate::{remotes::Copied, spec::Keep};
use fermata_types::CheckpointId;
use serde::{Deserialize, Serialize};

/// A remote that keepers copy checkpoints to by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupEntry {
    /// The name of the remote here.
    pub remote: String,
    /// The experiment; none: every one of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment: Option<String>,
    /// How fast keepers send, in bytes a second; none: as the remote's entry says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Which checkpoints of an experiment stay there; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
}

/// What `fermata backup REMOTE` did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackedUp {
    /// What was copied, by experiment.
    pub copied: Vec<Copied>,
    /// What keepers do by themselves from now on.
    pub kept: Vec<BackupEntry>,
}

/// How far a remote is behind an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackupStanding {
    /// The name of the remote here.
    pub remote: String,
    /// Where it is.
    pub address: String,
    /// The experiment.
    pub experiment: String,
    /// Whether a keeper copies by itself what it takes.
    pub kept: bool,
    /// Checkpoints here.
    pub checkpoints: u64,
    /// Those of them that are not there, without those that were removed there.
    pub lacking: u64,
    /// Branches and tags that are not there, or elsewhere.
    pub lacking_refs: u64,
    /// The newest checkpoint here.
    pub newest: Option<CheckpointId>,
    /// The newest one here that is there, too.
    pub newest_there: Option<CheckpointId>,
    /// How much later the one was taken than the other.
    pub behind_ns: Option<u64>,
    /// Why the remote could not be asked.
    pub trouble: Option<String>,
}
