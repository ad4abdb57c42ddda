//! A program that is killed at any point comes back as it was at one of its commits: the last that it knew of, or the one that it was at.

use crate::common::*;
use fermata_process::Tracking;
use fermata_store::Store;
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

const STORE: &str = "FERMATA_TEST_STORE";
const TRACKING: &str = "FERMATA_TEST_TRACKING";
const BEHIND: &str = "FERMATA_TEST_BEHIND";
const BYTES: usize = 64 * PAGE;

/// What cycle number `n` writes: its number at the start, and some bytes elsewhere.
fn write(memory: &mut [u8], n: u64) {
    let mut numbers = Numbers(n);
    for _ in 0..40 {
        let at = 8 + numbers.below(BYTES as u64 - 8) as usize;
        memory[at] = numbers.next() as u8;
    }
    memory[..8].copy_from_slice(&n.to_le_bytes());
}

fn number(memory: &[u8]) -> u64 {
    u64::from_le_bytes(memory[..8].try_into().unwrap())
}

/// The program: counts on from where it was, and says each number that is durable.
#[test]
fn child() {
    let Some(path) = std::env::var_os(STORE) else { return };
    let tracking = std::env::var(TRACKING).unwrap().parse().unwrap();
    let store = Store::open(Path::new(&path)).unwrap();
    let mut area = open(&store, "counter", BYTES, tracking).unwrap();
    let mut pending: Option<(u64, fermata_process::Pending)> = None;
    for n in number(area.as_slice()) + 1.. {
        let mut cycle = area.begin().unwrap();
        write(&mut cycle, n);
        if std::env::var_os(BEHIND).is_some() {
            let next = cycle.commit_behind().unwrap();
            if let Some((n, done)) = pending.replace((n, next)) {
                done.wait().unwrap();
                println!("durable {n}");
            }
        } else {
            cycle.commit().unwrap();
            println!("durable {n}");
        }
    }
}

fn killed_at_any_point(tracking: Tracking, behind: bool) {
    let (directory, store) = store();
    if open(&store, "trial", PAGE, tracking).is_none() {
        return;
    }
    let path = directory.path().join("store");
    let mut expected = vec![0; BYTES];
    let mut numbers = Numbers(tracking as u64);
    for round in 0..40 {
        // On a slow host none may be durable for a while.
        if round >= 8 && number(&expected) > 0 {
            break;
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "crash::child", "--nocapture"]).env(STORE, &path).env(TRACKING, tracking.to_string());
        if behind {
            command.env(BEHIND, "1");
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let reader = thread::spawn(move || {
            let numbers = BufReader::new(output).lines().map_while(Result::ok);
            // The test's own words may stand in front of the first.
            numbers.filter_map(|line| line.rsplit_once("durable ")?.1.parse::<u64>().ok()).last()
        });
        thread::sleep(Duration::from_millis(150 + numbers.below(250) + 10 * round * round));
        child.kill().unwrap();
        assert!(child.wait().unwrap().code().is_none(), "round {round}: it ended by itself");
        let told = reader.join().unwrap().unwrap_or(number(&expected));
        let area = open(&store, "counter", BYTES, tracking).unwrap();
        let reached = number(area.as_slice());
        assert!(reached >= told, "round {round}: {told} was durable, and {reached} is there");
        (number(&expected) + 1..=reached).for_each(|n| write(&mut expected, n));
        assert!(area.as_slice() == expected, "round {round}: it is not as it was at {reached}");
    }
    assert!(number(&expected) > 0, "nothing was ever committed");
}

#[test]
fn killed_with_assisted_tracking() {
    killed_at_any_point(Tracking::Assisted, false);
}

#[test]
fn killed_with_emulation() {
    killed_at_any_point(Tracking::Emulate, false);
}

#[test]
fn killed_while_commits_are_written_behind() {
    killed_at_any_point(Tracking::Auto, true);
}
