//! The keeper of one experiment on this host: its runs, the spare process that stands ready, the checkpoints by the clock.

use crate::{
    Error, Result, retention,
    spares::Spares,
    tally::{Kind, Tally},
};
use fermata_experiment::{Arrival, Asked, Body, GLANCE, Host, Journey, Run, Spec, Status, fits, spare, travel};
use fermata_linux::clock::{Stopwatch, wall_ns};
use fermata_store::{Keep, Progress, Record};
use fermata_types::{CheckpointId, Perturbation, VirtualTime};
use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

mod collecting;
mod instant;
mod swapping;

pub use instant::{Instant, Reached};
use swapping::Held;
pub use swapping::SwapIn;

/// The first run of an experiment.
pub const FIRST_RUN: &str = "main";

/// Whoever waits for the next event looks at the runs at least as often.
const EVENTS_LOOK: Duration = Duration::from_millis(20);

/// Between two looks at whether a run that has ended still stores a checkpoint.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// A run that has ended is waited for no longer than this.
const TAKEN_MAX: Duration = Duration::from_secs(30);

/// Between two looks at which checkpoints the specification does not keep any longer. Each reads all records.
const PRUNE_EVERY: Duration = Duration::from_secs(60);

/// What the keeper is busy with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Activity {
    /// In words; empty when nothing takes long.
    pub what: String,
    /// How far it is.
    pub progress: Progress,
}

/// Where a run arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    /// The run.
    pub run: String,
    /// The branch that it grows from now on.
    pub branch: String,
    /// The checkpoint that it stands on.
    pub checkpoint: CheckpointId,
    /// Its virtual time.
    pub time_virtual: VirtualTime,
    /// From the request to the guest's first instruction.
    pub took: Duration,
    /// Whether a spare process stood ready.
    pub warm: bool,
    /// What its links do otherwise than they did, if anything.
    pub perturbation: Option<Perturbation>,
}

/// Options of `fork`.
#[derive(Debug, Clone, Default)]
pub struct Fork {
    /// The new run's name; none: one is made up.
    pub name: Option<String>,
    /// Do not tell the guest that it is a copy.
    pub same_randomness: bool,
    /// Load everything before the guest runs.
    pub eager: bool,
    /// Leave it paused.
    pub paused: bool,
    /// Have the links do otherwise than they did; none: as they did.
    pub perturbation: Option<Perturbation>,
}

/// One experiment, kept.
pub struct Keeper {
    host: Arc<Host>,
    spec: Spec,
    runs: Mutex<BTreeMap<String, Arc<Run>>>,
    spares: Arc<Spares>,
    activity: Mutex<Activity>,
    tally: Mutex<Tally>,
    trouble: Mutex<Option<String>>,
    /// Why checkpoints that are not to be kept could not be removed the last time.
    prune_trouble: Mutex<Option<String>>,
    /// Why checkpoints could not be copied elsewhere the last time.
    backup_trouble: Mutex<Option<String>>,
    /// Why garbage could not be collected the last time.
    collect_trouble: Mutex<Option<String>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    ending: Arc<(Mutex<bool>, Condvar)>,
    /// There is a thread that has events happen.
    happening: AtomicBool,
    /// Numbers the forks without a name.
    forks: AtomicU64,
    /// Runs that stand still for a remote.
    held: Mutex<Held>,
    /// Held on a journey. They name branches and share one spare process, so they go one after the other.
    journey: Mutex<()>,
    /// Nothing begins any more. Changes only while no journey is under way.
    over: AtomicBool,
}

impl Keeper {
    /// Keeps an experiment that has no run yet.
    pub fn new(host: Host, spec: Spec) -> Arc<Self> {
        let host = Arc::new(host);
        Arc::new(Self {
            spares: Spares::new(host.clone()),
            host,
            spec,
            runs: Mutex::default(),
            activity: Mutex::default(),
            tally: Mutex::default(),
            trouble: Mutex::default(),
            prune_trouble: Mutex::default(),
            backup_trouble: Mutex::default(),
            collect_trouble: Mutex::default(),
            threads: Mutex::default(),
            ending: Arc::default(),
            happening: AtomicBool::new(false),
            forks: AtomicU64::new(1),
            held: Mutex::default(),
            journey: Mutex::new(()),
            over: AtomicBool::new(false),
        })
    }

    /// Boots the experiment's machines as its first run, and starts the clock.
    pub fn boot(self: &Arc<Self>) -> Result<()> {
        let _one_at_a_time = self.set_out()?;
        let branch = self.free_branch(FIRST_RUN, &[])?;
        let run = Run::boot(self.host.clone(), &self.spec, &branch, &mut |what, progress| self.report(what, progress))?;
        self.report("", Progress::default());
        self.add(run);
        Ok(())
    }

    /// Brings back the experiment's first run from a checkpoint instead, and starts the clock.
    pub fn revive(self: &Arc<Self>, id: CheckpointId, how: Journey) -> Result<Resumed> {
        self.counted(Kind::Revive, self.revive_to(id, how))
    }

    fn revive_to(self: &Arc<Self>, id: CheckpointId, how: Journey) -> Result<Resumed> {
        let watch = Stopwatch::start();
        let _one_at_a_time = self.set_out()?;
        let record = self.record(&id)?;
        let branch = self.branch_from(&record.branch, &id, &[])?;
        let (arrival, warm) = self.arrive(&id, &record, &branch, how, None)?;
        let time_virtual = arrival.time_virtual;
        let took = watch.elapsed();
        let run = Run::begin(self.host.clone(), &self.spec, FIRST_RUN, arrival, false)?;
        let perturbation = run.body().perturbation();
        self.add(run);
        Ok(Resumed { run: FIRST_RUN.to_owned(), branch, checkpoint: id, time_virtual, took, warm, perturbation })
    }

    /// Begins a journey, unless all is ending. The next one waits until this one is over.
    fn set_out(&self) -> Result<MutexGuard<'_, ()>> {
        let guard = self.journey.lock().expect("nobody panics with the lock");
        if self.over.load(Ordering::Relaxed) {
            return Err(Error::Refused(format!("{} is ending", self.spec.name)));
        }
        Ok(guard)
    }

    fn add(self: &Arc<Self>, run: Run) {
        let body = run.body();
        self.keep(Arc::new(run));
        self.start_threads();
        self.start_events(&body);
        self.start_collecting();
    }

    fn keep(&self, run: Arc<Run>) {
        self.spares.want_like(&run.body());
        self.tally().begin(run.name());
        self.runs.lock().expect("nobody panics with the lock").insert(run.name().to_owned(), run);
    }

    /// The specification.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// What it uses of this host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// All runs.
    pub fn runs(&self) -> Vec<Arc<Run>> {
        self.runs.lock().expect("nobody panics with the lock").values().cloned().collect()
    }

    /// The run of this name, or the only one.
    pub fn run(&self, name: Option<&str>) -> Result<Arc<Run>> {
        let runs = self.runs.lock().expect("nobody panics with the lock");
        let names = || runs.keys().cloned().collect::<Vec<_>>().join(", ");
        match name {
            Some(name) => runs
                .get(name)
                .cloned()
                .ok_or_else(|| Error::WhichRun(format!("{} has no run \"{name}\"; it has {}", self.spec.name, names()))),
            // The first run is who is meant when nobody is named.
            None if runs.len() == 1 || runs.contains_key(FIRST_RUN) => {
                Ok(runs.get(FIRST_RUN).or_else(|| runs.values().next()).expect("there is one").clone())
            }
            None => Err(Error::WhichRun(format!("{} has several runs: say which of {}", self.spec.name, names()))),
        }
    }

    /// What takes long at the moment.
    pub fn activity(&self) -> Activity {
        let activity = self.activity.lock().expect("nobody panics with the lock").clone();
        // Whoever waits for a checkpoint meanwhile waits for that.
        if activity.what.is_empty() { activity } else { self.loading_activity().unwrap_or(activity) }
    }

    fn report(&self, what: &str, progress: Progress) {
        *self.activity.lock().expect("nobody panics with the lock") = Activity { what: what.to_owned(), progress };
    }

    /// Why the last checkpoint by the clock failed, or the last removal of what is not to be kept, the last collection of garbage, or the last copy elsewhere, if it did.
    pub fn trouble(&self) -> Option<String> {
        let of = |trouble: &Mutex<Option<String>>| trouble.lock().expect("nobody panics with the lock").clone();
        of(&self.trouble).or_else(|| of(&self.prune_trouble)).or_else(|| of(&self.collect_trouble)).or_else(|| of(&self.backup_trouble))
    }

    /// Somebody copies its checkpoints elsewhere, and says how that went the last time.
    pub fn tell_backup(&self, trouble: Option<String>) {
        *self.backup_trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// What it counted since it began.
    pub fn counted_so_far(&self) -> Tally {
        self.tally().clone()
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("nobody panics with the lock")
    }

    fn counted(&self, kind: Kind, journey: Result<Resumed>) -> Result<Resumed> {
        self.tally().journey(kind, journey.as_ref().ok().map(|resumed| (resumed.warm, resumed.took)));
        journey
    }

    /// Whether a spare process stands ready.
    pub fn spare_ready(&self) -> bool {
        self.spares.ready()
    }

    /// Takes a checkpoint of a run.
    pub fn checkpoint(&self, run: Option<&str>, message: Option<String>) -> Result<(CheckpointId, Record)> {
        self.checkpoint_as(run, Asked { message, ..Asked::default() }, &|| true)
    }

    /// The same in another manner; see [`Run::checkpoint_as`].
    pub fn checkpoint_as(&self, run: Option<&str>, asked: Asked, wanted: &dyn Fn() -> bool) -> Result<(CheckpointId, Record)> {
        let run = self.run(run)?;
        let what = if asked.when.is_some() { "waiting for the instant of the checkpoint" } else { "storing the checkpoint" };
        self.report(what, Progress::default());
        // In a run that has ended no instant comes.
        let result = self.take(&run, asked, &|| wanted() && self.lives(&run));
        self.report("", Progress::default());
        Ok(result?)
    }

    fn lives(&self, run: &Arc<Run>) -> bool {
        self.runs().iter().any(|living| Arc::ptr_eq(living, run))
    }

    fn take(&self, run: &Run, asked: Asked, wanted: &dyn Fn() -> bool) -> fermata_experiment::Result<(CheckpointId, Record)> {
        let result = run.checkpoint_as(asked, wanted);
        match &result {
            Ok((_, record)) => self.tally().checkpoint(run.name(), &record.cost),
            // Nothing failed: the run is elsewhere.
            Err(fermata_experiment::Error::Left { .. }) => {}
            Err(_) => self.tally().failure(run.name()),
        }
        result
    }

    /// Takes a run to a checkpoint. If that fails the run goes on where it was.
    pub fn goto(self: &Arc<Self>, to: &str, run: Option<&str>, how: Journey) -> Result<Resumed> {
        self.counted(Kind::Goto, self.go(to, run, how))
    }

    fn go(self: &Arc<Self>, to: &str, run: Option<&str>, how: Journey) -> Result<Resumed> {
        let watch = Stopwatch::start();
        let _one_at_a_time = self.set_out()?;
        let run = self.run(run)?;
        let (id, record) = self.find(to, Some(&run))?;
        let before = run.body();
        let seen = before.glance();
        // Of one that does not answer nobody knows more than that it was not paused.
        let was_running = seen.contains(&Status::Running) || seen.contains(&Status::Silent) && before.time_passes();
        let paused = how.paused;
        // Nobody will miss what it would still do; its processor is needed.
        let _ = before.pause_within(GLANCE);
        let (arrival, warm) = match self.arrive(&id, &record, &record.branch, how, Some(&before)) {
            Ok(arrived) => arrived,
            Err(error) => {
                if was_running {
                    // Not into a checkpoint that has found it paused.
                    let _ = run.resume();
                }
                return Err(error);
            }
        };
        let time_virtual = arrival.time_virtual;
        let took = watch.elapsed();
        drop(before);
        if paused {
            self.stay_paused(run.name());
        }
        let growing = self.growing(Some(run.name()));
        let left = run.move_to(arrival, |moving| {
            let taken: Vec<_> = growing.into_iter().chain(moving.map(str::to_owned)).collect();
            // Without an answer from the store the next checkpoint says what is wrong with it.
            self.branch_from(&record.branch, &id, &taken).unwrap_or_else(|_| record.branch.clone())
        });
        let body = run.body();
        self.spares.bury(left);
        self.spares.want_like(&body);
        self.start_events(&body);
        let (branch, perturbation) = (run.standing().branch, body.perturbation());
        Ok(Resumed { run: run.name().to_owned(), branch, checkpoint: id, time_virtual, took, warm, perturbation })
    }

    /// Starts another run from a checkpoint: of this id, or the newest one of a run.
    pub fn fork(self: &Arc<Self>, from: Option<&str>, run: Option<&str>, fork: Fork) -> Result<Resumed> {
        self.counted(Kind::Fork, self.split(from, run, fork))
    }

    fn split(self: &Arc<Self>, from: Option<&str>, run: Option<&str>, fork: Fork) -> Result<Resumed> {
        let watch = Stopwatch::start();
        let _one_at_a_time = self.set_out()?;
        let (id, record) = match from {
            Some(from) => self.find(from, self.run(run).ok().as_deref())?,
            None => {
                let id = head(&*self.run(run)?)?;
                (id, self.record(&id)?)
            }
        };
        let name = self.fork_name(fork.name)?;
        let Fork { eager, paused, same_randomness, perturbation, .. } = fork;
        let how = Journey { eager, paused, fresh_randomness: !same_randomness, perturbation };
        let (arrival, warm) = self.arrive(&id, &record, &name, how, None)?;
        let time_virtual = arrival.time_virtual;
        let took = watch.elapsed();
        let run = Run::begin(self.host.clone(), &self.spec, &name, arrival, true)?;
        let body = run.body();
        let perturbation = body.perturbation();
        self.keep(Arc::new(run));
        self.start_events(&body);
        Ok(Resumed { run: name.clone(), branch: name, checkpoint: id, time_virtual, took, warm, perturbation })
    }

    /// A checkpoint by what a person typed: `~N` alone is the N-th before the one that the run stands on.
    fn find(&self, text: &str, run: Option<&Run>) -> Result<(CheckpointId, Record)> {
        let of_run = run.filter(|_| text.starts_with('~')).map(|run| Ok::<_, Error>(format!("{}{text}", head(run)?))).transpose()?;
        let id = self.host.store().resolve(of_run.as_deref().unwrap_or(text), Some(&self.spec.name))?;
        Ok((id, self.record(&id)?))
    }

    fn record(&self, id: &CheckpointId) -> Result<Record> {
        let record = self.host.store().record(id)?;
        if record.experiment != self.spec.name {
            return Err(Error::Refused(format!(
                "checkpoint {} is of experiment {}, not of {}: name the experiment with -e {0}",
                id.short(),
                record.experiment,
                self.spec.name
            )));
        }
        Ok(record)
    }

    /// A body at the checkpoint: the spare one if it fits, else one that is started now. Captures of the body that it is to replace go on in it.
    fn arrive(&self, id: &CheckpointId, record: &Record, branch: &str, how: Journey, from: Option<&Body>) -> Result<(Arrival, bool)> {
        // A process that waits may die like any other.
        let ready = self.spares.take(|body| fits(body, id, record) && body.glance().iter().all(|status| *status == Status::Paused));
        let warm = ready.is_some();
        let body = match ready {
            Some(body) => body,
            None => spare(&self.host, id, record, &mut |what, progress| self.report(what, progress))?,
        };
        if let (Some(fabric), Some(left)) = (body.fabric(), from.and_then(Body::fabric)) {
            fabric.share_captures(left);
        }
        let arrival = travel(&self.host, body, id, record, branch, how);
        self.report("", Progress::default());
        Ok((arrival?, warm))
    }

    /// Branches that runs grow, but for one run's.
    fn growing(&self, except: Option<&str>) -> Vec<String> {
        self.runs().iter().filter(|run| Some(run.name()) != except).flat_map(|run| run.branches()).collect()
    }

    /// The branch that grows from a checkpoint: the one it is the head of, else a new one beside it. What was there is never overwritten.
    fn branch_from(&self, of_checkpoint: &str, id: &CheckpointId, taken: &[String]) -> Result<String> {
        let branches = self.host.store().branches(&self.spec.name)?;
        if let Some((head, _)) = branches.iter().find(|(name, head)| *head == id && !taken.contains(name)) {
            return Ok(head.clone());
        }
        let numbered = of_checkpoint.rsplit_once('.').filter(|(_, number)| number.parse::<u32>().is_ok());
        self.free_branch(numbered.map_or(of_checkpoint, |(stem, _)| stem), taken)
    }

    /// `stem`, or `stem.2`, `stem.3`...: the first that no checkpoint and no run has.
    fn free_branch(&self, stem: &str, taken: &[String]) -> Result<String> {
        let branches = self.host.store().branches(&self.spec.name)?;
        let names = std::iter::once(stem.to_owned()).chain((2u64..).map(|number| format!("{stem}.{number}")));
        Ok(names.into_iter().find(|name| !branches.contains_key(name) && !taken.contains(name)).expect("numbers do not run out"))
    }

    fn fork_name(&self, wanted: Option<String>) -> Result<String> {
        let Some(name) = wanted else {
            let number = self.forks.fetch_add(1, Ordering::Relaxed);
            let names: Vec<_> = self.runs().iter().map(|run| run.name().to_owned()).chain(self.growing(None)).collect();
            return self.free_branch(&format!("fork-{number}"), &names);
        };
        let valid = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
        if name.is_empty() || name.len() > 64 || !name.chars().all(valid) || name.starts_with('-') {
            return Err(Error::Refused(format!("\"{name}\" is no name for a run: use up to 64 letters, digits, - _ and .")));
        }
        let lives = self.runs().iter().any(|run| run.name() == name);
        if lives || self.free_branch(&name, &self.growing(None))? != name {
            return Err(Error::Refused(format!("there is a run or a branch \"{name}\" already: choose another name")));
        }
        Ok(name)
    }

    /// Ends a run, or all of them and the keeper with them. What they did since their last checkpoints is gone.
    pub fn down(&self, run: Option<&str>) -> Result<Vec<String>> {
        if run.is_none() {
            // Else a journey, or a machine, that waits for a remote would hold all of it up.
            self.stop_loading();
        }
        let no_journey = self.journey.lock().expect("nobody panics with the lock");
        let ended: Vec<_> = match run {
            Some(name) => vec![self.run(Some(name))?],
            None => self.runs(),
        };
        let names: Vec<_> = ended.iter().map(|run| run.name().to_owned()).collect();
        let mut runs = self.runs.lock().expect("nobody panics with the lock");
        runs.retain(|name, _| !names.contains(name));
        let last = runs.is_empty();
        drop(runs);
        if last {
            self.over.store(true, Ordering::Relaxed);
            self.stop_loading();
            self.stop_threads();
            self.spares.end();
        }
        for run in &ended {
            run.body().kill();
            self.tally().end(run.name());
        }
        drop(no_journey);
        if !last {
            // Whoever ended it may remove its branch next, and a checkpoint that became permanent after that would bring it back.
            ended.iter().for_each(|run| await_taken(run));
        }
        Ok(names)
    }

    /// Whether no run is left.
    pub fn is_empty(&self) -> bool {
        self.runs.lock().expect("nobody panics with the lock").is_empty()
    }

    /// Begins, once, what goes on by itself: the checkpoints by the clock, and removing what is not to be kept.
    fn start_threads(self: &Arc<Self>) {
        let mut threads = self.threads.lock().expect("nobody panics with the lock");
        if !threads.is_empty() {
            return;
        }
        if let Some(every) = self.spec.every {
            let (watch, mut next) = (Stopwatch::start(), every);
            threads.push(self.repeat(every, move |keeper| {
                keeper.tick_guarded();
                // A checkpoint that took longer than the interval does not make the next ones crowd.
                next = (next + every).max(watch.elapsed());
                next.saturating_sub(watch.elapsed())
            }));
        }
        if let Some(keep) = self.spec.keep.clone() {
            threads.push(self.repeat(PRUNE_EVERY, move |keeper| {
                keeper.prune_guarded(&keep);
                PRUNE_EVERY
            }));
        }
    }

    /// Has events happen from when there is a run with any: the specification of the checkpoint that it came from may have some, and ours none.
    fn start_events(self: &Arc<Self>, body: &Body) {
        if !body.has_events() || self.happening.swap(true, Ordering::Relaxed) {
            return;
        }
        // Runs are paused, taken elsewhere and begun meanwhile.
        let soonest = |keeper: &Self| keeper.runs().iter().filter_map(|run| run.happen()).min();
        let events = self.repeat(Duration::ZERO, move |keeper| soonest(keeper).map_or(EVENTS_LOOK, |left| left.min(EVENTS_LOOK)));
        self.threads.lock().expect("nobody panics with the lock").push(events);
    }

    /// A thread that works after so long, and again after as long as the work says, until all ends.
    fn repeat(self: &Arc<Self>, mut next: Duration, mut work: impl FnMut(&Self) -> Duration + Send + 'static) -> JoinHandle<()> {
        let (keeper, ending) = (Arc::downgrade(self), self.ending.clone());
        std::thread::spawn(move || {
            while !wait(&ending, next) {
                let Some(keeper) = keeper.upgrade() else { return };
                next = work(&keeper);
            }
        })
    }

    /// A panic is a bug of ours. It must not end the clock's thread, after which there would be no checkpoints and no word about it.
    fn tick_guarded(&self) {
        let trouble = match catch_unwind(AssertUnwindSafe(|| self.tick())) {
            Ok(trouble) => trouble,
            Err(_) => Some("the last checkpoint by the clock failed: the keeper panicked. This is a bug, of which its log tells more. `fermata down` and `fermata goto ID` begin anew".to_owned()),
        };
        // Nothing half done can be in it, whoever panicked.
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Takes a checkpoint of every run that runs. Returns what went wrong.
    fn tick(&self) -> Option<String> {
        let mut trouble = None;
        if self.loading().is_some() {
            // They begin when all of the checkpoint is here that the run came from.
            return None;
        }
        for run in self.runs() {
            let body = run.body();
            let statuses = body.glance();
            let gone = statuses.iter().position(|status| matches!(status, Status::Gone(_)));
            if let Some(gone) = gone.filter(|_| statuses.contains(&Status::Running)) {
                let machine = body.machines()[gone].name();
                trouble = Some(format!("run {}: no checkpoints by the clock, for {machine} is gone", run.name()));
            }
            if gone.is_some() || !statuses.contains(&Status::Running) {
                continue;
            }
            match self.take(&run, Asked::default(), &|| true) {
                Ok(_) | Err(fermata_experiment::Error::Left { .. }) => {}
                Err(error) => {
                    tracing::warn!("run {}: {error}", run.name());
                    trouble = Some(format!("run {}: the last checkpoint by the clock failed: {error}", run.name()));
                }
            }
        }
        trouble
    }

    /// Removes what the specification does not keep. No run and no checkpoint waits for it, but for the store's transaction.
    fn prune_guarded(&self, keep: &Keep) {
        let trouble = match catch_unwind(AssertUnwindSafe(|| self.prune(keep))) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("checkpoints that are not to be kept could not be removed: {error}")),
            Err(_) => Some(
                "removing checkpoints that are not to be kept panicked. This is a bug, of which the keeper's log tells more".to_owned(),
            ),
        };
        if let Some(trouble) = &trouble {
            tracing::warn!("{trouble}");
        }
        *self.prune_trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    fn prune(&self, keep: &Keep) -> Result<()> {
        // A run that takes a checkpoint or goes to one meanwhile is not hurt either: the first is the newest of its branch, the second is held.
        let stands: Vec<_> = self.runs().iter().filter_map(|run| run.standing().head).collect();
        let verdicts = retention::verdicts(self.host.store(), &self.spec.name, keep, &stands, wall_ns())?;
        let removed = retention::remove(self.host.store(), &verdicts)?.checkpoints.len();
        if removed > 0 {
            tracing::info!("{removed} of {} checkpoints were not to be kept any longer", verdicts.len());
        }
        Ok(())
    }

    fn stop_threads(&self) {
        *self.ending.0.lock().expect("nobody panics with the lock") = true;
        self.ending.1.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().expect("nobody panics with the lock"));
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// Waits until no checkpoint is under way of a run whose machines have ended, or until it has taken longer than any should. One that begins after that fails.
fn await_taken(run: &Run) {
    let watch = Stopwatch::start();
    while run.is_taking() && watch.elapsed() < TAKEN_MAX {
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// The checkpoint that a run stands on.
fn head(run: &Run) -> Result<CheckpointId> {
    let message = || format!("run {} has no checkpoint yet: `fermata checkpoint` takes one", run.name());
    run.standing().head.ok_or_else(|| Error::Refused(message()))
}

/// Waits; true when it was woken because all ends.
fn wait(ending: &(Mutex<bool>, Condvar), time: Duration) -> bool {
    let ended = ending.0.lock().expect("nobody panics with the lock");
    *ending.1.wait_timeout_while(ended, time, |ended| !*ended).expect("nobody panics with the lock").0
}
