//! A rank's side of either protocol: checkpoints that all take together, or each by itself.

use super::{
    mode::Mode,
    program::Shared,
    wire::{Decoder, Encoder, Restored, Stamp},
};
use fermata_checkpoint::{
    consistent::{self, Answer, Ccn, Cut, Rank, Tell},
    optimistic,
};
use std::io;

/// Messages that a rank may have to send again, by receiver, with numbers.
pub(super) type Log = Vec<Vec<(u64, Shared)>>;

/// The channels of a rank, and when it is captured.
#[derive(Debug)]
pub(super) enum Side {
    Together(consistent::Member<Shared>),
    Alone(optimistic::Member<Shared>),
}

/// What is captured of it.
#[derive(Debug)]
pub(super) struct Captured {
    pub ccn: Ccn,
    pub cut: Cut,
    /// None where all are captured together: then what is on its way is seen when it arrives.
    pub log: Option<Log>,
}

impl Side {
    /// As a checkpoint has it, or as it begins; what was on its way counts as received in `cut`.
    pub fn restored(mode: Mode, restored: Option<&Restored>, cut: Cut) -> io::Result<Self> {
        let (ccn, ranks) = (restored.map_or(0, |restored| restored.ccn), cut.sent.len());
        if mode != Mode::Optimistic {
            return Ok(Self::Together(consistent::Member::restored(ccn, cut)));
        }
        let log = restored.map_or_else(|| Ok(vec![Vec::new(); ranks]), |restored| decode_log(&restored.log, ranks))?;
        Ok(Self::Alone(optimistic::Member::restored(optimistic::Captured { number: ccn, cut, log })))
    }

    pub fn sending(&mut self, to: Rank, parcel: &Shared) -> Stamp {
        match self {
            Self::Together(member) => {
                let (ccn, number) = member.sending(to);
                Stamp { ccn, number, received: 0 }
            }
            Self::Alone(member) => {
                let stamp = member.sending(to, parcel.clone());
                Stamp { ccn: 0, number: stamp.number, received: stamp.received }
            }
        }
    }

    pub fn arrived(&mut self, from: Rank, stamp: Stamp, parcel: Shared) {
        // Who sent it has a socket of its own, and so is one of the ranks.
        _ = match self {
            Self::Together(member) => member.arrived(from, stamp.ccn, stamp.number, parcel),
            Self::Alone(member) => member.arrived(from, optimistic::Stamp { number: stamp.number, received: stamp.received }, parcel),
        };
    }

    /// The next message that the program may have, from whom, and what the coordinator must know of it.
    pub fn deliver(&mut self) -> Option<(Rank, Shared, Option<Answer<Shared>>)> {
        match self {
            Self::Together(member) => member.deliver().map(|delivery| (delivery.from, delivery.message, delivery.late)),
            Self::Alone(member) => member.deliver().map(|(from, parcel)| (from, parcel, None)),
        }
    }

    /// It is time for a checkpoint of this rank alone.
    pub fn due(&mut self) {
        if let Self::Alone(member) = self {
            member.due();
        }
    }

    pub fn wanted(&self) -> Option<Ccn> {
        match self {
            Self::Together(member) => member.wanted(),
            Self::Alone(member) => member.wanted(),
        }
    }

    pub fn captured(&mut self) -> Option<Captured> {
        match self {
            Self::Together(member) => member.captured().map(|(ccn, cut)| Captured { ccn, cut, log: None }),
            Self::Alone(member) => {
                member.captured().map(|captured| Captured { ccn: captured.number, cut: captured.cut, log: Some(captured.log) })
            }
        }
    }

    /// What all captured together was written here.
    pub fn saved(&mut self, ccn: Ccn, ok: bool) -> Option<Answer<Shared>> {
        match self {
            Self::Together(member) => member.saved(ccn, ok),
            Self::Alone(_) => None,
        }
    }

    /// The coordinator says something about a checkpoint of all.
    pub fn told(&mut self, told: Tell) -> Vec<Answer<Shared>> {
        match self {
            Self::Together(member) => member.told(told),
            Self::Alone(_) => Vec::new(),
        }
    }

    /// The coordinator says how a checkpoint of this rank alone ended.
    pub fn over(&mut self, ccn: Ccn, received: &[u64]) {
        if let Self::Alone(member) = self {
            member.over(ccn, received);
        }
    }

    /// Of checkpoints that all take together.
    pub fn member(&mut self) -> Option<&mut consistent::Member<Shared>> {
        match self {
            Self::Together(member) => Some(member),
            Self::Alone(_) => None,
        }
    }

    /// The number of the last capture that all took together.
    pub fn ccn(&self) -> Ccn {
        match self {
            Self::Together(member) => member.ccn(),
            Self::Alone(_) => 0,
        }
    }

    /// Whether a capture that all took together is neither permanent nor dropped.
    pub fn is_tentative(&self) -> bool {
        matches!(self, Self::Together(member) if member.is_tentative())
    }
}

/// A log, as a checkpoint keeps it.
pub(super) fn encode_log(log: &Log) -> Vec<u8> {
    let mut encoder = Encoder::default();
    for messages in log {
        encoder.u64(messages.len() as u64);
        messages.iter().for_each(|(number, parcel)| _ = encoder.u64(*number).parcel(parcel));
    }
    encoder.0
}

/// How many bytes that is.
pub(super) fn log_bytes(log: &Log) -> u64 {
    log.iter().map(|messages| 8 + messages.iter().map(|(_, parcel)| 20 + parcel.bytes.len() as u64).sum::<u64>()).sum()
}

pub(super) fn decode_log(bytes: &[u8], ranks: usize) -> io::Result<Log> {
    let mut from = Decoder(bytes);
    let log = (0..ranks).map(|_| (0..from.u64()?).map(|_| Ok((from.u64()?, from.parcel()?))).collect()).collect::<io::Result<_>>()?;
    from.end()?;
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::messages::Parcel;

    #[test]
    fn a_log_comes_back_as_it_was() {
        let log = vec![Vec::new(), vec![(7, Parcel::new(1, &[1.5f64])), (8, Parcel::new::<u64>(2, &[]))]];
        let bytes = encode_log(&log);
        assert_eq!(log_bytes(&log), bytes.len() as u64);
        assert_eq!(decode_log(&bytes, 2).unwrap(), log);
        for ranks in [1, 3] {
            assert!(decode_log(&bytes, ranks).is_err());
        }
        assert!((0..bytes.len()).all(|end| decode_log(&bytes[..end], 2).is_err()));
    }
}
