//! The network of a body: what it and the machines have to know of each other.

use crate::{
    Error, Result,
    machine_body::{MachineBody, Return, Stage},
    plan::{MachinePlan, part},
    several::side_by_side,
};
use fermata_linux::clock::monotonic;
use fermata_net::{Change, Clock, Fabric, InterfaceId, NetworkPart, NicOptions, Snapshot, Topology, TopologyError, WORLD, World};
use fermata_store::{Record, Store, Writer};
use fermata_types::{CheckpointId, VirtualTime};
use fermata_vm::Net;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

/// The name of the network as a part.
const NETWORK: &str = "network";
/// How the name of an interface begins; its number follows.
const ETH: &str = "eth";

/// A network at work between the machines of a body.
pub(crate) struct Network {
    fabric: Arc<Fabric>,
    topology: Topology,
    /// By interface: whether its guest was last told that it is plugged in. Held while links and carriers are being made alike.
    told: Mutex<Vec<bool>>,
    /// Somebody is about to tell the guests, and has not looked yet what there is to tell.
    teller: AtomicBool,
}

/// The interfaces of a machine, as QEMU is to make them.
pub(crate) fn nets(topology: &Topology, machine: &str) -> Vec<Net> {
    let own = topology.interfaces.iter().filter(|interface| interface.machine == machine);
    own.map(|interface| Net { number: number(&interface.name), mac: interface.mac.to_string(), mtu: interface.mtu }).collect()
}

/// The number in an interface's name. A name without one, which no specification has, gets a number for which QEMU has no place.
fn number(name: &str) -> u32 {
    name.strip_prefix(ETH).and_then(|number| number.parse().ok()).unwrap_or(u32::MAX)
}

impl Network {
    /// Serves the interfaces of machines that are about to be started. It is frozen yet.
    pub fn start(topology: &Topology, machines: &[(&MachinePlan, Stage)]) -> Result<Self> {
        let snapshot = Snapshot::new(topology, seed(topology)).map_err(|error| Error::Unsupported(format!("the network: {error}")))?;
        let nic = |interface: &fermata_net::Interface| {
            let (_, stage) = machines.iter().find(|(plan, _)| plan.machine.name == interface.machine)?;
            let socket = stage.place.net_socket(number(&interface.name));
            Some(NicOptions { socket, dirty: stage.dirty.clone(), watch: Some(stage.memory.clone()) })
        };
        let nics: Option<Vec<_>> = topology.interfaces.iter().map(nic).collect();
        let nics = nics.ok_or_else(|| Error::Unsupported("the network: an interface of a machine that is not there".into()))?;
        let clock = Arc::new(Clock::standing(VirtualTime::default(), monotonic));
        let fabric = Arc::new(Fabric::start(snapshot, clock, nics)?);
        Ok(Self { told: Mutex::new(plugged(&fabric)), fabric, topology: topology.clone(), teller: AtomicBool::new(false) })
    }

    /// The network itself.
    pub fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    /// Changes the link of an interface. The guests at its ends see whether it is plugged in; one that does not answer does not.
    ///
    /// # Errors
    /// No such interface, or a value that cannot be. Then nothing was changed.
    pub fn change(&self, machines: &[MachineBody], interface: InterfaceId, change: &Change) -> Result<(), TopologyError> {
        let mut told = self.told();
        self.fabric.change(interface, change)?;
        self.tell(&mut told, machines);
        Ok(())
    }

    /// The same for whoever sees to it in another way that no checkpoint is taken meanwhile: waits for no guest. They see it when links are held next.
    ///
    /// # Errors
    /// The same.
    pub fn change_unseen(&self, interface: InterfaceId, change: &Change) -> Result<(), TopologyError> {
        self.fabric.change(interface, change)
    }

    /// Whether whoever asks is to have the guests see what has changed, by [`hold_links`](Self::hold_links). Not if somebody else is about to: one who does not answer
    /// is waited for for seconds, and its links may change thousands of times meanwhile.
    pub fn claim_telling(&self) -> bool {
        !self.teller.swap(true, Ordering::AcqRel)
    }

    /// Whoever was to have the guests see it cannot: with the next change somebody else is to.
    pub fn give_up_telling(&self) {
        self.teller.store(false, Ordering::Release);
    }

    /// No link changes while this is held, and what has changed before was told: so links and carriers are alike in a checkpoint.
    pub fn hold_links(&self, machines: &[MachineBody]) -> MutexGuard<'_, Vec<bool>> {
        let mut told = self.told();
        self.tell(&mut told, machines);
        told
    }

    /// Has the guests see what they were not told yet: all at once, since one that does not answer is waited for. Nobody tells it again.
    fn tell(&self, told: &mut Vec<bool>, machines: &[MachineBody]) {
        // Whoever changes a link from now on cannot count upon what is looked at below.
        self.teller.swap(false, Ordering::AcqRel);
        let before = std::mem::replace(told, plugged(&self.fabric));
        let ends = self.topology.interfaces.iter().zip(before.into_iter().zip(&*told));
        let changed: Vec<_> = ends.filter(|(_, (before, up))| before != *up).map(|(end, (_, up))| (end, *up)).collect();
        side_by_side(&changed, |(end, up)| {
            let Some(body) = machines.iter().find(|body| body.name() == end.machine) else { return };
            if let Err(error) = body.machine().set_carrier(number(&end.name), *up) {
                tracing::warn!("{end} is {}, and its guest may not see it: {error}", if *up { "up" } else { "down" });
            }
        });
    }

    fn told(&self) -> MutexGuard<'_, Vec<bool>> {
        // Whoever panicked changing a link left it and a carrier unlike, or a network that says itself that it failed. Neither is mended by a panic in
        // whoever comes next.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the page maps of the machines told of the pages that frames are laid into.
    pub fn tell_page_maps(&self, machines: &[MachineBody]) {
        for (interface, id) in self.topology.interfaces.iter().zip((0..).map(InterfaceId)) {
            let body = machines.iter().find(|body| body.name() == interface.machine);
            if let Some(map) = body.and_then(MachineBody::page_map) {
                self.fabric.set_write_watch(id, map);
            }
        }
    }

    /// The network as a part.
    pub fn part(&self) -> NetworkPart<Writer> {
        NetworkPart::new(NETWORK, self.fabric.clone(), |writer: &mut Writer, bytes| Ok(writer.put_blob(bytes)?))
    }

    /// Puts the network of a checkpoint in the place of this one, which is frozen.
    pub fn restore(&self, state: &Return<'_>) -> Result<()> {
        let id = state.id.short();
        let mut snapshot = snapshot(state.host.store(), state.record, &id)?;
        if let Some(perturbation) = state.perturbation {
            snapshot.world.perturb(perturbation);
        }
        if snapshot.world.topology().interfaces != self.topology.interfaces {
            return Err(Error::BadRecord { id, what: "its network has other interfaces than its machines".into() });
        }
        self.fabric.restore(snapshot);
        // The guests know, too.
        *self.told() = plugged(&self.fabric);
        Ok(())
    }
}

/// By interface: whether it is plugged in.
fn plugged(fabric: &Fabric) -> Vec<bool> {
    fabric.look(|world| (0..).map_while(|id| world.is_up(InterfaceId(id))).collect())
}

/// The network in a checkpoint, with its links as they were at that instant and all that was on its way. None if nothing connects its machines.
pub fn network_at(store: &Store, id: &CheckpointId, record: &Record) -> Result<Option<World>> {
    if !record.parts.iter().any(|part| part.name == NETWORK) {
        return Ok(None);
    }
    snapshot(store, record, &id.short()).map(|snapshot| Some(snapshot.world))
}

fn snapshot(store: &Store, record: &Record, id: &str) -> Result<Snapshot> {
    let bad = |what: String| Error::BadRecord { id: id.to_owned(), what };
    let part = part(record, id, NETWORK)?;
    let blob = part.blobs.get(WORLD).ok_or_else(|| bad("its network has no frames".into()))?;
    Snapshot::from_state(part, &store.read_blob(blob)?).map_err(|error| bad(error.to_string()))
}

/// Luck that is the same for the same interfaces, and different for others.
fn seed(topology: &Topology) -> u64 {
    let macs = topology.interfaces.iter().flat_map(|interface| interface.mac.0);
    // FNV-1a: any function would do that lets no byte go unnoticed.
    macs.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_net::{Interface, Link, Mac};

    #[test]
    fn a_name_has_its_number() {
        assert_eq!(["eth0", "eth14", "eth", "lan1", "eth99999999999"].map(number), [0, 14, u32::MAX, u32::MAX, u32::MAX]);
    }

    #[test]
    fn an_event_waits_for_no_guest_and_a_checkpoint_for_what_they_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let interface =
            |number: u8| Interface { machine: format!("m{number}"), name: "eth1".into(), mac: Mac([2, 0, 0, 0, 0, number]), mtu: 1500 };
        let link = Link { ends: [0, 1].map(InterfaceId), shapes: Default::default() };
        let topology = Topology { interfaces: (0..2).map(interface).collect(), links: vec![link], lans: Vec::new() };
        let nic = |number: u8| NicOptions { socket: directory.path().join(number.to_string()), dirty: Arc::default(), watch: None };
        let clock = Arc::new(Clock::standing(VirtualTime::default(), monotonic));
        let fabric = Fabric::start(Snapshot::new(&topology, 1).unwrap(), clock, (0..2).map(nic).collect()).unwrap();
        let network = Network { fabric: Arc::new(fabric), topology, told: Mutex::new(vec![true; 2]), teller: AtomicBool::new(false) };
        let pulled = Change { up: Some(false), ..Change::default() };
        network.change_unseen(InterfaceId(0), &pulled).unwrap();
        assert_eq!(plugged(network.fabric()), [false; 2]);
        assert_eq!(*network.told(), [true; 2], "nobody was told yet");
        assert!(network.claim_telling());
        assert!(!network.claim_telling(), "one who is about to look sees what else has changed");
        network.give_up_telling();
        assert!(network.claim_telling(), "one who could not look keeps nobody from it");
        assert_eq!(*network.hold_links(&[]), [false; 2]);
        assert!(network.claim_telling(), "who has looked does not see what changes now");
        network.change(&[], InterfaceId(1), &Change { up: Some(true), ..Change::default() }).unwrap();
        assert_eq!(*network.told(), [true; 2]);
    }
}
