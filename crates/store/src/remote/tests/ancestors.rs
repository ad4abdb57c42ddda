//! Who descends from whom, when it is told while it changes.

use super::*;

#[test]
fn who_comes_while_a_collection_forgets_its_parent_descends_from_the_same() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let store = open(here.path()).unwrap();
    let first = grow(&store, None, 0).unwrap();
    let second = grow(&store, Some(first), 1).unwrap();
    let third = grow(&store, Some(second), 2).unwrap();
    push(&store, &place, &[first, third]).unwrap();
    store.remove(&Removal { checkpoints: vec![second, third], ..Removal::default() }).unwrap();
    let mut coming = None;
    let options = CollectOptions { rewrite_below: 100, ..CollectOptions::default() };
    let told = store.collect(&options, &mut |stage, _| {
        if stage == CollectStage::Remove && coming.is_none() {
            coming = Some(store.begin_pull(&place, "lab", &[third], &PullOptions::default()).unwrap());
        }
    });
    assert!(told.unwrap().damaged.is_empty());
    assert!(store.removed_link(&third).unwrap().is_none(), "it is forgotten, for nobody descends from it");
    coming.take().expect("it removes").finish(&mut |_, _| {}).unwrap();
    assert_eq!(store.record(&third).unwrap().parent, Some(first));
}
