//! Links that are changed while they are in use, by hand and by events, and what a `goto` makes of it.

use fermata_net::{Block, Packet, Recorded, Way, pcapng};
use fermata_testkit::{
    Cli,
    cli::{self, array, await_that, count, string},
    guests,
};
use std::{
    fs, io,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

const SOON: Duration = Duration::from_secs(120);
/// Of an echo of 8900 bytes, with the headers of ICMP, IPv4 and Ethernet.
const JUMBO: usize = 8900 + 8 + 20 + 14;
/// Frames that wait at a port of the LAN that is flooded.
const QUEUE: u64 = 20;
/// What prints the address that the guest has been given.
const IPV4: &str = "ip -4 -o address show dev eth1 | sed 's,.* inet ,,; s,/.*,,'";

#[test]
fn links_change_by_hand_and_by_events_and_change_back_on_a_journey() {
    let cli = Cli::new();
    let (a, b) = ("    interfaces: {eth1: {ipv4: 10.9.0.1/24}}\n", "    interfaces: {eth1: {ipv4: 10.9.0.2/24}}\n    clock: +2h\n");
    let nodes = guests::several("links", 128, &[("a", "fermata.run=none", a), ("b", "fermata.run=none", b)]);
    let links = "links:\n  - endpoints: [\"a:eth1\", \"b:eth1\"]\n    delay: 10ms\n    mtu: 9000\n";
    let events = "events:\n  - {at: 30s, exec: b, run: \"echo here >> /tmp/event\"}\n  - {at: 30s, link: \"a:eth1\", delay: 30ms}\n  \
                  - {at: 30s, link: \"b:eth1\", down: true}\n";
    cli.write("links.yaml", &format!("{nodes}{links}{events}"));
    cli.ok(&["up", "links.yaml"]);
    let early = cli.checkpoint("early");
    assert_eq!(delay(&cli), 10_000_000);
    let mut late = String::new();
    for journey in 0..2 {
        the_events_happen(&cli);
        if journey == 0 {
            late = cli.checkpoint("late");
            let clock = |machine: &str| cli.shell(machine, "date +%s").parse::<i64>().expect("seconds");
            assert!((clock("b") - clock("a") - 7200).abs() < 60, "{} and {}", clock("a"), clock("b"));
            offers_nothing(&cli);
            let capture = capture(&cli);
            jumbo(&cli);
            cli.ok(&["goto", &late]);
            assert_eq!(delay(&cli), 30_000_000, "a link is restored as it was");
            jumbo(&cli);
            look_at_the_capture(&cli, capture);
            cli.ok(&["goto", &early]);
            assert_eq!(delay(&cli), 10_000_000, "and as it was before");
        }
    }
    // What a guest was once told to do it is not told again: it may have had reasons to undo it.
    cli.shell("a", "ip address del 10.9.0.1/24 dev eth1");
    let without = cli.checkpoint("without an address");
    cli.ok(&["goto", &without]);
    assert!(!cli.shell("a", "ip address show dev eth1").contains("10.9.0.1"));
    cli.ok(&["goto", &late]);
    assert_eq!(cli.shell("b", "cat /tmp/event"), "here", "what had happened at the checkpoint did not happen again");
    what_is_told(&cli, &early, &late);
    a_fork_has_the_addresses(&cli, &late);
    changes_by_hand(&cli);
    captures_end(&cli);
}

fn delay(cli: &Cli) -> u64 {
    count(&cli.json(&["link", "b:eth1"])[0]["received"]["shape"]["delay_ns"])
}

/// Also while a guest boots, when its agent does not answer yet.
fn says(cli: &Cli, machine: &str, script: &str, what: &str) -> bool {
    cli.run(&["exec", machine, "--", "sh", "-c", script]).stdout.trim() == what
}

fn carriers(cli: &Cli, carrier: &str) {
    let seen = || ["a", "b"].into_iter().all(|machine| says(cli, machine, "cat /sys/class/net/eth1/carrier", carrier));
    await_that("both guests see whether there is a carrier", SOON, seen);
}

/// The file, the delay, and the cable that is pulled out. It is plugged in again by hand.
fn the_events_happen(cli: &Cli) {
    let happened = || says(cli, "b", "cat /tmp/event", "here") && delay(cli) == 30_000_000;
    await_that("the events happen, once each", SOON, happened);
    let time = || count(&cli.json(&["ls"])[0]["runs"][0]["time_virtual_ns"]);
    assert!(time() >= 30_000_000_000, "{}", time());
    await_that("the cable is out", SOON, || cli.json(&["link", "a:eth1"])[0]["up"] == false);
    // Also on the journey to before they were given them.
    let addresses = || [("a", "10.9.0.1"), ("b", "10.9.0.2")].into_iter().all(|(machine, address)| says(cli, machine, IPV4, address));
    await_that("the guests have their addresses", SOON, addresses);
    carriers(cli, "0");
    cli.ok(&["link", "a:eth1", "--up"]);
    let answers = || says(cli, "a", "ping -c 1 -W 2 10.9.0.2 >/dev/null && echo back", "back");
    await_that("the guests reach each other", SOON, answers);
}

/// The topology in `show`, as it was at each checkpoint, and interfaces for the tab key.
fn what_is_told(cli: &Cli, early: &str, late: &str) {
    for (checkpoint, both_ways) in [(early, "a:eth1  ◄───►  b:eth1  10ms"), (late, "a:eth1  ◄───►  b:eth1  30ms")] {
        let shown = cli.ok(&["show", checkpoint]);
        assert!(shown.contains(&format!("\nNetwork\n  {both_ways}\n")), "{shown}");
    }
    cli.ok(&["link", "b:eth1", "--down"]);
    let down = cli.checkpoint("without a cable");
    assert!(cli.ok(&["show", &down]).contains("\n  a:eth1  ◄───►  b:eth1  down\n"));
    assert_eq!(cli.json(&["show", &down])["down"], serde_json::json!([0, 1]));
    cli.ok(&["link", "b:eth1", "--up"]);
    let offered = |line: &[&str]| {
        let mut command = cli.command(&[&["--", "fermata"], line].concat());
        let answer = command.env("FERMATA_COMPLETE", "bash").output().expect("it runs");
        String::from_utf8(answer.stdout).expect("text").lines().map(str::to_owned).collect::<Vec<_>>()
    };
    // A host that is very busy may take longer than anybody waits for the tab key.
    for (line, expected) in [
        (&["link", "a:"][..], &["a:eth1"][..]),
        (&["capture", "b:eth1", "main:"], &["main:a:eth1", "main:b:eth1"]),
        (&["exec", ""], &["a", "b"]),
        (&["goto", "--run", "m"], &["main"]),
        (&["show", "mai"], &["main"]),
    ] {
        await_that(&format!("{line:?} is completed"), SOON, || {
            let offered = offered(line);
            expected.iter().all(|name| offered.iter().any(|is| is == name))
        });
    }
    assert!(offered(&["link", "c:"]).is_empty());
}

/// Nobody else is in its network.
fn a_fork_has_the_addresses(cli: &Cli, of: &str) {
    cli.ok(&["fork", of, "--name", "twin"]);
    for machine in ["a", "b"] {
        let twin = format!("twin:{machine}");
        for what in [IPV4, "cat /sys/class/net/eth1/address"] {
            assert_eq!(cli.shell(&twin, what), cli.shell(machine, what));
        }
        let mac = |of: &str| cli.json(&["link", &format!("{of}:eth1")])[0]["mac"].clone();
        assert_eq!((mac(&twin), mac(&twin)), (mac(machine), cli.shell(machine, "cat /sys/class/net/eth1/address").into()));
    }
    cli.shell("twin:a", "ping -c 1 -W 20 10.9.0.2");
    cli.ok(&["down", "twin"]);
}

fn changes_by_hand(cli: &Cli) {
    let ends = cli.json(&["link", "a:eth1", "--delay", "50ms", "--loss", "2%", "--sent"]);
    assert_eq!((array(&ends).len(), string(&ends[0]["to"])), (1, "b:eth1"));
    assert_eq!(count(&ends[0]["sent"]["shape"]["delay_ns"]), 50_000_000);
    assert_eq!(count(&ends[0]["sent"]["shape"]["loss"]), 20_000_000);
    assert_eq!(count(&ends[0]["received"]["shape"]["delay_ns"]), 30_000_000);
    assert_eq!(delay(cli), 50_000_000, "the other end of the same cable");
    let ends = cli.json(&["link", "a:eth1", "--jitter", "3ms", "--queue", "77", "--duplicate", "5%", "--reorder", "1%", "--received"]);
    let shape = &ends[0]["received"]["shape"];
    let said = ["jitter_ns", "queue", "duplicate", "reorder"].map(|key| count(&shape[key]));
    assert_eq!(said, [3_000_000, 77, 50_000_000, 10_000_000]);
    // Five of a hundred replies come twice; of two hundred none does in one of some 30,000 times.
    let pinged = cli.shell("a", "ping -c 200 -i 0.02 -W 20 10.9.0.2 | tail -n 2");
    let ends = cli.json(&["link", "a:eth1", "--jitter", "0ms", "--queue", "1000", "--duplicate", "0%", "--reorder", "0%", "--received"]);
    assert!(count(&ends[0]["received"]["counters"]["duplicated"]) > 0, "{pinged}");
    carriers(cli, "1");
    assert_eq!(cli.json(&["link", "main:a:eth1", "--down"])[0]["up"], false);
    assert!(cli.ok(&["link"]).contains("down"));
    carriers(cli, "0");
    let down = cli.checkpoint("without a carrier");
    assert_eq!(cli.json(&["link", "b:eth1", "--up"])[0]["up"], true);
    carriers(cli, "1");
    cli.ok(&["goto", &down]);
    carriers(cli, "0");
    cli.ok(&["link", "b:eth1", "--up", "--loss", "0%"]);
    carriers(cli, "1");
    let codel = cli.json(&["link", "a:eth1", "--discipline", "codel", "--rate", "100Mbit"]);
    assert_eq!(["sent", "received"].map(|way| string(&codel[0][way]["shape"]["discipline"])), ["codel"; 2]);
    assert!(cli.ok(&["link"]).contains(", codel"));
    jumbo(cli);
    let tail = cli.json(&["link", "a:eth1", "--discipline", "drop-tail", "--received"]);
    assert_eq!(["sent", "received"].map(|way| string(&tail[0][way]["shape"]["discipline"])), ["codel", "drop-tail"]);
    jumbo(cli);
    cli.fails(&["link", "a:eth7"], 1, &["no interface \"a:eth7\"", "a:eth1, b:eth1"]);
    cli.fails(&["link", "--delay", "1ms"], 1, &["name one of its interfaces"]);
    cli.fails(&["link", "a:eth1", "--jitter", "1h"], 1, &["nothing was changed", "jitter"]);
    cli.fails(&["link", "a:eth1", "--discipline", "fifo"], 2, &["drop-tail, codel"]);
}

fn captures_end(cli: &Cli) {
    let ends = cli.json(&["capture", "b:eth1", "--for", "1us", "-o", "brief.pcapng"]);
    assert_eq!((string(&ends["interfaces"][0]["interface"]), string(&ends["file"])), ("b:eth1", "brief.pcapng"));
    assert_eq!(count(&ends["interfaces"][0]["missed"]), 0);
    assert!(fs::metadata(cli.path().join("brief.pcapng")).is_ok_and(|file| file.len() > 0));
    cli.fails(&["capture", "a:eth7", "-o", "none.pcapng"], 1, &["no interface \"a:eth7\""]);
    assert!(!cli.path().join("none.pcapng").exists());
    let mut capture = capture(cli);
    cli.ok(&["down"]);
    assert!(cli::end(&mut capture, SOON).is_some_and(|status| status.success()), "a capture ends with its run");
}

/// A LAN of 1 Mbit/s a port, where two send to the third: one twice what a port takes, and one as fast as it can.
#[test]
fn a_guest_that_floods_a_lan_leaves_another_its_share() {
    let cli = Cli::new();
    let node = |number: u32| format!("    interfaces: {{eth1: {{ipv4: 10.9.0.{number}/24, mac: \"02:00:00:00:00:0{number}\"}}}}\n");
    let [a, b, c] = [1, 2, 3].map(node);
    let nodes =
        guests::several("flood", 128, &[("a", "fermata.run=none", &a), ("b", "fermata.run=none", &b), ("c", "fermata.run=none", &c)]);
    let lan = format!("links:\n  - {{lan: net, endpoints: [\"a:eth1\", \"b:eth1\", \"c:eth1\"], rate: 1Mbit, queue: {QUEUE}}}\n");
    cli.write("flood.yaml", &format!("{nodes}{lan}"));
    cli.ok(&["up", "flood.yaml"]);
    for machine in ["a", "c"] {
        let answers = || cli.run(&["exec", machine, "--", "ping", "-c", "1", "-W", "2", "10.9.0.2"]).status.success();
        await_that("the guests have their addresses", SOON, answers);
    }
    cli.shell("b", "beat sink /tmp/sunk 100000 >/dev/null 2>&1 &");
    cli.shell("c", "beat flood 10.9.0.2 1000000000 1000 0 >/dev/null 2>&1 &");
    cli.shell("a", "beat flood 10.9.0.2 1000000000 1000 250 >/dev/null 2>&1 &");
    let dropped = || count(&cli.json(&["link", "b:eth1"])[0]["received"]["counters"]["dropped"]["queue"]);
    await_that("the port is full", SOON, || dropped() > 0);
    let before = dropped();
    cli.ok(&["capture", "a:eth1", "b:eth1", "--for", "4s", "-o", "flood.pcapng"]);
    assert!(dropped() > before, "there was no flood");
    let bytes = fs::read(cli.path().join("flood.pcapng")).expect("the capture");
    let seen = |at: u32, way: Way, from: u8| {
        let from_it = |block: &Block<'_>| match block {
            Block::Packet(packet) => {
                ((packet.interface, packet.way) == (at, way) && packet.frame[6..12] == [2, 0, 0, 0, 0, from]).then_some(packet.at.ns)
            }
            _ => None,
        };
        blocks(&bytes).iter().filter_map(from_it).collect::<Vec<_>>()
    };
    let reached = through_a_port(&seen(0, Way::Sent, 1));
    let [ours, flood] = [1, 3].map(|from| seen(1, Way::Received, from).len() as u64);
    println!("{ours} frames of {reached} that came to the switch, beside {flood} of the flood");
    // However unsteadily a busy host lets it send: its port brings no more than the other one takes, so half of that is its share at any time.
    assert!(reached > 4 * QUEUE, "too few to say anything");
    assert!(ours + QUEUE >= reached * 9 / 20, "less than its share");
    cli.ok(&["down"]);
}

/// How many of the datagrams that were sent at these times come through a port of that LAN to the switch.
fn through_a_port(sent: &[u64]) -> u64 {
    // With headers of UDP, IPv4 and Ethernet.
    let each = (1000 + 8 + 20 + 14) * 8 * 1_000_000_000 / 1_000_000;
    let (mut free, mut through) = (0, 0);
    for at in sent {
        if free <= at + QUEUE * each {
            free = free.max(*at) + each;
            through += 1;
        }
    }
    through
}

/// A driver is offered neither checksums nor segmentation, and no buffers to be merged: of bits 0 to 15 none but for the MTU, the address, and a switch for
/// offloads that are not there.
fn offers_nothing(cli: &Cli) {
    let bits = cli.shell("a", "cat /sys/class/net/eth1/device/features");
    let offered: Vec<_> = (0..16).filter(|bit| bits.as_bytes()[*bit] == b'1').collect();
    assert_eq!(offered, [2, 3, 5], "{bits}");
    assert_eq!(cli.shell("a", "cat /sys/class/net/eth1/mtu"), "9000");
}

/// An echo in one frame each way.
fn jumbo(cli: &Cli) {
    cli.shell("a", "ping -c 1 -W 20 -s 8900 10.9.0.2");
}

/// Begins a capture of both ends of the cable.
fn capture(cli: &Cli) -> Child {
    let file = cli.path().join("wire.pcapng");
    let _ = fs::remove_file(&file);
    let mut command = cli.command(&["capture", "a:eth1", "b:eth1", "-o", "wire.pcapng"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    await_that("the capture begins", SOON, || fs::metadata(&file).is_ok_and(|file| file.len() > 0));
    child
}

/// It goes on through a journey, has each frame at both ends, never early, and ends when it is told to.
fn look_at_the_capture(cli: &Cli, mut capture: Child) {
    let file = cli.path().join("wire.pcapng");
    let is_whole = || jumbos(&fs::read(&file).unwrap_or_default()).len() >= 8;
    await_that("all echoes are in the capture", SOON, is_whole);
    let interrupted = Command::new("sh").args(["-c", &format!("kill -INT {}", capture.id())]).status().expect("sh runs");
    assert!(interrupted.success());
    assert!(cli::end(&mut capture, SOON).expect("it ends").success());
    let bytes = fs::read(&file).expect("the capture");
    let packets = jumbos(&bytes);
    assert_eq!(packets.len(), 8, "two echoes, there and back, at both ends");
    for pair in packets.chunks(2) {
        let [sent, received] = pair else { unreachable!() };
        assert_eq!((sent.way, received.way, sent.interface), (Way::Sent, Way::Received, 1 - received.interface));
        assert!(sent.frame == received.frame, "what was sent is received");
        assert!(received.at.ns >= sent.at.ns + 30_000_000, "{} and {}: early", sent.at, received.at);
    }
    let Some(Block::Statistics(1, _, Recorded { missed: 0, .. })) = blocks(&bytes).pop() else { panic!("no counts at the end") };
    others_read_the_same(&file, &bytes);
}

/// Wireshark's own programs, where they are, find the same frames in it, at the same times and interfaces.
fn others_read_the_same(file: &Path, bytes: &[u8]) {
    let frames: Vec<_> = blocks(bytes)
        .into_iter()
        .filter_map(|block| match block {
            Block::Packet(packet) => {
                let (seconds, ns) = (packet.at.ns / 1_000_000_000, packet.at.ns % 1_000_000_000);
                Some(format!("{}\t{seconds}.{ns:09}\t{}", packet.frame.len(), packet.interface))
            }
            _ => None,
        })
        .collect();
    let read = |program: &str, options: &[&str]| {
        let done = match Command::new(program).args(options).arg(file).output() {
            Ok(done) => done,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fermata_testkit::skipped!("whether {program} reads a capture, for want of it");
                return None;
            }
            Err(error) => panic!("{program}: {error}"),
        };
        assert!(done.status.success(), "{program}: {done:?}");
        Some(String::from_utf8(done.stdout).expect("text"))
    };
    if let Some(said) =
        read("tshark", &["-n", "-T", "fields", "-e", "frame.len", "-e", "frame.time_epoch", "-e", "frame.interface_id", "-r"])
    {
        assert_eq!(said.lines().collect::<Vec<_>>(), frames);
    }
    if let Some(said) = read("capinfos", &["-T", "-r", "-m", "-c"]) {
        assert_eq!(said.trim().rsplit(',').next(), Some(frames.len().to_string().as_str()), "{said}");
    }
}

fn blocks(mut bytes: &[u8]) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    while let Some((block, length)) = pcapng::read(bytes).expect("blocks") {
        blocks.push(block);
        bytes = &bytes[length..];
    }
    blocks
}

fn jumbos(bytes: &[u8]) -> Vec<Packet<'_>> {
    let jumbo = |block| match block {
        Block::Packet(packet) if packet.frame.len() == JUMBO => Some(packet),
        _ => None,
    };
    blocks(bytes).into_iter().filter_map(jumbo).collect()
}
