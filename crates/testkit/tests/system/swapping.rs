//! Experiments swapped out and in: into the store, to another host and back, while the rest still comes, with the remote lost, and with keepers that die.

use fermata_testkit::{
    Cli, Random,
    beats::Noted,
    cli::{array, await_that, count, kill, string},
    guests,
};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

#[path = "../../../remote/tests/fixtures/s3.rs"]
mod s3;

const SOON: Duration = Duration::from_secs(120);
const NAME: &str = "swapped";

fn place(cli: &Cli) -> PathBuf {
    cli.path().join("place")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a name in UTF-8")
}

/// The experiment as `ls` shows it.
#[track_caller]
fn shown(cli: &Cli) -> Value {
    let all = cli.json(&["ls"]);
    array(&all).iter().find(|experiment| experiment["name"] == NAME).unwrap_or_else(|| panic!("no {NAME}: {all}")).clone()
}

fn is_loading(cli: &Cli) -> bool {
    !shown(cli)["loading"].is_null()
}

/// A guest with a disk and a memory that is full of what does not compress, which it checks all the time.
fn boot(cli: &Cli, run: &str) {
    let more = format!("    image: {}\n", cli.disk().display());
    cli.write("machine.yaml", &guests::tiny(NAME, &format!("fermata.run={run} fermata.disk=rw"), &more));
    cli.ok(&["up", "machine.yaml"]);
    if run.starts_with("selfcheck") {
        await_that("it works", SOON, || cli.console("main").contains("selfcheck round"));
    }
    cli.shell("m1", "echo kept > /tmp/word; echo kept > /disk/word; sync");
}

#[track_caller]
fn assert_kept(cli: &Cli) {
    assert_eq!(cli.shell("m1", "cat /tmp/word /disk/word"), "kept\nkept");
    assert!(!cli.console("main").contains("FAIL"), "{}", cli.console("main"));
}

#[track_caller]
fn assert_whole(cli: &Cli) {
    assert!(array(&cli.json(&["verify"])["damage"]).is_empty());
}

#[test]
fn it_stands_in_the_store() {
    let cli = Cli::new();
    cli.fails(&["swapin"], 1, &["nothing is swapped out here"]);
    boot(&cli, "tick");
    let before = cli.uptime("m1");
    let out = cli.json(&["swapout"]);
    assert_eq!(out["remote"], Value::Null, "{out}");
    assert!(cli.processes().is_empty());
    let experiment = shown(&cli);
    assert_eq!((&experiment["state"], &experiment["swapped"]["checkpoint"]), (&Value::from("swapped"), &out["checkpoint"]));
    assert!(cli.ok(&["ls"]).contains("swapped out"));
    let listed = cli.json(&["log", "-e", NAME]);
    assert_eq!(array(&listed)[0]["message"], "swapped out");
    cli.fails(&["swapin", "other"], 1, &["other is not swapped out here", "--from"]);
    std::thread::sleep(Duration::from_secs(3));
    let back = cli.json(&["swapin"]);
    assert_eq!((&back["checkpoint"], &back["branch"]), (&out["checkpoint"], &Value::from("main")));
    assert_kept(&cli);
    // The time between is none of the guest's.
    let now = cli.uptime("m1");
    assert!(now >= before, "{before} {now}");
    let at = count(&out["time_virtual_ns"]);
    let next = cli.json(&["checkpoint"]);
    assert_eq!((&next["parent"], &next["branch"]), (&out["checkpoint"], &Value::from("main")));
    assert!(count(&next["time_virtual_ns"]) > at);
    cli.fails(&["swapin", NAME], 1, &["is not swapped out here"]);
    cli.ok(&["down"]);
    assert_eq!(array(&cli.json(&["ls"])).len(), 0);
    assert_whole(&cli);
}

#[test]
fn it_comes_back_on_another_host() {
    let (here, there) = (Cli::new(), Cli::new());
    let place = place(&here);
    boot(&here, "selfcheck:48:4");
    here.ok(&["checkpoint", "-m", "early"]);
    here.ok(&["remote", "add", "nas", text(&place), "--plain"]);
    let out = here.json(&["swapout", "--to", "nas"]);
    assert_eq!(out["remote"]["name"], "nas", "{out}");
    let sent: Vec<_> = array(&out["rounds"]).iter().map(|round| count(&round["bytes"])).collect();
    assert!(sent.len() >= 2 && sent[0] > 40 << 20, "{sent:?}");
    assert!(here.processes().is_empty());
    // What is there is here no more.
    here.fails(&["log"], 1, &["no checkpoint is in the store"]);
    assert!(count(&out["freed_bytes"]) > 40 << 20, "{out}");
    assert_eq!(shown(&here)["swapped"]["remote"]["name"], "nas");

    // There is nothing of the golden image there: it comes with the rest.
    let image = (here.path().join("disk.raw"), here.path().join("elsewhere.raw"));
    fs::rename(&image.0, &image.1).unwrap();
    let back = there.json(&["swapin", "--from", text(&place), "--limit", "8M"]);
    assert_eq!(back["checkpoint"], out["checkpoint"]);
    assert!(!back["loading"].is_null(), "48 MiB are not here in an instant: {back}");
    // It goes on while the rest comes, and a checkpoint waits for that.
    let rounds = there.console("main").matches("selfcheck round").count();
    assert_kept(&there);
    let checkpoint = there.json(&["checkpoint", "-m", "elsewhere"]);
    assert_eq!(checkpoint["parent"], out["checkpoint"]);
    assert!(!is_loading(&there));
    await_that("the guest still finds its memory as it was", SOON, || there.console("main").matches("selfcheck round").count() > rounds);
    assert_kept(&there);
    assert_whole(&there);

    // And back again: what the remote remembers is newer than the record here.
    fs::rename(&image.1, &image.0).unwrap();
    there.ok(&["remote", "add", "nas", text(&place), "--plain"]);
    let again = there.json(&["swapout", "--to", "nas", "--keep"]);
    assert!(array(&there.json(&["log", "-e", NAME])).len() >= 2, "they were to be kept");
    let back = here.json(&["swapin", "--eager"]);
    assert_eq!((&back["checkpoint"], &back["branch"]), (&again["checkpoint"], &Value::from("main")));
    assert_kept(&here);
    assert!(!is_loading(&here));
    here.ok(&["down"]);
    assert_whole(&here);
}

/// A golden image that is nowhere on the other host comes behind the guest, which reads of it meanwhile; also if its keeper dies before it is here.
#[test]
fn a_golden_image_comes_behind_the_guest() {
    const BYTES: usize = 32 << 20;
    let (here, there) = (Cli::new(), Cli::new());
    let place = place(&here);
    // What does not compress.
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    let noise: Vec<u8> = (0..BYTES / 8).flat_map(|_| random.number().to_le_bytes()).collect();
    let (disk, large) = (here.disk(), here.path().join("large.raw"));
    fs::write(&large, &noise).expect("an image");
    let more = format!("    image: {}\n    disks: [{{image: {}}}]\n", disk.display(), large.display());
    here.write("machine.yaml", &guests::tiny(NAME, "fermata.run=tick fermata.disk=rw", &more));
    here.ok(&["up", "machine.yaml"]);
    here.shell("m1", "echo kept > /tmp/word; echo kept > /disk/word; sync");
    here.ok(&["remote", "add", "nas", text(&place), "--plain"]);
    let out = here.json(&["swapout", "--to", "nas"]);
    for image in [&disk, &large] {
        fs::rename(image, image.with_extension("elsewhere")).expect("it is there no more");
    }

    let assert_reads = |at: usize| {
        let script = format!("dd if=/dev/vdb bs=32 skip={} count=1 2>/dev/null | od -An -v -tx1 | tr -d ' \\n'", at / 32);
        let expected: String = noise[at..at + 32].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(there.shell("m1", &script), expected, "at {at}");
    };
    let is_here = || {
        let images = there.store().join("images").read_dir().into_iter().flatten().flatten();
        let raw = images.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|ending| ending == "raw"));
        raw.into_iter().any(|path| path.metadata().is_ok_and(|found| found.len() == BYTES as u64))
    };
    // Two minutes for the image.
    let back = there.json(&["swapin", "--from", text(&place), "--limit", "256K"]);
    assert_eq!(back["checkpoint"], out["checkpoint"]);
    assert_kept(&there);
    [0, BYTES / 2 + 4096, BYTES - 32].into_iter().for_each(assert_reads);
    assert!(is_loading(&there) && !is_here(), "the guest waited for all of its image");

    kill(count(&shown(&there)["keeper_pid"]));
    await_that("it is dead", SOON, || shown(&there)["state"] == "dead");
    let back = there.json(&["swapin", NAME]);
    assert_eq!(back["checkpoint"], out["checkpoint"]);
    assert_reads(BYTES / 4);
    await_that("all of it is here", SOON, || !is_loading(&there));
    assert!(is_here());
    // It does not need the remote any more.
    fs::rename(&place, here.path().join("gone")).expect("the remote is lost");
    [4096, BYTES / 2, BYTES - 4096].into_iter().for_each(assert_reads);
    there.shell("m1", "echo more > /disk/more; sync");
    let next = there.json(&["checkpoint"]);
    assert_eq!(next["parent"], out["checkpoint"]);
    there.ok(&["goto", string(&next["id"])]);
    assert_kept(&there);
    assert_reads(BYTES / 8);
    there.ok(&["down"]);
    assert_whole(&there);
}

/// What `beat ping` noted, which ends. The `ping` of busybox has room for seven replies, and loses what comes while it waits for the processor.
#[track_caller]
fn noted(cli: &Cli, machine: &str) -> Noted {
    let ended = "killall -TERM beat; while pidof beat > /dev/null; do sleep 0.1; done; cat /tmp/beats";
    Noted::parse(&cli.command(&["exec", machine, "--", "sh", "-c", ended]).output().expect("fermata runs").stdout)
}

/// Two machines, one with the real time, and all that is on its way between them: to an encrypted remote, and back elsewhere.
#[test]
fn machines_and_what_is_between_them_come_back_elsewhere() {
    const DELAY_MS: f64 = 400.0;
    const OUT: Duration = Duration::from_secs(10);
    let (here, there) = (Cli::new(), Cli::new());
    let (place, key) = (place(&here), here.path().join("key"));
    fs::write(&key, [7; 32]).unwrap();
    let interface = |host: u32| format!("    interfaces: {{eth1: {{ipv4: 10.9.0.{host}/24}}}}\n");
    let (a, b) = (interface(1) + "    clock: real\n", interface(2));
    let nodes = guests::several(NAME, 128, &[("a", "fermata.run=none", &a), ("b", "fermata.run=none", &b)]);
    here.write("machine.yaml", &format!("{nodes}links:\n  - {{endpoints: [\"a:eth1\", \"b:eth1\"], delay: {DELAY_MS}ms}}\n"));
    here.ok(&["up", "machine.yaml"]);
    let answers = || here.run(&["exec", "a", "--", "ping", "-c", "1", "-W", "5", "10.9.0.2"]).status.success();
    await_that("the guests have their addresses", SOON, answers);
    // Eight requests and replies are on their way at any time.
    here.shell("a", "beat ping /tmp/beats 10000 10.9.0.2 100000 > /tmp/said 2>&1 &");
    let arrived = |cli: &Cli| count(&cli.json(&["link", "a:eth1"])[0]["received"]["counters"]["arrived"]["frames"]);
    let before = arrived(&here);
    await_that("replies come", SOON, || arrived(&here) > before + 10);

    here.ok(&["remote", "add", "nas", text(&place), "--key-file", text(&key)]);
    let out = here.json(&["swapout", "--to", "nas"]);
    assert!(here.processes().is_empty());
    std::thread::sleep(OUT);
    there.fails(&["swapin", "--from", text(&place)], 1, &["encrypted"]);
    let back = there.json(&["swapin", "--from", text(&place), "--key-file", text(&key)]);
    assert_eq!(back["checkpoint"], out["checkpoint"]);
    let before = arrived(&there);
    await_that("replies still come", SOON, || arrived(&there) > before + 20);
    let Noted { all, doubled, .. } = noted(&there, "a");
    let replies: Vec<_> = all.iter().map_while(|beat| Some((beat.end(), beat.took?))).collect();
    // For the last ones it waits three seconds, and as long as it runs for all others.
    assert!(replies.len() > 30 && doubled == 0 && all[replies.len()..].iter().all(|beat| beat.took.is_none()), "each once: {all:?}");
    assert!(replies.is_sorted_by_key(|(at, _)| *at), "in order: {all:?}");
    assert!(replies.iter().all(|(_, took)| *took >= (2.0 * DELAY_MS - 0.1) * 1e6), "none before it can be there: {all:?}");

    // The time outside has gone on.
    let behind = |machine: &str| {
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is later").as_secs_f64();
        now() - there.shell(machine, "date +%s").parse::<f64>().expect("seconds")
    };
    await_that("one has the real time", SOON, || behind("a").abs() < 5.0);
    assert!(behind("b") > OUT.as_secs_f64() - 2.0, "{}", behind("b"));
    there.ok(&["checkpoint", "-m", "elsewhere"]);
    there.ok(&["down"]);
    assert_whole(&there);
}

#[test]
fn who_dies_on_the_way_is_brought_back_by_the_same_command() {
    let cli = Cli::new();
    let place = place(&cli);
    boot(&cli, "selfcheck:48:4");
    cli.ok(&["remote", "add", "nas", text(&place), "--plain"]);
    let out = cli.json(&["swapout", "--to", "nas"]);
    cli.ok(&["swapin", "--limit", "6M"]);
    await_that("some of it is here", SOON, || {
        cli.store().join("remotes/incoming").read_dir().is_ok_and(|mut entries| entries.next().is_some())
    });
    assert!(is_loading(&cli));
    kill(count(&shown(&cli)["keeper_pid"]));
    await_that("it is dead", SOON, || shown(&cli)["state"] == "dead");
    let back = cli.json(&["swapin", NAME]);
    assert_eq!(back["checkpoint"], out["checkpoint"]);
    assert_kept(&cli);
    await_that("all of it is here", SOON, || !is_loading(&cli));
    let metrics = cli.ok(&["metrics"]);
    assert!(!metrics.contains("fermata_away_bytes"), "{metrics}");
    cli.ok(&["checkpoint"]);
    cli.ok(&["down"]);
    assert_eq!(array(&cli.json(&["ls"])).len(), 0, "nothing is swapped out any more");
    assert_whole(&cli);
}

/// Has what QEMU's main loop touches be there, such as the rings of the agent's device: while that waits for a page, QEMU cannot stop the machine (0030).
fn has_its_rings(cli: &Cli) {
    cli.shell("m1", "true");
}

#[test]
fn a_machine_waits_for_a_remote_that_is_lost() {
    let cli = Cli::new();
    let (place, elsewhere) = (place(&cli), cli.path().join("elsewhere"));
    boot(&cli, "selfcheck:64:4");
    cli.ok(&["remote", "add", "nas", text(&place), "--plain"]);
    cli.ok(&["swapout", "--to", "nas"]);
    cli.ok(&["swapin", "--limit", "1M"]);
    assert!(cli.ok(&["metrics"]).contains("fermata_away_bytes"));
    has_its_rings(&cli);
    fs::rename(&place, &elsewhere).expect("the remote is lost");
    // It reads all of its memory, over and over.
    await_that("it waits", SOON, || shown(&cli)["loading"]["waiting"].is_string());
    let told = cli.ok(&["ls"]);
    assert!(told.contains("waiting for remote") && told.contains(text(&place)), "{told}");
    let virtual_ns = || count(&shown(&cli)["runs"][0]["time_virtual_ns"]);
    await_that("its time stands", SOON, || {
        let before = virtual_ns();
        std::thread::sleep(Duration::from_millis(300));
        virtual_ns() == before
    });
    let before = virtual_ns();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(virtual_ns(), before);
    fs::rename(&elsewhere, &place).expect("the remote is back");
    await_that("it goes on by itself", SOON, || shown(&cli)["loading"]["waiting"].is_null() && cli.machine("main")["state"] == "running");
    assert_kept(&cli);
    // A second time, and it ends while it waits: nobody hangs.
    fs::rename(&place, &elsewhere).expect("the remote is lost");
    await_that("it waits", SOON, || shown(&cli)["loading"]["waiting"].is_string());
    cli.ok(&["down"]);
    assert!(cli.processes().is_empty());
    fs::rename(&elsewhere, &place).expect("the remote is back");
    cli.ok(&["swapin"]);
    assert_kept(&cli);
    await_that("all of it is here", SOON, || !is_loading(&cli));
    cli.ok(&["down"]);
    assert_whole(&cli);
}

/// Packs of a remote that answer nobody, as files of a server that is gone do: whoever opens one waits.
struct Silent {
    pipe: PathBuf,
    packs: Vec<PathBuf>,
}

impl Silent {
    fn begin(cli: &Cli, place: &Path) -> Self {
        let (pipe, link) = (cli.path().join("pipe"), cli.path().join("link"));
        assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
        let directories = place.join("packs").read_dir().expect("packs").flatten();
        let packs: Vec<_> =
            directories.flat_map(|entry| entry.path().read_dir().expect("packs").flatten()).map(|pack| pack.path()).collect();
        for pack in &packs {
            fs::hard_link(pack, pack.with_extension("kept")).expect("another name");
            fs::hard_link(&pipe, &link).expect("another name");
            fs::rename(&link, pack).expect("it is there no more");
        }
        Self { pipe, packs }
    }

    fn end(self) {
        for pack in &self.packs {
            fs::rename(pack.with_extension("kept"), pack).expect("it is there again");
        }
        // Whoever waits goes on, and finds that it is no file.
        fs::OpenOptions::new().read(true).write(true).open(&self.pipe).expect("the pipe");
    }
}

#[test]
fn a_machine_stands_while_its_remote_says_nothing() {
    let cli = Cli::new();
    let place = place(&cli);
    boot(&cli, "selfcheck:64:4");
    cli.ok(&["remote", "add", "nas", text(&place), "--plain"]);
    cli.ok(&["swapout", "--to", "nas"]);
    cli.ok(&["swapin", "--limit", "1M"]);
    has_its_rings(&cli);
    let silent = Silent::begin(&cli, &place);
    await_that("it waits", SOON, || shown(&cli)["loading"]["waiting"].as_str().is_some_and(|why| why.contains("has not answered for")));
    let virtual_ns = || count(&shown(&cli)["runs"][0]["time_virtual_ns"]);
    await_that("its time stands", SOON, || {
        let before = virtual_ns();
        std::thread::sleep(Duration::from_millis(300));
        virtual_ns() == before
    });
    silent.end();
    await_that("it goes on by itself", SOON, || shown(&cli)["loading"]["waiting"].is_null() && cli.machine("main")["state"] == "running");
    assert_kept(&cli);
    cli.ok(&["down"]);
}

#[test]
fn it_stands_in_object_storage_and_waits_for_it() {
    let mut cli = Cli::new();
    let files = cli.path().join("objects");
    let server = s3::Server::begin(&files, 0);
    let port = server.at().port();
    let endpoint = format!("http://{}", server.at());
    for (name, value) in
        [("AWS_ACCESS_KEY_ID", s3::KEY), ("AWS_SECRET_ACCESS_KEY", s3::SECRET), ("AWS_REGION", s3::REGION), ("AWS_ENDPOINT_URL", &endpoint)]
    {
        cli.set(name, value);
    }
    boot(&cli, "selfcheck:64:4");
    cli.ok(&["remote", "add", "cloud", &format!("s3://{}/lab", s3::BUCKET), "--plain"]);
    let out = cli.json(&["swapout", "--to", "cloud"]);
    assert!(cli.processes().is_empty() && count(&out["freed_bytes"]) > 40 << 20, "{out}");
    let back = cli.json(&["swapin", "--limit", "6M"]);
    assert_eq!(back["checkpoint"], out["checkpoint"]);
    assert!(!back["loading"].is_null(), "64 MiB are not here in an instant: {back}");
    drop(server);
    await_that("it waits", SOON, || shown(&cli)["loading"]["waiting"].is_string());
    let _server = s3::Server::begin(&files, port);
    await_that("all of it is here", SOON, || !is_loading(&cli));
    assert_kept(&cli);
    cli.ok(&["checkpoint"]);
    cli.ok(&["down"]);
    assert_whole(&cli);
}

/// SIGHUP is the first signal (proc(5), `SigIgn`).
fn hangups_are_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("it is told");
    u64::from_str_radix(ignored.trim(), 16).expect("a mask") & 1 == 1
}

#[test]
fn who_is_interrupted_while_the_machines_stand_has_them_go_on() {
    let cli = Cli::new();
    let place = place(&cli);
    boot(&cli, "tick");
    cli.ok(&["remote", "add", "nas", text(&place), "--plain"]);
    cli.ok(&["checkpoint"]);
    cli.ok(&["push", "nas"]);
    // Slow enough for somebody to come in between.
    let begin = || {
        let mut command = cli.command(&["swapout", "--to", "nas", "--limit", "100K"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        await_that("its machines stand", SOON, || cli.machine("main")["state"] == "paused");
        child
    };
    // Whoever runs the tests may have them ignore that their terminal is closed (`nohup`), and so does what they start.
    let signals = ["-INT", "-TERM", "-HUP"];
    for signal in signals.into_iter().filter(|signal| *signal != "-HUP" || !hangups_are_ignored()) {
        let child = begin();
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill runs").success());
        let said = child.wait_with_output().expect("it ends");
        let told = String::from_utf8_lossy(&said.stderr);
        assert_eq!(said.status.code(), Some(1), "{signal}: {told}");
        assert!(told.contains("it was interrupted; it runs on as before"), "{signal}: {told}");
        assert_eq!(cli.machine("main")["state"], "running", "{signal}");
        assert_kept(&cli);
    }
    // Who is killed can do nothing any more.
    let mut child = begin();
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    assert_eq!(cli.machine("main")["state"], "paused");
    assert!(cli.ok(&["ls"]).contains("paused"), "{}", cli.ok(&["ls"]));
    cli.ok(&["resume"]);
    assert_eq!(cli.machine("main")["state"], "running");
    assert_kept(&cli);
    cli.ok(&["swapout", "--to", "nas"]);
    cli.ok(&["swapin"]);
    assert_kept(&cli);
    cli.ok(&["down"]);
    assert_whole(&cli);
}

#[test]
fn whatever_fails_leaves_it_as_it_was() {
    let mut cli = Cli::new();
    let place = place(&cli);
    boot(&cli, "tick");
    cli.ok(&["remote", "add", "nas", text(&place), "--plain"]);
    cli.fails(&["swapout", "--to", "nowhere"], 1, &["nowhere", "is as before"]);
    fs::create_dir_all(&place).expect("a directory");
    if cli.protect(&place) {
        cli.fails(&["swapout", "--to", "nas"], 1, &["was not swapped out", "is as before"]);
        cli.unprotect(&place);
    }
    // It fails when its machines stand for it: those stay so that stood before, and `resume` wakes them.
    let packs = cli.store().join("packs");
    if cli.protect(&packs) {
        cli.fails(&["swapout"], 1, &["was not swapped out", "runs on as before"]);
        assert_eq!(cli.machine("main")["state"], "running");
        cli.ok(&["pause"]);
        cli.fails(&["swapout"], 1, &["was not swapped out", "is as before"]);
        assert_eq!(cli.machine("main")["state"], "paused");
        cli.unprotect(&packs);
        cli.ok(&["resume"]);
    }
    cli.ok(&["fork", "--name", "second"]);
    cli.fails(&["swapout"], 1, &["several runs", "second"]);
    cli.ok(&["down", "second"]);
    assert_eq!(cli.machine("main")["state"], "running");
    assert_kept(&cli);
    // Somebody else went on from there, elsewhere.
    cli.ok(&["push", "nas"]);
    cli.ok(&["swapout", "--to", "nas", "--keep"]);
    let other = Cli::new();
    other.ok(&["swapin", NAME, "--from", text(&place), "--eager"]);
    other.ok(&["remote", "add", "nas", text(&place), "--plain"]);
    other.ok(&["swapout", "--to", "nas"]);
    let head = string(&array(&cli.json(&["log"]))[0]["id"]).to_owned();
    cli.ok(&["goto", &head, "-e", NAME]);
    cli.ok(&["checkpoint"]);
    cli.fails(&["swapout", "--to", "nas"], 1, &["main is elsewhere", "is as before"]);
    assert_kept(&cli);
    cli.ok(&["down"]);
}
