//! From what the rooms below know to what people and programs are told.

use crate::values;
use fermata_experiment::{Forward, MachineBody, Run, Status, When};
use fermata_store::{Record, Waiting};
use fermata_timeline::{Change, Entry, Reached, Resumed};
use fermata_types::{CheckpointId, ClassTimes, MachineId, PAGE_SIZE, PageCounts, VirtualTime};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

/// Stretches of differing pages that are listed; the rest is in the counts.
const STRETCHES_MAX: usize = 16;

pub(crate) fn problem(error: impl std::error::Error) -> values::Problem {
    values::Problem::new(error.to_string())
}

/// How far its events were, and the commands that give guests their addresses.
fn events(record: &Record) -> Option<values::Events> {
    let all = record.spec.get("events").and_then(serde_json::Value::as_array).map_or(0, |events| events.len() as u64);
    let waiting = record.waiting.iter().map(|waiting| match waiting {
        Waiting::Event(number) => format!("event {}", number.saturating_add(1)),
        Waiting::Address(interface) => format!("address of {interface}"),
    });
    let events = values::Events { happened: record.events, all, waiting: waiting.collect() };
    (events != values::Events::default()).then_some(events)
}

pub(crate) fn checkpoint(entry: Entry) -> values::Checkpoint {
    let Entry { id, record, heads, tags } = entry;
    let part = |part: fermata_types::PartState| values::Part {
        name: part.name,
        kind: part.kind,
        tables: part.tables,
        blobs: part.blobs,
        // Only disks tell it, and not those of older checkpoints.
        free_space: part.details.get("free_space").and_then(|told| serde_json::from_value(told.clone()).ok()).unwrap_or_default(),
    };
    // Only networks tell it, and only in such replays.
    let perturbation = |part: &fermata_types::PartState| serde_json::from_value(part.details.get("perturbation")?.clone()).ok();
    values::Checkpoint {
        events: events(&record),
        perturbation: record.parts.iter().find_map(perturbation),
        id,
        parent: record.parent,
        experiment: record.experiment,
        branch: record.branch,
        heads,
        tags,
        message: record.message,
        created_ns: record.created_ns,
        created: rfc3339(record.created_ns),
        time_virtual_ns: record.time_virtual_ns,
        saved_bytes: saved_bytes(&record.cost.pages, record.cost.compressed_away()),
        pause_ms: from_ns(record.cost.pause_ns),
        skew: record.cost.skew.map(|skew| values::Skew {
            stop_ms: from_ns(skew.stop_ns),
            resume_ms: from_ns(skew.resume_ns),
            time_ms: from_ns(skew.time_ns),
        }),
        steps_ms: record.cost.steps_ns.into_iter().map(|(step, ns)| (step, from_ns(ns))).collect(),
        save_ms: from_ns(record.cost.save_ns),
        stored_bytes: record.cost.stored_bytes,
        stored_by_part: record.cost.stored_by_part,
        pages: record.cost.pages,
        bytes_by_class: bytes_by_class(&record.cost.pages),
        pages_by_part: record.cost.parts,
        sieve_ms: sieve_ms(&record.cost.sieve_ns),
        background_ms: record.cost.background_ns.into_iter().map(|(step, ns)| (step, from_ns(ns))).collect(),
        composition: record.cost.composition,
        parts: record.parts.into_iter().map(part).collect(),
        images: record.images,
        network: None,
        down: vec![],
        links: vec![],
        runs: vec![],
    }
}

/// Nothing where nobody looked at a clock.
fn sieve_ms(times: &ClassTimes) -> BTreeMap<String, f64> {
    let classes = times.classes().filter(|_| !times.is_empty());
    classes.map(|(class, ns)| (class.to_owned(), from_ns(ns))).collect()
}

/// Bytes by class, the classes as in [`PageCounts::classes`].
fn bytes_by_class(pages: &PageCounts) -> BTreeMap<String, u64> {
    pages.classes().map(|(class, count)| (class.to_owned(), bytes(count))).collect()
}

fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_SIZE as u64)
}

/// What kept pages out of the store.
pub(crate) fn saved_bytes(pages: &PageCounts, compression: u64) -> values::SavedBytes {
    values::SavedBytes {
        zero: bytes(pages.zero),
        free: bytes(pages.free),
        mapped: bytes(pages.mapped),
        on_disk: bytes(pages.on_disk),
        within: bytes(pages.within),
        across: bytes(pages.known.saturating_sub(pages.within)),
        compression,
    }
}

pub(crate) fn resumed(resumed: Resumed) -> values::Resumed {
    values::Resumed {
        run: resumed.run,
        checkpoint: resumed.checkpoint,
        resume_ms: milliseconds(resumed.took),
        warm: resumed.warm,
        time_virtual_ns: resumed.time_virtual.ns,
        branch: resumed.branch,
        reached: None,
        perturbation: resumed.perturbation,
    }
}

pub(crate) fn reached(reached: Reached) -> values::Reached {
    let Reached { asked, from, at, went, paused } = reached;
    values::Reached {
        asked_ns: asked.ns,
        time_virtual_ns: at.ns,
        late_ns: at.ns.saturating_sub(asked.ns),
        ran_ns: at.ns.saturating_sub(from.ns),
        went,
        paused,
    }
}

/// An instant as the rooms below have it.
pub(crate) fn when(when: values::When) -> When {
    match when {
        values::When::AfterNs(ns) => When::After(Duration::from_nanos(ns)),
        values::When::AtNs(ns) => When::At(VirtualTime::from_ns(ns)),
    }
}

pub(crate) fn difference(a: &Entry, b: &Entry, changes: Vec<Change>) -> values::Difference {
    let time = |entry: &Entry| i64::try_from(entry.record.time_virtual_ns).unwrap_or(i64::MAX);
    let part = |mut change: Change| {
        change.stretches.sort_by_key(|(first, count)| (std::cmp::Reverse(*count), *first));
        change.stretches.truncate(STRETCHES_MAX);
        values::PartDifference {
            name: change.part,
            of: change.of,
            pages_differing: change.differing,
            pages: change.pages,
            only_a: change.only_a,
            only_b: change.only_b,
            stretches: change.stretches,
        }
    };
    values::Difference {
        a: a.id,
        b: b.id,
        time_virtual_ns: time(b) - time(a),
        parts: changes.into_iter().map(part).collect(),
        disks: Vec::new(),
        memory: BTreeMap::new(),
        links: Vec::new(),
    }
}

/// A run as it is now. Asks QEMU what the guest does, unless `quietly`.
pub(crate) fn run(run: &Run, quietly: bool) -> values::Run {
    let (body, standing) = (run.body(), run.standing());
    let statuses = if quietly { Vec::new() } else { body.glance() };
    let forwards = run.forwards();
    let machine = |(index, of): (usize, &MachineBody)| {
        let ports = forwards.iter().filter(|forward| forward.machine == of.name()).map(forward).collect();
        values::Machine { ports, ..machine(of, standing.machines.get(of.name()).copied(), statuses.get(index).cloned()) }
    };
    values::Run {
        name: run.name().to_owned(),
        branch: standing.branch.clone(),
        head: standing.head,
        time_virtual_ns: Some(run.time_virtual().ns),
        perturbation: body.perturbation(),
        machines: body.machines().iter().enumerate().map(machine).collect(),
    }
}

/// A machine as it is now; without a status, nobody asked.
fn machine(body: &MachineBody, id: Option<MachineId>, status: Option<Status>) -> values::Machine {
    let (state, reason) = match status {
        None => (values::MachineState::Gone, None),
        Some(Status::Running) => (values::MachineState::Running, None),
        Some(Status::Paused) => (values::MachineState::Paused, None),
        Some(Status::Off) => (values::MachineState::Off, None),
        Some(Status::Failed(why)) => (values::MachineState::Failed, Some(format!("QEMU stopped the guest, which cannot go on ({why})"))),
        Some(Status::Silent) => {
            let pid = body.machine().pid();
            (values::MachineState::Silent, Some(format!("its QEMU (process {pid}) does not answer: it hangs, or the host is too busy")))
        }
        Some(Status::Gone(why)) => (values::MachineState::Gone, Some(why)),
    };
    let machine = body.machine();
    let config = machine.config();
    let missing = machine.paging().filter(|paging| !paging.complete);
    values::Machine {
        name: config.name.clone(),
        id: id.unwrap_or(machine.id()),
        state,
        reason,
        starved: body.starved(),
        pid: machine.pid(),
        memory_bytes: config.memory,
        cpus: config.cpus,
        accel: match config.accel {
            fermata_experiment::Accel::Kvm => "kvm".to_owned(),
            fermata_experiment::Accel::Tcg => "tcg".to_owned(),
        },
        machine_type: config.machine_type.clone(),
        console: machine.place().console_socket(),
        console_log: machine.place().console_log(),
        pages_missing: missing.map(|paging| paging.wanted.saturating_sub(paging.restored)),
        ports: Vec::new(),
    }
}

pub(crate) fn forward(forward: &Forward) -> values::Forward {
    let host = forward.host.map(|port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port.get()));
    values::Forward { guest_port: forward.guest.get(), host }
}

pub(crate) fn tag(experiment: &str, tag: &str, checkpoint: Option<CheckpointId>) -> values::Tag {
    values::Tag { experiment: experiment.to_owned(), tag: tag.to_owned(), checkpoint }
}

fn from_ns(ns: u64) -> f64 {
    milliseconds(Duration::from_nanos(ns))
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

pub(crate) fn rfc3339(ns: u64) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(ns)).map_or_else(|_| String::new(), |time| format!("{time:.3}"))
}
