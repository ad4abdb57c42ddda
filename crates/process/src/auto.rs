//! The cheapest way to find writes, by trying: how long cycles take under each way, with all that the program does in them.
//!
//! | way | costs, for a cycle of n pages and s stores |
//! |---|---|
//! | assisted | a scan, which grows with the area, and a little for each page |
//! | protect | a signal for each page |
//! | emulate | a signal for each store |
//!
//! ```text
//!   the best one so far ... │ a trial of another │ the best one, until the trial is 1/40 of the time (1/80, 1/160, ... as long as it loses) │ ...
//! ```
//!
//! What counts is the time from one take to the end of the next. A program whose own work takes so long that the ways cannot be told apart loses nothing by any of them. What a trial
//! took beyond what the best would have taken, the turns included, says when the next one may be: a way that loses by far is tried seldom, and broken off at once. Another load, which shows by the pages of a cycle or by
//! what it costs under the best, makes all of them worth a look again. Emulation is tried up to a limit of stores, after which pages are opened.

use crate::tracking::assisted;
use fermata_linux::{AreaMemory, Behind, MemoryFile, Trapping, clock};
use fermata_tracker::{Result, ScanTracker, Tracker, TrapTracker, Words};
use fermata_types::{PageNumber, PageSet};
use std::{ops::Range, sync::Arc, time::Duration};

/// Trials of one way take a part of the time: one in so many at first, and in `SHARE_MOST` when it has lost again and again.
const SHARE: f64 = 40.0;
const SHARE_MOST: f64 = 1280.0;
/// What a way is judged by, cycles and ns, as if all took as long as the shortest: the median of those behind the first third, when what it uses is warm.
const BLOCK: usize = 5;
const BLOCK_NS: f64 = 300e3;
/// A trial is broken off after so long, ns, and so many cycles, if all of them took so many times as long as under the best. One alone may have been interrupted or cold, and long ones are what makes a trial dear.
const COLD_NS: f64 = 100e3;
const HOPELESS: [(usize, f64); 2] = [(1, 4.0), (2, 1.5)];
/// A way must be faster by so much to be worth a change.
const MARGIN: f64 = 0.97;
/// What a signal may cost, ns, as long as none was measured.
const SIGNAL: f64 = 2000.0;

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
    file: Arc<MemoryFile>,
    way: Way,
    choice: Chooser,
    /// When the last take ended, or the turn behind it.
    ended: Option<Duration>,
    /// How long that turn took, ns.
    turned: f64,
    /// Whether emulation was tried.
    emulated: bool,
}

impl AutoTracker {
    pub fn new(memory: &AreaMemory) -> Result<Self> {
        let (scan, trap) = (assisted(memory)?, TrapTracker::resting(memory, Trapping::Open)?);
        let (file, choice) = (memory.file().clone(), Chooser::new());
        Ok(Self { scan, trap, file, way: Way::Assisted, choice, ended: None, turned: 0.0, emulated: false })
    }

    /// Sets the memory up for another way. Whatever fails, the way that watches goes on seeing everything.
    fn turn(&mut self, to: Way) {
        if to == Way::Trapping(Trapping::Emulate) && !std::mem::replace(&mut self.emulated, true) {
            // Each page would be a fault at its first store, which would be taken for the price of emulation. Where that cannot be spared it is only dearer.
            let _ = self.trap.populate(&self.file);
        }
        match (self.way, to) {
            (Way::Assisted, Way::Trapping(trapping)) => {
                self.trap.turn(trapping);
                if self.trap.arm().is_err() {
                    // It may have closed some: what the handler would do there through the second mapping the scan does not see.
                    self.trap.turn(Trapping::Open);
                    let _ = self.trap.rest();
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
            let way = self.choice.next((now - before).as_nanos() as f64, std::mem::take(&mut self.turned), pages);
            if way != self.way {
                self.turn(way);
                let after = clock::monotonic();
                self.turned = (after - now).as_nanos() as f64;
                self.ended = Some(after);
            }
        }
        self.trap.take_stores();
        self.trap.limit(pages as u64 * 4 + 64);
        Ok(words)
    }

    fn expect_writes(&mut self, pages: Range<PageNumber>) -> Result<()> {
        // Under page tables, too: what is still being copied may be closed.
        self.trap.expect_writes(pages.clone())?;
        match self.way {
            Way::Assisted => self.scan.expect_writes(pages),
            Way::Trapping(_) => Ok(()),
        }
    }

    fn copy_behind(&mut self, pages: &[PageNumber], buffer: Vec<u8>) -> Result<Behind, Vec<u8>> {
        self.trap.copy_behind(pages, buffer)
    }
}

/// Which way comes next, from how long cycles and turns took and nothing else.
#[derive(Debug)]
struct Chooser {
    best: usize,
    at: usize,
    /// Of the last block under the best one, ns.
    median: f64,
    block: Block,
    rivals: [Rival; 3],
    /// The one that was tried last.
    tried: usize,
    /// What the turn to it took, ns.
    there: f64,
    /// Pages of a cycle, and the median of the best, when the prices were as they are.
    pages: f64,
    price: f64,
}

/// What is known of a way that is not the best.
#[derive(Debug, Clone, Copy)]
struct Rival {
    /// It is tried when so much time has passed under the best, ns.
    due: f64,
    /// What its last trial took beyond what the best would have taken, or what it may take; none as long as nothing is known.
    lost: Option<f64>,
    /// A trial may take one in so many of the time.
    share: f64,
}

/// Cycles that follow each other.
#[derive(Debug, Default)]
struct Block {
    cycles: Vec<f64>,
    least: f64,
    pages: f64,
}

impl Block {
    fn push(&mut self, ns: f64, pages: f64) {
        self.least = if self.cycles.is_empty() { ns } else { self.least.min(ns) };
        self.cycles.push(ns);
        self.pages += pages;
    }

    fn has(&self, cycles: usize, ns: f64) -> bool {
        let count = self.cycles.len();
        count >= cycles && self.least * count as f64 >= ns
    }

    fn is_full(&self) -> bool {
        self.has(BLOCK, BLOCK_NS)
    }

    /// Of those behind the first third. One that was interrupted does not count.
    fn median(&mut self) -> f64 {
        let cold = self.cycles.len() / 3;
        let warm = &mut self.cycles[cold..];
        let middle = warm.len() / 2;
        *warm.select_nth_unstable_by(middle, f64::total_cmp).1
    }

    fn clear(&mut self) {
        self.cycles.clear();
        self.pages = 0.0;
    }
}

impl Chooser {
    fn new() -> Self {
        let rival = Rival { due: 0.0, lost: None, share: SHARE };
        let block = Block::default();
        Self { best: 0, at: 0, median: 0.0, block, rivals: [rival; 3], tried: 0, there: 0.0, pages: 0.0, price: 0.0 }
    }

    /// A cycle of so many pages took so long, behind a turn that took so long.
    fn next(&mut self, ns: f64, turn: f64, pages: f64) -> Way {
        self.block.push(ns, pages);
        if self.at == self.best {
            self.rest(ns, turn);
        } else {
            self.try_on(ns, turn);
        }
        WAYS[self.at]
    }

    /// Under the best one.
    fn rest(&mut self, ns: f64, turn: f64) {
        // The way back belongs to the trial.
        self.rivals[self.tried].due += turn * self.rivals[self.tried].share;
        self.rivals.iter_mut().for_each(|rival| rival.due -= ns);
        if !self.block.is_full() {
            return;
        }
        self.median = self.block.median();
        let pages = self.block.pages / self.block.cycles.len() as f64;
        self.block.clear();
        self.meet(pages);
        let due = (0..WAYS.len()).filter(|way| *way != self.best && self.rivals[*way].due <= 0.0);
        // The one that costs least: it may be what makes the other's trial needless.
        let next = due.min_by(|a, b| self.rivals[*a].lost.unwrap_or(0.0).total_cmp(&self.rivals[*b].lost.unwrap_or(0.0)));
        if let Some(next) = next {
            (self.at, self.tried, self.there) = (next, next, 0.0);
            self.rivals[next].lost = Some(0.0);
        }
    }

    /// The load: pages of a cycle, and what that costs under the best, which words make dearer, too. With another one what was best may not be. With other pages trials
    /// cost something else: signals by the page, a scan as before.
    fn meet(&mut self, pages: f64) {
        let has_others = pages > self.pages * 2.0 + 1.0 || pages * 2.0 + 1.0 < self.pages;
        let is_new = has_others || self.median > self.price * 2.0 || self.median * 2.0 < self.price;
        let more = (pages + 1.0) / (self.pages + 1.0);
        if has_others {
            self.pages = pages;
        }
        if is_new {
            self.price = self.median;
        }
        let expected = 2.0 * (pages * SIGNAL - self.median).max(0.0);
        for (way, rival) in WAYS.iter().zip(&mut self.rivals) {
            let by_page = *way != Way::Assisted;
            match rival.lost {
                None => {
                    let lost = if by_page { expected } else { 0.0 };
                    (rival.lost, rival.due) = (Some(lost), lost * rival.share);
                }
                Some(lost) if has_others && by_page => *rival = Rival { due: lost * more * SHARE, lost: Some(lost * more), share: SHARE },
                Some(lost) if is_new => *rival = Rival { due: rival.due.min(lost * SHARE), lost: Some(lost), share: SHARE },
                Some(_) => {}
            }
        }
    }

    /// Under another.
    fn try_on(&mut self, ns: f64, turn: f64) {
        self.there += turn;
        let rival = &mut self.rivals[self.at];
        let lost = rival.lost.unwrap_or(0.0) + turn + ns - self.median;
        rival.lost = Some(lost);
        let (block, best) = (&self.block, self.median);
        let is_hopeless = HOPELESS.iter().any(|(cycles, times)| block.has(*cycles, COLD_NS) && block.least > best * times);
        if !is_hopeless && !self.block.is_full() {
            return;
        }
        let median = self.block.median();
        if !is_hopeless && median < self.median * MARGIN {
            // The one that was the best has lost as much in as many cycles, and going there and back costs what coming here did: two that are as good as each other do not alternate.
            let lost = (self.median - median) * self.block.cycles.len() as f64 + 2.0 * self.there;
            self.rivals[self.best] = Rival { due: lost * SHARE, lost: Some(lost), share: SHARE };
            (self.best, self.median, self.price) = (self.at, median, median);
        } else {
            let lost = lost.max(0.0);
            *rival = Rival { due: lost * rival.share, lost: Some(lost), share: (rival.share * 2.0).min(SHARE_MOST) };
            self.at = self.best;
        }
        self.block.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose cycles take so long under each way.
    struct Played {
        cost: [f64; 3],
        pages: f64,
        /// For so long after a turn, ns, cycles take four times as long.
        cold: f64,
        /// Some cycles are interrupted, and take so many times as long.
        interrupted: f64,
    }

    /// Plays it, and says how much longer it took than under the best way alone.
    fn play(chooser: &mut Chooser, cycles: u32, played: &Played) -> f64 {
        const TURN: f64 = 20e3;
        let (mut spent, mut since, mut turn) = (0.0, f64::MAX, 0.0);
        for nth in 0..cycles {
            let at = chooser.at;
            let cost = played.cost[at] * if since < played.cold { 4.0 } else { 1.0 };
            since += cost;
            spent += cost + turn;
            chooser.next(cost * if nth % 11 == 3 { played.interrupted } else { 1.0 }, turn, played.pages);
            turn = 0.0;
            if chooser.at != at {
                (since, turn) = (0.0, TURN);
            }
        }
        spent / (f64::from(cycles) * played.cost.iter().copied().fold(f64::INFINITY, f64::min))
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
        for cost in [[10e3, 30e3, 60e3], [200e3, 5e3, 9e3], [200e3, 9e3, 5e3], [10e3, 10e3, 10e3], [250e3, 800e3, 3e6]] {
            let (mut chooser, played) = (Chooser::new(), Played { cost, pages: 2.0, cold: 50e3, interrupted: 20.0 });
            play(&mut chooser, 500, &played);
            let over = play(&mut chooser, 20_000, &played);
            assert!(over < 1.06, "{over} for {cost:?}");
        }
    }

    #[test]
    fn trials_are_cheap_from_the_first_cycle_on() {
        let mut chooser = Chooser::new();
        let over = play(&mut chooser, 500, &Played { cost: [0.5e6, 3e6, 8e6], pages: 256.0, cold: 0.0, interrupted: 1.0 });
        assert!(over <= 1.06, "{over}");
        assert_eq!(WAYS[chooser.best], Way::Assisted);
    }

    #[test]
    fn a_way_that_is_slow_at_first_is_judged_by_what_it_is_when_warm() {
        let mut chooser = Chooser::new();
        play(&mut chooser, 500, &Played { cost: [12e3, 8e3, 6e3], pages: 1.0, cold: 80e3, interrupted: 20.0 });
        assert_eq!(WAYS[chooser.best], Way::Trapping(Trapping::Emulate));
    }

    #[test]
    fn another_load_is_judged_anew() {
        let mut chooser = Chooser::new();
        play(&mut chooser, 50_000, &Played { cost: [200e3, 5e3, 9e3], pages: 2.0, cold: 0.0, interrupted: 20.0 });
        assert_eq!(WAYS[chooser.best], Way::Trapping(Trapping::Open));
        play(&mut chooser, 200, &Played { cost: [900e3, 20e6, 40e6], pages: 5000.0, cold: 0.0, interrupted: 20.0 });
        assert_eq!(WAYS[chooser.best], Way::Assisted);
        play(&mut chooser, 20_000, &Played { cost: [200e3, 5e3, 9e3], pages: 2.0, cold: 0.0, interrupted: 20.0 });
        assert_eq!(WAYS[chooser.best], Way::Trapping(Trapping::Open));
    }

    #[test]
    fn other_words_on_as_many_pages_are_another_load() {
        let mut chooser = Chooser::new();
        let played = |emulate| Played { cost: [8.7e3, 11.5e3, emulate], pages: 1.0, cold: 50e3, interrupted: 20.0 };
        play(&mut chooser, 100_000, &played(3.6e3));
        assert_eq!(WAYS[chooser.best], Way::Trapping(Trapping::Emulate));
        assert!(chooser.rivals[0].share == SHARE_MOST, "{chooser:?}");
        play(&mut chooser, 500, &played(45e3));
        assert_eq!(WAYS[chooser.best], Way::Assisted);
    }

    #[test]
    fn what_is_hardly_better_is_not_left_again_at_once() {
        const TURN: f64 = 150e3;
        let (mut chooser, mut turn, mut since) = (Chooser::new(), 0.0, 0);
        while since < 100 {
            let at = chooser.at;
            chooser.next([100e3, 95e3, 900e3][at], turn, 1.0);
            turn = if chooser.at == at { 0.0 } else { TURN };
            since += u32::from(chooser.best == 1);
            assert!(chooser.best == 0 || chooser.at != 0, "the way there and back is paid for by {since} cycles");
        }
    }

    #[test]
    fn what_is_expected_to_cost_much_is_tried_late() {
        let mut chooser = Chooser::new();
        for _ in 0..1000 {
            // Signals would take ten times as long.
            assert_eq!(chooser.next(50e3, 0.0, 1000.0), Way::Assisted);
        }
    }
}
