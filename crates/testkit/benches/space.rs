//! How much of a guest's memory checkpoints keep: five workloads, four methods and savevm, as tables 4 to 6 of a paper; and make clean.
//!
//! All of it takes about an hour and a half. Arguments name what is to be measured of it: `single`, `periodic`, `overhead`, `freed`; and of
//! which workloads.
//!
//! Needs guests: space

use fermata_experiment::{Journey, Run, spare, travel};
use fermata_linux::clock::{Stopwatch, monotonic};
use fermata_store::{Class, Record};
use fermata_testkit::{
    Bench,
    bench::{self, await_console, console},
    guests,
    measure::{number_after, pick},
    report::{Report, Table, quantile},
    rival::{Rival, Stock},
};
use fermata_types::{CheckpointId, Composition, PAGE_SIZE, PageCounts, PageSet, PartKind, Root, Use};
use fermata_vm::free::free_now;
use std::{fs, thread, time::Duration};

const MEMORY_MIB: u32 = 1024;
const BOOT: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(900);
const MIB: f64 = (1 << 20) as f64;
const CHECKPOINTS: usize = 10;
/// How long a guest works before it is the next one's turn.
const TURN: Duration = Duration::from_secs(4);
/// How often the overhead is measured.
const ROUNDS: usize = 3;
/// Where two that are alike differ by as much, percent, nothing is told apart from nothing.
const SAME_MAX: f64 = 3.0;

/// A way of taking checkpoints.
struct Method {
    name: &'static str,
    /// Keys of the specification.
    keys: &'static str,
    /// Pages that are free or lie on a disk are left out, and there is a map from pages to blocks. Else all that it looks at counts as
    /// saved.
    leaves_out: bool,
}

const FULL: Method = Method { name: "full", keys: "full: true\nfree: keep\n", leaves_out: false };
const FULL_LESS: Method = Method { name: "page cache + free", keys: "full: true\n", leaves_out: true };
const INCREMENTAL: Method = Method { name: "incremental", keys: "free: keep\n", leaves_out: false };
const COMBINED: Method = Method { name: "incremental + page cache + free", keys: "", leaves_out: true };
/// Nobody watches what is written: only a checkpoint would find out, by comparing all of it.
const UNWATCHED: Method = Method { name: "unwatched", keys: "tracker: compare\nfree: keep\n", leaves_out: false };
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
    Load { name: "postmark", interval: Some(Duration::from_secs(3)), paper: (26.4, 35.3), short: false },
    Load { name: "desktop", interval: None, paper: (27.0, 78.7), short: false },
    Load { name: "install", interval: Some(Duration::from_secs(10)), paper: (13.0, 25.6), short: false },
    Load { name: "gzip", interval: Some(Duration::from_secs(5)), paper: (11.8, 15.3), short: true },
    Load { name: "make", interval: Some(Duration::from_secs(12)), paper: (16.5, 17.4), short: false },
];

/// A part of the evaluation, over these workloads.
type Measure = fn(&[&Load], &mut Report);

/// What can be measured, by name.
const PARTS: [(&str, Measure); 4] = [("single", singles), ("periodic", periods), ("overhead", overhead), ("freed", freed)];

fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let (parts, loads) = (PARTS.map(|(part, _)| part), LOADS.map(|load| load.name));
    if let Some(unknown) = arguments.iter().find(|name| !parts.iter().chain(&loads).any(|known| known == name)) {
        panic!("nothing is called {unknown}; there are {} and {}", parts.join(", "), loads.join(", "));
    }
    // All of them where none is named.
    let wanted = |name: &str, of: &[&str]| {
        let mut named = arguments.iter().filter(|argument| of.iter().any(|known| known == argument)).peekable();
        named.peek().is_none() || named.any(|argument| argument == name)
    };
    let named = |load: &Load| arguments.iter().any(|argument| argument == load.name);
    let loads: Vec<_> = LOADS.iter().filter(|load| wanted(load.name, &loads) && (named(load) || pick(true, load.short))).collect();
    let mut report = Report::new("space");
    for (_, measure) in PARTS.iter().filter(|(part, _)| wanted(part, &parts)) {
        measure(&loads, &mut report);
    }
    report.note(format!(
        "{MEMORY_MIB} MiB and one processor, as in the paper; its guests ran on real hardware, and its workloads were larger"
    ));
    report.note("saved: whole pages that the method does not leave out, as the paper counts");
    report.note("kept: of them those that are not zero and that the store did not have");
    report.note("written: bytes that the store grew by for the memory: pages, page tables, the state of devices");
    report.note(
        "time: from the request to all being durable, the disk too, while the guest runs (of a single checkpoint it stands still); savevm holds the guest, and \
         waits for no disk",
    );
    report.print();
}

/// One checkpoint, when the work is done; and what would be kept besides without the guest's help, at the same instant.
fn singles(loads: &[&Load], report: &mut Report) {
    let [uses, amounts] =
        [&["load", "free", "page cache", "dirty", "others"][..], &["saved", "%", "kept", "written", "s", "savevm s", "speed-up"]];
    let table = |title: &str, columns: Vec<&str>| Table { title: title.to_owned(), rows: vec![row(&columns)] };
    let mut helped = table("Table 4: a single checkpoint, with the guest's help, MiB", [uses, amounts].concat());
    let mut alone = table("Table 5: a single checkpoint, without the guest's help, MiB", [&uses[..1], amounts].concat());
    let mut shares = [Shares::default(), Shares::default()];
    for load in loads {
        // Both work at the same time, and each stands still while the other is looked at.
        let mut rival = stock(load).boot();
        let (bench, run) = boot(load, &COMBINED);
        await_console(&run.body(), PATIENCE, |text| done(text, load));
        rival.await_console(&format!("space {} took_ms", load.name));
        rival.stop();
        // Before, not after: what would be kept besides is looked for in the same instant.
        run.pause().expect("it stops");
        let taken = take(&run, &COMBINED);
        let (savevm, grown, loadvm) = savevm(&mut rival);
        drop(rival);
        let (more, took) = without_help(&bench, &run, &taken);
        let restored = eager_restore(&bench, &taken).as_secs_f64();
        helped.rows.push([cells_of_uses(load, &taken.record), cells_of_amount(&taken.amount, taken.took, savevm)].concat());
        alone.rows.push([vec![load.name.to_owned()], cells_of_amount(&more, took, savevm)].concat());
        for (place, (amount, paper)) in [(&taken.amount, load.paper.0), (&more, load.paper.1)].into_iter().enumerate() {
            shares[place].add(amount);
            report.tell(&format!("{}: saved {}", load.name, HELP[place]), percent(amount.saved), "%", Some(("the paper", paper)));
        }
        let loadvm = loadvm.as_secs_f64();
        let verdict = ("not slower than loadvm", restored <= loadvm);
        report.mark(&format!("{}: eager restore", load.name), restored, "s", Some(("loadvm", loadvm)), verdict);
        report.tell(&format!("{}: savevm's file grows by", load.name), grown, "MiB", None);
    }
    for (place, limit) in [8.0, 12.0].into_iter().enumerate() {
        shares[place].mark(report, &format!("a single checkpoint, {}", HELP[place]), limit);
    }
    report.tables.extend([helped, alone].map(averaged));
}

const HELP: [&str; 2] = ["with the guest's help", "without"];

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
        // Full is all of the memory, as in the plots: pages that nobody has touched since the boot, too.
        let passed_over = |class: &str| class == "unchanged" && method.name != FULL.name;
        let saved = counts.classes().filter(|(class, _)| !(passed_over(class) || method.leaves_out && elsewhere(class)));
        let machines = record.parts.iter().filter(|part| part.kind == PartKind::Machine);
        let stored: u64 = machines.map(|part| record.cost.stored_by_part[&part.name]).sum();
        Self { saved: mib(saved.map(|(_, count)| count).sum()), kept: mib(counts.new), written: stored as f64 / MIB }
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
    let yaml = method.keys.to_owned() + &guests::space("space", load.name);
    let bench = if method.leaves_out { Bench::new(&yaml) } else { Bench::without_page_map(&yaml) };
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

fn stock(load: &Load) -> Stock {
    Stock { image: Some(guests::SPACE), ..Stock::debian(MEMORY_MIB, &guests::debian_running(&format!("space {}", load.name))) }
}

/// How long it holds the guest when the work is done, by how much its file grows (MiB), and how long the way back takes.
fn savevm(rival: &mut Rival) -> (Duration, f64, Duration) {
    rival.stop();
    let before = rival.disk_bytes();
    let took = rival.savevm("s");
    let grown = (rival.disk_bytes() - before) as f64 / MIB;
    (took, grown, rival.loadvm("s"))
}

/// How long until a process that stands ready has all of a checkpoint.
fn eager_restore(bench: &Bench, taken: &Taken) -> Duration {
    let body = spare(&bench.host, &taken.id, &taken.record, &mut |_, _| {}).expect("a spare machine");
    let watch = Stopwatch::start();
    let how = Journey { eager: true, paused: true, fresh_randomness: false, perturbation: None };
    let arrival = travel(&bench.host, body, &taken.id, &taken.record, "again", how).expect("a journey");
    let took = watch.elapsed();
    drop(arrival);
    took
}

/// What the checkpoint would keep if the guest did not tell which of its pages are free, and how long it would take: those go through the
/// sieve, too.
fn without_help(bench: &Bench, run: &Run, taken: &Taken) -> (Amount, Duration) {
    let body = run.body();
    let free = free_now(body.machine()).expect("its kernel tells");
    // What nobody has touched would not have been looked at.
    let mut there = PageSet::new();
    for (from, to) in body.machine().ram().populated().expect("the extents of its memory") {
        there.insert_range((from / PAGE_SIZE as u64) as u32..to.div_ceil(PAGE_SIZE as u64) as u32);
    }
    let touched = free.intersection_len(&there);
    let watch = Stopwatch::start();
    let mut writer = bench.host.store().writer().expect("a writer");
    writer.stand_on(&taken.record.images);
    let (before, mut new, mut content) = (writer.stored_bytes().expect("room"), 0, [0; PAGE_SIZE]);
    for page in &free {
        body.machine().ram().read_at(u64::from(page) * PAGE_SIZE as u64, &mut content).expect("RAM can be read");
        new += u64::from(writer.put_page(&content).expect("room").1 == Class::New);
    }
    let written = writer.stored_bytes().expect("room") - before;
    let Amount { saved, kept, written: others } = taken.amount;
    let amount = Amount { saved: saved + mib(touched), kept: kept + mib(new), written: others + written as f64 / MIB };
    (amount, taken.took + watch.elapsed())
}

fn cells_of_uses(load: &Load, record: &Record) -> Vec<String> {
    let uses = composition(record).unwrap_or_else(|| panic!("{}: its kernel tells: {:?}", load.name, record.cost.composition));
    let told = [Use::Free, Use::CacheClean, Use::CacheDirty].map(|what| uses.of(what));
    let others = uses.total() - told.iter().sum::<u64>();
    std::iter::once(load.name.to_owned()).chain(told.into_iter().chain([others]).map(|pages| cell(mib(pages)))).collect()
}

fn cells_of_amount(amount: &Amount, took: Duration, savevm: Duration) -> Vec<String> {
    let Amount { saved, kept, written } = *amount;
    let (took, savevm) = (took.as_secs_f64(), savevm.as_secs_f64());
    [saved, percent(saved), kept, written, took, savevm, savevm / took].map(cell).to_vec()
}

/// Checkpoints again and again while the guest works, by one method; each but the first, which has to save everything.
fn period(load: &Load, interval: Duration, method: &Method) -> Vec<Taken> {
    let (_bench, run) = boot(load, method);
    let (checkpoints, mut next) = (pick(CHECKPOINTS, 3), monotonic());
    let mut taken = Vec::new();
    // The work may end before; what follows then is of no interest. But one must be left to look at.
    while taken.len() < 2 || taken.len() < checkpoints && done(&console(&run.body()), load).is_none() {
        next += interval;
        thread::sleep(next.saturating_sub(monotonic()));
        taken.push(take(&run, method));
    }
    taken.split_off(1)
}

fn periods(loads: &[&Load], report: &mut Report) {
    let mut spaces = Table { title: "Table 6: periodic checkpoints, each but the first, on average".into(), rows: Vec::new() };
    let columns = METHODS.iter().flat_map(|method| ["s", "saved MiB", "kept", "written"].map(|what| format!("{}: {what}", method.name)));
    let rival = ["savevm s", "written MiB", "speed-up"].map(str::to_owned);
    spaces.rows.push(["load".to_owned(), "checkpoints".to_owned()].into_iter().chain(columns).chain(rival).collect());
    let mut combined = Shares::default();
    let (mut mapping, mut pauses) = (Vec::new(), [Vec::new(), Vec::new()]);
    for load in loads {
        let Some(interval) = load.interval else { continue };
        let mut cells = vec![load.name.to_owned(), String::new()];
        let (savevm, grown) = savevms(load, interval);
        let mut speed_up = 0.0;
        for method in METHODS {
            let taken = period(load, interval, method);
            let average = |of: fn(&Taken) -> f64| mean(&taken.iter().map(of).collect::<Vec<_>>());
            let amount = Amount {
                saved: average(|taken| taken.amount.saved),
                kept: average(|taken| taken.amount.kept),
                written: average(|taken| taken.amount.written),
            };
            let took = average(|taken| taken.took.as_secs_f64());
            cells.extend([took, amount.saved, amount.kept, amount.written].map(cell));
            if method.leaves_out {
                mapping.extend(taken.iter().filter_map(|taken| taken.record.cost.steps_ns.get("m1 map")).map(|ns| *ns as f64 / 1e6));
            }
            pauses[usize::from(method.leaves_out)].extend(taken.iter().map(|taken| taken.record.cost.pause_ns as f64 / 1e6));
            if method.name == COMBINED.name {
                combined.add(&amount);
                speed_up = savevm / took;
                cells[1] = taken.len().to_string();
            }
        }
        cells.extend([savevm, grown, speed_up].map(cell));
        spaces.rows.push(cells);
    }
    combined.mark(report, "periodic, combined", 3.0);
    let (median, worst) = (quantile(&mapping, 0.5), quantile(&mapping, 1.0));
    report.mark("the map's step of the pause, p50", median, "ms", None, ("under 1 ms", median < 1.0));
    report.mark("the map's step of the pause, worst", worst, "ms", None, ("under 1 ms", worst < 1.0));
    let [without, with] = pauses.map(|pauses| quantile(&pauses, 0.5));
    report.tell("pause with the map and what the guest tells, p50", with, "ms", Some(("without", without)));
    report.tables.push(averaged(spaces));
}

/// The rival at the same times: how long it holds the guest, in s, and by how much its file grows, in MiB; each but the first, on average.
fn savevms(load: &Load, interval: Duration) -> (f64, f64) {
    let mut rival = stock(load).boot();
    rival.await_console(&format!("space {} begins", load.name));
    let (mut took, mut grown) = (Vec::new(), Vec::new());
    for number in 0..pick(CHECKPOINTS, 3) {
        thread::sleep(interval);
        let before = rival.disk_bytes();
        took.push(rival.savevm(&format!("s{number}")).as_secs_f64());
        grown.push((rival.disk_bytes() - before) as f64 / MIB);
        if done(&fs::read_to_string(rival.console()).expect("a console"), load).is_some() {
            break;
        }
    }
    assert!(took.len() > 1, "{} ended at once", load.name);
    (mean(&took[1..]), mean(&grown[1..]))
}

/// How much longer the work takes when it is seen which pages are written, and how much with the page-to-block map besides. No checkpoint is taken. Guests take
/// turns of a few seconds, so that what else the host does meets all of them alike; what two of the same kind differ by is what cannot be told apart.
/// Several rounds of that, of which the medians count.
fn overhead(_: &[&Load], report: &mut Report) {
    let load = LOADS.iter().find(|load| load.name == "postmark").expect("it is one of them");
    let rounds: Vec<_> = (0..pick(ROUNDS, 1)).map(|_| round(load)).collect();
    let median = |place: usize| quantile(&rounds.iter().map(|times| times[place]).collect::<Vec<_>>(), 0.5);
    let [with, without, again, unwatched] = [0, 1, 2, 3].map(median);
    let more = |time: f64| (time / without.min(again) - 1.0) * 100.0;
    let same = more(without.max(again));
    let name = format!("{}: longer with the map", load.name);
    let (more, rival) = (more(with), Some(("two without", same)));
    let verdict = if same < SAME_MAX {
        ("under 1.5 %, or not distinguishable", more < 1.5 || more < same)
    } else {
        ("no verdict: two that are alike differ by 3 % or more", false)
    };
    report.mark(&name, more, "%", rival, verdict);
    report.tell(&format!("{}: by the guest's clock", load.name), with, "s", Some(("without", without.min(again))));
    let tracking = (without.min(again) / unwatched - 1.0) * 100.0;
    report.tell(&format!("{}: longer when writes are seen", load.name), tracking, "%", Some(("two alike", same)));
}

/// How long the work takes by the guest's clock, in s: with the map, twice without, and unwatched.
fn round(load: &Load) -> [f64; 4] {
    let guests = [&COMBINED, &INCREMENTAL, &INCREMENTAL, &UNWATCHED].map(|method| {
        let guest = boot(load, method);
        guest.1.pause().expect("it stops");
        guest
    });
    let ended = |run: &Run| done(&console(&run.body()), load);
    while guests.iter().any(|(_, run)| ended(run).is_none()) {
        for (_, run) in guests.iter().filter(|(_, run)| ended(run).is_none()) {
            run.resume().expect("it goes on");
            thread::sleep(TURN);
            run.pause().expect("it stops");
        }
    }
    [0, 1, 2, 3].map(|place: usize| ended(&guests[place].1).expect("it is done") / 1e3)
}

/// The default, and with all blocks and pages kept that are free in the guest.
const KEPT: Method = Method { keys: "free: keep\n", ..COMBINED };

/// By how much a disk differs from what it was before, when a source tree was built, and when that was removed again. It is built with all of what a debugger
/// wants: without, Lua is so small that most of what differs is the file system's journal.
fn freed(_: &[&Load], report: &mut Report) {
    let mut table = Table { title: "Make, then make clean: what the disk differs by from before, MiB".into(), rows: Vec::new() };
    table.rows.push(row(&["", "after make", "after make clean", "by the file system"]));
    let mut left = Vec::new();
    for (name, method) in [("freed blocks dropped", &COMBINED), ("every block kept", &KEPT)] {
        let bench = Bench::new(&(method.keys.to_owned() + &guests::debian("freed", guests::SPACE, "")));
        let run = bench.boot();
        let before = settled(&run, "true");
        let used = used_kib(&run);
        let deltas = ["make -C /src MYCFLAGS=-g3", "make -C /src clean"].map(|work| {
            let root = settled(&run, work);
            let mut blocks = 0;
            let mut count = |_, _, _| {
                blocks += 1;
                Ok(())
            };
            bench.host.store().diff(&before, &root, &mut count).expect("page tables");
            mib(blocks)
        });
        let grown = (used_kib(&run) - used) / 1024.0;
        table.rows.push([vec![name.to_owned()], [deltas[0], deltas[1], grown].map(cell).to_vec()].concat());
        left.push(deltas);
    }
    let [after, kept] = [left[0][1], left[1][1]];
    let verdict = ("at most 10 % of that (the paper: 7 %)", after <= kept / 10.0);
    report.mark("make, then make clean: the disk differs by", after, "MiB", Some(("every block kept", kept)), verdict);
    report.tables.push(table);
}

/// Does something in the guest, waits until its file system has written and committed it, and takes a checkpoint. The table of the disk.
fn settled(run: &Run, work: &str) -> Root {
    // Two more transactions: blocks that were freed count from then on.
    sh(run, &format!("{work} >/dev/null 2>&1; for i in 1 2 3; do sync; echo $i >/root/settled; done; sync"));
    let (_, record) = run.checkpoint(None).expect("a checkpoint");
    let disk = record.parts.iter().find(|part| part.kind == PartKind::Disk).expect("it has a disk");
    *disk.tables.values().next().expect("it has a table")
}

/// What the guest's file system says is in use.
fn used_kib(run: &Run) -> f64 {
    sh(run, "df --output=used / | tail -n 1").trim().parse().expect("a number")
}

fn sh(run: &Run, script: &str) -> String {
    bench::shell(run.body().machine(), PATIENCE, script)
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

/// With a last row for the average of each column.
fn averaged(mut table: Table) -> Table {
    let columns = table.rows[0].len();
    let average = |column: usize| {
        let numbers: Vec<f64> = table.rows[1..].iter().filter_map(|row| row[column].parse().ok()).collect();
        if numbers.is_empty() { String::new() } else { cell(mean(&numbers)) }
    };
    let last = std::iter::once("average".to_owned()).chain((1..columns).map(average)).collect();
    table.rows.push(last);
    table
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
