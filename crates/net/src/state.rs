//! A network as bytes and back: `docs/formats/network.md`. Bytes may come from anywhere.

use crate::{
    codel::Codel,
    counters::{Counters, Dropped, Traffic},
    direction::{Direction, Flying, Frame, LANDED_MAX},
    perturb::Later,
    queue::{Queue, Waiting},
    random::Random,
    switch::{Station, Switch},
    topology::{Lan, Mac, Topology},
    world::World,
};
use fermata_types::Perturbation;

const MAGIC: &[u8; 8] = b"FERMANET";
const VERSION: u32 = 5;
/// Without the ports at which frames came in that are on their way, or wait for a guest. They count as of one.
const VERSION_WITHOUT_SENDERS: u32 = 4;
/// Without what is different in a replay, besides: nothing was.
const VERSION_WITHOUT_PERTURBATION: u32 = 3;
/// Without the count of frames that were lost at the receiver's door, besides: they counted as arrived.
const VERSION_WITHOUT_DOORS: u32 = 2;
/// Without the ports at which waiting frames came in, besides. They count as of one.
const VERSION_WITHOUT_PORTS: u32 = 1;
/// Bytes of the topology in JSON: some hundred an interface.
const TOPOLOGY_MAX: usize = 8 << 20;
/// In a network that is perturbed, and in what.
const PERTURBED: u8 = 1;
const TIMING: u8 = 2;
const ORDER: u8 = 4;
const LUCK: u8 = 8;
/// Counts above this are not from counting.
const COUNT_MAX: u64 = u64::MAX >> 8;

/// A frame with a time, and the port of the switch at which it came in.
type TimedFrame = (u64, u32, Frame);

/// Bytes that are no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the state of the network cannot be read: {0}")]
pub struct Unreadable(String);

impl Unreadable {
    pub(crate) fn new(what: impl std::fmt::Display) -> Self {
        Self(what.to_string())
    }
}

impl World {
    /// All of the network: what is connected how, every frame with the time at which it is due, the state of every generator, what the
    /// switches learned, the counts.
    pub fn to_bytes(&self) -> Vec<u8> {
        let topology = serde_json::to_vec(&self.topology()).expect("names and numbers can be written as JSON");
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((topology.len() as u32).to_le_bytes());
        bytes.extend(topology);
        numbers(&mut bytes, &[self.seed, self.now]);
        write_perturbation(&mut bytes, self.perturbation);
        self.directions.iter().for_each(|direction| write_direction(&mut bytes, direction));
        self.switches.iter().for_each(|switch| write_switch(&mut bytes, switch));
        bytes
    }

    /// The network that [`to_bytes`](Self::to_bytes) wrote down.
    ///
    /// # Errors
    /// Bytes that no network writes: broken ones, another version's, more than a network may hold.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut reader = Reader(bytes);
        if reader.array()? != *MAGIC {
            return unreadable("it does not begin as one");
        }
        let version = reader.u32()?;
        if !(VERSION_WITHOUT_PORTS..=VERSION).contains(&version) {
            return unreadable(format!("it has version {version}, and this program reads versions {VERSION_WITHOUT_PORTS} to {VERSION}"));
        }
        let length = reader.u32()? as usize;
        if length > TOPOLOGY_MAX {
            return unreadable(format!("a topology of {length} bytes"));
        }
        let topology: Topology = serde_json::from_slice(reader.take(length)?).map_err(|error| Unreadable(error.to_string()))?;
        let seed = reader.u64()?;
        let mut world = World::new(&topology, seed).map_err(|error| Unreadable(error.to_string()))?;
        world.now = reader.u64()?;
        world.perturbation = if version > VERSION_WITHOUT_PERTURBATION { read_perturbation(&mut reader)? } else { None };
        let perturbation = world.perturbation.filter(Perturbation::delays);
        let ports = ports(&topology);
        for (index, (direction, ports)) in world.directions.iter_mut().zip(ports).enumerate() {
            read_direction(&mut reader, direction, version, ports)?;
            direction.random = Random::new(seed, index as u64, reader.u64()?);
            let drawn = if version > VERSION_WITHOUT_PERTURBATION { reader.u64()? } else { 0 };
            direction.later = perturbation.map(|perturbation| Later::new(&perturbation, index, drawn));
            if drawn > 0 && direction.later.is_none() {
                return unreadable("late frames in a network that has none");
            }
        }
        for (switch, lan) in world.switches.iter_mut().zip(&topology.lans) {
            read_switch(&mut reader, switch, lan.ports.len() as u32)?;
        }
        if !reader.0.is_empty() {
            return unreadable(format!("{} bytes follow its end", reader.0.len()));
        }
        if !world.take_up() {
            return unreadable("its frames are more than a network holds");
        }
        Ok(world)
    }
}

fn write_direction(bytes: &mut Vec<u8>, direction: &Direction) {
    let Direction { up, codel, counters, free_at, fraction, last_due, .. } = direction;
    bytes.push(u8::from(*up) | u8::from(codel.dropping) << 1);
    numbers(bytes, &[*free_at, *fraction, *last_due, codel.first_above, codel.drop_next]);
    bytes.extend(codel.count.to_le_bytes());
    bytes.extend(codel.last_count.to_le_bytes());
    numbers(bytes, &counts(counters));
    let of_waiting = |waiting: &Waiting| (waiting.since, waiting.from, waiting.frame.clone());
    let waiting = |queue: &Queue| queue.frames().into_iter().map(of_waiting).collect::<Vec<_>>();
    let [queue, landed] = [waiting(&direction.queue), waiting(&direction.landed)];
    let flying = direction.flying.iter().map(|flying| (flying.due, flying.from, flying.frame.clone())).collect::<Vec<_>>();
    [queue, flying, landed].iter().for_each(|frames| write_frames(bytes, frames));
    numbers(bytes, &[direction.random.position(), direction.later.as_ref().map_or(0, Later::position)]);
}

fn write_perturbation(bytes: &mut Vec<u8>, perturbation: Option<Perturbation>) {
    let Perturbation { seed, timing, order, luck, within_ns } = perturbation.unwrap_or_default();
    let flags = [(PERTURBED, perturbation.is_some()), (TIMING, timing), (ORDER, order), (LUCK, luck)];
    bytes.push(flags.iter().filter(|(_, on)| *on).map(|(flag, _)| flag).sum());
    numbers(bytes, &[seed, within_ns]);
}

fn read_perturbation(reader: &mut Reader) -> Result<Option<Perturbation>, Unreadable> {
    let flags = reader.u8()?;
    let [seed, within_ns] = reader.u64s()?;
    let on = |flag| flags & flag != 0;
    let perturbation = Perturbation { seed, timing: on(TIMING), order: on(ORDER), luck: on(LUCK), within_ns };
    match flags {
        0 if perturbation == Perturbation::default() => Ok(None),
        flags if on(PERTURBED) && flags < LUCK << 1 && perturbation.is_valid() => Ok(Some(perturbation)),
        _ => unreadable("a perturbation that cannot be"),
    }
}

/// By direction: of how many ports frames can be in it.
fn ports(topology: &Topology) -> impl Iterator<Item = u32> {
    let of_lan = |lan: &Lan| lan.ports.iter().flat_map(|_| [1, lan.ports.len() as u32]).collect::<Vec<_>>();
    topology.links.iter().flat_map(|_| [1, 1]).chain(topology.lans.iter().flat_map(of_lan))
}

/// In a direction in which frames of so many ports can be.
fn read_direction(reader: &mut Reader, direction: &mut Direction, version: u32, ports: u32) -> Result<(), Unreadable> {
    let flags = reader.u8()?;
    direction.up = flags & 1 != 0;
    [direction.free_at, direction.fraction, direction.last_due] = reader.u64s()?;
    let [first_above, drop_next] = reader.u64s()?;
    let [count, last_count] = [reader.u32()?, reader.u32()?];
    direction.codel = Codel { dropping: flags & 2 != 0, first_above, drop_next, count, last_count };
    let counts_before = reader.u64s()?;
    direction.counters = counted(counts_before, if version > VERSION_WITHOUT_DOORS { reader.u64()? } else { 0 });
    if flags > 3 || counts(&direction.counters).iter().any(|count| *count > COUNT_MAX) {
        return unreadable("flags or counts that cannot be");
    }
    if direction.fraction >= direction.shape.rate.unwrap_or(1) {
        return unreadable("a transmitter that is more than a nanosecond behind");
    }
    let allowed = |frame: &Frame| if direction.allows(frame.len()) { Ok(()) } else { unreadable("a frame too short or too long") };
    let queue = reader.frames(allowed, (version > VERSION_WITHOUT_PORTS).then_some(ports))?;
    let senders = (version > VERSION_WITHOUT_SENDERS).then_some(ports);
    let [flying, landed] = [reader.frames(allowed, senders)?, reader.frames(allowed, senders)?];
    if !flying.is_sorted_by_key(|(due, ..)| *due) || landed.len() > LANDED_MAX || landed.iter().any(|(time, ..)| *time != 0) {
        return unreadable("frames in an order or a number that cannot be");
    }
    queue.into_iter().for_each(|(since, from, frame)| direction.queue.push(Waiting { since, from, frame }));
    direction.flying = flying.into_iter().map(|(due, from, frame)| Flying { due, from, frame }).collect();
    landed.into_iter().for_each(|(since, from, frame)| direction.landed.push(Waiting { since, from, frame }));
    Ok(())
}

fn write_frames(bytes: &mut Vec<u8>, frames: &[TimedFrame]) {
    bytes.extend((frames.len() as u32).to_le_bytes());
    for (time, _, frame) in frames {
        bytes.extend(time.to_le_bytes());
        bytes.extend((frame.len() as u16).to_le_bytes());
        bytes.extend(&**frame);
    }
    frames.iter().for_each(|(_, from, _)| bytes.extend(from.to_le_bytes()));
}

fn write_switch(bytes: &mut Vec<u8>, switch: &Switch) {
    numbers(bytes, &[switch.swept]);
    bytes.extend((switch.stations.len() as u32).to_le_bytes());
    for (mac, station) in &switch.stations {
        bytes.extend(mac.0);
        bytes.extend(station.port.to_le_bytes());
        bytes.extend(station.heard.to_le_bytes());
    }
}

fn read_switch(reader: &mut Reader, switch: &mut Switch, ports: u32) -> Result<(), Unreadable> {
    let swept = reader.u64()?;
    // So that nothing is swept out while it is read.
    switch.swept = u64::MAX;
    let mut last = None;
    for _ in 0..reader.u32()? {
        let mac = Mac(reader.array()?);
        let Station { port, heard } = Station { port: reader.u32()?, heard: reader.u64()? };
        if last >= Some(mac) || mac.is_group() || port >= ports || !switch.learn(heard, port, mac) {
            return unreadable("a switch that learned what it cannot");
        }
        last = Some(mac);
    }
    switch.swept = swept;
    Ok(())
}

fn counts(counters: &Counters) -> [u64; 15] {
    let Counters { sent, arrived, dropped, duplicated, reordered } = *counters;
    let Dropped { runt, giant, down, loss, queue, discipline, memory, receiver, door } = dropped;
    let Traffic { frames, bytes } = sent;
    let Traffic { frames: came, bytes: came_bytes } = arrived;
    [frames, bytes, came, came_bytes, runt, giant, down, loss, queue, discipline, memory, receiver, duplicated, reordered, door]
}

/// From all counts but the last one, and that.
fn counted(counts: [u64; 14], door: u64) -> Counters {
    let [frames, bytes, arrived, arrived_bytes, runt, giant, down, loss, queue, discipline, memory, receiver, duplicated, reordered] =
        counts;
    Counters {
        sent: Traffic { frames, bytes },
        arrived: Traffic { frames: arrived, bytes: arrived_bytes },
        dropped: Dropped { runt, giant, down, loss, queue, discipline, memory, receiver, door },
        duplicated,
        reordered,
    }
}

fn numbers(bytes: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
}

/// What is left to read.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8], Unreadable> {
        let Some((taken, rest)) = self.0.split_at_checked(count) else { return unreadable("it ends too early") };
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, Unreadable> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, Unreadable> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Unreadable> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Unreadable> {
        self.array().map(u64::from_le_bytes)
    }

    fn u64s<const N: usize>(&mut self) -> Result<[u64; N], Unreadable> {
        let mut numbers = [0; N];
        numbers.iter_mut().try_for_each(|number| self.u64().map(|read| *number = read))?;
        Ok(numbers)
    }

    /// One of so many ports.
    fn port(&mut self, ports: u32) -> Result<u32, Unreadable> {
        let port = self.u32()?;
        if port < ports { Ok(port) } else { unreadable("a frame from a port that is not there") }
    }

    /// A count, then frames with a time each, then the port of each, if these are there: of so many. The list grows as it is read: the count alone takes no memory.
    fn frames(&mut self, allowed: impl Fn(&Frame) -> Result<(), Unreadable>, ports: Option<u32>) -> Result<Vec<TimedFrame>, Unreadable> {
        let mut frames = Vec::new();
        for _ in 0..self.u32()? {
            let time = self.u64()?;
            let length = self.u16()?.into();
            let frame: Frame = self.take(length)?.into();
            allowed(&frame)?;
            frames.push((time, 0, frame));
        }
        if let Some(ports) = ports {
            frames.iter_mut().try_for_each(|(_, from, _)| self.port(ports).map(|port| *from = port))?;
        }
        Ok(frames)
    }
}

fn unreadable<T>(what: impl Into<String>) -> Result<T, Unreadable> {
    Err(Unreadable(what.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Interface, InterfaceId, Link, Mac, Port, Shape};
    use fermata_types::VirtualTime;

    /// Bytes of a direction without frames, up to the count of those that were lost at the door and behind it.
    const BEFORE_DOOR: usize = 1 + 5 * 8 + 2 * 4 + 14 * 8;
    const BEHIND_DOOR: usize = 3 * 4 + 8 + 8;
    /// Bytes of what is different in a replay: of all the network, and at the end of each direction.
    const PERTURBATION: usize = 1 + 2 * 8;
    const DRAWN: usize = 8;

    #[test]
    fn networks_of_older_versions_are_read() {
        let interface = |name: &str| Interface { machine: name.into(), name: "eth1".into(), mac: Mac([2; 6]), mtu: 1500 };
        let link = Link { ends: [0, 1].map(InterfaceId), shapes: Default::default() };
        let topology = Topology { interfaces: vec![interface("a"), interface("b")], links: vec![link], lans: vec![] };
        let mut world = World::new(&topology, 1).unwrap();
        world.send(VirtualTime::default(), InterfaceId(0), &[0; 5]);
        let bytes = world.to_bytes();
        let direction = BEFORE_DOOR + 8 + BEHIND_DOOR;
        let head = bytes.len() - 2 * direction;
        for version in VERSION_WITHOUT_PORTS..VERSION {
            let mut older = bytes.clone();
            for start in [head + direction, head] {
                if version <= VERSION_WITHOUT_PERTURBATION {
                    older.drain(start + direction - DRAWN..start + direction);
                }
                if version <= VERSION_WITHOUT_DOORS {
                    older.drain(start + BEFORE_DOOR..start + BEFORE_DOOR + 8);
                }
            }
            if version <= VERSION_WITHOUT_PERTURBATION {
                older.drain(head - PERTURBATION..head);
            }
            older[8..12].copy_from_slice(&version.to_le_bytes());
            let read = World::from_bytes(&older).unwrap();
            assert_eq!(read.counters(InterfaceId(0)), world.counters(InterfaceId(0)), "version {version}");
            assert_eq!(read.to_bytes(), bytes, "version {version}");
        }
    }

    #[test]
    fn the_state_says_where_each_frame_came_in() {
        let interface =
            |number: u8| Interface { machine: number.to_string(), name: "eth1".into(), mac: Mac([2, 0, 0, 0, 0, number]), mtu: 1500 };
        let port = |number, from_switch: &Shape| Port {
            interface: InterfaceId(number),
            to_switch: Shape::default(),
            from_switch: from_switch.clone(),
        };
        let [slow, far] = [Shape { rate: Some(8), ..Shape::default() }, Shape { delay_ns: 1_000_000_000, ..Shape::default() }];
        let ports = vec![port(0, &slow), port(1, &far), port(2, &Shape::default())];
        let lan = Lan { name: "lan".into(), ports };
        let topology = Topology { interfaces: (0..3).map(interface).collect(), links: vec![], lans: vec![lan] };
        let mut world = World::new(&topology, 1).unwrap();
        // To all, of whom one has a frame on its way to its transmitter, one has it on the cable, and one at its door.
        for from in [2, 1, 0, 1] {
            world.send(VirtualTime::default(), InterfaceId(from), &[&[0xff_u8; 6][..], &[2, 0, 0, 0, 0, from as u8], &[0; 48]].concat());
        }
        world.deliver(VirtualTime::default(), &mut |_, _| crate::Handover::Waits);
        let senders = |world: &World| {
            let of = |queue: &Queue| queue.frames().iter().map(|waiting| waiting.from).collect::<Vec<_>>();
            let flying = world.directions.iter().flat_map(|direction| &direction.flying).map(|flying| flying.from).collect::<Vec<_>>();
            let directions = || world.directions.iter();
            let queued = directions().flat_map(|direction| of(&direction.queue)).collect::<Vec<_>>();
            [queued, flying, directions().flat_map(|direction| of(&direction.landed)).collect()]
        };
        let expected = [vec![1, 1], vec![2, 2, 0], vec![1, 0, 1]];
        let bytes = world.to_bytes();
        let read = World::from_bytes(&bytes).unwrap();
        assert_eq!([senders(&world), senders(&read)], [expected.clone(), expected]);
        assert_eq!(read.to_bytes(), bytes);
    }

    #[test]
    fn more_than_a_network_comes_to_hold_is_refused() {
        let interface = |name: &str| Interface { machine: name.into(), name: "eth1".into(), mac: Mac([2; 6]), mtu: 1500 };
        let slow = Shape { delay_ns: 3_600_000_000_000, ..Shape::default() };
        let link = Link { ends: [0, 1].map(InterfaceId), shapes: [slow.clone(), slow] };
        let topology = Topology { interfaces: vec![interface("a"), interface("b")], links: vec![link], lans: vec![] };
        let [mut world, other] = [0, 1].map(|from| {
            let mut world = World::new(&topology, 1).unwrap();
            while world.counters(InterfaceId(from)).unwrap()[0].dropped.memory == 0 {
                world.send(VirtualTime::default(), InterfaceId(from), &[0; 1514]);
            }
            World::from_bytes(&world.to_bytes()).unwrap()
        });
        // Each of them has more than its own, up to the common half: one of them may, and both cannot have come to it.
        world.directions[1] = other.directions[1].clone();
        let error = World::from_bytes(&world.to_bytes()).unwrap_err().to_string();
        assert!(error.contains("more than a network holds"), "{error}");
    }
}
