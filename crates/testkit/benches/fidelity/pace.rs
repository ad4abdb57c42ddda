//! Windows of time with checkpoints and without, in turn, in one run: what else the host does meets all of them alike.

use super::beat::{Beat, Beats};
use fermata_experiment::Run;
use fermata_testkit::measure::at_every;
use fermata_types::VirtualTime;
use std::{ops::Range, thread, time::Duration};

/// Between two checkpoints, as in the paper.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// What was under way at a checkpoint, or began so shortly after it, has it across; ns. The time of the checkpoint is exact to some microseconds.
const SEAM: Range<f64> = -20e3..1e6;

/// What is done in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Checkpoints are taken.
    With,
    /// None is taken. There are two of that kind, to see what windows differ by anyhow.
    Without(usize),
}

const KINDS: [Kind; 3] = [Kind::With, Kind::Without(0), Kind::Without(1)];

/// How long it goes on.
#[derive(Debug, Clone, Copy)]
pub struct Rounds {
    /// Of windows of all three kinds.
    pub rounds: usize,
    /// Checkpoints in a window with them.
    pub checkpoints: usize,
    /// How many intervals each window without them has.
    pub without: u32,
}

/// When what was done.
#[derive(Debug, Default)]
pub struct Pace {
    windows: Vec<(Kind, Range<VirtualTime>)>,
    /// Virtual times of all checkpoints.
    pub checkpoints: Vec<VirtualTime>,
}

impl Pace {
    /// Does it.
    pub fn keep(run: &Run, rounds: Rounds) -> Self {
        let mut pace = Self::default();
        for round in 0..rounds.rounds {
            for kind in (0..KINDS.len()).map(|place| KINDS[(place + round) % KINDS.len()]) {
                let begin = run.time_virtual();
                match kind {
                    Kind::With => pace.checkpoints.extend(at_every(INTERVAL, rounds.checkpoints, || checkpoint(run))),
                    Kind::Without(_) => thread::sleep(INTERVAL * rounds.without),
                }
                // What follows the last checkpoint belongs to the window.
                if kind == Kind::With {
                    thread::sleep(INTERVAL / 2);
                }
                pace.windows.push((kind, begin..run.time_virtual()));
            }
        }
        pace
    }

    /// The beats in windows of a kind.
    pub fn of(&self, kind: Kind, beats: &Beats) -> Vec<Beat> {
        let windows = self.windows.iter().filter(|(of, _)| *of == kind);
        let times = windows.map(|(_, window)| beats.guest_time(window.start)..beats.guest_time(window.end));
        times.flat_map(|window| within(&beats.all, window).iter().copied()).collect()
    }

    /// The windows of a kind, in seconds of virtual time.
    pub fn windows_of(&self, kind: Kind) -> impl Iterator<Item = Range<f64>> {
        let seconds = |time: VirtualTime| time.ns as f64 / 1e9;
        self.windows.iter().filter(move |(of, _)| *of == kind).map(move |(_, window)| seconds(window.start)..seconds(window.end))
    }

    /// Of each round the beats that have a checkpoint across them, and those in its windows without.
    pub fn by_round(&self, beats: &Beats) -> Vec<[Vec<Beat>; 2]> {
        let [across, _] = self.across(beats);
        let round = |windows: &[(Kind, Range<VirtualTime>)]| {
            [(true, &across), (false, &beats.all)].map(|(with, beats_of)| {
                let windows = windows.iter().filter(|(kind, _)| (*kind == Kind::With) == with);
                let times = windows.map(|(_, window)| beats.guest_time(window.start)..beats.guest_time(window.end));
                times.flat_map(|window| within(beats_of, window).iter().copied()).collect()
            })
        };
        self.windows.chunks(KINDS.len()).map(round).collect()
    }

    /// Whether this second of virtual time is in a window with checkpoints, or in one without.
    pub fn has(&self, second: f64, with: bool) -> bool {
        let at = VirtualTime::from_ns((second * 1e9) as u64);
        self.windows.iter().any(|(kind, window)| (*kind == Kind::With) == with && window.contains(&at))
    }

    /// The beats that have a checkpoint across them, and all others.
    pub fn across(&self, beats: &Beats) -> [Vec<Beat>; 2] {
        let seams: Vec<_> = self.checkpoints.iter().map(|at| beats.guest_time(*at)).collect();
        let is_across = |beat: &&Beat| {
            let next = seams.partition_point(|seam| seam + SEAM.end < beat.at);
            seams.get(next).is_some_and(|seam| seam + SEAM.start < beat.end())
        };
        let (across, elsewhere) = beats.all.iter().partition::<Vec<&Beat>, _>(is_across);
        [across, elsewhere].map(|beats| beats.into_iter().copied().collect())
    }
}

/// The beats that began in this time of the guest.
pub fn within(beats: &[Beat], time: Range<f64>) -> &[Beat] {
    let place = |at: f64| beats.partition_point(|beat| beat.at < at);
    &beats[place(time.start)..place(time.end).max(place(time.start))]
}

/// What they took, but for those without an end.
pub fn took(beats: &[Beat]) -> Vec<f64> {
    beats.iter().filter_map(|beat| beat.took).collect()
}

fn checkpoint(run: &Run) -> VirtualTime {
    VirtualTime::from_ns(run.checkpoint(None).expect("a checkpoint").1.time_virtual_ns)
}
