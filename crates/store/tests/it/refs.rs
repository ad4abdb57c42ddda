//! Branches, tags, and finding checkpoints.

use crate::common::*;
use fermata_store::{Error, Record, Removal, Result, Store};
use fermata_types::*;

fn line(store: &Store, branch: &str, from: Option<CheckpointId>, count: usize) -> Vec<CheckpointId> {
    let mut parent = from;
    let mut ids = Vec::new();
    for step in 0..count {
        let mut record = record(parent, branch, &step.to_string());
        record.created_ns += step as u64;
        let id = store.writer().unwrap().commit(&record).unwrap();
        parent = Some(id);
        ids.push(id);
    }
    ids
}

fn missing(result: Result<CheckpointId>) {
    assert!(matches!(result, Err(Error::Missing { .. })), "{result:?}");
}

#[test]
fn checkpoints_are_found_by_what_people_type() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let ids = line(&store, "main", None, 5);
    store.tag("lab", "known-good", &ids[2]).unwrap();
    let find = |text: &str| store.resolve(text, Some("lab"));
    for (text, expected) in [
        ("main", 4),
        ("main~", 3),
        ("main~1", 3),
        ("main~4", 0),
        ("main~0", 4),
        ("known-good", 2),
        ("known-good~2", 0),
        ("lab/main", 4),
        ("lab/known-good~1", 1),
    ] {
        assert_eq!(find(text).unwrap(), ids[expected], "{text}");
    }
    for id in &ids {
        let text = id.to_string();
        for digits in [64, 40, 12] {
            assert_eq!(find(&text[..digits]).unwrap(), *id);
            assert_eq!(store.resolve(&text[..digits].to_uppercase(), None).unwrap(), *id);
        }
    }
    assert_eq!(find(&format!("{}~2", ids[4].short())).unwrap(), ids[2]);
    for text in
        ["", "~", "~1", "nothing", "main~5", "main~99999999999", "lab/nothing", "other/main", "fff", "main/lab", "a/b/c", "0000000000"]
    {
        missing(find(text));
    }
    missing(store.resolve("main", None));
    missing(store.resolve("main", Some("other")));
    assert!(matches!(find("main~x"), Err(Error::Refused { .. })));
    assert!(matches!(find("main~1~1"), Err(Error::Refused { .. })));
    // A tag comes before an id of the same digits.
    let prefix = &ids[0].to_string()[..4];
    store.tag("lab", prefix, &ids[3]).unwrap();
    assert_eq!(find(prefix).unwrap(), ids[3]);
}

#[test]
fn branches_and_tags_belong_to_their_experiment() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let ids = line(&store, "main", None, 2);
    store.set_branch("lab", "back", &ids[0]).unwrap();
    store.set_branch("lab2", "main", &ids[0]).unwrap();
    store.tag("lab", "t", &ids[0]).unwrap();
    store.tag("lab", "t", &ids[0]).unwrap();
    assert!(matches!(store.tag("lab", "t", &ids[1]), Err(Error::Refused { .. })));
    assert_eq!(store.branches("lab").unwrap(), [("back".to_owned(), ids[0]), ("main".to_owned(), ids[1])].into());
    assert_eq!(store.tags("lab").unwrap(), [("t".to_owned(), ids[0])].into());
    assert!(store.tags("lab2").unwrap().is_empty());
    store.untag("lab", "t").unwrap();
    assert!(matches!(store.untag("lab", "t"), Err(Error::Missing { .. })));
    assert!(store.tags("lab").unwrap().is_empty());
    assert!(matches!(store.set_branch("lab", "x", &CheckpointId([1; 32])), Err(Error::Missing { .. })));
    assert!(matches!(store.tag("lab", "x", &CheckpointId([1; 32])), Err(Error::Missing { .. })));
    assert_eq!(store.branch("lab", "x").unwrap(), None);
    missing(store.record(&CheckpointId([1; 32])).map(|_| ids[0]));
}

#[test]
fn records_come_parents_first() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let main = line(&store, "main", None, 6);
    let fork = line(&store, "fork", Some(main[2]), 4);
    let records = store.records().unwrap();
    assert_eq!(records.len(), main.len() + fork.len());
    for (at, (_, record)) in records.iter().enumerate() {
        assert!(record.parent.is_none_or(|parent| records[..at].iter().any(|(id, _)| *id == parent)));
    }
}

#[test]
fn a_clock_that_is_set_back_makes_nothing_newer() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    let commit = |branch: &str, parent, created_ns| {
        let record = Record { created_ns, ..record(parent, branch, "") };
        store.writer().unwrap().commit(&store.in_line(record)).unwrap()
    };
    let ids = |records: Vec<(CheckpointId, Record)>| -> Vec<_> { records.into_iter().map(|(id, _)| id).collect() };
    let mut main = vec![commit("main", None, 3_600_000)];
    for at in [3_600_002, 1000, 1002, 1002, 1004] {
        main.push(commit("main", main.last().copied(), at));
    }
    let side = commit("side", None, 2000);
    let mut order = main.clone();
    order.insert(0, side);
    assert_eq!(ids(store.records().unwrap()), order);
    order.reverse();
    assert_eq!(ids(store.newest("lab", 9).unwrap()), order);
    assert_eq!(ids(store.newest("lab", 2).unwrap()), order[..2]);
    // They stay in order when those are gone behind which they came, and in an index that is made anew.
    store.remove(&Removal { checkpoints: main[..2].to_vec(), ..Removal::default() }).unwrap();
    assert_eq!(ids(store.newest("lab", 9).unwrap()), [&order[..4], &[side]].concat());
    let mut kept = order[..4].to_vec();
    kept.push(side);
    kept.reverse();
    assert_eq!(ids(store.records().unwrap()), kept);
    // As soon as the clock shows more than it ever did, it is believed.
    let record = Record { created_ns: 3_700_000, ..record(main.last().copied(), "main", "") };
    assert_eq!(store.in_line(record.clone()), record);
}

#[test]
fn the_newest_are_found_by_their_age() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    let commit = |experiment: &str, branch: &str, parent, created_ns| {
        let record = Record { experiment: experiment.into(), created_ns, ..record(parent, branch, "") };
        store.writer().unwrap().commit(&record).unwrap()
    };
    let first = commit("lab", "main", None, 100);
    let second = commit("lab", "main", Some(first), 300);
    let side = commit("lab", "side", None, 200);
    // Names that begin alike, and one that sorts between them.
    let others = ["lab.2", "laba", "l"].map(|name| commit(name, "main", None, 250));
    let newest = |experiment: &str, count| -> Vec<_> { store.newest(experiment, count).unwrap().into_iter().map(|(id, _)| id).collect() };
    assert_eq!((newest("lab", 2), newest("lab", 9)), (vec![second, side], vec![second, side, first]));
    assert_eq!((newest("lab.2", 9), newest("la", 9), newest("lab", 0)), (vec![others[0]], vec![], vec![]));
    assert_eq!(store.experiments().unwrap(), ["l", "lab", "lab.2", "laba"]);
    store.remove(&Removal { checkpoints: vec![first, others[1]], ..Removal::default() }).unwrap();
    assert_eq!(store.newest("lab", 9).unwrap()[0].1.parent, None, "the nearest that was not removed");
    assert_eq!((newest("lab", 9), store.experiments().unwrap()), (vec![second, side], vec!["l".into(), "lab".into(), "lab.2".into()]));
    drop(store);
    Store::rebuild_index(dir.path()).unwrap();
    let store = open(dir.path()).unwrap();
    let newest: Vec<_> = store.newest("lab", 9).unwrap().into_iter().map(|(id, _)| id).collect();
    // Packs still have the record of what was removed and not collected; the file beside them does not know of it yet.
    assert_eq!(newest.iter().filter(|id| **id != first).copied().collect::<Vec<_>>(), [second, side]);
}
