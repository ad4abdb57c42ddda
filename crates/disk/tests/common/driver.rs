//! A QEMU and a guest's driver in one, without either: speaks the vhost-user protocol to a server, and lays requests into a ring in a RAM file.

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
    kick: EventFd,
    call: EventFd,
    available: u16,
    seen: u16,
}

/// Offset in the RAM file of a guest address.
pub fn file_offset(at: u64) -> u64 {
    if at >= HIGH { at - HIGH + RAM / 2 } else { at }
}

impl Driver {
    pub fn connect(socket: &Path) -> Self {
        let ram = tempfile::tempfile().unwrap();
        ram.set_len(RAM).unwrap();
        Self::connect_with(socket, ram)
    }

    pub fn connect_with(socket: &Path, ram: File) -> Self {
        let mut frontend = Frontend::connect(socket, 1).unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        assert!(protocol.contains(VhostUserProtocolFeatures::LOG_SHMFD));
        frontend.set_protocol_features(protocol & !VhostUserProtocolFeatures::REPLY_ACK).unwrap();
        // Everything but positions in the ring for notification, and the log.
        frontend.set_features(features & !(1 << 29) & !(1 << 26)).unwrap();
        let mut driver =
            Self { frontend, ram, kick: EventFd::new(0).unwrap(), call: EventFd::new(libc::EFD_NONBLOCK).unwrap(), available: 0, seen: 0 };
        driver.start(0);
        driver
    }

    /// What QEMU does at `cont`.
    pub fn start(&mut self, base: u16) {
        self.try_start_at(base, [DESCRIPTORS, AVAILABLE, USED]).unwrap();
    }

    /// Stops the ring, and starts it with its descriptors, its available and its used ring in other places.
    pub fn restart_at(&mut self, places: [u64; 3]) {
        let base = self.stop();
        self.try_start_at(base, places).unwrap();
    }

    pub fn try_start_at(&mut self, base: u16, [descriptors, available, used]: [u64; 3]) -> vhost::Result<()> {
        let region = |guest: u64, offset: u64| VhostUserMemoryRegionInfo {
            guest_phys_addr: guest,
            memory_size: RAM / 2,
            userspace_addr: QEMU + offset,
            mmap_offset: offset,
            mmap_handle: self.ram.as_raw_fd(),
        };
        self.frontend.set_mem_table(&[region(0, 0), region(HIGH, RAM / 2)])?;
        self.frontend.set_vring_num(0, RING)?;
        self.frontend.set_vring_base(0, base)?;
        let config = VringConfigData {
            queue_max_size: RING,
            queue_size: RING,
            flags: 0,
            desc_table_addr: QEMU + descriptors,
            used_ring_addr: QEMU + used,
            avail_ring_addr: QEMU + available,
            log_addr: None,
        };
        self.frontend.set_vring_addr(0, &config)?;
        self.frontend.set_vring_kick(0, &self.kick)?;
        self.frontend.set_vring_call(0, &self.call)?;
        self.frontend.set_vring_enable(0, true)
    }

    /// What QEMU does at `stop`.
    pub fn stop(&mut self) -> u16 {
        self.frontend.get_vring_base(0).unwrap() as u16
    }

    /// A guest that resets the device: both sides forget what was in the ring.
    pub fn reset(&mut self) {
        self.stop();
        self.write(AVAILABLE, &[0; 4]);
        self.write(USED, &[0; 4]);
        (self.available, self.seen) = (0, 0);
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
            self.put_descriptor(DESCRIPTORS, i as u16, *descriptor);
        }
    }

    /// Offers the chain that starts at a descriptor, without a kick.
    pub fn offer(&mut self, head: u16) {
        self.write(AVAILABLE + 4 + 2 * u64::from(self.available % RING), &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.write(AVAILABLE + 2, &self.available.to_le_bytes());
    }

    pub fn set_available(&mut self, index: u16) {
        self.write(AVAILABLE + 2, &index.to_le_bytes());
    }

    pub fn kick(&self) {
        self.kick.write(1).unwrap();
    }

    pub fn used(&self) -> u16 {
        u16::from_le_bytes(self.read(USED + 2, 2).try_into().unwrap())
    }

    /// Waits until everything offered was given back. None if that takes too long. Otherwise the length that the last one names.
    pub fn wait(&mut self, patience: Duration) -> Option<u32> {
        let end = Instant::now() + patience;
        while self.used() != self.available {
            if Instant::now() > end {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        self.seen = self.available;
        let last = USED + 4 + 8 * u64::from(self.seen.wrapping_sub(1) % RING);
        Some(u32::from_le_bytes(self.read(last + 4, 4).try_into().unwrap()))
    }

    /// A request: what is given goes where the third element says; `answer` is a place and a length. Returns status and length.
    pub fn request(&mut self, kind: u32, sector: u64, given: &[(u64, u32)], answer: &[(u64, u32)]) -> (u8, u32) {
        self.prepare(kind, sector, given, answer);
        self.kick();
        let len = self.wait(Duration::from_secs(10)).expect("the request was answered");
        (self.read(HEADERS + 0x100, 1)[0], len)
    }

    pub fn prepare(&mut self, kind: u32, sector: u64, given: &[(u64, u32)], answer: &[(u64, u32)]) {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.write(HEADERS, &header);
        self.write(HEADERS + 0x100, &[0xff]);
        let head = [(HEADERS, 16, 0)];
        let given = given.iter().map(|(at, len)| (*at, *len, 0));
        let answer = answer.iter().map(|(at, len)| (*at, *len, WRITE));
        let buffers: Vec<_> = head.into_iter().chain(given).chain(answer).chain([(HEADERS + 0x100, 1, WRITE)]).collect();
        let last = buffers.len() - 1;
        let chain: Vec<_> = buffers
            .into_iter()
            .enumerate()
            .map(|(i, (at, len, flags))| Descriptor { at, len, flags: if i == last { flags } else { flags | NEXT }, next: i as u16 + 1 })
            .collect();
        self.put_chain(&chain);
        self.offer(0);
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
