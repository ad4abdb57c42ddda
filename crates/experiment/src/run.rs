//! A live execution that grows a branch.

use crate::{
    Body, Error, Host, Result,
    body::{Blueprint, Return},
    coordinate::{self, Parts},
    plan::{Plan, details},
    spec::Spec,
};
use fermata_linux::clock::{Stopwatch, wall_ns};
use fermata_store::{Cost, Hold, Progress, Record};
use fermata_types::{CheckpointId, MachineId, VirtualTime};
use fermata_vm::Status;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// A run: a body, the parts in it, and the branch that it grows.
pub struct Run {
    name: String,
    host: Arc<Host>,
    spec: serde_json::Value,
    experiment: String,
    /// Held from the beginning of a checkpoint to its end: there is one at a time.
    checkpointing: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    body: Arc<Body>,
    /// Locked apart from the rest, for as long as a checkpoint prepares and pauses: nobody who asks how the run is shall wait for that.
    parts: Arc<Mutex<Parts>>,
    standing: Standing,
    /// Keeps the checkpoint that the run stands on in the store, for the next one is made upon it: what did not change is not saved again. None
    /// before the first; then the body holds what it was restored from.
    hold: Option<Arc<Hold>>,
    /// The branch that a checkpoint under way will move.
    moving: Option<String>,
}

impl State {
    fn new(body: Body, parts: Parts, standing: Standing) -> Self {
        Self { body: Arc::new(body), parts: Arc::new(Mutex::new(parts)), standing, hold: None, moving: None }
    }
}

/// Where a run stands in the timeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The branch that its next checkpoint grows.
    pub branch: String,
    /// The checkpoint that it came from.
    pub head: Option<CheckpointId>,
    /// Who its machine is.
    pub machine: MachineId,
}

/// How to come to a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Journey {
    /// Load everything before the guest runs.
    pub eager: bool,
    /// Leave it paused.
    pub paused: bool,
    /// Tell the guest that it is another one.
    pub fresh_randomness: bool,
}

/// A body that stands at a checkpoint, running unless it was to be paused.
pub struct Arrival {
    body: Body,
    parts: Parts,
    standing: Standing,
    /// Virtual time at which it goes on.
    pub time_virtual: VirtualTime,
}

impl Run {
    /// Boots the machines of an experiment.
    pub fn boot(host: Arc<Host>, spec: &Spec, name: &str, progress: &mut dyn FnMut(&str, Progress)) -> Result<Self> {
        let (body, parts) = Body::boot(&host, &Plan::new(spec)?, progress)?;
        body.machine().run()?;
        let standing = Standing { branch: name.to_owned(), head: None, machine: body.machine().id() };
        Self::new(host, spec, name, State::new(body, parts, standing))
    }

    /// A run that begins where somebody arrived.
    pub fn begin(host: Arc<Host>, spec: &Spec, name: &str, arrival: Arrival) -> Result<Self> {
        let Arrival { body, parts, standing, .. } = arrival;
        Self::new(host, spec, name, State::new(body, parts, standing))
    }

    fn new(host: Arc<Host>, spec: &Spec, name: &str, state: State) -> Result<Self> {
        let json = serde_json::to_value(spec).map_err(|error| Error::Refused(format!("the specification cannot be kept: {error}")))?;
        Ok(Self {
            name: name.to_owned(),
            host,
            spec: json,
            experiment: spec.name.clone(),
            checkpointing: Mutex::new(()),
            state: Mutex::new(state),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it lives in at present.
    pub fn body(&self) -> Arc<Body> {
        self.state().body.clone()
    }

    /// Where it stands.
    pub fn standing(&self) -> Standing {
        self.state().standing.clone()
    }

    /// Branches that are its own: the one that it grows, and the one that a checkpoint under way is about to move.
    pub fn branches(&self) -> Vec<String> {
        let state = self.state();
        state.moving.iter().cloned().chain([state.standing.branch.clone()]).collect()
    }

    /// Takes a checkpoint. Returns when it is permanent, or dropped with the guests running on.
    pub fn checkpoint(&self, message: Option<String>) -> Result<(CheckpointId, Record)> {
        self.take(message, false, &mut |_| {})
    }

    /// The same, and looks at the content of each page that would be taken as known. Fails if one is not what it was taken for. The pause is longer.
    pub fn checkpoint_paranoid(&self, message: Option<String>) -> Result<(CheckpointId, Record)> {
        self.take(message, true, &mut |_| {})
    }

    /// The same, for tests and diagnosis: `frozen` may look at the body while it stands still, and makes the pause longer by what it takes.
    pub fn checkpoint_observed(&self, message: Option<String>, frozen: &mut dyn FnMut(&Body)) -> Result<(CheckpointId, Record)> {
        self.take(message, false, frozen)
    }

    fn take(&self, message: Option<String>, paranoid: bool, frozen: &mut dyn FnMut(&Body)) -> Result<(CheckpointId, Record)> {
        let _one_at_a_time = self.checkpointing.lock().expect("nobody panics with the lock");
        let (parts, standing, body, _upon) = {
            let mut state = self.state();
            state.moving = Some(state.standing.branch.clone());
            (state.parts.clone(), state.standing.clone(), state.body.clone(), state.hold.clone())
        };
        let result = self.take_and_save(&parts, standing, &body, (message, paranoid), frozen);
        let mut state = self.state();
        state.moving = None;
        let moved = !Arc::ptr_eq(&state.parts, &parts);
        match result {
            // What failed was a body that had been left; whatever it says is of no use to anybody.
            Err(_) if moved => Err(Error::Left { run: self.name.clone() }),
            Ok((hold, record)) => {
                let id = hold.id();
                if !moved {
                    state.standing.head = Some(id);
                    state.hold = Some(Arc::new(hold));
                }
                Ok((id, record))
            }
            Err(error) => Err(error),
        }
    }

    fn take_and_save(
        &self,
        parts: &Mutex<Parts>,
        standing: Standing,
        body: &Body,
        (message, paranoid): (Option<String>, bool),
        frozen: &mut dyn FnMut(&Body),
    ) -> Result<(Hold, Record)> {
        if let Status::Gone(why) = body.machine().status() {
            return Err(Error::Refused(format!(
                "there is nothing to take a checkpoint of, for the machine is gone ({why}): `fermata goto ID` brings it back"
            )));
        }
        let lock = || parts.lock().expect("nobody panics with the lock");
        let mut writer = self.host.store().writer()?;
        writer.stand_on(&body.images());
        let tentative = coordinate::take(&mut lock(), writer, paranoid, &mut || frozen(body))?;
        let watch = Stopwatch::start();
        let (pause, steps) = (tentative.pause, tentative.steps.clone());
        let result = tentative.save().map_err(Error::from).and_then(|mut done| {
            let mut record = Record {
                parent: standing.head,
                experiment: self.experiment.clone(),
                branch: standing.branch,
                message,
                created_ns: wall_ns(),
                time_virtual_ns: 0,
                spec: self.spec.clone(),
                parts: done.saved.iter().map(|saved| saved.state.clone()).collect(),
                images: body.images(),
                cost: Cost {
                    pause_ns: nanoseconds(pause),
                    steps_ns: all_nanoseconds(steps),
                    save_ns: nanoseconds(watch.elapsed()),
                    stored_bytes: done.writer.stored_bytes()?,
                    stored_by_part: done.stored,
                    pages: done.pages,
                    parts: done.parts,
                    background_ns: all_nanoseconds(done.background),
                    composition: done.composition,
                },
            };
            record.time_virtual_ns = details(&record, "being made")?.time_virtual.ns;
            let hold = done.writer.commit_held(&record)?;
            Ok((hold, record, done.saved))
        });
        coordinate::settle(&mut lock(), result.as_ref().ok().map(|(_, _, saved)| saved.as_slice()));
        result.map(|(hold, record, _)| (hold, record))
    }

    /// Stops the machine. A checkpoint that is about to stop it too is waited for: it would let it go on.
    pub fn pause(&self) -> Result<()> {
        let (parts, body) = self.here();
        let _nobody_stops_or_resumes = parts.lock().expect("nobody panics with the lock");
        Ok(body.machine().stop()?)
    }

    /// Lets the machine go on.
    pub fn resume(&self) -> Result<()> {
        let (parts, body) = self.here();
        let _nobody_stops_or_resumes = parts.lock().expect("nobody panics with the lock");
        Ok(body.machine().run()?)
    }

    fn here(&self) -> (Arc<Mutex<Parts>>, Arc<Body>) {
        let state = self.state();
        (state.parts.clone(), state.body.clone())
    }

    /// Moves the run into a body that stands elsewhere. Returns the body that it left.
    ///
    /// `branch` names the branch that it will grow, given the one that a checkpoint under way is about to move: that checkpoint goes on, and belongs to the
    /// line that the run leaves. While it is asked, no checkpoint of this run begins or ends.
    pub fn move_to(&self, arrival: Arrival, branch: impl FnOnce(Option<&str>) -> String) -> Arc<Body> {
        let mut state = self.state();
        let mut arrived = State::new(arrival.body, arrival.parts, arrival.standing);
        arrived.standing.branch = branch(state.moving.as_deref());
        arrived.moving = state.moving.take();
        std::mem::replace(&mut *state, arrived).body
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with the lock")
    }
}

/// Makes a body that waits for a checkpoint like this one.
pub fn spare(host: &Host, id: &CheckpointId, record: &Record, progress: &mut dyn FnMut(&str, Progress)) -> Result<Body> {
    Body::spare(host, &Plan::of_checkpoint(record, &id.short())?, progress)
}

/// Makes a body that waits for a checkpoint of a run that has a body like this.
pub fn spare_like(host: &Host, blueprint: &Blueprint) -> Result<Body> {
    Body::spare(host, &blueprint.0, &mut |_, _| {})
}

/// Whether a spare body can take up this checkpoint.
pub fn fits(body: &Body, id: &CheckpointId, record: &Record) -> bool {
    Plan::of_checkpoint(record, &id.short()).is_ok_and(|plan| plan == *body.plan())
}

/// Puts a checkpoint into a spare body and lets it run. The run that it begins or joins will grow `branch`.
pub fn travel(host: &Arc<Host>, spare: Body, id: &CheckpointId, record: &Record, branch: &str, how: Journey) -> Result<Arrival> {
    spare.keep(host.store().hold(id)?);
    let known = host.working_set(id);
    let remember = {
        let (host, id, known) = (host.clone(), *id, known.clone());
        move |touched| host.remember_working_set(&id, known, touched)
    };
    let state = Return {
        store: host.store(),
        id: &id.short(),
        record,
        eager: how.eager,
        fresh_randomness: how.fresh_randomness,
        working_set: known,
        remember: Box::new(remember),
    };
    let (parts, details) = spare.restore(state)?;
    if !how.paused && !details.off {
        spare.machine().run()?;
    }
    let standing = Standing { branch: branch.to_owned(), head: Some(*id), machine: details.id };
    Ok(Arrival { body: spare, parts, standing, time_virtual: details.time_virtual })
}

fn all_nanoseconds(steps: BTreeMap<String, Duration>) -> BTreeMap<String, u64> {
    steps.into_iter().map(|(step, took)| (step, nanoseconds(took))).collect()
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
