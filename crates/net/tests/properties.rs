//! What holds for every network and every order of events.

mod common;

use common::*;
use fermata_net::{Chance, Change, Discipline, Handover, InterfaceId, Reshape, Shape, World};
use proptest::prelude::*;
use std::collections::BTreeMap;

const INTERFACES: u32 = 6;

#[derive(Debug, Clone)]
enum Event {
    Send {
        from: u32,
        to: u32,
        bytes: usize,
    },
    Wait(u64),
    /// The guest gets room for so many frames more.
    Buffers {
        interface: u32,
        count: u32,
    },
    Set {
        interface: u32,
        change: Change,
    },
    /// The guest's driver begins anew.
    Reset {
        interface: u32,
    },
    /// Time stands still while these are sent.
    Frozen(Vec<(u32, u32)>),
    /// The network goes through its bytes, or is cloned.
    Capture {
        bytes: bool,
    },
}

fn chance() -> impl Strategy<Value = Chance> {
    prop_oneof![3 => Just(0_u32), 1 => 0..=1_000_000_000_u32].prop_map(|per_billion| Chance { per_billion })
}

fn shape() -> impl Strategy<Value = Shape> {
    let rate = prop_oneof![Just(None), (10_000..10_000_000_000_u64).prop_map(Some)];
    let delay = prop_oneof![Just(0), 0..20_000_000_u64];
    let discipline = prop_oneof![Just(Discipline::DropTail), Just(Discipline::Codel)];
    (rate, delay, 0..=100_u64, chance(), chance(), chance(), prop_oneof![1..5_u32, Just(1000)], discipline).prop_map(
        |(rate, delay_ns, jitter, loss, duplicate, reorder, queue, discipline)| {
            let jitter_ns = delay_ns * jitter / 100;
            Shape { rate, delay_ns, jitter_ns, loss, duplicate, reorder, queue, discipline }
        },
    )
}

fn reshape() -> impl Strategy<Value = Reshape> {
    prop_oneof![Just(None), shape().prop_map(Some)].prop_map(|shape| match shape {
        None => Reshape::default(),
        Some(Shape { rate, delay_ns, jitter_ns, loss, duplicate, reorder, queue, discipline }) => Reshape {
            rate: Some(rate.unwrap_or(0)),
            delay_ns: Some(delay_ns),
            jitter_ns: Some(jitter_ns),
            loss: Some(loss),
            duplicate: Some(duplicate),
            reorder: Some(reorder),
            queue: Some(queue),
            discipline: Some(discipline),
        },
    })
}

fn event() -> impl Strategy<Value = Event> {
    let bytes = prop_oneof![22..1600_usize, Just(60), Just(1514)];
    let change = (prop::option::of(any::<bool>()), reshape(), reshape()).prop_map(|(up, sent, received)| Change { up, sent, received });
    prop_oneof![
        12 => (0..INTERFACES, 0..=INTERFACES, bytes).prop_map(|(from, to, bytes)| Event::Send { from, to, bytes }),
        4 => (0..30_000_000_u64).prop_map(Event::Wait),
        2 => (0..INTERFACES, 0..20_u32).prop_map(|(interface, count)| Event::Buffers { interface, count }),
        1 => (0..INTERFACES).prop_map(|interface| Event::Reset { interface }),
        1 => (0..INTERFACES, change).prop_map(|(interface, change)| Event::Set { interface, change }),
        1 => prop::collection::vec((0..INTERFACES, 0..INTERFACES), 0..5).prop_map(Event::Frozen),
        2 => any::<bool>().prop_map(|bytes| Event::Capture { bytes }),
    ]
}

fn topology() -> impl Strategy<Value = fermata_net::Topology> {
    (shape(), shape(), prop::collection::vec(shape(), INTERFACES as usize - 2)).prop_map(|(there, back, lan)| both([there, back], &lan))
}

/// A network with the guests around it.
struct Scene {
    world: World,
    now: u64,
    sent: u64,
    /// Frames that a guest still has room for.
    buffers: BTreeMap<InterfaceId, u32>,
    /// When what came where.
    came: Vec<(u64, InterfaceId, u64)>,
    sent_at: Vec<(u64, u32, usize)>,
    capture: bool,
    /// Its time is moved now and then, and by how much it is at present.
    moves: bool,
    ahead: u64,
    /// Only looks every so many nanoseconds.
    late: u64,
    /// Every so manieth frame is lost at its receiver's door, if any.
    spoilt: Option<u64>,
}

impl Scene {
    fn new(topology: &fermata_net::Topology, seed: u64, buffers: u32) -> Self {
        Self {
            world: World::new(topology, seed).unwrap(),
            now: 0,
            sent: 0,
            buffers: (0..INTERFACES).map(|interface| (InterfaceId(interface), buffers)).collect(),
            came: Vec::new(),
            sent_at: Vec::new(),
            capture: false,
            moves: false,
            ahead: 0,
            late: 1,
            spoilt: None,
        }
    }

    fn send(&mut self, from: u32, to: u32, bytes: usize) {
        let to = if to == INTERFACES { BROADCAST } else { mac(to) };
        self.world.send(at(self.now + self.ahead), InterfaceId(from), &frame(to, mac(from), self.sent, bytes));
        self.sent_at.push((self.now, from, bytes));
        self.sent += 1;
    }

    fn wait(&mut self, until: u64) {
        loop {
            let due = self.world.next_due().map_or(u64::MAX, |due| (due.ns - self.ahead).next_multiple_of(self.late));
            if due > until {
                break;
            }
            self.deliver(due);
        }
        self.deliver(until);
        self.now = until;
    }

    fn deliver(&mut self, now: u64) {
        let Self { world, buffers, came, ahead, spoilt, .. } = self;
        world.deliver(at(now + *ahead), &mut |interface, frame| {
            let room = buffers.get_mut(&interface).unwrap();
            if *room == 0 {
                return Handover::Waits;
            }
            *room -= 1;
            if spoilt.is_some_and(|every| number(frame).is_multiple_of(every)) {
                return Handover::Lost;
            }
            came.push((now, interface, number(frame)));
            Handover::Taken
        });
    }

    fn play(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Send { from, to, bytes } => self.send(*from, *to, *bytes),
                Event::Wait(ns) => self.wait(self.now + ns),
                Event::Buffers { interface, count } => {
                    *self.buffers.get_mut(&InterfaceId(*interface)).unwrap() += count;
                    self.world.retry(InterfaceId(*interface));
                }
                Event::Reset { interface } => {
                    self.world.reset(InterfaceId(*interface));
                }
                Event::Set { interface, change } => self.world.set(at(self.now + self.ahead), InterfaceId(*interface), change).unwrap(),
                Event::Frozen(sends) => {
                    for (from, to) in sends {
                        self.send(*from, *to, 100);
                        self.go_through_bytes(true);
                    }
                }
                Event::Capture { bytes } => {
                    self.go_through_bytes(*bytes);
                    self.move_time(if *bytes { 123_456_789 } else { 1 });
                }
            }
        }
        // Everything comes to its end.
        for interface in 0..INTERFACES {
            *self.buffers.get_mut(&InterfaceId(interface)).unwrap() += 1_000_000;
            self.world.retry(InterfaceId(interface));
        }
        self.wait(self.now + 1_000_000_000_000);
    }

    /// From now on the network's time is ahead by so much.
    fn move_time(&mut self, ahead: u64) {
        if self.moves {
            self.world.shift(ahead as i64 - self.ahead as i64);
            self.ahead = ahead;
        }
    }

    fn go_through_bytes(&mut self, bytes: bool) {
        if self.capture {
            let copy = if bytes { World::from_bytes(&self.world.to_bytes()).unwrap() } else { self.world.clone() };
            assert_eq!(copy.to_bytes(), self.world.to_bytes());
            assert_eq!(copy.topology(), self.world.topology());
            self.world = copy;
        }
    }

    /// All counts, as numbers of each interface.
    fn counters(&self) -> Vec<String> {
        (0..INTERFACES).map(|interface| format!("{:?}", self.world.counters(InterfaceId(interface)))).collect()
    }
}

/// A network, what its chances come from, how many frames its guests have buffers for, and what happens.
fn scenario() -> impl Strategy<Value = (fermata_net::Topology, u64, u32, Vec<Event>)> {
    (topology(), any::<u64>(), prop_oneof![Just(3), Just(1_000_000)], prop::collection::vec(event(), 0..150))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 400, ..ProptestConfig::default() })]

    /// No frame is lost, doubled, reordered or late by any sequence of freezing, capturing, restoring and thawing.
    #[test]
    fn a_network_that_was_captured_goes_on_as_one_that_was_not((topology, seed, buffers, events) in scenario()) {
        let mut plain = Scene::new(&topology, seed, buffers);
        plain.play(&events);
        let mut captured = Scene { capture: true, ..Scene::new(&topology, seed, buffers) };
        captured.play(&events);
        prop_assert_eq!(&plain.came, &captured.came);
        prop_assert_eq!(plain.counters(), captured.counters());
        prop_assert_eq!(plain.world.to_bytes(), captured.world.to_bytes());
    }

    /// Nothing is lost, doubled or reordered when all of it is moved in time, and everything happens by as much later or earlier.
    #[test]
    fn a_network_that_is_moved_in_time_does_the_same_then((topology, seed, buffers, events) in scenario()) {
        let mut plain = Scene::new(&topology, seed, buffers);
        plain.play(&events);
        let mut moved = Scene { moves: true, ..Scene::new(&topology, seed, buffers) };
        moved.play(&events);
        moved.move_time(0);
        prop_assert_eq!(&plain.came, &moved.came);
        prop_assert_eq!(plain.counters(), moved.counters());
        prop_assert_eq!(plain.world.now(), moved.world.now());
    }

    /// Somebody who looks late gets late what was due, and nothing else changes.
    #[test]
    fn being_late_changes_nothing_for_the_network(
        topology in topology(),
        seed in any::<u64>(),
        late in prop_oneof![2..1000_u64, 1_000_000..100_000_000_u64],
        events in prop::collection::vec(event(), 0..150),
    ) {
        let mut punctual = Scene::new(&topology, seed, 1_000_000);
        punctual.play(&events);
        let mut tardy = Scene { late, ..Scene::new(&topology, seed, 1_000_000) };
        tardy.play(&events);
        prop_assert_eq!(punctual.counters(), tardy.counters());
        for interface in (0..INTERFACES).map(InterfaceId) {
            let heard = |scene: &Scene| scene.came.iter().filter(|came| came.1 == interface).map(|came| came.2).collect::<Vec<_>>();
            prop_assert_eq!(heard(&punctual), heard(&tardy));
        }
    }

    /// What is sent or doubled arrives, is dropped for a reason, or is on its way; at any time.
    #[test]
    fn no_frame_goes_uncounted(topology in topology(), seed in any::<u64>(), events in prop::collection::vec(event(), 0..150)) {
        let mut scene = Scene { spoilt: Some(7), ..Scene::new(&topology, seed, 20) };
        for event in &events {
            if let Event::Send { from, to, bytes } = event {
                scene.send(*from, *to, *bytes);
            } else if let Event::Wait(ns) = event {
                scene.wait(scene.now + ns);
            } else if let Event::Reset { interface } = event {
                scene.world.reset(InterfaceId(*interface));
            } else if let Event::Set { interface, change } = event {
                scene.world.set(at(scene.now), InterfaceId(*interface), change).unwrap();
            }
            for interface in (0..INTERFACES).map(InterfaceId) {
                let counters = scene.world.counters(interface).unwrap();
                for (counters, in_flight) in counters.iter().zip(scene.world.in_flight(interface).unwrap()) {
                    let ends = counters.arrived.frames + counters.dropped.total() + in_flight;
                    prop_assert_eq!(counters.sent.frames + counters.duplicated, ends, "{:?}: {:?}", interface, counters);
                }
                let came = scene.came.iter().filter(|came| came.1 == interface).count() as u64;
                prop_assert_eq!(counters[1].arrived.frames, came);
                let sent = scene.sent_at.iter().filter(|sent| sent.1 == interface.0).count() as u64;
                prop_assert_eq!(counters[0].sent.frames, sent);
            }
        }
    }

    /// On a cable, without reordering: in order, not before the time, and not faster than the rate.
    #[test]
    fn cables_keep_order_delay_and_rate(shape in shape(), seed in any::<u64>(), gaps in prop::collection::vec((0..5_000_000_u64, 22..1514_usize), 1..100)) {
        let shape = Shape { reorder: Chance::NEVER, ..shape };
        let mut scene = Scene::new(&both([shape.clone(), Shape::default()], &vec![Shape::default(); INTERFACES as usize - 2]), seed, 1_000_000);
        for (gap, bytes) in gaps {
            scene.wait(scene.now + gap);
            scene.send(0, 1, bytes);
        }
        scene.wait(scene.now + 1_000_000_000_000);
        prop_assert!(scene.came.is_sorted_by_key(|(_, _, number)| *number));
        prop_assert!(scene.came.is_sorted_by_key(|(time, ..)| *time));
        let ns = |bytes: usize| shape.rate.map_or(0, |rate| bytes as u64 * 8 * 1_000_000_000 / rate);
        for (time, _, number) in &scene.came {
            let (sent, _, bytes) = scene.sent_at[*number as usize];
            prop_assert!(*time >= sent + ns(bytes) + shape.delay_ns - shape.jitter_ns);
        }
        if shape.jitter_ns == 0 {
            for pair in scene.came.windows(2) {
                let (_, _, bytes) = scene.sent_at[pair[1].2 as usize];
                prop_assert!(pair[1].0 - pair[0].0 >= ns(bytes).saturating_sub(1));
            }
        }
    }

    /// One that loses nothing delivers each frame when its transmission is over and the delay has passed: not before, and not later.
    #[test]
    fn a_cable_is_no_slower_than_it_says(
        rate in prop::option::of(1_000_u64..10_000_000_000),
        delay_ns in 0..2_000_000_000_u64,
        seed in any::<u64>(),
        gaps in prop::collection::vec((0..5_000_000_u64, 22..1514_usize), 1..100),
    ) {
        let shape = Shape { rate, delay_ns, queue: 1000, ..Shape::default() };
        let mut scene = Scene::new(&both([shape, Shape::default()], &vec![Shape::default(); INTERFACES as usize - 2]), seed, 1_000_000);
        for (gap, bytes) in gaps {
            scene.wait(scene.now + gap);
            scene.send(0, 1, bytes);
        }
        scene.wait(scene.now + 10_000_000_000_000);
        prop_assert_eq!(scene.came.len(), scene.sent_at.len());
        // When the transmitter is free, and the part of a nanosecond by which it is so later than that.
        let (mut free, mut part) = (0, 0);
        for (time, _, number) in &scene.came {
            let (sent, _, bytes) = scene.sent_at[*number as usize];
            let start = free.max(sent);
            let departs = match rate {
                None => start,
                Some(rate) => {
                    let work = bytes as u64 * 8 * 1_000_000_000 + if start == free { part } else { 0 };
                    part = work % rate;
                    start + work / rate
                }
            };
            free = departs;
            prop_assert_eq!(*time, departs + delay_ns);
        }
    }

    /// Whatever the bytes, they are read or refused.
    #[test]
    fn broken_bytes_are_refused_or_read(
        topology in topology(),
        events in prop::collection::vec(event(), 0..60),
        spoil in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut scene = Scene::new(&topology, 1, 3);
        for event in &events {
            if let Event::Send { from, to, bytes } = event {
                scene.send(*from, *to, *bytes);
            }
        }
        let bytes = scene.world.to_bytes();
        prop_assert!(World::from_bytes(&bytes[..cut.index(bytes.len())]).is_err());
        let mut spoiled = bytes;
        for (place, byte) in spoil {
            let place = place.index(spoiled.len());
            spoiled[place] = byte;
        }
        if let Ok(mut world) = World::from_bytes(&spoiled) {
            let again = World::from_bytes(&world.to_bytes()).unwrap().to_bytes();
            prop_assert_eq!(again, world.to_bytes());
            world.send(at(1), InterfaceId(0), &frame(mac(1), mac(0), 0, 60));
            run(&mut world, u64::MAX);
        }
    }
}
