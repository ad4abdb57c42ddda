//! How exact links are, without checkpoints: rate, delay and loss, each on a cable of its own.

use super::{
    beat::{Beating, Beats, sh},
    pace::took,
    ping::two,
};
use fermata_experiment::Run;
use fermata_net::{Counters, World};
use fermata_testkit::{
    measure::pick,
    report::{Report, quantile},
};

/// By number: nothing, a delay, two rates, a loss, two more rates.
const LINKS: &str = r#"  - {endpoints: ["a:eth1", "b:eth1"]}
  - {endpoints: ["a:eth2", "b:eth2"], delay: 10ms}
  - {endpoints: ["a:eth3", "b:eth3"], rate: 2Mbit}
  - {endpoints: ["a:eth4", "b:eth4"], rate: 20Mbit}
  - {endpoints: ["a:eth5", "b:eth5"], loss: 5%}
  - {endpoints: ["a:eth6", "b:eth6"], rate: 100Mbit}
  - {endpoints: ["a:eth7", "b:eth7"], rate: 1Gbit}
"#;
const CABLES: usize = 7;
/// Cables by their rates, and whether any guest fills them.
const RATES: [(usize, f64, bool); 4] = [(3, 2e6, true), (4, 20e6, true), (6, 100e6, false), (7, 1e9, false)];
const LOSS: f64 = 0.05;
const DELAY_US: f64 = 10_000.0;
const DELAY_US_MAX: f64 = 100.0;
/// A datagram's, so that its frame is as long as an Ethernet frame can be.
pub const PAYLOAD: usize = 1472;
/// Ethernet, IP and UDP headers.
pub const HEADERS: usize = 42;

/// Rate, delay and loss.
pub fn link(report: &mut Report) {
    let (_bench, run) = two("link", CABLES, LINKS);
    delay(&run, report);
    for (cable, rate, filled) in RATES {
        rate_of(&run, cable, rate, filled, report);
    }
    loss(&run, report);
}

fn rate_of(run: &Run, cable: usize, rate: f64, filled: bool, report: &mut Report) {
    let seconds = pick(20.0, 5.0);
    // Twice as many as fit through: the queue has always some, though the sender be late at times, and the cable is never idle.
    let per_second = 2.0 * rate / 8.0 / (PAYLOAD + HEADERS) as f64;
    let count = ((seconds * per_second) as usize).min(pick(400_000, 60_000));
    let before = received(run, cable);
    let heard = flood(run, cable, count, PAYLOAD, per_second as usize).all;
    let after = received(run, cable);
    // The first ones meet an empty queue.
    let (first, frames) = (heard.len() / 10, heard.len() - heard.len() / 10);
    let bits = (frames - 1) as f64 * (PAYLOAD + HEADERS) as f64 * 8.0;
    let seen = bits / (heard[heard.len() - 1].at - heard[first].at) * 1e9;
    let off = (seen / rate - 1.0) * 100.0;
    let megabits = rate / 1e6;
    let name = format!("link: rate of {megabits} Mbit/s, off by");
    // A quarter of what was sent found the queue full: the sender has kept ahead of the cable.
    let overflowed = after.dropped.queue - before.dropped.queue >= count as u64 / 4;
    let arrived = after.arrived.frames - before.arrived.frames;
    let who = match () {
        () if filled => None,
        () if !overflowed => Some("the sender"),
        // It lost more than one in a hundred of what its interface got.
        () if (heard.len() as u64) < arrived - arrived / 100 => Some("the receiver"),
        () => None,
    };
    let Some(who) = who else { return report.mark(&name, off, "%", None, ("within 1 %", off.abs() <= 1.0)) };
    report.tell(&name, off, "%", None);
    report.note(format!(
        "at {megabits} Mbit/s {who} decides, and not the link: {:.0} Mbit/s are what the guests come to on this host",
        seen / 1e6
    ));
}

/// What the network counted of what `a` receives by a cable.
fn received(run: &Run, cable: usize) -> Counters {
    let body = run.body();
    let fabric = body.fabric().expect("there is a network");
    let end = fabric.look(World::topology).find("a", &format!("eth{cable}")).expect("it has this interface");
    let [_, received] = fabric.look(|world| world.counters(end)).expect("it has this interface");
    received
}

fn delay(run: &Run, report: &mut Report) {
    let count = pick(10_000, 1_000);
    let round_trips = [1, 2].map(|cable| took(&Beating::begin(run, 1, "ping", &format!("{count} 10.0.{cable}.1 2000")).wait().all));
    let [none, delayed] = round_trips.each_ref().map(|took| quantile(took, 0.5) / 1e3);
    let noise = (quantile(&round_trips[0], 0.75) - quantile(&round_trips[0], 0.25)) / 1e3;
    // What the guests themselves and the way to them take is in both.
    let off = (delayed - none) / 2.0 - DELAY_US;
    let mark = ("within 100 us and the host's noise", off.abs() <= DELAY_US_MAX + noise);
    report.mark("link: delay of 10 ms, off by, p50", off, "us", Some(("the host's noise", noise)), mark);
    report.tell("link: round trip without delay, p50", none, "us", None);
    report.tell("link: round trip with 10 ms each way, p50", delayed, "us", None);
    let [none, delayed] = round_trips.each_ref().map(|took| quantile(took, 0.99) / 1e3);
    report.tell("link: delay of 10 ms, off by, p99", (delayed - none) / 2.0 - DELAY_US, "us", None);
    report.tell("link: round trip without delay, p99", none, "us", None);
    report.tell("link: round trip with 10 ms each way, p99", delayed, "us", None);
}

fn loss(run: &Run, report: &mut Report) {
    let count = pick(40_000, 4_000);
    let heard = flood(run, 5, count, 100, 2_000);
    let lost = count as f64 - heard.all.len() as f64;
    let sigma = (count as f64 * LOSS * (1.0 - LOSS)).sqrt();
    let off = (lost - count as f64 * LOSS) / sigma;
    let mark = ("within 3 standard deviations", off.abs() <= 3.0);
    report.mark("link: loss of 5 %", lost / count as f64 * 100.0, "%", Some(("expected", LOSS * 100.0)), mark);
    report.tell("link: loss, off by standard deviations", off, "", None);
}

/// Sends datagrams from `b` to `a`. Those that come, with their numbers instead of a duration.
fn flood(run: &Run, cable: usize, count: usize, bytes: usize, per_second: usize) -> Beats {
    let sink = Beating::begin(run, 0, "sink", &count.to_string());
    sh(run.body().machines()[1].machine(), &format!("beat flood 10.0.{cable}.1 {count} {bytes} {per_second}"));
    sink.wait()
}
