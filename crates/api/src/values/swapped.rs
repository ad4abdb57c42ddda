//! Experiments that are swapped out, or on their way back.

use super::Resumed;
use crate::remotes::RemoteEntry;
use fermata_types::{CheckpointId, PageNumber};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An experiment that was swapped out: all that is left of it on a host, and what its remote remembers of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwappedOut {
    /// Its name.
    pub experiment: String,
    /// The branch that its run grew.
    pub branch: String,
    /// The checkpoint that it stands at.
    pub checkpoint: CheckpointId,
    /// Virtual time there.
    pub time_virtual_ns: u64,
    /// When it was swapped out: wall clock of that host, nanoseconds since 1970.
    pub swapped_ns: u64,
    /// The same for people: RFC 3339, UTC.
    pub swapped: String,
    /// Where it is; none: in the store here, or, as a remote remembers it, there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteEntry>,
    /// Its specification.
    pub spec: serde_json::Value,
    /// Its machines.
    pub machines: Vec<SwappedMachine>,
    /// Pages of each machine that were touched first when it was restored the last time, by name.
    #[serde(default)]
    pub working_sets: BTreeMap<String, Vec<PageNumber>>,
}

/// A machine of an experiment that is swapped out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwappedMachine {
    /// Its name.
    pub name: String,
    /// RAM, bytes.
    pub memory_bytes: u64,
    /// Virtual processors.
    pub cpus: u32,
    /// `kvm` or `tcg`.
    pub accel: String,
}

/// What was sent before the machines stopped, or behind them: a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwapRound {
    /// The newest checkpoint that was sent.
    pub checkpoint: CheckpointId,
    /// Bytes that travelled.
    pub bytes: u64,
    /// How long taking it and sending it took.
    pub took_ms: f64,
}

/// How an experiment was swapped out: what `fermata swapout` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwapOutcome {
    /// What is left of it here.
    #[serde(flatten)]
    pub swapped: SwappedOut,
    /// What was sent while the machines ran, and at last while they stood.
    pub rounds: Vec<SwapRound>,
    /// From the machines' stop to their end, with what was sent meanwhile.
    pub stopped_ms: f64,
    /// All of it.
    pub took_ms: f64,
    /// Bytes that the store gave back.
    pub freed_bytes: u64,
    /// Why something of it is still here that should be gone, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// An experiment that was swapped in: what `fermata swapin` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwappedIn {
    /// Its name.
    pub experiment: String,
    /// Its run.
    #[serde(flatten)]
    pub resumed: Resumed,
    /// From the command to the guests' first instruction, a keeper's start and all.
    pub took_ms: f64,
    /// What is still to come; nothing if all was here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loading: Option<Loading>,
}

/// An experiment that runs while some of it is still on a remote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loading {
    /// The remote's address.
    pub remote: String,
    /// Bytes that have to be fetched; 0 as long as that is not known.
    pub total_bytes: u64,
    /// Of them those that are not here yet.
    pub away_bytes: u64,
    /// Objects that a machine waited for, read one after the other.
    pub asked: u64,
    /// Why machines stand still: the remote cannot be read, and a page is needed that is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// They stand so for good: what they were given of the remote was found to be wrong.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_good: bool,
    /// Why the rest does not come at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}
