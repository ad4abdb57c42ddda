//! How long a Debian guest that compiles stands still for a checkpoint every 2 s, beside QEMU's savevm and migration to a file.

use fermata_store::Record;
use fermata_testkit::{
    Bench,
    bench::await_console,
    guests,
    measure::{at_every, pick},
    report::{Report, quantile},
    rival::Stock,
};
use std::{thread, time::Duration};

const INTERVAL: Duration = Duration::from_secs(2);
const BOOT: Duration = Duration::from_secs(200);
/// From the first compiler on, until the guest is at its ordinary work.
const WARM_UP: Duration = Duration::from_secs(15);

fn main() {
    let (checkpoints, rounds) = (pick(50, 8), pick(8, 2));
    let ours = ours(checkpoints);
    // Over the same span of the guest's life: the longer it has run, the more memory it has touched, and the longer savevm takes.
    let rivals = rivals(rounds, INTERVAL * checkpoints as u32 / (2 * rounds as u32));
    let (median, worst) = (quantile(&ours.pauses, 0.5), quantile(&ours.pauses, 0.99));
    let savevm = quantile(&rivals.savevm, 0.5);
    let mut report = Report::new("pause");
    report.mark("pause p50", median, "ms", Some(("savevm", savevm)), ("under 5 ms", median < 5.0));
    report.mark("pause p99", worst, "ms", Some(("savevm", quantile(&rivals.savevm, 0.99))), ("under 15 ms", worst < 15.0));
    report.tell("pause worst", quantile(&ours.pauses, 1.0), "ms", Some(("savevm", quantile(&rivals.savevm, 1.0))));
    report.mark("savevm's pause is longer by", savevm / median, "x", None, ("150 times", savevm / median >= 150.0));
    let migrate = quantile(&rivals.migrate_paused, 0.5);
    report.tell("pause p50", median, "ms", Some(("migrate to a file", migrate)));
    report.tell("pause worst", quantile(&ours.pauses, 1.0), "ms", Some(("migrate to a file", quantile(&rivals.migrate_paused, 1.0))));
    report.tell(
        "from request to durable, p50",
        quantile(&ours.wholes, 0.5),
        "ms",
        Some(("migrate, total", quantile(&rivals.migrate, 0.5))),
    );
    report.tell("stored a checkpoint, p50", quantile(&ours.stored, 0.5), "MiB", None);
    report.note("1 GiB, one processor; before it compiles, the guest reads its files, as a machine in use has done");
    report.note(format!("the longest pause by its steps: {}", ours.longest));
    report.note("QEMU's migration may hold the guest for 300 ms, which is its default, and writes as fast as it can");
    report.print();
}

/// In ms and MiB.
#[derive(Default)]
struct Ours {
    pauses: Vec<f64>,
    wholes: Vec<f64>,
    stored: Vec<f64>,
    /// The steps of the longest pause, the longest first.
    longest: String,
}

fn ours(checkpoints: usize) -> Ours {
    let bench = Bench::new(&guests::debian_with("pause", "1G", &guests::compiling()));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains(guests::BEGINS).then_some(()));
    thread::sleep(WARM_UP);
    // The first holds all that the guest has; it is not what a guest meets every two seconds.
    run.checkpoint(None).expect("a checkpoint");
    let mut ours = Ours::default();
    at_every(INTERVAL, checkpoints, || {
        let watch = fermata_linux::clock::Stopwatch::start();
        let (_, record) = run.checkpoint(None).expect("a checkpoint");
        ours.wholes.push(watch.elapsed().as_secs_f64() * 1e3);
        let pause = record.cost.pause_ns as f64 / 1e6;
        if ours.pauses.iter().all(|other| *other < pause) {
            ours.longest = steps(&record);
        }
        ours.pauses.push(pause);
        ours.stored.push(record.cost.stored_bytes as f64 / f64::from(1 << 20));
    });
    ours
}

/// What a pause was spent on.
fn steps(record: &Record) -> String {
    let mut steps: Vec<_> = record.cost.steps_ns.iter().collect();
    steps.sort_unstable_by_key(|(_, took)| std::cmp::Reverse(**took));
    let steps = steps.into_iter().map(|(step, took)| format!("{step} {:.2} ms", *took as f64 / 1e6));
    steps.collect::<Vec<_>>().join(", ")
}

/// In ms.
#[derive(Default)]
struct Rivals {
    savevm: Vec<f64>,
    migrate: Vec<f64>,
    migrate_paused: Vec<f64>,
}

fn rivals(rounds: usize, interval: Duration) -> Rivals {
    let place = tempfile::tempdir().expect("a directory");
    let mut qemu = Stock::debian(1024, &guests::compiling()).boot();
    qemu.await_console(guests::BEGINS);
    thread::sleep(WARM_UP);
    let mut rivals = Rivals::default();
    for number in 0..rounds {
        thread::sleep(interval);
        rivals.savevm.push(qemu.savevm(&format!("s{number}")).as_secs_f64() * 1e3);
        thread::sleep(interval);
        let migrated = qemu.migrate(&place.path().join("state"));
        rivals.migrate.push(migrated.total.as_secs_f64() * 1e3);
        rivals.migrate_paused.push(migrated.paused.as_secs_f64() * 1e3);
    }
    rivals
}
