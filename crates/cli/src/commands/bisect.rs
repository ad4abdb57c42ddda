//! `fermata bisect`: the first checkpoint at which a test fails.

use super::{Context, Result};
use crate::{
    complete,
    instant::span,
    interrupt,
    out::{Failure, Paint, Style},
    pick, progress, text,
};
use clap::Args;
use fermata_api::{
    Service,
    bisect::{Search, Verdict},
    local,
    trials::{Lab, Trial},
    values::{BisectStep, Bisected, Checkpoint, Problem},
};

/// Find the first checkpoint at which a test fails
///
/// The checkpoints that lead from a good one to a bad one are searched by halves, as `git bisect run` does: of each that is tried a fork is made, virtual time passes, and a script runs.
/// If it exits with 0 the checkpoint is good, with 125 it cannot be told, else it is bad. The forks end afterwards, and when the search fails or is interrupted; runs are not
/// disturbed. The two ends are taken as they are said to be. A checkpoint that is removed before it is its turn, as by the key `keep`, counts as one that cannot be told.
///
/// The script is given to a shell of this host, with FERMATA_EXPERIMENT, FERMATA_RUN and FERMATA_CHECKPOINT in its environment; with --in to a shell in a guest.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata bisect --good known-good --bad main --in m1 --run 'test ! -e /disk/corrupt'
  fermata bisect --good ~40 --bad ~ --for 5s --run 'fermata exec $FERMATA_RUN:m1 -- systemctl is-active app'
  fermata bisect --good 1f0c42 --bad main --run ./check --json | jq -r .first_bad")]
pub struct Bisect {
    /// A checkpoint at which the test succeeds
    #[arg(long, value_name = "ID", add = complete::checkpoints())]
    good: String,
    /// A later one of the same line at which it fails
    #[arg(long, value_name = "ID", add = complete::checkpoints())]
    bad: String,
    /// The test, for a shell
    #[arg(long = "run", value_name = "SCRIPT")]
    script: String,
    /// Run it in this machine instead of on this host
    #[arg(long = "in", value_name = "MACHINE")]
    machine: Option<String>,
    /// Virtual time that passes before it
    #[arg(long = "for", value_name = "TIME", default_value = "0s", value_parser = span)]
    wait: u64,
}

impl Bisect {
    pub fn run(self, context: &Context) -> Result {
        let (experiment, keeper) = pick::keeper(context)?;
        let stored = pick::stored(context)?;
        let (good, bad) = (stored.name(&self.good)?, stored.name(&self.bad)?);
        let first = local::show(&stored.store, Some(&stored.experiment), &good)?;
        let rest = local::line(&stored.store, &stored.experiment, Some(&bad), Some(&first.id.to_string()))?;
        let line: Vec<_> = std::iter::once(first).chain(rest).collect();
        let search = Search::new(line.len())
            .ok_or_else(|| Problem::new("the good checkpoint and the bad one are the same: there is nothing to search"))?;
        let lab = Lab::new(keeper.clone(), &experiment, interrupt::watch()?);
        let found = progress::during(&context.out, "testing", || keeper.activity(), || self.search(context, &lab, &line, search));
        let (search, steps) = found?;
        let suspects: Vec<_> = search.suspects().into_iter().map(|place| line[place].id).collect();
        let first_bad = if let [only] = suspects.as_slice() { Some(*only) } else { None };
        let bisected = Bisected { experiment: experiment.name, good: line[search.good()].id, first_bad, suspects, steps };
        context.out.answer(&bisected, |style| match context.out.quiet {
            true => bisected.suspects.iter().map(|id| format!("{id}\n")).collect(),
            false => text(&bisected, &line, style),
        })?;
        Ok(u8::from(bisected.first_bad.is_none()))
    }

    /// Tries one after the other, and tells of each.
    fn search(
        &self,
        context: &Context,
        lab: &Lab,
        line: &[Checkpoint],
        mut search: Search,
    ) -> std::result::Result<(Search, Vec<BisectStep>), Failure> {
        let mut steps = Vec::new();
        while let Some(place) = search.next() {
            let checkpoint = &line[place];
            let outcome = match lab.one(&self.trial(checkpoint)) {
                Err(_) if !lab.is_there(checkpoint.id) => {
                    // As by a keeper that is to keep only some.
                    context.out.note(&format!("{} was removed meanwhile, and is skipped", checkpoint.id.short()));
                    search.tell(place, Verdict::Skip);
                    continue;
                }
                outcome => outcome?,
            };
            let verdict = Verdict::of(outcome.status);
            search.tell(place, verdict);
            let left = match search.left() {
                0 => String::new(),
                left => format!("; {} left, about {}", text::several(left as u64, "checkpoint"), text::several(steps_for(left), "step")),
            };
            let at = text::instant(checkpoint.time_virtual_ns);
            let said = text::harmless(outcome.last_line());
            let said = if said.is_empty() { said } else { format!(": {said}") };
            context.out.note(&format!(
                "{} at {at} is {} (exit status {}{said}){left}",
                checkpoint.id.short(),
                word(verdict),
                outcome.status
            ));
            steps.push(BisectStep { checkpoint: checkpoint.id, time_virtual_ns: checkpoint.time_virtual_ns, verdict, outcome });
        }
        Ok((search, steps))
    }

    fn trial(&self, checkpoint: &Checkpoint) -> Trial {
        Trial {
            from: checkpoint.id,
            perturbation: None,
            changes: vec![],
            cpus: None,
            before: vec![],
            variables: vec![("FERMATA_CHECKPOINT".to_owned(), checkpoint.id.to_string())],
            wait_ns: self.wait,
            script: self.script.clone(),
            machine: self.machine.clone(),
            keep: false,
        }
    }
}

/// Halves until nothing is left.
fn steps_for(left: usize) -> u64 {
    u64::from((left + 1).ilog2().max(1))
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "good",
        Verdict::Bad => "bad",
        Verdict::Skip => "skipped",
    }
}

fn text(bisected: &Bisected, line: &[Checkpoint], style: &Style) -> String {
    let describe = |id| match line.iter().find(|checkpoint| checkpoint.id == id) {
        None => id.short(),
        Some(checkpoint) => {
            let message = checkpoint.message.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
            let (id, at) = (style.paint(Paint::Id, &id.short()), text::instant(checkpoint.time_virtual_ns));
            format!("{id}  {at}  {}", text::harmless(message)).trim_end().to_owned()
        }
    };
    match bisected.first_bad {
        Some(first) => format!("the first bad checkpoint is {}\nthe last good one is       {}\n", describe(first), describe(bisected.good)),
        None => {
            let suspects: String = bisected.suspects.iter().map(|id| format!("  {}\n", describe(*id))).collect();
            format!("the first bad checkpoint is one of these; those before the last could not be told\n{suspects}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::{history, id};

    #[test]
    fn what_was_found() {
        let line = history();
        let mut bisected =
            Bisected { experiment: "tryout".into(), good: id(1), first_bad: Some(id(2)), suspects: vec![id(2)], steps: vec![] };
        let expected = "\
the first bad checkpoint is 020202020202  4.000s  before the upgrade
the last good one is       010101010101  2.000s
";
        assert_eq!(text(&bisected, &line, &Style::default()), expected);
        bisected.first_bad = None;
        bisected.suspects.push(id(3));
        assert!(
            text(&bisected, &line, &Style::default()).ends_with("  020202020202  4.000s  before the upgrade\n  030303030303  6.000s\n")
        );
    }

    #[test]
    fn halves() {
        assert_eq!([1, 2, 3, 4, 7, 8, 100].map(steps_for), [1, 1, 2, 2, 3, 3, 6]);
    }
}
