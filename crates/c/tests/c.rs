//! A program in C against the shared library, compiled as a user would.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Where the library lies: beside this test, or one above.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    let mut places = test.ancestors().skip(1).take(2).map(Path::to_owned);
    places.find(|place| place.join("libfermata.so").exists()).expect("libfermata.so was built with this test")
}

#[test]
fn a_program_in_c_counts_on_after_each_start() {
    let (here, library, place) = (Path::new(env!("CARGO_MANIFEST_DIR")), library(), tempfile::tempdir().expect("a directory"));
    let program = place.path().join("counter");
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O2", "-I"])
        .arg(here.join("include"))
        .arg(here.join("tests/counter.c"))
        .arg("-o")
        .arg(&program)
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-lfermata")
        .status()
        .expect("a C compiler");
    assert!(compiled.success());
    let mut count = 0;
    // Every tracking that needs nothing special of the kernel takes up what another left.
    for tracking in ["0", "2", "3", "5", "0"] {
        let run = Command::new(&program).arg(place.path().join("store")).args(["4", tracking]).output().expect("it runs");
        assert!(run.status.success(), "tracking {tracking}: {}", String::from_utf8_lossy(&run.stderr));
        count += 4;
        assert!(String::from_utf8_lossy(&run.stdout).ends_with(&format!("{count}\n")));
    }
    let refused = Command::new(&program).args(["/proc/nowhere", "1", "0"]).output().expect("it runs");
    assert!(!refused.status.success() && !refused.stderr.is_empty());
}
