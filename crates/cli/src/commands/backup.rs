//! `fermata backup`: a copy of every checkpoint elsewhere.

use super::{
    Context, Result,
    push::{Pace, complain, text as copied_text, with_passphrase},
};
use crate::{
    out::{Paint, Style},
    progress::Meter,
    table::{Cell, Set, Table},
    text,
};
use clap::Args;
use fermata_api::{
    backups, local,
    remotes::{Copied, CopyRequest},
    spec::Keep,
    values::{BackedUp, BackupEntry, BackupStanding, Problem},
};

/// Keep a copy of every checkpoint on a remote
///
/// Copies every checkpoint that the remote lacks, with branches, tags and golden images: of each experiment of the store, or of the one of -e. With --keep-up the keepers of
/// running experiments go on with it by themselves, behind everybody else, in the time between checkpoints, and with --limit at most so fast; it stays so when an experiment is
/// brought back. An experiment that cannot be copied keeps nothing from the others, and the exit status is 1. Without a remote it says how far behind the copies are.
///
/// With --keep those keepers also remove from the remote what these rules do not keep, once a day and when they begin, as `fermata remote prune` does of their experiment. What is said
/// last with --keep-up counts: without --keep all stays there.
///
/// `fermata clone ADDRESS` brings everything back after a loss. A keeper takes a remote's passphrase from FERMATA_PASSPHRASE as it was when the experiment was started; a key file
/// needs no such thing.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata backup nas
  fermata backup nas --keep-up
  fermata backup nas --keep-up -e replicas
  fermata backup nas --keep-up --keep 'last 20, every 1h for 7d, every 1d'
  fermata backup
  fermata backup nas --leave-off")]
pub struct Backup {
    /// The name of the remote, as `fermata remote` shows it
    remote: Option<String>,
    /// From now on keepers copy what they take by themselves
    #[arg(long, requires = "remote")]
    keep_up: bool,
    /// What keepers keep there: 'last 20, every 1h for 7d, every 1d' [default: all]
    #[arg(long, value_name = "POLICY", requires = "keep_up")]
    keep: Option<Keep>,
    /// No longer; what is there stays
    #[arg(long, requires = "remote", conflicts_with = "keep_up")]
    leave_off: bool,
    #[command(flatten)]
    pace: Pace,
}

impl Backup {
    pub fn run(self, context: &Context) -> Result {
        let store = local::store_path(context.global.store.clone());
        let experiment = context.experiment().map(str::to_owned);
        let request =
            CopyRequest { remote: self.remote.clone(), experiment: experiment.clone().unwrap_or_default(), ..self.pace.request() };
        let out = &context.out;
        let Some(remote) = self.remote else {
            let standings = backups::standing(&store, &request)?;
            if standings.is_empty() {
                return Err(Problem::new("no keeper copies anything by itself: `fermata backup REMOTE --keep-up` begins with it").into());
            }
            out.answer(&standings, |style| match out.quiet {
                true => standings.iter().map(|standing| format!("{} {}\n", standing.remote, standing.lacking)).collect(),
                false => list(&standings, style),
            })?;
            return Ok(u8::from(standings.iter().any(|standing| standing.trouble.is_some())));
        };
        let entry = BackupEntry { remote, experiment, limit_bytes: request.limit_bytes, keep: self.keep };
        if self.leave_off {
            let kept = backups::leave(&store, &entry)?;
            let told = BackedUp { copied: Vec::new(), kept };
            out.answer(&told, |_| {
                if out.quiet { String::new() } else { format!("what is on {} stays there\n", text::harmless(&entry.remote)) }
            })?;
            return Ok(0);
        }
        let kept = if self.keep_up {
            // An address has no place where its key and its limit are remembered.
            backups::check_name(&store, &entry.remote)?;
            // Whatever fails now, keepers try again.
            backups::keep(&store, entry.clone())?
        } else {
            backups::kept(&store)?
        };
        let request = with_passphrase(&store, request)?;
        let meter = Meter::new(out, "comparing");
        let copied = backups::back_up(&store, &request, &mut |activity| meter.show(&activity))?;
        drop(meter);
        let told = BackedUp { copied, kept };
        complain(out, &told.copied, "sent");
        out.answer(&told, |style| match out.quiet {
            true => String::new(),
            false => {
                let mut lines: String = told.copied.iter().map(|copied| copied_text(copied, "sent", style)).collect();
                if self.keep_up {
                    let keep = entry.keep.as_ref().map_or_else(String::new, |keep| format!(", and keep there: {keep}"));
                    lines += &format!("keepers copy to {} by themselves from now on{keep}\n", text::harmless(&entry.remote));
                }
                lines
            }
        })?;
        Ok(u8::from(told.copied.iter().any(Copied::is_partial)))
    }
}

fn list(standings: &[BackupStanding], style: &Style) -> String {
    let mut table = Table::bare(&[Set::Left, Set::Left, Set::Left, Set::Left]);
    for standing in standings {
        let all = text::several(standing.checkpoints, "checkpoint");
        let refs = if standing.lacking_refs == 1 {
            "a branch or tag is".to_owned()
        } else {
            format!("{} branches and tags are", standing.lacking_refs)
        };
        let how = match (&standing.trouble, standing.lacking, standing.behind_ns) {
            (Some(trouble), ..) => Cell::new(Paint::Bad, text::harmless(trouble)),
            (None, 0, _) if standing.lacking_refs > 0 => format!("has all of {all}, but not where {refs}").into(),
            (None, 0, _) => Cell::new(Paint::Good, format!("has all of {all}")),
            (None, lacking, Some(behind)) => {
                format!("lacks {} of {all}, and is behind by {}", text::count(lacking), text::ms(behind as f64 / 1e6)).into()
            }
            (None, lacking, None) => format!("lacks {} of {all}", text::count(lacking)).into(),
        };
        table.row(vec![
            Cell::new(Paint::Name, text::harmless(&standing.remote)),
            text::harmless(&standing.experiment).into(),
            how,
            if standing.kept { "kept up".into() } else { "by hand".into() },
        ]);
    }
    table.render(style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::id;

    #[test]
    fn it_says_how_far_behind_a_copy_is() {
        let standing = |lacking, behind_ns, kept, trouble: Option<&str>| BackupStanding {
            remote: "nas".into(),
            address: "/mnt/nas".into(),
            experiment: "tryout".into(),
            kept,
            checkpoints: 1200,
            lacking,
            lacking_refs: 0,
            newest: Some(id(2)),
            newest_there: Some(id(1)),
            behind_ns,
            trouble: trouble.map(str::to_owned),
        };
        let standings = [
            standing(0, Some(0), true, None),
            standing(3, Some(6_000_000_000), true, None),
            standing(1200, None, false, None),
            standing(1200, None, true, Some("cannot use /mnt/nas")),
        ];
        let expected = "\
nas  tryout  has all of 1,200 checkpoints                               kept up
nas  tryout  lacks 3 of 1,200 checkpoints, and is behind by 6.00 s      kept up
nas  tryout  lacks 1,200 of 1,200 checkpoints                           by hand
nas  tryout  cannot use /mnt/nas                                        kept up
";
        let told = list(&standings, &Style::default());
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(told.lines().map(words).collect::<Vec<_>>(), expected.lines().map(words).collect::<Vec<_>>());
    }
}
