//! What holds for a network at work, whatever is done to it: with rings in the memory of guests, and neither threads nor real time. The test is the network's thread,
//! QEMU, and each guest's driver, and it moves the clock.

use super::{Shared, Snapshot, WAITING_FRAMES_MAX, WAITING_MAX};
use crate::{
    Clock, Interface, InterfaceId, Lan, Link, Mac, Port, Shape, Topology, World,
    device::{Nic, RECEIVE, SEND},
    direction::{FRAME_COST, Frame},
};
use fermata_types::VirtualTime;
use fermata_vhost::fuzzing::{Connection, descriptor};
use proptest::prelude::*;
use rustix::fs::MemfdFlags;
use std::{cell::Cell, fs::File, os::unix::fs::FileExt, sync::Arc, time::Duration};

const GUESTS: u8 = 5;
const MTU: u16 = 1500;
const FRAME: usize = 60;
/// Descriptors of a ring, which are more than frames on their way to one guest.
const RING: u16 = 256;
/// Descriptors, available and used ring of each ring, and the buffers of both.
const PLACES: [[u64; 3]; 2] = [[0x1000, 0x2000, 0x3000], [0x4000, 0x5000, 0x6000]];
const BUFFERS: [u64; 2] = [0x10000, 0x20000];
const BUFFER: u64 = 128;
const RAM: u64 = 0x30000;
const HEADER: usize = 12;
const WRITE: u16 = 2;

thread_local!(static HOST: Cell<u64> = const { Cell::new(0) });

fn host() -> Duration {
    Duration::from_nanos(HOST.get())
}

fn mac(guest: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, guest])
}

/// Guests 0 and 1 with a cable between them, and the others at a switch.
fn topology(cable: &Shape, ports: &Shape) -> Topology {
    let interface = |number| Interface { machine: format!("m{number}"), name: "eth1".into(), mac: mac(number), mtu: MTU };
    let link = Link { ends: [0, 1].map(InterfaceId), shapes: [cable.clone(), cable.clone()] };
    let port = |number| Port { interface: InterfaceId(number), to_switch: ports.clone(), from_switch: ports.clone() };
    let lan = Lan { name: "lan".into(), ports: (2..u32::from(GUESTS)).map(port).collect() };
    Topology { interfaces: (0..GUESTS).map(interface).collect(), links: vec![link], lans: vec![lan] }
}

/// A guest's memory, and what its driver knows of the rings in it.
struct Guest {
    ram: File,
    /// Offered in each ring so far.
    offered: [u16; 2],
    /// Looked at again in the receive ring.
    seen: u16,
    connection: Connection,
}

fn memory() -> File {
    let ram = File::from(rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    ram.set_len(RAM).unwrap();
    ram
}

fn connect(shared: &Arc<Shared>, guest: u8, ram: &File) -> Connection {
    Connection::new(Arc::new(Nic { id: InterfaceId(guest.into()), shared: shared.clone() }), ram)
}

impl Guest {
    fn new(shared: &Arc<Shared>, guest: u8) -> Self {
        let ram = memory();
        let connection = connect(shared, guest, &ram);
        let mut guest = Self { ram, offered: [0; 2], seen: 0, connection };
        guest.go_on([0; 2]);
        guest
    }

    fn stop(&mut self) -> [u16; 2] {
        [RECEIVE, SEND].map(|ring| self.connection.stop(ring as u8))
    }

    fn go_on(&mut self, positions: [u16; 2]) {
        for (ring, position) in [(SEND, positions[SEND]), (RECEIVE, positions[RECEIVE])] {
            self.connection.start(ring as u8, RING.into(), position, PLACES[ring]);
        }
    }

    fn number(&self, at: u64) -> u16 {
        let mut number = [0; 2];
        self.ram.read_exact_at(&mut number, at).unwrap();
        u16::from_le_bytes(number)
    }

    /// Lays out a buffer in a ring.
    fn offer(&mut self, ring: usize, len: usize, flags: u16) {
        let ([descriptors, available, _], index) = (PLACES[ring], self.offered[ring]);
        let slot = u64::from(index % RING);
        let laid = descriptor(BUFFERS[ring] + slot * BUFFER, len as u32, flags, 0);
        self.ram.write_all_at(&laid, descriptors + 16 * slot).unwrap();
        self.ram.write_all_at(&(slot as u16).to_le_bytes(), available + 4 + 2 * slot).unwrap();
        self.offered[ring] = index.wrapping_add(1);
        self.ram.write_all_at(&self.offered[ring].to_le_bytes(), available + 2).unwrap();
    }

    fn lay(&mut self, count: u16) {
        (0..count).for_each(|_| self.offer(RECEIVE, BUFFER as usize, WRITE));
        self.connection.kick(RECEIVE as u8);
    }

    /// Sends a frame. Its worker takes it, and unless it is held up it takes a turn.
    fn send(&mut self, frame: &[u8], held_up: bool) {
        let slot = u64::from(self.offered[SEND] % RING);
        self.ram.write_all_at(&[&[0; HEADER][..], frame].concat(), BUFFERS[SEND] + slot * BUFFER).unwrap();
        self.offer(SEND, HEADER + frame.len(), 0);
        if held_up {
            self.connection.take(SEND as u8)
        } else {
            self.connection.kick(SEND as u8)
        }
        assert_eq!(self.number(PLACES[SEND][2] + 2), self.offered[SEND], "what is sent is taken at once");
    }

    /// Buffers that are laid in.
    fn room(&self) -> u16 {
        self.offered[RECEIVE].wrapping_sub(self.number(PLACES[RECEIVE][2] + 2))
    }

    /// The numbers of the frames that came and were not looked at yet.
    fn look(&mut self) -> Vec<u32> {
        let used = PLACES[RECEIVE][2];
        let mut numbers = Vec::new();
        while self.seen != self.number(used + 2) {
            let slot = u64::from(self.number(used + 4 + 8 * u64::from(self.seen % RING)));
            self.seen = self.seen.wrapping_add(1);
            let mut frame = [0; HEADER + FRAME];
            self.ram.read_exact_at(&mut frame, BUFFERS[RECEIVE] + slot * BUFFER).unwrap();
            numbers.push(u32::from_le_bytes(frame[HEADER + 14..HEADER + 18].try_into().unwrap()));
        }
        numbers
    }

    /// The driver begins anew, with empty rings.
    fn forget(&mut self) {
        for [_, available, used] in PLACES {
            self.ram.write_all_at(&[0; 4], available).unwrap();
            self.ram.write_all_at(&[0; 4], used).unwrap();
        }
        (self.offered, self.seen) = ([0; 2], 0);
    }
}

/// Where a network goes on after a pause.
#[derive(Debug, Clone, Copy)]
enum Onward {
    /// Nobody looked into it.
    Here,
    /// It was captured.
    Captured,
    /// It was restored from its bytes, in this place.
    Back,
    /// It was restored from its bytes in another one, with the guests' memory.
    Elsewhere,
}

#[derive(Debug, Clone)]
struct Pause {
    /// Who sends to whom after the network was frozen, and before the machines stand.
    early: Vec<(u8, u8)>,
    /// How long after the first machine the last one stops.
    skew: u64,
    /// How long they stand, by the host's clock.
    stood: u64,
    onward: Onward,
    /// By how much later their own clocks go on.
    later: Option<u32>,
    /// How long each waits that sends before the last machine has gone on, and the last one after them.
    apart: u64,
    /// Who sends before the last machine has gone on.
    first: Vec<(u8, u8)>,
    /// A guest that was resetting its interface just then.
    reset: Option<u8>,
}

#[derive(Debug, Clone)]
enum Event {
    Send(u8, u8),
    Wait(u64),
    Lay(u8, u16),
    Reset(u8),
    Pause(Pause),
}

struct Scene {
    topology: Topology,
    shared: Arc<Shared>,
    guests: Vec<Guest>,
    sent: u32,
    /// When, in virtual time, what came to whom.
    came: Vec<(u64, u8, u32)>,
    /// Pauses are made, and not only what guests do in them.
    pauses: bool,
    /// How far virtual time is ahead of what it would be without pauses.
    ahead: u64,
}

impl Scene {
    fn new(topology: &Topology, seed: u64, pauses: bool) -> Self {
        HOST.set(0);
        let shared = shared(topology, seed);
        let guests = (0..GUESTS).map(|guest| Guest::new(&shared, guest)).collect();
        shared.thaw();
        shared.turn(None);
        Self { topology: topology.clone(), shared, guests, sent: 0, came: Vec::new(), pauses, ahead: 0 }
    }

    /// Looks what has come.
    fn look(&mut self) {
        let now = self.shared.clock.now().ns - self.ahead;
        for (to, guest) in (0u8..).zip(&mut self.guests) {
            self.came.extend(guest.look().into_iter().map(|number| (now, to, number)));
        }
    }

    fn send(&mut self, from: u8, to: u8) {
        self.send_as(from, to, false);
    }

    fn send_as(&mut self, from: u8, to: u8, held_up: bool) {
        let mut frame = [&mac(to).0[..], &mac(from).0, &[0x88, 0xb5], &self.sent.to_le_bytes()].concat();
        frame.resize(FRAME, 0);
        self.guests[usize::from(from)].send(&frame, held_up);
        self.sent += 1;
        self.look();
    }

    /// Lets time pass, and does what the network's thread does: a turn when the timer rings.
    fn wait(&mut self, time: u64) {
        let end = HOST.get() + time;
        let due = |shared: &Shared| shared.due(&shared.state().unwrap().world).map(|due| due.as_nanos() as u64);
        for turn in 0.. {
            let Some(due) = due(&self.shared).filter(|due| *due <= end) else { break };
            assert!(turn < 100_000, "the timer rings for nothing");
            HOST.set(due.max(HOST.get()));
            self.shared.turn(None);
            self.look();
        }
        HOST.set(end);
    }

    fn lay(&mut self, guest: u8, count: u16) {
        let guest = &mut self.guests[usize::from(guest)];
        guest.lay(count.min(RING - guest.room()));
        self.look();
    }

    fn reset(&mut self, guest: u8) {
        let guest = &mut self.guests[usize::from(guest)];
        guest.stop();
        guest.forget();
        guest.go_on([0; 2]);
    }

    fn play(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Send(from, to) => self.send(*from, *to),
                Event::Wait(time) => self.wait(*time),
                Event::Lay(guest, count) => self.lay(*guest, *count),
                Event::Reset(guest) => self.reset(*guest),
                Event::Pause(pause) if self.pauses => self.pause(pause),
                Event::Pause(Pause { early, apart, first, reset, .. }) => {
                    reset.iter().for_each(|guest| self.reset(*guest));
                    // What is due from now on is handed over when the last machine has gone on.
                    assert!(!self.shared.freeze());
                    early.iter().for_each(|(from, to)| self.send(*from, *to));
                    // As when machines stand: what they sent before is in the network when it goes on.
                    self.shared.take_in(&mut self.shared.state().unwrap());
                    self.go_on(first, *apart);
                    self.shared.thaw();
                    self.shared.turn(None);
                    self.look();
                }
            }
        }
        // Everything comes to its end.
        self.wait(10_000_000_000);
        (0..GUESTS).for_each(|guest| self.lay(guest, RING));
    }

    /// Machines go on one after the other, and send. Their workers take turns, or are held up.
    fn go_on(&mut self, first: &[(u8, u8)], apart: u64) {
        for ((from, to), held_up) in first.iter().zip([false, true].into_iter().cycle()) {
            HOST.set(HOST.get() + apart);
            self.send_as(*from, *to, held_up);
        }
        HOST.set(HOST.get() + apart);
    }

    /// What a checkpoint does, or a journey.
    fn pause(&mut self, Pause { early, skew, stood, onward, later, apart, first, reset }: &Pause) {
        if let Some(guest) = reset {
            let guest = &mut self.guests[usize::from(*guest)];
            guest.stop();
            guest.forget();
        }
        assert!(!self.shared.freeze());
        let came = self.came.len();
        early.iter().zip([true, false].into_iter().cycle()).for_each(|((from, to), held_up)| self.send_as(*from, *to, held_up));
        self.shared.clock.stopping();
        HOST.set(HOST.get() + skew);
        if stood.is_multiple_of(2) {
            // The timer rings, since something is due. Otherwise, what a worker has taken that was held up is found by whoever looks next.
            self.shared.turn(None);
            self.look();
        }
        let mut positions: Vec<_> = self.guests.iter_mut().map(Guest::stop).collect();
        reset.iter().for_each(|guest| positions[usize::from(*guest)] = [0; 2]);
        self.shared.machines_stand();
        HOST.set(HOST.get() + stood);
        self.capture(*onward);
        self.shared.turn(None);
        let at = self.shared.clock.instant();
        self.guests.iter_mut().zip(positions).for_each(|(guest, positions)| guest.go_on(positions));
        let went = HOST.get();
        self.go_on(first, *apart);
        assert_eq!(self.came.len(), came, "nothing is handed over while the network is frozen");
        if let Some(later) = later {
            let later = u64::from(*later);
            self.ahead += later;
            let passed = HOST.get() - went;
            self.shared.machines_run(VirtualTime::from_ns(at.ns + later + passed), host(), later as i64);
        }
        self.shared.thaw();
        self.shared.turn(None);
        self.look();
    }

    fn capture(&mut self, onward: Onward) {
        if matches!(onward, Onward::Here) {
            return;
        }
        let snapshot = self.shared.snapshot().unwrap();
        let bytes = snapshot.world.to_bytes();
        if matches!(onward, Onward::Captured) {
            return;
        }
        if matches!(onward, Onward::Elsewhere) {
            self.shared = shared(&self.topology, 0);
            for (number, guest) in (0u8..).zip(&mut self.guests) {
                let (ram, mut content) = (memory(), vec![0; RAM as usize]);
                guest.ram.read_exact_at(&mut content, 0).unwrap();
                ram.write_all_at(&content, 0).unwrap();
                (guest.connection, guest.ram) = (connect(&self.shared, number, &ram), ram);
            }
        }
        self.shared.restore(Snapshot { world: World::from_bytes(&bytes).unwrap(), ..snapshot });
    }

    fn heard(&self, guest: u8) -> Vec<(u64, u32)> {
        self.came.iter().filter(|came| came.1 == guest).map(|came| (came.0, came.2)).collect()
    }

    /// All counts, as numbers of each interface.
    fn counters(&self) -> Vec<String> {
        let world = &self.shared.state().unwrap().world;
        (0..u32::from(GUESTS)).map(|interface| format!("{:?}", world.counters(InterfaceId(interface)))).collect()
    }
}

fn shared(topology: &Topology, seed: u64) -> Arc<Shared> {
    let clock = Arc::new(Clock::standing(VirtualTime::default(), host));
    Arc::new(Shared::new(Snapshot::new(topology, seed).unwrap(), clock).unwrap())
}

fn pairs() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((0..GUESTS, 0..GUESTS), 0..4)
}

fn pause(resets: bool) -> impl Strategy<Value = Event> {
    let onward = prop_oneof![Just(Onward::Here), Just(Onward::Captured), Just(Onward::Back), Just(Onward::Elsewhere)];
    let reset = if resets { prop::option::weighted(0.2, 0..GUESTS).boxed() } else { Just(None).boxed() };
    let skew = prop_oneof![Just(0), 0..400_000_u64];
    let apart = prop_oneof![Just(0), 0..3_000_000_u64];
    (pairs(), skew, 0..5_000_000_u64, onward, prop::option::of(any::<u32>()), apart, pairs(), reset).prop_map(
        |(early, skew, stood, onward, later, apart, first, reset)| {
            // Who is sent something while it resets its interface may get it or not. And a machine that goes on when the network's clock shows more than the instant
            // has what it sends then a little later than it could have.
            let early = if reset.is_some() { Vec::new() } else { early };
            let first = if skew > 0 || reset.is_some() { Vec::new() } else { first };
            // Where nobody knows the machines' clocks, the network's begins when the last one has gone on.
            let apart = if later.is_some() { apart } else { 0 };
            Event::Pause(Pause { early, skew, stood, onward, later, apart, first, reset })
        },
    )
}

fn event(resets: bool) -> impl Strategy<Value = Event> {
    let reset = if resets { (0..GUESTS).prop_map(Event::Reset).boxed() } else { Just(Event::Wait(0)).boxed() };
    prop_oneof![
        10 => (0..GUESTS, 0..GUESTS).prop_map(|(from, to)| Event::Send(from, to)),
        4 => (0..8_000_000_u64).prop_map(Event::Wait),
        3 => (0..GUESTS, 0..10_u16).prop_map(|(guest, count)| Event::Lay(guest, count)),
        1 => reset,
        3 => pause(resets),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    (prop::option::of(100_000..1_000_000_000_u64), prop_oneof![Just(0), 0..10_000_000_u64], 0..=100_u64, prop_oneof![3..10_u32, Just(1000)])
        .prop_map(|(rate, delay_ns, jitter, queue)| Shape { rate, delay_ns, jitter_ns: delay_ns * jitter / 100, queue, ..Shape::default() })
}

/// What is due after a network stood until `to`, of what was to come meanwhile or is to come yet: gaps are an eighth shorter until no time is left to be made good.
fn stood(due: &mut [u64], to: u64) {
    let Some(first) = due.iter().copied().min() else { return };
    let late = to.saturating_sub(first).min(20_000_000);
    due.iter_mut().for_each(|due| *due = (*due + late - late.min((*due - first) / 8)).max(to));
}

/// A machine may be waited for for seconds while another one floods.
#[test]
fn what_is_sent_to_a_network_that_stands_is_bounded() {
    // Of small frames there are too many first, of large ones too many bytes.
    for (bytes, most) in [(60, WAITING_FRAMES_MAX), (4000, WAITING_MAX / (4000 + FRAME_COST))] {
        let shared = shared(&topology(&Shape::default(), &Shape::default()), 1);
        let frame: Frame = vec![0; bytes].into();
        (0..2 * most).for_each(|_| shared.accept(InterfaceId(0), frame.clone()));
        shared.accept(InterfaceId(1), frame.clone());
        assert_eq!(shared.inbox().sent.len(), most + 1);
        shared.thaw();
        shared.turn(None);
        let [flood, other] = [0, 1].map(|interface| shared.state().unwrap().world.counters(InterfaceId(interface)).unwrap()[0]);
        assert_eq!((flood.sent.frames, flood.sent.bytes, flood.dropped.memory), (2 * most as u64, (2 * most * bytes) as u64, most as u64));
        assert_eq!((other.sent.frames, other.dropped.memory), (1, 0));
        // There is room again.
        shared.accept(InterfaceId(0), frame);
        shared.turn(None);
        assert_eq!(shared.state().unwrap().world.counters(InterfaceId(0)).unwrap()[0].dropped.memory, most as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    /// Frozen, captured, restored here or elsewhere, and thawed in between, it does what it would have done without: no frame is lost, doubled, reordered, or
    /// at another virtual time in its guest's memory.
    #[test]
    fn pauses_change_nothing_of_what_guests_get(
        cable in shape(),
        ports in shape(),
        seed in any::<u64>(),
        events in prop::collection::vec(event(true), 0..120),
    ) {
        let topology = topology(&cable, &ports);
        let play = |pauses| {
            let mut scene = Scene::new(&topology, seed, pauses);
            scene.play(&events);
            scene
        };
        let (plain, paused) = (play(false), play(true));
        for guest in 0..GUESTS {
            prop_assert_eq!(plain.heard(guest), paused.heard(guest), "guest {}", guest);
        }
        prop_assert_eq!(plain.counters(), paused.counters());
    }

    /// On a cable that loses nothing each frame comes once, in order, when it is due and its guest has laid in a buffer for it: not before, and not later.
    #[test]
    fn each_frame_comes_once_and_when_it_is_due(delay_ns in prop_oneof![Just(0), 0..10_000_000_u64], events in prop::collection::vec(event(false), 0..120)) {
        // Only what one end of the cable sends to the other.
        let one_way = |pairs: &[(u8, u8)]| pairs.iter().map(|_| (0, 1)).collect::<Vec<_>>();
        let events: Vec<_> = events
            .into_iter()
            .map(|event| match event {
                Event::Send(..) => Event::Send(0, 1),
                Event::Lay(_, count) => Event::Lay(1, count),
                Event::Pause(pause) => Event::Pause(Pause { early: one_way(&pause.early), first: one_way(&pause.first), ..pause }),
                other => other,
            })
            .collect();
        let cable = Shape { delay_ns, ..Shape::default() };
        let mut scene = Scene::new(&topology(&cable, &Shape::default()), 1, true);
        let (mut now, mut due, mut room): (u64, Vec<u64>, Vec<u64>) = (0, Vec::new(), Vec::new());
        // In the order in which they are sent.
        let send = |due: &mut Vec<u64>, at: u64| due.push((at + delay_ns).max(due.last().copied().unwrap_or(0)));
        for event in &events {
            match event {
                Event::Send(..) => send(&mut due, now),
                Event::Wait(time) => now += time,
                Event::Lay(_, count) => room.extend((0..*count).map(|_| now)),
                Event::Pause(Pause { early, apart, first, .. }) => {
                    let end = now + (first.len() as u64 + 1) * apart;
                    let came = due.partition_point(|due| *due <= now);
                    early.iter().for_each(|_| send(&mut due, now));
                    stood(&mut due[came..], end);
                    (1..).zip(first).for_each(|(turn, _)| send(&mut due, now + turn * apart));
                    due[came..].iter_mut().for_each(|due| *due = end.max(*due));
                    now = end;
                }
                Event::Reset(_) => {}
            }
        }
        prop_assume!(room.len() < usize::from(RING));
        // As `play` ends.
        room.extend(due.iter().map(|_| now + 10_000_000_000));
        let expected: Vec<_> = due.iter().zip(&room).zip(0..).map(|((due, room), number)| (*due.max(room), number)).collect();
        scene.play(&events);
        prop_assert_eq!(scene.heard(1), expected);
    }
}
