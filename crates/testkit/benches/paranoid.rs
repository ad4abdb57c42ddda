//! Whether a page is ever taken for a disk block that it does not equal: five workloads, each page looked at, with random journeys between.
//!
//! Needs guests: space

use fermata_experiment::{Asked, Journey, Status};
use fermata_testkit::{
    Bench, Random,
    bench::{await_console, console},
    guests,
    measure::pick,
    report::Report,
};
use fermata_types::CheckpointId;
use std::{thread, time::Duration};

const BOOT: Duration = Duration::from_secs(300);
const LOADS: [&str; 5] = ["postmark", "desktop", "install", "gzip", "make"];
/// All that is in the map is looked at each time, or what was written since the checkpoint before.
const KEYS: [&str; 2] = ["full: true\n", ""];
const CHECKPOINTS: usize = 12;
/// A guest works at least so long, and at most so much longer, before its next checkpoint.
const WORK_MIN: Duration = Duration::from_millis(200);
const WORK_MORE_MS: u64 = 4000;
/// One checkpoint of so many is followed by a journey.
const PER_JOURNEY: u64 = 3;

/// What was looked at.
#[derive(Default)]
struct Seen {
    checkpoints: usize,
    journeys: usize,
    pages: u64,
}

fn main() {
    let mut report = Report::new("paranoid");
    // Of the choices below; the guests themselves are not the same twice.
    let mut chance = Random::new(0x9e37_79b9_7f4a_7c15);
    let mut all = Seen::default();
    for load in LOADS.iter().take(pick(LOADS.len(), 1)) {
        let mut pages = 0;
        for keys in KEYS {
            let seen = look(load, keys, &mut chance);
            assert!(seen.pages > 0, "{load}: nothing was looked at");
            pages += seen.pages;
            all.checkpoints += seen.checkpoints;
            all.journeys += seen.journeys;
        }
        all.pages += pages;
        report.tell(&format!("{load}: pages looked at"), pages as f64, "pages", None);
    }
    report.tell("checkpoints", all.checkpoints as f64, "", None);
    report.tell("journeys", all.journeys as f64, "", None);
    // A checkpoint that finds one fails, and this program with it.
    report.mark("pages taken for a block that they do not equal", 0.0, "pages", Some(("looked at", all.pages as f64)), ("none", true));
    report.print();
}

/// Checkpoints of a guest at work, each of them paranoid, and journeys to any of them.
fn look(load: &str, keys: &str, chance: &mut Random) -> Seen {
    let bench = Bench::new(&(keys.to_owned() + &guests::space("paranoid", load)));
    let keeper = bench.keeper();
    keeper.boot().expect("it boots");
    let run = keeper.run(None).expect("a run");
    await_console(&run.body(), BOOT, |text| text.contains(&format!("space {load} begins")).then_some(()));
    let mut seen = Seen::default();
    let mut taken: Vec<CheckpointId> = Vec::new();
    for number in 0..pick(CHECKPOINTS, 4) {
        thread::sleep(WORK_MIN + Duration::from_millis(chance.below(WORK_MORE_MS)));
        let checkpoint = keeper.checkpoint_as(None, Asked { paranoid: true, ..Asked::default() }, &|| true);
        let (id, record) = checkpoint.unwrap_or_else(|error| panic!("{load}, checkpoint {number}: {error}"));
        taken.push(id);
        seen.checkpoints += 1;
        seen.pages += record.cost.parts["m1"].mapped;
        if chance.below(PER_JOURNEY) == 0 {
            let target = taken[chance.below(taken.len() as u64) as usize];
            keeper.goto(&target.to_string(), None, Journey::default()).expect("a journey");
            seen.journeys += 1;
        }
    }
    let said = console(&run.body());
    assert_eq!(run.body().machine().status(), Status::Running, "{load}: {said}");
    assert!(!["FAILS", "EXT4-fs error", "Oops", "BUG:"].iter().any(|word| said.contains(word)), "{load}: {said}");
    keeper.down(None).expect("it ends");
    eprintln!("{load}: {} checkpoints, {} journeys, {} pages looked at", seen.checkpoints, seen.journeys, seen.pages);
    seen
}
