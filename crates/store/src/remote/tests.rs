//! Copies there and back, with faults at every step of the way, and remotes that lie.

use super::*;
use crate::{
    CollectOptions, CollectStage, Encryption, Progress, Removal, Secret, VerifyOptions,
    tests::{Failing, grow, is_encrypted, open, open_on, page, record},
};
use fermata_types::{PAGE_SIZE, PageName, Root, ZERO_PAGE};
use proptest::prelude::*;
use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

mod abandoned;
mod ancestors;
mod arriving;
mod away;
mod damage;
mod images;
mod prune;

type Event = Box<dyn FnOnce() + Send>;

/// A directory that fails after so many requests, in the middle of writing.
pub(super) struct Place {
    directory: tempfile::TempDir,
    left: Mutex<Option<u32>>,
    /// Whether the next thing that is written is said not to be.
    loses_answer: AtomicBool,
    asked: AtomicUsize,
    /// What happens after so many requests.
    meanwhile: Mutex<Option<(u32, Event)>>,
}

impl Place {
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            left: Mutex::default(),
            loses_answer: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
            meanwhile: Mutex::default(),
        }
    }

    pub fn lose_an_answer(&self) {
        self.loses_answer.store(true, Ordering::Relaxed);
    }

    pub fn after(&self, requests: u32, what: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some((requests, Box::new(what)));
    }

    fn happen(&self) {
        let mut meanwhile = self.meanwhile.lock().unwrap();
        let what = match &mut *meanwhile {
            Some((0, _)) => meanwhile.take(),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        drop(meanwhile);
        if let Some((_, what)) = what {
            what();
        }
    }

    pub fn fail_after(&self, requests: Option<u32>) {
        *self.left.lock().unwrap() = requests;
    }

    fn step(&self) -> io::Result<()> {
        self.happen();
        self.asked.fetch_add(1, Ordering::Relaxed);
        match &mut *self.left.lock().unwrap() {
            None => Ok(()),
            Some(0) => Err(io::Error::other("the line is cut")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Every object whose name begins so.
    fn objects(&self, prefix: &str) -> Vec<PathBuf> {
        self.list(prefix).unwrap().into_iter().map(|(name, _)| self.path(&name)).collect()
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the place")
    }
}

impl Remote for Place {
    fn get(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        self.step()?;
        match fs::read(self.path(name)) {
            Ok(bytes) if bytes.len() as u64 > most => Err(io::Error::other("too long")),
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn tail(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let bytes = self.get(name, u64::MAX)?;
        Ok(bytes.map(|bytes| bytes[bytes.len().saturating_sub(most as usize)..].to_vec()))
    }

    fn range(&self, name: &str, from: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        let bytes = self.get(name, u64::MAX)?;
        Ok(bytes.map(|bytes| bytes.into_iter().skip(from as usize).take(length as usize).collect()))
    }

    fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        self.step()?;
        fs::create_dir_all(self.path(name).parent().unwrap())?;
        fs::write(self.path(name), bytes)?;
        if self.loses_answer.swap(false, Ordering::Relaxed) { Err(io::Error::other("the line was cut")) } else { Ok(()) }
    }

    fn swap(&self, name: &str, before: Option<&[u8]>, bytes: Vec<u8>) -> io::Result<bool> {
        let now = self.get(name, u64::MAX)?;
        if now.as_deref() != before { Ok(false) } else { self.put(name, bytes).map(|()| true) }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.step()?;
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn unique(&self) -> io::Result<[u8; 16]> {
        static DRAWN: AtomicUsize = AtomicUsize::new(1);
        Ok((DRAWN.fetch_add(1, Ordering::Relaxed) as u128).to_le_bytes())
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        self.step()?;
        let (mut found, mut left) = (Vec::new(), vec![self.path(prefix)]);
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten() {
                let path = entry?.path();
                if path.is_dir() {
                    left.push(path);
                } else {
                    let name = path.strip_prefix(self.directory.path()).unwrap().to_str().unwrap();
                    found.push((name.to_owned(), path.metadata()?.len()));
                }
            }
        }
        Ok(found)
    }
}

pub(super) fn store(directory: &Path) -> Store {
    open(directory).unwrap()
}

pub(super) fn history(store: &Store, length: u64) -> Vec<CheckpointId> {
    let mut ids = Vec::new();
    for step in 0..length {
        ids.push(grow(store, ids.last().copied(), step).unwrap());
    }
    ids
}

pub(super) fn push(store: &Store, place: &Place, ids: &[CheckpointId]) -> Result<Pushed> {
    store.push(place, ids, &PushOptions::default(), &mut |_, _| {})
}

fn pull(store: &Store, place: &Place, ids: &[CheckpointId]) -> Result<Pulled> {
    all_came(store.pull(place, "lab", ids, &PullOptions::default(), &mut |_, _| {})?)
}

/// Fails if something was left out.
fn all_came(pulled: Pulled) -> Result<Pulled> {
    match pulled.left_out.first() {
        Some((_, why)) => Err(Error::refused(why.clone(), "it was left out")),
        None => Ok(pulled),
    }
}

/// All that is said to be there is there, and whole.
fn assert_whole(store: &Store) {
    let report = store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

fn pages(store: &Store, id: &CheckpointId) -> Vec<(u32, [u8; 32])> {
    let mut pages = Vec::new();
    let root = store.record(id).unwrap().parts[0].tables["ram"];
    store
        .for_each_page(&root, &mut |page, name| {
            pages.push((page, name.0));
            Ok(())
        })
        .unwrap();
    pages
}

#[test]
fn only_what_is_lacking_travels() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let ids = history(&from, 3);
    let first = push(&from, &place, &ids[..2]).unwrap();
    assert_eq!((first.checkpoints, first.pages), (2, 80));
    assert_eq!(push(&from, &place, &ids[..2]).unwrap(), Pushed::default());
    let second = push(&from, &place, &ids).unwrap();
    assert_eq!((second.checkpoints, second.pages), (1, 40));
    // Every leaf changed, in one entry of forty: as deltas they take a fraction of what the first ones took.
    assert!(second.bytes < first.bytes, "{second:?} {first:?}");
    let pulled = pull(&to, &place, &ids[..1]).unwrap();
    assert_eq!((pulled.checkpoints, to.records().unwrap().len()), (1, 1));
    let pulled = pull(&to, &place, &ids).unwrap();
    assert_eq!(pulled.checkpoints, 2);
    assert_eq!(pull(&to, &place, &ids).unwrap(), Pulled::default());
    for id in &ids {
        assert_eq!(to.record(id).unwrap(), from.record(id).unwrap());
        assert_eq!(pages(&to, id), pages(&from, id));
    }
    assert_whole(&to);
    assert!(!to.path().join("remotes/incoming").exists());
}

/// Whether a file below a directory has these bytes, in its content.
fn is_in_a_file(directory: &Path, bytes: &[u8]) -> bool {
    let Ok(entries) = crate::rebuild::entries(directory) else { return false };
    entries.iter().any(|path| match path.is_dir() {
        true => is_in_a_file(path, bytes),
        false => fs::read(path).unwrap().windows(bytes.len()).any(|window| window == bytes),
    })
}

#[test]
fn checkpoints_travel_between_stores_in_the_open_and_encrypted_ones() {
    if is_encrypted() {
        return;
    }
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (key, encrypted) = (here.path().join("key"), here.path().join("store"));
    fs::write(&key, [3; 32]).unwrap();
    let secret = Secret::read(&key).unwrap();
    let sealed = Store::create(&encrypted, &Encryption::KeyFile(key), &secret, &[8; 48]).unwrap();
    let plain = store(there.path());
    let mut ids = history(&sealed, 2);
    push(&sealed, &place, &ids).unwrap();
    assert_eq!(pull(&plain, &place, &ids).unwrap().checkpoints, 2);
    ids.push(grow(&plain, ids.last().copied(), 2).unwrap());
    push(&plain, &place, &ids).unwrap();
    // What a pull that is cut short leaves beside a store shows in the open what is in it, and tells nothing in the other.
    let (new, name) = (ids[2], pages(&plain, &ids[2])[0].1);
    let third = tempfile::tempdir().unwrap();
    let fresh = store(third.path());
    for (store, is_seen) in [(&sealed, false), (&fresh, true)] {
        let mut left = Vec::new();
        for steps in 0.. {
            place.fail_after(Some(steps));
            let pulled = pull(store, &place, &[new]);
            place.fail_after(None);
            let remotes = store.path().join("remotes");
            left.push((remotes.join("incoming").exists(), is_in_a_file(&remotes, &name) && is_in_a_file(&remotes, b"FERMPACK")));
            if pulled.is_ok() {
                break;
            }
        }
        assert!(left.iter().any(|(is_there, _)| *is_there), "{left:?}");
        assert_eq!(left.iter().any(|(_, is_seen)| *is_seen), is_seen, "{left:?}");
    }
    for id in &ids {
        assert_eq!(sealed.record(id).unwrap(), plain.record(id).unwrap());
        assert_eq!(pages(&sealed, id), pages(&plain, id));
    }
    assert_whole(&sealed);
    assert_whole(&plain);
}

/// Whatever is interrupted, what the remote shows can be pulled, and the next push completes it.
#[test]
fn a_push_may_fail_at_any_step() {
    let here = tempfile::tempdir().unwrap();
    let from = store(here.path());
    let ids = history(&from, 3);
    for steps in 0.. {
        let place = Place::new();
        place.fail_after(Some(steps));
        let pushed = push(&from, &place, &ids);
        place.fail_after(None);
        if pushed.is_err() && place.path(FORMAT).exists() {
            let there = tempfile::tempdir().unwrap();
            let to = store(there.path());
            let shown = to.remote_checkpoints(&place, "lab").unwrap();
            // All of them, if only what came after them failed.
            assert!(shown.len() <= ids.len(), "after {steps} steps");
            assert_eq!(pull(&to, &place, &shown).unwrap().checkpoints, shown.len() as u64, "after {steps} steps");
            assert_whole(&to);
        }
        let done = pushed.is_ok();
        push(&from, &place, &ids).unwrap();
        let there = tempfile::tempdir().unwrap();
        let to = store(there.path());
        assert_eq!(pull(&to, &place, &ids).unwrap().checkpoints, 3);
        assert_whole(&to);
        if done {
            assert!(steps > 8, "only {steps} steps");
            return;
        }
    }
}

/// Two push to one remote, one of them at any step of the other: what they share may be there twice, and all is whole.
#[test]
fn somebody_may_push_at_any_step_of_a_push() {
    for steps in 0.. {
        let [here, there, away] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let (place, between) = (Arc::new(Place::new()), Place::new());
        let (one, other, to) = (store(here.path()), Arc::new(store(there.path())), store(away.path()));
        let shared = history(&one, 3);
        push(&one, &between, &shared).unwrap();
        pull(&other, &between, &shared).unwrap();
        other.set_branch("lab", "main", &shared[2]).unwrap();
        push(&one, &place, &shared[..1]).unwrap();
        let [mine, theirs] =
            [(&one, 5), (&*other, 6)].map(|(store, step)| [&shared[..], &[grow(store, Some(shared[2]), step).unwrap()]].concat());
        let main = RefName::Branch("main".into());
        let (pusher, at, ids, branch) = (other.clone(), place.clone(), theirs.clone(), main.clone());
        place.after(steps, move || {
            push(&pusher, &at, &ids).unwrap();
            assert_eq!(pusher.set_remote_ref(&*at, "lab", &branch, None, &ids[3]).unwrap(), RefSet::Done);
        });
        push(&one, &place, &mine).unwrap_or_else(|error| panic!("after {steps} steps: {error}"));
        if place.meanwhile.lock().unwrap().take().is_some() {
            assert!(steps > 8, "only {steps} steps");
            return;
        }
        assert_eq!(one.set_remote_ref(&*place, "lab", &main, None, &mine[3]).unwrap(), RefSet::Elsewhere);
        let shown = to.remote_checkpoints(&place, "lab").unwrap();
        assert_eq!(shown.iter().collect::<HashSet<_>>(), mine.iter().chain(&theirs).collect(), "after {steps} steps");
        pull(&to, &place, &shown).unwrap_or_else(|error| panic!("after {steps} steps: {error}"));
        assert_whole(&to);
        mine.iter().for_each(|id| assert_eq!(pages(&to, id), pages(&one, id)));
        theirs.iter().for_each(|id| assert_eq!(pages(&to, id), pages(&other, id)));
    }
}

/// Four checkpoints of which the second is removed during a push, and a push that it is removed during. The third shares most of its pages with it.
fn remove_during_a_push(push: impl FnOnce(&Store, &Place, &[CheckpointId], Box<dyn FnOnce() + Send>) -> Pushed) -> bool {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (Arc::new(store(here.path())), store(there.path()));
    let mut ids = history(&from, 2);
    ids.push(prune::fork(&from, ids[1]));
    ids.push(grow(&from, Some(ids[1]), 2).unwrap());
    let (store, goes) = (from.clone(), ids[1]);
    let remove = move || {
        store.remove(&Removal { checkpoints: vec![goes], ..Removal::default() }).unwrap();
        store.collect(&CollectOptions { rewrite_below: 100, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
    };
    let pushed = push(&from, &place, &ids, Box::new(remove));
    let left_out = !pushed.gone.is_empty();
    assert!(!left_out || pushed.gone == [goes], "{:?}", pushed.gone);
    let shown = to.remote_checkpoints(&place, "lab").unwrap();
    assert_eq!((shown.len(), shown.contains(&goes)), (ids.len() - pushed.gone.len(), !left_out));
    pull(&to, &place, &shown).unwrap();
    assert_whole(&to);
    shown.iter().filter(|id| **id != goes).for_each(|id| assert_eq!(pages(&to, id), pages(&from, id)));
    let parent = if left_out { ids[0] } else { goes };
    assert_eq!([to.record(&ids[2]).unwrap().parent, to.record(&ids[3]).unwrap().parent], [Some(parent); 2]);
    left_out
}

/// Whoever removes here while somebody pushes takes nothing away from what is sent of the others.
#[test]
fn what_is_removed_at_any_step_of_a_push_is_whole_there_or_left_out() {
    let (mut left_out, mut sent) = (0, 0);
    for steps in 0.. {
        let happened = std::cell::Cell::new(false);
        let is_left_out = remove_during_a_push(|from, place, ids, remove| {
            place.after(steps, remove);
            let pushed = push(from, place, ids).unwrap_or_else(|error| panic!("after {steps} steps: {error}"));
            happened.set(place.meanwhile.lock().unwrap().take().is_none());
            pushed
        });
        if !happened.get() {
            break;
        }
        *(if is_left_out { &mut left_out } else { &mut sent }) += 1;
    }
    assert!(left_out > 2 && sent > 2, "{left_out} times left out, {sent} times sent");
    // Also while it is found out what to send: those before one that is removed do not count on it, and those after it do if it was held.
    let left_out = [0, 1, 2, 3].map(|step| {
        remove_during_a_push(|from, place, ids, remove| {
            let mut remove = Some(remove);
            let mut meanwhile = |stage, Progress { done, .. }: Progress| {
                if stage == CopyStage::Compare && done == step {
                    remove.take().unwrap()();
                }
            };
            from.push(place, ids, &PushOptions::default(), &mut meanwhile).unwrap()
        })
    });
    assert_eq!(left_out, [true, true, false, false]);
}

#[test]
fn a_pull_may_fail_at_any_step_of_the_way() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = history(&from, 3);
    push(&from, &place, &ids[..1]).unwrap();
    push(&from, &place, &ids).unwrap();
    for steps in 0.. {
        let there = tempfile::tempdir().unwrap();
        let to = store(there.path());
        place.fail_after(Some(steps));
        let pulled = pull(&to, &place, &ids);
        place.fail_after(None);
        assert_whole(&to);
        if pulled.is_ok() {
            assert!(steps > 5, "only {steps} steps");
            return;
        }
        let before = to.records().unwrap().len() as u64;
        assert_eq!(pull(&to, &place, &ids).unwrap().checkpoints, 3 - before);
        assert_whole(&to);
    }
}

#[test]
fn a_pull_may_fail_at_any_step_of_the_disk() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = history(&from, 2);
    push(&from, &place, &ids).unwrap();
    for steps in 0.. {
        let there = tempfile::tempdir().unwrap();
        drop(store(there.path()));
        let pulled = {
            let to = open_on(there.path(), Arc::new(Failing::after(None))).unwrap();
            drop(to);
            let failing = Arc::new(Failing::after(Some(steps)));
            open_on(there.path(), failing).and_then(|to| pull(&to, &place, &ids))
        };
        let to = store(there.path());
        assert_whole(&to);
        if pulled.is_ok() {
            assert!(steps > 8, "only {steps} steps");
            return;
        }
        let before = to.records().unwrap().len() as u64;
        assert_eq!(pull(&to, &place, &ids).unwrap().checkpoints, 2 - before, "after {steps} steps: {pulled:?}");
        assert_whole(&to);
    }
}

/// What a pull has fetched is not synced: when the power fails, any part of it may be gone, whatever its length says. It is fetched again.
#[test]
fn a_pull_goes_on_from_what_a_crash_left_of_its_packs() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = history(&from, 2);
    push(&from, &place, &ids[..1]).unwrap();
    push(&from, &place, &ids).unwrap();
    let mut fetched = Vec::new();
    let mut note = |to: &Store| {
        let incoming = to.path().join("remotes/incoming");
        for directory in crate::rebuild::entries(&incoming).unwrap() {
            fetched.extend(crate::rebuild::entries(&directory).unwrap().into_iter().map(|path| (path.clone(), fs::read(path).unwrap())));
        }
    };
    let there = tempfile::tempdir().unwrap();
    let to = store(there.path());
    let mut is_noted = false;
    to.pull(&place, "lab", &ids, &PullOptions::default(), &mut |stage, _| {
        if stage == CopyStage::Enter && !std::mem::replace(&mut is_noted, true) {
            note(&to);
        }
    })
    .unwrap();
    assert!(fetched.len() > 2, "{} packs", fetched.len());
    for nth in 0..fetched.len() {
        for damage in 0..4 {
            let there = tempfile::tempdir().unwrap();
            let again = store(there.path());
            for (at, (path, bytes)) in fetched.iter().enumerate() {
                let path = there.path().join(path.strip_prefix(to.path()).unwrap());
                let mut bytes = bytes.clone();
                match damage {
                    _ if at != nth => {}
                    0 => bytes.clear(),
                    1 => bytes.truncate(bytes.len() / 2),
                    2 => bytes.fill(0),
                    // The beginning and the end are there.
                    _ => {
                        let middle = bytes.len() / 4..bytes.len() / 3;
                        bytes[middle].fill(0);
                    }
                }
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, bytes).unwrap();
            }
            let pulled = pull(&again, &place, &ids).unwrap_or_else(|error| panic!("pack {nth}, damage {damage}: {error}"));
            assert_eq!((pulled.checkpoints, pulled.packs), (2, 1), "pack {nth}, damage {damage}");
            assert_whole(&again);
        }
    }
}

/// A flipped bit anywhere in what a remote has, and an object that is cut off, are found before anything is entered.
#[test]
fn a_remote_that_lies_is_found_out() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = history(&from, 2);
    push(&from, &place, &ids).unwrap();
    let attempt = |what: &str| {
        let there = tempfile::tempdir().unwrap();
        let to = store(there.path());
        let pulled = pull(&to, &place, &ids);
        assert_whole(&to);
        for (id, _) in to.records().unwrap() {
            assert_eq!(pages(&to, &id), pages(&from, &id), "{what}");
        }
        pulled
    };
    let mut refused = 0;
    // Whoever pulls has asked before which remote it is.
    for object in place.objects("").into_iter().filter(|object| !object.ends_with("identity")) {
        let good = fs::read(&object).unwrap();
        let step = (good.len() / 60).max(1);
        for at in (0..good.len()).step_by(step) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&object, &bad).unwrap();
            let pulled = attempt(&format!("{} at {at}", object.display()));
            // What a bit of the checksum or of compressed data means may be nothing.
            refused += u32::from(pulled.is_err());
        }
        for length in [0, 1, good.len() / 2, good.len() - 1] {
            fs::write(&object, &good[..length]).unwrap();
            let error = attempt(&format!("{} cut at {length}", object.display())).expect_err("it is cut off").to_string();
            assert!(error.contains("the place"), "{error}");
        }
        fs::write(&object, &good).unwrap();
    }
    assert!(refused > 100, "only {refused} lies were found");
    attempt("as it was").unwrap();
}

#[test]
fn what_lies_elsewhere_than_it_says_is_found_out() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = history(&from, 2);
    push(&from, &place, &ids[..1]).unwrap();
    push(&from, &place, &ids).unwrap();
    // One pack in another's place, and one record in another's.
    for prefix in ["packs/", "records/"] {
        let objects = place.objects(prefix);
        let [a, b] = [&objects[0], &objects[1]];
        let (in_a, in_b) = (fs::read(a).unwrap(), fs::read(b).unwrap());
        fs::write(a, &in_b).unwrap();
        let there = tempfile::tempdir().unwrap();
        let to = store(there.path());
        assert!(pull(&to, &place, &ids).is_err());
        assert_whole(&to);
        fs::write(a, &in_a).unwrap();
    }
    fs::remove_file(&place.objects("packs/")[0]).unwrap();
    let there = tempfile::tempdir().unwrap();
    let error = pull(&store(there.path()), &place, &ids).unwrap_err().to_string();
    assert!(error.contains("the place") && error.contains("verify --repair"), "{error}");
}

/// Disks name the page of zeros where their golden image has something else; nobody has it.
#[test]
fn a_page_of_zeros_needs_not_travel() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let mut writer = from.writer().unwrap();
    let changes = [(5, Some(writer.put_page(&page(1)).unwrap().0)), (9, Some(ZERO_PAGE))];
    let ram = writer.update_table(&Root::empty(4000), &changes).unwrap();
    let id = writer.commit(&record(None, 1, ram, BTreeMap::new())).unwrap();
    assert_eq!(push(&from, &place, &[id]).unwrap().pages, 1);
    assert_eq!(pull(&to, &place, &[id]).unwrap().checkpoints, 1);
    assert_eq!(pages(&to, &id), pages(&from, &id));
}

/// A checkpoint comes without those before it, which may follow, or are remembered as removed.
#[test]
fn one_comes_alone_and_its_parent_later() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let ids = history(&from, 3);
    push(&from, &place, &ids).unwrap();
    pull(&to, &place, &ids[2..]).unwrap();
    assert_eq!(to.record(&ids[2]).unwrap().parent, None);
    to.set_branch("lab", "main", &ids[2]).unwrap();
    let grown = grow(&to, Some(ids[2]), 7).unwrap();
    pull(&to, &place, &ids[1..]).unwrap();
    assert_eq!(to.record(&ids[2]).unwrap().parent, Some(ids[1]));
    assert_eq!(to.record(&grown).unwrap().parent, Some(ids[2]));
    pull(&to, &place, &ids).unwrap();
    assert_eq!(to.record(&ids[1]).unwrap().parent, Some(ids[0]));
    assert_whole(&to);
    // What was taken here goes back.
    assert_eq!(push(&to, &place, &[grown]).unwrap().checkpoints, 1);
    assert_eq!(pull(&from, &place, &[grown]).unwrap().checkpoints, 1);
    assert_eq!(pages(&from, &grown), pages(&to, &grown));
}

#[test]
fn what_was_removed_comes_back_for_good() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = history(&from, 3);
    push(&from, &place, &ids).unwrap();
    from.remove(&Removal { checkpoints: ids.clone(), ..Removal::default() }).unwrap();
    from.collect(&CollectOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(from.records().unwrap().len(), 0);
    assert_eq!(pull(&from, &place, &ids).unwrap().checkpoints, 3);
    from.collect(&CollectOptions { rewrite_below: 100, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
    assert_whole(&from);
    drop(from);
    assert_eq!(Store::rebuild_index(here.path()).unwrap().checkpoints, 3);
    let from = store(here.path());
    assert_eq!(from.records().unwrap().len(), 3);
    assert_whole(&from);
}

/// What a removed checkpoint left is counted on, and needs not travel. When a collection hides it before it is entered, it is fetched after all.
#[test]
fn what_a_collection_hides_during_a_pull_is_fetched() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let ids = history(&from, 1);
    let fork = prune::fork(&from, ids[0]);
    push(&from, &place, &[ids[0], fork]).unwrap();
    pull(&to, &place, &ids).unwrap();
    to.remove(&Removal { checkpoints: ids, ..Removal::default() }).unwrap();
    let mut waiting_for = 0;
    to.pull(&place, "lab", &[fork], &PullOptions::default(), &mut |stage, _| {
        if stage == CopyStage::Enter {
            let options = CollectOptions { rewrite_below: 100, wait: false, dry_run: false };
            waiting_for = to.collect(&options, &mut |_, _| {}).unwrap().waiting_for;
        }
    })
    .unwrap();
    assert_eq!(waiting_for, 1);
    to.collect(&CollectOptions::default(), &mut |_, _| {}).unwrap();
    assert_whole(&to);
    assert_eq!(pages(&to, &fork), pages(&from, &fork));
}

/// The pack that a pull makes is the same each time. A collection that is about to remove the first one does not take the second one for it.
#[test]
fn what_comes_again_while_its_first_pack_goes_stays() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let ids = history(&from, 1);
    push(&from, &place, &ids).unwrap();
    for stage in [CollectStage::Wait, CollectStage::Remove] {
        pull(&to, &place, &ids).unwrap();
        to.remove(&Removal { checkpoints: ids.clone(), ..Removal::default() }).unwrap();
        let mut awaited = Some(to.writer().unwrap());
        let mut comes = true;
        let told = thread::scope(|scope| {
            to.collect(&CollectOptions::default(), &mut |at, _| {
                if at == stage && std::mem::take(&mut comes) {
                    // It waits for this collection once it has entered all.
                    let pulling = scope.spawn(|| pull(&to, &place, &ids).unwrap());
                    while to.record(&ids[0]).is_err() && !pulling.is_finished() {
                        thread::yield_now();
                    }
                }
                if at == CollectStage::Wait {
                    awaited.take();
                }
            })
        });
        let told = told.unwrap();
        assert!(told.damaged.is_empty() && !comes, "{told:?}");
        assert_whole(&to);
        assert_eq!((to.records().unwrap().len(), pages(&to, &ids[0])), (1, pages(&from, &ids[0])));
        to.remove(&Removal { checkpoints: ids.clone(), ..Removal::default() }).unwrap();
        to.collect(&CollectOptions::default(), &mut |_, _| {}).unwrap();
        assert_eq!(
            crate::rebuild::entries(&to.path().join("packs"))
                .unwrap()
                .iter()
                .flat_map(|path| crate::rebuild::entries(path).unwrap())
                .count(),
            0
        );
    }
}

#[test]
fn another_directory_is_not_taken_for_a_remote() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = history(&from, 1);
    let error = from.remote_experiments(&place).unwrap_err().to_string();
    assert!(error.contains("the place") && error.contains("fermata push"), "{error}");
    fs::write(place.path(FORMAT), "fermata remote 9\n").unwrap();
    for error in [push(&from, &place, &ids).unwrap_err(), pull(&from, &place, &ids).unwrap_err()] {
        assert!(matches!(&error, Error::Unsupported { what, .. } if what.contains("fermata remote 9")), "{error}");
    }
}

#[test]
fn a_name_of_dots_leads_to_no_other_directory() {
    for (name, escaped) in [(".", "=2e"), ("..", "=2e=2e"), ("...", "..."), ("a..b", "a..b")] {
        assert_eq!(escape(name), escaped);
        assert_eq!(unescape(escaped).as_deref(), Some(name));
    }
}

proptest! {
    #[test]
    fn names_survive(name in "\\PC{0,40}") {
        let escaped = escape(&name);
        prop_assert!(escaped.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-=".contains(&byte)), "{}", escaped);
        prop_assert_eq!(unescape(&escaped), Some(name));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Two stores grow one experiment on branches of their own, and tell each other through one remote.
    #[test]
    fn two_stores_share_a_remote(steps in prop::collection::vec((any::<bool>(), 0..3u8), 1..14)) {
        let (a, b, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
        let stores = [store(a.path()), store(b.path())];
        let mut grown: [Vec<CheckpointId>; 2] = Default::default();
        let mut shown: Vec<CheckpointId> = Vec::new();
        for (step, (which, what)) in (0..).zip(steps) {
            let store = &stores[usize::from(which)];
            let own = &mut grown[usize::from(which)];
            match what {
                0 => {
                    // From wherever it stands: its own newest, or the newest that it knows of the other's.
                    let parent = shown.last().copied().filter(|id| step % 3 == 0 && store.record(id).is_ok()).or(own.last().copied());
                    if let Some(parent) = parent {
                        store.set_branch("lab", "main", &parent).unwrap();
                    }
                    own.push(grow(store, parent, step + 50 * u64::from(which)).unwrap());
                }
                1 => {
                    push(store, &place, own).unwrap();
                    shown.extend(own.iter().filter(|id| !shown.contains(*id)).copied().collect::<Vec<_>>());
                }
                _ if shown.is_empty() => {}
                _ => {
                    pull(store, &place, &shown).unwrap();
                }
            }
        }
        for (store, own) in stores.iter().zip(&grown) {
            push(store, &place, own).unwrap();
        }
        let all: Vec<_> = grown.concat();
        for store in &stores {
            if !all.is_empty() {
                pull(store, &place, &all).unwrap();
            }
            assert_whole(store);
        }
        for id in &all {
            prop_assert_eq!(pages(&stores[0], id), pages(&stores[1], id));
        }
    }
}
