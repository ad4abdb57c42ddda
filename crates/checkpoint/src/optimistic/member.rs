//! A rank that takes checkpoints of its own.

use crate::consistent::{self, Ccn, Cut, Rank};
use std::collections::VecDeque;

/// One rank. Whoever drives it delivers to the program what [`deliver`](Self::deliver) hands over, and captures when [`wanted`](Self::wanted) says so and the
/// program stands where it can be captured.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member<M> {
    /// Numbers messages and puts them in order; its own checkpoints are never begun.
    channels: consistent::Member<(u64, M)>,
    /// Of the last capture.
    number: Ccn,
    due: bool,
    /// The last capture is neither permanent nor dropped.
    tentative: bool,
    /// What was sent and may have to be sent again, by receiver, with numbers.
    log: Vec<VecDeque<(u64, M)>>,
}

/// What goes with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Its number on its channel, from 1.
    pub number: u64,
    /// How many messages of the receiver its sender had received.
    pub received: u64,
}

/// What belongs to a checkpoint besides the program's memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Captured<M> {
    /// Which.
    pub number: Ccn,
    /// Where the channels stood.
    pub cut: Cut,
    /// What was sent and may have to be sent again, by receiver, with numbers.
    pub log: Vec<Vec<(u64, M)>>,
}

impl<M: Clone> Member<M> {
    /// A rank among so many, at the beginning.
    pub fn new(ranks: usize) -> Self {
        Self::restored(Captured { number: 0, cut: Cut::new(ranks), log: vec![Vec::new(); ranks] })
    }

    /// A rank as a checkpoint has it. Messages across the line that are delivered before all others count as received in `cut`.
    pub fn restored(from: Captured<M>) -> Self {
        let log = from.log.into_iter().map(VecDeque::from).collect();
        Self { channels: consistent::Member::restored(0, from.cut), number: from.number, due: false, tentative: false, log }
    }

    /// The program sends a message to a rank.
    pub fn sending(&mut self, to: Rank, message: M) -> Stamp {
        let (_, number) = self.channels.sending(to);
        self.log[to].push_back((number, message));
        Stamp { number, received: self.channels.received(to) }
    }

    /// A message has arrived, in whatever order and however often. False if no rank can have sent it.
    pub fn arrived(&mut self, from: Rank, stamp: Stamp, message: M) -> bool {
        self.channels.arrived(from, 0, stamp.number, (stamp.received, message))
    }

    /// The next message that the program may have, and who sent it.
    pub fn deliver(&mut self) -> Option<(Rank, M)> {
        let delivery = self.channels.deliver()?;
        let (received, message) = delivery.message;
        self.trim(delivery.from, received);
        Some((delivery.from, message))
    }

    /// A receiver has so many, for good.
    fn trim(&mut self, to: Rank, received: u64) {
        while self.log[to].front().is_some_and(|(number, _)| *number <= received) {
            self.log[to].pop_front();
        }
    }

    /// It is time for a checkpoint. Nothing happens while one is on its way.
    pub fn due(&mut self) {
        self.due |= !self.tentative;
    }

    /// The checkpoint for which a capture is due, at the next instant at which the program can be captured.
    pub fn wanted(&self) -> Option<Ccn> {
        self.due.then_some(self.number + 1)
    }

    /// The program was captured for the checkpoint that was wanted. None if none was.
    pub fn captured(&mut self) -> Option<Captured<M>> {
        self.number = self.wanted()?;
        (self.due, self.tentative) = (false, true);
        let log = self.log.iter().map(|log| log.iter().cloned().collect()).collect();
        Some(Captured { number: self.number, cut: self.channels.cut(), log })
    }

    /// The checkpoint is permanent, or never will be; and receivers have so many messages of this rank for good.
    pub fn over(&mut self, number: Ccn, received: &[u64]) {
        self.tentative &= number != self.number;
        (0..self.log.len()).zip(received).for_each(|(to, received)| self.trim(to, *received));
    }

    /// Where the channels stand now.
    pub fn cut(&self) -> Cut {
        self.channels.cut()
    }
}
