//! How much of what a guest writes is a duplicate: three loads, 50 checkpoints every 2 s, as tables 6.1 and 6.2 of the SimuBoost thesis have it.

use fermata_store::{Record, Store};
use fermata_testkit::{
    Bench,
    bench::await_console,
    guests,
    measure::{at_every, pick},
    report::{Report, Table},
};
use fermata_types::{PAGE_SIZE, PageCounts, PageName, PartKind, Root};
use std::{
    collections::{BTreeMap, HashSet},
    thread,
    time::Duration,
};

const INTERVAL: Duration = Duration::from_secs(2);
const BOOT: Duration = Duration::from_secs(200);
const WARM_UP: Duration = Duration::from_secs(8);
const MIB: f64 = (1 << 20) as f64;
const BUILD: &str = "while :; do make -C /src clean; make -C /src; done";
/// Six files at three levels, in memory, as SPEC's bzip2 does it.
const BZIP2: &str = "mkdir /tmp/b; cd /tmp/b; tar -cf 1 /src; cp /usr/bin/bash 2; head -c 3000000 /usr/lib/gcc/x86_64-linux-gnu/12/cc1 >3; \
    tar -cf 4 /usr/include/linux; cp /usr/lib/x86_64-linux-gnu/libc.so.6 5; cp /usr/bin/redis-server 6; \
    while :; do for f in 1 2 3 4 5 6; do for l in 1 5 9; do bzip2 -$l <$f >z; bunzip2 <z >y; done; done; done";
const EVENTS: &str = "events 4000 300000 /var/log/events";

/// What the thesis measured with a load of this kind.
struct Load {
    name: &'static str,
    thesis_name: &'static str,
    script: &'static str,
    memory: Thesis,
    blocks: Thesis,
}

/// Duplicates a checkpoint, their share in percent (table 6.1); space used and saved in MiB (table 6.2).
struct Thesis {
    count: f64,
    share: f64,
    used: f64,
    saved: f64,
}

const LOADS: [Load; 3] = [
    Load {
        name: "C build",
        thesis_name: "kernel build",
        script: BUILD,
        memory: Thesis { count: 3484.0, share: 16.90, used: 3.91 * 1024.0, saved: 795.25 },
        blocks: Thesis { count: 1728.0, share: 34.79, used: 168.67, saved: 89.99 },
    },
    Load {
        name: "bzip2",
        thesis_name: "SPEC bzip2",
        script: BZIP2,
        memory: Thesis { count: 6766.0, share: 42.16, used: 1.59 * 1024.0, saved: 1158.05 },
        blocks: Thesis { count: 162.0, share: 67.07, used: 122.61, saved: 249.72 },
    },
    Load {
        name: "event simulator",
        thesis_name: "SPEC omnetpp",
        script: EVENTS,
        memory: Thesis { count: 2565.0, share: 8.26, used: 5.92 * 1024.0, saved: 532.90 },
        blocks: Thesis { count: 155.0, share: 80.64, used: 6.30, saved: 26.26 },
    },
];

fn main() {
    let mut report = Report::new("dedup");
    let mut shares = Table { title: "Table 6.1: deduplicated pages of a checkpoint, on average".into(), rows: Vec::new() };
    shares.rows.push(row(&["load", "of", "count", "%", "within", "across", "on image", "thesis count", "thesis %"]));
    let mut spaces = Table { title: "Table 6.2: disk space used, and saved by deduplication, MiB".into(), rows: Vec::new() };
    spaces.rows.push(row(&["load", "of", "used", "saved", "thesis used", "thesis saved"]));
    let mut distances = Table { title: "Duplicates of earlier checkpoints, by how many checkpoints back".into(), rows: Vec::new() };
    for load in &LOADS {
        let bench = Bench::new(&format!("free: keep\n{}", guests::debian_with("dedup", "2G", &guests::debian_running(load.script))));
        let records = run(&bench, pick(50, 5));
        let mut by_hash = ByHash::default();
        let all: Vec<_> = records.iter().map(|record| by_hash.new_pages(bench.host.store(), record)).collect();
        for (what, kind, thesis) in [("memory", PartKind::Machine, &load.memory), ("blocks", PartKind::Disk, &load.blocks)] {
            let counts: Vec<_> = records.iter().map(|record| counts_of(record, kind)).collect();
            let mean = Mean::of(&counts[1..]);
            let new: Vec<_> = all.iter().map(|new| new.get(&kind).copied().unwrap_or_default()).collect();
            let rival = by_hash_share(&counts[1..], &new[1..]);
            let name = format!("{}: {what} deduplicated", load.name);
            let mark = ("no less than the thesis's method on the same pages", mean.share >= rival);
            report.mark(&name, mean.share, "%", Some(("by hash alone, as the thesis does it", rival)), mark);
            let (rival, mark) = (format!("thesis, {}", load.thesis_name), ("no less than the thesis", mean.share >= thesis.share));
            report.mark(&format!("{name}, beside table 6.1"), mean.share, "%", Some((&rival, thesis.share)), mark);
            let numbers = [mean.count, mean.share, mean.within, mean.across, mean.on_disk, thesis.count, thesis.share];
            shares.rows.push(row_of(load.name, what, &numbers));
            let mib = |of: fn(&PageCounts) -> u64| counts.iter().map(of).sum::<u64>() as f64 * PAGE_SIZE as f64 / MIB;
            let (used, saved) = (mib(|counts| counts.new), mib(|counts| counts.known + lies_on_disk(counts)));
            spaces.rows.push(row_of(load.name, what, &[used, saved, thesis.used, thesis.saved]));
            if kind == PartKind::Machine {
                distances.rows.push(far(load.name, &counts[1..]));
            }
        }
        let stored = records.iter().map(|record| record.cost.stored_bytes).sum::<u64>() as f64 / MIB;
        let kept: u64 = records.iter().map(|record| record.cost.pages.new * PAGE_SIZE as u64).sum();
        report.tell(&format!("{}: in the store, compressed", load.name), stored, "MiB", Some(("pages kept", kept as f64 / MIB)));
    }
    let longest = distances.rows.iter().map(Vec::len).max().unwrap_or_default();
    distances.rows.iter_mut().for_each(|row| row.resize(longest, "0".into()));
    let from = (0..longest.saturating_sub(1)).map(|place| format!("from {}", 1u64 << place));
    distances.rows.insert(0, std::iter::once("load".to_owned()).chain(from).collect());
    report.tables = vec![shares, spaces, distances];
    report.note("as in the thesis, pages of zeros are not counted at all; the averages leave the first checkpoint out, the space has it");
    report.note("the thesis knows duplicates within a checkpoint and of earlier ones; here a page may also lie on the golden image, and is not stored");
    report.note(
        "all pages that were written count, those too that are free in the guest (`free: keep`), for the thesis knows nothing of them",
    );
    report.note("2 GiB and one processor, as in the thesis; the thesis's loads ran under KVM on real hardware, so they wrote more in 2 s");
    report.print();
}

fn run(bench: &Bench, checkpoints: usize) -> Vec<Record> {
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains(guests::BEGINS).then_some(()));
    thread::sleep(WARM_UP);
    let take = || run.checkpoint(None).expect("a checkpoint").1;
    let first = take();
    std::iter::once(first).chain(at_every(INTERVAL, checkpoints, take)).collect()
}

/// The thesis's method (chapter 4) on our pages: one is a duplicate if its hash was seen before in the run, in memory or on the disk. It knows neither
/// golden images nor what a run before this one stored.
#[derive(Default)]
struct ByHash {
    seen: HashSet<PageName>,
    /// The tables of the checkpoint before, by part and name.
    before: BTreeMap<(String, String), Root>,
}

impl ByHash {
    /// How many pages of this checkpoint it would store, by kind of part. In the order of their capture: disks before machines.
    fn new_pages(&mut self, store: &Store, record: &Record) -> BTreeMap<PartKind, u64> {
        let mut new = BTreeMap::new();
        let parts = |kind| record.parts.iter().filter(move |part| part.kind == kind);
        for part in parts(PartKind::Disk).chain(parts(PartKind::Machine)) {
            for (name, root) in &part.tables {
                let before = self.before.insert((part.name.clone(), name.clone()), *root).unwrap_or(Root::empty(root.pages));
                let count = new.entry(part.kind).or_default();
                let mut each = |_, _, name: Option<PageName>| {
                    *count += u64::from(name.is_some_and(|name| self.seen.insert(name)));
                    Ok(())
                };
                store.diff(&before, root, &mut each).expect("the tables can be read");
            }
        }
        new
    }
}

/// The average share of duplicates if so many pages are new in each checkpoint, in percent.
fn by_hash_share(counts: &[PageCounts], new: &[u64]) -> f64 {
    let shares = counts.iter().zip(new).map(|(counts, new)| match counts.written() - counts.zero {
        0 => 0.0,
        written => written.saturating_sub(*new) as f64 / written as f64 * 100.0,
    });
    shares.sum::<f64>() / counts.len() as f64
}

/// All parts of a kind together.
fn counts_of(record: &Record, kind: PartKind) -> PageCounts {
    let mut all = PageCounts::default();
    let parts = record.parts.iter().filter(|part| part.kind == kind);
    parts.filter_map(|part| record.cost.parts.get(&part.name)).for_each(|counts| all += *counts);
    all
}

/// Pages equal to blocks of a disk, however that was found.
fn lies_on_disk(counts: &PageCounts) -> u64 {
    counts.mapped + counts.on_disk
}

/// Averages over checkpoints. The share is the average of shares, as in the thesis.
struct Mean {
    count: f64,
    share: f64,
    within: f64,
    across: f64,
    on_disk: f64,
}

impl Mean {
    fn of(all: &[PageCounts]) -> Self {
        let mean = |of: &dyn Fn(&PageCounts) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        let share = |counts: &PageCounts| match counts.written() - counts.zero {
            0 => 0.0,
            written => (counts.known + lies_on_disk(counts)) as f64 / written as f64 * 100.0,
        };
        Self {
            count: mean(&|counts| (counts.known + lies_on_disk(counts)) as f64),
            share: mean(&share),
            within: mean(&|counts| counts.within as f64),
            across: mean(&|counts| (counts.known - counts.within) as f64),
            on_disk: mean(&|counts| lies_on_disk(counts) as f64),
        }
    }
}

/// How far back duplicates lie, in powers of two.
fn far(load: &str, all: &[PageCounts]) -> Vec<String> {
    let mut together = PageCounts::default();
    all.iter().for_each(|counts| together += *counts);
    let places = serde_json::to_value(together.distances).expect("an array");
    std::iter::once(load.to_owned()).chain(places.as_array().into_iter().flatten().map(ToString::to_string)).collect()
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

fn row_of(load: &str, what: &str, numbers: &[f64]) -> Vec<String> {
    let mut cells = row(&[load, what]);
    cells.extend(numbers.iter().map(|number| if *number >= 1000.0 { format!("{number:.0}") } else { format!("{number:.2}") }));
    cells
}
