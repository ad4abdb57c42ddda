//! Programs in C against the shared library, compiled as a user would.

mod common;

use fermata_process::{
    CriticalArea, Tracking,
    ranks::{Event, Options, host},
};
use fermata_store::Store;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// A program that is done before it is killed is begun again, so often at most.
const TRIES: usize = 10;

fn compile(name: &str, place: &Path) -> PathBuf {
    compile_source(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{name}.c")), place.join(name))
}

fn compile_source(source: &Path, program: PathBuf) -> PathBuf {
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O2", "-I"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg(source)
        .arg("-o")
        .arg(&program)
        .args(common::linked())
        .status()
        .expect("a C compiler");
    assert!(compiled.success());
    program
}

#[test]
fn a_program_in_c_counts_on_after_each_start() {
    let place = tempfile::tempdir().expect("a directory");
    let program = compile("counter", place.path());
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

#[test]
fn the_program_of_the_page_for_newcomers_counts_its_visits() {
    let place = tempfile::tempdir().expect("a directory");
    let page = include_str!("../../../docs/areas.md");
    let text = page.split("\n```c\n").nth(1).and_then(|block| block.split("\n```").next()).expect("a program in C");
    let (source, store) = (place.path().join("visits.c"), place.path().join("store"));
    assert!(text.contains("\"/tmp/shop\""), "{text}");
    fs::write(&source, text.replace("/tmp/shop", store.to_str().expect("a plain path"))).expect("the program");
    let program = compile_source(&source, place.path().join("visits"));
    for visit in 1..=2 {
        let run = Command::new(&program).output().expect("it runs");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(String::from_utf8_lossy(&run.stdout), format!("visit {visit}\n"));
    }
}

#[test]
fn areas_are_as_c_committed_them_and_a_child_that_let_go_keeps_none() {
    let place = tempfile::tempdir().expect("a directory");
    let at = place.path().join("store");
    let mut parent = Command::new(compile("areas", place.path())).arg(&at).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut line = String::new();
    BufReader::new(parent.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let child = Pid::from_raw(line.trim().parse().expect("the child's number")).expect("a process");
    let store = Store::open(&at).expect("a store");
    let options = fermata_process::Options::default().tracking(Tracking::Compare).anywhere();
    let open = |name: &str| CriticalArea::open(&store, name, 4096, options.clone());
    assert!(open("one").expect_err("its parent has it").to_string().contains("open already"));
    parent.kill().expect("it is killed");
    parent.wait().expect("it ends");
    let value = |name: &str| open(name).expect("nobody has it").as_slice()[0];
    assert_eq!((value("one"), value("two")), (2, 3));
    kill_process(child, Signal::KILL).expect("it has been there all the time");
    let records = store.records().expect("records");
    assert_eq!(records.len(), 5);
    assert!(records.iter().any(|(_, record)| record.message.as_deref() == Some("the second of one")));
}

/// Runs a program of three ranks, one of which is killed once there is a checkpoint to go back to; what each has to say.
fn go_back_once(name: &str, rounds: u64) -> Vec<String> {
    let place = tempfile::tempdir().expect("a directory");
    let program = compile(name, place.path());
    let mut options = Options::new(name, 3, program.clone());
    options.args = vec![rounds.to_string()];
    options.every = Some(Duration::from_millis(10));
    let run = |nth: usize| {
        let mut pids = Vec::new();
        let store = Store::open(&place.path().join(format!("store-{nth}"))).expect("a store");
        let outcome = host::run(&store, &options, &mut |event| match event {
            Event::Started { pids: started, .. } => pids = started,
            Event::Permanent(taken) if taken.ccn == 2 => {
                kill_process(Pid::from_raw(pids[1] as i32).expect("a process"), Signal::KILL).expect("it is killed");
            }
            _ => {}
        });
        outcome.expect("it comes to its end")
    };
    // On a busy host it may be done before it has taken so many checkpoints.
    let outcome = (0..TRIES).map(run).find(|outcome| outcome.rollbacks > 0).expect("it is killed");
    assert_eq!(outcome.rollbacks, 1, "{outcome:?}");
    // Started by nobody.
    let alone = Command::new(&program).arg("1").output().expect("it runs");
    assert!(!alone.status.success() && !alone.stderr.is_empty());
    outcome.answers
}

#[test]
fn ranks_in_c_go_back_and_their_sum_is_right() {
    const ROUNDS: u64 = 3000;
    let sum = (1 + 2 + 3) * ROUNDS * (ROUNDS + 1) / 2;
    assert_eq!(go_back_once("sum", ROUNDS), vec![format!("the sum is {sum}"); 3]);
}

#[test]
fn what_ranks_in_c_send_to_all_and_put_together_is_right() {
    const ROUNDS: u64 = 3000;
    // In round r: of what rank t gets from all, 6000 + 3 (10 t + r), the sum and the greatest; twice.
    let total: u64 = (0..ROUNDS).map(|round| 2 * ((18_090 + 9 * round) + (6_060 + 3 * round))).sum();
    assert_eq!(go_back_once("collective", ROUNDS), vec![format!("it comes to {total}"); 3]);
}
