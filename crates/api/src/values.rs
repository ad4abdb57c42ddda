//! Requests and answers as plain values. What `--json` prints is exactly these.
//!
//! Fields are added, never renamed or removed; units are in the names.

mod backups;
mod checkpoint;
mod difference;
mod events;
mod experiment;
mod finding;
mod links;
mod machine;
mod metrics;
mod outside;
mod plots;
mod pruned;
mod remote_pruned;
mod store;
mod swapped;
mod travel;
mod trials;

pub use backups::{BackedUp, BackupEntry, BackupStanding};
pub use checkpoint::*;
pub use difference::*;
pub use events::Events;
pub use experiment::*;
pub use finding::*;
pub use links::*;
pub use machine::*;
pub use metrics::*;
pub use outside::*;
pub use plots::*;
pub use pruned::{Pruned, PrunedCheckpoint, Stays};
pub use remote_pruned::{RemotePruned, RemovedThere};
use serde::{Deserialize, Serialize};
pub use store::*;
pub use swapped::*;
pub use travel::*;
pub use trials::{BisectStep, Bisected, Cpus, CpusRequest, Outcome, Tried, TriedOnce};

/// An error as it travels: what happened, to what, what to do next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// The whole message.
    pub message: String,
}
