//! Programs of several ranks with consistent checkpoints and without: the tables of Elnozahy, Johnson and Zwaenepoel 1992.
//!
//! It has two parts, which may be named: `marks`, programs that take a minute each, and a checkpoint every quarter of it; and `tables`, the same programs
//! over some seconds in every way of taking checkpoints. `--ranks N` measures with so many ranks only, `--trials N` as often; `--only PROGRAM` that
//! program. `--short` measures the tables, each program once, with as many ranks as there are cores.
//!
//! The marks are of what checkpoints cost in runs of a minute, in processors' time. A run with checkpoints and one without go by turns of half a second, so that both meet the same host, as it
//! grows slower or faster for others. They still differ by several percent, either way, for where their memory happens to lie. So the overhead is marked in two parts, too. What
//! is besides the programs' own instructions (faults, saving, sending, storing) is measured in those runs, as a share of the own ones. The own instructions are as many with
//! checkpoints as without, and take longer by what caches and page tables have lost. That part is measured in many runs of seconds, each with its own memory, where a checkpoint comes every
//! one or two, and counted for each checkpoint.

use fermata_api::ranks::{Mode, Outcome, Taken};
use fermata_testkit::{
    Cli,
    measure::own_seconds,
    report::{Report, Table, quantile},
    turns::by_turns,
};
use serde::{Deserialize, Serialize};
use std::{
    env,
    fs::{self, File},
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
/// Of each trial of the marks, of each length, and of each way: a program that is over sooner runs as often as fits.
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
    /// So that it takes a minute, give or take a half of one.
    marks: &'static [usize],
}

const PROGRAMS: [Sized; 8] = [
    Sized { name: "fft", program: fft::program, tables: &[1 << 20, 24], marks: &[1 << 20, 280] },
    Sized { name: "gauss", program: gauss::program, tables: &[4000], marks: &[4000, 12] },
    Sized { name: "grid", program: grid::program, tables: &[2048, 2200], marks: &[2048, 28000] },
    Sized { name: "matmult", program: matmult::program, tables: &[2400], marks: &[5400] },
    Sized { name: "nqueens", program: nqueens::program, tables: &[16], marks: &[17] },
    Sized { name: "prime", program: prime::program, tables: &[46], marks: &[51] },
    Sized { name: "sparse", program: sparse::program, tables: &[48000, 6400], marks: &[48000, 62000] },
    Sized { name: "tsp", program: tsp::program, tables: &[17], marks: &[19] },
];

/// What the paper calls incremental and copy on write is the first.
const WAYS: [Mode; 5] = [Mode::Consistent, Mode::Blocking, Mode::Full, Mode::Optimistic, Mode::Precopy];

/// A run of a program.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Run {
    /// Of [`PROGRAMS`].
    program: usize,
    length: Length,
    ranks: usize,
    mode: Mode,
    every: Option<Duration>,
}

/// What a run was like.
struct Ran {
    /// How long it ran, s.
    seconds: f64,
    /// Of all processors, for ranks and who looks after them, s.
    worked: f64,
    /// Of that, in the program's own instructions.
    own: f64,
    outcome: Outcome,
}

struct Measured {
    name: &'static str,
    every: Duration,
    without: Vec<Ran>,
    /// In the order of [`WAYS`], which need not all be there.
    ways: Vec<Vec<Ran>>,
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
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Length {
    Seconds,
    Minute,
}

impl Length {
    fn args(self, sized: &Sized) -> &'static [usize] {
        match self {
            Self::Seconds => sized.tables,
            Self::Minute => sized.marks,
        }
    }
}

fn main() -> ExitCode {
    if let Ok(told) = env::var(PROGRAM) {
        return serde_json::from_str::<Run>(&told).expect("a run").rank();
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
            let named = (0..PROGRAMS.len()).filter(|program| argument("--only").is_none_or(|only| only == PROGRAMS[*program].name));
            let run = |program, length| Run { program, length, ranks, mode: Mode::Consistent, every: None };
            match part {
                Part::Marks => {
                    let measured: Vec<_> = named.map(|program| Marked::measure(|length| run(program, length), trials)).collect();
                    marks(&mut report, &measured, ranks, ranks == cores);
                }
                Part::Tables => {
                    let measured: Vec<_> = named.map(|program| Measured::in_all_ways(run(program, Length::Seconds), trials)).collect();
                    tables(&mut report, &measured, ranks);
                }
            }
        }
    }
    report.note(format!(
        "medians of {trials} runs, of the marks of as many as take {TRIAL_S} s; those of the marks in pairs, with checkpoints and without, which stand still by turns; {CHECKPOINTS} checkpoints in the time of a run without"
    ));
    report.print();
    ExitCode::SUCCESS
}

fn argument(name: &str) -> Option<String> {
    env::args().skip_while(|argument| argument != name).nth(1)
}

impl Run {
    /// A rank of it.
    fn rank(self) -> ExitCode {
        let sized = &PROGRAMS[self.program];
        let status = (sized.program)(self.length.args(sized));
        let own = Path::new(&env::var(OWN).expect("where to")).join(process::id().to_string());
        fs::write(own, own_seconds().to_string()).expect("room for a number");
        status
    }

    /// The interval by the clock, which goes on while others have their turns.
    fn every(self, players: usize) -> String {
        self.every.map_or_else(|| "0s".to_owned(), |every| format!("{}ms", every.as_millis() * players as u128))
    }
}

/// These runs, by turns if they are several: the command, with this program for its ranks.
fn run<const N: usize>(runs: [Run; N]) -> [Ran; N] {
    let program = env::current_exe().expect("this program").display().to_string();
    let places = runs.map(|_| Cli::new());
    let [own, told] = ["own", "told"].map(|name| places.each_ref().map(|place| place.path().join(name)));
    let command = |nth: usize| {
        let run = runs[nth];
        let (name, mode) = (PROGRAMS[run.program].name, serde_json::to_value(run.mode).expect("a word"));
        let mode = mode.as_str().expect("a word");
        let (ranks, every) = (run.ranks.to_string(), run.every(N));
        let arguments = ["--json", "run-ranks", "--ranks", &ranks, "--every", &every, "--mode", mode, "--name", name, &program];
        let mut command = places[nth].command(&arguments);
        fs::create_dir(&own[nth]).expect("room for a directory");
        command.env(PROGRAM, serde_json::to_string(&run).expect("plain values")).env(OWN, &own[nth]);
        command.stdout(File::create(&told[nth]).expect("room for a file"));
        command
    };
    let had = by_turns((0..N).map(command).collect()).expect("programs run");
    std::array::from_fn(|nth| {
        let told = fs::read_to_string(&told[nth]).expect("it was written");
        assert!(had[nth].status.success(), "{:?}: {}: {told}", runs[nth], had[nth].status);
        let ranks = fs::read_dir(&own[nth]).expect("it is there");
        let ran = Ran {
            seconds: had[nth].ran.as_secs_f64(),
            worked: had[nth].worked,
            own: ranks.map(|rank| number(&rank.expect("it is there").path())).sum(),
            outcome: serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error} in {told}")),
        };
        ran.tell(runs[nth]);
        ran
    })
}

fn number(file: &Path) -> f64 {
    fs::read_to_string(file).expect("it was written").parse().expect("a number")
}

impl Ran {
    fn checkpoints(&self) -> f64 {
        self.outcome.checkpoints.len() as f64
    }

    fn tell(&self, run: Run) {
        let how = run.every.map_or_else(|| "without".to_owned(), |every| format!("{:?}, every {:.1} s", run.mode, every.as_secs_f64()));
        eprintln!(
            "{}, {} ranks, {how}: {:.1} s, processors {:.2} s, of that own {:.2} s, {} checkpoints",
            PROGRAMS[run.program].name,
            run.ranks,
            self.seconds,
            self.worked,
            self.own,
            self.checkpoints()
        );
    }
}

impl Measured {
    fn new(run: Run, every: Duration, ways: usize) -> Self {
        Self { name: PROGRAMS[run.program].name, every, without: Vec::new(), ways: (0..ways).map(|_| Vec::new()).collect() }
    }

    fn interval(alone: &Ran) -> Duration {
        Duration::from_secs_f64(alone.seconds / (f64::from(CHECKPOINTS) + 0.5))
    }

    /// One after another, without checkpoints and in each way.
    fn in_all_ways(without: Run, trials: usize) -> Self {
        let mut measured = Self::new(without, Duration::ZERO, WAYS.len());
        for trial in 0..trials {
            let [alone] = run([without]);
            if trial == 0 {
                measured.every = Self::interval(&alone);
            }
            measured.without.push(alone);
            for (way, mode) in measured.ways.iter_mut().zip(WAYS) {
                way.extend(run([Run { mode, every: Some(measured.every), ..without }]));
            }
        }
        measured
    }

    /// Without checkpoints and with, by turns.
    fn by_turns(without: Run, trials: usize) -> Self {
        let [alone] = run([without]);
        let mut measured = Self::new(without, Self::interval(&alone), 1);
        let enough =
            |so_far: &[Ran]| so_far.len() >= trials && so_far.iter().map(|ran| ran.seconds).sum::<f64>() >= TRIAL_S * trials as f64;
        while !enough(&measured.without) {
            let [without, with] = run([without, Run { every: Some(measured.every), ..without }]);
            measured.without.push(without);
            measured.ways[0].push(with);
        }
        measured
    }

    fn alone(&self) -> f64 {
        median(&self.without, |ran| ran.seconds)
    }

    fn with(&self, way: usize) -> f64 {
        median(&self.ways[way], |ran| ran.seconds)
    }

    fn overhead(&self, way: usize) -> f64 {
        (self.with(way) / self.alone() - 1.0) * 100.0
    }

    /// Of the processors: without, and with.
    fn worked(&self, way: usize) -> [f64; 2] {
        [&self.without, &self.ways[way]].map(|runs| median(runs, |ran| ran.worked))
    }

    /// The median of what a run with checkpoints makes of the run without that goes with it.
    fn of_pairs(&self, figure: impl Fn(&Ran, &Ran) -> f64) -> f64 {
        let pairs = self.without.iter().zip(&self.ways[0]).map(|(without, with)| figure(without, with));
        quantile(&pairs.collect::<Vec<_>>(), 0.5)
    }

    /// How much more processors' time it took with checkpoints, %.
    fn worked_more(&self) -> f64 {
        self.of_pairs(|without, with| (with.worked / without.worked - 1.0) * 100.0)
    }

    /// Of that, what is not in the programs' own instructions, %. Of each run as a share of the own instructions, which are as many.
    fn besides_more(&self) -> f64 {
        let share = |ran: &Ran| ran.worked / ran.own - 1.0;
        self.of_pairs(|without, with| (share(with) - share(without)) * without.own / without.worked * 100.0)
    }

    /// By how much longer one of these times was for each checkpoint, s.
    fn each(&self, time: fn(&Ran) -> f64) -> f64 {
        self.of_pairs(|without, with| (time(with) - time(without)) / with.checkpoints().max(1.0))
    }

    /// By how much runs without checkpoints differ in processors' time, %.
    fn noise(&self) -> f64 {
        let worked = self.without.iter().map(|ran| ran.worked).collect::<Vec<_>>();
        (quantile(&worked, 1.0) / quantile(&worked, 0.0) - 1.0) * 100.0
    }

    /// How much more processors' time it would be at the paper's interval if a checkpoint took so long of the processors, %.
    fn at_papers_interval(&self, each: f64) -> f64 {
        each / (self.worked(0)[0] / self.alone() * PAPERS_INTERVAL_S) * 100.0
    }

    /// How many checkpoints there were in the last run.
    fn count(&self, way: usize) -> f64 {
        self.ways[way].last().map_or(0.0, Ran::checkpoints)
    }

    /// The mean over the checkpoints of the last run.
    fn mean(&self, way: usize, figure: impl Fn(&Taken) -> u64) -> f64 {
        let taken = self.ways[way].last().map_or(&[][..], |ran| &ran.outcome.checkpoints);
        taken.iter().map(|taken| figure(taken) as f64).sum::<f64>() / taken.len().max(1) as f64
    }
}

fn median(runs: &[Ran], figure: impl Fn(&Ran) -> f64) -> f64 {
    quantile(&runs.iter().map(figure).collect::<Vec<_>>(), 0.5)
}

/// What checkpoints cost a program in a run of a minute.
struct Marked {
    minute: Measured,
    /// Shorter runs, where a checkpoint comes more often.
    seconds: Measured,
}

impl Marked {
    fn measure(run: impl Fn(Length) -> Run, trials: usize) -> Self {
        let [minute, seconds] = [Length::Minute, Length::Seconds].map(|length| Measured::by_turns(run(length), trials));
        Self { minute, seconds }
    }

    /// By how much the own instructions take longer, of the processors' time without checkpoints, %.
    fn own_more(&self) -> f64 {
        self.seconds.each(|ran| ran.own) * self.minute.count(0) / self.minute.worked(0)[0] * 100.0
    }

    /// How much more processors' time it takes with checkpoints, in two parts, %.
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
        "processors (s)",
        "with (s)",
        "whole runs (%)",
        "without differs by (%)",
        "more (%)",
        "own instructions (%)",
        "besides (%)",
        "for a checkpoint (ms)",
        "written (MB)",
        "% if every 2 min",
    ];
    let row = |program: &Marked| {
        let minute = &program.minute;
        let [without, with] = minute.worked(0);
        let written = minute.mean(0, |taken| taken.written_bytes) / 1e6;
        let times = [minute.every.as_secs_f64(), minute.alone(), without, with, minute.worked_more(), minute.noise()];
        let more = [program.more(), program.own_more(), minute.besides_more(), program.each() * 1e3];
        times.into_iter().chain(more).chain([written, program.at_papers_interval()]).collect()
    };
    table(report, "of a minute", ranks, &columns, measured.iter().map(|program| (program.minute.name, row(program))));
    let columns =
        ["interval (s)", "pairs of runs", "own (s)", "more for a checkpoint (ms)", "all processors, more for one (ms)", "written (MB)"];
    let row = |program: &Marked| {
        let often = &program.seconds;
        let [own, written] = [median(&often.without, |ran| ran.own), often.mean(0, |taken| taken.written_bytes) / 1e6];
        let each = [|ran: &Ran| ran.own, |ran: &Ran| ran.worked].map(|time| often.each(time) * 1e3);
        vec![often.every.as_secs_f64(), often.without.len() as f64, own, each[0], each[1], written]
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
            let each = program.each(|ran| ran.worked);
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
        let garbage = program.ways[3].last().and_then(|ran| ran.outcome.garbage).unwrap_or_default();
        vec![program.overhead(3), program.overhead(0), program.count(3) / ranks as f64, garbage.most as f64, garbage.collected as f64]
    });
}
