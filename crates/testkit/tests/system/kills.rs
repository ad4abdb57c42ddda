//! Keeper, QEMU and command line killed at random times, with guests that check themselves: no checkpoint is lost or half, and nothing is left over.
//! Once with one machine and its disk, and once with three on a LAN, which exchange numbers and know which must come next.
//!
//! Some rounds, about a minute; a hundred of each with `FERMATA_LONG=1`. What is random comes from a seed, which is printed; `FERMATA_SEED` repeats
//! one.

use fermata_testkit::{
    Cli, Random,
    cli::{self, array, await_that, count, string},
    guests, is_long,
};
use std::{collections::BTreeSet, fs, process::Stdio, thread, time::Duration};

const SOON: Duration = Duration::from_secs(120);
const BOOT: Duration = Duration::from_secs(240);

/// What may be killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Keeper,
    Machine,
    CommandLine,
    Spare,
}

/// What is under way when it happens; and removing a checkpoint that is there for that.
const ERRANDS: [&[&str]; 5] = [&["checkpoint", "-m", "unheard"], &["goto", "main~1"], &["fork", "--name", "other"], &["gc"], &["verify"]];
const VICTIMS: [Victim; 4] = [Victim::Keeper, Victim::Machine, Victim::CommandLine, Victim::Spare];
/// Longest time from the beginning of an errand to the kill: most take less.
const DELAY_MS_MAX: u64 = 150;

/// An experiment whose guests check themselves.
struct Kills {
    cli: Cli,
    name: &'static str,
    /// What they say when they have checked themselves once more: machine and words.
    says: &'static [(&'static str, &'static str)],
}

impl Kills {
    fn up(cli: Cli, name: &'static str, spec: &str, says: &'static [(&'static str, &'static str)]) -> Self {
        let kills = Self { cli, name, says };
        kills.cli.write("kills.yaml", spec);
        kills.cli.ok(&["up", "kills.yaml"]);
        await_that("the guests begin", BOOT, || kills.said().iter().all(|times| *times > 0));
        kills
    }

    fn ids(&self) -> BTreeSet<String> {
        array(&self.cli.json(&["log"])).iter().map(|checkpoint| string(&checkpoint["id"]).to_owned()).collect()
    }

    /// Processes of the run's machines.
    fn machines(&self) -> Vec<u64> {
        let experiments = self.cli.json(&["ls"]);
        let runs = array(&experiments[0]["runs"]).iter().filter(|run| run["name"] == "main");
        runs.flat_map(|run| array(&run["machines"])).map(|machine| count(&machine["pid"])).collect()
    }

    /// How often each has said that it checked itself.
    fn said(&self) -> Vec<usize> {
        let experiments = self.cli.json(&["ls"]);
        let main = array(&experiments[0]["runs"]).iter().find(|run| run["name"] == "main").unwrap_or_else(|| panic!("{experiments}"));
        let console = |name: &str| {
            let machine = array(&main["machines"]).iter().find(|machine| machine["name"] == name).expect("it has this machine");
            let text = String::from_utf8_lossy(&fs::read(string(&machine["console_log"])).unwrap_or_default()).into_owned();
            assert!(!text.contains("FAIL"), "{name}: {text}");
            text
        };
        self.says.iter().map(|(machine, words)| console(machine).matches(words).count()).collect()
    }

    /// The guests look at all they have twice more, and find it right.
    fn check_themselves(&self) {
        let before = self.said();
        let so = || self.said().iter().zip(&before).all(|(now, before)| *now >= before + 2);
        await_that("the guests check themselves", SOON, so);
    }

    /// Starts an errand, kills a victim on the way, and waits until those that die with it are gone. Whoever removes nothing else may remove `unwanted`.
    fn kill_on_the_way(&self, victim: Victim, unwanted: &str, random: &mut Random) {
        let remove = ["rm", unwanted];
        // Every other time a checkpoint, and then while it is taken: most of it is over much sooner than the others are.
        let (errand, delay) = match random.below(2) {
            0 => (ERRANDS[0], random.below(DELAY_MS_MAX / 3)),
            _ => {
                let errand = ERRANDS.get(1 + random.below(ERRANDS.len() as u64) as usize).copied();
                (errand.unwrap_or(&remove), random.below(DELAY_MS_MAX))
            }
        };
        println!("{victim:?} {delay} ms into {errand:?}");
        let keeper = count(&self.cli.json(&["ls"])[0]["keeper_pid"]);
        let machines = self.machines();
        let spares: Vec<_> = self.cli.processes().into_iter().filter(|pid| *pid != keeper && !machines.contains(pid)).collect();
        let mut child = self.cli.command(errand).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        thread::sleep(Duration::from_millis(delay));
        match victim {
            Victim::Keeper => cli::kill(keeper),
            Victim::Machine => cli::kill(random.one_of(&machines)),
            Victim::CommandLine => cli::kill(child.id().into()),
            Victim::Spare if spares.is_empty() => {}
            Victim::Spare => cli::kill(random.one_of(&spares)),
        }
        cli::end(&mut child, SOON).expect("no command hangs because somebody was killed");
        if matches!(victim, Victim::Keeper) {
            // A journey that found it dead has begun another one.
            let lives = |pid: &u64| *pid == keeper || machines.contains(pid) || spares.contains(pid);
            await_that("QEMU dies with its keeper", SOON, || !self.cli.processes().iter().any(lives));
            let known = || {
                let experiment = &self.cli.json(&["ls"])[0];
                string(&experiment["state"]) == "dead" || count(&experiment["keeper_pid"]) != keeper
            };
            // It may hold its lock for a moment after its memory, with all its threads, is gone.
            await_that("it is known to be dead", SOON, known);
        }
    }

    /// For each run as many processes as there are machines, as many spares, and a keeper; and a directory for each QEMU.
    fn nothing_is_left_over(&self) {
        let machines = self.machines().len();
        let settled = || {
            let experiment = &self.cli.json(&["ls"])[0];
            let bodies = array(&experiment["runs"]).len() + 1;
            let entries = fs::read_dir(self.cli.run_root().join(self.name));
            let directories = entries.map_or(0, |entries| entries.flatten().filter(|entry| entry.path().is_dir()).count());
            let processes = self.cli.processes().len();
            experiment["spare_ready"] == true && processes == bodies * machines + 1 && directories == bodies * machines
        };
        await_that("no process and no directory is left over", SOON, settled);
    }

    /// One more checkpoint that may be removed, and one that may not; and all of which that is true.
    fn more(&self) -> (String, BTreeSet<String>) {
        let unwanted = self.cli.checkpoint("unwanted");
        self.cli.checkpoint("wanted");
        let mut known = self.ids();
        known.remove(&unwanted);
        (unwanted, known)
    }

    fn rounds(&self, few: usize) {
        let rounds = if is_long() { 100 } else { few };
        let (mut random, cli) = (Random::anew(), &self.cli);
        cli.checkpoint("first");
        let (mut unwanted, mut known) = self.more();
        // Where there are few rounds, others get their turn the next time.
        let first = random.below(VICTIMS.len() as u64) as usize;
        for round in 0..rounds {
            println!("round {round}");
            self.kill_on_the_way(VICTIMS[(first + round) % VICTIMS.len()], &unwanted, &mut random);
            let now = self.ids();
            assert!(now.is_superset(&known), "a permanent checkpoint is gone: {known:?} {now:?}");
            let newest = string(&cli.json(&["log"])[0]["id"]).to_owned();
            cli.ok(&["goto", &newest]);
            cli.ok(&["verify"]);
            for run in array(&cli.json(&["ls"])[0]["runs"]) {
                if string(&run["name"]) != "main" {
                    cli.ok(&["down", string(&run["name"])]);
                }
            }
            self.check_themselves();
            self.nothing_is_left_over();
            (unwanted, known) = self.more();
        }
        println!("{} checkpoints", known.len());
        for id in &known {
            cli.ok(&["show", id]);
            cli.ok(&["goto", id, "--eager", "--paused"]);
        }
        cli.ok(&["down"]);
        await_that("nothing runs", SOON, || cli.processes().is_empty());
        assert!(!cli.run_root().join(self.name).exists(), "the run directory is left over");
    }
}

#[test]
fn whoever_is_killed_checkpoints_stay_whole_and_nothing_stays_behind() {
    let cli = Cli::new();
    let more = format!("    image: {}\n", cli.disk().display());
    let spec = guests::tiny("kills", "fermata.run=selfcheck:24:8 fermata.disk=rw", &more);
    Kills::up(cli, "kills", &spec, &[("m1", "selfcheck round")]).rounds(4);
}

#[test]
fn whoever_is_killed_machines_agree_with_each_other_at_every_checkpoint() {
    let runs = |runs: &str, host: u8| format!("fermata.run={runs} fermata.ip=eth1:10.0.0.{host}/24");
    let [a, b, c] = [runs("wire:listen", 1), runs("wire:listen,wire:send:10.0.0.1:100", 2), runs("wire:send:10.0.0.2:100", 3)];
    let nodes = guests::several("agree", 128, &[("a", &a, ""), ("b", &b, ""), ("c", &c, "")]);
    let spec = format!("{nodes}links:\n  - lan: all\n    endpoints: [\"a:eth1\", \"b:eth1\", \"c:eth1\"]\n    delay: 5ms\n");
    let says = &[("a", "wire heard"), ("b", "wire heard"), ("b", "wire sent"), ("c", "wire sent")];
    Kills::up(Cli::new(), "agree", &spec, says).rounds(2);
}
