//! Figures over a line of checkpoints, as series to draw: what memory held and what became of it, what was written, how much of
//! it was there before, and what the pause and the work around it were spent on.

use crate::values::{Checkpoint, Panel, Plot, Plots, PlottedCheckpoint, Series};
use fermata_types::{Composition, Distances, PAGE_SIZE, PageCounts, PartKind, Use};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

/// Times by part and step, ms.
type Steps = BTreeMap<String, f64>;

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
            "pause" => spent(checkpoints, "pause", |checkpoint| (pause_steps(checkpoint), Some(checkpoint.pause_ms))),
            "background" => background(checkpoints),
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

/// What the memory's pages are for, what became of them, and how much each method would have to save.
fn memory(checkpoints: &[Checkpoint]) -> Vec<Panel> {
    let panel = |title: &str, series| Panel { title: title.to_owned(), unit: "MiB".to_owned(), stacked: true, series };
    let uses = panel("Memory: what its pages are for", uses(checkpoints));
    let sieve = panel("Memory: what became of its pages", classes(checkpoints, PartKind::Machine, |_| true, mib));
    // Checkpoints that do not tell what their pages are for have no such panel.
    let uses = (!uses.series.is_empty()).then_some(uses);
    uses.into_iter().chain([sieve, methods(checkpoints)]).collect()
}

/// All machines together; none where a checkpoint does not tell.
fn composition(checkpoint: &Checkpoint) -> Option<Composition> {
    let told = checkpoint.composition.values().filter(|machine| machine.unknown.is_none());
    let mut all = Composition::default();
    told.flat_map(|machine| &machine.pages).for_each(|(what, pages)| *all.pages.entry(*what).or_default() += pages);
    (all.total() > 0).then_some(all)
}

fn uses(checkpoints: &[Checkpoint]) -> Vec<Series> {
    let all: Vec<_> = checkpoints.iter().map(composition).collect();
    let of = |what: &Use| Series {
        name: what.name().to_owned(),
        values: all.iter().map(|composition| Some(mib(composition.as_ref()?.of(*what)))).collect(),
    };
    seen(Use::ALL.iter().map(of).collect())
}

/// How much of the memory each method of checkpointing saves, in whole pages; and what this checkpoint put into the store of it,
/// after duplicates were left out and the rest was compressed.
fn methods(checkpoints: &[Checkpoint]) -> Panel {
    let of = |name: &str, amount: &dyn Fn(&Checkpoint) -> Option<f64>| Series {
        name: name.to_owned(),
        values: checkpoints.iter().map(amount).collect(),
    };
    let counts = |checkpoint: &Checkpoint| counts(checkpoint, PartKind::Machine);
    let series = vec![
        of("full", &|checkpoint| Some(mib(counts(checkpoint)?.total()))),
        of("page cache + free", &|checkpoint| {
            let composition = composition(checkpoint)?;
            Some(mib(composition.total() - composition.of(Use::Free) - composition.of(Use::CacheClean)))
        }),
        of("incremental", &|checkpoint| Some(mib(counts(checkpoint)?.written()))),
        of("incremental + page cache + free", &|checkpoint| Some(mib(wanted(&counts(checkpoint)?)))),
        of("stored, compressed", &|checkpoint| stored(checkpoint, PartKind::Machine).map(|bytes| bytes as f64 / MIB)),
    ];
    // Methods that cannot be told apart from others here have no series.
    let series = series.into_iter().filter(|series| series.values.iter().any(Option::is_some)).collect();
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
    let distances = |title: &str, unit: &str, kind| Panel {
        title: title.to_owned(),
        unit: unit.to_owned(),
        stacked: true,
        series: distances(checkpoints, kind),
    };
    vec![
        panel("Memory: written pages that were there before", PartKind::Machine),
        panel("Disks: written blocks that were there before", PartKind::Disk),
        distances("Memory: how many checkpoints ago such pages were first stored", "pages", PartKind::Machine),
        distances("Disks: how many checkpoints ago such blocks were first stored", "blocks", PartKind::Disk),
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
        of("mapped", |counts| counts.mapped),
        of("on_disk", |counts| counts.on_disk),
    ];
    seen(series)
}

fn distances(checkpoints: &[Checkpoint], kind: PartKind) -> Vec<Series> {
    let all: Vec<_> = checkpoints.iter().map(|of| counts(of, kind).map(|counts| counts.distances)).collect();
    let classes: BTreeSet<_> = all.iter().flatten().flat_map(|distances| distances.iter().map(|(least, _)| least)).collect();
    let count = |of: &Distances, class: u32| of.iter().find(|(least, _)| *least == class).map_or(0, |(_, count)| count);
    let series = classes.into_iter().map(|least| Series {
        name: if least == 1 { "1".to_owned() } else { format!("{least} to {}", u64::from(least) * 2 - 1) },
        values: all.iter().map(|of| of.as_ref().map(|of| count(of, least) as f64)).collect(),
    });
    series.collect()
}

/// What a time was spent on, in ms and in percent. What no step accounts for is a series of its own, if the whole is known.
fn spent(checkpoints: &[Checkpoint], what: &str, of: fn(&Checkpoint) -> (Cow<'_, Steps>, Option<f64>)) -> Vec<Panel> {
    let steps: BTreeSet<_> = checkpoints.iter().flat_map(|checkpoint| of(checkpoint).0.keys().cloned().collect::<Vec<_>>()).collect();
    let sum = |checkpoint: &Checkpoint| of(checkpoint).0.values().sum::<f64>();
    let rest = |checkpoint: &Checkpoint| of(checkpoint).1.map_or(0.0, |whole| (whole - sum(checkpoint)).max(0.0));
    let series = |scale: &dyn Fn(&Checkpoint) -> f64| {
        let step = |step: &String| Series {
            name: step.clone(),
            values: checkpoints.iter().map(|checkpoint| of(checkpoint).0.get(step).map(|ms| ms * scale(checkpoint))).collect(),
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

/// The work around the pause by part, and by the class of pages that it told.
fn background(checkpoints: &[Checkpoint]) -> Vec<Panel> {
    let work = spent(checkpoints, "work around the pause", |checkpoint| (Cow::Borrowed(&checkpoint.background_ms), None));
    let sieve = spent(checkpoints, "sieve", |checkpoint| (Cow::Borrowed(&checkpoint.sieve_ms), None));
    // Older checkpoints do not tell.
    work.into_iter().chain(sieve.into_iter().take(1).filter(|panel| !panel.series.is_empty())).collect()
}

/// The steps of a pause. Those of several machines overlap: of each step the longest counts, for all wait for it.
fn pause_steps(checkpoint: &Checkpoint) -> Cow<'_, Steps> {
    if checkpoint.skew.is_none() {
        return Cow::Borrowed(&checkpoint.steps_ms);
    }
    let mut longest = Steps::new();
    for (step, ms) in &checkpoint.steps_ms {
        let name = step.split_once(' ').map_or(step.as_str(), |(_, step)| step);
        let most = longest.entry(format!("all {name}")).or_default();
        *most = f64::max(*most, *ms);
    }
    Cow::Owned(longest)
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

/// Bytes that the parts of a kind put into the store; none where the checkpoint does not tell.
fn stored(checkpoint: &Checkpoint, kind: PartKind) -> Option<u64> {
    let parts = checkpoint.parts.iter().filter(|part| part.kind == kind);
    let told: Vec<_> = parts.filter_map(|part| checkpoint.stored_by_part.get(&part.name)).collect();
    (!told.is_empty()).then(|| told.into_iter().sum())
}

fn mib(pages: u64) -> f64 {
    pages as f64 * PAGE_SIZE as f64 / MIB
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Part;
    use fermata_types::CheckpointId;

    fn checkpoint(number: u8, machine: PageCounts, disk: PageCounts) -> Checkpoint {
        let part = |name: &str, kind| Part {
            name: name.to_owned(),
            kind,
            tables: BTreeMap::new(),
            blobs: BTreeMap::new(),
            free_space: Vec::new(),
        };
        let mut pages = machine;
        pages += disk;
        let steps = |stop: f64| BTreeMap::from([("m1 stop".to_owned(), stop), ("m1 devices".to_owned(), 2.0)]);
        Checkpoint {
            id: CheckpointId([number; 32]),
            parent: None,
            experiment: "tryout".to_owned(),
            branch: "main".to_owned(),
            heads: vec![],
            tags: vec![],
            message: None,
            created_ns: 0,
            created: String::new(),
            time_virtual_ns: u64::from(number) * 1_000_000_000,
            pause_ms: 5.0,
            skew: None,
            steps_ms: steps(1.0),
            save_ms: 0.0,
            stored_bytes: 1 << 19,
            stored_by_part: BTreeMap::from([("m1".to_owned(), 1 << 18), ("m1/disk0".to_owned(), 1 << 18)]),
            pages,
            pages_by_part: BTreeMap::from([("m1".to_owned(), machine), ("m1/disk0".to_owned(), disk)]),
            bytes_by_class: BTreeMap::new(),
            sieve_ms: BTreeMap::from([("new".to_owned(), 7.0), ("free".to_owned(), 0.0)]),
            background_ms: steps(0.0),
            composition: BTreeMap::new(),
            saved_bytes: Default::default(),
            parts: vec![part("m1", PartKind::Machine), part("m1/disk0", PartKind::Disk)],
            images: vec![],
            events: None,
            network: None,
            down: vec![],
            links: vec![],
            perturbation: None,
            runs: vec![],
        }
    }

    fn history() -> Vec<Checkpoint> {
        let machine =
            PageCounts { unchanged: 768, free: 64, zero: 64, on_disk: 32, known: 64, within: 16, new: 32, ..PageCounts::default() };
        let disk = PageCounts { unchanged: 90, known: 4, new: 6, ..PageCounts::default() };
        let mut history = vec![checkpoint(1, machine, disk), checkpoint(2, machine, PageCounts::default())];
        let machine = history[1].pages_by_part.get_mut("m1").unwrap();
        [1, 6].into_iter().for_each(|distance| machine.distances.add(distance));
        let pages = BTreeMap::from([(Use::Free, 512), (Use::CacheClean, 256), (Use::Kernel, 256)]);
        history[1].composition.insert("m1".to_owned(), Composition { pages, unknown: None });
        history[0].composition.insert("m1".to_owned(), Composition::unknown("no Linux"));
        history
    }

    fn panels(kind: &str) -> Vec<Panel> {
        let plots = plots("tryout", &history(), &[kind]);
        assert_eq!((plots.plots[0].name.as_str(), plots.checkpoints.len()), (kind, 2));
        plots.plots[0].panels.clone()
    }

    #[track_caller]
    fn check(panel: &Panel, expected: &[(&str, [Option<f64>; 2])]) {
        let found: Vec<_> = panel.series.iter().map(|series| (series.name.as_str(), series.values.clone())).collect();
        let expected: Vec<_> = expected.iter().map(|(name, values)| (*name, values.to_vec())).collect();
        assert_eq!(found, expected, "{}", panel.title);
    }

    #[test]
    fn memory_by_use_by_class_and_by_method() {
        let panels = panels("memory");
        check(&panels[0], &[("free", [None, Some(2.0)]), ("cache_clean", [None, Some(1.0)]), ("kernel", [None, Some(1.0)])]);
        assert!(panels[1].series.iter().any(|series| series.name == "unchanged" && series.values == [Some(3.0), Some(3.0)]));
        check(
            &panels[2],
            &[
                ("full", [Some(4.0), Some(4.0)]),
                ("page cache + free", [None, Some(1.0)]),
                ("incremental", [Some(1.0), Some(1.0)]),
                ("incremental + page cache + free", [Some(0.625), Some(0.625)]),
                ("stored, compressed", [Some(0.25), Some(0.25)]),
            ],
        );
    }

    #[test]
    fn memory_and_disks_apart() {
        let dirty = panels("dirty");
        assert_eq!(dirty[0].series.iter().filter_map(|series| series.values[0]).sum::<f64>(), 256.0);
        check(&dirty[1], &[("known", [Some(4.0), Some(0.0)]), ("new", [Some(6.0), Some(0.0)])]);
        let duplicates = panels("duplicates");
        let share = Some(100.0 / 8.0);
        check(&duplicates[0], &[("in this checkpoint", [share; 2]), ("in earlier ones", [Some(37.5); 2]), ("on_disk", [Some(25.0); 2])]);
        check(&duplicates[1], &[("in earlier ones", [Some(40.0), None])]);
        check(&duplicates[2], &[("1", [Some(0.0), Some(1.0)]), ("4 to 7", [Some(0.0), Some(1.0)])]);
        check(&duplicates[3], &[]);
    }

    #[test]
    fn times_add_up_to_the_whole() {
        let pause = panels("pause");
        check(&pause[0], &[("m1 devices", [Some(2.0); 2]), ("m1 stop", [Some(1.0); 2]), ("rest", [Some(2.0); 2])]);
        assert_eq!(pause[1].series.iter().filter_map(|series| series.values[1]).sum::<f64>(), 100.0);
        check(&panels("background")[0], &[("m1 devices", [Some(2.0); 2])]);
        check(&panels("background")[2], &[("new", [Some(7.0); 2])]);
    }

    #[test]
    fn of_steps_that_overlap_the_longest_counts() {
        let mut one = history().remove(0);
        one.skew = Some(Default::default());
        one.steps_ms.extend([("m2 stop".to_owned(), 1.5), ("m2 devices".to_owned(), 1.0)]);
        let plots = plots("tryout", &[one], &["pause"]);
        let series: Vec<_> = plots.plots[0].panels[0].series.iter().map(|series| (series.name.as_str(), series.values[0])).collect();
        assert_eq!(series, [("all devices", Some(2.0)), ("all stop", Some(1.5)), ("rest", Some(1.5))]);
    }

    #[test]
    fn nothing_is_plotted_of_older_checkpoints_that_do_not_tell_parts_apart() {
        let mut history = history();
        history.iter_mut().for_each(|checkpoint| checkpoint.pages_by_part.clear());
        let plots = plots("tryout", &history, &KINDS);
        assert_eq!(plots.plots.len(), KINDS.len());
        assert!(plots.plots[1].panels.iter().all(|panel| panel.series.is_empty()));
    }
}
