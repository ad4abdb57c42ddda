//! What stays remembered of removed checkpoints, however many there were.

use super::*;
use crate::{
    CollectOptions, Removal,
    tests::{grow, open, record},
};
use fermata_types::Root;

fn id(number: u8) -> CheckpointId {
    CheckpointId([number; 32])
}

/// Removes checkpoints and collects, and says what is remembered then.
fn remove(store: &Store, ids: &[CheckpointId]) -> BTreeMap<CheckpointId, Option<CheckpointId>> {
    store.remove(&Removal { checkpoints: ids.to_vec(), ..Removal::default() }).unwrap();
    collect(store)
}

fn collect(store: &Store) -> BTreeMap<CheckpointId, Option<CheckpointId>> {
    store.collect(&CollectOptions { rewrite_below: 100, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
    let index = &store.0.index;
    all(index, &index.read().unwrap()).unwrap()
}

#[test]
fn removed_ones_lead_past_each_other() {
    let line = |line: &[(u8, Option<u8>)]| line.iter().map(|(from, to)| (id(*from), to.map(id))).collect::<BTreeMap<_, _>>();
    let removed = line(&[(9, Some(5)), (5, Some(7)), (7, Some(1)), (6, Some(7)), (4, None), (3, Some(4)), (20, Some(21)), (21, Some(20))]);
    let led = line(&[(9, Some(1)), (5, Some(1)), (7, Some(1)), (6, Some(1)), (4, None), (3, None), (20, None), (21, None)]);
    assert_eq!(shortened(&removed).into_iter().collect::<BTreeMap<_, _>>(), led);
}

#[test]
fn a_line_is_remembered_by_its_last_however_many_were_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let first = grow(&store, None, 0).unwrap();
    let (mut kept, mut parent) = (Vec::new(), first);
    for step in 1..120 {
        let next = grow(&store, Some(parent), step).unwrap();
        kept.push(next);
        parent = next;
        if kept.len() == 12 {
            // As one does who keeps the last few.
            let remembered = remove(&store, &kept.drain(..9).collect::<Vec<_>>());
            assert_eq!(remembered.len(), 1, "only the parent of the oldest that is left is remembered");
            assert_eq!(remembered.values().copied().collect::<Vec<_>>(), [Some(first)]);
        }
    }
    assert_eq!(store.record(&kept[0]).unwrap().parent, Some(first));
    drop(store);
    Store::rebuild_index(dir.path()).unwrap();
    let store = open(dir.path()).unwrap();
    assert_eq!(store.record(&kept[0]).unwrap().parent, Some(first));
    grow(&store, kept.last().copied(), 1000).unwrap();
    assert!(remove(&store, &[first]).values().all(Option::is_none));
}

#[test]
fn nothing_is_remembered_when_nobody_descends_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let mut line = vec![grow(&store, None, 0).unwrap()];
    (1..10).for_each(|step| line.push(grow(&store, line.last().copied(), step).unwrap()));
    assert!(remove(&store, &line).is_empty());
}

#[test]
fn who_stands_on_a_removed_one_goes_on_when_those_before_it_are_removed_later() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let first = grow(&store, None, 0).unwrap();
    let second = grow(&store, Some(first), 1).unwrap();
    let third = grow(&store, Some(second), 2).unwrap();
    let hold = store.hold(&third).unwrap();
    remove(&store, &[third]);
    assert_eq!(remove(&store, &[second]), [(third, Some(first))].into());
    let next = store.writer().unwrap().commit(&record(Some(third), 3, Root::empty(4000), BTreeMap::new())).unwrap();
    drop(hold);
    assert_eq!(collect(&store), [(third, Some(first))].into());
    assert_eq!(store.record(&next).unwrap().parent, Some(first));
}
