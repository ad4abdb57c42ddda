//! `fermata log`: the checkpoints of an experiment.

mod history;

use super::{Context, Result, ls};
use crate::{
    complete, graph,
    instant::Instant,
    out::{Failure, Paint, Style},
    pick,
    table::{Cell, Set, Table},
    text,
};
use clap::Args;
use fermata_api::{
    local,
    types::{PageCounts, PartKind, Perturbation},
    values::{Checkpoint, Problem, RunAt, When},
};
use history::{History, Range};
use std::collections::{BTreeMap, BTreeSet};

/// List the checkpoints, the newest first
///
/// A line for each: id, virtual time (what the guest sees), pause, bytes stored, pages written since the one before, where branches end and what is
/// tagged, message, and before it the seed of a replay that was perturbed. Needs no running experiment. `--json` prints an array in the same order, and of each what `fermata show --json` tells.
///
/// With --graph: the tree, with the time of day (UTC) at which each was taken, and above the checkpoint that it stands on each run that lives, as an `o` with its
/// virtual time now and what it does.
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
  fermata log --at 95s
  fermata log --since known-good --until 2m30s
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
    /// Of each line of checkpoints only the newest at or before this virtual time: where `goto TIME` would begin
    #[arg(long, value_name = "TIME", value_parser = virtual_time)]
    at: Option<u64>,
    /// Only what grew from this checkpoint; or what was taken at this virtual time or after it, such as 60s
    #[arg(long, value_name = "ID|TIME", add = complete::checkpoints())]
    since: Option<String>,
    /// Only what leads to this checkpoint, and itself; or what was taken at this virtual time or before it
    #[arg(long, value_name = "ID|TIME", add = complete::checkpoints())]
    until: Option<String>,
    /// Only the newest so many
    #[arg(short = 'n', long = "number", value_name = "N")]
    number: Option<usize>,
}

/// A virtual time as the log shows it, in nanoseconds.
fn virtual_time(text: &str) -> std::result::Result<u64, String> {
    match text.parse::<Instant>()? {
        Instant(When::AtNs(ns)) => Ok(ns),
        Instant(When::AfterNs(_)) => Err("a log has no now to count from: write a virtual time, such as 12.5s".to_owned()),
    }
}

impl Log {
    pub fn run(self, context: &Context) -> Result {
        let stored = pick::stored(context)?;
        let mut history = History::new(self.checkpoints(&stored)?);
        if history.checkpoints.is_empty() && !stored.lives {
            let message =
                format!("the store {} has no checkpoint of {}; `fermata ls` shows what runs", stored.store.display(), stored.experiment);
            return Err(Problem::new(message).into());
        }
        history.place(&stored.runs);
        let range = self.range(&history, &stored)?;
        let mut shown = history.select(self.branch.as_deref(), self.graph)?;
        history.narrow(&mut shown, &range);
        shown.truncate(self.number.unwrap_or(usize::MAX));
        if let (Some(at), true) = (self.at, shown.is_empty()) {
            context.out.note(&format!("no line has a checkpoint at or before {}", text::instant(at)));
        }
        let values: Vec<_> = shown.iter().map(|place| &history.checkpoints[*place]).collect();
        let columns = match (self.stat, self.times, self.graph) {
            (true, ..) => Columns::Statistics,
            (_, true, _) => Columns::Times(Steps::of(&values)),
            (.., true) => Columns::Tree { one_day: of_one_day(&values) },
            _ => Columns::Names,
        };
        context.out.answer(&values, |style| match context.out.quiet {
            true => values.iter().map(|checkpoint| format!("{}\n", checkpoint.id)).collect(),
            false => text(&history, &shown, self.graph, &columns, style),
        })?;
        Ok(0)
    }

    /// All checkpoints, children after their parents; or the few that are asked for, if they can be told without the others.
    fn checkpoints(&self, stored: &pick::Stored) -> std::result::Result<Vec<Checkpoint>, Problem> {
        if let (Some(number), false, None, None, None) = (self.number, self.graph, self.at, &self.since, &self.until) {
            let newest = local::newest_of(&stored.store, &stored.experiment, self.branch.as_deref(), number.max(1))?;
            if let Some(mut newest) = newest.filter(|newest| !newest.is_empty()) {
                newest.reverse();
                return Ok(newest);
            }
        }
        local::log(&stored.store, Some(&stored.experiment))
    }

    fn range(&self, history: &History, stored: &pick::Stored) -> std::result::Result<Range, Failure> {
        let resolve = |text: &str| local::resolve(&stored.store, Some(&stored.experiment), &stored.name(text)?);
        let bound = |text: &Option<String>| text.as_deref().map(|text| history.bound(text, resolve)).transpose();
        Ok(Range { at: self.at, since: bound(&self.since)?, until: bound(&self.until)? })
    }
}

fn text(history: &History, shown: &[usize], draw: bool, columns: &Columns, style: &Style) -> String {
    let mut table = columns.table();
    if style.width.is_none() {
        // A line is a checkpoint for whatever counts lines.
        table = table.without_header();
    }
    let mut row = |drawing: String, cells: Vec<Cell>| {
        table.row([Cell::new(Paint::Dim, drawing)].into_iter().chain(cells).collect());
    };
    if !draw {
        shown.iter().for_each(|place| row(String::new(), columns.cells(&history.checkpoints[*place])));
        return table.render(style);
    }
    // Runs are drawn as what grows next. Other columns than those of the tree have no room for what is told of them.
    let runs = if matches!(columns, Columns::Tree { .. }) { history.runs(shown) } else { vec![] };
    let count = history.checkpoints.len();
    let parents: Vec<_> = history.parents.iter().copied().chain(runs.iter().map(|(place, _)| Some(*place))).collect();
    let on = |place: usize| runs.iter().enumerate().filter(move |(_, (at, _))| *at == place).map(|(number, _)| count + number);
    let order: Vec<_> = shown.iter().flat_map(|place| on(*place).chain([*place])).collect();
    for graph::Line { drawing, item } in graph::draw(&parents, &order) {
        match item.map(|item| item.checked_sub(count).ok_or(item)) {
            None => row(drawing, vec![]),
            Some(Err(place)) => row(drawing, columns.cells(&history.checkpoints[place])),
            Some(Ok(number)) => {
                let (place, run) = &runs[number];
                row(drawing.replace('*', "o"), cells_of_run(run, &history.checkpoints[*place]));
            }
        }
    }
    table.render(style)
}

/// What is told of each checkpoint.
enum Columns {
    Names,
    Tree { one_day: bool },
    Statistics,
    Times(Steps),
}

impl Columns {
    fn table(&self) -> Table {
        match self {
            Self::Names => Table::new(&NAMES),
            Self::Tree { .. } => Table::new(&TREE),
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
            Self::Tree { one_day } => cells_in_tree(checkpoint, *one_day),
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

const TREE: [(&str, Set); 8] = [
    ("", Set::Left),
    ("ID", Set::Left),
    ("TIME", Set::Right),
    ("UTC", Set::Left),
    ("PAUSE", Set::Right),
    ("STORED", Set::Right),
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
    vec![
        Cell::new(Paint::Id, checkpoint.id.short()),
        text::instant(checkpoint.time_virtual_ns).into(),
        text::ms(checkpoint.pause_ms).into(),
        text::bytes(checkpoint.stored_bytes).into(),
        text::count(checkpoint.pages.written()).into(),
        Cell::new(Paint::Name, names(checkpoint)),
        message(checkpoint).into(),
    ]
}

fn message(checkpoint: &Checkpoint) -> String {
    let message = text::harmless(checkpoint.message.as_deref().unwrap_or_default().lines().next().unwrap_or_default());
    match checkpoint.perturbation {
        None => message,
        Some(Perturbation { seed, .. }) => format!("[perturbed {seed}] {message}").trim_end().to_owned(),
    }
}

fn cells_in_tree(checkpoint: &Checkpoint, one_day: bool) -> Vec<Cell> {
    vec![
        Cell::new(Paint::Id, checkpoint.id.short()),
        text::instant(checkpoint.time_virtual_ns).into(),
        Cell::new(Paint::Dim, taken(checkpoint, one_day)),
        text::ms(checkpoint.pause_ms).into(),
        text::bytes(checkpoint.stored_bytes).into(),
        Cell::new(Paint::Name, names(checkpoint)),
        message(checkpoint).into(),
    ]
}

/// Of a run: its virtual time, its name, what it does, and how far it has come from the checkpoint that it stands on.
fn cells_of_run(run: &RunAt, on: &Checkpoint) -> Vec<Cell> {
    let (paint, word) = ls::word(run.state);
    let come = run.time_virtual_ns.map(|now| format!(", {} on", text::instant(now.saturating_sub(on.time_virtual_ns))));
    let mut cells = vec![Cell::from(""), run.time_virtual_ns.map(text::instant).unwrap_or_default().into()];
    cells.extend(["", "", ""].map(Cell::from));
    cells.extend([
        Cell::new(Paint::Name, format!("run {}", text::harmless(&run.name))),
        Cell::new(paint, format!("{word}{}", come.unwrap_or_default())),
    ]);
    cells
}

/// Whether all were taken on the same day.
fn of_one_day(checkpoints: &[&Checkpoint]) -> bool {
    checkpoints.iter().map(|checkpoint| checkpoint.created.get(..10)).collect::<BTreeSet<_>>().len() <= 1
}

/// When it was taken: the time of day, with the day where there are several.
fn taken(checkpoint: &Checkpoint, one_day: bool) -> String {
    text::time_of_day(&checkpoint.created, one_day)
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
    use crate::commands::samples;
    use fermata_api::values::{MachineState, SavedBytes};

    fn check(branch: Option<&str>, number: usize, expected: &str) {
        let history = History::new(samples::history());
        let mut shown = history.select(branch, false).unwrap();
        shown.truncate(number);
        assert_eq!(text(&history, &shown, false, &Columns::Names, &Style::default()), expected);
    }

    #[test]
    fn a_clock_that_is_set_back_changes_no_order() {
        let mut checkpoints = samples::history();
        checkpoints[4].created_ns = 0;
        assert_eq!(History::new(checkpoints).select(None, false).unwrap(), [4, 3, 2, 1, 0]);
    }

    #[test]
    fn the_newest_first() {
        check(
            None,
            9,
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
    fn one_branch_and_so_many() {
        check(
            Some("what-if"),
            2,
            "\
040404040404  8.000s  4.21 ms  12.3 MiB  3,411  what-if
020202020202  4.000s  4.21 ms  12.3 MiB  3,411  #known-good  before the upgrade
",
        );
    }

    fn tree(width: usize) -> String {
        let mut history = History::new(samples::history());
        let run = |name: &str, head: u8, state| {
            let mut run = samples::run(name);
            run.head = Some(samples::id(head));
            run.machines[0].state = state;
            run
        };
        let mut young = samples::run("young");
        young.head = None;
        history.place(&[run("main", 5, MachineState::Running), run("back", 2, MachineState::Paused), young]);
        let shown = history.select(None, true).unwrap();
        text(&history, &shown, true, &Columns::Tree { one_day: true }, &Style { color: false, width: Some(width) })
    }

    #[test]
    fn as_a_tree_on_a_terminal() {
        let expected = "
       ID               TIME  UTC         PAUSE    STORED  AT           MESSAGE
o                    12.000s                               run main     running, 2.000s on
*      050505050505  10.000s  08:43:00  4.21 ms  12.3 MiB  main
*      030303030303   6.000s  08:43:00  4.21 ms  12.3 MiB
| *    040404040404   8.000s  08:43:00  4.21 ms  12.3 MiB  what-if
| | o                12.000s                               run back     paused, 8.000s on
| |/
|/
*      020202020202   4.000s  08:43:00  4.21 ms  12.3 MiB  #known-good  before the upgrade
*      010101010101   2.000s  08:43:00  4.21 ms  12.3 MiB
";
        assert_eq!(tree(200), expected.trim_start_matches('\n'));
    }

    #[test]
    fn a_tree_fits_eighty_columns() {
        let tree = tree(80);
        assert!(tree.lines().all(|line| text::width(line) <= 80), "{tree}");
        assert!(tree.contains("run back") && tree.contains("#known-good"), "{tree}");
    }

    #[test]
    fn the_time_of_day_has_the_day_where_there_are_several() {
        let mut history = samples::history();
        assert_eq!((of_one_day(&[&history[0], &history[1]]), taken(&history[0], true).as_str()), (true, "08:43:00"));
        history[1].created = "2026-11-22T00:00:00.000Z".to_owned();
        assert_eq!((of_one_day(&[&history[0], &history[1]]), taken(&history[1], false).as_str()), (false, "11-22 00:00"));
        history[1].created = String::new();
        assert_eq!(taken(&history[1], false), "");
    }

    #[test]
    fn statistics_stand_in_columns() {
        let mut history = samples::history();
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
        assert_eq!(text(&history, &[0, 1], false, &Columns::Statistics, &Style { color: false, width: Some(120) }), expected);
    }

    #[test]
    fn steps_stand_in_columns() {
        let mut history = samples::history();
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
        assert_eq!(text(&History::new(history), &[0, 1], false, &columns, &Style { color: false, width: Some(120) }), expected);
    }
}
