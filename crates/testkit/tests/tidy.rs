//! The rules of the house that a compiler does not check.

use fermata_testkit::guests::root;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Who may import whom. A new arrow here is a decision; see ARCHITECTURE.md.
const IMPORTS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("linux", &[]),
    ("store", &["types"]),
    ("remote", &["linux", "store"]),
    ("checkpoint", &["types"]),
    ("tracker", &["linux", "types"]),
    ("guest", &["types"]),
    ("vm", &["checkpoint", "guest", "linux", "store", "tracker", "types"]),
    ("vhost", &["linux", "types"]),
    ("disk", &["checkpoint", "linux", "store", "types", "vhost"]),
    ("net", &["checkpoint", "linux", "types", "vhost"]),
    ("process", &["checkpoint", "linux", "store", "tracker", "types"]),
    ("c", &["process", "store"]),
    ("python", &["process", "store"]),
    ("experiment", &["checkpoint", "disk", "linux", "net", "store", "types", "vhost", "vm"]),
    ("timeline", &["experiment", "linux", "store", "types"]),
    ("api", &["experiment", "linux", "process", "remote", "store", "timeline", "types"]),
    ("cli", &["api"]),
];

const LINES_MAX: usize = 800;

/// Where `unsafe` may stand: the room for it, what C calls and an example of what calls C, buffers that Python is lent, guest memory in the back ends, and the call that opens LMDB.
const UNSAFE: &[&str] = &[
    "crates/linux/src/",
    "crates/c/src/",
    "crates/c/mpi/examples/rod/src/fermata.rs",
    "crates/python/src/",
    "crates/vhost/src/segments.rs",
    "crates/store/src/index.rs",
];

fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![root().join("crates")];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).expect("the tree can be read").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() {
                left.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                found.push(entry);
            }
        }
    }
    assert!(found.len() > 50, "the sources were not found");
    found
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).expect("it is in the tree").to_string_lossy().into_owned()
}

#[test]
fn rooms_import_only_whom_they_may() {
    for (room, allowed) in IMPORTS {
        let manifest = fs::read_to_string(root().join(format!("crates/{room}/Cargo.toml"))).expect("a manifest");
        let (_, after) = manifest.split_once("[dependencies]").expect("dependencies");
        let dependencies = after.split("\n[").next().unwrap_or_default();
        for imported in dependencies.lines().filter_map(|line| line.strip_prefix("fermata-")) {
            let imported = imported.split([' ', '=', '.']).next().unwrap_or_default();
            assert!(allowed.contains(&imported), "{room} imports {imported}");
        }
    }
}

#[test]
fn every_room_has_its_rule() {
    for entry in fs::read_dir(root().join("crates")).expect("the tree can be read") {
        let room = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        assert!(room == "testkit" || IMPORTS.iter().any(|(known, _)| *known == room), "{room} has no rule");
    }
}

#[test]
fn files_stay_short() {
    for path in sources() {
        let lines = fs::read_to_string(&path).expect("a source").lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines", name(&path));
    }
}

#[test]
fn unsafe_stays_in_its_rooms() {
    // Put together here, so that this file does not find itself.
    let word = ["unsafe", " {"].concat();
    for path in sources() {
        let name = name(&path);
        let unsafe_here = fs::read_to_string(&path).expect("a source").contains(&word);
        assert!(!unsafe_here || UNSAFE.iter().any(|place| name.starts_with(place)), "{name} has unsafe code");
    }
}
