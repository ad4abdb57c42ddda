//! Swapping in: a run at a checkpoint that is still on a remote, and goes on while it comes.

use super::{Activity, FIRST_RUN, Keeper, Resumed};
use crate::{Error, Result, tally::Kind};
use fermata_experiment::{Host, Journey, Run, Status, spare, travel};
use fermata_linux::{
    clock::{Stopwatch, monotonic},
    priority,
};
use fermata_store::{
    Progress,
    remote::{Away, AwayState, CopyStage, Remote},
};
use fermata_types::{CheckpointId, ImageId, PageNumber};
use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};

/// Between two looks at whether machines wait for a remote.
const LOOK: Duration = Duration::from_millis(100);

/// What is swapped in, and from where.
pub struct SwapIn {
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The branch that it is the newest checkpoint of.
    pub branch: String,
    /// Checkpoints that lead to it: a branch of this name may stand on one of them here.
    pub line: Vec<CheckpointId>,
    /// The line for those who wait for something: it should tell soon when it is cut.
    pub asked: Box<dyn Remote>,
    /// The line over which everything comes behind them, as fast as it may.
    pub behind: Box<dyn Remote>,
    /// Pages of machines that were touched first before, by name.
    pub working_sets: BTreeMap<String, Vec<PageNumber>>,
    /// Wait until all of it is here before the guests run.
    pub eager: bool,
    /// Leave it paused.
    pub paused: bool,
    /// Told when all of it is here.
    pub arrived: Box<dyn FnOnce() + Send>,
}

impl Keeper {
    /// Begins the experiment's first run at a checkpoint that is on a remote. The guests run as soon as what they need first is here; until the rest is, and the golden images
    /// that were nowhere here, there are no checkpoints, and whoever asks for one waits.
    pub fn swap_in(self: &Arc<Self>, swap: SwapIn) -> Result<Resumed> {
        self.counted(Kind::Revive, self.swap_in_from(swap))
    }

    fn swap_in_from(self: &Arc<Self>, swap: SwapIn) -> Result<Resumed> {
        let watch = Stopwatch::start();
        let _one_at_a_time = self.set_out()?;
        let mut report = |_: CopyStage, progress: Progress| self.report("looking what is there", progress);
        let away = self.host.store().begin_away(swap.asked, &self.spec.name, &swap.checkpoint, monotonic, &mut report)?;
        let coming = Fetch { away: away.clone(), behind: swap.behind, arrived: swap.arrived, host: self.host.clone() };
        let id = swap.checkpoint;
        let began = || -> Result<Resumed> {
            let record = self.record(&id)?;
            for (machine, pages) in swap.working_sets {
                self.host.expect_working_set(&machine, pages);
            }
            let branch = self.branch_of(&swap.branch, &id, &swap.line)?;
            let mut report = |what: &str, progress| self.report(what, progress);
            // From here on golden images are open, or known to come.
            let body = spare(&self.host, &id, &record, &mut report)?;
            if swap.eager {
                report("fetching", Progress::default());
                coming.fetch(&self.spec.name, &branch)?;
            } else {
                coming.fetch_behind(self.spec.name.clone(), branch.clone())?;
            }
            let how = Journey { eager: swap.eager, paused: swap.paused, ..Journey::default() };
            let arrival = travel(&self.host, body, &id, &record, &branch, how)?;
            report("", Progress::default());
            let (time_virtual, took) = (arrival.time_virtual, watch.elapsed());
            let run = Run::begin(self.host.clone(), &self.spec, FIRST_RUN, arrival, false)?;
            self.add(run);
            Ok(Resumed { run: FIRST_RUN.to_owned(), branch, checkpoint: id, time_virtual, took, warm: false, perturbation: None })
        };
        let resumed = began().inspect_err(|_| away.end())?;
        self.mind_the_remote();
        Ok(resumed)
    }

    /// The branch of that name, if it can go on from there; else a new one beside it.
    fn branch_of(&self, name: &str, id: &CheckpointId, line: &[CheckpointId]) -> Result<String> {
        match self.host.store().branch(&self.spec.name, name)? {
            Some(head) if head != *id && !line.contains(&head) => self.free_branch(name, &[]),
            _ => Ok(name.to_owned()),
        }
    }

    /// Stops machines as long as one waits for a remote that gives nothing: a processor that waits for a page does not run, but its guest's clocks would.
    fn mind_the_remote(self: &Arc<Self>) {
        let watch = self.repeat(LOOK, move |keeper| {
            match keeper.loading() {
                Some((_, state)) if state.waited_for => keeper.runs().iter().for_each(|run| keeper.hold_up(run)),
                _ => keeper.held().release(|name| keeper.run(Some(name)).map_or(true, |run| go_on(&run))),
            }
            LOOK
        });
        self.threads.lock().expect("nobody panics with the lock").push(watch);
    }

    /// Stops a run that runs, however it came to do so, until its remote gives something.
    fn hold_up(&self, run: &Run) {
        // Nobody pauses it in between: he would not be known to want it paused.
        let mut held = self.held();
        if !run.body().glance().contains(&Status::Running) {
            return;
        }
        if held.hold(run.name()) {
            tracing::warn!("run {} stands still until its remote can be read again", run.name());
        }
        drop(held);
        // A processor that waits for a page stops when it has it, and QEMU answers only then; its clocks stand from now on.
        if let Err(error) = run.pause() {
            tracing::info!("run {} stops as soon as it has its page: {error}", run.name());
        }
    }

    /// A run stands that somebody wants so, whatever its remote does.
    pub(super) fn stay_paused(&self, run: &str) {
        self.held().wish(run, Wish::Stand);
    }

    /// Stops a run because somebody wants it. One that stands still for its remote stays so when that can be read again.
    pub fn pause(&self, run: Option<&str>) -> Result<Arc<Run>> {
        let run = self.run(run)?;
        let mut held = self.held();
        if !held.wish(run.name(), Wish::Stand) {
            run.pause()?;
        }
        drop(held);
        Ok(run)
    }

    /// Lets a run go on because somebody wants it; guests that have suspended themselves to RAM are woken. Refused while it stands still for its remote: then it goes on when that can be read again.
    pub fn resume(&self, run: Option<&str>) -> Result<Arc<Run>> {
        self.set_going(run, Run::resume_and_wake)
    }

    /// The same because what it was paused for has failed: guests that sleep sleep on.
    pub fn take_back_pause(&self, run: Option<&str>) -> Result<Arc<Run>> {
        self.set_going(run, Run::resume)
    }

    fn set_going(&self, run: Option<&str>, resume: fn(&Run) -> fermata_experiment::Result<()>) -> Result<Arc<Run>> {
        let run = self.run(run)?;
        if self.held().wish(run.name(), Wish::GoOn) {
            let waits = || format!("run {} stands still until its remote can be read again, and goes on by itself then", run.name());
            return Err(Error::Refused(self.loading().and_then(|(_, state)| state.lie).unwrap_or_else(waits)));
        }
        resume(&run)?;
        Ok(run)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // A wish is there or not, whoever panicked.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From where a checkpoint still comes, and how far it is.
    pub fn loading(&self) -> Option<(String, AwayState)> {
        self.host.store().away().map(|away| (away.remote(), away.state()))
    }

    /// What whoever waits for a checkpoint waits for first.
    pub(super) fn loading_activity(&self) -> Option<Activity> {
        let (remote, state) = self.loading()?;
        let progress = Progress { done: state.fetched, total: state.total };
        Some(Activity { what: format!("waiting until all is here from {remote}"), progress })
    }

    /// Whoever waits for a remote waits no longer, for all ends.
    pub(super) fn stop_loading(&self) {
        if let Some(away) = self.host.store().away() {
            away.end();
        }
    }
}

/// Runs that stand still for a remote, and what becomes of them when it can be read again.
#[derive(Default)]
pub(super) struct Held(BTreeMap<String, Wish>);

/// What somebody wants of a run that stands still for a remote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    GoOn,
    Stand,
}

impl Held {
    /// Whether it was not held before.
    fn hold(&mut self, run: &str) -> bool {
        let before = self.0.len();
        self.0.entry(run.to_owned()).or_insert(Wish::GoOn);
        self.0.len() > before
    }

    /// False: it is not held, and whoever wants something of it does it himself.
    fn wish(&mut self, run: &str, what: Wish) -> bool {
        self.0.get_mut(run).map(|wish| *wish = what).is_some()
    }

    /// The remote can be read again. Those that nobody wants to stand go on; one that cannot yet is tried again the next time.
    fn release(&mut self, go_on: impl Fn(&str) -> bool) {
        self.0.retain(|run, wish| *wish == Wish::GoOn && !go_on(run));
    }
}

/// All of a checkpoint, on its way.
struct Fetch {
    away: Arc<Away>,
    behind: Box<dyn Remote>,
    arrived: Box<dyn FnOnce() + Send>,
    host: Arc<Host>,
}

impl Fetch {
    /// Has all of it come, and the branch be there before anybody takes a checkpoint upon it.
    fn fetch(self, experiment: &str, branch: &str) -> Result<()> {
        let id = self.away.id();
        let mut came = |image: &ImageId, path: &Path| {
            self.host.image_came(image, path).map_err(|error| fermata_store::Error::from(io::Error::other(error.to_string())))
        };
        let mut entered = || self.host.store().set_branch(experiment, branch, &id);
        let Some(pulled) = self.away.fetch(&*self.behind, &mut came, &mut entered) else {
            let ended = || format!("{experiment} ended before all of it was here");
            return Err(Error::Refused(self.away.state().lie.unwrap_or_else(ended)));
        };
        tracing::info!("all of {} is here: {} bytes in {} packs", id.short(), pulled.bytes, pulled.packs);
        (self.arrived)();
        Ok(())
    }

    /// The same behind those who wait for parts of it.
    fn fetch_behind(self, experiment: String, branch: String) -> Result<()> {
        let work = move || {
            // The guests need the processors more.
            priority::go_last();
            if let Err(error) = self.fetch(&experiment, &branch) {
                tracing::info!("{error}");
            }
        };
        // It ends with the process: what is not yet here is fetched again.
        let begun = std::thread::Builder::new().name("fetch".to_owned()).spawn(work);
        begun.map(drop).map_err(|error| Error::Refused(format!("no thread to fetch what is on the remote: {error}")))
    }
}

/// Lets a run go on that was stopped. False: not yet.
fn go_on(run: &Run) -> bool {
    let went = run.resume();
    if let Err(error) = &went {
        tracing::info!("run {} does not go on yet: {error}", run.name());
    }
    went.is_ok() || !run.body().glance().contains(&Status::Paused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn what_people_want_of_a_run_holds_when_the_remote_is_back() {
        let mut held = Held::default();
        assert!(!held.wish("main", Wish::Stand), "it is not held: he pauses it himself");
        for run in ["main", "paused", "slow", "thought-better"] {
            assert!(held.hold(run) && !held.hold(run));
        }
        assert!(held.wish("paused", Wish::Stand) && held.wish("thought-better", Wish::Stand) && held.wish("thought-better", Wish::GoOn));
        // The next look at a remote that is still lost.
        assert!(!held.hold("paused"));
        let went = RefCell::new(Vec::new());
        held.release(|run| {
            went.borrow_mut().push(run.to_owned());
            run != "slow"
        });
        assert_eq!(went.take(), ["main", "slow", "thought-better"]);
        held.release(|run| {
            went.borrow_mut().push(run.to_owned());
            true
        });
        assert_eq!(went.take(), ["slow"], "the others are let go of, the one that is paused too");
        assert!(!held.wish("paused", Wish::GoOn), "whoever resumes it now does so himself");
    }
}
