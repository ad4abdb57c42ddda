//! Remotes of which something was lost, and stores that have less than they seem to.

use super::{
    images::{content, image, pull_both, standing},
    *,
};
use crate::hash;

/// Checkpoints that were pushed one by one.
fn pushed(store: &Store, place: &Place, length: u64) -> Vec<CheckpointId> {
    let ids = history(store, length);
    ids.iter().for_each(|id| _ = push(store, place, &[*id]).unwrap());
    ids
}

fn verify(store: &Store, place: &Place, ids: &[CheckpointId]) -> Verified {
    store.verify_remote(place, "lab", ids, true, &mut |_| {}).unwrap()
}

fn broken(verified: &Verified) -> Vec<CheckpointId> {
    verified.broken.iter().map(|(id, _)| *id).collect()
}

/// Nodes of the first one stay, since those of the second are deltas to them; the pages below them go.
#[test]
fn what_is_below_a_node_that_a_collection_kept_is_fetched() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, other) = (store(here.path()), store(there.path()));
    let ids = history(&from, 2);
    push(&from, &place, &ids).unwrap();
    pull(&other, &place, &ids).unwrap();
    from.remove(&Removal { checkpoints: ids[..1].to_vec(), ..Removal::default() }).unwrap();
    from.collect(&CollectOptions { rewrite_below: 100, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
    assert_eq!(pull(&from, &place, &ids[..1]).unwrap().checkpoints, 1);
    assert_whole(&from);
    assert_eq!(pages(&from, &ids[0]), pages(&other, &ids[0]));
}

/// Two of its pages lie here in an image that it does not stand on, below a node of a checkpoint that does.
#[test]
fn what_lies_in_an_image_that_a_checkpoint_does_not_stand_on_comes_along() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let mut writer = from.writer().unwrap();
    let names = [page(5003), page(5710), page(1)].map(|page| writer.put_page(&page).unwrap().0);
    let changes: Vec<_> = names.into_iter().zip(0..).map(|(name, number)| (number, Some(name))).collect();
    let ram = writer.update_table(&Root::empty(4000), &changes).unwrap();
    let id = writer.commit(&record(None, 2, ram, BTreeMap::new())).unwrap();
    push(&from, &place, &[id]).unwrap();
    {
        let to = store(there.path());
        let (known, _) = standing(&to, image());
        assert_eq!(to.record(&known).unwrap().parts[0].tables["ram"], ram);
        assert_eq!(pull(&to, &place, &[id]).unwrap().checkpoints, 1);
    }
    let (without_image, mut content) = (store(there.path()), [0; PAGE_SIZE]);
    for (_, name) in pages(&without_image, &id) {
        without_image.read_page(&PageName(name), &mut content).unwrap();
    }
}

#[test]
fn what_is_damaged_there_keeps_nothing_else_there() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = pushed(&from, &place, 4);
    let record = place.path(&record_name("lab", &ids[1]));
    let catalog = catalog::Catalog::read(&from, &place, 1, &lease::Going::look(&place).unwrap(), false, &mut |_| {}).unwrap();
    let at = catalog.find(&pages(&from, &ids[1])[0].1).unwrap();
    let pack = place.path(&catalog::pack_name(&catalog.packs[at.pack as usize].id));
    for (object, damage) in [(&pack, 0), (&pack, 1), (&pack, 2), (&record, 1), (&record, 2)] {
        let good = fs::read(object).unwrap();
        let mut bad = good.clone();
        match damage {
            0 => fs::remove_file(object).unwrap(),
            1 => fs::write(object, &good[..good.len() - 1]).unwrap(),
            _ => {
                bad[good.len() / 4..good.len() / 3].fill(0xff);
                fs::write(object, bad).unwrap();
            }
        }
        let there = tempfile::tempdir().unwrap();
        let to = store(there.path());
        let get = || to.pull(&place, "lab", &ids, &PullOptions::default(), &mut |_, _| {}).unwrap();
        let what = format!("{}, damage {damage}", object.display());
        for checkpoints in [3, 0] {
            let pulled = get();
            let left_out: Vec<_> = pulled.left_out.iter().map(|(id, _)| *id).collect();
            assert_eq!((pulled.checkpoints, left_out), (checkpoints, vec![ids[1]]), "{what}");
            assert_whole(&to);
        }
        // Without its record nobody knows from whom it descends.
        let ancestor = (*object == pack).then_some(ids[0]);
        assert_eq!([to.record(&ids[2]).unwrap().parent, to.record(&ids[3]).unwrap().parent], [ancestor, Some(ids[2])], "{what}");
        fs::write(object, good).unwrap();
        assert_eq!((get().checkpoints, get()), (1, Pulled::default()), "{what}");
        assert_eq!(to.record(&ids[2]).unwrap().parent, Some(ids[1]), "{what}");
        assert_whole(&to);
    }
}

/// Where its table of contents says that there are pages: who wants them takes no memory for it.
#[test]
fn a_blob_in_the_place_of_pages_is_found_out() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let ids = pushed(&from, &place, 2);
    let catalog = catalog::Catalog::read(&from, &place, 1, &lease::Going::look(&place).unwrap(), false, &mut |_| {}).unwrap();
    let at = catalog.find(&pages(&from, &ids[1])[0].1).unwrap();
    let sent = &catalog.packs[at.pack as usize];
    let object = place.path(&catalog::pack_name(&sent.id));
    let mut bytes = fs::read(&object).unwrap();
    let frame = sent.contents.entries[at.frame as usize].offset as usize;
    // A single object, of as many bytes.
    bytes[frame] = crate::pack::Kind::Blob.to_byte();
    bytes[frame + 2..frame + 4].copy_from_slice(&1u16.to_le_bytes());
    fs::write(&object, bytes).unwrap();
    let pulled = to.pull(&place, "lab", &ids, &PullOptions::default(), &mut |_, _| {}).unwrap();
    let [(left_out, why)] = &pulled.left_out[..] else { panic!("{pulled:?}") };
    assert!(*left_out == ids[1] && why.contains("of another kind"), "{why}");
    assert_eq!(pulled.checkpoints, 1);
    assert_whole(&to);
}

/// Whatever pack is gone, or is no pack any more.
#[test]
fn a_remote_that_has_lost_a_pack_is_mended() {
    for cut in [false, true] {
        for nth in 0.. {
            let [here, there] = [(); 2].map(|()| tempfile::tempdir().unwrap());
            let (place, from, to) = (Place::new(), store(here.path()), store(there.path()));
            let ids = pushed(&from, &place, 3);
            let mut packs = place.objects("packs/");
            packs.sort();
            let Some(pack) = packs.get(nth) else {
                assert!(nth > 3, "only {nth} packs");
                break;
            };
            assert_eq!([broken(&verify(&from, &place, &ids)), broken(&verify(&to, &place, &ids))], [vec![], vec![]]);
            assert!(!to.path().join("remotes/incoming").exists());
            let bytes = fs::read(pack).unwrap();
            match cut {
                true => fs::write(pack, &bytes[..bytes.len() - 1]).unwrap(),
                false => fs::remove_file(pack).unwrap(),
            }
            let found = verify(&from, &place, &ids);
            assert!(!found.broken.is_empty(), "pack {nth}");
            assert_eq!(found.unreadable.len(), usize::from(cut), "pack {nth}");
            // Who only pushes takes what is above for whole.
            assert_eq!(push(&from, &place, &ids).unwrap(), Pushed::default());
            let mended = from.repair_remote(&place, &broken(&found), &PushOptions::default(), &mut |_, _| {}).unwrap();
            assert!(mended.packs > 0, "pack {nth}: {mended:?}");
            assert_eq!([broken(&verify(&from, &place, &ids)), broken(&verify(&to, &place, &ids))], [vec![], vec![]], "pack {nth}");
            assert_eq!(pull(&to, &place, &ids).unwrap().checkpoints, 3, "pack {nth}");
            assert_whole(&to);
            ids.iter().for_each(|id| assert_eq!(pages(&to, id), pages(&from, id)));
        }
    }
}

/// Whoever has the image here lacks nothing of it himself.
#[test]
fn a_golden_image_of_which_a_remote_has_lost_blocks_is_mended() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let (id, image_id) = standing(&from, image());
    push(&from, &place, &[id]).unwrap();
    assert!(verify(&from, &place, &[id]).broken.is_empty());
    let catalog = catalog::Catalog::read(&from, &place, 1, &lease::Going::look(&place).unwrap(), false, &mut |_| {}).unwrap();
    let at = catalog.find(hash::page(&page(5700)).as_bytes()).unwrap();
    fs::remove_file(place.path(&catalog::pack_name(&catalog.packs[at.pack as usize].id))).unwrap();
    let found = verify(&from, &place, &[id]);
    assert_eq!(broken(&found), [id]);
    let error = found.broken[0].1.to_string();
    assert!(error.contains("is in no pack"), "{error}");
    // What goes from here is the checkpoint.
    from.check_remote(&place, "lab", &[id], true, &mut |_| {}).unwrap();
    from.repair_remote(&place, &[id], &PushOptions::default(), &mut |_, _| {}).unwrap();
    assert!(verify(&from, &place, &[id]).broken.is_empty());
    pull_both(&to, &place, &id, &image_id).unwrap();
    assert!(content(&to, &image_id) == image().0, "it is the same image");
}

#[test]
fn what_once_was_in_a_pack_is_not_taken_for_being_there() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let ids = history(&from, 2);
    push(&from, &place, &ids).unwrap();
    from.check_remote(&place, "lab", &ids, true, &mut |_| {}).unwrap();
    for pack in place.objects("packs/") {
        let good = fs::read(&pack).unwrap();
        let mut bad = good.clone();
        // The name of the pack in its trailer: its length is as it was.
        bad[good.len() - 20] ^= 1;
        fs::write(&pack, bad).unwrap();
        let error = from.check_remote(&place, "lab", &ids, true, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("is in no pack"), "{error}");
        fs::write(&pack, good).unwrap();
        from.check_remote(&place, "lab", &ids, true, &mut |_| {}).unwrap();
    }
}

#[test]
fn a_pack_beyond_the_limits_is_not_read() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let ids = history(&from, 1);
    push(&from, &place, &ids).unwrap();
    let name = "ab".repeat(32);
    fs::create_dir_all(place.path("packs/ab")).unwrap();
    fs::File::create(place.path(&format!("packs/ab/{name}.pack"))).unwrap().set_len(1 << 30).unwrap();
    let found = verify(&from, &place, &ids);
    assert!(found.broken.is_empty() && found.unreadable.len() == 1 && found.unreadable[0].contains("beyond the limits"), "{found:?}");
    assert_eq!(pull(&to, &place, &ids).unwrap().checkpoints, 1);
    let next = grow(&from, Some(ids[0]), 1).unwrap();
    assert_eq!(push(&from, &place, &[next]).unwrap().checkpoints, 1);
}
