//! Remotes whose address leads elsewhere one day: a directory on which nothing is mounted any more, or another disk. Nothing is copied there, and nothing goes here.

use fermata_api::{
    backups,
    remotes::{self, CopyRequest, Encryption, RemoteEntry},
};
use fermata_store::{Cost, Record, Store};
use fermata_types::{CheckpointId, PAGE_SIZE, PartKind, PartState, Root};
use std::{
    fs,
    path::{Path, PathBuf},
};

const PASSPHRASE: &str = "correct horse";

/// A store, and a place that is mounted, or not, where its remote `nas` is.
struct Test {
    directory: tempfile::TempDir,
    encryption: Encryption,
    steps: u64,
}

impl Test {
    fn new(encryption: Encryption) -> Self {
        let test = Self { directory: tempfile::tempdir().unwrap(), encryption, steps: 0 };
        fs::create_dir_all(test.mounted()).unwrap();
        drop(Store::open(&test.store()).unwrap());
        test.add();
        test
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    fn mounted(&self) -> PathBuf {
        self.directory.path().join("mnt/nas")
    }

    fn add(&self) {
        let address = self.mounted().join("fermata").display().to_string();
        remotes::add(&self.store(), RemoteEntry::new("nas".into(), address, None, self.encryption.clone())).unwrap();
    }

    /// Takes what is mounted away, and leaves an empty directory.
    fn unmount(&self, to: &str) {
        fs::rename(self.mounted(), self.directory.path().join(to)).unwrap();
        fs::create_dir(self.mounted()).unwrap();
    }

    fn mount(&self, from: &str) {
        fs::remove_dir(self.mounted()).unwrap();
        fs::rename(self.directory.path().join(from), self.mounted()).unwrap();
    }

    fn request(&self) -> CopyRequest {
        CopyRequest {
            remote: Some("nas".into()),
            experiment: "lab".into(),
            jobs: 1,
            passphrase: Some(PASSPHRASE.into()),
            ..CopyRequest::default()
        }
    }

    fn grow(&mut self) {
        self.steps += 1;
        grow(&self.store(), self.steps);
    }

    fn push(&self) -> Result<u64, String> {
        remotes::push(&self.store(), &self.request(), &mut |_| {}).map(|copied| copied.checkpoints).map_err(|problem| problem.message)
    }

    fn identity(&self) -> Option<String> {
        remotes::remotes(&self.store()).unwrap()[0].identity.clone()
    }

    /// Whatever would be copied is refused, and nothing is made there.
    fn assert_refused(&self, found: &str) {
        let expected = &self.identity().unwrap()[..12];
        let before = entries(&self.mounted());
        let store = self.store();
        let backed_up = backups::back_up(&store, &self.request(), &mut |_| {}).map(drop).unwrap_err().message;
        let pulled = remotes::pull(&store, &self.request(), &mut |_| {}).map(drop).unwrap_err().message;
        let standing = backups::standing(&store, &self.request()).unwrap();
        let lacking = standing[0].trouble.clone().unwrap();
        assert_eq!(standing[0].lacking, self.steps);
        for error in [self.push().unwrap_err(), backed_up, pulled, lacking] {
            assert!(error.contains(expected) && error.contains(found) && error.contains("mount or connect"), "{error}");
        }
        assert_eq!(entries(&self.mounted()), before);
    }
}

/// All that is below a directory.
fn entries(directory: &Path) -> usize {
    let below = |entry: fs::DirEntry| 1 + if entry.path().is_dir() { entries(&entry.path()) } else { 0 };
    fs::read_dir(directory).unwrap().map(|entry| below(entry.unwrap())).sum()
}

fn grow(store: &Path, step: u64) -> CheckpointId {
    let store = Store::open(store).unwrap();
    let parent = store.branches("lab").unwrap().get("main").copied();
    let mut writer = store.writer().unwrap();
    let mut page = [7; PAGE_SIZE];
    page[..8].copy_from_slice(&step.to_le_bytes());
    let changes = [(step as u32, Some(writer.put_page(&page).unwrap().0))];
    let ram = writer.update_table(&Root::empty(4000), &changes).unwrap();
    let part = PartState {
        name: "m1".into(),
        kind: PartKind::Machine,
        tables: [("ram".to_owned(), ram)].into(),
        blobs: [].into(),
        details: serde_json::Value::Null,
    };
    let record = Record {
        parent,
        experiment: "lab".into(),
        branch: "main".into(),
        message: None,
        created_ns: step,
        after_ns: None,
        time_virtual_ns: step,
        began_ns: None,
        events: 0,
        waiting: Vec::new(),
        spec: serde_json::Value::Null,
        parts: vec![part],
        images: Vec::new(),
        cost: Cost::default(),
    };
    writer.commit(&record).unwrap()
}

fn both_kinds(test: impl Fn(Test)) {
    [Encryption::None, Encryption::Passphrase].into_iter().for_each(|encryption| test(Test::new(encryption)));
}

#[test]
fn a_place_that_is_not_mounted_is_not_taken_for_the_remote() {
    both_kinds(|mut test| {
        test.grow();
        assert_eq!((test.identity(), test.push()), (None, Ok(1)));
        test.unmount("elsewhere");
        test.grow();
        test.assert_refused("there is nothing");
        test.mount("elsewhere");
        assert_eq!(test.push(), Ok(1));
        // Another one is mounted there.
        test.unmount("first");
        let known = test.identity();
        remotes::forget(&test.store(), "nas").unwrap();
        test.add();
        assert_eq!((test.identity(), test.push()), (None, Ok(2)));
        assert_ne!(test.identity(), known);
        test.unmount("second");
        test.mount("first");
        test.assert_refused("there is remote ");
        fs::rename(test.mounted(), test.directory.path().join("first")).unwrap();
        fs::create_dir(test.mounted()).unwrap();
        test.mount("second");
        assert_eq!(test.push(), Ok(0));
    });
}

#[test]
fn a_remote_of_an_older_version_is_known_from_its_next_use_on() {
    both_kinds(|mut test| {
        test.grow();
        test.push().unwrap();
        // As that version left it, there and here.
        let (place, list) = (test.mounted().join("fermata"), test.store().join("remotes.json"));
        let identity = match test.encryption {
            Encryption::None => place.join("identity"),
            _ => fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).find(|path| is_sealed_identity(path)).unwrap(),
        };
        fs::remove_file(identity).unwrap();
        let mut entries: serde_json::Value = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
        entries[0].as_object_mut().unwrap().remove("identity").unwrap();
        fs::write(&list, entries.to_string()).unwrap();
        assert_eq!((test.push(), test.identity().map(|identity| identity.len())), (Ok(0), Some(32)));
        test.unmount("elsewhere");
        test.assert_refused("there is nothing");
        test.mount("elsewhere");
        // Whoever clones it knows it, too.
        let (copy, address) = (test.directory.path().join("copy"), place.display().to_string());
        remotes::add(&copy, RemoteEntry::new("origin".into(), address, None, test.encryption.clone())).unwrap();
        let request = CopyRequest { remote: None, ..test.request() };
        assert_eq!(remotes::pull(&copy, &request, &mut |_| {}).unwrap().checkpoints, 1);
        assert_eq!(remotes::remotes(&copy).unwrap()[0].identity, test.identity());
    });
}

/// Of the objects without a kind it is the one that has 33 bytes in the open.
fn is_sealed_identity(path: &Path) -> bool {
    path.metadata().unwrap().len() == 33 + 16 + 27
}
