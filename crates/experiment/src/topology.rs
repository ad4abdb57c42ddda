//! The network that a specification describes.

use crate::spec::{Endpoint, Spec};
use fermata_net::{Interface, InterfaceId, Lan, Link, Mac, Port, Topology};
use std::collections::BTreeMap;

/// The interfaces of all machines and what connects them. Interfaces are in the order of their machines' names and then of their numbers.
pub fn topology(spec: &Spec) -> Topology {
    let mtus: BTreeMap<_, _> = spec.links.iter().flat_map(|link| link.endpoints.iter().map(|endpoint| (endpoint, link.mtu))).collect();
    let ids: BTreeMap<_, _> = mtus.keys().copied().zip((0..).map(InterfaceId)).collect();
    let interfaces = mtus.iter().map(|(endpoint, mtu)| Interface {
        machine: endpoint.machine.clone(),
        name: endpoint.interface(),
        mac: said(spec, endpoint).unwrap_or_else(|| mac(&spec.name, &endpoint.machine, &endpoint.interface())),
        mtu: *mtu,
    });
    let mut topology = Topology { interfaces: interfaces.collect(), ..Topology::default() };
    for link in &spec.links {
        match (&link.lan, link.endpoints.as_slice()) {
            (Some(name), endpoints) => {
                let port = |endpoint| Port { interface: ids[endpoint], to_switch: link.forward.clone(), from_switch: link.back.clone() };
                topology.lans.push(Lan { name: name.clone(), ports: endpoints.iter().map(port).collect() });
            }
            (None, [one, other]) => {
                topology.links.push(Link { ends: [ids[one], ids[other]], shapes: [link.forward.clone(), link.back.clone()] });
            }
            (None, _) => {}
        }
    }
    topology
}

fn said(spec: &Spec, endpoint: &Endpoint) -> Option<Mac> {
    spec.nodes.get(&endpoint.machine)?.interfaces.get(&endpoint.interface())?.mac
}

/// The address of an interface for which nobody says one: always the same for the same names, and of the addresses that everybody may give
/// himself.
pub(crate) fn mac(experiment: &str, machine: &str, interface: &str) -> Mac {
    let mut hasher = blake3::Hasher::new_derive_key("fermata 1 Ethernet address");
    // No name has a zero byte in it.
    for word in [experiment, machine, interface] {
        hasher.update(word.as_bytes()).update(&[0]);
    }
    let mut address = [0; 6];
    hasher.finalize_xof().fill(&mut address);
    address[0] = address[0] & !0b11 | 0b10;
    Mac(address)
}
