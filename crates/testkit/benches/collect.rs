//! What collecting garbage takes in a store of ten million pages: memory, time, and what live checkpoints notice of it.
//!
//! The store is filled with pages that differ in a few bytes, so that it fits on a disk. Of its checkpoints a part is removed: some packs lose all, some most, some
//! nothing. The collection is a process of its own, whose memory is looked at; beside it a guest works and is checkpointed.

use fermata_linux::{clock::Stopwatch, priority};
use fermata_store::{CollectOptions, Collected, Cost, Record, Removal, Store};
use fermata_testkit::{
    Bench, guests,
    measure::{Counter, at_every, pick},
    report::{Report, quantile},
};
use fermata_timeline::Keeper;
use fermata_types::{CheckpointId, PAGE_SIZE, PageName, PageNumber, PartKind, PartState, Root};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

/// How this program is called by itself, to collect.
const COLLECT: &str = "--collect";
/// Pages of a checkpoint that fills the store.
const PAGES_EACH: u64 = 100_000;
/// Between two checkpoints of the guest.
const INTERVAL: Duration = Duration::from_millis(500);
/// Between two looks at the memory of the collection.
const LOOK: Duration = Duration::from_millis(2);
/// The bound, as docs/evaluation/README.md states it: for each page in a pack, bytes; and besides those, MiB.
const BYTES_A_PAGE: f64 = 2.0;
const MIB_BESIDES: f64 = 128.0;
/// The pause beside a collection at most, times that without. They share the processors.
const PAUSE_MAX: f64 = 2.0;
const MIB: f64 = (1 << 20) as f64;

/// What a collection says of itself.
#[derive(Serialize, Deserialize)]
struct Told {
    collected: Collected,
    seconds: f64,
    /// Memory of its own before and at most, bytes; and with what it maps of the index.
    before: u64,
    most: u64,
    most_mapped: u64,
}

/// Pauses and times until checkpoints were durable, ms.
#[derive(Default)]
struct Taken {
    pauses: Vec<f64>,
    durable: Vec<f64>,
}

fn main() {
    let arguments: Vec<_> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == COLLECT) {
        return collect(Path::new(&arguments[at + 1]));
    }
    let bench = Bench::new(&guests::tiny_with("collect", 256, "work:64:2000:0"));
    let store = bench.host.store();
    let pages = pick(10_000_000, 400_000);
    let watch = Stopwatch::start();
    let goes = fill(store, pages);
    let filled = watch.elapsed();
    let keeper = bench.keeper();
    keeper.boot().expect("it boots");
    Counter::new(&keeper.run(None).expect("a run").body().machine().place().console_log(), "work second ").after(None);
    keeper.checkpoint(None, None).expect("a checkpoint");
    let mut before = Taken::default();
    at_every(INTERVAL, pick(30, 8), || before.take(&keeper));
    store.remove(&Removal { checkpoints: goes, ..Removal::default() }).expect("they go");
    let (told, beside) = beside_a_collection(store, &keeper);
    let again = collect_in_a_process(store.path());
    keeper.down(None).expect("it ends");
    let mut report = Report::new("collect");
    tell(&mut report, pages, &told, [&before, &beside]);
    report.tell("a second collection, nothing to do", again.seconds, "s", None);
    report.note(format!("the store was filled in {:.0} s", filled.as_secs_f64()));
    report.print();
}

impl Taken {
    fn take(&mut self, keeper: &Keeper) {
        let watch = Stopwatch::start();
        let (_, record) = keeper.checkpoint(None, None).expect("a checkpoint");
        self.durable.push(watch.elapsed().as_secs_f64() * 1e3);
        self.pauses.push(record.cost.pause_ns as f64 / 1e6);
    }
}

/// Checkpoints of pages that nobody else has; and for each a small one that shares three tenths of them. Returns those that shall go: of every four of the large ones
/// three, and of the small ones one.
fn fill(store: &Store, pages: u64) -> Vec<CheckpointId> {
    let mut goes = Vec::new();
    for number in 0..pages / PAGES_EACH {
        let mut writer = store.writer().expect("a writer");
        let mut page = [0; PAGE_SIZE];
        let mut all: Vec<(PageNumber, Option<PageName>)> = Vec::new();
        for nth in 0..PAGES_EACH {
            page[..8].copy_from_slice(&(number * PAGES_EACH + nth + 1).to_le_bytes());
            all.push((nth as PageNumber, Some(writer.put_page(&page).expect("room for it").0)));
        }
        let large = writer.update_table(&Root::empty(PAGES_EACH), &all).expect("a table");
        let large = writer.commit(&record(&format!("large-{number}"), large)).expect("a commit");
        let mut writer = store.writer().expect("a writer");
        // Whole frames and parts of them.
        all.retain(|(nth, _)| nth % 40 < 12);
        let small = writer.update_table(&Root::empty(PAGES_EACH), &all).expect("a table");
        let small = writer.commit(&record(&format!("small-{number}"), small)).expect("a commit");
        match number % 4 {
            0 => {}
            1 => goes.extend([large, small]),
            _ => goes.push(large),
        }
    }
    goes
}

fn record(branch: &str, ram: Root) -> Record {
    let part = PartState {
        name: "m1".into(),
        kind: PartKind::Machine,
        tables: [("ram".to_owned(), ram)].into(),
        blobs: Default::default(),
        details: serde_json::Value::Null,
    };
    Record {
        parent: None,
        experiment: "filling".into(),
        branch: branch.into(),
        message: None,
        created_ns: 0,
        after_ns: None,
        time_virtual_ns: 0,
        began_ns: None,
        events: 0,
        waiting: Vec::new(),
        spec: serde_json::Value::Null,
        parts: vec![part],
        images: Vec::new(),
        cost: Cost::default(),
    }
}

/// Checkpoints are taken as long as a collection runs.
fn beside_a_collection(store: &Store, keeper: &Keeper) -> (Told, Taken) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let collection = scope.spawn(|| {
            let told = collect_in_a_process(store.path());
            over.store(true, Ordering::Relaxed);
            told
        });
        let mut beside = Taken::default();
        while !over.load(Ordering::Relaxed) {
            at_every(INTERVAL, 1, || beside.take(keeper));
        }
        (collection.join().expect("it collects"), beside)
    })
}

fn collect_in_a_process(store: &Path) -> Told {
    let itself = std::env::current_exe().expect("this program has a path");
    let output = Command::new(itself).arg(COLLECT).arg(store).stdin(Stdio::null()).stderr(Stdio::inherit()).output().expect("it runs");
    assert!(output.status.success(), "the collection failed");
    serde_json::from_slice(&output.stdout).expect("it tells")
}

/// The child: collects as a keeper does, and watches itself.
fn collect(path: &Path) {
    priority::go_last();
    let store = Store::open(path).expect("a store");
    let (over, most, most_mapped) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let look = || {
        most.fetch_max(memory("RssAnon:"), Ordering::Relaxed);
        most_mapped.fetch_max(memory("VmRSS:"), Ordering::Relaxed);
    };
    let before = memory("RssAnon:");
    let (collected, seconds) = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                look();
                thread::sleep(LOOK);
            }
        });
        let watch = Stopwatch::start();
        let collected = store.collect(&CollectOptions::default(), &mut |_, _| look());
        let seconds = watch.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        (collected.expect("it collects"), seconds)
    });
    let told = Told { collected, seconds, before, most: most.into_inner(), most_mapped: most_mapped.into_inner() };
    println!("{}", serde_json::to_string(&told).expect("plain values"));
}

/// A line of this process's status in bytes.
fn memory(line: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let value = status.lines().find_map(|text| text.strip_prefix(line)?.split_whitespace().next()?.parse::<u64>().ok());
    value.expect("the kernel tells it") << 10
}

fn tell(report: &mut Report, pages: u64, told: &Told, [before, beside]: [&Taken; 2]) {
    let Collected { packs, packs_removed, packs_rewritten, bytes_before, bytes_after, objects_removed, .. } = told.collected;
    report.tell("pages in the store", pages as f64, "", None);
    report.tell("packs", packs as f64, "", Some(("removed", packs_removed as f64)));
    report.tell("of them rewritten", packs_rewritten as f64, "", None);
    report.tell("bytes", bytes_before as f64 / MIB, "MiB", Some(("after", bytes_after as f64 / MIB)));
    report.tell("objects removed", objects_removed as f64, "", None);
    report.tell("collection", told.seconds, "s", None);
    let bound = pages as f64 * BYTES_A_PAGE / MIB + MIB_BESIDES;
    let most = told.most as f64 / MIB;
    report.mark(
        "memory of its own, at most",
        most,
        "MiB",
        Some(("when it began", told.before as f64 / MIB)),
        (&format!("at most {bound:.0} MiB"), most <= bound),
    );
    report.tell("with what it maps of the index", told.most_mapped as f64 / MIB, "MiB", None);
    let [mine, without] = [beside, before].map(|taken| quantile(&taken.pauses, 0.5));
    report.mark(
        "pause beside it, p50",
        mine,
        "ms",
        Some(("without", without)),
        (&format!("at most {PAUSE_MAX} times"), mine <= without * PAUSE_MAX),
    );
    let worst = |of: fn(&Taken) -> &[f64]| [beside, before].map(|taken| quantile(of(taken), 1.0));
    let [mine, without] = worst(|taken| &taken.pauses);
    report.tell("pause beside it, worst", mine, "ms", Some(("without", without)));
    let [mine, without] = [beside, before].map(|taken| quantile(&taken.durable, 0.5));
    report.tell("checkpoint beside it, to durable, p50", mine, "ms", Some(("without", without)));
    let [mine, without] = worst(|taken| &taken.durable);
    report.tell("checkpoint beside it, to durable, worst", mine, "ms", Some(("without", without)));
    report.tell("checkpoints beside it", beside.pauses.len() as f64, "", Some(("without", before.pauses.len() as f64)));
}
