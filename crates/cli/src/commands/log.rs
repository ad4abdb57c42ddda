//! `fermata log`: the checkpoints of an experiment.

use super::{Context, Result};
use crate::{
    complete, graph,
    out::{Paint, Style},
    pick,
    table::{Cell, Set, Table},
    text,
};
use clap::Args;
use fermata_api::{
    local,
    types::{CheckpointId, PageCounts, PartKind},
    values::{Checkpoint, Problem},
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// List the checkpoints, the newest first
///
/// A line for each: id, virtual time (what the guest sees), pause, bytes stored, pages written since the one before, where branches end and what is
/// tagged, message. Needs no running experiment. `--json` prints an array in the same order, and of each what `fermata show --json` tells.
///
/// With --stat: pages of memory and blocks of disks that were written, and what became of both together: zero or free, known to equal a block of a
/// disk, on a golden image, twice in this checkpoint, in earlier ones, and how many checkpoints ago the middle one of these was stored, new; bytes
/// stored, and bytes of what was written that were not.
///
/// With --times: the pause, each of its steps in the part that took longest for it, each step of the work around it in all parts together, and how long
/// storing took.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata log --graph
  fermata log --branch what-if -n 10
  fermata log --stat
  fermata log --times -n 20
  fermata log --json | jq '.[0].pause_ms'")]
pub struct Log {
    /// Draw the tree
    #[arg(long)]
    graph: bool,
    /// For each what became of its written pages and blocks, instead of names and message
    #[arg(long, conflicts_with = "times")]
    stat: bool,
    /// For each how long every step of its pause and of the work around it took, instead of names and message
    #[arg(long)]
    times: bool,
    /// Only what leads to the newest checkpoint of this branch
    #[arg(long, value_name = "NAME", add = complete::branches())]
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
        let columns = match (self.stat, self.times) {
            (true, _) => Columns::Statistics,
            (_, true) => Columns::Times(Steps::of(&values)),
            _ => Columns::Names,
        };
        context.out.answer(&values, |style| match context.out.quiet {
            true => values.iter().map(|checkpoint| format!("{}\n", checkpoint.id)).collect(),
            false => history.text(&shown, self.graph, &columns, style),
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

    fn text(&self, shown: &[usize], draw: bool, columns: &Columns, style: &Style) -> String {
        let lines = if draw {
            graph::draw(&self.parents, shown)
        } else {
            shown.iter().map(|place| graph::Line { drawing: String::new(), item: Some(*place) }).collect()
        };
        let mut table = columns.table();
        if style.width.is_none() {
            // A line is a checkpoint for whatever counts lines.
            table = table.without_header();
        }
        for graph::Line { drawing, item } in lines {
            let mut cells = vec![Cell::new(Paint::Dim, drawing)];
            cells.extend(item.into_iter().flat_map(|place| columns.cells(&self.checkpoints[place])));
            table.row(cells);
        }
        table.render(style)
    }
}

/// What is told of each checkpoint.
enum Columns {
    Names,
    Statistics,
    Times(Steps),
}

impl Columns {
    fn table(&self) -> Table {
        match self {
            Self::Names => Table::new(&NAMES),
            Self::Statistics => Table::new(&STATISTICS),
            Self::Times(steps) => {
                let names = steps.pause.iter().chain(&steps.around).map(|step| step.to_uppercase()).collect::<Vec<_>>();
                let (first, last) = ([("", Set::Left), ("ID", Set::Left), ("PAUSE", Set::Right)], [("STORING", Set::Right)]);
                let between = names.iter().map(|name| (name.as_str(), Set::Right));
                Table::new(&first.into_iter().chain(between).chain(last).collect::<Vec<_>>())
            }
        }
    }

    fn cells(&self, checkpoint: &Checkpoint) -> Vec<Cell> {
        match self {
            Self::Names => cells_of(checkpoint),
            Self::Statistics => statistics_of(checkpoint),
            Self::Times(steps) => steps.times_of(checkpoint),
        }
    }
}

/// The steps that any of some checkpoints had, in whichever part.
struct Steps {
    pause: BTreeSet<String>,
    around: BTreeSet<String>,
}

impl Steps {
    fn of(checkpoints: &[&Checkpoint]) -> Self {
        let names = |of: fn(&Checkpoint) -> &BTreeMap<String, f64>| {
            checkpoints.iter().flat_map(|checkpoint| of(checkpoint).keys()).map(|name| text::harmless(step(name))).collect()
        };
        Self { pause: names(|checkpoint| &checkpoint.steps_ms), around: names(|checkpoint| &checkpoint.background_ms) }
    }

    fn times_of(&self, checkpoint: &Checkpoint) -> Vec<Cell> {
        let told = |ms: Option<f64>| ms.map_or_else(|| Cell::from("-"), |ms| text::ms(ms).into());
        let mut cells = vec![Cell::new(Paint::Id, checkpoint.id.short()), text::ms(checkpoint.pause_ms).into()];
        // In a pause the parts go through a step side by side, but around it one after the other.
        cells.extend(self.pause.iter().map(|step| told(times_in(&checkpoint.steps_ms, step).reduce(f64::max))));
        cells.extend(self.around.iter().map(|step| told(times_in(&checkpoint.background_ms, step).reduce(|a, b| a + b))));
        cells.push(text::ms(checkpoint.save_ms).into());
        cells
    }
}

/// The step of a name such as `m1/disk0 cut`, without its part.
fn step(name: &str) -> &str {
    name.rsplit_once(' ').map_or(name, |(_, step)| step)
}

fn times_in(all: &BTreeMap<String, f64>, of: &str) -> impl Iterator<Item = f64> {
    all.iter().filter(move |(name, _)| text::harmless(step(name)) == of).map(|(_, ms)| *ms)
}

const NAMES: [(&str, Set); 8] = [
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
    ("PAGES", Set::Right),
    ("BLOCKS", Set::Right),
    ("ZERO", Set::Right),
    ("MAPPED", Set::Right),
    ("ON DISK", Set::Right),
    ("TWICE", Set::Right),
    ("EARLIER", Set::Right),
    ("DISTANCE", Set::Right),
    ("NEW", Set::Right),
    ("STORED", Set::Right),
    ("SAVED", Set::Right),
];

fn statistics_of(checkpoint: &Checkpoint) -> Vec<Cell> {
    let pages = &checkpoint.pages;
    let blocks = blocks_written(checkpoint);
    let classes = [pages.free + pages.zero, pages.mapped, pages.on_disk, pages.within, pages.known.saturating_sub(pages.within)];
    let mut cells = vec![
        Cell::new(Paint::Id, checkpoint.id.short()),
        text::count(pages.written().saturating_sub(blocks.unwrap_or(0))).into(),
        blocks.map_or_else(|| "-".to_owned(), text::count).into(),
    ];
    cells.extend(classes.map(|count| text::count(count).into()));
    cells.extend([
        pages.distances.median().map_or_else(|| "-".to_owned(), text::power_of_two).into(),
        text::count(pages.new).into(),
        text::bytes(checkpoint.stored_bytes).into(),
        text::bytes(checkpoint.saved_bytes.total()).into(),
    ]);
    cells
}

/// Of the pages written those that are blocks of disks; none where the checkpoint does not tell them apart.
fn blocks_written(checkpoint: &Checkpoint) -> Option<u64> {
    let disks = checkpoint.parts.iter().filter(|part| part.kind == PartKind::Disk);
    let counts = disks.filter_map(|disk| checkpoint.pages_by_part.get(&disk.name));
    (!checkpoint.pages_by_part.is_empty()).then(|| counts.map(PageCounts::written).sum())
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
    use fermata_api::values::SavedBytes;

    fn check(branch: Option<&str>, graph: bool, number: Option<usize>, width: Option<usize>, expected: &str) {
        let history = History::new(history());
        let shown = history.select(branch, graph, number).unwrap();
        assert_eq!(history.text(&shown, graph, &Columns::Names, &Style { color: false, width }), expected.trim_start_matches('\n'));
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
        (0..400).for_each(|place| history[0].pages.distances.add(place / 50 + 1));
        history[0].pages_by_part.insert("m1/disk0".to_owned(), PageCounts { new: 11, ..PageCounts::default() });
        history[0].saved_bytes = SavedBytes { zero: 3 << 20, across: 1 << 20, ..SavedBytes::default() };
        let history = History::new(history);
        let expected = "\
ID            PAGES  BLOCKS  ZERO  MAPPED  ON DISK  TWICE  EARLIER  DISTANCE    NEW    STORED    SAVED
010101010101  3,400      11   411       0    1,000    100      400    4 to 7  1,500  12.3 MiB  4.0 MiB
020202020202  3,411       -   411       0    1,000      0      500         -  1,500  12.3 MiB      0 B
";
        assert_eq!(history.text(&[0, 1], false, &Columns::Statistics, &Style { color: false, width: Some(120) }), expected);
    }

    #[test]
    fn steps_stand_in_columns() {
        let mut history = history();
        history[0].background_ms =
            [("m1 prepare".to_owned(), 7.0), ("m1/disk0 prepare".to_owned(), 3.0), ("m1 save".to_owned(), 80.0)].into();
        history[0].steps_ms.insert("m2 stop".to_owned(), 0.7);
        history[0].steps_ms.insert("m1/disk0 cut".to_owned(), 0.01);
        let columns = Columns::Times(Steps::of(&[&history[0], &history[1]]));
        let expected = "\
ID              PAUSE      CUT  DEVICES     STOP  PREPARE     SAVE  STORING
010101010101  4.21 ms  0.01 ms  2.00 ms  0.70 ms  10.0 ms  80.0 ms   120 ms
020202020202  4.21 ms        -  2.00 ms  0.40 ms        -        -   120 ms
";
        assert_eq!(History::new(history).text(&[0, 1], false, &columns, &Style { color: false, width: Some(120) }), expected);
    }

    #[test]
    fn a_parent_that_is_gone_ends_the_line() {
        let mut orphans = history();
        orphans.remove(0);
        let history = History::new(orphans);
        assert_eq!(history.select(None, true, None).unwrap().len(), 4);
    }
}
