//! Removing, collecting, verifying and counting through the command line, beside a guest whose checkpoints go on. Takes about 40 s.

use fermata_testkit::{
    Cli,
    cli::{array, await_that, count, string},
    guests,
};
use serde_json::Value;
use std::{fs, os::unix::fs::FileExt, path::PathBuf, time::Duration};

const SOON: Duration = Duration::from_secs(60);

fn up(cli: &Cli, every: &str) {
    let image = cli.disk();
    cli.write("machine.yaml", &guests::tiny("house", "fermata.run=tick fermata.disk=rw", &format!("    image: {}\n", image.display())));
    cli.ok(&["up", "machine.yaml", "--every", every]);
}

/// A checkpoint of a guest that has this word in its memory and on its disk.
fn marked(cli: &Cli, machine: &str, word: &str) -> String {
    cli.shell(machine, &format!("echo {word} > /tmp/word; echo {word} > /disk/word; sync"));
    let run = machine.split(':').next().unwrap().to_owned();
    string(&cli.json(&["checkpoint", "--run", &run, "-m", word])["id"]).to_owned()
}

#[track_caller]
fn has(cli: &Cli, machine: &str, word: &str) {
    assert_eq!(cli.shell(machine, "cat /tmp/word /disk/word"), format!("{word}\n{word}"));
}

fn log(cli: &Cli) -> Vec<Value> {
    array(&cli.json(&["log"])).to_vec()
}

fn is_listed(cli: &Cli, id: &str) -> bool {
    log(cli).iter().any(|checkpoint| checkpoint["id"] == *id)
}

/// Waits for checkpoints by the clock on top of what is there, and finds no trouble.
#[track_caller]
fn checkpoints_go_on(cli: &Cli) {
    let newest = || count(&log(cli)[0]["created_ns"]);
    for _ in 0..3 {
        let before = newest();
        await_that("there is another checkpoint", SOON, || newest() > before);
    }
    assert!(cli.json(&["ls"])[0]["trouble"].is_null());
}

#[track_caller]
fn is_whole(cli: &Cli) {
    let report = cli.json(&["verify"]);
    assert!(array(&report["damage"]).is_empty(), "{report}");
    assert!(count(&report["pages"]) > 0, "{report}");
    assert!(cli.ok(&["verify", "--quick"]).contains("the store is whole"));
}

#[test]
fn a_store_is_kept_in_order_beside_its_guests() {
    let cli = Cli::new();
    up(&cli, "200ms");
    let [first, middle, last] = ["first", "middle", "last"].map(|word| marked(&cli, "main:m1", word));
    cli.ok(&["fork", &middle, "--name", "what-if"]);
    has(&cli, "what-if:m1", "middle");
    let forked = marked(&cli, "what-if:m1", "forked");
    cli.ok(&["tag", &first, "kept"]);

    // What is refused says what to do, and removes nothing.
    cli.fails(&["rm", &first], 1, &["tagged", "house/kept", "force"]);
    cli.fails(&["rm", "--branch", "what-if"], 1, &["run what-if grows branch what-if", "fermata down what-if"]);
    cli.fails(&["rm", "--all"], 1, &["house is running", "fermata down -e house"]);
    cli.fails(&["rm", "nowhere"], 1, &["nowhere"]);
    let would = cli.json(&["rm", &middle, "--dry-run"]);
    assert_eq!((array(&would["checkpoints"]).len(), &would["checkpoints"][0]["id"]), (1, &Value::from(middle.as_str())));
    assert!(is_listed(&cli, &middle));

    // One in the middle goes; what grew from it stays.
    let said = cli.ok(&["rm", &middle]);
    assert!(said.contains("1 checkpoint removed") && said.contains("fermata gc"), "{said}");
    assert!(!is_listed(&cli, &middle));
    cli.fails(&["goto", &middle], 1, &[&middle[..12]]);
    let collected = cli.json(&["gc", "--rewrite-below", "100"]);
    assert!(count(&collected["packs"]) > 0 && array(&collected["damaged"]).is_empty(), "{collected}");
    checkpoints_go_on(&cli);
    is_whole(&cli);

    // All that the clock took goes, what the runs stand on with it.
    cli.ok(&["pause"]);
    cli.ok(&["pause", "what-if"]);
    let named = [&first, &last, &forked].map(String::as_str);
    let by_the_clock: Vec<_> =
        log(&cli).iter().map(|checkpoint| string(&checkpoint["id"]).to_owned()).filter(|id| !named.contains(&id.as_str())).collect();
    assert!(by_the_clock.len() > 3);
    let mut arguments = vec!["rm"];
    arguments.extend(by_the_clock.iter().map(String::as_str));
    let removed = cli.json(&arguments);
    assert_eq!(array(&removed["checkpoints"]).len(), by_the_clock.len());
    cli.ok(&["resume"]);
    cli.ok(&["resume", "what-if"]);
    let collected = cli.json(&["gc", "--rewrite-below", "100"]);
    assert!(count(&collected["bytes_after"]) < count(&collected["bytes_before"]), "{collected}");
    checkpoints_go_on(&cli);
    is_whole(&cli);
    let stats = cli.json(&["stats", "house"]);
    assert!(count(&stats["checkpoints"]) >= 6 && count(&stats["pages_unique"]) > 0 && count(&stats["sieve"]["new"]) > 0, "{stats}");
    assert!(cli.ok(&["stats"]).contains("stored once each"));

    // Everything that is left can be gone to.
    cli.ok(&["down", "what-if"]);
    for (id, word) in [(&last, "last"), (&forked, "forked"), (&first, "first")] {
        cli.ok(&["goto", id]);
        has(&cli, "main:m1", word);
        cli.checkpoint("back");
    }
    // A branch takes with it what no other branch leads to: the forked one has grown another since.
    cli.ok(&["rm", "--branch", "what-if"]);
    let has_head = |branch: &str| log(&cli).iter().any(|checkpoint| array(&checkpoint["heads"]).iter().any(|head| head == branch));
    assert!(!has_head("what-if") && has_head("what-if.2") && is_listed(&cli, &forked) && is_listed(&cli, &last));
    cli.ok(&["down"]);
    what_is_damaged_is_named(&cli, &first);
    cli.ok(&["rm", "--all", "-e", "house", "--force", "--yes"]);
    let emptied = cli.json(&["gc", "--rewrite-below", "100"]);
    assert_eq!((count(&emptied["checkpoints"]), count(&emptied["bytes_after"])), (0, 0), "{emptied}");
    is_empty_and_whole(&cli);
}

fn is_empty_and_whole(cli: &Cli) {
    let report = cli.json(&["verify"]);
    assert_eq!((array(&report["damage"]).len(), count(&report["packs"])), (0, 0), "{report}");
}

/// Flips a bit in the largest pack, where the first checkpoint's pages lie.
fn what_is_damaged_is_named(cli: &Cli, touched: &str) {
    is_whole(cli);
    let pack = largest(cli);
    let file = fs::File::options().read(true).write(true).open(&pack).unwrap();
    let flip = |at: u64| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    // The kernel and pages of other checkpoints lie there, too.
    let length = file.metadata().unwrap().len();
    let damaged = (1..16).map(|part| length * part / 16).find_map(|at| {
        flip(at);
        let said = cli.run(&["--json", "verify"]);
        assert_eq!(said.status.code(), Some(1), "{said:?}");
        let report: Value = serde_json::from_str(&said.stdout).unwrap();
        let damage = &report["damage"][0];
        assert_eq!(string(&damage["path"]), pack.to_str().unwrap());
        let of_first =
            array(&damage["touches"]).iter().find(|of| of["checkpoint"] == *touched && of["part"] == "m1" && of["table"] == "ram");
        let page = of_first.map(|of| of["pages"][0][0].clone());
        if page.is_none() {
            flip(at);
        }
        page.map(|page| (at, page))
    });
    let (at, page) = damaged.expect("pages of the first checkpoint lie in its largest pack");
    let said = cli.run(&["verify"]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    for part in [&touched[..12], "(house, main): m1 ram page", &page.to_string(), "mend:"] {
        assert!(said.stdout.contains(part), "{part}: {said:?}");
    }
    flip(at);
    is_whole(cli);
}

fn largest(cli: &Cli) -> PathBuf {
    let entries = |path: PathBuf| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let packs = entries(cli.store().join("packs")).filter(|path| path.is_dir()).flat_map(entries);
    packs.max_by_key(|pack| fs::metadata(pack).unwrap().len()).expect("there is a pack")
}
