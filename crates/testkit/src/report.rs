//! What a bench prints: figures, each beside its rival of the same run, as soon as it is known. So what an hour has measured is not lost with what fails afterwards.

use serde::Serialize;
use std::fs;

/// One figure.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// Ours.
    pub value: f64,
    /// Of both values.
    pub unit: &'static str,
    /// Against what.
    pub rival: String,
    /// Theirs, in the same run; none if there is no such thing.
    pub rival_value: Option<f64>,
    /// The mark that was set, in words.
    pub at_least: String,
    /// Whether it was reached.
    pub holds: bool,
}

/// A table, where figures have more than one rival: the first row names the columns.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// What is in it.
    pub title: String,
    /// Its rows, all of one length.
    pub rows: Vec<Vec<String>>,
}

/// All figures of a bench.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The bench.
    pub bench: &'static str,
    /// On what it ran.
    pub machine: String,
    /// What came out.
    pub figures: Vec<Figure>,
    /// The same and more in the form of somebody else's tables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<Table>,
    /// What one must know to read the figures: settings, loads, what was left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What a figure without a mark says instead of one.
const REPORTED: &str = "reported";

impl Report {
    /// A report of a bench on this machine.
    pub fn new(bench: &'static str) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let processor =
            read("/proc/cpuinfo").lines().find_map(|line| Some(line.split_once("model name")?.1.trim_matches([' ', '\t', ':']).to_owned()));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let machine = format!("{cores} x {}, Linux {}", processor.unwrap_or_default(), read("/proc/sys/kernel/osrelease").trim());
        if !as_json() {
            println!("{bench} on {machine}");
        }
        Self { bench, machine, figures: Vec::new(), tables: Vec::new(), notes: Vec::new() }
    }

    /// Adds a figure, and prints it: where JSON is wanted, for whoever watches.
    pub fn add(&mut self, figure: Figure) {
        let line = figure.line();
        if as_json() {
            eprintln!("{line}")
        } else {
            println!("{line}")
        }
        self.figures.push(figure);
    }

    /// Adds a figure that is told and has no mark to reach.
    pub fn tell(&mut self, name: &str, value: f64, unit: &'static str, rival: Option<(&str, f64)>) {
        self.mark(name, value, unit, rival, (REPORTED, true));
    }

    /// Adds a figure with its mark in words, and whether it was reached.
    pub fn mark(&mut self, name: &str, value: f64, unit: &'static str, rival: Option<(&str, f64)>, mark: (&str, bool)) {
        let (rival, rival_value) = rival.map_or((String::new(), None), |(rival, value)| (rival.to_owned(), Some(value)));
        self.add(Figure { name: name.to_owned(), value, unit, rival, rival_value, at_least: mark.0.to_owned(), holds: mark.1 });
    }

    /// Adds something that one must know to read the figures.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Prints what is left to print: as JSON, all of it, if `--json` was among the arguments; else tables and notes for people.
    pub fn print(&self) {
        if as_json() {
            println!("{}", serde_json::to_string(self).expect("figures are plain values"));
            return;
        }
        self.tables.iter().for_each(Table::print);
        self.notes.iter().for_each(|note| println!("  ({note})"));
    }
}

fn as_json() -> bool {
    std::env::args().any(|argument| argument == "--json")
}

impl Figure {
    fn line(&self) -> String {
        let rival = self.rival_value.map_or_else(String::new, |value| format!("{value:.2} {} {}", self.unit, self.rival));
        let mark = match (self.at_least.as_str(), self.holds) {
            (REPORTED, _) => String::new(),
            (mark, true) => format!("{mark}: holds"),
            (mark, false) => format!("{mark}: FALLS SHORT"),
        };
        let line = format!("  {:44} {:>10.2} {:5} {:30} {mark}", self.name, self.value, self.unit, rival);
        line.trim_end().to_owned()
    }
}

impl Table {
    fn print(&self) {
        println!("\n  {}", self.title);
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
        for row in &self.rows {
            let cells: Vec<_> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| if column == 0 { format!("{cell:width$}") } else { format!("{cell:>width$}") })
                .collect();
            println!("  {}", cells.join("  ").trim_end());
        }
    }
}

/// The value at this share of all values from the smallest on: 0.5 is the median. Between two it is interpolated, as NumPy does by default; of none it is not a number.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = share * sorted.len().saturating_sub(1) as f64;
    match (sorted.get(at.floor() as usize), sorted.get(at.ceil() as usize)) {
        (Some(below), Some(above)) => below + (above - below) * at.fract(),
        _ => f64::NAN,
    }
}
