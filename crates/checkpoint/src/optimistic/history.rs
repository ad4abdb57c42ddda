//! What stable storage has of each rank, and what of it fits together.

use crate::consistent::{Ccn, Cut, Rank};
use std::collections::VecDeque;

/// The checkpoints of all ranks that are permanent and no garbage.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct History {
    /// By rank, in the order in which they were taken.
    kept: Vec<VecDeque<Kept>>,
}

/// A checkpoint of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kept {
    number: Ccn,
    cut: Cut,
}

/// Where all go back to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Line {
    /// The number of a checkpoint of each rank, 0 for its beginning.
    pub numbers: Vec<Ccn>,
    /// How many later checkpoints each rank had, that do not fit to those of others and are of no use any more.
    pub dropped: Vec<u64>,
}

impl History {
    /// Of so many ranks, at their beginning: it is a checkpoint of each that need not be stored.
    pub fn new(ranks: usize) -> Self {
        Self { kept: vec![VecDeque::from([Kept { number: 0, cut: Cut::new(ranks) }]); ranks] }
    }

    /// A checkpoint of a rank became permanent; its number is higher than those before. False if there is no such rank, or it speaks of other ranks.
    pub fn add(&mut self, rank: Rank, number: Ccn, cut: Cut) -> bool {
        let ranks = self.kept.len();
        let fits = rank < ranks && cut.sent.len() == ranks && cut.received.len() == ranks;
        if fits {
            self.kept[rank].push_back(Kept { number, cut });
        }
        fits
    }

    /// A checkpoint is gone that should be there: somebody else has removed it.
    pub fn forget(&mut self, rank: Rank, number: Ccn) {
        self.kept[rank].retain(|kept| kept.number != number);
    }

    /// The recovery line: a place among the checkpoints of each rank. None if some are missing that must be there.
    fn line(&self) -> Option<Vec<usize>> {
        let mut places = self.kept.iter().map(|kept| kept.len().checked_sub(1)).collect::<Option<Vec<_>>>()?;
        let mut to = 0;
        while to < places.len() {
            let received = &self.kept[to][places[to]].cut.received;
            let has_orphans = received.iter().enumerate().any(|(from, received)| *received > self.kept[from][places[from]].cut.sent[to]);
            if has_orphans {
                places[to] = places[to].checked_sub(1)?;
                // Who has received from it is looked at again.
                to = 0;
            } else {
                to += 1;
            }
        }
        Some(places)
    }

    /// All go back to the recovery line: what is later is forgotten, and must not be found again by anybody. None if some are missing that must be there.
    pub fn go_back(&mut self) -> Option<Line> {
        let places = self.line()?;
        let mut line = Line::default();
        for (kept, place) in self.kept.iter_mut().zip(places) {
            line.numbers.push(kept[place].number);
            line.dropped.push((kept.len() - 1 - place) as u64);
            kept.truncate(place + 1);
        }
        Some(line)
    }

    /// Forgets what lies before the recovery line: the rank and the number of each such checkpoint. The beginning, which is not stored, is among them.
    pub fn collect(&mut self) -> Vec<(Rank, Ccn)> {
        let places = self.line().unwrap_or_else(|| vec![0; self.kept.len()]);
        let garbage = self.kept.iter_mut().zip(places).enumerate();
        garbage.flat_map(|(rank, (kept, place))| kept.drain(..place).map(move |kept| (rank, kept.number)).collect::<Vec<_>>()).collect()
    }

    /// How many messages of a rank the receivers have, each in the earliest of its checkpoints that may still be needed.
    pub fn received(&self, from: Rank) -> Vec<u64> {
        self.kept.iter().map(|kept| kept.front().map_or(0, |kept| kept.cut.received[from])).collect()
    }

    /// Where the channels of a rank stood at a checkpoint that is kept.
    pub fn cut(&self, rank: Rank, number: Ccn) -> Option<&Cut> {
        Some(&self.kept.get(rank)?.iter().find(|kept| kept.number == number)?.cut)
    }

    /// How many checkpoints are stored.
    pub fn len(&self) -> usize {
        self.kept.iter().flatten().filter(|kept| kept.number > 0).count()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks 0 and 1 answer each other in turn, and each takes a checkpoint right before it sends: each has received what came after the other's.
    fn ping_pong(rounds: u64) -> History {
        let mut history = History::new(2);
        for round in 0..rounds {
            assert!(history.add(0, round + 1, Cut { sent: vec![0, round], received: vec![0, round] }));
            assert!(history.add(1, round + 1, Cut { sent: vec![round, 0], received: vec![round + 1, 0] }));
        }
        history
    }

    #[test]
    fn dominoes_fall_to_the_beginning() {
        let mut history = ping_pong(10);
        // Nothing of use is behind them: there is no garbage but the beginning of the one that need not go back so far.
        assert_eq!(history.clone().collect(), [(0, 0)]);
        // Rank 1's last one has received what rank 0 sent after its last one: it falls, and what rank 0 has received of it with it, and so on. The first one of rank 0 has received nothing yet.
        assert_eq!(history.go_back(), Some(Line { numbers: vec![1, 0], dropped: vec![9, 10] }));
        assert_eq!(history.len(), 1);
    }

    #[test]
    fn one_checkpoint_at_the_right_time_stops_them() {
        let mut history = ping_pong(10);
        // Right after it has sent, before it waits.
        assert!(history.add(0, 11, Cut { sent: vec![0, 10], received: vec![0, 9] }));
        assert!(history.add(1, 11, Cut { sent: vec![10, 0], received: vec![10, 0] }));
        assert_eq!(history.received(0), [0, 0]);
        assert_eq!(history.collect().len(), 22);
        assert_eq!(history.received(0), [0, 10]);
        assert_eq!(history.go_back(), Some(Line { numbers: vec![11, 11], dropped: vec![0, 0] }));
    }

    #[test]
    fn what_is_missing_is_told() {
        let mut history = ping_pong(2);
        assert!(!history.add(2, 1, Cut::new(2)));
        assert!(!history.add(1, 9, Cut::new(3)));
        assert_eq!(history.cut(1, 2).unwrap().received, [2, 0]);
        history.forget(1, 0);
        assert_eq!(history.go_back(), None);
    }
}
