//! What a keeper counted since it began, for metrics. Plain values: nobody's work depends on them.

use fermata_store::Cost;
use fermata_types::{ClassTimes, PageCounts};
use std::{collections::BTreeMap, time::Duration};

/// Bounds of the classes of a pause, seconds. The aim is a few milliseconds; `savevm` takes about one second.
pub const PAUSE_BOUNDS: &[f64] = &[0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 1.0];
/// Bounds of the classes of the time between the first machine's stop, or start, and the last one's, seconds.
pub const SKEW_BOUNDS: &[f64] = &[0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05];
/// Bounds of the classes of the time that storing takes, seconds.
pub const SAVE_BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Bounds of the classes of the time from a request to the guest's first instruction, seconds.
pub const RESUME_BOUNDS: &[f64] = &[0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Times, counted by class.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// Upper bounds of the classes, seconds, rising. What is above the last has a class of its own.
    pub bounds: &'static [f64],
    /// Times in each class; one more than there are bounds.
    pub counts: Vec<u64>,
    /// All times together, seconds.
    pub sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn add(&mut self, seconds: f64) {
        self.counts[self.bounds.partition_point(|bound| *bound < seconds)] += 1;
        self.sum += seconds;
    }

    /// Times in all.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// How often something took how long in all.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Total {
    /// How often.
    pub count: u64,
    /// Seconds.
    pub sum: f64,
}

/// Times by part and step, as a checkpoint's record names them: `m1 stop`.
pub type Steps = BTreeMap<String, Total>;

/// What was counted of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunTally {
    /// Checkpoints that failed; those that did not are in `pause`.
    pub failed: u64,
    /// How long the guests stood still.
    pub pause: Histogram,
    /// From the first machine's stop to the last one's, and from the first one's going on to the last one's; of runs of several machines.
    pub skew: [Histogram; 2],
    /// How long it took behind the guests to store.
    pub save: Histogram,
    /// What pauses were spent on.
    pub steps: Steps,
    /// What the work around pauses was spent on.
    pub background: Steps,
    /// What telling each class of pages took.
    pub sieve: ClassTimes,
    /// Pages by part and class.
    pub pages: BTreeMap<String, PageCounts>,
    /// Bytes added to the store.
    pub stored_bytes: u64,
    /// Bytes of new pages that compression kept out of it.
    pub compressed_away: u64,
}

impl Default for RunTally {
    fn default() -> Self {
        Self {
            failed: 0,
            pause: Histogram::new(PAUSE_BOUNDS),
            skew: [Histogram::new(SKEW_BOUNDS), Histogram::new(SKEW_BOUNDS)],
            save: Histogram::new(SAVE_BOUNDS),
            steps: Steps::new(),
            background: Steps::new(),
            sieve: ClassTimes::default(),
            pages: BTreeMap::new(),
            stored_bytes: 0,
            compressed_away: 0,
        }
    }
}

/// How a run came to a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It was taken there.
    Goto,
    /// It began there, beside another.
    Fork,
    /// Its experiment was brought back.
    Revive,
}

/// What a keeper counted since it began.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Its runs that did not end: figures of every fork there ever was would grow without bound.
    pub runs: BTreeMap<String, RunTally>,
    /// From a request to the guest's first instruction: by kind, and whether a spare process stood ready.
    pub resumed: BTreeMap<(Kind, bool), Histogram>,
    /// Requests that failed.
    pub not_resumed: BTreeMap<Kind, u64>,
}

impl Tally {
    pub(crate) fn begin(&mut self, run: &str) {
        self.runs.insert(run.to_owned(), RunTally::default());
    }

    pub(crate) fn end(&mut self, run: &str) {
        self.runs.remove(run);
    }

    pub(crate) fn checkpoint(&mut self, run: &str, cost: &Cost) {
        // A run may end while its last checkpoint is being stored.
        let Some(run) = self.runs.get_mut(run) else { return };
        run.pause.add(seconds(cost.pause_ns));
        run.save.add(seconds(cost.save_ns));
        if let Some(skew) = &cost.skew {
            let [stop, resume] = &mut run.skew;
            stop.add(seconds(skew.stop_ns));
            resume.add(seconds(skew.resume_ns));
        }
        add(&mut run.steps, &cost.steps_ns);
        add(&mut run.background, &cost.background_ns);
        run.sieve += cost.sieve_ns;
        for (part, pages) in &cost.parts {
            *run.pages.entry(part.clone()).or_default() += *pages;
        }
        run.stored_bytes += cost.stored_bytes;
        run.compressed_away += cost.compressed_away();
    }

    pub(crate) fn failure(&mut self, run: &str) {
        if let Some(run) = self.runs.get_mut(run) {
            run.failed += 1;
        }
    }

    /// A journey ended: after so long, in a process that stood ready or not; or it failed.
    pub(crate) fn journey(&mut self, kind: Kind, arrived: Option<(bool, Duration)>) {
        match arrived {
            Some((warm, took)) => {
                self.resumed.entry((kind, warm)).or_insert_with(|| Histogram::new(RESUME_BOUNDS)).add(took.as_secs_f64());
            }
            None => *self.not_resumed.entry(kind).or_default() += 1,
        }
    }
}

fn add(steps: &mut Steps, cost: &BTreeMap<String, u64>) {
    for (step, ns) in cost {
        let total = steps.entry(step.clone()).or_default();
        total.count += 1;
        total.sum += seconds(*ns);
    }
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_class() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 2.0, 2.5, 9.0].into_iter().for_each(|time| histogram.add(time));
        assert_eq!((histogram.counts.as_slice(), histogram.count(), histogram.sum), ([2, 2, 2].as_slice(), 6, 16.5));
    }

    #[test]
    fn only_runs_that_live_are_counted() {
        let mut tally = Tally::default();
        let pages = PageCounts { new: 2, ..PageCounts::default() };
        let cost = Cost {
            pause_ns: 4_000_000,
            steps_ns: BTreeMap::from([("m1 stop".into(), 1_000_000)]),
            pages,
            parts: BTreeMap::from([("m1".into(), pages)]),
            stored_bytes: 10,
            ..Cost::default()
        };
        tally.checkpoint("main", &cost);
        assert_eq!(tally, Tally::default());
        tally.begin("main");
        tally.checkpoint("main", &cost);
        tally.checkpoint("main", &cost);
        tally.failure("main");
        let main = &tally.runs["main"];
        assert_eq!((main.pause.count(), main.failed, main.stored_bytes, main.pages["m1"].new), (2, 1, 20, 4));
        assert_eq!(main.compressed_away, 2 * (2 * 4096 - 10));
        assert_eq!(main.steps["m1 stop"], Total { count: 2, sum: 0.002 });
        tally.end("main");
        assert!(tally.runs.is_empty());
        tally.journey(Kind::Goto, Some((true, Duration::from_millis(20))));
        tally.journey(Kind::Goto, None);
        assert_eq!((tally.resumed[&(Kind::Goto, true)].count(), tally.not_resumed[&Kind::Goto]), (1, 1));
    }
}
