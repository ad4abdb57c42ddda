//! Pages: the unit of RAM, of disks and of the store.

use crate::{NodeName, PageName};
use serde::{Deserialize, Serialize};

/// Bytes in a page, of RAM and of disks alike.
pub const PAGE_SIZE: usize = 4096;

/// Children of a node of a page table, as in the processor's own.
pub const FANOUT: usize = 512;

/// The content of one page.
pub type PageBuf = [u8; PAGE_SIZE];

/// Which page of a RAM or a disk: its byte offset divided by [`PAGE_SIZE`]. 32 bits reach 16 TiB.
pub type PageNumber = u32;

/// A set of pages, small when they lie together.
pub type PageSet = roaring::RoaringBitmap;

/// A page of a machine's memory that equals a block of one of its disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mapped {
    /// The page.
    pub page: PageNumber,
    /// Which of the machine's disks, counted from 0.
    pub disk: u32,
    /// The block of that disk.
    pub block: PageNumber,
}

/// The name of the page of zeros: BLAKE3 of 4096 zero bytes. It is never stored.
pub const ZERO_PAGE: PageName = PageName(ZERO_PAGE_HASH);

/// What Linux fills free pages with when it is told to check that nobody writes to them (`PAGE_POISON`).
pub const POISON: u8 = 0xaa;

/// The name of the page that is full of [`POISON`].
pub const POISON_PAGE: PageName = PageName(POISON_PAGE_HASH);

const POISON_PAGE_HASH: [u8; 32] = [
    0x58, 0x08, 0x0c, 0x97, 0x9d, 0x54, 0xee, 0x55, 0x33, 0xb3, 0x18, 0xeb, 0x62, 0x6e, 0xec, 0x1e, 0xcf, 0xa6, 0x3b, 0xbc, 0x6c, 0x0d,
    0x88, 0x6d, 0xe3, 0xd9, 0x3e, 0x0f, 0xf0, 0x6f, 0x50, 0x92,
];

const ZERO_PAGE_HASH: [u8; 32] = [
    0xb6, 0xfb, 0x73, 0xfc, 0x46, 0x93, 0x8c, 0x98, 0x1e, 0x2b, 0x0b, 0x4b, 0x1e, 0xf2, 0x82, 0xad, 0xcf, 0xc8, 0x98, 0x54, 0xd0, 0x1b,
    0xfe, 0x39, 0x72, 0xfd, 0xc4, 0x78, 0x5b, 0x41, 0xb2, 0xc7,
];

/// The root of a page table: all of one RAM, or all of one disk above its golden image.
///
/// A page that the table does not name is zero in a RAM, and as in the golden image on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Root {
    /// How many pages the table can name: the size of the RAM or the disk.
    pub pages: u64,
    /// The node at the top; none when no page is named.
    pub node: Option<NodeName>,
}

impl Root {
    /// A table that names no page.
    pub const fn empty(pages: u64) -> Self {
        Self { pages, node: None }
    }

    /// Levels of nodes from the top to the leaves; at least one.
    pub fn levels(&self) -> u32 {
        let mut levels = 1;
        let mut reach = FANOUT as u64;
        while reach < self.pages {
            levels += 1;
            reach = reach.saturating_mul(FANOUT as u64);
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_grow_with_the_pages() {
        for (pages, levels) in [(0, 1), (1, 1), (512, 1), (513, 2), (262_144, 2), (262_145, 3), (1 << 32, 4)] {
            assert_eq!(Root::empty(pages).levels(), levels, "{pages} pages");
        }
    }
}
