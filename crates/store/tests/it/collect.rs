//! Collecting garbage: what is alive stays whole, and nothing else stays.

use crate::common::*;
use fermata_store::{BranchName, Class, CollectOptions, CollectStage, Collected, Error, Hold, Removal, Store, Writer};
use fermata_types::*;
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

const ALL: CollectOptions = CollectOptions { rewrite_below: 100, wait: true, dry_run: false };

fn collect(store: &Store, options: &CollectOptions) -> Collected {
    let collected = store.collect(options, &mut |_, _| {}).unwrap();
    assert!(collected.damaged.is_empty(), "{collected:?}");
    collected
}

fn remove(store: &Store, ids: &[CheckpointId]) {
    store.remove(&Removal { checkpoints: ids.to_vec(), ..Removal::default() }).unwrap();
}

fn commit(store: &Store, parent: Option<CheckpointId>, branch: &str, message: &str, pages: &[(PageNumber, u64)]) -> CheckpointId {
    let mut writer = store.writer().unwrap();
    let root = put(&mut writer, &Root::empty(1000), pages);
    writer.commit(&record_of(parent, branch, message, root)).unwrap()
}

fn pages(seeds: std::ops::Range<u64>) -> Vec<(PageNumber, u64)> {
    (0..).zip(seeds).collect()
}

fn is_whole(store: &Store, id: &CheckpointId, pages: &[(PageNumber, u64)]) {
    let root = store.record(id).unwrap().parts[0].tables["ram"];
    let mut left: BTreeMap<_, _> = pages.iter().copied().collect();
    let each = &mut |number, name| {
        let seed = left.remove(&number).unwrap();
        assert_eq!(read(store, &name)?, page(seed), "page {number}");
        Ok(())
    };
    store.for_each_page(&root, each).unwrap();
    assert!(left.is_empty());
}

fn class(store: &Store, seed: u64) -> Class {
    store.writer().unwrap().put_page(&page(seed)).unwrap().1
}

fn bytes(path: &Path) -> u64 {
    packs(path).iter().map(|pack| pack.metadata().unwrap().len()).sum()
}

#[test]
fn packs_go_when_nothing_in_them_is_needed_and_are_rewritten_when_little_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let all = commit(&store, None, "a", "all", &pages(0..200));
    let few = commit(&store, None, "b", "few", &pages(190..210));
    let other = commit(&store, None, "c", "other", &pages(300..400));
    let collected = collect(&store, &ALL);
    assert_eq!((collected.packs_removed, collected.objects_removed, collected.checkpoints), (0, 0, 3));
    remove(&store, &[all, other]);
    let before = bytes(dir.path());
    let told = collect(&store, &CollectOptions { dry_run: true, ..ALL });
    assert_eq!((bytes(dir.path()), told.bytes_before), (before, before));
    let collected = collect(&store, &ALL);
    assert_eq!((collected.packs_removed, collected.packs_rewritten, collected.packs_written), (2, 1, 1));
    assert_eq!((told.packs_removed, told.packs_rewritten, told.objects_removed), (2, 1, collected.objects_removed));
    // Pages, two leaves and their roots, two records.
    assert_eq!(collected.objects_removed, 190 + 100 + 4 + 2);
    assert_eq!(collected.bytes_after, bytes(dir.path()));
    assert!(collected.bytes_after * 5 < before, "{collected:?} of {before}");
    is_whole(&store, &few, &pages(190..210));
    assert!(matches!(class(&store, 195), Class::Known { .. }));
    assert_eq!(class(&store, 5), Class::New);
    assert_eq!(collect(&store, &ALL).packs_removed, 0, "there is nothing left to do");
}

#[test]
fn a_pack_that_is_mostly_alive_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let all = commit(&store, None, "a", "all", &pages(0..200));
    let most = commit(&store, None, "b", "most", &pages(0..150));
    remove(&store, &[all]);
    let collected = collect(&store, &CollectOptions::default());
    assert_eq!(collected.packs_removed, 0);
    assert!(collected.bytes_dead > 0);
    is_whole(&store, &most, &pages(0..150));
    // What lies there anyway may as well be used.
    assert!(matches!(class(&store, 199), Class::Known { .. }));
    let again = commit(&store, None, "c", "again", &pages(100..200));
    drop(store);
    // The record of the removed checkpoint still lies in the pack, and is not brought back.
    std::fs::remove_dir_all(dir.path().join("index")).unwrap();
    assert_eq!(Store::rebuild_index(dir.path()).unwrap().checkpoints, 2);
    let store = open(dir.path()).unwrap();
    assert!(store.record(&all).is_err());
    collect(&store, &ALL);
    is_whole(&store, &most, &pages(0..150));
    is_whole(&store, &again, &pages(100..200));
}

#[test]
fn what_is_held_stays_until_it_is_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let id = commit(&store, None, "a", "held", &pages(0..50));
    let hold = store.hold(&id).unwrap();
    let root = store.record(&id).unwrap().parts[0].tables["ram"];
    remove(&store, &[id]);
    assert_eq!(collect(&store, &ALL).packs_removed, 0);
    let name = store.lookup(&root, 7).unwrap().unwrap();
    assert_eq!(read(&store, &name).unwrap(), page(7));
    // A run that stands on it goes on from it.
    let mut writer = store.writer().unwrap();
    let next = put(&mut writer, &root, &[(0, 99)]);
    let next = writer.commit(&record_of(Some(id), "a", "next", next)).unwrap();
    drop(hold);
    assert!(files(&dir.path().join("holds")).is_empty());
    collect(&store, &ALL);
    is_whole(&store, &next, &[vec![(0, 99)], pages(0..50)[1..].to_vec()].concat());
    assert_eq!(class(&store, 0), Class::New);
    assert!(matches!(read(&store, &PageName([1; 32])), Err(Error::Missing { .. })));
}

/// A writer that found the first 50 pages in a checkpoint which was removed since, and their table.
fn overtaken(store: &Store) -> (Writer, Root) {
    let id = commit(store, None, "a", "first", &pages(0..50));
    let mut writer = store.writer().unwrap();
    let root = put(&mut writer, &Root::empty(1000), &pages(0..50));
    remove(store, &[id]);
    (writer, root)
}

#[test]
fn a_writer_that_lives_keeps_what_it_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let (writer, root) = overtaken(&store);
    let collected = collect(&store, &CollectOptions { wait: false, ..ALL });
    assert_eq!((collected.waiting_for, collected.packs_removed), (1, 0));
    // For a writer that begins now it is gone. It stores the page again.
    let mut late = store.writer().unwrap();
    assert_eq!(late.put_page(&page(3)).unwrap().1, Class::New);
    let leaf = put(&mut late, &Root::empty(1000), &pages(0..50));
    let late = late.commit(&record_of(None, "b", "late", leaf)).unwrap();
    let id = writer.commit(&record_of(None, "a", "second", root)).unwrap();
    collect(&store, &ALL);
    is_whole(&store, &id, &pages(0..50));
    is_whole(&store, &late, &pages(0..50));
}

/// The first 50 pages as a change of another table: nodes become deltas where they may.
fn changed(store: &Store) -> (Writer, Root) {
    let mut writer = store.writer().unwrap();
    let mut other = pages(0..50);
    other[1].1 = 777;
    let base = put(&mut writer, &Root::empty(1000), &other);
    let root = put(&mut writer, &base, &[(1, 1)]);
    (writer, root)
}

/// The first 50 pages but for the first.
fn with_another() -> Vec<(PageNumber, u64)> {
    [vec![(0, 99)], pages(0..50)[1..].to_vec()].concat()
}

/// A writer that found nodes which are deltas to those of the first 50 pages. All of them were removed since.
fn upon_others(store: &Store) -> (Writer, Root) {
    let first = commit(store, None, "a", "first", &pages(0..50));
    let base = store.record(&first).unwrap().parts[0].tables["ram"];
    let mut writer = store.writer().unwrap();
    let root = put(&mut writer, &base, &[(0, 99)]);
    let second = writer.commit(&record_of(Some(first), "a", "second", root)).unwrap();
    let mut writer = store.writer().unwrap();
    let found = put(&mut writer, &Root::empty(1000), &with_another());
    remove(store, &[first, second]);
    (writer, found)
}

#[test]
fn a_node_that_others_stand_on_is_replaced_by_no_delta() {
    // Whoever stores it again found it doomed; or found nothing, for it came later.
    for is_early in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        let early = is_early.then(|| changed(&store));
        let (writer, found) = upon_others(&store);
        let told = collect(&store, &CollectOptions { wait: false, ..ALL });
        assert_eq!(told.waiting_for, 1 + u64::from(is_early));
        let (other, root) = early.unwrap_or_else(|| changed(&store));
        let other = other.commit(&record_of(None, "b", "other", root)).unwrap();
        let id = writer.commit(&record_of(None, "c", "third", found)).unwrap();
        drop(store);
        let store = open(dir.path()).unwrap();
        for _ in 0..2 {
            is_whole(&store, &id, &with_another());
            is_whole(&store, &other, &pages(0..50));
            collect(&store, &ALL);
        }
    }
}

#[test]
fn who_cannot_be_seen_is_not_taken_for_absent() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let id = commit(&store, None, "a", "x", &pages(0..20));
    remove(&store, &[id]);
    let unseen = dir.path().join("holds/unseen");
    std::fs::create_dir(&unseen).unwrap();
    let error = store.collect(&ALL, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    std::fs::remove_dir(&unseen).unwrap();
    assert_eq!(collect(&store, &ALL).packs_removed, 1);
}

#[test]
fn a_pack_that_only_now_cannot_be_read_ends_a_collection() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("store")).unwrap();
    let id = commit(&store, None, "a", "x", &pages(0..20));
    remove(&store, &[id]);
    let (pack, aside) = (packs(store.path()).remove(0), dir.path().join("aside"));
    std::fs::rename(&pack, &aside).unwrap();
    // A link to itself can be opened by nobody, and is not gone.
    std::os::unix::fs::symlink(&pack, &pack).unwrap();
    let error = store.collect(&ALL, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    std::fs::rename(&aside, &pack).unwrap();
    assert_eq!(collect(&store, &ALL).packs_removed, 1);
}

/// The pack of a checkpoint that is committed and removed again meanwhile is not looked through. What is found in it stays whole.
#[test]
fn what_comes_and_goes_beside_a_collection_keeps_what_it_stands_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let first = commit(&store, None, "a", "first", &pages(0..50));
    let base = store.record(&first).unwrap().parts[0].tables["ram"];
    let mut writer = store.writer().unwrap();
    let root = put(&mut writer, &base, &[(600, 99)]);
    remove(&store, &[first]);
    let mut writer = Some(writer);
    let told = store.collect(&ALL, &mut |stage, _| {
        if stage == CollectStage::Wait
            && let Some(writer) = writer.take()
        {
            let second = writer.commit(&record_of(None, "b", "second", root)).unwrap();
            remove(&store, &[second]);
        }
    });
    assert!(told.unwrap().damaged.is_empty() && writer.is_none());
    let all = [pages(0..50), vec![(600, 99)]].concat();
    let again = commit(&store, None, "c", "again", &all);
    drop(store);
    let store = open(dir.path()).unwrap();
    is_whole(&store, &again, &all);
    collect(&store, &ALL);
    is_whole(&store, &again, &all);
}

#[test]
fn a_collection_waits_for_the_writers_that_were_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let (writer, root) = overtaken(&store);
    let (waits, seen) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let collecting = scope.spawn(|| {
            let told = &mut |stage, progress: fermata_store::Progress| {
                if stage == fermata_store::CollectStage::Wait {
                    waits.send(progress.total).unwrap();
                }
            };
            store.collect(&ALL, told).unwrap()
        });
        assert_eq!(seen.recv().unwrap(), 1);
        let id = writer.commit(&record_of(None, "a", "second", root)).unwrap();
        collecting.join().unwrap();
        is_whole(&store, &id, &pages(0..50));
    });
}

#[test]
fn files_that_nothing_names_go() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("a"), dir.path().join("b"));
    commit(&open(&other).unwrap(), None, "a", "x", &pages(0..50));
    let store = open(&path).unwrap();
    let id = commit(&store, None, "a", "y", &pages(0..20));
    let orphan = packs(&other).remove(0);
    let place = path.join("packs").join(orphan.strip_prefix(other.join("packs")).unwrap());
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::copy(&orphan, &place).unwrap();
    std::fs::write(path.join("packs/notes.txt"), "mine").unwrap();
    assert_eq!(collect(&store, &CollectOptions { dry_run: true, ..ALL }).orphans, 1);
    let collected = collect(&store, &ALL);
    assert_eq!((collected.orphans, collected.orphan_bytes), (1, orphan.metadata().unwrap().len()));
    assert!(!place.exists() && path.join("packs/notes.txt").exists());
    is_whole(&store, &id, &pages(0..20));
}

#[test]
fn a_store_whose_tables_cannot_be_read_is_not_collected_before_they_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let id = commit(&store, None, "a", "bad", &pages(0..20));
    let pack = packs(dir.path()).remove(0);
    let good = commit(&store, None, "b", "good", &pages(30..40));
    drop(store);
    let mut content = std::fs::read(&pack).unwrap();
    // All frames, but for the first, of pages: that of nodes is among them.
    let middle = content.len() / 2;
    content[5000..middle].fill(0x55);
    let nodes = content.len() - 64 - 1800;
    content[middle..nodes].fill(0x55);
    std::fs::write(&pack, content).unwrap();
    let store = open(dir.path()).unwrap();
    let error = store.collect(&ALL, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    remove(&store, &[id]);
    assert_eq!(collect(&store, &ALL).packs_removed, 1);
    is_whole(&store, &good, &pages(30..40));
}

/// What may happen to a store.
#[derive(Debug, Clone)]
enum Operation {
    Commit { branch: u8, pages: Vec<(PageNumber, u64)> },
    Fork { from: prop::sample::Index, pages: Vec<(PageNumber, u64)> },
    Tag { on: prop::sample::Index },
    Remove { which: Vec<prop::sample::Index>, force: bool },
    RemoveBranch { which: prop::sample::Index },
    Hold { which: prop::sample::Index },
    LetGo,
    Collect { rewrite_below: u8 },
    Reopen,
    Rebuild,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    // Few contents, in numbers that share leaves and leave some alone.
    let pages = || {
        prop::collection::btree_map(prop::sample::select(vec![0, 1, 2, 3, 4, 5, 600, 601, 1100, 1900]), 0..24u64, 1..6)
            .prop_map(|pages| pages.into_iter().collect::<Vec<_>>())
    };
    let which = any::<prop::sample::Index>;
    let operation = prop_oneof![
        6 => (0..3u8, pages()).prop_map(|(branch, pages)| Operation::Commit { branch, pages }),
        2 => (which(), pages()).prop_map(|(from, pages)| Operation::Fork { from, pages }),
        1 => which().prop_map(|on| Operation::Tag { on }),
        4 => (prop::collection::vec(which(), 1..4), any::<bool>()).prop_map(|(which, force)| Operation::Remove { which, force }),
        1 => which().prop_map(|which| Operation::RemoveBranch { which }),
        1 => which().prop_map(|which| Operation::Hold { which }),
        1 => Just(Operation::LetGo),
        3 => prop::sample::select(vec![0, 50, 100, 100]).prop_map(|rewrite_below| Operation::Collect { rewrite_below }),
        1 => Just(Operation::Reopen),
        1 => Just(Operation::Rebuild),
    ];
    prop::collection::vec(operation, 1..40)
}

type Content = BTreeMap<PageNumber, u64>;

/// A store and what must be in it.
struct Model {
    dir: tempfile::TempDir,
    store: Option<Store>,
    /// In the order in which they were made.
    alive: Vec<(CheckpointId, Content)>,
    contents: BTreeMap<CheckpointId, Content>,
    /// The parent as it is in the record.
    parents: BTreeMap<CheckpointId, Option<CheckpointId>>,
    heads: BTreeMap<String, CheckpointId>,
    tags: BTreeMap<String, CheckpointId>,
    holds: Vec<Hold>,
    count: u64,
}

impl Model {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Some(open(dir.path()).unwrap());
        let (contents, parents, heads, tags) = Default::default();
        Self { dir, store, alive: Vec::new(), contents, parents, heads, tags, holds: Vec::new(), count: 0 }
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn is_alive(&self, id: &CheckpointId) -> bool {
        self.alive.iter().any(|(alive, _)| alive == id)
    }

    fn remaining(&self, mut id: Option<CheckpointId>) -> Option<CheckpointId> {
        while let Some(at) = id.filter(|at| !self.is_alive(at)) {
            id = self.parents[&at];
        }
        id
    }

    fn commit(&mut self, branch: String, parent: Option<CheckpointId>, pages: &[(PageNumber, u64)]) {
        self.count += 1;
        let store = self.store();
        let base = parent.map_or(Root::empty(2000), |parent| store.record(&parent).unwrap().parts[0].tables["ram"]);
        let mut writer = store.writer().unwrap();
        let root = put(&mut writer, &base, pages);
        let blob = writer.put_blob(&self.count.to_le_bytes()).unwrap();
        let mut record = record_of(parent, &branch, &self.count.to_string(), root);
        record.parts[0].blobs.insert("devices".into(), blob);
        let id = writer.commit(&record).unwrap();
        let mut content = parent.map_or(Content::new(), |parent| self.contents[&parent].clone());
        content.extend(pages.iter().copied());
        self.alive.push((id, content.clone()));
        self.contents.insert(id, content);
        self.parents.insert(id, parent);
        self.heads.insert(branch, id);
    }

    fn removed(&mut self, ids: &BTreeSet<CheckpointId>) {
        self.alive.retain(|(id, _)| !ids.contains(id));
        let heads = std::mem::take(&mut self.heads);
        self.heads = heads.into_iter().filter_map(|(name, id)| Some((name, self.remaining(Some(id))?))).collect();
        self.tags.retain(|_, id| !ids.contains(id));
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Commit { branch, pages } => {
                let branch = format!("branch-{branch}");
                let parent = self.heads.get(&branch).copied();
                self.commit(branch, parent, &pages);
            }
            Operation::Fork { from, pages } if !self.alive.is_empty() => {
                let from = from.get(&self.alive).0;
                self.commit(format!("fork-{}", self.count), Some(from), &pages);
            }
            Operation::Tag { on } if !self.alive.is_empty() => {
                let (id, name) = (on.get(&self.alive).0, format!("tag-{}", self.count));
                if self.store().tag("lab", &name, &id).is_ok() {
                    self.tags.insert(name, id);
                }
            }
            Operation::Remove { which, force } if !self.alive.is_empty() => {
                let ids: BTreeSet<_> = which.iter().map(|which| which.get(&self.alive).0).collect();
                let removal = Removal { checkpoints: ids.iter().copied().collect(), force, ..Removal::default() };
                let is_tagged = self.tags.values().any(|id| ids.contains(id));
                match self.store().remove(&removal) {
                    Ok(_) => self.removed(&ids),
                    Err(error) => assert!(is_tagged && !force, "{error}"),
                }
            }
            Operation::RemoveBranch { which } if !self.heads.is_empty() => {
                let names: Vec<_> = self.heads.keys().cloned().collect();
                let name = which.get(&names).clone();
                let branch = BranchName { experiment: "lab".into(), branch: name.clone() };
                if let Ok(removed) = self.store().remove(&Removal { branches: vec![branch], ..Removal::default() }) {
                    self.heads.remove(&name);
                    self.removed(&removed.checkpoints.iter().map(|gone| gone.id).collect());
                }
            }
            Operation::Hold { which } if !self.alive.is_empty() => {
                let hold = self.store().hold(&which.get(&self.alive).0).unwrap();
                self.holds.push(hold);
            }
            Operation::LetGo => self.holds.clear(),
            Operation::Collect { rewrite_below } => {
                collect(self.store(), &CollectOptions { rewrite_below, ..ALL });
                if rewrite_below == 100 {
                    self.nothing_else_is_there();
                }
            }
            Operation::Reopen => {
                self.store = None;
                self.store = Some(open(self.dir.path()).unwrap());
            }
            Operation::Rebuild => {
                self.store = None;
                let rebuilt = Store::rebuild_index(self.dir.path()).unwrap();
                assert_eq!((rebuilt.checkpoints, rebuilt.damaged.len()), (self.alive.len() as u64, 0));
                // Held or not, what was removed is not in the new index.
                self.holds.clear();
                self.store = Some(open(self.dir.path()).unwrap());
                for (name, head) in self.store().branches("lab").unwrap() {
                    // A branch that was removed comes back when checkpoints that grew on it are still there.
                    self.heads.entry(name).or_insert(head);
                }
            }
            _ => {}
        }
    }

    fn check(&self) {
        let store = self.store();
        let records = store.records().unwrap();
        let found: BTreeSet<_> = records.iter().map(|(id, _)| *id).collect();
        assert_eq!(found, self.alive.iter().map(|(id, _)| *id).collect());
        for (id, record) in &records {
            assert_eq!(record.parent, self.remaining(self.parents[id]));
            is_whole(store, id, &self.contents[id].clone().into_iter().collect::<Vec<_>>());
            let message: u64 = record.message.as_deref().unwrap().parse().unwrap();
            assert_eq!(store.read_blob(&record.parts[0].blobs["devices"]).unwrap(), message.to_le_bytes());
        }
        assert_eq!(store.branches("lab").unwrap(), self.heads);
        assert_eq!(store.tags("lab").unwrap(), self.tags);
    }

    fn nothing_else_is_there(&self) {
        let held = self.holds.iter().map(|hold| hold.id());
        let needed: BTreeSet<_> =
            self.alive.iter().map(|(id, _)| *id).chain(held).flat_map(|id| self.contents[&id].values().copied()).collect();
        let mut writer = self.store().writer().unwrap();
        for seed in 0..24 {
            let (_, class) = writer.put_page(&page(seed)).unwrap();
            assert_eq!(matches!(class, Class::Known { .. }), needed.contains(&seed), "page {seed} is {class:?}");
        }
    }
}

/// A few seconds; some minutes with FERMATA_LONG set.
fn cases() -> u32 {
    if std::env::var_os("FERMATA_LONG").is_some() { 400 } else { 12 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_keeps_what_is_alive_and_nothing_else(operations in operations()) {
        let mut model = Model::new();
        for operation in operations {
            model.apply(operation);
            model.check();
        }
    }
}

#[test]
fn enough_that_was_removed_is_collected_by_itself() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    let commit = |branch: &str, first: u64, stored_bytes| {
        let mut writer = store.writer().unwrap();
        let all: Vec<_> =
            (0..).zip(first..first + 40).map(|(number, seed)| (number, Some(writer.put_page(&noise(seed)).unwrap().0))).collect();
        let ram = writer.update_table(&Root::empty(1000), &all).unwrap();
        let mut record = record_of(None, branch, "", ram);
        record.cost.stored_bytes = stored_bytes;
        writer.commit(&record).unwrap()
    };
    let due = || store.collect_if_due(&mut |_, _| {}).unwrap();
    let [small, large, held] =
        [("a", 0, 15 << 20), ("b", 100, 2 << 20), ("c", 200, 32 << 20)].map(|(branch, first, bytes)| commit(branch, first, bytes));
    let stays = commit("d", 300, 1 << 40);
    assert!(due().is_none(), "nothing was removed");
    remove(&store, &[small]);
    assert!(due().is_none(), "too little was removed");
    remove(&store, &[large]);
    let told = due().unwrap();
    assert_eq!((told.packs_removed, told.checkpoints), (2, 2));
    assert!(due().is_none(), "it is done");
    // What frees nothing, since somebody holds it, is not tried again and again.
    let hold = store.hold(&held).unwrap();
    remove(&store, &[held]);
    assert_eq!(due().unwrap().packs_removed, 0);
    assert!(due().is_none());
    drop(hold);
    // A tenth of the packs, however much that is: files that nobody names are packs, too.
    std::fs::create_dir_all(dir.path().join("packs/ab")).unwrap();
    let gap = std::fs::File::create(dir.path().join("packs/ab").join(format!("{}.pack", "ab".repeat(32)))).unwrap();
    gap.set_len(1 << 30).unwrap();
    let another = commit("e", 400, 20 << 20);
    remove(&store, &[another]);
    assert!(due().is_none(), "20 MiB of 1 GiB");
    let another = commit("f", 500, 90 << 20);
    remove(&store, &[another]);
    assert!(due().is_some_and(|told| told.packs_removed == 3));
    let seeds: Vec<_> = (300..340).collect();
    let root = store.record(&stays).unwrap().parts[0].tables["ram"];
    let each = &mut |number, name| {
        assert!(read(&store, &name)? == noise(seeds[number as usize]));
        Ok(())
    };
    store.for_each_page(&root, each).unwrap();
}

/// A pack that a writer brings back to life as a whole is left alone: written anew it would be the very same.
#[test]
fn a_pack_that_comes_back_to_life_as_a_whole_stays() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let first = commit(&store, None, "a", "first", &pages(0..50));
    let second = commit(&store, None, "b", "second", &pages(0..50));
    remove(&store, &[first]);
    // What both share lies in a pack without a record then.
    assert_eq!(collect(&store, &ALL).packs_rewritten, 1);
    remove(&store, &[second]);
    let mut writer = store.writer().unwrap();
    let root = put(&mut writer, &Root::empty(1000), &pages(0..50));
    let mut writer = Some(writer);
    let mut third = None;
    let told = store.collect(&ALL, &mut |stage, _| {
        if stage == CollectStage::Wait
            && let Some(writer) = writer.take()
        {
            third = Some(writer.commit(&record_of(None, "c", "third", root)).unwrap());
        }
    });
    let told = told.unwrap();
    assert!(told.damaged.is_empty() && told.packs_rewritten == 0, "{told:?}");
    is_whole(&store, &third.unwrap(), &pages(0..50));
    collect(&store, &ALL);
    is_whole(&store, &third.unwrap(), &pages(0..50));
}
