//! Time that guests lose to a checkpoint, and machines that have no other time than what they compute.

use super::beat::Beating;
use fermata_experiment::{Run, Status};
use fermata_testkit::{
    Bench, Snapshot,
    bench::await_console,
    guests,
    lost::{Look, Lost},
    measure::{at_every, pick},
    oracle::differing,
    report::{Report, quantile},
};
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

const BOOT: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(900);
/// Closer together than elsewhere: what is lost does not depend on how long the guest ran between.
const OFTEN: Duration = Duration::from_millis(200);
const LOST_US_MAX: f64 = 20.0;

/// For how long the guest's processor ran between two checkpoints, less the virtual time that passed: what the clock ran on for before the processor
/// did makes it less, what the processor ran on for after the clock had stopped makes it more. The guest computes all the time, so its processor's
/// thread either runs or waits for a processor of the host; the kernel counts both. Seldom checkpoints tell what is lost anyhow.
pub fn lost(report: &mut Report) {
    lost_by("a machine", "", report);
    // QEMU starts each such device anew when the machine goes on, by a conversation with its server.
    lost_by("one with a disk", &format!("    image: {}\n", guests::file("tiny-disk.raw").display()), report);
}

fn lost_by(what: &str, node: &str, report: &mut Report) {
    let bench = Bench::new(&guests::tiny("lost", "fermata.run=none", node));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains("tiny ready").then_some(()));
    let _busy = Beating::begin(&run, 0, "work", "1000000 1000000");
    let processor = processor_of(run.body().machine().pid());
    let look = || {
        let mut ran = 0.0;
        let (_, record) = run.checkpoint_observed(None, &mut |_| ran = ran_ns(&processor)).expect("a checkpoint");
        Look { ran, time: record.time_virtual_ns as f64 }
    };
    // QEMU stops the machine and lets it go on, and all of the checkpoint's own work is done while it stands.
    let stopped = || {
        run.pause().expect("it stops");
        let look = look();
        run.resume().expect("it goes on");
        look
    };
    look();
    let (times, rare) = pick((500, 25), (50, 5));
    let often = Lost::new(&at_every(OFTEN, times + 1, look));
    let seldom = Lost::new(&at_every(OFTEN * 20, rare + 1, look));
    let alone = Lost::new(&at_every(OFTEN, times / 5 + 1, stopped));
    let anyhow = seldom.rate(&often);
    let mean = often.each(anyhow);
    let rival = Some(("at most", LOST_US_MAX));
    let name = |value: &str| format!("lost: {what}, {value}");
    report.mark(&name("a checkpoint, mean"), mean, "us", rival, ("20 us in the mean", mean.abs() <= LOST_US_MAX));
    report.tell(&name("by QEMU's stop and cont alone"), alone.each(anyhow), "us", None);
    for (value, share) in [("least", 0.0), ("p50", 0.5), ("p99", 0.99), ("worst", 1.0)] {
        report.tell(&name(value), quantile(&often.lost, share), "us", None);
    }
    report.tell(&name("anyhow, a second"), anyhow, "us", None);
    report.note(format!(
        "lost: {times} checkpoints, one every {} ms; what is positive, the clock ran without the processor",
        OFTEN.as_millis()
    ));
}

/// What the kernel counts of the thread of the guest's processor.
fn processor_of(pid: u32) -> PathBuf {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("QEMU lives").flatten();
    let is_processor = |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("CPU 0"));
    tasks.map(|task| task.path()).find(is_processor).expect("it has a processor").join("schedstat")
}

/// How long it ran, and waited for a processor of the host; ns.
fn ran_ns(processor: &Path) -> f64 {
    let counts = fs::read_to_string(processor).expect("QEMU lives");
    counts.split_whitespace().take(2).map(|count| count.parse::<f64>().expect("a number")).sum()
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
