//! `fermata rm`: removes checkpoints.

use super::{Context, Result};
use crate::{
    complete,
    out::{Failure, Paint, Style},
    pick, text,
};
use clap::Args;
use fermata_api::{
    housekeeping::{self, RemoveRequest},
    values::{Problem, Removed},
};
use std::io::{self, IsTerminal, Write};

/// Remove checkpoints
///
/// What is named is gone at once; `fermata gc` then frees the space. Checkpoints that grew from a removed one stay as they are and can be gone to: in the
/// log they follow the nearest one that remains. A branch whose newest checkpoint is removed ends at the one before it. A run that lives goes on, whatever
/// is removed under it.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata rm 1f0c42 main~3
  fermata rm --branch what-if
  fermata rm --all -e old-experiment --dry-run
  fermata log --branch main -q | tail -n +100 | xargs fermata rm")]
pub struct Rm {
    /// Checkpoints: the beginning of an id, a tag or a branch for its newest; each with ~N for the N-th before it, ~N alone counting from where the run is
    #[arg(value_name = "ID", required_unless_present_any = ["branch", "all"], add = complete::checkpoints())]
    checkpoints: Vec<String>,
    /// A branch, with the checkpoints that no other branch leads to
    #[arg(long, value_name = "NAME", add = complete::branches())]
    branch: Vec<String>,
    /// All checkpoints of the experiment
    #[arg(long, conflicts_with_all = ["checkpoints", "branch"])]
    all: bool,
    /// Also what is tagged, and the tags with it
    #[arg(short, long)]
    force: bool,
    /// Only say what would go
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask before more is removed than the checkpoints that are named
    #[arg(short, long)]
    yes: bool,
}

impl Rm {
    pub fn run(self, context: &Context) -> Result {
        let stored = pick::stored(context)?;
        let named = self.checkpoints.len();
        let request = RemoveRequest {
            checkpoints: self.checkpoints.iter().map(|text| stored.name(text)).collect::<std::result::Result<_, _>>()?,
            experiment: stored.experiment,
            branches: self.branch,
            all: self.all,
            force: self.force,
            dry_run: self.dry_run,
        };
        if !self.yes && !self.dry_run && can_ask() {
            let would = housekeeping::remove(&stored.store, &RemoveRequest { dry_run: true, ..request.clone() })?;
            if would.checkpoints.len() > named {
                ask(&text(&would, true, &Style::default()))?;
            }
        }
        let removed = housekeeping::remove(&stored.store, &request)?;
        context.out.answer(&removed, |style| match context.out.quiet {
            true => removed.checkpoints.iter().map(|checkpoint| format!("{}\n", checkpoint.id)).collect(),
            false => text(&removed, self.dry_run, style),
        })?;
        Ok(0)
    }
}

/// Whether somebody sits there.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Goes on only if the user says so.
pub fn ask(would: &str) -> std::result::Result<(), Failure> {
    let mut stderr = io::stderr();
    write!(stderr, "{would}Remove? [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Problem::new(format!("cannot read the answer: {error}")))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Problem::new("nothing was removed").into()),
    }
}

fn text(removed: &Removed, would: bool, style: &Style) -> String {
    let count = |number: usize, one: &str| text::several(number as u64, one);
    let ids: Vec<_> = removed.checkpoints.iter().map(|checkpoint| style.paint(Paint::Id, &checkpoint.id.short())).collect();
    let verb = if would { "would be removed" } else { "removed" };
    let mut lines = format!("{} {verb}: {}\n", count(ids.len(), "checkpoint"), listed(&ids));
    for branch in &removed.branches {
        let (name, verb) = (style.paint(Paint::Name, &text::harmless(&branch.branch)), if would { "would be" } else { "is" });
        lines += &match branch.to {
            Some(to) => format!("branch {name} {verb} at {} now\n", style.paint(Paint::Id, &to.short())),
            None => format!("branch {name} {verb} gone\n"),
        };
    }
    for tag in &removed.tags {
        lines += &format!("tag {} {} gone\n", style.paint(Paint::Name, &text::harmless(&tag.tag)), if would { "would be" } else { "is" });
    }
    if !would && !removed.checkpoints.is_empty() {
        lines += "`fermata gc` frees their space\n";
    }
    lines
}

/// The first of them, and how many more there are.
fn listed(ids: &[String]) -> String {
    const MAX: usize = 8;
    let shown = ids.iter().take(MAX).cloned().collect::<Vec<_>>().join(" ");
    if ids.len() > MAX { format!("{shown} and {} more", ids.len() - MAX) } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args::Cli, commands::samples::id};
    use clap::Parser;
    use fermata_api::values::{MovedBranch, RemovedCheckpoint, RemovedTag};

    #[test]
    fn what_went_is_told() {
        let checkpoint = |number| RemovedCheckpoint { id: id(number), experiment: "tryout".into(), branch: "main".into() };
        let branch =
            |name: &str, to: Option<u8>| MovedBranch { experiment: "tryout".into(), branch: name.into(), from: id(9), to: to.map(id) };
        let tag = RemovedTag { experiment: "tryout".into(), tag: "good".into(), checkpoint: id(1) };
        let mut removed =
            Removed { checkpoints: vec![checkpoint(1), checkpoint(2)], branches: vec![branch("main", Some(3))], tags: vec![tag] };
        removed.branches.push(branch("what-if", None));
        let expected = "\
2 checkpoints removed: 010101010101 020202020202
branch main is at 030303030303 now
branch what-if is gone
tag good is gone
`fermata gc` frees their space
";
        assert_eq!(text(&removed, false, &Style::default()), expected);
        removed.checkpoints = (1..=10).map(checkpoint).collect();
        assert!(text(&removed, true, &Style::default()).contains("10 checkpoints would be removed: 0101"));
        assert!(text(&removed, true, &Style::default()).contains("080808080808 and 2 more\n"));
    }

    #[test]
    fn something_must_be_named_and_not_all_and_some() {
        let check = |line: &str, right: bool| assert_eq!(Cli::try_parse_from(line.split(' ')).is_ok(), right, "{line}");
        check("fermata rm", false);
        check("fermata rm 1234 main~2 --force", true);
        check("fermata rm --branch a --branch b", true);
        check("fermata rm --all -e tryout", true);
        check("fermata rm --all 1234", false);
    }
}
