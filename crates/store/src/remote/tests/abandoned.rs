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

/// One that takes up what it finds just as that is a day old.
#[test]
fn a_pull_that_comes_late_meets_a_collection_at_any_step() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = history(&from, 3);
    ids.iter().for_each(|id| drop(push(&from, &place, std::slice::from_ref(id)).unwrap()));
    for steps in 0.. {
        let there = tempfile::tempdir().unwrap();
        let to = Arc::new(cut_off(there.path(), &place, &ids));
        grow_old(&to.path().join("remotes/incoming"), 25 * HOUR);
        let store = to.clone();
        place.after(steps, move || {
            // Without waiting: the pull is one of those that it would wait for.
            let options = CollectOptions { wait: false, ..CollectOptions::default() };
            store.collect(&options, &mut |_, _| {}).unwrap();
        });
        assert_eq!(pull(&to, &place, &ids).unwrap_or_else(|error| panic!("after {steps} steps: {error}")).checkpoints, 3);
        assert_whole(&to);
        if place.meanwhile.lock().unwrap().take().is_some() {
            assert!(steps > 5, "only {steps} steps");
            return;
        }
    }
}
