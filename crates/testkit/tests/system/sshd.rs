//! What reaches other hosts, with Debian's own `sshd` before this one: ranks, and remotes. Those of MPI are in [`mpi_hosts`](super::mpi_hosts). This test binary is also the program of every rank. Some seconds.

use fermata_testkit::{
    Cli,
    cli::{array, await_that, command_line, count, end, kill, program},
    guests,
};
use serde_json::Value;
use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    net::{TcpListener, TcpStream},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};
use tempfile::TempDir;

#[path = "../../../process/examples/grid.rs"]
mod grid;

const SOON: Duration = Duration::from_secs(120);
const ITERATIONS: &str = "SSHD_TEST_ITERATIONS";
/// Other hosts, which are all this one.
const HOSTS: [&str; 3] = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];

/// No test: what a rank runs.
#[test]
fn a_rank() {
    if let Ok(iterations) = env::var(ITERATIONS) {
        let ended = grid::program(&[512, iterations.parse().expect("a number")]);
        assert_eq!(format!("{ended:?}"), format!("{:?}", ExitCode::SUCCESS));
    }
}

/// Servers with keys of their own, until they are dropped; and a client that knows both.
pub struct Sshd {
    children: Vec<Child>,
    port: u16,
    place: TempDir,
}

impl Sshd {
    /// One on this host. None where root may have no mounts of its own.
    fn begin() -> Option<Self> {
        let mut sshd = Self::listening(&HOSTS)?;
        sshd.serve(&[]);
        await_that("sshd listens", SOON, || HOSTS.iter().all(|host| TcpStream::connect((*host, sshd.port)).is_ok()));
        Some(sshd)
    }

    /// None yet, and all that it needs to listen at these addresses.
    pub fn listening(addresses: &[&str]) -> Option<Self> {
        let place = tempfile::tempdir().expect("a directory");
        let at = |name: &str| place.path().join(name).display().to_string();
        for key in ["host", "key"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]).status();
            assert!(made.is_ok_and(|status| status.success()), "ssh-keygen makes no key");
        }
        let host = fs::read_to_string(at("host.pub")).expect("a key");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port that is free").port();
        let listen: String = addresses.iter().map(|address| format!("ListenAddress {address}\n")).collect();
        // Keys below /tmp are in a directory that others may write to.
        let server = format!(
            "Port {port}\n{listen}HostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nPidFile none\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nSetEnv \"PATH={}:/usr/bin:/bin\"\n",
            at("host"),
            at("authorized"),
            program().parent().expect("it lies in a directory").display()
        );
        let client = format!(
            "Port {port}\nHostKeyAlias sshd\nStrictHostKeyChecking yes\nUserKnownHostsFile {}\nIdentityFile {}\nIdentitiesOnly yes\nServerAliveInterval 5\n",
            at("known"),
            at("key")
        );
        let script = format!("#!/bin/sh\nexec ssh -F {} \"$@\"\n", at("client"));
        for (name, content) in [("server", server), ("client", client), ("ssh", script), ("known", format!("sshd {host}"))] {
            fs::write(at(name), content).expect("room for it");
        }
        fs::set_permissions(at("ssh"), fs::Permissions::from_mode(0o755)).expect("it is ours");
        fs::copy(at("key.pub"), at("authorized")).expect("a copy");

        let run = guests::file("sshd/run");
        let tried = Command::new(&run).args(["-t", "-f", &at("server")]).output().expect("it runs");
        let why = String::from_utf8_lossy(&tried.stderr);
        if ["unshare:", "mount:"].iter().any(|program| why.starts_with(program)) {
            fermata_testkit::skipped!("sshd, for root may have no mounts of its own here");
            return None;
        }
        assert!(tried.status.success(), "{why}");
        Some(Self { children: Vec::new(), port, place })
    }

    /// One more, begun by these words.
    pub fn serve(&mut self, before: &[&str]) {
        let place = self.place.path();
        let log = File::options().create(true).append(true).open(place.join("log")).expect("a file");
        let run = guests::file("sshd/run");
        let words = before.iter().map(OsStr::new).chain([run.as_os_str(), OsStr::new("-D"), OsStr::new("-e"), OsStr::new("-f")]);
        let words: Vec<_> = words.map(OsStr::to_owned).chain([place.join("server").into_os_string()]).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.children.push(command.spawn().expect("it begins"));
    }

    /// What leads there, as `ssh` does.
    pub fn way(&self) -> PathBuf {
        self.place.path().join("ssh")
    }

    /// Somebody who comes in here, and has a program of ranks.
    fn user(&self) -> Cli {
        let mut cli = Cli::new();
        cli.set("FERMATA_SSH", self.way());
        symlink(env::current_exe().expect("the test has a path"), cli.path().join("grid")).expect("a link");
        cli
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(|child| _ = child.kill());
        self.children.iter_mut().for_each(|child| _ = child.wait());
    }
}

/// The words that run somebody's program. Its environment does not come along to other hosts.
fn words(cli: &Cli, options: &[&str]) -> Vec<String> {
    let program = ["env", &format!("{ITERATIONS}=12000"), &cli.path().join("grid").display().to_string()].map(str::to_owned);
    let options = [&["run-ranks", "-n", "4", "--name", "grid"], options].concat();
    let rank = ["--exact", "sshd::a_rank", "--quiet"];
    options.into_iter().map(str::to_owned).chain(program).chain(rank.map(str::to_owned)).collect()
}

/// The ranks that run, on whatever host.
fn ranks(cli: &Cli) -> Vec<u64> {
    let program = cli.path().join("grid");
    let is_rank = |pid: &u64| command_line(*pid).starts_with(program.as_os_str().as_bytes());
    cli.processes().into_iter().filter(is_rank).collect()
}

#[test]
fn ranks_run_where_sshd_lets_in_and_their_checkpoints_travel_by_it() {
    let Some(sshd) = Sshd::begin() else { return };
    let (here, there) = (sshd.user(), sshd.user());
    let said = File::create(here.path().join("said")).expect("a file");
    let mut run = here.command(&words(&here, &["--hosts", "127.0.0.2,127.0.0.3", "--every", "10ms", "--json"]));
    let mut run = run.stdout(said.try_clone().expect("a descriptor")).stderr(said).spawn().expect("it begins");
    let has_checkpoint = || here.run(&["log", "-e", "grid"]).status.success();
    await_that("ranks have a checkpoint", SOON, || ranks(&here).len() == 4 && has_checkpoint());
    kill(ranks(&here)[0]);
    let status = end(&mut run, SOON).expect("it ends");
    let said = fs::read_to_string(here.path().join("said")).expect("what it said");
    assert!(status.success() && said.contains("12000 iterations on 512 x 512 points, right"), "{status}: {said}");
    let ran: Value = said.lines().find_map(|line| serde_json::from_str(line).ok().filter(Value::is_object)).expect("an answer");
    assert!(count(&ran["rollbacks"]) >= 1, "{ran}");
    // Those of the earlier life, too: they are ended by nobody there.
    await_that("all ranks end", SOON, || here.processes().is_empty());

    let vault = format!("ssh://127.0.0.1:{}{}", sshd.port, here.path().join("it's a vault").display());
    here.ok(&["remote", "add", "vault", &vault, "--plain"]);
    let pushed = here.json(&["push", "vault", "-e", "grid"]);
    assert!(count(&pushed["checkpoints"]) > 0, "{pushed}");
    there.ok(&["clone", &vault]);
    assert!(array(&there.json(&["verify"])["damage"]).is_empty());
    let resumed = there.ok(&words(&here, &["--hosts", "127.0.0.2", "--every", "0s", "--resume"]));
    assert!(resumed.contains("12000 iterations on 512 x 512 points, right"), "{resumed}");
}

#[test]
fn who_is_not_let_in_hears_at_once_what_to_look_at() {
    let Some(sshd) = Sshd::begin() else { return };
    let here = sshd.user();
    fs::write(sshd.place.path().join("authorized"), "").expect("no key is taken");
    let refused = "Permission denied (publickey)";
    let words = words(&here, &["--hosts", "127.0.0.2,127.0.0.3"]);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let said = here.fails(&words, 1, &[refused, "no rank ever came from any host", "BatchMode=yes HOST true", "FERMATA_SSH"]);
    // Both at once, and then the one that is left.
    assert!(said.matches(refused).count() <= 3 && !said.contains("--every"), "{said}");
    here.fails(&["clone", &format!("ssh://127.0.0.1:{}/vault", sshd.port)], 1, &[refused]);
}
