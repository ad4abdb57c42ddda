//! The eight programs, run by real processes that are killed at random: the answer is right all the same. Each program checks its own. A test that fails says its seed, and `FERMATA_SEED` repeats it, as far as the kernel's scheduling
//! lets it.
//!
//! This test binary is also the program of every rank, and a coordinator that can be killed: it starts itself again as such.

use fermata_process::ranks::{Error, Event, Mode, Options, Outcome, Transport, host};
use fermata_store::{Store, VerifyOptions};
use programs::{PROGRAM, PROGRAMS, TRIES, options};
use random::Random;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

mod programs;
// Not all draw in all ways.
#[allow(dead_code)]
#[path = "../../testkit/src/random.rs"]
mod random;

const STORE: &str = "RANKS_TEST_STORE";
const MODE: &str = "RANKS_TEST_MODE";

/// No test: what a rank runs.
#[test]
fn a_rank() {
    programs::be_a_rank();
}

/// No test: a coordinator that can be killed.
#[test]
fn a_coordinator() {
    let Ok(store) = env::var(STORE) else { return };
    let mut options = options(&env::var(PROGRAM).unwrap());
    options.resume = true;
    options.mode = env::var(MODE).unwrap().parse().unwrap();
    let outcome = run(Path::new(&store), &options).unwrap();
    // It may be killed in between.
    let [told, whole] = ["outcome.new", "outcome"].map(|name| Path::new(&store).join(name));
    std::fs::write(&told, outcome.answers.concat()).unwrap();
    std::fs::rename(told, whole).unwrap();
}

fn run(store: &Path, options: &Options) -> Result<Outcome, Error> {
    host::run(&Store::open(store).unwrap(), options, &mut |_| {})
}

/// Kills some ranks at random times, so many times in all.
struct Killer {
    pids: Mutex<Vec<u32>>,
    over: AtomicBool,
}

impl Killer {
    fn start(times: u64, mut random: Random) -> Arc<Self> {
        let killer = Arc::new(Self { pids: Mutex::default(), over: AtomicBool::new(false) });
        let own = killer.clone();
        thread::spawn(move || {
            for _ in 0..times {
                thread::sleep(Duration::from_millis(20 + random.below(400)));
                // Held until they are dead: nobody waits for them and gives their numbers away.
                let pids = own.pids.lock().unwrap();
                if own.over.load(Ordering::SeqCst) {
                    return;
                }
                let all = random.below(8) == 0;
                for pid in pids.iter().filter(|_| all || random.below(4) == 0) {
                    let _ = kill_process(Pid::from_raw(*pid as i32).unwrap(), Signal::KILL);
                }
            }
        });
        killer
    }

    fn see(&self, event: &Event) {
        match event {
            Event::Started { pids, .. } => self.pids.lock().unwrap().clone_from(pids),
            Event::Back { .. } => self.pids.lock().unwrap().clear(),
            _ => {}
        }
    }
}

fn is_long() -> bool {
    env::var_os("FERMATA_LONG").is_some()
}

fn answer_of(program: (&str, &str, &str), outcome: &Outcome) {
    let answer = outcome.answers.concat();
    assert!(answer.contains(program.2), "{}: {answer:?}", program.0);
}

#[test]
fn every_program_is_right_and_checkpointed() {
    for program in PROGRAMS {
        let run = || {
            let store = tempfile::tempdir().unwrap();
            let outcome = run(store.path(), &options(&format!("{} {}", program.0, program.1))).unwrap();
            answer_of(program, &outcome);
            assert_eq!(outcome.rollbacks, 0, "{}: {outcome:?}", program.0);
            outcome
        };
        // One may be done before a checkpoint is.
        assert!((0..TRIES).any(|_| !run().checkpoints.is_empty()), "{}", program.0);
    }
}

#[test]
fn whoever_is_killed_the_answer_is_right() {
    let rounds = if is_long() { 500 } else { PROGRAMS.len() };
    let (mut random, mut back, mut permanent) = (Random::anew(), 0, 0);
    for round in 0..TRIES * rounds {
        if round >= rounds && back >= rounds / 4 && permanent >= rounds / 2 {
            break;
        }
        let program = PROGRAMS[round % PROGRAMS.len()];
        let store = tempfile::tempdir().unwrap();
        let killer = Killer::start(1 + random.below(6), Random::new(random.number()));
        let options = options(&format!("{} {}", program.0, program.1));
        let outcome = host::run(&Store::open(store.path()).unwrap(), &options, &mut |event| killer.see(&event)).unwrap();
        {
            let _pids = killer.pids.lock().unwrap();
            killer.over.store(true, Ordering::SeqCst);
        }
        answer_of(program, &outcome);
        back += outcome.rollbacks as usize;
        permanent += outcome.checkpoints.len();
    }
    assert!(back >= rounds / 4, "{back} times back in {rounds} rounds");
    assert!(permanent >= rounds / 2, "{permanent} checkpoints in {rounds} rounds");
}

#[test]
fn the_coordinator_is_killed_and_another_goes_on() {
    let (mut random, rounds) = (Random::anew(), if is_long() { 100 } else { 4 });
    for round in 0..rounds {
        let program = PROGRAMS[(round * 3) % PROGRAMS.len()];
        let mode = [Mode::Consistent, Mode::Optimistic][round % 2];
        let store = tempfile::tempdir().unwrap();
        let mut times = 1 + random.below(4);
        loop {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "a_coordinator", "--quiet"]).stdout(Stdio::null());
            command.env(STORE, store.path()).env(PROGRAM, format!("{} {}", program.0, program.1)).env(MODE, mode.to_string());
            let mut child = command.spawn().unwrap();
            if times > 0 {
                times -= 1;
                thread::sleep(Duration::from_millis(100 + random.below(600)));
                child.kill().unwrap();
                child.wait().unwrap();
            } else {
                assert!(child.wait().unwrap().success());
            }
            if let Ok(answer) = std::fs::read_to_string(store.path().join("outcome")) {
                assert!(answer.contains(program.2), "{}: {answer:?}", program.0);
                break;
            }
        }
        let report = Store::open(store.path()).unwrap().verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.damage.is_empty(), "{report:?}");
    }
}

#[test]
fn every_mode_and_transport_goes_back_rightly() {
    let ways = [Mode::Consistent, Mode::Blocking, Mode::Full, Mode::Precopy].map(|mode| (mode, Transport::Unix));
    for (nth, (mode, transport)) in ways.into_iter().chain([(Mode::Consistent, Transport::Tcp)]).enumerate() {
        let programs = [PROGRAMS[2], PROGRAMS[6]];
        // One for each way: what a program does has little to do with how it is captured.
        let programs = if is_long() { &programs[..] } else { &programs[nth % 2..][..1] };
        for program in programs.iter().copied() {
            // On a busy host a program may be done before it has taken so many checkpoints.
            let back = (0..TRIES).map(|_| killed_after(2, program, mode, transport).rollbacks).find(|rollbacks| *rollbacks > 0);
            assert_eq!(back, Some(1), "{mode} {transport:?} {}", program.0);
        }
    }
}

/// All are killed right after so many checkpoints, if it comes to that many; the answer is right.
fn killed_after(checkpoints: u64, program: (&str, &str, &str), mode: Mode, transport: Transport) -> Outcome {
    let store = tempfile::tempdir().unwrap();
    let mut options = options(&format!("{} {}", program.0, program.1));
    (options.mode, options.transport) = (mode, transport);
    let mut pids = Vec::new();
    let outcome = host::run(&Store::open(store.path()).unwrap(), &options, &mut |event| match event {
        Event::Started { pids: started, .. } => pids = started,
        Event::Permanent(taken) if taken.ccn == checkpoints => {
            pids.iter().for_each(|pid| kill_process(Pid::from_raw(*pid as i32).unwrap(), Signal::KILL).unwrap());
        }
        _ => {}
    });
    let outcome = outcome.unwrap();
    answer_of(program, &outcome);
    outcome
}

/// Each rank takes its own checkpoints, one is killed, and all go back to what fits together.
#[test]
fn ranks_by_themselves_go_back_to_what_fits_together() {
    let (mut back, mut dominoes, mut collected) = (0, 0, 0);
    // On a busy host a program may be done before it has taken so many.
    for (nth, program) in PROGRAMS.into_iter().cycle().take(TRIES * PROGRAMS.len()).enumerate() {
        if nth >= PROGRAMS.len() && back >= 4 && dominoes > 0 && collected > 0 {
            break;
        }
        let store = tempfile::tempdir().unwrap();
        let mut options = options(&format!("{} {}", program.0, program.1));
        options.mode = Mode::Optimistic;
        let (mut pids, mut permanent, mut lines) = (Vec::new(), 0, Vec::new());
        let outcome = host::run(&Store::open(store.path()).unwrap(), &options, &mut |event| match event {
            Event::Started { pids: started, .. } => pids = started,
            Event::Permanent(taken) => {
                permanent += 1;
                assert!(taken.rank.is_some_and(|rank| rank < 4));
                if permanent == 6 {
                    kill_process(Pid::from_raw(pids[1] as i32).unwrap(), Signal::KILL).unwrap();
                }
            }
            Event::Back { line, .. } => lines.extend(line),
            _ => {}
        });
        let outcome = outcome.unwrap();
        answer_of(program, &outcome);
        assert_eq!(outcome.lines, lines);
        back += outcome.rollbacks;
        dominoes += lines.iter().flat_map(|line| &line.dropped).sum::<u64>();
        collected += outcome.garbage.unwrap().collected;
        let report = Store::open(store.path()).unwrap().verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
        assert!(report.damage.is_empty(), "{report:?}");
    }
    assert!(back >= 4, "{back} times back");
    // Some send messages all the time, and some hardly any.
    assert!(dominoes > 0 && collected > 0, "{dominoes} dominoes, {collected} collected");
}

#[test]
fn whoever_is_killed_of_ranks_by_themselves_the_answer_is_right() {
    let (mut random, rounds) = (Random::anew(), if is_long() { 200 } else { 8 });
    for round in 0..rounds {
        let program = PROGRAMS[round % PROGRAMS.len()];
        let store = tempfile::tempdir().unwrap();
        let killer = Killer::start(1 + random.below(4), Random::new(random.number()));
        let mut options = options(&format!("{} {}", program.0, program.1));
        options.mode = Mode::Optimistic;
        let outcome = host::run(&Store::open(store.path()).unwrap(), &options, &mut |event| killer.see(&event)).unwrap();
        {
            let _pids = killer.pids.lock().unwrap();
            killer.over.store(true, Ordering::SeqCst);
        }
        answer_of(program, &outcome);
        assert_eq!(outcome.lines.len() as u64, outcome.rollbacks);
    }
}

#[test]
fn a_run_of_ranks_by_themselves_goes_on_and_leaves_no_garbage() {
    // The first hardly talks.
    for (program, keep) in [(("nqueens", "16", "14772512 ways"), false), (PROGRAMS[6], true)] {
        let store = tempfile::tempdir().unwrap();
        let mut options = options(&format!("{} {}", program.0, program.1));
        (options.mode, options.keep) = (Mode::Optimistic, keep);
        let outcome = run(store.path(), &options).unwrap();
        let garbage = outcome.garbage.unwrap();
        let records = Store::open(store.path()).unwrap().records().unwrap();
        assert_eq!(records.len() as u64, outcome.checkpoints.len() as u64 - garbage.collected, "{}", program.0);
        assert!(garbage.most >= 4 && (garbage.collected == 0 || !keep), "{garbage:?}");
        // Nobody else knows what to do with them.
        options.resume = true;
        options.mode = Mode::Consistent;
        assert!(run(store.path(), &options).unwrap_err().to_string().contains("--mode optimistic"));
        options.mode = Mode::Optimistic;
        options.ranks = 3;
        assert!(run(store.path(), &options).unwrap_err().to_string().contains("4 ranks"));
        options.ranks = 4;
        options.every = None;
        answer_of(program, &run(store.path(), &options).unwrap());
    }
}

#[test]
fn one_checkpoint_is_kept_or_all_and_a_run_goes_on_from_the_last() {
    let program = PROGRAMS[2];
    for keep in [false, true] {
        let store = tempfile::tempdir().unwrap();
        let mut options = options(&format!("{} {}", program.0, program.1));
        options.keep = keep;
        let outcome = run(store.path(), &options).unwrap();
        let records = Store::open(store.path()).unwrap().records().unwrap();
        assert_eq!(records.len(), if keep { outcome.checkpoints.len() } else { 1 });
        let last = outcome.checkpoints.last().unwrap();
        assert_eq!(records.last().unwrap().0, last.id);
        options.resume = true;
        options.every = None;
        let mut began = None;
        let again = host::run(&Store::open(store.path()).unwrap(), &options, &mut |event| {
            if let Event::Started { ccn, .. } = event {
                began = Some(ccn);
            }
        });
        answer_of(program, &again.unwrap());
        assert_eq!(began, Some(last.ccn));
        // Another number of ranks cannot take its place.
        options.ranks = 3;
        assert!(run(store.path(), &options).unwrap_err().to_string().contains("4 ranks"));
    }
}

/// The run goes on without it, and somebody hears why.
#[test]
fn a_checkpoint_that_cannot_be_begun_or_kept_is_told_of_with_the_reason() {
    let program = PROGRAMS[2];
    for (mode, lacking) in [(Mode::Consistent, "holds"), (Mode::Consistent, "packs"), (Mode::Optimistic, "holds")] {
        let directory = tempfile::tempdir().unwrap();
        let (here, away) = (directory.path().join("store").join(lacking), directory.path().join("away"));
        let store = Store::open(&directory.path().join("store")).unwrap();
        let mut options = options(&format!("{} {}", program.0, program.1));
        options.mode = mode;
        let mut told = Vec::new();
        let outcome = host::run(&store, &options, &mut |event| match event {
            Event::Started { .. } => std::fs::rename(&here, &away).unwrap(),
            Event::Aborted(aborted) => {
                if told.is_empty() {
                    std::fs::rename(&away, &here).unwrap();
                }
                assert_eq!(aborted.rank.is_some(), mode == Mode::Optimistic);
                told.push(aborted.to_string());
            }
            _ => {}
        });
        let outcome = outcome.unwrap();
        answer_of(program, &outcome);
        assert!(told.first().is_some_and(|first| first.starts_with("checkpoint 1") && first.contains(lacking)), "{mode}: {told:?}");
        assert_eq!((outcome.aborted, &outcome.aborted_reasons), (told.len() as u64, &told));
        assert!(!outcome.checkpoints.is_empty(), "{mode} {lacking}");
    }
}

/// Whether each thread of a process is stopped.
fn stands(pid: u32) -> bool {
    let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.all(|task| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat"));
        stat.is_ok_and(|stat| stat.rsplit_once(')').unwrap().1.starts_with(" T"))
    })
}

#[test]
fn a_rank_that_does_not_come_is_named_when_its_checkpoint_is_given_up() {
    let (store, program) = (tempfile::tempdir().unwrap(), PROGRAMS[2]);
    let mut options = options(&format!("{} {}", program.0, program.1));
    options.patience = 1;
    let (mut pids, mut stopped) = (Vec::new(), None);
    let outcome = host::run(&Store::open(store.path()).unwrap(), &options, &mut |event| match event {
        Event::Started { pids: started, .. } => pids = started,
        Event::Began(ccn) if stopped.is_none() => {
            stopped = Some(ccn);
            let pid = Pid::from_raw(pids[2] as i32).unwrap();
            kill_process(pid, Signal::STOP).unwrap();
            // Before it hears of the checkpoint.
            while !stands(pids[2]) {
                thread::yield_now();
            }
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(8000));
                kill_process(pid, Signal::CONT).unwrap();
            });
        }
        _ => {}
    });
    let outcome = outcome.unwrap();
    answer_of(program, &outcome);
    assert_eq!(outcome.aborted_reasons.first().unwrap(), "checkpoint 1: rank 2 was not captured and saved within 1 s");
}

#[test]
fn a_second_coordinator_of_a_run_is_refused() {
    let (directory, program) = (tempfile::tempdir().unwrap(), PROGRAMS[2]);
    let store = Store::open(directory.path()).unwrap();
    let options = options(&format!("{} {}", program.0, program.1));
    let mut second = None;
    let outcome = host::run(&store, &options, &mut |event| {
        if matches!(event, Event::Started { .. }) {
            second = Some(host::run(&store, &options, &mut |_| {}).unwrap_err());
        }
    });
    answer_of(program, &outcome.unwrap());
    assert!(matches!(&second, Some(Error::Refused(why)) if why.contains("under way") && why.contains("--name")), "{second:?}");
    let mut unnamed = options.clone();
    unnamed.name = "../grid".to_owned();
    let refused = host::run(&store, &unnamed, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains("cannot be the name"), "{refused}");
}

#[test]
fn a_program_that_cannot_run_is_told_of() {
    let store = tempfile::tempdir().unwrap();
    let mut impossible = options("tsp 13");
    impossible.ranks = 1;
    assert!(run(store.path(), &impossible).unwrap_err().to_string().contains("two ranks"));
    let mut missing = options("tsp 13");
    missing.program = "/no/such/program".into();
    assert!(run(store.path(), &missing).unwrap_err().to_string().contains("/no/such/program"));
    let mut useless = options("tsp 13");
    (useless.program, useless.retries) = ("/bin/false".into(), 2);
    assert!(run(store.path(), &useless).unwrap_err().to_string().contains("went back 3 times"));
    let mut none = options("tsp 13");
    none.ranks = 0;
    assert!(matches!(run(store.path(), &none), Err(Error::Refused(_))));
}

#[test]
fn a_program_that_has_to_do_with_a_rank_that_is_not_there_ends_and_says_so() {
    for (program, what) in [("astray 1", "waits for a message of rank 7"), ("astray 0", "sends a message to rank 7")] {
        let store = tempfile::tempdir().unwrap();
        let mut options = options(program);
        options.retries = 0;
        match run(store.path(), &options).unwrap_err() {
            Error::Program { rank: 2, why } => assert!(why.contains(what) && why.contains("from 0 to 3"), "{why}"),
            other => panic!("{other}"),
        }
    }
}
