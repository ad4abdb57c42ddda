//! `fermata run-ranks` on the real program. This test binary is also the program of every rank: it starts itself again as such.

use std::{
    env,
    path::Path,
    process::{Command, ExitCode, Output},
};

#[path = "../../process/examples/grid.rs"]
mod grid;

const PROGRAM: &str = "RANKS_TEST_PROGRAM";

/// No test: what a rank runs.
#[test]
fn a_rank() {
    if env::var_os(PROGRAM).is_some() {
        assert_eq!(format!("{:?}", grid::program(&[512, 1500])), format!("{:?}", ExitCode::SUCCESS));
    }
}

fn fermata(store: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
    command.args(arguments).env("FERMATA_STORE", store).env(PROGRAM, "1").env_remove("FERMATA_EXPERIMENT");
    command.output().unwrap()
}

fn run_ranks(store: &Path, options: &[&str]) -> Output {
    let program = env::current_exe().unwrap();
    let program = [program.to_str().unwrap(), "--exact", "a_rank", "--quiet"];
    fermata(store, &[&["run-ranks", "-n", "3", "--name", "grid"], options, &program].concat())
}

/// What is printed beside what the ranks' own harness prints.
#[track_caller]
fn answer(output: &Output) -> serde_json::Value {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let line = said.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{said}"));
    serde_json::from_str(line).unwrap()
}

#[test]
fn a_program_of_mpi_is_started_by_mpirun() {
    let directory = tempfile::tempdir().unwrap();
    let run = |options: &[&str]| run_ranks(&directory.path().join("store"), options);
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    // In the place of mpirun: what tells the words that it gets, and ends before a rank comes.
    let ended = run(&["--transport", "mpi", "--mpirun", "echo words", "--retries", "1"]);
    let words = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(words.starts_with("words -n 3 /"), "{words}");
    assert!(said(&ended).contains("went back 2 times") && said(&ended).contains("mpirun ended with"), "{}", said(&ended));
    let nowhere = run(&["--transport", "mpi", "--mpirun", "/no/mpirun"]);
    assert!(said(&nowhere).contains("/no/mpirun"), "{}", said(&nowhere));
    let mode = run(&["--transport", "mpi", "--mode", "blocking"]);
    assert!(said(&mode).contains("consistent or full"), "{}", said(&mode));
    assert_eq!(run(&["--mpirun", "mpirun"]).status.code(), Some(2));
}

#[test]
fn a_run_goes_on_from_the_copy_when_the_store_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let (store, remote) = (directory.path().join("store"), directory.path().join("remote"));
    let none = answer(&run_ranks(&store, &["--every", "0s", "--json"]));
    assert_eq!(none["checkpoints"].as_array().unwrap().len(), 0);
    let remote = remote.to_str().unwrap();
    let added = fermata(&store, &["remote", "add", "nas", remote, "--plain"]);
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    let missing = run_ranks(&store, &["--backup", "nowhere"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("nowhere"));
    let with = answer(&run_ranks(&store, &["--every", "10ms", "--backup", "nas", "--json"]));
    let last = with["checkpoints"].as_array().unwrap().last().expect("a checkpoint").clone();
    assert!(with["backup"]["updates"].as_u64() > Some(0), "{with}");
    assert_eq!(with["backup"]["problem"], serde_json::Value::Null);

    std::fs::remove_dir_all(&store).unwrap();
    let cloned = fermata(&store, &["clone", remote]);
    assert!(cloned.status.success(), "{}", String::from_utf8_lossy(&cloned.stderr));
    let log = fermata(&store, &["log", "-e", "grid", "--json"]);
    assert!(String::from_utf8_lossy(&log.stdout).contains(last["id"].as_str().unwrap()), "{}", String::from_utf8_lossy(&log.stdout));
    let resumed = run_ranks(&store, &["--resume", "--every", "0s"]);
    let said = String::from_utf8_lossy(&resumed.stdout);
    assert!(resumed.status.success() && said.contains("1500 iterations on 512 x 512 points, right"), "{said}");
}
