//! Made-up values for tests of how they look.

use fermata_api::{
    net::{Chance, Interface, InterfaceId, Lan, Link, Mac, Port, Shape, Topology},
    types::{BlobName, CheckpointId, MachineId, NodeName, PageCounts, PartKind, Root},
    values::*,
};
use std::collections::BTreeMap;

pub fn id(number: u8) -> CheckpointId {
    CheckpointId([number; 32])
}

pub fn checkpoint(number: u8, parent: Option<u8>, branch: &str) -> Checkpoint {
    let ram = Root { pages: 262_144, node: Some(NodeName([9; 32])) };
    Checkpoint {
        id: id(number),
        parent: parent.map(id),
        experiment: "tryout".to_owned(),
        branch: branch.to_owned(),
        heads: vec![],
        tags: vec![],
        message: None,
        created_ns: u64::from(number) * 2_000_000_000,
        created: "2026-11-21T08:43:00.000Z".to_owned(),
        time_virtual_ns: u64::from(number) * 2_000_000_000,
        pause_ms: 4.213,
        skew: None,
        steps_ms: BTreeMap::from([("m1 stop".to_owned(), 0.4), ("m1 devices".to_owned(), 2.0)]),
        save_ms: 120.0,
        stored_bytes: 12_900_000,
        stored_by_part: BTreeMap::from([("m1".to_owned(), 12_000_000)]),
        pages_by_part: BTreeMap::new(),
        bytes_by_class: BTreeMap::new(),
        sieve_ms: BTreeMap::from([("zero".to_owned(), 0.2), ("new".to_owned(), 31.0)]),
        background_ms: BTreeMap::new(),
        composition: BTreeMap::new(),
        saved_bytes: SavedBytes::default(),
        pages: PageCounts { unchanged: 258_733, free: 0, zero: 411, on_disk: 1_000, known: 500, new: 1_500, ..PageCounts::default() },
        parts: vec![
            Part {
                name: "m1".to_owned(),
                kind: PartKind::Machine,
                tables: BTreeMap::from([("ram".to_owned(), ram)]),
                blobs: BTreeMap::from([("devices".to_owned(), BlobName([7; 32]))]),
                free_space: vec![],
            },
            Part {
                name: "m1/disk0".to_owned(),
                kind: PartKind::Disk,
                tables: BTreeMap::from([("blocks".to_owned(), Root::empty(1_048_576))]),
                blobs: BTreeMap::new(),
                free_space: vec![],
            },
        ],
        images: vec![],
        events: None,
        network: None,
        down: vec![],
        links: vec![],
        perturbation: None,
        runs: vec![],
    }
}

/// Four checkpoints on `main`, and a fork from the second.
pub fn history() -> Vec<Checkpoint> {
    let mut history = vec![
        checkpoint(1, None, "main"),
        checkpoint(2, Some(1), "main"),
        checkpoint(3, Some(2), "main"),
        checkpoint(4, Some(2), "what-if"),
        checkpoint(5, Some(3), "main"),
    ];
    history[1].message = Some("before the upgrade\nand more".to_owned());
    history[1].tags = vec!["known-good".to_owned()];
    history[3].heads = vec!["what-if".to_owned()];
    history[4].heads = vec!["main".to_owned()];
    history
}

/// Two machines with a cable between them, and a LAN.
pub fn network() -> Topology {
    let interface = |machine: &str, name: &str| Interface { machine: machine.into(), name: name.into(), mac: Mac([2; 6]), mtu: 1500 };
    let slow = Shape { delay_ns: 10_000_000, ..Shape::default() };
    let narrow = Shape { rate: Some(100_000_000), ..Shape::default() };
    let lossy = Shape { loss: Chance { per_billion: 10_000_000 }, ..Shape::default() };
    Topology {
        interfaces: vec![interface("m1", "eth1"), interface("m2", "eth1"), interface("m1", "eth2"), interface("m2", "eth2")],
        links: vec![Link { ends: [InterfaceId(0), InterfaceId(1)], shapes: [slow.clone(), slow] }],
        lans: vec![Lan {
            name: "backbone".to_owned(),
            ports: vec![
                Port { interface: InterfaceId(2), to_switch: narrow.clone(), from_switch: narrow },
                Port { interface: InterfaceId(3), to_switch: Shape::default(), from_switch: lossy },
            ],
        }],
    }
}

pub fn machine(name: &str) -> Machine {
    Machine {
        name: name.to_owned(),
        id: MachineId([3; 16]),
        state: MachineState::Running,
        reason: None,
        starved: vec![],
        pid: 4711,
        memory_bytes: 1 << 30,
        cpus: 2,
        accel: "tcg".to_owned(),
        machine_type: "pc-q35-7.2".to_owned(),
        console: "/run/console.sock".into(),
        console_log: "/run/console.log".into(),
        pages_missing: None,
        ports: vec![],
    }
}

pub fn run(name: &str) -> Run {
    Run {
        name: name.to_owned(),
        branch: name.to_owned(),
        head: Some(id(5)),
        time_virtual_ns: Some(12_000_000_000),
        perturbation: None,
        machines: vec![machine("m1")],
    }
}

pub fn experiment(name: &str) -> Experiment {
    Experiment {
        name: name.to_owned(),
        state: ExperimentState::Running,
        keeper_pid: 42,
        store: "/store".into(),
        every_ms: Some(2000),
        runs: vec![run("main")],
        spare_ready: true,
        trouble: None,
        loading: None,
        swapped: None,
    }
}
