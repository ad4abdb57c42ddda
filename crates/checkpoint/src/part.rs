//! A part of an experiment: whatever has a state that belongs to a checkpoint.

use fermata_types::{Composition, PageCounts, PartKind, PartState, VirtualTime};
use std::{error::Error, ops::Range, time::Duration};

/// Why a part could not do its share. The coordinator adds which part and which phase.
pub type Failure = Box<dyn Error + Send + Sync>;

/// How a checkpoint ended for everybody.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// Every part was saved and the checkpoint is durable. This is what was kept of the part.
    Permanent(&'a PartState),
    /// Somebody failed. What this part noted still has to go into the next checkpoint.
    Aborted,
}

/// A named duration, for the table of what a pause was spent on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Note {
    /// What was done: `stop`, `scan`, `copy`, `devices`.
    pub step: &'static str,
    /// How long it took.
    pub took: Duration,
}

/// What a pause consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// [`Part::freeze`].
    Freeze,
    /// [`Part::capture`].
    Capture,
    /// [`Part::thaw`].
    Thaw,
}

/// What became of a part in a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Saved {
    /// What the checkpoint keeps of the part.
    pub state: PartState,
    /// How its pages fell through the sieve: what it cost to keep it.
    pub pages: PageCounts,
    /// What its pages are for; none for a part that is no memory.
    pub composition: Option<Composition>,
}

/// What a part noted in the pause. It owns all it needs, so it is saved while the part runs on (or is gone).
///
/// `S` is where states are written, a store's writer.
pub trait Captured<S: ?Sized>: Send {
    /// Writes the noted state into the storage. Runs behind the guests, and may take its time.
    fn save(self: Box<Self>, storage: &mut S) -> Result<Saved, Failure>;
}

/// A machine, a disk, a network or a process group.
///
/// One checkpoint calls, in this order: `ready`, `prepare`, `catch_up`, `freeze`, `capture`, `thaw`, `all_thawed`, [`Captured::save`], `settle`.
/// Everything from `freeze` to `all_thawed` is the pause. After any failure, a panic too, `thaw` (if `freeze` was begun) and `settle` are still called.
pub trait Part<S: ?Sized>: Send {
    /// The name of the part in its experiment.
    fn name(&self) -> &str;

    /// What the part is; decides its place in the order of freezing.
    fn kind(&self) -> PartKind;

    /// Whether the next checkpoint looks at the content of what it would otherwise take as known. Told before `prepare`.
    fn check_content(&mut self, _check: bool) {}

    /// Whether it can be in a checkpoint at all. All parts are asked before the first one prepares, so that nobody does for nothing what takes long.
    fn ready(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Does ahead of the pause, while the guests run, what makes the pause shorter.
    fn prepare(&mut self, storage: &mut S) -> Result<(), Failure>;

    /// Does again, in a moment, what has become due since `prepare` while others were prepared. Not called if there was no time for that.
    fn catch_up(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Sets off a phase, and does of it what waits for nobody. All parts of a step begin before any is waited for, so they go through it side by side. The
    /// phase's own method is called next, unless this fails. No hashing, no store, no waiting for a disk in here.
    fn begin(&mut self, _phase: Phase) -> Result<(), Failure> {
        Ok(())
    }

    /// It is frozen, and nothing else is frozen in this step. So what capturing begins with may follow at once: it would only have taken processors from others that are
    /// yet to stop.
    fn begin_ahead(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// Stops: from now to `thaw` the part's state does not change. Takes a bounded time, for everybody else stands still meanwhile.
    fn freeze(&mut self) -> Result<(), Failure>;

    /// Takes note of the frozen state. No hashing, no store, no waiting for a disk in here.
    fn capture(&mut self) -> Result<Box<dyn Captured<S>>, Failure>;

    /// The virtual time at which the part was captured, if its own clock runs again from its thaw on: what stands earliest is thawed first.
    fn time(&self) -> Option<VirtualTime> {
        None
    }

    /// Goes on as if no time had passed.
    fn thaw(&mut self) -> Result<(), Failure>;

    /// All that were to go on with this one have, or could not.
    fn all_thawed(&mut self) {}

    /// Learns how the checkpoint ended.
    fn settle(&mut self, outcome: Outcome<'_>);

    /// From when to when its clock stood still in the last pause, by one clock for all parts; none if it has none or did not run before.
    fn stood(&self) -> Option<Range<Duration>> {
        None
    }

    /// What the last pause was spent on in this part.
    fn notes(&self) -> Vec<Note> {
        Vec::new()
    }
}
