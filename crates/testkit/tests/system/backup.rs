//! A copy of every checkpoint elsewhere, kept by the keeper, from which everything comes back after the store is lost. About a minute.

use fermata_testkit::{
    Cli,
    cli::{array, await_that, count, string},
    guests,
};
use serde_json::Value;
use std::{fs, time::Duration};

const SOON: Duration = Duration::from_secs(180);

/// All that the log tells of checkpoints but where they are stored and what that cost.
fn history(cli: &Cli) -> Vec<Value> {
    let log = cli.json(&["log", "-e", "kept"]);
    let told = |checkpoint: &Value| {
        let of = |key: &str| checkpoint[key].clone();
        Value::from(["id", "parent", "branch", "heads", "tags", "message", "created"].map(of).to_vec())
    };
    let mut all: Vec<_> = array(&log).iter().map(told).collect();
    all.sort_by_key(ToString::to_string);
    all
}

#[test]
fn everything_comes_back_after_the_store_is_lost() {
    let cli = Cli::new();
    let place = cli.path().join("place");
    let address = place.to_str().expect("a name in UTF-8");
    let image = cli.path().join("golden.raw");
    fs::copy(cli.disk(), &image).expect("a copy");
    let more = format!("    image: {}\n", image.display());
    cli.write("machine.yaml", &guests::tiny("kept", "fermata.run=tick fermata.disk=rw", &more));
    cli.ok(&["up", "machine.yaml"]);
    cli.shell("m1", "echo first > /disk/word; echo first > /tmp/word; sync");
    let first = cli.checkpoint("first");
    cli.fails(&["backup"], 1, &["--keep-up"]);
    cli.fails(&["backup", address, "--keep-up"], 1, &["fermata remote add"]);
    let key = cli.path().join("key");
    fs::write(&key, [9; 32]).expect("a key");
    cli.ok(&["remote", "add", "safe", address, "--key-file", key.to_str().expect("a name in UTF-8")]);
    let done = cli.json(&["backup", "safe", "--keep-up"]);
    assert_eq!((count(&done["copied"][0]["checkpoints"]), &done["kept"][0]["remote"]), (1, &Value::from("safe")), "{done}");
    // The keeper goes on with it: checkpoints, and branches and tags without one.
    let lacking = || ["lacking", "lacking_refs"].map(|key| count(&cli.json(&["backup"])[0][key]));
    cli.shell("m1", "echo second > /disk/word; echo second > /tmp/word; sync");
    let second = cli.checkpoint("second");
    // The keeper may be as fast as we look.
    assert!(lacking().iter().all(|count| *count <= 1));
    await_that("the keeper has copied it", SOON, || lacking() == [0, 0]);
    cli.ok(&["goto", &first]);
    cli.checkpoint("elsewhere");
    cli.ok(&["tag", &second, "good"]);
    await_that("the keeper has copied the branch and the tag", SOON, || lacking() == [0, 0]);
    assert!(cli.json(&["ls"])[0]["trouble"].is_null());
    let before = history(&cli);
    cli.ok(&["down"]);

    fs::remove_dir_all(cli.store()).expect("it is lost");
    fs::remove_file(&image).expect("it is lost");
    let cloned = cli.json(&["clone", address, "--key-file", key.to_str().expect("a name in UTF-8")]);
    assert_eq!((count(&cloned[0]["checkpoints"]), &cloned[0]["images"][0]["outcome"]), (3, &Value::from("fetched")), "{cloned}");
    assert_eq!(history(&cli), before);
    assert!(array(&cli.json(&["verify"])["damage"]).is_empty());
    cli.ok(&["goto", "good", "-e", "kept"]);
    assert_eq!(cli.shell("m1", "cat /tmp/word /disk/word"), "second\nsecond");
    // What it takes now stands on the image that came back.
    let third = cli.checkpoint("third");
    cli.ok(&["goto", "main.2"]);
    assert_eq!(cli.shell("m1", "cat /tmp/word /disk/word"), "first\nfirst");
    cli.ok(&["goto", &third]);
    assert_eq!(cli.shell("m1", "cat /tmp/word /disk/word"), "second\nsecond");
    cli.ok(&["down"]);
    let left = cli.json(&["backup", "origin"]);
    assert_eq!(count(&left["copied"][0]["checkpoints"]), 1, "{left}");
    assert_eq!(string(&left["copied"][0]["experiment"]), "kept");
    cli.fails(&["backup", "origin", "--leave-off"], 1, &["by itself"]);
}
