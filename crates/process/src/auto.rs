//! The cheapest way to find writes, by what they cost here and by what the program does.
//!
//! | way | costs, for a cycle of n pages and s stores |
//! |---|---|
//! | assisted | a scan, which grows with the area, and a little for each page |
//! | protect | a signal for each page |
//! | emulate | a signal for each store |
//!
//! What a signal, a store and an assisted first write cost is measured once in each process on memory of its own; what a scan costs, by each scan. How many pages a cycle has is
//! seen under all three; how many stores, under emulation only. So a cycle now and then is emulated to see, up to a limit, after which its pages are opened.
//! Between `protect` and `emulate` nothing has to be done to the memory. To and from `assisted` costs about as much as a scan, and needs several cycles that agree.

use crate::tracking::assisted;
use fermata_linux::{AreaMemory, Trapping, clock::Stopwatch};
use fermata_tracker::{Error, Result, ScanTracker, Tracker, TrapTracker, Words};
use fermata_types::{PAGE_SIZE, PageNumber, PageSet};
use std::{ops::Range, sync::OnceLock, time::Duration};

/// Cycles between two that are emulated to see how many stores there are; doubled each time that nothing comes of it.
const LOOK_AFTER: u32 = 64;
const LOOK_AFTER_MAX: u32 = 4096;
/// Cycles in a row that must agree before the memory is set up for another way.
const AGREE: u32 = 4;
/// A way must be cheaper by so much to be worth a change.
const MARGIN: f64 = 0.9;
/// Pages of the trial.
const TRIAL: usize = 256;

/// What things cost on this host, ns.
#[derive(Debug, Clone, Copy)]
struct Prices {
    /// A first write to a page, and having it named and watched again.
    assisted: f64,
    protect: f64,
    /// A store.
    emulate: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Assisted,
    Trapping(Trapping),
}

/// Three trackers over one area, of which one watches.
#[derive(Debug)]
pub(crate) struct AutoTracker {
    scan: ScanTracker,
    trap: TrapTracker,
    way: Way,
    prices: Prices,
    /// A scan that finds nothing, ns.
    scan_ns: f64,
    /// Cycles in a row for which the other setting of the memory would have been cheaper.
    agreed: u32,
    /// Until a cycle is emulated to see.
    look_in: u32,
    look_after: u32,
    /// This cycle is.
    looking: bool,
}

impl AutoTracker {
    pub fn new(memory: &AreaMemory) -> Result<Self> {
        let (scan, trap) = (assisted(memory)?, TrapTracker::resting(memory, Trapping::Open)?);
        let prices = prices()?;
        Ok(Self {
            scan,
            trap,
            way: Way::Assisted,
            prices,
            scan_ns: 0.0,
            agreed: 0,
            look_in: LOOK_AFTER,
            look_after: LOOK_AFTER,
            looking: false,
        })
    }

    fn take_assisted(&mut self) -> Result<Words> {
        let watch = Stopwatch::start();
        let pages = self.scan.take()?;
        let (spent, count) = (ns(watch.elapsed()), pages.len() as f64);
        // The part of the price of a page that lies in the scan is small beside the write itself.
        let clean = (spent - count * self.prices.assisted * 0.1).max(0.0);
        self.scan_ns = if self.scan_ns == 0.0 { clean } else { self.scan_ns * 0.75 + clean * 0.25 };
        let (here, there) = (self.scan_ns + count * self.prices.assisted, count * self.prices.protect.min(self.prices.emulate));
        if self.agrees(there < here * MARGIN) {
            self.trap.turn(Trapping::Open);
            // If it fails, what was found must still be told; and the scan goes on seeing everything.
            if self.trap.arm().is_ok() {
                self.way = Way::Trapping(Trapping::Open);
            }
        }
        Ok(pages.into())
    }

    fn take_trapped(&mut self, trapping: Trapping) -> Result<Words> {
        let words = self.trap.take_words()?;
        let stores = self.trap.take_stores() as f64;
        let pages = (words.whole.len() + words.parts.len() as u64) as f64;
        let protect = pages * self.prices.protect;
        // Under protection nobody knows the stores; there is at least one for each page.
        let emulate = if trapping == Trapping::Emulate { stores * self.prices.emulate } else { f64::INFINITY };
        let cheaper = if trapping == Trapping::Emulate && emulate < protect * MARGIN && words.whole.is_empty() {
            Trapping::Emulate
        } else {
            Trapping::Open
        };
        if self.looking {
            self.look_after = if cheaper == Trapping::Emulate { LOOK_AFTER } else { (self.look_after * 2).min(LOOK_AFTER_MAX) };
            self.looking = false;
        }
        let there = self.scan_ns + pages * self.prices.assisted;
        // The scan first: no page may be open and unwatched.
        if self.agrees(there < protect.min(emulate) * MARGIN) && self.scan.take().is_ok() {
            self.way = Way::Assisted;
            // Pages that stay closed are opened when they are written to, and the scan sees that, too.
            let _ = self.trap.rest();
            return Ok(words);
        }
        self.way = Way::Trapping(cheaper);
        self.look_in = self.look_in.saturating_sub(1);
        if cheaper == Trapping::Open && self.look_in == 0 {
            self.look_in = self.look_after;
            self.looking = true;
            self.way = Way::Trapping(Trapping::Emulate);
        }
        // More than would be cheaper is not worth knowing.
        self.trap.limit((protect / self.prices.emulate) as u64 + 16);
        if let Way::Trapping(next) = self.way {
            self.trap.turn(next);
        }
        Ok(words)
    }

    fn agrees(&mut self, cheaper: bool) -> bool {
        self.agreed = if cheaper { self.agreed + 1 } else { 0 };
        let agreed = self.agreed >= AGREE;
        if agreed {
            self.agreed = 0;
        }
        agreed
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
        match self.way {
            Way::Assisted => self.take_assisted(),
            Way::Trapping(trapping) => self.take_trapped(trapping),
        }
    }

    fn expect_writes(&mut self, pages: Range<PageNumber>) -> Result<()> {
        match self.way {
            Way::Assisted => Ok(()),
            Way::Trapping(_) => self.trap.expect_writes(pages),
        }
    }
}

fn ns(time: Duration) -> f64 {
    time.as_nanos() as f64
}

/// Measured once.
fn prices() -> Result<Prices> {
    static PRICES: OnceLock<Prices> = OnceLock::new();
    if let Some(prices) = PRICES.get() {
        return Ok(*prices);
    }
    let failed = |source| Error::Io { mechanism: "auto", what: "mapping memory for a trial", source };
    let mut memory = AreaMemory::new("fermata trial", (TRIAL * PAGE_SIZE) as u64).map_err(failed)?;
    memory.as_mut_slice().fill(1);
    let mut scan = assisted(&memory)?;
    scan.take()?;
    let assisted = price(&mut memory, &mut scan)?;
    drop(scan);
    let mut trap = TrapTracker::new(&memory, Trapping::Open)?;
    trap.take()?;
    let protect = price(&mut memory, &mut trap)?;
    trap.turn(Trapping::Emulate);
    trap.take()?;
    let emulate = price(&mut memory, &mut trap)?;
    Ok(*PRICES.get_or_init(|| Prices { assisted, protect, emulate }))
}

/// The least of some rounds, for each page.
fn price(memory: &mut AreaMemory, tracker: &mut dyn Tracker) -> Result<f64> {
    let mut best = f64::INFINITY;
    for round in 0..4_u8 {
        let watch = Stopwatch::start();
        for page in memory.as_mut_slice().chunks_exact_mut(PAGE_SIZE) {
            std::hint::black_box(&mut page[0..8])[0] = round;
        }
        tracker.take()?;
        best = best.min(ns(watch.elapsed()) / TRIAL as f64);
    }
    Ok(best)
}
