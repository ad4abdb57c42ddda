//! Ports of a guest that are reached from this host: through checkpoints, journeys and forks, and never the other way round.

use fermata_testkit::{
    Cli,
    cli::{array, await_that, count, string},
    guests,
};
use std::{
    fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Command,
    time::Duration,
};

const SOON: Duration = Duration::from_secs(120);

/// A connection to a port of this host.
fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(SOON))?;
    Ok(stream)
}

/// Says something to a guest that sends everything back.
fn echo(mut stream: &TcpStream, word: &str) -> io::Result<()> {
    stream.write_all(word.as_bytes())?;
    let mut back = vec![0; word.len()];
    stream.read_exact(&mut back)?;
    assert_eq!(String::from_utf8_lossy(&back), word);
    Ok(())
}

/// Waits until the guest answers there.
#[track_caller]
fn answers(port: u16) {
    await_that("the guest answers", SOON, || connect(port).and_then(|stream| echo(&stream, "new")).is_ok());
}

/// Waits for the end of a connection whose guest is gone.
fn ends(mut stream: &TcpStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => panic!("the connection goes on"),
        _ => {}
    }
}

/// Where this host listens for a port of a machine of a run.
#[track_caller]
fn host_port(cli: &Cli, machine: &str, guest: u64) -> u16 {
    let ports = cli.json(&["ports", machine]);
    let found = array(&ports).iter().find(|port| count(&port["guest_port"]) == guest);
    let host = string(&found.unwrap_or_else(|| panic!("no port {guest}: {ports}"))["host"]);
    host.strip_prefix("127.0.0.1:").and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("{ports}"))
}

#[test]
fn people_come_in_and_the_guest_does_not_get_out() {
    let cli = Cli::new();
    // Somebody else has the port first.
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = other.local_addr().expect("an address").port();
    cli.write("machine.yaml", &guests::tiny("wayin", "fermata.run=none", &format!("    ports: [9, \"{port}:7\"]\n")));
    cli.fails(&["up", "machine.yaml"], 1, &[&format!("port {port} of 127.0.0.1"), "port 7 of m1", "in use", "any that is free"]);
    assert_eq!(cli.ok(&["ls", "--json"]), "[]\n");
    drop(other);
    cli.ok(&["up", "machine.yaml"]);
    assert_eq!(host_port(&cli, "m1", 7), port);
    serve(&cli);
    answers(port);

    // Through a pause and a checkpoint a connection goes on.
    let open = connect(port).expect("a connection");
    echo(&open, "before").expect("an echo");
    cli.ok(&["pause"]);
    (&open).write_all(b"!").expect("it is taken");
    cli.ok(&["resume"]);
    assert_eq!((&open).read(&mut [0; 8]).expect("it comes back"), 1);
    let talker = connect(host_port(&cli, "m1", 9)).expect("a connection");
    await_that("the talker talks", SOON, || (&talker).read(&mut [0; 64]).is_ok_and(|read| read > 0));
    let checkpoint = cli.checkpoint("with open connections");
    echo(&open, "behind").expect("an echo");
    the_guest_reaches_nothing(&cli);

    a_fork_has_ports_of_its_own(&cli, port);
    echo(&open, "beside a fork").expect("an echo");

    // A journey ends connections, at both ends; the port leads to where the machine is then.
    cli.ok(&["goto", &checkpoint]);
    ends(&open);
    ends(&talker);
    assert_eq!(host_port(&cli, "m1", 7), port);
    answers(port);
    await_that("the guest learns that nobody listens any more", SOON, || cli.shell("m1", "cat /tmp/ended") == "ended");

    more_ports(&cli, port);
    cli.ok(&["down"]);
    assert!(connect(port).is_err(), "nobody listens when nothing runs");
    cli.ok(&["goto", "-e", "wayin", &checkpoint]);
    answers(port);
    cli.ok(&["down"]);
}

/// Has the guest echo at port 7, and talk at port 9 until nobody listens.
fn serve(cli: &Cli) {
    let talk = "#!/bin/sh\ntrap \"\" PIPE\nwhile echo tick; do sleep 0.2; done 2>/dev/null\necho ended >/tmp/ended\n";
    let listen = |port: u32, what: &str| format!("(nc -ll -p {port} -e {what} </dev/null >/dev/null 2>&1 &)");
    let script = format!(
        "touch /tmp/ended; printf '{}' >/tmp/talk; chmod 755 /tmp/talk; {}; {}",
        talk.replace('\n', "\\n"),
        listen(7, "cat"),
        listen(9, "/tmp/talk")
    );
    cli.shell("m1", &script);
}

fn the_guest_reaches_nothing(cli: &Cli) {
    let host = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
    host.set_nonblocking(true).expect("a listener");
    let port = host.local_addr().expect("an address").port();
    assert_eq!(cli.shell("m1", "ip route | grep default || echo none"), "none");
    for address in ["198.18.0.2", "198.18.0.3"] {
        assert_eq!(cli.shell("m1", &format!("nc -w 2 {address} {port} </dev/null 2>/dev/null && echo in || echo out")), "out");
    }
    assert_eq!(host.accept().expect_err("nobody comes").kind(), io::ErrorKind::WouldBlock);
}

fn a_fork_has_ports_of_its_own(cli: &Cli, port: u16) {
    cli.ok(&["fork", "--name", "beside"]);
    let its = host_port(cli, "beside:m1", 7);
    assert_ne!(its, port);
    answers(its);
    answers(port);
    await_that("a connection from before is none of the fork's", SOON, || cli.shell("beside:m1", "cat /tmp/ended") == "ended");
    assert_eq!(cli.shell("m1", "cat /tmp/ended"), "", "and the parent's goes on");
    cli.ok(&["down", "beside"]);
    assert!(connect(its).is_err());
}

fn more_ports(cli: &Cli, port: u16) {
    let forward = cli.json(&["forward", "m1", "7"]);
    let host = string(&forward["host"]).rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    assert_eq!((string(&forward["machine"]), count(&forward["guest_port"])), ("main:m1", 7));
    assert_ne!(host, port);
    answers(host);
    assert_eq!(cli.json(&["forward", "m1", &format!("{port}:7")])["host"], format!("127.0.0.1:{port}"), "it is there already");
    cli.fails(&["forward", "m1", &format!("{port}:80")], 1, &[&format!("port {port} of 127.0.0.1 cannot lead to port 80 of m1")]);
    cli.fails(&["forward", "m1", "0"], 2, &["a port from 1 to 65535"]);
    assert!(cli.ok(&["ports"]).contains(&format!("127.0.0.1:{host}")));

    cli.fails(&["ssh", "m2"], 255, &["no machine \"m2\""]);
}

/// OpenSSH's client here, and a server in a guest: the words that `fermata ssh` gives the client are those that it wants.
#[test]
fn people_log_in_to_any_run_and_know_the_machine_again() {
    let cli = Cli::new();
    let keygen = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(cli.path().join("key")).status();
    assert!(keygen.is_ok_and(|status| status.success()), "ssh-keygen is there: scripts/setup");
    let node = ("m1", "fermata.run=none", "    ports: [22]\n");
    cli.write("machine.yaml", &guests::several_of(guests::SERVICES, "login", 192, &[node]));
    cli.ok(&["up", "machine.yaml"]);
    await_that("the agent answers", SOON, || cli.run(&["exec", "m1", "--", "true"]).status.success());
    let public = fs::read_to_string(cli.path().join("key.pub")).expect("a public key");
    cli.shell("m1", "mkdir -p /root/.ssh /etc/dropbear; mount -t devpts none /dev/pts; dropbear -R -E </dev/null >/tmp/log 2>&1");
    cli.shell("m1", &format!("echo '{}' > /root/.ssh/authorized_keys; chmod -R go= /root; echo one > /tmp/which", public.trim()));

    let key = cli.path().join("key");
    let login =
        |machine: &str, command: &str| cli.run(&["ssh", machine, "-i", &key.to_string_lossy(), "-o", "BatchMode=yes", "--", command]);
    let says = |machine: &str, which: &str| {
        let said = login(machine, "cat /tmp/which; exit 7");
        assert!(said.status.code() == Some(7) && said.stdout.trim() == which, "{machine}: {said:?}");
    };
    says("m1", "one");
    let checkpoint = cli.checkpoint("with a server");
    cli.ok(&["fork", &checkpoint, "--name", "other"]);
    cli.shell("other:m1", "echo two > /tmp/which");
    // By another port of this host, and yet no unknown host.
    says("other:m1", "two");
    says("m1", "one");
    cli.ok(&["goto", &checkpoint]);
    says("m1", "one");
    // Whoever answers with another key is not this machine.
    cli.shell("m1", "killall dropbear; rm -r /etc/dropbear/*; dropbear -R -E </dev/null >>/tmp/log 2>&1");
    let said = login("m1", "true");
    assert_eq!(said.status.code(), Some(255), "{said:?}");
    assert!(said.stderr.contains("REMOTE HOST IDENTIFICATION HAS CHANGED"), "{said:?}");
}
