//! The cheapest way to find writes, by trying: how long cycles take under each way, with all that the program does in them.
//!
//! | way | costs, for a cycle of n pages and s stores |
//! |---|---|
//! | assisted | a scan, which grows with the area, and a little for each page |
//! | protect | a signal for each page |
//! | emulate | a signal for each store |
//!
//! ```text
//!   the best one so far ... │ some cycles under each other │ the best one ...
//!   (32 cycles, then twice as many each time that it stays the best)
//! ```
//!
//! What counts is the time from one take to the end of the next. A program whose own work takes so long that the ways cannot be told apart loses nothing by any of them. A way that cannot win is not
//! tried: no signal costs less than a microsecond. Emulation is tried up to a limit of stores, after which pages are opened.

use crate::tracking::assisted;
use fermata_linux::{AreaMemory, Trapping, clock};
use fermata_tracker::{Result, ScanTracker, Tracker, TrapTracker, Words};
use fermata_types::{PageNumber, PageSet};
use std::{ops::Range, time::Duration};

/// Cycles under the best way before the others are tried again.
const PERIOD: u32 = 32;
const PERIOD_MAX: u32 = 8192;
/// Cycles that a way is judged by; their median, so that one that was interrupted does not count.
const BLOCK: usize = 5;
/// A way must be faster by so much to be worth a change.
const MARGIN: f64 = 0.97;
/// No signal costs less, ns.
const SIGNAL_MIN: f64 = 1000.0;

const WAYS: [Way; 3] = [Way::Assisted, Way::Trapping(Trapping::Open), Way::Trapping(Trapping::Emulate)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Assisted,
    Trapping(Trapping),
}

/// Trackers over one area, of which one watches.
#[derive(Debug)]
pub(crate) struct AutoTracker {
    scan: ScanTracker,
    trap: TrapTracker,
    way: Way,
    choice: Chooser,
    /// When the last take ended.
    ended: Option<Duration>,
}

impl AutoTracker {
    pub fn new(memory: &AreaMemory) -> Result<Self> {
        let (scan, trap) = (assisted(memory)?, TrapTracker::resting(memory, Trapping::Open)?);
        Ok(Self { scan, trap, way: Way::Assisted, choice: Chooser::new(), ended: None })
    }

    /// Sets the memory up for another way. Whatever fails, the way that watches goes on seeing everything.
    fn turn(&mut self, to: Way) {
        match (self.way, to) {
            (Way::Assisted, Way::Trapping(trapping)) => {
                self.trap.turn(trapping);
                if self.trap.arm().is_err() {
                    return;
                }
            }
            (Way::Trapping(_), Way::Trapping(trapping)) => self.trap.turn(trapping),
            (Way::Trapping(_), Way::Assisted) => {
                // From here on stores are done where the program does them. What the handler does through the second mapping the scan does not see.
                self.trap.turn(Trapping::Open);
                // The scan first: no page may be open and unwatched.
                if self.scan.take().is_err() {
                    return;
                }
                // Pages that stay closed are opened when they are written to, and the scan sees that, too.
                let _ = self.trap.rest();
            }
            (Way::Assisted, Way::Assisted) => {}
        }
        self.way = to;
    }
}

impl Tracker for AutoTracker {
    fn mechanism(&self) -> &'static str {
        match self.way {
            Way::Assisted => self.scan.mechanism(),
            Way::Trapping(_) => self.trap.mechanism(),
        }
    }

    fn take(&mut self) -> Result<PageSet> {
        Ok(self.take_words()?.pages())
    }

    fn take_words(&mut self) -> Result<Words> {
        let words = match self.way {
            Way::Assisted => self.scan.take()?.into(),
            Way::Trapping(_) => self.trap.take_words()?,
        };
        let now = clock::monotonic();
        let pages = (words.whole.len() + words.parts.len() as u64) as f64;
        if let Some(before) = self.ended.replace(now) {
            let way = self.choice.next((now - before).as_nanos() as f64, pages);
            if way != self.way {
                self.turn(way);
                self.ended = None;
            }
        }
        self.trap.take_stores();
        self.trap.limit(pages as u64 * 4 + 64);
        Ok(words)
    }

    fn expect_writes(&mut self, pages: Range<PageNumber>) -> Result<()> {
        match self.way {
            Way::Assisted => self.scan.expect_writes(pages),
            Way::Trapping(_) => self.trap.expect_writes(pages),
        }
    }
}

/// Which way comes next, from how long cycles took and nothing else.
#[derive(Debug)]
struct Chooser {
    best: usize,
    at: usize,
    /// Medians of a block under each way, ns.
    medians: [f64; 3],
    block: Vec<f64>,
    /// Ways that are yet to be tried.
    left: Vec<usize>,
    /// Cycles until they are tried again.
    wait: u32,
    period: u32,
    /// Pages of a cycle when the best one was chosen.
    pages: f64,
}

impl Chooser {
    fn new() -> Self {
        let block = Vec::with_capacity(BLOCK + 1);
        Self { best: 0, at: 0, medians: [f64::INFINITY; 3], block, left: Vec::new(), wait: PERIOD, period: PERIOD, pages: 0.0 }
    }

    /// A cycle of so many pages took so long.
    fn next(&mut self, ns: f64, pages: f64) -> Way {
        self.block.push(ns);
        if self.at == self.best && self.left.is_empty() {
            self.rest(pages);
        } else if self.block.len() >= BLOCK {
            self.medians[self.at] = median(&self.block);
            self.block.clear();
            match self.left.pop() {
                Some(next) => self.at = next,
                None => self.judge(pages),
            }
        }
        WAYS[self.at]
    }

    /// Under the best one.
    fn rest(&mut self, pages: f64) {
        if self.block.len() > BLOCK {
            self.block.remove(0);
        }
        // Another load: what was best may not be.
        if pages > self.pages * 2.0 + 1.0 || pages * 2.0 + 1.0 < self.pages {
            (self.pages, self.period) = (pages, PERIOD);
            self.wait = self.wait.min(PERIOD);
        }
        self.wait = self.wait.saturating_sub(1);
        if self.wait > 0 {
            return;
        }
        let now = median(&self.block);
        self.medians = [f64::INFINITY; 3];
        self.medians[self.best] = now;
        self.left = (0..WAYS.len()).filter(|way| *way != self.best && (WAYS[*way] == Way::Assisted || pages * SIGNAL_MIN < now)).collect();
        self.block.clear();
        match self.left.pop() {
            Some(next) => self.at = next,
            None => self.stay(),
        }
    }

    fn judge(&mut self, pages: f64) {
        let winner = (0..WAYS.len()).min_by(|a, b| self.medians[*a].total_cmp(&self.medians[*b])).unwrap_or(self.best);
        if self.medians[winner] < self.medians[self.best] * MARGIN {
            (self.best, self.period) = (winner, PERIOD);
            self.wait = self.period;
        } else {
            self.stay();
        }
        (self.at, self.pages) = (self.best, pages);
    }

    fn stay(&mut self) {
        self.period = (self.period * 2).min(PERIOD_MAX);
        self.wait = self.period;
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a program whose cycles take so long under each way, and says how much longer it took than under the best one alone.
    fn play(chooser: &mut Chooser, cycles: u32, pages: f64, cost: [f64; 3]) -> f64 {
        let mut spent = 0.0;
        for nth in 0..cycles {
            // Some are interrupted.
            let took = cost[chooser.at] * if nth % 11 == 3 { 20.0 } else { 1.0 };
            spent += cost[chooser.at];
            chooser.next(took, pages);
        }
        spent / (f64::from(cycles) * cost.iter().copied().fold(f64::INFINITY, f64::min))
    }

    /// As if opening them had failed.
    #[test]
    fn pages_that_stay_closed_are_seen_by_the_scan() {
        let mut memory = AreaMemory::new("a test of auto", 16 * 4096).unwrap();
        // Not on a kernel without asynchronous write-protection.
        let Ok(mut auto) = AutoTracker::new(&memory) else { return };
        auto.turn(Way::Trapping(Trapping::Emulate));
        auto.turn(Way::Assisted);
        auto.trap.arm().unwrap();
        memory.as_mut_slice()[5 * 4096] = 1;
        assert_eq!(auto.take().unwrap().into_iter().collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn the_cheapest_way_is_found_and_the_search_costs_little() {
        for cost in [[10e3, 30e3, 60e3], [200e3, 5e3, 9e3], [200e3, 9e3, 5e3], [10e3, 10e3, 10e3]] {
            let mut chooser = Chooser::new();
            play(&mut chooser, 500, 2.0, cost);
            let over = play(&mut chooser, 20_000, 2.0, cost);
            assert!(over < 1.15, "{over} for {cost:?}");
        }
    }

    #[test]
    fn another_load_is_judged_anew() {
        let mut chooser = Chooser::new();
        play(&mut chooser, 50_000, 2.0, [200e3, 5e3, 9e3]);
        assert_eq!(WAYS[chooser.best], Way::Trapping(Trapping::Open));
        play(&mut chooser, 200, 5000.0, [900e3, 20e6, 40e6]);
        assert_eq!(WAYS[chooser.best], Way::Assisted);
    }

    #[test]
    fn what_cannot_win_is_never_tried() {
        let mut chooser = Chooser::new();
        for _ in 0..10_000 {
            assert_eq!(chooser.next(50e3, 100.0), Way::Assisted);
        }
    }
}
