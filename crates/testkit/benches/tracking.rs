//! What it costs a program to have its writes found: the microbenchmark of the paper on hypervisor-assisted application checkpointing, its figures 6 to 8 and the cost of a scan.
//!
//! A transaction writes WPP words to each of PPT pages of an area, and ends with the words or pages that were written, copied out. Times are for 100,000 transactions
//! (`Tcount`), measured over as many of them as fit into a second. Then the same transactions with a durable commit each, against others who make data durable.
//!
//! `--only finding` or `--only commits` measures one of the two. `--short` is for a quick look.
//!
//! Needs Debian packages: libsqlite3-dev liblmdb-dev

#[path = "tracking/commits.rs"]
mod commits;
#[path = "fidelity/picture.rs"]
#[allow(dead_code)]
mod picture;

use fermata_linux::{
    AreaMemory, Mapping, MemoryFile, Userfault, Writes,
    clock::Stopwatch,
    kvm::{FlatGuest, Noting, Processor},
    probe::{self, Virtualization},
};
use fermata_process::{Tracking, tracking};
use fermata_testkit::report::{Report, Table, quantile};
use fermata_tracker::{Choice, KvmNotes, KvmTracker, ScanTracker, Tracker, Words};
use fermata_types::PAGE_SIZE;
use picture::Picture;
use std::{collections::BTreeMap, hint::black_box, io, ops::Range, path::PathBuf, sync::Arc, time::Duration};

const TRANSACTIONS: u64 = 100_000;
const PPTS: [u64; 5] = [1, 4, 16, 64, 256];
const WPPS: [u64; 4] = [1, 4, 8, 16];
const AREA_MIB: u64 = 16;
/// Areas of the table of scans.
const SIZES_MIB: [u64; 4] = [1, 16, 256, 1024];
const WORD: u64 = 8;

/// Mechanisms of the program itself. The unmodified run is none of them.
const NATIVE: [Tracking; 6] =
    [Tracking::Protect, Tracking::Assisted, Tracking::Emulate, Tracking::SoftDirty, Tracking::Compare, Tracking::Difference];

fn main() {
    let short = std::env::args().any(|argument| argument == "--short");
    let bench = Bench { time: Duration::from_millis(if short { 60 } else { 1000 }), short };
    let only = std::env::args().skip_while(|argument| argument != "--only").nth(1);
    let wanted = |part: &str| only.as_deref().is_none_or(|only| only == part);
    assert!(wanted("finding") || wanted("commits"), "--only finding or --only commits");
    let mut report = Report::new("tracking");
    if wanted("finding") {
        finding(&bench, &mut report);
    }
    if wanted("commits") {
        commits::measure(&mut report, bench.time * 3);
    }
    report.print();
}

/// What it costs to have writes found.
fn finding(bench: &Bench, report: &mut Report) {
    let grid = bench.grid(report);
    figure_6(report, &grid);
    figure_7(report, &grid, bench);
    figure_8(report, &grid);
    automatic(report, &grid, bench);
    bench.scans(report);
    if !matches!(probe::virtualization(), Virtualization::Usable) {
        report.note(
            "this host has neither VMX nor SVM: KVM runs in software here, and what kvm-log and kvm-store cost says little of others",
        );
    }
    report.note(
        "figures 6 to 8: every mechanism notes writes to a file in memory; a durable commit costs the disk's time on top, the same for all",
    );
}

/// Seconds for all transactions, by mechanism, PPT and WPP.
type Grid = BTreeMap<(String, u64, u64), f64>;

struct Bench {
    /// For each point.
    time: Duration,
    short: bool,
}

/// Something whose writes are found, or not.
trait Subject {
    /// Writes, and takes what was written.
    fn transaction(&mut self, writes: &[(u64, u64)]);
}

/// An area of this process.
struct Native {
    // Before the memory, which it watches.
    tracker: Option<Box<dyn Tracker>>,
    memory: AreaMemory,
    copied: Vec<u8>,
}

impl Native {
    /// None, with a word, where this host cannot do it. `None` for the tracking is the program unmodified.
    fn new(tracking: Option<Tracking>, mib: u64) -> Option<Self> {
        let mut memory = AreaMemory::new("bench", mib << 20).expect("memory");
        // All of it is there, as in a program that runs.
        memory.as_mut_slice().chunks_exact_mut(PAGE_SIZE).enumerate().for_each(|(nth, page)| page[8] = nth as u8 | 1);
        let tracker = match tracking.map(|tracking| (tracking, tracking::start(tracking, &memory, true))) {
            None => None,
            Some((_, Ok(mut tracker))) => {
                tracker.take().expect("the tracker answers");
                Some(tracker)
            }
            Some((tracking, Err(error))) => {
                fermata_testkit::skipped!("{tracking}: {error}");
                return None;
            }
        };
        Some(Self { tracker, memory, copied: Vec::new() })
    }
}

impl Subject for Native {
    fn transaction(&mut self, writes: &[(u64, u64)]) {
        let memory = self.memory.as_mut_slice();
        for (at, value) in writes {
            memory[*at as usize..*at as usize + 8].copy_from_slice(&value.to_le_bytes());
        }
        black_box(&mut *memory);
        if let Some(tracker) = &mut self.tracker {
            let words = tracker.take_words().expect("the tracker answers");
            copy_out(&words, &mut self.copied, |at, into| into.extend_from_slice(&memory[at.start as usize..at.end as usize]));
        }
    }
}

/// Builds the checkpoint.
fn copy_out(words: &Words, copied: &mut Vec<u8>, read: impl Fn(Range<u64>, &mut Vec<u8>)) {
    copied.clear();
    for page in &words.whole {
        let at = u64::from(page) * PAGE_SIZE as u64;
        read(at..at + PAGE_SIZE as u64, copied);
    }
    for (page, mask) in &words.parts {
        for (nth, bits) in mask.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0 {
                let at = u64::from(*page) * PAGE_SIZE as u64 + (nth as u64 * 64 + u64::from(bits.trailing_zeros())) * WORD;
                read(at..at + WORD, copied);
                bits &= bits - 1;
            }
        }
    }
    black_box(copied);
}

/// The memory of a guest under KVM, which does the same.
struct Guest {
    tracker: KvmTracker<Notes>,
    processor: Processor,
    memory: Mapping,
    copied: Vec<u8>,
    _ram: MemoryFile,
}

struct Notes(Arc<FlatGuest>);

impl KvmNotes for Notes {
    fn take(&mut self, each: &mut dyn FnMut(Range<u64>)) -> io::Result<()> {
        self.0.take_written(each)
    }
}

impl Guest {
    fn new(choice: Choice, noting: Noting, mib: u64) -> Option<Self> {
        let path = PathBuf::from(format!("/dev/shm/fermata-tracking-{choice}-{}", std::process::id()));
        let ram = MemoryFile::create(&path, mib << 20).expect("memory on a tmpfs");
        let memory = Mapping::new(&ram, mib << 20).expect("a mapping");
        (0..mib << 20).step_by(PAGE_SIZE).for_each(|at| memory.write(at + 8, at + 1));
        let made = FlatGuest::new(&ram, mib << 20, 1, noting);
        let (guest, mut processors) = made.inspect_err(|error| fermata_testkit::skipped!("{choice}: no guest under KVM: {error}")).ok()?;
        Choice::Scan.settle().inspect_err(|error| fermata_testkit::skipped!("{choice}: {error}")).ok()?;
        let (descriptor, _) = probe::userfaultfd().expect("it was tried");
        let userfault = Arc::new(Userfault::new(descriptor, Writes::Async).expect("it was tried"));
        userfault.register(memory.range(), false).expect("shared memory");
        let scan = ScanTracker::new(std::process::id(), memory.range(), userfault).expect("a tracker");
        let tracker = KvmTracker::new(choice, scan, Notes(guest)).expect("a tracker");
        Some(Self { tracker, processor: processors.pop().expect("it has one"), memory, copied: Vec::new(), _ram: ram })
    }
}

impl Subject for Guest {
    fn transaction(&mut self, writes: &[(u64, u64)]) {
        let writes: Vec<_> = writes.iter().map(|(at, value)| (*at, *value as u32)).collect();
        self.processor.write(&writes).expect("the processor runs");
        let words = self.tracker.take_words().expect("the tracker answers");
        let read = |at: Range<u64>, into: &mut Vec<u8>| at.step_by(8).for_each(|at| into.extend(self.memory.read(at).to_le_bytes()));
        copy_out(&words, &mut self.copied, read);
    }
}

/// The writes of transaction number `nth`: all over the area, and never twice to one place in one transaction.
fn writes(nth: u64, ppt: u64, wpp: u64, mib: u64, into: &mut Vec<(u64, u64)>) {
    let pages = (mib << 20) / PAGE_SIZE as u64;
    into.clear();
    for page in 0..ppt {
        // 1031 is prime, and no area has a multiple of it.
        let at = (nth * 7 + page * 1031) % pages * PAGE_SIZE as u64;
        into.extend((0..wpp).map(|word| (at + (word * 31 + nth) % 512 * WORD, nth << 8 | word)));
    }
}

impl Bench {
    /// Seconds for all transactions.
    fn measure(&self, subject: &mut dyn Subject, ppt: u64, wpp: u64, mib: u64) -> f64 {
        const SLICES: u32 = 5;
        let (mut list, mut nth, mut slices) = (Vec::new(), 0, Vec::new());
        let mut run = |count: u64, nth: &mut u64| {
            for _ in 0..count {
                writes(*nth, ppt, wpp, mib, &mut list);
                subject.transaction(&list);
                *nth += 1;
            }
        };
        // Until a choice is made, and caches are warm.
        let watch = Stopwatch::start();
        while nth < 2000 && watch.elapsed() < self.time / 2 {
            run(8, &mut nth);
        }
        for _ in 0..SLICES {
            let (watch, before) = (Stopwatch::start(), nth);
            while nth == before || watch.elapsed() < self.time / SLICES {
                run(8, &mut nth);
            }
            slices.push(watch.elapsed().as_secs_f64() / (nth - before) as f64);
        }
        quantile(&slices, 0.5) * TRANSACTIONS as f64
    }

    fn grid(&self, report: &mut Report) -> Grid {
        let mut grid = Grid::new();
        let mut natives: Vec<_> = NATIVE.into_iter().map(Some).chain([None, Some(Tracking::Auto)]).collect();
        let guest = |(choice, noting)| Some((choice, Guest::new(choice, noting, AREA_MIB)?));
        let mut guests: Vec<_> =
            [(Choice::KvmLog, Noting::Log), (Choice::KvmStore, Noting::Stores)].into_iter().filter_map(guest).collect();
        // All mechanisms at one point and then at the next: a host that grows slower or faster meanwhile does so for all of them.
        for (ppt, wpp) in points() {
            natives.retain(|tracking| {
                // A subject of its own: an area of another shape must not be remembered.
                let Some(mut subject) = Native::new(*tracking, AREA_MIB) else { return false };
                let name = tracking.map_or("unmodified".to_owned(), |tracking| tracking.to_string());
                grid.insert((name, ppt, wpp), self.measure(&mut subject, ppt, wpp, AREA_MIB));
                true
            });
            for (choice, subject) in &mut guests {
                grid.insert((choice.to_string(), ppt, wpp), self.measure(subject, ppt, wpp, AREA_MIB));
            }
        }
        let names: std::collections::BTreeSet<_> = grid.keys().map(|(name, _, _)| name.clone()).collect();
        let mut rows = vec![["PPT", "WPP"].map(str::to_owned).into_iter().chain(names.iter().cloned()).collect::<Vec<_>>()];
        for (ppt, wpp) in points() {
            let cells = names.iter().map(|name| cell(grid.get(&(name.clone(), ppt, wpp)).copied()));
            rows.push([ppt.to_string(), wpp.to_string()].into_iter().chain(cells).collect());
        }
        let title = format!("All: seconds for {TRANSACTIONS} transactions on {AREA_MIB} MiB");
        report.tables.push(Table { title, rows });
        grid
    }

    /// What asking costs when nothing was written, by the size of the area.
    fn scans(&self, report: &mut Report) {
        let sizes = if self.short { &SIZES_MIB[..2] } else { &SIZES_MIB[..] };
        let mut rows = vec![["MiB", "assisted", "soft-dirty", "compare", "protect", "emulate"].map(str::to_owned).to_vec()];
        let mut series: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for mib in sizes {
            let mut row = vec![mib.to_string()];
            for name in rows[0].clone().into_iter().skip(1) {
                let spent =
                    Native::new(Some(name.parse().expect("its name")), *mib).map(|mut subject| self.measure(&mut subject, 0, 0, *mib));
                row.push(cell(spent));
                if let Some(spent) = spent {
                    series.entry(name).or_default().push((*mib as f64, spent));
                }
            }
            rows.push(row);
        }
        let slope = |name: &str| series.get(name).and_then(|points| Some(points.last()?.1 / points.first()?.1));
        if let Some(times) = slope("assisted") {
            let more = sizes[sizes.len() - 1] / sizes[0];
            report.tell(&format!("Scan: an area {more} times as large"), times, "times", None);
        }
        report.tables.push(Table { title: format!("Scan: seconds for {TRANSACTIONS} transactions that write nothing"), rows });
        picture(report, "scan", "What a scan costs by the size of the area", "MiB", series.into_iter().collect());
    }
}

fn points() -> impl Iterator<Item = (u64, u64)> {
    PPTS.into_iter().flat_map(|ppt| WPPS.into_iter().map(move |wpp| (ppt, wpp)))
}

fn cell(seconds: Option<f64>) -> String {
    seconds.map_or("-".to_owned(), |seconds| if seconds < 10.0 { format!("{seconds:.2}") } else { format!("{seconds:.1}") })
}

fn of(grid: &Grid, name: &str, ppt: u64, wpp: u64) -> Option<f64> {
    grid.get(&(name.to_owned(), ppt, wpp)).copied()
}

/// What remains when the program's own work is taken off.
fn over(grid: &Grid, name: &str, ppt: u64, wpp: u64) -> Option<f64> {
    Some(of(grid, name, ppt, wpp)? - of(grid, "unmodified", ppt, wpp)?)
}

fn picture(report: &mut Report, name: &str, title: &str, x: &str, series: Vec<(String, Vec<(f64, f64)>)>) {
    if series.iter().any(|(_, points)| points.len() > 1) {
        let y = "seconds for 100,000 transactions";
        Picture { title, x, y, from_zero: true, series, marks: Vec::new() }.save(report, name);
    }
}

/// Page tracking: what matters is how many pages, and not how often.
fn figure_6(report: &mut Report, grid: &Grid) {
    let last = PPTS[PPTS.len() - 1];
    let mut series = Vec::new();
    for name in ["protect", "assisted", "kvm-log"] {
        let of_wpp: Vec<_> = WPPS[1..].iter().filter_map(|wpp| over(grid, name, 64, *wpp)).collect();
        let (least, most) = of_wpp.iter().fold((f64::MAX, 0.0), |(least, most): (f64, f64), value| (least.min(*value), most.max(*value)));
        if of_wpp.len() > 1 && name != "kvm-log" {
            report.mark(
                &format!("figure 6: {name}, 64 pages, WPP 4 to 16"),
                most / least,
                "times",
                None,
                ("at most 1.25", most / least <= 1.25),
            );
        }
        for wpp in &WPPS[1..] {
            let points: Vec<_> = PPTS.iter().filter_map(|ppt| Some((*ppt as f64, of(grid, name, *ppt, *wpp)?))).collect();
            series.extend((!points.is_empty() && (name != "kvm-log" || *wpp == 4)).then(|| (format!("{name}, WPP {wpp}"), points)));
        }
    }
    let page = |name| over(grid, name, last, 4).map(|seconds| seconds * 1e9 / (TRANSACTIONS * last) as f64);
    if let (Some(protect), Some(assisted)) = (page("protect"), page("assisted")) {
        let holds = assisted * 5.0 <= protect;
        report.mark("figure 6: assisted, a dirtied page", assisted, "ns", Some(("protect", protect)), ("5 times cheaper", holds));
    }
    series.truncate(4);
    picture(report, "figure-6", "Page tracking by pages of a transaction", "pages per transaction (PPT)", series);
}

/// Emulation: what matters is how many writes, however they are spread.
fn figure_7(report: &mut Report, grid: &Grid, bench: &Bench) {
    let mut rows = vec![["writes", "mechanism", "1 a page", "4 a page", "16 a page"].map(str::to_owned).to_vec()];
    for size in [16, 64, 256_u64] {
        for name in ["emulate", "kvm-store"] {
            let found = bench.splits(name, size, [1, 4, 16]);
            rows.push([size.to_string(), name.to_owned()].into_iter().chain(found.map(cell)).collect());
            let there: Vec<_> = found.into_iter().flatten().collect();
            let (least, most) =
                there.iter().fold((f64::MAX, 0.0), |(least, most): (f64, f64), value| (least.min(*value), most.max(*value)));
            if name == "emulate" && there.len() > 1 {
                let text = format!("figure 7: {name}, {size} writes on 1 to 16 of a page");
                report.mark(&text, most / least, "times", None, ("at most 1.25", most / least <= 1.25));
            }
        }
    }
    report.tables.push(Table { title: "Figure 7: seconds by size of a transaction, however it is split".into(), rows });
    let series = ["emulate", "kvm-store"].map(|name| {
        let mut points: Vec<_> = points().filter_map(|(ppt, wpp)| Some(((ppt * wpp) as f64, of(grid, name, ppt, wpp)?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (name.to_owned(), points)
    });
    let series = series.into_iter().filter(|(_, points)| !points.is_empty()).collect();
    picture(report, "figure-7", "Emulation by writes of a transaction", "writes per transaction (WPP times PPT)", series);
}

impl Bench {
    /// So many writes, so many of them to a page. By turns: points of the grid lie minutes apart, in which a host grows slower or faster.
    fn splits<const N: usize>(&self, name: &str, size: u64, wpps: [u64; N]) -> [Option<f64>; N] {
        const TURNS: u32 = 5;
        let subject: Option<Box<dyn Subject>> = match name {
            "emulate" => Native::new(Some(Tracking::Emulate), AREA_MIB).map(|subject| Box::new(subject) as _),
            _ => Guest::new(Choice::KvmStore, Noting::Stores, AREA_MIB).map(|subject| Box::new(subject) as _),
        };
        let Some(mut subject) = subject else { return [None; N] };
        let turn = Self { time: self.time / TURNS, short: self.short };
        let mut found = wpps.map(|_| Vec::new());
        for _ in 0..TURNS {
            for (wpp, found) in wpps.into_iter().zip(&mut found) {
                found.push(turn.measure(&mut *subject, size / wpp, wpp, AREA_MIB));
            }
        }
        found.map(|found| Some(quantile(&found, 0.5)))
    }
}

/// Where emulation stops being cheaper than page tracking.
fn figure_8(report: &mut Report, grid: &Grid) {
    let mut rows = vec![["PPT", "WPP", "protect", "emulate", "cheaper", "kvm-log", "kvm-store", "cheaper"].map(str::to_owned).to_vec()];
    let cheaper = |pages: Option<f64>, words: Option<f64>| match (pages, words) {
        (Some(pages), Some(words)) => if words < pages { "emulation" } else { "pages" }.to_owned(),
        _ => "-".to_owned(),
    };
    for (ppt, wpp) in points() {
        let [protect, emulate, log, store] = ["protect", "emulate", "kvm-log", "kvm-store"].map(|name| of(grid, name, ppt, wpp));
        let numbers = [ppt.to_string(), wpp.to_string(), cell(protect), cell(emulate), cheaper(protect, emulate)];
        rows.push(numbers.into_iter().chain([cell(log), cell(store), cheaper(log, store)]).collect());
    }
    report.tables.push(Table { title: "Figure 8: emulation against page tracking".into(), rows });
    let at = |name: &str| WPPS.iter().filter_map(|wpp| Some((*wpp as f64, of(grid, name, 16, *wpp)?))).collect::<Vec<_>>();
    let series = ["protect", "emulate", "kvm-log", "kvm-store"].map(|name| (name.to_owned(), at(name)));
    let series = series.into_iter().filter(|(_, points)| !points.is_empty()).collect();
    picture(report, "figure-8", "Emulation against page tracking, 16 pages a transaction", "writes per page (WPP)", series);
}

impl Bench {
    /// `Auto` and another by turns: the median of each, and of how many times as long `Auto` took as its neighbour.
    fn by_turns(&self, rival: Tracking, ppt: u64, wpp: u64) -> Option<[f64; 3]> {
        const PAIRS: usize = 9;
        let measured = |tracking| Some(self.measure(&mut Native::new(Some(tracking), AREA_MIB)?, ppt, wpp, AREA_MIB));
        let pairs = (0..PAIRS).map(|_| Some((measured(Tracking::Auto)?, measured(rival)?))).collect::<Option<Vec<_>>>()?;
        let median = |of: fn(&(f64, f64)) -> f64| quantile(&pairs.iter().map(of).collect::<Vec<_>>(), 0.5);
        Some([median(|pair| pair.0), median(|pair| pair.1), median(|pair| pair.0 / pair.1)])
    }
}

/// What `Auto` makes of it, against the best that it could have taken. Both are measured once more: the best of so many in the grid is also the one that was lucky, and some time lies between it and `Auto` there.
fn automatic(report: &mut Report, grid: &Grid, bench: &Bench) {
    let mut rows = vec![["PPT", "WPP", "auto", "best", "which", "ratio"].map(str::to_owned).to_vec()];
    let (mut worst, mut within): (f64, usize) = (0.0, 0);
    for (ppt, wpp) in points() {
        let best = NATIVE.iter().filter_map(|tracking| Some((of(grid, &tracking.to_string(), ppt, wpp)?, tracking)));
        let Some((_, which)) = best.min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        let Some([auto, seconds, ratio]) = bench.by_turns(*which, ppt, wpp) else { continue };
        worst = worst.max(ratio);
        within += usize::from(ratio <= 1.15);
        let [auto, seconds] = [auto, seconds].map(|seconds| cell(Some(seconds)));
        rows.push(vec![ppt.to_string(), wpp.to_string(), auto, seconds, which.to_string(), format!("{ratio:.2}")]);
    }
    report.tell("auto within 15 % of the best", within as f64, "points of 20", None);
    let holds = worst <= 1.15;
    report.mark("auto against the best, at worst", worst, "times", None, ("at most 1.15", holds));
    report.tables.push(Table { title: "Auto".into(), rows });
}
