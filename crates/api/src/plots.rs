//! Figures over a line of checkpoints, as series to draw: what memory held and what became of it, what was written, how much of it was there
//! before, and what the pause and the work around it were spent on.

use crate::values::{Checkpoint, Panel, Plot, PlottedCheckpoint, Plots, Series};
use fermata_types::{PAGE_SIZE, PageCounts, PartKind};
use std::collections::{BTreeMap, BTreeSet};

const MIB: f64 = (1 << 20) as f64;

/// What can be plotted, by name and in this order.
pub const KINDS: [&str; 5] = ["memory", "dirty", "duplicates", "pause", "background"];

/// The series of these kinds; a name that is not among [`KINDS`] gives none. The checkpoints are in order, the oldest first.
pub fn plots(experiment: &str, checkpoints: &[Checkpoint], kinds: &[&str]) -> Plots {
    let plot = |kind: &&str| {
        let panels = match *kind {
            "memory" => memory(checkpoints),
            "dirty" => dirty(checkpoints),
            "duplicates" => duplicates(checkpoints),
            "pause" => spent(checkpoints, "pause", |checkpoint| (&checkpoint.steps_ms, Some(checkpoint.pause_ms))),
            "background" => spent(checkpoints, "work around the pause", |checkpoint| (&checkpoint.background_ms, None)),
            _ => return None,
        };
        Some(Plot { name: (*kind).to_owned(), panels })
    };
    Plots {
        experiment: experiment.to_owned(),
        checkpoints: checkpoints.iter().map(|of| PlottedCheckpoint { id: of.id, time_virtual_ns: of.time_virtual_ns }).collect(),
        plots: kinds.iter().filter_map(plot).collect(),
        files: Vec::new(),
    }
}

/// What became of the memory's pages, and how much each method would have to save.
fn memory(checkpoints: &[Checkpoint]) -> Vec<Panel> {
    let sieve = Panel {
        title: "Memory: what became of its pages".to_owned(),
        unit: "MiB".to_owned(),
        stacked: true,
        series: classes(checkpoints, PartKind::Machine, |_| true, |pages| mib(pages)),
    };
    vec![sieve, methods(checkpoints)]
}

/// How much of the memory each method of checkpointing saves, before compression.
fn methods(checkpoints: &[Checkpoint]) -> Panel {
    let of = |name: &str, amount: &dyn Fn(&Checkpoint) -> Option<f64>| Series {
        name: name.to_owned(),
        values: checkpoints.iter().map(amount).collect(),
    };
    let counts = |checkpoint: &Checkpoint| counts(checkpoint, PartKind::Machine);
    let series = vec![
        of("full", &|checkpoint| Some(mib(counts(checkpoint)?.total()))),
        of("incremental", &|checkpoint| Some(mib(counts(checkpoint)?.written()))),
        of("incremental, without free pages and those on a disk", &|checkpoint| Some(mib(wanted(&counts(checkpoint)?)))),
        of("put into the store: all parts, compressed", &|checkpoint| Some(checkpoint.stored_bytes as f64 / MIB)),
    ];
    Panel { title: "Memory: saved by each method".to_owned(), unit: "MiB".to_owned(), stacked: false, series }
}

/// Written pages whose content is nowhere else: not free, and on no disk.
fn wanted(counts: &PageCounts) -> u64 {
    counts.classes().filter(|(class, _)| !matches!(*class, "unchanged" | "free" | "mapped" | "on_disk")).map(|(_, count)| count).sum()
}

/// Pages written since the checkpoint before, and what became of them.
fn dirty(checkpoints: &[Checkpoint]) -> Vec<Panel> {
    let panel = |title: &str, unit: &str, kind| Panel {
        title: title.to_owned(),
        unit: unit.to_owned(),
        stacked: true,
        series: classes(checkpoints, kind, |class| class != "unchanged", |count| count as f64),
    };
    vec![
        panel("Memory: pages written since the checkpoint before", "pages", PartKind::Machine),
        panel("Disks: blocks written since the checkpoint before", "blocks", PartKind::Disk),
    ]
}

/// The classes of the sieve that `wanted` names and that were seen at all.
fn classes(checkpoints: &[Checkpoint], kind: PartKind, wanted: fn(&str) -> bool, amount: fn(u64) -> f64) -> Vec<Series> {
    let names = PageCounts::default().classes().enumerate().filter(|(_, (class, _))| wanted(class));
    let series = names.map(|(place, (class, _))| Series {
        name: class.to_owned(),
        values: checkpoints.iter().map(|of| Some(amount(counts(of, kind)?.classes().nth(place)?.1))).collect(),
    });
    seen(series.collect())
}

/// How much of what was written was there before, and how long before.
fn duplicates(checkpoints: &[Checkpoint]) -> Vec<Panel> {
    let panel = |title: &str, kind| Panel {
        title: title.to_owned(),
        unit: "%".to_owned(),
        stacked: true,
        series: shares_of_duplicates(checkpoints, kind),
    };
    let distances = Panel {
        title: "Duplicates of earlier checkpoints: how many checkpoints ago they were first stored".to_owned(),
        unit: "pages".to_owned(),
        stacked: true,
        series: distances(checkpoints),
    };
    vec![
        panel("Memory: written pages that were there before", PartKind::Machine),
        panel("Disks: written blocks that were there before", PartKind::Disk),
        distances,
    ]
}

/// In percent of the written pages that have content: neither free nor zero throughout.
fn shares_of_duplicates(checkpoints: &[Checkpoint], kind: PartKind) -> Vec<Series> {
    let of = |name: &str, part: fn(&PageCounts) -> u64| Series {
        name: name.to_owned(),
        values: checkpoints
            .iter()
            .map(|checkpoint| {
                let counts = counts(checkpoint, kind)?;
                let written = counts.written().saturating_sub(counts.free + counts.zero);
                (written > 0).then(|| part(&counts) as f64 * 100.0 / written as f64)
            })
            .collect(),
    };
    let series = vec![
        of("in this checkpoint", |counts| counts.within),
        of("in earlier ones", |counts| counts.known.saturating_sub(counts.within)),
        of("on_disk", |counts| counts.on_disk),
    ];
    seen(series)
}

fn distances(checkpoints: &[Checkpoint]) -> Vec<Series> {
    let classes: BTreeSet<_> = checkpoints.iter().flat_map(|of| of.pages.distances.iter().map(|(least, _)| least)).collect();
    let count = |of: &Checkpoint, class: u32| of.pages.distances.iter().find(|(least, _)| *least == class).map_or(0, |(_, count)| count);
    let series = classes.into_iter().map(|least| Series {
        name: if least == 1 { "1".to_owned() } else { format!("{least} to {}", u64::from(least) * 2 - 1) },
        values: checkpoints.iter().map(|of| Some(count(of, least) as f64)).collect(),
    });
    series.collect()
}

/// What a time was spent on, in ms and in percent. What no step accounts for is a series of its own, if the whole is known.
fn spent(checkpoints: &[Checkpoint], what: &str, of: fn(&Checkpoint) -> (&BTreeMap<String, f64>, Option<f64>)) -> Vec<Panel> {
    let steps: BTreeSet<_> = checkpoints.iter().flat_map(|checkpoint| of(checkpoint).0.keys()).collect();
    let sum = |checkpoint: &Checkpoint| of(checkpoint).0.values().sum::<f64>();
    let rest = |checkpoint: &Checkpoint| of(checkpoint).1.map_or(0.0, |whole| (whole - sum(checkpoint)).max(0.0));
    let series = |scale: &dyn Fn(&Checkpoint) -> f64| {
        let step = |step: &&String| Series {
            name: (*step).clone(),
            values: checkpoints.iter().map(|checkpoint| of(checkpoint).0.get(*step).map(|ms| ms * scale(checkpoint))).collect(),
        };
        let rest = Series { name: "rest".to_owned(), values: checkpoints.iter().map(|of| Some(rest(of) * scale(of))).collect() };
        seen(steps.iter().map(step).chain([rest]).collect())
    };
    let panel = |title: String, unit: &str, series| Panel { title, unit: unit.to_owned(), stacked: true, series };
    let share = |checkpoint: &Checkpoint| match sum(checkpoint) + rest(checkpoint) {
        0.0 => 0.0,
        whole => 100.0 / whole,
    };
    vec![
        panel(format!("What the {what} was spent on"), "ms", series(&|_| 1.0)),
        panel(format!("The same, as shares of the {what}"), "%", series(&share)),
    ]
}

/// Those that are not zero throughout.
fn seen(series: Vec<Series>) -> Vec<Series> {
    series.into_iter().filter(|series| series.values.iter().flatten().any(|value| *value > 0.0)).collect()
}

/// All parts of a kind together; none where the checkpoint does not tell parts apart.
fn counts(checkpoint: &Checkpoint, kind: PartKind) -> Option<PageCounts> {
    if checkpoint.pages_by_part.is_empty() {
        return None;
    }
    let mut all = PageCounts::default();
    let parts = checkpoint.parts.iter().filter(|part| part.kind == kind);
    parts.filter_map(|part| checkpoint.pages_by_part.get(&part.name)).for_each(|counts| all += *counts);
    Some(all)
}

fn mib(pages: u64) -> f64 {
    pages as f64 * PAGE_SIZE as f64 / MIB
}
