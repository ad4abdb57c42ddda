//! Guest RAM in which everything that a back end does is looked at.

use super::{HIGH, LOW, QEMU};
use crate::{
    Device, GuestRam, MemoryWatch, Region, Tracking,
    guest::Entry,
    ring::{Next, Ring},
};
use fermata_types::{PAGE_SIZE, PageNumber};
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
const GUARDS: [u64; 3] = [0, LOW_AT + LOW, HIGH_AT + LOW / 2];
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
        // The guest stands still while it is served, and its own writes are told to whoever asks.
        Ok(())
    }
}

/// Guest RAM, the file that it lies in, and what was in that before something was served.
pub struct Memory {
    /// Who is told of writes, and asked before accesses.
    pub tracking: Arc<Tracking>,
    /// As back ends have it.
    pub ram: GuestRam,
    file: File,
    hole: Arc<Hole>,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Default for Memory {
    fn default() -> Self {
        let file = File::from(rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a file in memory"));
        file.set_len(FILE).expect("a file in memory");
        let hole = Arc::new(Hole::default());
        let tracking = Arc::new(Tracking::new(Arc::default()));
        tracking.set_watch(Some(hole.clone()));
        let entry =
            |guest, len, file_offset| Entry { guest, len, qemu: QEMU + guest, file_offset, file: file.try_clone().expect("a descriptor") };
        let entries = vec![entry(0, LOW, LOW_AT), entry(HIGH, LOW / 2, HIGH_AT)];
        let ram = GuestRam::new(tracking.clone()).with_table(entries).expect("guest memory");
        let contents = || vec![0; FILE as usize];
        Self { tracking, ram, file, hole, before: contents(), after: contents() }
    }
}

impl Memory {
    /// Empties it.
    pub fn clear(&mut self) {
        self.after.fill(0);
        for page in GUARDS {
            self.after[page as usize..(page + PAGE) as usize].fill(GUARD);
        }
        self.file.write_all_at(&self.after, 0).expect("it has room");
        self.set_hole(None);
        self.tracking.dirty.take();
    }

    /// Makes one of its pages one that cannot be brought in, or none.
    pub fn set_hole(&self, page: Option<PageNumber>) {
        self.hole.0.store(page.unwrap_or(PageNumber::MAX), Ordering::Relaxed);
    }

    /// Pages of its file.
    pub fn pages(&self) -> Range<PageNumber> {
        0..(FILE / PAGE) as PageNumber
    }

    /// What was in a page when something was served last.
    pub fn page(&self, page: PageNumber) -> &[u8] {
        &self.after[page as usize * PAGE_SIZE..][..PAGE_SIZE]
    }

    /// Where the guest would write itself; bytes outside of its RAM go nowhere. Returns the pages that were written.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Range<PageNumber> {
        for (start, len, offset) in [(0, LOW, LOW_AT), (HIGH, LOW / 2, HIGH_AT)] {
            let Some(within) = at.checked_sub(start).filter(|within| *within < len) else { continue };
            let count = bytes.len().min((len - within) as usize);
            self.file.write_all_at(&bytes[..count], offset + within).expect("it has room");
            let page = |at: u64| ((offset + within + at) / PAGE) as PageNumber;
            return page(0)..page(count as u64) + 1;
        }
        0..0
    }

    /// What is in the low stretch.
    pub fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, LOW_AT + at).expect("it is there");
        bytes
    }

    /// Serves what the guest offers in a ring; after so much patience somebody wants to go first.
    pub fn serve(&mut self, index: usize, ring: &mut Ring, device: &mut dyn Device, patience: u64) {
        self.looked_at(|ram| {
            for _ in 0..ROUNDS_MAX {
                let asked = AtomicU64::new(0);
                let yield_now = || asked.fetch_add(1, Ordering::Relaxed) >= patience;
                let next = match ring.serve(index, ram, device, yield_now) {
                    Next::Look => ring.rest(ram, device),
                    next => next,
                };
                if next != Next::Again {
                    break;
                }
            }
        });
    }

    /// Has something done. Panics if it writes to the guest's RAM and does not report it, or writes anywhere else.
    pub fn looked_at<R>(&mut self, with: impl FnOnce(&GuestRam) -> R) -> R {
        self.file.read_exact_at(&mut self.before, 0).expect("it is there");
        let result = with(&self.ram);
        self.file.read_exact_at(&mut self.after, 0).expect("it is there");
        let reported = self.tracking.dirty.take();
        let pages = self.before.chunks(PAGE_SIZE).zip(self.after.chunks(PAGE_SIZE)).zip(0u32..);
        for ((before, after), page) in pages {
            assert!(before == after || reported.contains(page), "page {page} was written and not reported");
        }
        for page in GUARDS {
            let page = &self.after[page as usize..(page + PAGE) as usize];
            assert!(page.iter().all(|byte| *byte == GUARD), "memory outside the guest's was written");
        }
        result
    }

    /// Starts a ring as QEMU does.
    pub fn start(&self, ring: &mut Ring, device: &mut dyn Device, size: u32, base: u16, [descriptors, available, used]: [u64; 3]) {
        ring.set_size(size);
        ring.set_base(base);
        ring.set_addresses(QEMU.wrapping_add(descriptors), QEMU.wrapping_add(available), QEMU.wrapping_add(used));
        ring.set_enabled(true);
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("a descriptor");
        ring.start(Some(event.into()), &self.ram, device).expect("a kick descriptor");
    }
}

/// A descriptor as it lies in memory.
pub fn descriptor(at: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}
