//! A host that dies between any two changes of the remote that it copies to: a keeper that begins after that brings the remote to the same end.

use super::{
    tests::{kept_up, there},
    *,
};
use crate::{remotes::mortal, samples, values::RemotePruned};
use fermata_remote::Address;
use fermata_store::{
    VerifyOptions,
    remote::{PullOptions, Remote},
};
use fermata_types::{PAGE_SIZE, PartKind, PartState, Root};
use std::path::PathBuf;

/// In memory where that can be: each state is synced again and again.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Each has a page of its own, one that it has from its parent, and a blob.
fn grow(store: &Store, branch: &str, parent: Option<CheckpointId>, step: u64) -> CheckpointId {
    let base = parent.map_or(Root::empty(600), |parent| store.record(&parent).unwrap().parts[0].tables["ram"]);
    let mut writer = store.writer().unwrap();
    let own = writer.put_page(&[step as u8 + 1; PAGE_SIZE]).unwrap().0;
    let ram = writer.update_table(&base, &[(step as u32 % 2 * 599, Some(own))]).unwrap();
    let part = PartState {
        name: "m1".into(),
        kind: PartKind::Machine,
        tables: [("ram".to_owned(), ram)].into(),
        blobs: [("devices".to_owned(), writer.put_blob(&step.to_le_bytes()).unwrap())].into(),
        details: serde_json::Value::Null,
    };
    writer.commit(&Record { parent, branch: branch.into(), parts: vec![part], ..samples::record("lab", step) }).unwrap()
}

/// A file, and what it holds.
type File = (PathBuf, Vec<u8>);

fn files(directory: &Path) -> Vec<File> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path.clone(), fs::read(path).unwrap())),
        }
    }
    found
}

/// Checkpoints, and what each descends from.
type Lines = BTreeMap<CheckpointId, Option<CheckpointId>>;

/// A store, and the remote that its keepers copy to.
struct Scene {
    directory: tempfile::TempDir,
    here: PathBuf,
    store: Store,
    entry: BackupEntry,
    nas: Box<dyn Remote>,
}

/// What died at each of its changes.
#[derive(Debug, Default)]
struct Deaths {
    copying: u32,
    /// Of them those that left a lease.
    leases: u32,
    thinning: u32,
}

impl Scene {
    fn new() -> Self {
        let directory = directory();
        let (here, store, entry) = kept_up(directory.path());
        let nas = fermata_remote::open(&Address::Directory(directory.path().join("nas")), None).unwrap();
        Self { directory, here, store, entry, nas }
    }

    /// The remote as it is, and what the store knows of it.
    fn noted(&self) -> Vec<File> {
        let known = self.here.join("remotes.json");
        let mut noted = files(&self.directory.path().join("nas"));
        noted.push((known.clone(), fs::read(known).unwrap()));
        noted
    }

    fn put_back(&self, noted: &[File]) {
        let _ = fs::remove_dir_all(self.directory.path().join("nas"));
        for (path, bytes) in noted {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }

    /// A keeper that has just begun, and looks for the first time.
    fn back_up(&self) -> Result<Option<Problem>, Problem> {
        copy_new(&self.here, "lab", &mut BTreeMap::new(), &|| ())
    }

    fn prune(&self, how: RemotePruneRequest) -> RemotePruned {
        let request = RemotePruneRequest { copy: request("lab", &self.entry), keep: self.entry.keep.clone(), ..how };
        remote_prune::prune(&self.here, &request, &mut |_| ()).unwrap()
    }

    fn leases(&self) -> u32 {
        self.nas.list("pushes/").unwrap().len() as u32
    }

    /// The same after somebody has died. If he left a lease, nobody can tell whether his push still lives: a thinning waits for it for minutes, and then goes on without it. Here
    /// somebody knows better at once. Copies wait for nothing.
    fn back_up_after_a_death(&self, what: &str) {
        match self.leases() {
            0 => assert_eq!(self.back_up(), Ok(None), "{what}"),
            leases => {
                copy_to(&self.here, "lab", &self.entry, &mut Done::default(), &|| ()).unwrap();
                assert_eq!(self.leases(), leases, "{what}: its own is gone, and no other one");
                let pruned = self.prune(RemotePruneRequest { take_pushes_for_dead: true, ..RemotePruneRequest::default() });
                assert_eq!(pruned.freed.dead_pushes, u64::from(leases), "{what}");
            }
        }
    }

    /// All that is to be kept is there, in its lines, under its names, and whole; nothing else is, and nothing is under way.
    fn assert_end(&self, kept: &Lines, what: &str) {
        let records = self.store.remote_records(&*self.nas, "lab", 1).unwrap();
        let lines: Lines = records.into_iter().map(|(id, record)| (id, record.parent)).collect();
        assert_eq!(lines, *kept, "{what}");
        assert_eq!(there(&self.here).refs, remotes::refs(&self.store, "lab").unwrap(), "{what}");
        let elsewhere = directory();
        let restored = Store::open(elsewhere.path()).unwrap();
        let ids: Vec<_> = kept.keys().copied().collect();
        let pulled = restored.pull(&*self.nas, "lab", &ids, &PullOptions::default(), &mut |_, _| {}).unwrap();
        assert_eq!((pulled.checkpoints, pulled.left_out), (ids.len() as u64, vec![]), "{what}");
        let report = restored.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.damage.is_empty(), "{what}: {:?}", report.damage);
        for id in &ids {
            assert_eq!(restored.record(id).unwrap().parts, self.store.record(id).unwrap().parts, "{what}");
        }
        let more = self.prune(RemotePruneRequest { dry_run: true, ..RemotePruneRequest::default() });
        assert_eq!((more.removed.len(), more.freed.packs, self.leases()), (0, 0, 0), "{what}");
    }

    /// Has a keeper die at each of the changes that it makes where this was noted, and another one begin after that.
    fn die_everywhere(&self, noted: &[File], kept: &Lines) -> Deaths {
        let mut deaths = Deaths::default();
        for changes in 0.. {
            self.put_back(noted);
            let what = format!("after {changes} changes");
            match mortal::live(changes, || self.back_up()) {
                Err(_) => deaths.copying += 1,
                Ok(Some(_)) => deaths.thinning += 1,
                Ok(None) => {
                    self.assert_end(kept, &what);
                    break;
                }
            }
            deaths.leases += self.leases();
            self.back_up_after_a_death(&what);
            self.assert_end(kept, &what);
        }
        deaths
    }
}

#[test]
fn a_backup_gets_to_the_same_end_wherever_its_host_dies() {
    let scene = Scene::new();
    let nothing = scene.noted();
    let mut main = Vec::new();
    let grow_to = |main: &mut Vec<CheckpointId>, steps: u64| {
        for step in main.len() as u64..steps {
            let parent = main.last().copied();
            main.push(grow(&scene.store, "main", parent, step));
        }
    };
    grow_to(&mut main, 3);
    let fork = grow(&scene.store, "what-if", Some(main[1]), 100);
    // Once to where a part was copied and thinned before, and once to where nothing was.
    assert_eq!(scene.back_up(), Ok(None));
    let begun = scene.noted();
    grow_to(&mut main, 6);
    // The last ones of both branches, and where they part.
    let kept: Lines = [(main[1], None), (fork, Some(main[1])), (main[5], Some(main[1]))].into();
    for noted in [&begun, &nothing] {
        let deaths = scene.die_everywhere(noted, &kept);
        assert!(deaths.copying > 5 && deaths.leases > 4 && deaths.thinning > 10, "{deaths:?}");
    }
}
