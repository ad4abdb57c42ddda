//! A switch with three ports: its links are any, and so is what is sent, what guests take, and what is changed meanwhile.

use crate::{
    Chance, Change, Discipline, Handover, Interface, InterfaceId, Lan, Mac, Port, Reshape, Shape, Topology, World, topology::MTU_DEFAULT,
};
use fermata_types::VirtualTime;
use fermata_vhost::fuzzing::Bytes;

const PORTS: u8 = 3;
/// More steps find nothing that fewer would not.
const STEPS_MAX: usize = 256;
/// Where a frame says at which port it came in.
const SENDER: usize = 12;

fn mac(port: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, port])
}

fn shape(bytes: &mut Bytes<'_>) -> Shape {
    let what = bytes.byte();
    let has = |bit: u8| what & 1 << bit != 0;
    let mut chance = |bit| Chance { per_billion: if has(bit) { u32::from(bytes.byte()) * 1_000_000_000 / 255 } else { 0 } };
    let [loss, duplicate, reorder] = [3, 4, 5].map(&mut chance);
    let delay_ns = if has(1) { bytes.u32().into() } else { 0 };
    Shape {
        rate: has(0).then(|| 1 + u64::from(bytes.u32())),
        delay_ns,
        jitter_ns: if has(2) { delay_ns * u64::from(bytes.byte()) / 255 } else { 0 },
        loss,
        duplicate,
        reorder,
        queue: if has(6) { 1 + u32::from(bytes.byte() % 8) } else { Shape::QUEUE_DEFAULT },
        discipline: if has(7) { Discipline::Codel } else { Discipline::DropTail },
    }
}

/// A change of some values; one of them may be impossible.
fn reshape(bytes: &mut Bytes<'_>) -> Reshape {
    let what = bytes.byte();
    if what == 0 {
        return Reshape::default();
    }
    let Shape { rate, delay_ns, jitter_ns, loss, duplicate, reorder, queue, discipline } = shape(bytes);
    let has = |bit: u8| what & 1 << bit != 0;
    Reshape {
        rate: has(0).then_some(rate.unwrap_or(0)),
        delay_ns: has(1).then_some(delay_ns),
        jitter_ns: has(2).then_some(jitter_ns),
        loss: has(3).then_some(loss),
        duplicate: has(4).then_some(duplicate),
        reorder: has(5).then_some(reorder),
        queue: has(6).then_some(queue),
        discipline: has(7).then_some(discipline),
    }
}

/// The network, and what the guests have.
struct Scene {
    world: World,
    now: u64,
    /// Frames that each has buffers for.
    buffers: [u32; PORTS as usize],
}

impl Scene {
    fn at(&self) -> VirtualTime {
        VirtualTime::from_ns(self.now)
    }

    fn send(&mut self, bytes: &mut Bytes<'_>) {
        let (ports, count, length) = (bytes.byte(), bytes.byte() % 16, bytes.u16() % 1600);
        let (from, to) = (ports % PORTS, ports / 16);
        // To a station that is there, to one that is not, or to all; now and then from an address that is somebody else's.
        let to = if to < 12 { mac(to % 4) } else { Mac([0xff; 6]) };
        let source = if count == 15 { mac((from + 1) % PORTS) } else { mac(from) };
        let mut frame = [&to.0[..], &source.0, &[from, 0]].concat();
        frame.resize(length.into(), 0);
        let at = self.at();
        (0..=count).for_each(|_| self.world.send(at, InterfaceId(from.into()), &frame));
    }

    fn deliver(&mut self) {
        let Self { world, buffers, now } = self;
        world.deliver(VirtualTime::from_ns(*now), &mut |to, frame| {
            assert_ne!(u32::from(frame[SENDER]), to.0, "a frame came back to where it came from");
            let Some(room) = buffers[to.index()].checked_sub(1) else { return Handover::Waits };
            buffers[to.index()] = room;
            if frame.len().is_multiple_of(7) { Handover::Lost } else { Handover::Taken }
        });
        assert!(*now == u64::MAX || world.next_due().is_none_or(|due| due.ns > *now), "what was due is still there");
    }

    fn change(&mut self, bytes: &mut Bytes<'_>) {
        let (what, sent, received) = (bytes.byte(), reshape(bytes), reshape(bytes));
        let up = [None, None, Some(true), Some(false)][usize::from(what / 64)];
        let before = self.world.topology();
        let interface = InterfaceId(u32::from(what % (PORTS + 1)));
        if self.world.set(self.at(), interface, &Change { up, sent, received }).is_err() {
            assert_eq!(self.world.topology(), before, "what was refused has changed something");
        }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        match bytes.byte() % 16 {
            0..=6 => self.send(bytes),
            7..=9 => {
                let scale = [1, 1_000, 1_000_000, 1_000_000_000][usize::from(bytes.byte() % 4)];
                self.now = self.now.saturating_add(u64::from(bytes.u16()) * scale);
                self.deliver();
            }
            10 | 11 => {
                let (port, count) = (bytes.byte() % PORTS, bytes.byte());
                self.buffers[usize::from(port)] += u32::from(count);
                self.world.retry(InterfaceId(port.into()));
                self.deliver();
            }
            12 => self.change(bytes),
            13 => {
                self.world.reset(InterfaceId((bytes.byte() % PORTS).into()));
            }
            14 => self.world = World::from_bytes(&self.world.to_bytes()).expect("what was written can be read"),
            _ => {
                let by = bytes.u32();
                self.world.shift(by.into());
                self.now = self.now.saturating_add(by.into());
            }
        }
    }

    /// Each frame arrived, was dropped for a reason, or is on its way.
    fn check(&self) {
        for interface in (0..u32::from(PORTS)).map(InterfaceId) {
            let counters = self.world.counters(interface).expect("an interface");
            for (counters, in_flight) in counters.iter().zip(self.world.in_flight(interface).expect("an interface")) {
                let ends = counters.arrived.frames + counters.dropped.total() + in_flight;
                assert_eq!(counters.sent.frames + counters.duplicated, ends, "{interface:?}: {counters:?}");
            }
        }
    }
}

/// A network of one switch, used and changed while it is used.
///
/// Panics if a frame goes uncounted, comes back to its sender, or stays when it is due, or if a capture is not what it was made of.
pub fn lan(data: &[u8]) {
    let mut bytes = Bytes(data);
    let interface = |number| Interface { machine: format!("m{number}"), name: "eth1".into(), mac: mac(number), mtu: MTU_DEFAULT };
    let ports = (0..PORTS).map(|number| Port {
        interface: InterfaceId(number.into()),
        to_switch: shape(&mut bytes),
        from_switch: shape(&mut bytes),
    });
    let lan = Lan { name: "lan".into(), ports: ports.collect() };
    let topology = Topology { interfaces: (0..PORTS).map(interface).collect(), links: Vec::new(), lans: vec![lan] };
    let world = World::new(&topology, 1).expect("shapes within limits");
    let mut scene = Scene { world, now: 0, buffers: [4; PORTS as usize] };
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        scene.step(&mut bytes);
        scene.check();
    }
    // Everything comes to its end.
    scene.now = u64::MAX;
    scene.buffers = [u32::MAX; PORTS as usize];
    (0..u32::from(PORTS)).for_each(|interface| scene.world.retry(InterfaceId(interface)));
    scene.deliver();
    scene.check();
    let left = (0..u32::from(PORTS)).filter_map(|interface| scene.world.in_flight(InterfaceId(interface)));
    assert!(scene.world.next_due().is_some() || left.flatten().all(|frames| frames == 0), "frames that are never due");
}
