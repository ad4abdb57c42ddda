//! How exact links are, without checkpoints: rate, delay and loss, each on a cable of its own.

use super::{
    beat::{Beating, Beats, sh},
    pace::took,
    ping::two,
};
use fermata_experiment::Run;
use fermata_testkit::{
    measure::pick,
    report::{Report, quantile},
};

/// By number: nothing, a delay, two rates, a loss.
const LINKS: &str = r#"  - {endpoints: ["a:eth1", "b:eth1"]}
  - {endpoints: ["a:eth2", "b:eth2"], delay: 10ms}
  - {endpoints: ["a:eth3", "b:eth3"], rate: 2Mbit}
  - {endpoints: ["a:eth4", "b:eth4"], rate: 20Mbit}
  - {endpoints: ["a:eth5", "b:eth5"], loss: 5%}
"#;
const RATES: [(usize, f64); 2] = [(3, 2e6), (4, 20e6)];
const LOSS: f64 = 0.05;
const DELAY_US: f64 = 10_000.0;
const DELAY_US_MAX: f64 = 100.0;
/// A datagram's, so that its frame is as long as an Ethernet frame can be.
pub const PAYLOAD: usize = 1472;
/// Ethernet, IP and UDP headers.
pub const HEADERS: usize = 42;

/// Rate, delay and loss.
pub fn link(report: &mut Report) {
    let (_bench, run) = two("link", 5, LINKS);
    delay(&run, report);
    for (cable, rate) in RATES {
        let seconds = pick(20.0, 5.0);
        // Twice as many as fit through: the queue has always some, though the sender be late at times, and the cable is never idle.
        let per_second = 2.0 * rate / 8.0 / (PAYLOAD + HEADERS) as f64;
        let heard = flood(&run, cable, (seconds * per_second) as usize, PAYLOAD, per_second as usize).all;
        // The first ones meet an empty queue.
        let (first, frames) = (heard.len() / 10, heard.len() - heard.len() / 10);
        let bits = (frames - 1) as f64 * (PAYLOAD + HEADERS) as f64 * 8.0;
        let seen = bits / (heard[heard.len() - 1].at - heard[first].at) * 1e9;
        let off = (seen / rate - 1.0) * 100.0;
        let name = format!("link: rate of {} Mbit/s, off by", rate / 1e6);
        report.mark(&name, off, "%", None, ("within 1 %", off.abs() <= 1.0));
    }
    loss(&run, report);
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
