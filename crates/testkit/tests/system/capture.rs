//! Every way to capture memory gives the same: what comes back is what was, and the guest goes on. 1 to 2 minutes.

use fermata_experiment::{Journey, Run, Status};
use fermata_store::Record;
use fermata_testkit::{Bench, Snapshot, bench::await_console, guests};
use fermata_types::{CheckpointId, Root, ZERO_PAGE};
use std::time::Duration;

const BOOT: Duration = Duration::from_secs(90);
const PAUSED: Journey = Journey { eager: true, paused: true, fresh_randomness: false, perturbation: None };
const RUNNING: Journey = Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None };

/// Checkpoints of a guest that writes to memory and disk, and of a copy of it that was restored while its pages were still coming.
fn comes_back(name: &str, keys: &str) {
    let disk = guests::file("tiny-disk.raw");
    let node = format!("    image: {}\n    cpus: 2\n", disk.display());
    let bench = Bench::exact(&(keys.to_owned() + &guests::tiny(name, "fermata.run=work:48:20000:512 fermata.disk=rw", &node)));
    let run = bench.boot();
    await_console(&run.body(), BOOT, |text| text.contains("work second").then_some(()));
    let mut newest: Option<(CheckpointId, Record)> = None;
    let mut before: Option<Snapshot> = None;
    for wait in [10, 230, 470] {
        std::thread::sleep(Duration::from_millis(wait));
        let (id, record, seen) = same(&bench, &run);
        let seen = seen.expect("all of it is there");
        counted(&bench, newest.as_ref().map(|(_, parent)| parent), &record);
        counted_by_content(before.as_ref(), &seen, &record);
        before = Some(seen);
        newest = Some((id, record));
    }
    let (id, record) = newest.expect("there were some");
    let copy = bench.arrive("copy", &id, &record, RUNNING);
    // At once, with most pages still in the store; and again.
    same(&bench, &copy);
    await_console(&copy.body(), BOOT, |text| (text.matches("work second").count() >= 2).then_some(()));
    same(&bench, &copy);
    for run in [&run, &copy] {
        assert_eq!(run.body().machine().status(), Status::Running);
    }
}

/// Every page is in one class, and pages that differ from the parent's are none of those that are called unchanged.
fn counted(bench: &Bench, parent: Option<&Record>, record: &Record) {
    let counts = record.cost.parts["m1"];
    let table = |record: &Record| record.parts.iter().find(|part| part.name == "m1").and_then(|part| part.tables.values().next().copied());
    let now = table(record).expect("its memory");
    assert_eq!(counts.total(), now.pages);
    let before = parent.and_then(table).unwrap_or(Root::empty(now.pages));
    let mut differ = 0;
    let mut count = |_, _, _| {
        differ += 1;
        Ok(())
    };
    bench.host.store().diff(&before, &now, &mut count).expect("page tables");
    assert!(differ > 0 && differ <= counts.written(), "{differ} pages differ: {counts:?}");
}

/// What is called unchanged was so in two neighbouring pauses; and of a checkpoint that looked at everything, what is called zero is all that was.
fn counted_by_content(before: Option<&Snapshot>, now: &Snapshot, record: &Record) {
    let counts = record.cost.parts["m1"];
    match before {
        Some(before) => {
            let alike = before.ram.iter().zip(&now.ram).filter(|(before, now)| before == now).count() as u64;
            assert!(counts.unchanged <= alike, "{alike} pages are as they were: {counts:?}");
        }
        None => {
            let zero = now.ram.iter().filter(|name| **name == ZERO_PAGE).count() as u64;
            assert_eq!((counts.unchanged, counts.zero), (0, zero), "{counts:?}");
        }
    }
}

/// A checkpoint that holds what the machine had.
fn same(bench: &Bench, run: &Run) -> (CheckpointId, Record, Option<Snapshot>) {
    let mut original = None;
    let (id, record) = run
        .checkpoint_observed(None, &mut |body| {
            let complete = body.machine().paging().is_none_or(|paging| paging.complete);
            original = complete.then(|| Snapshot::of(body));
        })
        .expect("a checkpoint");
    let copy = bench.arrive("look", &id, &record, PAUSED);
    match &original {
        Some(original) => assert_eq!(original.differences(&Snapshot::of(&copy.body())), Vec::<String>::new()),
        // RAM cannot be looked at from outside yet; that the guest goes on from it is the proof.
        None => assert_eq!(copy.body().machine().status(), Status::Paused),
    }
    (id, record, original)
}

#[test]
fn stop() {
    comes_back("stop", "capture: stop\n");
}

#[test]
fn precopy() {
    comes_back("precopy", "capture: precopy\n");
}

#[test]
fn cow() {
    comes_back("cow", "capture: cow\n");
}

#[test]
fn precopy_with_write_faults() {
    comes_back("faults", "tracker: userfault\n");
}

#[test]
fn comparison() {
    comes_back("compare", "tracker: compare\n");
}

#[test]
fn full() {
    comes_back("full", "capture: cow\nfull: true\n");
}
