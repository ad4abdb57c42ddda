//! Keeping and forgetting through the command line, beside a guest whose checkpoints go on.

use fermata_testkit::{
    Cli,
    cli::{array, await_that, count, string},
    guests,
};
use serde_json::Value;
use std::{cell::RefCell, collections::BTreeSet, time::Duration};

const SOON: Duration = Duration::from_secs(60);
/// The keeper prunes once a minute.
const BY_ITSELF: Duration = Duration::from_secs(150);
const POLICY: &str = "last 4, every 1h";

fn up(cli: &Cli, keys: &str) {
    let image = cli.disk();
    let machine = guests::tiny("forgetful", "fermata.run=tick fermata.disk=rw", &format!("    image: {}\n", image.display()));
    cli.write("machine.yaml", &format!("every: 300ms\n{keys}{machine}"));
    cli.ok(&["up", "machine.yaml"]);
}

fn ids(cli: &Cli) -> BTreeSet<String> {
    array(&cli.json(&["log"])).iter().map(|checkpoint| string(&checkpoint["id"]).to_owned()).collect()
}

fn await_checkpoints(cli: &Cli, number: usize) {
    await_that("the clock takes checkpoints", SOON, || ids(cli).len() >= number);
}

fn reasons(pruned: &Value, id: &str) -> BTreeSet<String> {
    let found = array(&pruned["checkpoints"]).iter().find(|checkpoint| checkpoint["id"] == *id);
    let stays = &found.unwrap_or_else(|| panic!("{id} is not in {pruned}"))["stays"];
    array(stays).iter().map(|stays| string(&stays["why"]).to_owned()).collect()
}

/// What goes, or went.
fn going(pruned: &Value) -> BTreeSet<String> {
    let going = array(&pruned["checkpoints"]).iter().filter(|checkpoint| array(&checkpoint["stays"]).is_empty());
    going.map(|checkpoint| string(&checkpoint["id"]).to_owned()).collect()
}

fn marked(cli: &Cli, machine: &str, word: &str) -> String {
    cli.shell(machine, &format!("echo {word} > /tmp/word; echo {word} > /disk/word; sync"));
    let run = machine.split(':').next().unwrap();
    string(&cli.json(&["checkpoint", "--run", run, "-m", word])["id"]).to_owned()
}

#[test]
fn what_is_not_kept_goes_and_the_rest_is_whole() {
    let cli = Cli::new();
    up(&cli, "");
    let first = marked(&cli, "main:m1", "first");
    let parting = marked(&cli, "main:m1", "parting");
    await_checkpoints(&cli, 8);
    cli.ok(&["fork", &parting, "--name", "what-if"]);
    marked(&cli, "what-if:m1", "forked");
    cli.ok(&["tag", &first, "good"]);
    await_checkpoints(&cli, 20);
    let stands = ["main", "what-if"].map(|run| {
        cli.ok(&["pause", run]);
        // It comes after all that are being stored.
        string(&cli.json(&["checkpoint", "--run", run])["id"]).to_owned()
    });
    let before = ids(&cli);

    cli.fails(&["prune"], 1, &["--keep 'last 20", "`keep`"]);
    cli.fails(&["prune", "--keep", "lots"], 2, &["last 20, every 2s for 1m"]);
    let would = cli.json(&["prune", "--keep", POLICY, "--dry-run"]);
    assert_eq!((&would["keep"], &would["dry_run"]), (&Value::from(POLICY), &Value::from(true)));
    assert_eq!(ids(&cli), before, "nothing has gone yet");
    assert!(reasons(&would, &first).contains("tag") && reasons(&would, &parting).contains("fork"), "{would}");
    for head in &stands {
        assert!(["head", "run", "rule"].iter().all(|why| reasons(&would, head).contains(*why)), "{would}");
    }
    let said = cli.ok(&["prune", "--keep", POLICY, "-n"]);
    assert!(["tagged good", "branches part here", "last 4", "goes"].iter().all(|words| said.contains(words)), "{said}");

    let pruned = cli.json(&["prune", "--keep", "last 2", "--gc"]);
    let gone = going(&pruned);
    assert!(gone.len() >= 8 && count(&pruned["collected"]["packs"]) > 0, "{pruned}");
    assert!(gone.is_superset(&going(&would)), "fewer are kept now");
    assert_eq!(ids(&cli), before.difference(&gone).cloned().collect());
    assert!(going(&cli.json(&["prune", "--keep", "last 2"])).is_empty(), "a second time nothing goes");
    // The runs go on from what they stand on, and what is left can be gone to.
    for (head, run) in stands.iter().zip(["main", "what-if"]) {
        assert_eq!(cli.json(&["checkpoint", "--run", run])["parent"], **head);
    }
    for (id, word) in [(&first, "first"), (&parting, "parting")] {
        cli.ok(&["goto", id]);
        assert_eq!(cli.shell("m1", "cat /tmp/word /disk/word"), format!("{word}\n{word}"));
    }
    assert!(array(&cli.json(&["verify"])["damage"]).is_empty());
    cli.ok(&["down"]);
}

#[test]
fn a_keeper_prunes_by_itself() {
    let cli = Cli::new();
    up(&cli, &format!("keep: {POLICY}\n"));
    let first = marked(&cli, "main:m1", "first");
    cli.ok(&["tag", &first, "good"]);
    let seen = RefCell::new(BTreeSet::new());
    await_that("some have gone by themselves", BY_ITSELF, || {
        let now = ids(&cli);
        let gone = !seen.borrow().is_subset(&now);
        seen.borrow_mut().extend(now);
        gone
    });
    assert!(ids(&cli).contains(&first));
    assert_eq!(cli.json(&["prune", "--dry-run"])["keep"], POLICY, "as the specification says");
    await_checkpoints(&cli, 8);
    assert!(cli.json(&["ls"])[0]["trouble"].is_null());
    cli.ok(&["goto", "good"]);
    assert_eq!(cli.shell("m1", "cat /tmp/word"), "first");
    assert!(array(&cli.json(&["verify"])["damage"]).is_empty());
    cli.ok(&["down"]);
}
