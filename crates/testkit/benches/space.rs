//! How much of a guest's memory checkpoints keep: five workloads, four methods and savevm, as tables 4 to 6 of a paper.
//!
//! Needs guests: space

use fermata_experiment::{Journey, Run, spare, travel};
use fermata_linux::clock::{Stopwatch, monotonic};
use fermata_store::Record;
use fermata_testkit::{
    Bench,
    bench::{await_console, console},
    guests,
    measure::{number_after, pick},
    report::{Report, Table, quantile},
    rival::Stock,
};
use fermata_types::{CheckpointId, Composition, PAGE_SIZE, PageCounts, PartKind, Use};
use std::{thread, time::Duration};

const MEMORY_MIB: u32 = 1024;
const BOOT: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(900);
const MIB: f64 = (1 << 20) as f64;
const CHECKPOINTS: usize = 10;
/// Two times that differ by less are alike.
const ALIKE: f64 = 1.05;

/// A way of taking checkpoints: keys of the specification.
struct Method {
    name: &'static str,
    keys: &'static str,
    /// Pages that are free or lie on a disk are left out. Else all that it looks at counts as saved, as in the paper.
    leaves_out: bool,
}

const FULL: Method = Method { name: "full", keys: "full: true\nfree: keep\n", leaves_out: false };
const FULL_LESS: Method = Method { name: "page cache + free", keys: "full: true\n", leaves_out: true };
const INCREMENTAL: Method = Method { name: "incremental", keys: "free: keep\n", leaves_out: false };
const COMBINED: Method = Method { name: "incremental + page cache + free", keys: "", leaves_out: true };
/// What is left of the last without the guest's word for its free pages.
const WITHOUT_HELP: Method = Method { name: "without the guest's help", keys: "free: keep\n", leaves_out: true };
/// Without tracking while the guest runs, and so without a map: what was written is found by comparing.
const UNTRACKED: Method = Method { name: "untracked", keys: "tracker: compare\n", leaves_out: false };
const METHODS: [&Method; 4] = [&FULL, &FULL_LESS, &INCREMENTAL, &COMBINED];

/// What a guest does, and what the paper has for it.
struct Load {
    name: &'static str,
    /// Between checkpoints, so that about ten fall into the work; none if nothing happens any more once it is up.
    interval: Option<Duration>,
    /// The paper's share of memory saved, percent: a single checkpoint with the guest's help, and without.
    paper: (f64, f64),
    short: bool,
}

const LOADS: [Load; 5] = [
    Load { name: "postmark", interval: Some(Duration::from_secs(10)), paper: (26.4, 35.3), short: false },
    Load { name: "desktop", interval: None, paper: (27.0, 78.7), short: false },
    Load { name: "install", interval: Some(Duration::from_secs(10)), paper: (13.0, 25.6), short: false },
    Load { name: "gzip", interval: Some(Duration::from_secs(5)), paper: (11.8, 15.3), short: true },
    Load { name: "make", interval: Some(Duration::from_secs(12)), paper: (16.5, 17.4), short: false },
];

fn main() {
    let loads: Vec<_> = LOADS.iter().filter(|load| pick(true, load.short)).collect();
    let mut report = Report::new("space");
    singles(&loads, &mut report);
    periods(&loads, &mut report);
    overhead(loads[0], &mut report);
    report.note(format!(
        "{MEMORY_MIB} MiB and one processor, as in the paper; its guests ran on real hardware, and its workloads were larger"
    ));
    report.note("saved: whole pages that the method does not leave out, as the paper counts");
    report.note("kept: of them those that are not zero and that the store did not have");
    report.note("written: bytes that the store grew by, times the memory's share of the new pages, for the disks are in the same pack");
    report.note("time: from the request to all being durable, while the guest runs; savevm holds the guest, and waits for no disk");
    report.print();
}

/// One checkpoint, when the work is done.
fn singles(loads: &[&Load], report: &mut Report) {
    let columns =
        ["load", "free", "page cache", "dirty", "others", "saved", "saved %", "kept", "written", "time s", "savevm s", "speed-up"];
    let mut helped = Table { title: "Table 4: a single checkpoint, with the guest's help, MiB".into(), rows: vec![row(&columns)] };
    let mut alone = Table { title: "Table 5: a single checkpoint, without the guest's help, MiB".into(), rows: vec![row(&columns)] };
    let mut means = [Shares::default(), Shares::default()];
    for load in loads {
        let (savevm, saved) = savevm(load);
        for (place, (method, table)) in [(&COMBINED, &mut helped), (&WITHOUT_HELP, &mut alone)].into_iter().enumerate() {
            let single = single(load, method);
            table.rows.push(single_row(load, &single, savevm));
            means[place].add(&single.amount);
            let paper = if place == 0 { load.paper.0 } else { load.paper.1 };
            report.tell(&format!("{}: {}", load.name, said(method)), single.amount.saved_percent(), "%", Some(("the paper", paper)));
        }
        report.tell(&format!("{}: savevm's file grows by", load.name), saved, "MiB", None);
    }
    for (shares, (method, limit)) in means.iter().zip([(&COMBINED, 8.0), (&WITHOUT_HELP, 12.0)]) {
        shares.mark(report, &format!("a single checkpoint, {}", said(method)), limit);
    }
    report.tables.extend([helped, alone]);
}

fn said(method: &Method) -> &'static str {
    if method.keys.is_empty() { "with the guest's help" } else { method.name }
}

/// A checkpoint that was asked for.
struct Taken {
    id: CheckpointId,
    record: Record,
    /// From the request to its being durable.
    took: Duration,
    amount: Amount,
}

/// How much of the memory a checkpoint saves. MiB.
#[derive(Clone, Copy)]
struct Amount {
    saved: f64,
    kept: f64,
    written: f64,
}

impl Amount {
    fn of(record: &Record, method: &Method) -> Self {
        let counts = counts_of(record, PartKind::Machine);
        let elsewhere = |class: &str| matches!(class, "free" | "mapped" | "on_disk");
        let saved = counts.classes().filter(|(class, _)| *class != "unchanged" && !(method.leaves_out && elsewhere(class)));
        let all_new = record.cost.pages.new.max(1);
        Self {
            saved: mib(saved.map(|(_, count)| count).sum()),
            kept: mib(counts.new),
            written: record.cost.stored_bytes as f64 / MIB * counts.new as f64 / all_new as f64,
        }
    }

    fn saved_percent(&self) -> f64 {
        percent(self.saved)
    }
}

/// What checkpoints of several loads keep and write, in percent of the memory.
#[derive(Default)]
struct Shares {
    kept: Vec<f64>,
    written: Vec<f64>,
}

impl Shares {
    fn add(&mut self, amount: &Amount) {
        self.kept.push(percent(amount.kept));
        self.written.push(percent(amount.written));
    }

    fn mark(&self, report: &mut Report, name: &str, limit: f64) {
        let at_most = format!("at most {limit} % of memory");
        for (what, values) in [("written", &self.written), ("before compression", &self.kept)] {
            let mean = mean(values);
            report.mark(&format!("{name}, {what}"), mean, "%", None, (&at_most, mean <= limit));
        }
    }
}

fn boot(load: &Load, method: &Method) -> (Bench, Run) {
    let bench = Bench::new(&(method.keys.to_owned() + &guests::space("space", load.name)));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains(&format!("space {} begins", load.name)).then_some(()));
    (bench, run)
}

/// How long the work took by the guest's own clock, ms, if it is done.
fn done(text: &str, load: &Load) -> Option<f64> {
    let whole = &text[..text.rfind('\n').unwrap_or_default()];
    let line = whole.lines().find(|line| line.contains(&format!("space {} ", load.name)) && !line.contains(" begins"))?;
    Some(number_after(line, "took_ms ").unwrap_or_else(|| panic!("{}: {line}", load.name)))
}

fn take(run: &Run, method: &Method) -> Taken {
    let watch = Stopwatch::start();
    let (id, record) = run.checkpoint(None).expect("a checkpoint");
    let took = watch.elapsed();
    let amount = Amount::of(&record, method);
    Taken { id, record, took, amount }
}

fn single(load: &Load, method: &Method) -> Taken {
    let (_bench, run) = boot(load, method);
    await_console(&run.body(), PATIENCE, |text| done(text, load));
    take(&run, method)
}

/// How long it holds the guest when the work is done, and by how much its file grows, MiB.
fn savevm(load: &Load) -> (Duration, f64) {
    let stock = Stock { image: Some(guests::SPACE), ..Stock::debian(MEMORY_MIB, &guests::debian_running(&format!("space {}", load.name))) };
    let mut qemu = stock.boot();
    qemu.await_console(&format!("space {} took_ms", load.name));
    qemu.stop();
    let before = qemu.disk_bytes();
    let took = qemu.savevm("s");
    (took, (qemu.disk_bytes() - before) as f64 / MIB)
}

fn single_row(load: &Load, single: &Taken, savevm: Duration) -> Vec<String> {
    let uses = composition(&single.record);
    let of = |what: Use| uses.as_ref().map(|uses| mib(uses.of(what)));
    let [free, clean, dirty] = [of(Use::Free), of(Use::CacheClean), of(Use::CacheDirty)];
    let others = uses.as_ref().map(|uses| mib(uses.total()) - free.unwrap_or(0.0) - clean.unwrap_or(0.0) - dirty.unwrap_or(0.0));
    let Amount { saved, kept, written } = single.amount;
    let (took, savevm) = (single.took.as_secs_f64(), savevm.as_secs_f64());
    let numbers = [saved, percent(saved), kept, written, took, savevm, savevm / took].map(Some);
    let cells = [free, clean, dirty, others].into_iter().chain(numbers).map(|number| number.map_or_else(|| "-".into(), cell));
    std::iter::once(load.name.to_owned()).chain(cells).collect()
}

/// Checkpoints again and again while the guest works, by one method.
struct Period {
    taken: Vec<Taken>,
    /// How long the eager restore of the last one took.
    restored: Duration,
}

impl Period {
    /// Without the first, which has to save everything.
    fn later(&self) -> &[Taken] {
        &self.taken[1..]
    }

    fn mean(&self, of: impl Fn(&Taken) -> f64) -> f64 {
        mean(&self.later().iter().map(of).collect::<Vec<_>>())
    }
}

fn period(load: &Load, interval: Duration, method: &Method) -> Period {
    let (bench, run) = boot(load, method);
    let (checkpoints, mut next) = (pick(CHECKPOINTS, 3), monotonic());
    let mut taken = Vec::new();
    // The work may end before; what follows then is of no interest. But one must be left to look at.
    while taken.len() < 2 || taken.len() < checkpoints && done(&console(&run.body()), load).is_none() {
        next += interval;
        thread::sleep(next.saturating_sub(monotonic()));
        taken.push(take(&run, method));
    }
    drop(run);
    let last: &Taken = taken.last().expect("there are two");
    let body = spare(&bench.host, &last.id, &last.record, &mut |_, _| {}).expect("a spare machine");
    let watch = Stopwatch::start();
    let how = Journey { eager: true, paused: true, fresh_randomness: false };
    let arrival = travel(&bench.host, body, &last.id, &last.record, "again", how).expect("a journey");
    let restored = watch.elapsed();
    drop(arrival);
    Period { taken, restored }
}

fn periods(loads: &[&Load], report: &mut Report) {
    let mut spaces = Table { title: "Table 6: periodic checkpoints, each but the first, on average".into(), rows: Vec::new() };
    let columns = METHODS.iter().flat_map(|method| ["s", "saved MiB", "kept", "written"].map(|what| format!("{}: {what}", method.name)));
    spaces.rows.push(std::iter::once("load".to_owned()).chain(columns).collect());
    let mut combined = Shares::default();
    let (mut pauses, mut restores) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for load in loads {
        let Some(interval) = load.interval else { continue };
        let mut cells = vec![load.name.to_owned()];
        for method in METHODS {
            let period = period(load, interval, method);
            let amount = Amount {
                saved: period.mean(|taken| taken.amount.saved),
                kept: period.mean(|taken| taken.amount.kept),
                written: period.mean(|taken| taken.amount.written),
            };
            let took = period.mean(|taken| taken.took.as_secs_f64());
            cells.extend([took, amount.saved, amount.kept, amount.written].map(cell));
            let paused = period.later().iter().map(|taken| taken.record.cost.pause_ns as f64 / 1e6);
            match method.name {
                name if name == COMBINED.name => {
                    combined.add(&amount);
                    pauses[0].extend(paused);
                    restores[0].push(period.restored.as_secs_f64());
                }
                name if name == INCREMENTAL.name => pauses[1].extend(paused),
                name if name == FULL.name => restores[1].push(period.restored.as_secs_f64()),
                _ => {}
            }
        }
        spaces.rows.push(cells);
    }
    combined.mark(report, "periodic, combined", 3.0);
    let [ours, plain] = pauses.map(|pauses| quantile(&pauses, 0.5));
    report.mark("added to the pause, p50", ours - plain, "ms", None, ("under 1 ms", ours - plain < 1.0));
    report.tell("pause, p50", ours, "ms", Some(("incremental", plain)));
    let [ours, full] = restores.map(|restores| mean(&restores) * 1e3);
    report.mark("eager restore", ours, "ms", Some(("of a full checkpoint", full)), ("no slower", ours <= full * ALIKE));
    report.tables.push(spaces);
}

/// How much longer the work takes with write tracking and the page-to-block map than without both. No checkpoint is taken.
fn overhead(load: &Load, report: &mut Report) {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..pick(3, 1) {
        // In changing order, so that what else the host does meets both alike.
        for place in [round % 2, 1 - round % 2] {
            let (_bench, run) = boot(load, [&COMBINED, &UNTRACKED][place]);
            times[place].push(await_console(&run.body(), PATIENCE, |text| done(text, load)) / 1e3);
        }
    }
    let [with, without] = times.map(|times| quantile(&times, 0.5));
    let more = (with / without - 1.0) * 100.0;
    report.mark(&format!("{}: longer with tracking and map", load.name), more, "%", None, ("under 1.5 %", more < 1.5));
    report.tell(&format!("{}: by the guest's clock, p50", load.name), with, "s", Some(("neither", without)));
}

/// All parts of a kind together.
fn counts_of(record: &Record, kind: PartKind) -> PageCounts {
    let mut all = PageCounts::default();
    let parts = record.parts.iter().filter(|part| part.kind == kind);
    parts.filter_map(|part| record.cost.parts.get(&part.name)).for_each(|counts| all += *counts);
    all
}

/// What the memory's pages are for, if the guest's kernel told.
fn composition(record: &Record) -> Option<&Composition> {
    record.cost.composition.values().find(|composition| composition.unknown.is_none() && composition.total() > 0)
}

fn mib(pages: u64) -> f64 {
    pages as f64 * PAGE_SIZE as f64 / MIB
}

fn percent(mib: f64) -> f64 {
    mib * 100.0 / f64::from(MEMORY_MIB)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

fn cell(number: f64) -> String {
    format!("{number:.2}")
}
