//! Damage to the index, which only the inside can do.

use super::*;
use crate::Cost;
use fermata_types::{PageBuf, PartKind, PartState};

fn page(seed: u8) -> PageBuf {
    [seed; PAGE_SIZE]
}

fn grow(store: &Store, parent: Option<CheckpointId>, seeds: std::ops::Range<u8>) -> CheckpointId {
    let mut writer = store.writer().unwrap();
    let changes: Vec<_> = (0..).zip(seeds).map(|(number, seed)| (number, Some(writer.put_page(&page(seed)).unwrap().0))).collect();
    let ram = writer.update_table(&Root::empty(1000), &changes).unwrap();
    let part = PartState {
        name: "m1".into(),
        kind: PartKind::Machine,
        tables: [("ram".to_owned(), ram)].into(),
        blobs: [("devices".to_owned(), writer.put_blob(b"state").unwrap())].into(),
        details: serde_json::Value::Null,
    };
    let record = Record {
        parent,
        experiment: "lab".into(),
        branch: "main".into(),
        message: None,
        created_ns: 1,
        time_virtual_ns: 1,
        events: 0,
        waiting: Vec::new(),
        spec: serde_json::Value::Null,
        parts: vec![part],
        images: Vec::new(),
        cost: Cost::default(),
    };
    writer.commit(&record).unwrap()
}

fn verify(store: &Store) -> Vec<Damage> {
    store.verify(&VerifyOptions { quick: true }, &mut |_, _| {}).unwrap().damage
}

#[test]
fn entries_of_the_index_that_lead_elsewhere_or_nowhere_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let first = grow(&store, None, 1..40);
    let second = grow(&store, Some(first), 30..60);
    assert_eq!(verify(&store), []);
    let index = &store.0.index;
    let name = crate::hash::page(&page(35)).0;
    let entry = index.get(&index.read().unwrap(), &index.pages, &name).unwrap().unwrap().to_vec();
    let put = |value: &[u8]| index.write(|write| index.put(write, &index.pages, &name, value)).unwrap();
    let needed_by = |damage: &Damage| damage.touches.iter().map(|touched| (touched.checkpoint, touched.pages.clone())).collect::<Vec<_>>();
    let mut expected = vec![(first, vec![(34, 34)]), (second, vec![(5, 5)])];
    expected.sort();
    // Another place, another frame length, another offset, no such pack, no location at all.
    for (at, value) in [(5, 9), (7, entry[7] ^ 1), (11, entry[11] ^ 1), (1, 77), (0, 9)] {
        let mut wrong = entry.clone();
        wrong[at] = value;
        put(&wrong);
        let damage = verify(&store);
        assert_eq!(damage.len(), 1, "byte {at}: {damage:?}");
        assert_eq!(damage[0].remedy, Remedy::Rebuild);
        assert_eq!(needed_by(&damage[0]), expected, "byte {at}");
    }
    index.write(|write| index.delete(write, &index.pages, &name)).unwrap();
    let damage = verify(&store);
    assert_eq!((damage.len(), needed_by(&damage[0])), (1, expected));
    put(&entry);
    assert_eq!(verify(&store), []);
}

#[test]
fn a_lost_checkpoint_and_a_branch_to_nowhere_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let id = grow(&store, None, 1..4);
    let index = &store.0.index;
    index.write(|write| index.delete(write, &index.records, id.as_bytes())).unwrap();
    let damage = verify(&store);
    assert_eq!(damage.len(), 2, "{damage:?}");
    assert!(damage[0].object.starts_with("checkpoint") && damage[1].object == "branch lab/main", "{damage:?}");
    assert!(damage.iter().all(|damage| damage.remedy == Remedy::Rebuild));
}
