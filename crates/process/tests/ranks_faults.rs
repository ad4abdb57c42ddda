//! What a host does to programs of ranks: a full disk, connections that are cut, ranks that stand still for a while, clocks that jump. The answer is right all the same.
//!
//! This test binary is also the program of every rank, and the coordinators of those tests that need a host of their own kind: it starts itself again as such.

use fermata_linux::clock::wall_ns;
use fermata_process::ranks::{Aborted, Event, Mode, Outcome, Transport, host};
use fermata_store::{Store, VerifyOptions};
use programs::{TRIES, options};
use rustix::{
    net::{Shutdown, shutdown, sockopt},
    process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::{self, Write},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

mod programs;

/// Where a coordinator of its own kind finds its directory.
const PLACE: &str = "RANKS_TEST_PLACE";
/// What moves the wall clock.
const AHEAD: &str = "WALL_CLOCK_AHEAD";

/// For as many checkpoints as are needed.
const LONG: (&str, &str, &str) = ("grid", "256 8000", "8000 iterations");

/// No test: what a rank runs.
#[test]
fn a_rank() {
    programs::be_a_rank();
}

/// Starts a test of this binary as a process of another kind.
fn start_again(command: &mut Command, test: &str, place: &Path) {
    let output = command.args(["--exact", test, "--nocapture"]).env(PLACE, place).output().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{} {said} {complained}", output.status);
}

fn place() -> Option<PathBuf> {
    env::var_os(PLACE).map(PathBuf::from)
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid as i32).unwrap()
}

fn is_right(program: (&str, &str, &str), outcome: &Outcome) {
    assert!(outcome.answers.concat().contains(program.2), "{}: {outcome:?}", program.0);
}

fn is_whole(store: &Store) {
    let report = store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
    assert!(report.damage.is_empty(), "{report:?}");
}

/// The disk becomes full, a rank dies, and there is room again: checkpoints are given up meanwhile, all go back to the one before, and later ones are permanent.
#[test]
fn a_full_disk_costs_checkpoints_and_nothing_else() {
    let Ok(apart) = Command::new("unshare").args(["-rm", "true"]).output() else { return println!("skipped: no unshare(1)") };
    if !apart.status.success() {
        return println!("skipped: no file system of one's own on this host");
    }
    for mode in ["consistent", "optimistic"] {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("unshare");
        // Where its sockets are there is room.
        command.args(["-rm", "/bin/sh", "-ec", r#"mount -t tmpfs -o size=24m none "$RANKS_TEST_PLACE"; exec "$0" "$@""#]);
        start_again(command.arg(env::current_exe().unwrap()).env("RANKS_TEST_MODE", mode), "on_a_small_disk", directory.path());
    }
}

/// No test: a coordinator whose store is on a disk of 24 MiB.
#[test]
fn on_a_small_disk() {
    let Some(place) = place() else { return };
    let program = LONG;
    let mut options = options(&format!("{} {}", program.0, program.1));
    options.mode = env::var("RANKS_TEST_MODE").unwrap().parse().unwrap();
    let store = Store::open(&place.join("store")).unwrap();
    let (filler, mut pids) = (place.join("filler"), Vec::new());
    let (mut before, mut full, mut backs, mut after) = (0, Vec::new(), 0, 0);
    let outcome = host::run(&store, &options, &mut |event| match event {
        Event::Started { pids: started, .. } => pids = started,
        Event::Permanent(_) if filler.exists() || backs > 0 => after += 1,
        Event::Permanent(_) => {
            before += 1;
            if before == 4 {
                fill(&filler);
            }
        }
        Event::Aborted(Aborted { why, .. }) if filler.exists() => {
            full.push(why);
            if full.len() == 2 {
                kill_process(pid_of(pids[1]), Signal::KILL).unwrap();
            }
        }
        Event::Back { .. } => {
            backs += 1;
            fs::remove_file(&filler).unwrap();
        }
        _ => {}
    });
    let outcome = outcome.unwrap();
    is_right(program, &outcome);
    assert_eq!((backs, outcome.rollbacks), (1, 1), "{outcome:?}");
    assert!(full.len() >= 2 && full.iter().all(|why| why.contains("No space left on device")), "{full:?}");
    assert!(after > 0, "{outcome:?}");
    is_whole(&store);
}

/// Takes all the room that there is.
fn fill(filler: &Path) {
    let mut file = fs::File::create(filler).unwrap();
    for size in [1 << 20, 1 << 12] {
        let error = (0..1 << 20).find_map(|_| file.write_all(&vec![1; size]).err()).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}

/// Where a store cannot say whether checkpoints are there, none is given up: the run ends and says why, and another goes on from them.
#[test]
fn what_a_store_cannot_tell_is_not_taken_for_gone() {
    // Its ranks hardly talk, so there is something to go back to.
    let program = ("nqueens", "16", "14772512 ways");
    let directory = tempfile::tempdir().unwrap();
    let (holds, away) = (directory.path().join("store/holds"), directory.path().join("away"));
    let store = Store::open(&directory.path().join("store")).unwrap();
    let mut options = options(&format!("{} {}", program.0, program.1));
    (options.mode, options.keep) = (Mode::Optimistic, true);
    let ids = || store.records().unwrap().into_iter().map(|(id, _)| id).collect::<BTreeSet<_>>();
    let (mut pids, mut permanent, mut before) = (Vec::new(), 0, BTreeSet::new());
    let outcome = host::run(&store, &options, &mut |event| match event {
        Event::Started { pids: started, .. } => pids = started,
        Event::Permanent(_) => {
            permanent += 1;
            if permanent == 4 {
                before = ids();
                fs::rename(&holds, &away).unwrap();
                kill_process(pid_of(pids[1]), Signal::KILL).unwrap();
            }
        }
        _ => {}
    });
    let why = outcome.unwrap_err().to_string();
    assert!(why.contains("holds"), "{why}");
    assert!(before.len() >= 4);
    assert!(before.is_subset(&ids()));
    fs::rename(&away, &holds).unwrap();
    options.resume = true;
    is_right(program, &host::run(&store, &options, &mut |_| {}).unwrap());
    is_whole(&store);
}

/// Connections of a process, whoever is at the other end.
fn connections(pid: u32) -> Vec<OwnedFd> {
    let process = pidfd_open(pid_of(pid), PidfdFlags::empty()).unwrap();
    let mut sockets = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let path = entry.unwrap().path();
        // One that is open now may be closed now.
        let Ok(what) = fs::read_link(&path) else { continue };
        if let Some(number) = what.to_str().and_then(|what| what.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()) {
            let fd = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            let Ok(socket) = pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()) else { continue };
            sockets.insert(number, socket);
        }
    }
    sockets.into_values().filter(|socket| !sockopt::socket_acceptconn(socket).unwrap()).collect()
}

/// Each connection of a rank in turn: to its coordinator and to the three others.
#[test]
fn whichever_connection_is_cut_all_go_back_and_the_answer_is_right() {
    let ways = [(Mode::Consistent, Transport::Unix), (Mode::Consistent, Transport::Tcp), (Mode::Optimistic, Transport::Tcp)];
    // On a busy host a program may be done before its connections are.
    for (mode, transport) in ways {
        assert!((0..TRIES).any(|_| cut_each_connection(mode, transport)), "{mode} {transport:?}");
    }
}

/// A program is right at its end, whichever of the connections of a rank were cut. Returns whether all of them were.
fn cut_each_connection(mode: Mode, transport: Transport) -> bool {
    let program = LONG;
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let mut options = options(&format!("{} {}", program.0, program.1));
    (options.mode, options.transport) = (mode, transport);
    let (mut pids, mut cut, mut is_cut, mut why) = (Vec::new(), 0, false, Vec::new());
    let outcome = host::run(&store, &options, &mut |event| match event {
        Event::Started { pids: started, .. } => (pids, is_cut) = (started, false),
        // By itself another may have one before this rank has all its connections.
        Event::Permanent(taken) if taken.rank.is_none_or(|rank| rank == 1) && !is_cut && cut < 4 => {
            let connections = connections(pids[1]);
            assert_eq!(connections.len(), 4);
            shutdown(&connections[cut], Shutdown::Both).unwrap();
            (cut, is_cut) = (cut + 1, true);
        }
        Event::Back { why: seen, .. } => why.push(seen),
        _ => {}
    });
    let outcome = outcome.unwrap();
    is_right(program, &outcome);
    let is_clear = |why: &String| ["lost its connection to rank", "hung up", "ended with"].iter().any(|clear| why.contains(clear));
    assert!(why.iter().all(is_clear), "{why:?}");
    is_whole(&store);
    // The last may have been cut when all was done.
    assert!(outcome.rollbacks == cut as u64 || outcome.rollbacks + 1 == cut as u64, "{cut} cut: {why:?}");
    (cut, outcome.rollbacks) == (4, 4)
}

/// Each rank in turn stands still in the middle of a checkpoint, and goes on: nobody is taken for dead.
#[test]
fn a_rank_that_is_slow_for_a_while_costs_time_and_nothing_else() {
    for mode in [Mode::Consistent, Mode::Blocking, Mode::Optimistic] {
        let program = LONG;
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let mut options = options(&format!("{} {}", program.0, program.1));
        (options.mode, options.every) = (mode, Some(Duration::from_millis(50)));
        let (mut pids, mut slow, mut permanent) = (Vec::new(), 0, 0);
        let outcome = host::run(&store, &options, &mut |event| match event {
            Event::Started { pids: started, .. } => pids = started,
            Event::Permanent(_) => {
                permanent += 1;
                if slow < 4 && (mode == Mode::Optimistic || permanent % 2 == 1) {
                    let pid = pid_of(pids[slow]);
                    slow += 1;
                    kill_process(pid, Signal::STOP).unwrap();
                    thread::spawn(move || {
                        thread::sleep(Duration::from_millis(700));
                        // It cannot have ended: nobody has, with it.
                        kill_process(pid, Signal::CONT).unwrap();
                    });
                }
            }
            _ => {}
        });
        let outcome = outcome.unwrap();
        is_right(program, &outcome);
        assert_eq!((slow > 0, outcome.rollbacks, outcome.aborted), (true, 0, 0), "{mode}: {outcome:?}");
        is_whole(&store);
    }
}

/// The wall clock of all, also of the next coordinator. That of timeouts does not jump, whoever sets the time.
#[test]
fn a_wall_clock_that_jumps_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (shim, ahead) = (directory.path().join("wall_clock.so"), directory.path().join("ahead"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wall_clock.c");
    let compiled = Command::new("cc").args(["-Wall", "-Werror", "-O2", "-shared", "-fPIC", "-o"]).arg(&shim).arg(source).status();
    let Ok(compiled) = compiled else { return println!("skipped: no C compiler") };
    assert!(compiled.success());
    for mode in ["consistent", "optimistic"] {
        let place = directory.path().join(mode);
        fs::create_dir(&place).unwrap();
        for _ in 0..2 {
            let mut command = Command::new(env::current_exe().unwrap());
            command.env("LD_PRELOAD", &shim).env(AHEAD, &ahead).env("RANKS_TEST_MODE", mode);
            start_again(&mut command, "whose_clock_jumps", &place);
        }
    }
}

/// By how much the wall clock jumps, one after the other: it ends years before what was taken first.
/// From where it is, not from the true time: the coordinator before may have ended after any of them.
const JUMPS: [i64; 5] = [86_400 * 400, -86_400 * 800, 3600, -50, -86_400 * 600];

/// No test: a coordinator whose clock jumps with each of its first checkpoints. It goes on where another has left.
#[test]
fn whose_clock_jumps() {
    let Some(place) = place() else { return };
    let program = LONG;
    let mut options = options(&format!("{} {}", program.0, program.1));
    (options.mode, options.resume) = (env::var("RANKS_TEST_MODE").unwrap().parse().unwrap(), true);
    let store = Store::open(&place).unwrap();
    let permanent = |store: &Store| {
        let records = store.records().unwrap();
        records.iter().flat_map(|(_, record)| &record.parts).map(|part| part.details["ccn"].as_u64().unwrap()).max().unwrap_or(0)
    };
    let (before, mut began, mut jumps) = (permanent(&store), None, JUMPS.iter());
    let outcome = host::run(&store, &options, &mut |event| match event {
        Event::Started { ccn, .. } => began = Some(ccn),
        Event::Permanent(_) => {
            if let Some(seconds) = jumps.next() {
                let unmoved = wall_ns();
                let ahead = env::var_os(AHEAD).unwrap();
                let already = fs::read(&ahead).map_or(0, |bytes| i64::from_ne_bytes(bytes.try_into().unwrap()));
                // In the place of what was there, so that nobody reads half of it.
                let mut file = fs::File::options().create(true).truncate(false).write(true).open(ahead).unwrap();
                file.write_all(&(already + seconds).to_ne_bytes()).unwrap();
                assert!(wall_ns().abs_diff(unmoved) > 1_000_000_000, "the clock did not jump");
            }
        }
        _ => {}
    });
    let outcome = outcome.unwrap();
    is_right(program, &outcome);
    assert_eq!((outcome.rollbacks, outcome.aborted), (0, 0), "{outcome:?}");
    if options.mode == Mode::Consistent {
        assert_eq!(began, Some(before));
        assert!(before > 0 || jumps.len() < JUMPS.len(), "{outcome:?}");
    }
    is_whole(&store);
}
