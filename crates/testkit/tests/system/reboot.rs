//! A guest that restarts by itself is the same machine: its checkpoints go on, and journeys lead to both sides of the restart.

use fermata_testkit::{
    Cli,
    cli::{array, await_that, string},
    guests,
};
use std::{fs, path::Path, time::Duration};

const SOON: Duration = Duration::from_secs(120);
/// What the guest says of its boot: no two are alike.
const BOOT: &str = "cat /proc/sys/kernel/random/boot_id";

fn boot(cli: &Cli) -> Option<String> {
    let said = cli.run(&["exec", "m1", "--", "sh", "-c", BOOT]);
    said.status.success().then(|| said.stdout.trim().to_owned()).filter(|boot| !boot.is_empty())
}

/// A journey brings back what the guest boots from, whatever has become of the files.
#[test]
fn a_guest_boots_anew_from_the_kernel_that_it_had() {
    let cli = Cli::new();
    let [kernel, initrd] = ["vmlinuz", "tiny.cpio"].map(|name| {
        let copy = cli.path().join(name);
        fs::copy(guests::file(name), &copy).unwrap();
        copy
    });
    let own = |text: String, copy: &Path| {
        let original = guests::file(copy.file_name().unwrap().to_str().unwrap());
        text.replace(original.to_str().unwrap(), copy.to_str().unwrap())
    };
    let spec = own(own(guests::tiny("kernels", "fermata.run=tick", ""), &kernel), &initrd);
    assert!(spec.contains(cli.path().to_str().unwrap()), "{spec}");
    cli.write("machine.yaml", &spec);
    cli.ok(&["up", "machine.yaml"]);
    await_that("the agent answers", SOON, || boot(&cli).is_some());
    let first = boot(&cli).expect("it answered");
    let before = cli.checkpoint("before");
    // Another kernel, which is none, and no initial RAM disk.
    fs::write(&kernel, "no kernel").unwrap();
    fs::remove_file(&initrd).unwrap();
    let restarts = |cli: &Cli, last: &str| {
        cli.shell("m1", "(sleep 0.2; reboot -f) < /dev/null > /dev/null 2>&1 &");
        await_that("it has restarted", SOON, || boot(cli).is_some_and(|boot| boot != last));
        boot(cli).expect("it answered")
    };
    cli.ok(&["goto", &before]);
    assert_eq!(boot(&cli).as_deref(), Some(&*first));
    let second = restarts(&cli, &first);
    // What it booted from is still in what comes after, and nothing of it is stored once more.
    let after = cli.json(&["checkpoint", "-m", "after"]);
    let blobs = |id: &str| {
        let part = &cli.json(&["show", id])["parts"][0];
        [string(&part["blobs"]["kernel"]).to_owned(), string(&part["blobs"]["initrd"]).to_owned()]
    };
    assert_eq!(blobs(&before), blobs(string(&after["id"])));
    cli.ok(&["goto", string(&after["id"])]);
    assert_eq!(boot(&cli).as_deref(), Some(&*second));
    // Who makes a new machine of the specification is told.
    cli.ok(&["down"]);
    cli.fails(&["up", "machine.yaml"], 1, &["tiny.cpio"]);

    // And on another host.
    let (there, place) = (Cli::new(), cli.path().join("place"));
    cli.ok(&["remote", "add", "nas", place.to_str().unwrap(), "--plain"]);
    cli.ok(&["push", "nas"]);
    there.ok(&["clone", place.to_str().unwrap()]);
    there.ok(&["goto", string(&after["id"]), "-e", "kernels"]);
    assert_eq!(boot(&there).as_deref(), Some(&*second));
    restarts(&there, &second);
    there.ok(&["down"]);
    assert!(array(&there.json(&["verify"])["damage"]).is_empty());
}

#[test]
fn checkpoints_and_journeys_go_on_across_a_restart() {
    let cli = Cli::new();
    let disk = format!("    disks: [{{image: {}}}]\n", cli.disk().display());
    cli.write("machine.yaml", &guests::tiny("restarts", "fermata.run=tick", &disk));
    cli.ok(&["up", "machine.yaml", "--every", "2s"]);
    await_that("the agent answers", SOON, || boot(&cli).is_some());
    let first = boot(&cli).expect("it answered");
    cli.shell("m1", "echo before > /disk/word; sync; touch /tmp/only-in-memory");
    let before = cli.checkpoint("before");
    let mut last = first.clone();
    let mut after = Vec::new();
    for number in 0..2 {
        cli.shell("m1", "(sleep 0.2; reboot -f) < /dev/null > /dev/null 2>&1 &");
        await_that("it has restarted", SOON, || boot(&cli).is_some_and(|boot| boot != last));
        last = boot(&cli).expect("it answered");
        let word = format!("after {number}");
        cli.shell("m1", &format!("echo '{word}' > /disk/word; sync"));
        after.push((cli.checkpoint(&word), last.clone(), word));
    }
    let is_there = |id: &str, boot_id: &str, word: &str| {
        cli.ok(&["goto", id]);
        assert_eq!(boot(&cli).as_deref(), Some(boot_id), "{word}");
        assert_eq!(cli.shell("m1", "cat /disk/word"), word);
    };
    // To the other side and back, each time by another QEMU.
    for _ in 0..2 {
        is_there(&before, &first, "before");
        assert_eq!(cli.shell("m1", "ls /tmp/only-in-memory"), "/tmp/only-in-memory");
        for (id, boot_id, word) in &after {
            is_there(id, boot_id, word);
            assert_eq!(cli.shell("m1", "ls /tmp/only-in-memory 2>/dev/null || echo gone"), "gone");
        }
    }
    // And one that was gone back to from a later boot restarts too.
    is_there(&before, &first, "before");
    cli.shell("m1", "(sleep 0.2; reboot -f) < /dev/null > /dev/null 2>&1 &");
    await_that("it has restarted", SOON, || boot(&cli).is_some_and(|boot| boot != first));
    assert_eq!(cli.shell("m1", "cat /disk/word"), "before");
    let log = cli.json(&["log"]);
    assert!(array(&log).iter().any(|checkpoint| checkpoint["message"].is_null()), "the clock took some as well: {log}");
    assert!(!cli.console("main").contains("FERMATA FAIL"), "{}", cli.console("main"));
    cli.ok(&["verify"]);
    assert!(
        array(&cli.json(&["ls"])).iter().all(|experiment| experiment["trouble"].is_null() && string(&experiment["state"]) == "running")
    );
    cli.ok(&["down"]);
}
