//! LMDB's own promise, on which all commits stand: a commit that a crash cuts short never happened.

use super::{
    crash::memory_dir,
    disk::{Random, lay, tree},
    *,
};
use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
};

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

/// Commits so often, and then takes the process away in the midst of a transaction.
struct Dying {
    left: AtomicU32,
}

impl Medium for Dying {
    fn commit(&self, transaction: heed::RwTxn<'_>) -> heed::Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            std::process::abort();
        }
        transaction.commit()
    }
}

const DYING: &str = "FERMATA_TEST_DYING";

/// No test: a process that dies when it has grown a branch by one.
#[test]
fn a_process_that_grows_a_branch_and_dies() {
    let Some(path) = std::env::var_os(DYING) else { return };
    let medium = Arc::new(Dying { left: AtomicU32::new(u32::MAX) });
    let store = open_on(Path::new(&path), medium.clone()).unwrap();
    let head = store.branch("lab", "main").unwrap();
    medium.left.store(1, Ordering::Relaxed);
    grow(&store, head, 2).unwrap();
    _ = store.branch_to_grow("lab", "main");
}

/// Where LMDB tells readers which transaction is the newest: the number that has grown between the two.
fn newest(before: &[u8], after: &[u8]) -> usize {
    let number = |file: &[u8], at: usize| u64::from_ne_bytes(file[at..at + 8].try_into().unwrap());
    let grown = |at: &usize| number(before, *at) > 0 && number(after, *at) == number(before, *at) + 1;
    (0..before.len()).step_by(8).find(grown).expect("its number is in the file of locks")
}

#[test]
fn who_grows_a_branch_sees_what_readers_were_not_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let lock = dir.path().join("index/lock.mdb");
    let store = open(dir.path()).unwrap();
    let first = grow(&store, None, 1).unwrap();
    let before = std::fs::read(&lock).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "tests::commits::a_process_that_grows_a_branch_and_dies"]).env(DYING, dir.path());
    assert!(!child.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    // As if it had died a little earlier: durable, and not told.
    let at = newest(&before, &std::fs::read(&lock).unwrap());
    File::options().write(true).open(&lock).unwrap().write_all_at(&before[at..at + 8], at as u64).unwrap();
    assert_eq!(store.branches("lab").unwrap()["main"], first);
    let second = store.branches_to_grow("lab").unwrap()["main"];
    assert_ne!(second, first);
    assert_eq!(store.record(&second).unwrap().parent, Some(first));
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
