//! Three machines as one experiment: every instant of all of them comes back as it was, their clocks do not drift apart, and one that dies or hangs disturbs
//! nobody else.

use fermata_experiment::{Asked, Body, Journey, Moment, Run, Status, When};
use fermata_testkit::{
    Bench, Cli, Snapshot,
    bench::{await_console_of, console_of},
    cli::{self, array, await_that, count, string},
    guests,
};
use fermata_timeline::Keeper;
use fermata_types::{Perturbation, VirtualTime};
use fermata_vm::MachineDetails;
use std::{process::Command, sync::Arc, thread, time::Duration};

const BOOT: Duration = Duration::from_secs(90);
const PAUSED: Journey = Journey { eager: true, paused: true, fresh_randomness: false, perturbation: None };
/// So much later than it was told to does a machine stop.
const LATE: Duration = Duration::from_millis(10);

/// Two that write to their disks, and one without.
fn three(name: &str) -> String {
    let disk = format!("    image: {}\n", guests::file("tiny-disk.raw").display());
    let work = "fermata.run=work:16:1000:256 fermata.disk=rw";
    guests::several(name, 128, &[("a", work, &disk), ("b", work, &disk), ("c", "fermata.run=work:16:1000", "")])
}

fn await_work(body: &Body) {
    for machine in body.machines() {
        let seen = console_of(machine.machine()).matches("work second").count();
        await_console_of(machine.machine(), BOOT, |text| (text.matches("work second").count() > seen).then_some(()));
    }
}

fn snapshots(body: &Body) -> Vec<Snapshot> {
    body.machines().iter().map(Snapshot::of_machine).collect()
}

fn times(record: &fermata_store::Record) -> Vec<u64> {
    let details = record.parts.iter().filter_map(|part| serde_json::from_value::<MachineDetails>(part.details.clone()).ok());
    details.map(|details| details.time_virtual.ns).collect()
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status().expect("kill runs").success());
}

fn statuses(run: &Run) -> Vec<Status> {
    run.body().machines().iter().map(|of| of.machine().status()).collect()
}

#[test]
fn instants_of_three_machines_come_back_identical_and_their_clocks_stay_together() {
    let bench = Bench::exact(&three("machines"));
    let run = bench.boot();
    await_work(&run.body());
    for pause in [150, 400, 60] {
        thread::sleep(Duration::from_millis(pause));
        let mut original = None;
        let (id, record) = run.checkpoint_observed(None, &mut |body| original = Some(snapshots(body))).expect("a checkpoint");
        assert_eq!(record.parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(), ["a", "a/disk0", "b", "b/disk0", "c"]);
        assert_eq!(record.time_virtual_ns, times(&record).into_iter().max().expect("there are machines"));
        let copy = bench.arrive("copy", &id, &record, PAUSED);
        for (name, (before, after)) in ["a", "b", "c"].into_iter().zip(original.expect("it was seen").iter().zip(snapshots(&copy.body()))) {
            assert_eq!(before.differences(&after), Vec::<String>::new(), "{name}");
        }
    }
    at_an_instant(&run);
    clocks_stay_together(&run);
    assert_eq!(statuses(&run), [Status::Running, Status::Running, Status::Running]);
}

/// In every one of many pauses the same machine stops later than the others. What that leaves them apart is made good in the next pause: it does not add up.
fn clocks_stay_together(run: &Run) {
    let late = |moment: Moment, body: &Body| {
        if moment == Moment::Prepared {
            let pid = body.machines()[1].machine().pid();
            signal(pid, "STOP");
            thread::spawn(move || {
                thread::sleep(LATE);
                signal(pid, "CONT");
            });
        }
    };
    let (mut apart, mut stops) = (Vec::new(), Duration::ZERO);
    for _ in 0..30 {
        let (_, record) = run.checkpoint_watched(None, &mut |moment, body| late(moment, body)).expect("a checkpoint");
        let times = times(&record);
        apart.push(Duration::from_nanos(times.iter().max().expect("machines") - times.iter().min().expect("machines")));
        stops += Duration::from_nanos(record.cost.skew.expect("there are several").stop_ns);
    }
    println!("stops were {stops:?} apart in all, and virtual times {apart:?}");
    let in_the_end = apart[20..].iter().min().expect("there are some");
    assert!(*in_the_end < stops / 4, "{apart:?}");
}

/// A checkpoint at an instant is taken there.
fn at_an_instant(run: &Run) {
    run.checkpoint(None).expect("a checkpoint");
    // From when it is stored, which may take a while.
    let at = VirtualTime::from_ns(run.time_virtual().ns + 1_700_000_000);
    let asked = Asked { when: Some(When::At(at)), ..Asked::default() };
    let (_, record) = run.checkpoint_as(asked.clone(), &|| true).expect("a checkpoint");
    println!("asked for {at}, taken at {}", VirtualTime::from_ns(record.time_virtual_ns));
    // Not before; and how long after says how busy the host is.
    assert!(record.time_virtual_ns >= at.ns, "{}", record.time_virtual_ns);
    let late = run.checkpoint_as(asked, &|| true).expect_err("that time has passed").to_string();
    assert!(late.contains("too late"), "{late}");
    run.pause().expect("it pauses");
    let after = Asked { when: Some(When::After(Duration::from_secs(1))), ..Asked::default() };
    assert!(run.checkpoint_as(after.clone(), &|| true).expect_err("no time passes").to_string().contains("fermata resume"));
    run.resume().expect("it goes on");
    let left = run.checkpoint_as(Asked { when: Some(When::After(Duration::from_secs(3600))), ..after }, &|| false);
    assert!(left.expect_err("nobody waits").to_string().contains("has left"));
}

#[test]
fn the_command_line_takes_the_name_of_a_machine() {
    let cli = Cli::new();
    cli.write("two.yaml", &guests::several("two", 128, &[("left", "fermata.run=tick", ""), ("right", "fermata.run=tick", "")]));
    cli.ok(&["up", "two.yaml"]);
    cli.fails(&["exec", "--", "true"], 255, &["several machines", "left, right"]);
    cli.fails(&["exec", "middle", "--", "true"], 255, &["no machine \"middle\"", "left, right"]);
    cli.fails(&["console", "--log"], 1, &["main:left", "main:right"]);
    assert_eq!(cli.shell("right", "echo here"), "here");
    await_that("the left one ticks", BOOT, || cli.ok(&["console", "left", "--log"]).contains("tick"));
    let before = count(&cli.json(&["ls"])[0]["runs"][0]["time_virtual_ns"]);
    // Not before; and how long after says how busy the host is.
    let taken = cli.json(&["checkpoint", "--at", "+1.5s"]);
    let is = count(&taken["time_virtual_ns"]);
    assert!((before + 1_500_000_000..before + 60_000_000_000).contains(&is), "{taken}");
    let now = count(&cli.json(&["ls"])[0]["runs"][0]["time_virtual_ns"]);
    let absolute = now / 1_000_000_000 + 10;
    let is = count(&cli.json(&["checkpoint", "--at", &format!("{absolute}.25s")])["time_virtual_ns"]);
    assert!((absolute * 1_000_000_000 + 250_000_000..(absolute + 60) * 1_000_000_000).contains(&is), "{absolute} {is}");
    cli.fails(&["checkpoint", "--at", "1s"], 1, &["too late"]);
    assert!(taken["skew"]["stop_ms"].is_number(), "{taken}");
    let shown = cli.ok(&["show", "main"]);
    for words in ["machines stopped within", "left stop", "right stop", "Memory of left", "Memory of right"] {
        assert!(shown.contains(words), "{words} is missing in {shown}");
    }
    let metrics = cli.ok(&["metrics"]);
    for words in ["fermata_skew_seconds_count{", "machine=\"left\",run=\"main\",state=\"running\"} 1", "machine=\"right\""] {
        assert!(metrics.contains(words), "{words} is missing in {metrics}");
    }
    cli.ok(&["goto", "main"]);
    assert_eq!(cli.shell("left", "echo again"), "again");
    assert_eq!(array(&cli.json(&["pause"])["machines"]).iter().map(|machine| string(&machine["state"])).collect::<Vec<_>>(), ["paused"; 2]);
    cli.ok(&["down"]);
}

/// Hung when all are about to be stopped, and when they are to go on.
fn hangs_in_the_pause(run: &Run, b: u32) {
    for (moment, words) in [(Moment::Prepared, "b could not freeze"), (Moment::Frozen, "b could not thaw")] {
        let result = run.checkpoint_watched(None, &mut |now, _| {
            if now == moment {
                signal(b, "STOP");
            }
        });
        let error = result.expect_err("b does not answer").to_string();
        assert!(error.contains(words) && error.contains("for 5 s"), "{error}");
        let body = run.body();
        for other in [0, 2] {
            assert_eq!(body.machines()[other].machine().status(), Status::Running, "{moment:?}");
        }
        // It was told to go on, and does when it comes to itself.
        signal(b, "CONT");
        assert_eq!(body.machines()[1].machine().status(), Status::Running, "{moment:?}");
        await_work(&body);
        run.checkpoint(None).expect("all is well again");
    }
}

/// All of them hang, and a journey fails: they ran, and run on when they come to themselves.
fn hang_in_a_journey_that_fails(keeper: &Arc<Keeper>, run: &Run, to: &str) {
    let pids: Vec<_> = run.body().machines().iter().map(|of| of.machine().pid()).collect();
    pids.iter().for_each(|pid| signal(*pid, "STOP"));
    let perturbation = Some(Perturbation { order: true, within_ns: 1, ..Perturbation::default() });
    let error = keeper.goto(to, None, Journey { perturbation, ..Journey::default() }).expect_err("nothing connects them").to_string();
    assert!(error.contains("has no links"), "{error}");
    pids.iter().for_each(|pid| signal(*pid, "CONT"));
    assert_eq!(statuses(run), [Status::Running, Status::Running, Status::Running]);
    await_work(&run.body());
}

#[test]
fn one_that_dies_or_hangs_is_named_and_the_others_run_on() {
    let bench = Bench::new(&three("hangs"));
    let keeper = bench.keeper();
    keeper.boot().expect("it boots");
    let run = keeper.run(None).expect("a run");
    await_work(&run.body());
    let (id, _) = keeper.checkpoint(None, None).expect("a checkpoint");
    let pid = |run: &Run| run.body().machines()[1].machine().pid();

    // Hung before anybody is stopped.
    let b = pid(&run);
    signal(b, "STOP");
    // Whoever only looks sees it, also while a checkpoint waits for it.
    let looks = || assert_eq!(run.body().glance(), [Status::Running, Status::Silent, Status::Running]);
    looks();
    let error = thread::scope(|scope| {
        let taking = scope.spawn(|| run.checkpoint(None));
        (0..2).for_each(|_| looks());
        taking.join().expect("no panic").expect_err("b does not answer").to_string()
    });
    assert!(error.contains("b could not prepare") && error.contains("does not answer"), "{error}");
    // Nor does a journey wait for it.
    keeper.goto(&id.to_string(), None, Journey::default()).expect("all come back");
    assert_eq!(statuses(&run), [Status::Running, Status::Running, Status::Running]);
    await_work(&run.body());
    hangs_in_the_pause(&run, pid(&run));
    hang_in_a_journey_that_fails(&keeper, &run, &id.to_string());

    // Killed in the pause, and then gone.
    let error = run
        .checkpoint_watched(None, &mut |now, body| {
            if now == Moment::Prepared {
                cli::kill(body.machines()[1].machine().pid().into());
            }
        })
        .expect_err("b is dead")
        .to_string();
    assert!(error.contains("b could not freeze") && error.contains("the guests go on"), "{error}");
    let after = statuses(&run);
    assert!(matches!(after.as_slice(), [Status::Running, Status::Gone(_), Status::Running]), "{after:?}");
    let error = run.checkpoint(None).expect_err("b is gone").to_string();
    assert!(error.contains("b could not prepare") && error.contains("fermata goto"), "{error}");
    keeper.goto(&id.to_string(), None, Journey::default()).expect("all come back");
    assert_eq!(statuses(&run), [Status::Running, Status::Running, Status::Running]);
    await_work(&run.body());
    run.checkpoint(None).expect("a checkpoint");

    // A second run of all of them beside the first.
    keeper.fork(None, None, fermata_timeline::Fork { name: Some("other".into()), ..Default::default() }).expect("a fork");
    let other = keeper.run(Some("other")).expect("it is there");
    await_work(&other.body());
    assert!(other.standing().machines.iter().all(|(name, id)| run.standing().machines[name] != *id), "forks are other machines");
    keeper.down(None).expect("it ends");
}

/// An experiment is brought up anew after its specification was changed, and goes to a checkpoint of before.
#[test]
fn what_grows_from_a_checkpoint_has_the_specification_of_its_machines() {
    let due = VirtualTime::from_ns(20_000_000_000);
    let a = ("a", "fermata.run=tick", "");
    let before = format!("{}events:\n  - {{at: 20s, exec: a, run: \"true\"}}\n", guests::several("changed", 128, &[a]));
    let mut bench = Bench::new(&before);
    let keeper = bench.keeper();
    keeper.boot().expect("it boots");
    let (id, record) = keeper.checkpoint(None, None).expect("a checkpoint");
    assert!(record.time_virtual_ns < due.ns && record.events == 0, "it was not due yet");
    keeper.down(None).expect("it ends");
    drop(keeper);

    bench.spec = guests::spec(&guests::several("changed", 128, &[a, ("b", "fermata.run=tick", "")]));
    let keeper = bench.keeper();
    keeper.boot().expect("it boots");
    keeper.goto(&id.to_string(), None, Journey::default()).expect("a journey");
    let run = keeper.run(None).expect("a run");
    await_that("the event of before is due", BOOT, || run.time_virtual() > due.plus(Duration::from_secs(1)));
    let (grown, of) = keeper.checkpoint(None, None).expect("a checkpoint");
    assert_eq!((of.spec, of.parent, of.events), (record.spec, Some(id), 1));
    keeper.goto(&grown.to_string(), None, Journey::default()).expect("all of it is there");
    assert_eq!(statuses(&run), [Status::Running]);
    keeper.down(None).expect("it ends");
}
