//! `fermata log`: the checkpoints of an experiment.

use super::{Context, Result};
use crate::{
    graph,
    out::{Paint, Style},
    pick,
    table::{Cell, Set, Table},
    text,
};
use clap::Args;
use fermata_api::{
    local,
    types::CheckpointId,
    values::{Checkpoint, Problem},
};
use std::collections::HashMap;

/// List the checkpoints, the newest first
///
/// A line for each: id, virtual time (what the guest sees), pause, bytes stored, pages written since the one before, where branches end and what is
/// tagged, message. Needs no running experiment. `--json` prints an array in the same order.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata log --graph
  fermata log --branch what-if -n 10
  fermata log --json | jq '.[0].pause_ms'")]
pub struct Log {
    /// Draw the tree
    #[arg(long)]
    graph: bool,
    /// Only what leads to the newest checkpoint of this branch
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,
    /// Only the newest so many
    #[arg(short = 'n', long = "number", value_name = "N")]
    number: Option<usize>,
}

impl Log {
    pub fn run(self, context: &Context) -> Result {
        let stored = pick::stored(context)?;
        let history = History::new(local::log(&stored.store, Some(&stored.experiment))?);
        if history.checkpoints.is_empty() && !stored.lives {
            let message =
                format!("the store {} has no checkpoint of {}; `fermata ls` shows what runs", stored.store.display(), stored.experiment);
            return Err(Problem::new(message).into());
        }
        let shown = history.select(self.branch.as_deref(), self.graph, self.number)?;
        let values: Vec<_> = shown.iter().map(|place| &history.checkpoints[*place]).collect();
        context.out.answer(&values, |style| match (context.out.quiet, self.graph) {
            (true, _) => values.iter().map(|checkpoint| format!("{}\n", checkpoint.id)).collect(),
            (false, graph) => history.text(&shown, graph, style),
        })?;
        Ok(0)
    }
}

struct History {
    checkpoints: Vec<Checkpoint>,
    parents: Vec<Option<usize>>,
}

impl History {
    fn new(checkpoints: Vec<Checkpoint>) -> Self {
        let places: HashMap<CheckpointId, usize> =
            checkpoints.iter().enumerate().map(|(place, checkpoint)| (checkpoint.id, place)).collect();
        let parents = checkpoints.iter().map(|checkpoint| places.get(checkpoint.parent.as_ref()?).copied()).collect();
        Self { checkpoints, parents }
    }

    /// What is shown, in that order.
    fn select(&self, branch: Option<&str>, in_lines: bool, number: Option<usize>) -> std::result::Result<Vec<usize>, Problem> {
        let mut shown = match branch {
            Some(branch) => std::iter::successors(Some(self.head(branch)?), |place| self.parents[*place]).collect(),
            None => {
                let ages: Vec<_> = self.checkpoints.iter().map(|checkpoint| checkpoint.created_ns).collect();
                graph::order(&self.parents, &ages, in_lines)
            }
        };
        shown.truncate(number.unwrap_or(usize::MAX));
        Ok(shown)
    }

    fn head(&self, branch: &str) -> std::result::Result<usize, Problem> {
        self.checkpoints.iter().position(|checkpoint| checkpoint.heads.iter().any(|head| head == branch)).ok_or_else(|| {
            let mut branches: Vec<_> = self.checkpoints.iter().flat_map(|checkpoint| &checkpoint.heads).map(String::as_str).collect();
            branches.sort_unstable();
            Problem::new(format!("there is no branch \"{branch}\"; there is {}", branches.join(", ")))
        })
    }

    fn text(&self, shown: &[usize], draw: bool, style: &Style) -> String {
        let lines = if draw {
            graph::draw(&self.parents, shown)
        } else {
            shown.iter().map(|place| graph::Line { drawing: String::new(), item: Some(*place) }).collect()
        };
        let columns = [
            ("", Set::Left),
            ("ID", Set::Left),
            ("TIME", Set::Right),
            ("PAUSE", Set::Right),
            ("STORED", Set::Right),
            ("WRITTEN", Set::Right),
            ("AT", Set::Elastic),
            ("MESSAGE", Set::Elastic),
        ];
        let mut table = Table::new(&columns);
        if style.width.is_none() {
            // A line is a checkpoint for whatever counts lines.
            table = table.without_header();
        }
        for graph::Line { drawing, item } in lines {
            let mut cells = vec![Cell::new(Paint::Dim, drawing)];
            cells.extend(item.into_iter().flat_map(|place| cells_of(&self.checkpoints[place])));
            table.row(cells);
        }
        table.render(style)
    }
}

fn cells_of(checkpoint: &Checkpoint) -> [Cell; 7] {
    let message = checkpoint.message.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
    [
        Cell::new(Paint::Id, checkpoint.id.short()),
        text::instant(checkpoint.time_virtual_ns).into(),
        text::ms(checkpoint.pause_ms).into(),
        text::bytes(checkpoint.stored_bytes).into(),
        text::count(checkpoint.pages.written()).into(),
        Cell::new(Paint::Name, names(checkpoint)),
        text::harmless(message).into(),
    ]
}

/// Branches that end at a checkpoint, and its tags: `main, what-if, #known-good`.
pub fn names(checkpoint: &Checkpoint) -> String {
    let tags = checkpoint.tags.iter().map(|tag| format!("#{tag}"));
    let names: Vec<_> = checkpoint.heads.iter().cloned().chain(tags).map(|name| text::harmless(&name)).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::history;

    fn check(branch: Option<&str>, graph: bool, number: Option<usize>, width: Option<usize>, expected: &str) {
        let history = History::new(history());
        let shown = history.select(branch, graph, number).unwrap();
        assert_eq!(history.text(&shown, graph, &Style { color: false, width }), expected.trim_start_matches('\n'));
    }

    #[test]
    fn the_newest_first() {
        check(
            None,
            false,
            None,
            None,
            "\
050505050505  10.000s  4.21 ms  12.3 MiB  3,411  main
040404040404   8.000s  4.21 ms  12.3 MiB  3,411  what-if
030303030303   6.000s  4.21 ms  12.3 MiB  3,411
020202020202   4.000s  4.21 ms  12.3 MiB  3,411  #known-good  before the upgrade
010101010101   2.000s  4.21 ms  12.3 MiB  3,411
",
        );
    }

    #[test]
    fn as_a_tree_on_a_terminal() {
        check(
            None,
            true,
            None,
            Some(72),
            "
     ID               TIME    PAUSE    STORED  WRITTEN  AT        MESSAGE
*    050505050505  10.000s  4.21 ms  12.3 MiB    3,411  main
*    030303030303   6.000s  4.21 ms  12.3 MiB    3,411
| *  040404040404   8.000s  4.21 ms  12.3 MiB    3,411  what-if
|/
*    020202020202   4.000s  4.21 ms  12.3 MiB    3,411  #known-…  before …
*    010101010101   2.000s  4.21 ms  12.3 MiB    3,411
",
        );
    }

    #[test]
    fn one_branch_and_so_many() {
        check(
            Some("what-if"),
            false,
            Some(2),
            None,
            "\
040404040404  8.000s  4.21 ms  12.3 MiB  3,411  what-if
020202020202  4.000s  4.21 ms  12.3 MiB  3,411  #known-good  before the upgrade
",
        );
        let problem = History::new(history()).select(Some("none"), false, None).unwrap_err();
        assert_eq!(problem.message, "there is no branch \"none\"; there is main, what-if");
    }

    #[test]
    fn a_parent_that_is_gone_ends_the_line() {
        let mut orphans = history();
        orphans.remove(0);
        let history = History::new(orphans);
        assert_eq!(history.select(None, true, None).unwrap().len(), 4);
    }
}
