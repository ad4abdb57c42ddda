//! The network as a value in virtual time: what is sent goes in, and comes out when and where it is due.

use crate::{
    change::Change,
    counters::{Counters, Traffic},
    direction::{Direction, Flying, Frame, Memory},
    random::Random,
    switch::{Forward, Switch},
    topology::{InterfaceId, Lan, Link, Port, Shape, Topology, TopologyError},
};
use fermata_types::{Perturbation, VirtualTime};
use std::collections::BTreeSet;

/// All cables and switches of an experiment, with every frame in them.
///
/// It has no clock and does nothing by itself. Each call is given the virtual time, and first does what was due until then, each thing at
/// its own time. So it does not matter how late it is called: only handing a frame over may come late. A time that lies before that of an
/// earlier call counts as that one. While the experiment is frozen, virtual time stands: frames may still be sent, and nobody calls
/// [`deliver`](Self::deliver).
///
/// A clone, or what [`from_bytes`](Self::from_bytes) makes of [`to_bytes`](Self::to_bytes), does from then on what this one does. Frames
/// are shared between clones, so a clone is cheap enough for the pause.
#[derive(Debug, Clone)]
pub struct World {
    /// Its shapes are those of the beginning; the present ones are in the directions.
    topology: Topology,
    pub(crate) seed: u64,
    pub(crate) perturbation: Option<Perturbation>,
    pub(crate) now: u64,
    pub(crate) directions: Vec<Direction>,
    pub(crate) switches: Vec<Switch>,
    pub(crate) memory: Memory,
    targets: Vec<Target>,
    /// By interface.
    wires: Vec<Wire>,
    /// By LAN: its first direction. Each port has two, to the switch and from it.
    first: Vec<usize>,
    /// What is to be done when: time and direction.
    agenda: BTreeSet<(u64, usize)>,
    /// Directions at whose far end frames can be handed over.
    ready: BTreeSet<usize>,
}

/// The two directions of an interface's cable.
#[derive(Debug, Clone, Copy)]
struct Wire {
    out: usize,
    into: usize,
    /// The guest had no buffer and has not said since that it has one.
    stalled: bool,
}

/// What became of a frame that was handed over to a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    /// The guest has it.
    Taken,
    /// It is lost: nobody is there, or its buffer has no room for the frame.
    Lost,
    /// The guest has no buffer. The frame waits.
    Waits,
}

/// Where a direction leads.
#[derive(Debug, Clone, Copy)]
enum Target {
    Interface(InterfaceId),
    Switch { lan: usize, port: u32 },
}

impl World {
    /// An empty network. The same seed brings the same luck to the same frames.
    pub fn new(topology: &Topology, seed: u64) -> Result<Self, TopologyError> {
        topology.check()?;
        let interfaces = topology.interfaces.len();
        let mut world = Self {
            topology: topology.clone(),
            seed,
            perturbation: None,
            now: 0,
            directions: Vec::new(),
            switches: topology.lans.iter().map(|lan| Switch::new(lan.ports.len())).collect(),
            memory: Memory::new(0),
            targets: Vec::new(),
            // Every interface is connected, so each gets its directions below.
            wires: vec![Wire { out: 0, into: 0, stalled: false }; interfaces],
            first: Vec::new(),
            agenda: BTreeSet::new(),
            ready: BTreeSet::new(),
        };
        topology.links.iter().for_each(|link| world.lay_link(link));
        topology.lans.iter().enumerate().for_each(|(index, lan)| world.lay_lan(index, lan));
        world.memory = Memory::new(world.directions.len());
        Ok(world)
    }

    fn lay_link(&mut self, link: &Link) {
        let mtus = link.ends.map(|end| self.topology.interfaces[end.index()].mtu);
        let mtu = mtus[0].min(mtus[1]);
        for (side, shape) in link.shapes.iter().enumerate() {
            let [from, to] = [link.ends[side], link.ends[1 - side]];
            let direction = self.lay(shape, mtu, Target::Interface(to));
            self.wires[from.index()].out = direction;
            self.wires[to.index()].into = direction;
        }
    }

    fn lay_lan(&mut self, lan: usize, Lan { ports, .. }: &Lan) {
        self.first.push(self.directions.len());
        for (port, Port { interface, to_switch, from_switch }) in ports.iter().enumerate() {
            let mtu = self.topology.interfaces[interface.index()].mtu;
            let out = self.lay(to_switch, mtu, Target::Switch { lan, port: port as u32 });
            let into = self.lay(from_switch, mtu, Target::Interface(*interface));
            self.wires[interface.index()] = Wire { out, into, stalled: false };
        }
    }

    fn lay(&mut self, shape: &Shape, mtu: u16, target: Target) -> usize {
        let index = self.directions.len();
        self.directions.push(Direction::new(shape.clone(), mtu, Random::new(self.seed, index as u64, 0)));
        self.targets.push(target);
        index
    }

    /// What is connected how, with the shapes as they are now.
    pub fn topology(&self) -> Topology {
        let mut topology = self.topology.clone();
        let mut shapes = self.directions.iter().map(|direction| direction.shape.clone());
        let links = topology.links.iter_mut().flat_map(|link| &mut link.shapes);
        let ports = topology.lans.iter_mut().flat_map(|lan| &mut lan.ports);
        // In the order in which the directions were laid.
        links.chain(ports.flat_map(|port| [&mut port.to_switch, &mut port.from_switch])).for_each(|shape| {
            if let Some(now) = shapes.next() {
                *shape = now;
            }
        });
        topology
    }

    /// Takes a frame that a guest sends: from the destination's address on, without a check sequence.
    ///
    /// # Panics
    /// If there is no such interface.
    pub fn send(&mut self, now: VirtualTime, from: InterfaceId, frame: &[u8]) {
        self.put_in(now, from, &frame.into());
    }

    /// The same with a frame that it may keep.
    pub(crate) fn put_in(&mut self, now: VirtualTime, from: InterfaceId, frame: &Frame) {
        self.advance(now);
        let (now, out) = (self.now, self.wires[from.index()].out);
        self.change(out, |direction, memory| direction.enter(now, 0, frame, memory));
    }

    /// Counts what a guest sent and nobody had room for on its way in.
    pub(crate) fn note_lost(&mut self, from: InterfaceId, lost: Traffic) {
        let counters = &mut self.directions[self.wires[from.index()].out].counters;
        counters.sent.frames += lost.frames;
        counters.sent.bytes += lost.bytes;
        counters.dropped.memory += lost.frames;
    }

    /// When [`deliver`](Self::deliver) is to be called next, if nothing is sent until then. It may have nothing to hand over yet.
    pub fn next_due(&self) -> Option<VirtualTime> {
        if !self.ready.is_empty() {
            return Some(VirtualTime::from_ns(self.now));
        }
        let mut due: Option<u64> = None;
        for &(at, index) in &self.agenda {
            if due.is_some_and(|due| due <= at) {
                break;
            }
            let arrival = self.directions[index].earliest_arrival();
            due = due.into_iter().chain(arrival).min();
        }
        due.map(|due| VirtualTime::from_ns(due.max(self.now)))
    }

    /// Hands over each frame that is due, in the order in which they arrive. `take` says what became of it. If it waits, so do those
    /// that follow it, and its interface is not tried again before [`retry`](Self::retry). An interface that lets very many wait loses
    /// what comes then, or what whoever has most there sent last.
    pub fn deliver(&mut self, now: VirtualTime, take: &mut impl FnMut(InterfaceId, &[u8]) -> Handover) {
        while let Some(index) = self.ready.first().copied() {
            self.hand_over(index, take);
        }
        while let Some(index) = self.step(now.ns) {
            self.hand_over(index, take);
        }
        self.now = self.now.max(now.ns);
    }

    /// The guest has buffers again: frames that wait for it are handed over by the next [`deliver`](Self::deliver).
    ///
    /// # Panics
    /// If there is no such interface.
    pub fn retry(&mut self, interface: InterfaceId) {
        let wire = &mut self.wires[interface.index()];
        wire.stalled = false;
        if !self.directions[wire.into].landed.is_empty() {
            self.ready.insert(wire.into);
        }
    }

    /// The guest's driver has begun anew: what waits for buffers of its is lost, as in a network card that is reset. Returns how many
    /// frames that were.
    ///
    /// # Panics
    /// If there is no such interface.
    pub fn reset(&mut self, interface: InterfaceId) -> u64 {
        let wire = &mut self.wires[interface.index()];
        wire.stalled = false;
        self.ready.remove(&wire.into);
        self.directions[wire.into].clear_door(&mut self.memory)
    }

    /// Changes the cable of an interface. Frames whose transmission has begun keep the time at which they are due.
    ///
    /// # Errors
    /// No such interface, or a value that cannot be. Then nothing was changed.
    pub fn set(&mut self, now: VirtualTime, end: InterfaceId, change: &Change) -> Result<(), TopologyError> {
        let Some(&Wire { out, into, .. }) = self.wires.get(end.index()) else { return Err(TopologyError::no_interface(end)) };
        let sent = change.sent.apply(&self.directions[out].shape)?;
        let received = change.received.apply(&self.directions[into].shape)?;
        self.advance(now);
        for (index, shape) in [(out, sent), (into, received)] {
            self.change(index, |direction, memory| {
                direction.reshape(shape);
                if let Some(up) = change.up {
                    direction.plug(up, memory);
                }
            });
        }
        Ok(())
    }

    /// Moves all that is in it in time: from now on each thing happens so many nanoseconds later, or earlier, than it would have.
    pub fn shift(&mut self, by: i64) {
        if by == 0 {
            return;
        }
        let moved = |at: u64| at.saturating_add_signed(by);
        self.now = moved(self.now);
        self.directions.iter_mut().for_each(|direction| direction.shift(moved));
        self.switches.iter_mut().for_each(|switch| switch.shift(moved));
        self.agenda = self.agenda.iter().map(|(at, index)| (moved(*at), *index)).collect();
    }

    /// Goes on at this time, in which nobody has called [`deliver`](Self::deliver) for a while. What was to arrive meanwhile arrives from now on, one frame after the other as it would have, and what
    /// follows it there arrives a little faster until the time is made good. All at once would be more than a link carries, and its receiver would see it.
    pub fn go_on(&mut self, now: VirtualTime) {
        (0..self.directions.len()).for_each(|index| self.change(index, |direction, _| direction.go_on(now.ns)));
    }

    /// The time until which it has done what was due.
    pub fn now(&self) -> VirtualTime {
        VirtualTime::from_ns(self.now)
    }

    /// Whether the cable of an interface is plugged in. None if there is no such interface.
    pub fn is_up(&self, interface: InterfaceId) -> Option<bool> {
        self.wires.get(interface.index()).map(|wire| self.directions[wire.out].up)
    }

    /// The counts of what an interface sends, and of what it receives. None if there is no such interface.
    pub fn counters(&self, interface: InterfaceId) -> Option<[Counters; 2]> {
        let wire = self.wires.get(interface.index())?;
        Some([wire.out, wire.into].map(|index| self.directions[index].counters))
    }

    /// Frames that are on their way from an interface, and to it. None if there is no such interface.
    pub fn in_flight(&self, interface: InterfaceId) -> Option<[u64; 2]> {
        let wire = self.wires.get(interface.index())?;
        Some([wire.out, wire.into].map(|index| self.directions[index].in_flight()))
    }

    fn advance(&mut self, now: VirtualTime) {
        while self.step(now.ns).is_some() {}
        self.now = self.now.max(now.ns);
    }

    /// Does what is due until a time, up to the first frame that arrives at an interface: then returns the direction it came by.
    fn step(&mut self, until: u64) -> Option<usize> {
        while let Some(&(at, index)) = self.agenda.first()
            && at <= until.max(self.now)
        {
            self.now = self.now.max(at);
            let Some(arriving) = self.change(index, Direction::step) else { continue };
            match self.targets[index] {
                Target::Interface(interface) => {
                    self.land(index, interface, arriving);
                    return Some(index);
                }
                Target::Switch { lan, port } => {
                    self.arrived(index, &arriving.frame);
                    self.switch(lan, port, &arriving.frame);
                }
            }
        }
        None
    }

    /// A frame is at its interface.
    fn land(&mut self, index: usize, interface: InterfaceId, arriving: Flying) {
        self.directions[index].land(arriving, &mut self.memory);
        if !self.wires[interface.index()].stalled {
            self.ready.insert(index);
        }
    }

    fn hand_over(&mut self, index: usize, take: &mut impl FnMut(InterfaceId, &[u8]) -> Handover) {
        let Target::Interface(interface) = self.targets[index] else { return };
        while self.ready.contains(&index) {
            let frame = self.directions[index].landed.first().map(|waiting| waiting.frame.clone());
            let handover = frame.as_ref().map(|frame| take(interface, frame));
            match (frame, handover) {
                (Some(frame), Some(Handover::Taken)) => {
                    self.directions[index].landed.pop();
                    self.arrived(index, &frame);
                }
                (Some(frame), Some(Handover::Lost)) => {
                    let direction = &mut self.directions[index];
                    direction.landed.pop();
                    direction.counters.dropped.door += 1;
                    direction.release(&frame, &mut self.memory);
                }
                (rest, _) => {
                    self.wires[interface.index()].stalled = rest.is_some();
                    self.ready.remove(&index);
                }
            }
        }
    }

    fn arrived(&mut self, index: usize, frame: &Frame) {
        let direction = &mut self.directions[index];
        direction.counters.arrived.count(frame);
        direction.release(frame, &mut self.memory);
    }

    fn switch(&mut self, lan: usize, port: u32, frame: &Frame) {
        let now = self.now;
        let ports = match self.switches[lan].forward(now, port, frame) {
            Forward::Nobody => 0..0,
            Forward::Port(to) => to..to + 1,
            Forward::AllOthers => 0..self.topology.lans[lan].ports.len() as u32,
        };
        for to in ports.filter(|to| *to != port) {
            let from_switch = self.first[lan] + 2 * to as usize + 1;
            self.change(from_switch, |direction, memory| direction.enter(now, port, frame, memory));
        }
    }

    /// Does something to a direction, after which the agenda says when it is next to be looked at.
    fn change<R>(&mut self, index: usize, change: impl FnOnce(&mut Direction, &mut Memory) -> R) -> R {
        let direction = &mut self.directions[index];
        let before = direction.next();
        let result = change(direction, &mut self.memory);
        let after = direction.next();
        if before != after {
            before.map(|at| self.agenda.remove(&(at, index)));
            after.map(|at| self.agenda.insert((at, index)));
        }
        result
    }

    /// Takes up frames that were put into the directions from outside. False if no world comes to hold them.
    pub(crate) fn take_up(&mut self) -> bool {
        let memory = &mut self.memory;
        let held: Vec<_> = self.directions.iter_mut().map(|direction| direction.hold(memory)).collect();
        if !memory.can_hold(held.into_iter()) {
            return false;
        }
        for (index, direction) in self.directions.iter().enumerate() {
            direction.next().map(|at| self.agenda.insert((at, index)));
            if !direction.landed.is_empty() {
                self.ready.insert(index);
            }
        }
        true
    }
}
