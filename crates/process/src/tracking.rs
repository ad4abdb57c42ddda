//! How writes to an area are found.

use fermata_linux::{AreaMemory, Userfault, Writes, probe};
use fermata_tracker::{Choice, CompareTracker, EmulateTracker, ProtectTracker, Result, ScanTracker, SoftDirtyTracker, Tracker, Words};
use fermata_types::{PageNumber, PageSet};
use std::{fmt, ops::Range, str::FromStr, sync::Arc};

/// A mechanism, after the paper's names (hypervisor-assisted application checkpointing, section IV).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tracking {
    /// The cheapest that this host can do, by what was measured here and by what the program does.
    #[default]
    Auto,
    /// Assisted page tracking (PTxen): the kernel takes note of a first write by itself and is asked for them. Linux 6.7.
    Assisted,
    /// Page tracking (PT): a first write to a page is a signal, which opens the page.
    Protect,
    /// Emulation (Emul): each write is a signal, whose handler does the write elsewhere and notes the word. The page stays closed.
    Emulate,
    /// The soft-dirty bits of the page tables (Scanxen), where the kernel has them.
    SoftDirty,
    /// Comparison of all pages with what they were, by hash.
    Compare,
}

impl Tracking {
    /// What people call each of them.
    pub const NAMES: [(&str, Self); 6] = [
        ("auto", Self::Auto),
        ("assisted", Self::Assisted),
        ("protect", Self::Protect),
        ("emulate", Self::Emulate),
        ("soft-dirty", Self::SoftDirty),
        ("compare", Self::Compare),
    ];
}

impl fmt::Display for Tracking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, tracking)| tracking == self).map_or("", |(name, _)| name);
        f.pad(name)
    }
}

impl FromStr for Tracking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, tracking)| *tracking).ok_or_else(|| format!("expected one of {}", Self::NAMES.map(|(name, _)| name).join(", ")))
    }
}
