//! One checkpoint over all parts of a run: drives the protocol, measures the pause.
//!
//! The parts of one step are all begun before any of them is waited for. Machines go on in the order of their virtual times, each as much later as it is
//! ahead, so that what one stood longer than another is made good at once.

use crate::{
    guest_clock::GuestClock,
    pace::Went,
    together::{delays, host_time, wait_until},
};
use fermata_checkpoint::{Captured, Failure, Outcome, Part, Phase, Protocol, Saved, Step};
use fermata_linux::{
    clock::{Stopwatch, monotonic},
    priority,
};
use fermata_store::Writer;
use fermata_types::{Composition, PageCounts, PartKind, VirtualTime};
use std::{
    collections::BTreeMap,
    fmt,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Mutex,
    thread,
    time::Duration,
};

/// The phase in which a failure leaves a guest standing still.
pub(crate) const THAW: &str = "thaw";

/// Before the instant that was asked for, the parts catch up: at least so long, and so long for each of them.
const CATCH_UP: Duration = Duration::from_millis(2);

/// So long before it, events and links are held. What falls due meanwhile happens behind the pause.
const HOLD: Duration = Duration::from_millis(1);

/// Where the states of parts are written.
pub(crate) trait Storage: Send + 'static {
    /// Bytes written for the checkpoint so far.
    fn stored_bytes(&mut self) -> Result<u64, Failure>;
}

impl Storage for Writer {
    fn stored_bytes(&mut self) -> Result<u64, Failure> {
        Ok(Writer::stored_bytes(self)?)
    }
}

/// The parts of a run; `S` is where their states are written.
pub(crate) type Parts<S> = Vec<Box<dyn Part<S>>>;

/// A part that failed, and in which phase.
#[derive(Debug, thiserror::Error)]
pub struct PartFailure {
    /// The part, or the store if all were saved.
    pub part: String,
    /// `prepare`, `freeze`, `capture`, `thaw`, `save`, `commit`.
    pub phase: &'static str,
    /// Why.
    #[source]
    pub cause: Failure,
    /// Parts that failed in the same phase.
    pub others: Vec<String>,
}

impl fmt::Display for PartFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} could not {}: {}", self.part, self.phase, self.cause)?;
        if !self.others.is_empty() {
            write!(f, "; nor could {}", self.others.join(", "))?;
        }
        Ok(())
    }
}

/// How a checkpoint is to be taken.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    /// Look at the content of all that would be taken as known.
    pub paranoid: bool,
    /// Store it without hurry, behind the guests.
    pub gentle: bool,
    /// One part after the other. Nobody wants that; it is what going side by side is measured against.
    pub in_turn: bool,
    /// Freeze at this virtual time, or at once if it has passed.
    pub at: Option<VirtualTime>,
}

/// A moment in a checkpoint at which tests look on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// All is prepared, and the guests still run. An instant that was asked for is yet to come.
    Prepared,
    /// Everything stands still and was captured.
    Frozen,
}

/// How far apart machines were that should do the same at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Apart {
    /// From the first one's stop to the last one's.
    pub stop: Duration,
    /// From the first one's going on to the last one's, which makes good what they were apart in virtual time.
    pub resume: Duration,
    /// Their virtual times in the checkpoint.
    pub time: Duration,
}

/// A checkpoint whose pause is over, and that is not yet stored.
pub(crate) struct Tentative<S> {
    protocol: Protocol,
    names: Vec<String>,
    captured: Vec<Box<dyn Captured<S>>>,
    writer: S,
    /// From the first part's freeze to the last one's thaw.
    pub pause: Duration,
    /// What it was spent on: part and step.
    pub steps: BTreeMap<String, Duration>,
    /// Of the machines, if there are several.
    pub apart: Option<Apart>,
    /// How long each part prepared.
    prepared: BTreeMap<String, Duration>,
    /// Bytes that each part has put into the store so far.
    stored: BTreeMap<String, u64>,
}

/// What storing all parts came to, besides their states.
pub(crate) struct Work<S> {
    pub pages: PageCounts,
    /// The same for each part.
    pub parts: BTreeMap<String, PageCounts>,
    /// What the pages of each machine are for.
    pub composition: BTreeMap<String, Composition>,
    /// Steps of the work before and behind the pause: part and step.
    pub background: BTreeMap<String, Duration>,
    /// Bytes that each part put into the store.
    pub stored: BTreeMap<String, u64>,
    pub writer: S,
}

/// Prepares, freezes, captures and thaws. On failure the parts have been settled already. `clock` is that of the guests, and is told when they stand still.
/// `seen` is called at its moments, and makes what it is called in longer.
pub(crate) fn take<S: Storage>(
    parts: &mut Parts<S>,
    mut writer: S,
    manner: Manner,
    clock: &GuestClock,
    seen: &mut dyn FnMut(Moment),
) -> Result<Tentative<S>, PartFailure> {
    parts.iter_mut().for_each(|part| part.check_content(manner.paranoid));
    let mut protocol = Protocol::new(parts.iter().map(|part| part.kind()));
    let mut captured = Vec::new();
    let mut failure = None;
    let mut watch = None;
    let mut pause = Duration::ZERO;
    let mut prepared = BTreeMap::new();
    let mut stored = BTreeMap::new();
    let mut times = Vec::new();
    let ran = clock.runs();
    let mut soon = None;
    loop {
        let step = protocol.step().expect("a checkpoint is saved or settled before it is over");
        let result = match &step {
            Step::Prepare(of) => {
                let result = before(|| {
                    prepare(parts, of, &mut writer, &mut prepared, &mut stored)?;
                    catch_up(parts, of, manner.at, clock)
                });
                soon = Some(priority::soon());
                result.and_then(|()| await_instant(manner.at, clock, || seen(Moment::Prepared)))
            }
            Step::Freeze(of) => {
                watch.get_or_insert_with(Stopwatch::start);
                freeze(parts, of, manner, clock)
            }
            Step::Capture(of) => {
                let result = phase(parts, of, Phase::Capture, manner, |part| {
                    captured.push(part.capture()?);
                    Ok(())
                });
                times = parts.iter().filter_map(|part| part.time()).collect();
                result.and(besides("the experiment", "capture", || seen(Moment::Frozen)))
            }
            Step::Thaw(of) => {
                let result = thaw(parts, of, manner, clock, ran);
                pause = watch.map_or(Duration::ZERO, |watch| watch.elapsed());
                result
            }
            Step::Save(_) => break,
            Step::Commit => unreachable!("nothing is committed before it is saved"),
            Step::Settle { .. } => {
                settle(parts, None);
                // If nothing was frozen, the clock is as others left it: whoever takes the run elsewhere has stopped it.
                go_on(clock, ran && watch.is_some(), &times);
                return Err(failure.expect("a checkpoint that is settled so early failed"));
            }
        };
        protocol.done(result.is_ok());
        failure = graver(failure, result.err());
    }
    go_on(clock, ran, &times);
    drop(soon);
    // What follows takes a processor for itself: not the one on which a guest is about to go on.
    priority::step_aside();
    let steps =
        parts.iter().flat_map(|part| part.notes().into_iter().map(|note| (format!("{} {}", part.name(), note.step), note.took))).collect();
    let names = parts.iter().map(|part| part.name().to_owned()).collect();
    let apart = apart(parts, &times, pause);
    Ok(Tentative { protocol, names, captured, writer, pause, steps, apart, prepared, stored })
}

/// The first failure is the cause and later ones follow from it; but that a guest stands still is what people must be told.
fn graver(first: Option<PartFailure>, next: Option<PartFailure>) -> Option<PartFailure> {
    match next {
        Some(stands) if stands.phase == THAW => Some(stands),
        other => first.or(other),
    }
}

fn freeze<S: 'static>(parts: &mut Parts<S>, of: &[usize], manner: Manner, clock: &GuestClock) -> Result<(), PartFailure> {
    clock.stop(monotonic());
    let machines = are_machines(parts, of);
    let told = network(machines, "freeze", || clock.machines_stop());
    let result = phase(parts, of, Phase::Freeze, manner, |part| part.freeze());
    let stand = network(machines, "freeze", || clock.machines_stand());
    result.and(told).and(stand)
}

/// `ran`: the guests' clock did before all stood still.
fn thaw<S: 'static>(parts: &mut Parts<S>, of: &[usize], manner: Manner, clock: &GuestClock, ran: bool) -> Result<(), PartFailure> {
    let begun = monotonic();
    let result = phase(parts, of, Phase::Thaw, manner, |part| part.thaw());
    let told = network(ran && are_machines(parts, of), THAW, || clock.machines_run(&went(parts, of, begun)));
    result.and(told)
}

fn are_machines<S>(parts: &Parts<S>, of: &[usize]) -> bool {
    of.iter().any(|index| parts[*index].kind() == PartKind::Machine)
}

/// What the network has to do when machines stop and go on, if they do. It must not take them along.
fn network(machines: bool, phase: &'static str, work: impl FnOnce()) -> Result<(), PartFailure> {
    if machines { besides("the network", phase, work) } else { Ok(()) }
}

/// What somebody has to do besides the parts.
fn besides(who: &str, phase: &'static str, work: impl FnOnce()) -> Result<(), PartFailure> {
    let work = || {
        work();
        Ok(())
    };
    contained(work).map_err(|cause| PartFailure { part: who.to_owned(), phase, cause, others: Vec::new() })
}

/// The machines that went on after `begun`.
fn went<S>(parts: &Parts<S>, of: &[usize], begun: Duration) -> Vec<Went> {
    let went = |part: &dyn Part<S>| {
        let at = host_time(part.stood()?.end, begun);
        Some(Went { machine: part.name().to_owned(), from: part.time(), at })
    };
    of.iter().filter_map(|index| went(&*parts[*index])).collect()
}

/// The guests' clocks go on, the furthest of them last.
fn go_on(clock: &GuestClock, ran: bool, times: &[VirtualTime]) {
    if ran && !clock.runs() {
        clock.go_on(times.iter().max().copied(), monotonic());
    }
}

/// Has a part do something. One that panics is from then on a [`Lost`] one.
fn ask<S: 'static>(
    parts: &mut Parts<S>,
    index: usize,
    work: impl FnOnce(&mut Box<dyn Part<S>>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let result = contained(|| work(&mut parts[index]));
    if has_panicked(&result) {
        let part = parts.remove(index);
        parts.insert(index, Box::new(Lost(part)));
    }
    result
}

fn has_panicked(result: &Result<(), Failure>) -> bool {
    result.as_ref().is_err_and(|cause| cause.is::<Panicked>())
}

fn prepare<S: Storage>(
    parts: &mut Parts<S>,
    of: &[usize],
    writer: &mut S,
    prepared: &mut BTreeMap<String, Duration>,
    stored: &mut BTreeMap<String, u64>,
) -> Result<(), PartFailure> {
    let _giving_way = priority::give_way();
    each(parts, of, "prepare", |part| part.ready())?;
    each(parts, of, "prepare", |part| {
        let (watch, before) = (Stopwatch::start(), writer.stored_bytes()?);
        let result = part.prepare(writer);
        prepared.insert(format!("{} prepare", part.name()), watch.elapsed());
        result?;
        stored.insert(part.name().to_owned(), writer.stored_bytes()? - before);
        Ok(())
    })
}

/// What comes before the pause, in a thread of its own: this one sleeps meanwhile. A thread that has computed waits for its turn where others compute, which would lie between
/// the stop of the first machine and that of the second.
fn before<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// How long it is until this virtual time.
fn left(at: Option<VirtualTime>, clock: &GuestClock) -> Duration {
    // The watch of who waits starts after the look: who loses the processor between the two is late, and not early.
    at.filter(|_| clock.runs()).map_or(Duration::ZERO, |at| clock.until(at, monotonic()))
}

/// Waits from now on.
fn wait_as_long(time: Duration) {
    wait_until(&Stopwatch::start(), time);
}

/// Waits for the instant. Shortly before it, whoever has something to hold holds it: that may take a while, and is not to make the freeze late.
fn await_instant(at: Option<VirtualTime>, clock: &GuestClock, hold: impl FnOnce()) -> Result<(), PartFailure> {
    wait_as_long(left(at, clock).saturating_sub(HOLD));
    let held = besides("the experiment", "prepare", hold);
    wait_as_long(left(at, clock));
    held.and(has_come(at, clock))
}

/// Whoever takes the run elsewhere stops it, and waits for nobody: then the instant never comes, and no earlier one is to be taken for it.
fn has_come(at: Option<VirtualTime>, clock: &GuestClock) -> Result<(), PartFailure> {
    let now = clock.at(monotonic());
    match at.filter(|at| !clock.runs() && now < *at) {
        None => Ok(()),
        Some(at) => {
            let cause = format!("it was stopped at {now}, and a checkpoint was to be taken at {at}").into();
            Err(PartFailure { part: "the experiment".to_owned(), phase: "prepare", cause, others: Vec::new() })
        }
    }
}

/// Has the parts do again, shortly before the instant, what has become due while they waited for it or for one another.
fn catch_up<S: 'static>(parts: &mut Parts<S>, of: &[usize], at: Option<VirtualTime>, clock: &GuestClock) -> Result<(), PartFailure> {
    let before = CATCH_UP * (parts.len() as u32 + 1);
    wait_as_long(left(at, clock).saturating_sub(before));
    let machines = parts.iter().filter(|part| part.kind() == PartKind::Machine).count();
    if at.is_some() || machines > 1 {
        each(parts, of, "prepare", |part| part.catch_up())?;
    }
    Ok(())
}

/// Runs one phase of some parts. All of them are tried even if one fails: what can be thawed is.
fn each<S: 'static>(
    parts: &mut Parts<S>,
    of: &[usize],
    phase: &'static str,
    mut work: impl FnMut(&mut Box<dyn Part<S>>) -> Result<(), Failure>,
) -> Result<(), PartFailure> {
    let mut failures = Vec::new();
    for index in of {
        if let Err(cause) = ask(parts, *index, &mut work) {
            failures.push((parts[*index].name().to_owned(), cause));
        }
    }
    all_of(phase, failures)
}

/// The first failure, with the names of the others.
fn all_of(phase: &'static str, failures: Vec<(String, Failure)>) -> Result<(), PartFailure> {
    let mut failures = failures.into_iter();
    match failures.next() {
        None => Ok(()),
        Some((part, cause)) => Err(PartFailure { part, phase, cause, others: failures.map(|(part, _)| part).collect() }),
    }
}

/// Runs one phase of the pause: begins it in all of these parts, then waits for each.
fn phase<S: 'static>(
    parts: &mut Parts<S>,
    of: &[usize],
    phase: Phase,
    manner: Manner,
    mut finish: impl FnMut(&mut Box<dyn Part<S>>) -> Result<(), Failure>,
) -> Result<(), PartFailure> {
    let order = order(parts, of, phase);
    let watch = Stopwatch::start();
    let mut failures = Vec::new();
    let together = if manner.in_turn { 1 } else { order.len().max(1) };
    let ahead = phase == Phase::Freeze && order.len() == 1;
    for group in order.chunks(together) {
        let mut begun = Vec::with_capacity(group.len());
        for (delay, index) in group {
            wait_until(&watch, *delay);
            begun.push(ask(parts, *index, |part| part.begin(phase)));
        }
        for ((_, index), begun) in group.iter().zip(begun) {
            let result = begun.and_then(|()| ask(parts, *index, &mut finish));
            let result = result.and_then(|()| if ahead { ask(parts, *index, |part| part.begin_ahead()) } else { Ok(()) });
            if phase == Phase::Thaw && has_panicked(&result) {
                go_on_anyway(parts, *index);
            }
            if let Err(cause) = result {
                failures.push((parts[*index].name().to_owned(), cause));
            }
        }
        if phase == Phase::Thaw {
            // Beside several it costs a turn of all that computes on this processor, and whoever still holds a lock has gone on while we waited for the others.
            if of.len() == 1 && are_machines(parts, of) {
                priority::after_you();
            }
            group.iter().for_each(|(_, index)| {
                _ = ask(parts, *index, |part| {
                    part.all_thawed();
                    Ok(())
                })
            });
        }
    }
    all_of(name_of(phase), failures)
}

/// Has a part that panicked on its way try once more from the start: what it did not come to then would leave a guest standing for good. That it panicked
/// has failed the checkpoint already.
fn go_on_anyway<S: 'static>(parts: &mut Parts<S>, index: usize) {
    let result = ask(parts, index, |part| {
        part.begin(Phase::Thaw)?;
        part.thaw()
    });
    if let Err(cause) = result {
        tracing::error!("{} panicked when it was to go on, and did not the second time either: {cause}", parts[index].name());
    }
}

fn name_of(phase: Phase) -> &'static str {
    match phase {
        Phase::Freeze => "freeze",
        Phase::Capture => "capture",
        Phase::Thaw => THAW,
    }
}

/// Who begins the phase, and how much later than the first.
fn order<S>(parts: &Parts<S>, of: &[usize], phase: Phase) -> Vec<(Duration, usize)> {
    if phase != Phase::Thaw {
        return of.iter().map(|index| (Duration::ZERO, *index)).collect();
    }
    let times: Vec<_> = of.iter().map(|index| parts[*index].time()).collect();
    let mut order: Vec<_> = delays(&times).into_iter().zip(of.iter().copied()).collect();
    order.sort_unstable();
    order
}

/// How far apart the parts were that have clocks, in a pause of this length.
fn apart<S>(parts: &Parts<S>, times: &[VirtualTime], pause: Duration) -> Option<Apart> {
    let stood: Vec<Range<Duration>> = parts.iter().filter_map(|part| part.stood()).collect();
    if stood.len() < 2 {
        return None;
    }
    let spread =
        |values: Vec<Duration>| values.iter().max().zip(values.iter().min()).map_or(Duration::ZERO, |(last, first)| *last - *first);
    // By the host's wall clock, which somebody may have set meanwhile.
    let in_pause = |values| spread(values).min(pause);
    Some(Apart {
        stop: in_pause(stood.iter().map(|stood| stood.start).collect()),
        resume: in_pause(stood.iter().map(|stood| stood.end).collect()),
        time: spread(times.iter().map(|time| time.since_start()).collect()),
    })
}

impl<S: Storage> Tentative<S> {
    /// How long all parts together prepared.
    pub fn prepared(&self) -> Duration {
        self.prepared.values().sum()
    }

    /// Stores every part behind the guests and has `commit` make the checkpoint permanent. However that ends, every part is told.
    pub fn keep<T, E: From<PartFailure>>(
        self,
        parts: &Mutex<Parts<S>>,
        commit: impl FnOnce(&[Saved], Work<S>) -> Result<T, E>,
    ) -> Result<T, E> {
        let Some(Step::Save(order)) = self.protocol.step() else { unreachable!("a checkpoint that was taken is to be saved") };
        let mut protocol = self.protocol.clone();
        let (kept, saved) = match self.save(&order) {
            Ok((saved, work)) => {
                protocol.done(true);
                (committed(|| commit(&saved, work)), saved)
            }
            Err(failure) => (Err(failure.into()), Vec::new()),
        };
        protocol.done(kept.is_ok());
        let Some(Step::Settle { permanent, .. }) = protocol.step() else { unreachable!("what was committed, or failed, is to be settled") };
        settle(&mut parts.lock().expect("nobody panics with the lock"), permanent.then_some(&saved));
        kept
    }

    fn save(mut self, order: &[usize]) -> Result<(Vec<Saved>, Work<S>), PartFailure> {
        let mut captured: Vec<_> = self.captured.into_iter().map(Some).collect();
        let mut saved: Vec<_> = captured.iter().map(|_| None).collect();
        let mut pages = PageCounts::default();
        let mut parts = BTreeMap::new();
        let mut composition = BTreeMap::new();
        let mut background = self.prepared;
        let mut stored = self.stored;
        for index in order {
            let name = self.names[*index].clone();
            let captured = captured[*index].take().expect("each part is saved once");
            let failed = |cause| PartFailure { part: name.clone(), phase: "save", cause, others: Vec::new() };
            let (watch, before) = (Stopwatch::start(), self.writer.stored_bytes().map_err(failed)?);
            let mut part = contained(|| captured.save(&mut self.writer)).map_err(failed)?;
            background.insert(format!("{name} save"), watch.elapsed());
            *stored.entry(name.clone()).or_default() += self.writer.stored_bytes().map_err(failed)? - before;
            pages += part.pages;
            composition.extend(part.composition.take().map(|composition| (name.clone(), composition)));
            parts.insert(name, part.pages);
            saved[*index] = Some(part);
        }
        let saved = saved.into_iter().map(|part| part.expect("each part is saved")).collect();
        Ok((saved, Work { pages, parts, composition, background, stored, writer: self.writer }))
    }
}

fn committed<T, E: From<PartFailure>>(commit: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let failed = |cause| PartFailure { part: "the store".to_owned(), phase: "commit", cause, others: Vec::new() };
    contained(|| Ok(commit())).map_err(|cause| E::from(failed(cause))).flatten()
}

/// A fault of ours.
#[derive(Debug, thiserror::Error)]
#[error("it panicked, which is a fault of Fermata's: the keeper's log tells more")]
struct Panicked;

/// A panic fails the checkpoint as anything else does: nobody may stand still for it, or be left without a word about how it ended.
pub(crate) fn contained<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Panicked.into()))
}

/// A part that panicked. What it has counted of its changes may be wrong, so it goes on, but is in no checkpoint any more.
struct Lost<S>(Box<dyn Part<S>>);

impl<S> Part<S> for Lost<S> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn kind(&self) -> PartKind {
        self.0.kind()
    }

    fn ready(&self) -> Result<(), Failure> {
        Err("it panicked in an earlier checkpoint: `fermata goto ID` brings it back".into())
    }

    fn prepare(&mut self, _: &mut S) -> Result<(), Failure> {
        self.ready()
    }

    fn begin(&mut self, phase: Phase) -> Result<(), Failure> {
        if phase == Phase::Thaw { self.0.begin(phase) } else { Ok(()) }
    }

    fn freeze(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn capture(&mut self) -> Result<Box<dyn Captured<S>>, Failure> {
        Err(Panicked.into())
    }

    /// If it was captured before it panicked, it goes on in the order of the others.
    fn time(&self) -> Option<VirtualTime> {
        self.0.time()
    }

    fn thaw(&mut self) -> Result<(), Failure> {
        self.0.thaw()
    }

    fn all_thawed(&mut self) {
        self.0.all_thawed();
    }

    fn settle(&mut self, outcome: Outcome<'_>) {
        self.0.settle(outcome);
    }

    fn stood(&self) -> Option<Range<Duration>> {
        self.0.stood()
    }
}

/// Tells every part how the checkpoint ended: what was kept of each, if it is permanent. One that panics is lost, and keeps nobody from being told.
fn settle<S: 'static>(parts: &mut Parts<S>, saved: Option<&[Saved]>) {
    for index in 0..parts.len() {
        let told = ask(parts, index, |part| {
            part.settle(saved.map_or(Outcome::Aborted, |saved| Outcome::Permanent(&saved[index].state)));
            Ok(())
        });
        if let Err(cause) = told {
            tracing::error!("{} was to learn how a checkpoint ended: {cause}", parts[index].name());
        }
    }
}

#[cfg(test)]
mod tests;
