//! What comes back is what was: all RAM, every disk block and the device state, at random instants under load (SimuBoost thesis, section 6.3, and harder).
//!
//! Ten instants; a hundred with `FERMATA_LONG=1`.

use fermata_experiment::{Journey, Run, Status};
use fermata_testkit::{
    Bench, Random, Snapshot,
    bench::{await_console, check_file_system, console},
    guests, is_long,
};
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(90);
const PAUSED: Journey = Journey { eager: true, paused: true, fresh_randomness: false, perturbation: None };
const RUNNING: Journey = Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None };

fn random_pauses(count: usize) -> Vec<Duration> {
    let mut random = Random::anew();
    (0..count).map(|_| Duration::from_millis(50 + random.below(700))).collect()
}

#[test]
fn instants_under_load_come_back_and_what_goes_on_from_them_is_whole() {
    let disk = guests::file("tiny-disk.raw");
    let node = format!("    image: {}\n    cpus: 2\n", disk.display());
    let bench = Bench::exact(&guests::tiny("instants", "fermata.run=work fermata.disk=rw", &node));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains("work second").then_some(()));
    they_come_back_identical(&bench, &run);
    a_restored_guest_goes_on_and_its_file_system_is_clean(&bench, &run);
    a_fork_and_its_parent_do_not_disturb_each_other(&bench, &run);
}

fn they_come_back_identical(bench: &Bench, run: &Run) {
    let instants = if is_long() { 100 } else { 10 };
    for (number, pause) in random_pauses(instants).into_iter().enumerate() {
        std::thread::sleep(pause);
        let mut original = None;
        let (id, record) = run.checkpoint_observed(None, &mut |body| original = Some(Snapshot::of(body))).expect("a checkpoint");
        let original = original.expect("the pause was seen");
        let copy = bench.arrive("copy", &id, &record, PAUSED);
        let differences = original.differences(&Snapshot::of(&copy.body()));
        assert!(differences.is_empty(), "instant {number}: {differences:?}");
    }
}

fn a_restored_guest_goes_on_and_its_file_system_is_clean(bench: &Bench, run: &Run) {
    let (id, record) = run.checkpoint(None).expect("a checkpoint");
    let copy = bench.arrive("copy", &id, &record, RUNNING);
    let body = copy.body();
    await_console(&body, BOOT, |text| (text.matches("work second").count() >= 3).then_some(()));
    assert_eq!(body.machine().status(), Status::Running);
    assert!(!console(&body).contains("EXT4-fs error"), "{}", console(&body));
    check_file_system(&body);
}

fn a_fork_and_its_parent_do_not_disturb_each_other(bench: &Bench, parent: &Run) {
    let (id, record) = parent.checkpoint(None).expect("a checkpoint");
    let fork = bench.arrive("fork", &id, &record, Journey { fresh_randomness: true, ..RUNNING });
    await_console(&fork.body(), BOOT, |text| (text.matches("work second").count() >= 3).then_some(()));
    // Both wrote; the instant they share is still what it was.
    let (parent_now, _) = parent.checkpoint(None).expect("a checkpoint of the parent");
    let (fork_now, fork_record) = fork.checkpoint(None).expect("a checkpoint of the fork");
    assert_ne!(parent_now, fork_now);
    assert_eq!(fork_record.parent, Some(id));
    let again = bench.arrive("again", &id, &record, PAUSED);
    let reference = bench.arrive("reference", &id, &record, PAUSED);
    assert_eq!(Snapshot::of(&again.body()).differences(&Snapshot::of(&reference.body())), Vec::<String>::new());
    let fork_back = bench.arrive("fork-back", &fork_now, &fork_record, PAUSED);
    assert!(!Snapshot::of(&fork_back.body()).differences(&Snapshot::of(&again.body())).is_empty(), "the fork did nothing of its own");
    for run in [parent, &fork] {
        assert_eq!(run.body().machine().status(), Status::Running);
        run.body().machine().stop().expect("it stops");
        check_file_system(&run.body());
    }
    assert_ne!(parent.standing().machines, fork.standing().machines, "a fork is another machine");
}
