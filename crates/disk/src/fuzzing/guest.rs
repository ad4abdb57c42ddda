//! A guest that does anything to its RAM and its ring.

use super::{DISK, checkpoint, disk};
use crate::{
    Disk, PageMap,
    device::{BlockBackend, BlockDevice, Counters},
};
use fermata_types::{PAGE_SIZE, PageNumber};
use fermata_vhost::{
    GuestRam, MemoryWatch, Region, Tracking,
    fuzzing::{Bytes, HIGH, LOW, QEMU},
    guest::Entry,
    ring::{Next, Ring},
};
use rustix::fs::MemfdFlags;
use std::{
    fs::File,
    io,
    ops::Range,
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

const PAGE: u64 = PAGE_SIZE as u64;
/// Between and around the two stretches of RAM the file has a page that is none of the guest's.
const LOW_AT: u64 = PAGE;
const HIGH_AT: u64 = LOW_AT + LOW + PAGE;
const FILE: u64 = HIGH_AT + LOW / 2 + PAGE;
const GUARD: u8 = 0xa5;

const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const HEADERS: u64 = 0x4000;
/// More steps find nothing that fewer would not.
const STEPS_MAX: usize = 64;
/// No guest can have more served at one kick than its ring holds, unless what is served goes into the ring itself.
const ROUNDS_MAX: usize = 8;

/// A page that cannot be brought in, as when the store lost it.
#[derive(Default)]
struct Hole(AtomicU32);

impl MemoryWatch for Hole {
    fn mapped(&self, _regions: &[Region]) {}

    fn before_access(&self, first_page: u32, pages: u32) -> io::Result<()> {
        let hole = self.0.load(Ordering::Relaxed);
        if (first_page..first_page + pages).contains(&hole) { Err(io::Error::other("this page is lost")) } else { Ok(()) }
    }

    fn watch_writes(&self, _pages: &[Range<PageNumber>], _written: &mut dyn FnMut(Range<PageNumber>)) -> io::Result<()> {
        // The guest stands still while it is served, and its own writes are told to the map.
        Ok(())
    }
}

struct Bench {
    _place: tempfile::TempDir,
    disk: Arc<Disk>,
    counters: Arc<Counters>,
    hole: Arc<Hole>,
    tracking: Arc<Tracking>,
    map: Arc<PageMap>,
    file: File,
    ram: GuestRam,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Bench {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        let file = File::from(rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a file in memory"));
        file.set_len(FILE).expect("a file in memory");
        let hole = Arc::new(Hole::default());
        let tracking = Arc::new(Tracking::new(Arc::default()));
        tracking.set_watch(Some(hole.clone()));
        let entry =
            |guest, len, file_offset| Entry { guest, len, qemu: QEMU + guest, file_offset, file: file.try_clone().expect("a descriptor") };
        let entries = vec![entry(0, LOW, LOW_AT), entry(HIGH, LOW / 2, HIGH_AT)];
        let ram = GuestRam::new(tracking.clone()).with_table(entries).expect("guest memory");
        let (disk, map) = (disk(place.path()), Arc::new(PageMap::new()));
        disk.set_page_map(map.clone(), 0);
        tracking.set_write_watch(map.clone());
        let contents = || vec![0; FILE as usize];
        Self { _place: place, disk, counters: Arc::default(), hole, tracking, map, file, ram, before: contents(), after: contents() }
    }

    fn clear(&mut self) {
        self.after.fill(0);
        for page in [0, LOW_AT + LOW, HIGH_AT + LOW / 2] {
            self.after[page as usize..(page + PAGE) as usize].fill(GUARD);
        }
        self.file.write_all_at(&self.after, 0).expect("it has room");
        self.hole.0.store(u32::MAX, Ordering::Relaxed);
        self.disk.reset(checkpoint()).expect("a disk");
        self.tracking.dirty.take();
        self.map.clear();
    }

    /// Where the guest would write itself; bytes outside of its RAM go nowhere.
    fn write(&self, at: u64, bytes: &[u8]) {
        for (start, len, offset) in [(0, LOW, LOW_AT), (HIGH, LOW / 2, HIGH_AT)] {
            let Some(within) = at.checked_sub(start).filter(|within| *within < len) else { continue };
            let count = bytes.len().min((len - within) as usize);
            self.file.write_all_at(&bytes[..count], offset + within).expect("it has room");
            let page = |at: u64| ((offset + within + at) / PAGE) as PageNumber;
            self.map.forget_stretch(page(0)..page(count as u64) + 1);
        }
    }

    fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, LOW_AT + at).expect("it is there");
        bytes
    }

    /// Serves what the guest offers. Whatever was written to the guest's RAM must be reported, nothing else may have been written, and a page that is said to
    /// equal a block does.
    fn serve(&mut self, ring: &mut Ring, device: &mut BlockDevice, patience: u64) {
        self.file.read_exact_at(&mut self.before, 0).expect("it is there");
        for _ in 0..ROUNDS_MAX {
            let asked = AtomicU64::new(0);
            let yield_now = || asked.fetch_add(1, Ordering::Relaxed) >= patience;
            if ring.serve(0, &self.ram, device, yield_now) != Next::Again {
                break;
            }
        }
        self.file.read_exact_at(&mut self.after, 0).expect("it is there");
        let reported = self.tracking.dirty.take();
        let pages = self.before.chunks(PAGE_SIZE).zip(self.after.chunks(PAGE_SIZE)).zip(0u32..);
        for ((before, after), page) in pages {
            assert!(before == after || reported.contains(page), "page {page} was written and not reported");
        }
        for page in [0, LOW_AT + LOW, HIGH_AT + LOW / 2] {
            let page = &self.after[page as usize..(page + PAGE) as usize];
            assert!(page.iter().all(|byte| *byte == GUARD), "memory outside the guest's was written");
        }
        for mapped in self.map.find(&(0..(FILE / PAGE) as PageNumber).collect()) {
            let mut block = [0; PAGE_SIZE];
            self.disk.read_at(u64::from(mapped.block) * PAGE, &mut block).expect("the disk can be read");
            let page = &self.after[mapped.page as usize * PAGE_SIZE..][..PAGE_SIZE];
            assert!(page == block, "page {} does not equal block {}", mapped.page, mapped.block);
        }
    }

    fn start(&self, ring: &mut Ring, size: u32, base: u16, [descriptors, available, used]: [u64; 3]) {
        ring.set_size(size);
        ring.set_base(base);
        ring.set_addresses(QEMU.wrapping_add(descriptors), QEMU.wrapping_add(available), QEMU.wrapping_add(used));
        ring.set_enabled(true);
        ring.start(Some(event()), &self.ram).expect("a kick descriptor");
    }

    fn descriptor(&self, table: u64, index: u16, at: u64, len: u32, flags: u16, next: u16) {
        let bytes = [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.write(table.wrapping_add(16 * u64::from(index)), &bytes);
    }

    fn header(&self, at: u64, kind: u32, sector: u64) {
        self.write(at, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
    }

    /// After a reset the disk serves an honest guest.
    fn check_alive(&mut self, ring: &mut Ring, device: &mut BlockDevice) {
        self.hole.0.store(u32::MAX, Ordering::Relaxed);
        *ring = Ring::new();
        self.write(AVAILABLE, &[0; 8]);
        self.write(USED, &[0; 8]);
        self.start(ring, 8, 0, [DESCRIPTORS, AVAILABLE, USED]);
        let status = HEADERS + 0x100;
        self.header(HEADERS, 0, 1);
        self.write(status, &[0xff]);
        for (index, (at, len, flags)) in [(HEADERS, 16, 1), (0x8000, 1024, 3), (status, 1, 2)].into_iter().enumerate() {
            self.descriptor(DESCRIPTORS, index as u16, at, len, flags, index as u16 + 1);
        }
        self.write(AVAILABLE + 2, &[1]);
        self.serve(ring, device, u64::MAX);
        assert_eq!((self.read::<1>(status), self.read::<2>(USED + 2)), ([0], [1, 0]), "after a reset the disk is not served");
        let mut expected = [0; 1024];
        self.disk.read_at(512, &mut expected).expect("the disk can be read");
        assert!(self.read::<1024>(0x8000) == expected, "a read that is wrong");
    }
}

fn event() -> File {
    File::from(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("a descriptor"))
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
            bench.start(ring, ring_size(ring).into(), base, [DESCRIPTORS, AVAILABLE, USED]);
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
            bench.hole.0.store(bytes.byte().into(), Ordering::Relaxed);
        }
        let patience = if shape & 8 == 8 { bytes.byte().into() } else { u64::MAX };
        bench.start(&mut ring, 1 << (shape >> 4).min(10), base.into(), at);
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
