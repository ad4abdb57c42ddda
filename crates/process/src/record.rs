//! Records of what is no machine.

use fermata_linux::clock;
use fermata_store::{Cost, Record};
use fermata_types::{CheckpointId, PartState};

/// The record of a checkpoint that has no virtual time, no network, and stands on no image.
pub(crate) fn record(
    parent: Option<CheckpointId>,
    experiment: &str,
    branch: &str,
    spec: serde_json::Value,
    parts: Vec<PartState>,
    cost: Cost,
) -> Record {
    Record {
        parent,
        experiment: experiment.to_owned(),
        branch: branch.to_owned(),
        message: None,
        created_ns: clock::wall_ns(),
        after_ns: None,
        time_virtual_ns: 0,
        began_ns: None,
        spec,
        events: 0,
        waiting: Vec::new(),
        parts,
        images: Vec::new(),
        cost,
    }
}
