//! Whether the pause grows with the guest's memory: the same writing rate all over 256 MiB, 1, 4 and 8 GiB.

use fermata_testkit::{
    Bench, guests,
    measure::{Counter, at_every, pick},
    report::{Report, quantile},
};
use std::time::Duration;

const INTERVAL: Duration = Duration::from_secs(2);
const PAGES_PER_S: u32 = 2000;
/// Of the guest's memory so much is written before, so that there is something to look through.
const FILLED: f64 = 0.625;
const GROWTH_MAX: f64 = 3.0;

/// In ms, and what was written between two checkpoints.
struct Sized {
    mib: u32,
    pauses: Vec<f64>,
    written: Vec<f64>,
    saves: Vec<f64>,
}

fn main() {
    let sizes: Vec<_> = pick(vec![256, 1024, 4096, 8192], vec![256, 2048]).into_iter().map(measure).collect();
    let mut report = Report::new("pause-size");
    let median = |sized: &Sized| quantile(&sized.pauses, 0.5);
    let smallest = median(&sizes[0]);
    for sized in &sizes {
        let size = format!("{} MiB", sized.mib);
        report.tell(&format!("{size}: pause p50"), median(sized), "ms", Some(("the smallest", smallest)));
        let worst_of_smallest = quantile(&sizes[0].pauses, 1.0);
        report.tell(&format!("{size}: pause worst"), quantile(&sized.pauses, 1.0), "ms", Some(("the smallest", worst_of_smallest)));
        report.tell(&format!("{size}: pages written, p50"), quantile(&sized.written, 0.5), "", None);
        report.tell(&format!("{size}: saved behind the guest, p50"), quantile(&sized.saves, 0.5), "ms", None);
    }
    let growth = median(sizes.last().expect("there are sizes")) / smallest;
    report.mark("the largest's pause", growth, "x", Some(("the smallest", 1.0)), ("within 3 times", growth <= GROWTH_MAX));
    report.note(format!("{PAGES_PER_S} pages a second at random over {} % of memory, all of it written before", FILLED * 100.0));
    report.print();
}

fn measure(mib: u32) -> Sized {
    let filled = (f64::from(mib) * FILLED) as u32;
    let bench = Bench::new(&guests::tiny_with("pause-size", mib, &format!("work:{filled}:{PAGES_PER_S}:0:1")));
    let run = bench.boot();
    Counter::new(&run.body().machine().place().console_log(), "work second ").after(None);
    // The first stores all that was filled. The second is of what was written meanwhile.
    for _ in 0..2 {
        run.checkpoint(None).expect("a checkpoint");
    }
    let mut sized = Sized { mib, pauses: Vec::new(), written: Vec::new(), saves: Vec::new() };
    at_every(INTERVAL, pick(20, 4), || {
        let (_, record) = run.checkpoint(None).expect("a checkpoint");
        sized.pauses.push(record.cost.pause_ns as f64 / 1e6);
        sized.saves.push(record.cost.save_ns as f64 / 1e6);
        sized.written.push(record.cost.pages.written() as f64);
    });
    sized
}
