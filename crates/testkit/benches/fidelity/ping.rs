//! Echo requests every millisecond over a cable of 10 ms: some twenty are on their way at any time.

use super::{
    beat::{Beating, sh},
    pace::{Kind, Pace, Rounds, took},
    sleep::picture,
};
use fermata_experiment::Run;
use fermata_testkit::{
    Bench,
    bench::await_console_of,
    guests,
    measure::pick,
    report::{Report, Table, quantile},
    statistics::{cells, columns},
};
use fermata_types::VirtualTime;
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(240);
const MEMORY_MIB: u32 = 192;
/// More than there is time for.
const COUNT: usize = 2_000_000;
const EVERY_US: u32 = 1000;
/// What the cable alone takes, there and back.
const ROUND_TRIP_NS: u64 = 20_000_000;
/// The guest's clock is known against virtual time to some microseconds.
const RESOLUTION_NS: f64 = 20e3;

/// Two machines `a` and `b`, which are 10.0.N.1 and 10.0.N.2 at their interfaces ethN, with the cables of this text between them.
pub fn two(name: &str, cables: usize, links: &str) -> (Bench, Run) {
    let run = |host: u32| {
        let addresses: Vec<_> = (1..=cables).map(|cable| format!("eth{cable}:10.0.{cable}.{host}/24")).collect();
        format!("fermata.run=none fermata.ip={}", addresses.join(","))
    };
    let nodes = guests::several(name, MEMORY_MIB, &[("a", &run(1), ""), ("b", &run(2), "")]);
    let bench = Bench::new(&format!("{nodes}links:\n{links}"));
    let run = bench.boot();
    for machine in run.body().machines() {
        await_console_of(machine.machine(), BOOT, |text| text.contains("tiny ready").then_some(()));
    }
    // Both know each other's Ethernet addresses, and find nothing out in the middle of a measurement.
    let topology = run.body().fabric().expect("there is a network").look(fermata_net::World::topology);
    for (machine, (other, host)) in [("a", ("b", 2)), ("b", ("a", 1))] {
        for cable in 1..=cables {
            let end = topology.find(other, &format!("eth{cable}")).expect("it has this interface");
            let mac = topology.interfaces[end.index()].mac;
            let place = usize::from(machine == "b");
            sh(run.body().machines()[place].machine(), &format!("arp -i eth{cable} -s 10.0.{cable}.{host} {mac}"));
        }
    }
    (bench, run)
}

/// Echo requests.
pub fn ping(report: &mut Report) {
    let (_bench, run) = two("ping", 1, "  - endpoints: [\"a:eth1\", \"b:eth1\"]\n    delay: 10ms\n");
    let beating = Beating::begin(&run, 1, "ping", &format!("{COUNT} 10.0.1.1 {EVERY_US}"));
    let rounds = pick(Rounds { rounds: 10, checkpoints: 20, without: 4 }, Rounds { rounds: 1, checkpoints: 5, without: 1 });
    let pace = Pace::keep(&run, rounds);
    let beats = beating.end();
    let lost = beats.all.iter().filter(|beat| beat.took.is_none()).count();
    let [across, elsewhere] = pace.across(&beats).map(|beats| took(&beats));
    let [with, without, again] = [Kind::With, Kind::Without(0), Kind::Without(1)].map(|kind| took(&pace.of(kind, &beats)));
    report.mark("ping: replies lost", lost as f64, "", None, ("none", lost == 0));
    report.mark("ping: replies that came twice", beats.doubled as f64, "", None, ("none", beats.doubled == 0));
    let [worst, worst_elsewhere] = [&across, &elsewhere].map(|took| quantile(took, 1.0) / 1e6);
    let mark = ("no later than the worst elsewhere", worst <= worst_elsewhere);
    report.mark("ping: worst reply across a checkpoint", worst, "ms", Some(("elsewhere", worst_elsewhere)), mark);
    let [least, least_elsewhere] = [&across, &elsewhere].map(|took| quantile(took, 0.0) / 1e6);
    report.tell("ping: first reply across a checkpoint", least, "ms", Some(("elsewhere", least_elsewhere)));
    // By the guest's clock, which its kernel may take for slower or faster than it is.
    let soonest = beats.guest_time(VirtualTime::from_ns(ROUND_TRIP_NS)) - beats.guest_time(VirtualTime::default()) - RESOLUTION_NS;
    let early = [&across, &elsewhere].map(|took| took.iter().filter(|took| **took < soonest).count() as f64);
    let mark = ("none", early == [0.0; 2]);
    report.mark("ping: replies too early across a checkpoint", early[0], "", Some(("elsewhere", early[1])), mark);
    let [middle, middle_elsewhere] = [&across, &elsewhere].map(|took| quantile(took, 0.5) / 1e6);
    report.tell("ping: p50 across a checkpoint", middle, "ms", Some(("elsewhere", middle_elsewhere)));
    let rows = [("with checkpoints", &with), ("without", &without), ("without, again", &again), ("across a checkpoint", &across)];
    let rows = std::iter::once(columns("replies")).chain(rows.map(|(name, took)| cells(name, took))).collect();
    report.tables.push(Table { title: "Replies after, us".to_owned(), rows });
    report.note(format!("ping: {} checkpoints, {} requests", pace.checkpoints.len(), beats.all.len()));
    picture(report, "ping", "Replies over a cable of 10 ms", &pace, &beats);
}
