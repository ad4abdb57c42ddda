//! Crashes: every point between two operations, and every state that one can leave there.

use super::{
    disk::{Random, Recorder, fingerprint, lay},
    *,
};
use crate::{BranchName, Class, ImageReader};
use std::collections::HashSet;

/// States tried for one point at most, when there are too many to try all. An encrypted store does the same in the same order.
fn most() -> usize {
    match std::env::var_os("FERMATA_LONG") {
        Some(_) => 512,
        None if is_encrypted() => 32,
        None => 64,
    }
}

pub fn memory_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Calls `each` with every state of every point, once for each that differs: how many of `marks` are passed there, and where it lies.
fn for_each_crash(recorder: &Recorder, marks: &[usize], most: usize, mut each: impl FnMut(usize, &Path)) -> usize {
    let dir = memory_dir();
    let mut random = Random(7);
    let mut seen = HashSet::new();
    for point in 0..=recorder.count() {
        let passed = marks.iter().filter(|mark| **mark <= point).count();
        for state in recorder.crashes(point, &mut random, most) {
            if seen.insert((fingerprint(&state), passed)) {
                let path = dir.path().join(seen.len().to_string());
                lay(&state, &path);
                each(passed, &path);
                std::fs::remove_dir_all(&path).unwrap();
            }
        }
    }
    seen.len()
}

/// The store is whole, holds `permanent` checkpoints or the one more that was being committed, and goes on. Returns how many it holds.
fn goes_on(path: &Path, permanent: usize) -> usize {
    let store = open(path).unwrap_or_else(|error| panic!("{permanent} checkpoints: {error}"));
    assert_eq!(std::fs::read_dir(path.join("tmp")).unwrap().count(), 0, "swept");
    let count = check(&store);
    assert_eq!(verified(&store), count);
    assert!((permanent..=permanent + 1).contains(&count), "{count} checkpoints instead of {permanent}");
    let head = store.branch("lab", "main").unwrap();
    // The very checkpoint that was being written, again.
    grow(&store, head, count as u64 + 1).unwrap();
    assert_eq!(check(&store), count + 1);
    count
}

#[test]
fn a_crash_loses_nothing_permanent_and_shows_nothing_half_made() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    std::fs::create_dir(&path).unwrap();
    let recorder = Recorder::new(&path);
    let store = open_on(&path, recorder.clone()).unwrap();
    let mut marks = Vec::new();
    let mut head = None;
    for step in 1..4 {
        head = Some(grow(&store, head, step).unwrap());
        marks.push(recorder.count());
        if step == 2 {
            store.0.index.settle().unwrap();
        }
        // And one that is given up.
        store.writer().unwrap().put_page(&page(900 + step)).unwrap();
    }
    let states = for_each_crash(&recorder, &marks, most(), |permanent, path| _ = goes_on(path, permanent));
    println!("{} operations, {states} states", recorder.count());
    assert!(states > 80, "{states} states are not all there must be");
}

/// A golden image of blocks that no checkpoint has.
pub(super) struct Image;

impl ImageReader for Image {
    fn blocks(&self) -> u64 {
        300
    }

    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> io::Result<()> {
        *into = page(10_000 + u64::from(block));
        Ok(())
    }
}

#[test]
fn names_hints_and_images_are_there_after_a_crash_or_were_never_given() {
    const IMAGE: ImageId = ImageId([7; 32]);
    let dir = memory_dir();
    let path = dir.path().join("store");
    let first = {
        let store = open(&path).unwrap();
        let first = grow(&store, None, 1).unwrap();
        grow(&store, Some(first), 2).unwrap();
        store.set_branch("lab", "side", &first).unwrap();
        first
    };
    let recorder = Recorder::new(&path);
    let mut marks = Vec::new();
    {
        let store = open_on(&path, recorder.clone()).unwrap();
        store.tag("lab", "good", &first).unwrap();
        marks.push(recorder.count());
        store.set_hint(&first, "warm", b"a hint").unwrap();
        marks.push(recorder.count());
        let branches = vec![BranchName { experiment: "lab".into(), branch: "side".into() }];
        store.remove(&Removal { branches, ..Removal::default() }).unwrap();
        marks.push(recorder.count());
        store.add_image(IMAGE, Arc::new(Image), &mut |_| {}).unwrap();
        marks.push(recorder.count());
    }
    assert!(marks.windows(2).all(|pair| pair[0] < pair[1]), "{marks:?}");
    let states = for_each_crash(&recorder, &marks, most(), |passed, path| {
        let store = open(path).unwrap();
        assert_eq!((check(&store), verified(&store)), (2, 2));
        let tag = store.tags("lab").unwrap().get("good").copied();
        let hint = store.hint(&first, "warm").unwrap();
        assert!(tag.is_none_or(|id| id == first) && hint.as_deref().is_none_or(|hint| hint == b"a hint"));
        let mut hashed = false;
        store.add_image(IMAGE, Arc::new(Image), &mut |_| hashed = true).unwrap();
        // One after the other: what was done before the crash is there, what came after it is not.
        let done = [tag.is_some(), hint.is_some(), store.branch("lab", "side").unwrap().is_none(), !hashed];
        let count = done.iter().take_while(|done| **done).count();
        assert!((passed..=passed + 1).contains(&count) && done[count..].iter().all(|done| !done), "{passed}: {done:?}");
        for block in [0, 126, 127, 299] {
            let content = page(10_000 + u64::from(block));
            let (name, class) = store.writer().unwrap().put_page(&content).unwrap();
            assert_eq!((class, store.image_block(&IMAGE, block)), (Class::OnDisk, Some(name)));
        }
        assert_eq!(verified(&store), 2);
    });
    println!("{} operations, {states} states", recorder.count());
    assert!(states > 10, "{states} states are not all there must be");
}

#[test]
fn a_process_builds_on_nothing_that_a_dead_one_left_unsynced() {
    let points = if std::env::var_os("FERMATA_LONG").is_some() { 1 } else { 2 };
    let mut alive = false;
    for death in (0..).step_by(points) {
        let dir = memory_dir();
        let path = dir.path().join("store");
        std::fs::create_dir(&path).unwrap();
        let recorder = Recorder::new(&path);
        recorder.die_at(Some(death));
        let first = open_on(&path, recorder.clone()).and_then(|store| grow(&store, None, 1));
        alive = first.is_ok();
        if alive {
            assert!(death > 20, "{death} operations are not all there must be");
            break;
        }
        recorder.die_at(None);
        grow(&open_on(&path, recorder.clone()).unwrap(), None, 1).unwrap();
        let mut random = Random(death as u64);
        for (number, state) in recorder.crashes(recorder.count(), &mut random, most() / 4).iter().enumerate() {
            let path = dir.path().join(number.to_string());
            lay(state, &path);
            assert_eq!(goes_on(&path, 1), 1, "a process died before operation {death}");
            std::fs::remove_dir_all(&path).unwrap();
        }
    }
    assert!(alive);
}

#[test]
fn a_rebuild_may_be_interrupted_again_and_again() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    let first = {
        let store = open(&path).unwrap();
        let first = grow(&store, None, 1).unwrap();
        grow(&store, Some(first), 2).unwrap();
        store.tag("lab", "good", &first).unwrap();
        first
    };
    let whole = |path: &Path| {
        let store = open(path).unwrap();
        assert_eq!((check(&store), verified(&store)), (2, 2));
        assert_eq!(store.tags("lab").unwrap().get("good"), Some(&first), "the tag");
    };
    let recorder = Recorder::new(&path);
    Store::rebuild_on(&path, recorder.clone()).unwrap();
    whole(&path);
    let mut twice = 0;
    let states = for_each_crash(&recorder, &[], most(), |_, path| {
        match open(path) {
            Err(Error::IndexLost { .. }) => {}
            opened => assert_eq!(check(&opened.unwrap()), 2),
        }
        let recorder = Recorder::new(path);
        Store::rebuild_on(path, recorder.clone()).unwrap();
        whole(path);
        twice += for_each_crash(&recorder, &[], most() / 8, |_, path| {
            Store::rebuild_index(path).unwrap();
            whole(path);
        });
    });
    println!("{states} states, and {twice} of a second crash");
}

/// Everything in the store is as its names say, down to every page; returns how many checkpoints there are.
pub fn verified(store: &Store) -> usize {
    let report = store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    store.records().unwrap().len()
}

/// Grows the branch by a checkpoint that shares half its pages with the one before.
pub fn grow_by_half(store: &Store, parent: Option<CheckpointId>, step: u64) -> CheckpointId {
    let base = parent.map_or(Root::empty(4000), |parent| store.record(&parent).unwrap().parts[0].tables["ram"]);
    let mut writer = store.writer().unwrap();
    let pages = (0..40).filter(|i| parent.is_none() || i % 2 == step % 2);
    let changes: Vec<_> = pages.map(|i| ((i * 97) as PageNumber, Some(writer.put_page(&page(step * 100 + i)).unwrap().0))).collect();
    let ram = writer.update_table(&base, &changes).unwrap();
    writer.commit(&record(parent, step, ram, Default::default())).unwrap()
}

#[test]
fn a_removal_and_a_collection_may_be_interrupted_anywhere() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    let ids: Vec<_> = {
        let store = open(&path).unwrap();
        let mut head = None;
        let mut grow = |step| *head.insert(grow_by_half(&store, head, step));
        let settled: Vec<_> = (1..4).map(&mut grow).collect();
        store.0.index.settle().unwrap();
        settled.into_iter().chain((4..7).map(grow)).collect()
    };
    let collect = |store: &Store| {
        let options = CollectOptions { rewrite_below: 100, ..CollectOptions::default() };
        store.collect(&options, &mut |_, _| {}).unwrap()
    };
    let recorder = Recorder::new(&path);
    let mut marks = Vec::new();
    {
        let store = open_on(&path, recorder.clone()).unwrap();
        let checkpoints = vec![ids[0], ids[2], ids[3]];
        store.remove(&Removal { checkpoints, ..Removal::default() }).unwrap();
        marks.push(recorder.count());
        let told = collect(&store);
        assert!(told.packs_rewritten > 0 && told.packs_removed > told.packs_rewritten, "{told:?}");
        marks.push(recorder.count());
        assert_eq!(verified(&store), 3);
    }
    let states = for_each_crash(&recorder, &marks, most(), |passed, path| {
        let store = open(path).unwrap();
        let count = verified(&store);
        assert!(count == 3 || (passed == 0 && count == 6), "{count} checkpoints");
        let told = collect(&store);
        assert!(told.damaged.is_empty() && verified(&store) == count);
        let again = collect(&store);
        assert_eq!((again.packs_removed, again.orphans), (0, 0), "the first went to the end");
        grow_by_half(&store, Some(ids[5]), 8);
        drop(store);
        assert_eq!(Store::rebuild_index(path).unwrap().checkpoints, count as u64 + 1, "nothing comes back");
        assert_eq!(verified(&open(path).unwrap()), count + 1);
    });
    println!("{} operations, {states} states", recorder.count());
    assert!(states > 20, "{states} states are not all there must be");
}
