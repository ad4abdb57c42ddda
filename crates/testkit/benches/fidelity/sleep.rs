//! Sleeps of 10 ms, by the guest's own clock: figure 4 of the paper.

use super::{
    beat::{Beat, Beating, Beats},
    pace::{Kind, Pace, Rounds, took},
    picture::Picture,
};
use fermata_experiment::Run;
use fermata_testkit::{
    Bench,
    bench::await_console,
    guests,
    measure::pick,
    report::{Report, Table, quantile},
    statistics::{Drawn, Told, cells, columns},
};
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(120);
/// More than there is time for.
const COUNT: usize = 1_000_000;
/// In the paper, of the sleeps without a checkpoint in them; us.
const PAPER_P97_US: f64 = 28.0;
const PAPER_WORST_US: f64 = 80.0;
const SLEEP_NS: f64 = 10e6;
/// Below this chance few sleeps are told from as many others.
const CHANCE_MIN: f64 = 0.01;

/// A guest of one processor that does nothing else.
pub fn idle(name: &str) -> (Bench, Run) {
    let bench = Bench::new(&guests::tiny(name, "fermata.run=none", ""));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains("tiny ready").then_some(()));
    (bench, run)
}

/// What they took longer than they should have.
fn late(beats: &[Beat]) -> Vec<f64> {
    took(beats).into_iter().map(|took| took - SLEEP_NS).collect()
}

/// Sleeps.
pub fn sleep(report: &mut Report) {
    let (_bench, run) = idle("sleep");
    let beating = Beating::begin(&run, 0, "sleep", &COUNT.to_string());
    let rounds = pick(Rounds { rounds: 6, checkpoints: 6, without: 6 }, Rounds { rounds: 1, checkpoints: 3, without: 3 });
    let pace = Pace::keep(&run, rounds);
    let beats = beating.end();
    let [with, without, again] = [Kind::With, Kind::Without(0), Kind::Without(1)].map(|kind| late(&pace.of(kind, &beats)));
    let [across, elsewhere] = pace.across(&beats).map(|beats| late(&beats));
    let told = Told::new(&with, [&without, &again]);
    let same = Some(("two without", told.of_same));
    let mark = ("cannot be told from without", told.cannot_be_told());
    report.mark("sleep: distance of the distributions", told.distance, "", same, mark);
    report.tell("sleep: such a distance by chance", told.chance * 100.0, "%", None);
    let [worst, worst_elsewhere] = [&across, &elsewhere].map(|late| quantile(late, 1.0) / 1e3);
    let mark = ("no longer than the worst elsewhere", worst <= worst_elsewhere);
    report.mark("sleep: worst across a checkpoint, late by", worst, "us", Some(("elsewhere", worst_elsewhere)), mark);
    let drawn = Drawn::new(&pace.by_round(&beats).iter().map(|round| round.each_ref().map(|beats| late(beats))).collect::<Vec<_>>());
    let mark = ("one of 100 draws without has it", drawn.worst_chance >= CHANCE_MIN);
    report.mark("sleep: the same beside as many without", worst, "us", Some(("of as many", drawn.worst / 1e3)), mark);
    report.tell("sleep: draws without that have one as late", drawn.worst_chance * 100.0, "%", None);
    report.tell("sleep: as late across one by chance", drawn.ranks_chance * 100.0, "%", None);
    report.tell("sleep: the same beside the paper", worst, "us", Some(("the paper", PAPER_WORST_US)));
    report.tell("sleep: p97 with checkpoints, late by", quantile(&with, 0.97) / 1e3, "us", Some(("the paper", PAPER_P97_US)));
    let all_without = [without.as_slice(), &again].concat();
    report.tell("sleep: p97 without, late by", quantile(&all_without, 0.97) / 1e3, "us", None);
    let rows = [("with checkpoints", &with), ("without", &without), ("without, again", &again), ("across a checkpoint", &across)];
    let rows = rows.map(|(name, late)| cells(name, late));
    let rows = std::iter::once(columns("sleeps")).chain(rows).collect();
    report.tables.push(Table { title: "Sleeps of 10 ms: late by, us".to_owned(), rows });
    picture(report, "sleep", "Sleeps of 10 ms", &pace, &beats);
}

/// What each beat took over time, with the checkpoints.
pub fn picture(report: &mut Report, name: &str, title: &str, pace: &Pace, beats: &Beats) {
    let Some(first) = beats.all.first() else { return };
    let seconds = |ns: f64| (ns - first.at) / 1e9;
    let points = beats.all.iter().filter_map(|beat| Some((seconds(beat.at), beat.took? / 1e6))).collect();
    let marks = pace.checkpoints.iter().map(|at| seconds(beats.guest_time(*at))).collect();
    let picture = Picture { title, x: "the guest's time, s", y: "ms", from_zero: false, series: vec![("took".to_owned(), points)], marks };
    picture.save(report, name);
}
