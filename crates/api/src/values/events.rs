//! How far what happens in an experiment by itself was.

use serde::{Deserialize, Serialize};

/// The events of an experiment at a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// How many had happened, the first ones in the order of their times.
    pub happened: u64,
    /// How many the specification has.
    pub all: u64,
    /// Commands that were due and had not begun in their guests, whose agents had not answered: `event 2`, counted from 1 in the order of the events' times,
    /// and `address of a:eth1`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<String>,
}
