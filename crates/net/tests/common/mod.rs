//! Networks and frames for tests.

use fermata_net::{Handover, Interface, InterfaceId, Lan, Link, Mac, Port, Shape, Topology, World};
use fermata_types::VirtualTime;

/// A destination that everybody hears.
pub const BROADCAST: Mac = Mac([0xff; 6]);

/// The address of an interface of these topologies.
pub fn mac(interface: u32) -> Mac {
    Mac([2, 0, 0, 0, 0, interface as u8])
}

fn interface(number: u32, mtu: u16) -> Interface {
    Interface { machine: format!("m{number}"), name: "eth1".into(), mac: mac(number), mtu }
}

/// Two interfaces with a cable between them.
pub fn pair(there: Shape, back: Shape) -> Topology {
    let link = Link { ends: [InterfaceId(0), InterfaceId(1)], shapes: [there, back] };
    Topology { interfaces: (0..2).map(|number| interface(number, 9000)).collect(), links: vec![link], lans: Vec::new() }
}

/// One switch.
pub fn lan(shapes: &[Shape]) -> Topology {
    let ports = shapes.iter().enumerate().map(|(index, shape)| Port {
        interface: InterfaceId(index as u32),
        to_switch: shape.clone(),
        from_switch: shape.clone(),
    });
    let lan = Lan { name: "lan".into(), ports: ports.collect() };
    Topology { interfaces: (0..shapes.len() as u32).map(|number| interface(number, 1500)).collect(), links: Vec::new(), lans: vec![lan] }
}

/// A pair (interfaces 0 and 1) and a switch beside it (the others).
pub fn both(pair_shapes: [Shape; 2], shapes: &[Shape]) -> Topology {
    let [there, back] = pair_shapes;
    let (mut topology, mut lan) = (pair(there, back), lan(shapes));
    for port in &mut lan.lans[0].ports {
        port.interface.0 += 2;
    }
    topology.interfaces.extend((0..shapes.len() as u32).map(|number| interface(number + 2, 1500)));
    topology.lans = lan.lans;
    topology
}

/// A frame of so many bytes, with a number in it where there is room.
pub fn frame(to: Mac, from: Mac, number: u64, bytes: usize) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &[0x88, 0xb5], &number.to_be_bytes()].concat();
    frame.resize(bytes, 0);
    frame
}

/// The number in a frame.
pub fn number(frame: &[u8]) -> u64 {
    frame[14..22].try_into().map(u64::from_be_bytes).expect("a frame with a number")
}

/// Nanoseconds as virtual time.
pub fn at(ns: u64) -> VirtualTime {
    VirtualTime::from_ns(ns)
}

/// Lets time pass up to an instant, and returns each frame with the time at which it came. Nobody lacks buffers.
pub fn run(world: &mut World, until: u64) -> Vec<(u64, InterfaceId, Vec<u8>)> {
    let mut came = Vec::new();
    while let Some(due) = world.next_due().filter(|due| due.ns <= until) {
        world.deliver(due, &mut |interface, frame| {
            came.push((due.ns, interface, frame.to_vec()));
            Handover::Taken
        });
    }
    world.deliver(at(until), &mut |_, _| panic!("nothing is due"));
    came
}
