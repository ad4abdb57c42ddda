//! Time that guests lose to a checkpoint, and machines that have no other time than what they compute.

use super::beat::Beating;
use fermata_experiment::{Run, Status};
use fermata_testkit::{
    Bench, Snapshot,
    bench::await_console,
    guests,
    measure::{at_every, pick},
    oracle::differing,
    report::{Report, quantile},
};
use fermata_types::VirtualTime;
use std::{thread, time::Duration};

const BOOT: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(900);
/// Closer together than elsewhere: what is lost does not depend on how long the guest ran between.
const OFTEN: Duration = Duration::from_millis(200);
const LOST_US_MAX: f64 = 20.0;
/// What a checkpoint loses beyond what QEMU's own stop and cont do: this share of it.
const BEYOND_MAX: f64 = 0.25;
/// How exactly it is known when a guest stood, by its own clock.
const INEXACT_NS: f64 = 50e3;

/// The guest's processor does nothing but read its clock, and notes where it leapt. When the machine goes on its clock does so first, and the processor a little
/// later; the leap across a checkpoint is that. Before, when it stops, the processor may go on for a while after its clock, and read the same again and again:
/// that is taken off. So nothing that the host does at other times is in it.
pub fn lost(report: &mut Report) {
    let disk = format!("    image: {}\n", guests::file("tiny-disk.raw").display());
    lost_by("a machine", "", report);
    // QEMU starts each such device anew when the machine goes on, by a conversation with its server.
    lost_by("one with a disk", &disk, report);
}

fn lost_by(what: &str, node: &str, report: &mut Report) {
    let bench = Bench::new(&guests::tiny("lost", "fermata.run=none", node));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains("tiny ready").then_some(()));
    let times = pick(500, 25);
    let checkpoint = || VirtualTime::from_ns(run.checkpoint(None).expect("a checkpoint").1.time_virtual_ns);
    let often = lost_at(&run, times, checkpoint);
    // QEMU stops the machine and lets it go on, and all of the checkpoint's own work is done while it stands.
    let alone = lost_at(&run, times / 5, || {
        run.pause().expect("it stops");
        let at = checkpoint();
        run.resume().expect("it goes on");
        at
    });
    let name = |value: &str| format!("lost: {what}, {value}");
    let mean_of = |lost: &[f64]| lost.iter().sum::<f64>() / lost.len() as f64;
    let (mean, least) = (mean_of(&often), mean_of(&alone));
    let mark = ("20 us in the mean", mean.abs() <= LOST_US_MAX);
    report.mark(&name("a checkpoint, mean"), mean, "us", Some(("QEMU's stop and cont alone", least)), mark);
    let mark = (&*format!("at most {BEYOND_MAX}"), mean <= least * (1.0 + BEYOND_MAX));
    report.mark(&name("beyond QEMU's own, in the mean"), mean / least - 1.0, "of it", None, mark);
    for (value, share) in [("least", 0.0), ("p50", 0.5), ("p99", 0.99), ("worst", 1.0)] {
        report.tell(&name(value), quantile(&often, share), "us", Some(("QEMU's stop and cont alone", quantile(&alone, share))));
    }
    report.note(format!(
        "lost: {times} checkpoints, one every {} ms; what is positive, the clock ran without the processor",
        OFTEN.as_millis()
    ));
}

/// What is lost each time that this stops the guest, us. It tells the virtual time at which the guest stood.
fn lost_at(run: &Run, times: usize, stop: impl FnMut() -> VirtualTime) -> Vec<f64> {
    let beating = Beating::begin(run, 0, "clock", "1000000");
    // The first ones meet a guest that is still about to begin.
    let stops = at_every(OFTEN, times + 10, stop).split_off(10);
    let beats = beating.end();
    // Each leap, and for how long the clock was seen to stand before it.
    let leaps: Vec<_> = beats.all.chunks_exact(2).map(|pair| (pair[0], pair[1].took.expect("a time"))).collect();
    let across = |at: &VirtualTime| {
        let at = beats.guest_time(*at);
        let near = leaps.iter().filter(|(leap, _)| leap.at < at + INEXACT_NS && at - INEXACT_NS < leap.end());
        // Less than what a reading takes to be told from the next is nothing.
        near.map(|(leap, stood)| (leap.end() - leap.at, stood))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(0.0, |(leapt, stood)| (leapt - stood) / 1e3)
    };
    stops.iter().map(across).collect()
}

/// The RAM of a deterministic machine in the end, with checkpoints and without.
pub fn deterministic(report: &mut Report) {
    let steps = pick(120, 12);
    let (with, checkpoints) = closed(steps, true);
    let (without, _) = closed(steps, false);
    let pages = differing(&with.ram, &without.ram).len();
    assert!(checkpoints >= pick(20, 3), "only {checkpoints} checkpoints, which say little");
    report.tell("deterministic: checkpoints", checkpoints as f64, "", None);
    report.mark("deterministic: pages of RAM that differ", pages as f64, "", None, ("none", pages == 0));
    report.note(format!("deterministic: {checkpoints} checkpoints, one a second, against a machine that was left alone"));
}

fn closed(steps: u32, with: bool) -> (Snapshot, usize) {
    let bench = Bench::new(&guests::tiny("closed", &format!("fermata.run=det:{steps}"), "    deterministic: true\n"));
    let run: Run = bench.boot();
    let mut checkpoints = 0;
    let halted = |run: &Run| fermata_testkit::bench::console(&run.body()).contains("System halted");
    while with && !halted(&run) && run.body().machine().status() == Status::Running {
        thread::sleep(Duration::from_secs(1));
        run.checkpoint(None).expect("a checkpoint");
        checkpoints += 1;
    }
    await_console(&run.body(), END, |text| text.contains("System halted").then_some(()));
    // The message comes a few instructions before the halt.
    thread::sleep(Duration::from_secs(1));
    run.body().machine().stop().expect("it stops");
    (Snapshot::of(&run.body()), checkpoints)
}
