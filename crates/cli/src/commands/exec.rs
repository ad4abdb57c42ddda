//! `fermata exec`: runs a command in a guest.

use super::{Context, Result};
use crate::{complete, out::Failure, pick, progress};
use clap::Args;
use fermata_api::{
    EXEC_INPUT_BYTES_MAX, Service,
    spec::Interval,
    values::{ExecRequest, Executed, Problem},
};
use std::io::{self, Read, Write};

/// Run a command in a guest
///
/// The command is run by the QEMU guest agent, as root and without a shell; what it printed comes when it has ended. Exits with the command's status
/// (128 and the signal when a signal ended it), and with 255 when the command could not be run.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata exec m1 -- make -C /src
  fermata exec what-if:m1 -- sh -c 'uptime; df -h'
  fermata exec m1 -- tar c /etc > etc.tar
  echo hello | fermata exec -i m1 -- tee /root/greeting")]
pub struct Exec {
    /// The machine; may be left out if there is only one. Without RUN the run `main` is meant
    #[arg(value_name = "[RUN:]MACHINE", add = complete::machines())]
    machine: Option<String>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Pass on standard input, to its end and at most 8 MiB
    #[arg(short, long)]
    input: bool,
    /// How long to wait for the guest agent of a guest that boots
    #[arg(long, value_name = "TIME", default_value = "60s")]
    wait: Interval,
}

impl Exec {
    pub fn run(self, context: &Context) -> Result {
        let (_, keeper) = pick::keeper(context)?;
        let request = ExecRequest {
            machine: self.machine.unwrap_or_default(),
            command: self.command,
            input: if self.input { Some(input()?) } else { None },
            wait_ms: self.wait.duration().as_millis() as u64,
        };
        let executed = progress::during(&context.out, "waiting for the command", || keeper.activity(), || keeper.exec(request, &|| true))?;
        if context.out.is_json() {
            context.out.answer(&executed, |_| String::new())?;
        } else {
            context.out.print(&executed.stdout_bytes())?;
            io::stderr().write_all(&executed.stderr_bytes())?;
        }
        if executed.truncated {
            context.out.note("the command printed more than the guest agent keeps (16 MiB); the rest is lost");
        }
        Ok(status(&executed))
    }
}

/// An exit status has eight bits; what does not fit is a failure.
fn status(executed: &Executed) -> u8 {
    u8::try_from(executed.status).unwrap_or(255)
}

fn input() -> std::result::Result<Vec<u8>, Failure> {
    let mut input = Vec::new();
    let read = io::stdin().take(EXEC_INPUT_BYTES_MAX as u64 + 1).read_to_end(&mut input);
    read.map_err(|error| Problem::new(format!("cannot read standard input: {error}")))?;
    if input.len() > EXEC_INPUT_BYTES_MAX {
        return Err(
            Problem::new("standard input is longer than 8 MiB, which is all that the guest agent takes; put it on a disk instead").into()
        );
    }
    Ok(input)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args::Cli, commands::Command};
    use clap::Parser;

    #[test]
    fn what_comes_after_two_hyphens_is_the_guest_s() {
        let parse = |line: &str| match Cli::try_parse_from(line.split(' ')).unwrap().command {
            Command::Exec(exec) => (exec.machine, exec.command.join(" ")),
            other => panic!("{other:?}"),
        };
        assert_eq!(parse("fermata exec m1 -- make --json -C /src"), (Some("m1".into()), "make --json -C /src".into()));
        assert_eq!(parse("fermata exec -- ls"), (None, "ls".into()));
        assert!(Cli::try_parse_from(["fermata", "exec", "m1"]).is_err());
        assert!(Cli::try_parse_from(["fermata", "exec", "m1", "ls"]).is_err());
    }

    #[test]
    fn a_status_that_does_not_fit_is_not_success() {
        let executed = |status| Executed::new(String::new(), status, Vec::new(), Vec::new(), false);
        assert_eq!([0, 3, 256, -1].map(|number| status(&executed(number))), [0, 3, 255, 255]);
    }
}
