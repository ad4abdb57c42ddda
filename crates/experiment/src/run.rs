//! A live execution that grows a branch.

use crate::{
    Body, Error, Host, Result,
    body::Blueprint,
    coordinate::{self, Apart, Manner, Moment, Parts, Work},
    forwards::{Forward, Forwards},
    machine_body::Return,
    plan::{self, Plan},
    real_time::set_clocks,
    spec::{Action, Endpoint, Port, Spec},
    together::wait_until,
};
use fermata_checkpoint::Saved;
use fermata_linux::{
    clock::{Stopwatch, monotonic, wall_ns},
    pace, priority,
};
use fermata_net::{Change, Fabric};
use fermata_store::{Cost, Hold, Progress, Record, Skew, Waiting, Writer};
use fermata_types::{CheckpointId, ClassTimes, MachineId, Perturbation, VirtualTime};
use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    thread,
    time::Duration,
};

/// A checkpoint at an instant that was asked for keeps others from beginning so long before, at least, and prepares so long before, at least.
const HEAD_START: Duration = Duration::from_secs(1);
const PREPARE_MIN: Duration = Duration::from_millis(100);
/// How long an event waits for a guest's agent.
const AGENT_WAIT: Duration = Duration::from_secs(60);
/// How long a guest may take to boot before it is given its addresses.
const BOOT_WAIT: Duration = Duration::from_secs(600);
/// Between two looks at whether somebody still waits for a checkpoint that is to come.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// Keys of a specification that say how checkpoints are taken and kept, and nothing of machines.
const OF_KEEPER: [&str; 6] = ["every", "keep", "capture", "tracker", "full", "free"];

/// A run: a body, the parts in it, and the branch that it grows.
pub struct Run {
    name: String,
    host: Arc<Host>,
    spec: serde_json::Value,
    experiment: String,
    /// Held from the beginning of a checkpoint to its end: there is one at a time.
    checkpointing: Mutex<Past>,
    state: Mutex<State>,
    forwards: Mutex<Forwards>,
}

/// What the last checkpoint taught.
#[derive(Default)]
struct Past {
    /// How long preparing it took.
    prepared: Option<Duration>,
}

struct State {
    body: Arc<Body>,
    /// Locked apart from the rest, for as long as a checkpoint prepares and pauses: nobody who asks how the run is shall wait for that.
    parts: Arc<Mutex<Parts<Writer>>>,
    standing: Standing,
    /// Keeps the checkpoint that the run stands on in the store, for the next one is made upon it: what did not change is not saved again. None
    /// before the first; then the body holds what it was restored from.
    hold: Option<Arc<Hold>>,
    /// The branch that a checkpoint under way will move.
    moving: Option<String>,
}

impl State {
    fn new(body: Body, parts: Parts<Writer>, standing: Standing) -> Self {
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
    /// Who its machines are, by name.
    pub machines: BTreeMap<String, MachineId>,
}

/// What somebody wants of a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// A word about why.
    pub message: Option<String>,
    /// Look at the content of each page that would be taken as known, and fail if one is not what it was taken for. The pause is longer.
    pub paranoid: bool,
    /// Store it without hurry: with rests, as long as the guests want the processors, too.
    pub gentle: bool,
    /// When; none: now.
    pub when: Option<When>,
    /// Stop, capture and start one machine after the other: what all at once is measured against.
    pub in_turn: bool,
}

/// An instant of virtual time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// After so much more of it.
    After(Duration),
    /// When it is that time.
    At(VirtualTime),
}

/// How to come to a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Journey {
    /// Load everything before the guest runs.
    pub eager: bool,
    /// Leave it paused.
    pub paused: bool,
    /// Tell the guest that it is another one.
    pub fresh_randomness: bool,
    /// Have the links do otherwise than they did; none: as they did.
    pub perturbation: Option<Perturbation>,
}

/// A body that stands at a checkpoint, running unless it was to be paused.
pub struct Arrival {
    body: Body,
    parts: Parts<Writer>,
    standing: Standing,
    /// Virtual time at which it goes on.
    pub time_virtual: VirtualTime,
}

impl Run {
    /// Boots the machines of an experiment. Ports of this host that it is to have must be free.
    pub fn boot(host: Arc<Host>, spec: &Spec, name: &str, progress: &mut dyn FnMut(&str, Progress)) -> Result<Self> {
        let mut forwards = Forwards::of(spec, true);
        // Nobody waits for a boot that will be of no use.
        forwards.check()?;
        let (body, parts) = Body::boot(&host, &Plan::new(spec), progress)?;
        forwards.open(&body)?;
        body.resume()?;
        let standing = Standing { branch: name.to_owned(), head: None, machines: body.identities() };
        let run = Self::new(host, spec, name, State::new(body, parts, standing), forwards)?;
        run.catch_up();
        Ok(run)
    }

    /// Has the guests begin what is due and has not begun in them.
    fn catch_up(&self) {
        let body = self.body();
        for waiting in body.events().waiting() {
            self.execute(&body, waiting, BOOT_WAIT);
        }
    }

    /// A run that begins where somebody arrived. Beside another run of the experiment it gets any free ports of this host, for those that the specification
    /// names are the other one's.
    pub fn begin(host: Arc<Host>, spec: &Spec, name: &str, arrival: Arrival, beside: bool) -> Result<Self> {
        let Arrival { body, parts, standing, .. } = arrival;
        let mut forwards = Forwards::of(spec, !beside);
        forwards.follow(&body);
        let run = Self::new(host, spec, name, State::new(body, parts, standing), forwards)?;
        run.catch_up();
        run.wake();
        Ok(run)
    }

    fn new(host: Arc<Host>, spec: &Spec, name: &str, state: State, forwards: Forwards) -> Result<Self> {
        let json = serde_json::to_value(spec).map_err(|error| Error::Refused(format!("the specification cannot be kept: {error}")))?;
        Ok(Self {
            name: name.to_owned(),
            host,
            spec: json,
            experiment: spec.name.clone(),
            checkpointing: Mutex::default(),
            state: Mutex::new(state),
            forwards: Mutex::new(forwards),
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

    /// Ports of its machines that are forwarded from this host.
    pub fn forwards(&self) -> Vec<Forward> {
        self.lock_forwards().list(&self.body())
    }

    /// Forwards one more port of a machine, for as long as the run lives.
    ///
    /// # Errors
    /// There is no such machine, it has no control interface, or the host's port is taken.
    pub fn forward(&self, machine: &str, port: Port) -> Result<Forward> {
        let mut forwards = self.lock_forwards();
        // Whoever takes the run elsewhere moves the ports after that.
        let body = self.body();
        forwards.add(&body, machine, port)
    }

    fn lock_forwards(&self) -> MutexGuard<'_, Forwards> {
        self.forwards.lock().expect("nobody panics with the lock")
    }

    /// Branches that are its own: the one that it grows, and the one that a checkpoint under way is about to move.
    pub fn branches(&self) -> Vec<String> {
        let state = self.state();
        state.moving.iter().cloned().chain([state.standing.branch.clone()]).collect()
    }

    /// The virtual time at present, as far as one can tell from outside.
    pub fn time_virtual(&self) -> VirtualTime {
        self.body().clock.at(monotonic())
    }

    /// Lets happen what is due of the experiment's events. Returns how long until the next one, if there is one and the guests run.
    pub fn happen(&self) -> Option<Duration> {
        let body = self.body();
        let mut links_changed = false;
        let next = body.events().happen(&body.clock, &monotonic, &mut |event, waiting, late| {
            links_changed |= matches!(event.action, Action::Link { .. });
            tracing::info!("run {}: at {}, {late:?} of virtual time late: {:?}", self.name, event.at, event.action);
            let work = || {
                match &event.action {
                    Action::Link { interface, change } => self.change_link(&body, interface, change),
                    Action::Exec { .. } => self.execute(&body, waiting, AGENT_WAIT),
                }
                Ok(())
            };
            // A panic must not end all events, nor the checkpoints, which wait for them.
            if let Err(cause) = coordinate::contained(work) {
                tracing::error!("run {}: the event at {} failed: {cause}", self.name, event.at);
            }
        });
        if links_changed {
            self.show_links(body);
        }
        next
    }

    /// Has the guests see which links are plugged in. One that does not answer is waited for, but not by what happens next.
    fn show_links(&self, body: Arc<Body>) {
        if !body.claim_showing_links() {
            return;
        }
        let teller = body.clone();
        let shown = thread::Builder::new().name("carriers".to_owned()).spawn(move || drop(teller.hold_links()));
        if let Err(error) = shown {
            body.give_up_showing_links();
            let name = &self.name;
            tracing::warn!(
                "run {name}: guests see the change of a link with the next one, or with the next checkpoint: no thread for it: {error}"
            );
        }
    }

    fn change_link(&self, body: &Body, interface: &Endpoint, change: &Change) {
        let find = |fabric: &Arc<Fabric>| fabric.look(|world| world.topology().find(&interface.machine, &interface.interface()));
        let Some(id) = body.fabric().and_then(find) else { return };
        if let Err(error) = body.change_link_unseen(id, change) {
            tracing::warn!("run {}: the event at {interface} changed nothing: {error}", self.name);
        }
    }

    /// Has a command begin in a guest, once, when its agent answers, which it has so much of the guest's time for. Nobody waits for its end, but for a word about it in
    /// the log.
    fn execute(&self, body: &Arc<Body>, waiting: Waiting, wait: Duration) {
        let events = body.events().clone();
        let command = events.command(&waiting).map(|(machine, command)| (machine.to_owned(), command.to_owned()));
        let of = |machine: &str| body.machines().iter().find(|of| of.name() == machine).map(|of| of.machine().clone());
        let Some((machine, command)) = command else { return };
        let Some(of) = of(&machine) else { return };
        let (name, body) = (format!("{}:{machine}", self.name), Arc::downgrade(body));
        let work = move || {
            let words = ["/bin/sh".to_owned(), "-c".to_owned(), command.clone()];
            // While nothing runs, no agent answers. Whoever leaves the body takes what waits along, in the checkpoint that it goes to.
            let runs = || body.upgrade().map(|body| body.clock.runs());
            let time = || body.upgrade().map(|body| body.clock.at(monotonic()).since_start());
            let end = time()? + wait;
            let visit = loop {
                while !runs()? {
                    thread::sleep(BETWEEN_LOOKS);
                }
                let stood = Cell::new(false);
                let goes_on = || {
                    stood.set(runs() != Some(true));
                    !stood.get()
                };
                match of.agent().visit(end.saturating_sub(time()?), &goes_on) {
                    Ok(visit) => break visit,
                    Err(_) if stood.get() => {}
                    Err(error) => {
                        events.give_up(&waiting);
                        tracing::warn!("{name}: `{command}` could not be run: {error}");
                        return None;
                    }
                }
            };
            let begun = events.begin(&waiting, || visit.begin(&words, None))?;
            match begun.map(|begun| visit.end(begun, &|| true)) {
                Ok(Ok(done)) if done.status == 0 => tracing::info!("{name}: `{command}` has ended"),
                Ok(Ok(done)) => tracing::warn!("{name}: `{command}` ended with {}: {}", done.status, String::from_utf8_lossy(&done.stderr)),
                Ok(Err(error)) => tracing::info!("{name}: `{command}` has begun, and how it ends is not known: {error}"),
                Err(error) => tracing::warn!("{name}: whether `{command}` has begun is not known: {error}"),
            }
            Some(())
        };
        if let Err(error) = thread::Builder::new().name("event".to_owned()).spawn(work) {
            tracing::warn!("run {}: no thread for an event: {error}", self.name);
        }
    }

    /// Takes a checkpoint. Returns when it is permanent, or dropped with the guests running on.
    pub fn checkpoint(&self, message: Option<String>) -> Result<(CheckpointId, Record)> {
        self.checkpoint_as(Asked { message, ..Asked::default() }, &|| true)
    }

    /// The same in another manner. One that is to come is waited for as long as it is `wanted`, which is asked now and then.
    pub fn checkpoint_as(&self, asked: Asked, wanted: &dyn Fn() -> bool) -> Result<(CheckpointId, Record)> {
        self.take(asked, wanted, &mut |_, _| {})
    }

    /// The same, for tests and diagnosis: `frozen` may look at the body while it stands still, and makes the pause longer by what it takes.
    pub fn checkpoint_observed(&self, message: Option<String>, frozen: &mut dyn FnMut(&Body)) -> Result<(CheckpointId, Record)> {
        self.checkpoint_watched(message, &mut |moment, body| {
            if moment == Moment::Frozen {
                frozen(body);
            }
        })
    }

    /// Whether a checkpoint is being taken, until it is permanent.
    pub fn is_taking(&self) -> bool {
        self.state().moving.is_some()
    }

    /// The same at all moments of a checkpoint.
    pub fn checkpoint_watched(&self, message: Option<String>, seen: &mut dyn FnMut(Moment, &Body)) -> Result<(CheckpointId, Record)> {
        self.take(Asked { message, ..Asked::default() }, &|| true, seen)
    }

    fn take(&self, asked: Asked, wanted: &dyn Fn() -> bool, seen: &mut dyn FnMut(Moment, &Body)) -> Result<(CheckpointId, Record)> {
        // A checkpoint is permanent only when all that it names is here: until then there can be none upon one that is still on a remote.
        if !self.host.store().await_away(wanted) {
            if let Some(lie) = self.host.store().away().and_then(|away| away.state().lie) {
                return Err(Error::Refused(format!("run {}: none can be taken: {lie}", self.name)));
            }
            return Err(Error::Refused(format!(
                "run {}: whoever asked for a checkpoint has left, or the run has ended; none was taken",
                self.name
            )));
        }
        let (meant, at) = asked.when.map(|when| self.instant(when)).transpose()?.unzip();
        let mut past = match (&meant, at) {
            (Some(body), Some(at)) => self.await_instant(body, at, wanted)?,
            _ => self.alone(),
        };
        let (parts, standing, body, _upon) = {
            let mut state = self.state();
            // While another checkpoint was waited for the run may have gone elsewhere, where that instant is another one.
            if meant.is_some_and(|meant| !Arc::ptr_eq(&meant, &state.body)) {
                return Err(Error::Left { run: self.name.clone() });
            }
            state.moving = Some(state.standing.branch.clone());
            (state.parts.clone(), state.standing.clone(), state.body.clone(), state.hold.clone())
        };
        let manner = Manner { paranoid: asked.paranoid, gentle: asked.gentle, in_turn: asked.in_turn, at };
        let result = self.take_and_save(&parts, standing, &body, (asked.message, manner), &mut past, seen);
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

    /// The body that is meant, and the virtual time.
    fn instant(&self, when: When) -> Result<(Arc<Body>, VirtualTime)> {
        let body = self.body();
        let now = body.clock.at(monotonic());
        let at = match when {
            When::After(time) => now.plus(time),
            When::At(at) => at,
        };
        if at < now {
            return Err(Error::Refused(format!("it is too late for a checkpoint at {at}: run {} is at {now}", self.name)));
        }
        if !body.clock.runs() {
            return Err(Error::Refused(format!(
                "run {} is paused at {now}, and no time passes in it: `fermata resume {0}` lets it go on",
                self.name
            )));
        }
        Ok((body, at))
    }

    /// Waits until an instant is so near that preparing has to begin, however often the run is paused on the way. From then on no other checkpoint begins.
    fn await_instant(&self, body: &Arc<Body>, at: VirtualTime, wanted: &dyn Fn() -> bool) -> Result<MutexGuard<'_, Past>> {
        let mut alone: Option<MutexGuard<'_, Past>> = None;
        loop {
            if !Arc::ptr_eq(body, &self.body()) {
                return Err(Error::Left { run: self.name.clone() });
            }
            if !wanted() {
                return Err(Error::Refused(format!(
                    "whoever asked for a checkpoint at {at} has left, or the run has ended; none was taken"
                )));
            }
            let left = body.clock.until(at, monotonic());
            if left > HEAD_START || !body.clock.runs() {
                // Nobody is kept waiting for a run that is paused.
                alone = None;
                thread::sleep(BETWEEN_LOOKS);
                continue;
            }
            let past = alone.take().unwrap_or_else(|| self.alone());
            let prepare = past.prepared.map_or(HEAD_START, |took| (took * 2).max(PREPARE_MIN));
            if left <= prepare {
                return Ok(past);
            }
            thread::sleep((left - prepare).min(BETWEEN_LOOKS));
            alone = Some(past);
        }
    }

    fn alone(&self) -> MutexGuard<'_, Past> {
        // What it guards is only a hint, which a panic cannot spoil.
        self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_and_save(
        &self,
        parts: &Mutex<Parts<Writer>>,
        standing: Standing,
        body: &Body,
        (message, manner): (Option<String>, Manner),
        past: &mut Past,
        seen: &mut dyn FnMut(Moment, &Body),
    ) -> Result<(Hold, Record)> {
        let lock = || parts.lock().expect("nobody panics with the lock");
        let mut writer = self.host.store().writer()?;
        writer.stand_on(&body.images());
        writer.time_by(monotonic);
        let (mut events, mut links, mut progress) = (None, None, (0, Vec::new()));
        let tentative = coordinate::take(&mut lock(), writer, manner, &body.clock, &mut |moment| {
            match moment {
                Moment::Prepared => {
                    // A guest that hangs is waited for before events are held.
                    drop(body.hold_links());
                    (events, links) = (Some(body.events().hold()), body.hold_links());
                }
                Moment::Frozen => {
                    progress = events.take().map_or_else(Default::default, |held| (held.happened, held.waiting.iter().cloned().collect()));
                    drop(links.take());
                }
            }
            seen(moment, body);
        });
        // Still held if it failed before all was captured.
        drop((events, links));
        let tentative = tentative?;
        past.prepared = Some(tentative.prepared());
        // The guests run, and what they do is many threads that answer each other.
        let _giving_way = priority::give_way();
        let _gentle = manner.gentle.then(pace::gently);
        let watch = Stopwatch::start();
        let pause = (tentative.pause, tentative.apart, tentative.steps.clone());
        tentative.keep(parts, |saved, work| self.commit(saved, work, (pause, watch), standing, body, (message, progress)))
    }

    fn commit(
        &self,
        saved: &[Saved],
        mut work: Work<Writer>,
        ((pause, apart, steps), watch): (Pause, Stopwatch),
        standing: Standing,
        body: &Body,
        (message, (events, waiting)): (Option<String>, (u64, Vec<Waiting>)),
    ) -> Result<(Hold, Record)> {
        let parts: Vec<_> = saved.iter().map(|saved| saved.state.clone()).collect();
        let record = Record {
            parent: standing.head,
            experiment: self.experiment.clone(),
            branch: standing.branch,
            message,
            created_ns: wall_ns(),
            after_ns: None,
            time_virtual_ns: plan::time_virtual(&parts, "being made")?.ns,
            began_ns: body.clock.began_ns(),
            spec: body.spec().map_or_else(|| self.spec.clone(), |own| as_kept(own.clone(), &self.spec)),
            events,
            waiting,
            parts,
            images: body.images(),
            cost: Cost {
                pause_ns: nanoseconds(pause),
                skew: apart.map(skew),
                steps_ns: all_nanoseconds(&steps),
                save_ns: nanoseconds(watch.elapsed()),
                stored_bytes: work.writer.stored_bytes()?,
                stored_by_part: work.stored,
                pages: work.pages,
                parts: work.parts,
                sieve_ns: in_the_pause(work.writer.times(), &steps),
                background_ns: all_nanoseconds(&work.background),
                composition: work.composition,
            },
        };
        let record = self.host.store().in_line(record);
        Ok((work.writer.commit_held(&record)?, record))
    }

    /// Lets the machines run until it is that virtual time, and stops them there, unless they are to `go_on`. Returns the virtual time then. If it has passed,
    /// they stop at once; and so they do when nobody wants it any more, who is asked now and then.
    ///
    /// However often the run is paused on the way, it is waited for. Shortly before the instant no checkpoint begins, which might hold up the stop.
    pub fn run_until(&self, at: VirtualTime, go_on: bool, wanted: &dyn Fn() -> bool) -> Result<VirtualTime> {
        let body = self.body();
        let elsewhere = || Error::Refused(format!("run {} was taken to a checkpoint before it was at {at}", self.name));
        let mut alone = None;
        let wanted = loop {
            if !Arc::ptr_eq(&body, &self.body()) {
                return Err(elsewhere());
            }
            let (wanted, left) = (wanted(), body.clock.until(at, monotonic()));
            if left.is_zero() || !wanted {
                break wanted;
            }
            if left > HEAD_START || !body.clock.runs() {
                // Nobody is kept waiting for a run that is paused.
                alone = None;
                thread::sleep(BETWEEN_LOOKS);
                continue;
            }
            alone = alone.or_else(|| self.try_alone());
            match left.checked_sub(BETWEEN_LOOKS) {
                Some(rest) if !rest.is_zero() => thread::sleep(rest.min(BETWEEN_LOOKS)),
                _ => wait_until(&Stopwatch::start(), left),
            }
        };
        if !go_on || !wanted {
            let (parts, now) = self.here();
            let _nobody_stops_or_resumes = parts.lock().expect("nobody panics with the lock");
            if !Arc::ptr_eq(&body, &now) {
                return Err(elsewhere());
            }
            body.pause()?;
        }
        let time = body.clock.at(monotonic());
        if wanted {
            return Ok(time);
        }
        Err(Error::Refused(format!("whoever asked for the instant {at} has left; run {} is paused at {time}", self.name)))
    }

    /// Keeps checkpoints from beginning, unless one is under way.
    fn try_alone(&self) -> Option<MutexGuard<'_, Past>> {
        match self.checkpointing.try_lock() {
            Ok(past) => Some(past),
            // What it guards is only a hint, which a panic cannot spoil.
            Err(TryLockError::Poisoned(past)) => Some(past.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Stops the machines. A checkpoint that is about to stop them too is waited for: it would let them go on.
    pub fn pause(&self) -> Result<()> {
        let (parts, body) = self.here();
        between_checkpoints(&parts, "pause", || body.pause())
    }

    /// Lets the machines go on. Those that have suspended themselves to RAM sleep on.
    pub fn resume(&self) -> Result<()> {
        self.go_on(Body::resume)
    }

    /// Lets the machines go on because somebody wants it: those that have suspended themselves to RAM are woken, too.
    pub fn resume_and_wake(&self) -> Result<()> {
        self.go_on(Body::resume_and_wake)
    }

    fn go_on(&self, resume: fn(&Body) -> Result<()>) -> Result<()> {
        let (parts, body) = self.here();
        between_checkpoints(&parts, "resume", || resume(&body))?;
        self.wake();
        Ok(())
    }

    /// Sets the clocks of guests that are to have the real time (`clock: real`), unless they stand still. To be called whenever a run goes on after it stood still for longer
    /// than a checkpoint takes: nobody waits until it is done.
    pub fn wake(&self) {
        let body = self.body();
        if body.clock.runs() {
            set_clocks(&self.name, &body);
        }
    }

    fn here(&self) -> (Arc<Mutex<Parts<Writer>>>, Arc<Body>) {
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
        if let (Some(fabric), Some(left)) = (arrived.body.fabric(), state.body.fabric()) {
            // Those that somebody began since the other ones were taken along.
            fabric.share_captures(left);
        }
        let left = std::mem::replace(&mut *state, arrived).body;
        drop(state);
        self.lock_forwards().follow(&self.body());
        self.catch_up();
        self.wake();
        left
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with the lock")
    }
}

/// Has machines stopped or started while no checkpoint does that. A panic does not take the lock along: without it there would be no checkpoint any more.
fn between_checkpoints<S>(parts: &Mutex<Parts<S>>, what: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let _nobody_else = parts.lock().expect("nobody panics with the lock");
    let panicked = |cause| Error::Refused(format!("the run could not {what}: {cause}. `fermata goto ID` brings it back"));
    coordinate::contained(|| Ok(work())).map_err(panicked).flatten()
}

/// How long the machines stood, how far apart, and what it was spent on.
type Pause = (Duration, Option<Apart>, BTreeMap<String, Duration>);

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
    let Journey { eager, paused, fresh_randomness, perturbation } = how;
    if perturbation.is_some_and(|perturbation| !perturbation.is_valid()) {
        return Err(Error::Refused("a perturbation varies timing, order or luck, by 10 s at most".into()));
    }
    spare.keep(host.store().hold(id)?, record.spec.clone());
    let state = Return { host, id, record, eager, fresh_randomness, perturbation };
    let (parts, details) = spare.restore(&state)?;
    // From here on a page that is nowhere would be the end of a guest.
    if let Some(away) = host.store().away() {
        away.machines_begin();
    }
    if !paused {
        spare.depart(&details)?;
    }
    let machines = details.iter().map(|details| (details.config.name.clone(), details.id)).collect();
    let standing = Standing { branch: branch.to_owned(), head: Some(*id), machines };
    Ok(Arrival { body: spare, parts, standing, time_virtual: VirtualTime::from_ns(record.time_virtual_ns) })
}

/// The specification of machines that came from a checkpoint, which may be another one than their keeper's, with what the keeper was told of checkpoints.
fn as_kept(mut of_machines: serde_json::Value, keepers: &serde_json::Value) -> serde_json::Value {
    if let Some(keys) = of_machines.as_object_mut() {
        keys.retain(|key, _| !OF_KEEPER.contains(&key.as_str()));
        keys.extend(OF_KEEPER.iter().filter_map(|key| Some(((*key).to_owned(), keepers.get(key)?.clone()))));
    }
    of_machines
}

fn skew(apart: Apart) -> Skew {
    Skew { stop_ns: nanoseconds(apart.stop), resume_ns: nanoseconds(apart.resume), time_ns: nanoseconds(apart.time) }
}

fn all_nanoseconds(steps: &BTreeMap<String, Duration>) -> BTreeMap<String, u64> {
    steps.iter().map(|(step, took)| (step.clone(), nanoseconds(*took))).collect()
}

/// What telling the classes took, with what the pause did of it.
fn in_the_pause(mut times: ClassTimes, steps: &BTreeMap<String, Duration>) -> ClassTimes {
    for (step, took) in steps {
        match step.split_once(' ') {
            Some((_, fermata_vm::SCAN)) => times.unchanged += nanoseconds(*took),
            Some((_, fermata_vm::MAP)) => times.mapped += nanoseconds(*took),
            _ => {}
        }
    }
    times
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_panics_while_machines_are_paused_leaves_the_run_its_checkpoints() {
        let parts: Mutex<Parts<()>> = Mutex::default();
        let error = between_checkpoints(&parts, "pause", || panic!("in a test")).expect_err("it panicked");
        assert!(error.to_string().contains("could not pause: it panicked"), "{error}");
        assert!(parts.lock().is_ok(), "a checkpoint finds the lock as it was");
        let refused = || Err(Error::Refused("as ever".into()));
        assert_eq!(between_checkpoints(&parts, "pause", refused).expect_err("it was refused").to_string(), "as ever");
        between_checkpoints(&parts, "resume", || Ok(())).expect("nothing is wrong");
    }

    #[test]
    fn what_came_from_a_checkpoint_is_described_as_there_and_kept_as_here() {
        let spec = |more: &str, machine: &str| {
            let text = format!("name: x\n{more}nodes: {{a: {{image: i}}, {machine}: {{image: i}}}}\n");
            Spec::from_yaml(&text, "x.yaml".as_ref(), "/".as_ref()).unwrap()
        };
        let here = spec("every: 5s\ntracker: scan\nfull: true\nevents: [{at: 1s, exec: a, run: here}]\n", "b");
        let there = spec("every: 2s\nkeep: last 3\ncapture: stop\nfree: keep\nevents: [{at: 2s, exec: c, run: there}]\n", "c");
        let [here_json, there_json] = [&here, &there].map(|spec| serde_json::to_value(spec).unwrap());
        let kept: Spec = serde_json::from_value(as_kept(there_json.clone(), &here_json)).unwrap();
        assert_eq!(kept, Spec { every: here.every, keep: here.keep.clone(), capture: here.capture, ..there });
        assert_eq!(as_kept(there_json.clone(), &there_json), there_json);
    }
}
