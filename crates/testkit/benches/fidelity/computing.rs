//! A fixed piece of computing, by the guest's own clock: figure 5 of the paper.

use super::{
    beat::{Beat, Beating, Beats},
    pace::{Kind, Pace, Rounds, took},
    sleep::{idle, picture},
};
use fermata_experiment::Run;
use fermata_testkit::{
    measure::pick,
    report::{Report, Table, quantile},
    statistics::{Drawn, Told, cells, columns},
};

/// More than there is time for.
const COUNT: usize = 100_000;
/// Of the first try, to find out how fast the guest is.
const LOOPS_TRIED: f64 = 2e6;
/// One piece, as in the paper.
const PIECE_NS: f64 = 236.6e6;
/// Pieces as different as the worst at a checkpoint are in so many draws of as many pieces without. The largest of all would be drawn in 1 of 40.
const WORST_CHANCE_MIN: f64 = 0.05;
const RANKS_CHANCE_MIN: f64 = 0.01;
/// By so much were pieces longer at a checkpoint; ms.
const PAPER_MS: f64 = 27.0;

/// Pieces of computing.
pub fn cpu(report: &mut Report) {
    let (_bench, run) = idle("computing");
    let tried = Beating::begin(&run, 0, "work", &format!("5 {LOOPS_TRIED}")).wait();
    let loops = (LOOPS_TRIED * PIECE_NS / median(&tried)).round();
    let beating = Beating::begin(&run, 0, "work", &format!("{COUNT} {loops}"));
    let rounds = pick(Rounds { rounds: 6, checkpoints: 6, without: 6 }, Rounds { rounds: 1, checkpoints: 3, without: 3 });
    let (pace, beats) = kept(&run, rounds, beating);
    let [with, without, again] = [Kind::With, Kind::Without(0), Kind::Without(1)].map(|kind| took(&pace.of(kind, &beats)));
    let [across, _] = pace.across(&beats).map(|beats| took(&beats));
    let all_without = [without.as_slice(), &again].concat();
    let usual = quantile(&all_without, 0.5);
    let apart = |values: &[f64]| values.iter().map(|took| (took - usual).abs()).fold(0.0, f64::max) / 1e6;
    let (at_checkpoints, noise) = (apart(&across), apart(&all_without));
    let difference = |beats: Vec<Beat>| took(&beats).into_iter().map(|took| (took - usual).abs()).collect::<Vec<_>>();
    let drawn = Drawn::new(&pace.by_round(&beats).into_iter().map(|round| round.map(difference)).collect::<Vec<_>>());
    let rival = Some(("of as many without", drawn.worst / 1e6));
    let mark = ("one of 20 draws without has it", drawn.worst_chance >= WORST_CHANCE_MIN);
    report.mark("cpu: worst difference at a checkpoint", at_checkpoints, "ms", rival, mark);
    report.tell("cpu: draws without that have as large a one", drawn.worst_chance * 100.0, "%", None);
    let mark = ("cannot be told from without", drawn.ranks_chance >= RANKS_CHANCE_MIN);
    report.mark("cpu: differences as large by chance", drawn.ranks_chance * 100.0, "%", None, mark);
    report.tell("cpu: worst difference of all without", noise, "ms", None);
    report.tell("cpu: the same beside the paper", at_checkpoints, "ms", Some(("the paper", PAPER_MS)));
    let more = |values: &[f64]| quantile(values, 0.5) / 1e6 - usual / 1e6;
    report.tell("cpu: longer at a checkpoint, p50", more(&across), "ms", None);
    report.tell("cpu: longer with checkpoints, p50", more(&with), "ms", None);
    let told = Told::new(&with, [&without, &again]);
    report.tell("cpu: distance of the distributions", told.distance, "", Some(("two without", told.of_same)));
    let rows = [("with checkpoints", &with), ("without", &without), ("without, again", &again), ("across a checkpoint", &across)];
    let rows = std::iter::once(columns("pieces")).chain(rows.map(|(name, took)| cells(name, took))).collect();
    report.tables.push(Table { title: "Pieces of computing, us".to_owned(), rows });
    picture(report, "cpu", "Pieces of computing", &pace, &beats);
}

fn kept(run: &Run, rounds: Rounds, beating: Beating<'_>) -> (Pace, Beats) {
    let pace = Pace::keep(run, rounds);
    (pace, beating.end())
}

fn median(beats: &Beats) -> f64 {
    quantile(&took(&beats.all), 0.5)
}
