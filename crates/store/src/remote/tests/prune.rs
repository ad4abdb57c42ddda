//! Removing from remotes, with faults and with others who push at every step of the way.

use super::{
    images::{content, image, pull_both, standing},
    *,
};
use std::{collections::BTreeSet, time::Duration};

fn options(gone: &[CheckpointId]) -> PruneOptions {
    let checkpoints = [("lab".to_owned(), gone.iter().copied().collect::<BTreeSet<_>>())].into();
    // Whoever pushes in these tests stands still meanwhile.
    PruneOptions { checkpoints, looks: 0, ..PruneOptions::default() }
}

fn prune(store: &Store, place: &Place, gone: &[CheckpointId]) -> Result<Pruned> {
    store.prune_remote(place, &options(gone), &mut |_, _| {})
}

/// Everything that can be seen there can be had.
#[track_caller]
fn assert_all_whole(place: &Place, from: &Store, what: &str) {
    let there = tempfile::tempdir().unwrap();
    let to = store(there.path());
    let shown = to.remote_checkpoints(place, "lab").unwrap();
    pull(&to, place, &shown).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_whole(&to);
    for id in shown {
        assert!(pages(&to, &id) == pages(from, &id), "{what}: {}", id.short());
    }
}

fn bytes(place: &Place) -> u64 {
    place.objects("packs/").iter().map(|object| object.metadata().unwrap().len()).sum()
}

/// Checkpoints that were pushed one by one.
fn pushed(store: &Store, place: &Place, length: u64) -> Vec<CheckpointId> {
    let ids = history(store, length);
    ids.iter().for_each(|id| assert_eq!(push(store, place, &[*id]).unwrap().checkpoints, 1));
    ids
}

/// A checkpoint beside the line, which has a page of its own and shares the rest with its parent.
pub(super) fn fork(store: &Store, parent: CheckpointId) -> CheckpointId {
    let base = store.record(&parent).unwrap().parts[0].tables["ram"];
    let mut writer = store.writer().unwrap();
    let changes = [(1, Some(writer.put_page(&page(77_000)).unwrap().0))];
    let ram = writer.update_table(&base, &changes).unwrap();
    let record = Record { branch: "fork".into(), ..record(Some(parent), 9, ram, BTreeMap::new()) };
    writer.commit(&record).unwrap()
}

#[test]
fn what_nothing_needs_goes() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = pushed(&from, &place, 6);
    let before = bytes(&place);
    let dry = from.prune_remote(&place, &PruneOptions { dry_run: true, ..options(&ids[..4]) }, &mut |_, _| {}).unwrap();
    assert_eq!((dry.checkpoints, bytes(&place)), (4, before));
    assert!(!place.path("pruning").exists());
    let pruned = prune(&from, &place, &ids[..4]).unwrap();
    assert_eq!((pruned.checkpoints, pruned.packs), (dry.checkpoints, dry.packs));
    assert!(bytes(&place) < before * 2 / 3, "{} of {before}: {pruned:?}", bytes(&place));
    assert_eq!(from.remote_checkpoints(&place, "lab").unwrap().into_iter().collect::<BTreeSet<_>>(), ids[4..].iter().copied().collect());
    assert_all_whole(&place, &from, "pruned");
    let again = prune(&from, &place, &[]).unwrap();
    assert_eq!((again.packs, again.checkpoints), (0, 0), "{again:?}");
    // They come back when they are wanted, and what was there of them is not believed to be there.
    assert_eq!(push(&from, &place, &ids).unwrap().checkpoints, 4);
    assert_all_whole(&place, &from, "pushed again");
}

#[test]
fn lines_lead_over_what_was_removed() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = pushed(&from, &place, 6);
    prune(&from, &place, &ids[1..3]).unwrap();
    prune(&from, &place, &ids[3..4]).unwrap();
    let records = from.remote_records(&place, "lab", 2).unwrap();
    let parents: Vec<_> = records.iter().map(|(id, record)| (*id, record.parent)).collect();
    assert_eq!(parents, [(ids[0], None), (ids[4], Some(ids[0])), (ids[5], Some(ids[4]))]);
    assert_eq!(from.remote_removed(&place, "lab").unwrap(), ids[1..4].iter().copied().collect());
    let to = store(there.path());
    assert_eq!(to.remote_lines(&place, "lab", &ids[5..]).unwrap(), [ids[5], ids[4], ids[0]]);
    pull(&to, &place, &[ids[0], ids[4], ids[5]]).unwrap();
    assert_eq!(to.record(&ids[4]).unwrap().parent, Some(ids[0]));
    assert_whole(&to);
    // The same where somebody removed them before they were ever there.
    let (place, there) = (Place::new(), tempfile::tempdir().unwrap());
    from.remove(&Removal { checkpoints: ids[1..4].to_vec(), ..Removal::default() }).unwrap();
    push(&from, &place, &[ids[0], ids[4], ids[5]]).unwrap();
    let to = store(there.path());
    pull(&to, &place, &[ids[0], ids[4], ids[5]]).unwrap();
    assert_eq!(to.record(&ids[4]).unwrap().parent, Some(ids[0]));
    // A place that says that a checkpoint descends from itself.
    let there = tempfile::tempdir().unwrap();
    fs::write(place.path(&format!("removed/lab/{}", ids[3])), format!("{}\n", ids[4])).unwrap();
    let error = pull(&store(there.path()), &place, &[ids[4]]).unwrap_err().to_string();
    assert!(error.contains("descend from itself"), "{error}");
}

/// A place says of a checkpoint that is not there that it descends from one that descends from it, and that comes later.
#[test]
fn lines_that_lead_to_what_comes_later_make_no_circle() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let ids = history(&from, 2);
    from.set_branch("lab", "main", &ids[0]).unwrap();
    let sibling = grow(&from, Some(ids[0]), 7).unwrap();
    push(&from, &place, &[ids[1], sibling]).unwrap();
    fs::create_dir_all(place.path("removed/lab")).unwrap();
    fs::write(place.path(&format!("removed/lab/{}", ids[0])), format!("{}\n", ids[1])).unwrap();
    pull(&to, &place, &[sibling]).unwrap();
    let error = pull(&to, &place, &ids[1..]).unwrap_err().to_string();
    assert!(error.contains("descend from itself"), "{error}");
    assert_eq!(to.records().unwrap().into_iter().map(|(id, record)| (id, record.parent)).collect::<Vec<_>>(), [(sibling, None)]);
    assert_whole(&to);
    // Without that lie both descend from one that is not there.
    let (there, honest) = (tempfile::tempdir().unwrap(), Place::new());
    let to = store(there.path());
    push(&from, &honest, &[ids[1], sibling]).unwrap();
    pull(&to, &honest, &[sibling]).unwrap();
    pull(&to, &honest, &ids[1..]).unwrap();
    assert_eq!(to.records().unwrap().len(), 2);
}

#[test]
fn what_has_a_name_stays() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = pushed(&from, &place, 2);
    from.set_remote_ref(&place, "lab", &RefName::Tag("good".into()), None, &ids[0]).unwrap();
    let error = prune(&from, &place, &ids[..1]).unwrap_err().to_string();
    assert!(error.contains("tag good"), "{error}");
    assert_eq!(from.remote_checkpoints(&place, "lab").unwrap().len(), 2);
}

#[test]
fn many_small_packs_become_few() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    pushed(&from, &place, 12);
    let before = place.objects("packs/").len();
    prune(&from, &place, &[]).unwrap();
    let after = place.objects("packs/").len();
    assert!(before > 20 && after < 4, "{after} of {before}");
    assert_all_whole(&place, &from, "put together");
    assert_eq!(prune(&from, &place, &[]).unwrap().packs, 0);
}

#[test]
fn images_go_with_the_last_checkpoint_that_stands_on_them() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let (id, image_id) = standing(&from, image());
    let other = pushed(&from, &place, 1);
    push(&from, &place, &[id]).unwrap();
    let stays = || {
        let there = tempfile::tempdir().unwrap();
        let to = store(there.path());
        pull_both(&to, &place, &id, &image_id).unwrap();
        assert!(content(&to, &image_id) == image().0, "it is the same image");
    };
    assert_eq!(prune(&from, &place, &other).unwrap().images, 0);
    stays();
    assert_eq!(prune(&from, &place, &[id]).unwrap().images, 1);
    assert_eq!((from.remote_images(&place).unwrap().len(), place.objects("images/").len(), bytes(&place)), (0, 0, 0));
    push(&from, &place, &[id]).unwrap();
    stays();
}

/// Whatever is interrupted, all that can be seen there is whole, and the next one who removes gets to the same end.
#[test]
fn a_prune_may_fail_at_any_step() {
    let here = tempfile::tempdir().unwrap();
    let from = store(here.path());
    let ids = history(&from, 4);
    for steps in 0.. {
        let place = place_with(&from, &ids);
        place.fail_after(Some(steps));
        let pruned = prune(&from, &place, &ids[..2]);
        place.fail_after(None);
        assert_all_whole(&place, &from, &format!("after {steps} steps"));
        // Whoever pushes now counts on nothing that is about to go.
        push(&from, &place, &ids).unwrap();
        assert_all_whole(&place, &from, &format!("pushed after {steps} steps"));
        prune(&from, &place, &ids[..2]).unwrap();
        assert_all_whole(&place, &from, &format!("pruned again after {steps} steps"));
        assert_eq!(prune(&from, &place, &[]).unwrap().packs, 0);
        if pruned.is_ok() {
            assert!(steps > 30, "only {steps} steps");
            return;
        }
    }
}

/// Whoever dies while records go leaves one line. What nothing after it descends from would be taken for the end of another, and every policy keeps those.
#[test]
fn a_prune_that_dies_leaves_no_checkpoint_beside_its_line() {
    let here = tempfile::tempdir().unwrap();
    let from = store(here.path());
    let ids = history(&from, 6);
    for steps in 0.. {
        let place = Place::new();
        push(&from, &place, &ids).unwrap();
        place.fail_after(Some(steps));
        let _ = prune(&from, &place, &ids[..5]);
        place.fail_after(None);
        let records = from.remote_records(&place, "lab", 2).unwrap();
        let parents: Vec<_> = records.iter().map(|(_, record)| record.parent).collect();
        let before: Vec<_> = [None].into_iter().chain(records.iter().map(|(id, _)| Some(*id))).take(records.len()).collect();
        assert_eq!(parents, before, "after {steps} steps");
        if let [(last, _)] = records[..] {
            assert!(last == ids[5] && steps > 15, "after {steps} steps");
            return;
        }
    }
}

/// Another host pushes, from beginning to end, between any two steps of a prune.
#[test]
fn somebody_may_push_at_any_step_of_a_prune() {
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = store(here.path());
    let ids = history(&from, 4);
    let more = fork(&from, ids[1]);
    let other = store(elsewhere.path());
    for steps in 0.. {
        let place = Arc::new(place_with(&from, &ids));
        let pushed = Arc::new(Mutex::new(None));
        {
            let (from, there, pushed) = (from.clone(), place.clone(), pushed.clone());
            place.after(steps, move || *pushed.lock().unwrap() = Some(push(&from, &there, &[more])));
        }
        let pruned = prune(&other, &place, &ids[..2]);
        place.meanwhile.lock().unwrap().take();
        assert!(pruned.is_ok(), "after {steps} steps: {pruned:?}");
        assert_all_whole(&place, &from, &format!("after {steps} steps"));
        match pushed.lock().unwrap().take() {
            None => {
                assert!(steps > 30, "only {steps} steps");
                return;
            }
            Some(result) => assert_eq!(result.unwrap().checkpoints, 1, "after {steps} steps"),
        }
        push(&from, &place, &ids).unwrap();
        assert_all_whole(&place, &from, &format!("pushed again after {steps} steps"));
    }
}

/// Another host pushes the very checkpoints that are removed, between any two steps of that: they are there as a whole afterwards, or not at all.
#[test]
fn what_is_removed_may_be_pushed_again_at_any_step_of_that() {
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = store(here.path());
    let ids = history(&from, 4);
    let other = store(elsewhere.path());
    let mut back = 0;
    for steps in 0.. {
        let place = Arc::new(place_with(&from, &ids));
        let (again, there, all) = (from.clone(), place.clone(), ids.clone());
        place.after(steps, move || _ = push(&again, &there, &all).unwrap());
        let pruned = prune(&other, &place, &ids[..2]);
        let is_over = place.meanwhile.lock().unwrap().take().is_some();
        assert!(pruned.is_ok(), "after {steps} steps: {pruned:?}");
        assert_all_whole(&place, &from, &format!("after {steps} steps"));
        back += u32::from(from.remote_checkpoints(&*place, "lab").unwrap().len() > 2);
        if is_over {
            assert!(steps > 30 && back > 10, "{steps} steps, {back} times back");
            return;
        }
    }
}

fn set_tag(store: &Store, place: &Place, id: &CheckpointId) -> RefSet {
    store.set_remote_ref(place, "lab", &RefName::Tag("good".into()), None, id).unwrap()
}

/// A tag that is there is on a checkpoint that is there.
#[track_caller]
fn assert_named(store: &Store, place: &Place, id: &CheckpointId, is_named: bool, what: &str) {
    let named: Vec<_> = store.remote_refs(place, "lab").unwrap().into_values().collect();
    assert_eq!(named, [*id][..usize::from(is_named)], "{what}");
    assert!(!is_named || store.remote_checkpoints(place, "lab").unwrap().contains(id), "{what}: a tag on nothing");
}

/// Another host sets a tag on what is removed, between any two steps of that: it is there afterwards, or the tag could not be set.
#[test]
fn a_tag_may_be_set_at_any_step_of_a_prune() {
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = store(here.path());
    let ids = history(&from, 3);
    let other = store(elsewhere.path());
    let (mut kept, mut refused, mut gone) = (0, 0, 0);
    for steps in 0.. {
        let place = Arc::new(place_with(&from, &ids));
        let came = Arc::new(Mutex::new(None));
        let (setter, there, id, result) = (from.clone(), place.clone(), ids[0], came.clone());
        place.after(steps, move || *result.lock().unwrap() = Some(set_tag(&setter, &there, &id)));
        let pruned = prune(&other, &place, &ids[..2]);
        place.meanwhile.lock().unwrap().take();
        let what = format!("after {steps} steps: {pruned:?}");
        let Some(came) = came.lock().unwrap().take() else {
            assert!(kept > 2 && refused > 2 && gone > 10, "{kept} times kept, {refused} times refused, {gone} times gone");
            return;
        };
        assert_named(&from, &place, &ids[0], came == RefSet::Done, &what);
        assert_all_whole(&place, &from, &what);
        match pruned {
            Err(_) => refused += 1,
            Ok(Pruned { checkpoints: 1, .. }) => kept += 1,
            Ok(Pruned { checkpoints, .. }) => {
                assert_eq!((checkpoints, came), (2, RefSet::Gone), "{what}");
                gone += 1;
            }
        }
    }
}

/// Another host removes what a tag is just being set on, between any two steps of that. Where it could not be set it can be when it was pushed again.
#[test]
fn somebody_may_prune_at_any_step_of_setting_a_tag() {
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = store(here.path());
    let ids = history(&from, 3);
    let mut gone = 0;
    for steps in 0.. {
        let place = Arc::new(place_with(&from, &ids));
        let (other, there, all) = (store(elsewhere.path()), place.clone(), ids[..2].to_vec());
        // It is refused if the tag is there already.
        place.after(steps, move || _ = prune(&other, &there, &all));
        let came = set_tag(&from, &place, &ids[0]);
        let is_over = place.meanwhile.lock().unwrap().take().is_some();
        let what = format!("after {steps} steps");
        assert_all_whole(&place, &from, &what);
        if came == RefSet::Gone {
            gone += 1;
            push(&from, &place, &ids[..1]).unwrap();
            assert_eq!(set_tag(&from, &place, &ids[0]), RefSet::Done, "{what}");
        }
        assert_named(&from, &place, &ids[0], true, &what);
        assert_all_whole(&place, &from, &what);
        if is_over {
            assert!(gone > 1, "{gone} times gone");
            return;
        }
    }
}

/// A remote to which checkpoints were sent one by one.
fn place_with(from: &Store, ids: &[CheckpointId]) -> Place {
    let place = Place::new();
    ids.iter().for_each(|id| _ = push(from, &place, &[*id]).unwrap());
    place
}

/// Looks so soon that whoever stands still meanwhile is taken for dead.
fn impatient(gone: &[CheckpointId]) -> PruneOptions {
    PruneOptions { looks: 3, look_every: Duration::from_millis(1), ..options(gone) }
}

/// Whoever dies while he pushes, at any step of that, holds up nobody for good.
#[test]
fn a_removal_goes_on_without_a_push_that_died() {
    let here = tempfile::tempdir().unwrap();
    let from = store(here.path());
    let ids = history(&from, 3);
    let more = fork(&from, ids[1]);
    let mut left = 0;
    for steps in 0.. {
        let place = place_with(&from, &ids);
        place.fail_after(Some(steps));
        let pushed = push(&from, &place, &[more]);
        place.fail_after(None);
        let leases = place.objects("pushes/").len() as u64;
        let pruned = from.prune_remote(&place, &impatient(&ids[..2]), &mut |_, _| {}).unwrap();
        assert_eq!((pruned.checkpoints, pruned.dead_pushes), (2, leases), "after {steps} steps");
        assert!(place.objects("pushes/").is_empty(), "after {steps} steps");
        assert_all_whole(&place, &from, &format!("after {steps} steps"));
        push(&from, &place, &[more]).unwrap();
        assert_all_whole(&place, &from, &format!("pushed again after {steps} steps"));
        assert!(from.remote_checkpoints(&place, "lab").unwrap().contains(&more), "after {steps} steps");
        left += leases;
        if pushed.is_ok() && leases == 0 {
            assert!(left > 4, "only {left} leases were left");
            return;
        }
    }
}

#[test]
fn somebody_who_knows_better_may_prune_at_any_step_of_a_push() {
    prune_at_any_step_of_a_push(options);
}

#[test]
fn somebody_who_has_waited_may_prune_at_any_step_of_a_push() {
    prune_at_any_step_of_a_push(impatient);
}

/// Another host removes, from beginning to end and taking the push for dead, between any two steps of a push. What the push then shows is whole, or it fails.
fn prune_at_any_step_of_a_push(how: fn(&[CheckpointId]) -> PruneOptions) {
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = store(here.path());
    let ids = history(&from, 3);
    let more = fork(&from, ids[1]);
    let mut refused = 0;
    for steps in 0.. {
        let place = Arc::new(place_with(&from, &ids));
        let done = Arc::new(Mutex::new(false));
        {
            let (other, gone, there, done) = (store(elsewhere.path()), ids[..2].to_vec(), place.clone(), done.clone());
            place.after(steps, move || {
                other.prune_remote(&*there, &how(&gone), &mut |_, _| {}).unwrap();
                *done.lock().unwrap() = true;
            });
        }
        let pushed = push(&from, &place, &[more]);
        place.meanwhile.lock().unwrap().take();
        assert_all_whole(&place, &from, &format!("after {steps} steps: {pushed:?}"));
        match pushed {
            Ok(_) => assert!(from.remote_checkpoints(&*place, "lab").unwrap().contains(&more), "after {steps} steps"),
            Err(error) => {
                assert!(error.to_string().contains("took this push for dead"), "{error}");
                refused += 1;
                // What it sent before is not believed to be whole.
                assert_eq!(push(&from, &place, &[more]).unwrap().checkpoints, 1, "after {steps} steps");
                assert_all_whole(&place, &from, &format!("pushed again after {steps} steps"));
            }
        }
        if !*done.lock().unwrap() {
            assert!(steps > 8 && refused > 4, "{steps} steps, {refused} refused");
            return;
        }
    }
}

/// The same when the answer to what the push sends next is lost: what it has shown all the same it takes back.
#[test]
fn a_push_taken_for_dead_takes_back_what_it_failed_to_show() {
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = store(here.path());
    let ids = history(&from, 3);
    let more = fork(&from, ids[1]);
    let mut failed = 0;
    for steps in 0.. {
        let place = Arc::new(place_with(&from, &ids));
        let (other, there, gone) = (store(elsewhere.path()), place.clone(), ids[..2].to_vec());
        place.after(steps, move || {
            prune(&other, &there, &gone).unwrap();
            there.lose_an_answer();
        });
        let pushed = push(&from, &place, &[more]);
        let is_over = place.meanwhile.lock().unwrap().take().is_some();
        place.loses_answer.store(false, Ordering::Relaxed);
        assert_all_whole(&place, &from, &format!("after {steps} steps: {pushed:?}"));
        failed += u32::from(pushed.is_err());
        if is_over {
            assert!(steps > 8 && failed > 4, "{steps} steps, {failed} failed");
            return;
        }
    }
}

/// A push that gives signs of life is waited for, and what it shows in the end is whole.
#[test]
fn a_push_under_way_is_waited_for() {
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = store(here.path());
    let ids = history(&from, 3);
    let more = fork(&from, ids[1]);
    let place = Arc::new(place_with(&from, &ids));
    let pruning = Arc::new(Mutex::new(None));
    {
        let (other, gone, there, pruning) = (store(elsewhere.path()), ids[..2].to_vec(), place.clone(), pruning.clone());
        // It has its lease by then, and has looked what is there.
        place.after(8, move || {
            let wait = PruneOptions { looks: u32::MAX, ..impatient(&gone) };
            let (waits, awaited) = mpsc::channel();
            *pruning.lock().unwrap() = Some(thread::spawn(move || {
                other.prune_remote(&*there, &wait, &mut |stage, _| _ = (stage == CopyStage::Wait).then(|| waits.send(())))
            }));
            awaited.recv().unwrap();
        });
    }
    assert_eq!(push(&from, &place, &[more]).unwrap().checkpoints, 1);
    let pruned = pruning.lock().unwrap().take().unwrap().join().unwrap().unwrap();
    assert_eq!((pruned.checkpoints, pruned.dead_pushes), (2, 0));
    assert!(from.remote_checkpoints(&*place, "lab").unwrap().contains(&more));
    assert_all_whole(&place, &from, "after both");
}
