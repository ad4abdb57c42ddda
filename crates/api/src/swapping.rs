//! Swapping out and in: an experiment leaves this host but for a record, and comes back here or on another one, its guests unaware of the time between.
//!
//! The record of an experiment that is swapped out lies in `swapped/` of the store; what its remote remembers of it is the same without the remote. Whoever is out
//! has nobody who keeps him, so all of this happens in the process of whoever asks, and swapping out asks the keeper like anybody else.

use crate::{
    Service as _,
    convert::{self, problem},
    keeping, local,
    remotes::{self, CopyRequest, Outcome, RemoteEntry, write_json},
    values::{
        Activity, CheckpointRequest, CollectOptions, Experiment, ExperimentState, GotoRequest, MachineState, Problem, Run, RunRequest,
        SwapOutcome, SwapRound, SwappedIn, SwappedMachine, SwappedOut,
    },
};
use fermata_experiment::remembered_working_set;
use fermata_linux::{
    clock::{Stopwatch, wall_ns},
    pace, priority,
    signals::on_termination,
};
use fermata_store::{Progress, Removal, Store, remote::Remote};
use fermata_types::CheckpointId;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt, fs, io, iter,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Rounds before the machines stop, at most.
const ROUNDS_MAX: usize = 5;
/// So little takes no time worth another round.
const SMALL_BYTES: u64 = 4 << 20;
/// A round that is not smaller than this part of the one before, in percent, is the last: the guests write as fast as the line carries.
const SHRINKS_PERCENT: u64 = 70;
/// Checkpoints of a line that are asked for a working set: what was touched long ago says little.
const REMEMBERED: usize = 64;

/// How to swap out.
#[derive(Debug, Clone, Default)]
pub struct SwapOutRequest {
    /// The experiment.
    pub experiment: String,
    /// Where to; none: the store here keeps it. Its names are not asked for.
    pub to: Option<CopyRequest>,
    /// Leave the checkpoints in the store, too.
    pub keep: bool,
}

/// How to swap in.
#[derive(Debug, Clone, Default)]
pub struct SwapInRequest {
    /// The experiment.
    pub experiment: String,
    /// Where from, if not as its record here says; and how fast all of it may come, behind what the guests ask for.
    pub copy: CopyRequest,
    /// Load everything before the guests run.
    pub eager: bool,
    /// Leave them paused.
    pub paused: bool,
}

/// Experiments that are swapped out, of a store.
pub fn swapped(store: &Path) -> Result<Vec<SwappedOut>, Problem> {
    let directory = store.join("swapped");
    let entries = match fs::read_dir(&directory) {
        // Where there is no store, nothing was swapped out into it.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(Vec::new()),
        entries => entries.map_err(|error| Problem::new(format!("cannot list {}: {error}", directory.display())))?,
    };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|ending| ending == "json")) {
        found.push(read_record(&path)?);
    }
    found.sort_by(|a: &SwappedOut, b| a.experiment.cmp(&b.experiment));
    Ok(found)
}

/// The same as `ls` shows them.
pub fn swapped_experiments(store: &Path) -> Result<Vec<Experiment>, Problem> {
    let of = |swapped: SwappedOut| Experiment {
        name: swapped.experiment.clone(),
        state: ExperimentState::Swapped,
        keeper_pid: 0,
        store: store.to_owned(),
        every_ms: None,
        runs: vec![],
        spare_ready: false,
        trouble: None,
        loading: None,
        swapped: Some(Box::new(swapped)),
    };
    Ok(swapped(store)?.into_iter().map(of).collect())
}

fn record_path(store: &Path, experiment: &str) -> PathBuf {
    store.join("swapped").join(format!("{experiment}.json"))
}

/// Whether an experiment of this name is swapped out.
pub(crate) fn is_out(store: &Path, experiment: &str) -> bool {
    let path = record_path(store, experiment);
    // What somebody removed behind the record, here where it lay, is nowhere any more.
    let is_lost = |known: SwappedOut| {
        known.remote.is_none()
            && local::open(store).is_ok_and(|opened| opened.records().is_ok_and(|all| all.iter().all(|(id, _)| *id != known.checkpoint)))
    };
    path.exists() && !read_record(&path).is_ok_and(is_lost)
}

fn read_record(path: &Path) -> Result<SwappedOut, Problem> {
    let failed = |error: &dyn std::fmt::Display| {
        let advice = "the checkpoints are where they were: `fermata goto ID`, or `fermata swapin NAME --from REMOTE`";
        Problem::new(format!("the record {} cannot be read: {error}; {advice}", path.display()))
    };
    let bytes = fs::read(path).map_err(|error| failed(&error))?;
    serde_json::from_slice(&bytes).map_err(|error| failed(&error))
}

fn write_record(store: &Path, swapped: &SwappedOut) -> Result<(), Problem> {
    let path = record_path(store, &swapped.experiment);
    let directory = path.parent().expect("it lies in the store");
    // The checkpoints may go when this is there: so must be its directory after the power failed.
    let made = fs::create_dir_all(directory).and_then(|()| fs::File::open(store)?.sync_all());
    made.map_err(|error| Problem::new(format!("cannot write {}: {error}", path.display())))?;
    write_json(&path, swapped)
}

/// Forgets that an experiment was swapped out, for it is not any longer.
pub(crate) fn forget(store: &Path, experiment: &str) {
    let path = record_path(store, experiment);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => tracing::warn!("{} stays: {error}", path.display()),
        _ => {}
    }
}

/// Swaps an experiment out. If that fails, it is as it was: what ran runs on, and what stood stands. So it is when the process is asked to end while its machines stand and may
/// still go on: then `left` is told, in a thread of its own, and is to end the process. Asked later, it finishes.
pub fn swap_out(
    store: &Path,
    request: &SwapOutRequest,
    left: impl FnOnce(Problem) + Send + 'static,
    busy: &mut dyn FnMut(Activity),
) -> Result<SwapOutcome, Problem> {
    let watch = Stopwatch::start();
    let opened = local::open(store)?;
    let keeper = keeping::client(&request.experiment)?;
    let run = able_run(keeper.status()?)?;
    let mut out = Out {
        store: &opened,
        request,
        keeper,
        run,
        busy,
        rounds: Vec::new(),
        stopped: Stopwatch::start(),
        stood: Duration::ZERO,
        stage: Arc::default(),
        whole: HashSet::new(),
    };
    if request.to.is_some() {
        // What is sent while they run must not take their time.
        priority::go_last();
        out.ahead().map_err(|error| Problem::new(format!("{} was not swapped out: {error}; it is as before", request.experiment)))?;
    }
    // From here on machines stand still for it.
    let _hurry = pace::hurry();
    // Until they stand there is nothing to bring back, and whoever wants an end has it at once.
    out.watch(left)?;
    let (swapped, freed) = match out.stop().and_then(|()| out.leave()) {
        Ok(left) => left,
        Err(error) => return Err(out.stage().stay(|request| out.keeper.resume(request), &request.experiment, &error)),
    };
    let (freed_bytes, trouble) = match freed {
        Ok(bytes) => (bytes, None),
        Err(trouble) => (0, Some(trouble.message)),
    };
    let (stopped_ms, took_ms) = (ms(out.stood), ms(watch.elapsed()));
    Ok(SwapOutcome { swapped, rounds: out.rounds, stopped_ms, took_ms, freed_bytes, trouble })
}

/// The run of an experiment that can be swapped out: it has no other, and nothing is wrong with it.
fn able_run(experiment: Experiment) -> Result<Run, Problem> {
    let name = experiment.name.clone();
    // Machines that stand for it go on by themselves, and would not if this had paused them and failed.
    if let Some(why) = experiment.loading.as_ref().and_then(|loading| loading.waiting.as_ref()) {
        return Err(Problem::new(format!("{name} cannot be swapped out while it waits for its remote: {why}")));
    }
    let run = only_run(experiment)?;
    match run.machines.iter().find(|machine| !matches!(machine.state, MachineState::Running | MachineState::Paused | MachineState::Off)) {
        None => Ok(run),
        Some(machine) => Err(Problem::new(format!("{name} cannot be swapped out: see `fermata ls` about {}", machine.name))),
    }
}

/// The run of an experiment that has no other.
fn only_run(experiment: Experiment) -> Result<Run, Problem> {
    let names: Vec<_> = experiment.runs.iter().map(|run| run.name.clone()).collect();
    let [run] = <[Run; 1]>::try_from(experiment.runs).map_err(|_| {
        let (name, names) = (&experiment.name, names.join(", "));
        Problem::new(format!("{name} has several runs ({names}), and one can be swapped out: `fermata down RUN` ends the others"))
    })?;
    Ok(run)
}

/// Fails if a run did something since its last checkpoint was taken, or is not alone any more. What would be ended then is nowhere else.
fn check_stands(experiment: Experiment, run: &str, last: CheckpointId) -> Result<(), Problem> {
    let now = only_run(experiment)?;
    let goes_on = now.machines.iter().any(|machine| machine.state == MachineState::Running);
    if now.name == run && now.head == Some(last) && !goes_on {
        return Ok(());
    }
    Err(Problem::new(format!("somebody had run {run} go on, or took it elsewhere, while it was to stand still")))
}

/// An experiment on its way out.
struct Out<'a> {
    store: &'a Store,
    request: &'a SwapOutRequest,
    keeper: crate::Client,
    run: Run,
    busy: &'a mut dyn FnMut(Activity),
    rounds: Vec<SwapRound>,
    stopped: Stopwatch,
    /// From when they stopped until they were gone.
    stood: Duration,
    stage: Arc<Mutex<Stage>>,
    /// Checkpoints that were found whole on the remote.
    whole: HashSet<CheckpointId>,
}

/// Whether the machines can still go on, if somebody wants that.
#[derive(Debug, Default, PartialEq, Eq)]
enum Stage {
    /// They are as they were found.
    #[default]
    AsBefore,
    /// They are those of this run, were running, and stand.
    Stand(String),
    /// They run again, for somebody wants the command to end.
    GoOn,
    /// A record says that they are swapped out, or they have ended.
    Left,
}

impl Stage {
    /// Has the machines go on that ran before, by this; guests that sleep sleep on. Returns what is said about that.
    fn stay(&mut self, resume: impl FnOnce(RunRequest) -> Result<Run, Problem>, experiment: &str, why: &dyn fmt::Display) -> Problem {
        let how = match std::mem::replace(self, Self::GoOn) {
            Self::AsBefore | Self::GoOn => "it is as before".to_owned(),
            Self::Stand(run) => match resume(RunRequest { run: Some(run), asleep: true }) {
                Ok(_) => "it runs on as before".to_owned(),
                Err(error) => format!("and it does not go on ({error}): `fermata ls` shows how it is"),
            },
            Self::Left => "`fermata ls` shows what is left of it".to_owned(),
        };
        Problem::new(format!("{experiment} was not swapped out: {why}; {how}"))
    }
}

impl Out<'_> {
    /// From here on, whoever ends the process has the machines go on, or waits until they have ended.
    fn watch(&self, left: impl FnOnce(Problem) + Send + 'static) -> Result<(), Problem> {
        let (stage, keeper, experiment) = (self.stage.clone(), self.keeper.clone(), self.request.experiment.clone());
        on_termination(move || {
            let mut stage = lock(&stage);
            if *stage != Stage::Left {
                left(stage.stay(|request| keeper.resume(request), &experiment, &"it was interrupted"));
            }
        })
        .map_err(|error| Problem::new(format!("cannot watch for signals: {error}")))
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        lock(&self.stage)
    }

    fn stop(&mut self) -> Result<(), Problem> {
        // Much may have happened while it was sent.
        self.run = able_run(self.keeper.status()?)?;
        let was_running = self.run.machines.iter().any(|machine| machine.state == MachineState::Running);
        self.stopped = Stopwatch::start();
        // Whoever is interrupted meanwhile waits until they stand, for what he says then comes after that.
        let mut stage = lock(&self.stage);
        if *stage == Stage::GoOn {
            return Err(Problem::new("it was interrupted"));
        }
        if was_running {
            *stage = Stage::Stand(self.run.name.clone());
        }
        self.keeper.pause(RunRequest { run: Some(self.run.name.clone()), ..RunRequest::default() }).map(drop)
    }

    fn say(&mut self, what: &str) {
        (self.busy)(Activity { what: what.to_owned(), ..Activity::default() });
    }

    /// Sends what there is while the machines run, until what is left is little, or becomes no less.
    fn ahead(&mut self) -> Result<(), Problem> {
        let request = self.request;
        let Some(to) = &request.to else { return Ok(()) };
        // Before a checkpoint is taken in vain.
        remotes::entry(self.store.path(), to)?;
        let mut before = self.round("before swapping out", true)?.bytes;
        // However many there are, that takes its time, and less is left for when the machines stand. What they write meanwhile goes with the next round.
        let remote = remotes::connect(self.store.path(), &self.copy(to))?;
        self.confirmed(&*remote)?;
        for _ in 1..ROUNDS_MAX {
            let bytes = self.round("before swapping out", true)?.bytes;
            if bytes <= SMALL_BYTES || bytes > before / 100 * SHRINKS_PERCENT {
                return Ok(());
            }
            before = bytes;
        }
        Ok(())
    }

    /// Takes a checkpoint and sends what the remote lacks.
    fn round(&mut self, message: &str, gentle: bool) -> Result<SwapRound, Problem> {
        let watch = Stopwatch::start();
        self.say("storing a checkpoint");
        let request = CheckpointRequest {
            run: Some(self.run.name.clone()),
            message: Some(message.to_owned()),
            gentle,
            ..CheckpointRequest::default()
        };
        let checkpoint = self.keeper.checkpoint(request, &|| true)?;
        self.run.branch.clone_from(&checkpoint.branch);
        let mut bytes = 0;
        if let Some(to) = &self.request.to {
            let copied = remotes::push(self.store.path(), &self.copy(to), self.busy)?;
            if let Some(left) = copied.refs.iter().find(|copied| matches!(copied.outcome, Outcome::Left { .. })) {
                let name = match &left.name {
                    remotes::RefName::Branch(name) | remotes::RefName::Tag(name) => name,
                };
                return Err(Problem::new(format!(
                    "{name} is elsewhere on {}: somebody went on from there. Push with --force by hand, or swap out to another remote",
                    copied.remote
                )));
            }
            bytes = copied.bytes;
        }
        let round = SwapRound { checkpoint: checkpoint.id, bytes, took_ms: ms(watch.elapsed()) };
        self.rounds.push(round.clone());
        Ok(round)
    }

    fn copy(&self, to: &CopyRequest) -> CopyRequest {
        // Golden images go with the first round: the machines stand in the last one.
        let without_images = to.without_images || !self.rounds.is_empty();
        // One line at a time: the guests need the processors, too.
        let experiment = self.request.experiment.clone();
        // Those that no branch leads to as well: nothing is to be left here.
        CopyRequest { experiment, names: Vec::new(), everything: true, without_images, jobs: 1, ..to.clone() }
    }

    /// The last checkpoint, of machines that stand and go on no more here. Returns the record that is left, and the bytes that the store gave back, or why it gave none.
    fn leave(&mut self) -> Result<(SwappedOut, Result<u64, Problem>), Problem> {
        let last = self.round("swapped out", false)?.checkpoint;
        let mut swapped = self.record(last)?;
        let mut there = Vec::new();
        if let Some(to) = &self.request.to {
            let request = self.copy(to);
            let entry = remotes::entry(self.store.path(), &request)?;
            let remote = remotes::connect(self.store.path(), &request)?;
            there = self.confirmed(&*remote)?;
            if !there.contains(&last) {
                return Err(Problem::new("somebody removed the last checkpoint before it could be sent: swap it out again"));
            }
            self.tell(&*remote, &swapped)?;
            swapped.remote = Some(entry);
        }
        self.say("ending the machines");
        self.end(&swapped)?;
        // From here on it is out, whatever becomes of what is left.
        self.stood = self.stopped.elapsed();
        let freed = if self.request.keep { Ok(0) } else { self.clear(there) };
        Ok((swapped, freed))
    }

    /// Writes the record, and ends the machines. Nobody has them go on meanwhile.
    fn end(&self, swapped: &SwappedOut) -> Result<(), Problem> {
        let mut stage = self.stage();
        if *stage == Stage::GoOn {
            return Err(Problem::new("it was interrupted"));
        }
        let (experiment, run, last) = (&self.request.experiment, &self.run.name, swapped.checkpoint);
        let now = self.keeper.status()?;
        // One that somebody else took since, while they stood, is of the same instant.
        let same = |id: &CheckpointId| {
            self.store.record(id).is_ok_and(|record| record.parent == Some(last) && record.time_virtual_ns == swapped.time_virtual_ns)
        };
        let stands_on = now.runs.first().and_then(|run| run.head).filter(same).unwrap_or(last);
        check_stands(now, run, stands_on)?;
        write_record(self.store.path(), swapped)?;
        let before = std::mem::replace(&mut *stage, Stage::Left);
        // Only this run, with which the keeper ends: a fork that somebody is just making is not ended with it.
        if let Err(error) = keeping::end(&self.keeper, experiment, Some(run.clone())) {
            forget(self.store.path(), experiment);
            *stage = before;
            return Err(error);
        }
        match self.keeper.status().map(|living| living.runs).unwrap_or_default().first() {
            // Once more: somebody may have wanted it to go on just then, and so forgotten that it is out.
            None => write_record(self.store.path(), swapped),
            Some(other) => {
                forget(self.store.path(), experiment);
                let (other, last) = (&other.name, last.short());
                Err(Problem::new(format!("run {other} began just when run {run} ended at checkpoint {last}, and goes on")))
            }
        }
    }

    fn record(&self, id: CheckpointId) -> Result<SwappedOut, Problem> {
        let record = self.store.record(&id).map_err(problem)?;
        let parents: HashMap<_, _> = self.store.records().map_err(problem)?.into_iter().map(|(id, record)| (id, record.parent)).collect();
        let line: Vec<_> = iter::successors(Some(id), |id| parents.get(id).copied().flatten()).take(REMEMBERED).collect();
        let machine = |machine: &crate::values::Machine| SwappedMachine {
            name: machine.name.clone(),
            memory_bytes: machine.memory_bytes,
            cpus: machine.cpus,
            accel: machine.accel.clone(),
        };
        let remembered = |name: &String| line.iter().find_map(|id| remembered_working_set(self.store, id, name));
        let working_sets: BTreeMap<_, _> =
            self.run.machines.iter().filter_map(|machine| Some((machine.name.clone(), remembered(&machine.name)?))).collect();
        let swapped_ns = wall_ns();
        Ok(SwappedOut {
            experiment: self.request.experiment.clone(),
            branch: record.branch,
            checkpoint: id,
            time_virtual_ns: record.time_virtual_ns,
            swapped_ns,
            swapped: convert::rfc3339(swapped_ns),
            remote: None,
            spec: record.spec,
            machines: self.run.machines.iter().map(machine).collect(),
            working_sets,
        })
    }

    /// The checkpoints of the experiment that are whole on the remote. Those that are there, and were found whole before, are not looked through again.
    fn confirmed(&mut self, remote: &dyn Remote) -> Result<Vec<CheckpointId>, Problem> {
        let experiment = &self.request.experiment;
        let there = self.store.remote_checkpoints(remote, experiment).map_err(problem)?;
        let here = self.store.records().map_err(problem)?;
        let ids: Vec<_> =
            here.iter().filter(|(id, record)| record.experiment == *experiment && there.contains(id)).map(|(id, _)| *id).collect();
        let new: Vec<_> = ids.iter().copied().filter(|id| !self.whole.contains(id)).collect();
        let busy = &mut self.busy;
        let mut report = |Progress { done, total }: Progress| {
            busy(Activity { what: "looking whether all is there".to_owned(), done, total, unit: "checkpoints".to_owned() });
        };
        self.store.check_remote(remote, experiment, &new, self.whole.is_empty(), &mut report).map_err(problem)?;
        self.whole.extend(new);
        Ok(ids)
    }

    /// Has the remote remember it.
    fn tell(&self, remote: &dyn Remote, swapped: &SwappedOut) -> Result<(), Problem> {
        let before = self.store.remote_swapped(remote, &swapped.experiment).map_err(problem)?;
        let bytes = serde_json::to_vec(swapped).map_err(problem)?;
        match self.store.set_remote_swapped(remote, &swapped.experiment, before.as_deref(), bytes).map_err(problem)? {
            true => Ok(()),
            false => Err(Problem::new(format!("somebody else swaps {} out to {remote} at the same time", swapped.experiment))),
        }
    }

    /// Removes what only this experiment held, and is on the remote.
    fn clear(&mut self, there: Vec<CheckpointId>) -> Result<u64, Problem> {
        let stay = |error: Problem| Problem::new(format!("its checkpoints are still here: {error}; `fermata rm` removes them"));
        if !remove_left(self.store, there).map_err(|error| stay(problem(error)))? {
            return Ok(0);
        }
        self.say("freeing what is not needed here any more");
        let collected = self.store.collect(&CollectOptions::default(), &mut |_, _| {});
        let collected = collected
            .map_err(|error| Problem::new(format!("the space of its checkpoints is not free yet: {error}; `fermata gc` frees it")))?;
        Ok(collected.bytes_before.saturating_sub(collected.bytes_after))
    }
}

/// Removes those of these checkpoints that are left: somebody else may have removed some. Whether there were any.
fn remove_left(store: &Store, mut checkpoints: Vec<CheckpointId>) -> fermata_store::Result<bool> {
    let here: HashSet<_> = store.records()?.into_iter().map(|(id, _)| id).collect();
    checkpoints.retain(|id| here.contains(id));
    if checkpoints.is_empty() {
        return Ok(false);
    }
    store.remove(&Removal { checkpoints, force: true, ..Removal::default() })?;
    Ok(true)
}

/// Swaps an experiment in. It runs as soon as what it needs first is here.
pub fn swap_in(store: &Path, request: &SwapInRequest, busy: &mut dyn FnMut(Activity)) -> Result<SwappedIn, Problem> {
    let watch = Stopwatch::start();
    let SwapInRequest { experiment, copy, eager, paused } = request;
    let opened = local::made(store)?;
    let path = record_path(store, experiment);
    let known = if path.exists() { Some(read_record(&path)?) } else { None };
    let remote = known.as_ref().and_then(|known| known.remote.as_ref()).map(|remote| remote.address.clone());
    let copy = CopyRequest { remote: copy.remote.clone().or(remote), experiment: experiment.clone(), ..copy.clone() };
    let swapped = match known {
        Some(known) if copy.remote.is_none() => known,
        None if copy.remote.is_none() => return Err(not_swapped(experiment)),
        // What the remote remembers is newer, if somebody else had it in meanwhile; or all that there is.
        known => remembered(&opened, &copy).or_else(|problem| known.ok_or(problem))?,
    };
    let goto = GotoRequest { to: swapped.checkpoint.to_string(), eager: *eager, paused: *paused, ..GotoRequest::default() };
    let is_here = opened.record(&swapped.checkpoint).is_ok();
    let resumed = match is_here {
        true => keeping::revive(store, experiment, &goto, busy)?,
        false => {
            // What somebody keeps is not swapped out, whatever a remote remembers.
            keeping::check_free(experiment)?;
            let remote = remotes::connect(store, &copy)?;
            // Vouched for by its name, unlike what the remote remembers beside it.
            let record = opened.remote_record(&*remote, experiment, &swapped.checkpoint).map_err(problem)?;
            // Those that are not on this host come like all else.
            remotes::find_images_of(&opened, &*remote, &record, busy)?;
            let line = match opened.branch(experiment, &swapped.branch).map_err(problem)? {
                Some(head) if head != swapped.checkpoint => {
                    opened.remote_lines(&*remote, experiment, &[swapped.checkpoint]).map_err(problem)?
                }
                _ => Vec::new(),
            };
            // Until all is here, this is what a keeper that dies is brought back by.
            let entry = remotes::entry(store, &copy)?;
            write_record(store, &SwappedOut { remote: Some(entry), spec: record.spec.clone(), ..swapped.clone() })?;
            let coming = keeping::Coming {
                checkpoint: swapped.checkpoint,
                branch: swapped.branch.clone(),
                line,
                working_sets: swapped.working_sets.clone(),
                remote: copy.remote.clone(),
                limit_bytes: copy.limit_bytes,
                key_file: copy.key_file.clone(),
                eager: *eager,
                paused: *paused,
            };
            keeping::swap_in(store, record.spec, coming, copy.passphrase.clone(), busy)?
        }
    };
    let loading = keeping::client(experiment).and_then(|keeper| keeper.status()).ok().and_then(|status| status.loading);
    Ok(SwappedIn { experiment: experiment.clone(), resumed, took_ms: ms(watch.elapsed()), loading })
}

/// The experiments that a remote remembers as swapped out.
pub fn swapped_on(store: &Path, copy: &CopyRequest) -> Result<Vec<String>, Problem> {
    let opened = local::made(store)?;
    opened.remote_swapped_experiments(&*remotes::connect(store, copy)?).map_err(problem)
}

/// What a remote remembers of an experiment.
fn remembered(opened: &Store, copy: &CopyRequest) -> Result<SwappedOut, Problem> {
    let remote = remotes::connect(opened.path(), copy)?;
    let bytes = opened.remote_swapped(&*remote, &copy.experiment).map_err(problem)?;
    let bytes = bytes.ok_or_else(|| Problem::new(format!("{} was not swapped out to {remote}", copy.experiment)))?;
    let told: SwappedOut = serde_json::from_slice(&bytes)
        .map_err(|error| Problem::new(format!("what {remote} remembers of {} cannot be read: {error}", copy.experiment)))?;
    if told.experiment != copy.experiment {
        return Err(Problem::new(format!("what {remote} remembers of {} is of another experiment", copy.experiment)));
    }
    Ok(told)
}

fn not_swapped(experiment: &str) -> Problem {
    Problem::new(format!(
        "{experiment} is not swapped out here: `fermata swapin {experiment} --from REMOTE` fetches it from where it is, and `fermata goto ID -e {experiment}` brings back what is in the store"
    ))
}

/// Two lines to the remote of an experiment that comes: one for those who wait, and one for the rest.
pub(crate) fn lines(store: &Path, experiment: &str, coming: &keeping::Coming) -> Result<[Box<dyn Remote>; 2], Problem> {
    let passphrase = std::env::var("FERMATA_PASSPHRASE").ok().filter(|words| !words.is_empty());
    let request = CopyRequest {
        remote: coming.remote.clone(),
        experiment: experiment.to_owned(),
        limit_bytes: coming.limit_bytes,
        key_file: coming.key_file.clone(),
        passphrase,
        ..CopyRequest::default()
    };
    Ok([remotes::connect_impatient(store, &request)?, remotes::connect(store, &request)?])
}

fn lock(stage: &Mutex<Stage>) -> MutexGuard<'_, Stage> {
    // Nothing half done can be in it, whoever panicked.
    stage.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Where an experiment is that is swapped out, for people.
pub fn whereabouts(remote: Option<&RemoteEntry>) -> String {
    match remote {
        None => "in the store".to_owned(),
        Some(remote) if remote.name.is_empty() => format!("on {}", remote.address),
        Some(remote) => format!("on {} ({})", remote.name, remote.address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        samples,
        values::{Loading, Machine},
    };
    use fermata_types::MachineId;
    use std::cell::RefCell;

    fn experiment(runs: &[(&str, u8, MachineState)]) -> Experiment {
        let machine = |state| Machine {
            name: "m1".into(),
            id: MachineId([1; 16]),
            state,
            reason: None,
            starved: vec![],
            pid: 1,
            memory_bytes: 1 << 30,
            cpus: 1,
            accel: "tcg".into(),
            machine_type: "q35".into(),
            console: "/console".into(),
            console_log: "/console.log".into(),
            pages_missing: None,
            ports: vec![],
        };
        let run = |(name, head, state): &(&str, u8, MachineState)| Run {
            name: (*name).into(),
            branch: (*name).into(),
            head: Some(CheckpointId([*head; 32])),
            time_virtual_ns: None,
            machines: vec![machine(*state)],
            perturbation: None,
        };
        Experiment {
            name: "lab".into(),
            state: ExperimentState::Running,
            keeper_pid: 1,
            store: "/store".into(),
            every_ms: None,
            runs: runs.iter().map(run).collect(),
            spare_ready: false,
            trouble: None,
            loading: None,
            swapped: None,
        }
    }

    #[test]
    fn what_somebody_did_meanwhile_is_not_ended() {
        let (paused, last) = (MachineState::Paused, CheckpointId([3; 32]));
        let check = |runs: &[(&str, u8, MachineState)], expected: Option<&str>| {
            let told = check_stands(experiment(runs), "main", last).map_err(|problem| problem.message);
            match expected {
                None => assert_eq!(told, Ok(())),
                Some(part) => assert!(told.as_ref().is_err_and(|told| told.contains(part)), "{told:?}"),
            }
        };
        check(&[("main", 3, paused)], None);
        check(&[("main", 3, MachineState::Off)], None);
        check(&[("main", 3, MachineState::Gone)], None);
        check(&[("main", 3, paused), ("what-if", 3, paused)], Some("several runs (main, what-if)"));
        check(&[("main", 3, MachineState::Running)], Some("go on"));
        check(&[("main", 4, paused)], Some("elsewhere"));
        check(&[("what-if", 3, paused)], Some("elsewhere"));
        assert!(able_run(experiment(&[("main", 3, MachineState::Silent)])).unwrap_err().message.contains("about m1"));
    }

    #[test]
    fn what_stands_for_its_remote_is_not_paused() {
        let mut held = experiment(&[("main", 3, MachineState::Paused)]);
        assert!(able_run(held.clone()).is_ok());
        let waiting = Some("the line is cut".to_owned());
        held.loading =
            Some(Loading { remote: "/nas".into(), total_bytes: 2, away_bytes: 1, asked: 1, waiting, for_good: false, trouble: None });
        let told = able_run(held).unwrap_err().message;
        assert!(told.contains("waits for its remote: the line is cut"), "{told}");
    }

    #[test]
    fn what_fails_has_only_those_go_on_that_ran() {
        let asked = RefCell::new(Vec::new());
        let stay = |stage: &mut Stage, error: Option<&str>| {
            let resume = |request: RunRequest| {
                asked.borrow_mut().push(request);
                match error {
                    None => Ok(experiment(&[("main", 3, MachineState::Running)]).runs.remove(0)),
                    Some(error) => Err(Problem::new(error)),
                }
            };
            stage.stay(resume, "lab", &"the disk is full").message
        };
        // What stood before, such as a run that somebody has paused, stands.
        for mut stage in [Stage::AsBefore, Stage::GoOn] {
            assert_eq!(stay(&mut stage, None), "lab was not swapped out: the disk is full; it is as before");
        }
        assert!(stay(&mut Stage::Left, None).contains("what is left"));
        assert_eq!(asked.take(), []);
        let mut stage = Stage::Stand("main".into());
        assert_eq!(stay(&mut stage, None), "lab was not swapped out: the disk is full; it runs on as before");
        let back = RunRequest { run: Some("main".into()), asleep: true };
        assert_eq!(asked.take(), [back], "whoever sleeps is woken by `fermata resume` alone");
        // And once: somebody may have paused it since.
        assert!(stay(&mut stage, None).ends_with("it is as before") && asked.take().is_empty());
        assert!(stay(&mut Stage::Stand("main".into()), Some("no answer")).contains("does not go on (no answer)"));
    }

    #[test]
    fn what_somebody_else_removed_keeps_nothing_here() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(place.path()).unwrap();
        let grow = |number| store.writer().unwrap().commit(&samples::record("lab", number)).unwrap();
        let (gone, here) = (CheckpointId([9; 32]), grow(1));
        assert!(remove_left(&store, vec![gone, here]).unwrap());
        assert!(store.records().unwrap().is_empty());
        assert!(!remove_left(&store, vec![gone, here]).unwrap());
    }

    #[test]
    fn a_record_is_there_until_it_is_forgotten() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(swapped(place.path()).unwrap(), []);
        let record = SwappedOut {
            experiment: "lab".into(),
            branch: "main".into(),
            checkpoint: CheckpointId([3; 32]),
            time_virtual_ns: 5,
            swapped_ns: 7,
            swapped: convert::rfc3339(7),
            remote: None,
            spec: serde_json::json!({"name": "lab"}),
            machines: vec![],
            working_sets: [("m1".to_owned(), vec![1, 5])].into(),
        };
        write_record(place.path(), &record).unwrap();
        assert_eq!(swapped(place.path()).unwrap(), std::slice::from_ref(&record));
        let shown = swapped_experiments(place.path()).unwrap();
        assert_eq!((shown[0].state, shown[0].swapped.as_deref()), (ExperimentState::Swapped, Some(&record)));
        fs::write(record_path(place.path(), "torn"), b"{").unwrap();
        assert!(swapped(place.path()).unwrap_err().message.contains("torn.json"));
        forget(place.path(), "torn");
        forget(place.path(), "lab");
        assert_eq!(swapped(place.path()).unwrap(), []);
    }
}
