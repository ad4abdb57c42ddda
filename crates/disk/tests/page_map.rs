//! The page-to-block map that the server keeps, against the bytes themselves: whatever a driver asks for, a page that is said to equal a block does.

mod common;
#[path = "common/driver.rs"]
mod driver;

use common::{Memory, image};
use driver::{DATA, Driver, HEADERS, HIGH, RAM, file_offset};
use fermata_disk::{Disk, DiskOptions, Golden, PageMap, Server, ServerOptions};
use fermata_types::{Mapped, PAGE_SIZE, PageNumber, PageSet};
use fermata_vhost::{DirtyPages, MemoryWatch, Region};
use proptest::prelude::*;
use std::{
    io,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

const IN: u32 = 0;
const OUT: u32 = 1;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
const OK: u8 = 0;

const PAGE: u64 = PAGE_SIZE as u64;
const BLOCKS: u32 = 64;
/// Where the pages are that tests use: in both regions of the memory.
const FIRST: PageNumber = (DATA / PAGE) as PageNumber;
const DISK: u32 = 3;

/// Who notices writes through QEMU's mapping. Here a test says what was written there.
#[derive(Default)]
struct Qemu {
    written: Mutex<PageSet>,
    broken: AtomicBool,
}

impl MemoryWatch for Qemu {
    fn mapped(&self, _: &[Region]) {}

    fn before_access(&self, _: u32, _: u32) -> io::Result<()> {
        Ok(())
    }

    fn watch_writes(&self, pages: &[Range<PageNumber>], written: &mut dyn FnMut(Range<PageNumber>)) -> io::Result<()> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(io::Error::other("the tracker is broken"));
        }
        assert!(pages.windows(2).all(|pair| pair[0].end < pair[1].start), "neighbours are asked for together: {pages:?}");
        let mut noted = self.written.lock().unwrap();
        for page in pages.iter().cloned().flatten() {
            if noted.remove(page) {
                written(page..page + 1);
            }
        }
        Ok(())
    }
}

struct Bench {
    // Ends before its socket's directory.
    server: Server,
    driver: Driver,
    disk: Arc<Disk>,
    map: Arc<PageMap>,
    qemu: Arc<Qemu>,
    _dir: tempfile::TempDir,
}

/// The guest address of a page of the RAM file.
fn address(page: PageNumber) -> u64 {
    let offset = u64::from(page) * PAGE;
    if offset >= RAM / 2 { offset - RAM / 2 + HIGH } else { offset }
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..BLOCKS * PAGE_SIZE as u32).map(|i| ((i / 512).wrapping_mul(2654435761) >> 24) as u8).collect();
        let golden = Golden::open(&image(dir.path(), &content), None, dir.path(), &mut |_| {}).unwrap();
        let options = DiskOptions {
            golden: Some(Arc::new(golden)),
            size: None,
            root: None,
            pages: Arc::new(Memory::default()),
            overlay_dir: dir.path().to_owned(),
            read_only: false,
            drop_freed: false,
        };
        let (disk, qemu, map) = (Arc::new(Disk::new(options).unwrap()), Arc::new(Qemu::default()), Arc::new(PageMap::new()));
        let socket = dir.path().join("disk.sock");
        let watch: Arc<dyn MemoryWatch> = qemu.clone();
        let options = ServerOptions { disk: disk.clone(), serial: "s".into(), dirty: Arc::new(DirtyPages::new()), watch: Some(watch) };
        let server = Server::start(&socket, options).unwrap();
        server.set_page_map(&map, DISK);
        let driver = Driver::connect(&socket);
        Self { server, driver, disk, map, qemu, _dir: dir }
    }

    /// The guest's processor writes to a page.
    fn cpu_writes(&self, page: PageNumber, at: u64, bytes: &[u8]) {
        self.driver.write(address(page) + at, bytes);
        self.qemu.written.lock().unwrap().insert(page);
    }

    fn reads(&mut self, sector: u64, into: &[(u64, u32)]) {
        assert_eq!(self.driver.request(IN, sector, &[], into).0, OK);
    }

    fn writes(&mut self, sector: u64, from: &[(u64, u32)]) {
        assert_eq!(self.driver.request(OUT, sector, from, &[]).0, OK);
    }

    fn zeroes(&mut self, kind: u32, sector: u64, sectors: u32) {
        self.driver.write(DATA - 64, &[&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &0u32.to_le_bytes()].concat());
        assert_eq!(self.driver.request(kind, 0, &[(DATA - 64, 16)], &[]).0, OK);
    }

    /// What a pause does: hears what QEMU wrote, then looks. Everything that is said is compared.
    fn look(&self) -> Vec<(PageNumber, PageNumber)> {
        let written = std::mem::take(&mut *self.qemu.written.lock().unwrap());
        self.map.forget(&written);
        let found = self.map.find(&(0..(RAM / PAGE) as PageNumber).collect());
        for Mapped { page, disk, block } in &found {
            assert_eq!(*disk, DISK);
            let mut content = [0; PAGE_SIZE];
            self.disk.read_at(u64::from(*block) * PAGE, &mut content).unwrap();
            assert!(self.driver.read(address(*page), PAGE_SIZE) == content, "page {page} does not equal block {block}");
        }
        found.into_iter().map(|mapped| (mapped.page, mapped.block)).collect()
    }
}

fn whole(page: PageNumber, pages: u32) -> (u64, u32) {
    (address(page), pages * PAGE_SIZE as u32)
}

#[test]
fn whole_pages_equal_whole_blocks_after_reads_and_writes() {
    let mut bench = Bench::new();
    let high = (file_offset(HIGH) / PAGE) as PageNumber;
    bench.reads(8 * 5, &[whole(FIRST, 2), whole(high, 1)]);
    assert_eq!(bench.look(), [(FIRST, 5), (FIRST + 1, 6), (high, 7)]);
    bench.cpu_writes(FIRST + 9, 0, &[9; PAGE_SIZE]);
    bench.writes(8 * 20, &[whole(FIRST + 9, 1)]);
    // What the processor wrote before is the server's to report from now on.
    assert!(bench.server.dirty().take().contains(FIRST + 9));
    assert_eq!(bench.look(), [(FIRST, 5), (FIRST + 1, 6), (FIRST + 9, 20), (high, 7)]);
    // The processor writes after it.
    bench.cpu_writes(FIRST + 1, 100, &[1]);
    bench.cpu_writes(FIRST + 9, 100, &[1]);
    assert_eq!(bench.look(), [(FIRST, 5), (high, 7)]);
}

#[test]
fn a_block_written_from_another_page_leaves_its_pages() {
    let mut bench = Bench::new();
    bench.reads(16, &[whole(FIRST, 1)]);
    bench.reads(16, &[whole(FIRST + 2, 1)]);
    assert_eq!(bench.look(), [(FIRST, 2), (FIRST + 2, 2)]);
    bench.cpu_writes(FIRST + 1, 0, &[7; PAGE_SIZE]);
    bench.writes(16, &[whole(FIRST + 1, 1)]);
    assert_eq!(bench.look(), [(FIRST + 1, 2)]);
    // A page written to two blocks equals both; the last one is kept.
    bench.writes(24, &[whole(FIRST + 1, 1)]);
    assert_eq!(bench.look(), [(FIRST + 1, 3)]);
}

#[test]
fn unaligned_requests_pair_nothing_and_end_what_was() {
    let mut bench = Bench::new();
    bench.reads(0, &[whole(FIRST, 8)]);
    // Whole pages from the middle of blocks.
    bench.reads(3, &[whole(FIRST, 2)]);
    // Whole blocks to the middle of pages: two pages are touched in part, the one between them wholly, but by no block.
    bench.reads(8 * 9, &[(address(FIRST + 3) + 512, 2 * PAGE_SIZE as u32)]);
    assert_eq!(bench.look(), [(FIRST + 2, 2), (FIRST + 6, 6), (FIRST + 7, 7)]);
    // Written to the middle of blocks 6 and 7.
    bench.writes(8 * 6 + 1, &[whole(FIRST, 1)]);
    assert_eq!(bench.look(), [(FIRST + 2, 2)]);
}

#[test]
fn less_than_a_page_ends_what_was() {
    let mut bench = Bench::new();
    bench.reads(0, &[whole(FIRST, 4)]);
    bench.reads(100, &[(address(FIRST) + 1024, 512)]);
    bench.writes(8, &[(address(FIRST + 9), 512)]);
    assert_eq!(bench.look(), [(FIRST + 2, 2), (FIRST + 3, 3)]);
    // Not all of a request is: the whole blocks in the middle are paired.
    bench.reads(8 * 10 + 4, &[(address(FIRST + 4) + 2048, 2048 + 2 * PAGE_SIZE as u32 + 512)]);
    assert_eq!(bench.look(), [(FIRST + 2, 2), (FIRST + 3, 3), (FIRST + 5, 11), (FIRST + 6, 12)]);
}

#[test]
fn scattered_pieces_are_put_together() {
    let mut bench = Bench::new();
    let at = address(FIRST);
    // A page in three pieces, then pages in another order than blocks.
    bench.reads(0, &[(at, 512), (at + 512, 3000), (at + 3512, 584), whole(FIRST + 7, 1), whole(FIRST + 3, 1)]);
    assert_eq!(bench.look(), [(FIRST, 0), (FIRST + 3, 2), (FIRST + 7, 1)]);
    // A block from the halves of two pages, and a page from the halves of two blocks.
    bench.reads(8 * 30, &[(address(FIRST + 3), 2048), (address(FIRST + 7), 2048)]);
    assert_eq!(bench.look(), [(FIRST, 0)]);
    bench.cpu_writes(FIRST + 12, 0, &[3; PAGE_SIZE]);
    bench.cpu_writes(FIRST + 14, 0, &[4; PAGE_SIZE]);
    bench.writes(8 * 40, &[(address(FIRST + 12) + 2048, 2048), (address(FIRST + 12), 2048), whole(FIRST + 14, 1)]);
    assert_eq!(bench.look(), [(FIRST, 0), (FIRST + 14, 41)]);
}

#[test]
fn a_page_that_is_in_a_request_twice_equals_nothing() {
    let mut bench = Bench::new();
    bench.reads(0, &[whole(FIRST, 1), whole(FIRST, 1), whole(FIRST + 1, 1)]);
    assert_eq!(bench.look(), [(FIRST + 1, 2)]);
    // Once wholly, once in part.
    bench.reads(0, &[whole(FIRST, 1), (address(FIRST) + 512, 512)]);
    assert_eq!(bench.look(), [(FIRST + 1, 2)]);
    // And now it does.
    bench.reads(0, &[whole(FIRST, 1)]);
    assert_eq!(bench.look(), [(FIRST, 0), (FIRST + 1, 2)]);
}

#[test]
fn whatever_else_the_server_writes_is_no_block() {
    let mut bench = Bench::new();
    let header_page = (HEADERS / PAGE) as PageNumber;
    // The page that the request's own status goes to.
    bench.reads(0, &[whole(header_page, 1)]);
    bench.reads(0, &[whole(FIRST, 1)]);
    assert_eq!(bench.look(), [(FIRST, 0)]);
    assert_eq!(bench.driver.request(GET_ID, 0, &[], &[(address(FIRST), 20)]).0, OK);
    assert_eq!(bench.look(), []);
}

#[test]
fn requests_that_fail_pair_nothing() {
    let mut bench = Bench::new();
    bench.reads(0, &[whole(FIRST, 2)]);
    for sector in [u64::from(BLOCKS) * 8, u64::from(BLOCKS) * 8 - 8, u64::MAX / 512 - 8, 1 << 50] {
        assert_ne!(bench.driver.request(IN, sector, &[], &[whole(FIRST, 2)]).0, OK);
        assert_ne!(bench.driver.request(OUT, sector, &[whole(FIRST + 1, 2)], &[]).0, OK);
    }
    assert_eq!(bench.look(), []);
    // Nobody can watch these pages: they are reported as written, and equal nothing.
    bench.server.dirty().take();
    bench.qemu.broken.store(true, Ordering::Relaxed);
    bench.writes(0, &[whole(FIRST, 2)]);
    assert_eq!(bench.look(), []);
    let reported = bench.server.dirty().take();
    assert!(reported.contains(FIRST) && reported.contains(FIRST + 1));
}

#[test]
fn zeroed_blocks_leave_their_pages() {
    let mut bench = Bench::new();
    bench.reads(0, &[whole(FIRST, 12)]);
    bench.zeroes(DISCARD, 8, 16);
    bench.zeroes(WRITE_ZEROES, 8 * 5 + 7, 2);
    let left = [0, 3, 4, 7, 8, 9, 10, 11].map(|block| (FIRST + block, block));
    assert_eq!(bench.look(), left);
    // Zeros can be equal too.
    bench.reads(8, &[whole(FIRST + 20, 1)]);
    assert_eq!(bench.look().last(), Some(&(FIRST + 20, 1)));
    bench.disk.reset(fermata_types::Root::empty(BLOCKS.into())).unwrap();
    assert_eq!(bench.look(), []);
}

#[derive(Debug, Clone)]
enum Step {
    Transfer { out: bool, sector: u64, pieces: Vec<(PageNumber, u64, u32)> },
    Cpu { page: PageNumber, at: u64, value: u8 },
    Zero { kind: u32, sector: u64, sectors: u32 },
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let page = FIRST..FIRST + 24;
    let sector = prop_oneof![3 => (0..u64::from(BLOCKS) - 30).prop_map(|block| block * 8), 1 => 0..u64::from(BLOCKS - 30) * 8];
    // Whole pages most of the time; else pieces that make up whole sectors only by chance.
    let piece = prop_oneof![
        6 => (page.clone(), Just(0u64), (1..4u32).prop_map(|pages| pages * PAGE_SIZE as u32)),
        2 => (page.clone(), (0..8u64).prop_map(|sector| sector * 512), (1..20u32).prop_map(|sectors| sectors * 512)),
        1 => (page.clone(), 0..4096u64, 1..9000u32),
    ];
    prop_oneof![
        8 => (any::<bool>(), sector.clone(), prop::collection::vec(piece, 1..6)).prop_map(|(out, sector, pieces)| Step::Transfer { out, sector, pieces }),
        4 => (page, 0..4000u64, any::<u8>()).prop_map(|(page, at, value)| Step::Cpu { page, at, value }),
        1 => (prop_oneof![Just(DISCARD), Just(WRITE_ZEROES)], sector, 1..60u32).prop_map(|(kind, sector, sectors)| Step::Zero { kind, sector, sectors }),
        3 => Just(Step::Look),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn all_of_it_together(steps in prop::collection::vec(step(), 1..60)) {
        let mut bench = Bench::new();
        for step in steps {
            match step {
                Step::Transfer { out, sector, pieces } => {
                    let mut pieces: Vec<_> = pieces.into_iter().map(|(page, at, len)| (address(page) + at, len)).collect();
                    // The last piece makes it whole sectors.
                    let odd = pieces.iter().map(|(_, len)| len).sum::<u32>() % 512;
                    pieces.last_mut().unwrap().1 += (512 - odd) % 512;
                    if out { bench.writes(sector, &pieces) } else { bench.reads(sector, &pieces) }
                }
                Step::Cpu { page, at, value } => bench.cpu_writes(page, at, &[value; 96]),
                Step::Zero { kind, sector, sectors } => bench.zeroes(kind, sector, sectors),
                Step::Look => _ = bench.look(),
            }
        }
        bench.look();
        // It is not right by knowing nothing.
        bench.reads(8 * 60, &[whole(FIRST + 30, 2)]);
        prop_assert!(bench.look().ends_with(&[(FIRST + 30, 60), (FIRST + 31, 61)]));
    }
}
