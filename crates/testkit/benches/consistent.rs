//! Programs of several ranks with consistent checkpoints and without: the tables of Elnozahy, Johnson and Zwaenepoel 1992.
//!
//! `--ranks N` measures with so many ranks only, `--trials N` as often; `--only PROGRAM` that program. `--short` measures each program once, with as
//! many ranks as there are cores.

use fermata_api::ranks::{Mode, Options, Outcome, Taken};
use fermata_linux::clock::Stopwatch;
use fermata_testkit::{
    measure::processor_seconds,
    report::{Report, Table, quantile},
};
use std::{env, path::Path, process::ExitCode, time::Duration};

#[path = "../../process/examples/fft.rs"]
mod fft;
#[path = "../../process/examples/gauss.rs"]
mod gauss;
#[path = "../../process/examples/grid.rs"]
mod grid;
#[path = "../../process/examples/matmult.rs"]
mod matmult;
#[path = "../../process/examples/nqueens.rs"]
mod nqueens;
#[path = "../../process/examples/prime.rs"]
mod prime;
#[path = "../../process/examples/sparse.rs"]
mod sparse;
#[path = "../../process/examples/tsp.rs"]
mod tsp;

/// With it this is the program of a rank.
const PROGRAM: &str = "RANKS_BENCH_PROGRAM";
/// Checkpoints in a run of the length that it has without. The paper took one every 2 minutes in runs of 48 minutes and more; runs here are shorter.
const CHECKPOINTS: u32 = 4;
const PAPERS_INTERVAL_S: f64 = 120.0;
const MEAN_AT_MOST: f64 = 1.0;
const WORST_AT_MOST: f64 = 3.0;

type Entry = fn(&[usize]) -> ExitCode;

/// Of the paper's sizes or more, so that each takes some ten seconds on two processors.
const PROGRAMS: [(&str, Entry, &[usize]); 8] = [
    ("fft", fft::program, &[1 << 20, 24]),
    ("gauss", gauss::program, &[4000]),
    ("grid", grid::program, &[2048, 1500]),
    ("matmult", matmult::program, &[2400]),
    ("nqueens", nqueens::program, &[16]),
    ("prime", prime::program, &[46]),
    ("sparse", sparse::program, &[48000, 4500]),
    ("tsp", tsp::program, &[17]),
];

/// What the paper calls incremental and copy on write is the first.
const WAYS: [Mode; 5] = [Mode::Consistent, Mode::Blocking, Mode::Full, Mode::Optimistic, Mode::Precopy];

/// Runs of a program in one way.
#[derive(Default)]
struct Way {
    /// By the clock.
    seconds: Vec<f64>,
    /// Of all processors, for ranks and who looks after them.
    worked: Vec<f64>,
    last: Option<Outcome>,
}

struct Measured {
    name: &'static str,
    every: Duration,
    without: Way,
    ways: [Way; WAYS.len()],
}

fn main() -> ExitCode {
    if let Ok(name) = env::var(PROGRAM) {
        let (_, program, args) = PROGRAMS.iter().find(|(program, ..)| *program == name).expect("one of the programs");
        return program(args);
    }
    let cores = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let short = env::args().any(|argument| argument == "--short");
    let given = argument("--ranks").and_then(|ranks| ranks.parse().ok()).or(short.then_some(cores));
    let trials = argument("--trials").and_then(|trials| trials.parse().ok()).unwrap_or(if short { 1 } else { 3 });
    let mut report = Report::new("consistent");
    for ranks in given.map_or_else(|| vec![cores, 16], |ranks| vec![ranks]) {
        let measured: Vec<_> = PROGRAMS
            .iter()
            .filter(|(name, ..)| argument("--only").is_none_or(|only| only == *name))
            .map(|(name, ..)| measure(name, ranks, trials))
            .collect();
        tell(&mut report, &measured, ranks, ranks == cores);
    }
    report.note(format!("medians of {trials} runs, those of all ways by turns; {CHECKPOINTS} checkpoints in the time of a run without"));
    report.print();
    ExitCode::SUCCESS
}

fn argument(name: &str) -> Option<String> {
    env::args().skip_while(|argument| argument != name).nth(1)
}

/// Runs a program once more in a way. Returns how long it took, s.
fn run(way: &mut Way, name: &'static str, ranks: usize, mode: Mode, every: Option<Duration>) -> f64 {
    let store = tempfile::tempdir().expect("a directory for the store");
    let mut options = Options::new(name, ranks, env::current_exe().expect("this program"));
    options.environment = vec![(PROGRAM.to_owned(), name.to_owned())];
    (options.mode, options.every) = (mode, every);
    let (watch, before) = (Stopwatch::start(), processor_seconds());
    let outcome = fermata_api::ranks::run(Path::new(store.path()), &options, None, &mut |_| {});
    let outcome = outcome.unwrap_or_else(|problem| panic!("{name}: {}", problem.message)).outcome;
    let (seconds, worked) = (watch.elapsed().as_secs_f64(), processor_seconds() - before);
    let how = every.map_or_else(|| "without".to_owned(), |every| format!("{mode:?}, every {:.1} s", every.as_secs_f64()));
    eprintln!("{name}, {ranks} ranks, {how}: {seconds:.1} s, processors {worked:.1} s, {} checkpoints", outcome.checkpoints.len());
    way.seconds.push(seconds);
    way.worked.push(worked);
    way.last = Some(outcome);
    seconds
}

fn measure(name: &'static str, ranks: usize, trials: usize) -> Measured {
    // The first run warms the caches of the machine, and tells how long the interval is to be.
    let first = run(&mut Way::default(), name, ranks, Mode::Consistent, None);
    let every = Duration::from_secs_f64(first / (f64::from(CHECKPOINTS) + 0.5));
    let mut measured = Measured { name, every, without: Way::default(), ways: Default::default() };
    for _ in 0..trials {
        run(&mut measured.without, name, ranks, Mode::Consistent, None);
        for (way, mode) in measured.ways.iter_mut().zip(WAYS) {
            run(way, name, ranks, mode, Some(every));
        }
    }
    measured
}

impl Measured {
    fn alone(&self) -> f64 {
        quantile(&self.without.seconds, 0.5)
    }

    fn with(&self, way: usize) -> f64 {
        quantile(&self.ways[way].seconds, 0.5)
    }

    fn overhead(&self, way: usize) -> f64 {
        (self.with(way) / self.alone() - 1.0) * 100.0
    }

    /// Of the processors: without, and with.
    fn worked(&self, way: usize) -> [f64; 2] {
        [&self.without, &self.ways[way]].map(|way| quantile(&way.worked, 0.5))
    }

    /// What a checkpoint took of the processors, s.
    fn each(&self) -> f64 {
        let [without, with] = self.worked(0);
        (with - without) / self.count(0).max(1.0)
    }

    /// How much more processors' time it would be at the paper's interval, %.
    fn at_papers_interval(&self) -> f64 {
        self.each() / (self.worked(0)[0] / self.alone() * PAPERS_INTERVAL_S) * 100.0
    }

    /// How many checkpoints there were in the last run.
    fn count(&self, way: usize) -> f64 {
        self.ways[way].last.as_ref().map_or(0, |outcome| outcome.checkpoints.len()) as f64
    }

    /// The mean over the checkpoints of the last run.
    fn mean(&self, way: usize, figure: impl Fn(&Taken) -> u64) -> f64 {
        let taken = self.ways[way].last.as_ref().map_or(&[][..], |outcome| &outcome.checkpoints);
        taken.iter().map(|taken| figure(taken) as f64).sum::<f64>() / taken.len().max(1) as f64
    }
}

fn tell(report: &mut Report, measured: &[Measured], ranks: usize, marked: bool) {
    let percent = |[without, with]: [f64; 2]| (with / without - 1.0) * 100.0;
    let overheads: Vec<_> = measured.iter().map(|program| percent(program.worked(0))).collect();
    for (program, overhead) in measured.iter().zip(&overheads) {
        report.tell(&format!("{ranks} ranks: {} with checkpoints, processors' time", program.name), *overhead, "%", None);
        report.tell(&format!("{ranks} ranks: {} with checkpoints, running time", program.name), program.overhead(0), "%", None);
    }
    let of_all =
        |values: &[f64]| (values.iter().sum::<f64>() / values.len().max(1) as f64, values.iter().copied().fold(f64::MIN, f64::max));
    let (mean, worst) = of_all(&overheads);
    let mark = |value: f64, most: f64, words| if marked { (words, value < most) } else { ("reported", true) };
    report.mark(&format!("{ranks} ranks: overhead of processors' time, mean"), mean, "%", None, mark(mean, MEAN_AT_MOST, "under 1 %"));
    report.mark(&format!("{ranks} ranks: overhead of processors' time, worst"), worst, "%", None, mark(worst, WORST_AT_MOST, "under 3 %"));
    let at_papers: Vec<_> = measured.iter().map(Measured::at_papers_interval).collect();
    let (mean, worst) = of_all(&at_papers);
    report.tell(&format!("{ranks} ranks: the same if there were one every 2 min, mean"), mean, "%", None);
    report.tell(&format!("{ranks} ranks: the same if there were one every 2 min, worst"), worst, "%", None);
    tables(report, measured, ranks);
}

fn tables(report: &mut Report, measured: &[Measured], ranks: usize) {
    let mut table = |number: &str, title: &str, columns: &[&str], row: &dyn Fn(&Measured) -> Vec<f64>| {
        let head = std::iter::once("program").chain(columns.iter().copied()).map(str::to_owned).collect();
        let rows = measured.iter().map(|program| {
            std::iter::once(program.name.to_owned()).chain(row(program).into_iter().map(|value| format!("{value:.2}"))).collect()
        });
        report
            .tables
            .push(Table { title: format!("Table {number}, {ranks} ranks: {title}"), rows: std::iter::once(head).chain(rows).collect() });
    };
    let megabytes = |bytes: f64| bytes / 1e6;
    let less = |full: f64, less: f64| vec![full, less, (1.0 - less / full) * 100.0];
    table("1", "memory of a rank", &["running time (s)", "data (kB)"], &|program| {
        vec![program.alone(), program.mean(2, |taken| taken.written_bytes) / 1e3 / ranks as f64]
    });
    table("2", "running times", &["without (s)", "with (s)", "difference (s)", "%"], &|program| {
        vec![program.alone(), program.with(0), program.with(0) - program.alone(), program.overhead(0)]
    });
    table(
        "2b",
        "processors' time",
        &["interval (s)", "without (s)", "with (s)", "%", "for a checkpoint (ms)", "% if every 2 min"],
        &|program| {
            let [without, with] = program.worked(0);
            let each = program.each() * 1e3;
            vec![program.every.as_secs_f64(), without, with, (with / without - 1.0) * 100.0, each, program.at_papers_interval()]
        },
    );
    table("3", "of a checkpoint", &["written (MB)", "elapsed (ms)", "copies on write of a rank", "blocked (ms)"], &|program| {
        let copies = program.mean(0, |taken| taken.copied_pages) / ranks as f64;
        let blocked = program.mean(0, |taken| taken.blocked_ns) / 1e6;
        vec![megabytes(program.mean(0, |taken| taken.written_bytes)), program.mean(0, |taken| taken.elapsed_ns) / 1e6, copies, blocked]
    });
    table("4", "increase of the running time", &["blocking (%)", "copy on write (%)"], &|program| {
        vec![program.overhead(1), program.overhead(0)]
    });
    let columns = [
        "pre-copying (%)",
        "copy on write (%)",
        "written (MB)",
        "written (MB)",
        "elapsed (ms)",
        "elapsed (ms)",
        "blocked (ms)",
        "blocked (ms)",
    ];
    table("4b", "pre-copying against copy on write, in this order", &columns, &|program| {
        let both = |figure: fn(&Taken) -> u64| [4, 0].map(|way| program.mean(way, figure) / 1e6);
        let [written, elapsed, blocked] =
            [both(|taken| taken.written_bytes), both(|taken| taken.elapsed_ns), both(|taken| taken.blocked_ns)];
        [[program.overhead(4), program.overhead(0)], written, elapsed, blocked].concat()
    });
    table("5", "written by a checkpoint", &["full (MB)", "incremental (MB)", "less (%)"], &|program| {
        less(megabytes(program.mean(2, |taken| taken.written_bytes)), megabytes(program.mean(0, |taken| taken.written_bytes)))
    });
    table("6", "increase of the running time", &["full (%)", "incremental (%)"], &|program| vec![program.overhead(2), program.overhead(0)]);
    table("7", "elapsed", &["full (ms)", "incremental (ms)", "less (%)"], &|program| {
        less(program.mean(2, |taken| taken.elapsed_ns) / 1e6, program.mean(0, |taken| taken.elapsed_ns) / 1e6)
    });
    let columns = ["optimistic (%)", "consistent (%)", "checkpoints of a rank", "of all in the store at most", "garbage"];
    table("8", "increase of the running time", &columns, &|program| {
        let outcome = program.ways[3].last.as_ref();
        let garbage = outcome.and_then(|outcome| outcome.garbage).unwrap_or_default();
        vec![program.overhead(3), program.overhead(0), program.count(3) / ranks as f64, garbage.most as f64, garbage.collected as f64]
    });
}
