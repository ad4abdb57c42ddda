//! What a pull fetched that was cut off: it waits for the next one, but not for ever.

use super::*;
use std::{
    fs::File,
    time::{Duration, SystemTime},
};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// As if nothing had been written there for so long.
fn grow_old(path: &Path, age: Duration) {
    if path.is_dir() {
        crate::rebuild::entries(path).unwrap().iter().for_each(|path| grow_old(path, age));
    }
    File::open(path).unwrap().set_modified(SystemTime::now() - age).unwrap();
}

/// A store beside which as much lies as a pull may fetch before it is cut off.
fn cut_off(directory: &Path, place: &Place, ids: &[CheckpointId]) -> Store {
    let to = store(directory);
    for steps in 0.. {
        place.fail_after(Some(steps));
        let pulled = pull(&to, place, ids);
        place.fail_after(None);
        assert!(pulled.is_err(), "nothing was left of {steps} steps");
        if to.path().join("remotes/incoming").read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
            return to;
        }
    }
    unreachable!()
}

#[test]
fn what_nobody_takes_up_for_a_day_goes_with_a_collection() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = history(&from, 3);
    push(&from, &place, &ids).unwrap();
    let there = tempfile::tempdir().unwrap();
    let to = cut_off(there.path(), &place, &ids);
    let incoming = to.path().join("remotes/incoming");
    let collect = |dry_run| to.collect(&CollectOptions { dry_run, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
    assert_eq!(collect(false).abandoned_bytes, 0);
    // Nor one that seems to come from the future, for the clock was put back.
    for age in [23 * HOUR, Duration::ZERO] {
        grow_old(&incoming, age);
        assert_eq!((collect(false).abandoned_bytes, incoming.exists()), (0, true));
    }
    File::open(&incoming).unwrap().set_modified(SystemTime::now() + 48 * HOUR).unwrap();
    assert_eq!((collect(false).abandoned_bytes, incoming.exists()), (0, true));
    grow_old(&incoming, 25 * HOUR);
    let told = collect(true).abandoned_bytes;
    assert!(told > 0 && incoming.exists());
    assert_eq!((collect(false).abandoned_bytes, incoming.exists()), (told, false));
    assert_eq!(collect(false).abandoned_bytes, 0);
    assert_eq!(pull(&to, &place, &ids).unwrap().checkpoints, 3);
    assert_whole(&to);
}

/// Who begins to pull when the collection has waited for all who did before takes up what it then removes, and fetches it again.
#[test]
fn a_pull_that_begins_while_a_collection_removes_what_it_found_fetches_it_again() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = history(&from, 3);
    ids.iter().for_each(|id| drop(push(&from, &place, std::slice::from_ref(id)).unwrap()));
    let there = tempfile::tempdir().unwrap();
    let to = cut_off(there.path(), &place, &ids);
    // Something is dead, so that the collection tells when it removes.
    let dead = grow(&to, None, 9).unwrap();
    to.remove(&Removal { checkpoints: vec![dead], ..Removal::default() }).unwrap();
    let incoming = to.path().join("remotes/incoming");
    grow_old(&incoming, 25 * HOUR);
    let mut coming = None;
    let told = to.collect(&CollectOptions::default(), &mut |stage, _| {
        if stage == CollectStage::Remove && coming.is_none() {
            coming = Some(to.begin_pull(&place, "lab", &ids, &PullOptions::default()).unwrap());
            grow_old(&incoming, 25 * HOUR);
        }
    });
    assert!(told.unwrap().abandoned_bytes > 0);
    assert_eq!(coming.expect("it removes").finish(&mut |_, _| {}).unwrap().checkpoints, 3);
    assert_whole(&to);
    assert!(!incoming.exists());
}
