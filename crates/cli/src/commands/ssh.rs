//! `fermata ssh`: a shell in a guest by its own SSH server.

use super::{Context, Result};
use crate::{complete, out::Failure, pick};
use clap::Args;
use fermata_api::{
    Service, paths,
    spec::Port,
    values::{ForwardRequest, Problem},
};
use std::{
    ffi::OsString,
    net::SocketAddrV4,
    num::NonZeroU16,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Command,
};

/// Where SSH servers listen.
const SSH: NonZeroU16 = NonZeroU16::new(22).expect("it is not 0");

/// Log in to a guest that has an SSH server
///
/// It is for machines whose part of the specification has `ports`; port 22 is forwarded if it is not yet. The interface by which it leads is not part
/// of checkpoints: the connection ends at `fermata goto`. Ends as ssh(1) does: with the status of the command in the guest, or 255.
///
/// Host keys are remembered in the experiment's run directory, by the names of the machines, until `fermata down`: ports are given to one machine after
/// the other, a machine that comes back and all its forks have the same key, and the next experiment of that name may have new ones.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata ssh m1
  fermata ssh what-if:m1 -l admin
  fermata ssh m1 -- journalctl -f
  fermata ssh m1 -i guests.key -o ForwardAgent=yes")]
pub struct Ssh {
    /// The machine; may be left out if there is only one. Without RUN the run `main` is meant
    #[arg(value_name = "[RUN:]MACHINE", add = complete::machines())]
    machine: Option<String>,
    /// The user in the guest
    #[arg(short, long, default_value = "root")]
    login: String,
    /// The private key to log in with; else those that ssh(1) finds
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    identity: Option<PathBuf>,
    /// Another option of ssh_config(5), as `KEY=VALUE`; may be given several times
    #[arg(short, long, value_name = "OPTION")]
    option: Vec<String>,
    /// A command instead of a shell
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl Ssh {
    pub fn run(self, context: &Context) -> Result {
        if context.out.is_json() {
            return Err(Failure::Misuse("a login is no JSON value; `fermata ports --json` tells where port 22 is reached".to_owned()));
        }
        let (experiment, keeper) = pick::keeper(context)?;
        let (run, machine) = pick::machine(&experiment, self.machine.as_deref().unwrap_or_default())?;
        let known = machine.ports.iter().find(|port| port.guest_port == SSH.get()).and_then(|port| port.host);
        let host = match known {
            Some(host) => Some(host),
            None => {
                let machine = format!("{}:{}", run.name, machine.name);
                keeper.forward(ForwardRequest { machine, port: Port { guest: SSH, host: None } })?.forward.host
            }
        };
        let host =
            host.ok_or_else(|| Problem::new(format!("port {SSH} of {} is not forwarded; `fermata ports` tells more", machine.name)))?;
        let keys = paths::run_dir(&experiment.name).join("known_hosts");
        let error = Command::new("ssh").args(self.arguments(host, &machine.name, &keys)).exec();
        Err(Problem::new(format!("cannot start ssh: {error}. Install it (Debian: openssh-client), or connect to {host} by other means"))
            .into())
    }

    /// Those of ssh(1).
    fn arguments(&self, host: SocketAddrV4, machine: &str, keys: &Path) -> Vec<OsString> {
        let mut file = OsString::from("UserKnownHostsFile=\"");
        file.push(keys);
        file.push("\"");
        let mut arguments: Vec<OsString> = ["-p", &host.port().to_string(), "-l", &self.login].map(OsString::from).into();
        for option in [format!("HostKeyAlias={machine}").into(), file, "StrictHostKeyChecking=accept-new".into()] {
            arguments.extend(["-o".into(), option]);
        }
        if let Some(identity) = &self.identity {
            arguments.extend(["-i".into(), identity.into()]);
        }
        self.option.iter().for_each(|option| arguments.extend(["-o".into(), option.into()]));
        arguments.push(host.ip().to_string().into());
        if !self.command.is_empty() {
            // A command may begin with a hyphen.
            arguments.push("--".into());
            arguments.extend(self.command.iter().map(OsString::from));
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args::Cli, commands};
    use clap::Parser;

    #[test]
    fn ssh_is_told_who_it_talks_to() {
        let parse = |line: &str| match Cli::try_parse_from(line.split(' ')).unwrap().command {
            commands::Command::Ssh(ssh) => ssh,
            other => panic!("{other:?}"),
        };
        let line = |ssh: &Ssh| {
            let host = "127.0.0.1:40022".parse().unwrap();
            let words = ssh.arguments(host, "m1", Path::new("/run/my place/known_hosts"));
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        let keys = "-o HostKeyAlias=m1 -o UserKnownHostsFile=\"/run/my place/known_hosts\" -o StrictHostKeyChecking=accept-new 127.0.0.1";
        assert_eq!(line(&parse("fermata ssh m1")), format!("-p 40022 -l root {keys}"));
        let admin = parse("fermata ssh what-if:m1 -l admin -- ls -l");
        assert_eq!(admin.machine.as_deref(), Some("what-if:m1"));
        assert_eq!(line(&admin), format!("-p 40022 -l admin {keys} -- ls -l"));
        let keys = keys.replace(" 127.0.0.1", " -i a.key -o IdentitiesOnly=yes 127.0.0.1");
        assert_eq!(line(&parse("fermata ssh m1 -i a.key -o IdentitiesOnly=yes")), format!("-p 40022 -l root {keys}"));
    }
}
