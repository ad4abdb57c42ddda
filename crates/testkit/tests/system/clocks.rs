//! No clock of a guest shows a pause or a journey. The pauses here are made a thousand times longer than they are, so that one that shows cannot hide among
//! the host's own hiccups.

use fermata_experiment::{Body, Journey};
use fermata_linux::clock::Stopwatch;
use fermata_testkit::{
    Bench,
    bench::{await_console, console},
    guests,
};
use std::{collections::BTreeMap, ops::Range, time::Duration};

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
    let bench = Bench::new(&guests::tiny("clocks", "fermata.run=witness:20:100", ""));
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
    let back = bench.arrive("back", id, record, Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None });
    await_console(&back.body(), BOOT, |text| (rounds(text) >= 4).then_some(()));
    assert!(look(&back.body()) >= 4);
}

/// The rate of the power management timer, and where it begins anew.
const PM_HZ: f64 = 3_579_545.0;
const PM_END: f64 = (1 << 24) as f64;
/// The counter of the HPET is read as one of 32 bits.
const HPET_END: f64 = (1_u64 << 32) as f64;
const DAY_S: f64 = 86_400.0;
/// Of these checkpoints every third has a pause that is made long: shorter than half a turn of the timer, or it could not be told how often that turned.
const CHECKPOINTS: usize = 9;
const MADE_LONG: Duration = Duration::from_secs(2);
/// Rounds without a checkpoint after each.
const BETWEEN: usize = 3;

/// What the guest's clocks showed in one round (`guests/src/clocks.c`), by name.
type Look = BTreeMap<String, f64>;

/// All whole rounds that the console shows.
fn looks(text: &str) -> Vec<Look> {
    let lines = text.lines().filter_map(|line| line.split_once("clocks round ")).map(|(_, line)| line);
    let look = |line: &str| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let pairs = words[1..].chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap_or_else(|_| panic!("{line}"))));
        pairs.collect::<Look>()
    };
    lines.filter(|line| line.contains(" steal ")).map(look).collect()
}

/// By how much each clock moved between two rounds, in its own units; the power management timer in seconds. The clock of the second is beside the time stamp
/// counter at the edge of that second.
fn moved(from: &Look, to: &Look) -> Look {
    let by = |name: &str| to[name] - from[name];
    let turns = |ticks: f64, end: f64, seconds: f64, hz: f64| ticks + ((seconds * hz - ticks) / end).round() * end;
    // The nearest that the timer can mean.
    let mono = by("mono") / 1e9;
    let pm = turns(by("pm"), PM_END, mono, PM_HZ) / PM_HZ;
    let mut moved = Look::from([("pm".into(), pm), ("mono".into(), mono), ("real".into(), by("real") / 1e9), ("tsc".into(), by("tsc"))]);
    // Where the guest's kernel lets nobody see the HPET, there is none.
    if from["hpet"] >= 0.0 {
        // QEMU's has 100 MHz.
        moved.insert("hpet".into(), turns(by("hpet"), HPET_END, mono, 1e8));
    }
    moved.insert("rtc".into(), by("rtc").rem_euclid(DAY_S));
    moved.insert("edge".into(), by("edge"));
    moved
}

/// How far each clock moved apart from the power management timer between two rounds, s; the clock of the second apart from the time stamp counter. `rates`
/// are those of the clocks.
fn apart(moved: &Look, rates: &Look) -> Look {
    let of = |name: &str| moved[name] / rates[name];
    let timer = moved["pm"];
    let mut apart: Look =
        rates.keys().filter(|name| !["rtc", "edge", "pm"].contains(&name.as_str())).map(|name| (name.clone(), of(name) - timer)).collect();
    apart.insert("rtc".into(), moved["rtc"] - moved["edge"] / rates["tsc"]);
    apart
}

/// What the clocks did across checkpoints, and in single rounds without.
struct Seen {
    across: Vec<Look>,
    without: Vec<Look>,
}

impl Seen {
    /// `spans` are the rounds around each checkpoint.
    fn new(looks: &[Look], spans: &[Range<usize>]) -> Self {
        let calm = |place: &usize| !spans.iter().any(|span| span.contains(place));
        let without: Vec<_> = (0..looks.len() - 1).filter(calm).map(|place| moved(&looks[place], &looks[place + 1])).collect();
        let sum = |name: &str| without.iter().map(|moved| moved[name]).sum::<f64>();
        // By its timer, since nobody says how fast the other clocks are.
        let rates: Look = without[0].keys().map(|name| (name.clone(), sum(name) / sum("pm"))).collect();
        let across = spans.iter().map(|span| apart(&moved(&looks[span.start], &looks[span.end]), &rates)).collect();
        Self { across, without: without.iter().map(|moved| apart(moved, &rates)).collect() }
    }

    fn of(looks: &[Look], name: &str) -> Vec<f64> {
        let mut all: Vec<_> = looks.iter().map(|look| look[name].abs()).collect();
        all.sort_by(f64::total_cmp);
        all
    }
}

#[test]
fn no_clock_of_the_guest_jumps_apart_from_the_others() {
    let bench = Bench::new(&guests::tiny("apart", "fermata.run=clocks", ""));
    let run = bench.boot();
    let count = || looks(&console(&run.body())).len();
    let await_count = |wanted: usize| await_console(&run.body(), BOOT, |text| (looks(text).len() >= wanted).then_some(()));
    await_count(2 + BETWEEN);
    let (mut spans, mut pauses) = (Vec::new(), Vec::new());
    for number in 0..CHECKPOINTS {
        let long = if number % 3 == 2 { MADE_LONG } else { Duration::ZERO };
        let before = count();
        let (_, record) = run.checkpoint_observed(None, &mut |_| std::thread::sleep(long)).expect("a checkpoint");
        let after = count();
        // From the last round seen before to the first that cannot have begun before the guest went on.
        spans.push(before - 1..after + 1);
        pauses.push(record.cost.pause_ns as f64 / 1e9);
        await_count(after + 2 + BETWEEN);
    }
    let looks = looks(&console(&run.body()));
    assert!(looks.iter().all(|look| look["steal"] == looks[0]["steal"]), "the kernel thinks that time was stolen: {looks:?}");
    let seen = Seen::new(&looks, &spans);
    if !seen.without[0].contains_key("hpet") {
        fermata_testkit::skipped!("the HPET of a guest across checkpoints, for its kernel lets nobody read /dev/mem");
    }
    pauses.sort_by(f64::total_cmp);
    println!("pauses: {pauses:?}");
    for name in seen.without[0].keys() {
        let [across, without] = [&seen.across, &seen.without].map(|looks| Seen::of(looks, name));
        println!("{name} moved apart by: across {across:?}, without {without:?}");
        // A clock that shows pauses shows those of two seconds. What the host does while it is read hides none of them.
        let (worst, worst_without) = (across[across.len() - 1], without[without.len() - 1]);
        let room = MADE_LONG.as_secs_f64() / 20.0;
        assert!(worst <= worst_without + room, "{name} jumped: {across:?}, without a checkpoint {without:?}");
        // And at all of them, of which most are short. The clock of the second cannot be read as finely.
        let middle = across[CHECKPOINTS / 2];
        assert!(name == "rtc" || middle < pauses[CHECKPOINTS / 2] / 2.0, "{name} shows pauses {pauses:?}: {across:?}");
    }
}
