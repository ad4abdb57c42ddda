//! The sieve that every page of a checkpoint goes through: each page falls into exactly one class.

use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// Pages by class, in the order in which the sieve asks. The sum is every page of the part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageCounts {
    /// Not written since the parent checkpoint.
    pub unchanged: u64,
    /// Free in the guest: nobody would miss the content.
    pub free: u64,
    /// Zero throughout.
    pub zero: u64,
    /// Equal to a block of a golden image.
    pub on_disk: u64,
    /// Already in the store, known by hash.
    pub known: u64,
    /// New: written to the store.
    pub new: u64,
}

impl PageCounts {
    /// Every page counted.
    pub fn total(&self) -> u64 {
        self.unchanged + self.written()
    }

    /// Pages written since the parent checkpoint.
    pub fn written(&self) -> u64 {
        self.free + self.zero + self.on_disk + self.known + self.new
    }
}

impl AddAssign for PageCounts {
    fn add_assign(&mut self, other: Self) {
        self.unchanged += other.unchanged;
        self.free += other.free;
        self.zero += other.zero;
        self.on_disk += other.on_disk;
        self.known += other.known;
        self.new += other.new;
    }
}
