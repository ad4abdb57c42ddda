//! Programs of several ranks with consistent checkpoints and without: the tables of Elnozahy, Johnson and Zwaenepoel 1992.
//!
//! It has two parts, which may be named: `marks`, programs that take a minute each, and a checkpoint every quarter of it; and `tables`, the same programs
//! over some seconds in every way of taking checkpoints. `--ranks N` measures with so many ranks only, `--trials N` as often; `--only PROGRAM` that
//! program. `--short` measures the tables, each program once, with as many ranks as there are cores.
//!
//! The marks are of what checkpoints cost in runs of a minute, in two parts. What the processors do besides the programs' own instructions (faults, saving, sending, storing)
//! is measured in those runs. The instructions themselves are as many with checkpoints as without, and take longer by what a cache has lost; but whatever else the host
//! does makes them differ by more than that from run to run. So that part is measured where there is more of it: in many runs of seconds, where a checkpoint comes
//! every one or two, and counted for each checkpoint. Whole runs of a minute are marked beside it.

use fermata_api::ranks::{Mode, Options, Outcome, Taken};
use fermata_linux::clock::Stopwatch;
use fermata_testkit::{
    measure::{own_seconds, processor_seconds},
    report::{Report, Table, quantile},
};
use std::{
    env, fs,
    path::Path,
    process::{self, ExitCode},
    time::Duration,
};

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
/// Where a rank says in a file of its own how long its program has computed, s.
const OWN: &str = "RANKS_BENCH_OWN";
/// Checkpoints in a run of the length that it has without. The paper took one every 2 minutes in runs of 48 minutes and more; runs here are shorter.
const CHECKPOINTS: u32 = 4;
const PAPERS_INTERVAL_S: f64 = 120.0;
/// Of each trial of the marks, and of each way: a program that is over sooner runs as often as fits. Whatever the host's noise does to a run, by several percent, is
/// in the median of many the less.
const TRIAL_S: f64 = 45.0;
const MEAN_AT_MOST: f64 = 1.0;
const WORST_AT_MOST: f64 = 3.0;

type Entry = fn(&[usize]) -> ExitCode;

/// A program of the paper, with its sizes there or larger ones.
struct Sized {
    name: &'static str,
    program: Entry,
    /// So that it takes some seconds on two processors.
    tables: &'static [usize],
    /// So that it takes a minute or more; `nqueens`, `prime` and `tsp`, which have next to nothing to save, take seconds, and run the more often.
    marks: &'static [usize],
}

const PROGRAMS: [Sized; 8] = [
    Sized { name: "fft", program: fft::program, tables: &[1 << 20, 24], marks: &[1 << 20, 280] },
    Sized { name: "gauss", program: gauss::program, tables: &[4000], marks: &[4000, 12] },
    Sized { name: "grid", program: grid::program, tables: &[2048, 2200], marks: &[2048, 28000] },
    Sized { name: "matmult", program: matmult::program, tables: &[2400], marks: &[5400] },
    Sized { name: "nqueens", program: nqueens::program, tables: &[16], marks: &[16] },
    Sized { name: "prime", program: prime::program, tables: &[46], marks: &[46] },
    Sized { name: "sparse", program: sparse::program, tables: &[48000, 6400], marks: &[48000, 62000] },
    Sized { name: "tsp", program: tsp::program, tables: &[17], marks: &[17] },
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
    /// Of that, in the programs' own instructions.
    own: Vec<f64>,
    last: Option<Outcome>,
}

struct Measured {
    name: &'static str,
    every: Duration,
    without: Way,
    /// In the order of [`WAYS`], which need not all be there.
    ways: Vec<Way>,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Marks,
    Tables,
}

impl Part {
    const ALL: [(&'static str, Self); 2] = [("marks", Self::Marks), ("tables", Self::Tables)];
}

/// How long a run without checkpoints takes, about.
#[derive(Debug, Clone, Copy)]
enum Length {
    Seconds,
    Minute,
}

impl Length {
    const ALL: [Self; 2] = [Self::Seconds, Self::Minute];

    /// The argument that makes this bench a rank of a program.
    fn word(self, name: &str) -> String {
        format!("{name} {self:?}")
    }

    fn args(self, sized: &Sized) -> &'static [usize] {
        match self {
            Self::Seconds => sized.tables,
            Self::Minute => sized.marks,
        }
    }
}

fn main() -> ExitCode {
    if let Ok(word) = env::var(PROGRAM) {
        let mut all =
            PROGRAMS.iter().flat_map(|sized| Length::ALL.map(|length| (length.word(sized.name), length.args(sized), sized.program)));
        let (_, args, program) = all.find(|(its, ..)| *its == word).expect("one of the programs");
        let status = program(args);
        let own = Path::new(&env::var(OWN).expect("where to")).join(process::id().to_string());
        fs::write(own, own_seconds().to_string()).expect("room for a number");
        return status;
    }
    let cores = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let flag = |flag: &str| env::args().any(|argument| argument == flag);
    let short = flag("--short");
    let trials = argument("--trials").and_then(|trials| trials.parse().ok()).unwrap_or(if short { 1 } else { 3 });
    let given = argument("--ranks").and_then(|ranks| ranks.parse().ok());
    let named: Vec<_> = Part::ALL.iter().filter(|(name, _)| flag(name)).map(|(_, part)| *part).collect();
    let parts = match (short, named.is_empty()) {
        (true, true) => vec![Part::Tables],
        (_, true) => vec![Part::Marks, Part::Tables],
        _ => named,
    };
    let mut report = Report::new("consistent");
    for part in parts {
        let ranks = match (given, part) {
            (Some(ranks), _) => vec![ranks],
            (None, Part::Tables) if !short => vec![cores, 16],
            _ => vec![cores],
        };
        for ranks in ranks {
            let named = PROGRAMS.iter().filter(|sized| argument("--only").is_none_or(|only| only == sized.name));
            match part {
                Part::Marks => {
                    marks(&mut report, &named.map(|sized| Marked::measure(sized, ranks, trials)).collect::<Vec<_>>(), ranks, ranks == cores)
                }
                Part::Tables => {
                    let measure = |sized: &Sized| Measured::new(sized.name, ranks, Length::Seconds, &WAYS, |so_far| so_far.len() >= trials);
                    tables(&mut report, &named.map(measure).collect::<Vec<_>>(), ranks);
                }
            }
        }
    }
    report.note(format!("medians of {trials} runs, of the marks of as many as take {TRIAL_S} s, by pairs of neighbours with and without checkpoints; those of all ways by turns; {CHECKPOINTS} checkpoints in the time of a run without"));
    report.print();
    ExitCode::SUCCESS
}

fn argument(name: &str) -> Option<String> {
    env::args().skip_while(|argument| argument != name).nth(1)
}

/// Runs a program once more in a way. Returns how long it took, s.
fn run(way: &mut Way, name: &'static str, length: Length, ranks: usize, mode: Mode, every: Option<Duration>) -> f64 {
    let [store, own] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let mut options = Options::new(name, ranks, env::current_exe().expect("this program"));
    options.environment = vec![(PROGRAM.to_owned(), length.word(name)), (OWN.to_owned(), own.path().display().to_string())];
    (options.mode, options.every) = (mode, every);
    let (watch, before) = (Stopwatch::start(), processor_seconds());
    let outcome = fermata_api::ranks::run(Path::new(store.path()), &options, None, &mut |_| {});
    let outcome = outcome.unwrap_or_else(|problem| panic!("{name}: {}", problem.message)).outcome;
    let (seconds, worked) = (watch.elapsed().as_secs_f64(), processor_seconds() - before);
    let its_own: f64 = fs::read_dir(own.path()).expect("it is there").map(|rank| number(&rank.expect("it is there").path())).sum();
    let how = every.map_or_else(|| "without".to_owned(), |every| format!("{mode:?}, every {:.1} s", every.as_secs_f64()));
    let checkpoints = outcome.checkpoints.len();
    eprintln!(
        "{name}, {ranks} ranks, {how}: {seconds:.1} s, processors {worked:.2} s, of that own {its_own:.2} s, {checkpoints} checkpoints"
    );
    way.seconds.push(seconds);
    way.worked.push(worked);
    way.own.push(its_own);
    way.last = Some(outcome);
    seconds
}

fn number(file: &Path) -> f64 {
    fs::read_to_string(file).expect("it was written").parse().expect("a number")
}

impl Measured {
    /// Runs it by turns without checkpoints and in these ways, until those without took enough.
    fn new(name: &'static str, ranks: usize, length: Length, ways: &[Mode], enough: impl Fn(&[f64]) -> bool) -> Self {
        let mut measured =
            Self { name, every: Duration::ZERO, without: Way::default(), ways: ways.iter().map(|_| Way::default()).collect() };
        while !enough(&measured.without.seconds) {
            let alone = run(&mut measured.without, name, length, ranks, Mode::Consistent, None);
            if measured.every.is_zero() {
                measured.every = Duration::from_secs_f64(alone / (f64::from(CHECKPOINTS) + 0.5));
            }
            for (way, mode) in measured.ways.iter_mut().zip(ways) {
                run(way, name, length, ranks, *mode, Some(measured.every));
            }
        }
        measured
    }

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

    /// The median of what a run with checkpoints makes of the run without that came before it: a host that grows slower meanwhile makes both slower.
    fn of_pairs(&self, way: usize, figure: impl Fn(&Way, &Way, usize) -> f64) -> f64 {
        let with = &self.ways[way];
        let pairs = (0..with.worked.len()).map(|nth| figure(&self.without, with, nth));
        quantile(&pairs.collect::<Vec<_>>(), 0.5)
    }

    /// How much more processors' time it took with checkpoints, %.
    fn worked_more(&self) -> f64 {
        self.of_pairs(0, |without, with, nth| (with.worked[nth] / without.worked[nth] - 1.0) * 100.0)
    }

    /// Of that, what is not in the programs' own instructions, %. Of each run as a share of the own instructions, which are as many: a run in which the host is slower by a
    /// tenth takes a tenth longer for both.
    fn besides_more(&self) -> f64 {
        let share = |way: &Way, nth: usize| way.worked[nth] / way.own[nth] - 1.0;
        self.of_pairs(0, |without, with, nth| (share(with, nth) - share(without, nth)) * without.own[nth] / without.worked[nth] * 100.0)
    }

    /// By how much runs without checkpoints differ in processors' time, %.
    fn noise(&self) -> f64 {
        (quantile(&self.without.worked, 1.0) / quantile(&self.without.worked, 0.0) - 1.0) * 100.0
    }

    /// By how much longer one of these times was for each checkpoint, s.
    fn each(&self, times: fn(&Way) -> &[f64]) -> f64 {
        self.of_pairs(0, |without, with, nth| times(with)[nth] - times(without)[nth]) / self.count(0).max(1.0)
    }

    /// How much more processors' time it would be at the paper's interval if a checkpoint took so long of the processors, %.
    fn at_papers_interval(&self, each: f64) -> f64 {
        each / (self.worked(0)[0] / self.alone() * PAPERS_INTERVAL_S) * 100.0
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

/// What checkpoints cost a program in a run of a minute.
struct Marked {
    minute: Measured,
    /// Shorter runs, where they are.
    seconds: Option<Measured>,
}

impl Marked {
    fn measure(sized: &Sized, ranks: usize, trials: usize) -> Self {
        let enough = |so_far: &[f64]| so_far.len() >= trials && so_far.iter().sum::<f64>() >= TRIAL_S * trials as f64;
        let runs = |length| Measured::new(sized.name, ranks, length, &WAYS[..1], enough);
        Self { minute: runs(Length::Minute), seconds: (sized.tables != sized.marks).then(|| runs(Length::Seconds)) }
    }

    /// Where a checkpoint comes most often.
    fn often(&self) -> &Measured {
        self.seconds.as_ref().unwrap_or(&self.minute)
    }

    /// Of the processors' time without checkpoints, %.
    fn own_more(&self) -> f64 {
        self.often().each(|way| &way.own) * self.minute.count(0) / self.minute.worked(0)[0] * 100.0
    }

    /// How much more processors' time it takes with checkpoints, %.
    fn more(&self) -> f64 {
        self.minute.besides_more() + self.own_more()
    }

    /// What a checkpoint takes of the processors, s.
    fn each(&self) -> f64 {
        self.more() / 100.0 * self.minute.worked(0)[0] / self.minute.count(0).max(1.0)
    }

    fn at_papers_interval(&self) -> f64 {
        self.minute.at_papers_interval(self.each())
    }
}

/// The mean of some values, and the largest.
fn mean_and_worst(values: &[f64]) -> (f64, f64) {
    (values.iter().sum::<f64>() / values.len().max(1) as f64, values.iter().copied().fold(f64::MIN, f64::max))
}

fn marks(report: &mut Report, measured: &[Marked], ranks: usize, marked: bool) {
    let mut tell = |what: &str, figure: fn(&Marked) -> f64, marked: bool| {
        let (mean, worst) = mean_and_worst(&measured.iter().map(figure).collect::<Vec<_>>());
        let mark = |value: f64, most: f64, words| if marked { (words, value < most) } else { ("reported", true) };
        report.mark(&format!("{ranks} ranks: {what}, mean"), mean, "%", None, mark(mean, MEAN_AT_MOST, "under 1 %"));
        report.mark(&format!("{ranks} ranks: {what}, worst"), worst, "%", None, mark(worst, WORST_AT_MOST, "under 3 %"));
    };
    tell("overhead of processors' time, by whole runs", |program| program.minute.worked_more(), marked);
    tell("overhead of processors' time, in two parts", Marked::more, marked);
    tell("of that not in the programs' own instructions", |program| program.minute.besides_more(), marked);
    tell("the same if there were one every 2 min", Marked::at_papers_interval, false);
    let columns = [
        "interval (s)",
        "running time (s)",
        "with (s)",
        "processors (s)",
        "with (s)",
        "whole runs (%)",
        "without differs by (%)",
        "more (%)",
        "own instructions (%)",
        "besides (%)",
        "for a checkpoint (ms)",
        "written (MB)",
        "blocked (ms)",
        "% if every 2 min",
    ];
    let row = |program: &Marked| {
        let minute = &program.minute;
        let [without, with] = minute.worked(0);
        let [written, blocked] =
            [|taken: &Taken| taken.written_bytes, |taken: &Taken| taken.blocked_ns].map(|figure| minute.mean(0, figure) / 1e6);
        let times = [minute.every.as_secs_f64(), minute.alone(), minute.with(0), without, with];
        let whole = [minute.worked_more(), minute.noise()];
        let more = [program.more(), program.own_more(), minute.besides_more(), program.each() * 1e3];
        times.into_iter().chain(whole).chain(more).chain([written, blocked, program.at_papers_interval()]).collect()
    };
    table(report, "of a minute", ranks, &columns, measured.iter().map(|program| (program.minute.name, row(program))));
    let columns = ["interval (s)", "pairs of runs", "own instructions (s)", "more for a checkpoint (ms)", "written (MB)"];
    let row = |program: &Marked| {
        let often = program.often();
        let own = quantile(&often.without.own, 0.5);
        let written = often.mean(0, |taken| taken.written_bytes) / 1e6;
        vec![often.every.as_secs_f64(), often.without.own.len() as f64, own, often.each(|way| &way.own) * 1e3, written]
    };
    table(
        report,
        "own instructions where checkpoints are often",
        ranks,
        &columns,
        measured.iter().map(|program| (program.minute.name, row(program))),
    );
}

/// A line for each program.
fn table(report: &mut Report, title: &str, ranks: usize, columns: &[&str], programs: impl Iterator<Item = (&'static str, Vec<f64>)>) {
    let head = std::iter::once("program").chain(columns.iter().copied()).map(str::to_owned).collect();
    let rows =
        programs.map(|(name, row)| std::iter::once(name.to_owned()).chain(row.into_iter().map(|value| format!("{value:.2}"))).collect());
    report.tables.push(Table { title: format!("{ranks} ranks: {title}"), rows: std::iter::once(head).chain(rows).collect() });
}

fn tables(report: &mut Report, measured: &[Measured], ranks: usize) {
    for program in measured {
        report.tell(&format!("{ranks} ranks: {} with checkpoints, processors' time", program.name), program.worked_more(), "%", None);
        report.tell(&format!("{ranks} ranks: {} with checkpoints, running time", program.name), program.overhead(0), "%", None);
    }
    let mut table = |number: &str, title: &str, columns: &[&str], row: &dyn Fn(&Measured) -> Vec<f64>| {
        let programs = measured.iter().map(|program| (program.name, row(program)));
        table(report, &format!("Table {number}: {title}"), ranks, columns, programs);
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
            let each = program.each(|way| &way.worked);
            let papers = program.at_papers_interval(each);
            vec![program.every.as_secs_f64(), without, with, program.worked_more(), each * 1e3, papers]
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
