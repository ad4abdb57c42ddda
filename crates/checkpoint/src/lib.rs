//! What a part of an experiment is, and the protocol between the parts and their coordinator.
//!
//! - [`part`]: the [`Part`] trait, and what a part hands over at the instant of a checkpoint
//! - [`protocol`]: who does what when, so that all parts commit or none does
//! - [`consistent`]: the same for ranks that run on and send messages meanwhile
//! - [`optimistic`]: what there is instead where each rank takes checkpoints of its own: a line to go back to
//!
//! This room does no I/O, starts no thread, reads no clock and knows neither QEMU nor the store.

pub mod consistent;
#[cfg(test)]
mod explore;
pub mod optimistic;
pub mod part;
pub mod protocol;

pub use part::{Captured, Failure, Note, Outcome, Part, Phase, Saved};
pub use protocol::{Protocol, Step};
