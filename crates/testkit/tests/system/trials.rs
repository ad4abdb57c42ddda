//! One checkpoint lived through again and again: `try` under several conditions, and `bisect`. Their forks end, whatever happens.

use fermata_testkit::{
    Cli,
    cli::{self, array, await_that, count, string},
    guests,
};
use serde_json::{Value, json};
use std::{
    process::{Command, Stdio},
    time::Duration,
};

const SOON: Duration = Duration::from_secs(60);
const SECOND: u64 = 1_000_000_000;
const PING: &str = "ping -c 1 -W 5 10.9.0.2 > /dev/null && echo through";

fn runs(cli: &Cli) -> Vec<String> {
    let all = cli.json(&["ls"]);
    array(&all[0]["runs"]).iter().map(|run| string(&run["name"]).to_owned()).collect()
}

/// No fork runs, and none has left a checkpoint.
#[track_caller]
fn nothing_is_left(cli: &Cli) {
    assert_eq!(runs(cli), ["main"]);
    let log = cli.json(&["log"]);
    assert!(array(&log).iter().all(|checkpoint| checkpoint["branch"] == "main"), "{log}");
}

/// A script that takes a checkpoint of its fork.
fn takes_a_checkpoint(cli: &Cli) -> String {
    let program = cli.command::<&str>(&[]).get_program().to_string_lossy().into_owned();
    format!("{program} checkpoint -q --run $FERMATA_RUN")
}

#[test]
fn one_instant_is_tried_and_searched() {
    let cli = Cli::new();
    let (a, b) = ("    interfaces: {eth1: {ipv4: 10.9.0.1/24}}\n", "    interfaces: {eth1: {ipv4: 10.9.0.2/24}}\n");
    let nodes = guests::several("trials", 128, &[("a", "fermata.run=none", a), ("b", "fermata.run=none", b)]);
    cli.write("trials.yaml", &format!("{nodes}links:\n  - endpoints: [\"a:eth1\", \"b:eth1\"]\n    delay: 10ms\n"));
    cli.ok(&["up", "trials.yaml"]);
    await_that("the guests reach each other", SOON, || cli.run(&["exec", "a", "--", "sh", "-c", PING]).stdout.trim() == "through");
    cli.shell("a", "echo 0 > /tmp/count");
    let start = cli.json(&["checkpoint", "-m", "start"]);
    links_and_variables_are_tried(&cli, &start);
    a_script_of_this_host_is_run(&cli);
    what_cannot_be_tried_is_told(&cli);
    the_first_bad_one_is_found(&cli, &start);
    who_is_interrupted_leaves_nothing(&cli);
    assert_eq!(cli.shell("a", "cat /tmp/count"), "6", "the run itself was not disturbed");
    cli.ok(&["down"]);
}

#[test]
fn guests_do_with_fewer_processors() {
    let cli = Cli::new();
    cli.write("two.yaml", &guests::tiny("two", "fermata.run=none", "    cpus: 2\n"));
    cli.ok(&["up", "two.yaml"]);
    let online = "grep -c ^processor /proc/cpuinfo";
    assert_eq!(cli.shell("m1", online), "2");
    cli.ok(&["checkpoint"]);
    let tried = cli.json(&["try", "main", "--each", "cpus=1,2", "--in", "m1", "--run", &format!("echo $CPUS; {online}")]);
    let said: Vec<_> = array(&tried["trials"]).iter().map(|trial| string(&trial["stdout"])).collect();
    assert_eq!(said, ["1\n1\n", "2\n2\n"], "{tried}");
    let said = cli.run(&["try", "main", "--each", "cpus=3", "--in", "m1", "--run", "true"]);
    assert!(said.status.code() == Some(1) && said.stdout.contains("m1: the guest has 2 processors: 3 cannot be online"), "{said:?}");
    nothing_is_left(&cli);
    assert_eq!(cli.shell("m1", online), "2", "the run itself was not disturbed");
    // Those that were offline before come back.
    cli.shell("m1", "echo 0 > /sys/devices/system/cpu/cpu1/online");
    cli.ok(&["checkpoint"]);
    let tried = cli.json(&["try", "main", "--each", "cpus=2", "--in", "m1", "--run", online]);
    assert_eq!(tried["trials"][0]["stdout"], "2\n", "{tried}");
    cli.ok(&["down"]);
}

fn links_and_variables_are_tried(cli: &Cli, start: &Value) {
    let script = format!("cat /tmp/word; {PING}");
    let conditions = ["--each", "loss=0%,100%", "--each", "WORD=plain,it's"];
    let how = ["--before", "a: echo \"$WORD\" > /tmp/word", "--for", "5s", "--in", "a", "--run", &script];
    let tried = cli.json(&[&["try", "main"][..], &conditions, &how].concat());
    assert_eq!((&tried["checkpoint"], count(&tried["for_ns"])), (&start["id"], 5 * SECOND));
    let trials = array(&tried["trials"]);
    let results: Vec<_> = trials.iter().map(|trial| (&trial["condition"], trial["status"].as_i64(), string(&trial["stdout"]))).collect();
    let expected = [
        (json!({"loss": "0%", "WORD": "plain"}), Some(0), "plain\nthrough\n"),
        (json!({"loss": "0%", "WORD": "it's"}), Some(0), "it's\nthrough\n"),
        (json!({"loss": "100%", "WORD": "plain"}), Some(1), "plain\n"),
        (json!({"loss": "100%", "WORD": "it's"}), Some(1), "it's\n"),
    ];
    assert_eq!(results, expected.each_ref().map(|(condition, status, stdout)| (condition, *status, *stdout)));
    for trial in trials {
        let began = count(&trial["began_ns"]);
        assert!(began >= count(&start["time_virtual_ns"]) + 5 * SECOND && count(&trial["ended_ns"]) >= began, "{trial}");
    }
    nothing_is_left(cli);
    assert_eq!(cli.json(&["link", "a:eth1"])[0]["sent"]["shape"]["loss"], cli.json(&["link", "b:eth1"])[0]["sent"]["shape"]["loss"]);
    assert_eq!(cli.shell("a", PING), "through", "the link of the run is as it was");
}

fn a_script_of_this_host_is_run(cli: &Cli) {
    let script = format!("{}; echo \"$FERMATA_EXPERIMENT $FERMATA_RUN $DELAY\"; exit 3", takes_a_checkpoint(cli));
    let tried = cli.json(&["try", "main", "--each", "delay=1ms,20ms", "--link", "b:eth1", "--side-by-side", "2", "--run", &script]);
    for (trial, delay) in array(&tried["trials"]).iter().zip(["1ms", "20ms"]) {
        let said = format!("trials {} {delay}\n", string(&trial["run"]));
        assert!(trial["status"] == 3 && string(&trial["stdout"]).ends_with(&said), "{trial}");
    }
    nothing_is_left(cli);
    let said = cli.ok(&["try", "main", "--keep", "--run", "echo $FERMATA_RUN"]);
    let kept = runs(cli).into_iter().find(|run| run != "main").expect("the fork goes on");
    assert!(said.contains("RESULT") || said.lines().count() == 1, "{said}");
    assert!(said.matches(&kept).count() == 2, "as its name, and as what the script said: {said}");
    cli.ok(&["down", &kept]);
    nothing_is_left(cli);
}

fn what_cannot_be_tried_is_told(cli: &Cli) {
    cli.fails(&["try", "nowhere", "--run", "true"], 1, &["nowhere"]);
    cli.fails(&["try", "main", "--each", "nonsense=1", "--run", "true"], 2, &["\"nonsense\" is no property of a link"]);
    cli.fails(&["try", "main", "--link", "a:eth1", "--run", "true"], 2, &["--link"]);
    for wrong in [&["--link", "c:eth1", "--each", "loss=1%"][..], &["--before", "a: exit 9"], &["--before", "c: true"]] {
        let said = cli.run(&[&["--json", "try", "main", "--run", "true"], wrong].concat());
        assert_eq!(said.status.code(), Some(1), "{said:?}");
        let tried: Value = serde_json::from_str(&said.stdout).expect("JSON");
        assert!(!string(&tried["trials"][0]["problem"]).is_empty(), "{tried}");
        nothing_is_left(cli);
    }
}

/// Of seven checkpoints the fourth is the first at which the count is more than three; the third cannot be told.
fn the_first_bad_one_is_found(cli: &Cli, start: &Value) {
    let ids: Vec<_> = (1..=6)
        .map(|number| {
            cli.shell("a", &format!("echo {number} > /tmp/count"));
            cli.checkpoint(&format!("number {number}"))
        })
        .collect();
    let good = string(&start["id"]);
    let script = "n=$(cat /tmp/count); echo \"count $n\"; test $n -le 3";
    let found = cli.json(&["bisect", "--good", good, "--bad", "main", "--for", "1s", "--in", "a", "--run", script]);
    assert_eq!((&found["first_bad"], &found["good"]), (&Value::from(ids[3].as_str()), &Value::from(ids[2].as_str())), "{found}");
    let steps = array(&found["steps"]);
    assert!((2..=3).contains(&steps.len()), "{found}");
    for step in steps {
        let time = count(&step["time_virtual_ns"]);
        assert!(step["verdict"] == if step["status"] == 0 { "good" } else { "bad" }, "{step}");
        assert!(count(&step["began_ns"]) >= time + SECOND && string(&step["stdout"]).starts_with("count "), "{step}");
    }
    nothing_is_left(cli);
    let skipping = "n=$(cat /tmp/count); test $n = 3 && exit 125; test $n -le 3";
    let said = cli.run(&["bisect", "--good", good, "--bad", "~", "--in", "a", "--run", skipping]);
    assert_eq!(said.status.code(), Some(1), "it is one of two: {said:?}");
    assert!(said.stdout.contains("is one of these") && said.stdout.contains("number 3") && said.stdout.contains("number 4"), "{said:?}");
    assert!(said.stderr.contains("is skipped") && said.stderr.contains(" left, about "), "{said:?}");
    // On the host, by what the environment says.
    let script = format!("case \"$FERMATA_CHECKPOINT\" in {}) exit 0;; esac; exit 1", ids[0]);
    let found = cli.json(&["bisect", "--good", good, "--bad", "main", "--run", &script]);
    assert!(!found["first_bad"].is_null(), "{found}");
    cli.fails(&["bisect", "--good", "main", "--bad", good, "--run", "true"], 1, &["not on the line"]);
    cli.fails(&["bisect", "--good", "main", "--bad", "main", "--run", "true"], 1, &["nothing to search"]);
    nothing_is_left(cli);
}

fn who_is_interrupted_leaves_nothing(cli: &Cli) {
    let whole = &["--good", "main~6", "--bad", "main"][..];
    let long = [
        [&["bisect"], whole, &["--run", "sleep 1000"]].concat(),
        [&["bisect"], whole, &["--in", "a", "--run", "sleep 1000"]].concat(),
        [&["bisect"], whole, &["--for", "10h", "--run", "true"]].concat(),
        vec!["try", "main", "--each", "X=1,2", "--side-by-side", "2", "--run", "sleep 1000"],
    ];
    for arguments in long {
        let mut child = cli.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        await_that("a fork runs", SOON, || runs(cli).len() > 1);
        let told = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().expect("sh runs");
        assert!(told.success());
        let ended = cli::end(&mut child, SOON).unwrap_or_else(|| panic!("{arguments:?} does not end"));
        assert_eq!(ended.code(), Some(1), "{arguments:?}");
        nothing_is_left(cli);
    }
}
