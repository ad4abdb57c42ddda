//! Whether a checkpoint and a goto take longer when there are 10, 100, 1,000 checkpoints already.

use fermata_linux::clock::Stopwatch;
use fermata_testkit::{
    Bench, guests,
    measure::{Counter, at_every, pick},
    report::{Report, quantile},
};
use fermata_timeline::Keeper;
use std::{sync::Arc, thread, time::Duration};

/// Between the checkpoints that only make the run long.
const SHORT: Duration = Duration::from_millis(40);
/// Between those that are measured, so that each finds the same work.
const INTERVAL: Duration = Duration::from_millis(500);
/// Flat: the deepest costs at most this much more than the shallowest.
const FLAT: f64 = 1.25;

/// At one depth, in ms.
struct Level {
    depth: usize,
    pauses: Vec<f64>,
    checkpoints: Vec<f64>,
    gotos: Vec<f64>,
}

/// One of the figures of a level.
type Of = fn(&Level) -> &[f64];

fn main() {
    let bench = Bench::new(&guests::tiny_with("depth", 256, "work:64:2000:0"));
    let keeper = bench.keeper();
    keeper.boot().expect("it boots");
    counter(&keeper).after(None);
    let mut taken = 0;
    let levels: Vec<_> = pick(vec![10, 100, 1000], vec![10, 50]).into_iter().map(|depth| level(&keeper, &mut taken, depth)).collect();
    keeper.down(None).expect("it ends");

    let mut report = Report::new("depth");
    let figures: [(&str, Of); 3] =
        [("goto", |level| &level.gotos), ("checkpoint, to durable", |level| &level.checkpoints), ("pause", |level| &level.pauses)];
    let name = |what: &str, level: &Level, which: &str| format!("{what} after {}, {which}", level.depth);
    for (what, of) in figures {
        let first = quantile(of(&levels[0]), 0.5);
        for level in &levels {
            report.tell(&name(what, level, "p50"), quantile(of(level), 0.5), "ms", None);
            report.tell(&name(what, level, "worst"), quantile(of(level), 1.0), "ms", None);
        }
        let last = quantile(of(levels.last().expect("there are levels")), 0.5);
        report.mark(&format!("{what}: the deepest"), last / first, "x", Some(("the shallowest", 1.0)), ("flat", last <= first * FLAT));
    }
    report.print();
}

fn counter(keeper: &Keeper) -> Counter {
    Counter::new(&keeper.run(None).expect("a run").body().machine().place().console_log(), "work second ")
}

/// Brings the run to this depth, and measures there. What is measured makes it some checkpoints deeper.
fn level(keeper: &Arc<Keeper>, taken: &mut usize, depth: usize) -> Level {
    at_every(SHORT, depth.saturating_sub(*taken), || keeper.checkpoint(None, None).expect("a checkpoint"));
    let mut level = Level { depth, pauses: Vec::new(), checkpoints: Vec::new(), gotos: Vec::new() };
    let measured = pick(15, 5);
    at_every(INTERVAL, measured, || {
        let watch = Stopwatch::start();
        let (_, record) = keeper.checkpoint(None, None).expect("a checkpoint");
        level.checkpoints.push(watch.elapsed().as_secs_f64() * 1e3);
        level.pauses.push(record.cost.pause_ns as f64 / 1e6);
    });
    let head = keeper.run(None).expect("a run").standing().head.expect("there are checkpoints");
    for _ in 0..measured {
        while !keeper.spare_ready() {
            thread::sleep(Duration::from_millis(5));
        }
        level.gotos.push(keeper.goto(&head.to_string(), None, false, false).expect("a journey").took.as_secs_f64() * 1e3);
        // So that the guest is at work, and what it left is buried, when the next journey begins.
        counter(keeper).after(None);
    }
    *taken = depth + measured;
    level
}
