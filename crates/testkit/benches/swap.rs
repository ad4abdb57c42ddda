//! Swapping out and in as the Emulab paper measures it (7.2): four cycles that write 275 MB each; and what it takes of a guest that copies on its disk.
//!
//! With the argument `slowdown` the last alone. The remote is a directory of this host. The guest's kernel and its empty disk are all that is not sent.

use fermata_linux::clock::{Stopwatch, monotonic};
use fermata_testkit::{
    Cli,
    cli::{array, count},
    guests,
    measure::{Counter, Sight, pick},
    report::{Report, quantile},
};
use serde_json::Value;
use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

const NAME: &str = "swap";
/// Only what it takes of a guest.
const ONLY_SLOWDOWN: &str = "slowdown";
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(20);
/// Between two looks that take a process each, beside a guest that is measured.
const RARE_LOOK: Duration = Duration::from_millis(500);
/// What is written in a cycle.
const CYCLE_MIB: usize = 275;
const SHORT_CYCLE_MIB: usize = 32;
/// What the guest copies at once, and how much of its disk it copies round and round.
const COPY_MIB: u32 = 4;
const COPIED_MIB: u32 = 32;
const WORD: &str = "copied ";
/// Of the laziness: a swap-in is flat when the last is no longer than this many times the first.
const FLAT: f64 = 1.5;
/// The paper's figures, in percent of more time.
const PAPER_OUT: f64 = 9.0;
const PAPER_IN: f64 = 19.0;

fn main() {
    let mut report = Report::new("swap");
    if !std::env::args().any(|argument| argument == ONLY_SLOWDOWN) {
        cycles(&mut report);
    }
    slowdown(&mut report);
    report.note("the remote is a directory of this host, so the line is its disk; golden images and kernels are not sent");
    report.note("the paper: 100 Mbit/s; lazy swap-ins 35 s each, not lazy 150 s in the fourth cycle; swap-outs 60 s each");
    report.print();
}

/// A host with a guest that has an empty disk, and a remote.
fn scene() -> Cli {
    let cli = Cli::new();
    cli.write("machine.yaml", &guests::tiny(NAME, "fermata.run=none fermata.disk=none", "    disks:\n      - size: 4G\n"));
    cli.ok(&["up", "machine.yaml"]);
    let place = cli.path().join("place");
    cli.ok(&["remote", "add", "there", place.to_str().expect("a name in UTF-8"), "--plain"]);
    cli
}

/// What `swapin` says, and how long until all was here.
fn swap_in(cli: &Cli, more: &[&str]) -> (f64, f64) {
    let watch = Stopwatch::start();
    let back = cli.json(&[&["swapin", NAME], more].concat());
    let running = back["took_ms"].as_f64().expect("a time");
    await_all_here(cli);
    (running, watch.elapsed().as_secs_f64() * 1e3)
}

fn await_all_here(cli: &Cli) {
    let watch = Stopwatch::start();
    while !status(cli)["loading"].is_null() {
        assert!(watch.elapsed() < PATIENCE, "it does not come: {}", status(cli));
        thread::sleep(RARE_LOOK);
    }
}

fn status(cli: &Cli) -> Value {
    array(&cli.json(&["ls"])).iter().find(|experiment| experiment["name"] == NAME).cloned().unwrap_or_default()
}

/// Four cycles, each with as much that is new.
fn cycles(report: &mut Report) {
    let (cycles, mib) = pick((4, CYCLE_MIB), (2, SHORT_CYCLE_MIB));
    let cli = scene();
    let (mut out, mut stopped, mut lazy, mut complete, mut eager) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for cycle in 0..cycles {
        let at = cycle * mib;
        cli.shell("m1", &format!("dd if=/dev/urandom of=/dev/vda bs=1M count={mib} seek={at} oflag=direct 2>&1 && sync"));
        let told = cli.json(&["swapout", "--to", "there"]);
        out.push(told["took_ms"].as_f64().expect("a time"));
        stopped.push(told["stopped_ms"].as_f64().expect("a time"));
        // Not lazily first, on a host that has nothing of it.
        let other = Cli::new();
        let place = cli.path().join("place");
        let back = other.json(&["swapin", NAME, "--from", place.to_str().expect("a name in UTF-8"), "--eager"]);
        eager.push(back["took_ms"].as_f64().expect("a time"));
        other.ok(&["down"]);
        drop(other);
        let (running, all) = swap_in(&cli, &[]);
        lazy.push(running);
        complete.push(all);
        eprintln!(
            "cycle {cycle}: out {:.0} ms, of them stopped {:.0}; in {running:.0} ms, all after {all:.0}; eager {:.0}",
            out[cycle], stopped[cycle], eager[cycle]
        );
    }
    cli.ok(&["down"]);
    let last = cycles - 1;
    for cycle in 0..cycles {
        let name = |what: &str| format!("cycle {}: {what}", cycle + 1);
        report.mark(&name("in, until it runs"), lazy[cycle], "ms", Some(("not lazily", eager[cycle])), ("under 2 s", lazy[cycle] < 2000.0));
        report.tell(&name("in, until all is here"), complete[cycle], "ms", None);
        report.tell(&name("out"), out[cycle], "ms", Some(("of that stopped", stopped[cycle])));
    }
    report.mark(
        "in, last cycle by the first",
        lazy[last] / lazy[0],
        "x",
        Some(("not lazily", eager[last] / eager[0])),
        ("flat", lazy[last] <= lazy[0] * FLAT),
    );
    report.mark("out, last cycle by the first", out[last] / out[0], "x", None, ("constant", out[last] <= out[0] * FLAT));
}

/// A guest that copies on its disk, while it is swapped out and while it comes back, beside itself when nothing happens.
fn slowdown(report: &mut Report) {
    let (rounds, window) = pick((3, Duration::from_secs(20)), (1, Duration::from_secs(4)));
    let cli = scene();
    let size = pick(CYCLE_MIB, SHORT_CYCLE_MIB);
    let script = format!(
        "dd if=/dev/urandom of=/dev/vda bs=1M count={COPIED_MIB} oflag=direct 2>/dev/null; n=0; while :; do at=$((n % {COPIED_MIB})); \
         dd if=/dev/vda of=/dev/vda bs=1M count={COPY_MIB} skip=$at seek=$((at + 2048)) iflag=direct oflag=direct 2>/dev/null; \
         n=$((n + {COPY_MIB})); echo {WORD}$n >/dev/console; done"
    );
    cli.shell("m1", &format!("setsid sh -c '{script}' >/dev/null 2>&1 &"));
    let (mut slower_out, mut slower_in) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // As much is new each time as in a cycle, besides what it copies: else it would be out in some tenths of a second.
        let seek = COPIED_MIB as usize + round * size;
        cli.shell("m1", &format!("dd if=/dev/urandom of=/dev/vda bs=1M count={size} seek={seek} oflag=direct 2>&1"));
        let usual = counter(&cli).rate_during(|| thread::sleep(window));
        let out = rate_until_it_stops(&cli);
        cli.ok(&["swapin", NAME]);
        let counter = counter(&cli);
        let back = counter.rate_during(|| await_all_here(&cli));
        let again = counter.rate_during(|| thread::sleep(window));
        // Nothing happens before and after: what the host did to both is shared.
        let alone = f64::midpoint(usual, again);
        eprintln!("round {round}: alone {usual:.1} and {again:.1} MiB/s, while out {out:.1}, while in {back:.1}");
        slower_out.push((alone / out - 1.0) * 100.0);
        slower_in.push((alone / back - 1.0) * 100.0);
    }
    cli.ok(&["down"]);
    let (out, back) = (quantile(&slower_out, 0.5), quantile(&slower_in, 0.5));
    report.mark("copying, more time while it is swapped out", out, "%", Some(("the paper", PAPER_OUT)), ("under 5 %", out < 5.0));
    report.mark("copying, more time while it comes back", back, "%", Some(("the paper", PAPER_IN)), ("under 10 %", back < 10.0));
    report.tell("copying, more time while it comes back, worst", quantile(&slower_in, 1.0), "%", None);
}

fn counter(cli: &Cli) -> Counter {
    let log = status(cli)["runs"][0]["machines"][0]["console_log"].as_str().map(str::to_owned).expect("a console");
    Counter::new(Path::new(&log), WORD)
}

/// What the guest copies in a second from the begin of a swap-out until it stands.
fn rate_until_it_stops(cli: &Cli) -> f64 {
    let counter = counter(cli);
    let begin = counter.after(counter.last());
    let over = AtomicBool::new(false);
    let end = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut last = begin;
            while !over.load(Ordering::Relaxed) {
                // The log goes with the keeper.
                if let Some(now) = counter.last().filter(|now| *now != last.count) {
                    last = Sight { count: now, at: monotonic() };
                }
                thread::sleep(LOOK);
            }
            last
        });
        let told = cli.json(&["swapout", "--to", "there"]);
        assert!(count(&array(&told["rounds"])[0]["bytes"]) > 0, "{told}");
        over.store(true, Ordering::Relaxed);
        watch.join().expect("it looks on")
    });
    (end.count - begin.count) / (end.at - begin.at).as_secs_f64()
}
