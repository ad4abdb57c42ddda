//! When memory is copied: in the pause, ahead of it, or after it; under light and heavy writing, each beside the others and beside full checkpoints.

use fermata_experiment::Run;
use fermata_linux::clock::Stopwatch;
use fermata_testkit::{
    Bench,
    bench::{await_console, console},
    guests,
    report::{Figure, Report, quantile},
};
use std::time::Duration;

/// What is compared: a name, and the keys of the specification. The first is the default.
const WAYS: [(&str, &str); 5] = [
    ("auto", ""),
    ("stop", "capture: stop\n"),
    ("precopy", "capture: precopy\n"),
    ("cow", "capture: cow\n"),
    ("full, stop", "capture: stop\nfull: true\n"),
];
/// A load: a name, what the guest runs, and the word before the number on its console that counts what it has done.
const LOADS: [(&str, &str, &str); 2] = [("light", "work:64:2000:0", "pages "), ("heavy", "stream:192", "mib ")];
const INTERVAL: Duration = Duration::from_secs(1);
/// Each guest has the processors to itself for so many checkpoints, then the next one has.
const TURN: usize = 3;
const MARGIN: f64 = 1.1;

struct Way {
    name: &'static str,
    run: Run,
    // Its store and directories go with it.
    _bench: Bench,
    pauses: Vec<f64>,
    saves: Vec<f64>,
    /// Work done and time taken, with checkpoints.
    work: (f64, f64),
}

fn main() {
    let turns = if std::env::args().any(|argument| argument == "--short") { 2 } else { 6 };
    let mut report = Report::new("capture");
    for (load, program, counter) in LOADS {
        let mut ways: Vec<Way> = WAYS.iter().map(|(name, keys)| boot(name, keys, program, counter)).collect();
        for _ in 0..turns {
            ways.iter_mut().for_each(|way| turn(way, counter));
        }
        // What the guest does when nobody disturbs it.
        let alone = undisturbed(&mut ways[0], counter);
        tell(&mut report, load, &ways, alone);
    }
    report.print();
}

fn boot(name: &'static str, keys: &str, program: &str, counter: &str) -> Way {
    let yaml = guests::tiny("capture", &format!("fermata.run={program}"), "").replace("memory: 256M", "memory: 512M");
    let bench = Bench::new(&(keys.to_owned() + &yaml));
    let run = bench.boot();
    await_console(&run.body(), Duration::from_secs(120), |text| last(text, counter).filter(|done| *done > 0.0));
    run.checkpoint(None).expect("a first checkpoint");
    run.pause().expect("it pauses");
    Way { name, run, _bench: bench, pauses: Vec::new(), saves: Vec::new(), work: (0.0, 0.0) }
}

/// Some checkpoints of one guest, while the others stand still.
fn turn(way: &mut Way, counter: &str) {
    let (done, seconds) = measured(way, counter, |way| {
        for _ in 0..TURN {
            std::thread::sleep(INTERVAL);
            let (_, record) = way.run.checkpoint(None).expect("a checkpoint");
            way.pauses.push(record.cost.pause_ns as f64 / 1e6);
            way.saves.push(record.cost.save_ns as f64 / 1e6);
        }
    });
    way.work = (way.work.0 + done, way.work.1 + seconds);
}

/// Work a second, with nothing watching but the tracker.
fn undisturbed(way: &mut Way, counter: &str) -> f64 {
    let (done, seconds) = measured(way, counter, |_| std::thread::sleep(INTERVAL * TURN as u32));
    done / seconds
}

fn measured(way: &mut Way, counter: &str, work: impl FnOnce(&mut Way)) -> (f64, f64) {
    let count = |way: &Way| last(&console(&way.run.body()), counter).expect("the guest counts");
    let before = count(way);
    way.run.resume().expect("it goes on");
    let watch = Stopwatch::start();
    work(way);
    way.run.pause().expect("it pauses");
    (count(way) - before, watch.elapsed().as_secs_f64())
}

/// The last number on the console after this word.
fn last(text: &str, counter: &str) -> Option<f64> {
    text.lines().rev().skip(usize::from(!text.ends_with('\n'))).find_map(|line| {
        let (_, number) = line.split_once(counter)?;
        number.split_whitespace().next()?.parse().ok()
    })
}

fn tell(report: &mut Report, load: &str, ways: &[Way], alone: f64) {
    let median = |way: &Way| quantile(&way.pauses, 0.5);
    let best = ways.iter().skip(1).min_by(|a, b| median(a).total_cmp(&median(b))).expect("there are ways");
    for way in ways {
        let mut add = |what: &str, value: f64, unit, rival: &str, rival_value: f64, at_least: &str, holds| {
            let (name, rival, at_least) = (format!("{load}, {}: {what}", way.name), rival.to_owned(), at_least.to_owned());
            report.add(Figure { name, value, unit, rival, rival_value: Some(rival_value), at_least, holds });
        };
        let (at_least, holds) = match way.name {
            "auto" => ("within 10 % of the best", median(way) <= median(best) * MARGIN),
            _ => ("reported", true),
        };
        add("pause p50", median(way), "ms", best.name, median(best), at_least, holds);
        add("pause worst", quantile(&way.pauses, 1.0), "ms", best.name, quantile(&best.pauses, 1.0), "reported", true);
        add("saved in, p50", quantile(&way.saves, 0.5), "ms", best.name, quantile(&best.saves, 0.5), "reported", true);
        add("guest's work", way.work.0 / way.work.1 / alone * 100.0, "%", "undisturbed", 100.0, "reported", true);
    }
}
