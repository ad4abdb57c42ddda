//! Removing checkpoints, branches and experiments; and what stays beside them.

use crate::common::*;
use fermata_store::{BranchName, Error, Removal, Store};
use fermata_types::*;

/// A branch of this many checkpoints upon `parent`, each with a page of its own.
fn line(store: &Store, branch: &str, mut parent: Option<CheckpointId>, count: u64) -> Vec<CheckpointId> {
    let mut root = parent.map_or(Root::empty(1000), |parent| store.record(&parent).unwrap().parts[0].tables["ram"]);
    let name = |step: u64| u64::from(branch.as_bytes()[0]) * 1000 + step;
    (0..count)
        .map(|step| {
            let mut writer = store.writer().unwrap();
            root = put(&mut writer, &root, &[(step as PageNumber, name(step))]);
            let id = writer.commit(&record_of(parent, branch, &format!("{branch} {step}"), root)).unwrap();
            parent = Some(id);
            id
        })
        .collect()
}

fn checkpoints(ids: &[CheckpointId]) -> Removal {
    Removal { checkpoints: ids.to_vec(), ..Removal::default() }
}

fn branch(name: &str) -> Removal {
    Removal { branches: vec![BranchName { experiment: "lab".into(), branch: name.into() }], ..Removal::default() }
}

fn ids(store: &Store) -> Vec<CheckpointId> {
    store.records().unwrap().into_iter().map(|(id, _)| id).collect()
}

#[test]
fn children_of_a_removed_checkpoint_stay_and_find_their_ancestors() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let main = line(&store, "main", None, 6);
    let removal = Removal { dry_run: true, ..checkpoints(&main[1..3]) };
    let told = store.remove(&removal).unwrap();
    assert_eq!(ids(&store), main, "a dry run");
    assert_eq!(store.remove(&checkpoints(&main[1..3])).unwrap(), told);
    assert_eq!(told.checkpoints.len(), 2);
    assert!(told.branches.is_empty() && told.tags.is_empty());
    assert_eq!(ids(&store), [main[0], main[3], main[4], main[5]]);
    assert_eq!(store.record(&main[3]).unwrap().parent, Some(main[0]));
    assert_eq!(store.resolve("main~3", Some("lab")).unwrap(), main[0]);
    let root = store.record(&main[5]).unwrap().parts[0].tables["ram"];
    for step in 0..6u32 {
        let name = store.lookup(&root, step).unwrap().unwrap();
        assert_eq!(read(&store, &name).unwrap(), page(u64::from(b'm') * 1000 + u64::from(step)));
    }
    for gone in &main[1..3] {
        assert!(matches!(store.record(gone), Err(Error::Missing { .. })));
        assert!(matches!(store.remove(&checkpoints(&[*gone])), Err(Error::Missing { .. })));
        assert!(matches!(store.tag("lab", "x", gone), Err(Error::Missing { .. })));
        assert!(matches!(store.hold(gone), Err(Error::Missing { .. })));
    }
    // The last one before the root: now the third has no parent.
    store.remove(&checkpoints(&main[..1])).unwrap();
    assert_eq!(store.record(&main[3]).unwrap().parent, None);
}

#[test]
fn a_branch_goes_back_to_what_remains_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let main = line(&store, "main", None, 4);
    let removed = store.remove(&checkpoints(&main[2..])).unwrap();
    assert_eq!((removed.branches[0].from, removed.branches[0].to), (main[3], Some(main[1])));
    assert_eq!(store.branch("lab", "main").unwrap(), Some(main[1]));
    // A run that stood on the old head goes on, as a child of what remains.
    let mut writer = store.writer().unwrap();
    let root = put(&mut writer, &Root::empty(1000), &[(9, 9)]);
    let next = writer.commit(&record_of(Some(main[3]), "main", "next", root)).unwrap();
    assert_eq!(store.record(&next).unwrap().parent, Some(main[1]));
    assert_eq!(store.branch("lab", "main").unwrap(), Some(next));
    // Another one that stood there too is late.
    let error = store.writer().unwrap().commit(&record_of(Some(main[3]), "main", "late", root)).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    // With nothing left the branch goes, and whoever lives on it makes it anew.
    let removed = store.remove(&checkpoints(&[main[0], main[1], next])).unwrap();
    assert_eq!(removed.branches[0].to, None);
    assert_eq!(store.branch("lab", "main").unwrap(), None);
    let anew = store.writer().unwrap().commit(&record_of(Some(next), "main", "anew", root)).unwrap();
    assert_eq!(store.record(&anew).unwrap().parent, None);
}

#[test]
fn a_branch_is_removed_down_to_where_others_begin() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let main = line(&store, "main", None, 4);
    let fork = line(&store, "fork", Some(main[1]), 2);
    store.remove(&branch("main")).unwrap();
    assert_eq!(ids(&store), [main[0], main[1], fork[0], fork[1]]);
    assert_eq!(store.branches("lab").unwrap(), [("fork".to_owned(), fork[1])].into());
    assert!(matches!(store.remove(&branch("main")), Err(Error::Missing { .. })));
    store.remove(&branch("fork")).unwrap();
    assert!(ids(&store).is_empty());
}

#[test]
fn what_is_tagged_goes_only_by_force() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let main = line(&store, "main", None, 3);
    store.tag("lab", "good", &main[1]).unwrap();
    for removal in [checkpoints(&main), branch("main"), Removal { experiments: vec!["lab".into()], ..Removal::default() }] {
        let error = store.remove(&removal).unwrap_err();
        assert!(matches!(&error, Error::Refused { .. }) && error.to_string().contains("lab/good"), "{error}");
        assert_eq!(ids(&store), main);
    }
    store.remove(&checkpoints(&main[..1])).unwrap();
    let removed = store.remove(&Removal { experiments: vec!["lab".into()], force: true, ..Removal::default() }).unwrap();
    assert_eq!((removed.checkpoints.len(), removed.branches.len(), removed.tags.len()), (2, 1, 1));
    assert!(ids(&store).is_empty() && store.tags("lab").unwrap().is_empty() && store.branches("lab").unwrap().is_empty());
    let nobody = Removal { experiments: vec!["nobody".into()], ..Removal::default() };
    assert!(matches!(store.remove(&nobody), Err(Error::Missing { .. })));
}

#[test]
fn hints_stay_beside_their_checkpoint_and_go_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let main = line(&store, "main", None, 2);
    store.set_hint(&main[0], "first-touched", b"1 2 3").unwrap();
    store.set_hint(&main[0], "first-touched", b"1 2 4").unwrap();
    store.set_hint(&main[0], "other", b"").unwrap();
    assert_eq!(store.hint(&main[0], "first-touched").unwrap().as_deref(), Some(b"1 2 4".as_slice()));
    assert_eq!(store.hint(&main[0], "other").unwrap().as_deref(), Some(b"".as_slice()));
    assert_eq!(store.hint(&main[0], "first").unwrap(), None);
    assert_eq!(store.hint(&main[1], "other").unwrap(), None);
    assert!(matches!(store.set_hint(&main[0], "large", &vec![0; (1 << 20) + 1]), Err(Error::Refused { .. })));
    store.set_hint(&main[0], "large", &vec![7; 1 << 20]).unwrap();
    store.remove(&checkpoints(&main[..1])).unwrap();
    assert_eq!(store.hint(&main[0], "large").unwrap(), None);
    assert!(matches!(store.set_hint(&main[0], "other", b"1"), Err(Error::Missing { .. })));
}
