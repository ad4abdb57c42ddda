//! `fermata console`: the serial console of a machine.

use super::{Context, Result};
use crate::{complete, out::Failure, pick};
use clap::Args;
use fermata_api::values::{Experiment, Machine, MachineState, Problem};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr},
};
use serde_json::json;
use std::{
    fs,
    io::{self, Read, Stdin, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    thread,
    time::Duration,
};

/// Ctrl-], as in telnet.
const LEAVE: u8 = 0x1d;
/// After the end of piped input, a console that is silent for this long has no more to say.
const SILENCE: Duration = Duration::from_secs(1);
/// How long a machine may be away on a journey.
const JOURNEY: Duration = Duration::from_secs(20);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Sit down at the serial console of a machine
///
/// Ctrl-] leaves; the machine runs on. When the machine is taken to another checkpoint the console follows it there. Piped input is typed in, and the
/// console is left when the machine has been silent for a second after it.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata console
  fermata console what-if:m1
  fermata console m1 --log | less -R")]
pub struct Console {
    /// The machine; may be left out if there is only one. Without RUN the run `main` is meant
    #[arg(value_name = "[RUN:]MACHINE", add = complete::machines())]
    machine: Option<String>,
    /// Print what the console showed so far, and end
    #[arg(long)]
    log: bool,
}

/// Why a conversation ended.
#[derive(Debug, PartialEq)]
enum End {
    /// The user left.
    Left,
    /// QEMU closed the console.
    Closed,
}

impl Console {
    pub fn run(self, context: &Context) -> Result {
        let wanted = self.machine.as_deref().unwrap_or_default();
        let experiment = pick::living(context)?;
        let (run, machine) = pick::machine(&experiment, wanted)?;
        let name = format!("{}:{}", run.name, machine.name);
        if self.log {
            let log = fs::read(&machine.console_log)
                .map_err(|error| Problem::new(format!("cannot read {}: {error}", machine.console_log.display())))?;
            match context.out.is_json() {
                true => context.out.answer(&json!({"machine": name, "log": String::from_utf8_lossy(&log)}), |_| String::new())?,
                false => context.out.print(&log)?,
            }
            return Ok(0);
        }
        if context.out.is_json() {
            return Err(Failure::Misuse("a console is no JSON value; --json goes with --log".to_owned()));
        }
        attend(context, &experiment, &name)?;
        Ok(0)
    }
}

/// Stays with a machine through all its journeys.
fn attend(context: &Context, experiment: &Experiment, name: &str) -> std::result::Result<(), Failure> {
    let mut before: Option<PathBuf> = None;
    loop {
        let Some((console, stream)) = reach(experiment, name, before.as_ref())? else { return Ok(()) };
        let said = if before.is_none() { "Ctrl-] leaves" } else { "it is at another instant now" };
        context.out.note(&format!("connected to {name}; {said}"));
        let raw = Raw::enter().map_err(|error| Problem::new(format!("cannot set the terminal: {error}")))?;
        let end = converse(&io::stdin(), stream)?;
        drop(raw);
        if end == End::Left {
            context.out.note(&format!("left {name}"));
            return Ok(());
        }
        before = Some(console);
    }
}

/// Connects to the console of a machine; to a new one, if it is known which the old one was. None: the experiment ended.
fn reach(experiment: &Experiment, name: &str, before: Option<&PathBuf>) -> std::result::Result<Option<(PathBuf, UnixStream)>, Failure> {
    use fermata_api::Service;
    let mut waited = Duration::ZERO;
    loop {
        let now = fermata_api::local::client(&experiment.name).and_then(|keeper| keeper.status());
        let Ok(now) = now else {
            return if before.is_some() { Ok(None) } else { Err(now.map(|_| ()).unwrap_err().into()) };
        };
        let refused = match pick::machine(&now, name) {
            Ok((_, machine)) if machine.state == MachineState::Gone => gone(name, machine),
            Ok((_, machine)) if Some(&machine.console) == before => Problem::new(format!("the console of {name} was closed")),
            Ok((_, machine)) => match UnixStream::connect(&machine.console) {
                Ok(stream) => return Ok(Some((machine.console.clone(), stream))),
                Err(error) => Problem::new(format!("cannot connect to {}: {error}", machine.console.display())),
            },
            // The run has ended.
            Err(_) if before.is_some() => return Ok(None),
            Err(problem) => problem,
        };
        if before.is_none() || waited >= JOURNEY {
            return Err(refused.into());
        }
        thread::sleep(BETWEEN_LOOKS);
        waited += BETWEEN_LOOKS;
    }
}

fn gone(name: &str, machine: &Machine) -> Problem {
    let reason = machine.reason.as_deref().unwrap_or("QEMU is gone");
    Problem::new(format!("{name} is gone: {reason}. `fermata goto ID` brings it back"))
}

/// Carries what is typed to the machine and what it says back, until one of them ends it.
fn converse(stdin: &Stdin, mut stream: UnixStream) -> std::result::Result<End, Failure> {
    let mut typing = true;
    let mut buffer = [0; 4096];
    loop {
        let mut events = [PollFd::new(&stream, PollFlags::IN), PollFd::new(stdin, PollFlags::IN)];
        let silence = Timespec { tv_sec: SILENCE.as_secs() as i64, tv_nsec: 0 };
        let watched = if typing { &mut events[..] } else { &mut events[..1] };
        match poll(watched, (!typing).then_some(&silence)) {
            Ok(0) => return Ok(End::Left),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Problem::new(format!("cannot wait for the console: {error}")).into()),
        }
        let (said, typed) = (!events[0].revents().is_empty(), typing && !events[1].revents().is_empty());
        if said {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return Ok(End::Closed),
                Ok(read) => {
                    let mut stdout = io::stdout().lock();
                    stdout.write_all(&buffer[..read])?;
                    stdout.flush()?;
                }
            }
        }
        if typed {
            // Not through Stdin's own buffer: what it holds back would not show in the next poll.
            let read = rustix::io::read(stdin, &mut buffer).unwrap_or(0);
            let keys = &buffer[..read];
            let leaving = isatty(stdin).then(|| keys.iter().position(|key| *key == LEAVE)).flatten();
            if stream.write_all(&keys[..leaving.unwrap_or(read)]).is_err() {
                return Ok(End::Closed);
            }
            if leaving.is_some() {
                return Ok(End::Left);
            }
            typing = read > 0;
        }
    }
}

/// The terminal passes on every key while this lives. Nothing happens if standard input is no terminal.
struct Raw {
    before: Option<Termios>,
}

impl Raw {
    fn enter() -> io::Result<Self> {
        let stdin = io::stdin();
        if !isatty(&stdin) {
            return Ok(Self { before: None });
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        Ok(Self { before: Some(before) })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
            // The machine may have left the cursor anywhere.
            let _ = io::stderr().write_all(b"\r\n");
        }
    }
}
