//! `mpirun`, which starts the ranks of a program of MPI on this host or on several, and takes them with it when it ends.

use super::{
    host::{Error, Options, failed},
    hosts::{Hosts, ssh},
    life::BETWEEN_LOOKS,
    links::Listener,
    runtime::{ADDRESS, RANK, TOKEN},
};
use fermata_linux::clock::Stopwatch;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    net::IpAddr,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// How long it may take to end by itself; four times as long when it is asked to.
const ENDING: Duration = Duration::from_secs(3);

/// Whose it is: they name their options differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Implementation {
    OpenMpi,
    /// Its Hydra.
    Mpich,
    /// Something else that starts ranks of MPI, as `srun`.
    Other,
}

impl Implementation {
    /// By what it says of itself.
    fn of(version: &str) -> Self {
        if version.contains("Open MPI") || version.contains("OpenRTE") {
            return Self::OpenMpi;
        }
        if version.contains("HYDRA") { Self::Mpich } else { Self::Other }
    }

    /// What tells it on which hosts how many ranks run, in the order of the ranks, what leads there, and where they find this host.
    fn on_hosts(self, shares: &[(&str, usize)], here: IpAddr) -> Result<Vec<String>, Error> {
        if let Some((name, _)) = shares.iter().find(|(name, _)| name.contains(':')) {
            return Err(Error::Refused(format!("mpirun takes {name} for a name and a number of ranks; call this host by a name")));
        }
        let list = shares.iter().map(|(name, ranks)| format!("{name}:{ranks}")).collect::<Vec<_>>().join(",");
        let (ssh, here) = (ssh(), here.to_string());
        let words: &[&str] = match self {
            // Not from host to host, where nobody may know what leads to the next.
            Self::OpenMpi => &["--host", &list, "--mca", "plm_rsh_agent", &ssh, "--mca", "plm_rsh_no_tree_spawn", "1"],
            // It would have them look for a host of this one's name.
            Self::Mpich => &["-hosts", &list, "-localhost", &here, "-launcher", "ssh", "-launcher-exec", &ssh],
            Self::Other => {
                let why = "--hosts goes with mpirun of Open MPI or MPICH; say to this one by its own options (--mpirun) where ranks run, and with --listen at which address they find this host";
                return Err(Error::Refused(why.into()));
            }
        };
        Ok(words.iter().map(|word| (*word).to_owned()).collect())
    }

    /// What makes variables of its environment those of ranks on other hosts. The names only: values among its words could be read by everybody here.
    fn with_variables<'a>(self, names: impl Iterator<Item = &'a str>) -> Vec<String> {
        match self {
            Self::OpenMpi => names.flat_map(|name| ["-x", name]).map(str::to_owned).collect(),
            // All of them go along.
            Self::Mpich | Self::Other => Vec::new(),
        }
    }
}

/// Starts it. It says to each rank which one it is.
pub(super) fn start(options: &Options, hosts: &Hosts, listener: &Listener, token: &str) -> Result<Child, Error> {
    let listening = listener.address().and_then(|address| Ok((address.to_string(), listener.ip()?)));
    let (address, here) = listening.map_err(failed("listen for the ranks"))?;
    let (mpirun, words) = options.mpirun.split_first().ok_or_else(|| Error::Refused("mpirun is an empty word".into()))?;
    let mut command = Command::new(mpirun);
    let variables = options.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let variables: Vec<_> = variables.chain([(ADDRESS, address.as_str()), (RANK, ""), (TOKEN, token)]).collect();
    command.args(words);
    if let Some(here) = here {
        let version = Command::new(mpirun).arg("--version").stdin(Stdio::null()).output().map_err(failed(format!("start {mpirun}")))?;
        let implementation = Implementation::of(&String::from_utf8_lossy(&version.stdout));
        if !options.hosts.is_empty() {
            command.args(implementation.on_hosts(&hosts.shares(), here)?);
        }
        command.args(implementation.with_variables(variables.iter().map(|(name, _)| *name)));
    }
    command.arg("-n").arg(options.ranks.to_string()).arg(&options.program).args(&options.args);
    command.envs(variables).stdin(Stdio::null()).spawn().map_err(failed(format!("start {mpirun}")))
}

/// Asks it to end, for it takes its ranks with it. Where a rank has died it is about to do so by itself, and is better left alone: that of Open MPI, which takes a second, fails when it is asked meanwhile.
pub(super) fn end(mpirun: &mut Child) {
    let clock = Stopwatch::start();
    let mut asked = false;
    while matches!(mpirun.try_wait(), Ok(None)) {
        if clock.elapsed() > ENDING && !std::mem::replace(&mut asked, true) {
            // It has not been waited for: its number is not another's.
            let _ = Pid::from_raw(mpirun.id() as i32).map(|pid| kill_process(pid, Signal::TERM));
        }
        if clock.elapsed() > ENDING * 4 {
            let _ = mpirun.kill();
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn each_is_told_in_its_own_words() {
        let shares = [("a", 2), ("me@b", 1)];
        let here = Ipv4Addr::new(10, 0, 0, 9).into();
        let words = |implementation: Implementation| implementation.on_hosts(&shares, here).map(|words| words[..4].join(" "));
        for (version, implementation, told) in [
            ("mpirun (Open MPI) 4.1.4\n", Implementation::OpenMpi, "--host a:2,me@b:1 --mca plm_rsh_agent"),
            ("mpiexec (OpenRTE) 1.10", Implementation::OpenMpi, "--host a:2,me@b:1 --mca plm_rsh_agent"),
            ("HYDRA build details:\n  Version: 4.0.2", Implementation::Mpich, "-hosts a:2,me@b:1 -localhost 10.0.0.9"),
        ] {
            assert_eq!(Implementation::of(version), implementation, "{version}");
            assert_eq!(words(implementation).unwrap(), told);
        }
        assert_eq!(Implementation::of("slurm 22.05.8"), Implementation::Other);
        assert!(words(Implementation::Other).unwrap_err().to_string().contains("--listen"));
        let colons = Implementation::OpenMpi.on_hosts(&[("fe80::1", 1)], here).unwrap_err().to_string();
        assert!(colons.contains("fe80::1"), "{colons}");
        assert_eq!(Implementation::OpenMpi.with_variables(["A", "B"].into_iter()), ["-x", "A", "-x", "B"]);
        assert!(Implementation::Mpich.with_variables(["A"].into_iter()).is_empty());
    }
}
