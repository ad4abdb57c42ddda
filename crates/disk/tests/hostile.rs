//! Guests that mean harm, one trick at a time: each ends in an I/O error, in a chain given back untouched, or in a ring that is silent until a reset. Whatever
//! it was, an honest request is served after.

mod common;
#[path = "common/driver.rs"]
mod driver;

use common::{Memory, image};
use driver::{AVAILABLE, DATA, DESCRIPTORS, Descriptor, Driver, HEADERS, HIGH, INDIRECT, NEXT, RAM, RING, USED, WRITE};
use fermata_checkpoint::Part;
use fermata_disk::{Disk, DiskOptions, DiskPart, Golden, Server, ServerOptions};
use fermata_vhost::{DirtyPages, MemoryWatch, Region};
use std::{
    io::{self, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, vhost_user::VhostUserFrontend};

const IN: u32 = 0;
const OUT: u32 = 1;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;
const UNTOUCHED: u8 = 0xff;

const STATUS: u64 = HEADERS + 0x100;
const NOWHERE: u64 = 0x1_0000_0000_0000;
/// How long a ring that is to stay silent is listened to.
const SILENCE: Duration = Duration::from_millis(50);

struct Bench {
    dir: tempfile::TempDir,
    socket: PathBuf,
    disk: Arc<Disk>,
    server: Server,
    content: Vec<u8>,
}

fn bench(size: Option<u64>, watch: Option<Arc<dyn MemoryWatch>>) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(2654435761) >> 24) as u8).collect();
    let golden = Golden::open(&image(dir.path(), &content), None, dir.path(), &mut |_| {}).unwrap();
    let options = DiskOptions {
        golden: Some(Arc::new(golden)),
        size,
        root: None,
        pages: Arc::new(Memory::default()),
        overlay_dir: dir.path().to_owned(),
        read_only: false,
        drop_freed: true,
    };
    let disk = Arc::new(Disk::new(options).unwrap());
    let socket = dir.path().join("disk.sock");
    let options = ServerOptions { disk: disk.clone(), serial: "hostile".into(), dirty: Arc::new(DirtyPages::new()), watch };
    let server = Server::start(&socket, options).unwrap();
    Bench { dir, socket, disk, server, content }
}

impl Bench {
    fn check_honest(&self, driver: &mut Driver, what: &str) {
        assert_eq!(driver.request(IN, 8, &[], &[(DATA, 512)]), (OK, 513), "an honest request after: {what}");
        assert!(driver.read(DATA, 512) == self.content[4096..4608], "what was read after: {what}");
    }
}

fn d(at: u64, len: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor { at, len, flags, next }
}

fn header(driver: &Driver, kind: u32, sector: u64) {
    driver.write(HEADERS, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
}

/// Chains that are no requests, or bad ones, and what becomes of each: the length in the used ring and the status byte.
#[test]
fn bad_chains_are_given_back() {
    let table = DATA + 0x1000;
    let head = d(HEADERS, 16, NEXT, 1);
    let tail = d(STATUS, 1, WRITE, 0);
    type Case<'a> = (&'a str, Vec<Descriptor>, Vec<Descriptor>, u32, u8);
    let cases: Vec<Case<'_>> = vec![
        ("a circle", vec![head, d(DATA, 512, NEXT | WRITE, 0)], vec![], 0, UNTOUCHED),
        ("a circle of headers", vec![d(HEADERS, 16, NEXT, 0)], vec![], 0, UNTOUCHED),
        ("a circle of answers", vec![head, d(DATA, 512, NEXT | WRITE, 1)], vec![], 0, UNTOUCHED),
        ("a link behind the ring", vec![head, d(DATA, 512, NEXT | WRITE, RING)], vec![], 0, UNTOUCHED),
        ("a link far behind the ring", vec![d(HEADERS, 16, NEXT, 0xffff)], vec![], 0, UNTOUCHED),
        ("nothing to write a status to", vec![head, d(DATA, 512, 0, 0)], vec![], 0, UNTOUCHED),
        ("a status that is read", vec![head, d(DATA, 512, NEXT | WRITE, 2), d(STATUS, 1, 0, 0)], vec![], 0, UNTOUCHED),
        ("no room for a status", vec![head, d(STATUS, 0, WRITE, 0)], vec![], 0, UNTOUCHED),
        ("a header that is written", vec![d(HEADERS, 16, NEXT | WRITE, 1), tail], vec![], 1, IO_ERROR),
        ("no header", vec![tail], vec![], 1, IO_ERROR),
        ("an empty header", vec![d(HEADERS, 0, NEXT, 1), tail], vec![], 1, IO_ERROR),
        ("half a header", vec![d(HEADERS, 8, NEXT, 1), tail], vec![], 1, IO_ERROR),
        ("a header nowhere", vec![d(NOWHERE, 16, NEXT, 1), tail], vec![], 0, UNTOUCHED),
        ("a header at the end of addresses", vec![d(u64::MAX - 7, 16, NEXT, 1), tail], vec![], 0, UNTOUCHED),
        ("a status nowhere", vec![head, d(NOWHERE, 1, WRITE, 0)], vec![], 0, UNTOUCHED),
        ("a status at the end of addresses", vec![head, d(u64::MAX, 2, WRITE, 0)], vec![], 0, UNTOUCHED),
        ("an answer nowhere", vec![head, d(NOWHERE, 512, NEXT | WRITE, 2), tail], vec![], 1, IO_ERROR),
        ("an answer across the edge of memory", vec![head, d(RAM / 2 - 8, 512, NEXT | WRITE, 2), tail], vec![], 1, IO_ERROR),
        ("4 GiB in one buffer", vec![head, d(DATA, !511, NEXT | WRITE, 2), tail], vec![], 1, IO_ERROR),
        ("more than 4 GiB", vec![head, d(DATA, u32::MAX, NEXT | WRITE, 2), tail], vec![], 0, UNTOUCHED),
        ("reading after writing", vec![head, d(DATA, 512, NEXT | WRITE, 2), d(DATA, 16, NEXT, 3), tail], vec![], 0, UNTOUCHED),
        ("a table without entries", vec![d(table, 0, INDIRECT, 0)], vec![], 0, UNTOUCHED),
        ("a table of one entry and a half", vec![d(table, 24, INDIRECT, 0)], vec![head, tail], 0, UNTOUCHED),
        ("a table of 4 GiB", vec![d(table, !15, INDIRECT, 0)], vec![head, tail], 0, UNTOUCHED),
        ("a table nowhere", vec![d(NOWHERE, 32, INDIRECT, 0)], vec![], 0, UNTOUCHED),
        ("a table across the edge of memory", vec![d(RAM / 2 - 16, 48, INDIRECT, 0)], vec![], 0, UNTOUCHED),
        ("a table in a table", vec![d(table, 32, INDIRECT, 0)], vec![d(table, 32, INDIRECT, 0), tail], 0, UNTOUCHED),
        ("a circle in a table", vec![d(table, 32, INDIRECT, 0)], vec![d(HEADERS, 16, NEXT, 1), d(DATA, 0, NEXT, 0)], 0, UNTOUCHED),
        ("a link out of a table", vec![d(table, 32, INDIRECT, 0)], vec![d(HEADERS, 16, NEXT, 2), tail], 0, UNTOUCHED),
        ("a table that is the ring itself", vec![d(DESCRIPTORS, 32, INDIRECT, 0), tail], vec![], 0, UNTOUCHED),
    ];
    let bench = bench(None, None);
    let mut driver = Driver::connect(&bench.socket);
    for (what, chain, indirect, len, status) in cases {
        header(&driver, IN, 0);
        driver.write(STATUS, &[UNTOUCHED]);
        driver.put_chain(&chain);
        for (index, descriptor) in indirect.iter().enumerate() {
            driver.put_descriptor(table, index as u16, *descriptor);
        }
        driver.offer(0);
        driver.kick();
        let given_back = driver.wait(Duration::from_secs(10));
        assert_eq!((given_back, driver.read(STATUS, 1)[0]), (Some(len), status), "{what}");
        bench.check_honest(&mut driver, what);
    }
    assert_eq!(bench.disk.written(), 0);
}

#[test]
fn odd_chains_that_are_requests_are_served() {
    let bench = bench(None, None);
    let mut driver = Driver::connect(&bench.socket);
    // A header byte by byte, empty buffers in between, and data and status in one.
    header(&driver, IN, 8);
    let mut chain: Vec<_> = (0..16).map(|i| d(HEADERS + i, 1, NEXT, i as u16 + 1)).collect();
    chain.extend([d(NOWHERE, 0, NEXT, 17), d(DATA, 0, NEXT | WRITE, 18), d(DATA, 513, WRITE, 0)]);
    driver.put_chain(&chain);
    driver.offer(0);
    driver.kick();
    assert_eq!(driver.wait(Duration::from_secs(10)), Some(513));
    assert!(driver.read(DATA, 512) == bench.content[4096..4608] && driver.read(DATA + 512, 1) == [OK]);
    // A request of as many bytes as there may be goes, one sector more does not: all into the same megabyte.
    let table = HIGH;
    for (count, status) in [(32u16, IO_ERROR), (33, IO_ERROR), (1024, UNTOUCHED)] {
        header(&driver, IN, 0);
        driver.write(STATUS, &[UNTOUCHED]);
        driver.put_descriptor(table, 0, d(HEADERS, 16, NEXT, 1));
        (1..=count).for_each(|i| driver.put_descriptor(table, i, d(DATA, 1 << 20, NEXT | WRITE, i + 1)));
        driver.put_descriptor(table, count + 1, d(STATUS, 1, WRITE, 0));
        driver.put_chain(&[d(table, 16 * (u32::from(count) + 2), INDIRECT, 0)]);
        driver.offer(0);
        driver.kick();
        assert!(driver.wait(Duration::from_secs(10)).is_some());
        assert_eq!(driver.read(STATUS, 1)[0], status, "{count} buffers");
    }
    bench.check_honest(&mut driver, "long chains");
}

#[test]
fn unknown_requests_are_refused() {
    let bench = bench(None, None);
    let mut driver = Driver::connect(&bench.socket);
    for kind in [2, 3, 5, 6, 7, 9, 10, 12, 14, 15, 16, 17, 26, 1 << 31, u32::MAX] {
        assert_eq!(driver.request(kind, 0, &[], &[(DATA, 512)]), (UNSUPPORTED, 1), "kind {kind}");
    }
    bench.check_honest(&mut driver, "unknown requests");
}

fn range(sector: u64, count: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn bad_ranges_zero_nothing() {
    let bench = bench(None, None);
    let mut driver = Driver::connect(&bench.socket);
    let sectors = bench.disk.size() / 512;
    let good = range(0, 8, 0);
    let cases: Vec<(&str, Vec<u8>, u8)> = vec![
        ("no range", vec![], IO_ERROR),
        ("half a range", good[..8].to_vec(), IO_ERROR),
        ("a range and a byte", [&good[..], &[0]].concat(), IO_ERROR),
        ("33 ranges", good.repeat(33), IO_ERROR),
        ("4096 ranges", good.repeat(4096), IO_ERROR),
        ("a good one and one beyond the end", [&good[..], &range(sectors - 1, 2, 0)].concat(), IO_ERROR),
        ("a good one and one that wraps around", [&good[..], &range(u64::MAX, 8, 0)].concat(), IO_ERROR),
        ("a good one and one whose bytes wrap around", [&good[..], &range(u64::MAX / 512 - 3, 8, 0)].concat(), IO_ERROR),
        ("a good one and one of 2 TiB", [&good[..], &range(0, u32::MAX, 0)].concat(), IO_ERROR),
        ("a good one and one with unknown flags", [&good[..], &range(8, 8, 2)].concat(), UNSUPPORTED),
    ];
    for (what, ranges, status) in cases {
        driver.write(DATA, &ranges);
        for kind in [DISCARD, WRITE_ZEROES] {
            assert_eq!(driver.request(kind, 0, &[(DATA, ranges.len() as u32)], &[]), (status, 1), "{what}");
        }
        assert_eq!(bench.disk.written(), 0, "{what}");
    }
    bench.check_honest(&mut driver, "bad ranges");
}

#[test]
fn a_huge_discard_gives_way_and_ends() {
    let gib = 1u64 << 30;
    let bench = bench(Some(40 * gib), None);
    let mut driver = Driver::connect(&bench.socket);
    let places: Vec<u64> = (0..40).map(|i| i * gib + 4096 * i).collect();
    places.iter().for_each(|at| bench.disk.write_at(*at, &[7; 8192]).unwrap());
    let ranges: Vec<u8> = (0..32).flat_map(|i| range(i * (gib / 512), (gib / 512) as u32, 0)).collect();
    driver.write(DATA, &ranges);
    driver.prepare(DISCARD, 0, &[(DATA, ranges.len() as u32)], &[]);
    driver.kick();
    // Stopped and started in the middle of it, as by a checkpoint, again and again.
    let mut base = 0;
    for _ in 0..20 {
        base = driver.stop();
        assert_eq!(base, driver.used(), "taken up and neither done nor put back");
        driver.start(base);
    }
    assert!(driver.wait(Duration::from_secs(10)).is_some(), "from {base} it does not go on");
    assert_eq!(driver.read(STATUS, 1)[0], OK);
    for at in places {
        let mut bytes = [1; 8192];
        bench.disk.read_at(at, &mut bytes).unwrap();
        assert!(bytes == [if at < 32 * gib { 0 } else { 7 }; 8192], "at {at}");
    }
}

/// What makes a ring unusable: it falls silent, and a reset brings it back.
#[test]
fn an_unusable_ring_is_silent_until_reset() {
    type Trick = fn(&mut Driver);
    let tricks: [(&str, Trick); 12] = [
        ("an index that jumps", |driver| driver.set_available(RING + 2)),
        ("an index that jumps as far as it can", |driver| driver.set_available(0x8000)),
        ("an index that goes back", |driver| driver.set_available(u16::MAX)),
        ("a head that is no descriptor", |driver| driver.offer(RING)),
        ("the last head there could be", |driver| driver.offer(u16::MAX)),
        ("a used ring in no memory", |driver| driver.restart_at([DESCRIPTORS, AVAILABLE, NOWHERE])),
        ("a ring that ends behind memory", |driver| driver.restart_at([DESCRIPTORS, AVAILABLE, RAM / 2 - 8])),
        ("no part in memory", |driver| driver.restart_at([NOWHERE; 3])),
        ("descriptors out of line", |driver| driver.restart_at([DESCRIPTORS + 8, AVAILABLE, USED])),
        ("an available ring out of line", |driver| driver.restart_at([DESCRIPTORS, AVAILABLE + 1, USED])),
        ("a used ring out of line", |driver| driver.restart_at([DESCRIPTORS, AVAILABLE, USED + 2])),
        ("so many descriptors as there cannot be", |driver| {
            driver.size = RING - 1;
            driver.restart_at([DESCRIPTORS, AVAILABLE, USED]);
            driver.size = RING;
        }),
    ];
    let bench = bench(None, None);
    let mut driver = Driver::connect(&bench.socket);
    for (what, trick) in &tricks {
        bench.check_honest(&mut driver, what);
        let used = driver.used();
        trick(&mut driver);
        driver.kick();
        std::thread::sleep(SILENCE);
        // An honest request among the harm is not served either.
        driver.prepare(IN, 0, &[], &[(DATA, 512)]);
        driver.kick();
        std::thread::sleep(SILENCE);
        assert!(driver.used().wrapping_sub(used) <= 1, "{what}");
        driver.reset();
        bench.check_honest(&mut driver, what);
    }
    assert!(bench.server.counters().malformed.load(Ordering::Relaxed) >= tricks.len() as u64, "one of them was not told");
}

/// As QEMU does when its guest has moved the ring away before the reset.
#[test]
fn a_ring_that_is_disabled_and_not_stopped_holds_up_no_checkpoint() {
    let bench = bench(None, None);
    let running = bench.server.running();
    let mut driver = Driver::connect(&bench.socket);
    bench.check_honest(&mut driver, "nothing");
    assert_eq!(running.rings(), 1);
    driver.frontend.set_vring_enable(0, false).unwrap();
    driver.settle();
    assert_eq!(running.rings(), 0);
    let mut part = DiskPart::new("m1.disk0", bench.disk.clone(), running.clone(), || Duration::ZERO);
    Part::<fermata_store::Writer>::freeze(&mut part).unwrap();
    driver.prepare(IN, 8, &[], &[(DATA, 512)]);
    driver.kick();
    assert_eq!(driver.wait(SILENCE), None, "a disabled ring is served");
    driver.frontend.set_vring_enable(0, true).unwrap();
    assert!(driver.wait(Duration::from_secs(10)).is_some(), "an enabled ring is not served");
    driver.reset();
    bench.check_honest(&mut driver, "a ring that was not stopped");
}

#[test]
fn a_ring_that_is_written_over_by_its_own_answers_ends() {
    let bench = bench(None, None);
    let mut driver = Driver::connect(&bench.socket);
    for target in [DESCRIPTORS, AVAILABLE, USED] {
        driver.prepare(IN, 0, &[], &[(target, 4096)]);
        driver.kick();
        driver.wait(SILENCE);
        driver.write(DESCRIPTORS, &[0; 4096]);
        driver.write(AVAILABLE, &[0; 4096]);
        driver.reset();
        bench.check_honest(&mut driver, "answers in the ring");
    }
}

#[test]
fn floods_do_not_keep_others_waiting() {
    let bench = bench(None, None);
    let mut driver = Driver::connect(&bench.socket);
    // A full ring of nonsense, kicked without end, while QEMU stops and starts.
    for round in 0..30 {
        driver.put_chain(&[d(HEADERS, 16, NEXT, 0)]);
        (0..RING).for_each(|_| driver.offer(0));
        (0..1000).for_each(|_| driver.kick());
        let base = driver.stop();
        assert_eq!(base, driver.used(), "round {round}");
        driver.start(base);
        assert!(driver.wait(Duration::from_secs(10)).is_some(), "round {round}");
    }
    assert_eq!(bench.server.counters().malformed.load(Ordering::Relaxed), 30 * u64::from(RING));
    bench.check_honest(&mut driver, "floods");
}

/// A guest that changes a request while it is read: what was checked is what is used.
#[test]
fn values_are_read_once() {
    let bench = bench(None, None);
    let mut driver = Driver::connect(&bench.socket);
    let stop = AtomicBool::new(false);
    let flips = driver.scribbler();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let other = [d(NOWHERE, u32::MAX, NEXT, 1), d(DATA, 4096, NEXT, 2), d(u64::MAX, 1, WRITE, 0)];
            let good = [d(HEADERS, 16, NEXT, 1), d(DATA, 512, NEXT, 2), d(STATUS, 1, WRITE, 0)];
            for (index, sector) in (0..3).cycle().zip([8u64, 1 << 40, 9, u64::MAX / 512 + 1].into_iter().cycle()) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                flips.put_descriptor(DESCRIPTORS, index, other[usize::from(index)]);
                flips.write(HEADERS + 8, &sector.to_le_bytes());
                flips.put_descriptor(DESCRIPTORS, index, good[usize::from(index)]);
            }
        });
        driver.write(DATA, &[0xab; 8192]);
        let end = Instant::now() + Duration::from_millis(500);
        let mut served = 0;
        while Instant::now() < end {
            header(&driver, OUT, 8);
            driver.offer(0);
            driver.kick();
            assert!(driver.wait(Duration::from_secs(10)).is_some(), "the ring is stuck after {served}");
            served += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    let mut bytes = vec![0; bench.content.len()];
    bench.disk.read_at(0, &mut bytes).unwrap();
    // Sectors 8 and 9 with one sector or eight; nothing else was ever asked for.
    assert!(bytes[..8 * 512] == bench.content[..8 * 512] && bytes[17 * 512..] == bench.content[17 * 512..]);
    driver.reset();
    bytes[4096..4608].iter().for_each(|byte| assert!(*byte == 0xab));
    assert_eq!(driver.request(IN, 0, &[], &[(DATA, 512)]), (OK, 513));
}

#[test]
fn nonsense_on_the_socket_ends_one_connection_only() {
    let bench = bench(None, None);
    for nonsense in [
        vec![0; 12],
        vec![0xff; 4096],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![1],
        [&5u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 4]].concat(),
    ] {
        let mut stream = UnixStream::connect(&bench.socket).unwrap();
        // The server may hang up before it has all.
        let _ = stream.write_all(&nonsense);
        drop(stream);
        bench.check_honest(&mut Driver::connect(&bench.socket), "nonsense");
    }
}

#[test]
fn memory_that_its_file_does_not_have_is_refused() {
    let bench = bench(None, None);
    // Touching it would be a signal, and the end of the keeper.
    let driver = Driver::connect(&bench.socket);
    let handle = driver.ram.as_raw_fd();
    let region = |memory_size, mmap_offset| VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size,
        userspace_addr: 0,
        mmap_offset,
        mmap_handle: handle,
    };
    for region in [region(RAM + 4096, 0), region(RAM, 4096), region(u64::MAX - 4095, 4096)] {
        // The answer comes by a hang-up, or not at all: QEMU did not ask for one.
        let _ = driver.frontend.set_mem_table(&[region]);
        bench.check_honest(&mut Driver::connect(&bench.socket), "memory beyond its file");
    }
    let log = tempfile::tempfile().unwrap();
    log.set_len(100).unwrap();
    for (mmap_size, mmap_offset) in [(1 << 20, 0), (4096, u64::MAX - 4095)] {
        let driver = Driver::connect(&bench.socket);
        let _ = driver.frontend.set_log_base(0, Some(VhostUserDirtyLogRegion { mmap_size, mmap_offset, mmap_handle: log.as_raw_fd() }));
        bench.check_honest(&mut Driver::connect(&bench.socket), "a log beyond its file");
    }
}

/// A fault of our own, where one can be put in from outside.
struct Faulty(AtomicBool);

impl MemoryWatch for Faulty {
    fn mapped(&self, _regions: &[Region]) {}

    fn before_access(&self, _first_page: u32, _pages: u32) -> io::Result<()> {
        assert!(!self.0.load(Ordering::Relaxed), "a fault put in by a test");
        Ok(())
    }
}

#[test]
fn a_worker_that_dies_is_reported() {
    let faulty = Arc::new(Faulty(AtomicBool::new(false)));
    let bench = bench(None, Some(faulty.clone()));
    let running = bench.server.running();
    let mut driver = Driver::connect(&bench.socket);
    bench.check_honest(&mut driver, "nothing");
    assert_eq!(running.failure(), None);
    faulty.0.store(true, Ordering::Relaxed);
    driver.prepare(IN, 0, &[], &[(DATA, 512)]);
    driver.kick();
    let end = Instant::now() + Duration::from_secs(10);
    while running.failure().is_none() || running.rings() > 0 {
        assert!(Instant::now() < end, "nobody was told");
        std::thread::sleep(Duration::from_millis(1));
    }
    // No checkpoint is taken of a guest whose disk is dead, and QEMU is told.
    let store = fermata_store::Store::open(&bench.dir.path().join("store")).unwrap();
    let mut part = DiskPart::new("m1.disk0", bench.disk.clone(), running.clone(), || Duration::ZERO);
    assert!(part.prepare(&mut store.writer().unwrap()).unwrap_err().to_string().contains("panicked"));
    assert!(driver.frontend.get_features().is_err());
    // The next QEMU is served.
    faulty.0.store(false, Ordering::Relaxed);
    bench.check_honest(&mut Driver::connect(&bench.socket), "a fault");
    assert_eq!(running.failure(), None);
    part.prepare(&mut store.writer().unwrap()).unwrap();
}
