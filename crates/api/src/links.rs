//! The links of a run, as they are and as they are to be.

use crate::values::{Direction, LinkEnd, Problem};
use fermata_experiment::{
    Body, Run,
    net::{Change, Fabric, Interface, InterfaceId, Topology, World},
};
use std::sync::Arc;

/// Changes the link at an interface, if a change is asked for. Tells of that interface, or of all.
pub(crate) fn tell(run: &Run, interface: Option<&str>, change: Option<&Change>) -> Result<Vec<LinkEnd>, Problem> {
    where_it_lives(|| run.body(), |body| tell_of(run, body, interface, change))
}

/// Does something to what a run lives in. If the run was taken elsewhere meanwhile it is done there as well, and what came of it before is nobody's concern.
fn where_it_lives<B, T>(lives_in: impl Fn() -> Arc<B>, mut work: impl FnMut(&B) -> T) -> T {
    loop {
        let body = lives_in();
        let done = work(&body);
        if Arc::ptr_eq(&body, &lives_in()) {
            return done;
        }
    }
}

fn tell_of(run: &Run, body: &Body, interface: Option<&str>, change: Option<&Change>) -> Result<Vec<LinkEnd>, Problem> {
    let fabric = fabric(run, body)?;
    let topology = fabric.look(World::topology);
    let chosen = interface.map(|name| find(&topology, name)).transpose()?;
    if let Some(change) = change {
        let end = chosen.ok_or_else(|| Problem::new("which link is to change is not said: name one of its interfaces, such as a:eth1"))?;
        body.change_link(end, change).map_err(|error| Problem::new(format!("nothing was changed: {error}")))?;
    }
    let all = (0..topology.interfaces.len() as u32).map(InterfaceId).filter(|id| chosen.is_none_or(|chosen| chosen == *id));
    Ok(fabric.look(|world| {
        let topology = world.topology();
        all.filter_map(|id| end(world, &topology, id)).collect()
    }))
}

/// The network that there must be.
pub(crate) fn fabric<'a>(run: &Run, body: &'a Body) -> Result<&'a Fabric, Problem> {
    body.fabric().map(Arc::as_ref).ok_or_else(|| {
        Problem::new(format!(
            "run {} has no network: `links` in the specification connects machines, and `fermata up` starts them",
            run.name()
        ))
    })
}

pub(crate) fn find(topology: &Topology, name: &str) -> Result<InterfaceId, Problem> {
    let found = name.split_once(':').and_then(|(machine, interface)| topology.find(machine, interface));
    found.ok_or_else(|| {
        let names: Vec<_> = topology.interfaces.iter().map(Interface::to_string).collect();
        Problem::new(format!("there is no interface \"{name}\" in a link; there are {}", names.join(", ")))
    })
}

/// All ends of the links of a run; none where nothing connects its machines.
pub(crate) fn of(run: &Run) -> Vec<LinkEnd> {
    run.body().fabric().map(|fabric| fabric.look(all)).unwrap_or_default()
}

/// All ends of the links of a network.
pub(crate) fn all(world: &World) -> Vec<LinkEnd> {
    let topology = world.topology();
    (0..topology.interfaces.len() as u32).filter_map(|id| end(world, &topology, InterfaceId(id))).collect()
}

fn end(world: &World, topology: &Topology, id: InterfaceId) -> Option<LinkEnd> {
    let interface = topology.interfaces.get(id.index())?;
    let name = |id: InterfaceId| topology.interfaces.get(id.index()).map(Interface::to_string).unwrap_or_default();
    let link = topology.links.iter().find_map(|link| {
        let end = link.ends.iter().position(|end| *end == id)?;
        Some((name(link.ends[1 - end]), &link.shapes[end], &link.shapes[1 - end]))
    });
    let lan = topology.lans.iter().find_map(|lan| {
        let port = lan.ports.iter().find(|port| port.interface == id)?;
        Some((lan.name.clone(), &port.to_switch, &port.from_switch))
    });
    let (to, sent, received) = link.or(lan)?;
    let [out, into] = world.counters(id)?;
    let [leaving, coming] = world.in_flight(id)?;
    Some(LinkEnd {
        interface: interface.to_string(),
        mac: interface.mac,
        mtu: interface.mtu,
        to,
        up: world.is_up(id)?,
        sent: Direction { shape: sent.clone(), counters: out, in_flight: leaving },
        received: Direction { shape: received.clone(), counters: into, in_flight: coming },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn what_is_done_to_a_run_that_is_taken_elsewhere_is_done_there() {
        let bodies = [1, 2].map(Arc::new);
        let lives_in = RefCell::new(bodies[0].clone());
        let mut done = Vec::new();
        let told = where_it_lives(
            || lives_in.borrow().clone(),
            |body| {
                done.push(*body);
                *lives_in.borrow_mut() = bodies[1].clone();
                *body
            },
        );
        assert_eq!((told, done), (2, vec![1, 2]));
    }
}
