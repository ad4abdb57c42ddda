//! `fermata swapout`: an experiment leaves this host, but for a record of where it is.

use super::{
    Context, Failure, Result,
    push::{Pace, with_passphrase},
};
use crate::{
    out::{Paint, Style},
    pick,
    progress::Meter,
    text,
};
use clap::Args;
use fermata_api::{
    swapping::{self, SwapOutRequest},
    values::{Problem, SwapOutcome},
};

/// Stop an experiment, and leave nothing of it on this host but a record
///
/// Without --to it stands in the store as its last checkpoint. With it, checkpoints are taken and sent while the machines run, slowly where these keep the processors busy, until
/// little is left; then they stop, the rest follows, and when all of it is found there, what only this experiment held is removed here. Golden images are sent once, and stay here,
/// too. If anything fails on the way, or the command is interrupted (Ctrl-C), the machines run on. `fermata swapin` brings it back, here or on another host, and its guests see no time pass.
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
    pace: Pace,
}

impl Swapout {
    pub fn run(self, context: &Context) -> Result {
        let experiment = pick::living(context)?;
        let Self { to, keep, no_images, pace } = self;
        let store = experiment.store;
        let mut copy = pace.request();
        copy.experiment.clone_from(&experiment.name);
        copy.without_images = no_images;
        let to = match to {
            Some(remote) => {
                copy.remote = Some(remote);
                Some(with_passphrase(&store, copy)?)
            }
            None if copy.limit_bytes.is_some() || copy.key_file.is_some() => {
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
        Ok(0)
    }
}

fn text(outcome: &SwapOutcome, quiet: bool, style: &Style) -> String {
    let SwapOutcome { swapped, rounds, stopped_ms, took_ms, freed_bytes } = outcome;
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
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::id;
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
        };
        let expected = "\
tryout is swapped out at 030303030303, 4.000s, on nas (/nas); 120 ms after its machines stopped
  43.0 MiB sent while they ran, in 2 rounds; 1.0 MiB while they stood; 50.0 MiB freed here; 3.00 s in all
";
        assert_eq!(text(&outcome, false, &Style::default()), expected);
        outcome.swapped.remote = None;
        let told = text(&outcome, false, &Style::default());
        assert!(told.contains("4.000s, in the store;") && told.lines().count() == 1, "{told}");
        assert_eq!(text(&outcome, true, &Style::default()), format!("{}\n", id(3)));
    }
}
