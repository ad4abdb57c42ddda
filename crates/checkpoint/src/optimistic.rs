//! Optimistic checkpoints of ranks that send each other messages: each rank takes its own when it likes, nobody is asked, and only after a failure it is looked for what fits
//! together. As pure state: a [`Member`] for each rank, and the [`History`] of what stable storage has.
//!
//! After Elnozahy, Johnson and Zwaenepoel 1992, section 4.5, who measured this to compare it with [`crate::consistent`]. They say what it needs, and not how they did it. Here:
//!
//! **What depends on what is known by counting.** A checkpoint says how many messages its rank had sent and received on each channel. A channel keeps the order, so the number of a
//! message tells between which two checkpoints of its sender it was sent.
//!
//! **The recovery line** is the latest checkpoint of each rank such that none has received what its sender has not sent. Of two sets that fit, the later checkpoints of both fit as well, so there is one latest set; who has
//! received too much goes one back, until nobody has. That one rank goes back may make another one go back, and that the next: the domino effect, to the beginning if need be.
//!
//! **Messages on their way across the line are not lost.** The sender keeps what it sent and saves it with its checkpoint, so a checkpoint of the sender has all that is needed of it: no other line is
//! looked for than the one without orphans. It leaves out what nobody can need:
//!
//! - What the receiver has told it to have received, by a count on a message of its own. A checkpoint that has that message fits only to those of the receiver that had sent it, and so had received before it.
//! - What the receiver's checkpoint of the line has. The line only goes forward, for more checkpoints take nothing away from a set that fits.
//!
//! **Garbage** is what lies before the line.

#[cfg(test)]
mod explore;
mod history;
mod member;

pub use history::{History, Line};
pub use member::{Captured, Member, Stamp};
