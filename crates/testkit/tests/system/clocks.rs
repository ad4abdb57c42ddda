//! No clock of a guest shows a pause or a journey. The pauses here are made a thousand times longer than they are, so that one that shows cannot hide among
//! the host's own hiccups.

use fermata_experiment::{Body, Journey};
use fermata_linux::clock::Stopwatch;
use fermata_testkit::{
    Bench,
    bench::{await_console, console},
    guests,
};
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(90);
const LONG_PAUSE: Duration = Duration::from_secs(4);
/// What a clock that shows a pause would show at least, with room for a slow host below it.
const SHOWN_US: i64 = 2_000_000;
const PAUSES: u32 = 4;

fn rounds(text: &str) -> usize {
    text.matches("witness round").count()
}

/// Looks at every round that the witness printed. Returns how many.
fn look(body: &Body) -> usize {
    let text = console(body);
    assert!(!text.contains("FAIL"), "{text}");
    let lines: Vec<_> = text.lines().filter_map(|line| line.split_once("witness round")).map(|(_, line)| line).collect();
    // The newest line may not be whole yet, and the first after a journey began in another process.
    let whole = lines.iter().filter(|line| line.contains("total_tsc"));
    for line in whole {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        for pair in words[1..].chunks_exact(2) {
            let (name, value) = (pair[0], pair[1].parse::<i64>().unwrap_or_else(|_| panic!("no number in {line}")));
            let shown = if name.starts_with("back") { 1 } else { SHOWN_US };
            assert!(value.abs() < shown, "{name} shows a pause: {line}");
        }
    }
    lines.len()
}

#[test]
fn no_clock_of_the_guest_shows_pauses_or_journeys() {
    let bench = Bench::new(&guests::tiny("clocks", "fermata.run=witness:20:300", ""));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| (rounds(text) >= 2).then_some(()));
    let mut times = Vec::new();
    let watch = Stopwatch::start();
    for _ in 0..PAUSES {
        let (id, record) = run.checkpoint_observed(None, &mut |_| std::thread::sleep(LONG_PAUSE)).expect("a checkpoint");
        times.push((id, record));
        let seen = rounds(&console(&run.body()));
        await_console(&run.body(), BOOT, |text| (rounds(text) >= seen + 2).then_some(()));
    }
    assert!(look(&run.body()) >= 2 * PAUSES as usize);
    let virtual_ns = times[times.len() - 1].1.time_virtual_ns - times[0].1.time_virtual_ns;
    let without_pauses = watch.elapsed().saturating_sub(LONG_PAUSE * (PAUSES - 1));
    assert!(Duration::from_nanos(virtual_ns) < without_pauses, "virtual time ran in the pauses: {virtual_ns} ns");

    // A journey into the past: the guest's clocks go on from there, and not from where the host's are.
    let (id, record) = &times[0];
    let back = bench.arrive("back", id, record, Journey { eager: false, paused: false, fresh_randomness: false });
    await_console(&back.body(), BOOT, |text| (rounds(text) >= 4).then_some(()));
    assert!(look(&back.body()) >= 4);
}
