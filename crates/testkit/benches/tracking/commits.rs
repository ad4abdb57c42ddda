//! Durable commits against what people use for the same: LMDB, SQLite, `msync`, and a library that copies all of the memory. All do the same transactions, by
//! turns, each in a directory of its own on one disk.

use fermata_linux::clock::Stopwatch;
use fermata_process::{CriticalArea, Options, Tracking};
use fermata_store::Store;
use fermata_testkit::report::{Report, Table, quantile};
use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

/// Pages of a transaction.
const PPTS: [u64; 3] = [1, 16, 256];
const WPP: u64 = 4;
const MIB: u64 = 16;
/// All by turns, so often: a disk grows slower and faster by the minute.
const ROUNDS: usize = 5;
const OURS: [Tracking; 4] = [Tracking::Assisted, Tracking::Protect, Tracking::Emulate, Tracking::Auto];
/// The library that each needs of C's, if any, and the switch of the program that has it.
const RIVALS: [(&str, Option<(&str, &str)>); 5] = [
    ("lmdb", Some(("-llmdb", "-DWITH_LMDB"))),
    ("sqlite-full", Some(("-lsqlite3", "-DWITH_SQLITE"))),
    ("sqlite-normal", Some(("-lsqlite3", "-DWITH_SQLITE"))),
    ("msync", None),
    ("copy", None),
];

/// Measures all of it; `time` for each way at each point.
pub fn measure(report: &mut Report, time: Duration) {
    let place = tempfile::tempdir().expect("a directory");
    let programs: Vec<_> = RIVALS.iter().filter_map(|(name, library)| Some((*name, compile(name, *library, place.path())?))).collect();
    let mut rows = vec![vec!["way".to_owned()]];
    rows[0].extend(PPTS.iter().flat_map(|ppt| [format!("{ppt} pages"), "times auto".to_owned()]));
    for ppt in PPTS {
        let found = point(&programs, ppt, time);
        let ours: Vec<_> = found.iter().filter(|(name, _)| OURS.iter().any(|ours| ours.to_string() == *name)).collect();
        let auto = found.iter().find(|(name, _)| name == "auto").expect("it can always be had").1;
        let best =
            ours.iter().filter(|(name, _)| name != "auto").min_by(|a, b| a.1.total_cmp(&b.1)).expect("two need nothing of the kernel");
        report.tell(&format!("commit of {ppt} pages, auto"), auto, "us", Some((best.0.as_str(), best.1)));
        for (name, spent) in found.iter().filter(|(name, _)| RIVALS.iter().any(|(rival, _)| rival == name)) {
            report.tell(&format!("commit of {ppt} pages, {}", best.0), best.1, "us", Some((name.as_str(), *spent)));
        }
        for (name, spent) in &found {
            let cells = [format!("{spent:.0}"), format!("{:.2}", spent / auto)];
            match rows.iter_mut().find(|row| row[0] == *name) {
                Some(row) => row.extend(cells),
                None => rows.push(std::iter::once(name.clone()).chain(cells).collect()),
            }
        }
    }
    report.tables.push(Table { title: format!("Commits: us for a durable transaction on {MIB} MiB, {WPP} words of a page"), rows });
    report.note(
        "sqlite-normal is not durable when a commit returns, and msync may leave half of a transaction behind; ours keeps every commit, the others the last; \
         the others are told which pages were written, and look for none",
    );
}

/// The program with these ways; none, with a word, where its library is not here.
fn compile(name: &str, library: Option<(&str, &str)>, place: &Path) -> Option<PathBuf> {
    let program = place.join(name);
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).arg(&program);
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/tracking/rivals.c"));
    library.iter().for_each(|(link, with)| _ = compiler.args([link, with]));
    let output = compiler.output().expect("a C compiler");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || library.is_some(), "{said}");
    if !output.status.success() {
        fermata_testkit::skipped!("{name}: {}", said.lines().next().unwrap_or_default());
        return None;
    }
    Some(program)
}

/// Does transactions, and tells what so many of them took.
trait Way {
    fn run(&mut self, count: u64) -> Duration;
}

struct Ours {
    area: CriticalArea,
    nth: u64,
    ppt: u64,
    writes: Vec<(u64, u64)>,
    // After the area, whose store is in it.
    _place: tempfile::TempDir,
}

impl Ours {
    fn new(tracking: Tracking, ppt: u64) -> Option<Self> {
        let place = tempfile::tempdir().expect("a directory");
        let store = Store::open(&place.path().join("store")).expect("a store");
        let options = Options::default().tracking(tracking).only_stores().anywhere();
        let opened = CriticalArea::open(&store, "commits", (MIB << 20) as usize, options);
        let mut area = opened.inspect_err(|error| fermata_testkit::skipped!("{tracking}: {error}")).ok()?;
        // What the others have, too.
        let words = area.as_mut_slice().chunks_exact_mut(8).enumerate();
        words.for_each(|(nth, word)| word.copy_from_slice(&(nth as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()));
        area.begin().expect("a cycle").commit().expect("a commit");
        Some(Self { area, nth: 0, ppt, writes: Vec::new(), _place: place })
    }
}

impl Way for Ours {
    fn run(&mut self, count: u64) -> Duration {
        let watch = Stopwatch::start();
        for _ in 0..count {
            crate::writes(self.nth, self.ppt, WPP, MIB, &mut self.writes);
            let mut cycle = self.area.begin().expect("a cycle");
            self.writes.iter().for_each(|(at, value)| cycle[*at as usize..*at as usize + 8].copy_from_slice(&value.to_le_bytes()));
            cycle.commit().expect("a commit");
            self.nth += 1;
        }
        watch.elapsed()
    }
}

struct Theirs {
    process: Child,
    answers: BufReader<ChildStdout>,
    _place: tempfile::TempDir,
}

impl Theirs {
    fn new(name: &str, program: &Path, ppt: u64) -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(program);
        command.arg(name).arg(place.path()).args([MIB, ppt, WPP].map(|number| number.to_string()));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it was just compiled");
        let answers = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, answers, _place: place }
    }
}

impl Way for Theirs {
    fn run(&mut self, count: u64) -> Duration {
        let mut line = String::new();
        writeln!(line, "{count}").expect("text");
        self.process.stdin.as_mut().expect("a pipe").write_all(line.as_bytes()).expect("it listens");
        line.clear();
        self.answers.read_line(&mut line).expect("it answers");
        Duration::from_nanos(line.trim().parse().expect("a number"))
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        // There is no more to read for it.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Microseconds of a transaction, by way.
fn point(programs: &[(&'static str, PathBuf)], ppt: u64, time: Duration) -> Vec<(String, f64)> {
    let ours = OURS.into_iter().filter_map(|tracking| Some((tracking.to_string(), Box::new(Ours::new(tracking, ppt)?) as Box<dyn Way>)));
    let theirs = programs.iter().map(|(name, program)| ((*name).to_owned(), Box::new(Theirs::new(name, program, ppt)) as Box<dyn Way>));
    let mut ways: Vec<_> = ours.chain(theirs).map(|(name, way)| (name, way, Vec::new(), 0)).collect();
    for (_, way, _, count) in &mut ways {
        // What is there for the first time, and how many are a slice.
        way.run(10);
        let each = way.run(10) / 10;
        *count = (time.as_nanos() / ROUNDS as u128 / each.as_nanos().max(1)).clamp(1, 1 << 20) as u64;
    }
    for _ in 0..ROUNDS {
        for (_, way, spent, count) in &mut ways {
            spent.push(way.run(*count).as_secs_f64() * 1e6 / *count as f64);
        }
    }
    ways.into_iter().map(|(name, _, spent, _)| (name, quantile(&spent, 0.5))).collect()
}
