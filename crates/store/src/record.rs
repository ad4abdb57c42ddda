//! The record of a checkpoint. See `docs/formats/record.md`.

use crate::{Error, Result, error::Named, hash, pack::frame::RECORD_MAX};
use fermata_types::{CheckpointId, ClassTimes, Composition, ImageId, PAGE_SIZE, PageCounts, PartState};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

const VERSION: u32 = 1;

/// A checkpoint's record. The id of the checkpoint is the hash of its bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The checkpoint before this one; none for the first.
    pub parent: Option<CheckpointId>,
    /// The name of the experiment.
    pub experiment: String,
    /// The branch (= name of the run) that this checkpoint grew on.
    pub branch: String,
    /// What the user said about it.
    pub message: Option<String>,
    /// Wall clock of the host, ns since 1970.
    pub created_ns: u64,
    /// The [`order`](Self::order_ns) of its parent, where that is not before `created_ns`: the host's clock was set back between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ns: Option<u64>,
    /// Virtual time of the instant, ns.
    pub time_virtual_ns: u64,
    /// What the host's wall clock showed at virtual time zero, ns since 1970: the time of day in the experiment is counted from it. Older checkpoints do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_ns: Option<u64>,
    /// The specification of the experiment, as plain JSON.
    pub spec: serde_json::Value,
    /// How many of the experiment's events had happened.
    #[serde(default, skip_serializing_if = "is_none")]
    pub events: u64,
    /// Commands that were due in guests and had not begun there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
    /// The state of every part.
    pub parts: Vec<PartState>,
    /// Golden images that the parts stand on.
    pub images: Vec<ImageId>,
    /// What the checkpoint cost.
    pub cost: Cost,
}

/// A command that is due in a guest and has not begun there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Waiting {
    /// That of an event: its number, in the order of the events' times, from 0.
    Event(u64),
    /// The one that gives an interface the address of the specification: `a:eth1`.
    Address(String),
}

/// What a checkpoint cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cost {
    /// How long the guests stood still, ns.
    pub pause_ns: u64,
    /// How far apart several machines were in the pause; none where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skew: Option<Skew>,
    /// Steps of the pause, by part and name ("m1 stop"), ns.
    pub steps_ns: BTreeMap<String, u64>,
    /// How long saving took behind the running guests, ns.
    pub save_ns: u64,
    /// Bytes that this checkpoint added to the store (packs, without the record itself).
    pub stored_bytes: u64,
    /// Of them those of each part by name: its pages, its page tables and its blobs. Older checkpoints do not tell.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stored_by_part: BTreeMap<String, u64>,
    /// How its pages fell through the sieve.
    pub pages: PageCounts,
    /// The same for each part by name, so that pages of RAM and blocks of disks are told apart.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, PageCounts>,
    /// What telling each class of pages took, ns; older checkpoints do not tell.
    #[serde(skip_serializing_if = "ClassTimes::is_empty")]
    pub sieve_ns: ClassTimes,
    /// Steps of the work before and behind the pause, while the guests ran, by part and name ("m1 prepare"), ns.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub background_ns: BTreeMap<String, u64>,
    /// What the pages of each machine were for, by the name of its part; older checkpoints do not tell.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub composition: BTreeMap<String, Composition>,
}

impl Cost {
    /// Bytes of new pages that compression kept out of the store. What else was stored (device state, nodes of page tables) is taken off.
    pub fn compressed_away(&self) -> u64 {
        self.pages.new.saturating_mul(PAGE_SIZE as u64).saturating_sub(self.stored_bytes)
    }
}

/// How far apart machines were that should do the same at the same time, ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Skew {
    /// From the first machine's stop to the last one's.
    pub stop_ns: u64,
    /// From the first machine's going on to the last one's. Who is ahead in virtual time goes on later by as much.
    pub resume_ns: u64,
    /// Between the virtual times at which machines stand in the checkpoint.
    pub time_ns: u64,
}

fn is_none(events: &u64) -> bool {
    *events == 0
}

#[derive(Serialize)]
struct Versioned<'a> {
    version: u32,
    #[serde(flatten)]
    record: &'a Record,
}

#[derive(Deserialize)]
struct VersionOnly {
    version: u32,
}

impl Record {
    /// What checkpoints are put in order by, the newest last: the wall clock, and behind its parent where that had been set back. Text and ages are about `created_ns`.
    pub fn order_ns(&self) -> u64 {
        self.after_ns.map_or(0, |after| after.saturating_add(1)).max(self.created_ns)
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let refused = |what: String| Error::refused(what, "make the specification or the details of its parts smaller and plain");
        let bytes = serde_json::to_vec(&Versioned { version: VERSION, record: self })
            .map_err(|error| refused(format!("the record cannot be written as JSON: {error}")))?;
        if bytes.len() > RECORD_MAX {
            return Err(refused(format!("a record of {} bytes", bytes.len())));
        }
        Ok(bytes)
    }

    /// Decodes the record of a checkpoint and checks it against the id. `source` is where it was found.
    pub(crate) fn decode(bytes: &[u8], id: &CheckpointId, source: &Path) -> Result<Self> {
        let corrupt = |detail: String| Error::corrupt(source, None, Named("record", id.as_bytes()), detail);
        if hash::record(bytes) != *id {
            return Err(corrupt("it does not fit its id".into()));
        }
        let version = serde_json::from_slice::<VersionOnly>(bytes).map_err(|error| corrupt(error.to_string()))?.version;
        if version != VERSION {
            return Err(Error::Unsupported {
                path: source.to_owned(),
                what: format!("checkpoint {} of record version {version}", id.short()),
            });
        }
        serde_json::from_slice(bytes).map_err(|error| corrupt(error.to_string()))
    }
}
