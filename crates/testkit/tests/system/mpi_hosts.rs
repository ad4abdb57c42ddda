//! A program of MPI on two hosts, each with a network, a name and an `sshd` of its own: a rank dies, then a host is cut off, and the other one takes its ranks. A minute for each implementation.

use crate::sshd::Sshd;
use fermata_testkit::{
    Cli,
    cli::{await_that, command_line, end, kill},
    skipped,
};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

#[path = "../../../c/tests/common/mod.rs"]
mod library;

/// A host that is cut off is silent for 15 s, and then its `mpirun` has 12 to end.
const SOON: Duration = Duration::from_secs(300);
/// This host's in that network, where the coordinator listens.
const HERE: &str = "10.77.0.1";
const HOSTS: [&str; 2] = ["10.77.0.2", "10.77.0.3"];

#[test]
fn ranks_of_open_mpi_survive_a_host() {
    survives_a_host("openmpi");
}

#[test]
fn ranks_of_mpich_survive_a_host() {
    survives_a_host("mpich");
}

/// A process in a network of its own, which is a host's as long as it lives.
struct Host(Child);

impl Host {
    /// None where we may have no networks of our own.
    fn begin(name: &str) -> Option<Self> {
        let script = format!("hostname {name} && ip link set lo up && echo up && exec sleep 1000000");
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "sh", "-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let mut said = [0; 3];
        let up = std::io::Read::read_exact(child.stdout.as_mut().expect("it is piped"), &mut said).is_ok();
        // Dropped where it is not.
        let host = Self(child);
        up.then_some(host)
    }

    /// The words before those of a command that runs there.
    fn words(&self) -> [String; 6] {
        ["nsenter", "-t", &self.0.id().to_string(), "-n", "-u", "--"].map(str::to_owned)
    }

    /// Runs a command there, and says whether it succeeds.
    fn tries(&self, command: &str) -> bool {
        let words = self.words();
        Command::new(&words[0]).args(&words[1..]).args(command.split(' ')).status().is_ok_and(|status| status.success())
    }

    fn run(&self, command: &str) {
        assert!(self.tries(command), "{command}");
    }
}

impl Drop for Host {
    /// Whoever is left in its network, too: what Open MPI leaves on a host that is cut off asks for nobody.
    fn drop(&mut self) {
        let network = |pid: u64| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let (own, entries) = (network(self.0.id().into()), fs::read_dir("/proc").expect("/proc").flatten());
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // One that has ended has none.
        pids.filter(|pid| own.is_some() && network(*pid) == own).for_each(kill);
        let _ = self.0.wait();
    }
}

/// This host and the others in one network.
struct Network {
    here: Host,
    there: Vec<Host>,
}

impl Network {
    fn begin() -> Option<Self> {
        let here = Host::begin("here")?;
        // Some kernels have none.
        if !here.tries("ip link add name switch type bridge") {
            return None;
        }
        here.run(&format!("ip addr add {HERE}/24 dev switch"));
        here.run("ip link set switch up");
        let mut there = Vec::new();
        for (nth, address) in HOSTS.into_iter().enumerate() {
            let host = Host::begin(&format!("host{nth}"))?;
            here.run(&format!("ip link add port{nth} type veth peer name eth0 netns {}", host.0.id()));
            here.run(&format!("ip link set port{nth} master switch up"));
            host.run(&format!("ip addr add {address}/24 dev eth0"));
            host.run("ip link set eth0 up");
            there.push(host);
        }
        Some(Self { here, there })
    }

    fn cut(&self, nth: usize) {
        self.here.run(&format!("ip link set port{nth} down"));
    }

    /// The command, here.
    fn inside(&self, command: &Command) -> Command {
        let words = self.here.words();
        let mut inside = Command::new(&words[0]);
        inside.args(&words[1..]).arg(command.get_program()).args(command.get_args());
        inside.current_dir(command.get_current_dir().expect("it has one"));
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inside
    }
}

/// As a user compiles it.
fn compile(mpicc: &str, place: &Path) -> PathBuf {
    let (sources, program) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("../c"), place.join("jacobi"));
    let compiled = Command::new(mpicc)
        .args(["-std=c11", "-D_DEFAULT_SOURCE", "-O2", "-Wno-stringop-overflow"])
        .arg(sources.join("mpi/examples/jacobi.c"))
        .args(["", "_requests", "_collective", "_refused"].map(|part| sources.join(format!("mpi/fermata_mpi{part}.c"))))
        .args(["include", "mpi"].map(|part| format!("-I{}", sources.join(part).display())))
        .arg("-o")
        .arg(&program)
        .args(library::linked())
        .status();
    assert!(compiled.is_ok_and(|status| status.success()), "{mpicc} compiles it");
    program
}

fn survives_a_host(implementation: &str) {
    let [mpicc, mpirun] = ["mpicc", "mpirun"].map(|command| format!("{command}.{implementation}"));
    let is_here = |command: &str| Command::new(command).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !is_here(&mpicc) || !is_here(&mpirun) {
        return skipped!("a program of MPI on several hosts, for want of {mpicc} and {mpirun}");
    }
    let Some(network) = Network::begin() else {
        return skipped!("a program of MPI on several hosts, which wants networks of its own, with `ip` and bridges: run it as root");
    };
    let Some(mut sshd) = Sshd::listening(&["0.0.0.0"]) else { return };
    for host in &network.there {
        sshd.serve(&host.words().each_ref().map(String::as_str));
    }
    let mut cli = Cli::new();
    cli.set("FERMATA_SSH", sshd.way());
    // Containers have no user but root.
    ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"].into_iter().for_each(|name| cli.set(name, "1"));
    for host in HOSTS {
        let mut look = Command::new(sshd.way());
        look.args([host, "true"]).current_dir(cli.path()).stderr(Stdio::null());
        await_that("sshd lets in", SOON, || network.inside(&look).stderr(Stdio::null()).status().is_ok_and(|status| status.success()));
    }

    let program = compile(&mpicc, cli.path()).display().to_string();
    let hosts = HOSTS.join(",");
    let words = ["run-ranks", "-n", "4", "--name", "jacobi", "--transport", "mpi", "--mpirun", &mpirun, "--hosts", &hosts];
    let words = [&words[..], &["--every", "100ms", &program, "240", "120000"]].concat();
    let (said, told) = (cli.path().join("said"), cli.path().join("told"));
    let mut run = network.inside(&cli.command(&words));
    run.stdout(File::create(&said).expect("a file")).stderr(File::create(&told).expect("a file"));
    let mut run = run.spawn().expect("it begins");
    let ranks = || {
        let is_rank = |pid: &u64| command_line(*pid).starts_with(program.as_bytes());
        cli.processes().into_iter().filter(is_rank).collect::<Vec<_>>()
    };
    let log = || cli.run(&["log", "-e", "jacobi"]).stdout;
    let backs = || fs::read_to_string(&told).expect("what it tells").matches("all go back").count();
    await_that("ranks have a checkpoint", SOON, || ranks().len() == 4 && !log().is_empty());
    kill(ranks()[0]);
    await_that("all go back", SOON, || backs() > 0);
    // Before its first call a rank of MPI hears of nothing: one that is cut off then stays until `sshd` ends it.
    let before = log();
    await_that("ranks have another checkpoint", SOON, || log() != before);
    network.cut(1);
    let status = end(&mut run, SOON).expect("it ends");
    let [said, told] = [said, told].map(|path| fs::read_to_string(path).expect("what it said"));
    assert!(status.success() && said.contains("120000 rounds on 240 x 240 points: right"), "{status}: {said}{told}");
    assert!(told.contains(&format!("host {} is lost", HOSTS[1])) && !told.contains(&format!("host {} is lost", HOSTS[0])), "{told}");
    // Those that are cut off, too.
    await_that("all ranks end", SOON, || ranks().is_empty());
}
