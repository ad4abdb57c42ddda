//! Whether checkpoint, goto, fork and log take longer when there are 50, 1,000, 5,000 checkpoints already, in a tree with branches.

use fermata_experiment::Journey;
use fermata_linux::clock::Stopwatch;
use fermata_testkit::{
    Bench, cli, guests,
    measure::{Counter, at_every, pick},
    report::{Report, quantile},
};
use fermata_timeline::{Fork, Keeper};
use std::{
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

/// Between the checkpoints that only make the run long.
const SHORT: Duration = Duration::from_millis(40);
/// Between those that are measured, so that each finds the same work.
const INTERVAL: Duration = Duration::from_millis(500);
/// A branch begins after so many checkpoints, so many before the newest one.
const BRANCH_EVERY: usize = 100;
const BRANCH_BACK: &str = "~30";
/// Checkpoints that `log` is asked for.
const LOGGED: &str = "20";
/// Flat: the deepest costs at most this much more than the shallowest.
const FLAT: f64 = 1.25;

/// At one depth, in ms.
struct Level {
    depth: usize,
    pauses: Vec<f64>,
    checkpoints: Vec<f64>,
    gotos: Vec<f64>,
    forks: Vec<f64>,
    /// The newest few, and all.
    logs: [Vec<f64>; 2],
}

/// The figure that grows with what it tells.
const ALL: &str = "log, all";

/// One of the figures of a level.
type Of = fn(&Level) -> &[f64];

fn main() {
    let bench = Bench::new(&guests::tiny_with("depth", 256, "work:64:2000:0"));
    let keeper = bench.keeper();
    keeper.boot().expect("it boots");
    counter(&keeper).after(None);
    let mut taken = 0;
    let levels: Vec<_> = pick(vec![50, 1000, 5000], vec![10, 50]).into_iter().map(|depth| level(&keeper, &mut taken, depth)).collect();
    keeper.down(None).expect("it ends");

    let mut report = Report::new("depth");
    let newest = format!("log -n {LOGGED}");
    let figures: [(&str, Of); 6] = [
        ("goto", |level| &level.gotos),
        ("fork", |level| &level.forks),
        ("checkpoint, to durable", |level| &level.checkpoints),
        ("pause", |level| &level.pauses),
        (&newest, |level| &level.logs[0]),
        (ALL, |level| &level.logs[1]),
    ];
    let name = |what: &str, level: &Level, which: &str| format!("{what} after {}, {which}", level.depth);
    for (what, of) in figures {
        let first = quantile(of(&levels[0]), 0.5);
        for level in &levels {
            report.tell(&name(what, level, "p50"), quantile(of(level), 0.5), "ms", None);
            report.tell(&name(what, level, "worst"), quantile(of(level), 1.0), "ms", None);
        }
        let last = quantile(of(levels.last().expect("there are levels")), 0.5);
        if what == ALL {
            // A line for each cannot cost the same.
            let lines = levels.last().expect("there are levels").depth as f64;
            report.tell("log, a checkpoint more", (last - first) / (lines - levels[0].depth as f64), "ms", None);
            continue;
        }
        report.mark(&format!("{what}: the deepest"), last / first, "x", Some(("the shallowest", 1.0)), ("flat", last <= first * FLAT));
    }
    report.print();
}

fn counter(keeper: &Keeper) -> Counter {
    Counter::new(&keeper.run(None).expect("a run").body().machine().place().console_log(), "work second ")
}

/// Brings the tree to this many checkpoints, and measures there. What is measured makes it some checkpoints deeper.
fn level(keeper: &Arc<Keeper>, taken: &mut usize, depth: usize) -> Level {
    while *taken < depth {
        at_every(SHORT, BRANCH_EVERY.min(depth - *taken), || {
            *taken += 1;
            keeper.checkpoint(None, None).expect("a checkpoint")
        });
        if *taken < depth {
            keeper.goto(BRANCH_BACK, None, Journey::default()).expect("a journey");
        }
    }
    let mut level =
        Level { depth, pauses: Vec::new(), checkpoints: Vec::new(), gotos: Vec::new(), forks: Vec::new(), logs: Default::default() };
    let measured = pick(15, 5);
    at_every(INTERVAL, measured, || {
        let watch = Stopwatch::start();
        let (_, record) = keeper.checkpoint(None, None).expect("a checkpoint");
        level.checkpoints.push(watch.elapsed().as_secs_f64() * 1e3);
        level.pauses.push(record.cost.pause_ns as f64 / 1e6);
    });
    *taken += measured;
    let head = keeper.run(None).expect("a run").standing().head.expect("there are checkpoints");
    for _ in 0..measured {
        await_spare(keeper);
        level.gotos.push(keeper.goto(&head.to_string(), None, Journey::default()).expect("a journey").took.as_secs_f64() * 1e3);
        // So that the guest is at work, and what it left is buried, when the next journey begins.
        counter(keeper).after(None);
    }
    for _ in 0..measured {
        await_spare(keeper);
        let forked = keeper.fork(None, None, Fork::default()).expect("a fork");
        level.forks.push(forked.took.as_secs_f64() * 1e3);
        keeper.down(Some(&forked.run)).expect("it ends");
    }
    for _ in 0..measured {
        level.logs[0].push(log(keeper, &["-n", LOGGED]));
        level.logs[1].push(log(keeper, &[]));
    }
    level
}

fn await_spare(keeper: &Keeper) {
    while !keeper.spare_ready() {
        thread::sleep(Duration::from_millis(5));
    }
}

/// How long the program takes to list checkpoints, in ms.
fn log(keeper: &Keeper, arguments: &[&str]) -> f64 {
    let mut command = Command::new(cli::program());
    command.arg("--store").arg(keeper.host().store().path()).args(["-e", &keeper.spec().name, "log"]).args(arguments);
    // None of ours is found there, and nobody's else.
    command.env("FERMATA_RUN_DIR", keeper.host().run_dir().join("none")).stdout(Stdio::null());
    let watch = Stopwatch::start();
    assert!(command.status().expect("the program runs").success(), "log fails");
    watch.elapsed().as_secs_f64() * 1e3
}
