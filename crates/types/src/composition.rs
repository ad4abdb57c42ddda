//! What the pages of a machine's memory are for, as the guest's own kernel has it.

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// What one page of a guest's memory is for. The order is that of people's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Use {
    /// Nobody's: the kernel would hand it out to whoever asks next, and nobody would miss the content.
    Free,
    /// Of a file, and as it is on the disk; or on its way there, for the kernel calls a page clean as soon as it begins to write it back.
    CacheClean,
    /// Of a file, and not yet written to the disk.
    CacheDirty,
    /// Of programs, with no file on a disk behind it: heaps, stacks, shared memory, files on a tmpfs.
    Anonymous,
    /// Of the kernel's allocator of small objects.
    Slab,
    /// Page tables of programs.
    PageTables,
    /// The kernel's own, and all that it does not tell apart from that.
    Kernel,
    /// The kernel does not manage it: it is the firmware's, or was set aside at boot.
    Absent,
}

impl Use {
    /// Every use, in order.
    pub const ALL: [Self; 8] =
        [Self::Free, Self::CacheClean, Self::CacheDirty, Self::Anonymous, Self::Slab, Self::PageTables, Self::Kernel, Self::Absent];

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::CacheClean => "cache_clean",
            Self::CacheDirty => "cache_dirty",
            Self::Anonymous => "anonymous",
            Self::Slab => "slab",
            Self::PageTables => "page_tables",
            Self::Kernel => "kernel",
            Self::Absent => "absent",
        }
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The pages of one machine by use at one instant, or why they cannot be told apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Composition {
    /// Pages by use. The sum is every page of the machine. Empty if they cannot be told apart.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pages: BTreeMap<Use, u64>,
    /// Why they cannot be told apart; none if they can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

impl Composition {
    /// Nothing can be told, and why.
    pub fn unknown(why: impl Into<String>) -> Self {
        Self { pages: BTreeMap::new(), unknown: Some(why.into()) }
    }

    /// Pages of this use.
    pub fn of(&self, what: Use) -> u64 {
        self.pages.get(&what).copied().unwrap_or(0)
    }

    /// Every page.
    pub fn total(&self) -> u64 {
        self.pages.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_told_by_name_in_order() {
        let mut composition = Composition::default();
        for (number, what) in Use::ALL.into_iter().enumerate() {
            assert_eq!(serde_json::to_value(what).unwrap(), what.name());
            composition.pages.insert(what, number as u64 + 1);
        }
        let json = serde_json::to_string(&composition).unwrap();
        assert!(json.starts_with(r#"{"pages":{"free":1,"cache_clean":2,"#) && json.ends_with(r#""absent":8}}"#), "{json}");
        assert_eq!(serde_json::from_str::<Composition>(&json).unwrap(), composition);
        assert_eq!((composition.of(Use::Slab), composition.total()), (5, 36));
    }

    #[test]
    fn what_cannot_be_told_says_why() {
        let composition = Composition::unknown("no Linux");
        assert_eq!(serde_json::to_value(&composition).unwrap(), serde_json::json!({"unknown": "no Linux"}));
        assert_eq!(composition.total(), 0);
    }
}
