//! How much less work a guest does when a checkpoint is taken every 2 s: windows with and without, in turn, in the same guest.

use fermata_experiment::Run;
use fermata_testkit::{
    Bench, guests,
    measure::{Counter, at_every, pick},
    report::{Report, quantile},
};
use std::{thread, time::Duration};

const INTERVAL: Duration = Duration::from_secs(2);
/// What the guest needs to be at its ordinary work.
const WARM_UP: Duration = Duration::from_secs(5);

/// Work a second in each window, with checkpoints and without.
struct Windows {
    with: Vec<f64>,
    without: Vec<f64>,
}

fn main() {
    // The same file is compiled again and again: each time the same work, in new processes, with new files in memory.
    let compile = "cd /src/src; n=0; while :; do cc -O2 -c -o /tmp/x.o lzio.c; n=$((n+1)); echo built $n >/dev/console; done";
    let loads = [
        ("compiling", guests::debian_with("slowdown", "1G", &guests::debian_running(compile)), "built "),
        ("computing", guests::tiny_with("slowdown", 1024, "steps:512"), "steps "),
    ];
    let mut report = Report::new("slowdown");
    for (load, yaml, word) in loads {
        let windows = measure(&yaml, word);
        let (with, without) = (quantile(&windows.with, 0.5), quantile(&windows.without, 0.5));
        // Two windows that follow each other share what the host did to both.
        let pairs: Vec<_> = windows.with.iter().zip(&windows.without).map(|(with, without)| (1.0 - with / without) * 100.0).collect();
        let slower = quantile(&pairs, 0.5);
        report.mark(&format!("{load}: slower by, p50 of neighbours"), slower, "%", None, ("under 3 %", slower < 3.0));
        report.tell(&format!("{load}: slower by, worst of neighbours"), quantile(&pairs, 1.0), "%", None);
        report.tell(&format!("{load}: slower by, best of neighbours"), quantile(&pairs, 0.0), "%", None);
        report.tell(&format!("{load}: work, p50"), with, "1/s", Some(("without checkpoints", without)));
    }
    report.note(format!("{} pairs of windows of {} s each; the order within a pair alternates", pairs(), window().as_secs()));
    report.print();
}

fn pairs() -> usize {
    pick(10, 2)
}

fn window() -> Duration {
    INTERVAL * pick(4, 3)
}

fn measure(yaml: &str, word: &'static str) -> Windows {
    let bench = Bench::new(yaml);
    let run = bench.boot();
    let counter = Counter::new(&run.body().machine().place().console_log(), word);
    counter.after(None);
    thread::sleep(WARM_UP);
    let mut windows = Windows { with: Vec::new(), without: Vec::new() };
    for pair in 0..pairs() {
        for with in [pair % 2 == 0, pair % 2 == 1] {
            if with {
                // Else the first would hold all that was written in the window without.
                run.checkpoint(None).expect("a checkpoint");
                windows.with.push(counter.rate_during(|| checkpoints(&run)));
            } else {
                windows.without.push(counter.rate_during(|| thread::sleep(window())));
            }
        }
    }
    windows
}

fn checkpoints(run: &Run) {
    let times = window().as_secs() / INTERVAL.as_secs();
    at_every(INTERVAL, times as usize, || run.checkpoint(None).expect("a checkpoint"));
}
