//! A guest that does anything to its RAM and its ring.

use super::{DISK, checkpoint, disk};
use crate::{
    Disk, PageMap,
    device::{BlockBackend, BlockDevice, Counters},
};
use fermata_types::PAGE_SIZE;
use fermata_vhost::{
    fuzzing::{Bytes, Memory, descriptor},
    ring::Ring,
};
use std::sync::Arc;

const PAGE: u64 = PAGE_SIZE as u64;

const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const HEADERS: u64 = 0x4000;
/// More steps find nothing that fewer would not.
const STEPS_MAX: usize = 64;
struct Bench {
    _place: tempfile::TempDir,
    disk: Arc<Disk>,
    counters: Arc<Counters>,
    map: Arc<PageMap>,
    memory: Memory,
}

impl Bench {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        let memory = Memory::default();
        let (disk, map) = (disk(place.path()), Arc::new(PageMap::new()));
        disk.set_page_map(map.clone(), 0);
        memory.tracking.set_write_watch(map.clone());
        Self { _place: place, disk, counters: Arc::default(), map, memory }
    }

    fn clear(&mut self) {
        self.memory.clear();
        self.disk.reset(checkpoint()).expect("a disk");
        self.map.clear();
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.map.forget_stretch(self.memory.write(at, bytes));
    }

    /// Serves what the guest offers. After it a page that is said to equal a block does.
    fn serve(&mut self, ring: &mut Ring, device: &mut BlockDevice, patience: u64) {
        self.memory.serve(0, ring, device, patience);
        for mapped in self.map.find(&self.memory.pages().collect()) {
            let mut block = [0; PAGE_SIZE];
            self.disk.read_at(u64::from(mapped.block) * PAGE, &mut block).expect("the disk can be read");
            assert!(self.memory.page(mapped.page) == block, "page {} does not equal block {}", mapped.page, mapped.block);
        }
    }

    fn descriptor(&self, table: u64, index: u16, at: u64, len: u32, flags: u16, next: u16) {
        self.write(table.wrapping_add(16 * u64::from(index)), &descriptor(at, len, flags, next));
    }

    fn header(&self, at: u64, kind: u32, sector: u64) {
        self.write(at, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
    }

    /// After a reset the disk serves an honest guest.
    fn check_alive(&mut self, ring: &mut Ring, device: &mut BlockDevice) {
        self.memory.set_hole(None);
        *ring = Ring::new();
        self.write(AVAILABLE, &[0; 8]);
        self.write(USED, &[0; 8]);
        self.memory.start(ring, device, 8, 0, [DESCRIPTORS, AVAILABLE, USED]);
        let status = HEADERS + 0x100;
        self.header(HEADERS, 0, 1);
        self.write(status, &[0xff]);
        for (index, (at, len, flags)) in [(HEADERS, 16, 1), (0x8000, 1024, 3), (status, 1, 2)].into_iter().enumerate() {
            self.descriptor(DESCRIPTORS, index as u16, at, len, flags, index as u16 + 1);
        }
        self.write(AVAILABLE + 2, &[1]);
        self.serve(ring, device, u64::MAX);
        let memory = &self.memory;
        assert_eq!((memory.read::<1>(status), memory.read::<2>(USED + 2)), ([0], [1, 0]), "after a reset the disk is not served");
        let mut expected = [0; 1024];
        self.disk.read_at(512, &mut expected).expect("the disk can be read");
        assert!(memory.read::<1024>(0x8000) == expected, "a read that is wrong");
    }
}

fn sector(bytes: &mut Bytes<'_>) -> u64 {
    match bytes.byte() % 4 {
        0 => bytes.byte().into(),
        1 => u64::from(bytes.u16()) % (DISK / 512 + 8),
        2 => DISK / 512 - u64::from(bytes.byte() % 16),
        _ => bytes.u64(),
    }
}

fn length(bytes: &mut Bytes<'_>) -> u32 {
    match bytes.byte() % 8 {
        0 => 1,
        1 => 16,
        2 => 512 * u32::from(bytes.byte() % 32),
        3 => 4096,
        4 => bytes.u16().into(),
        5 => 0,
        6 => 16 * u32::from(bytes.byte()),
        _ => bytes.u32(),
    }
}

/// One thing that the guest does.
fn step(bench: &mut Bench, ring: &mut Ring, device: &mut BlockDevice, bytes: &mut Bytes<'_>, available: &mut u16, patience: u64) {
    match bytes.byte() % 12 {
        0..=3 => {
            let (index, at, len) = (bytes.byte() % 32, bytes.address(), length(bytes));
            let (flags, next) = (bytes.byte(), bytes.byte());
            bench.descriptor(DESCRIPTORS, index.into(), at, len, (flags % 16).into(), (next % 40).into());
        }
        4 => {
            // An indirect table, or part of one.
            let (table, index, at, len) = (bytes.address(), bytes.byte(), bytes.address(), length(bytes));
            let (flags, next) = (bytes.byte(), bytes.byte());
            bench.descriptor(table, index.into(), at, len, (flags % 8).into(), next.into());
        }
        5 => {
            let (at, kind, sector) = (HEADERS + 16 * u64::from(bytes.byte() % 16), bytes.byte(), sector(bytes));
            let kind = if kind >= 0xf0 { bytes.u32() } else { u32::from(kind % 16) };
            bench.header(at, kind, sector);
        }
        6 => {
            let (at, sector, count, flags) = (bytes.address(), sector(bytes), bytes.u32(), bytes.byte());
            let count = if flags & 0x80 == 0 { count % 2048 } else { count };
            bench.write(at, &[&sector.to_le_bytes()[..], &count.to_le_bytes(), &u32::from(flags % 4).to_le_bytes()].concat());
        }
        7 | 8 => {
            // Offers some chains.
            for _ in 0..=bytes.byte() % 4 {
                let head = u16::from(bytes.byte() % 34);
                bench.write(AVAILABLE + 4 + 2 * u64::from(*available % ring_size(ring)), &head.to_le_bytes());
                *available = available.wrapping_add(1);
            }
            bench.write(AVAILABLE + 2, &available.to_le_bytes());
            bench.serve(ring, device, patience);
        }
        9 => {
            *available = bytes.u16();
            bench.write(AVAILABLE + 2, &available.to_le_bytes());
            bench.serve(ring, device, patience);
        }
        10 => {
            let (at, count) = (bytes.address(), bytes.byte());
            bench.write(at, bytes.some((count % 64).into()));
        }
        _ => {
            // QEMU stops the ring and starts it again.
            let base = ring.stop();
            bench.memory.start(ring, device, ring_size(ring).into(), base, [DESCRIPTORS, AVAILABLE, USED]);
            bench.serve(ring, device, patience);
        }
    }
}

fn ring_size(ring: &Ring) -> u16 {
    ring.size().max(1)
}

/// A guest writes descriptors, headers, indices and anything else, and kicks. Panics if memory is touched that it must not, if a write to memory goes
/// unreported, or if a reset does not bring the disk back.
pub fn ring(data: &[u8]) {
    thread_local!(static BENCH: std::cell::RefCell<Bench> = std::cell::RefCell::new(Bench::new()));
    BENCH.with_borrow_mut(|bench| {
        bench.clear();
        let mut bytes = Bytes(data);
        let mut device = BlockDevice::new(&BlockBackend::new(bench.disk.clone(), "fuzz", bench.counters.clone()));
        let mut ring = Ring::new();
        let (shape, base) = (bytes.byte(), bytes.byte());
        ring.set_event_idx(shape & 1 == 1);
        let mut at = [DESCRIPTORS, AVAILABLE, USED];
        if shape & 2 == 2 {
            at = at.map(|_| bytes.address());
        }
        if shape & 4 == 4 {
            bench.memory.set_hole(Some(bytes.byte().into()));
        }
        let patience = if shape & 8 == 8 { bytes.byte().into() } else { u64::MAX };
        bench.memory.start(&mut ring, &mut device, 1 << (shape >> 4).min(10), base.into(), at);
        let mut available = u16::from(base);
        for _ in 0..STEPS_MAX {
            if bytes.is_empty() {
                break;
            }
            step(bench, &mut ring, &mut device, &mut bytes, &mut available, patience);
        }
        bench.serve(&mut ring, &mut device, patience);
        bench.check_alive(&mut ring, &mut device);
    });
}
