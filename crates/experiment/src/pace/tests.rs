//! Machines that stop and go on at times of their own, and a network between them, all by a host's clock that is a number here.

use super::*;
use crate::together::delays;
use fermata_net::{Handover, Interface, InterfaceId, Link, Mac, Shape, Topology, World};

const STEP: u64 = 5_000;
const DELAY: u64 = 10_000_000;
/// A machine is late by less than this when it stops, and when it goes on.
const JITTER: u64 = 3_000_000;
const PAUSES: usize = 40;

fn time(ns: u64) -> VirtualTime {
    VirtualTime::from_ns(ns)
}

fn went(machine: &str, from: Option<u64>, at: u64) -> Went {
    Went { machine: machine.to_owned(), from: from.map(time), at: Duration::from_nanos(at) }
}

fn going(at: u64, later: i64) -> Going {
    Going { at: time(at), later }
}

#[test]
fn the_network_stands_as_long_as_the_machine_that_stands_longest() {
    let mut pace = Pace::default();
    let now = Duration::from_nanos(1000);
    // Nobody has read a clock: it stood from before the first was told to stop until the last went on.
    assert_eq!(pace.go_on(&(time(500)..=time(530)), &[went("a", None, 900), went("b", None, 940)], now), going(560, 0));
    // They went on at 100 and 102 ns past, which b is ahead: they are at one time, and so is the network, in which something was on its way since
    // 500.
    let both = [went("a", Some(7000), 900), went("b", Some(7002), 902)];
    assert_eq!(pace.go_on(&(time(500)..=time(530)), &both, now), going(7100, 7100 - 598));
    // Now it is known when they stopped: a when the network was at 7110, and b at 7112. Then b goes on late.
    let both = [went("a", Some(7110), 2000), went("b", Some(7112), 2020)];
    assert_eq!(pace.go_on(&(time(7105)..=time(7120)), &both, Duration::from_nanos(2030)), going(7122, 0));
    // So a is ahead by 18, which is made good: the network stands as long as a, and what is on its way is due 18 later.
    let both = [went("a", Some(7148), 3018), went("b", Some(7130), 3000)];
    assert_eq!(pace.go_on(&(time(7125)..=time(7150)), &both, Duration::from_nanos(3020)), going(7150, 18));
}

#[test]
fn a_clock_that_says_what_cannot_be_is_not_believed() {
    let mut pace = Pace::default();
    let now = Duration::from_nanos(1000);
    pace.go_on(&(time(0)..=time(0)), &[went("a", Some(0), 1000)], now);
    // It hung for long while its clock ran, or its clock ran while all stood.
    for from in [5_000_000, 10] {
        let Going { at, later } = pace.go_on(&(time(100)..=time(120)), &[went("a", Some(from), 1000)], now);
        let continued = at.ns as i64 - later;
        assert!((100..=120).contains(&continued), "{continued}");
        pace.go_on(&(time(100)..=time(100)), &[went("a", Some(100), 1000)], now);
    }
    assert_eq!(pace.go_on(&(time(7)..=time(9)), &[], now), going(7, 0));
    let extreme = [went("a", Some(u64::MAX), 0), went("b", Some(0), 0)];
    assert_eq!(pace.go_on(&(time(0)..=time(u64::MAX)), &extreme, now).at, time(1000));
}

/// Numbers from a seed (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A clock that runs with the host's, or stands.
#[derive(Clone, Copy)]
struct Hands {
    at: u64,
    since: Option<u64>,
}

impl Hands {
    fn at(self, host: u64) -> u64 {
        self.at + self.since.map_or(0, |since| host - since)
    }

    fn stop(&mut self, host: u64) {
        *self = Self { at: self.at(host), since: None };
    }
}

/// Two machines with a cable between them, and one beside them.
struct Scene {
    host: u64,
    machines: [Hands; 3],
    network: Hands,
    frozen: bool,
    world: World,
    /// Sent while the network's clock stood: by whom and when.
    early: Vec<(u64, u32, u64)>,
    /// By number: when its sender sent it, by its own clock.
    sent: Vec<u64>,
    /// How long each took there and back, by the sender's clock.
    took: Vec<u64>,
}

impl Scene {
    fn new() -> Self {
        let interface = |machine: &str, number| Interface {
            machine: machine.into(),
            name: "eth1".into(),
            mac: Mac([2, 0, 0, 0, 0, number]),
            mtu: 1500,
        };
        let shape = Shape { delay_ns: DELAY, ..Shape::default() };
        let link = Link { ends: [InterfaceId(0), InterfaceId(1)], shapes: [shape.clone(), shape] };
        let topology = Topology { interfaces: vec![interface("a", 0), interface("b", 1)], links: vec![link], lans: Vec::new() };
        let clock = Hands { at: 0, since: Some(0) };
        let world = World::new(&topology, 1).expect("a network");
        let machines = [clock; 3];
        Self { host: 0, machines, network: clock, frozen: false, world, early: Vec::new(), sent: Vec::new(), took: Vec::new() }
    }

    fn send(&mut self, from: u32, number: u64) {
        if self.network.since.is_none() {
            self.early.push((self.host, from, number));
            return;
        }
        self.world.send(time(self.network.at(self.host)), InterfaceId(from), &frame(number));
    }

    /// A moment of the host's.
    fn step(&mut self) {
        self.host += STEP;
        let a = self.machines[0];
        if a.since.is_some() && a.at(self.host) >= self.sent.len() as u64 * 700_000 {
            self.sent.push(a.at(self.host));
            self.send(0, self.sent.len() as u64 - 1);
        }
        let now = time(self.network.at(self.host));
        if self.frozen || now < self.world.now() {
            return;
        }
        let mut came = Vec::new();
        self.world.deliver(now, &mut |to, frame| {
            came.push((to, number(frame)));
            Handover::Taken
        });
        for (to, number) in came {
            match to {
                InterfaceId(1) => self.send(1, number),
                _ => self.took.push(self.machines[0].at(self.host) - self.sent[number as usize]),
            }
        }
    }

    fn run_until(&mut self, host: u64) {
        while self.host < host {
            self.step();
        }
    }

    /// Does something to each machine at its time.
    fn at_times(&mut self, mut times: Vec<(u64, usize)>, what: fn(&mut Hands, u64)) {
        times.sort_unstable();
        for (at, machine) in times {
            self.run_until(at);
            what(&mut self.machines[machine], self.host);
        }
    }

    fn pause(&mut self, random: &mut Random, pace: &mut Pace, is_read: bool) {
        self.frozen = true;
        let (first, begun) = (self.network.at(self.host), self.host);
        self.at_times((0..3).map(|machine| (begun + random.below(JITTER), machine)).collect(), Hands::stop);
        // It was told that all stand.
        self.run_until(self.host + random.below(JITTER));
        self.network.stop(self.host);
        let last = self.network.at;
        self.host += random.below(JITTER);
        let stood = self.machines.map(|machine| machine.at);
        let (begun, times) = (self.host, stood.map(|at| Some(time(at))));
        let starts = (0..).zip(delays(&times)).map(|(machine, delay)| (begun + delay.as_nanos() as u64 + random.below(JITTER), machine));
        self.at_times(starts.collect(), |machine, host| machine.since = Some(host));
        self.run_until(self.host + random.below(JITTER));
        let went: Vec<_> = ["a", "b", "c"].into_iter().zip(self.machines).zip(stood).collect();
        let went = went.into_iter().map(|((name, hands), stood)| went_on(name, is_read.then_some(stood), hands));
        let Going { at, later } = pace.go_on(&(time(first)..=time(last)), &went.collect::<Vec<_>>(), Duration::from_nanos(self.host));
        self.world.shift(later);
        self.network = Hands { at: at.ns, since: Some(self.host) };
        if is_read {
            assert_eq!(at.ns, self.machines.map(|machine| machine.at(self.host)).into_iter().min().expect("three"), "one time for all");
        }
        for (host, from, number) in std::mem::take(&mut self.early) {
            let sent = at.ns.saturating_sub(self.host - host);
            self.world.send(time(sent), InterfaceId(from), &frame(number));
        }
        self.frozen = false;
    }
}

fn went_on(name: &str, from: Option<u64>, hands: Hands) -> Went {
    went(name, from, hands.since.expect("it runs"))
}

fn frame(number: u64) -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], &number.to_le_bytes()].concat()
}

fn number(frame: &[u8]) -> u64 {
    u64::from_le_bytes(frame[14..].try_into().expect("eight bytes"))
}

/// What was sent before machines stopped is there when it is due, by the clock of whoever waits for it, and not before: however far apart they stop
/// and go on, whether that is made good in the next pause, and whether or not somebody reads their clocks.
#[test]
fn no_pause_makes_a_frame_early() {
    for seed in 1..=12 {
        for is_read in [true, false] {
            let (mut scene, mut random, mut pace) = (Scene::new(), Random(seed), Pace::default());
            for _ in 0..PAUSES {
                scene.run_until(scene.host + 4_000_000 + random.below(40_000_000));
                scene.pause(&mut random, &mut pace, is_read);
            }
            scene.run_until(scene.host + 3 * DELAY);
            let (least, most) = (scene.took.iter().min().expect("some"), scene.took.iter().max().expect("some"));
            assert!(scene.took.len() > 1000, "{}", scene.took.len());
            assert!(*least >= 2 * DELAY, "one is early: {least} ns with seed {seed}");
            // Late by what the machines were apart in the pauses on its way, of which there may be several.
            assert!(*most <= 2 * DELAY + 12 * JITTER, "one is late: {most} ns with seed {seed}");
        }
    }
}
