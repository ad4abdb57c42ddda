//! How many bytes the checkpoints of the pause bench take, the first and the later ones, beside QEMU's savevm.

use fermata_store::Record;
use fermata_testkit::{
    Bench,
    bench::await_console,
    guests,
    measure::{at_every, pick},
    report::{Report, quantile},
    rival::Stock,
};
use fermata_types::PAGE_SIZE;
use std::{thread, time::Duration};

const INTERVAL: Duration = Duration::from_secs(2);
const BOOT: Duration = Duration::from_secs(200);
const WARM_UP: Duration = Duration::from_secs(15);
const MIB: f64 = (1 << 20) as f64;
/// Besides pages a checkpoint keeps the state of the devices, and the nodes of the tables in which something changed.
const DEVICES: f64 = 128.0 * 1024.0;
const NODES_OF_A_PAGE: f64 = 64.0;

fn main() {
    let (first, later) = ours(pick(50, 8));
    let (first_rival, later_rival) = savevm(pick(8, 3));
    let stored = |records: &[Record]| -> Vec<_> { records.iter().map(|record| record.cost.stored_bytes as f64 / MIB).collect() };
    let changed: Vec<_> = later.iter().map(|record| (record.cost.pages.new * PAGE_SIZE as u64) as f64 / MIB).collect();
    let shares: Vec<_> = later.iter().map(|record| record.cost.stored_bytes as f64 / allowed(record)).collect();
    let later_stored = stored(&later);

    let mut report = Report::new("bytes");
    let first_stored = first.cost.stored_bytes as f64 / MIB;
    let smaller = first_stored < first_rival;
    report.mark("the first", first_stored, "MiB", Some(("savevm", first_rival)), ("smaller than savevm's", smaller));
    report.tell("a later one, p50", quantile(&later_stored, 0.5), "MiB", Some(("savevm", quantile(&later_rival, 0.5))));
    report.tell("a later one, worst", quantile(&later_stored, 1.0), "MiB", Some(("savevm", quantile(&later_rival, 1.0))));
    report.tell("a later one, p50", quantile(&later_stored, 0.5), "MiB", Some(("changed, no duplicates", quantile(&changed, 0.5))));
    let worst = quantile(&shares, 1.0);
    report.mark("of what changed, with tables, p50", quantile(&shares, 0.5) * 100.0, "%", None, ("at most 100 %", worst <= 1.0));
    report.mark("of what changed, with tables, worst", worst * 100.0, "%", None, ("at most 100 %", worst <= 1.0));
    report.tell("all", first_stored + later_stored.iter().sum::<f64>(), "MiB", None);
    report.note(format!("{} checkpoints after the first; savevm {} times after its first", later.len(), later_rival.len()));
    report.note("what changed: pages that are not zero, on no image and not in the store; 64 B a written page for the tables; 128 KiB for the devices");
    report.print();
}

/// What changed, after deduplication, and the bound on what says where it is.
fn allowed(record: &Record) -> f64 {
    let pages = &record.cost.pages;
    pages.new as f64 * PAGE_SIZE as f64 + pages.written() as f64 * NODES_OF_A_PAGE + DEVICES
}

/// The first checkpoint and the later ones.
fn ours(checkpoints: usize) -> (Record, Vec<Record>) {
    let bench = Bench::new(&guests::debian_with("bytes", "1G", &guests::compiling()));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains(guests::BEGINS).then_some(()));
    thread::sleep(WARM_UP);
    let take = || run.checkpoint(None).expect("a checkpoint").1;
    (take(), at_every(INTERVAL, checkpoints, take))
}

/// By how much the disk grew on the host, MiB: with the first, with the later ones.
fn savevm(saves: usize) -> (f64, Vec<f64>) {
    let mut qemu = Stock::debian(1024, &guests::compiling()).boot();
    qemu.await_console(guests::BEGINS);
    thread::sleep(WARM_UP);
    let mut grown = (0..=saves).map(|number| {
        thread::sleep(INTERVAL);
        // The guest stands still in between, so its own writes are not counted.
        qemu.stop();
        let before = qemu.disk_bytes();
        qemu.savevm(&format!("s{number}"));
        let grown = (qemu.disk_bytes() - before) as f64 / MIB;
        qemu.cont();
        grown
    });
    (grown.next().expect("there is a first"), grown.collect())
}
