//! The network of an experiment as text: cables with an arrow for each way, and switches with what is plugged in.

use crate::{
    out::{Paint, Style},
    table::{Cell, Set, Table},
    text,
};
use fermata_api::{
    net::{Chance, Discipline, Interface, InterfaceId, Shape, Topology},
    spec::{Percent, Rate, Time},
};

/// Cables first, then switches. Where both ways are alike they share a line. Some interfaces may be down.
pub fn draw(topology: &Topology, down: &[InterfaceId], style: &Style) -> String {
    let mut table = Table::bare(&[Set::Left, Set::Left, Set::Left, Set::Left]);
    let name = |id: InterfaceId| topology.interfaces.get(id.index()).map(Interface::to_string).unwrap_or_default();
    let end = |id: InterfaceId| text::harmless(&name(id));
    let carries = |shape: &Shape, ends: &[InterfaceId]| if ends.iter().any(|end| down.contains(end)) { broken() } else { words(shape) };
    for link in &topology.links {
        let [one, other] = link.ends.map(end);
        let one = format!("  {one}");
        if link.shapes[0] == link.shapes[1] {
            table.row(vec![one.into(), "◄───►".into(), other.into(), carries(&link.shapes[0], &link.ends)]);
        } else {
            table.row(vec![one.into(), "────►".into(), other.into(), carries(&link.shapes[0], &link.ends)]);
            table.row(vec!["".into(), "◄────".into(), "".into(), carries(&link.shapes[1], &link.ends)]);
        }
    }
    for lan in &topology.lans {
        let title = Cell::new(Paint::Name, format!("  {}", text::harmless(&lan.name)));
        table.row(vec![title, "".into(), "".into(), "".into()]);
        for (index, port) in lan.ports.iter().enumerate() {
            let branch = if index + 1 == lan.ports.len() { "└" } else { "├" };
            let stem = if index + 1 == lan.ports.len() { " " } else { "│" };
            let interface = end(port.interface);
            if port.to_switch == port.from_switch {
                table.row(vec![
                    format!("    {branch}").into(),
                    "◄───►".into(),
                    interface.into(),
                    carries(&port.to_switch, &[port.interface]),
                ]);
            } else {
                table.row(vec![
                    format!("    {branch}").into(),
                    "◄────".into(),
                    interface.into(),
                    carries(&port.to_switch, &[port.interface]),
                ]);
                table.row(vec![format!("    {stem}").into(), "────►".into(), "".into(), carries(&port.from_switch, &[port.interface])]);
            }
        }
    }
    table.render(style)
}

/// A cable that is pulled out.
pub fn broken() -> Cell {
    Cell::new(Paint::Bad, "down")
}

/// What differs from an ideal cable.
pub fn words(shape: &Shape) -> Cell {
    let Shape { rate, delay_ns, jitter_ns, loss, duplicate, reorder, queue, discipline } = shape;
    let mut words = Vec::new();
    words.extend(rate.map(|rate| Rate(rate).to_string()));
    if *delay_ns > 0 {
        let jitter = if *jitter_ns > 0 { format!(" ± {}", Time(*jitter_ns)) } else { String::new() };
        words.push(format!("{}{jitter}", Time(*delay_ns)));
    }
    for (what, chance) in [("lost", loss), ("doubled", duplicate), ("reordered", reorder)] {
        if *chance != Chance::NEVER {
            words.push(format!("{} {what}", Percent(*chance)));
        }
    }
    if *queue != Shape::QUEUE_DEFAULT {
        words.push(format!("queue of {}", text::several(u64::from(*queue), "frame")));
    }
    if *discipline == Discipline::Codel {
        words.push("codel".to_owned());
    }
    Cell::new(Paint::Dim, if words.is_empty() { "ideal".to_owned() } else { words.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_api::net::{Lan, Link, Mac, Port};

    #[test]
    fn cables_and_switches() {
        let interface = |machine: &str, name: &str| Interface { machine: machine.into(), name: name.into(), mac: Mac([2; 6]), mtu: 1500 };
        let there = Shape {
            rate: Some(100_000_000),
            delay_ns: 10_000_000,
            jitter_ns: 500_000,
            loss: Chance { per_billion: 1_000_000 },
            queue: 100,
            discipline: Discipline::Codel,
            ..Shape::default()
        };
        let gigabit = Shape { rate: Some(1_000_000_000), ..Shape::default() };
        let port = |id, to_switch: &Shape, from_switch: &Shape| Port {
            interface: InterfaceId(id),
            to_switch: to_switch.clone(),
            from_switch: from_switch.clone(),
        };
        let topology = Topology {
            interfaces: vec![
                interface("a", "eth1"),
                interface("server", "eth1"),
                interface("a", "eth2"),
                interface("server", "eth2"),
                interface("c", "eth1"),
            ],
            links: vec![
                Link { ends: [InterfaceId(0), InterfaceId(1)], shapes: [there, Shape::default()] },
                Link { ends: [InterfaceId(4), InterfaceId(0)], shapes: [gigabit.clone(), gigabit.clone()] },
            ],
            lans: vec![Lan {
                name: "backbone".into(),
                ports: vec![port(2, &gigabit, &gigabit), port(3, &gigabit, &Shape::default()), port(4, &gigabit, &Shape::default())],
            }],
        };
        let shown = draw(&topology, &[], &Style::default());
        let expected = [
            "  a:eth1    ────►  server:eth1  100Mbit, 10ms ± 500us, 0.1% lost, queue of 100 frames, codel",
            "            ◄────               ideal",
            "  c:eth1    ◄───►  a:eth1       1Gbit",
            "  backbone",
            "    ├       ◄───►  a:eth2       1Gbit",
            "    ├       ◄────  server:eth2  1Gbit",
            "    │       ────►               ideal",
            "    └       ◄────  c:eth1       1Gbit",
            "            ────►               ideal",
        ];
        assert_eq!(shown.lines().map(str::trim_end).collect::<Vec<_>>(), expected, "\n{shown}");
    }
}
