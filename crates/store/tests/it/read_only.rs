//! A store on a file system that is mounted for reading only: it is read, and what would write says why it cannot.
//!
//! The store is mounted so in a namespace of its own, by `unshare` and `mount`. Where that is not allowed, nothing is tried.

use crate::common::*;
use fermata_store::{Error, Store};
use fermata_types::*;
use std::{io::Write, path::Path, process::Command};

const STORE: &str = "FERMATA_TEST_STORE";

#[test]
fn child() {
    let Some(path) = std::env::var_os(STORE) else { return };
    let path = Path::new(&path);
    assert!(std::fs::write(path.join("x"), "x").is_err(), "it is mounted for reading only");
    let store = open(path).unwrap();
    let records = store.records().unwrap();
    assert_eq!(records.len(), 1);
    assert_eq!(store.branch("lab", "main").unwrap(), Some(records[0].0));
    let mut found = 0;
    let each = &mut |number, name| {
        found += 1;
        assert_eq!(read(&store, &name)?, page(u64::from(number)));
        Ok(())
    };
    store.for_each_page(&records[0].1.parts[0].tables["ram"], each).unwrap();
    assert_eq!(found, 3);
    let refused = [
        store.tag("lab", "good", &records[0].0).unwrap_err(),
        store.writer().unwrap_err(),
        store.hold(&records[0].0).unwrap_err(),
        Store::rebuild_index(path).unwrap_err(),
    ];
    for (number, error) in refused.iter().enumerate() {
        let clear = match error {
            Error::Io { .. } => error.to_string().contains("the store must be writable"),
            Error::Refused { .. } => number == 3,
            _ => false,
        };
        assert!(clear, "{number}: {error}");
    }
    drop(store);
    println!("read");
}

#[test]
fn it_is_read_and_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    {
        let store = open(&path).unwrap();
        let mut writer = store.writer().unwrap();
        let ram = put(&mut writer, &Root::empty(10), &[(1, 1), (2, 2), (7, 7)]);
        writer.commit(&record_of(None, "main", "", ram)).unwrap();
    }
    let script = r#"mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && echo mounted && shift && exec "$@""#;
    let child = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .args([&path, &std::env::current_exe().unwrap()])
        .args(["--exact", "read_only::child", "--nocapture"])
        .env(STORE, &path)
        .output();
    let said = child.map(|child| String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr));
    match said {
        Ok(said) if said.contains("mounted") => assert!(said.contains("read\n"), "{said}"),
        // No namespaces for us here: told past what holds a test's output back.
        other => writeln!(std::io::stderr(), "skipped: a store mounted for reading only: {other:?}").unwrap(),
    }
}
