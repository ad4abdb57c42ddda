//! The server against a driver of our own: requests, draining, dirty pages, lazily restored memory, and a guest that means harm.

mod common;
#[path = "common/driver.rs"]
mod driver;

use common::{Memory, image};
use driver::{DATA, Descriptor, Driver, HEADERS, HIGH, INDIRECT, NEXT, RAM, WRITE, file_offset};
use fermata_disk::{Disk, DiskOptions, Golden, Server, ServerOptions};
use fermata_types::PAGE_SIZE;
use fermata_vhost::{DirtyPages, MemoryWatch, Region};
use proptest::prelude::*;
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

struct Bench {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    disk: Arc<Disk>,
    server: Server,
    content: Vec<u8>,
}

fn bench(read_only: bool, watch: Option<Arc<dyn MemoryWatch>>) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(2654435761) >> 24) as u8).collect();
    let golden = Golden::open(&image(dir.path(), &content), None, dir.path(), &mut |_| {}).unwrap();
    let options = DiskOptions {
        golden: Some(Arc::new(golden)),
        size: None,
        root: None,
        pages: Arc::new(Memory::default()),
        overlay_dir: dir.path().to_owned(),
        read_only,
        drop_freed: true,
    };
    let disk = Arc::new(Disk::new(options).unwrap());
    let socket = dir.path().join("disk.sock");
    let options =
        ServerOptions { disk: disk.clone(), serial: "a serial number that is too long".into(), dirty: Arc::new(DirtyPages::new()), watch };
    let server = Server::start(&socket, options).unwrap();
    Bench { _dir: dir, socket, disk, server, content }
}

#[test]
fn a_golden_image_that_changes_is_an_io_error() {
    let bench = bench(false, None);
    let mut driver = Driver::connect(&bench.socket);
    driver.write(DATA, &[7; 4096]);
    assert_eq!(driver.request(OUT, 16, &[(DATA, 4096)], &[]), (OK, 1));
    let path = bench.disk.golden().unwrap().path();
    let file = File::options().write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    for _ in 0..2 {
        file.write_all_at(b"other", 0).unwrap();
        file.set_modified(modified + Duration::from_secs(5)).unwrap();
        for sector in [0, 100] {
            assert_eq!(driver.request(IN, sector, &[], &[(DATA, 4096)]), (IO_ERROR, 1));
        }
        // Part of a block cannot be written without the rest of it; what does not lie in the image is as ever.
        assert_eq!(driver.request(OUT, 1, &[(DATA, 512)], &[]).0, IO_ERROR);
        assert_eq!(driver.request(IN, 16, &[], &[(DATA, 4096)]).0, OK);
        assert_eq!(driver.read(DATA, 4096), [7; 4096]);
        file.write_all_at(&bench.content[..5], 0).unwrap();
        file.set_modified(modified).unwrap();
        assert_eq!(driver.request(IN, 0, &[], &[(DATA, 4096)]).0, OK);
        assert!(driver.read(DATA, 4096) == bench.content[..4096]);
    }
}

#[test]
fn requests_do_what_they_say() {
    let bench = bench(false, None);
    let mut driver = Driver::connect(&bench.socket);
    // One read into both ends of guest memory, in odd pieces.
    let (status, len) = driver.request(IN, 3, &[], &[(DATA + 5, 700), (HIGH + 100, 1348)]);
    assert_eq!((status, len), (OK, 2049));
    let read = [driver.read(DATA + 5, 700), driver.read(HIGH + 100, 1348)].concat();
    assert!(read == bench.content[3 * 512..3 * 512 + 2048]);

    driver.write(DATA, &[7; 8192]);
    assert_eq!(driver.request(OUT, 1, &[(DATA, 8192)], &[]), (OK, 1));
    assert_eq!(driver.request(FLUSH, 0, &[], &[]), (OK, 1));
    let mut bytes = vec![0; 9216];
    bench.disk.read_at(0, &mut bytes).unwrap();
    assert!(bytes[..512] == bench.content[..512] && bytes[512..8704] == [7; 8192] && bytes[8704..] == bench.content[8704..9216]);

    assert_eq!(driver.request(GET_ID, 0, &[], &[(DATA, 20)]), (OK, 21));
    assert_eq!(driver.read(DATA, 20), b"a serial number that");

    let range = |sector: u64, count: u32, flags: u32| [&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat();
    driver.write(DATA, &[range(0, 9, 0), range(40, 8, 0)].concat());
    assert_eq!(driver.request(DISCARD, 0, &[(DATA, 32)], &[]), (OK, 1));
    driver.write(DATA, &range(100, 20, 1));
    assert_eq!(driver.request(WRITE_ZEROES, 0, &[(DATA, 16)], &[]), (OK, 1));
    let mut bytes = vec![1; 120 * 512];
    bench.disk.read_at(0, &mut bytes).unwrap();
    assert!(bytes[..9 * 512].iter().all(|byte| *byte == 0) && bytes[40 * 512..48 * 512].iter().all(|byte| *byte == 0));
    assert!(bytes[100 * 512..].iter().all(|byte| *byte == 0) && bytes[99 * 512..100 * 512] == bench.content[99 * 512..100 * 512]);

    driver.write(DATA, &range(0, 8, 1));
    assert_eq!(driver.request(DISCARD, 0, &[(DATA, 16)], &[]).0, UNSUPPORTED);
    assert_eq!(driver.request(99, 0, &[], &[(DATA, 512)]).0, UNSUPPORTED);
    assert_eq!(bench.server.counters().failed.load(std::sync::atomic::Ordering::Relaxed), 2);
}

#[test]
fn requests_outside_the_disk_end_with_an_error() {
    let bench = bench(false, None);
    let mut driver = Driver::connect(&bench.socket);
    let sectors = bench.disk.size() / 512;
    for (sector, len) in [(sectors, 512), (sectors - 1, 1024), (u64::MAX, 512), (u64::MAX / 512, 512), (0, 100), (1 << 55, 512)] {
        assert_eq!(driver.request(IN, sector, &[], &[(DATA, len)]).0, IO_ERROR, "{sector}");
        assert_eq!(driver.request(OUT, sector, &[(DATA, len)], &[]).0, IO_ERROR, "{sector}");
    }
    driver.write(DATA, &[&(sectors - 1).to_le_bytes()[..], &2u32.to_le_bytes(), &0u32.to_le_bytes()].concat());
    assert_eq!(driver.request(DISCARD, 0, &[(DATA, 16)], &[]).0, IO_ERROR);
    // Buffers outside guest memory, and at its edge.
    assert_eq!(driver.request(IN, 0, &[], &[(RAM / 2 - 256, 512)]).0, IO_ERROR);
    assert_eq!(driver.request(IN, 0, &[], &[(HIGH + RAM / 2 - 512, 512)]).0, OK);
    assert_eq!(driver.request(IN, 0, &[], &[(u64::MAX - 100, 512)]).0, IO_ERROR);
    assert_eq!(driver.request(IN, 0, &[], &[(DATA, 512)]).0, OK);
    assert_eq!(bench.disk.written(), 0);
}

#[test]
fn a_read_only_disk_stays_as_it_is() {
    let bench = bench(true, None);
    let mut driver = Driver::connect(&bench.socket);
    assert_eq!(driver.request(OUT, 0, &[(DATA, 512)], &[]).0, IO_ERROR);
    driver.write(DATA, &[&0u64.to_le_bytes()[..], &2u32.to_le_bytes(), &0u32.to_le_bytes()].concat());
    assert_eq!(driver.request(DISCARD, 0, &[(DATA, 16)], &[]).0, IO_ERROR);
    assert_eq!(driver.request(IN, 0, &[], &[(DATA, 512)]).0, OK);
}

#[test]
fn nothing_happens_in_a_stopped_ring() {
    let bench = bench(false, None);
    let mut driver = Driver::connect(&bench.socket);
    let running = bench.server.running();
    driver.request(IN, 0, &[], &[(DATA, 512)]);
    assert_eq!(running.rings(), 1);
    let base = driver.stop();
    assert_eq!((base, running.rings()), (1, 0));
    driver.prepare(IN, 8, &[], &[(DATA, 512)]);
    driver.kick();
    assert!(driver.wait(Duration::from_millis(100)).is_none());
    bench.server.dirty().take();
    // The kick was lost on the way, as it may be between `stop` and `cont`: the request is found all the same.
    driver.start(base);
    assert!(driver.wait(Duration::from_secs(10)).is_some());
    assert!(driver.read(DATA, 512) == bench.content[4096..4608]);
}

/// QEMU starts a ring and then says by what its guest is to be told. What is done in between must not be missed: the guest would wait for ever.
#[test]
fn what_is_done_before_the_guest_can_be_told_is_told_later() {
    let bench = bench(false, None);
    let mut driver = Driver::connect(&bench.socket);
    driver.request(IN, 0, &[], &[(DATA, 512)]);
    let base = driver.stop();
    driver.settle();
    while driver.was_told() {}
    driver.prepare(IN, 8, &[], &[(DATA, 512)]);
    driver.start_untold(base);
    assert!(driver.wait(Duration::from_secs(10)).is_some());
    assert!(!driver.was_told());
    driver.name_call().unwrap();
    driver.settle();
    assert!(driver.was_told());
    // Once.
    driver.stop();
    driver.start(base + 1);
    driver.settle();
    assert!(!driver.was_told());
}

#[test]
fn every_page_that_the_server_writes_is_reported() {
    let bench = bench(false, None);
    let mut driver = Driver::connect(&bench.socket);
    for round in 0..50u64 {
        let buffers = [(DATA + round * 4096 + 100, 1000), (HIGH + round * 9000, 8192 + 24)];
        driver.prepare(IN, round, &[], &buffers);
        let before = driver.read(0, (RAM / 2) as usize).into_iter().chain(driver.read(HIGH, (RAM / 2) as usize)).collect::<Vec<_>>();
        driver.kick();
        driver.wait(Duration::from_secs(10)).unwrap();
        let base = driver.stop();
        let after = driver.read(0, (RAM / 2) as usize).into_iter().chain(driver.read(HIGH, (RAM / 2) as usize)).collect::<Vec<_>>();
        let dirty = bench.server.dirty().take();
        let pages = before.chunks(PAGE_SIZE).zip(after.chunks(PAGE_SIZE)).zip(0u32..);
        for ((before, after), page) in pages {
            assert!(before == after || dirty.contains(page), "page {page} was written and not reported in round {round}");
        }
        // No more than buffers, status and ring.
        assert!(dirty.len() <= 2 + 4 + 2, "{dirty:?}");
        assert!(dirty.contains((file_offset(HIGH + round * 9000) / 4096) as u32));
        driver.start(base);
    }
}

/// Guest memory that is not there until somebody asks for it.
struct Lazy {
    ram: File,
    content: Mutex<Vec<Option<Vec<u8>>>>,
    mapped: Mutex<Vec<Vec<Region>>>,
    asked: Mutex<Vec<u32>>,
}

impl Lazy {
    fn bring_in(&self, page: u32) {
        if let Some(content) = self.content.lock().unwrap()[page as usize].take() {
            self.ram.write_all_at(&content, u64::from(page) * PAGE_SIZE as u64).unwrap();
            self.asked.lock().unwrap().push(page);
        }
    }

    /// Takes all content away again.
    fn punch(&self) {
        let mut content = self.content.lock().unwrap();
        for (page, content) in content.iter_mut().enumerate() {
            let mut bytes = vec![0; PAGE_SIZE];
            self.ram.read_exact_at(&mut bytes, (page * PAGE_SIZE) as u64).unwrap();
            self.ram.write_all_at(&[0; PAGE_SIZE], (page * PAGE_SIZE) as u64).unwrap();
            *content = Some(bytes);
        }
    }
}

impl MemoryWatch for Lazy {
    fn mapped(&self, regions: &[Region]) {
        self.mapped.lock().unwrap().push(regions.to_vec());
    }

    fn before_access(&self, first_page: u32, pages: u32) -> io::Result<()> {
        (first_page..first_page + pages).for_each(|page| self.bring_in(page));
        Ok(())
    }
}

#[test]
fn memory_is_brought_in_before_it_is_touched() {
    let ram = tempfile::tempfile().unwrap();
    ram.set_len(RAM).unwrap();
    let lazy = Arc::new(Lazy {
        ram: ram.try_clone().unwrap(),
        content: Mutex::new(vec![None; (RAM / 4096) as usize]),
        mapped: Mutex::default(),
        asked: Mutex::default(),
    });
    let bench = bench(false, Some(lazy.clone()));
    let mut driver = Driver::connect_with(&bench.socket, ram);
    driver.request(IN, 0, &[], &[(DATA, 512)]);
    // Before there is another request: the server may still look for one after the first, and need no kick.
    let base = driver.stop();
    driver.write(HIGH + 50, &[9; 512]);
    // An indirect table, so that a page is touched that is neither ring nor buffer.
    let table = HIGH + 0x5000;
    driver.prepare(OUT, 2, &[(HIGH + 50, 512)], &[]);
    driver.put_descriptor(table, 0, Descriptor { at: HEADERS, len: 16, flags: NEXT, next: 1 });
    driver.put_descriptor(table, 1, Descriptor { at: HIGH + 50, len: 512, flags: NEXT, next: 2 });
    driver.put_descriptor(table, 2, Descriptor { at: HEADERS + 0x100, len: 1, flags: WRITE, next: 0 });
    driver.put_chain(&[Descriptor { at: table, len: 48, flags: INDIRECT, next: 0 }]);
    lazy.punch();
    driver.start(base);
    driver.kick();
    let status_page = (HEADERS / 4096) as u32;
    let mut asked = Vec::new();
    for _ in 0..1000 {
        // In this order: what was asked for by the time that the request was done.
        let done = driver.used() == 2;
        asked = lazy.asked.lock().unwrap().clone();
        if done {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((driver.used(), driver.read(HEADERS + 0x100, 1)[0]), (2, OK));
    for page in [1, 2, 3, status_page, (file_offset(table) / 4096) as u32, (file_offset(HIGH) / 4096) as u32] {
        assert!(asked.contains(&page), "page {page} was not asked for: {asked:?}");
    }
    let mut bytes = vec![0; 512];
    bench.disk.read_at(1024, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 512]);
    // The same memory is not mapped anew at each start.
    let mapped = lazy.mapped.lock().unwrap();
    assert_eq!(mapped.len(), 1);
    assert_eq!(mapped[0].iter().map(|region| (region.guest, region.file_offset)).collect::<Vec<_>>(), [(0, 0), (HIGH, RAM / 2)]);
}

#[test]
fn one_qemu_after_the_other_is_served() {
    let bench = bench(false, None);
    for round in 0..5u64 {
        let mut driver = Driver::connect(&bench.socket);
        driver.write(DATA, &[round as u8 + 1; 512]);
        assert_eq!(driver.request(OUT, round, &[(DATA, 512)], &[]), (OK, 1));
        assert_eq!(driver.request(IN, 0, &[], &[(DATA, 512)]), (OK, 513));
        assert_eq!(driver.read(DATA, 512), [1; 512]);
    }
    let _connected = Driver::connect(&bench.socket);
    let socket = bench.socket.clone();
    bench.server.stop();
    assert!(!socket.exists());
}

#[test]
fn a_socket_in_use_and_other_files_are_left_alone() {
    let bench = bench(false, None);
    let options = || ServerOptions { disk: bench.disk.clone(), serial: String::new(), dirty: Arc::default(), watch: None };
    assert!(Server::start(&bench.socket, options()).is_err());
    let file = bench.socket.with_extension("txt");
    std::fs::write(&file, "mine").unwrap();
    assert!(Server::start(&file, options()).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    let stale = bench.socket.with_extension("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    Server::start(&stale, options()).unwrap().stop();
}

fn descriptor() -> impl Strategy<Value = Descriptor> {
    let at = prop_oneof![
        Just(DATA),
        Just(HEADERS),
        Just(HEADERS + 0x100),
        0x1000..0x9000u64,
        Just(RAM / 2 - 8),
        Just(HIGH),
        Just(u64::MAX - 7),
        any::<u64>()
    ];
    let len = prop_oneof![Just(16u32), Just(1), Just(0), Just(512), Just(4096), 0..100_000u32, any::<u32>()];
    let flags = prop_oneof![Just(0u16), Just(NEXT), Just(NEXT), Just(NEXT | WRITE), Just(WRITE), Just(INDIRECT), 0..8u16, any::<u16>()];
    let next = prop_oneof![0..10u16, any::<u16>()];
    (at, len, flags, next).prop_map(|(at, len, flags, next)| Descriptor { at, len, flags, next })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn no_guest_breaks_the_server(
        chains in prop::collection::vec((prop::collection::vec(descriptor(), 1..12), any::<[u8; 32]>(), 0..12u16), 1..4),
        kind in prop_oneof![Just(IN), Just(OUT), Just(DISCARD), Just(WRITE_ZEROES), any::<u32>()],
        jump in prop_oneof![3 => Just(None), 1 => any::<u16>().prop_map(Some)],
        used_ring in any::<u64>(),
    ) {
        thread_local!(static BENCH: Bench = bench(false, None));
        BENCH.with(|bench| {
            let mut driver = Driver::connect(&bench.socket);
            for (chain, header, head) in chains {
                driver.write(HEADERS, &[&kind.to_le_bytes()[..], &header].concat());
                driver.write(HEADERS + 0x80, &used_ring.to_le_bytes());
                driver.put_chain(&chain);
                driver.offer(head);
                driver.kick();
                driver.wait(Duration::from_millis(20));
            }
            if let Some(index) = jump {
                driver.set_available(index);
                driver.kick();
            }
            // Whatever the guest did to its ring, after a reset of the device the disk works.
            driver.reset();
            assert_eq!(driver.request(IN, 0, &[], &[(DATA, 512)]), (OK, 513));
        });
    }
}
