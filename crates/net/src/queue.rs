//! The frames that wait for a transmitter, or for the buffers of a guest.

use crate::direction::Frame;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
};

/// A frame that waits.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    /// Since when it waits for the transmitter; 0 where it waits for a guest.
    pub since: u64,
    /// The port of the switch that it came in at; 0 on a cable without a switch.
    pub from: u32,
    pub frame: Frame,
}

/// The frames that wait, oldest first. It knows who has how many in it, for a port of a switch has to be shared among those who send there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    /// By where they came in, each with its place in the whole.
    lists: BTreeMap<u32, VecDeque<(u64, Waiting)>>,
    next: u64,
    len: usize,
    bytes: usize,
}

impl Queue {
    pub fn push(&mut self, waiting: Waiting) {
        self.len += 1;
        self.bytes += waiting.frame.len();
        self.lists.entry(waiting.from).or_default().push_back((self.next, waiting));
        self.next += 1;
    }

    /// Moves the times since when frames wait.
    pub fn shift(&mut self, moved: impl Fn(u64) -> u64) {
        self.lists.values_mut().flatten().for_each(|(_, waiting)| waiting.since = moved(waiting.since));
    }

    /// The oldest.
    pub fn first(&self) -> Option<&Waiting> {
        let firsts = self.lists.values().filter_map(VecDeque::front);
        firsts.min_by_key(|(place, _)| *place).map(|(_, waiting)| waiting)
    }

    pub fn pop(&mut self) -> Option<Waiting> {
        let from = self.first()?.from;
        self.take(from, VecDeque::pop_front)
    }

    /// Takes the last frame out that somebody has in here who has more in here than `from`: of several the one who has most, and of those the first.
    pub fn evict_for(&mut self, from: u32) -> Option<Waiting> {
        self.evict(from, self.count(from) + 1)
    }

    /// The same for one of `from` that is out of here already: also of one who has as many.
    pub fn evict_instead_of(&mut self, from: u32) -> Option<Waiting> {
        self.evict(from, self.count(from).max(1))
    }

    fn count(&self, from: u32) -> usize {
        self.lists.get(&from).map_or(0, VecDeque::len)
    }

    fn evict(&mut self, from: u32, least: usize) -> Option<Waiting> {
        let others = self.lists.iter().filter(|(other, list)| **other != from && list.len() >= least);
        let other = *others.min_by_key(|(_, list)| Reverse(list.len()))?.0;
        self.take(other, VecDeque::pop_back)
    }

    fn take(&mut self, from: u32, which: impl FnOnce(&mut VecDeque<(u64, Waiting)>) -> Option<(u64, Waiting)>) -> Option<Waiting> {
        let list = self.lists.get_mut(&from)?;
        let (_, waiting) = which(list)?;
        if list.is_empty() {
            self.lists.remove(&from);
        }
        self.len -= 1;
        self.bytes -= waiting.frame.len();
        Some(waiting)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of them, oldest first.
    pub fn frames(&self) -> Vec<&Waiting> {
        let mut all: Vec<_> = self.lists.values().flatten().collect();
        all.sort_unstable_by_key(|(place, _)| *place);
        all.into_iter().map(|(_, waiting)| waiting).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(from: u32, since: u64) -> Waiting {
        Waiting { since, from, frame: vec![0; 60].into() }
    }

    fn order(queue: &Queue) -> Vec<(u32, u64)> {
        queue.frames().into_iter().map(|waiting| (waiting.from, waiting.since)).collect()
    }

    #[test]
    fn the_last_of_whoever_has_most_makes_room() {
        let mut queue = Queue::default();
        assert!(queue.first().is_none() && queue.pop().is_none() && queue.evict_for(0).is_none());
        (0..).zip([1, 2, 2, 1, 3, 2, 2]).for_each(|(since, from)| queue.push(waiting(from, since)));
        assert_eq!(queue.evict_for(1).map(|waiting| (waiting.from, waiting.since)), Some((2, 6)));
        assert_eq!(queue.evict_for(9).map(|waiting| (waiting.from, waiting.since)), Some((2, 5)));
        assert!(queue.evict_for(1).is_none() && queue.evict_for(2).is_none(), "nobody has more than they");
        assert_eq!(queue.evict_for(3).map(|waiting| (waiting.from, waiting.since)), Some((1, 3)));
        assert_eq!(order(&queue), [(1, 0), (2, 1), (2, 2), (3, 4)]);
        assert_eq!(queue.first().map(|waiting| (waiting.from, waiting.since)), Some((1, 0)));
        let mut other = queue.clone();
        assert_eq!(other.evict_instead_of(1).map(|waiting| (waiting.from, waiting.since)), Some((2, 2)));
        assert_eq!(
            other.evict_instead_of(1).map(|waiting| (waiting.from, waiting.since)),
            Some((2, 1)),
            "the first of those who have as many"
        );
        assert_eq!(other.evict_instead_of(7).map(|waiting| (waiting.from, waiting.since)), Some((1, 0)));
        assert_eq!(order(&other), [(3, 4)]);
        assert_eq!((queue.len(), queue.bytes()), (4, 240));
        let popped: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|waiting| waiting.since).collect();
        assert_eq!(popped, [0, 1, 2, 4]);
        assert!(queue.is_empty() && queue.bytes() == 0 && queue.lists.is_empty());
    }
}
