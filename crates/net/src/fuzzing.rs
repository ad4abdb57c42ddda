//! What a fuzzer may feed with any bytes: the state of a network, what happens at a switch, and a guest, or a QEMU, at an
//! interface. See `fuzz/README.md`.

mod guest;
mod lan;
mod protocol;

pub use guest::net;
pub use lan::lan;
pub use protocol::session;

use crate::{Handover, InterfaceId, World};
use fermata_types::VirtualTime;

/// The state of a network, as a checkpoint keeps it.
///
/// Panics if what was read is not the same when it is written and read again, or if frames go uncounted while it goes on to its end.
pub fn frames(data: &[u8]) {
    let Ok(mut world) = World::from_bytes(data) else { return };
    let bytes = world.to_bytes();
    let again = World::from_bytes(&bytes).expect("what was written can be read");
    assert_eq!(again.to_bytes(), bytes);
    let interfaces = (0..world.topology().interfaces.len() as u32).map(InterfaceId);
    let missing = |world: &World, interface| {
        let counters = world.counters(interface).expect("an interface of its topology")[0];
        let ends = counters.arrived.frames + counters.dropped.total() + world.in_flight(interface).expect("the same interface")[0];
        (counters.sent.frames + counters.duplicated).wrapping_sub(ends)
    };
    let before: Vec<_> = interfaces.clone().map(|interface| missing(&world, interface)).collect();
    for interface in interfaces.clone() {
        world.send(VirtualTime::from_ns(0), interface, &[interface.0 as u8; 60]);
    }
    let take = |interface: InterfaceId| [Handover::Taken, Handover::Waits, Handover::Taken, Handover::Lost][interface.index() % 4];
    world.deliver(VirtualTime::from_ns(u64::MAX), &mut |interface, _| take(interface));
    assert!(world.next_due().is_none_or(|due| due.ns == u64::MAX));
    let after: Vec<_> = interfaces.map(|interface| missing(&world, interface)).collect();
    assert_eq!(before, after);
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn a_network_may_be_made_of_any_bytes() {
        super::replay::replay("frames", 5_000, super::frames);
    }

    #[test]
    fn a_switch_loses_count_of_no_frame() {
        super::replay::replay("lan", 5_000, super::lan);
    }

    #[test]
    fn no_guest_breaks_its_interface() {
        super::replay::replay("net", 5_000, super::net);
    }

    #[test]
    fn no_message_breaks_a_session() {
        super::replay::replay("net-session", 2_000, super::session);
    }
}
