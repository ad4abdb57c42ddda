//! What is made different when a checkpoint is lived through once more.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How the links of a replay differ from what they did before. All of it is drawn from the seed: the same again is the same variation of the links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Perturbation {
    /// What is drawn from.
    pub seed: u64,
    /// Each frame arrives up to [`within_ns`](Self::within_ns) later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timing: bool,
    /// So does it, and those behind it do not wait: frames of one direction that are less apart than that may arrive in another order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub order: bool,
    /// Links draw other random numbers: other frames are lost, doubled and late by another jitter, all as often as before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub luck: bool,
    /// By how much a frame is late at most, nanoseconds of virtual time.
    #[serde(default)]
    pub within_ns: u64,
}

impl Perturbation {
    /// By how much a frame is late at most where nobody says.
    pub const WITHIN_DEFAULT_NS: u64 = 1_000_000;
    /// By how much anybody may say.
    pub const WITHIN_MAX_NS: u64 = 10_000_000_000;

    /// Whether it makes frames later.
    pub const fn delays(&self) -> bool {
        (self.timing || self.order) && self.within_ns > 0
    }

    /// Whether it changes anything, and no more than it may.
    pub const fn is_valid(&self) -> bool {
        (self.delays() || self.luck) && self.within_ns <= Self::WITHIN_MAX_NS
    }
}

impl fmt::Display for Perturbation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}:", self.seed)?;
        let words = [("timing", self.timing), ("order", self.order), ("luck", self.luck)];
        words.iter().filter(|(_, on)| *on).enumerate().try_for_each(|(place, (word, _))| {
            let comma = if place == 0 { " " } else { ", " };
            write!(f, "{comma}{word}")
        })?;
        if self.delays() { write!(f, " within {} ms", self.within_ns as f64 / 1e6) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_it_does() {
        let none = Perturbation::default();
        let timing = Perturbation { seed: 7, timing: true, within_ns: 1_500_000, ..none };
        assert_eq!(timing.to_string(), "seed 7: timing within 1.5 ms");
        let all = Perturbation { order: true, luck: true, ..timing };
        assert_eq!(all.to_string(), "seed 7: timing, order, luck within 1.5 ms");
        let luck = Perturbation { seed: 1, luck: true, ..none };
        assert_eq!(luck.to_string(), "seed 1: luck");
        assert!(timing.is_valid() && all.is_valid() && luck.is_valid());
        let far = Perturbation { within_ns: Perturbation::WITHIN_MAX_NS + 1, ..all };
        for nothing in [none, Perturbation { within_ns: 0, ..timing }, far] {
            assert!(!nothing.is_valid(), "{nothing:?}");
        }
    }

    #[test]
    fn what_is_not_varied_is_not_written() {
        let json = serde_json::to_string(&Perturbation { seed: 7, order: true, within_ns: 5, ..Perturbation::default() }).unwrap();
        assert_eq!(json, r#"{"seed":7,"order":true,"within_ns":5}"#);
    }
}
