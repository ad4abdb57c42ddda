//! The network at work against drivers of our own: frames through rings, pauses and restores, memory that is not there yet, and guests that mean harm.

#[path = "common/bench.rs"]
mod bench;

use bench::{
    Bench, Guest, MTU, OUT, PATIENCE, RECEIVE, ROOM, SEND,
    driver::{self, DATA, Descriptor, Driver, INDIRECT, NEXT, RAM, RING, WRITE, file_offset, new_ram},
    frame, lan, mac, pair,
};
use fermata_checkpoint::Part;
use fermata_linux::clock::monotonic;
use fermata_net::{Block, CAPTURES_MAX, Capture, Change, InterfaceId, NetworkPart, Reshape, Shape, Snapshot, Way, World, pcapng};
use fermata_types::{PAGE_SIZE, PageNumber, VirtualTime};
use fermata_vhost::{MemoryWatch, Region, WriteWatch};
use std::{
    fs::File,
    io::{self, Read, Write},
    ops::Range,
    os::unix::{fs::FileExt, net::UnixStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

#[test]
fn frames_come_as_they_were_sent() {
    let bench = Bench::new(&pair(Shape::default()));
    let (mut a, mut b) = (bench.guest(0), bench.guest(1));
    a.lay(8);
    b.lay(32);
    let frames: Vec<_> = [60, 14, 1514, 1518, 61].iter().zip(0..).map(|(bytes, number)| frame(1, 0, number, *bytes)).collect();
    a.send(&frames);
    assert_eq!(b.receive(5), frames);
    let back = [frame(0, 1, 9, 100)];
    b.send(&back);
    assert_eq!(a.receive(1), back);
    assert!(a.hears_nothing() && b.hears_nothing());
    let [sent, _] = bench.fabric.look(|world| world.counters(InterfaceId(0)).unwrap());
    assert_eq!((sent.sent.frames, sent.arrived.frames), (5, 5));
}

/// What a capture has: interface, way, time, and the number that the frame has.
fn captured(capture: &Capture) -> Vec<(u32, Way, VirtualTime, u32)> {
    let bytes = capture.read(Duration::ZERO);
    let (mut rest, mut packets) = (&bytes[..], Vec::new());
    while let Some((block, length)) = pcapng::read(rest).unwrap() {
        let Block::Packet(packet) = block else { panic!("{block:?}") };
        let number = u32::from_le_bytes(packet.frame[14..18].try_into().unwrap());
        packets.push((packet.interface, packet.way, packet.at, number));
        rest = &rest[length..];
    }
    packets
}

#[test]
fn a_capture_has_what_goes_through_its_interfaces_and_goes_on_elsewhere() {
    const HOUR: u64 = 3_600_000_000_000;
    let topology = lan(3);
    let bench = Bench::new(&topology);
    let (mut a, mut b, mut c) = (bench.guest(0), bench.guest(1), bench.guest(2));
    [&mut a, &mut b, &mut c].into_iter().for_each(|guest| guest.lay(16));
    let of = |interfaces: &[usize]| Arc::new(Capture::new(interfaces.iter().map(|at| topology.interfaces[*at].clone()).collect(), None));
    let (both, third, brief) = (of(&[0, 1]), of(&[2]), of(&[0]));
    assert!(bench.fabric.capture(&both, None) && bench.fabric.capture(&third, Some(Duration::from_nanos(HOUR))));
    assert!(bench.fabric.capture(&brief, Some(Duration::ZERO)));
    // Everybody gets the first one, for nobody knows the second machine yet.
    a.send(&[frame(1, 0, 1, 60)]);
    b.receive(1);
    c.receive(1);
    b.send(&[frame(0, 1, 2, 60)]);
    a.receive(1);
    let seen = captured(&both);
    let (sent, received) = (Way::Sent, Way::Received);
    let order: Vec<_> = seen.iter().map(|(interface, way, _, number)| (*interface, *way, *number)).collect();
    assert_eq!(order, [(0, sent, 1), (1, received, 1), (1, sent, 2), (0, received, 2)]);
    assert!(seen.is_sorted_by_key(|(_, _, at, _)| *at) && seen[3].2 <= bench.fabric.clock().now());
    assert_eq!(captured(&third).len(), 1);
    assert!(captured(&brief).is_empty() && !bench.fabric.feeds(&brief));

    // A journey to an hour later, in another body.
    bench.fabric.freeze();
    bench.fabric.clock().stop();
    let later = Bench::frozen(&topology, None);
    later.fabric.share_captures(&bench.fabric);
    let at = VirtualTime::from_ns(bench.fabric.clock().now().ns + HOUR);
    later.fabric.restore(Snapshot { at, ..bench.fabric.snapshot() });
    later.fabric.thaw();
    let (mut a, mut b) = (later.guest(0), later.guest(1));
    b.lay(16);
    a.send(&[frame(1, 0, 3, 60)]);
    b.receive(1);
    let seen = captured(&both);
    assert_eq!(
        seen.iter().map(|(interface, way, _, number)| (*interface, *way, *number)).collect::<Vec<_>>(),
        [(0, sent, 3), (1, received, 3)]
    );
    assert!(seen[0].2 >= at);
    assert!(later.fabric.feeds(&both) && later.fabric.feeds(&third), "what was left of the time is left");
    assert!(!later.fabric.feeds(&brief));

    drop((third, brief));
    let more: Vec<_> = (0..CAPTURES_MAX).map(|_| of(&[0])).collect();
    let begun: Vec<_> = more.iter().map(|capture| later.fabric.capture(capture, None)).collect();
    assert_eq!(begun, [vec![true; CAPTURES_MAX - 1], vec![false]].concat(), "places of those that ended are free");
}

#[test]
fn a_network_that_panicked_can_be_left() {
    let topology = pair(Shape::default());
    let bench = Bench::new(&topology);
    let (mut a, mut b) = (bench.guest(0), bench.guest(1));
    let capture = Arc::new(Capture::new(topology.interfaces.clone(), None));
    assert!(bench.fabric.capture(&capture, None));
    let mut part: NetworkPart<()> = NetworkPart::new("network", bench.fabric.clone(), |(), _| unreachable!("nothing is put anywhere"));
    part.freeze().unwrap();
    let captured = part.capture().expect("it is well");
    part.thaw().unwrap();
    let panic = || bench.fabric.look(|_| std::panic::resume_unwind(Box::new("with the lock")));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panic)).is_err());
    assert!(bench.fabric.failure().is_some());
    // No checkpoint has it from then on, however far it was; and the part does not panic in turn.
    let of_the_network = |error: &fermata_checkpoint::Failure| error.to_string().contains("the network is served no more");
    assert!(captured.save(&mut ()).is_err_and(|error| of_the_network(&error)));
    part.freeze().unwrap();
    assert!(part.capture().is_err_and(|error| of_the_network(&error)));
    part.thaw().unwrap();
    // Guests go on, but for one another.
    b.lay(16);
    a.send(&[frame(1, 0, 1, 60)]);
    assert!(b.hears_nothing());
    assert!(bench.fabric.change(InterfaceId(0), &Change::default()).is_err());
    // As on the way to another one, or back if there is none.
    assert!(bench.fabric.freeze());
    bench.fabric.clock().stopping();
    bench.fabric.machines_stand();
    let later = Bench::frozen(&topology, None);
    later.fabric.share_captures(&bench.fabric);
    bench.fabric.machines_run(bench.fabric.clock().now(), monotonic(), 0);
    bench.fabric.thaw();
    drop(bench);
    later.fabric.thaw();
    let (mut a, mut b) = (later.guest(0), later.guest(1));
    b.lay(16);
    a.send(&[frame(1, 0, 2, 60)]);
    assert_eq!(b.receive(1), [frame(1, 0, 2, 60)]);
    assert!(later.fabric.feeds(&capture) && later.fabric.failure().is_none());
}

/// QEMU enables the rings before it says which features it takes. QEMU 7 waits for no answer, QEMU 10 does.
#[test]
fn whoever_waits_for_an_answer_gets_one() {
    const GET_FEATURES: u32 = 1;
    const SET_VRING_ENABLE: u32 = 18;
    let bench = Bench::new(&pair(Shape::default()));
    let mut stream = UnixStream::connect(bench.dir.path().join("net0.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut say = |words: &[u32]| stream.write_all(&words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>()).unwrap();
    for (ring, flags) in [(0, 1), (1, 1 | 8)] {
        say(&[SET_VRING_ENABLE, flags, 8, ring, 1]);
    }
    say(&[GET_FEATURES, 1, 0]);
    let mut answers = [0; 40];
    stream.read_exact(&mut answers).unwrap();
    let word = |at: usize| u32::from_ne_bytes(answers[4 * at..4 * at + 4].try_into().unwrap());
    assert_eq!([0, 1, 2, 3, 4].map(word), [SET_VRING_ENABLE, 1 | 4, 8, 0, 0]);
    assert_eq!([5, 6, 7].map(word), [GET_FEATURES, 1 | 4, 8]);
}

#[test]
fn a_guest_without_buffers_gets_its_frames_when_it_has_some() {
    let bench = Bench::new(&pair(Shape::default()));
    let (mut a, mut b) = (bench.guest(0), bench.guest(1));
    let frames: Vec<_> = (0..90).map(|number| frame(1, 0, number, 64)).collect();
    frames.chunks(30).for_each(|frames| a.send(frames));
    assert!(b.hears_nothing());
    let mut heard = Vec::new();
    for count in [1, 5, 30, 54] {
        b.lay(count);
        heard.extend(b.receive(count.into()));
    }
    assert_eq!(heard, frames);
}

#[test]
fn before_its_driver_listens_a_guest_hears_nothing() {
    let bench = Bench::new(&pair(Shape::default()));
    let mut a = bench.guest(0);
    a.send(&[frame(1, 0, 1, 64)]);
    let mut b = bench.guest(1);
    b.lay(4);
    a.send(&[frame(1, 0, 2, 64)]);
    assert_eq!(b.receive(1), [frame(1, 0, 2, 64)]);
    assert_eq!(bench.fabric.trouble(InterfaceId(1)).unheard.load(Ordering::Relaxed), 1);
    let [_, received] = bench.fabric.look(|world| world.counters(InterfaceId(1)).unwrap());
    assert_eq!((received.arrived.frames, received.dropped.door), (1, 1), "what nobody heard has not arrived");
}

/// A guest that reboots resets its interface. What came before is gone, as with a real one; but a pause is no reset.
#[test]
fn what_came_before_a_reset_is_gone() {
    let bench = Bench::new(&pair(Shape::default()));
    let (mut a, mut b) = (bench.guest(0), bench.guest(1));
    let frames: Vec<_> = (0..5).map(|number| frame(1, 0, number, 64)).collect();
    b.lay(1);
    a.send(&frames[..4]);
    assert_eq!(b.receive(1), frames[..1]);
    let bases = b.stop();
    b.start(bases);
    b.lay(1);
    assert_eq!(b.receive(1), frames[1..2]);
    b.reset();
    b.lay(4);
    assert!(b.hears_nothing(), "two waited for buffers that are no more");
    a.send(&frames[4..]);
    assert_eq!(b.receive(1), frames[4..]);
    let [_, received] = bench.fabric.look(|world| world.counters(InterfaceId(1)).unwrap());
    assert_eq!((received.arrived.frames, received.dropped.door), (3, 2));
    assert_eq!(bench.fabric.trouble(InterfaceId(1)).reset.load(Ordering::Relaxed), 2);
}

/// The instant of the checkpoint lies between the reset and the new beginning.
#[test]
fn a_restored_network_knows_of_a_reset() {
    let topology = pair(Shape::default());
    let bench = Bench::new(&topology);
    let (mut a, mut b) = (bench.guest(0), bench.guest(1));
    b.lay(1);
    a.send(&[frame(1, 0, 1, 64), frame(1, 0, 2, 64)]);
    assert_eq!(b.receive(1), [frame(1, 0, 1, 64)]);
    bench.fabric.freeze();
    let position = b.stop()[RECEIVE];
    bench.fabric.clock().stop();
    let snapshot = bench.fabric.snapshot();
    assert_eq!((snapshot.positions[1], position), (Some(1), 1));
    let other = Bench::frozen(&topology, None);
    other.fabric.restore(snapshot);
    let mut b = other.guest(1);
    other.fabric.thaw();
    b.lay(4);
    assert!(b.hears_nothing());
    let mut a = other.guest(0);
    a.send(&[frame(1, 0, 3, 64)]);
    assert_eq!(b.receive(1), [frame(1, 0, 3, 64)]);
}

/// Stop and cont, over and over, in the middle of a stream: QEMU asks for the positions of the rings, and nothing is lost or doubled.
#[test]
fn stop_and_cont_lose_and_double_nothing() {
    let bench = Bench::new(&pair(Shape { delay_ns: 3_000_000, ..Shape::default() }));
    let (mut a, mut b) = (bench.guest(0), bench.guest(1));
    b.lay(16);
    let (mut sent, mut heard) = (Vec::new(), Vec::new());
    for round in 0..60 {
        let frames: Vec<_> = (0..round % 7).map(|number| frame(1, 0, round * 100 + number, 60 + round as usize)).collect();
        a.send(&frames);
        sent.extend(frames);
        // The receiver is now and then behind with its buffers.
        let now = b.arrived();
        if round % 3 != 0 {
            let free = 16 - b.laid.wrapping_sub(b.seen);
            b.lay(free);
        }
        heard.extend(now);
        bench.fabric.freeze();
        // Offered and not taken up by then: it is found when the ring runs again.
        let bases = [a.stop(), b.stop()];
        let snapshot = bench.fabric.snapshot();
        assert_eq!(bases[0][SEND], a.on(SEND).used(), "taken up and not given back");
        assert_eq!(bases[1][RECEIVE], b.on(RECEIVE).used(), "a buffer was taken and not given back");
        let arrived = bench.fabric.look(|world| world.counters(InterfaceId(1)).unwrap()[1].arrived.frames);
        assert_eq!(arrived, u64::from(b.on(RECEIVE).used()), "the guest has what the network says it has");
        bench.fabric.clock().stop();
        if round % 5 == 0 {
            bench.fabric.restore(snapshot);
        }
        a.start(bases[0]);
        b.start(bases[1]);
        bench.fabric.thaw();
    }
    while heard.len() < sent.len() {
        b.lay(1);
        heard.extend(b.receive(1));
    }
    assert!(b.hears_nothing());
    assert_eq!(heard, sent);
}

/// Another network, in another process for all it knows, with the guests' memory and the network's bytes as they were: it goes on from there.
#[test]
fn a_restored_network_goes_on_from_its_instant() {
    let topology = pair(Shape { delay_ns: 200_000_000, ..Shape::default() });
    let bench = Bench::new(&topology);
    let (mut a, mut b) = (bench.guest(0), bench.guest(1));
    b.lay(2);
    let frames: Vec<_> = (0..5).map(|number| frame(1, 0, number, 64)).collect();
    a.send(&frames[..4]);
    // Two are there, two wait for buffers, one is on the way.
    let first = b.receive(2);
    a.send(&frames[4..]);
    bench.fabric.freeze();
    let (_, base) = (a.stop(), b.stop());
    let at = bench.fabric.clock().stop();
    let snapshot = bench.fabric.snapshot();
    let bytes = snapshot.world.to_bytes();
    let ram = new_ram();
    let mut content = vec![0; RAM as usize];
    b.driver.ram.read_exact_at(&mut content, 0).unwrap();
    ram.write_all_at(&content, 0).unwrap();

    let other = Bench::frozen(&topology, None);
    let world = World::from_bytes(&bytes).unwrap();
    other.fabric.restore(Snapshot { world, at, ..snapshot.clone() });
    let mut again = Guest { driver: Driver::connect_rings(&other.dir.path().join("net1.sock"), ram, 2), laid: b.laid, seen: b.seen };
    again.driver.take_over(&b.driver);
    again.start(base);
    assert!(again.hears_nothing());
    other.fabric.thaw();
    again.lay(3);
    assert_eq!([first, again.receive(3)].concat(), frames);
    assert!(other.fabric.clock().now() > at);
}

#[test]
fn frozen_it_hands_over_nothing_and_takes_everything() {
    let bench = Bench::new(&pair(Shape::default()));
    let (mut a, mut b) = (bench.guest(0), bench.guest(1));
    b.lay(8);
    bench.fabric.freeze();
    let frames = [frame(1, 0, 1, 64), frame(1, 0, 2, 64)];
    a.send(&frames);
    assert!(b.hears_nothing());
    bench.fabric.thaw();
    assert_eq!(b.receive(2), frames);
}

#[test]
fn frames_leave_when_they_are_due_in_virtual_time() {
    let delay = Duration::from_millis(40);
    let bench = Bench::new(&pair(Shape { delay_ns: delay.as_nanos() as u64, ..Shape::default() }));
    let (mut a, mut b) = (bench.guest(0), bench.guest(1));
    b.lay(8);
    let clock = bench.fabric.clock().clone();
    let sent = clock.now();
    a.send(&[frame(1, 0, 1, 64)]);
    bench.fabric.freeze();
    clock.stop();
    // Longer than the frame's way: it is not late for that, since nobody's time has passed.
    thread::sleep(2 * delay);
    assert!(b.arrived().is_empty());
    bench.fabric.thaw();
    b.receive(1);
    assert!(clock.now().since_start() - sent.since_start() >= delay);
}

/// The machines went on an hour later by their own clocks, and stood for longer than the network did.
#[test]
fn what_is_on_its_way_moves_with_the_machines_time() {
    const HOUR: u64 = 3_600_000_000_000;
    const LATER: u64 = 60_000_000;
    let delay = 40_000_000;
    let bench = Bench::new(&pair(Shape { delay_ns: delay, ..Shape::default() }));
    let (mut a, mut b) = (bench.guest(0), bench.guest(1));
    b.lay(8);
    let clock = bench.fabric.clock().clone();
    let sent = clock.now().ns;
    let frames = [1, 2].map(|number| frame(1, 0, number, 64));
    a.send(&frames[..1]);
    bench.fabric.freeze();
    clock.stopping();
    let instant = clock.instant();
    bench.fabric.machines_stand();
    assert_eq!(bench.fabric.snapshot().at, instant, "before the machines were told to stop");
    assert!(!clock.runs() && clock.now() >= instant);
    // From a machine that goes on before the others do.
    a.send(&frames[1..]);
    let at = VirtualTime::from_ns(instant.ns + HOUR);
    bench.fabric.machines_run(at, monotonic(), (HOUR + LATER) as i64);
    assert!(clock.runs() && clock.now() >= at && b.hears_nothing());
    bench.fabric.thaw();
    assert_eq!(b.receive(2), frames);
    assert!(clock.now().ns >= sent + HOUR + LATER + delay);
}

#[test]
fn a_live_link_changes() {
    let bench = Bench::new(&pair(Shape::default()));
    let (mut a, mut b) = (bench.guest(0), bench.guest(1));
    b.lay(8);
    bench.fabric.change(InterfaceId(1), &Change { up: Some(false), ..Change::default() }).unwrap();
    a.send(&[frame(1, 0, 1, 64)]);
    assert!(b.hears_nothing());
    let slow = Reshape { delay_ns: Some(30_000_000), ..Reshape::default() };
    bench.fabric.change(InterfaceId(0), &Change { up: Some(true), sent: slow, received: Reshape::default() }).unwrap();
    let sent = bench.fabric.clock().now();
    a.send(&[frame(1, 0, 2, 64)]);
    assert_eq!(b.receive(1), [frame(1, 0, 2, 64)]);
    assert!(bench.fabric.clock().now().ns - sent.ns >= 30_000_000);
    assert!(bench.fabric.change(InterfaceId(2), &Change::default()).is_err());
}

/// Guest memory that is not there until somebody asks for it.
struct Lazy {
    ram: File,
    content: Mutex<Vec<Option<Vec<u8>>>>,
    /// Held by whoever wants everybody to wait.
    reading: Mutex<()>,
    /// Somebody has asked for what was not there.
    asked: AtomicBool,
}

impl Lazy {
    fn new(ram: &File) -> Self {
        let content = vec![None; (RAM / PAGE_SIZE as u64) as usize];
        Self { ram: ram.try_clone().unwrap(), content: Mutex::new(content), reading: Mutex::default(), asked: AtomicBool::new(false) }
    }

    /// Takes away what is in memory.
    fn take_away(&self) {
        for (page, content) in self.content.lock().unwrap().iter_mut().enumerate() {
            let mut bytes = vec![0; PAGE_SIZE];
            self.ram.read_exact_at(&mut bytes, (page * PAGE_SIZE) as u64).unwrap();
            self.ram.write_all_at(&[0; PAGE_SIZE], (page * PAGE_SIZE) as u64).unwrap();
            *content = Some(bytes);
        }
    }

    /// Writes to memory that is not there: within a page.
    fn put(&self, at: u64, bytes: &[u8]) {
        let (page, within) = ((at / PAGE_SIZE as u64) as usize, (at % PAGE_SIZE as u64) as usize);
        self.content.lock().unwrap()[page].as_mut().expect("it is absent")[within..within + bytes.len()].copy_from_slice(bytes);
    }

    fn is_absent(&self, page: u64) -> bool {
        self.content.lock().unwrap()[page as usize].is_some()
    }
}

impl MemoryWatch for Lazy {
    fn mapped(&self, _: &[Region]) {}

    fn before_access(&self, first: u32, pages: u32) -> io::Result<()> {
        if self.is_there(first, pages) {
            return Ok(());
        }
        self.asked.store(true, Ordering::Release);
        let _reading = self.reading.lock().unwrap();
        for page in first..first + pages {
            if let Some(content) = self.content.lock().unwrap()[page as usize].take() {
                self.ram.write_all_at(&content, u64::from(page) * PAGE_SIZE as u64)?;
            }
        }
        Ok(())
    }

    fn is_there(&self, first: u32, pages: u32) -> bool {
        !(first..first + pages).any(|page| self.is_absent(page.into()))
    }
}

#[derive(Default)]
struct Written(Mutex<Vec<PageNumber>>);

impl WriteWatch for Written {
    fn written(&self, pages: Range<PageNumber>) {
        self.0.lock().unwrap().extend(pages);
    }
}

#[test]
fn memory_is_brought_in_before_it_is_touched_and_reported_after() {
    let ram = new_ram();
    let lazy = Arc::new(Lazy::new(&ram));
    let bench = Bench::with_watch(&pair(Shape::default()), 0, lazy.clone());
    let written = Arc::new(Written::default());
    bench.fabric.set_write_watch(InterfaceId(0), written.clone());
    let (mut a, mut b) = (bench.guest_with(0, ram), bench.guest_with(1, new_ram()));
    a.lay(2);
    b.send(&[frame(0, 1, 1, 64)]);
    a.receive(1);
    let bases = a.stop();
    lazy.take_away();
    bench.dirty[0].take();
    written.0.lock().unwrap().clear();
    let target = file_offset(ROOM + PAGE_SIZE as u64) / PAGE_SIZE as u64;
    assert!(lazy.is_absent(target));
    a.start(bases);
    b.send(&[frame(0, 1, 2, 1500)]);
    assert_eq!(a.receive(1), [frame(0, 1, 2, 1500)]);
    assert!(!lazy.is_absent(target), "the page was brought in");
    // Whoever handed the frame over has then ended its turn, and noted all of it.
    bench.fabric.freeze();
    let dirty = bench.dirty[0].take();
    // Starting a ring, the server says in its used ring whether it wants to be kicked.
    let [used, of_sender] = [driver::USED, driver::USED + driver::RING_STRIDE].map(|at| at / PAGE_SIZE as u64);
    assert_eq!(dirty.iter().map(u64::from).collect::<Vec<_>>(), [used, of_sender, target], "all that was written, and no other page");
    assert!(written.0.lock().unwrap().contains(&(target as PageNumber)), "who keeps a page map is told");
}

/// Nobody waits for the memory of another guest, and what comes for that one meanwhile is not lost.
#[test]
fn memory_that_takes_long_to_restore_holds_up_nobody_else() {
    let ram = new_ram();
    let lazy = Arc::new(Lazy::new(&ram));
    let bench = Bench::with_watch(&lan(4), 1, lazy.clone());
    let (mut a, mut c, mut d) = (bench.guest(0), bench.guest(2), bench.guest(3));
    let mut b = bench.guest_with(1, ram);
    [&mut b, &mut d].into_iter().for_each(|guest| guest.lay(32));
    let bases = b.stop();
    lazy.take_away();
    b.start(bases);
    assert!(
        [driver::DESCRIPTORS, driver::AVAILABLE, driver::USED].iter().all(|at| !lazy.is_absent(at / PAGE_SIZE as u64)),
        "its rings are there"
    );
    let reading = lazy.reading.lock().unwrap();
    let all = |number| [&[0xff; 6][..], &frame(0, 0, number, 64)[6..]].concat();
    let frames: Vec<_> = (0..10).map(all).collect();
    a.send(&frames);
    assert_eq!(d.receive(10), frames);
    // It comes to all, for nobody has heard of d yet.
    let last = [frame(3, 2, 10, 64)];
    c.send(&last);
    assert_eq!(d.receive(1), last);
    assert!(b.arrived().is_empty());
    drop(reading);
    assert_eq!(b.receive(11), [&frames[..], &last].concat());
}

/// A guest waits for rings that are yet to be restored, and nobody else does: not whoever has a frame for it, nor whoever stops the network.
#[test]
fn rings_that_take_long_to_restore_hold_up_nobody() {
    let ram = new_ram();
    let lazy = Arc::new(Lazy::new(&ram));
    let bench = Bench::with_watch(&lan(3), 0, lazy.clone());
    let (mut a, mut b, mut c) = (bench.guest_with(0, ram), bench.guest(1), bench.guest(2));
    [&mut a, &mut c].into_iter().for_each(|guest| guest.lay(8));
    let all = |number| vec![[&[0xff; 6][..], &frame(0, 1, number, 64)[6..]].concat()];
    b.send(&all(1));
    assert_eq!((a.receive(1), c.receive(1)), (all(1), all(1)));
    let bases = a.stop();
    lazy.take_away();
    lazy.asked.store(false, Ordering::Release);
    let reading = lazy.reading.lock().unwrap();
    let starts = thread::spawn(move || {
        a.start(bases);
        a
    });
    let end = monotonic() + PATIENCE;
    while !lazy.asked.load(Ordering::Acquire) {
        assert!(monotonic() < end, "nobody asks for its rings");
        thread::sleep(Duration::from_millis(1));
    }
    b.send(&all(2));
    assert_eq!(c.receive(1), all(2));
    bench.fabric.freeze();
    bench.fabric.thaw();
    drop(reading);
    let mut a = starts.join().unwrap();
    assert_eq!(a.receive(1), all(2));
}

/// A guest that sends what is yet to be restored waits for that alone: what comes for it meanwhile, and for others, is handed over, and its rings can be stopped.
#[test]
fn what_is_sent_from_memory_that_takes_long_to_restore_holds_up_nobody() {
    let ram = new_ram();
    let lazy = Arc::new(Lazy::new(&ram));
    let bench = Bench::with_watch(&lan(3), 0, lazy.clone());
    let (mut a, mut b, mut c) = (bench.guest_with(0, ram), bench.guest(1), bench.guest(2));
    [&mut a, &mut b, &mut c].into_iter().for_each(|guest| guest.lay(8));
    let all = |from, number| [&[0xff; 6][..], &frame(0, from, number, 64)[6..]].concat();
    // The rooms of these are there.
    let said = [all(1, 0)];
    b.send(&said);
    assert_eq!((a.receive(1), c.receive(1)), (said.to_vec(), said.to_vec()));
    let bases = a.stop();
    lazy.take_away();
    a.start(bases);
    lazy.before_access((file_offset(ROOM) / PAGE_SIZE as u64) as PageNumber, 8).unwrap();
    let reading = lazy.reading.lock().unwrap();
    assert!(lazy.is_absent(file_offset(OUT) / PAGE_SIZE as u64));
    let sent = all(0, 1);
    // As `send` does, which waits for them to be taken.
    lazy.put(file_offset(OUT), &[&[0; 12][..], &sent].concat());
    let driver = a.on(SEND);
    driver.put_chain(&[Descriptor { at: OUT, len: 12 + sent.len() as u32, flags: 0, next: 0 }]);
    driver.offer(0);
    driver.kick();
    let said = [all(1, 2)];
    b.send(&said);
    assert_eq!((a.receive(1), c.receive(1)), (said.to_vec(), said.to_vec()));
    assert!(b.arrived().is_empty());
    let bases = a.stop();
    drop(reading);
    a.start(bases);
    assert_eq!((b.receive(1), c.receive(1)), (vec![sent.clone()], vec![sent]));
}

#[test]
fn what_is_no_frame_and_no_room_for_one_is_given_back() {
    let table = DATA + 0x80000;
    let nowhere = 0x1_0000_0000_0000;
    let d = |at, len, flags, next| Descriptor { at, len, flags, next };
    let bad: Vec<(&str, Vec<Descriptor>)> = vec![
        ("shorter than its header", vec![d(OUT, 11, 0, 0)]),
        ("empty", vec![d(OUT, 0, 0, 0)]),
        ("nowhere", vec![d(nowhere, 100, 0, 0)]),
        ("across the edge of memory", vec![d(RAM / 2 - 8, 100, 0, 0)]),
        ("a circle", vec![d(OUT, 100, NEXT, 0)]),
        ("a link behind the ring", vec![d(OUT, 100, NEXT, RING)]),
        ("written by the device", vec![d(OUT, 100, NEXT, 1), d(OUT, 100, WRITE, 0)]),
        ("4 GiB", vec![d(OUT, u32::MAX, 0, 0)]),
        ("64 KiB and a bit", vec![d(OUT, 0x10000 + 12, 0, 0)]),
        ("a table nowhere", vec![d(nowhere, 32, INDIRECT, 0)]),
        ("a table of one entry and a half", vec![d(table, 24, INDIRECT, 0)]),
    ];
    let count = bad.len() as u64;
    let bench = Bench::new(&pair(Shape::default()));
    let (mut a, mut b) = (bench.guest(0), bench.guest(1));
    b.lay(1);
    for (what, chain) in &bad {
        let driver = a.on(SEND);
        driver.put_chain(chain);
        driver.offer(0);
        driver.kick();
        assert_eq!(driver.wait(PATIENCE), Some(0), "{what}");
    }
    assert_eq!(bench.fabric.trouble(InterfaceId(0)).malformed.load(Ordering::Relaxed), count);
    // Runts and giants are frames; the link drops them.
    for bytes in [5, 13, MTU as usize + 19, 0xffff] {
        a.send(&[vec![7; bytes]]);
    }
    let [sent, _] = bench.fabric.look(|world| world.counters(InterfaceId(0)).unwrap());
    assert_eq!((sent.dropped.runt, sent.dropped.giant), (2, 2));
    a.send(&[frame(1, 0, 1, 64)]);
    assert_eq!(b.receive(1), [frame(1, 0, 1, 64)]);

    let rooms: Vec<(&str, Vec<Descriptor>)> = vec![
        ("read by the device", vec![d(ROOM, 2048, 0, 0)]),
        ("half of it read", vec![d(ROOM, 2048, NEXT, 1), d(ROOM, 2048, WRITE, 0)]),
        ("no room for the header", vec![d(ROOM, 11, WRITE, 0)]),
        ("no room for the frame", vec![d(ROOM, 70, WRITE, 0)]),
        ("nowhere", vec![d(nowhere, 2048, WRITE, 0)]),
        ("a circle", vec![d(ROOM, 10, NEXT | WRITE, 0)]),
    ];
    for (what, chain) in &rooms {
        let driver = b.on(RECEIVE);
        driver.put_chain(chain);
        driver.offer(0);
        driver.kick();
        a.send(&[frame(1, 0, 2, 64)]);
        assert_eq!(b.on(RECEIVE).wait(PATIENCE), Some(0), "{what}");
    }
    let trouble = bench.fabric.trouble(InterfaceId(1));
    assert_eq!((trouble.unfit.load(Ordering::Relaxed), trouble.malformed.load(Ordering::Relaxed)), (2, 4));
    let [_, received] = bench.fabric.look(|world| world.counters(InterfaceId(1)).unwrap());
    assert_eq!((received.arrived.frames, received.dropped.door), (1, 6), "what had no room has not arrived");
    // In the smallest room that does, in many pieces.
    let pieces: Vec<_> = (0..19).map(|i| d(ROOM + i * 100, 4, if i < 18 { NEXT | WRITE } else { WRITE }, i as u16 + 1)).collect();
    let driver = b.on(RECEIVE);
    driver.put_chain(&pieces);
    driver.offer(0);
    driver.kick();
    a.send(&[frame(1, 0, 3, 64)]);
    assert_eq!(b.on(RECEIVE).wait(PATIENCE), Some(76));
    assert_eq!(b.driver.read(ROOM + 300, 4), mac(1).0[..4]);
}

#[test]
fn rings_of_nonsense_harm_nobody_else() {
    let bench = Bench::new(&lan(3));
    let (mut a, mut b, mut c) = (bench.guest(0), bench.guest(1), bench.guest(2));
    b.lay(40);
    type Trick = fn(&mut Driver);
    let tricks: [(&str, Trick); 4] = [
        ("an index that jumps", |driver| driver.set_available(0x8000)),
        ("an index that goes back", |driver| driver.set_available(u16::MAX)),
        ("a head that is no descriptor", |driver| driver.offer(RING)),
        ("a used ring in no memory", |driver| driver.restart_at([driver::DESCRIPTORS, driver::AVAILABLE, 0x1_0000_0000_0000])),
    ];
    for (number, (what, trick)) in (0..).zip(tricks) {
        for ring in [RECEIVE, SEND] {
            let driver = c.on(ring);
            trick(driver);
            driver.kick();
        }
        // To everybody, so that somebody is to lay it into the ring of nonsense, too.
        let hello = [&[0xff; 6][..], &frame(0, 0, number, 64)[6..]].concat();
        a.send(std::slice::from_ref(&hello));
        assert_eq!(b.receive(1), [hello], "{what}");
        c.reset();
    }
    c.lay(1);
    a.send(&[frame(2, 0, 9, 64)]);
    assert_eq!(c.receive(1), [frame(2, 0, 9, 64)]);
}

/// One guest sends as fast as it can to one that never looks. The others' frames all arrive: a flood fills queues of its own.
#[test]
fn a_flood_costs_the_others_no_frame() {
    let bench = Bench::new(&lan(4));
    let (mut a, mut b, mut d) = (bench.guest(0), bench.guest(1), bench.guest(3));
    b.lay(32);
    // The switch learns where everybody is.
    d.send(&[frame(1, 3, 0, 64)]);
    b.send(&[frame(0, 1, 0, 64)]);
    assert_eq!(b.receive(1), [frame(1, 3, 0, 64)]);
    let stop = Arc::new(AtomicBool::new(false));
    let flood = {
        let (stop, mut c) = (stop.clone(), bench.guest(2));
        thread::spawn(move || {
            let frames: Vec<_> = (0..30).map(|number| frame(3, 2, number, 1514)).collect();
            while !stop.load(Ordering::Relaxed) {
                c.send(&frames);
            }
        })
    };
    let mut heard = Vec::new();
    for number in 0..200u32 {
        a.send(&[frame(1, 0, number, 64)]);
        heard.extend(b.receive(1));
        let free = 32 - b.laid.wrapping_sub(b.seen);
        b.lay(free);
    }
    stop.store(true, Ordering::Relaxed);
    flood.join().unwrap();
    assert_eq!(heard, (0..200).map(|number| frame(1, 0, number, 64)).collect::<Vec<_>>());
}
