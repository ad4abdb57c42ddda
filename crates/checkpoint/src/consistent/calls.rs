//! Ranks that can be captured only at calls which they make, and wait for messages between two calls as well.
//!
//! Such a rank may wait in the middle for a message that is from the future, and is held until the capture, to which the rank does not come without the message. Then the checkpoint is *given up*: the
//! rank answers with a failure, all hear that it is aborted, and with that the message is from the future no longer. So no checkpoint has a message that was received before it was
//! sent, no rank stands still for another, and nobody has to send the same once more: what a program does between two calls may go by chance.
//!
//! Where each rank goes through the same loop, and what is sent in a round is received in that round or later, nobody gives up if all are captured at the call of the same number
//! and know of it before they come there: what a rank waits for in an earlier round was sent in that round or before, and so before its sender's capture. [`Aim`] tries that,
//! and where it fails that each is captured at its next call, whichever that is.

#[cfg(test)]
mod explore;

use super::{Answer, Ccn, Member, Rank};

/// What a rank does at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chance {
    /// It goes on.
    Pass,
    /// It is captured.
    Capture,
    /// It was a message that told it of a checkpoint. The coordinator is about to say at which call.
    Wait,
}

/// A rank's side.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Calls {
    /// For which checkpoint a call was named, and which call.
    aim: (Ccn, u64),
    given_up: Ccn,
}

impl Calls {
    /// The coordinator says from which call on the rank is to be captured for a checkpoint. This is a marker as well, or the rank would pass the call between the two.
    pub fn aimed(&mut self, ccn: Ccn, call: u64) {
        self.aim = (ccn, call);
    }

    /// The rank is at a call, its `made`th.
    pub fn come<M: Clone>(&self, made: u64, member: &Member<M>) -> Chance {
        match member.wanted() {
            Some(ccn) if ccn > self.aim.0 => Chance::Wait,
            Some(_) if made >= self.aim.1 => Chance::Capture,
            _ => Chance::Pass,
        }
    }

    /// The rank waits between two calls, has asked for a message of `from` or of anyone, and there is none. What it is to tell the coordinator, once for each checkpoint: if the next message
    /// of `from` is held; where anyone will do, if some message is, and nobody has sent another for `long`.
    pub fn in_vain<M: Clone>(&mut self, member: &Member<M>, from: Option<Rank>, long: bool, ranks: usize) -> Option<Answer<M>> {
        let held = match from {
            Some(from) => member.is_held(from),
            None => long && (0..ranks).any(|from| member.is_held(from)),
        };
        if held { self.give_up(member) } else { None }
    }

    /// The rank will not come to a call before it has what is held, or never again.
    pub fn give_up<M: Clone>(&mut self, member: &Member<M>) -> Option<Answer<M>> {
        let ccn = member.wanted().filter(|ccn| *ccn > self.given_up)?;
        self.given_up = ccn;
        Some(Answer::Failure { ccn })
    }
}

/// The coordinator's side: chooses the call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Aim {
    /// How many calls each rank has made, as far as it has answered; none while nobody is asked.
    asked: Option<Vec<Option<u64>>>,
    ranks: usize,
    /// At the same call, and so many after the latest.
    same: bool,
    ahead: u64,
}

/// While ranks are told of a call they come to this one at most, in the beginning.
const AHEAD: u64 = 2;
/// Calls ahead at most.
const AHEAD_MOST: u64 = 1 << 20;

impl Aim {
    /// For so many ranks.
    pub fn new(ranks: usize) -> Self {
        Self { asked: None, ranks, same: true, ahead: AHEAD }
    }

    /// It is time for a checkpoint. Whether all are to be asked how many calls they have made: not again before they have answered.
    pub fn ask(&mut self) -> bool {
        let first = self.asked.is_none();
        self.asked.get_or_insert_with(|| vec![None; self.ranks]);
        first
    }

    /// A rank has answered. When all have: from which call on they are to be captured.
    pub fn heard(&mut self, rank: Rank, made: u64) -> Option<u64> {
        let asked = self.asked.as_mut()?;
        *asked.get_mut(rank)? = Some(made);
        let most = asked.iter().copied().collect::<Option<Vec<_>>>()?.into_iter().max()?;
        self.asked = None;
        Some(if self.same { most.saturating_add(self.ahead) } else { 0 })
    }

    /// A rank has given up: the next time it is the other way, and farther ahead.
    pub fn missed(&mut self) {
        if self.same {
            self.ahead = (self.ahead * 2).min(AHEAD_MOST);
        }
        self.same = !self.same;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_named_when_all_have_answered_and_farther_ahead_when_it_was_missed() {
        let mut aim = Aim::new(2);
        assert_eq!(aim.heard(0, 5), None, "nobody was asked");
        assert!(aim.ask());
        assert_eq!(aim.heard(0, 5), None);
        assert!(!aim.ask(), "one has not answered");
        assert_eq!(aim.heard(2, 50), None, "there is no such rank");
        assert_eq!(aim.heard(1, 7), Some(7 + AHEAD));
        let mut named = Vec::new();
        for _ in 0..4 {
            aim.missed();
            assert!(aim.ask());
            assert_eq!(aim.heard(1, 10), None);
            named.extend(aim.heard(0, 0));
        }
        assert_eq!(named, [0, 10 + 2 * AHEAD, 0, 10 + 4 * AHEAD]);
    }

    #[test]
    fn a_rank_waits_for_the_call_that_others_have_told_it_of() {
        let (mut member, mut calls) = (Member::<u8>::new(2), Calls::default());
        assert_eq!(calls.come(1, &member), Chance::Pass);
        assert!(member.arrived(1, 1, 1, 0) && member.deliver().is_none());
        assert_eq!(calls.come(2, &member), Chance::Wait);
        calls.aimed(1, 4);
        assert_eq!([calls.come(3, &member), calls.come(4, &member)], [Chance::Pass, Chance::Capture]);
        // The other rank is the one whose messages are held.
        assert_eq!(calls.in_vain(&member, Some(0), true, 2), None);
        assert_eq!(calls.in_vain(&member, None, false, 2), None);
        assert_eq!(calls.in_vain(&member, Some(1), false, 2), Some(Answer::Failure { ccn: 1 }));
        assert_eq!(calls.give_up(&member), None, "once");
    }
}
