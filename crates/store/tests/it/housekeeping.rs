//! Writers, removers, collectors and a verifier in several processes on one store. The children are this test binary again, at [`child`].

use crate::common::*;
use fermata_store::{CollectOptions, Removal, Store, VerifyOptions};
use fermata_types::*;
use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

const STORE: &str = "FERMATA_TEST_STORE";
const TASK: &str = "FERMATA_TEST_TASK";
const ALL: CollectOptions = CollectOptions { rewrite_below: 100, wait: true, dry_run: false };

fn spawn(store: &Path, task: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "housekeeping::child"]).env(STORE, store).env(TASK, task).stdout(Stdio::null()).spawn().unwrap()
}

/// What page `number` of a branch holds after so many steps. Steps come back to the same contents, and so to nodes of tables that were removed and that a
/// process may still have in its cache; and branches share them.
fn seed(step: u64, number: u64) -> u64 {
    (step / 2 % 7 * 3 + number * number) % 21 + number % 2 * 1000
}

/// Grows a branch, and removes all but its last checkpoints. A step changes some pages only, so that nodes are deltas.
fn grow(store: &Store, branch: &str, steps: u64) {
    let mut root = Root::empty(2000);
    let mut ids: Vec<CheckpointId> = Vec::new();
    for step in 0..steps {
        let mut writer = store.writer().unwrap();
        let pages: Vec<_> = (0..30)
            .filter(|number| step == 0 || seed(step, *number) != seed(step - 1, *number))
            .map(|number| ((number * 61) as PageNumber, seed(step, number)))
            .collect();
        root = put(&mut writer, &root, &pages);
        ids.push(writer.commit(&record_of(ids.last().copied(), branch, &step.to_string(), root)).unwrap());
        if ids.len() > 3 {
            store.remove(&Removal { checkpoints: vec![ids.remove(0)], ..Removal::default() }).unwrap();
        }
    }
}

/// Every checkpoint of the store is whole.
fn check(store: &Store) -> usize {
    let records = store.records().unwrap();
    for (id, record) in &records {
        let step: u64 = record.message.as_deref().unwrap().parse().unwrap();
        let mut found = 0;
        let each = &mut |number: PageNumber, name| {
            found += 1;
            assert_eq!(read(store, &name)?, page(seed(step, u64::from(number) / 61)), "page {number} of {id}");
            Ok(())
        };
        store.for_each_page(&record.parts[0].tables["ram"], each).unwrap();
        assert_eq!(found, 30);
    }
    records.len()
}

#[test]
fn child() {
    let (Some(path), Ok(task)) = (std::env::var_os(STORE), std::env::var(TASK)) else { return };
    let store = open(Path::new(&path)).unwrap();
    match task.as_str() {
        "collect" => loop {
            store.collect(&ALL, &mut |_, _| {}).unwrap();
        },
        branch => grow(&store, branch, 40),
    }
}

/// About 5 s.
#[test]
fn everybody_at_once_and_collectors_that_are_killed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = open(&path).unwrap();
    let mut writers = ["a", "b"].map(|branch| spawn(&path, branch));
    let mut rounds = 0;
    while writers.iter_mut().any(|writer| writer.try_wait().unwrap().is_none()) {
        let mut collector = spawn(&path, "collect");
        std::thread::sleep(Duration::from_millis(40 + rounds * 23 % 150));
        collector.kill().unwrap();
        collector.wait().unwrap();
        let report = store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
        assert_eq!(report.damage, [], "round {rounds}");
        rounds += 1;
    }
    assert!(writers.iter_mut().all(|writer| writer.wait().unwrap().success()));
    assert_eq!(check(&store), 6);
    store.collect(&ALL, &mut |_, _| {}).unwrap();
    assert_eq!(check(&store), 6);
    let left: u64 = packs(&path).iter().map(|pack| pack.metadata().unwrap().len()).sum();
    drop(store);
    assert_eq!(Store::rebuild_index(&path).unwrap().checkpoints, 6);
    let store = open(&path).unwrap();
    assert_eq!(check(&store), 6);
    // Three checkpoints of 30 pages each on two branches, of 42 contents in all.
    assert!(left < 300_000, "{left} bytes are left");
    assert!(rounds > 0, "no collector was killed beside a writer");
}
