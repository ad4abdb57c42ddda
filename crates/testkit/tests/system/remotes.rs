//! Checkpoints copied to a remote beside a running guest, into another store, and back; a push that is killed. About a minute.

use fermata_testkit::{
    Cli,
    cli::{array, await_that, count, end, kill, string},
    guests,
};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Stdio},
    time::Duration,
};

const SOON: Duration = Duration::from_secs(120);

/// A checkpoint of a guest that has this word in its memory and on its disk.
fn marked(cli: &Cli, word: &str) -> String {
    cli.shell("m1", &format!("echo {word} > /tmp/word; echo {word} > /disk/word; sync"));
    cli.checkpoint(word)
}

#[track_caller]
fn has(cli: &Cli, word: &str) {
    assert_eq!(cli.shell("m1", "cat /tmp/word /disk/word"), format!("{word}\n{word}"));
}

fn ids(cli: &Cli) -> Vec<String> {
    let mut ids: Vec<_> =
        array(&cli.json(&["log", "-e", "copied"])).iter().map(|checkpoint| string(&checkpoint["id"]).to_owned()).collect();
    ids.sort();
    ids
}

/// Bytes of all packs below a directory.
fn bytes(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { bytes(&entry.path()) } else { entry.metadata().map_or(0, |file| file.len()) }).sum()
}

fn outcome<'a>(copied: &'a Value, kind: &str, name: &str) -> &'a Value {
    array(&copied["refs"]).iter().find(|copied| copied[kind] == *name).map_or(&Value::Null, |copied| &copied["outcome"])
}

#[test]
fn a_machine_goes_on_from_a_copy() {
    let (mut here, mut there) = (Cli::new(), Cli::new());
    let place = here.path().join("place");
    let place = place.to_str().expect("a name in UTF-8");
    let (image, away) = (here.path().join("golden.raw"), here.path().join("elsewhere.raw"));
    fs::copy(here.disk(), &image).expect("a copy");
    let more = format!("    image: {}\n", image.display());
    here.write("machine.yaml", &guests::tiny("copied", "fermata.run=tick fermata.disk=rw", &more));
    here.ok(&["up", "machine.yaml"]);
    marked(&here, "first");
    let second = marked(&here, "second");
    here.ok(&["tag", &second, "good"]);
    here.fails(&["push", place], 1, &["fermata remote add NAME"]);
    here.fails(&["remote", "add", "origin", place], 2, &["--passphrase", "--plain"]);
    here.ok(&["remote", "add", "origin", place, "--passphrase"]);
    here.fails(&["push"], 1, &["FERMATA_PASSPHRASE"]);
    here.set("FERMATA_PASSPHRASE", "correct horse battery staple");

    let pushed = here.json(&["push"]);
    assert_eq!((count(&pushed["checkpoints"]), outcome(&pushed, "branch", "main")), (2, &Value::from("new")), "{pushed}");
    let first_bytes = count(&pushed["bytes"]);
    assert_eq!(pushed["images"][0]["outcome"], "sent", "{pushed}");
    let again = here.json(&["push"]);
    assert_eq!((count(&again["checkpoints"]), count(&again["bytes"])), (0, 0), "{again}");
    marked(&here, "third");
    let pushed = here.json(&["push"]);
    assert_eq!((count(&pushed["checkpoints"]), outcome(&pushed, "branch", "main")), (1, &Value::from("moved")), "{pushed}");
    assert!(count(&pushed["bytes"]) < first_bytes / 4, "{pushed} after {first_bytes}");

    there.set("FERMATA_PASSPHRASE", "not that one");
    there.fails(&["clone", place], 1, &["not the passphrase"]);
    there.set("FERMATA_PASSPHRASE", "correct horse battery staple");
    // As on another host: the image is not there.
    fs::rename(&image, &away).expect("it is moved");
    let cloned = there.json(&["clone", place]);
    assert_eq!(count(&cloned[0]["checkpoints"]), 3, "{cloned}");
    let fetched = &cloned[0]["images"][0];
    assert_eq!(fetched["outcome"], "fetched", "{cloned}");
    assert!(fs::read(string(&fetched["path"])).expect("it is there") == fs::read(&away).expect("it is there"), "it is the same image");
    assert_eq!(ids(&there), ids(&here));
    assert!(array(&there.json(&["verify"])["damage"]).is_empty());
    // The branch goes on elsewhere, while the first goes on here.
    there.ok(&["goto", "good", "-e", "copied"]);
    has(&there, "second");
    marked(&there, "elsewhere");
    let pushed = there.json(&["push"]);
    assert_eq!(outcome(&pushed, "branch", "main.2"), &Value::from("new"), "{pushed}");
    there.ok(&["down"]);
    fs::rename(&away, &image).expect("it is moved back");
    has(&here, "third");
    let pulled = here.json(&["pull"]);
    assert_eq!((count(&pulled["checkpoints"]), outcome(&pulled, "branch", "main.2")), (1, &Value::from("new")), "{pulled}");
    here.ok(&["goto", "main.2"]);
    has(&here, "elsewhere");
    here.ok(&["down"]);
    assert!(array(&here.json(&["verify"])["damage"]).is_empty());
}

/// Stands in for `ssh`: another host is this one, and its shell finds the same program.
fn ssh(cli: &mut Cli) {
    let (path, program) = (cli.path().join("ssh"), cli.command(&[""; 0]).get_program().to_owned());
    let directory = Path::new(&program).parent().expect("it lies in a directory").display().to_string();
    let script = format!("#!/bin/sh\n[ \"$1\" = -T ] || exit 9\nfor command; do :; done\nPATH={directory}:$PATH exec sh -c \"$command\"\n");
    fs::write(&path, script).expect("room for a script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    cli.set("FERMATA_SSH", path);
}

const TOKEN: &str = "8c7f0ee1b24c4fb19d2a";

/// `fermata peer --listen`, until it is dropped.
struct Listening {
    child: Child,
    url: String,
}

impl Listening {
    fn begin(cli: &Cli, place: &Path) -> Self {
        let mut peer = cli.command(&["peer", &place.display().to_string(), "--listen", "127.0.0.1:0"]);
        let mut child = peer.stdout(Stdio::piped()).spawn().expect("it begins");
        let mut said = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said).expect("it says where");
        let url = said.trim().rsplit(' ').next().expect("a word").to_owned();
        Self { child, url }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_push_that_is_killed_goes_on() {
    let mut here = Cli::new();
    ssh(&mut here);
    here.write("machine.yaml", &guests::tiny("copied", "fermata.run=selfcheck:64:4", ""));
    here.ok(&["up", "machine.yaml"]);
    await_that("it works", SOON, || here.console("main").contains("selfcheck round"));
    here.checkpoint("one");
    here.ok(&["down"]);
    here.set("FERMATA_PEER_TOKEN", TOKEN);
    for kind in ["", "ssh://me@elsewhere:2222"] {
        let place = here.path().join(format!("it's a place{}", kind.len()));
        killed_and_gone_on(&here, &format!("{kind}{}", place.display()), &place);
    }
    let place = here.path().join("listened for");
    let listening = Listening::begin(&here, &place);
    killed_and_gone_on(&here, &listening.url, &place);
    here.set("FERMATA_PEER_TOKEN", "another one, but long enough".replace(' ', "-"));
    here.fails(&["push", &listening.url, "-e", "copied"], 1, &["does not take the token", "FERMATA_PEER_TOKEN"]);
    here.fails(&["push", "nowhere"], 1, &["nowhere", "there is place"]);
    here.set("FERMATA_SSH", "/bin/false");
    here.fails(&["push", "ssh://elsewhere/place", "-e", "copied"], 1, &["/bin/false elsewhere ended: exit status: 1"]);
}

fn killed_and_gone_on(here: &Cli, address: &str, place: &Path) {
    let mut there = Cli::new();
    ssh(&mut there);
    there.set("FERMATA_PEER_TOKEN", TOKEN);
    here.ok(&["remote", "add", &format!("place{}", address.len()), address, "--plain"]);
    // One pack after the other: the first is there long before the last.
    let mut push = here.command(&["push", address, "--limit", "8M", "--jobs", "1", "-e", "copied"]).spawn().expect("it begins");
    await_that("a pack is there", SOON, || bytes(&place.join("packs")) > 20 << 20);
    kill(push.id().into());
    end(&mut push, SOON);
    let sent = bytes(&place.join("packs"));
    there.fails(&["pull", address, "-e", "copied"], 1, &["no checkpoint of copied"]);
    let pushed = here.json(&["push", address, "-e", "copied"]);
    let all = bytes(&place.join("packs"));
    assert!(count(&pushed["bytes"]) + sent / 2 < all, "{pushed}: {sent} were there, and {all} are now");
    assert_eq!(count(&there.json(&["pull", address])["checkpoints"]), 1);
    assert_eq!(ids(&there), ids(here));
    assert!(array(&there.json(&["verify"])["damage"]).is_empty());
}
