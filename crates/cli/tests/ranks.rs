//! `fermata run-ranks` on the real program. This test binary is also the program of every rank: it starts itself again as such.

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, ExitCode, Output},
    thread,
    time::Duration,
};

#[path = "../../process/examples/grid.rs"]
mod grid;

const PROGRAM: &str = "RANKS_TEST_PROGRAM";
/// A remote that is lost while the ranks run.
const LOST: &str = "RANKS_TEST_LOST";

/// No test: what a rank runs.
#[test]
fn a_rank() {
    if let Ok(remote) = env::var(LOST) {
        while fs::metadata(&remote).is_ok_and(|remote| remote.is_dir()) {
            let _ = fs::remove_dir_all(&remote);
        }
        fs::write(&remote, "no remote").unwrap();
    }
    if let Ok(iterations) = env::var(PROGRAM) {
        assert_eq!(format!("{:?}", grid::program(&[512, iterations.parse().unwrap()])), format!("{:?}", ExitCode::SUCCESS));
    }
}

fn fermata(store: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
    command.args(arguments).env("FERMATA_STORE", store).env(PROGRAM, "1500").env_remove("FERMATA_EXPERIMENT");
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
    // One that is nobody's we know knows of its hosts by itself; it is not told ours.
    let listening = run(&["--transport", "mpi", "--mpirun", "echo words", "--listen", "127.0.0.1", "--retries", "0"]);
    assert!(String::from_utf8_lossy(&listening.stdout).starts_with("words -n 3 /"), "{listening:?}");
    let hosts = run(&["--transport", "mpi", "--mpirun", "echo words", "--hosts", "localhost"]);
    assert!(said(&hosts).contains("Open MPI or MPICH") && said(&hosts).contains("--listen"), "{}", said(&hosts));
    assert_eq!(run(&["--listen", "127.0.0.1"]).status.code(), Some(2));
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

#[test]
fn a_copy_that_is_not_up_to_date_in_the_end_is_told_and_is_no_success() {
    let directory = tempfile::tempdir().unwrap();
    let (store, remote) = (directory.path().join("store"), directory.path().join("remote"));
    let added = fermata(&store, &["remote", "add", "nas", remote.to_str().unwrap(), "--plain"]);
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    let run = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
        command.args(["run-ranks", "-n", "3", "--name", "grid", "--every", "10ms", "--backup", "nas"]).args(options);
        command.arg(env::current_exe().unwrap()).args(["--exact", "a_rank", "--quiet"]).env_remove("FERMATA_EXPERIMENT");
        command.env("FERMATA_STORE", &store).env(PROGRAM, "1500").env(LOST, &remote).output().unwrap()
    };
    let ran = run(&["--quiet"]);
    let (answer, told) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(answer.contains("1500 iterations on 512 x 512 points, right"), "{answer}{told}");
    assert!(ran.status.code() == Some(1) && told.contains("the last checkpoint is not on the backup: "), "{:?}: {told}", ran.status);
    // Where there is none from the beginning, no rank is started.
    let again = run(&[]);
    assert_eq!((again.status.code(), again.stdout.len()), (Some(1), 0), "{}", String::from_utf8_lossy(&again.stderr));
}

/// Stands in for `ssh`: a host is an address of this one, and has its shell, but nothing of our environment. One with a file `cut-HOST` cannot be reached; one with a file `dies-HOST` dies in the
/// middle.
const SSH: &str = r#"#!/bin/sh
for word; do host=$command; command=$word; done
cd "$(dirname "$0")"
echo "$host" >> asked
[ ! -e "cut-$host" ] || exit 255
echo $$ >> groups
if [ -e "dies-$host" ]; then
    exec 3<&0
    setsid env -i PATH="$PATH" RANKS_TEST_PROGRAM="$RANKS_TEST_PROGRAM" sh -c "$command" <&3 &
    sleep 0.3
    mv "dies-$host" "cut-$host"
    env kill -KILL -- -$!
    exit 255
fi
exec setsid env -i PATH="$PATH" RANKS_TEST_PROGRAM="$RANKS_TEST_PROGRAM" sh -c "$command"
"#;

fn stand_in(place: &Path) {
    fs::write(place.join("ssh"), SSH).unwrap();
    fs::set_permissions(place.join("ssh"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs four ranks of a program on such hosts.
fn on_hosts(place: &Path, hosts: &str, program: &Path, iterations: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
    command.args(["run-ranks", "-n", "4", "--name", "grid", "--every", "10ms", "--json", "--hosts", hosts]).arg(program);
    command.args(["--exact", "a_rank", "--quiet"]).env_remove("FERMATA_EXPERIMENT");
    command.env("FERMATA_STORE", place.join("store")).env("FERMATA_SSH", place.join("ssh")).env(PROGRAM, iterations);
    command.output().unwrap()
}

#[test]
fn ranks_run_on_several_hosts_and_go_on_without_one_that_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    stand_in(directory.path());
    let run = |hosts: &str, iterations: &str| {
        let ran = answer(&on_hosts(directory.path(), hosts, &env::current_exe().unwrap(), iterations));
        let is_right = ran["answers"].to_string().contains(&format!("{iterations} iterations on 512 x 512 points, right"));
        (ran, is_right)
    };

    let (ran, is_right) = run("127.0.0.2:2,localhost,me@127.0.0.3", "3000");
    assert!(is_right && ran["rollbacks"] == 0 && !ran["checkpoints"].as_array().unwrap().is_empty(), "{ran}");
    let asked = fs::read_to_string(place("asked")).unwrap();
    // Both are asked at once.
    assert_eq!(asked.lines().collect::<BTreeSet<_>>(), ["127.0.0.2", "me@127.0.0.3"].into());

    fs::write(place("cut-127.0.0.2"), "").unwrap();
    fs::write(place("dies-127.0.0.3"), "").unwrap();
    // Long enough for both to be lost on the way.
    let (ran, is_right) = run("127.0.0.2,127.0.0.3,127.0.0.4", "12000");
    assert!(is_right && ran["rollbacks"].as_u64() >= Some(2), "{ran}");
    for host in ["127.0.0.2", "127.0.0.3"] {
        assert!(ran["reasons"].to_string().contains(&format!("host {host} is lost")), "{ran}");
    }
    // Ranks of an earlier life end, though only what began them could be killed.
    for group in fs::read_to_string(place("groups")).unwrap().lines() {
        let is_there = || Command::new("kill").args(["-0", "--", &format!("-{group}")]).output().unwrap().status.success();
        assert!((0..100).any(|_| !is_there() || (thread::sleep(Duration::from_millis(100)), false).1), "ranks of {group} are still there");
    }
}

#[test]
fn hosts_that_no_rank_comes_from_are_tried_once() {
    let directory = tempfile::tempdir().unwrap();
    stand_in(directory.path());
    let run = |hosts: &str, program: &str| {
        let ran = on_hosts(directory.path(), hosts, Path::new(program), "1500");
        let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert_eq!(ran.status.code(), Some(1), "{said}");
        said
    };
    let advice = ["no rank ever came from any host", "BatchMode=yes HOST true", "the program is there"];
    // None is reached: after the first the others are tried once more.
    ["cut-127.0.0.2", "cut-127.0.0.3"].iter().for_each(|name| fs::write(directory.path().join(name), "").unwrap());
    let said = run("127.0.0.2,127.0.0.3", "true");
    assert!(advice.iter().all(|words| said.contains(words)) && !said.contains("--every"), "{said}");
    let asked = fs::read_to_string(directory.path().join("asked")).unwrap();
    assert!(asked.lines().count() <= 3, "{asked}");
    // It is reached, and has no such program.
    let said = run("127.0.0.4", "/no/such/program");
    assert!(advice.iter().all(|words| said.contains(words)) && said.contains("ended with status 127"), "{said}");
}

#[test]
fn hosts_that_cannot_be() {
    let directory = tempfile::tempdir().unwrap();
    let run = |options: &[&str]| run_ranks(&directory.path().join("store"), options);
    for (options, status, why) in [
        (&["--hosts=-oProxyCommand=x"][..], 2, "is no host for ranks"),
        (&["--hosts", "a:0"], 2, "is no host for ranks"),
        (&["--listen", "127.0.0.1"], 2, "--hosts, or with --transport mpi"),
        (&["--hosts", "a", "--transport", "unix"], 1, "over tcp, or by MPI"),
        (&["--hosts", "no.such.host.invalid"], 1, "--listen ADDRESS"),
    ] {
        let output = run(options);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(status) && said.contains(why), "{options:?}: {said}");
    }
}
