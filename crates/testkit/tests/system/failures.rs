//! What goes wrong, and what the user is told then: what happened, to what, and what to do next. Whatever fails, guests go on and checkpoints stay.

use fermata_testkit::{
    Cli,
    cli::{self, array, await_that, count, string},
    guests,
};
use std::{
    fs,
    io::{Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

const SOON: Duration = Duration::from_secs(30);

/// A specification of the tiny guest with a disk of its own; gives the disk's golden image.
fn tiny(cli: &Cli, name: &str) -> PathBuf {
    let image = cli.disk();
    let more = format!("    image: {}\n", image.display());
    cli.write("machine.yaml", &guests::tiny(name, "fermata.run=tick fermata.disk=rw", &more));
    image
}

/// Boots it, writes a file to its memory and to its disk, and takes a checkpoint, whose id it gives.
fn booted(cli: &Cli, name: &str) -> String {
    cli.ok(&["up", "machine.yaml", "--name", name]);
    cli.shell("m1", "echo kept > /tmp/kept; echo kept > /disk/kept; sync");
    cli.checkpoint("good")
}

#[track_caller]
fn answers(cli: &Cli) {
    assert_eq!(cli.shell("m1", "cat /tmp/kept /disk/kept"), "kept\nkept");
}

/// Nothing runs and nothing is left over from an attempt.
#[track_caller]
fn nothing_runs(cli: &Cli) {
    assert_eq!(cli.ok(&["ls", "--json"]), "[]\n");
    await_that("no process is left", SOON, || cli.processes().is_empty());
}

#[test]
fn what_cannot_start_says_why() {
    let mut cli = Cli::new();
    tiny(&cli, "unborn");
    let good = fs::read_to_string(cli.path().join("machine.yaml")).unwrap();
    cli.write("typo.yaml", &good.replace("    memory:", "    memroy:"));
    cli.fails(&["up", "typo.yaml"], 2, &["typo.yaml:4:5", "unknown key `memroy`", "did you mean `memory`?"]);
    cli.write("size.yaml", &good.replace("256M", "256Q"));
    cli.fails(&["up", "size.yaml"], 2, &["size.yaml:4:13", "expected a size such as 512M", "256Q"]);
    cli.write("exact.yaml", &format!("{good}    deterministic: true\n"));
    let message =
        cli.fails(&["up", "exact.yaml"], 2, &["m1", "deterministic", "disk", "remove `image`", "exact.yaml:8:12", "asked for here"]);
    assert!(message.contains("deterministic: true"), "both places are shown: {message}");
    cli.write("lost.yaml", &good.replace("disk.raw", "lost.raw"));
    cli.fails(&["up", "lost.yaml"], 1, &["lost.yaml:8:12", "lost.raw", "no such file", "correct the path"]);
    cli.fails(&["up", "lost.qcow2"], 1, &["lost.qcow2", "no such file"]);
    cli.fails(&["up", "none.yaml"], 1, &["none.yaml"]);
    nothing_runs(&cli);

    cli.set("FERMATA_QEMU", "/nonexistent/qemu");
    cli.fails(&["up", "machine.yaml"], 1, &["m1", "cannot start /nonexistent/qemu", "Install QEMU", "FERMATA_QEMU"]);
    nothing_runs(&cli);
    let quitter = cli.write("quitter", "#!/bin/sh\necho 'not today' >&2\nexit 1\n");
    fs::set_permissions(&quitter, fs::Permissions::from_mode(0o755)).unwrap();
    cli.set("FERMATA_QEMU", quitter);
    cli.fails(&["up", "machine.yaml"], 1, &["m1", "QEMU ended", "exit status: 1", "not today"]);
    nothing_runs(&cli);
    cli.unset("FERMATA_QEMU");
    let usual = cli.store().to_owned();
    let file = cli.write("no-store", "");
    cli.set("FERMATA_STORE", file);
    cli.fails(&["up", "machine.yaml"], 1, &["no-store"]);
    nothing_runs(&cli);
    cli.set("FERMATA_STORE", usual);

    no_room_for_memory(&mut cli);
    // After all that, it starts.
    booted(&cli, "born");
    answers(&cli);
    cli.fails(
        &["up", "machine.yaml", "--name", "born"],
        1,
        &["born is running already", "fermata ls", "fermata down -e born", "another `name`"],
    );
    answers(&cli);
}

fn no_room_for_memory(cli: &mut Cli) {
    let usual = cli.run_root().to_owned();
    let elsewhere = cli.path().join("run");
    // Where temporary files are on a tmpfs, there is nothing to see.
    if on_tmpfs(cli.path()) {
        fermata_testkit::skipped!("a run directory that is not on tmpfs, for want of another file system");
    } else {
        cli.set("FERMATA_RUN_DIR", &elsewhere);
        cli.fails(&["up", "machine.yaml"], 1, &["run/unborn is not on a tmpfs", "FERMATA_RUN_DIR", "/dev/shm"]);
        assert!(!elsewhere.join("unborn").exists(), "it clears up");
    }
    match cli.mount("narrow", "64M") {
        None => fermata_testkit::skipped!("too little room on the tmpfs, for want of the right to mount one"),
        Some(narrow) => {
            cli.set("FERMATA_RUN_DIR", &narrow);
            cli.fails(
                &["up", "machine.yaml"],
                1,
                &["no room for the memory of m1", "256 MiB", "narrow", "are free", "fermata ls", "FERMATA_RUN_DIR"],
            );
            assert_eq!(fs::read_dir(&narrow).unwrap().count(), 0, "it clears up");
        }
    }
    cli.set("FERMATA_RUN_DIR", usual);
    nothing_runs(cli);
}

fn on_tmpfs(path: &Path) -> bool {
    fermata_linux::memory_file::room(path).unwrap().1
}

/// Fills a file system to its last byte, with a file of this name.
fn fill(directory: &Path) -> PathBuf {
    let path = directory.join("ballast");
    let mut file = fs::File::create(&path).unwrap();
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![0x55; size]).is_ok() {}
    }
    path
}

#[test]
fn a_full_disk_fails_a_checkpoint_and_no_guest() {
    let mut cli = Cli::new();
    tiny(&cli, "full");
    let Some(small) = cli.mount("small", "160M") else {
        fermata_testkit::skipped!("a full disk, for want of the right to mount a small one");
        return;
    };
    cli.set("FERMATA_STORE", small.join("store"));
    let good = booted(&cli, "full");
    cli.shell("m1", "head -c 8000000 /dev/urandom > /tmp/noise; sha256sum < /tmp/noise > /tmp/sum; cp /tmp/noise /disk/noise; sync");
    let ballast = fill(&small);
    // What the guest wants to write to its disk now waits for space; it is no I/O error.
    cli.shell("m1", "(cp /tmp/noise /disk/late; sync; echo done > /tmp/done) < /dev/null > /dev/null 2>&1 &");
    for _ in 0..2 {
        cli.fails(&["checkpoint", "-m", "too much"], 1, &["full", "free some space", cli.store().to_str().unwrap()]);
        answers(&cli);
    }
    assert_eq!(cli.shell("m1", "sha256sum < /tmp/noise"), cli.shell("m1", "cat /tmp/sum"));
    let log = cli.json(&["log"]);
    assert_eq!(array(&log).iter().map(|checkpoint| string(&checkpoint["id"])).collect::<Vec<_>>(), [good.as_str()], "no half checkpoint");
    assert_eq!(cli.shell("m1", "cat /tmp/done 2>/dev/null || true"), "", "there was no space for that");
    assert_eq!(cli.machine("main")["state"], "running");
    assert_eq!(string(&cli.machine("main")["starved"][0]), "m1/disk0");
    let list = cli.ok(&["ls"]);
    assert!(list.contains("held") && list.contains("main:m1: held by a full disk"), "{list}");

    fs::remove_file(ballast).unwrap();
    await_that("the guest's write goes on", SOON, || cli.shell("m1", "cat /tmp/done 2>/dev/null || true") == "done");
    assert!(!cli.ok(&["ls"]).contains("held"));
    cli.shell("m1", "echo more > /tmp/more; echo more > /disk/more; sync");
    let after = cli.json(&["checkpoint"]);
    assert_eq!(string(&after["parent"]), good);
    cli.shell("m1", "rm /tmp/noise /disk/noise /disk/late /tmp/more /disk/more; sync");
    cli.ok(&["goto", string(&after["id"])]);
    // All that was written while checkpoints failed belongs to the one that succeeded.
    assert_eq!(cli.shell("m1", "sha256sum < /tmp/noise"), cli.shell("m1", "cat /tmp/sum"));
    let drop = "echo 3 > /proc/sys/vm/drop_caches";
    for file in ["noise", "late"] {
        assert_eq!(cli.shell("m1", &format!("{drop}; sha256sum < /disk/{file}")), cli.shell("m1", "cat /tmp/sum"), "{file}");
    }
    assert_eq!(cli.shell("m1", "dmesg | grep -ciE 'ext4-fs error|i/o error' || true"), "0");
    assert_eq!(cli.shell("m1", "cat /tmp/more /disk/more"), "more\nmore");
    answers(&cli);
    cli.ok(&["goto", &good]);
    answers(&cli);
    assert_eq!(cli.shell("m1", "ls /tmp/noise /disk/noise 2>/dev/null || true"), "");
}

#[test]
fn a_full_disk_at_the_clock_s_checkpoints_is_told() {
    let mut cli = Cli::new();
    tiny(&cli, "clock");
    let Some(small) = cli.mount("small", "160M") else {
        fermata_testkit::skipped!("a full disk, for want of the right to mount a small one");
        return;
    };
    cli.set("FERMATA_STORE", small.join("store"));
    cli.ok(&["up", "machine.yaml", "--every", "500ms"]);
    cli.shell("m1", "echo kept > /tmp/kept; echo kept > /disk/kept; sync");
    await_that("a checkpoint", SOON, || !array(&cli.json(&["log"])).is_empty());
    let ballast = fill(&small);
    await_that("ls tells of the trouble", SOON, || cli.ok(&["ls"]).contains("full"));
    assert!(string(&cli.json(&["ls"])[0]["trouble"]).contains("free some space"));
    answers(&cli);
    fs::remove_file(ballast).unwrap();
    await_that("the trouble is over", SOON, || cli.json(&["ls"])[0]["trouble"].is_null());
    await_that("it still takes checkpoints", SOON, || cli.json(&["show", "main"])["pages"].is_object());
    cli.shell("m1", "echo late > /tmp/late");
    let late = cli.checkpoint("late");
    cli.ok(&["goto", &late]);
    assert_eq!(cli.shell("m1", "cat /tmp/late"), "late");
    answers(&cli);
}

#[test]
fn a_killed_keeper_takes_its_machines_and_no_checkpoint() {
    let cli = Cli::new();
    tiny(&cli, "keeper");
    let good = booted(&cli, "keeper");
    cli.ok(&["fork", "--name", "second"]);
    cli.fails(&["diff", &good, "second"], 1, &["second has no checkpoint of its own yet", "fermata checkpoint --run second"]);
    cli.shell("m1", "rm /tmp/kept /disk/kept; sync");
    let machines = ["main", "second"].map(|run| count(&cli.machine(run)["pid"]));
    assert!(machines.iter().all(|pid| cli.processes().contains(pid)));
    cli::kill(count(&cli.json(&["ls"])[0]["keeper_pid"]));
    await_that("QEMU dies with its keeper", SOON, || cli.processes().is_empty());
    let ls = cli.json(&["ls"]);
    assert_eq!((string(&ls[0]["state"]), string(&ls[0]["runs"][0]["head"])), ("dead", good.as_str()), "{ls}");
    assert!(cli.ok(&["ls"]).contains("dead"));
    assert_eq!(array(&cli.json(&["log"])).len(), 1);
    cli.fails(&["checkpoint"], 1, &["keeper is dead", "fermata goto ID", "fermata log"]);
    cli.fails(&["exec", "m1", "--", "true"], 255, &["keeper is dead", "fermata goto ID"]);
    let back = cli.json(&["goto", &good]);
    assert_eq!((string(&back["run"]), string(&back["checkpoint"])), ("main", good.as_str()));
    answers(&cli);
    assert_eq!(string(&cli.json(&["checkpoint"])["parent"]), good);
    assert_eq!(string(&cli.json(&["ls"])[0]["state"]), "running");
    // What is left of a dead one can be cleared away, too; and its name used again.
    cli::kill(count(&cli.json(&["ls"])[0]["keeper_pid"]));
    await_that("it is dead", SOON, || string(&cli.json(&["ls"])[0]["state"]) == "dead");
    cli.ok(&["down"]);
    nothing_runs(&cli);
    assert_eq!(array(&cli.json(&["log"])).len(), 2);
}

#[test]
fn a_keeper_killed_in_a_checkpoint_leaves_a_sound_history() {
    let cli = Cli::new();
    tiny(&cli, "crash");
    let good = booted(&cli, "crash");
    for delay in [1, 4, 10, 20, 40, 80] {
        cli.shell("m1", "head -c 12000000 /dev/urandom > /tmp/noise; sha256sum < /tmp/noise > /tmp/sum");
        cli.shell("m1", "head -c 3000000 /dev/urandom > /disk/noise; sha256sum < /disk/noise > /disk/sum; sync");
        let keeper = count(&cli.json(&["ls"])[0]["keeper_pid"]);
        let mut checkpoint = cli.command(&["checkpoint"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        cli::kill(keeper);
        checkpoint.wait().unwrap();
        await_that("QEMU dies with its keeper", SOON, || cli.processes().is_empty());
        // The newest checkpoint is the one before, or the one that was being taken. Either is whole.
        let log = cli.json(&["log"]);
        let newest = string(&array(&log)[0]["id"]).to_owned();
        cli.ok(&["goto", &newest]);
        answers(&cli);
        if newest != good {
            assert_eq!(cli.shell("m1", "sha256sum < /tmp/noise"), cli.shell("m1", "cat /tmp/sum"));
            assert_eq!(cli.shell("m1", "echo 3 > /proc/sys/vm/drop_caches; sha256sum < /disk/noise"), cli.shell("m1", "cat /disk/sum"));
        }
    }
    for checkpoint in array(&cli.json(&["log"])) {
        cli.ok(&["goto", string(&checkpoint["id"]), "--eager"]);
        answers(&cli);
    }
}

#[test]
fn a_fork_for_which_there_is_no_memory_is_refused() {
    let mut cli = Cli::new();
    tiny(&cli, "crowd");
    let Some(narrow) = cli.mount("narrow", "700M") else {
        fermata_testkit::skipped!("too little room for a fork, for want of the right to mount a tmpfs");
        return;
    };
    let usual = cli.run_root().to_owned();
    cli.set("FERMATA_RUN_DIR", &narrow);
    booted(&cli, "crowd");
    // The spare takes the last room there is.
    cli.ok(&["fork", "--name", "second"]);
    cli.fails(&["fork", "--name", "third"], 1, &["no room for the memory of m1", "256 MiB", "narrow", "fermata ls"]);
    assert_eq!(array(&cli.json(&["ls"])[0]["runs"]).len(), 2, "a fork that fails leaves no run");
    answers(&cli);
    assert_eq!(cli.shell("second:m1", "cat /tmp/kept"), "kept");
    // Nor is there room for the way back, beside what it would take the place of.
    let id = cli.checkpoint("still possible");
    cli.fails(&["goto", &id], 1, &["no room for the memory of m1", "256 MiB", "narrow", "fermata ls"]);
    answers(&cli);
    cli.ok(&["down", "second"]);
    cli.ok(&["fork", "--name", "third"]);
    assert_eq!(cli.shell("third:m1", "cat /tmp/kept"), "kept");
    cli.ok(&["down"]);
    cli.set("FERMATA_RUN_DIR", usual);
}

#[test]
fn a_killed_qemu_is_told_and_brought_back() {
    let cli = Cli::new();
    tiny(&cli, "machine");
    let good = booted(&cli, "machine");
    cli.shell("m1", "rm /tmp/kept /disk/kept; sync");
    let fork = cli.json(&["fork", &good, "--name", "second"]);
    assert_eq!(string(&fork["run"]), "second");
    cli::kill(count(&cli.machine("main")["pid"]));
    await_that("ls says that it is gone", SOON, || cli.machine("main")["state"] == "gone");
    let reason = cli.machine("main")["reason"].clone();
    assert!(string(&reason).contains('9') || string(&reason).contains("kill"), "{reason}");
    assert!(cli.ok(&["ls"]).contains("gone"));
    cli.fails(&["checkpoint"], 1, &["m1", "QEMU ended", "signal: 9", "fermata goto ID"]);
    cli.fails(&["exec", "m1", "--", "true"], 255, &["m1", "QEMU ended", "signal: 9", "fermata goto ID"]);
    assert_eq!(array(&cli.json(&["log"])).len(), 1, "log works, and shows nothing half");
    assert_eq!(cli.shell("second:m1", "cat /tmp/kept"), "kept");
    assert_eq!(cli.machine("second")["state"], "running");
    cli.ok(&["goto", &good]);
    assert_eq!(cli.machine("main")["state"], "running");
    answers(&cli);
    assert_eq!(string(&cli.json(&["checkpoint"])["parent"]), good);
    // Its spare process, too, may be killed at any time.
    let live = ["main", "second"].map(|run| count(&cli.machine(run)["pid"]));
    let keeper = count(&cli.json(&["ls"])[0]["keeper_pid"]);
    let spares = || cli.processes().into_iter().filter(|pid| *pid != keeper && !live.contains(pid)).collect::<Vec<_>>();
    await_that("a spare stands ready", SOON, || cli.json(&["ls"])[0]["spare_ready"] == true && spares().len() == 1);
    spares().into_iter().for_each(cli::kill);
    cli.ok(&["goto", &good]);
    answers(&cli);
}

#[test]
fn a_golden_image_that_changed_is_refused() {
    let cli = Cli::new();
    let image = tiny(&cli, "golden");
    let good = booted(&cli, "golden");
    let name = image.to_str().unwrap();
    let refused = |arguments: &[&str]| cli.fails(arguments, 1, &["golden image", name, "has changed", "restore the image"]);
    let another = |arguments: &[&str]| cli.fails(arguments, 1, &["other golden images", name, "put the images back"]);
    // Written to, though no byte is another one: who knows.
    touch(&image, 1);
    refused(&["goto", &good]);
    refused(&["fork", &good]);
    answers(&cli);
    assert_eq!(cli.machine("main")["state"], "running");
    cli.ok(&["down"]);
    // Nobody has it open now: what counts is what is in it.
    cli.ok(&["goto", &good]);
    answers(&cli);
    cli.ok(&["down"]);
    let file = fs::File::options().read(true).write(true).open(&image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1024 + 56).unwrap();
    file.write_all_at(&[!byte[0]], 1024 + 56).unwrap();
    touch(&image, 2);
    another(&["goto", &good]);
    file.write_all_at(&byte, 1024 + 56).unwrap();
    let mut longer = file.try_clone().unwrap();
    let size = longer.seek(SeekFrom::End(0)).unwrap();
    longer.write_all(&[0; 4096]).unwrap();
    touch(&image, 3);
    another(&["goto", &good]);
    fs::rename(&image, cli.path().join("moved.raw")).unwrap();
    cli.fails(&["goto", &good], 1, &[name]);
    nothing_runs(&cli);
    // Put back as it was, everything is well.
    fs::rename(cli.path().join("moved.raw"), &image).unwrap();
    file.set_len(size).unwrap();
    touch(&image, 4);
    cli.ok(&["goto", &good]);
    answers(&cli);
}

/// Gives it a time of its own, whatever the clock's resolution is.
fn touch(image: &Path, seconds: u64) {
    let file = fs::File::options().write(true).open(image).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.set_modified(modified + Duration::from_secs(seconds)).unwrap();
}

#[test]
fn a_damaged_store_is_never_taken_for_sound() {
    let cli = Cli::new();
    tiny(&cli, "damage");
    let good = booted(&cli, "damage");
    let sound = damage(cli.store());
    let said = cli.run(&["goto", &good, "--eager"]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    for word in ["damaged", "packs", "put the file back from a copy"] {
        assert!(said.stderr.contains(word), "no {word}: {}", said.stderr);
    }
    // The running guest needs nothing of that.
    answers(&cli);
    assert_eq!(cli.machine("main")["state"], "running");
    // A fork that fails leaves no run.
    cli.fails(&["fork", &good, "--name", "bad", "--eager"], 1, &["damaged"]);
    assert_eq!(array(&cli.json(&["ls"])[0]["runs"]).len(), 1);
    cli.ok(&["down"]);
    let said = cli.run(&["goto", &good]);
    let machine = || cli.json(&["ls"]).pointer("/0/runs/0/machines/0").cloned().unwrap_or_default();
    if said.status.success() {
        // Lazily, the damage shows only when a page is needed. It ends the machine, and `ls` says why.
        await_that("the machine ends", SOON, || machine()["state"] == "gone");
        assert!(string(&machine()["reason"]).contains("damaged"), "{}", machine());
        cli.ok(&["down"]);
    } else {
        assert_eq!(said.status.code(), Some(1), "{said:?}");
        assert!(said.stderr.contains("damaged"), "{said:?}");
    }
    nothing_runs(&cli);
    for (path, content) in sound {
        fs::write(path, content).unwrap();
    }
    cli.ok(&["goto", &good]);
    answers(&cli);
}

#[test]
fn a_damaged_page_ends_the_machine_that_needs_it() {
    let cli = Cli::new();
    tiny(&cli, "page");
    cli.ok(&["up", "machine.yaml"]);
    cli.shell("m1", "head -c 60000000 /dev/urandom > /tmp/noise");
    let good = cli.checkpoint("good");
    // What does not compress lies in a pack as it was in the file. Nobody but a reader of the file touches a page in its middle.
    let noise = piece(&cli, "/tmp/noise", 32_000_000);
    cli.ok(&["down"]);
    let (path, bytes, at) = found(cli.store(), &noise);
    let mut damaged = bytes.clone();
    damaged[at] ^= 1;
    write_over(&path, &damaged);
    // It runs at once, and goes on until it touches what is damaged.
    cli.ok(&["goto", &good]);
    cli.ok(&["exec", "m1", "--", "true"]);
    cli.fails(&["exec", "m1", "--", "md5sum", "/tmp/noise"], 255, &["m1"]);
    await_that("the machine ends", SOON, || cli.machine("main")["state"] == "gone");
    let reason = cli.machine("main")["reason"].clone();
    assert!(string(&reason).contains("damaged") && string(&reason).contains(path.to_str().unwrap()), "{reason}");
    assert!(cli.ok(&["ls"]).contains("damaged"));
    cli.fails(&["exec", "m1", "--", "true"], 255, &["m1", "QEMU ended"]);
    cli.fails(&["checkpoint"], 1, &["gone", "damaged", "fermata goto ID"]);
    cli.ok(&["down"]);
    cli.fails(&["goto", &good, "--eager"], 1, &["damaged", path.to_str().unwrap()]);
    nothing_runs(&cli);
    write_over(&path, &bytes);
    cli.ok(&["goto", &good, "--eager"]);
    cli.ok(&["exec", "m1", "--", "true"]);
}

/// 32 bytes of a guest's file, from a multiple of that on.
pub fn piece(cli: &Cli, file: &str, at: usize) -> Vec<u8> {
    let piece = cli.shell("m1", &format!("dd if={file} bs=32 skip={} count=1 2>/dev/null | od -An -v -tx1 | tr -d ' \\n'", at / 32));
    (0..piece.len()).step_by(2).map(|at| u8::from_str_radix(&piece[at..at + 2], 16).unwrap()).collect()
}

/// The pack that holds these bytes as they are, what is in it, and where they lie.
pub fn found(store: &Path, wanted: &[u8]) -> (PathBuf, Vec<u8>, usize) {
    let find = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap();
        let at = bytes.windows(wanted.len()).position(|window| window == wanted)?;
        Some((path, bytes, at))
    };
    files(&store.join("packs")).into_iter().find_map(find).expect("they lie in a pack")
}

/// In place, for a keeper may have it open.
pub fn write_over(path: &Path, bytes: &[u8]) {
    let mut permissions = fs::metadata(path).unwrap().permissions();
    permissions.set_mode(0o600);
    fs::set_permissions(path, permissions).unwrap();
    fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, 0).unwrap();
}

/// Flips bits all over all packs. Gives what was in them.
fn damage(store: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let packs: Vec<_> = files(&store.join("packs")).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    assert!(!packs.is_empty());
    for (path, sound) in &packs {
        let mut bytes = sound.clone();
        bytes.iter_mut().skip(64).step_by(997).for_each(|byte| *byte ^= 0x20);
        write_over(path, &bytes);
    }
    packs
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_command_line_that_is_killed_disturbs_no_keeper() {
    let cli = Cli::new();
    tiny(&cli, "killed");
    let good = booted(&cli, "killed");
    for delay in [0, 2, 5, 10, 20, 40] {
        cli.shell("m1", &format!("head -c 2000000 /dev/urandom > /tmp/noise{delay}"));
        let mut child = cli.command(&["checkpoint", "-m", "unheard"]).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        let _ = child.kill();
        child.wait().unwrap();
        answers(&cli);
    }
    let mut child = cli.command(&["exec", "m1", "--", "sleep", "1"]).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let _ = child.kill();
    child.wait().unwrap();
    answers(&cli);
    let mut child = cli.command(&["goto", &good]).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(5));
    let _ = child.kill();
    child.wait().unwrap();
    // A command that runs when its machine is taken elsewhere is lost; the next one is not.
    await_that("it arrives", SOON, || cli.run(&["exec", "m1", "--", "true"]).status.success());
    answers(&cli);
    let last = cli.checkpoint("heard");
    cli.shell("m1", "rm -f /tmp/kept");
    cli.ok(&["goto", &last]);
    answers(&cli);
    // Every checkpoint in the log is whole, heard of or not.
    let log = cli.json(&["log"]);
    for checkpoint in array(&log) {
        cli.ok(&["goto", string(&checkpoint["id"]), "--eager", "--paused"]);
    }
}

/// Somebody else takes what room there was for memory that a guest has not touched yet.
#[test]
fn a_guest_whose_memory_finds_no_room_is_told_and_comes_back() {
    let mut cli = Cli::new();
    tiny(&cli, "squeezed");
    let Some(narrow) = cli.mount("narrow", "700M") else {
        fermata_testkit::skipped!("memory that finds no room, for want of the right to mount a tmpfs");
        return;
    };
    let usual = cli.run_root().to_owned();
    cli.set("FERMATA_RUN_DIR", &narrow);
    let good = booted(&cli, "squeezed");
    let ballast = fill(&narrow);
    let _ = cli.run(&["exec", "m1", "--", "sh", "-c", "head -c 100000000 /dev/urandom > /tmp/more"]);
    await_that("ls says that it is gone", SOON, || cli.machine("main")["state"] == "gone");
    cli.fails(&["checkpoint"], 1, &["m1", "SIGBUS", "narrow", "is full", "make room there", "fermata goto"]);
    fs::remove_file(ballast).unwrap();
    cli.ok(&["goto", &good]);
    answers(&cli);
    cli.ok(&["down"]);
    cli.set("FERMATA_RUN_DIR", usual);
}
