//! Which trackers there are, which of them this host can do, and which one to take.

use crate::{Error, Result};
use fermata_linux::probe;
use fermata_types::names::{name_of, named};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A tracker, by the name that people call it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// The best that this host can do.
    #[default]
    Auto,
    /// [`crate::ScanTracker`].
    Scan,
    /// [`crate::UserfaultTracker`].
    Userfault,
    /// [`crate::CompareTracker`].
    Compare,
    /// KVM's dirty log.
    KvmLog,
    /// KVM's dirty ring.
    KvmRing,
    /// KVM's read-only memory.
    KvmStore,
}

impl Choice {
    /// What people call each of them.
    pub const NAMES: [(&str, Self); 7] = [
        ("auto", Self::Auto),
        ("scan", Self::Scan),
        ("userfault", Self::Userfault),
        ("compare", Self::Compare),
        ("kvm-log", Self::KvmLog),
        ("kvm-ring", Self::KvmRing),
        ("kvm-store", Self::KvmStore),
    ];
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(name_of(&Self::NAMES, self))
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(&Self::NAMES, text)
    }
}

/// What this host makes of one tracker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// Which.
    pub tracker: Choice,
    /// Why it cannot be had here; none if it can.
    pub missing: Option<String>,
    /// `auto` takes it.
    pub chosen: bool,
}

impl Choice {
    /// In the order in which `auto` tries them: the first that works is taken.
    const ORDER: [Self; 3] = [Self::Scan, Self::Userfault, Self::Compare];

    /// What to do: the choice itself if this host can do it, and in place of `auto` the best that it can. Tries it, which takes less than a millisecond.
    pub fn settle(self) -> Result<Self> {
        match self {
            Self::Auto => Ok(Self::ORDER.into_iter().find(|choice| choice.available().is_ok()).unwrap_or(Self::Compare)),
            choice => choice.available().map(|()| choice),
        }
    }

    /// All trackers, the ones that `auto` would rather take first. Tries each.
    pub fn survey() -> Vec<Standing> {
        let chosen = Self::Auto.settle().ok();
        let others =
            Self::NAMES.into_iter().map(|(_, choice)| choice).filter(|choice| *choice != Self::Auto && !Self::ORDER.contains(choice));
        let all = Self::ORDER.into_iter().chain(others);
        all.map(|tracker| {
            let missing = match tracker.available() {
                Err(Error::Unavailable { why, .. }) => Some(why),
                Err(error) => Some(error.to_string()),
                Ok(()) => None,
            };
            Standing { tracker, missing, chosen: chosen == Some(tracker) }
        })
        .collect()
    }

    /// What it does, in a few words.
    pub fn about(self) -> &'static str {
        match self {
            Self::Auto => "the cheapest that this host can do",
            Self::Scan => "the kernel notes writes by itself, and is asked for them (PAGEMAP_SCAN)",
            Self::Userfault => "a first write waits until it is noted; the one that can copy on write",
            Self::Compare => {
                "reads all memory at each checkpoint, asks nothing of the kernel, and knows no page to equal a block of a disk"
            }
            Self::KvmLog => "KVM notes what processors write, for machines under KVM; knows no page to equal a block of a disk",
            Self::KvmRing => "KVM notes what processors write, in rings",
            Self::KvmStore => "KVM decodes each store of a processor, and names its words",
        }
    }

    fn available(self) -> Result<()> {
        let unavailable = |why: String| Error::Unavailable { tracker: self, why };
        let scan = || probe::write_tracking().map(drop).map_err(|refusal| unavailable(refusal.to_string()));
        match self {
            Self::Auto | Self::Compare => Ok(()),
            Self::Scan => scan(),
            Self::Userfault => probe::write_faults().map(drop).map_err(|refusal| unavailable(refusal.to_string())),
            Self::KvmLog => {
                probe::kvm().map_err(|error| unavailable(format!("/dev/kvm: {error}")))?;
                // For what QEMU writes.
                scan()
            }
            Self::KvmRing => Err(unavailable(RING_IS_TAKEN.to_owned())),
            Self::KvmStore => Err(unavailable(EVERY_STORE_EXITS.to_owned())),
        }
    }
}

/// See docs/decisions/.
const RING_IS_TAKEN: &str = "QEMU either has no dirty ring or empties it itself, and a ring has one reader";

const EVERY_STORE_EXITS: &str = "each store of a machine would leave KVM; it is for small guests that hold a program's data";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for (name, choice) in Choice::NAMES {
            assert_eq!(choice.to_string(), name);
            assert_eq!(name.parse(), Ok(choice));
        }
        assert!("".parse::<Choice>().is_err());
    }

    #[test]
    fn auto_settles_on_something_that_works() {
        let settled = Choice::Auto.settle().unwrap();
        assert_ne!(settled, Choice::Auto);
        assert_eq!(settled.settle().unwrap(), settled);
        let survey = Choice::survey();
        assert_eq!(survey.len(), Choice::NAMES.len() - 1);
        let chosen: Vec<_> = survey.iter().filter(|standing| standing.chosen).collect();
        assert!(chosen.len() == 1 && chosen[0].tracker == settled && chosen[0].missing.is_none(), "{survey:?}");
    }
}
