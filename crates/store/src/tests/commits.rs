//! LMDB's own promise, on which all commits stand: a commit that a crash cuts short never happened.

use super::{
    crash::memory_dir,
    disk::{Random, lay, tree},
    *,
};
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;

/// Commits what it is given, and then says that it failed, from `failing` on.
struct Late {
    failing: AtomicBool,
}

impl Medium for Late {
    fn commit(&self, transaction: heed::RwTxn<'_>) -> heed::Result<()> {
        transaction.commit()?;
        if self.failing.load(Ordering::Relaxed) { Err(heed::Error::Io(io::ErrorKind::Other.into())) } else { Ok(()) }
    }
}

#[test]
fn what_fails_after_a_checkpoint_is_permanent_does_not_fail_it() {
    let dir = tempfile::tempdir().unwrap();
    let medium = Arc::new(Late { failing: AtomicBool::new(false) });
    let store = open_on(dir.path(), medium.clone()).unwrap();
    let first = grow(&store, None, 1).unwrap();
    medium.failing.store(true, Ordering::Relaxed);
    let second = grow(&store, Some(first), 2).unwrap();
    assert_eq!(store.branch("lab", "main").unwrap(), Some(second));
    // The very same again is refused before it gets so far, though it is seen.
    assert!(matches!(grow(&store, Some(first), 2), Err(Error::Refused { .. })));
    medium.failing.store(false, Ordering::Relaxed);
    grow(&store, Some(second), 3).unwrap();
    assert_eq!(check(&store), 3);
}

#[test]
fn a_commit_torn_anywhere_before_its_end_never_happened() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    let data = PathBuf::from("index/data.mdb");
    let mut random = Random(3);
    let mut head = None;
    for step in 1..12 {
        let before = head.map(|_| tree(&path));
        let store = open(&path).unwrap();
        head = Some(grow(&store, head, step).unwrap());
        drop(store);
        let Some(before) = before else { continue };
        let after = tree(&path);
        let (old, new) = (before[&data].as_ref().unwrap(), after[&data].as_ref().unwrap());
        for round in 0..6 {
            // Any of the pages that it wrote, some of them torn; its meta page is the last that it writes.
            let mut torn = after.clone();
            let file = torn.get_mut(&data).unwrap().as_mut().unwrap();
            let length = if round % 2 == 0 { new.len() } else { old.len() };
            file.truncate(length);
            file[..2 * PAGE].copy_from_slice(&old[..2 * PAGE]);
            for at in (2 * PAGE..old.len().min(length)).step_by(512) {
                if random.next().is_multiple_of(2) {
                    file[at..at + 512].copy_from_slice(&old[at..at + 512]);
                }
            }
            let copy = dir.path().join(format!("{step}-{round}"));
            lay(&torn, &copy);
            let store = open(&copy).unwrap();
            assert_eq!(check(&store), step as usize - 1);
            let head = store.branch("lab", "main").unwrap();
            grow(&store, head, step).unwrap();
            assert_eq!(check(&store), step as usize);
        }
    }
}
