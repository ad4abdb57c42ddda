//! Writing checkpoints and reading them back.

use crate::common::*;
use fermata_store::{Class, Error, Store};
use fermata_types::*;
use std::{
    collections::BTreeMap,
    os::unix::fs::PermissionsExt,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

#[test]
fn what_is_committed_is_read_back_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let pages: Vec<(PageNumber, u64)> = (0..100).map(|i| (i * 37, u64::from(i))).collect();
    let (id, root, blob, written) = {
        let store = open(&path).unwrap();
        let mut writer = store.writer().unwrap();
        let root = put(&mut writer, &Root::empty(65_536), &pages);
        let blob = writer.put_blob(b"device state").unwrap();
        assert_eq!(writer.put_blob(b"device state").unwrap(), blob);
        let mut record = record_of(None, "main", "first", root);
        record.parts[0].blobs.insert("devices".into(), blob);
        record.cost.stored_bytes = writer.stored_bytes().unwrap();
        (writer.commit(&record).unwrap(), root, blob, record)
    };
    let store = open(&path).unwrap();
    assert_eq!(store.record(&id).unwrap(), written);
    assert_eq!(store.branch("lab", "main").unwrap(), Some(id));
    assert_eq!(store.read_blob(&blob).unwrap(), b"device state");
    let mut named = BTreeMap::new();
    store.for_each_page(&root, &mut |number, name| Ok(_ = named.insert(number, name))).unwrap();
    assert_eq!(named.len(), pages.len());
    for (number, seed) in &pages {
        assert_eq!(store.lookup(&root, *number).unwrap(), Some(named[number]));
        assert_eq!(read(&store, &named[number]).unwrap(), page(*seed), "page {number}");
    }
    let length = std::fs::metadata(&packs(&path)[0]).unwrap().len();
    assert!(written.cost.stored_bytes < length && length < written.cost.stored_bytes + 2000, "{} of {length}", written.cost.stored_bytes);
}

#[test]
fn the_sieve_tells_zero_known_and_new_apart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let mut writer = store.writer().unwrap();
    assert_eq!(writer.put_page(&[0; PAGE_SIZE]).unwrap(), (ZERO_PAGE, Class::Zero));
    let mut almost_zero = [0; PAGE_SIZE];
    almost_zero[PAGE_SIZE - 1] = 1;
    let (name, class) = writer.put_page(&almost_zero).unwrap();
    assert_eq!(class, Class::New);
    assert_eq!(name.as_bytes(), blake3::hash(&almost_zero).as_bytes());
    assert_eq!(writer.put_page(&almost_zero).unwrap(), (name, Class::Within));
    let id = writer.commit(&record(None, "main", "first")).unwrap();
    let mut writer = store.writer().unwrap();
    assert_eq!(writer.put_page(&almost_zero).unwrap(), (name, Class::Known { distance: 1 }));
    assert_eq!(writer.put_page(&page(7)).unwrap().1, Class::New);
    let before = writer.stored_bytes().unwrap();
    assert_eq!(writer.put_page(&almost_zero).unwrap(), (name, Class::Known { distance: 1 }));
    assert_eq!(writer.stored_bytes().unwrap(), before);
    writer.commit(&record(Some(id), "main", "second")).unwrap();
    let mut writer = store.writer().unwrap();
    let mut counts = PageCounts::default();
    for content in [almost_zero, page(7), page(8), page(8), [0; PAGE_SIZE]] {
        writer.put_page(&content).unwrap().1.count_into(&mut counts);
    }
    let expected = PageCounts { zero: 1, known: 3, within: 1, new: 1, distances: counts.distances, ..PageCounts::default() };
    assert_eq!(counts, expected);
    assert_eq!(counts.distances.iter().collect::<Vec<_>>(), [(1, 1), (2, 1)], "one in the newest pack, one in that before");
    assert_eq!(read(&store, &ZERO_PAGE).unwrap(), [0; PAGE_SIZE]);
    assert_eq!(read(&store, &name).unwrap(), almost_zero);
}

#[test]
fn many_pages_come_in_the_order_in_which_they_lie_and_can_be_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let mut writer = store.writer().unwrap();
    let names: Vec<_> = (1..=50).map(|seed| writer.put_page(&if seed % 2 == 0 { page(seed) } else { noise(seed) }).unwrap().0).collect();
    writer.commit(&record(None, "main", "")).unwrap();
    // Backwards, twice each, and a zero page among them.
    let mut wanted: Vec<_> = (0..50).rev().flat_map(|i| [(i as PageNumber, names[i]), (1000 + i as PageNumber, names[i])]).collect();
    wanted.push((7777, ZERO_PAGE));
    let seen = Mutex::new(Vec::new());
    store
        .read_pages(wanted.clone(), &|number, content| {
            if number == 7777 {
                assert_eq!(content, &[0; PAGE_SIZE]);
            } else {
                let seed = u64::from(number % 1000) + 1;
                assert_eq!(content, &if seed % 2 == 0 { page(seed) } else { noise(seed) });
                seen.lock().unwrap().push(number % 1000);
            }
            true
        })
        .unwrap();
    assert_eq!(seen.into_inner().unwrap(), (0..50).flat_map(|i| [i, i]).collect::<Vec<_>>());
    let count = AtomicUsize::new(0);
    store.read_pages(wanted, &|_, _| count.fetch_add(1, Ordering::Relaxed) < 9).unwrap();
    assert_eq!(count.into_inner(), 10);
}

#[test]
fn a_writer_dropped_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let mut writer = store.writer().unwrap();
    let root = put(&mut writer, &Root::empty(100), &[(1, 1), (2, 2)]);
    writer.stored_bytes().unwrap();
    assert_eq!(files(&dir.path().join("tmp")).len(), 1);
    drop(writer);
    assert!(files(&dir.path().join("tmp")).is_empty());
    assert!(packs(dir.path()).is_empty());
    assert!(store.records().unwrap().is_empty());
    assert!(matches!(store.lookup(&root, 1), Err(Error::Missing { .. })));
}

#[test]
fn a_branch_that_somebody_else_moved_refuses_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let commit = |parent, branch: &str, message: &str| {
        let mut writer = store.writer().unwrap();
        writer.put_page(&page(message.len() as u64)).unwrap();
        writer.commit(&record(parent, branch, message))
    };
    let first = commit(None, "main", "1").unwrap();
    let second = commit(Some(first), "main", "22").unwrap();
    let error = commit(Some(first), "main", "333").unwrap_err();
    assert!(matches!(error, Error::Refused { .. }));
    assert!(error.to_string().contains(&first.short()) && error.to_string().contains(&second.short()), "{error}");
    assert_eq!(packs(dir.path()).len(), 2, "the refused pack is gone");
    // A new branch may start anywhere; a parent that is not there is no parent.
    let fork = commit(Some(first), "what-if", "4444").unwrap();
    assert_eq!(store.branches("lab").unwrap(), [("main".to_owned(), second), ("what-if".to_owned(), fork)].into());
    assert!(matches!(commit(Some(CheckpointId([9; 32])), "other", "55555"), Err(Error::Missing { .. })));
    // Two writers at once: the second to commit loses, and nothing of it is seen.
    let (mut a, mut b) = (store.writer().unwrap(), store.writer().unwrap());
    let (mine, theirs) = (a.put_page(&page(100)).unwrap().0, b.put_page(&page(200)).unwrap().0);
    a.commit(&record(Some(second), "main", "a")).unwrap();
    assert!(matches!(b.commit(&record(Some(second), "main", "b")), Err(Error::Refused { .. })));
    assert!(read(&store, &mine).is_ok());
    assert!(matches!(read(&store, &theirs), Err(Error::Missing { .. })));
}

#[test]
fn limits_are_refused_and_names_checked() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let mut writer = store.writer().unwrap();
    let refused = |result: Result<Root, Error>| assert!(matches!(result, Err(Error::Refused { .. })), "{result:?}");
    let name = writer.put_page(&page(1)).unwrap().0;
    refused(writer.update_table(&Root::empty(10), &[(10, Some(name))]));
    refused(writer.update_table(&Root::empty(10), &[(5, Some(name)), (4, Some(name))]));
    refused(writer.update_table(&Root::empty(10), &[(5, Some(name)), (5, None)]));
    refused(writer.update_table(&Root::empty((1 << 32) + 1), &[(5, Some(name))]));
    assert!(writer.put_blob(&[]).is_ok());
    assert!(matches!(writer.put_blob(&vec![0; (256 << 20) + 1]), Err(Error::Refused { .. })));
    for branch in ["", "a/b", "a~1", "a b", "-a", "a\0b", &"x".repeat(129)] {
        let error = store.writer().unwrap().commit(&record(None, branch, "")).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{branch:?}: {error}");
    }
    assert!(packs(dir.path()).is_empty());
}

#[test]
fn only_a_store_or_an_empty_directory_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.tex"), "x").unwrap();
    assert!(matches!(open(&foreign), Err(Error::Refused { .. })));
    assert_eq!(files(&foreign).len(), 1, "nothing was added");

    let path = dir.path().join("a/b/store");
    drop(open(&path).unwrap());
    for directory in ["", "index", "packs", "tmp", "live"] {
        let mode = std::fs::metadata(path.join(directory)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{directory}");
    }
    std::fs::write(path.join("format"), "fermata store 2\n").unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    for damaged in ["", "fermata store 1", "something else\n", "\u{0}\u{0}"] {
        std::fs::write(path.join("format"), damaged).unwrap();
        assert!(matches!(open(&path), Err(Error::Corrupt { .. })), "{damaged:?}");
    }
}

#[test]
fn opening_twice_in_one_process_gives_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let a = open(dir.path()).unwrap();
    let b = open(&dir.path().join("packs/..")).unwrap();
    a.writer().unwrap().commit(&record(None, "main", "")).unwrap();
    assert_eq!(b.records().unwrap().len(), 1);
    // Opened and closed by many threads at once, and always the same to each.
    drop((a, b));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(open(dir.path()).unwrap().records().unwrap().len(), 1);
                }
            });
        }
    });
}

#[test]
fn what_a_dead_writer_left_is_swept_and_what_a_live_one_writes_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    drop(open(&path).unwrap());
    std::fs::write(path.join("tmp/pack-dead"), "half a pack").unwrap();
    let live = std::fs::File::create(path.join("tmp/pack-live")).unwrap();
    live.lock().unwrap();
    drop(open(&path).unwrap());
    assert_eq!(files(&path.join("tmp")), [path.join("tmp/pack-live")]);
}

#[test]
fn writers_and_stores_can_go_to_other_threads() {
    fn check<T: Send>() {}
    fn check_sync<T: Send + Sync>() {}
    check::<fermata_store::Writer>();
    check_sync::<Store>();
    check_sync::<Error>();
}
