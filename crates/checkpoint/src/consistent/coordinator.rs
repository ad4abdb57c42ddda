//! The coordinator's side of the protocol.

use super::{Answer, Ccn, Cut, Rank, Tell};
use std::{collections::BTreeMap, ops::Bound};

/// What is to be done now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order<M> {
    /// Tell a member.
    Tell(Rank, Tell),
    /// Make the checkpoint durable, and then say [`Coordinator::persisted`].
    Persist(Whole<M>),
    /// The checkpoint is over, and every member knows.
    Over {
        /// Which.
        ccn: Ccn,
        /// Whether it is permanent now.
        permanent: bool,
    },
}

/// What belongs to a checkpoint besides what the ranks have written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Whole<M> {
    /// Which.
    pub ccn: Ccn,
    /// Where the channels of each rank stood at its capture.
    pub cuts: Vec<Cut>,
    /// Messages of the past, by receiver: sender, number and message, in order.
    pub late: Vec<Vec<(Rank, u64, M)>>,
}

/// Coordinates consistent checkpoints, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Coordinator<M> {
    ranks: usize,
    ccn: Ccn,
    patience: u32,
    phase: Phase<M>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase<M> {
    Idle,
    Collecting(Collected<M>),
    /// It is being made durable. Nothing that members say can change it any more.
    Persisting,
    /// How it ended is decided, and told until everybody knows.
    Telling {
        permanent: bool,
        acked: Vec<bool>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Collected<M> {
    ticks: u32,
    cuts: Vec<Option<Cut>>,
    /// Messages of the past by receiver, and by sender and number.
    late: Vec<BTreeMap<(Rank, u64), M>>,
}

impl<M: Clone> Coordinator<M> {
    /// Of so many ranks, whose last checkpoint had this number, 0 if there was none. A checkpoint that is not whole after `patience` ticks is aborted.
    pub fn new(ranks: usize, ccn: Ccn, patience: u32) -> Self {
        Self { ranks, ccn, patience, phase: Phase::Idle }
    }

    /// Whether no checkpoint is on its way.
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// The number of the last checkpoint that was begun.
    pub fn ccn(&self) -> Ccn {
        self.ccn
    }

    /// Begins a checkpoint. Nothing happens while one is on its way.
    pub fn begin(&mut self) -> Vec<Order<M>> {
        if !self.is_idle() {
            return Vec::new();
        }
        self.ccn += 1;
        self.phase = Phase::Collecting(Collected {
            ticks: 0,
            cuts: vec![None; self.ranks],
            late: (0..self.ranks).map(|_| BTreeMap::new()).collect(),
        });
        self.tell_all(Tell::Marker(self.ccn), |_| true)
    }

    /// A member says something, perhaps again, perhaps about a checkpoint that is long over.
    pub fn heard(&mut self, rank: Rank, answer: Answer<M>) -> Vec<Order<M>> {
        if rank >= self.ranks {
            return Vec::new();
        }
        match answer {
            Answer::Ack { ccn } if ccn == self.ccn => self.acked(rank),
            Answer::Ack { .. } => Vec::new(),
            Answer::Success { ccn, .. } | Answer::Failure { ccn } | Answer::Late { ccn, .. } if ccn != self.ccn => Vec::new(),
            Answer::Failure { .. } => self.abort(),
            Answer::Success { cut, .. } => self.collect(|collected| {
                collected.cuts[rank] = Some(cut);
            }),
            Answer::Late { from, number, message, .. } => self.collect(|collected| {
                collected.late[rank].insert((from, number), message);
            }),
        }
    }

    fn collect(&mut self, add: impl FnOnce(&mut Collected<M>)) -> Vec<Order<M>> {
        let Phase::Collecting(collected) = &mut self.phase else { return Vec::new() };
        add(collected);
        match collected.whole(self.ccn) {
            Ok(None) => Vec::new(),
            Ok(Some(whole)) => {
                self.phase = Phase::Persisting;
                vec![Order::Persist(whole)]
            }
            Err(Inconsistent) => self.decide(false),
        }
    }

    /// The checkpoint was made durable, or could not be.
    pub fn persisted(&mut self, ok: bool) -> Vec<Order<M>> {
        if matches!(self.phase, Phase::Persisting) { self.decide(ok) } else { Vec::new() }
    }

    /// Some time has gone by: what may have been lost is told again, and who does not answer is waited for no longer.
    pub fn tick(&mut self) -> Vec<Order<M>> {
        let ccn = self.ccn;
        match &mut self.phase {
            Phase::Idle | Phase::Persisting => Vec::new(),
            Phase::Collecting(collected) => {
                collected.ticks += 1;
                if collected.ticks > self.patience {
                    return self.decide(false);
                }
                // Also those that succeeded: a message of the past that they told of may be what is missing.
                self.tell_all(Tell::Marker(ccn), |_| true)
            }
            Phase::Telling { permanent, acked } => {
                let (told, acked) = (ending(ccn, *permanent), acked.clone());
                self.tell_all(told, |rank| !acked[rank])
            }
        }
    }

    /// Ranks that have been told how a checkpoint ended, and have not answered yet.
    pub fn unanswered(&self) -> Vec<Rank> {
        match &self.phase {
            Phase::Telling { acked, .. } => (0..self.ranks).filter(|rank| !acked[*rank]).collect(),
            _ => Vec::new(),
        }
    }

    /// Ranks that have not succeeded yet in the checkpoint that is on its way.
    pub fn missing(&self) -> Vec<Rank> {
        match &self.phase {
            Phase::Collecting(collected) => (0..self.ranks).filter(|rank| collected.cuts[*rank].is_none()).collect(),
            _ => Vec::new(),
        }
    }

    /// Gives the checkpoint up that is on its way, unless it is being made durable.
    pub fn abort(&mut self) -> Vec<Order<M>> {
        if matches!(self.phase, Phase::Collecting(_)) { self.decide(false) } else { Vec::new() }
    }

    fn decide(&mut self, permanent: bool) -> Vec<Order<M>> {
        self.phase = Phase::Telling { permanent, acked: vec![false; self.ranks] };
        self.tell_all(ending(self.ccn, permanent), |_| true)
    }

    fn acked(&mut self, rank: Rank) -> Vec<Order<M>> {
        let Phase::Telling { permanent, acked } = &mut self.phase else { return Vec::new() };
        acked[rank] = true;
        if acked.contains(&false) {
            return Vec::new();
        }
        let over = Order::Over { ccn: self.ccn, permanent: *permanent };
        self.phase = Phase::Idle;
        vec![over]
    }

    fn tell_all(&self, told: Tell, whom: impl Fn(Rank) -> bool) -> Vec<Order<M>> {
        (0..self.ranks).filter(|rank| whom(*rank)).map(|rank| Order::Tell(rank, told)).collect()
    }
}

fn ending(ccn: Ccn, permanent: bool) -> Tell {
    if permanent { Tell::Commit(ccn) } else { Tell::Abort(ccn) }
}

/// A rank says that it received what nobody sent.
struct Inconsistent;

impl<M: Clone> Collected<M> {
    /// The checkpoint, if nothing is missing: every rank has succeeded, and every message that was on its way has been told.
    fn whole(&self, ccn: Ccn) -> Result<Option<Whole<M>>, Inconsistent> {
        let Some(cuts) = self.cuts.iter().cloned().collect::<Option<Vec<_>>>() else { return Ok(None) };
        let ranks = cuts.len();
        if cuts.iter().any(|cut| cut.sent.len() != ranks || cut.received.len() != ranks) {
            return Err(Inconsistent);
        }
        let mut late = vec![Vec::new(); ranks];
        for (to, late) in late.iter_mut().enumerate() {
            for (from, sender) in cuts.iter().enumerate() {
                let (received, sent) = (cuts[to].received[from], sender.sent[to]);
                if received > sent {
                    return Err(Inconsistent);
                }
                let told = self.late[to].range((Bound::Excluded((from, received)), Bound::Included((from, sent))));
                let before = late.len() as u64;
                late.extend(told.map(|((from, number), message)| (*from, *number, message.clone())));
                if late.len() as u64 - before < sent - received {
                    return Ok(None);
                }
            }
        }
        Ok(Some(Whole { ccn, cuts, late }))
    }
}
