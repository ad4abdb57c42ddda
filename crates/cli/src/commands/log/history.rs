//! Which checkpoints of a history are shown.

use crate::{graph, instant::Instant, out::Failure, text};
use fermata_api::{
    types::CheckpointId,
    values::{Checkpoint, MachineState, Problem, Run, RunAt, When},
};
use std::collections::{BTreeSet, HashMap};

/// The checkpoints of an experiment.
pub struct History {
    /// Children after their parents.
    pub checkpoints: Vec<Checkpoint>,
    /// The place of the parent of each.
    pub parents: Vec<Option<usize>>,
    places: HashMap<CheckpointId, usize>,
}

/// What of a history is wanted.
#[derive(Debug, Default)]
pub struct Range {
    /// Of each line the newest at or before this virtual time.
    pub at: Option<u64>,
    /// What came behind this.
    pub since: Option<Bound>,
    /// What came before this, and itself.
    pub until: Option<Bound>,
}

/// Where a range ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// At a virtual time.
    Time(u64),
    /// At the checkpoint of this place.
    Checkpoint(usize),
}

type Result<T> = std::result::Result<T, Problem>;

impl History {
    /// Of these checkpoints, children after their parents.
    pub fn new(checkpoints: Vec<Checkpoint>) -> Self {
        let places: HashMap<CheckpointId, usize> =
            checkpoints.iter().enumerate().map(|(place, checkpoint)| (checkpoint.id, place)).collect();
        let parents = checkpoints.iter().map(|checkpoint| places.get(checkpoint.parent.as_ref()?).copied()).collect();
        Self { checkpoints, parents, places }
    }

    /// Notes where runs stand. Those that stand on no checkpoint that is there are left out.
    pub fn place(&mut self, runs: &[Run]) {
        for run in runs {
            let Some(place) = run.head.and_then(|head| self.places.get(&head)) else { continue };
            let states = run.machines.iter().map(|machine| machine.state);
            let state = states.into_iter().find(|state| *state != MachineState::Running).unwrap_or(MachineState::Running);
            self.checkpoints[*place].runs.push(RunAt { name: run.name.clone(), state, time_virtual_ns: run.time_virtual_ns });
        }
    }

    /// Runs that stand on what is shown, with its place.
    pub fn runs(&self, shown: &[usize]) -> Vec<(usize, &RunAt)> {
        shown.iter().flat_map(|place| self.checkpoints[*place].runs.iter().map(move |run| (*place, run))).collect()
    }

    /// What is shown, in that order.
    pub fn select(&self, branch: Option<&str>, in_lines: bool) -> Result<Vec<usize>> {
        Ok(match branch {
            Some(branch) => self.line(self.head(branch)?).collect(),
            None => {
                // They came in order, whatever the clock said when they were taken.
                let ages: Vec<_> = (0..self.checkpoints.len() as u64).collect();
                graph::order(&self.parents, &ages, in_lines)
            }
        })
    }

    /// Leaves what is wanted of what is shown.
    pub fn narrow(&self, shown: &mut Vec<usize>, range: &Range) {
        if let Some(at) = range.at {
            let wanted = self.at(shown, at);
            shown.retain(|place| wanted.contains(place));
        }
        match range.since {
            Some(Bound::Time(ns)) => shown.retain(|place| self.time(*place) >= ns),
            Some(Bound::Checkpoint(since)) => {
                let mut grew = vec![false; self.parents.len()];
                for (place, parent) in self.parents.iter().enumerate() {
                    grew[place] = parent.is_some_and(|parent| parent == since || grew[parent]);
                }
                shown.retain(|place| grew[*place]);
            }
            None => {}
        }
        match range.until {
            Some(Bound::Time(ns)) => shown.retain(|place| self.time(*place) <= ns),
            Some(Bound::Checkpoint(until)) => {
                let leads: BTreeSet<_> = self.line(until).collect();
                shown.retain(|place| leads.contains(place));
            }
            None => {}
        }
    }

    /// What somebody names as an end of a range. A checkpoint that is called like a time goes before it.
    pub fn bound(&self, text: &str, resolve: impl Fn(&str) -> Result<CheckpointId>) -> std::result::Result<Bound, Failure> {
        let unknown = match resolve(text) {
            Ok(id) => {
                let place = self.places.get(&id).copied().map(Bound::Checkpoint);
                let elsewhere = || Problem::new(format!("checkpoint {} is of another experiment; -e names it", id.short()));
                return Ok(place.ok_or_else(elsewhere)?);
            }
            Err(problem) => problem,
        };
        match text.parse::<Instant>() {
            Ok(Instant(When::AtNs(ns))) => Ok(Bound::Time(ns)),
            Ok(Instant(When::AfterNs(_))) => Err(Failure::Misuse(format!(
                "a log has no now to count {} from: write a virtual time, such as 12.5s",
                text::harmless(text)
            ))),
            Err(_) => Err(unknown.into()),
        }
    }

    /// Where each line of what is shown was at a virtual time. Lines end where nothing grows, and where branches end.
    fn at(&self, shown: &[usize], at: u64) -> BTreeSet<usize> {
        let among: BTreeSet<_> = shown.iter().copied().collect();
        let grown: BTreeSet<_> = among.iter().filter_map(|place| self.parents[*place]).collect();
        let ends = among.iter().filter(|place| !grown.contains(place) || !self.checkpoints[**place].heads.is_empty());
        ends.filter_map(|end| self.line(*end).find(|place| self.time(*place) <= at)).collect()
    }

    /// A checkpoint and those that lead to it, the newest first.
    fn line(&self, place: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(place), |place| self.parents[*place])
    }

    fn time(&self, place: usize) -> u64 {
        self.checkpoints[place].time_virtual_ns
    }

    fn head(&self, branch: &str) -> Result<usize> {
        self.checkpoints.iter().position(|checkpoint| checkpoint.heads.iter().any(|head| head == branch)).ok_or_else(|| {
            let mut branches: Vec<_> = self.checkpoints.iter().flat_map(|checkpoint| &checkpoint.heads).map(String::as_str).collect();
            branches.sort_unstable();
            Problem::new(format!("there is no branch \"{branch}\"; there is {}", branches.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::{self, id};

    fn numbers(range: &Range, branch: Option<&str>) -> Vec<u8> {
        let history = History::new(samples::history());
        let mut shown = history.select(branch, false).unwrap();
        history.narrow(&mut shown, range);
        shown.iter().map(|place| history.checkpoints[*place].id.0[0]).collect()
    }

    #[test]
    fn where_each_line_was() {
        let at = |seconds: u64, branch| numbers(&Range { at: Some(seconds * 1_000_000_000), ..Range::default() }, branch);
        assert_eq!(at(20, None), [5, 4]);
        assert_eq!(at(9, None), [4, 3]);
        assert_eq!(at(5, None), [2]);
        assert_eq!(at(9, Some("main")), [3]);
        assert_eq!(at(1, None), Vec::<u8>::new());
    }

    #[test]
    fn from_and_to_checkpoints_and_times() {
        let range = |since, until| numbers(&Range { at: None, since, until }, None);
        // The places of the sample are one less than its numbers.
        let (place, time) =
            (|number: usize| Some(Bound::Checkpoint(number - 1)), |seconds: u64| Some(Bound::Time(seconds * 1_000_000_000)));
        assert_eq!(range(place(2), None), [5, 4, 3]);
        assert_eq!(range(place(3), None), [5]);
        assert_eq!(range(None, place(4)), [4, 2, 1]);
        assert_eq!(range(place(1), place(5)), [5, 3, 2]);
        assert_eq!(range(time(4), time(8)), [4, 3, 2]);
    }

    #[test]
    fn a_name_goes_before_a_time() {
        let history = History::new(samples::history());
        let resolve = |text: &str| match text {
            "4s" | "known-good" => Ok(id(2)),
            "elsewhere" => Ok(id(9)),
            _ => Err(Problem::new("no such checkpoint")),
        };
        let bound = |text: &str| history.bound(text, resolve);
        assert_eq!(bound("known-good").unwrap(), Bound::Checkpoint(1));
        assert_eq!(bound("4s").unwrap(), Bound::Checkpoint(1));
        assert_eq!(bound("5s").unwrap(), Bound::Time(5_000_000_000));
        assert_eq!(bound("+5s").unwrap_err().status(), 2);
        assert_eq!(bound("elsewhere").unwrap_err().status(), 1);
        assert!(matches!(bound("nonsense"), Err(Failure::Problem(problem)) if problem.message == "no such checkpoint"));
    }

    #[test]
    fn a_parent_that_is_gone_ends_the_line() {
        let mut orphans = samples::history();
        orphans.remove(0);
        assert_eq!(History::new(orphans).select(None, true).unwrap().len(), 4);
        let problem = History::new(samples::history()).select(Some("none"), false).unwrap_err();
        assert_eq!(problem.message, "there is no branch \"none\"; there is main, what-if");
    }
}
