//! Checkpoints, and how they are asked for.

use super::{Events, LinkEnd, MachineState};
use fermata_experiment::net::{InterfaceId, Topology};
use fermata_types::{BlobName, CheckpointId, Composition, ImageId, PageCounts, PartKind, Perturbation, Root};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A checkpoint: what `fermata checkpoint` prints, and `fermata log` prints many of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Its id.
    pub id: CheckpointId,
    /// The checkpoint that it grew from.
    pub parent: Option<CheckpointId>,
    /// The experiment.
    pub experiment: String,
    /// The branch that it grew on: the name of the run.
    pub branch: String,
    /// Branches whose newest checkpoint it is.
    pub heads: Vec<String>,
    /// Its tags.
    pub tags: Vec<String>,
    /// What the user had to say; none for one that was taken by the clock.
    pub message: Option<String>,
    /// Wall clock of the host, nanoseconds since 1970.
    pub created_ns: u64,
    /// The same for people: RFC 3339, UTC.
    pub created: String,
    /// Virtual time at the instant.
    pub time_virtual_ns: u64,
    /// How long the guests stood still.
    pub pause_ms: f64,
    /// How far apart the machines were in the pause; none where there was one, or where nobody measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skew: Option<Skew>,
    /// What the pause was spent on, by part and step.
    pub steps_ms: BTreeMap<String, f64>,
    /// How long it took, behind the guests, to store.
    pub save_ms: f64,
    /// Bytes that it added to the store.
    pub stored_bytes: u64,
    /// Of them those of each part by name. Empty for checkpoints of before it was told.
    #[serde(default)]
    pub stored_by_part: BTreeMap<String, u64>,
    /// How its pages fell through the sieve.
    pub pages: PageCounts,
    /// The same for each part by name: pages of RAM and blocks of disks apart.
    #[serde(default)]
    pub pages_by_part: BTreeMap<String, PageCounts>,
    /// Bytes of the pages of each class, as they were before compression.
    #[serde(default)]
    pub bytes_by_class: BTreeMap<String, u64>,
    /// What telling the pages of each class took, by class, the storing of new ones with it. Empty for checkpoints of before it was told.
    #[serde(default)]
    pub sieve_ms: BTreeMap<String, f64>,
    /// What the work before and behind the pause was spent on while the guests ran, by part and step.
    #[serde(default)]
    pub background_ms: BTreeMap<String, f64>,
    /// What the pages of each machine were for, by name; nothing in checkpoints that did not tell.
    #[serde(default)]
    pub composition: BTreeMap<String, Composition>,
    /// Bytes of written pages that did not have to be stored, and why.
    #[serde(default)]
    pub saved_bytes: SavedBytes,
    /// What it consists of.
    pub parts: Vec<Part>,
    /// Golden images that it stands on.
    pub images: Vec<ImageId>,
    /// What was to happen by itself; nothing where nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Events>,
    /// What connects its machines, with links as they were at that instant, where one checkpoint is shown; nothing where nothing does, and in lists of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Topology>,
    /// Interfaces of it that were down at that instant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down: Vec<InterfaceId>,
    /// What went over its links until then, where one checkpoint is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkEnd>,
    /// What the links did otherwise than they would have, in the replay that it grew in; nothing where all was as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbation: Option<Perturbation>,
    /// Runs that live and stand on it: that it is the newest checkpoint of. Only in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunAt>,
}

/// A run that lives, seen from the checkpoint that it stands on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAt {
    /// Its name.
    pub name: String,
    /// What its machines do: the state of the first that does not run, else `running`.
    pub state: MachineState,
    /// Its virtual time now, as far as one can tell from outside.
    pub time_virtual_ns: Option<u64>,
}

/// How far apart machines were that should do the same at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Skew {
    /// From the first machine's stop to the last one's.
    pub stop_ms: f64,
    /// From the first machine's going on to the last one's. Who is ahead in virtual time goes on later by as much.
    pub resume_ms: f64,
    /// Between the virtual times at which machines stand in the checkpoint.
    pub time_ms: f64,
}

/// Bytes of written pages that each sieve kept out of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedBytes {
    /// Zero throughout.
    pub zero: u64,
    /// Free in the guest.
    pub free: u64,
    /// Equal to a block of a disk, known without looking.
    pub mapped: u64,
    /// Equal to a block of a golden image.
    pub on_disk: u64,
    /// Put before in the same checkpoint.
    pub within: u64,
    /// Stored by an earlier checkpoint.
    pub across: u64,
    /// New, and compressed. What else the checkpoint stored (device state, nodes of page tables) is taken off.
    pub compression: u64,
}

impl SavedBytes {
    /// The sieves by the names that they have in JSON.
    pub fn sieves(&self) -> [(&'static str, u64); 7] {
        let Self { zero, free, mapped, on_disk, within, across, compression } = *self;
        [
            ("zero", zero),
            ("free", free),
            ("mapped", mapped),
            ("on_disk", on_disk),
            ("within", within),
            ("across", across),
            ("compression", compression),
        ]
    }

    /// All of them together.
    pub fn total(&self) -> u64 {
        self.sieves().into_iter().map(|(_, bytes)| bytes).sum()
    }
}

/// One part of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Its name: `m1`, `m1/disk0`.
    pub name: String,
    /// What it is.
    pub kind: PartKind,
    /// Its page tables: `ram`, `blocks`. Equal roots are equal contents, byte for byte.
    pub tables: BTreeMap<String, Root>,
    /// Its other contents: `devices`.
    pub blobs: BTreeMap<String, BlobName>,
    /// What was known of free blocks at the checkpoint, for each ext4 file system found on a disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub free_space: Vec<FreeSpace>,
}

/// Blocks of a disk that the guest's file system has freed. A checkpoint does not keep them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FreeSpace {
    /// The byte of the disk where the file system begins.
    pub start: u64,
    /// Blocks of 4 KiB that are known to be free, whether or not anything was ever written to them.
    pub blocks: u64,
    /// Why nothing is known, when nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unclear: Option<String>,
}

/// Asks for a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRequest {
    /// Of which run; needed only if there are several.
    pub run: Option<String>,
    /// A word about why.
    pub message: Option<String>,
    /// Look at the content of each page that would be taken as known, and fail if one is not what it was taken for.
    #[serde(default)]
    pub paranoid: bool,
    /// Store it without hurry: what the guests do comes first, for as long as they keep the processors busy.
    #[serde(default)]
    pub gentle: bool,
    /// The instant of virtual time; none: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
}

/// An instant of a run's virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// So many nanoseconds after the request.
    AfterNs(u64),
    /// When it is that time.
    AtNs(u64),
}

/// A tag and the checkpoint it stands for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tag {
    /// The experiment.
    pub experiment: String,
    /// The tag.
    pub tag: String,
    /// The checkpoint; none if the tag was taken away.
    pub checkpoint: Option<CheckpointId>,
}
