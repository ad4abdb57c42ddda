//! Several processes on one store, and processes that are killed. The children are this test binary again, at [`child`].

use crate::common::*;
use fermata_store::Store;
use fermata_types::*;
use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

const STORE: &str = "FERMATA_TEST_STORE";
const BRANCH: &str = "FERMATA_TEST_BRANCH";
const COUNT: &str = "FERMATA_TEST_COUNT";

fn spawn(store: &Path, branch: &str, count: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::child"])
        .env(STORE, store)
        .env(BRANCH, branch)
        .env(COUNT, count.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Pages of a step: some that both children write, some of their own.
fn seeds(branch: &str, step: usize) -> Vec<(PageNumber, u64)> {
    let own = u64::from(branch.as_bytes()[0]) * 1_000_000;
    (0..30).map(|i| (i * 91 % 2000, if i % 2 == 0 { 0 } else { own } + step as u64 * 30 + u64::from(i))).collect()
}

fn sorted(mut pages: Vec<(PageNumber, u64)>) -> Vec<(PageNumber, u64)> {
    pages.sort_unstable();
    pages
}

fn grow(store: &Store, branch: &str, count: usize) {
    let mut head = store.branch("lab", branch).unwrap();
    let mut root = head.map_or(Root::empty(2000), |head| store.record(&head).unwrap().parts[0].tables["ram"]);
    let mut step = head.map_or(0, |head| store.record(&head).unwrap().message.unwrap().parse().unwrap());
    for _ in 0..count {
        let mut writer = store.writer().unwrap();
        root = put(&mut writer, &root, &sorted(seeds(branch, step)));
        step += 1;
        head = Some(writer.commit(&record_of(head, branch, &step.to_string(), root)).unwrap());
    }
}

/// Every checkpoint of the store is whole.
fn check(store: &Store) {
    for (id, record) in store.records().unwrap() {
        let steps = record.message.as_deref().unwrap().parse().unwrap();
        let mut expected = std::collections::BTreeMap::new();
        (0..steps).for_each(|step| expected.extend(seeds(&record.branch, step)));
        let mut found = 0;
        let each = &mut |number, name| {
            found += 1;
            assert_eq!(read(store, &name)?, page(expected[&number]), "page {number} of {id}");
            Ok(())
        };
        store.for_each_page(&record.parts[0].tables["ram"], each).unwrap();
        assert_eq!(found, expected.len());
    }
}

#[test]
fn child() {
    let Some(path) = std::env::var_os(STORE) else { return };
    let count = std::env::var(COUNT).unwrap().parse().unwrap();
    grow(&open(Path::new(&path)).unwrap(), &std::env::var(BRANCH).unwrap(), count);
}

#[test]
fn processes_write_at_once_and_each_sees_the_others_pages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut children = ["a", "b"].map(|branch| spawn(&path, branch, 15));
    let store = open(&path).unwrap();
    grow(&store, "c", 15);
    assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
    assert_eq!(store.records().unwrap().len(), 45);
    assert_eq!(store.branches("lab").unwrap().len(), 3);
    check(&store);
    drop(store);
    assert_eq!(Store::rebuild_index(&path).unwrap().checkpoints, 45);
    check(&open(&path).unwrap());
}

#[test]
fn a_killed_writer_loses_nothing_permanent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let mut last = 0;
    for round in 0..100 {
        // On a slow disk it takes longer until there is one.
        if round >= 8 && last > 0 {
            break;
        }
        let mut child = spawn(&path, "a", usize::MAX);
        std::thread::sleep(Duration::from_millis(60 + round * 17));
        child.kill().unwrap();
        child.wait().unwrap();
        let store = open(&path).unwrap();
        assert!(files(&path.join("tmp")).is_empty(), "swept");
        let records = store.records().unwrap();
        assert!(records.len() >= last);
        last = records.len();
        check(&store);
    }
    assert!(last > 0);
}
