//! What is served behind the rings: the seam between this room and those of the devices.

use crate::{Absent, GuestRam, Link};
use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A chain of descriptors that the driver has offered: one request, or the room for one answer.
pub type Chain<'a> = virtio_queue::DescriptorChain<&'a GuestRam>;

/// What a server serves. It outlives connections; a [`Device`] lives as long as one.
pub trait Backend: Send + Sync {
    /// The virtio features that are offered, as bits; those of the protocol come on top.
    fn features(&self) -> u64;

    /// The configuration space. None: the front end has its own.
    fn config(&self) -> Option<Vec<u8>> {
        None
    }

    /// How many rings there are at most.
    fn rings(&self) -> usize;

    /// Whether the driver lays empty buffers into this ring, for what the device has to say by itself. Nobody serves such a ring: it is filled by
    /// [`Link::offer`].
    fn is_inbound(&self, _ring: usize) -> bool {
        false
    }

    /// The longest that the worker looks for the next request before it sleeps, which takes a processor for so long.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }

    /// A device without a request in its hands, for a front end that has just connected.
    fn device(&self) -> Box<dyn Device>;

    /// A front end has connected; all its rings are stopped yet.
    fn connected(&self, _link: &Arc<Link>) {}

    /// The front end is gone.
    fn disconnected(&self) {}

    /// A ring was stopped, at this position: the number of chains taken from it since the driver began with it, modulo 2^16. Called by the protocol's thread
    /// without any lock, and so is [`goes_on`](Self::goes_on).
    fn stopped(&self, _ring: usize, _position: u16) {}

    /// A ring is about to be started at this position: where it was [`stopped`](Self::stopped), or at 0 if the driver has reset the device since.
    fn goes_on(&self, _ring: usize, _position: u16) {}

    /// The worker has served what there was, the driver has kicked an inbound ring, or buffers in one were brought in that were absent. Called by the
    /// worker without any lock.
    fn served(&self) {}
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handled {
    /// It is done, well or badly; so many bytes of its buffers were written.
    Done(u32),
    /// The host has no space for it. It can be tried again as if nothing had happened.
    Starved,
    /// It was left half way, for somebody waits who goes first. Done again from the start, it ends as if it had never been left.
    Interrupted,
    /// Nothing was done yet: these buffers of it are yet to be restored, and the device does not wait for that with the lock of its connection. It is done again when
    /// they are there.
    Absent(Absent),
}

/// Takes requests, one after the other.
pub trait Device: Send {
    /// Serves one request of a ring. A long one asks now and then whether to `yield_now`.
    fn handle(&mut self, ring: usize, ram: &GuestRam, chain: Chain<'_>, yield_now: &dyn Fn() -> bool) -> Handled;

    /// Notes that the driver has made a ring unusable.
    fn note_unusable(&mut self, error: &dyn Display);
}

/// Counts one more. The count, if it is worth a line in the log: a guest that does wrong a million times must not fill the log's disk, so each line says twice as
/// many as the one before.
pub fn worth_telling(counter: &AtomicU64) -> Option<u64> {
    let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
    count.is_power_of_two().then_some(count)
}
