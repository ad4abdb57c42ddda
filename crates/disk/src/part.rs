//! The disk as a part of an experiment.

use crate::{Cut, CutId, Disk, Error, FreeSpace, golden::Format, overlay::Settled};
use fermata_checkpoint::{Captured, Failure, Note, Outcome, Part, Saved};
use fermata_store::Writer;
use fermata_types::{ImageId, PartKind, PartState};
use fermata_vhost::Running;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

/// The name of the page table in a disk's [`PartState`].
pub const BLOCKS_TABLE: &str = "blocks";

/// What a checkpoint keeps of a disk besides its blocks: what is needed to build it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskDetails {
    /// Bytes of the disk.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The image below, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageDetails>,
    /// What was learned of free blocks, for each ext4 file system found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub free_space: Vec<FreeSpace>,
}

/// Which golden image a disk stands on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageDetails {
    /// The name of its content.
    pub id: ImageId,
    /// Where it was when the checkpoint was taken.
    pub path: PathBuf,
    /// How the file is laid out.
    pub format: Format,
}

impl DiskDetails {
    /// The details of a disk.
    pub fn of(disk: &Disk) -> Self {
        let image = disk.golden().map(|golden| ImageDetails { id: golden.id(), path: golden.path().to_owned(), format: golden.format() });
        Self { size: disk.size(), read_only: disk.read_only(), image, free_space: Vec::new() }
    }

    /// The details that a checkpoint keeps. Fails if the state is not that of a disk.
    pub fn from_state(state: &PartState) -> Result<Self, Error> {
        serde_json::from_value(state.details.clone())
            .map_err(|error| Error::Refused(format!("the checkpoint's part {} is no disk that this version knows: {error}", state.name)))
    }
}

/// A disk as a part of an experiment. The machine that writes to it is stopped before `freeze`.
pub struct DiskPart {
    name: String,
    disk: Arc<Disk>,
    running: Running,
    pending: Option<CutId>,
    cut_took: Duration,
    now: fn() -> Duration,
}

impl DiskPart {
    /// A part over a disk. `running` is the server's; a part without a server uses the default. `now` is a monotonic clock, for the notes.
    pub fn new(name: impl Into<String>, disk: Arc<Disk>, running: Running, now: fn() -> Duration) -> Self {
        Self { name: name.into(), disk, running, pending: None, cut_took: Duration::ZERO, now }
    }

    /// The disk.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Says how the last cut ended. A cut that nobody asks after any more is settled once.
    fn settle_cut(&mut self, outcome: Settled) {
        if let Some(id) = self.pending.take() {
            self.disk.settle(id, outcome);
        }
    }
}

struct CapturedDisk {
    name: String,
    details: DiskDetails,
    cut: Cut,
}

impl Captured<Writer> for CapturedDisk {
    fn save(self: Box<Self>, storage: &mut Writer) -> Result<Saved, Failure> {
        let (root, pages) = self.cut.save(storage)?;
        let details = DiskDetails { free_space: self.cut.free_space().to_vec(), ..self.details };
        let state = PartState {
            name: self.name,
            kind: PartKind::Disk,
            tables: BTreeMap::from([(BLOCKS_TABLE.to_owned(), root)]),
            blobs: BTreeMap::new(),
            details: serde_json::to_value(details)?,
        };
        Ok(Saved { state, pages, composition: None })
    }
}

impl Part<Writer> for DiskPart {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> PartKind {
        PartKind::Disk
    }

    fn prepare(&mut self, _storage: &mut Writer) -> Result<(), Failure> {
        if let Some(failure) = self.running.failure() {
            let name = &self.name;
            return Err(format!("disk {name} is served no more ({failure}): `fermata goto` the last checkpoint brings it back").into());
        }
        if let Some(golden) = self.disk.golden() {
            golden.check_unchanged()?;
        }
        Ok(())
    }

    fn freeze(&mut self) -> Result<(), Failure> {
        match self.running.rings() {
            0 => Ok(()),
            rings => {
                Err(format!("disk {}: QEMU has {rings} rings running; its machine must be stopped before the disk is frozen", self.name)
                    .into())
            }
        }
    }

    fn capture(&mut self) -> Result<Box<dyn Captured<Writer>>, Failure> {
        let start = (self.now)();
        let cut = self.disk.cut()?;
        self.pending = Some(cut.id());
        let captured = CapturedDisk { name: self.name.clone(), details: DiskDetails::of(&self.disk), cut };
        self.cut_took = (self.now)().saturating_sub(start);
        Ok(Box::new(captured))
    }

    fn thaw(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn settle(&mut self, outcome: Outcome<'_>) {
        let root = match outcome {
            Outcome::Permanent(state) => state.tables.get(BLOCKS_TABLE).copied(),
            Outcome::Aborted => None,
        };
        self.settle_cut(root.map_or(Settled::Aborted, Settled::Permanent));
    }

    fn notes(&self) -> Vec<Note> {
        vec![Note { step: "cut", took: self.cut_took }]
    }
}
