//! A collection that a crash ends at any of its operations on files, and what happens beside one.

use super::*;
use crate::{
    Cost, Hold, Record, Removal, VerifyOptions, Writer,
    files::Medium,
    tests::{open, open_on},
};
use fermata_types::{PAGE_SIZE, PageNumber, PartKind, PartState, Root};
use std::{
    path::Path,
    sync::{Arc, Mutex},
};

const ALL: CollectOptions = CollectOptions { rewrite_below: 100, wait: true, dry_run: false };

/// Keeps a copy of the whole store as it was before every operation.
struct Copying {
    store: PathBuf,
    copies: PathBuf,
    count: Mutex<u32>,
}

impl Copying {
    fn copy(&self) {
        let mut count = self.count.lock().unwrap();
        copy(&self.store, &self.copies.join(count.to_string()));
        *count += 1;
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for path in entries(from).unwrap() {
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &to) } else { _ = std::fs::copy(path, to).unwrap() }
    }
}

impl Medium for Copying {
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.copy();
        std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.copy();
        std::fs::rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.copy();
        std::fs::remove_file(path)
    }
    fn sync_directory(&self, _: &Path) -> io::Result<()> {
        self.copy();
        Ok(())
    }
}

/// A table of a page for each seed.
fn put(writer: &mut Writer, seeds: std::ops::Range<u8>) -> Root {
    let pages = (0..).zip(seeds).map(|(number, seed)| (number * 20, Some(writer.put_page(&[seed; PAGE_SIZE]).unwrap().0)));
    let changes: Vec<(PageNumber, _)> = pages.collect();
    writer.update_table(&Root::empty(2000), &changes).unwrap()
}

fn grow(store: &Store, branch: &str, seeds: std::ops::Range<u8>) -> CheckpointId {
    let mut writer = store.writer().unwrap();
    let ram = put(&mut writer, seeds);
    let part = PartState {
        name: "m1".into(),
        kind: PartKind::Machine,
        tables: [("ram".to_owned(), ram)].into(),
        blobs: Default::default(),
        details: serde_json::Value::Null,
    };
    let record = Record {
        parent: None,
        experiment: "lab".into(),
        branch: branch.into(),
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

fn packs(store: &Path) -> Vec<PathBuf> {
    entries(&store.join("packs")).unwrap().iter().flat_map(|directory| entries(directory).unwrap()).collect()
}

fn bytes(store: &Path) -> u64 {
    packs(store).iter().map(|path| path.metadata().unwrap().len()).sum()
}

#[test]
fn a_collection_that_a_crash_ends_anywhere_leaves_a_whole_store() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copies) = (dir.path().join("store"), dir.path().join("copies"));
    std::fs::create_dir(&path).unwrap();
    let medium = Arc::new(Copying { store: path.clone(), copies: copies.clone(), count: Mutex::new(0) });
    let store = open_on(&path, medium.clone()).unwrap();
    let dead = [grow(&store, "a", 1..90), grow(&store, "b", 100..150)];
    let alive = [grow(&store, "c", 80..99), grow(&store, "d", 200..220)];
    store.remove(&Removal { checkpoints: dead.to_vec(), ..Removal::default() }).unwrap();
    let from = *medium.count.lock().unwrap();
    store.collect(&ALL, &mut |_, _| {}).unwrap();
    let until = *medium.count.lock().unwrap();
    let length = bytes(&path);
    assert!(until - from > 8, "{} operations", until - from);
    for crash in from..until {
        let path = copies.join(crash.to_string());
        // Whoever builds the index again right after the crash gets what is alive, too.
        for rebuilt in [false, true] {
            if rebuilt {
                let rebuilt = Store::rebuild_index(&path).unwrap();
                assert_eq!((rebuilt.checkpoints, rebuilt.damaged.len()), (2, 0), "crash {crash}");
            }
            let copied = open(&path).unwrap();
            let report = copied.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
            assert_eq!((report.damage, report.checkpoints), (Vec::new(), 2), "crash {crash}, rebuilt {rebuilt}");
            assert!(alive.iter().all(|id| copied.record(id).is_ok()));
        }
        let copied = open(&path).unwrap();
        copied.collect(&ALL, &mut |_, _| {}).unwrap();
        let report = copied.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
        assert_eq!((report.damage, report.checkpoints), (Vec::new(), 2), "crash {crash}, collected again");
        let again = bytes(&path);
        assert!(again < length + length / 10, "crash {crash}: {again} bytes are left, not {length}");
    }
}

fn remove(store: &Store, ids: &[CheckpointId]) {
    store.remove(&Removal { checkpoints: ids.to_vec(), ..Removal::default() }).unwrap();
}

/// A checkpoint as whoever fetches it knows it.
struct Known {
    id: CheckpointId,
    record: Record,
    bytes: Vec<u8>,
    seeds: std::ops::Range<u8>,
}

impl Known {
    fn new(store: &Store, branch: &str, seeds: std::ops::Range<u8>) -> Self {
        let id = grow(store, branch, seeds.clone());
        let index = &store.0.index;
        let bytes = index.record(&index.read().unwrap(), &id).unwrap().unwrap().into_owned();
        Self { id, record: store.record(&id).unwrap(), bytes, seeds }
    }

    /// Enters it again, as a pull does.
    fn fetch(&self, store: &Store) {
        let mut writer = store.writer().unwrap();
        put(&mut writer, self.seeds.clone());
        writer.commit_copy(&self.id, &self.bytes, &self.record, &[]).unwrap();
    }

    /// Reads all its pages; how many there are.
    fn read(&self, store: &Store) -> Result<usize> {
        let mut found = Vec::new();
        store.for_each_page(&self.record.parts[0].tables["ram"], &mut |_, name| {
            let mut page = [0; PAGE_SIZE];
            store.read_page(&name, &mut page)?;
            found.push(page[0]);
            Ok(())
        })?;
        assert!(found.iter().copied().eq(self.seeds.clone()), "{found:?}");
        Ok(found.len())
    }
}

#[test]
fn who_fetches_holds_and_removes_beside_a_collection_that_ends_keeps_what_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let known = Known::new(&store, "a", 1..30);
    remove(&store, &[known.id]);
    let mut hold: Option<Hold> = None;
    store
        .collect(&ALL, &mut |stage, _| {
            // All is marked by now, and the trash is not yet emptied.
            if stage == CollectStage::Remove && hold.is_none() {
                known.fetch(&store);
                hold = Some(store.hold(&known.id).unwrap());
                remove(&store, &[known.id]);
            }
        })
        .unwrap();
    assert!(hold.is_some());
    for _ in 0..2 {
        store.collect(&ALL, &mut |_, _| {}).unwrap();
        store.0.forget();
        assert_eq!(known.read(&store).unwrap(), 29);
    }
    drop(hold);
    store.collect(&ALL, &mut |_, _| {}).unwrap();
    store.0.forget();
    assert!(matches!(known.read(&store), Err(Error::Missing { .. })));
}

#[test]
fn what_is_held_and_known_to_nobody_ends_a_collection() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let dead = grow(&store, "a", 1..30);
    remove(&store, &[dead]);
    let hold = Hold::ahead(&store, CheckpointId([5; 32])).unwrap();
    let before = bytes(dir.path());
    let error = store.collect(&ALL, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains("no record"), "{error}");
    assert_eq!(bytes(dir.path()), before);
    // It may be about to be committed.
    let writer = store.writer().unwrap();
    let told = store.collect(&CollectOptions { wait: false, ..ALL }, &mut |_, _| {}).unwrap();
    assert_eq!(told.waiting_for, 1);
    drop((hold, writer));
    assert_eq!(store.collect(&ALL, &mut |_, _| {}).unwrap().packs_removed, 1);
}

#[test]
fn nothing_new_relies_on_a_pack_that_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let first = grow(&store, "a", 1..90);
    let before = packs(dir.path());
    // Its table stands on nodes of the first, and has pages of its own.
    let second = grow(&store, "b", 1..100);
    let damaged = packs(dir.path()).into_iter().find(|pack| !before.contains(pack)).unwrap();
    remove(&store, &[first, second]);
    std::fs::write(&damaged, "no pack").unwrap();
    let told = store.collect(&ALL, &mut |_, _| {}).unwrap();
    assert_eq!((told.damaged.len(), told.packs_removed), (1, 1));
    let again = Known::new(&store, "c", 1..100);
    drop(store);
    assert_eq!(again.read(&open(dir.path()).unwrap()).unwrap(), 99);
}

/// The list of removed checkpoints may be older than the index: whoever fetched one again died before the list was written.
#[test]
fn what_came_again_is_there_when_the_index_is_built_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let known = Known::new(&store, "a", 1..50);
    grow(&store, "b", 1..40);
    remove(&store, &[known.id]);
    // The pack stays, with the record in it.
    store.collect(&CollectOptions { rewrite_below: 0, ..ALL }, &mut |_, _| {}).unwrap();
    known.fetch(&store);
    assert!(removed::read(dir.path(), &store.0.sealing).unwrap().contains_key(&known.id));
    drop(store);
    assert_eq!(Store::rebuild_index(dir.path()).unwrap().checkpoints, 2);
    let store = open(dir.path()).unwrap();
    assert_eq!(store.record(&known.id).unwrap(), known.record);
    assert_eq!(known.read(&store).unwrap(), 49);
}

/// A collection reads the tables of contents of all packs before it marks anything, which takes a while: what comes and goes meanwhile lies in a pack that it does not know.
#[test]
fn what_comes_and_goes_before_all_is_marked_keeps_what_it_stands_on() {
    use crate::tests::{grow, page, record};
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let first = grow(&store, None, 1).unwrap();
    let mut nothing = |_: CollectStage, _: Progress| {};
    let collection = Collection::begin(&store, &ALL, &mut nothing).unwrap();
    // Its nodes are deltas to those of the first.
    let second = grow(&store, Some(first), 2).unwrap();
    remove(&store, &[first, second]);
    collection.run().unwrap();
    // The same table again, from its pages: its nodes are found, and so is what they are deltas to.
    let mut writer = store.writer().unwrap();
    let changes: Vec<_> = (0..40).map(|i| ((i * 97) as PageNumber, Some(writer.put_page(&page(200 + i)).unwrap().0))).collect();
    let ram = writer.update_table(&Root::empty(4000), &changes).unwrap();
    writer.commit(&record(None, 3, ram, Default::default())).unwrap();
    store.0.forget();
    let mut found = 0;
    store
        .for_each_page(&ram, &mut |_, _| {
            found += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(found, 40);
    assert!(store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap().damage.is_empty());
}

/// It may be put back, or read well the next time.
#[test]
fn a_pack_that_a_rebuild_left_out_stays() {
    let dir = tempfile::tempdir().unwrap();
    let known = Known::new(&open(dir.path()).unwrap(), "a", 1..50);
    let pack = packs(dir.path()).remove(0);
    let whole = std::fs::read(&pack).unwrap();
    std::fs::write(&pack, "no pack").unwrap();
    assert_eq!(Store::rebuild_index(dir.path()).unwrap().damaged.len(), 1);
    for dry_run in [true, false] {
        let told = open(dir.path()).unwrap().collect(&CollectOptions { dry_run, ..ALL }, &mut |_, _| {}).unwrap();
        assert_eq!((told.damaged.len(), told.orphans), (1, 0));
    }
    assert!(pack.exists());
    std::fs::write(&pack, whole).unwrap();
    assert_eq!(Store::rebuild_index(dir.path()).unwrap().checkpoints, 1);
    assert_eq!(known.read(&open(dir.path()).unwrap()).unwrap(), 49);
}
