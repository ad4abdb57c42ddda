//! Travelling in the timeline through the command line: to instants of virtual time, and what the log tells of where things are.

use fermata_testkit::{
    Cli,
    cli::{self, array, await_that, count, string},
    guests,
};
use serde_json::Value;
use std::{process::Stdio, thread, time::Duration};

const SOON: Duration = Duration::from_secs(60);
const SECOND: u64 = 1_000_000_000;

fn up(cli: &Cli) {
    let image = cli.disk();
    cli.write("machine.yaml", &guests::tiny("travel", "fermata.run=tick fermata.disk=rw", &format!("    image: {}\n", image.display())));
    cli.ok(&["up", "machine.yaml"]);
}

/// A checkpoint after the guest has written a word, and a second before it goes on.
fn marked(cli: &Cli, word: &str) -> Value {
    cli.shell("m1", &format!("echo {word} >> /tmp/words; echo {word} >> /disk/words; sync"));
    let checkpoint = cli.json(&["checkpoint", "-m", word]);
    cli.shell("m1", "sleep 1.5");
    checkpoint
}

fn time(checkpoint: &Value) -> u64 {
    count(&checkpoint["time_virtual_ns"])
}

/// An instant as people write it.
fn written(ns: u64) -> String {
    format!("{}.{:09}s", ns / SECOND, ns % SECOND)
}

fn words(cli: &Cli) -> String {
    cli.shell("m1", "cat /tmp/words /disk/words | tr '\\n' ' '")
}

/// A run went to a checkpoint and from there to an instant, where it stands: whoever looks finds it there.
#[track_caller]
fn stands(cli: &Cli, went: &Value, asked: u64, from: &Value) {
    let reached = &went["reached"];
    assert_eq!((&went["checkpoint"], count(&reached["asked_ns"])), (&from["id"], asked), "{went}");
    assert!(count(&reached["time_virtual_ns"]) >= asked, "{went}");
    assert_eq!(count(&reached["late_ns"]), count(&reached["time_virtual_ns"]) - asked, "{went}");
    assert_eq!((&reached["paused"], &cli.machine("main")["state"]), (&Value::from(true), &Value::from("paused")), "{went}");
    let here = cli.json(&["checkpoint", "-m", "here"]);
    assert_eq!((&here["parent"], &here["branch"]), (&from["id"], &went["branch"]));
    assert!(time(&here) >= asked, "it was told to stop at {asked}, and not before: {here}");
}

#[test]
fn a_run_goes_to_any_instant_of_its_line() {
    let cli = Cli::new();
    up(&cli);
    let [first, second] = ["first", "second"].map(|word| marked(&cli, word));
    let between = time(&first).midpoint(time(&second));
    let went = cli.json(&["goto", &written(between)]);
    assert_eq!(went["reached"]["went"], true, "{went}");
    stands(&cli, &went, between, &first);
    cli.ok(&["resume"]);
    assert_eq!(words(&cli), "first first", "the second word was not written yet");

    what_is_still_to_come(&cli);
    // Where nothing was, and where there is nothing yet.
    let early = written(time(&first) / 2);
    cli.fails(&["goto", &early], 1, &["there is no way to", &string(&first["id"])[..12], "fermata log --at"]);
    cli.fails(&["goto", &early, "--branch", "absent"], 1, &["absent"]);
    cli.fails(&["goto", "main", "--go-on"], 2, &["--go-on"]);
    assert_eq!(cli.shell("m1", "echo still here"), "still here");

    // On another line than its own, past the newest checkpoint there.
    let past = time(&second) + SECOND / 2;
    let went = cli.json(&["goto", &written(past), "--branch", "main"]);
    assert_eq!(string(&went["branch"]), "main", "{went}");
    stands(&cli, &went, past, &second);
    cli.ok(&["resume"]);
    assert_eq!(words(&cli), "first second first second");
    let went = cli.json(&["goto", &written(between), "--go-on"]);
    assert_eq!((&went["checkpoint"], &went["reached"]["paused"]), (&first["id"], &Value::from(false)), "{went}");
    assert_eq!(words(&cli), "first first");

    what_the_log_tells(&cli, &first, &second, between);
    names_that_count_from_where_the_run_is(&cli, &second);
    a_name_like_an_instant(&cli, &first);
    nobody_waits_for_a_run_that_has_ended(&cli);
    a_dead_experiment_comes_back_at_an_instant(&cli, &first, between);
    cli.ok(&["down"]);
}

/// It runs on from where it is.
fn what_is_still_to_come(cli: &Cli) {
    cli.shell("m1", "echo live > /tmp/live");
    let before = count(&cli.json(&["ls"])[0]["runs"][0]["time_virtual_ns"]);
    let went = cli.json(&["goto", "+1s"]);
    assert!(went["reached"]["went"] == false && count(&went["reached"]["asked_ns"]) >= before + SECOND, "{went}");
    assert_eq!(cli.machine("main")["state"], "paused");
    // Again from where it stands.
    let again = cli.json(&["goto", "+250ms", "--go-on"]);
    assert!(count(&again["reached"]["asked_ns"]) >= count(&went["reached"]["time_virtual_ns"]) + SECOND / 4, "{again}");
    assert_eq!(cli.shell("m1", "cat /tmp/live"), "live", "nothing was lost");
    let said = cli.ok(&["goto", "+100ms"]);
    assert!(said.contains("main stands at ") && said.contains(" late), on branch main.2; it ran on for "), "{said}");
    cli.ok(&["resume"]);
}

fn what_the_log_tells(cli: &Cli, first: &Value, second: &Value, between: u64) {
    let ids = |arguments: &[&str]| {
        let log = cli.json(&[&["log"], arguments].concat());
        array(&log).iter().map(|checkpoint| string(&checkpoint["id"]).to_owned()).collect::<Vec<_>>()
    };
    let [first_id, second_id] = [first, second].map(|checkpoint| string(&checkpoint["id"]));
    assert_eq!(ids(&["--branch", "main", "--at", &written(between)]), [first_id]);
    let at_first = ids(&["--at", &written(time(first))]);
    assert_eq!(at_first, [first_id], "all lines were there then");
    let grew = ids(&["--since", first_id]);
    assert!(grew.contains(&second_id.to_owned()) && !grew.contains(&first_id.to_owned()) && grew.len() >= 3, "{grew:?}");
    assert_eq!(ids(&["--until", second_id]), [second_id, first_id]);
    assert_eq!(ids(&["--since", first_id, "--until", second_id]), [second_id]);
    assert!(!ids(&["--since", &written(between)]).contains(&first_id.to_owned()));
    cli.fails(&["log", "--since", "nonsense"], 1, &["nonsense"]);
    cli.fails(&["log", "--at", "+5s"], 2, &["virtual time"]);
    // The run grows from the first one, where it went back to.
    let log = cli.json(&["log", "--graph"]);
    let on_first = array(&log).iter().find(|checkpoint| checkpoint["id"] == first["id"]);
    let run = &on_first.unwrap_or_else(|| panic!("it is not in {log}"))["runs"][0];
    assert_eq!((string(&run["name"]), string(&run["state"])), ("main", "running"), "{log}");
    assert!(count(&run["time_virtual_ns"]) >= between, "{run}");
    let graph = cli.ok(&["log", "--graph"]);
    let line = graph.lines().find(|line| line.contains("run main"));
    assert!(line.is_some_and(|line| line.contains('o') && line.contains("running, ")), "{graph}");
    let day = string(&first["created"]);
    assert!(graph.contains(&day[11..19]) || graph.contains(&day[5..16].replace('T', " ")), "the time of day: {graph}");
}

/// The run stands on the first checkpoint; then it goes to the second one.
fn names_that_count_from_where_the_run_is(cli: &Cli, second: &Value) {
    cli.ok(&["goto", string(&second["id"])]);
    let parent = cli.json(&["show", "~1"]);
    assert_eq!(parent["id"], second["parent"]);
    cli.ok(&["fork", "~", "--name", "beside"]);
    cli.ok(&["down", "beside"]);
    assert_eq!(cli.json(&["goto", "~1"])["checkpoint"], second["parent"]);
}

fn a_name_like_an_instant(cli: &Cli, first: &Value) {
    cli.ok(&["tag", string(&first["id"]), "95s"]);
    let went = cli.json(&["goto", "95s"]);
    assert!(went["checkpoint"] == first["id"] && went["reached"].is_null(), "{went}");
}

fn nobody_waits_for_a_run_that_has_ended(cli: &Cli) {
    cli.ok(&["fork", "main", "--name", "short"]);
    let begin = |line: &[&str]| cli.command(line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let waiting = [begin(&["checkpoint", "--at", "+1h", "--run", "short"]), begin(&["goto", "+1h", "--run", "short"])];
    // Until they have asked.
    thread::sleep(Duration::from_secs(2));
    cli.ok(&["down", "short"]);
    for mut waiting in waiting {
        let status = cli::end(&mut waiting, SOON).expect("it waits for an instant that never comes");
        assert_eq!(status.code(), Some(1));
    }
}

fn a_dead_experiment_comes_back_at_an_instant(cli: &Cli, first: &Value, between: u64) {
    let keeper = count(&cli.json(&["ls"])[0]["keeper_pid"]);
    cli::kill(keeper);
    await_that("it is dead", SOON, || cli.json(&["ls"])[0]["state"] == "dead" && cli.processes().is_empty());
    let went = cli.json(&["goto", &written(between), "--branch", "main"]);
    assert_eq!(went["reached"]["went"], true, "{went}");
    stands(cli, &went, between, first);
}
