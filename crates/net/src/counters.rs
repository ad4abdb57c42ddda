//! What was counted of one direction of a cable.

use serde::{Deserialize, Serialize};

/// Frames and their bytes, as guests hand them over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames.
    pub frames: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Traffic {
    pub(crate) fn count(&mut self, frame: &[u8]) {
        self.frames += 1;
        self.bytes += frame.len() as u64;
    }
}

/// Counts since the experiment began. Frames sent and duplicated are those that arrived, were dropped, or are on their way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// What was put in at the near end.
    pub sent: Traffic,
    /// What was taken at the far end: by the guest, or by the switch.
    pub arrived: Traffic,
    /// Frames that were dropped.
    pub dropped: Dropped,
    /// Frames that were sent twice; the second ones are counted here and not in `sent`.
    pub duplicated: u64,
    /// Frames that overtook another.
    pub reordered: u64,
}

/// Frames dropped, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Shorter than an Ethernet header.
    pub runt: u64,
    /// Longer than the MTU at one of the two ends allows.
    pub giant: u64,
    /// The cable was not plugged in.
    pub down: u64,
    /// Lost, as the shape says.
    pub loss: u64,
    /// The queue was full.
    pub queue: u64,
    /// By the queue discipline, before the queue was full.
    pub discipline: u64,
    /// The network held as many bytes as it may.
    pub memory: u64,
    /// The receiver had no buffer for too long.
    pub receiver: u64,
    /// Lost at the receiver's door: no driver had begun to listen there, the driver laid in a buffer without room, or it was reset while the frame waited.
    #[serde(default)]
    pub door: u64,
}

impl Dropped {
    /// All causes together.
    pub fn total(&self) -> u64 {
        let Self { runt, giant, down, loss, queue, discipline, memory, receiver, door } = *self;
        runt + giant + down + loss + queue + discipline + memory + receiver + door
    }
}
