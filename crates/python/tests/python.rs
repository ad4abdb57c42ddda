//! The package under a real Python with NumPy: the tests are the files `test_*.py` beside this one.

use fermata_process::{Receiving, receive};
use fermata_store::Store;
use std::{
    env, fs,
    io::{self, Write as _},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

/// Where the module lies: beside this test, or one above.
fn module() -> PathBuf {
    let test = env::current_exe().expect("this test");
    let mut places = test.ancestors().skip(1).take(2).map(|place| place.join("libfermata_python.so"));
    places.find(|place| place.exists()).expect("libfermata_python.so was built with this test")
}

/// The first Python that has what is needed; none, with a word, where there is none.
fn python() -> Option<&'static str> {
    const NEEDED: &str = "import sys, numpy; assert sys.version_info >= (3, 11)";
    let has = |python: &&str| Command::new(python).args(["-c", NEEDED]).output().is_ok_and(|tried| tried.status.success());
    let found = ["python3", "/usr/bin/python3"].into_iter().find(has);
    if found.is_none() {
        say("skipped: the Python package: there is no python3 (3.11 or newer) with NumPy; Debian has it in python3-numpy");
    }
    found
}

/// Past what holds a test's output back.
fn say(line: &str) {
    // Nobody needs to hear it.
    let _ = writeln!(io::stderr(), "{line}");
}

/// A backup of whatever area comes, as `fermata receive` is one, until the tests end.
fn receives(place: &Path) {
    let store = Store::open(&place.join("backup")).expect("a store");
    let listener = UnixListener::bind(place.join("receive.sock")).expect("a socket");
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let store = store.clone();
            thread::spawn(move || receive(stream, &store, &Receiving { bytes_max: 1 << 30, durable: false, keep_last: None }, &mut |_| {}));
        }
    });
}

fn passes(tests: &str) {
    let Some(python) = python() else { return };
    let (here, place) = (Path::new(env!("CARGO_MANIFEST_DIR")), tempfile::tempdir().expect("a directory"));
    let package = place.path().join("fermata");
    fs::create_dir(&package).expect("a directory");
    fs::copy(here.join("python/fermata/__init__.py"), package.join("__init__.py")).expect("the package");
    fs::copy(module(), package.join("_native.abi3.so")).expect("the module");
    receives(place.path());
    let run = Command::new(python)
        .args(["-m", "unittest", tests])
        .current_dir(here.join("tests"))
        .env("PYTHONPATH", place.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // What the tests leave goes with the directory, whatever becomes of them.
        .env("TMPDIR", place.path())
        .env("FERMATA_STORE", place.path().join("store"))
        .env("FERMATA_TEST_BACKUP", place.path().join("backup"))
        .env("FERMATA_TEST_SOCKET", place.path().join("receive.sock"))
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{tests}: {}\n{told}", run.status);
    told.lines().filter(|line| line.starts_with("skipped: ")).for_each(say);
}

#[test]
fn areas_and_arrays() {
    passes("test_areas");
}

#[test]
fn killed_at_any_point() {
    passes("test_crash");
}

#[test]
fn under_signals() {
    passes("test_signals");
}

#[test]
fn in_children_of_fork() {
    passes("test_fork");
}

#[test]
fn examples() {
    passes("test_examples");
}
