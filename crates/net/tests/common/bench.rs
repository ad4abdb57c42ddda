//! A network at work, and guests with drivers of our own at its interfaces.

#[path = "../../../vhost/tests/common/driver.rs"]
pub mod driver;

use driver::{DATA, Descriptor, Driver, HIGH, NEXT, RING, WRITE, new_ram};
use fermata_linux::clock::monotonic;
use fermata_net::{Clock, Fabric, Interface, InterfaceId, Lan, Link, Mac, NicOptions, Port, Shape, Snapshot, Topology};
use fermata_types::{PAGE_SIZE, VirtualTime};
use fermata_vhost::{DirtyPages, MemoryWatch};
use std::{
    fs::File,
    sync::Arc,
    time::{Duration, Instant},
};

pub const RECEIVE: usize = 0;
pub const SEND: usize = 1;
pub const HEADER: usize = 12;
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long somebody who must get nothing is listened to.
pub const SILENCE: Duration = Duration::from_millis(60);
/// Where received frames go, one page each, and where those to be sent are.
pub const ROOM: u64 = HIGH;
pub const OUT: u64 = DATA;
pub const MTU: u16 = 1500;

pub fn interface(number: u8) -> Interface {
    Interface { machine: format!("m{number}"), name: "eth1".into(), mac: mac(number), mtu: MTU }
}

pub fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

pub fn pair(shape: Shape) -> Topology {
    let link = Link { ends: [InterfaceId(0), InterfaceId(1)], shapes: [shape.clone(), shape] };
    Topology { interfaces: vec![interface(0), interface(1)], links: vec![link], lans: Vec::new() }
}

pub fn lan(count: u8) -> Topology {
    let port = |number| Port { interface: InterfaceId(number), to_switch: Shape::default(), from_switch: Shape::default() };
    let lan = Lan { name: "lan".into(), ports: (0..u32::from(count)).map(port).collect() };
    Topology { interfaces: (0..count).map(interface).collect(), links: Vec::new(), lans: vec![lan] }
}

/// A frame from one to another, that says which number it has.
pub fn frame(to: u8, from: u8, number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = [&mac(to).0[..], &mac(from).0, &[0x88, 0xb5], &number.to_le_bytes()].concat();
    frame.resize(bytes, number as u8);
    frame
}

pub struct Bench {
    pub fabric: Arc<Fabric>,
    pub dirty: Vec<Arc<DirtyPages>>,
    pub dir: tempfile::TempDir,
}

impl Bench {
    pub fn new(topology: &Topology) -> Self {
        let bench = Self::frozen(topology, None);
        bench.fabric.thaw();
        bench
    }

    /// The memory of one guest is watched.
    pub fn with_watch(topology: &Topology, guest: usize, watch: Arc<dyn MemoryWatch>) -> Self {
        let bench = Self::frozen(topology, Some((guest, watch)));
        bench.fabric.thaw();
        bench
    }

    pub fn frozen(topology: &Topology, watched: Option<(usize, Arc<dyn MemoryWatch>)>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let dirty: Vec<_> = topology.interfaces.iter().map(|_| Arc::new(DirtyPages::new())).collect();
        let nic = |(number, dirty): (usize, &Arc<DirtyPages>)| NicOptions {
            socket: dir.path().join(format!("net{number}.sock")),
            dirty: dirty.clone(),
            watch: watched.as_ref().filter(|(guest, _)| *guest == number).map(|(_, watch)| watch.clone()),
        };
        let nics = dirty.iter().enumerate().map(nic).collect();
        let clock = Arc::new(Clock::standing(VirtualTime::default(), monotonic));
        let fabric = Arc::new(Fabric::start(Snapshot::new(topology, 1).unwrap(), clock, nics).unwrap());
        Self { fabric, dirty, dir }
    }

    pub fn guest(&self, number: usize) -> Guest {
        self.guest_with(number, new_ram())
    }

    pub fn guest_with(&self, number: usize, ram: File) -> Guest {
        let socket = self.dir.path().join(format!("net{number}.sock"));
        let mut guest = Guest { driver: Driver::connect_rings(&socket, ram, 2), laid: 0, seen: 0 };
        guest.start([0, 0]);
        guest
    }
}

/// A guest at one interface.
pub struct Guest {
    pub driver: Driver,
    /// Buffers laid in so far, and looked at again.
    pub laid: u16,
    pub seen: u16,
}

impl Guest {
    pub fn on(&mut self, ring: usize) -> &mut Driver {
        self.driver.ring = ring;
        &mut self.driver
    }

    /// Lays in buffers of a page each.
    pub fn lay(&mut self, count: u16) {
        for _ in 0..count {
            let slot = self.laid % RING;
            let at = ROOM + u64::from(slot) * PAGE_SIZE as u64;
            let driver = self.on(RECEIVE);
            driver.put_descriptor(driver::DESCRIPTORS, slot, Descriptor { at, len: 2048, flags: WRITE, next: 0 });
            driver.offer(slot);
            self.laid = self.laid.wrapping_add(1);
        }
        self.on(RECEIVE).kick();
    }

    /// Sends frames, in pieces, as many at once as there are, and waits until all are taken.
    pub fn send(&mut self, frames: &[Vec<u8>]) {
        assert!(frames.len() <= usize::from(RING) / 2);
        let driver = self.on(SEND);
        for (slot, frame) in (0u16..).zip(frames) {
            let at = OUT + u64::from(slot) * 0x2000;
            driver.write(at, &[&[0; HEADER][..], frame].concat());
            let table = driver::DESCRIPTORS + driver::RING_STRIDE;
            driver.put_descriptor(table, 2 * slot, Descriptor { at, len: 16, flags: NEXT, next: 2 * slot + 1 });
            let rest = (HEADER + frame.len() - 16) as u32;
            driver.put_descriptor(table, 2 * slot + 1, Descriptor { at: at + 16, len: rest, flags: 0, next: 0 });
            driver.offer(2 * slot);
        }
        driver.kick();
        driver.wait(PATIENCE).expect("frames are taken");
    }

    /// What has arrived and was not looked at yet.
    pub fn arrived(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let used = self.on(RECEIVE).used();
        while self.seen != used {
            let (slot, len) = self.driver.used_entry(self.seen);
            self.seen = self.seen.wrapping_add(1);
            let bytes = self.driver.read(ROOM + u64::from(slot) * PAGE_SIZE as u64, len as usize);
            assert_eq!(bytes[..HEADER], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0], "the header");
            frames.push(bytes[HEADER..].to_vec());
        }
        frames
    }

    /// Waits for so many frames.
    pub fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let end = Instant::now() + PATIENCE;
        let mut frames = self.arrived();
        while frames.len() < count {
            assert!(Instant::now() < end, "{} of {count} frames have arrived", frames.len());
            std::thread::sleep(Duration::from_micros(200));
            frames.extend(self.arrived());
        }
        frames
    }

    pub fn hears_nothing(&mut self) -> bool {
        std::thread::sleep(SILENCE);
        self.arrived().is_empty()
    }

    /// What QEMU does at `stop`.
    pub fn stop(&mut self) -> [u16; 2] {
        [RECEIVE, SEND].map(|ring| self.on(ring).stop())
    }

    /// What QEMU does at `cont`.
    pub fn start(&mut self, bases: [u16; 2]) {
        for ring in [SEND, RECEIVE] {
            self.on(ring).start(bases[ring]);
        }
        self.driver.settle();
    }

    /// What it does when it reboots.
    pub fn reset(&mut self) {
        for ring in [RECEIVE, SEND] {
            self.on(ring).reset();
            self.driver.settle();
        }
        (self.laid, self.seen) = (0, 0);
    }
}
