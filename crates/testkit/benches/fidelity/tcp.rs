//! A TCP stream between two machines: figure 6 of the paper. What comes through the receiver's interface is captured outside of it, in virtual time, and looked
//! through by `tshark`.

use super::{
    beat::sh,
    capture,
    link::{HEADERS, PAYLOAD},
    pace::{Pace, Rounds},
    picture::Picture,
    traffic,
};
use fermata_experiment::Run;
use fermata_testkit::{
    Bench,
    bench::await_console_of,
    guests,
    measure::pick,
    report::{Report, Table, quantile},
    statistics::{cells, columns},
};
use std::{path::Path, process::Command, time::Duration};
use tempfile::NamedTempFile;

const BOOT: Duration = Duration::from_secs(240);
const MEMORY_MIB: u32 = 192;
/// What TCP has under way fits into the link's queue, so nothing is lost but by a fault. The receiver's window stays as it is.
const WINDOW: &str = "128K";
/// An effect of a checkpoint shows within this time; s.
const EFFECT: f64 = 0.25;
/// Of instants without a checkpoint that are compared with those of checkpoints; s.
const BETWEEN_INSTANTS: f64 = 0.01;
/// A gap so near to a checkpoint is across it; s. Machines and network are apart by some hundred microseconds in it.
const SEAM: f64 = 1e-3;
/// In the paper, at four checkpoints; us.
const PAPER_GAP_US: f64 = 5801.0;
/// What nobody wants to see, by the fields in which `tshark` tells of it.
const FAULTS: [(&str, &[&str]); 5] = [
    // Where the first one arrived, as it does where nothing is lost, a timer that ran off too early shows as a spurious one.
    ("retransmissions", &["tcp.analysis.retransmission", "tcp.analysis.fast_retransmission", "tcp.analysis.spurious_retransmission"]),
    ("segments out of order", &["tcp.analysis.out_of_order"]),
    ("duplicate acknowledgements", &["tcp.analysis.duplicate_ack"]),
    ("lost segments", &["tcp.analysis.lost_segment"]),
    ("windows that are full or shut", &["tcp.analysis.window_full", "tcp.analysis.zero_window"]),
];

/// A frame in the capture.
struct Frame {
    /// Virtual time, s.
    at: f64,
    /// It carries data to the receiver.
    data: bool,
    /// The window that it tells.
    window: u32,
    /// Which of the faults it shows.
    faults: [bool; FAULTS.len()],
}

/// Over a link of 1 Gbit/s, as in the paper. An emulated processor fills no more than a part of it, so the sender decides when frames come.
pub fn gigabit(report: &mut Report) {
    tcp("tcp", 1000, report);
}

/// Over a link that is always full: it decides when frames come.
pub fn narrow(report: &mut Report) {
    tcp("narrow", 20, report);
}

fn tcp(name: &str, rate_mbit: u32, report: &mut Report) {
    let (_bench, run) = boot(rate_mbit);
    let capture = NamedTempFile::new().expect("a file");
    let (pace, sights, missed) = stream(&run, capture.path());
    report.mark(&format!("{name}: frames that the capture missed"), missed as f64, "", None, ("none", missed == 0));
    let seams: Vec<_> = pace.checkpoints.iter().map(|at| at.ns as f64 / 1e9).collect();
    let passed = sights[sights.len() - 1].at - sights[0].at;
    let events = Events { name, seams: &seams, passed };
    let frames = tshark(capture.path());
    assert!(!frames.is_empty(), "nothing of the stream was captured");
    for (number, (what, _)) in FAULTS.iter().enumerate() {
        let times: Vec<f64> = frames.iter().filter(|frame| frame.faults[number]).map(|frame| frame.at).collect();
        events.tell(what, &times, report);
    }
    windows(name, &frames, &seams, passed, report);
    gaps(name, &frames, &seams, report);
    let wire = (PAYLOAD + HEADERS) as f64 * 8.0 / f64::from(rate_mbit);
    report.tell(&format!("{name}: a whole frame takes on the link"), wire, "us", None);
    let rates = traffic::rates(&sights, 0, 0.5);
    let [with, without] = traffic::by_kind(&rates, &pace).map(|rates| quantile(&rates, 0.5));
    report.tell(&format!("{name}: throughput with checkpoints, p50"), with, "Mbit/s", Some(("without", without)));
    report.note(format!("{name}: a link of {rate_mbit} Mbit/s; {} checkpoints, {} frames", seams.len(), frames.len()));
    let picture = traffic::rates(&sights, 0, 0.1);
    let marks = pace.checkpoints.iter().map(|at| at.ns as f64 / 1e9).collect();
    let series = vec![("received".to_owned(), picture)];
    Picture { title: "A TCP stream", x: "virtual time, s", y: "Mbit/s", from_zero: true, series, marks }.save(report, name);
}

fn boot(rate_mbit: u32) -> (Bench, Run) {
    let run = |host: u32| format!("fermata.run=none fermata.ip=eth1:10.0.0.{host}/24");
    let nodes = guests::several_of(guests::SERVICES, "stream", MEMORY_MIB, &[("a", &run(1), ""), ("b", &run(2), "")]);
    let bench = Bench::new(&format!("{nodes}links:\n  - {{endpoints: [\"a:eth1\", \"b:eth1\"], rate: {rate_mbit}Mbit}}\n"));
    let run = bench.boot();
    for machine in run.body().machines() {
        await_console_of(machine.machine(), BOOT, |text| text.contains("tiny ready").then_some(()));
    }
    (bench, run)
}

/// Has it flow under checkpoints, with what the receiver's interface sees in this file. Also, how many frames are missing there.
fn stream(run: &Run, file: &Path) -> (Pace, Vec<traffic::Sight>, u64) {
    let body = run.body();
    let [sender, receiver] = [0, 1].map(|place| body.machines()[place].machine());
    sh(receiver, "iperf3 -s -D >/dev/null; sleep 1");
    sh(sender, &format!("setsid iperf3 -c 10.0.0.2 -t 86400 -w {WINDOW} -i 0 >/dev/null 2>&1 & sleep 3"));
    let rounds = pick(Rounds { rounds: 5, checkpoints: 10, without: 2 }, Rounds { rounds: 1, checkpoints: 4, without: 2 });
    let (taken, missed) = capture::during(run, "b", file, || {
        let taken = traffic::during(run, &["b"], || Pace::keep(run, rounds));
        // The capture is read to its end, which would never come.
        sh(sender, "killall -TERM iperf3; true");
        taken
    });
    let (pace, sights) = taken;
    (pace, sights, missed)
}

/// What `tshark` makes of the frames of the stream.
fn tshark(capture: &Path) -> Vec<Frame> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(capture).args(["-Y", "tcp.port == 5201", "-T", "fields"]);
    let fields = FAULTS.iter().flat_map(|(_, fields)| *fields);
    ["frame.time_epoch", "tcp.len", "tcp.window_size_value"].iter().chain(fields).for_each(|field| {
        command.args(["-e", field]);
    });
    let done = command.output().expect("tshark is there: scripts/setup tshark");
    assert!(done.status.success(), "tshark: {}", String::from_utf8_lossy(&done.stderr));
    let number = |text: &str| text.parse::<f64>().unwrap_or_else(|_| panic!("tshark says {text:?}"));
    let frame = |line: &str| {
        let words: Vec<_> = line.split('\t').collect();
        let mut shown = words[3..].iter().map(|word| !word.is_empty());
        let faults = FAULTS.map(|(_, fields)| shown.by_ref().take(fields.len()).filter(|one| *one).count() > 0);
        Frame { at: number(words[0]), data: number(words[1]) > 0.0, window: number(words[2]) as u32, faults }
    };
    String::from_utf8_lossy(&done.stdout).lines().map(frame).collect()
}

/// How often the receiver's window is another one behind a checkpoint than before it, beside the same at any instant. It changes all the time, with how far the
/// receiver's program has come, so that counting changes near a checkpoint would not show one at each.
fn windows(name: &str, frames: &[Frame], seams: &[f64], passed: f64, report: &mut Report) {
    let acknowledgements: Vec<_> = frames.iter().filter(|frame| !frame.data).collect();
    let (first, last) = (acknowledgements[0].at, acknowledgements[acknowledgements.len() - 1].at);
    let changes = |at: &f64| {
        let next = acknowledgements.partition_point(|frame| frame.at < *at).clamp(1, acknowledgements.len() - 1);
        acknowledgements[next - 1].window != acknowledgements[next].window
    };
    let changed = seams.iter().filter(|at| changes(at)).count() as f64;
    let instants = (passed / BETWEEN_INSTANTS) as usize;
    let any = (0..instants).map(|number| first + (last - first) * number as f64 / instants as f64).filter(changes).count();
    let share = any as f64 / instants as f64;
    let expected = seams.len() as f64 * share;
    let mark = ("no more than chance", changed <= expected + 3.0 * (expected * (1.0 - share)).sqrt());
    report.mark(&format!("{name}: windows changed across a checkpoint"), changed, "", Some(("by chance", expected)), mark);
    let by = |pair: &[&Frame]| (f64::from(pair[1].window) / f64::from(pair[0].window.max(1)) - 1.0).abs() * 100.0;
    let most = acknowledgements.windows(2).map(by).fold(0.0, f64::max);
    let across = seams.iter().map(|at| acknowledgements.partition_point(|frame| frame.at < *at).clamp(1, acknowledgements.len() - 1));
    let most_across = across.map(|next| by(&acknowledgements[next - 1..=next])).fold(0.0, f64::max);
    report.tell(&format!("{name}: by how much at most"), most_across, "%", Some(("between any two", most)));
}

/// What happens at checkpoints and elsewhere.
struct Events<'a> {
    /// The part's.
    name: &'a str,
    /// Virtual times of the checkpoints, s.
    seams: &'a [f64],
    /// All of the time, s.
    passed: f64,
}

impl Events<'_> {
    /// Tells how many of these times are at a checkpoint, beside as many as would be there if checkpoints had nothing to do with them.
    fn tell(&self, what: &str, times: &[f64], report: &mut Report) {
        let near = |at: f64| self.seams.iter().any(|seam| (*seam..seam + EFFECT).contains(&at));
        let at_checkpoints = times.iter().filter(|at| near(**at)).count() as f64;
        let share = self.seams.len() as f64 * EFFECT / self.passed;
        let expected = (times.len() as f64 - at_checkpoints) * share / (1.0 - share);
        let mark = ("no more than chance", at_checkpoints <= expected + 3.0 * expected.sqrt());
        let name = self.name;
        report.mark(&format!("{name}: {what} at a checkpoint"), at_checkpoints, "", Some(("by chance", expected)), mark);
        report.tell(&format!("{name}: {what} in all"), times.len() as f64, "", None);
    }
}

/// How long nothing came, across checkpoints and elsewhere.
fn gaps(name: &str, frames: &[Frame], seams: &[f64], report: &mut Report) {
    let data: Vec<_> = frames.iter().filter(|frame| frame.data).collect();
    let (mut across, mut elsewhere) = (Vec::new(), Vec::new());
    for pair in data.windows(2) {
        let gap = (pair[1].at - pair[0].at) * 1e9;
        let next = seams.partition_point(|seam| *seam < pair[0].at - SEAM);
        let is_across = seams.get(next).is_some_and(|seam| *seam < pair[1].at + SEAM);
        if is_across { &mut across } else { &mut elsewhere }.push(gap);
    }
    let [worst, worst_elsewhere] = [&across, &elsewhere].map(|gaps| quantile(gaps, 1.0) / 1e3);
    let mark = ("no larger than the largest elsewhere", worst <= worst_elsewhere);
    report.mark(&format!("{name}: largest gap across a checkpoint"), worst, "us", Some(("elsewhere", worst_elsewhere)), mark);
    report.tell(&format!("{name}: the same beside the paper"), worst, "us", Some(("the paper", PAPER_GAP_US)));
    let rows = [columns("gaps"), cells("across a checkpoint", &across), cells("elsewhere", &elsewhere)];
    report.tables.push(Table { title: format!("{name}: gaps between frames with data, us"), rows: rows.to_vec() });
}
