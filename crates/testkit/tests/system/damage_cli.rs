//! Damage that a user may meet, through the real program and with a real guest: an error that names the thing and the way out, a guest that goes on, and
//! checkpoints that work again once the cause is gone. What is not here is in `failures.rs`. About a minute and a half.

use crate::failures::{found, piece, write_over};
use fermata_testkit::{
    Cli,
    cli::{array, await_that, count, string},
    guests,
};
use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Duration,
};

const SOON: Duration = Duration::from_secs(120);

/// A guest with a disk of its own that has written to its memory and its disk, and the checkpoint that was taken then.
fn booted(cli: &Cli, name: &str) -> String {
    booted_from(cli, name, &cli.disk())
}

fn booted_from(cli: &Cli, name: &str, image: &Path) -> String {
    let more = format!("    image: {}\n", image.display());
    cli.write("machine.yaml", &guests::tiny(name, "fermata.run=tick fermata.disk=rw", &more));
    cli.ok(&["up", "machine.yaml"]);
    await_that("the guest is up", SOON, || cli.run(&["exec", "m1", "--", "true"]).status.success());
    cli.shell("m1", "echo kept > /tmp/kept; echo kept > /disk/kept; sync; head -c 4000000 /dev/urandom > /tmp/noise");
    cli.checkpoint("good")
}

#[track_caller]
fn answers(cli: &Cli) {
    assert_eq!(cli.shell("m1", "cat /tmp/kept /disk/kept"), "kept\nkept");
    assert_eq!(cli.machine("main")["state"], "running");
}

/// Checkpoints work, and so does the way back.
#[track_caller]
fn all_is_well(cli: &Cli, good: &str) {
    cli.shell("m1", "echo later > /tmp/later");
    let later = cli.checkpoint("later");
    for to in [later.as_str(), good] {
        cli.ok(&["goto", to, "--eager"]);
        answers(cli);
    }
    cli.ok(&["goto", &later]);
    assert_eq!(cli.shell("m1", "cat /tmp/later"), "later");
}

#[test]
fn a_store_that_became_read_only_is_told() {
    let mut cli = Cli::new();
    let good = booted(&cli, "readonly");
    let packs = cli.store().join("packs");
    if !cli.protect(&packs) {
        fermata_testkit::skipped!("a read-only store, for want of the right to mount");
        return;
    }
    cli.shell("m1", "head -c 4000000 /dev/urandom > /tmp/more");
    for _ in 0..2 {
        // Of a pack whose shelf is there already the kernel says that it would be moved to another file system.
        cli.fails(&["checkpoint"], 1, &["packs", "the store must be writable"]);
        answers(&cli);
    }
    assert_eq!(array(&cli.json(&["log"])).len(), 1, "nothing half");
    // What is there can be read.
    cli.ok(&["goto", &good]);
    answers(&cli);
    cli.unprotect(&packs);
    all_is_well(&cli, &good);
}

/// The largest pack, which has most of the guest's memory.
fn largest_pack(store: &Path) -> PathBuf {
    let shelves = fs::read_dir(store.join("packs")).expect("the packs").flatten();
    let packs = shelves.flat_map(|shelf| fs::read_dir(shelf.path()).expect("a shelf").flatten());
    packs.max_by_key(|pack| pack.metadata().map_or(0, |meta| meta.len())).expect("a pack").path()
}

#[test]
fn a_pack_that_is_cut_off_or_gone_is_told() {
    let cli = Cli::new();
    let good = booted(&cli, "packs");
    cli.ok(&["down"]);
    let pack = largest_pack(cli.store());
    let (name, aside) = (pack.display().to_string(), cli.path().join("aside"));
    fs::copy(&pack, &aside).expect("a copy");
    let half = fs::metadata(&pack).expect("a pack").len() / 2;
    fs::remove_file(&pack).expect("it can be removed");
    cli.fails(&["goto", &good, "--eager"], 1, &["damaged", &name, "the file is not there", "put the file back from a copy"]);
    fs::write(&pack, &fs::read(&aside).expect("the copy")[..half as usize]).expect("it can be written");
    cli.fails(&["goto", &good, "--eager"], 1, &["damaged", &name, "put the file back from a copy"]);
    await_that("nothing is left of the attempts", SOON, || cli.processes().is_empty());
    assert_eq!(array(&cli.json(&["log"])).len(), 1, "the history can be read");
    fs::copy(&aside, &pack).expect("it can be put back");
    cli.ok(&["goto", &good]);
    answers(&cli);
    all_is_well(&cli, &good);
}

#[test]
fn a_store_of_another_version_is_refused() {
    let cli = Cli::new();
    let good = booted(&cli, "foreign");
    let format = cli.store().join("format");
    let ours = fs::read(&format).expect("the format");
    fs::write(&format, "fermata store 99\n").expect("it can be written");
    for command in [&["log"][..], &["show", &good], &["up", "machine.yaml", "--name", "another"]] {
        cli.fails(command, 1, &["fermata store 99", "the version that wrote it, or a later one"]);
    }
    // Who has it open already goes on.
    answers(&cli);
    fs::write(&format, ours).expect("it can be written");
    all_is_well(&cli, &good);
}

#[test]
fn a_golden_image_that_changes_under_a_guest_stops_its_checkpoints() {
    let cli = Cli::new();
    let good = booted(&cli, "image");
    let image = cli.path().join("disk.raw");
    let file = fs::File::options().write(true).open(&image).expect("the image");
    let modified = file.metadata().and_then(|meta| meta.modified()).expect("the image");
    file.set_modified(modified + Duration::from_secs(5)).expect("ours to change");
    cli.fails(&["checkpoint"], 1, &["golden image", "disk.raw", "has changed", "restore the image"]);
    answers(&cli);
    fs::rename(&image, cli.path().join("elsewhere")).expect("ours to move");
    cli.fails(&["checkpoint"], 1, &["disk.raw"]);
    answers(&cli);
    assert_eq!(array(&cli.json(&["log"])).len(), 1);
    // Put back as it was, with its time, nothing has happened.
    fs::rename(cli.path().join("elsewhere"), &image).expect("ours to move");
    file.set_modified(modified).expect("ours to change");
    all_is_well(&cli, &good);
}

/// Where nothing of the guest's file system lies, and what the image has there.
const FAR: u64 = 200 << 20;
const TEXT: &str = "what the image holds";

#[test]
fn a_golden_image_that_is_overwritten_under_a_guest_gives_it_io_errors() {
    let cli = Cli::new();
    let image = cli.disk();
    let file = fs::File::options().write(true).open(&image).expect("the image");
    file.write_all_at(TEXT.as_bytes(), FAR).expect("ours to change");
    let good = booted_from(&cli, "overwritten", &image);
    let log = || fs::read_to_string(cli.run_root().join("overwritten/keeper.log")).expect("the keeper's log");
    let told = || log().matches("a golden image in use has changed").count();
    let keeper = count(&cli.json(&["ls"])[0]["keeper_pid"]);
    let modified = file.metadata().and_then(|meta| meta.modified()).expect("the image");
    // Nothing but the bytes: what the kernel does to the file's time must be enough.
    file.write_all_at("what somebody put in".as_bytes(), FAR).expect("ours to change");
    let read = |at: u64| format!("dd if=/dev/vda bs=4096 skip={} count=1 2>/tmp/said | tr -d '\\0'; cat /tmp/said", at / 4096);
    for at in [FAR, FAR + (1 << 20), FAR] {
        let said = cli.shell("m1", &read(at));
        assert!(said.contains("Input/output error") && !said.contains("what"), "{said}");
        answers(&cli);
    }
    assert_eq!(told(), 1, "once for the change and not for each read: {}", log());
    cli.fails(&["checkpoint"], 1, &["golden image", "disk.raw", "has changed", "restore the image"]);
    answers(&cli);
    // Put back as it was, with its time, it is read again.
    file.write_all_at(TEXT.as_bytes(), FAR).expect("ours to change");
    file.set_modified(modified).expect("ours to change");
    assert!(cli.shell("m1", &read(FAR)).starts_with(TEXT));
    assert_eq!(count(&cli.json(&["ls"])[0]["keeper_pid"]), keeper);
    all_is_well(&cli, &good);
}

#[test]
fn a_block_of_a_damaged_pack_is_an_io_error() {
    let cli = Cli::new();
    booted(&cli, "block");
    // So that the blocks are on the disk alone, and not in the guest's memory as well.
    let script = "head -c 4000000 /dev/urandom > /disk/noise; sync; md5sum < /disk/noise; head -c 4096 /disk/noise | md5sum";
    let sums = cli.shell("m1", script);
    let noise = piece(&cli, "/disk/noise", 2_000_000);
    // A page that was just given back may not count as free yet, but is taken first.
    cli.shell("m1", "sync; echo 3 > /proc/sys/vm/drop_caches; head -c 32000000 /dev/zero > /tmp/zeros; rm /tmp/zeros");
    let good = cli.checkpoint("noise on the disk");
    cli.ok(&["down"]);
    let (path, sound, at) = found(cli.store(), &noise);
    let mut damaged = sound.clone();
    damaged[at] ^= 1;
    write_over(&path, &damaged);
    let said = cli.run(&["--json", "verify"]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let report: serde_json::Value = serde_json::from_str(&said.stdout).expect("a report");
    let touched = array(&report["damage"]).iter().flat_map(|damage| array(&damage["touches"])).find(|of| of["checkpoint"] == *good);
    assert_eq!(touched.unwrap_or_else(|| panic!("{report}"))["table"], "blocks");

    cli.ok(&["goto", &good]);
    let said = cli.shell("m1", "md5sum < /disk/noise 2>&1 || echo failed");
    assert!(said.contains("Input/output error") && said.ends_with("failed"), "{said}");
    assert_eq!(Some(cli.shell("m1", "head -c 4096 /disk/noise | md5sum").as_str()), sums.lines().nth(1), "what is not damaged is right");
    answers(&cli);
    let log = fs::read_to_string(cli.run_root().join("block/keeper.log")).expect("the keeper's log");
    for part in ["a disk request failed", "damaged", path.to_str().expect("a path"), "put the file back from a copy"] {
        assert!(log.contains(part), "no {part}: {log}");
    }
    // Its next checkpoint stands on the damaged one, and is whole once that is.
    let later = cli.checkpoint("later");
    write_over(&path, &sound);
    for to in [&good, &later] {
        cli.ok(&["goto", to]);
        assert_eq!(Some(cli.shell("m1", "md5sum < /disk/noise").as_str()), sums.lines().next());
        answers(&cli);
    }
}

#[test]
fn a_store_that_is_read_only_as_a_whole_is_read_and_told() {
    let mut cli = Cli::new();
    let good = booted(&cli, "sealed");
    let store = cli.store().to_owned();
    if !cli.protect(&store) {
        fermata_testkit::skipped!("a store that is read-only as a whole, for want of the right to mount");
        return;
    }
    cli.shell("m1", "head -c 4000000 /dev/urandom > /tmp/more");
    for _ in 0..2 {
        cli.fails(&["checkpoint"], 1, &[store.to_str().expect("a path"), "Read-only file system", "must be writable"]);
        answers(&cli);
    }
    assert_eq!(array(&cli.json(&["log"])).len(), 1, "nothing half");
    assert_eq!(cli.json(&["show", &good])["id"], *good);
    assert!(array(&cli.json(&["verify"])["damage"]).is_empty());
    cli.ok(&["stats"]);
    for command in [&["tag", &good, "word"][..], &["rm", &good, "--yes"], &["gc"], &["goto", &good]] {
        cli.fails(command, 1, &[store.to_str().expect("a path"), "the store must be writable", "how its file system is mounted"]);
        answers(&cli);
    }
    cli.fails(&["up", "machine.yaml", "--name", "another"], 1, &[store.to_str().expect("a path"), "Read-only file system"]);
    answers(&cli);
    cli.unprotect(&store);
    all_is_well(&cli, &good);
}

#[test]
fn two_keepers_do_not_grow_one_branch() {
    let mut cli = Cli::new();
    let good = booted(&cli, "twice");
    let first = cli.run_root().to_owned();
    // A second keeper of the same experiment, which only another run directory makes possible.
    let second = first.join("second");
    cli.set("FERMATA_RUN_DIR", &second);
    cli.ok(&["goto", "main", "-e", "twice"]);
    answers(&cli);
    let theirs = cli.checkpoint("by the second");
    cli.set("FERMATA_RUN_DIR", &first);
    cli.fails(&["checkpoint"], 1, &["twice/main", "another keeper grows it", "fermata goto"]);
    answers(&cli);
    cli.fails(&["checkpoint"], 1, &["twice/main", "another keeper grows it", "fermata goto"]);
    // The way out: what ran on is kept as a branch of its own, or given up.
    cli.ok(&["goto", &good]);
    answers(&cli);
    let ours = cli.json(&["checkpoint"]);
    assert_ne!(string(&ours["branch"]), "main");
    all_is_well(&cli, string(&ours["id"]));
    cli.set("FERMATA_RUN_DIR", &second);
    assert_eq!(string(&cli.json(&["checkpoint"])["parent"]), theirs);
    answers(&cli);
    assert!(count(&cli.json(&["ls"])[0]["keeper_pid"]) > 1);
    cli.ok(&["down"]);
}
