//! `fermata swapout`: an experiment leaves this host, but for a record of where it is.

use super::{Context, Failure, Result, push::with_passphrase};
use crate::{
    out::{Paint, Style},
    pick,
    progress::Meter,
    text,
};
use clap::Args;
use fermata_api::{
    remotes::{self, CopyRequest},
    spec::ByteSize,
    swapping::{self, SwapOutRequest},
    values::{Problem, SwapOutcome},
};
use std::path::PathBuf;

/// Stop an experiment, and leave nothing of it on this host but a record
///
/// Without --to it stands in the store as its last checkpoint. With it, checkpoints are taken and sent while the machines run, slowly where these keep the processors busy, until
/// little is left; then they stop, the rest follows, and when all of it is found there, what only this experiment held is removed here. Golden images are sent once, and stay here,
/// too. If anything fails on the way, or the command is interrupted (Ctrl-C), the machines run on, or stay paused if they were. `fermata swapin` brings it back, here or on another
/// host, and its guests see no time pass.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata swapout
  fermata swapout --to nas
  fermata swapout -e replicas --to origin --limit 20M --keep")]
pub struct Swapout {
    /// The name of a remote, or its address; --limit and the like are about it [default: it stays in the store]
    #[arg(long, value_name = "REMOTE")]
    to: Option<String>,
    /// Leave its checkpoints in the store, too
    #[arg(long)]
    keep: bool,
    /// Send no golden images: whoever swaps it in has to have them
    #[arg(long, requires = "to")]
    no_images: bool,
    #[command(flatten)]
    line: Line,
}

/// How a remote is reached. What is swapped goes over one line at a time, so there is no number to say.
#[derive(Debug, Args)]
pub(super) struct Line {
    /// How many bytes a second may travel: 50M [default: what `fermata remote add` was told]
    #[arg(long, value_name = "SIZE")]
    limit: Option<ByteSize>,
    /// What the remote is encrypted with, if it was not named with it; a passphrase is taken from $FERMATA_PASSPHRASE, or asked for
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl Line {
    /// Whether anything was said of it.
    pub(super) fn is_given(&self) -> bool {
        self.limit.is_some() || self.key_file.is_some()
    }

    pub(super) fn request(self) -> CopyRequest {
        let (passphrase, limit_bytes) = (remotes::passphrase(), self.limit.map(ByteSize::bytes));
        CopyRequest { limit_bytes, key_file: self.key_file, passphrase, ..CopyRequest::default() }
    }
}

impl Swapout {
    pub fn run(self, context: &Context) -> Result {
        let experiment = pick::living(context)?;
        let Self { to, keep, no_images, line } = self;
        let store = experiment.store;
        let is_given = line.is_given();
        let mut copy = line.request();
        copy.experiment.clone_from(&experiment.name);
        copy.without_images = no_images;
        let to = match to {
            Some(remote) => {
                copy.remote = Some(remote);
                Some(with_passphrase(&store, copy)?)
            }
            None if is_given => {
                return Err(Failure::Misuse("--limit and --key-file are about a remote: name it with --to".to_owned()));
            }
            None => None,
        };
        // What is only in the store must stay there.
        let request = SwapOutRequest { experiment: experiment.name, keep: keep || to.is_none(), to };
        let meter = Meter::new(&context.out, "swapping out");
        let out = context.out.clone();
        let left = move |problem: Problem| {
            out.fail(&problem.into());
            std::process::exit(1);
        };
        let outcome = swapping::swap_out(&store, &request, left, &mut |activity| meter.show(&activity))?;
        drop(meter);
        context.out.answer(&outcome, |style| text(&outcome, context.out.quiet, style))?;
        // It is out, and not all of it has left this host.
        Ok(u8::from(outcome.trouble.is_some()))
    }
}

fn text(outcome: &SwapOutcome, quiet: bool, style: &Style) -> String {
    let SwapOutcome { swapped, rounds, stopped_ms, took_ms, freed_bytes, trouble } = outcome;
    if quiet {
        return format!("{}\n", swapped.checkpoint);
    }
    let mut told = format!(
        "{} is swapped out at {}, {}, {}; {} after its machines stopped\n",
        style.paint(Paint::Name, &text::harmless(&swapped.experiment)),
        style.paint(Paint::Id, &swapped.checkpoint.short()),
        text::instant(swapped.time_virtual_ns),
        text::harmless(&swapping::whereabouts(swapped.remote.as_ref())),
        text::ms(*stopped_ms),
    );
    if let (Some(_), Some((last, ahead))) = (&swapped.remote, rounds.split_last()) {
        let before = ahead.iter().map(|round| round.bytes).sum();
        told += &format!(
            "  {} sent while they ran, in {}; {} while they stood; {} freed here; {} in all\n",
            text::bytes(before),
            text::several(ahead.len() as u64, "round"),
            text::bytes(last.bytes),
            text::bytes(*freed_bytes),
            text::ms(*took_ms)
        );
    }
    if let Some(trouble) = trouble {
        told += &style.paint(Paint::Bad, &format!("  {}\n", text::harmless(trouble)));
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args::Cli, commands::samples::id};
    use clap::Parser;
    use fermata_api::{
        remotes::{Encryption, RemoteEntry},
        values::{SwapRound, SwappedOut},
    };

    #[test]
    fn what_it_says() {
        let round = |bytes| SwapRound { checkpoint: id(3), bytes, took_ms: 50.0 };
        let nas = RemoteEntry::new("nas".into(), "/nas".into(), None, Encryption::None);
        let swapped = SwappedOut {
            experiment: "tryout".into(),
            branch: "main".into(),
            checkpoint: id(3),
            time_virtual_ns: 4_000_000_000,
            swapped_ns: 0,
            swapped: "2026-11-23T08:00:00Z".into(),
            remote: Some(nas),
            spec: serde_json::Value::Null,
            machines: vec![],
            working_sets: [].into(),
        };
        let mut outcome = SwapOutcome {
            swapped,
            rounds: vec![round(40 << 20), round(3 << 20), round(1 << 20)],
            stopped_ms: 120.0,
            took_ms: 3000.0,
            freed_bytes: 50 << 20,
            trouble: None,
        };
        let expected = "\
tryout is swapped out at 030303030303, 4.000s, on nas (/nas); 120 ms after its machines stopped
  43.0 MiB sent while they ran, in 2 rounds; 1.0 MiB while they stood; 50.0 MiB freed here; 3.00 s in all
";
        assert_eq!(text(&outcome, false, &Style::default()), expected);
        outcome.trouble = Some("its checkpoints are still here: no room".into());
        assert_eq!(text(&outcome, false, &Style::default()), format!("{expected}  its checkpoints are still here: no room\n"));
        outcome.trouble = None;
        outcome.swapped.remote = None;
        let told = text(&outcome, false, &Style::default());
        assert!(told.contains("4.000s, in the store;") && told.lines().count() == 1, "{told}");
        assert_eq!(text(&outcome, true, &Style::default()), format!("{}\n", id(3)));
    }

    #[test]
    fn what_would_do_nothing_cannot_be_said() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).is_ok();
        assert!(parse("fermata swapout --to nas --limit 20M --no-images") && parse("fermata swapin lab --from nas --limit 20M"));
        assert!(!parse("fermata swapout --to nas --jobs 8") && !parse("fermata swapin lab --from nas --jobs 8"));
        assert!(!parse("fermata swapout --no-images"));
    }
}
