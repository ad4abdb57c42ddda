//! What guests see of the world outside: the time, names, and nothing else.

use fermata_linux::clock::{tsc_khz, wall_ns};
use fermata_testkit::{
    Cli,
    cli::{await_that, count},
    guests,
};
use std::{
    fs::File,
    io,
    net::{Ipv4Addr, UdpSocket},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

const SOON: Duration = Duration::from_secs(120);
const SERVER: &str = "198.18.0.1";
const SECOND: i64 = 1_000_000_000;
/// How long guests stand still, and what a clock that shows it would show at least.
const STANDS: Duration = Duration::from_secs(6);
const SHOWN: i64 = 4 * SECOND;

/// Puts a client of NTP into a guest.
fn bring_sntp(cli: &Cli, machine: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/system/sntp.c");
    let program = cli.path().join("sntp");
    let built = Command::new("gcc").args(["-static", "-O1", "-Wall", "-s", "-o"]).arg(&program).arg(source).status();
    assert!(built.is_ok_and(|status| status.success()), "gcc is there: scripts/setup");
    let mut command = cli.command(&["exec", "--input", machine, "--", "sh", "-c", "cat > /tmp/sntp; chmod 755 /tmp/sntp"]);
    assert!(command.stdin(File::open(program).expect("it was built")).status().is_ok_and(|status| status.success()));
}

/// What a server says the time is, and what the guest's clock shows.
#[track_caller]
fn time(cli: &Cli, machine: &str) -> (i64, i64) {
    let said = cli.shell(machine, &format!("/tmp/sntp {SERVER} 123"));
    let numbers: Vec<i64> = said.split(' ').filter_map(|number| number.parse().ok()).collect();
    let [server, guest] = numbers[..] else { panic!("{machine} was told {said:?}") };
    (server, guest)
}

fn host_time() -> i64 {
    i64::try_from(wall_ns()).expect("not yet")
}

fn up(cli: &Cli, name: &str, nodes: &[(&str, &str, &str)], links: &str) {
    cli.write("machines.yaml", &format!("{}{links}", guests::several(name, 128, nodes)));
    cli.ok(&["up", "machines.yaml"]);
    for (machine, ..) in nodes {
        let there = || cli.run(&["exec", machine, "--", "sh", "-c", "ip address | grep 198.18.0.15"]).status.success();
        await_that("the guest has the address of its control interface", SOON, there);
    }
}

#[test]
fn a_guest_is_told_names_and_the_virtual_time() {
    let cli = Cli::new();
    let a = "    services: [ntp, dns]\n    ports: [9]\n    interfaces: {eth1: {ipv4: 10.8.0.1/24}}\n";
    let b = "    services: [ntp]\n    clock: +2h\n    interfaces: {eth1: {ipv4: 10.8.0.2/24}}\n";
    let nodes = [("a", "fermata.run=none", a), ("b", "fermata.run=none", b)];
    up(&cli, "outside", &nodes, "links:\n  - endpoints: [\"a:eth1\", \"b:eth1\"]\n");
    names_are_told(&cli);
    ["a", "b"].into_iter().for_each(|machine| bring_sntp(&cli, machine));
    rates_are_not_guessed(&cli);
    nothing_else_is_reached(&cli);

    let (server, guest) = time(&cli, "a");
    let (behind, ahead) = time(&cli, "b");
    // QEMU sets the clock to the second, and the guest reads it to the second when it boots; how long QEMU takes to start is not in it.
    assert!((server - guest).abs() < 2 * SECOND, "the guest's clock is off by {} ns", server - guest);
    let off = ahead - behind - 7200 * SECOND;
    assert!(off.abs() < 2 * SECOND, "the other one is two hours ahead, and is told the right time; it is off by {off} ns");
    let checkpoint = cli.checkpoint("before");
    let stays = |what: &str| {
        let (now, shown) = time(&cli, "a");
        let moved = (now - shown) - (server - guest);
        assert!(moved.abs() < SHOWN, "{what}: the guest is told that its clock moved by {moved} ns");
        now
    };
    // Asking takes long on a busy host: what counts is what the host's clock showed before.
    let lies_behind = |what: &str| {
        let behind = || {
            let before = host_time();
            before - stays(what) > SHOWN
        };
        await_that("time has passed outside, and not in here", SOON, behind);
    };
    cli.ok(&["pause"]);
    thread::sleep(STANDS);
    cli.ok(&["resume"]);
    lies_behind("after a pause");
    cli.ok(&["goto", &checkpoint]);
    lies_behind("after a journey");
    names_are_told(&cli);
    cli.ok(&["down"]);
    thread::sleep(STANDS);
    cli.ok(&["goto", "-e", "outside", &checkpoint]);
    lies_behind("in another keeper");
    cli.ok(&["down"]);
}

/// A kernel that measures its counter on a busy host may find a rate that is many times too small.
fn rates_are_not_guessed(cli: &Cli) {
    let khz = tsc_khz().expect("the processor has a counter") as f64;
    for machine in ["a", "b"] {
        let told = cli.shell(machine, "dmesg | sed -n 's/.*tsc: Detected \\([0-9.]*\\) MHz.*/\\1/p'");
        let taken = told.lines().next_back().and_then(|mhz| mhz.parse::<f64>().ok()).unwrap_or_else(|| panic!("{machine}: {told}"));
        assert!((taken * 1e3 / khz - 1.0).abs() < 0.005, "{machine} takes its counter for one of {taken} MHz; it has {khz} kHz");
    }
}

fn names_are_told(cli: &Cli) {
    for (name, address) in [("b", "10.8.0.2"), ("eth1.b.outside", "10.8.0.2"), ("a.outside", "10.8.0.1")] {
        let said = cli.shell("a", &format!("nslookup -type=a {name} {SERVER}"));
        assert!(said.lines().any(|line| line.starts_with("Address") && line.ends_with(address)), "{said}");
    }
    let said = cli.shell("a", &format!("nslookup -type=ptr 2.0.8.10.in-addr.arpa {SERVER}"));
    assert!(said.contains("name = b.outside"), "{said}");
    let said = cli.run(&["exec", "a", "--", "nslookup", "-type=a", "example.com", SERVER]);
    assert!(format!("{}{}", said.stdout, said.stderr).contains("REFUSED"), "{said:?}");
    let said = cli.run(&["exec", "b", "--", "nslookup", "-type=a", "a", SERVER]);
    assert!(!said.stdout.contains("10.8.0.1"), "b asked for no names: {said:?}");
}

/// Datagrams of the guest get nowhere but to who answers them.
fn nothing_else_is_reached(cli: &Cli) {
    let host = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
    host.set_nonblocking(true).expect("a socket");
    let port = host.local_addr().expect("an address").port();
    let places = [(SERVER, port), ("198.18.0.2", port), ("198.18.0.2", 53), ("198.18.0.3", 53), ("127.0.0.1", port)];
    // All at once, for each is asked again and again.
    let asked: String = places.iter().map(|(address, port)| format!("/tmp/sntp {address} {port} & ")).collect();
    assert_eq!(cli.shell("a", &format!("{asked}wait")), ["silence"; 5].join("\n"), "{asked}");
    assert_eq!(host.recv(&mut [0; 64]).expect_err("nobody comes").kind(), io::ErrorKind::WouldBlock);
    for address in [SERVER, "198.18.0.2"] {
        let connected = format!("nc -w 2 {address} 53 </dev/null 2>/dev/null && echo in || echo out");
        assert_eq!(cli.shell("a", &connected), "out", "{address}");
    }
}

#[test]
fn a_guest_wakes_to_the_real_time_if_it_is_to() {
    let cli = Cli::new();
    let nodes = [
        ("r", "fermata.run=none", "    clock: real\n    services: [ntp]\n"),
        ("o", "fermata.run=none", "    clock: real -1h\n    services: [ntp]\n"),
        ("v", "fermata.run=none", "    clock: virtual\n    services: [ntp]\n"),
    ];
    up(&cli, "waking", &nodes, "");
    ["r", "o", "v"].into_iter().for_each(|machine| bring_sntp(&cli, machine));
    let up_before = cli.uptime("r");
    let checkpoint = cli.checkpoint("before");
    let wakes = |what: &str| {
        let right = |machine: &str, ahead: i64| {
            let asked = host_time();
            let (server, guest) = time(&cli, machine);
            assert!(server >= asked, "{what}: {machine} is told {server} ns, which is not the real time");
            (guest - server - ahead).abs() < 2 * SECOND
        };
        await_that("its clock is right", SOON, || right("r", 0) && right("o", -3600 * SECOND));
        let sleeps = || {
            let asked = host_time();
            let (server, guest) = time(&cli, "v");
            asked - server > SHOWN && asked - guest > SHOWN
        };
        await_that("the third has slept and does not know", SOON, sleeps);
    };
    thread::sleep(STANDS);
    cli.ok(&["goto", &checkpoint]);
    wakes("after a journey");
    assert!(cli.uptime("r") - up_before < STANDS.as_secs_f64() * 100.0, "only the time of day was set");
    cli.ok(&["pause"]);
    thread::sleep(STANDS);
    cli.ok(&["resume"]);
    wakes("after a pause");
    cli.ok(&["fork", &checkpoint, "--name", "other"]);
    let forked = || {
        let asked = host_time();
        let (server, guest) = time(&cli, "other:r");
        (server - guest).abs() < 2 * SECOND && server >= asked
    };
    await_that("a fork wakes to it too", SOON, forked);
    cli.ok(&["down"]);
}

#[test]
fn a_replay_is_perturbed_if_it_is_to_be() {
    let cli = Cli::new();
    let (a, b) = ("    interfaces: {eth1: {ipv4: 10.8.1.1/24}}\n", "    interfaces: {eth1: {ipv4: 10.8.1.2/24}}\n");
    let nodes = guests::several("perturbed", 128, &[("a", "fermata.run=none", a), ("b", "fermata.run=none", b)]);
    cli.write("machines.yaml", &format!("{nodes}links:\n  - endpoints: [\"a:eth1\", \"b:eth1\"]\n    delay: 10ms\n"));
    cli.ok(&["up", "machines.yaml"]);
    let ping = "ping -c 1 -W 20 10.8.1.2 > /dev/null && echo through";
    await_that("the guests reach each other", SOON, || cli.run(&["exec", "a", "--", "sh", "-c", ping]).stdout.trim() == "through");
    let plain = cli.checkpoint("plain");
    let perturbation = |id: &str| cli.json(&["show", id])["perturbation"].clone();
    assert!(perturbation(&plain).is_null() && cli.json(&["ls"])[0]["runs"][0]["perturbation"].is_null());

    let went = cli.json(&["goto", &plain, "--perturb=7", "--within", "900ms"]);
    let expected = serde_json::json!({"seed": 7, "timing": true, "within_ns": 900_000_000});
    assert_eq!((&went["perturbation"], &cli.json(&["ls"])[0]["runs"][0]["perturbation"]), (&expected, &expected));
    // What is drawn from this seed is drawn for ever.
    let times = cli.shell("a", "ping -c 6 -W 10 10.8.1.2 | sed -n 's/.*time=\\([0-9]*\\)[0-9.]* ms/\\1/p'");
    let longest = times.lines().filter_map(|ms| ms.parse::<u64>().ok()).max().unwrap_or_default();
    assert!(longest > 200, "no frame was late: {times:?}");
    let later = cli.checkpoint("perturbed");
    assert_eq!(perturbation(&later), expected);
    assert!(cli.ok(&["log"]).contains("[perturbed 7] perturbed"));
    assert!(cli.ok(&["show", &later]).contains("seed 7: timing within 900 ms"));

    assert!(cli.json(&["goto", &plain])["perturbation"].is_null(), "all is as it was");
    assert_eq!(cli.json(&["goto", &later])["perturbation"], expected, "as it was there");
    let drawn = cli.json(&["fork", &plain, "--name", "drawn", "--perturb", "--vary", "order,luck"]);
    let seed = count(&drawn["perturbation"]["seed"]);
    assert_eq!(drawn["perturbation"], serde_json::json!({"seed": seed, "order": true, "luck": true, "within_ns": 1_000_000}));
    assert_eq!(cli.shell("drawn:a", ping), "through");
    let script = "ping -c 1 -W 20 10.8.1.2 > /dev/null && echo $PERTURB";
    let tried = cli.json(&["try", &plain, "--each", "perturb=1,2", "--vary", "order", "--within", "5ms", "--in", "a", "--run", script]);
    let said: Vec<_> =
        tried["trials"].as_array().into_iter().flatten().map(|trial| trial["stdout"].as_str().unwrap_or_default().trim()).collect();
    assert_eq!(said, ["1", "2"], "{tried}");
    cli.fails(&["fork", "--vary", "order"], 2, &["add --perturb"]);
    cli.ok(&["down"]);
    // A keeper that is started for it, on the way to an instant.
    // An instant has nine digits behind its point, and a float has more for some.
    let at = format!("{:.9}s", count(&cli.json(&["show", &plain])["time_virtual_ns"]) as f64 / 1e9 + 1.0);
    let went = cli.json(&["goto", "-e", "perturbed", &at, "--branch", "main", "--perturb=9"]);
    assert_eq!(went["perturbation"]["seed"], 9, "{went}");
    cli.ok(&["down"]);
}

#[test]
fn what_has_no_links_cannot_be_perturbed() {
    let cli = Cli::new();
    cli.write("machine.yaml", &guests::tiny("alone", "fermata.run=tick", ""));
    cli.ok(&["up", "machine.yaml"]);
    let id = cli.checkpoint("alone");
    cli.fails(&["goto", &id, "--perturb=7"], 1, &["has no links that could do otherwise", "leave --perturb out"]);
    cli.ok(&["goto", &id]);
    cli.ok(&["down"]);
}
