//! A guest that does anything to its RAM and the two rings of its network interface.

use crate::{
    Clock, Interface, InterfaceId, Link, Mac, Topology,
    device::{RECEIVE, Receiver, SEND, Sender},
    fabric::{Shared, Snapshot},
    topology::MTU_DEFAULT,
};
use fermata_types::VirtualTime;
use fermata_vhost::{
    fuzzing::{Bytes, Memory, descriptor},
    ring::{Offer, Ring},
};
use std::{sync::Arc, time::Duration};

/// Where the descriptors, the available and the used ring of each ring lie.
const PLACES: [[u64; 3]; 2] = [[0x1000, 0x2000, 0x3000], [0x4000, 0x5000, 0x6000]];
/// More steps find nothing that fewer would not.
const STEPS_MAX: usize = 64;
pub(super) const OURS: InterfaceId = InterfaceId(0);

/// The rings of the guest, and what it has put into each of them.
struct Guest<'m> {
    memory: &'m mut Memory,
    shared: Arc<Shared>,
    sender: Sender,
    receiver: Receiver,
    rings: [Ring; 2],
    available: [u16; 2],
}

/// A cable between our interface and another one, at an instant of its own.
pub(super) fn shared() -> Arc<Shared> {
    let interface =
        |number| Interface { machine: format!("m{number}"), name: "eth1".into(), mac: Mac([2, 0, 0, 0, 0, number]), mtu: MTU_DEFAULT };
    let link = Link { ends: [OURS, InterfaceId(1)], shapes: Default::default() };
    let topology = Topology { interfaces: vec![interface(0), interface(1)], links: vec![link], lans: Vec::new() };
    // A clock that stands: the same input does the same every time.
    let clock = Arc::new(Clock::standing(VirtualTime::default(), || Duration::ZERO));
    // The guests have begun to listen: what is there for one of them waits for its buffers.
    let snapshot = Snapshot { listening: vec![true; 2], ..Snapshot::new(&topology, 1).expect("a topology") };
    Arc::new(Shared::new(snapshot, clock).expect("descriptors"))
}

fn length(bytes: &mut Bytes<'_>) -> u32 {
    match bytes.byte() % 8 {
        0 => 0,
        1 => 12,
        2 => 1,
        3 => 60,
        4 => 2048,
        5 => bytes.u16().into(),
        6 => 11 + u32::from(bytes.byte() % 4),
        _ => bytes.u32(),
    }
}

impl Guest<'_> {
    fn start(&mut self, ring: usize, size: u32, base: u16, places: [u64; 3]) {
        self.memory.start(&mut self.rings[ring], &mut self.sender, size, base, places);
    }

    fn size(&self, ring: usize) -> u16 {
        self.rings[ring].size().max(1)
    }

    /// Has the ring served: what is sent is taken, or frames of the given length are laid in until there is no room for more.
    fn kick(&mut self, ring: usize, patience: u64, length: u16) {
        if ring == SEND {
            self.memory.serve(ring, &mut self.rings[ring], &mut self.sender, patience);
            return;
        }
        let frame = vec![0x5a; length.into()];
        let Self { memory, shared, sender, receiver, rings, .. } = self;
        let trouble = &shared.plug(OURS).trouble;
        for _ in 0..8 {
            let offer = memory.looked_at(|ram| rings[RECEIVE].offer(ram, sender, |chain| receiver.lay(ram, chain, &frame, trouble)));
            if offer != Offer::Taken {
                break;
            }
        }
    }

    fn set_available(&self, ring: usize, index: u16) {
        self.memory.write(PLACES[ring][1] + 2, &index.to_le_bytes());
    }

    /// One thing that the guest does.
    fn step(&mut self, bytes: &mut Bytes<'_>, patience: u64) {
        let what = bytes.byte();
        let ring = usize::from(what >> 7);
        let [descriptors, available, _] = PLACES[ring];
        match what % 10 {
            0..=2 => {
                let (index, at, len) = (bytes.byte() % 32, bytes.address(), length(bytes));
                let (flags, next) = (bytes.byte(), bytes.byte());
                let descriptor = descriptor(at, len, (flags % 8).into(), (next % 40).into());
                self.memory.write(descriptors + 16 * u64::from(index), &descriptor);
            }
            3 => {
                // An indirect table, or part of one.
                let (table, index, at, len) = (bytes.address(), bytes.byte(), bytes.address(), length(bytes));
                let (flags, next) = (bytes.byte(), bytes.byte());
                let descriptor = descriptor(at, len, (flags % 8).into(), next.into());
                self.memory.write(table.wrapping_add(16 * u64::from(index)), &descriptor);
            }
            4..=6 => {
                for _ in 0..=bytes.byte() % 4 {
                    let head = u16::from(bytes.byte() % 34);
                    let slot = self.available[ring] % self.size(ring);
                    self.memory.write(available + 4 + 2 * u64::from(slot), &head.to_le_bytes());
                    self.available[ring] = self.available[ring].wrapping_add(1);
                }
                self.set_available(ring, self.available[ring]);
                self.kick(ring, patience, bytes.u16() % 2048);
            }
            7 => {
                self.available[ring] = bytes.u16();
                self.set_available(ring, self.available[ring]);
                self.kick(ring, patience, 60);
            }
            8 => {
                let (at, count) = (bytes.address(), bytes.byte());
                self.memory.write(at, bytes.some((count % 64).into()));
            }
            _ => {
                // QEMU stops the ring and starts it again.
                let base = self.rings[ring].stop();
                self.start(ring, self.size(ring).into(), base, PLACES[ring]);
                self.kick(ring, patience, 1514);
            }
        }
    }

    /// After a reset the interface serves an honest guest.
    fn check_alive(&mut self) {
        self.memory.set_hole(None);
        let taken =
            |shared: &Shared| shared.snapshot().expect("nobody panicked").world.counters(OURS).expect("an interface")[0].sent.frames;
        let before = taken(&self.shared);
        for ring in [RECEIVE, SEND] {
            self.rings[ring] = Ring::new();
            let [descriptors, available, used] = PLACES[ring];
            self.memory.write(available, &[0; 8]);
            self.memory.write(used, &[0; 8]);
            let flags = if ring == RECEIVE { 2 } else { 0 };
            self.memory.write(descriptors, &descriptor(0x8000, 72, flags, 0));
            self.start(ring, 8, 0, PLACES[ring]);
            self.set_available(ring, 1);
            self.kick(ring, u64::MAX, 60);
            assert_eq!(self.memory.read::<2>(used + 2), [1, 0], "after a reset ring {ring} is not served");
        }
        assert_eq!(self.memory.read::<4>(PLACES[RECEIVE][2] + 8), 72u32.to_le_bytes());
        assert_eq!(
            (self.memory.read::<2>(0x8000 + 10), self.memory.read::<60>(0x8000 + 12)),
            ([1, 0], [0x5a; 60]),
            "a frame that is wrong"
        );
        assert_eq!(taken(&self.shared), before + 1, "a frame that was not taken");
    }
}

/// A guest writes descriptors, indices and anything else, and kicks, while frames come for it. Panics if memory is touched that it must not, if a write to memory
/// goes unreported, or if a reset does not bring the interface back.
pub fn net(data: &[u8]) {
    thread_local!(static MEMORY: std::cell::RefCell<Memory> = std::cell::RefCell::default());
    MEMORY.with_borrow_mut(|memory| {
        memory.clear();
        let mut bytes = Bytes(data);
        let shared = shared();
        let sender = Sender::new(OURS, &shared);
        let mut guest =
            Guest { memory, shared, sender, receiver: Receiver::default(), rings: [Ring::new(), Ring::new()], available: [0; 2] };
        let shape = bytes.byte();
        let mut places = PLACES;
        if shape & 2 == 2 {
            places[RECEIVE] = places[RECEIVE].map(|_| bytes.address());
        }
        if shape & 4 == 4 {
            guest.memory.set_hole(Some(bytes.byte().into()));
        }
        let patience = if shape & 8 == 8 { bytes.byte().into() } else { u64::MAX };
        for (ring, places) in places.into_iter().enumerate() {
            guest.rings[ring].set_event_idx(shape & 1 == 1);
            guest.start(ring, 1 << (shape >> 4).min(10), 0, places);
        }
        for _ in 0..STEPS_MAX {
            if bytes.is_empty() {
                break;
            }
            guest.step(&mut bytes, patience);
        }
        guest.check_alive();
    });
}
