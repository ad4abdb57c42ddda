//! Keeper, QEMU and command line killed at random times, with a guest that checks itself: no checkpoint is lost or half, and nothing is left over.
//!
//! Eight rounds, about a minute; a hundred with `FERMATA_LONG=1`. What is random comes from a seed, which is printed; `FERMATA_SEED` repeats one.

use fermata_testkit::{
    Cli,
    cli::{self, array, await_that, count, string},
    guests,
};
use std::{collections::BTreeSet, env, process::Stdio, thread, time::Duration};

const SOON: Duration = Duration::from_secs(120);

/// What may be killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Keeper,
    Machine,
    CommandLine,
    Spare,
}

/// What is under way when it happens.
const ERRANDS: [&[&str]; 3] = [&["checkpoint", "-m", "unheard"], &["goto", "main~1"], &["fork", "--name", "other"]];
const VICTIMS: [Victim; 4] = [Victim::Keeper, Victim::Machine, Victim::CommandLine, Victim::Spare];
/// Longest time from the beginning of an errand to the kill: most take less.
const DELAY_MS_MAX: u64 = 150;

/// Numbers from a seed (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn new() -> Self {
        let given = env::var("FERMATA_SEED").ok().map(|seed| seed.parse().expect("FERMATA_SEED is a number"));
        let seed = given.unwrap_or_else(|| u64::from_le_bytes(fermata_linux::random::bytes::<8>().expect("randomness")) | 1);
        println!("FERMATA_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

fn ids(cli: &Cli) -> BTreeSet<String> {
    array(&cli.json(&["log"])).iter().map(|checkpoint| string(&checkpoint["id"]).to_owned()).collect()
}

/// The guest looks at all it has twice more, and finds it right.
fn checks_itself(cli: &Cli) {
    let seen = || cli.console("main");
    let before = seen().matches("selfcheck round").count();
    await_that("the guest checks itself", SOON, || seen().contains("FAIL") || seen().matches("selfcheck round").count() >= before + 2);
    assert!(!seen().contains("FAIL"), "{}", seen());
}

/// Starts an errand, kills a victim on the way, and waits until those that die with it are gone.
fn kill_on_the_way(cli: &Cli, victim: Victim, random: &mut Random) {
    let (errand, delay) = (random.one_of(&ERRANDS), random.below(DELAY_MS_MAX));
    println!("{victim:?} {delay} ms into {errand:?}");
    let keeper = count(&cli.json(&["ls"])[0]["keeper_pid"]);
    let machine = count(&cli.machine("main")["pid"]);
    let spare = cli.processes().into_iter().find(|pid| *pid != keeper && *pid != machine);
    let mut child = cli.command(errand).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    thread::sleep(Duration::from_millis(delay));
    match victim {
        Victim::Keeper => cli::kill(keeper),
        Victim::Machine => cli::kill(machine),
        Victim::CommandLine => cli::kill(child.id().into()),
        Victim::Spare => spare.into_iter().for_each(cli::kill),
    }
    cli::end(&mut child, SOON).expect("no command hangs because somebody was killed");
    if matches!(victim, Victim::Keeper) {
        // An errand that is slow to start finds no keeper, and brings the experiment back with a new one.
        let revived = || {
            let experiment = &cli.json(&["ls"])[0];
            string(&experiment["state"]) == "running" && count(&experiment["keeper_pid"]) != keeper
        };
        await_that("QEMU dies with its keeper", SOON, || cli.processes().is_empty() || revived());
        // It may hold its lock for a moment after its memory, with all its threads, is gone.
        await_that("it is known to be dead", SOON, || string(&cli.json(&["ls"])[0]["state"]) == "dead" || revived());
    }
}

/// As many processes as there are runs, a keeper and a spare; and a directory for each QEMU.
fn nothing_is_left_over(cli: &Cli) {
    let settled = || {
        let experiment = &cli.json(&["ls"])[0];
        let runs = array(&experiment["runs"]).len();
        let directories = std::fs::read_dir(cli.run_root().join("kills"))
            .map_or(0, |entries| entries.flatten().filter(|entry| entry.path().is_dir()).count());
        experiment["spare_ready"] == true && cli.processes().len() == runs + 2 && directories == runs + 1
    };
    await_that("no process and no directory is left over", SOON, settled);
}

#[test]
fn whoever_is_killed_checkpoints_stay_whole_and_nothing_stays_behind() {
    let rounds = if env::var_os("FERMATA_LONG").is_some() { 100 } else { 8 };
    let mut random = Random::new();
    let cli = Cli::new();
    let more = format!("    image: {}\n", cli.disk().display());
    cli.write("machine.yaml", &guests::tiny("kills", "fermata.run=selfcheck:24:8 fermata.disk=rw", &more));
    cli.ok(&["up", "machine.yaml"]);
    await_that("the guest begins", SOON, || cli.console("main").contains("selfcheck round"));
    cli.checkpoint("first");
    cli.checkpoint("second");
    let mut known = ids(&cli);
    for round in 0..rounds {
        println!("round {round}");
        // Each gets its turn, however few rounds there are.
        kill_on_the_way(&cli, VICTIMS[round % VICTIMS.len()], &mut random);
        let now = ids(&cli);
        assert!(now.is_superset(&known), "a permanent checkpoint is gone: {known:?} {now:?}");
        let newest = string(&cli.json(&["log"])[0]["id"]).to_owned();
        cli.ok(&["goto", &newest]);
        for run in array(&cli.json(&["ls"])[0]["runs"]) {
            if string(&run["name"]) != "main" {
                cli.ok(&["down", string(&run["name"])]);
            }
        }
        checks_itself(&cli);
        nothing_is_left_over(&cli);
        cli.checkpoint("after");
        known = ids(&cli);
    }
    println!("{} checkpoints", known.len());
    for id in &known {
        cli.ok(&["show", id]);
        cli.ok(&["goto", id, "--eager", "--paused"]);
    }
    cli.ok(&["down"]);
    await_that("nothing runs", SOON, || cli.processes().is_empty());
    assert!(!cli.run_root().join("kills").exists(), "the run directory is left over");
}
