//! `fermata run-ranks` on the eight programs, which lose at random whatever they may lose: ranks, the coordinator, the store, the backup. The answer is right all the same, and nothing that was
//! permanent is lost as long as its disk is there. This test binary is also the program of every rank: it starts itself again as such. A test that fails says its seed, and `FERMATA_SEED` repeats
//! it, as far as the kernel's scheduling lets it.

use fermata_store::Store;
use programs::{PROGRAM, PROGRAMS, TRIES};
use random::Random;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    env, fs,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};
use tempfile::TempDir;

#[path = "../../process/tests/programs/mod.rs"]
mod programs;
// Not all draw in all ways.
#[allow(dead_code)]
#[path = "../../testkit/src/random.rs"]
mod random;

/// No test: what a rank runs.
#[test]
fn a_rank() {
    programs::be_a_rank();
}

fn is_long() -> bool {
    env::var_os("FERMATA_LONG").is_some()
}

/// What may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    Rank,
    Ranks,
    Coordinator,
    Store,
    Backup,
}

const LOSSES: [Loss; 5] = [Loss::Rank, Loss::Ranks, Loss::Coordinator, Loss::Store, Loss::Backup];

/// A program on its way to its end, over as many coordinators, stores and backups as it takes.
struct Journey {
    place: TempDir,
    program: (&'static str, &'static str, &'static str),
    words: Vec<String>,
    /// How many stores and backups there were.
    stores: usize,
    backups: usize,
    backup_is_lost: bool,
    /// Under a program that came to its end without.
    store_is_lost: bool,
    /// The checkpoint that the coordinator has to go on from, or a later one.
    floor: u64,
    lost: Vec<Loss>,
    random: Random,
}

/// Whether a run came to its end: if its backup lags behind, that is told beside the answers, and by the status.
fn has_arrived(output: &Output) -> bool {
    let lags = |ran: Value| !ran["answers"].is_null() && !ran["backup"]["problem"].is_null();
    output.status.success() || output.status.code() == Some(1) && serde_json::from_slice(&output.stdout).is_ok_and(lags)
}

impl Journey {
    fn begin(program: (&'static str, &'static str, &'static str), mode: &str, mut random: Random) -> Self {
        let transport = random.one_of(&["unix", "tcp"]);
        let fixed = "run-ranks -n 4 --every 20ms --retries 200 --backup nas --resume --json";
        let mut words: Vec<String> = fixed.split(' ').map(str::to_owned).collect();
        words.extend(["--name", program.0, "--mode", mode, "--transport", transport, "/bin/sh"].map(str::to_owned));
        words.extend(programs::command_of_a_rank());
        let place = tempfile::tempdir().unwrap();
        // Where sockets of coordinators are, which a killed one leaves there.
        fs::create_dir(place.path().join("tmp")).unwrap();
        let journey = Self {
            place,
            program,
            words,
            stores: 1,
            backups: 1,
            backup_is_lost: false,
            store_is_lost: false,
            floor: 0,
            lost: Vec::new(),
            random,
        };
        journey.must(&["remote", "add", "nas", journey.backup().to_str().unwrap(), "--plain"]);
        journey
    }

    fn store(&self) -> PathBuf {
        self.place.path().join(format!("store-{}", self.stores))
    }

    fn backup(&self) -> PathBuf {
        self.place.path().join(format!("backup-{}", self.backups))
    }

    fn fermata<W: AsRef<str>>(&self, words: &[W]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fermata"));
        command.args(words.iter().map(AsRef::as_ref)).env("FERMATA_STORE", self.store()).env("TMPDIR", self.place.path().join("tmp"));
        command.env(PROGRAM, format!("{} {}", self.program.0, self.program.1)).env_remove("FERMATA_EXPERIMENT");
        command
    }

    #[track_caller]
    fn must(&self, words: &[&str]) {
        let output = self.fermata(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", self.what_was(&output));
    }

    fn what_was(&self, output: &Output) -> String {
        let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        format!("{} lost {:?}: {} {said} {complained}", self.program.0, self.lost, output.status)
    }

    /// Always the same command.
    fn start(&self) -> Child {
        let out = |name: &str| Stdio::from(fs::File::create(self.place.path().join(name)).unwrap());
        self.fermata(&self.words).stdout(out("out")).stderr(out("err")).spawn().unwrap()
    }

    /// Waits for the end of a coordinator; what it had to say.
    fn end(&self, mut coordinator: Child) -> Output {
        let status = coordinator.wait().unwrap();
        let said = |name: &str| fs::read(self.place.path().join(name)).unwrap();
        Output { status, stdout: said("out"), stderr: said("err") }
    }

    /// The last checkpoint that is permanent in the store. One that a copy was about to have when all was lost is on no branch there.
    fn permanent(&self) -> u64 {
        let store = Store::open(&self.store()).unwrap();
        let heads = store.branches_to_grow(self.program.0).unwrap();
        let ccn = |id| store.record(id).unwrap().parts[0].details["ccn"].as_u64().unwrap();
        heads.values().map(ccn).max().unwrap_or(0)
    }

    /// Goes to its end, and loses something on the way: first this, then perhaps more.
    fn travel(&mut self, first: Loss) -> Output {
        let mut coordinator = self.start();
        for more in 0..=self.random.below(4) {
            thread::sleep(Duration::from_millis(50 + self.random.below(500)));
            if coordinator.try_wait().unwrap().is_some() {
                break;
            }
            let loss = if more == 0 { first } else { self.random.one_of(&LOSSES) };
            coordinator = match self.lose(loss, coordinator) {
                Ok(next) => next,
                Err(output) => return output,
            };
        }
        self.end(coordinator)
    }

    /// Loses something under a coordinator that runs. Returns the one that goes on, unless the program came to its end without.
    fn lose(&mut self, loss: Loss, mut coordinator: Child) -> Result<Child, Output> {
        self.lost.push(loss);
        match loss {
            Loss::Rank => kill(&children(&coordinator).into_iter().skip(self.random.below(4) as usize).take(1).collect::<Vec<_>>()),
            Loss::Ranks => kill(&children(&coordinator).into_iter().filter(|_| self.random.below(3) > 0).collect::<Vec<_>>()),
            Loss::Coordinator => {
                coordinator.kill().unwrap();
                coordinator.wait().unwrap();
                self.floor = self.permanent();
                if self.backup_is_lost {
                    self.begin_another_backup();
                }
                return Ok(self.start());
            }
            Loss::Backup => {
                // What is being written there may come back once.
                while fs::remove_dir_all(self.backup()).is_err() && self.backup().exists() {}
                self.backup_is_lost = true;
            }
            Loss::Store => return self.lose_store(coordinator),
        }
        Ok(coordinator)
    }

    /// The disk is lost: with its host, or under a coordinator that comes to its end without it or says why it does not.
    fn lose_store(&mut self, mut coordinator: Child) -> Result<Child, Output> {
        let host = self.random.below(2) == 0;
        if host {
            coordinator.kill().unwrap();
        }
        while fs::remove_dir_all(self.store()).is_err() && self.store().exists() {}
        if self.random.below(2) == 0 {
            // Those that live have to go back to what is not there any more.
            kill(&children(&coordinator));
        }
        let output = self.end(coordinator);
        if has_arrived(&output) {
            self.store_is_lost = true;
            return Err(output);
        }
        let said = String::from_utf8_lossy(&output.stdout);
        // On a host that is very busy it may not even have read yet which remotes there are.
        let told = said.contains("error") && (said.contains("store-") || said.contains("there is no remote"));
        assert!(host || output.status.code() == Some(1) && told, "{}", self.what_was(&output));
        self.stores += 1;
        let backup = self.backup();
        let cloned = self.fermata(&["clone", backup.to_str().unwrap(), "--name", "nas"]).output().unwrap();
        if !cloned.status.success() {
            // Nothing had come to it yet, or it is lost, too: all there is to do is to begin at the beginning.
            let said = String::from_utf8_lossy(&cloned.stderr);
            assert!(said.contains("there are no checkpoints at"), "{}", self.what_was(&cloned));
            self.begin_another_backup();
        }
        self.floor = self.permanent();
        Ok(self.start())
    }

    fn begin_another_backup(&mut self) {
        let _ = self.fermata(&["remote", "rm", "nas"]).output().unwrap();
        self.backups += 1;
        self.backup_is_lost = false;
        self.must(&["remote", "add", "nas", self.backup().to_str().unwrap(), "--plain"]);
    }

    /// What it came to is right.
    fn arrived(&self, output: &Output, consistent: bool) {
        assert!(has_arrived(output), "{}", self.what_was(output));
        let ran: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", self.what_was(output)));
        let may_lag = self.lost.iter().any(|loss| matches!(loss, Loss::Backup | Loss::Store));
        assert!(output.status.success() || may_lag, "{}", self.what_was(output));
        assert!(ran["answers"].to_string().contains(self.program.2), "{}", self.what_was(output));
        if self.store_is_lost {
            return;
        }
        self.must(&["verify", "--json"]);
        // One that went on from an earlier checkpoint would count from there.
        let numbers: Vec<u64> = ran["checkpoints"].as_array().unwrap().iter().map(|taken| taken["ccn"].as_u64().unwrap()).collect();
        if consistent {
            assert!(numbers.first().is_none_or(|first| *first > self.floor), "from {}: {}", self.floor, self.what_was(output));
            assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
            assert!(numbers.last().is_none_or(|last| *last == self.permanent()), "{}", self.what_was(output));
        }
    }
}

/// The ranks of a coordinator, as far as they were started. It is not waited for meanwhile, so its number is its own.
fn children(coordinator: &Child) -> Vec<i32> {
    let pid = coordinator.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn kill(pids: &[i32]) {
    // One may have ended by itself.
    pids.iter().for_each(|pid| _ = kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL));
}

#[test]
fn whatever_is_lost_the_answer_is_right() {
    let rounds = if is_long() { 500 } else { 10 };
    let (mut random, mut lost, least) = (Random::anew(), Vec::new(), rounds / 2);
    for round in 0..TRIES * rounds {
        if round >= rounds && lost.len() >= least {
            break;
        }
        let consistent = round % 3 > 0;
        let mode = if consistent { "consistent" } else { "optimistic" };
        let mut journey = Journey::begin(PROGRAMS[round % PROGRAMS.len()], mode, Random::new(random.number()));
        let output = journey.travel(LOSSES[round % LOSSES.len()]);
        journey.arrived(&output, consistent);
        if is_long() {
            println!("round {round}: {} {mode} lost {:?}", journey.program.0, journey.lost);
        }
        lost.extend(journey.lost);
    }
    // A program may be done before anything is lost.
    assert!(lost.len() >= least, "{lost:?} in {rounds} rounds");
}
