//! What comes back is what was: all RAM, every disk block and the device state, at random instants under load (SimuBoost thesis, section 6.3, and harder).

use fermata_experiment::{Journey, Status};
use fermata_testkit::{
    Bench, Random, Snapshot,
    bench::{await_console, check_file_system, console},
    guests,
};
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(90);
const PAUSED: Journey = Journey { eager: true, paused: true, fresh_randomness: false, perturbation: None };
const RUNNING: Journey = Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None };

fn under_load(name: &str, more: &str) -> Bench {
    let disk = guests::file("tiny-disk.raw");
    Bench::exact(&guests::tiny(name, "fermata.run=work fermata.disk=rw", &format!("    image: {}\n{more}", disk.display())))
}

fn random_pauses(count: usize) -> Vec<Duration> {
    let mut random = Random::anew();
    (0..count).map(|_| Duration::from_millis(50 + random.below(700))).collect()
}

#[test]
fn twenty_instants_under_load_come_back_identical() {
    let bench = under_load("instants", "    cpus: 2\n");
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains("work second").then_some(()));
    for (number, pause) in random_pauses(20).into_iter().enumerate() {
        std::thread::sleep(pause);
        let mut original = None;
        let (id, record) = run.checkpoint_observed(None, &mut |body| original = Some(Snapshot::of(body))).expect("a checkpoint");
        let original = original.expect("the pause was seen");
        let copy = bench.arrive("copy", &id, &record, PAUSED);
        let differences = original.differences(&Snapshot::of(&copy.body()));
        assert!(differences.is_empty(), "instant {number}: {differences:?}");
    }
}

#[test]
fn a_restored_guest_goes_on_and_its_file_system_is_clean() {
    let bench = under_load("goes-on", "");
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains("work second").then_some(()));
    let (id, record) = run.checkpoint(None).expect("a checkpoint");
    let copy = bench.arrive("copy", &id, &record, RUNNING);
    let body = copy.body();
    await_console(&body, BOOT, |text| (text.matches("work second").count() >= 3).then_some(()));
    assert_eq!(body.machine().status(), Status::Running);
    assert!(!console(&body).contains("EXT4-fs error"), "{}", console(&body));
    check_file_system(&body);
}

#[test]
fn a_fork_and_its_parent_do_not_disturb_each_other() {
    let bench = under_load("forks", "");
    let parent = bench.boot();
    await_console(&parent.body(), BOOT, |text| text.contains("work second").then_some(()));
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
    for run in [&parent, &fork] {
        assert_eq!(run.body().machine().status(), Status::Running);
        run.body().machine().stop().expect("it stops");
        check_file_system(&run.body());
    }
    assert_ne!(parent.standing().machines, fork.standing().machines, "a fork is another machine");
}
