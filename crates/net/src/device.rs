//! A network interface as a guest's driver sees it (VIRTIO 1.2, section 5.1): a ring for what the guest sends and one for what it receives.
//!
//! Every frame is a whole Ethernet frame behind a header that says nothing: checksums and segmentation are the guest's own work. A driver finds that out from
//! the features. So no frame is larger than the MTU allows, and a frame needs one chain of descriptors; buffers need not be merged.
//!
//! Address, link state and configuration space are QEMU's: the protocol has no message for them.

use crate::{InterfaceId, direction::Frame, fabric::Shared};
use fermata_vhost::{Absent, Backend, Chain, Device, GuestRam, Handled, Link, Pieces, worth_telling};
use std::{
    fmt::Display,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};
use virtio_bindings::{
    virtio_config::VIRTIO_F_VERSION_1,
    virtio_net::VIRTIO_NET_F_MTU,
    virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC},
};

/// The ring with the buffers for what the guest receives, and the one with what it sends.
pub(crate) const RECEIVE: usize = 0;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) const SEND: usize = 1;
const RINGS: usize = 2;
/// Bytes before each frame: `struct virtio_net_hdr` with the number of buffers, as it is since VIRTIO 1.0.
const HEADER_BYTES: usize = 12;
/// A header of a frame that needs nothing done to it, in one buffer.
const HEADER: [u8; HEADER_BYTES] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
/// Bytes of a frame that are taken out of a guest's memory at all; what is too long for its link is counted there.
const FRAME_BYTES_MAX: u64 = u16::MAX as u64;
/// Descriptors in a chain: more than a ring has.
const DESCRIPTORS_MAX: usize = 1024;

/// What was wrong with one interface. The links count what became of frames.
#[derive(Debug, Default)]
pub struct Trouble {
    /// Whose it is.
    interface: String,
    /// Chains that were no frame, or no room for one, and rings that were unusable.
    pub malformed: AtomicU64,
    /// Frames that the guest's buffers had no room for: its driver made them too small.
    pub unfit: AtomicU64,
    /// Frames for a guest whose driver had not begun to listen.
    pub unheard: AtomicU64,
    /// Frames that waited for buffers of a guest whose driver was reset.
    pub reset: AtomicU64,
}

/// An interface, as it is served.
pub(crate) struct Nic {
    pub id: InterfaceId,
    /// What is connected to it.
    pub shared: Arc<Shared>,
}

/// What the rest of the network knows of an interface.
pub(crate) struct Plug {
    /// The QEMU that is connected at present.
    pub link: Mutex<Option<Arc<Link>>>,
    pub trouble: Arc<Trouble>,
    /// Where the receive ring was stopped last. Without a lock: rings are stopped in the pause.
    position: AtomicU32,
}

/// No position of a ring.
const UNKNOWN: u32 = u32::MAX;

impl Backend for Nic {
    fn features(&self) -> u64 {
        let bits = [VIRTIO_F_VERSION_1, VIRTIO_RING_F_INDIRECT_DESC, VIRTIO_RING_F_EVENT_IDX, VIRTIO_NET_F_MTU];
        bits.into_iter().fold(0, |all, bit| all | 1 << bit)
    }

    fn rings(&self) -> usize {
        RINGS
    }

    fn is_inbound(&self, ring: usize) -> bool {
        ring == RECEIVE
    }

    fn device(&self) -> Box<dyn Device> {
        Box::new(Sender::new(self.id, &self.shared))
    }

    fn connected(&self, link: &Arc<Link>) {
        self.shared.plug(self.id).set_link(Some(link.clone()));
    }

    fn disconnected(&self) {
        self.shared.plug(self.id).set_link(None);
    }

    fn served(&self) {
        self.shared.turn(Some(self.id));
    }

    fn stopped(&self, ring: usize, position: u16) {
        if ring == RECEIVE {
            self.shared.plug(self.id).set_position(Some(position));
        }
    }

    /// QEMU says nothing of a reset, but that the ring goes on elsewhere. One whose first buffer was still untouched, or whose position had come
    /// round to 0 again, cannot be told from one that was not reset.
    fn goes_on(&self, ring: usize, position: u16) {
        if ring == RECEIVE && self.shared.plug(self.id).position().is_some_and(|stopped| stopped != position) {
            self.shared.reset(self.id);
        }
    }
}

impl Plug {
    /// Of an interface of this name, to which nobody is connected.
    pub fn new(interface: String) -> Self {
        let trouble = Arc::new(Trouble { interface, ..Trouble::default() });
        Self { link: Mutex::default(), trouble, position: AtomicU32::new(UNKNOWN) }
    }

    /// Where the receive ring was stopped last, if it was.
    pub fn position(&self) -> Option<u16> {
        u16::try_from(self.position.load(Ordering::Acquire)).ok()
    }

    pub fn set_position(&self, position: Option<u16>) {
        self.position.store(position.map_or(UNKNOWN, u32::from), Ordering::Release);
    }

    fn set_link(&self, link: Option<Arc<Link>>) {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = link;
    }
}

/// Takes what a guest sends.
pub(crate) struct Sender {
    id: InterfaceId,
    shared: Arc<Shared>,
    trouble: Arc<Trouble>,
    /// Reused from frame to frame.
    given: Pieces,
    given_at: Vec<(u64, u32)>,
}

impl Device for Sender {
    fn handle(&mut self, _ring: usize, ram: &GuestRam, chain: Chain<'_>, _yield_now: &dyn Fn() -> bool) -> Handled {
        match self.take(ram, chain) {
            Ok(Some(frame)) => self.shared.accept(self.id, frame),
            Err(absent) => return Handled::Absent(absent),
            Ok(None) => self.trouble.note(&self.trouble.malformed, "a chain of descriptors that is no frame was ignored"),
        }
        Handled::Done(0)
    }

    fn note_unusable(&mut self, error: &dyn Display) {
        if let Some(malformed) = worth_telling(&self.trouble.malformed) {
            tracing::warn!(interface = self.trouble.interface, %error, malformed, "a ring is unusable: it stays silent until the guest resets its network interface");
        }
    }
}

impl Sender {
    pub fn new(id: InterfaceId, shared: &Arc<Shared>) -> Self {
        let trouble = shared.plug(id).trouble.clone();
        Self { id, shared: shared.clone(), trouble, given: Pieces::new(), given_at: Vec::new() }
    }

    /// The frame in a chain. None: there is none. It does not wait for buffers that are yet to be restored: whoever has a frame for this guest would wait, too, with
    /// the lock of the whole network.
    fn take(&mut self, ram: &GuestRam, chain: Chain<'_>) -> Result<Option<Frame>, Absent> {
        let Some(bytes) = gather(chain, false, &mut self.given_at) else { return Ok(None) };
        let frame = bytes.checked_sub(HEADER_BYTES as u64).filter(|frame| *frame <= FRAME_BYTES_MAX);
        let Some(frame) = frame else { return Ok(None) };
        if !ram.are_there(&self.given_at) {
            return Err(Absent(self.given_at.clone()));
        }
        Ok(self.read(ram, frame))
    }

    fn read(&mut self, ram: &GuestRam, frame: u64) -> Option<Frame> {
        let mut input = ram.input(&self.given_at, &mut self.given).ok()?;
        input.take(&mut [0; HEADER_BYTES]).ok()?;
        // Made as it goes through the network, which copies it no more.
        let mut frame: Frame = std::iter::repeat_n(0, frame as usize).collect();
        input.take(Arc::get_mut(&mut frame).expect("nobody else has it yet")).ok()?;
        Some(frame)
    }
}

/// Lays frames into guests' memory.
#[derive(Default)]
pub(crate) struct Receiver {
    /// Reused from frame to frame.
    wanted: Pieces,
    wanted_at: Vec<(u64, u32)>,
}

impl Receiver {
    /// Lays a frame into the buffers that a guest has laid out for one. Returns the bytes written: none if the frame has no room there, and is lost.
    /// It does not wait for buffers that are yet to be restored.
    pub fn lay(&mut self, ram: &GuestRam, chain: Chain<'_>, frame: &[u8], trouble: &Trouble) -> Result<u32, Absent> {
        let Some(room) = gather(chain, true, &mut self.wanted_at) else {
            trouble.note(&trouble.malformed, "a chain of descriptors with no room for a frame was given back");
            return Ok(0);
        };
        let mut bytes = (HEADER_BYTES + frame.len()) as u64;
        if room < bytes {
            trouble.note(&trouble.unfit, "a frame was lost, since the guest's buffer has no room for it");
            return Ok(0);
        }
        // Only what is written is to be brought in and reported.
        self.wanted_at.retain_mut(|(_, len)| {
            *len = u64::from(*len).min(bytes) as u32;
            bytes -= u64::from(*len);
            *len > 0
        });
        if !ram.are_there(&self.wanted_at) {
            return Err(Absent(self.wanted_at.clone()));
        }
        let laid = ram.fill(&self.wanted_at, &mut self.wanted, |output| output.put(&HEADER).and_then(|()| output.put(frame)));
        if matches!(laid, Ok(Ok(()))) {
            Ok((HEADER_BYTES + frame.len()) as u32)
        } else {
            trouble.note(&trouble.malformed, "a buffer for a frame does not lie in guest memory");
            Ok(0)
        }
    }
}

impl Trouble {
    fn note(&self, counter: &AtomicU64, what: &'static str) {
        if let Some(count) = worth_telling(counter) {
            tracing::warn!(interface = self.interface, count, "{what}");
        }
    }

    /// Nobody does wrong who has not booted yet.
    pub(crate) fn note_unheard(&self) {
        if let Some(count) = worth_telling(&self.unheard) {
            tracing::debug!(interface = self.interface, count, "a frame was lost, since the guest's driver has not begun to listen");
        }
    }

    pub(crate) fn note_reset(&self, frames: u64) {
        let before = self.reset.fetch_add(frames, Ordering::Relaxed);
        let count = before + frames;
        // As often as of other trouble.
        if before.checked_ilog2() != count.checked_ilog2() {
            tracing::info!(interface = self.interface, count, "the guest's driver was reset: frames that waited for its buffers are lost");
        }
    }
}

/// Collects the buffers of a chain, all of which are to be written or all to be read. Returns the bytes in them; none if the chain is not like that, or does not
/// end.
fn gather(chain: Chain<'_>, written: bool, buffers: &mut Vec<(u64, u32)>) -> Option<u64> {
    buffers.clear();
    let (mut bytes, mut goes_on) = (0, true);
    for descriptor in chain {
        if descriptor.is_write_only() != written || buffers.len() == DESCRIPTORS_MAX {
            return None;
        }
        goes_on = descriptor.has_next();
        bytes += u64::from(descriptor.len());
        buffers.push((descriptor.addr().0, descriptor.len()));
    }
    // The iterator ends early where a link leads nowhere, in a circle, or out of memory.
    (!goes_on).then_some(bytes)
}
