//! The contract of the command line on the real program with a real guest: what each command does, prints as JSON, and exits with.

use fermata_testkit::{
    Cli,
    cli::{array, await_that, count, string},
    guests,
};
use serde_json::Value;
use std::{fs::File, os::unix::fs::FileExt, path::Path, time::Duration};

const RAM_PAGES: u64 = 65536;
const DISK_PAGES: u64 = 65536;
/// Waiting this long costs nothing where all is well.
const SOON: Duration = Duration::from_secs(30);

/// Where the disk has text that its file system does not know of, and where somebody will write some unseen.
const TEXT_AT: u64 = 200 << 20;
const UNSEEN_AT: u64 = 204 << 20;
const TEXT_PAGES: u64 = 16;

fn tiny(cli: &Cli, name: &str) {
    let image = cli.disk();
    write_text(&image, TEXT_AT);
    cli.write(
        "machine.yaml",
        &guests::tiny(name, "fermata.run=tick fermata.disk=rw", &format!("    image: {}\n    cpus: 2\n", image.display())),
    );
}

/// Writes pages of text into an image so that its times do not show it.
fn write_text(image: &Path, at: u64) {
    let image = File::options().write(true).open(image).expect("the image");
    let modified = image.metadata().and_then(|metadata| metadata.modified()).expect("times");
    (0..TEXT_PAGES)
        .for_each(|page| image.write_all_at(format!("page {page} at {at}").as_bytes(), at + page * 4096).expect("it is written"));
    image.set_modified(modified).expect("times can be set");
}

/// Has the guest read that text into its cache.
fn read_text(cli: &Cli, at: u64) {
    cli.shell("m1", &format!("dd if=/dev/vda of=/dev/null bs=4k skip={} count={TEXT_PAGES}", at / 4096));
}

#[test]
fn a_machine_from_boot_to_down() {
    let cli = Cli::new();
    tiny(&cli, "contract");
    let up = cli.json(&["up", "machine.yaml"]);
    assert_eq!((&up["name"], &up["state"]), (&Value::from("contract"), &Value::from("running")), "{up}");
    assert!(up["every_ms"].is_null(), "{up}");
    commands_run_in_the_guest(&cli);
    let [first, second] = checkpoints_are_taken(&cli);
    the_history_is_shown(&cli, &first, &second);
    the_history_is_drawn(&cli, &first, &second);
    tags_come_and_go(&cli, &first);
    the_machine_goes_back(&cli, &first, &second);
    a_fork_runs_beside_it(&cli, &first);
    runs_and_experiments_end(&cli, &second);
}

fn commands_run_in_the_guest(cli: &Cli) {
    assert_eq!(cli.ok(&["exec", "m1", "--", "echo", "a  b"]), "a  b\n");
    assert_eq!(cli.shell("m1", "nproc"), "2");
    assert_eq!(cli.ok(&["exec", "main:m1", "--", "echo", "named"]), "named\n");
    assert_eq!(cli.ok(&["exec", "--", "echo", "the only one"]), "the only one\n");
    let said = cli.run(&["exec", "m1", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((said.status.code(), said.stdout.as_str(), said.stderr.as_str()), (Some(7), "out\n", "err\n"));
    let signal = cli.run(&["exec", "m1", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(signal.status.code(), Some(128 + 9), "{signal:?}");
    let json = cli.json(&["exec", "m1", "--", "echo", "hello"]);
    assert_eq!((string(&json["machine"]), json["status"].as_i64(), string(&json["stdout"])), ("main:m1", Some(0), "hello\n"));
    let bytes = cli.command(&["exec", "m1", "--", "printf", "\\377\\000\\n"]).output().expect("fermata runs");
    assert_eq!(bytes.stdout, b"\xff\0\n", "byte for byte");
    assert_eq!((string(&json["stderr"]), &json["truncated"]), ("", &Value::from(false)));
    cli.fails(&["exec", "m2", "--", "true"], 255, &["no machine \"m2\"", "m1"]);
    cli.fails(&["exec", "other:m1", "--", "true"], 255, &["no run \"other\"", "main"]);
    cli.fails(&["exec", "m1", "--", "/no/such/program"], 255, &["/no/such/program"]);
    cli.fails(&["exec", "m1", "-e", "absent", "--", "true"], 255, &["absent", "contract"]);
    cli.fails(&["forward", "m1", "80"], 1, &["m1 has no control interface", "`ports: [80]`"]);
    cli.fails(&["ssh", "m1"], 255, &["m1 has no control interface", "`ports: [22]`"]);
    assert_eq!(cli.json(&["ports"]), Value::Array(vec![]));
}

/// Two of them. Between them the guest writes to its memory (`/tmp`) and to its disk.
fn checkpoints_are_taken(cli: &Cli) -> [Value; 2] {
    cli.shell("m1", "echo before > /tmp/before; echo before > /disk/before; sync");
    let first = cli.json(&["checkpoint"]);
    is_a_checkpoint(&first);
    assert!(first["parent"].is_null() && first["message"].is_null(), "{first}");
    assert_eq!(first["heads"], Value::from(vec!["main"]));
    assert!(count(&first["pages_by_part"]["m1"]["free"]) > 0, "free pages are not kept: {first}");
    cli.shell("m1", "echo after > /tmp/after; echo after > /disk/after; sync");
    read_text(cli, TEXT_AT);
    let second = cli.json(&["checkpoint", "-m", "before the upgrade", "--paranoid"]);
    is_a_checkpoint(&second);
    assert!(count(&second["pages_by_part"]["m1"]["mapped"]) >= TEXT_PAGES, "what was looked at is as it was known to be: {second}");
    assert_eq!(second["parent"], first["id"]);
    assert_eq!(string(&second["message"]), "before the upgrade");
    assert!(count(&second["time_virtual_ns"]) > count(&first["time_virtual_ns"]));
    // From the second on it costs what changed.
    assert!(count(&second["pages"]["unchanged"]) > (RAM_PAGES + DISK_PAGES) * 9 / 10, "{second}");
    assert!(count(&second["stored_bytes"]) < count(&first["stored_bytes"]), "{second}");
    [first, second]
}

#[track_caller]
fn is_a_checkpoint(value: &Value) {
    let is_id = |text: &str| text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    assert!(is_id(string(&value["id"])), "{value}");
    assert!(value["parent"].is_null() || is_id(string(&value["parent"])), "{value}");
    assert!(value["pause_ms"].as_f64().is_some_and(|pause| pause > 0.0 && pause < 10_000.0), "{value}");
    assert!(count(&value["time_virtual_ns"]) > 0, "{value}");
    assert!(count(&value["stored_bytes"]) > 0, "{value}");
    let sieve = value["pages"].as_object().unwrap_or_else(|| panic!("no counts: {value}"));
    let classes = ["unchanged", "free", "zero", "mapped", "on_disk", "known", "new"].map(|class| (class, count(&sieve[class])));
    assert_eq!(classes.iter().map(|class| class.1).sum::<u64>(), RAM_PAGES + DISK_PAGES, "every page is counted once: {value}");
    for (class, pages) in classes {
        assert_eq!(count(&value["bytes_by_class"][class]), pages * 4096, "{class}: {value}");
        let took = value["sieve_ms"][class].as_f64().unwrap_or_else(|| panic!("no time for {class}: {value}"));
        assert!(pages == 0 || took > 0.0, "{class}: {value}");
    }
    assert!(count(&sieve["within"]) <= count(&sieve["known"]), "{value}");
    let parts: Vec<_> = array(&value["parts"]).iter().map(|part| string(&part["name"])).collect();
    assert_eq!(parts, ["m1", "m1/disk0"]);
    assert_eq!(array(&value["images"]).len(), 1, "{value}");
}

fn the_history_is_shown(cli: &Cli, first: &Value, second: &Value) {
    let log = cli.json(&["log"]);
    let log = array(&log);
    log.iter().for_each(is_a_checkpoint);
    let ids: Vec<_> = log.iter().map(|checkpoint| &checkpoint["id"]).collect();
    assert_eq!(ids, [&second["id"], &first["id"]], "the newest first");
    assert_eq!((&log[0]["parent"], &log[1]["parent"]), (&first["id"], &Value::Null));
    let graph = cli.ok(&["log", "--graph"]);
    let [a, b] = [first, second].map(|checkpoint| &string(&checkpoint["id"])[..12]);
    assert!(graph.contains(a) && graph.contains(b) && graph.contains("before the upgrade") && graph.contains('*'), "{graph}");
    assert_eq!(array(&cli.json(&["log", "-n", "1"])).len(), 1);
    for (name, expected) in [(&a[..8], first), ("main", second), ("main~1", first), (string(&second["id"]), second)] {
        let shown = cli.json(&["show", name]);
        is_a_checkpoint(&shown);
        assert_eq!(shown["id"], expected["id"], "{name}");
    }
    assert!(cli.ok(&["show", "main"]).contains(string(&second["id"])));
    assert_eq!(cli.json(&["show"])["id"], second["id"], "the newest one");
    cli.fails(&["show", "main~2"], 1, &["main~2"]);
    cli.fails(&["show", "nonsense"], 1, &["nonsense", "log"]);
    let diff = cli.json(&["diff", "main~1", "main"]);
    assert_eq!((&diff["a"], &diff["b"]), (&first["id"], &second["id"]));
    assert_eq!(diff["time_virtual_ns"].as_i64(), Some((count(&second["time_virtual_ns"]) - count(&first["time_virtual_ns"])) as i64));
    let differing = |name: &str, of: &str| {
        let part = array(&diff["parts"]).iter().find(|part| part["name"] == name && part["of"] == of);
        count(&part.unwrap_or_else(|| panic!("no {name} {of}: {diff}"))["pages_differing"])
    };
    assert!((1..RAM_PAGES / 10).contains(&differing("m1", "ram")), "{diff}");
    assert!((1..100).contains(&differing("m1/disk0", "blocks")), "{diff}");
    assert!(cli.ok(&["diff", "main", "main"]).contains("no difference"));
    assert!(cli.ok(&["diff", "~1", "main"]).contains("m1/disk0"));
}

fn the_history_is_drawn(cli: &Cli, first: &Value, second: &Value) {
    let plots = cli.json(&["plot"]);
    let ids: Vec<_> = array(&plots["checkpoints"]).iter().map(|checkpoint| &checkpoint["id"]).collect();
    assert_eq!((ids.as_slice(), array(&plots["files"]).len()), ([&first["id"], &second["id"]].as_slice(), 0), "the oldest first");
    let panels = array(&plots["plots"][0]["panels"]);
    let classes = panels.iter().find(|panel| panel["series"][0]["name"] == "unchanged").unwrap_or_else(|| panic!("no classes: {plots}"));
    let values = array(&classes["series"]).iter().filter_map(|series| series["values"][1].as_f64());
    assert_eq!(values.sum::<f64>(), RAM_PAGES as f64 / 256.0, "the classes add up to all of the memory, in MiB: {classes}");
    let last = cli.json(&["plot", "main", "--since", "main~1", "--what", "pause"]);
    assert_eq!((&last["checkpoints"][0]["id"], array(&last["plots"]).len()), (&second["id"], 1));
    cli.fails(&["plot", "main~1", "--since", "main"], 1, &["not on the line"]);
    let files = cli.ok(&["plot", "-o", "pictures"]);
    assert_eq!(files.lines().count(), 10, "{files}");
    assert!(files.lines().all(|file| std::fs::metadata(cli.path().join(file)).is_ok_and(|file| file.len() > 1000)), "{files}");
}

fn tags_come_and_go(cli: &Cli, first: &Value) {
    let tag = cli.json(&["tag", "main~1", "known-good"]);
    assert_eq!((string(&tag["tag"]), &tag["checkpoint"]), ("known-good", &first["id"]));
    assert_eq!(cli.json(&["show", "known-good"])["tags"], Value::from(vec!["known-good"]));
    assert_eq!(cli.json(&["tag"]), Value::from(vec![tag]));
    assert!(cli.ok(&["log"]).contains("known-good"));
    cli.ok(&["tag", "main", "gone-soon"]);
    assert!(cli.json(&["tag", "--delete", "gone-soon"])["checkpoint"].is_null());
    cli.fails(&["show", "gone-soon"], 1, &["gone-soon"]);
    cli.fails(&["tag", "--delete", "gone-soon"], 1, &["no tag \"gone-soon\"", "fermata tag"]);
}

fn the_machine_goes_back(cli: &Cli, first: &Value, second: &Value) {
    let files = "ls /tmp/before /tmp/after /disk/before /disk/after 2>/dev/null | tr '\\n' ' '";
    cli.shell("m1", "sleep 1.5");
    let before = cli.uptime("m1");
    let at = count(&first["time_virtual_ns"]);
    for (way, to) in [(&["goto"][..], "known-good"), (&["goto", "--eager"], "main~1")] {
        let went = cli.json(&[way, &[to]].concat());
        let branch = string(&went["branch"]);
        assert!(branch.starts_with("main."), "what was there is not overwritten: {went}");
        arrived(&went, "main", branch, first);
        assert_eq!(cli.shell("m1", files), "/disk/before /tmp/before", "{way:?}");
        assert_eq!(cli.shell("m1", "cat /disk/before"), "before");
        let after = cli.uptime("m1");
        assert!(after < before - 1.0, "{way:?}: up {after} s, was {before} s");
        cli.shell("m1", "echo lost > /tmp/lost; echo lost > /disk/lost; sync");
        let dmesg = cli.shell("m1", "dmesg | grep -ciE 'ext4-fs error|i/o error|soft lockup|stall' || true");
        assert_eq!(dmesg, "0");
        assert_eq!(cli.machine("main")["state"], "running");
    }
    // Forward again, to the head of a branch that nobody grows: it is grown on.
    let went = cli.json(&["goto", "main", "--paused"]);
    arrived(&went, "main", "main", second);
    assert_eq!(
        (count(&went["time_virtual_ns"]), cli.machine("main")["state"].as_str()),
        (count(&second["time_virtual_ns"]), Some("paused"))
    );
    let went = cli.json(&["goto", "main"]);
    arrived(&went, "main", "main", second);
    assert_eq!(cli.shell("m1", files), "/disk/after /disk/before /tmp/after /tmp/before");
    assert_eq!(cli.shell("m1", "ls /tmp/lost /disk/lost 2>/dev/null || true"), "", "what it did on the way is gone");
    assert!(at < count(&second["time_virtual_ns"]));
    cli.fails(&["goto", "nonsense"], 1, &["nonsense"]);
    cli.fails(&["goto", "main", "--run", "absent"], 1, &["no run \"absent\"", "main"]);
    assert_eq!(cli.shell("m1", "echo still here"), "still here");
}

#[track_caller]
fn arrived(went: &Value, run: &str, branch: &str, at: &Value) {
    assert_eq!((string(&went["run"]), string(&went["branch"])), (run, branch), "{went}");
    assert_eq!((&went["checkpoint"], &went["time_virtual_ns"]), (&at["id"], &at["time_virtual_ns"]), "{went}");
    assert!(went["resume_ms"].as_f64().is_some_and(|took| took > 0.0 && took < 60_000.0), "{went}");
    assert!(went["warm"].is_boolean(), "{went}");
}

fn a_fork_runs_beside_it(cli: &Cli, first: &Value) {
    let forked = cli.json(&["fork", "known-good", "--name", "what-if"]);
    arrived(&forked, "what-if", "what-if", first);
    cli.shell("what-if:m1", "echo fork > /tmp/mine; echo fork > /disk/mine; sync");
    cli.shell("m1", "echo parent > /tmp/mine; echo parent > /disk/mine; sync");
    assert_eq!(cli.shell("what-if:m1", "cat /tmp/mine /disk/mine"), "fork\nfork");
    assert_eq!(cli.shell("main:m1", "cat /tmp/mine /disk/mine"), "parent\nparent");
    let twin = cli.json(&["fork", "known-good", "--name", "twin", "--same-randomness", "--eager"]);
    arrived(&twin, "twin", "twin", first);
    cli.ok(&["exec", "twin:m1", "--", "true"]);
    let ids = ["main", "what-if", "twin"].map(|run| cli.machine(run));
    assert_ne!(ids[0]["id"], ids[1]["id"], "a fork is another machine");
    assert_eq!(ids[0]["id"].as_str().map(str::len), Some(32));
    for machine in &ids {
        assert_eq!(
            (&machine["name"], &machine["state"], count(&machine["cpus"])),
            (&Value::from("m1"), &Value::from("running"), 2),
            "{machine}"
        );
        assert_eq!(count(&machine["memory_bytes"]), 256 << 20);
        assert!(count(&machine["pid"]) > 1);
    }
    let child = cli.json(&["checkpoint", "--run", "what-if"]);
    assert_eq!((&child["parent"], string(&child["branch"])), (&first["id"], "what-if"));
    assert_eq!(cli.json(&["show", "what-if~1"])["id"], first["id"]);
    cli.fails(&["fork", "--name", "what-if"], 1, &["what-if", "already", "another name"]);
    cli.fails(&["fork", "--name", "no name"], 1, &["no name", "letters"]);
    let unnamed = cli.json(&["fork"]);
    assert_eq!(cli.shell(&format!("{}:m1", string(&unnamed["run"])), "echo yes"), "yes");
}

fn runs_and_experiments_end(cli: &Cli, second: &Value) {
    let gone = cli.machine("what-if");
    let ended = cli.json(&["down", "what-if"]);
    assert_eq!((string(&ended["experiment"]), &ended["runs"]), ("contract", &Value::from(vec!["what-if"])));
    await_that("QEMU of the run ended", SOON, || !cli.processes().contains(&count(&gone["pid"])));
    cli.fails(&["exec", "what-if:m1", "--", "true"], 255, &["no run \"what-if\""]);
    assert_eq!(cli.shell("m1", "echo still here"), "still here");
    assert!(cli.ok(&["ls"]).contains("contract"));
    let ended = cli.json(&["down", "--all"]);
    assert_eq!(array(&ended).len(), 1, "{ended}");
    await_that("everything ended", SOON, || cli.processes().is_empty());
    assert_eq!(cli.json(&["ls"]), Value::Array(Vec::new()));
    // The history is still there, and from it everything else.
    assert_eq!(cli.json(&["show", "main"])["id"], second["id"]);
    let back = cli.json(&["goto", "main"]);
    arrived(&back, "main", "main", second);
    assert_eq!(cli.shell("m1", "cat /disk/after /tmp/after"), "after\nafter");
    an_image_that_changed_unseen_is_found(cli);
    a_guest_may_power_off(cli, second);
    cli.ok(&["down"]);
    cli.fails(&["down"], 1, &["fermata up"]);
}

/// The time of the image is what it was. Names are those of the image as it was, and are not taken for what the guest read of it.
fn an_image_that_changed_unseen_is_found(cli: &Cli) {
    let path = cli.path().join("disk.raw");
    let image = File::options().read(true).write(true).open(&path).expect("the image");
    let modified = image.metadata().and_then(|metadata| metadata.modified()).expect("times");
    let mut before = vec![0; (TEXT_PAGES * 4096) as usize];
    image.read_exact_at(&mut before, UNSEEN_AT).expect("it is read");
    write_text(&path, UNSEEN_AT);
    read_text(cli, UNSEEN_AT);
    for how in [&["checkpoint"][..], &["checkpoint", "--paranoid"]] {
        cli.fails(how, 1, &["disk.raw", "its time was set back"]);
    }
    assert_eq!(cli.shell("m1", "echo still here"), "still here");
    image.write_all_at(&before, UNSEEN_AT).expect("it is written");
    image.set_modified(modified).expect("times can be set");
    // The guest has the other text in its cache, and no name in the store is taken for it.
    cli.ok(&["checkpoint", "--paranoid"]);
    cli.shell("m1", "echo 3 > /proc/sys/vm/drop_caches");
}

fn a_guest_may_power_off(cli: &Cli, second: &Value) {
    cli.shell("m1", "(sleep 0.2; poweroff -f) < /dev/null > /dev/null 2>&1 &");
    await_that("it is off", SOON, || cli.machine("main")["state"] == "off");
    let off = string(&cli.json(&["checkpoint", "-m", "off"])["id"]).to_owned();
    arrived(&cli.json(&["goto", "main~2"]), "main", "main.2", second);
    cli.ok(&["exec", "m1", "--", "true"]);
    cli.json(&["goto", &off]);
    assert_eq!(cli.machine("main")["state"], "off");
}

#[test]
fn a_machine_on_the_command_line_alone() {
    let cli = Cli::new();
    let paths = [cli.disk(), guests::file("vmlinuz"), guests::file("tiny.cpio")].map(|path| path.display().to_string());
    let [image, kernel, initrd] = paths.each_ref().map(String::as_str);
    let cmdline = format!("{} panic=-1 fermata.run=tick fermata.disk=rw", guests::CMDLINE);
    let direct = ["--kernel", kernel, "--initrd", initrd, "--cmdline", &cmdline, "--memory", "192M", "--disk", "64M", "--every", "1s"];
    let up = cli.json(&[&["up", image, "--cpus", "1", "--exact"], &direct[..]].concat());
    assert_eq!((string(&up["name"]), count(&up["every_ms"])), ("disk", 1000), "{up}");
    assert_eq!(count(&up["runs"][0]["machines"][0]["memory_bytes"]), 192 << 20);
    let name = string(&up["runs"][0]["machines"][0]["name"]).to_owned();
    assert_eq!(cli.shell(&name, "cat /sys/block/vdb/size"), (64 << 20 >> 9).to_string());
    let by_the_clock = || array(&cli.json(&["log", "--branch", "main"])).to_vec();
    await_that("a checkpoint every second", SOON, || !array(&cli.json(&["log"])).is_empty() && by_the_clock().len() >= 4);
    // Those that were taken while it booted do not tell.
    let newest = || by_the_clock()[0]["composition"][&name]["pages"]["free"].as_u64();
    await_that("its kernel tells what is free", SOON, || newest().is_some_and(|pages| pages > 0));
    let log = by_the_clock();
    let free = |checkpoint: &Value| count(&checkpoint["pages_by_part"][&name]["free"]);
    assert!(log.iter().all(|checkpoint| free(checkpoint) == 0), "--exact keeps every page of memory: {log:?}");
    for pair in log.windows(2) {
        assert_eq!(pair[0]["parent"], pair[1]["id"], "the newest first, each grown from the next");
        let between = (count(&pair[0]["created_ns"]) - count(&pair[1]["created_ns"])) as f64 / 1e9;
        assert!(between > 0.0, "{between} s between two");
        assert!(pair[0]["message"].is_null());
    }
    // The clock goes on after a journey.
    let went = cli.json(&["goto", "main~2"]);
    let branch = string(&went["branch"]);
    await_that("the clock goes on", SOON, || {
        array(&cli.json(&["log"])).iter().any(|checkpoint| checkpoint["branch"] == branch && checkpoint["parent"] == went["checkpoint"])
    });
    assert!(cli.json(&["ls"])[0]["trouble"].is_null());
    cli.ok(&["down"]);
}

#[test]
fn what_needs_no_machine() {
    let cli = Cli::new();
    let commands = [
        "up",
        "exec",
        "console",
        "checkpoint",
        "log",
        "show",
        "diff",
        "goto",
        "fork",
        "tag",
        "ls",
        "down",
        "schema",
        "doctor",
        "completions",
    ];
    for command in commands {
        let help = cli.ok(&[command, "--help"]);
        assert!(help.contains("Usage: fermata") && help.contains("--json") && help.contains("Example"), "{help}");
    }
    cli.ok(&["--version"]);
    let schema = cli.json(&["schema"]);
    assert!(string(&schema["$schema"]).starts_with("https://json-schema.org/"), "{schema}");
    assert!(schema["properties"]["nodes"].is_object() && schema["properties"]["name"].is_object());
    let doctor = cli.json(&["doctor"]);
    for finding in array(&doctor) {
        let verdict = string(&finding["verdict"]);
        assert!(["good", "limited", "unneeded"].contains(&verdict), "a guest runs here: {finding}");
        assert!(!string(&finding["what"]).is_empty() && !string(&finding["found"]).is_empty(), "{finding}");
        assert!(verdict != "limited" || !string(&finding["mend"]).is_empty(), "{finding}");
    }
    assert!(cli.ok(&["completions", "bash"]).contains("complete"));
    for arguments in
        [&["nonsense"][..], &["up"], &["goto"], &["up", "x.qcow2", "--memory", "lots"], &["checkpoint", "--nonsense"], &["exec", "m1"]]
    {
        cli.fails(arguments, 2, &[]);
    }
    cli.fails(&["goto", "main"], 1, &["store"]);
    cli.fails(&["checkpoint"], 1, &["fermata up"]);
    assert_eq!(cli.json(&["ls"]), Value::Array(Vec::new()));
}
