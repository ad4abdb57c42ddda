//! The protocol of one checkpoint over several parts, as a pure state machine: all parts commit or none does, and whatever was frozen is thawed.
//!
//! ```text
//!            prepare ─> freeze (network, machines, disks) ─> capture ─> thaw (disks, machines, network) ─> save ─> commit ─> settle permanent
//!   failure:    │                 │                             │              │                           │        │
//!               └──> settle       └────> thaw what was frozen <─┘              └───────> settle aborted <──┴────────┘
//! ```
//!
//! After Elnozahy, Johnson and Zwaenepoel 1992, section 2.2: a checkpoint is tentative until every part succeeded; then one commit makes it permanent.

use fermata_types::PartKind;

/// What is to be done next. The parts of one step do not wait for one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// [`crate::Part::prepare`] of these parts.
    Prepare(Vec<usize>),
    /// [`crate::Part::freeze`] of these parts.
    Freeze(Vec<usize>),
    /// [`crate::Part::capture`] of these parts.
    Capture(Vec<usize>),
    /// [`crate::Part::thaw`] of these parts.
    Thaw(Vec<usize>),
    /// [`crate::Captured::save`] of these parts, one after the other in this order.
    Save(Vec<usize>),
    /// Makes the checkpoint durable: the one step after which it is permanent.
    Commit,
    /// [`crate::Part::settle`] of these parts; the checkpoint is permanent, or was aborted.
    Settle {
        /// The parts.
        parts: Vec<usize>,
        /// How it ended.
        permanent: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Prepare,
    /// Freezing the parts of this rank.
    Freeze(u8),
    Capture,
    /// Thawing the parts of this rank.
    Thaw(u8),
    Save,
    Commit,
    Settle,
    Over,
}

/// One checkpoint. Ask [`Protocol::step`], do it, tell [`Protocol::done`], until there is no step left.
#[derive(Debug, Clone)]
pub struct Protocol {
    ranks: Vec<u8>,
    phase: Phase,
    /// The highest rank whose freezing was begun.
    frozen: Option<u8>,
    failed: bool,
}

const RANK_MAX: u8 = 2;

/// The network stops first and goes on last, so that nothing arrives at a machine that stands; a machine stops before its disks are drained.
fn rank(kind: PartKind) -> u8 {
    match kind {
        PartKind::Network => 0,
        PartKind::Disk => RANK_MAX,
        _ => 1,
    }
}

impl Protocol {
    /// A checkpoint of parts of these kinds.
    pub fn new(kinds: impl IntoIterator<Item = PartKind>) -> Self {
        Self { ranks: kinds.into_iter().map(rank).collect(), phase: Phase::Prepare, frozen: None, failed: false }
    }

    /// What is to be done now; none when the checkpoint is over.
    pub fn step(&self) -> Option<Step> {
        let all = || (0..self.ranks.len()).collect();
        Some(match self.phase {
            Phase::Prepare => Step::Prepare(all()),
            Phase::Freeze(rank) => Step::Freeze(self.of(rank)),
            Phase::Capture => Step::Capture(all()),
            Phase::Thaw(rank) => Step::Thaw(self.of(rank)),
            Phase::Save => Step::Save(self.saving()),
            Phase::Commit => Step::Commit,
            Phase::Settle => Step::Settle { parts: all(), permanent: !self.failed },
            Phase::Over => return None,
        })
    }

    /// Whether somebody failed: the checkpoint will not become permanent.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// The step was done; `ok` unless any of its parts failed.
    pub fn done(&mut self, ok: bool) {
        self.failed |= !ok;
        if let Phase::Freeze(rank) = self.phase {
            self.frozen = Some(rank);
        }
        let thaw_or_settle = self.frozen.map_or(Phase::Settle, Phase::Thaw);
        self.phase = match self.phase {
            Phase::Prepare | Phase::Save | Phase::Commit if self.failed => Phase::Settle,
            Phase::Freeze(_) | Phase::Capture if self.failed => thaw_or_settle,
            Phase::Prepare => Phase::Freeze(0),
            Phase::Freeze(RANK_MAX) => Phase::Capture,
            Phase::Freeze(rank) => Phase::Freeze(rank + 1),
            Phase::Capture => thaw_or_settle,
            Phase::Thaw(0) if self.failed => Phase::Settle,
            Phase::Thaw(0) => Phase::Save,
            Phase::Thaw(rank) => Phase::Thaw(rank - 1),
            Phase::Save => Phase::Commit,
            Phase::Commit => Phase::Settle,
            Phase::Settle | Phase::Over => Phase::Over,
        };
    }

    /// Disks before machines: pages of memory may be named by the blocks that they equal.
    fn saving(&self) -> Vec<usize> {
        (0..=RANK_MAX).rev().flat_map(|rank| self.of(rank)).collect()
    }

    fn of(&self, rank: u8) -> Vec<usize> {
        (0..self.ranks.len()).filter(|part| self.ranks[*part] == rank).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const KINDS: [PartKind; 4] = [PartKind::Machine, PartKind::Disk, PartKind::Network, PartKind::Machine];

    /// Runs a checkpoint in which the steps numbered in `failures` fail, and returns all steps.
    fn run(failures: &BTreeSet<usize>) -> Vec<Step> {
        let mut protocol = Protocol::new(KINDS);
        let mut steps = Vec::new();
        while let Some(step) = protocol.step() {
            protocol.done(!failures.contains(&steps.len()));
            steps.push(step);
            assert!(steps.len() < 32, "the protocol does not end");
        }
        steps
    }

    #[test]
    fn the_order_of_a_checkpoint_that_succeeds() {
        let all = vec![0, 1, 2, 3];
        let expected = [
            Step::Prepare(all.clone()),
            Step::Freeze(vec![2]),
            Step::Freeze(vec![0, 3]),
            Step::Freeze(vec![1]),
            Step::Capture(all.clone()),
            Step::Thaw(vec![1]),
            Step::Thaw(vec![0, 3]),
            Step::Thaw(vec![2]),
            Step::Save(vec![1, 0, 3, 2]),
            Step::Commit,
            Step::Settle { parts: all, permanent: true },
        ];
        assert_eq!(run(&BTreeSet::new()), expected);
    }

    #[test]
    fn whatever_fails_everybody_runs_again_and_nobody_commits_alone() {
        // Every subset of failing steps: at most 12 steps happen.
        for mask in 0u32..1 << 12 {
            let failures: BTreeSet<usize> = (0..12).filter(|step| mask & (1 << step) != 0).collect();
            let steps = run(&failures);
            let happened =
                |wanted: fn(&Step) -> Option<&Vec<usize>>| -> Vec<usize> { steps.iter().filter_map(wanted).flatten().copied().collect() };
            let mut frozen = happened(|step| if let Step::Freeze(parts) = step { Some(parts) } else { None });
            let mut thawed = happened(|step| if let Step::Thaw(parts) = step { Some(parts) } else { None });
            frozen.sort_unstable();
            thawed.sort_unstable();
            assert_eq!(frozen, thawed, "{failures:?}");
            let last = steps.len() - 1;
            let failed = failures.iter().any(|step| *step < last);
            assert_eq!(steps[last], Step::Settle { parts: vec![0, 1, 2, 3], permanent: !failed }, "{failures:?}");
            let commit = steps.iter().position(|step| *step == Step::Commit);
            assert!(commit.is_none_or(|commit| failures.iter().all(|step| *step >= commit)), "{failures:?}");
        }
    }

    #[test]
    fn a_checkpoint_of_nothing_ends() {
        let mut protocol = Protocol::new([]);
        while protocol.step().is_some() {
            protocol.done(true);
        }
        assert!(!protocol.failed());
    }
}
