//! One seeder and three clients on a LAN: figure 7 of the paper.

use super::{
    pace::{self, Kind, Pace, Rounds},
    picture::Picture,
    traffic,
};
use fermata_experiment::Run;
use fermata_testkit::{
    Bench,
    bench::await_console_of,
    guests,
    measure::pick,
    report::{Report, quantile},
};
use std::{thread, time::Duration};

/// With the making of the file, on a busy host.
const BOOT: Duration = Duration::from_secs(900);
/// The file is in memory, of which the guest's kernel gives half to files.
const MEMORY_MIB: u32 = 640;
/// The paper's LAN had 100 Mbit/s, and its clients got 8 each. Four emulated guests share two processors here.
const RATE_MBIT: u32 = 4;
const CLIENTS: [&str; 3] = ["b", "c", "d"];
/// Until all have found each other.
const WARM_UP: Duration = Duration::from_secs(20);
/// Of which one throughput is the mean; s.
const SPAN: f64 = 1.0;

/// A swarm.
pub fn bittorrent(report: &mut Report) {
    let (_bench, run) = boot();
    thread::sleep(pick(WARM_UP * 2, WARM_UP));
    let rounds = pick(Rounds { rounds: 2, checkpoints: 10, without: 10 }, Rounds { rounds: 1, checkpoints: 4, without: 4 });
    let (pace, sights) = traffic::during(&run, &CLIENTS, || Pace::keep(&run, rounds));
    let (mut series, mut stalled) = (Vec::new(), 0);
    for (place, name) in CLIENTS.iter().enumerate() {
        let rates = traffic::rates(&sights, place, SPAN);
        let [with, without] = traffic::by_kind(&rates, &pace);
        assert!(!with.is_empty() && !without.is_empty(), "nobody looked at what {name} gets");
        stalled += with.iter().filter(|rate| **rate == 0.0).count();
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
        report.tell(&format!("bittorrent: {name} gets with checkpoints"), mean(&with), "Mbit/s", Some(("without", mean(&without))));
        let least = |rates: &[f64]| quantile(rates, 0.0);
        report.tell(&format!("bittorrent: {name}, its worst second"), least(&with), "Mbit/s", Some(("without", least(&without))));
        series.push((format!("to {name}"), rates));
    }
    report.mark("bittorrent: seconds in which a client gets nothing", stalled as f64, "", None, ("none", stalled == 0));
    report.note(format!("bittorrent: ctorrent; each cable {RATE_MBIT} Mbit/s; {} checkpoints", pace.checkpoints.len()));
    overlay(&series, &pace, report);
    let marks = pace.checkpoints.iter().map(|at| at.ns as f64 / 1e9).collect();
    Picture { title: "BitTorrent: what three clients get", x: "virtual time, s", y: "Mbit/s", from_zero: true, series, marks }
        .save(report, "bittorrent");
}

/// What a client gets in the mean, in windows with checkpoints and in those without, one line over the other.
fn overlay(clients: &[(String, Vec<(f64, f64)>)], pace: &Pace, report: &mut Report) {
    let line = |(name, kind): (&str, Kind)| {
        let mut sums = std::collections::BTreeMap::<u64, (f64, usize)>::new();
        for window in pace.windows_of(kind) {
            for (at, rate) in clients.iter().flat_map(|(_, rates)| rates).filter(|(at, _)| window.contains(at)) {
                let sum = sums.entry(((at - window.start) / SPAN) as u64).or_default();
                *sum = (sum.0 + rate, sum.1 + 1);
            }
        }
        (name.to_owned(), sums.into_iter().map(|(second, (sum, count))| (second as f64 * SPAN, sum / count as f64)).collect())
    };
    let kinds = [("with checkpoints", Kind::With), ("without", Kind::Without(0)), ("without, again", Kind::Without(1))];
    let mean = |points: &[(f64, f64)]| points.iter().map(|point| point.1).sum::<f64>() / points.len() as f64;
    let series: Vec<(String, Vec<_>)> = kinds.map(line).to_vec();
    let [with, without, again] = [0, 1, 2].map(|place| mean(&series[place].1));
    let usual = (without + again) / 2.0;
    let mark = ("within a tenth of without", with >= usual * 0.9);
    report.mark("bittorrent: a client gets, in the mean", with, "Mbit/s", Some(("without", usual)), mark);
    report.tell("bittorrent: the same in two windows without", without, "Mbit/s", Some(("again", again)));
    let every = pace::INTERVAL.as_secs_f64();
    let marks = (0..10).map(|number| f64::from(number) * every).collect();
    Picture { title: "BitTorrent: what a client gets in the mean", x: "s of a window", y: "Mbit/s", from_zero: true, series, marks }
        .save(report, "bittorrent-overlay");
}

fn boot() -> (Bench, Run) {
    // More than there is time for.
    let file_mib = pick(192, 48);
    let run = |host: u32, what: &str| format!("fermata.run=swarm:{what} fermata.ip=eth1:10.0.0.{host}/24");
    let runs = [run(1, &format!("seed:{file_mib}")), run(2, "join"), run(3, "join"), run(4, "join")];
    let nodes = [("a", runs[0].as_str(), ""), ("b", runs[1].as_str(), ""), ("c", runs[2].as_str(), ""), ("d", runs[3].as_str(), "")];
    let endpoints = "[\"a:eth1\", \"b:eth1\", \"c:eth1\", \"d:eth1\"]";
    let link = format!("links:\n  - {{lan: swarm, endpoints: {endpoints}, rate: {RATE_MBIT}Mbit, queue: 100}}\n");
    let bench = Bench::new(&(guests::several_of(guests::SERVICES, "swarm", MEMORY_MIB, &nodes) + &link));
    let run = bench.boot();
    for machine in run.body().machines() {
        await_console_of(machine.machine(), BOOT, |text| {
            assert!(!text.contains("FERMATA FAIL"), "{text}");
            text.contains("begins").then_some(())
        });
    }
    (bench, run)
}
