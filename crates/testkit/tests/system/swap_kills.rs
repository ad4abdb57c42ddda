//! Keeper, QEMU and command line killed at random times of a swap-out and of a swap-in, with a guest that checks itself: each time it is brought back as it was in its last permanent
//! state, and no checkpoint is lost.
//!
//! Some rounds, about a minute; a hundred with `FERMATA_LONG=1`. What is random comes from a seed, which is printed; `FERMATA_SEED` repeats one.

use fermata_linux::clock::Stopwatch;
use fermata_testkit::{
    Cli, Random,
    cli::{self, array, await_that, string},
    guests, is_long,
};
use serde_json::Value;
use std::{collections::BTreeSet, fs, path::PathBuf, process::Stdio, thread, time::Duration};

const NAME: &str = "leaving";
const SOON: Duration = Duration::from_secs(120);
const BOOT: Duration = Duration::from_secs(240);

/// What may be killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Keeper,
    Machine,
    CommandLine,
}

const VICTIMS: [Victim; 3] = [Victim::Keeper, Victim::Machine, Victim::CommandLine];

/// An experiment whose guest checks itself, and a remote.
struct Scene {
    cli: Cli,
    place: PathBuf,
}

impl Scene {
    fn up() -> Self {
        let cli = Cli::new();
        let place = cli.path().join("place");
        let more = format!("    image: {}\n", cli.disk().display());
        cli.write("machine.yaml", &guests::tiny(NAME, "fermata.run=selfcheck:24:8 fermata.disk=rw", &more));
        cli.ok(&["up", "machine.yaml"]);
        cli.ok(&["remote", "add", "nas", place.to_str().expect("a name in UTF-8"), "--plain"]);
        let scene = Self { cli, place };
        await_that("the guest begins", BOOT, || scene.said() > 0);
        scene
    }

    /// How often the guest has said that it checked itself.
    fn said(&self) -> usize {
        let console = self.cli.console("main");
        assert!(!console.contains("FAIL"), "{console}");
        console.matches("selfcheck round").count()
    }

    /// Checkpoints in the store, the newest first. With none it is an error to ask.
    fn log(&self) -> Vec<Value> {
        serde_json::from_str(&self.cli.run(&["--json", "log", "-e", NAME]).stdout).unwrap_or_default()
    }

    /// Checkpoints that are here or on the remote.
    fn ids(&self) -> BTreeSet<String> {
        let there = fs::read_dir(self.place.join("records").join(NAME)).into_iter().flatten().flatten();
        let here = self.log();
        let here = here.iter().map(|checkpoint| string(&checkpoint["id"]).to_owned());
        here.chain(there.filter_map(|entry| entry.file_name().into_string().ok())).collect()
    }

    /// The experiment as `ls` shows it; null if it does not.
    fn shown(&self) -> Value {
        array(&self.cli.json(&["ls"])).iter().find(|experiment| experiment["name"] == NAME).cloned().unwrap_or_default()
    }

    /// What says that it is swapped out.
    fn record(&self) -> PathBuf {
        self.cli.store().join(format!("swapped/{NAME}.json"))
    }

    /// Milliseconds that a command takes that succeeds.
    fn time(&self, command: &[&str]) -> u64 {
        let watch = Stopwatch::start();
        self.cli.ok(command);
        watch.elapsed().as_millis() as u64
    }

    /// Kills a victim on the way, and waits until those that die with it are gone.
    fn kill_on_the_way(&self, errand: &[&str], victim: Victim, delay: u64, random: &mut Random) {
        println!("{victim:?} {delay} ms into {errand:?}");
        let mut child = self.cli.command(errand).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        thread::sleep(Duration::from_millis(delay));
        let is_keeper = |pid: &u64| cli::command_line(*pid).split(|byte| *byte == 0).nth(1) == Some(b"keeper".as_slice());
        let (keepers, machines): (Vec<u64>, Vec<u64>) = self.cli.processes().into_iter().partition(is_keeper);
        match victim {
            Victim::Keeper => keepers.iter().copied().for_each(cli::kill),
            // It has none yet, or none any more.
            Victim::Machine if machines.is_empty() => {}
            Victim::Machine => cli::kill(random.one_of(&machines)),
            Victim::CommandLine => cli::kill(child.id().into()),
        }
        cli::end(&mut child, SOON).expect("no command hangs because somebody was killed");
        if matches!(victim, Victim::Keeper) {
            await_that("it is gone", SOON, || !self.cli.processes().iter().any(|pid| keepers.contains(pid)));
        }
    }

    /// Does what somebody would who sees what is left. True: it runs, and answers.
    fn bring_back(&self) -> bool {
        let experiment = self.shown();
        let machine = &experiment["runs"][0]["machines"][0]["state"];
        let newest = self.log().first().map(|checkpoint| string(&checkpoint["id"]).to_owned());
        let lives = experiment["state"] == "running";
        let command = match (machine.as_str(), newest.as_deref()) {
            (Some("running"), _) if lives => return self.cli.run(&["exec", "m1", "--", "true"]).status.success(),
            (Some("paused"), _) if lives => vec!["resume"],
            // It begins, does not answer, or has come only in part.
            (None | Some("silent"), _) if lives => return false,
            _ if lives && !experiment["loading"].is_null() => return false,
            _ if !lives && self.record().exists() => vec!["swapin", NAME],
            (_, Some(newest)) => vec!["goto", newest, "-e", NAME],
            (_, None) => panic!("nothing is left of it: {experiment}"),
        };
        let said = self.cli.run(&command);
        println!("{command:?}: {} {}", said.status, said.stderr.trim());
        false
    }

    fn round(&self, round: usize, victim: Victim, longest: [u64; 2], random: &mut Random) {
        let cli = &self.cli;
        let word = format!("round {round}");
        cli.shell("m1", &format!("echo {word} > /tmp/word; cp /tmp/word /disk/word; sync"));
        cli.checkpoint(&word);
        let known = self.ids();
        let out: &[&str] = if random.below(3) == 0 { &["swapout"] } else { &["swapout", "--to", "nas"] };
        let is_out = round % 2 == 1;
        if is_out {
            cli.ok(out);
        }
        let errand: &[&str] = if is_out { &["swapin"] } else { out };
        let delay = random.below(longest[usize::from(is_out)]);
        self.kill_on_the_way(errand, victim, delay, random);
        await_that("it is brought back", SOON, || self.bring_back());
        assert_eq!(cli.shell("m1", "cat /tmp/word /disk/word"), format!("{word}\n{word}"));
        let now = self.ids();
        assert!(now.is_superset(&known), "a permanent checkpoint is gone: {known:?} {now:?}");
        let before = self.said();
        await_that("the guest checks itself", SOON, || self.said() >= before + 2);
        await_that("all of it is here", SOON, || self.shown()["loading"].is_null());
        await_that("it is out no longer", SOON, || !self.record().exists());
        cli.ok(&["verify"]);
    }
}

#[test]
fn whoever_is_killed_on_its_way_out_or_in_it_is_brought_back_and_nothing_is_lost() {
    let scene = Scene::up();
    let mut random = Random::anew();
    // The first one sends all of it, those after it less.
    let out = scene.time(&["swapout", "--to", "nas"]) / 2;
    // And while the rest still comes.
    let longest = [out, scene.time(&["swapin"]) * 2];
    let first = random.below(VICTIMS.len() as u64) as usize;
    for round in 0..if is_long() { 100 } else { 4 } {
        println!("round {round}");
        scene.round(round, VICTIMS[(first + round) % VICTIMS.len()], longest, &mut random);
    }
    scene.cli.ok(&["remote", "verify", "nas"]);
    scene.cli.ok(&["down"]);
    await_that("nothing runs", SOON, || scene.cli.processes().is_empty());
    assert!(scene.shown().is_null(), "{}", scene.shown());
    assert!(!scene.cli.run_root().join(NAME).exists(), "the run directory is left over");
}
