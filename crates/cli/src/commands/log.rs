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
/// tagged, message. With --stat: the pause and the work before and behind it, pages written and what became of them (zero or free, on a golden image, twice
/// in this checkpoint, in earlier ones, new), bytes stored. Needs no running experiment. `--json` prints an array in the same order.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata log --graph
  fermata log --branch what-if -n 10
  fermata log --stat
  fermata log --json | jq '.[0].pause_ms'")]
pub struct Log {
    /// Draw the tree
    #[arg(long)]
    graph: bool,
    /// For each what became of its written pages, and how long the work around the pause took, instead of names and message
    #[arg(long)]
    stat: bool,
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
            (false, graph) => history.text(&shown, graph, self.stat, style),
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

    fn text(&self, shown: &[usize], draw: bool, stat: bool, style: &Style) -> String {
        let lines = if draw {
            graph::draw(&self.parents, shown)
        } else {
            shown.iter().map(|place| graph::Line { drawing: String::new(), item: Some(*place) }).collect()
        };
        let mut table = Table::new(if stat { &STATISTICS } else { &COLUMNS });
        if style.width.is_none() {
            // A line is a checkpoint for whatever counts lines.
            table = table.without_header();
        }
        for graph::Line { drawing, item } in lines {
            let mut cells = vec![Cell::new(Paint::Dim, drawing)];
            cells.extend(item.into_iter().flat_map(|place| {
                let checkpoint = &self.checkpoints[place];
                if stat { statistics_of(checkpoint) } else { cells_of(checkpoint) }
            }));
            table.row(cells);
        }
        table.render(style)
    }
}

const COLUMNS: [(&str, Set); 8] = [
    ("", Set::Left),
    ("ID", Set::Left),
    ("TIME", Set::Right),
    ("PAUSE", Set::Right),
    ("STORED", Set::Right),
    ("WRITTEN", Set::Right),
    ("AT", Set::Elastic),
    ("MESSAGE", Set::Elastic),
];

const STATISTICS: [(&str, Set); 13] = [
    ("", Set::Left),
    ("ID", Set::Left),
    ("PAUSE", Set::Right),
    ("PREPARE", Set::Right),
    ("SAVE", Set::Right),
    ("WRITTEN", Set::Right),
    ("ZERO", Set::Right),
    ("MAPPED", Set::Right),
    ("ON DISK", Set::Right),
    ("TWICE", Set::Right),
    ("EARLIER", Set::Right),
    ("NEW", Set::Right),
    ("STORED", Set::Right),
];

fn statistics_of(checkpoint: &Checkpoint) -> Vec<Cell> {
    let pages = &checkpoint.pages;
    let prepare = checkpoint.background_ms.iter().filter(|(step, _)| step.ends_with(" prepare")).map(|(_, ms)| ms).sum();
    let counts = [
        pages.written(),
        pages.free + pages.zero,
        pages.mapped,
        pages.on_disk,
        pages.within,
        pages.known.saturating_sub(pages.within),
        pages.new,
    ];
    let mut cells = vec![Cell::new(Paint::Id, checkpoint.id.short())];
    cells.extend([checkpoint.pause_ms, prepare, checkpoint.save_ms].map(|ms| text::ms(ms).into()));
    cells.extend(counts.map(|count| text::count(count).into()));
    cells.push(text::bytes(checkpoint.stored_bytes).into());
    cells
}

fn cells_of(checkpoint: &Checkpoint) -> Vec<Cell> {
    let message = checkpoint.message.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
    vec![
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
        assert_eq!(history.text(&shown, graph, false, &Style { color: false, width }), expected.trim_start_matches('\n'));
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
    fn statistics_stand_in_columns() {
        let mut history = history();
        history[0].pages.within = 100;
        history[0].background_ms =
            [("m1 prepare".to_owned(), 7.0), ("m1/disk0 prepare".to_owned(), 3.0), ("m1 save".to_owned(), 80.0)].into();
        let history = History::new(history);
        let expected = "\
ID              PAUSE  PREPARE    SAVE  WRITTEN  ZERO  MAPPED  ON DISK  TWICE  EARLIER    NEW    STORED
010101010101  4.21 ms  10.0 ms  120 ms    3,411   411       0    1,000    100      400  1,500  12.3 MiB
";
        assert_eq!(history.text(&[0], false, true, &Style { color: false, width: Some(120) }), expected);
    }

    #[test]
    fn a_parent_that_is_gone_ends_the_line() {
        let mut orphans = history();
        orphans.remove(0);
        let history = History::new(orphans);
        assert_eq!(history.select(None, true, None).unwrap().len(), 4);
    }
}
