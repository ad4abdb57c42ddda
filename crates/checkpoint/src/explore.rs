//! How the machines of this room are gone through: every order of events within small budgets, and random orders.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
};

/// Machines, what is on its way between them, and what is really so.
pub trait World: Clone + Hash {
    /// Something that may happen.
    type Event: Copy;

    /// What may happen next.
    fn events(&self) -> Vec<Self::Event>;

    fn happen(&mut self, event: Self::Event);

    /// From here on nothing goes wrong, and all has to end well.
    fn settle(self);
}

/// Goes through every order of events. Returns how many states there are.
pub fn explore<W: World>(first: W) -> usize {
    let (mut seen, mut left) = (HashSet::from([hash(&first)]), vec![first]);
    while let Some(world) = left.pop() {
        let events = world.events();
        // To look at the end of every state takes too long; the ends of those that are visited last are all among these.
        if events.is_empty() || hash(&world).is_multiple_of(64) {
            world.clone().settle();
        }
        for event in events {
            let mut next = world.clone();
            next.happen(event);
            if seen.insert(hash(&next)) {
                left.push(next);
            }
        }
    }
    seen.len()
}

pub fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A sequence of numbers that a seed stands for (SplitMix64).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}
