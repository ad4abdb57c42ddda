//! A rank's side of the protocol.

use super::{Answer, Ccn, Cut, Rank, Tell};
use std::collections::BTreeMap;

/// One rank. Whoever drives it delivers to the program what [`deliver`](Self::deliver) hands over, and captures when [`wanted`](Self::wanted) says so and the
/// program stands where it can be captured.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Member<M> {
    /// Of the last capture, or of a checkpoint that is known to be over; on every message that is sent.
    ccn: Ccn,
    wanted: Option<Ccn>,
    tentative: Option<Tentative<M>>,
    /// No checkpoint up to this one will become permanent any more that is not so already.
    over: Ccn,
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Arrived, and not yet to be delivered: from the future, or ahead of their turn. By sender and number.
    held: Vec<BTreeMap<u64, (Ccn, M)>>,
}

/// A capture that is neither permanent nor dropped.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Tentative<M> {
    ccn: Ccn,
    cut: Cut,
    /// How writing it went, once it is known.
    saved: Option<bool>,
    /// Messages of the past so far.
    late: Vec<(Rank, u64, M)>,
}

/// A message for the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<M> {
    /// Who sent it.
    pub from: Rank,
    /// The message.
    pub message: M,
    /// It is one of the past: the coordinator must have this.
    pub late: Option<Answer<M>>,
}

impl<M: Clone> Member<M> {
    /// A rank among so many, at the beginning.
    pub fn new(ranks: usize) -> Self {
        Self::restored(0, Cut::new(ranks))
    }

    /// A rank as a permanent checkpoint has it. The messages of the past that are in the checkpoint count as received.
    pub fn restored(ccn: Ccn, cut: Cut) -> Self {
        let held = cut.received.iter().map(|_| BTreeMap::new()).collect();
        Self { ccn, wanted: None, tentative: None, over: ccn, sent: cut.sent, received: cut.received, held }
    }

    /// The program sends a message to a rank: what goes with it, its CCN and its number on the channel.
    pub fn sending(&mut self, to: Rank) -> (Ccn, u64) {
        self.sent[to] += 1;
        (self.ccn, self.sent[to])
    }

    /// A message has arrived, in whatever order and however often. False if no rank can have sent it.
    pub fn arrived(&mut self, from: Rank, ccn: Ccn, number: u64, message: M) -> bool {
        let Some(held) = self.held.get_mut(from) else { return false };
        if number > self.received[from] {
            held.insert(number, (ccn, message));
        }
        true
    }

    /// The next message that the program may have. Those from the future wait for the capture, which becomes wanted by them.
    pub fn deliver(&mut self) -> Option<Delivery<M>> {
        for from in 0..self.held.len() {
            let number = self.received[from] + 1;
            let Some((ccn, _)) = self.held[from].get(&number) else { continue };
            if *ccn > self.ccn {
                self.wanted = self.wanted.max(Some(*ccn));
                continue;
            }
            let (ccn, message) = self.held[from].remove(&number)?;
            self.received[from] = number;
            return Some(Delivery { from, late: self.note_late(from, ccn, number, &message), message });
        }
        None
    }

    fn note_late(&mut self, from: Rank, ccn: Ccn, number: u64, message: &M) -> Option<Answer<M>> {
        let tentative = self.tentative.as_mut().filter(|tentative| ccn < tentative.ccn)?;
        tentative.late.push((from, number, message.clone()));
        Some(Answer::Late { ccn: tentative.ccn, from, number, message: message.clone() })
    }

    /// Whether the next message of a rank has arrived and is one from the future: what that rank sends is held until the capture.
    pub fn is_held(&self, from: Rank) -> bool {
        let next = self.held.get(from).and_then(|held| held.get(&(self.received[from] + 1)));
        next.is_some_and(|(ccn, _)| *ccn > self.ccn)
    }

    /// How many messages from the future are held.
    pub fn held(&self) -> u64 {
        self.held.iter().flat_map(BTreeMap::values).filter(|(ccn, _)| *ccn > self.ccn).count() as u64
    }

    /// Where the channels stand now.
    pub fn cut(&self) -> Cut {
        Cut { sent: self.sent.clone(), received: self.received.clone() }
    }

    /// How many messages of another rank were delivered.
    pub fn received(&self, from: Rank) -> u64 {
        self.received[from]
    }

    /// The number on every message that is sent.
    pub fn ccn(&self) -> Ccn {
        self.ccn
    }

    /// The checkpoint for which a capture is due, at the next instant at which the program can be captured.
    pub fn wanted(&self) -> Option<Ccn> {
        self.wanted
    }

    /// The program was captured for the checkpoint that was wanted: this is where its channels stand. None if none was wanted.
    pub fn captured(&mut self) -> Option<(Ccn, Cut)> {
        let ccn = self.wanted.take()?;
        let cut = self.cut();
        self.ccn = ccn;
        self.tentative = Some(Tentative { ccn, cut: cut.clone(), saved: None, late: Vec::new() });
        Some((ccn, cut))
    }

    /// What was captured for a checkpoint was written, or could not be.
    pub fn saved(&mut self, ccn: Ccn, ok: bool) -> Option<Answer<M>> {
        let tentative = self.tentative.as_mut().filter(|tentative| tentative.ccn == ccn)?;
        tentative.saved = Some(ok);
        Some(tentative.outcome(ok))
    }

    /// The coordinator says something, perhaps again.
    pub fn told(&mut self, told: Tell) -> Vec<Answer<M>> {
        match told {
            Tell::Marker(ccn) => self.marker(ccn),
            Tell::Commit(ccn) | Tell::Abort(ccn) => {
                self.end(ccn);
                vec![Answer::Ack { ccn }]
            }
        }
    }

    /// A checkpoint is over for this rank: the capture, if there was one, is kept by others or dropped.
    fn end(&mut self, ccn: Ccn) {
        self.over = self.over.max(ccn);
        // Nobody needs to capture any more for a message of that number: no permanent checkpoint has it.
        self.ccn = self.ccn.max(ccn);
        self.wanted = self.wanted.filter(|wanted| *wanted > ccn);
        self.tentative = self.tentative.take().filter(|tentative| tentative.ccn > ccn);
    }

    fn marker(&mut self, ccn: Ccn) -> Vec<Answer<M>> {
        match &self.tentative {
            // Told again: what was answered may be lost.
            Some(tentative) if tentative.ccn == ccn => tentative.again(),
            _ => {
                if ccn > self.over && ccn > self.ccn {
                    self.wanted = self.wanted.max(Some(ccn));
                }
                Vec::new()
            }
        }
    }

    /// Whether a capture is neither permanent nor dropped.
    pub fn is_tentative(&self) -> bool {
        self.tentative.is_some()
    }
}

impl<M: Clone> Tentative<M> {
    fn outcome(&self, ok: bool) -> Answer<M> {
        if ok { Answer::Success { ccn: self.ccn, cut: self.cut.clone() } } else { Answer::Failure { ccn: self.ccn } }
    }

    fn again(&self) -> Vec<Answer<M>> {
        let late = self.late.iter().map(|(from, number, message)| Answer::Late {
            ccn: self.ccn,
            from: *from,
            number: *number,
            message: message.clone(),
        });
        late.chain(self.saved.map(|ok| self.outcome(ok))).collect()
    }
}
