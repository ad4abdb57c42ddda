//! A disk that is full at every operation in turn.

use super::{
    crash::{grow_by_half, memory_dir, verified},
    *,
};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

/// Fails at operation after operation until `act` succeeds; `then` looks at what is left of each failure. Returns how many there were.
fn at_every_operation(medium: &Failing, mut act: impl FnMut() -> crate::Result<()>, mut then: impl FnMut()) -> u32 {
    for operations in 0.. {
        *medium.left.lock().unwrap() = Some(operations);
        let result = act();
        *medium.left.lock().unwrap() = None;
        match result {
            Ok(()) => return operations,
            Err(error) => {
                assert!(matches!(error, Error::Io { .. }), "{operations}: {error}");
                assert!(error.to_string().contains("the disk of the store is full"), "{operations}: {error}");
                then();
            }
        }
    }
    unreachable!()
}

#[test]
fn it_costs_only_the_checkpoint_being_written() {
    let dir = memory_dir();
    let medium = Arc::new(Failing { left: Mutex::new(None) });
    let store = open_on(dir.path(), medium.clone()).unwrap();
    let first = grow(&store, None, 1).unwrap();
    let clean = || {
        assert_eq!(check(&store), 1);
        assert_eq!(std::fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
    };
    let operations = at_every_operation(&medium, || grow(&store, Some(first), 2).map(drop), clean);
    assert!(operations > 8, "{operations} operations are not all there must be");
    assert_eq!(check(&store), 2);
}

#[test]
fn a_store_that_could_not_be_made_is_made_the_next_time() {
    let dir = memory_dir();
    let medium = Arc::new(Failing { left: Mutex::new(None) });
    let mut count = 0;
    let mut path = PathBuf::new();
    let mut fresh = || {
        count += 1;
        dir.path().join(format!("{count}/deep/store"))
    };
    // Each time anew, then on what the failure left.
    let mut left = Vec::new();
    let operations = at_every_operation(
        &medium,
        || {
            path = fresh();
            left.push(path.clone());
            grow(&open_on(&path, medium.clone())?, None, 1).map(drop)
        },
        || {},
    );
    assert!(operations > 20, "{operations} operations are not all there must be");
    for path in left {
        let store = open(&path).unwrap();
        if check(&store) == 0 {
            grow(&store, None, 1).unwrap();
        }
        assert_eq!(check(&store), 1);
    }
}

#[test]
fn a_rebuild_that_found_no_room_loses_neither_checkpoints_nor_tags() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    let medium = Arc::new(Failing { left: Mutex::new(None) });
    let first = {
        let store = open(&path).unwrap();
        let first = grow(&store, None, 1).unwrap();
        grow(&store, Some(first), 2).unwrap();
        store.tag("lab", "good", &first).unwrap();
        first
    };
    let operations = at_every_operation(&medium, || Store::rebuild_on(&path, medium.clone()).map(drop), || {});
    assert!(operations > 6, "{operations} operations are not all there must be");
    let store = open(&path).unwrap();
    assert_eq!(check(&store), 2);
    assert_eq!(store.tags("lab").unwrap().get("good"), Some(&first));
}

#[test]
fn a_collection_that_found_no_room_is_done_by_the_next() {
    let dir = memory_dir();
    let medium = Arc::new(Failing { left: Mutex::new(None) });
    let store = open_on(dir.path(), medium.clone()).unwrap();
    let mut head = None;
    let ids: Vec<_> = (1..5).map(|step| *head.insert(grow_by_half(&store, head, step))).collect();
    let removal = Removal { checkpoints: vec![ids[0], ids[2]], ..Removal::default() };
    let operations = at_every_operation(&medium, || store.remove(&removal).map(drop), || assert_eq!(verified(&store), 4));
    assert!(operations > 0);
    let options = CollectOptions { rewrite_below: 100, ..CollectOptions::default() };
    let operations = at_every_operation(&medium, || store.collect(&options, &mut |_, _| {}).map(drop), || assert_eq!(verified(&store), 2));
    assert!(operations > 8, "{operations} operations are not all there must be");
    assert_eq!(verified(&store), 2);
    let told = store.collect(&options, &mut |_, _| {}).unwrap();
    assert_eq!((told.packs_removed, told.orphans, told.bytes_dead), (0, 0, 0));
}

/// Room for what is written, but for no more.
#[derive(Default)]
struct NearlyFull {
    is_full: AtomicBool,
    files: AtomicU32,
}

impl Medium for NearlyFull {
    fn create(&self, path: &Path) -> io::Result<File> {
        self.files.fetch_add(1, SeqCst);
        FileSystem.create(path)
    }
    fn room(&self, directory: &Path) -> io::Result<u64> {
        if self.is_full.load(SeqCst) { Ok(4096) } else { FileSystem.room(directory) }
    }
}

#[test]
fn where_there_is_no_room_small_packs_stay_and_dead_ones_go() {
    let dir = memory_dir();
    let medium = Arc::new(NearlyFull::default());
    let store = open_on(dir.path(), medium.clone()).unwrap();
    let mut head = None;
    let ids: Vec<_> = (0..40).map(|step| *head.insert(grow(&store, head, step).unwrap())).collect();
    // A pack that is dead as a whole: nobody shares what is in it.
    let mut writer = store.writer().unwrap();
    let entry = (0, Some(writer.put_page(&page(1 << 40)).unwrap().0));
    let ram = writer.update_table(&Root::empty(4000), &[entry]).unwrap();
    let alone = writer.commit(&Record { branch: "aside".into(), ..record(None, 50, ram, BTreeMap::new()) }).unwrap();
    store.remove(&Removal { checkpoints: vec![alone], ..Removal::default() }).unwrap();
    let collect = |is_full| {
        medium.is_full.store(is_full, SeqCst);
        let before = medium.files.load(SeqCst);
        let told = store.collect(&CollectOptions::default(), &mut |_, _| {}).unwrap();
        (told.packs_removed, told.packs_rewritten, told.packs_written, medium.files.load(SeqCst) - before)
    };
    let (removed, rewritten, written, files) = collect(true);
    assert_eq!((removed, rewritten, written), (1, 0, 0));
    // What is removed is noted in a file of its own.
    assert!(files <= 2, "{files}");
    assert_eq!(verified(&store), ids.len());
    assert_eq!(collect(false).1, ids.len() as u64);
    assert_eq!(verified(&store), ids.len());
}
