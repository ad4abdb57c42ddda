//! A TCP stream between two machines: figure 6 of the paper. What the receiver's own `tcpdump` saw is looked through by `tshark`.

use super::{
    beat::{Beating, GuestTime, fetch, sh},
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
use std::{fs, process::Command, time::Duration};

const BOOT: Duration = Duration::from_secs(240);
/// The receiver keeps its capture in memory.
const MEMORY_MIB: u32 = 512;
/// The paper's link had 1 Gbit/s. An emulated processor cannot take so much in, and then the gaps would be its own and not the network's.
const RATE_MBIT: u32 = 20;
/// What TCP has under way fits into the link's queue, so nothing is lost but by a fault. The receiver's window stays as it is.
const WINDOW: &str = "128K";
/// An effect of a checkpoint shows within this time; s.
const EFFECT: f64 = 0.25;
const CAPTURE: &str = "/run/capture";
/// In the paper, at four checkpoints; us.
const PAPER_GAP_US: f64 = 5801.0;
/// What nobody wants to see.
const FAULTS: [(&str, &str); 4] = [
    ("retransmissions", "tcp.analysis.retransmission"),
    ("duplicate acknowledgements", "tcp.analysis.duplicate_ack"),
    ("lost segments", "tcp.analysis.lost_segment"),
    ("windows that are full or shut", "tcp.analysis.window_full || tcp.analysis.zero_window"),
];

/// A frame in the capture.
struct Frame {
    /// The receiver's wall clock, s.
    at: f64,
    /// It carries data to the receiver.
    data: bool,
    /// The window that it tells.
    window: u32,
}

/// A TCP stream.
pub fn tcp(report: &mut Report) {
    let (_bench, run) = boot();
    let (clocks, pace, sights) = stream(&run);
    let receiver = run.body();
    let capture = tempfile::NamedTempFile::new().expect("a file");
    fs::write(capture.path(), fetch(receiver.machines()[1].machine(), CAPTURE)).expect("room for the capture");
    let tshark = |filter: &str, fields: &[&str]| tshark(capture.path(), filter, fields);
    let seams: Vec<_> = pace.checkpoints.iter().map(|at| clocks.wall(*at) / 1e9).collect();
    let passed = sights[sights.len() - 1].at - sights[0].at;
    let events = Events { seams: &seams, passed };
    for (what, filter) in FAULTS {
        let times: Vec<f64> = tshark(filter, &[]).iter().map(|line| line[0]).collect();
        events.tell(what, &times, report);
    }
    let frame = |line: Vec<f64>| Frame { at: line[0], data: line[1] > 0.0, window: line[2] as u32 };
    let frames: Vec<_> = tshark("tcp.port == 5201", &["tcp.len", "tcp.window_size_value"]).into_iter().map(frame).collect();
    assert!(!frames.is_empty(), "tcpdump saw nothing of the stream");
    events.tell("changes of the window", &changes_of_window(&frames), report);
    gaps(&frames, &seams, report);
    let rates = traffic::rates(&sights, 0, 0.5);
    let [with, without] = traffic::by_kind(&rates, &pace).map(|rates| quantile(&rates, 0.5));
    report.tell("tcp: throughput with checkpoints, p50", with, "Mbit/s", Some(("without", without)));
    report.note(format!(
        "tcp: {} checkpoints, {} frames; the link has {RATE_MBIT} Mbit/s, not 1 Gbit/s as in the paper",
        seams.len(),
        frames.len()
    ));
    let picture = traffic::rates(&sights, 0, 0.1);
    let marks = pace.checkpoints.iter().map(|at| at.ns as f64 / 1e9).collect();
    let series = vec![("received".to_owned(), picture)];
    Picture { title: "A TCP stream", x: "virtual time, s", y: "Mbit/s", series, marks }.save(report, "tcp");
}

fn boot() -> (Bench, Run) {
    let run = |host: u32| format!("fermata.run=none fermata.ip=eth1:10.0.0.{host}/24");
    let nodes = guests::several_of(guests::SERVICES, "stream", MEMORY_MIB, &[("a", &run(1), ""), ("b", &run(2), "")]);
    let bench = Bench::new(&format!("{nodes}links:\n  - {{endpoints: [\"a:eth1\", \"b:eth1\"], rate: {RATE_MBIT}Mbit}}\n"));
    let run = bench.boot();
    for machine in run.body().machines() {
        await_console_of(machine.machine(), BOOT, |text| text.contains("tiny ready").then_some(()));
    }
    (bench, run)
}

/// Has it flow under checkpoints.
fn stream(run: &Run) -> (GuestTime, Pace, Vec<traffic::Sight>) {
    let body = run.body();
    let [sender, receiver] = [0, 1].map(|place| body.machines()[place].machine());
    let begin = Beating::begin(run, 1, "work", "1 1").wait();
    sh(receiver, "iperf3 -s -D >/dev/null; sleep 1");
    sh(receiver, &format!("setsid tcpdump -Z root -i eth1 -s 96 -w {CAPTURE} tcp port 5201 >/dev/null 2>&1 &"));
    sh(sender, &format!("setsid iperf3 -c 10.0.0.2 -t 86400 -w {WINDOW} -i 0 >/dev/null 2>&1 & sleep 3"));
    let rounds = pick(Rounds { rounds: 5, checkpoints: 10, without: 5 }, Rounds { rounds: 1, checkpoints: 4, without: 2 });
    let (pace, sights) = traffic::during(run, &["b"], || Pace::keep(run, rounds));
    sh(sender, "killall -TERM iperf3; true");
    sh(receiver, "killall -TERM tcpdump; while pidof tcpdump >/dev/null; do sleep 0.1; done");
    let end = Beating::begin(run, 1, "work", "1 1").wait();
    (begin.clock.until(end.clock), pace, sights)
}

/// Time and some fields of the frames that a filter lets through.
fn tshark(capture: &std::path::Path, filter: &str, fields: &[&str]) -> Vec<Vec<f64>> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(capture).args(["-Y", filter, "-T", "fields", "-e", "frame.time_epoch"]);
    fields.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let done = command.output().expect("tshark is there: scripts/setup tshark");
    assert!(done.status.success(), "tshark: {}", String::from_utf8_lossy(&done.stderr));
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("tshark says {text:?}"));
    String::from_utf8_lossy(&done.stdout).lines().map(|line| line.split('\t').map(number).collect()).collect()
}

/// When the receiver told another window than before.
fn changes_of_window(frames: &[Frame]) -> Vec<f64> {
    let acknowledgements: Vec<_> = frames.iter().filter(|frame| !frame.data).collect();
    let changes = acknowledgements.windows(2).filter(|pair| pair[0].window != pair[1].window);
    changes.map(|pair| pair[1].at).collect()
}

/// What happens at checkpoints and elsewhere.
struct Events<'a> {
    /// The receiver's wall clock at the checkpoints, s.
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
        report.mark(&format!("tcp: {what} at a checkpoint"), at_checkpoints, "", Some(("by chance", expected)), mark);
        report.tell(&format!("tcp: {what} in all"), times.len() as f64, "", None);
    }
}

/// How long nothing came, across checkpoints and elsewhere.
fn gaps(frames: &[Frame], seams: &[f64], report: &mut Report) {
    let data: Vec<_> = frames.iter().filter(|frame| frame.data).collect();
    let (mut across, mut elsewhere) = (Vec::new(), Vec::new());
    for pair in data.windows(2) {
        let gap = (pair[1].at - pair[0].at) * 1e9;
        let next = seams.partition_point(|seam| *seam < pair[0].at);
        // A gap right behind it is of it, too.
        let is_across = seams.get(next).is_some_and(|seam| *seam < pair[1].at) || next > 0 && pair[0].at - seams[next - 1] < 1e-3;
        if is_across { &mut across } else { &mut elsewhere }.push(gap);
    }
    let [worst, worst_elsewhere] = [&across, &elsewhere].map(|gaps| quantile(gaps, 1.0) / 1e3);
    let mark = ("no larger than the largest elsewhere", worst <= worst_elsewhere);
    report.mark("tcp: largest gap across a checkpoint", worst, "us", Some(("elsewhere", worst_elsewhere)), mark);
    report.tell("tcp: the same beside the paper", worst, "us", Some(("the paper", PAPER_GAP_US)));
    let wire = (PAYLOAD + HEADERS) as f64 * 8.0 / f64::from(RATE_MBIT);
    report.tell("tcp: a whole frame takes on the link", wire, "us", None);
    let rows = [columns("gaps"), cells("across a checkpoint", &across), cells("elsewhere", &elsewhere)];
    report.tables.push(Table { title: "Gaps between frames with data, us".to_owned(), rows: rows.to_vec() });
}
