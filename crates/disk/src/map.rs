//! Where each block of a disk lies: one byte a block, in leaves of 4096 blocks (16 MiB of disk) that exist only once their blocks differ.

use fermata_types::{PAGE_SIZE, PageNumber};
use std::ops::Range;

/// Where the content of a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Place {
    /// The page table of the checkpoint that the disk started from must be asked.
    Unasked,
    /// In the golden image, or zero where there is none: the page table does not name it.
    Below,
    /// Zero: discarded, or written as zeros.
    Zero,
    /// In the first plane of the overlay file.
    First,
    /// In the second plane of the overlay file.
    Second,
}

impl Place {
    /// Where its plane begins in the overlay file of a disk of so many blocks.
    pub fn plane(self, blocks: u32) -> u64 {
        match self {
            Self::Second => u64::from(blocks) * PAGE_SIZE as u64,
            _ => 0,
        }
    }
}

const LEAF: u32 = 4096;

enum Leaf {
    Same(Place),
    Each(Box<[Place; LEAF as usize]>),
}

/// A map from blocks to places.
pub struct BlockMap {
    leaves: Vec<Leaf>,
    blocks: u32,
}

impl BlockMap {
    /// A map of so many blocks, all in one place.
    pub fn new(blocks: u32, place: Place) -> Self {
        Self { leaves: (0..blocks.div_ceil(LEAF)).map(|_| Leaf::Same(place)).collect(), blocks }
    }

    /// Where a block lies.
    pub fn get(&self, block: PageNumber) -> Place {
        match &self.leaves[(block / LEAF) as usize] {
            Leaf::Same(place) => *place,
            Leaf::Each(places) => places[(block % LEAF) as usize],
        }
    }

    /// The place of the first block of `range`, and how many blocks from there lie in the same place, within `range`.
    pub fn run(&self, range: Range<u32>) -> (Place, u32) {
        let place = self.get(range.start);
        let end = range.end.min(self.blocks);
        let mut at = range.start;
        while at < end {
            let leaf_end = end.min((at / LEAF + 1) * LEAF);
            match &self.leaves[(at / LEAF) as usize] {
                Leaf::Same(same) if *same == place => at = leaf_end,
                Leaf::Same(_) => break,
                Leaf::Each(places) => {
                    let within = &places[(at % LEAF) as usize..((leaf_end - 1) % LEAF) as usize + 1];
                    let same = within.iter().position(|other| *other != place).unwrap_or(within.len());
                    at += same as u32;
                    if same < within.len() {
                        break;
                    }
                }
            }
        }
        (place, at - range.start)
    }

    /// Moves blocks to a place.
    pub fn set(&mut self, range: Range<u32>, place: Place) {
        let mut at = range.start;
        while at < range.end {
            let leaf_start = at / LEAF * LEAF;
            let leaf_end = (leaf_start + LEAF).min(self.blocks);
            let end = range.end.min(leaf_end);
            let leaf = &mut self.leaves[(at / LEAF) as usize];
            if at == leaf_start && end == leaf_end {
                *leaf = Leaf::Same(place);
            } else {
                match leaf {
                    Leaf::Same(same) if *same == place => {}
                    Leaf::Same(same) => {
                        let mut places = Box::new([*same; LEAF as usize]);
                        places[(at - leaf_start) as usize..(end - leaf_start) as usize].fill(place);
                        *leaf = Leaf::Each(places);
                    }
                    Leaf::Each(places) => places[(at - leaf_start) as usize..(end - leaf_start) as usize].fill(place),
                }
            }
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place() -> impl Strategy<Value = Place> {
        prop_oneof![Just(Place::Below), Just(Place::Zero), Just(Place::First), Just(Place::Second)]
    }

    proptest! {
        #[test]
        fn the_map_is_a_long_list(blocks in 1u32..20_000, moves in prop::collection::vec((any::<u32>(), any::<u32>(), place()), 0..40)) {
            let mut map = BlockMap::new(blocks, Place::Unasked);
            let mut list = vec![Place::Unasked; blocks as usize];
            for (start, len, place) in moves {
                let start = start % blocks;
                let end = start + len % (blocks - start) + 1;
                map.set(start..end, place);
                list[start as usize..end as usize].fill(place);
            }
            let mut at = 0;
            while at < blocks {
                let (place, len) = map.run(at..blocks);
                prop_assert!(len > 0);
                prop_assert!(list[at as usize..(at + len) as usize].iter().all(|other| *other == place));
                prop_assert!(at + len == blocks || list[(at + len) as usize] != place);
                at += len;
            }
        }
    }
}
