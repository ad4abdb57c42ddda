//! Damage to the index, which only the inside can do.

use super::*;
use crate::{
    Cost,
    tests::{is_encrypted, open},
};
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
        after_ns: None,
        time_virtual_ns: 1,
        began_ns: None,
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
fn entries_that_only_the_index_has_are_vouched_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let id = grow(&store, None, 1..4);
    store.tag("lab", "good", &id).unwrap();
    let index = &store.0.index;
    // Past what keeps the sum, as a flipped bit is.
    let change = |db: &crate::index::Db, key: &[u8], value: Option<&[u8]>| {
        let changed = index.write(|write| {
            match value {
                Some(value) => db.put(write, key, value).unwrap(),
                None => assert!(db.delete(write, key).unwrap()),
            }
            Ok(())
        });
        changed.unwrap();
    };
    let is_named = || {
        let damage = verify(&store);
        assert!(damage.len() <= 1 || is_encrypted(), "{damage:?}");
        assert!(damage.iter().all(|damage| damage.remedy == Remedy::Rebuild && damage.path == index.path()), "{damage:?}");
        !damage.is_empty()
    };
    for before_the_sum in [false, true] {
        if before_the_sum {
            change(&index.meta, b"guard", None);
            assert!(!is_named(), "an index from before");
            store.tag("lab", "better", &id).unwrap();
        }
        assert!(!is_named());
        change(&index.refs, b"tlab\0gooe", Some(id.as_bytes()));
        assert!(is_named(), "a tag by another name");
        change(&index.refs, b"tlab\0gooe", None);
        change(&index.meta, b"collections", Some(&[9, 0, 0, 0]));
        assert!(is_named(), "another number");
        change(&index.meta, b"collections", None);
        change(&index.meta, b"guarc", Some(&[0; 32]));
        assert!(is_named(), "a key that is none");
        change(&index.meta, b"guarc", None);
        assert!(!is_named());
    }
    store.set_hint(&id, "warm", b"1").unwrap();
    store.set_hint(&id, "warm", b"2").unwrap();
    assert!(!is_named());
}

struct Image;

impl crate::ImageReader for Image {
    fn blocks(&self) -> u64 {
        200
    }

    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> std::io::Result<()> {
        into.fill(1 + (block % 250) as u8);
        Ok(())
    }
}

#[test]
fn a_block_of_a_closed_image_is_held_against_its_kept_name() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).unwrap().add_image(ImageId([7; 32]), std::sync::Arc::new(Image), &mut |_| {}).unwrap();
    let store = open(dir.path()).unwrap();
    let damage = || store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap().damage;
    let (index, name) = (&store.0.index, crate::hash::page(&page(50)).0);
    let put = |image, block| {
        let entry = Location::Image { image, block }.encode();
        index.write(|write| index.put(write, &index.pages, &name, entry.as_ref())).unwrap();
    };
    assert_eq!(damage(), []);
    for (image, block) in [(0, 50), (0, 200), (0, 1 << 20), (1, 49)] {
        put(image, block);
        let damage = damage();
        assert_eq!((damage.len(), damage[0].remedy), (1, Remedy::Rebuild), "{damage:?}");
    }
    put(0, 49);
    assert_eq!(damage(), []);
}

#[test]
fn entries_of_the_index_that_lead_elsewhere_or_nowhere_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
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
    let store = open(dir.path()).unwrap();
    let id = grow(&store, None, 1..4);
    let index = &store.0.index;
    index.write(|write| index.delete(write, &index.records, id.as_bytes())).unwrap();
    let damage = verify(&store);
    assert_eq!(damage.len(), 2, "{damage:?}");
    assert!(damage[0].object.starts_with("checkpoint") && damage[1].object == "branch lab/main", "{damage:?}");
    assert!(damage.iter().all(|damage| damage.remedy == Remedy::Rebuild));
}
