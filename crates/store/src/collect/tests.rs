//! A collection that a crash ends at any of its operations on files.

use super::*;
use crate::{
    Cost, Record, Removal, VerifyOptions,
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

fn grow(store: &Store, branch: &str, seeds: std::ops::Range<u8>) -> CheckpointId {
    let mut writer = store.writer().unwrap();
    let pages = (0..).zip(seeds).map(|(number, seed)| (number * 20, Some(writer.put_page(&[seed; PAGE_SIZE]).unwrap().0)));
    let changes: Vec<(PageNumber, _)> = pages.collect();
    let ram = writer.update_table(&Root::empty(2000), &changes).unwrap();
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

fn bytes(store: &Path) -> u64 {
    crate::rebuild::entries(&store.join("packs"))
        .unwrap()
        .iter()
        .flat_map(|directory| entries(directory).unwrap())
        .map(|path| path.metadata().unwrap().len())
        .sum()
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
