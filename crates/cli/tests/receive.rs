//! `fermata receive` on the real program: a program's area goes to it, the program ends, and the area opens from the backup's store.

use fermata_process::{CriticalArea, Options};
use fermata_store::Store;
use std::{
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

const BYTES: usize = 1 << 20;

/// Ended when it is dropped.
struct Receiver(Child);

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn receive(place: &Path, arguments: &[&str]) -> Receiver {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
    command.env("FERMATA_STORE", place.join("backup")).current_dir(place);
    let child = command.args([&["receive", "orders.sock"], arguments].concat()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let receiver = Receiver(child.expect("it begins"));
    let socket = place.join("orders.sock");
    while !socket.exists() {
        thread::sleep(Duration::from_millis(5));
    }
    receiver
}

fn commit(area: &mut CriticalArea, value: u8) {
    let mut cycle = area.begin().expect("a cycle");
    cycle[..8].fill(value);
    cycle.commit_replicated().expect("the backup has it").wait().expect("and so has the disk");
}

#[test]
fn a_second_copy_is_received_and_opens() {
    let place = tempfile::tempdir().expect("a directory");
    let socket = place.path().join("orders.sock");
    let here = Store::open(&place.path().join("store")).expect("a store");
    let mut area = CriticalArea::open(&here, "orders", BYTES, Options::default().anywhere()).expect("an area");
    let mut receiver = receive(place.path(), &["--json", "--once"]);
    assert_eq!(socket.metadata().expect("a socket").permissions().mode() & 0o777, 0o600);
    area.back_up_to(&socket).expect("it is received");
    (1..=5).for_each(|value| commit(&mut area, value));
    drop(area);
    let said: Vec<serde_json::Value> = BufReader::new(receiver.0.stdout.take().expect("a pipe"))
        .lines()
        .map(|line| serde_json::from_str(&line.expect("a line")).expect("JSON"))
        .collect();
    assert!(receiver.0.wait().expect("it ends").success());
    let [began, ended] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!((&began["event"], &began["commits"], &began["bytes"]), (&"began".into(), &1.into(), &BYTES.into()), "{began}");
    assert_eq!((&ended["event"], &ended["commits"], &ended["area"]), (&"ended".into(), &6.into(), &"orders".into()), "{ended}");
    assert!(!socket.exists());
    let there = Store::open(&place.path().join("backup")).expect("a store");
    assert_eq!(there.records().expect("records").len(), 6, "nobody said how many are kept");
    let area = CriticalArea::open(&there, "orders", BYTES, Options::default().anywhere()).expect("the copy");
    assert_eq!(area.head().map(|id| id.to_string()), ended["checkpoint"].as_str().map(str::to_owned));
    assert_eq!(area.as_slice()[..9], [5, 5, 5, 5, 5, 5, 5, 5, 0]);
}

#[test]
fn a_copy_keeps_as_many_commits_as_was_said() {
    let place = tempfile::tempdir().expect("a directory");
    let here = Store::open(&place.path().join("store")).expect("a store");
    let mut area = CriticalArea::open(&here, "orders", BYTES, Options::default().anywhere()).expect("an area");
    let mut receiver = receive(place.path(), &["--once", "--keep-last", "2"]);
    area.back_up_to(&place.path().join("orders.sock")).expect("it is received");
    (1..=5).for_each(|value| commit(&mut area, value));
    drop(area);
    assert!(receiver.0.wait().expect("it ends").success());
    let there = Store::open(&place.path().join("backup")).expect("a store");
    let messages: Vec<_> = there.records().expect("records").into_iter().filter_map(|(_, record)| record.message).collect();
    assert_eq!(messages, ["commit 5", "commit 6"]);
    let area = CriticalArea::open(&there, "orders", BYTES, Options::default().anywhere()).expect("the copy");
    assert_eq!(area.as_slice()[..9], [5, 5, 5, 5, 5, 5, 5, 5, 0]);
    let misused =
        Command::new(env!("CARGO_BIN_EXE_fermata")).args(["receive", "orders.sock", "--keep-last", "0"]).output().expect("it runs");
    assert!(misused.status.code() == Some(2) && String::from_utf8_lossy(&misused.stderr).contains("--keep-last"), "{misused:?}");
}

#[test]
fn one_that_is_killed_is_an_error_of_the_program_and_another_takes_its_place() {
    let place = tempfile::tempdir().expect("a directory");
    let socket = place.path().join("orders.sock");
    let here = Store::open(&place.path().join("store")).expect("a store");
    let mut area = CriticalArea::open(&here, "orders", BYTES, Options::default().anywhere()).expect("an area");
    let first = receive(place.path(), &["--durable"]);
    area.back_up_to(&socket).expect("it is received");
    commit(&mut area, 1);
    let second = Command::new(env!("CARGO_BIN_EXE_fermata"))
        .args(["receive", "orders.sock"])
        .env("FERMATA_STORE", place.path().join("backup"))
        .current_dir(place.path())
        .output()
        .expect("it runs");
    assert!(!second.status.success() && String::from_utf8_lossy(&second.stderr).contains("somebody receives there already"), "{second:?}");
    drop(first);
    let lost = area.begin().expect("a cycle").commit().expect_err("nobody is there").to_string();
    assert!(lost.contains("orders.sock") && lost.contains("stop_backing_up"), "{lost}");
    // What the dead one left is replaced.
    let _second = receive(place.path(), &[]);
    while area.back_up_to(&socket).is_err() {
        thread::sleep(Duration::from_millis(20));
    }
    commit(&mut area, 2);
}
