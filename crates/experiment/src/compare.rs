//! What differs between two checkpoints besides their pages: files on disks, links, and what the pages of memory are for.

use crate::{Result, Stills, network::network_at};
use fermata_disk::files::{self, FilesDiffer};
use fermata_net::{InterfaceId, Shape, Topology, World};
use fermata_store::{Progress, Record, Store};
use fermata_types::{CheckpointId, Composition, PageSet, PartKind, PartState};
use fermata_vm::changed_by_use;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What differs.
#[derive(Debug, Default)]
pub struct Compared {
    /// Of each disk that differs and is in both, by its name.
    pub disks: Vec<(String, Vec<FilesDiffer>)>,
    /// Pages of each machine that differ by what they are for in the second.
    pub memory: BTreeMap<String, Composition>,
    /// Ends of links that differ.
    pub links: Vec<LinkDiffers>,
}

/// The end of a link that is not what it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkDiffers {
    /// The interface: `a:eth1`.
    pub interface: String,
    /// As it was; none: it was not there.
    pub a: Option<LinkState>,
    /// As it is in the second.
    pub b: Option<LinkState>,
}

/// The end of a link at an instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    /// Whether the cable is plugged in.
    pub up: bool,
    /// What happens to what the interface sends.
    pub sent: Shape,
    /// And to what it receives.
    pub received: Shape,
}

/// Compares. What cannot be read is told in its place; `progress` is told what takes long.
pub fn compare(
    store: &Store,
    a: (&CheckpointId, &Record),
    b: (&CheckpointId, &Record),
    progress: &mut dyn FnMut(&str, Progress),
) -> Result<Compared> {
    let links = links(network_at(store, a.0, a.1)?.as_ref(), network_at(store, b.0, b.1)?.as_ref());
    let mut compared = Compared { links, ..Compared::default() };
    let stills = Stills::open(store, a.0, progress).and_then(|a| Ok([a, Stills::open(store, b.0, progress)?]));
    let pairs = a.1.parts.iter().filter_map(|before| Some((before, b.1.parts.iter().find(|after| after.name == before.name)?)));
    let differing: Vec<_> = pairs.filter(|(before, after)| before.tables != after.tables && before.kind == after.kind).collect();
    let total = differing.len() as u64;
    for (done, (before, after)) in (0..).zip(differing) {
        progress(&format!("comparing {}", before.name), Progress { done, total });
        let name = before.name.clone();
        match (before.kind, &stills) {
            (PartKind::Machine, Ok(_)) => {
                let changed = changed_by_use(store, before, after).unwrap_or_else(|error| Composition::unknown(error.to_string()));
                compared.memory.insert(name, changed);
            }
            (PartKind::Machine, Err(error)) => _ = compared.memory.insert(name, Composition::unknown(error.to_string())),
            (PartKind::Disk, Ok([a, b])) => {
                let files = disks(store, [a, b], before, after).unwrap_or_else(|error| unclear(&error));
                compared.disks.push((name, files));
            }
            (PartKind::Disk, Err(error)) => compared.disks.push((name, unclear(error))),
            _ => {}
        }
    }
    Ok(compared)
}

fn unclear(error: &crate::Error) -> Vec<FilesDiffer> {
    vec![FilesDiffer { unclear: Some(error.to_string()), ..FilesDiffer::default() }]
}

fn disks(store: &Store, stills: [&Stills; 2], before: &PartState, after: &PartState) -> Result<Vec<FilesDiffer>> {
    let mut differing = PageSet::new();
    for (of, root) in &before.tables {
        if let Some(other) = after.tables.get(of) {
            store.diff(root, other, &mut |block, _, _| {
                differing.insert(block);
                Ok(())
            })?;
        }
    }
    let [a, b] = [stills[0].disk(&before.name)?, stills[1].disk(&after.name)?];
    Ok(files::compare(&a, &b, &differing))
}

/// The ends that differ, by name.
fn links(a: Option<&World>, b: Option<&World>) -> Vec<LinkDiffers> {
    let [mut a, mut b] = [a, b].map(|world| world.map(ends).unwrap_or_default());
    let names: BTreeSet<_> = a.keys().chain(b.keys()).cloned().collect();
    let each = names.into_iter().map(|interface| LinkDiffers { a: a.remove(&interface), b: b.remove(&interface), interface });
    each.filter(|differs| differs.a != differs.b).collect()
}

fn ends(world: &World) -> BTreeMap<String, LinkState> {
    let topology = world.topology();
    let shapes = shapes(&topology);
    let state = |(index, interface): (usize, &fermata_net::Interface)| {
        let id = InterfaceId(index as u32);
        let (sent, received) = shapes.get(&id)?.clone();
        Some((interface.to_string(), LinkState { up: world.is_up(id)?, sent, received }))
    };
    topology.interfaces.iter().enumerate().filter_map(state).collect()
}

/// What is done to what each interface sends, and to what it receives.
fn shapes(topology: &Topology) -> BTreeMap<InterfaceId, (Shape, Shape)> {
    let cables = topology.links.iter().flat_map(|link| {
        let ([one, other], [there, back]) = (link.ends, &link.shapes);
        [(one, (there.clone(), back.clone())), (other, (back.clone(), there.clone()))]
    });
    let ports = topology.lans.iter().flat_map(|lan| &lan.ports);
    cables.chain(ports.map(|port| (port.interface, (port.to_switch.clone(), port.from_switch.clone())))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_net::{Change, Interface, Link, Mac};
    use fermata_types::VirtualTime;

    #[test]
    fn ends_of_links_differ_by_what_is_done_at_them() {
        let interface = |machine: &str| Interface { machine: machine.into(), name: "eth1".into(), mac: Mac([2; 6]), mtu: 1500 };
        let link = |ends| Link { ends, shapes: Default::default() };
        let [mut a, mut b] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])].map(|mac| Interface { mac, ..interface("") });
        (a.machine, b.machine) = ("a".into(), "b".into());
        let topology = Topology { interfaces: vec![a, b], links: vec![link([InterfaceId(0), InterfaceId(1)])], lans: vec![] };
        let before = World::new(&topology, 1).unwrap();
        assert_eq!(links(Some(&before), Some(&before)), []);
        assert_eq!(links(None, Some(&before)).len(), 2);
        let mut after = World::new(&topology, 1).unwrap();
        after.set(VirtualTime::default(), InterfaceId(0), &Change { up: Some(false), ..Change::default() }).unwrap();
        let differ = links(Some(&before), Some(&after));
        let up = |state: &Option<LinkState>| state.as_ref().map(|state| state.up);
        assert_eq!((differ[0].interface.as_str(), up(&differ[0].a), up(&differ[0].b)), ("a:eth1", Some(true), Some(false)));
    }
}
