//! How two checkpoints differ.

pub use fermata_experiment::{FileChange, FileDiffers, FileKind, FilesDiffer, LinkDiffers, LinkState};
use fermata_types::{CheckpointId, Composition};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How two checkpoints differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The first.
    pub a: CheckpointId,
    /// The second.
    pub b: CheckpointId,
    /// Virtual time from the first to the second.
    pub time_virtual_ns: i64,
    /// Part by part.
    pub parts: Vec<PartDifference>,
    /// Files that differ, disk by disk.
    #[serde(default)]
    pub disks: Vec<DiskDifference>,
    /// Pages of memory that differ by what they are for in the second, machine by machine.
    #[serde(default)]
    pub memory: BTreeMap<String, Composition>,
    /// Ends of links that differ.
    #[serde(default)]
    pub links: Vec<LinkDiffers>,
}

/// How the files of a disk differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskDifference {
    /// The disk.
    pub name: String,
    /// Of each ext4 file system that was found on it.
    pub file_systems: Vec<FilesDiffer>,
}

/// How a part differs between two checkpoints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartDifference {
    /// The part.
    pub name: String,
    /// Which page table or blob of it: `ram`, `blocks`, `devices`.
    pub of: String,
    /// Pages that differ; for a blob 1 or 0.
    pub pages_differing: u64,
    /// Pages in all; for a blob 1.
    pub pages: u64,
    /// Pages only the first has, that are zero or golden in the second.
    pub only_a: u64,
    /// Pages only the second has.
    pub only_b: u64,
    /// Stretches of pages that differ, `[first, count]`, the longest first, at most 16.
    pub stretches: Vec<(u32, u32)>,
}
