//! Journeys to instants of virtual time: to the nearest checkpoint before, and from there the run runs.

use super::{Keeper, Resumed, head};
use crate::{Result, history};
use fermata_experiment::{Journey, Run, Status, When};
use fermata_linux::clock::Stopwatch;
use fermata_store::Progress;
use fermata_types::{Perturbation, VirtualTime};
use std::sync::Arc;

/// An instant that a run is to be at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instant {
    /// The virtual time, or how far from the run's present one.
    pub when: When,
    /// The checkpoint to which the line leads that it lies on; none: the run's own line.
    pub line: Option<String>,
    /// Go on from there, instead of standing still.
    pub go_on: bool,
    /// Have the links do otherwise on the way there, and from then on. Then the way begins at a checkpoint, even if the instant is still to come.
    pub perturbation: Option<Perturbation>,
}

/// How a run came to an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// The virtual time that was asked for.
    pub asked: VirtualTime,
    /// Where it began to run towards it.
    pub from: VirtualTime,
    /// Where it is now.
    pub at: VirtualTime,
    /// It went to a checkpoint first. Else the instant was still to come, and it ran on from where it was.
    pub went: bool,
    /// It stands still there.
    pub paused: bool,
}

impl Keeper {
    /// Takes a run to an instant: to the nearest checkpoint at or before it, from which it runs until then. An instant that the run has not come to yet, on its
    /// own line, is reached from where it is, and nothing is lost. When nobody wants it any more, which is asked now and then, the run stops where it is.
    pub fn goto_instant(
        self: &Arc<Self>,
        to: &Instant,
        run: Option<&str>,
        eager: bool,
        wanted: &dyn Fn() -> bool,
    ) -> Result<(Resumed, Reached)> {
        let run = self.run(run)?;
        let now = run.time_virtual();
        let asked = match to.when {
            When::At(at) => at,
            When::After(time) => now.plus(time),
        };
        // A time from now is never behind; one that is named has another way there if this one is closed.
        let open = || matches!(to.when, When::After(_)) || can_go_on(&run.body().glance());
        let is_ahead = to.line.is_none() && to.perturbation.is_none() && now <= asked && open();
        let resumed = if is_ahead {
            self.stay(&run, now, to.go_on || now < asked)?
        } else {
            let line = match &to.line {
                Some(line) => self.find(line, Some(&run))?.0,
                None => head(&run)?,
            };
            let (id, record) = history::at_or_before(self.host.store(), line, asked)?;
            let paused = record.time_virtual_ns == asked.ns && !to.go_on;
            let how = Journey { eager, paused, perturbation: to.perturbation, ..Journey::default() };
            self.goto(&id.to_string(), Some(run.name()), how)?
        };
        self.report(&format!("running on to {asked}"), Progress::default());
        // In a run that has ended no instant comes.
        let reached = run.run_until(asked, to.go_on, &|| wanted() && self.lives(&run));
        self.report("", Progress::default());
        let reached = Reached { asked, from: resumed.time_virtual, at: reached?, went: !is_ahead, paused: !to.go_on };
        Ok((resumed, reached))
    }

    /// The run stays where it is, and runs if it is to.
    fn stay(&self, run: &Run, now: VirtualTime, runs: bool) -> Result<Resumed> {
        let (watch, standing, checkpoint) = (Stopwatch::start(), run.standing(), head(run)?);
        if runs && run.body().glance().contains(&Status::Paused) {
            run.resume()?;
        }
        let (run, perturbation) = (run.name().to_owned(), run.body().perturbation());
        Ok(Resumed { run, branch: standing.branch, checkpoint, time_virtual: now, took: watch.elapsed(), warm: true, perturbation })
    }
}

/// Whether machines could go on together from where they are. One that is off stays off, and one that does not answer may only be slow.
fn can_go_on(machines: &[Status]) -> bool {
    let is_lost = |status: &Status| matches!(status, Status::Gone(_) | Status::Failed(_));
    !machines.iter().any(is_lost) && machines.iter().any(|status| *status != Status::Off)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_go_on_goes_back() {
        let gone = || Status::Gone("it was killed".into());
        let check = |machines: &[Status], expected: bool| assert_eq!(can_go_on(machines), expected, "{machines:?}");
        check(&[Status::Running], true);
        check(&[Status::Paused, Status::Running], true);
        check(&[Status::Running, Status::Off], true);
        check(&[Status::Silent], true);
        check(&[Status::Off, Status::Silent], true);
        check(&[Status::Off], false);
        check(&[Status::Off, Status::Off], false);
        check(&[Status::Running, gone()], false);
        check(&[Status::Running, Status::Failed("internal-error")], false);
    }
}
