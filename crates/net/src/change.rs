//! A change of a live link.

use crate::topology::{Chance, Discipline, Shape, TopologyError};
use serde::{Deserialize, Serialize};

/// What is to become different at the cable of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Change {
    /// Whether the cable is plugged in. When it is pulled out, what is on it is lost, in both directions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
    /// For what the interface sends.
    pub sent: Reshape,
    /// For what it receives.
    pub received: Reshape,
}

/// Values of a [`Shape`] to replace; none leaves a value as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reshape {
    /// Bits a second; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ns: Option<u64>,
    /// Nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter_ns: Option<u64>,
    /// The chance to be lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Chance>,
    /// The chance to be sent twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate: Option<Chance>,
    /// The chance to skip the delay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<Chance>,
    /// Frames. Those that already wait stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<u32>,
    /// The queue discipline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discipline: Option<Discipline>,
}

impl Reshape {
    /// The shape with the change made. An error says which value cannot be.
    pub fn apply(&self, shape: &Shape) -> Result<Shape, TopologyError> {
        let changed = Shape {
            rate: self.rate.map_or(shape.rate, |rate| (rate != 0).then_some(rate)),
            delay_ns: self.delay_ns.unwrap_or(shape.delay_ns),
            jitter_ns: self.jitter_ns.unwrap_or(shape.jitter_ns),
            loss: self.loss.unwrap_or(shape.loss),
            duplicate: self.duplicate.unwrap_or(shape.duplicate),
            reorder: self.reorder.unwrap_or(shape.reorder),
            queue: self.queue.unwrap_or(shape.queue),
            discipline: self.discipline.unwrap_or(shape.discipline),
        };
        changed.check().map(|()| changed)
    }
}
