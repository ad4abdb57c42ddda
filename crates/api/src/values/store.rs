//! What is told of a whole store.

pub use fermata_store::{
    CollectOptions, Collected, Damage, MovedBranch, Remedy, Removed, RemovedCheckpoint, RemovedTag, Report as Verified, Stats, Touched,
    VerifyOptions,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A store's index that was built again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rebuilt {
    /// The store.
    pub store: PathBuf,
    /// Packs found whole.
    pub packs: u64,
    /// Checkpoints found in them.
    pub checkpoints: u64,
    /// Packs that cannot be read, and why.
    pub damaged: Vec<String>,
}
