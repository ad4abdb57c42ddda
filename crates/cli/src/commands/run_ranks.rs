//! `fermata run-ranks`: a program of several ranks, with consistent checkpoints.

use super::{Context, Result};
use crate::{
    instant,
    out::{Failure, Paint, Style},
    progress::Meter,
    text,
};
use clap::{Args, ValueHint};
use fermata_api::{
    local,
    ranks::{self, Aborted, Event, Host, Line, Mode, Options, Ran, Taken, Transport},
    values::Activity,
};
use std::{net::IpAddr, path::PathBuf, time::Duration};

/// Run a program of several ranks, and checkpoint all of them together
///
/// Starts the program as often as it has ranks. They send each other messages, and every so often a consistent checkpoint of all of them goes to the store while they run on. When a rank dies,
/// all go back to the last checkpoint that is permanent, and go on from there. If this command itself is killed, --resume goes on from there. A checkpoint that cannot be kept, as on a full disk, is given up: it is told why, the one
/// before stays, and the run goes on. With --json, `aborted` says how often, and `aborted_reasons` why. With --backup the status is 1 when the run came to its end and its last checkpoint is not on the remote; it is told why.
///
/// With --mode optimistic each rank takes checkpoints by itself, every so often, and several are kept. When a rank dies all go back to the recovery line: the latest checkpoint of each such that none has received a message
/// that was not sent. One that goes back may pull others back with it, up to the beginning: it is told how far. What lies before the line is removed, unless --keep.
///
/// With --hosts the ranks run on several hosts, which `ssh` (or what FERMATA_SSH names) reaches without asking anything, and where the program lies under the same name. Checkpoints go to the store of this host. When a host is lost, all go back, and the
/// others take its ranks. Messages and memory travel unencrypted, at ports that the system chooses: the network between the hosts has to be one that you trust. With --transport mpi `mpirun` starts them there.
///
/// The program must be written for it: see the library `fermata-process` and its examples. With --transport mpi it is one of MPI, for which two calls are enough: see docs/mpi.md.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata run-ranks -n 16 ./grid 2048 1000
  fermata run-ranks -n 16 --every 2m --name weather ./model
  fermata run-ranks -n 16 --resume --name weather ./model
  fermata run-ranks -n 16 --backup nas --name weather ./model
  fermata run-ranks -n 16 --hosts a,b,c:2 ./grid 2048 1000
  fermata run-ranks -n 16 --transport mpi ./jacobi
  fermata run-ranks -n 16 --transport mpi --mpirun 'mpirun.openmpi --oversubscribe' ./jacobi
  fermata run-ranks -n 16 --transport mpi --hosts a,b:2 ./jacobi
  fermata run-ranks -n 4 --mode blocking --json ./fft | jq '.checkpoints[].blocked_ns'
  fermata run-ranks -n 4 --mode optimistic --json ./fft | jq '.lines, .garbage'")]
pub struct RunRanks {
    /// How many ranks
    #[arg(short = 'n', long, value_name = "N")]
    ranks: usize,

    /// Time between checkpoints; 0s: take none
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = instant::span)]
    every: u64,

    /// How checkpoints are taken: consistent, or to compare with it blocking, full, precopy, optimistic; cow and incremental are other names for consistent, which copies on write and saves what was written
    #[arg(long, value_name = "MODE", default_value = "consistent")]
    mode: Mode,

    /// How messages travel: unix or tcp; or mpi, for a program of MPI, which takes checkpoints that are consistent or full [default: unix; between hosts tcp]
    #[arg(long, value_name = "HOW")]
    transport: Option<Transport>,

    /// Run on these hosts: NAME, or NAME:SHARE for so many times as many ranks as on others; localhost is this one
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', value_hint = ValueHint::Hostname)]
    hosts: Vec<Host>,

    /// The address at which they find this host [default: that by which it reaches the first of them]; with --transport mpi also without --hosts, where mpirun knows of other hosts by itself
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<IpAddr>,

    /// What starts a program of MPI, and its options [default: mpirun]
    #[arg(long, value_name = "COMMAND")]
    mpirun: Option<String>,

    /// What the run is called in the store [default: the program's file name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Go on from the last checkpoint of the last run of this name, if there is one
    #[arg(long)]
    resume: bool,

    /// Copy each checkpoint to this remote too, in the quiet after it: see `fermata remote`
    #[arg(long, value_name = "REMOTE")]
    backup: Option<String>,

    /// Keep all checkpoints, not only the last
    #[arg(long)]
    keep: bool,

    /// Give a checkpoint up that is not whole after this time, and say which rank it lacks; the run goes on
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = instant::span)]
    patience: u64,

    /// Give up when all went back so often without a new checkpoint in between
    #[arg(long, value_name = "TIMES", default_value_t = 10)]
    retries: u32,

    /// The program
    #[arg(value_hint = ValueHint::ExecutablePath)]
    program: PathBuf,

    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    args: Vec<String>,
}

impl RunRanks {
    fn options(&self) -> std::result::Result<Options, Failure> {
        let file_name = || Some(self.program.file_name()?.to_str()?.to_owned());
        let name = self.name.clone().or_else(file_name);
        let name = name.ok_or_else(|| Failure::Misuse("the run needs a name: say which with --name".into()))?;
        let transport = self.transport.unwrap_or(if self.hosts.is_empty() { Transport::Unix } else { Transport::Tcp });
        if self.mpirun.is_some() && transport != Transport::Mpi {
            return Err(Failure::Misuse("--mpirun is for programs of MPI: it goes with --transport mpi".into()));
        }
        if self.listen.is_some() && self.hosts.is_empty() && transport != Transport::Mpi {
            return Err(Failure::Misuse("--listen goes with --hosts, or with --transport mpi".into()));
        }
        let mut options = Options::new(&name, self.ranks, &self.program);
        if let Some(mpirun) = &self.mpirun {
            options.mpirun = mpirun.split_whitespace().map(str::to_owned).collect();
        }
        Ok(Options {
            args: self.args.clone(),
            every: (self.every > 0).then(|| Duration::from_nanos(self.every)),
            mode: self.mode,
            transport,
            hosts: self.hosts.clone(),
            listen: self.listen,
            resume: self.resume,
            keep: self.keep,
            patience: u32::try_from(self.patience.div_ceil(1_000_000_000)).unwrap_or(u32::MAX),
            retries: self.retries,
            ..options
        })
    }

    pub fn run(self, context: &Context) -> Result {
        let options = self.options()?;
        let store = local::store_path(context.global.store.clone());
        let meter = Meter::new(&context.out, "running");
        let mut permanent = 0u64;
        let ran = ranks::run(&store, &options, self.backup.as_deref(), &mut |event| {
            let what = match event {
                Event::Permanent(taken) => {
                    permanent += 1;
                    progress(permanent, &taken)
                }
                Event::Back { why, line } => {
                    context.out.note(&format!("{why}; all go back{}", line.map_or_else(String::new, |line| to_where(&line))));
                    return;
                }
                Event::Aborted(aborted) => {
                    context.out.note(&given_up(&aborted));
                    return;
                }
                Event::Started { ccn, .. } if ccn > 0 => {
                    format!("{} from checkpoint {ccn} on", text::several(options.ranks as u64, "rank"))
                }
                _ => text::several(options.ranks as u64, "rank"),
            };
            meter.show(&Activity { what, ..Activity::default() });
        })?;
        drop(meter);
        let problem = ran.backup.as_ref().and_then(|backup| backup.problem.as_ref());
        if let Some(problem) = problem {
            context.out.complain(&format!("the last checkpoint is not on the backup: {problem}"));
        }
        context.out.answer(&ran, |style| said(&ran, context.out.quiet, style))?;
        Ok(u8::from(problem.is_some()))
    }
}

fn progress(permanent: u64, taken: &Taken) -> String {
    format!("{}, the last of {}", text::several(permanent, "checkpoint"), text::bytes(taken.written_bytes))
}

/// What is said of a checkpoint that came to nothing.
fn given_up(Aborted { ccn, rank, why }: &Aborted) -> String {
    let whose = rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
    format!("checkpoint {ccn}{whose} was given up, and the one before stays: {why}")
}

/// Where all go back to, and how many dominoes fell.
fn to_where(line: &Line) -> String {
    if line.dropped.iter().all(|dropped| *dropped == 0) {
        return ", each rank to its last checkpoint".to_owned();
    }
    let ranks = line.checkpoints.iter().zip(&line.dropped).enumerate().map(|(rank, (checkpoint, dropped))| {
        let to = if *checkpoint == 0 { "the beginning".to_owned() } else { format!("checkpoint {checkpoint}") };
        format!("rank {rank} to {to}, past {dropped}")
    });
    format!(" to what fits together: {}", ranks.collect::<Vec<_>>().join("; "))
}

fn said(ran: &Ran, quiet: bool, style: &Style) -> String {
    let outcome = &ran.outcome;
    let mut lines: String =
        outcome.answers.iter().filter(|answer| !answer.is_empty()).map(|answer| format!("{}\n", text::harmless_lines(answer))).collect();
    if quiet {
        return lines;
    }
    let seconds = outcome.elapsed_ns as f64 / 1e9;
    let mut facts = vec![format!("{seconds:.1} s"), text::several(outcome.checkpoints.len() as u64, "checkpoint")];
    if !outcome.checkpoints.is_empty() {
        let written = outcome.checkpoints.iter().map(|taken| taken.written_bytes).sum::<u64>() / outcome.checkpoints.len() as u64;
        let blocked = outcome.checkpoints.iter().map(|taken| taken.blocked_most_ns).max().unwrap_or(0);
        facts.push(format!("{} each", text::bytes(written)));
        facts.push(format!("no rank stood still for longer than {}", text::ms(blocked as f64 / 1e6)));
    }
    if outcome.rollbacks > 0 {
        facts.push(format!("back {}", text::several(outcome.rollbacks, "time")));
    }
    let most = outcome.lines.iter().flat_map(|line| &line.dropped).max().copied().unwrap_or(0);
    if most > 0 {
        facts.push(format!("a rank went back past up to {} that did not fit", text::several(most, "checkpoint")));
    }
    if let Some(garbage) = &outcome.garbage {
        facts.push(format!("at most {} in the store at once, {} removed as garbage", garbage.most, garbage.collected));
    }
    if outcome.aborted > 0 {
        facts.push(format!("{} given up", text::several(outcome.aborted, "checkpoint")));
    }
    lines += &format!("{}\n", style.paint(Paint::Dim, &facts.join(", ")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;
    use fermata_api::ranks::{Garbage, Outcome};
    use std::mem;

    /// The words of a line for the shell, as far as the pages need it: some are quoted, and a comment ends it.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
        for letter in line.chars() {
            match letter {
                '\'' => quoted = !quoted,
                '#' if !quoted && word.is_empty() => break,
                ' ' if !quoted => words.push(mem::take(&mut word)),
                letter => word.push(letter),
            }
        }
        words.push(word);
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn commands_of_the_pages_about_programs_are_understood() {
        let pages = [
            include_str!("../../../../docs/areas.md"),
            include_str!("../../../../docs/ranks.md"),
            include_str!("../../../../docs/mpi.md"),
            include_str!("../../../../docs/python.md"),
        ];
        let blocks = pages.iter().flat_map(|page| page.split("\n```sh\n").skip(1)).filter_map(|block| block.split("\n```").next());
        let commands: Vec<_> = blocks.flat_map(str::lines).filter(|line| line.starts_with("fermata ")).collect();
        assert!(commands.len() > 5, "{commands:?}");
        for command in commands {
            assert!(Cli::try_parse_from(words(command)).is_ok(), "{command}: {:?}", words(command));
        }
    }

    #[test]
    fn what_a_run_says() {
        let id = "0".repeat(64).parse().unwrap();
        let taken = Taken {
            rank: None,
            ccn: 1,
            id,
            elapsed_ns: 1,
            written_bytes: 1 << 20,
            stored_bytes: 1,
            copied_pages: 1,
            blocked_ns: 1,
            blocked_most_ns: 2_000_000,
            late_messages: 0,
            held_messages: 0,
        };
        let outcome = Outcome {
            answers: vec![String::new(), "42".into()],
            elapsed_ns: 1_500_000_000,
            branch: "run-1".into(),
            checkpoints: vec![taken],
            aborted: 0,
            aborted_reasons: Vec::new(),
            rollbacks: 2,
            reasons: vec![],
            lines: Vec::new(),
            garbage: None,
        };
        let ran = Ran { outcome, backup: None };
        let all = said(&ran, false, &Style::default());
        for part in ["42\n", "1.5 s, 1 checkpoint, 1.0 MiB each", "back 2 times"] {
            assert!(all.contains(part), "{part}: {all}");
        }
        assert_eq!(said(&ran, true, &Style::default()), "42\n");
        let line = Line { checkpoints: vec![3, 0], dropped: vec![1, 4] };
        assert_eq!(to_where(&line), " to what fits together: rank 0 to checkpoint 3, past 1; rank 1 to the beginning, past 4");
        assert_eq!(to_where(&Line { checkpoints: vec![3, 2], dropped: vec![0, 0] }), ", each rank to its last checkpoint");
        let aborted = |rank| given_up(&Aborted { ccn: 4, rank, why: "no room".into() });
        assert_eq!(aborted(None), "checkpoint 4 was given up, and the one before stays: no room");
        assert_eq!(aborted(Some(2)), "checkpoint 4 of rank 2 was given up, and the one before stays: no room");
        let mut ran = ran;
        (ran.outcome.lines, ran.outcome.garbage) = (vec![line], Some(Garbage { collected: 5, most: 9 }));
        let all = said(&ran, false, &Style::default());
        for part in ["past up to 4 checkpoints that did not fit", "at most 9 in the store at once, 5 removed"] {
            assert!(all.contains(part), "{part}: {all}");
        }
    }
}
