//! The network as a part of an experiment.

use crate::{
    Fabric, Unreadable, World,
    fabric::{LOST, Snapshot},
};
use fermata_checkpoint::{Captured, Failure, Outcome, Part, Saved};
use fermata_types::{BlobName, PageCounts, PartKind, PartState, Perturbation, VirtualTime};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// The name of the blob in a network's [`PartState`]: what [`World::to_bytes`] writes.
pub const WORLD: &str = "world";

/// What a checkpoint keeps of a network besides the frames in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkDetails {
    /// The instant, in virtual time.
    pub time_virtual: VirtualTime,
    /// By interface: whether the guest's driver has once begun to listen.
    pub listening: Vec<bool>,
    /// By interface: where its receive ring was stopped last. Not in older checkpoints.
    #[serde(default)]
    pub positions: Vec<Option<u16>>,
    /// What made it do otherwise than it would have, if anything did. The blob says so as well, for whoever goes on from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perturbation: Option<Perturbation>,
}

impl Snapshot {
    /// The network in a checkpoint: its part's state, and the bytes of its blob [`WORLD`].
    ///
    /// # Errors
    /// What is there is no network, or one of another number of interfaces than its details.
    pub fn from_state(state: &PartState, bytes: &[u8]) -> Result<Self, Unreadable> {
        let details: NetworkDetails = serde_json::from_value(state.details.clone()).map_err(Unreadable::new)?;
        let world = World::from_bytes(bytes)?;
        let NetworkDetails { time_virtual, listening, mut positions, .. } = details;
        let count = world.topology().interfaces.len();
        if positions.is_empty() {
            positions = vec![None; count];
        }
        if [listening.len(), positions.len()] != [count; 2] {
            return Err(Unreadable::new("its details are those of another network"));
        }
        Ok(Self { world, listening, positions, at: time_virtual })
    }
}

/// A network as a part of an experiment. It is frozen before the machines stop and thawed after they go on; the experiment's clock, which it reads, is to be
/// stopped and started with the machines. If nobody does, it stands from the capture to the thaw.
///
/// `S` is where states are written; `put` puts a blob there.
pub struct NetworkPart<S> {
    name: String,
    fabric: Arc<Fabric>,
    put: fn(&mut S, &[u8]) -> Result<BlobName, Failure>,
    /// It was at work when it was frozen.
    at_work: bool,
}

impl<S> NetworkPart<S> {
    /// A part over a network at work.
    pub fn new(name: impl Into<String>, fabric: Arc<Fabric>, put: fn(&mut S, &[u8]) -> Result<BlobName, Failure>) -> Self {
        Self { name: name.into(), fabric, put, at_work: false }
    }
}

fn served(fabric: &Fabric) -> Result<(), Failure> {
    fabric.failure().map_or(Ok(()), |failure| Err(lost(&failure)))
}

fn lost(failure: &str) -> Failure {
    format!("the network is served no more ({failure}): `fermata goto` the last checkpoint brings it back").into()
}

struct CapturedNetwork<S> {
    name: String,
    snapshot: Snapshot,
    fabric: Arc<Fabric>,
    put: fn(&mut S, &[u8]) -> Result<BlobName, Failure>,
}

impl<S> Captured<S> for CapturedNetwork<S> {
    fn save(self: Box<Self>, storage: &mut S) -> Result<Saved, Failure> {
        // What had failed at the instant has failed still. It takes locks, of which the pause takes as few as it can.
        served(&self.fabric)?;
        let Snapshot { world, listening, positions, at } = self.snapshot;
        let blob = (self.put)(storage, &world.to_bytes())?;
        let state = PartState {
            name: self.name,
            kind: PartKind::Network,
            tables: BTreeMap::new(),
            blobs: BTreeMap::from([(WORLD.to_owned(), blob)]),
            details: serde_json::to_value(NetworkDetails { time_virtual: at, listening, positions, perturbation: world.perturbation() })?,
        };
        Ok(Saved { state, pages: PageCounts::default(), composition: None })
    }
}

impl<S: 'static> Part<S> for NetworkPart<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> PartKind {
        PartKind::Network
    }

    fn ready(&self) -> Result<(), Failure> {
        served(&self.fabric)
    }

    fn prepare(&mut self, _storage: &mut S) -> Result<(), Failure> {
        Ok(())
    }

    fn freeze(&mut self) -> Result<(), Failure> {
        self.at_work = !self.fabric.freeze();
        // Whether it has failed since it was ready is looked at when it is saved.
        Ok(())
    }

    fn capture(&mut self) -> Result<Box<dyn Captured<S>>, Failure> {
        self.fabric.clock().stop();
        let Some(snapshot) = self.fabric.try_snapshot() else { return Err(lost(LOST)) };
        Ok(Box::new(CapturedNetwork { name: self.name.clone(), snapshot, fabric: self.fabric.clone(), put: self.put }))
    }

    fn thaw(&mut self) -> Result<(), Failure> {
        // A paused experiment stays so.
        if std::mem::take(&mut self.at_work) {
            self.fabric.thaw();
        }
        Ok(())
    }

    fn settle(&mut self, _outcome: Outcome<'_>) {}
}
