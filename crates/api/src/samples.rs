//! What tests of several modules begin with.

use fermata_store::{Cost, Record};

/// The record of a first checkpoint, which holds nothing.
pub fn record(experiment: &str, created_ns: u64) -> Record {
    Record {
        parent: None,
        experiment: experiment.into(),
        branch: "main".into(),
        message: None,
        created_ns,
        after_ns: None,
        time_virtual_ns: created_ns,
        began_ns: None,
        spec: serde_json::Value::Null,
        events: 0,
        waiting: vec![],
        parts: vec![],
        images: vec![],
        cost: Cost::default(),
    }
}
