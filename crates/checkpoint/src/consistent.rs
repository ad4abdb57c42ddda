//! Consistent checkpoints of ranks that send each other messages, as two pure state machines: the [`Coordinator`], and a [`Member`] for each rank.
//!
//! ```text
//!   coordinator   begin ── marker to all ──> collects success, and messages of the past ──> persist ──> commit to all ──> waits for every ack
//!                                            └─ a failure, or patience is at its end ───────────────> abort to all  ──┘
//!   member        marker, or a message from the future ──> capture at the next chance ──> saved ──> success ──> commit or abort ──> ack
//! ```
//!
//! After Elnozahy, Johnson and Zwaenepoel 1992, section 2.2. Every message carries the number (CCN) of its sender's last capture. A message with a higher number than
//! the receiver's is one from the *future*: the receiver captures first. One with a lower number is one of the *past*: it was sent before its sender's capture and arrives after its
//! receiver's, so neither has it; it is kept with the checkpoint as the state of the channel. A checkpoint is whole when all ranks succeeded and, by the
//! counts of both ends, no message of the past is missing on any channel.
//!
//! Messages of a channel are numbered, so that a lost one is missed, a doubled one is dropped, and one that overtook another waits for it. Nothing here waits, and nothing assumes
//! that what one sends arrives: what may be lost is told again at each [`Coordinator::tick`].
//!
//! Some programs can be captured only at calls that they make, and wait for messages elsewhere, too: [`Calls`] says at which of them, and [`Aim`] has the coordinator choose.
//!
//! The machine of [`crate::Protocol`] is another: its parts stand still together, in an order, for all of a capture, and one caller does every step. Here nobody stands still with another.

mod calls;
mod coordinator;
#[cfg(test)]
mod explore;
mod member;

pub use calls::{Aim, Calls, Chance};
pub use coordinator::{Coordinator, Order, Whole};
pub use member::{Delivery, Member};

/// Which rank: they count from 0.
pub type Rank = usize;

/// The number of a consistent checkpoint. It only grows, until everybody goes back to a permanent one; then it goes on from there.
pub type Ccn = u64;

/// Where the channels of a rank stood at the instant of its capture: how many messages it had sent to each rank, and received from each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Sent, by receiver.
    pub sent: Vec<u64>,
    /// Received, by sender.
    pub received: Vec<u64>,
}

impl Cut {
    /// Nothing was sent and nothing received among so many ranks.
    pub fn new(ranks: usize) -> Self {
        Self { sent: vec![0; ranks], received: vec![0; ranks] }
    }
}

/// What the coordinator tells a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tell {
    /// Take part in this checkpoint.
    Marker(Ccn),
    /// It is permanent.
    Commit(Ccn),
    /// It will never be.
    Abort(Ccn),
}

/// What a member tells the coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Answer<M> {
    /// Its tentative checkpoint was written.
    Success {
        /// Which.
        ccn: Ccn,
        /// Where its channels stood.
        cut: Cut,
    },
    /// It could not be.
    Failure {
        /// Which.
        ccn: Ccn,
    },
    /// A message of the past arrived.
    Late {
        /// The checkpoint that it belongs to.
        ccn: Ccn,
        /// Who sent it.
        from: Rank,
        /// Its number on its channel, from 1.
        number: u64,
        /// The message.
        message: M,
    },
    /// It knows how the checkpoint ended.
    Ack {
        /// Which.
        ccn: Ccn,
    },
}
