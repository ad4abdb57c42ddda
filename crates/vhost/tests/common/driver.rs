//! A QEMU and a guest's driver in one, without either: speaks the vhost-user protocol to a server, and lays requests into rings in a RAM file. Shared by the
//! tests of all back ends.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::{
    fs::File,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
    time::{Duration, Instant},
};
use vhost::{
    VhostBackend, VhostUserMemoryRegionInfo, VringConfigData,
    vhost_user::{Frontend, VhostUserFrontend, message::VhostUserProtocolFeatures},
};
use vmm_sys_util::eventfd::EventFd;

pub const RING: u16 = 64;
/// The RAM file: the first half at guest address 0, the second at 4 GiB, as around the hole for devices.
pub const RAM: u64 = 4 << 20;
pub const HIGH: u64 = 4 << 30;
const QEMU: u64 = 0x7000_0000_0000;
pub const DESCRIPTORS: u64 = 0x1000;
pub const AVAILABLE: u64 = 0x2000;
pub const USED: u64 = 0x3000;
/// The next ring lies so much behind.
pub const RING_STRIDE: u64 = 0x4000;
/// Where requests keep header and status, and where their data may go.
pub const HEADERS: u64 = 0x4000;
pub const DATA: u64 = 0x10000;

pub const NEXT: u16 = 1;
pub const WRITE: u16 = 2;
pub const INDIRECT: u16 = 4;

#[derive(Debug, Clone, Copy)]
pub struct Descriptor {
    pub at: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

pub struct Driver {
    pub frontend: Frontend,
    pub ram: File,
    /// The ring that all of this is about.
    pub ring: usize,
    /// Descriptors of a ring that is started.
    pub size: u16,
    rings: Vec<Side>,
}

/// A ring as its driver has it.
struct Side {
    kick: EventFd,
    call: EventFd,
    available: u16,
}

/// Offset in the RAM file of a guest address.
pub fn file_offset(at: u64) -> u64 {
    if at >= HIGH { at - HIGH + RAM / 2 } else { at }
}

/// Guest RAM full of zeros.
pub fn new_ram() -> File {
    let ram = tempfile::tempfile().unwrap();
    ram.set_len(RAM).unwrap();
    ram
}

impl Driver {
    pub fn connect(socket: &Path) -> Self {
        Self::connect_with(socket, new_ram())
    }

    pub fn connect_with(socket: &Path, ram: File) -> Self {
        let mut driver = Self::connect_rings(socket, ram, 1);
        driver.start(0);
        driver
    }

    /// The same with so many rings, all of them stopped.
    pub fn connect_rings(socket: &Path, ram: File, rings: usize) -> Self {
        let mut frontend = Frontend::connect(socket, rings as u64).unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::LOG_SHMFD));
        frontend.set_protocol_features(protocol & !VhostUserProtocolFeatures::REPLY_ACK).unwrap();
        // Everything but positions in the ring for notification, and the log.
        frontend.set_features(features & !(1 << 29) & !(1 << 26)).unwrap();
        let side = || Side { kick: EventFd::new(0).unwrap(), call: EventFd::new(libc::EFD_NONBLOCK).unwrap(), available: 0 };
        Self { frontend, ram, ring: 0, size: RING, rings: (0..rings).map(|_| side()).collect() }
    }

    /// Knows of its rings what another driver in the same memory did.
    pub fn take_over(&mut self, other: &Self) {
        self.rings.iter_mut().zip(&other.rings).for_each(|(side, other)| side.available = other.available);
    }

    /// Waits until everything said to the server was done.
    pub fn settle(&mut self) {
        self.frontend.get_features().unwrap();
    }

    fn side(&mut self) -> &mut Side {
        &mut self.rings[self.ring]
    }

    /// Where something of the ring lies.
    fn of_ring(&self, at: u64) -> u64 {
        at + self.ring as u64 * RING_STRIDE
    }

    /// What QEMU does at `cont`.
    pub fn start(&mut self, base: u16) {
        self.start_untold(base);
        self.name_call().unwrap();
    }

    /// Stops the ring, and starts it with its descriptors, its available and its used ring in other places.
    pub fn restart_at(&mut self, places: [u64; 3]) {
        let base = self.stop();
        self.try_start_at(base, places).unwrap();
    }

    pub fn try_start_at(&mut self, base: u16, places: [u64; 3]) -> vhost::Result<()> {
        self.try_start_untold_at(base, places)?;
        self.name_call()
    }

    /// The same as [`start`](Self::start) up to [`name_call`](Self::name_call), which is what comes last.
    pub fn start_untold(&mut self, base: u16) {
        let places = [DESCRIPTORS, AVAILABLE, USED].map(|at| self.of_ring(at));
        self.try_start_untold_at(base, places).unwrap();
    }

    /// Says by what the guest is to be told.
    pub fn name_call(&mut self) -> vhost::Result<()> {
        self.frontend.set_vring_call(self.ring, &self.rings[self.ring].call)
    }

    /// Whether the guest was told of something since it was last asked.
    pub fn was_told(&mut self) -> bool {
        self.side().call.read().is_ok()
    }

    fn try_start_untold_at(&mut self, base: u16, [descriptors, available, used]: [u64; 3]) -> vhost::Result<()> {
        let region = |guest: u64, offset: u64| VhostUserMemoryRegionInfo {
            guest_phys_addr: guest,
            memory_size: RAM / 2,
            userspace_addr: QEMU + offset,
            mmap_offset: offset,
            mmap_handle: self.ram.as_raw_fd(),
        };
        self.frontend.set_mem_table(&[region(0, 0), region(HIGH, RAM / 2)])?;
        let ring = self.ring;
        self.frontend.set_vring_num(ring, self.size)?;
        self.frontend.set_vring_base(ring, base)?;
        let config = VringConfigData {
            queue_max_size: RING,
            queue_size: self.size,
            flags: 0,
            desc_table_addr: QEMU + descriptors,
            used_ring_addr: QEMU + used,
            avail_ring_addr: QEMU + available,
            log_addr: None,
        };
        self.frontend.set_vring_addr(ring, &config)?;
        self.frontend.set_vring_kick(ring, &self.rings[ring].kick)?;
        self.frontend.set_vring_enable(ring, true)
    }

    /// What QEMU does at `stop`.
    pub fn stop(&mut self) -> u16 {
        self.frontend.get_vring_base(self.ring).unwrap() as u16
    }

    /// A guest that resets the device: both sides forget what was in the ring.
    pub fn reset(&mut self) {
        self.stop();
        self.write(self.of_ring(AVAILABLE), &[0; 4]);
        self.write(self.of_ring(USED), &[0; 4]);
        self.side().available = 0;
        self.start(0);
    }

    /// Somebody else with his hands in the same memory.
    pub fn scribbler(&self) -> Scribbler {
        Scribbler { ram: self.ram.try_clone().unwrap() }
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.ram.write_all_at(bytes, file_offset(at)).unwrap();
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.ram.read_exact_at(&mut bytes, file_offset(at)).unwrap();
        bytes
    }

    pub fn put_descriptor(&self, table: u64, index: u16, descriptor: Descriptor) {
        self.scribbler().put_descriptor(table, index, descriptor);
    }

    pub fn put_chain(&self, chain: &[Descriptor]) {
        for (i, descriptor) in chain.iter().enumerate() {
            self.put_descriptor(self.of_ring(DESCRIPTORS), i as u16, *descriptor);
        }
    }

    /// Offers the chain that starts at a descriptor, without a kick.
    pub fn offer(&mut self, head: u16) {
        let available = self.side().available;
        self.write(self.of_ring(AVAILABLE) + 4 + 2 * u64::from(available % RING), &head.to_le_bytes());
        self.side().available = available.wrapping_add(1);
        self.set_available(available.wrapping_add(1));
    }

    pub fn set_available(&mut self, index: u16) {
        self.write(self.of_ring(AVAILABLE) + 2, &index.to_le_bytes());
    }

    pub fn kick(&self) {
        self.rings[self.ring].kick.write(1).unwrap();
    }

    pub fn used(&self) -> u16 {
        u16::from_le_bytes(self.read(self.of_ring(USED) + 2, 2).try_into().unwrap())
    }

    /// Waits until everything offered was given back. None if that takes too long. Otherwise the length that the last one names.
    pub fn wait(&mut self, patience: Duration) -> Option<u32> {
        let (end, available) = (Instant::now() + patience, self.side().available);
        while self.used() != available {
            if Instant::now() > end {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Some(self.used_entry(available.wrapping_sub(1)).1)
    }

    /// What was given back at a position: the head of the chain and the length written.
    pub fn used_entry(&self, position: u16) -> (u32, u32) {
        let entry = self.read(self.of_ring(USED) + 4 + 8 * u64::from(position % RING), 8);
        (u32::from_le_bytes(entry[..4].try_into().unwrap()), u32::from_le_bytes(entry[4..].try_into().unwrap()))
    }
}

/// Writes into a guest's RAM.
pub struct Scribbler {
    ram: File,
}

impl Scribbler {
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.ram.write_all_at(bytes, file_offset(at)).unwrap();
    }

    pub fn put_descriptor(&self, table: u64, index: u16, descriptor: Descriptor) {
        let Descriptor { at, len, flags, next } = descriptor;
        let bytes = [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.write(table + 16 * u64::from(index), &bytes);
    }
}
