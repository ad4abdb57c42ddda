//! The state of one part of an experiment, as a checkpoint keeps it.

use crate::{BlobName, Root};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PartKind {
    /// Switches and links: the frames in flight.
    Network,
    /// A virtual machine: its RAM and its devices.
    Machine,
    /// A disk above its golden image.
    Disk,
    /// A group of processes on the host.
    Process,
}

/// Everything that a checkpoint keeps of one part. The store needs to know no more of a part than this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartState {
    /// The name of the part in its experiment: `m1`, or `m1/disk0` for a disk.
    pub name: String,
    /// What the part is.
    pub kind: PartKind,
    /// Page tables by name: `ram` of a machine, `blocks` of a disk.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tables: BTreeMap<String, Root>,
    /// Runs of bytes by name: `devices` of a machine.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub blobs: BTreeMap<String, BlobName>,
    /// What the part needs to be built again, as the room of the part defines it.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub details: serde_json::Value,
}
