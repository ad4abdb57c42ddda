//! What a bench prints: figures, each beside its rival of the same run.

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

/// All figures of a bench.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The bench.
    pub bench: &'static str,
    /// On what it ran.
    pub machine: String,
    /// What came out.
    pub figures: Vec<Figure>,
}

impl Report {
    /// A report of a bench on this machine.
    pub fn new(bench: &'static str) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let processor =
            read("/proc/cpuinfo").lines().find_map(|line| Some(line.split_once("model name")?.1.trim_matches([' ', '\t', ':']).to_owned()));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let machine = format!("{cores} x {}, Linux {}", processor.unwrap_or_default(), read("/proc/sys/kernel/osrelease").trim());
        Self { bench, machine, figures: Vec::new() }
    }

    /// Prints it: as JSON if `--json` was among the arguments, else as lines for people.
    pub fn print(&self) {
        if std::env::args().any(|argument| argument == "--json") {
            println!("{}", serde_json::to_string(self).expect("figures are plain values"));
            return;
        }
        println!("{} on {}", self.bench, self.machine);
        for figure in &self.figures {
            let rival = figure.rival_value.map_or_else(String::new, |value| format!("{value:.2} {} {}", figure.unit, figure.rival));
            let holds = if figure.holds { "holds" } else { "FALLS SHORT" };
            println!("  {:32} {:>10.2} {:4} {:28} {}: {holds}", figure.name, figure.value, figure.unit, rival, figure.at_least);
        }
    }
}

/// The value at this share of all values from the smallest on: 0.5 is the median.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}
