//! Every way in which several parts can fail together, with parts that do nothing but note what they are asked, and what was written in them.

use super::*;
use fermata_types::PartState;
use serde_json::{from_value, to_value};
use std::{
    collections::BTreeSet,
    panic::resume_unwind,
    sync::{Arc, MutexGuard, OnceLock, Weak},
};

/// Parts here keep all they have in their states.
impl Storage for () {
    fn stored_bytes(&mut self) -> Result<u64, Failure> {
        Ok(0)
    }
}

/// Where a part fails: when a phase is begun, or when it is waited for, as one does that dies or does not answer in time; or when it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fails {
    Never,
    Prepare,
    CatchUp,
    Begin(Phase),
    Finish(Phase),
    /// It panics before it comes to going on, once.
    Stuck,
    Save(Ending),
    /// It panics when it learns how the checkpoint ended.
    Settle,
}

/// How storing a part ends that does not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    AtOnce,
    /// It hangs while the guests run on, and is given up.
    Late,
    Panic,
}

/// How the commit ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Commit {
    Done,
    Refused,
    Panic,
}

const PHASES: [Phase; 3] = [Phase::Freeze, Phase::Capture, Phase::Thaw];

fn ways() -> Vec<Fails> {
    let phases = PHASES.into_iter().flat_map(|phase| [Fails::Begin(phase), Fails::Finish(phase)]);
    [Fails::Never, Fails::Prepare, Fails::CatchUp].into_iter().chain(phases).collect()
}

/// Ways to be saved.
const SAVES: [Fails; 4] = [Fails::Never, Fails::Save(Ending::AtOnce), Fails::Save(Ending::Late), Fails::Save(Ending::Panic)];

/// What a part was asked, in the order of all parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Prepare(usize),
    Begin(usize, Phase),
    Finish(usize, Phase),
    Save(usize),
    Settle(usize, bool),
}

type Pages = BTreeMap<u32, u32>;

/// What lives in a part, as in a machine's memory: the next checkpoint is made upon the last one, with what was written since.
#[derive(Default)]
struct Guest {
    pages: Pages,
    written: BTreeSet<u32>,
    /// What the checkpoint under way took of what was written.
    taken: BTreeSet<u32>,
    base: Pages,
    /// All pages as they were when it was last captured.
    captured: Pages,
    stands: bool,
}

impl Guest {
    fn write(&mut self) {
        assert!(!self.stands, "who stands does not write");
        // Always a new page and an old one, with a value that was never there before.
        let count = self.pages.len() as u32;
        for page in [count, count / 2] {
            self.pages.insert(page, count);
            self.written.insert(page);
        }
    }
}

/// What the parts of an experiment share with the test.
#[derive(Default)]
struct Rig {
    events: Mutex<Vec<Event>>,
    guests: Vec<Mutex<Guest>>,
    fails: Mutex<Vec<Fails>>,
    /// Who fails panics.
    panics: bool,
    parts: OnceLock<Weak<Mutex<Parts<()>>>>,
    clock: GuestClock,
    /// Checkpoints that can be seen.
    permanent: Mutex<Vec<Vec<Pages>>>,
}

struct Fake {
    index: usize,
    kind: PartKind,
    time: Option<VirtualTime>,
    rig: Arc<Rig>,
}

impl Rig {
    fn tell(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn guest(&self, index: usize) -> MutexGuard<'_, Guest> {
        self.guests[index].lock().unwrap()
    }

    fn fails(&self) -> Vec<Fails> {
        self.fails.lock().unwrap().clone()
    }

    /// Everybody runs, and goes on with it.
    fn all_write(&self) {
        assert!(self.clock.runs(), "time stands still: {:?}", self.fails());
        self.guests.iter().for_each(|guest| guest.lock().unwrap().write());
    }

    fn checkpoint(&self, in_turn: bool, commit: Commit) -> Result<(), PartFailure> {
        let parts = self.parts.get().and_then(Weak::upgrade).expect("the test has them");
        let manner = Manner { in_turn, ..Manner::default() };
        let tentative = take(&mut parts.lock().unwrap(), (), manner, &self.clock, &mut |_| {})?;
        tentative.keep(&parts, |saved, _| match commit {
            Commit::Done => {
                let pages = |saved: &Saved| from_value(saved.state.details.clone()).expect("it was saved so");
                self.permanent.lock().unwrap().push(saved.iter().map(pages).collect());
                Ok(())
            }
            Commit::Refused => Err(all_of("commit", vec![("the store".to_owned(), "another keeper was faster".into())]).unwrap_err()),
            Commit::Panic => resume_unwind(Box::new("the commit")),
        })
    }

    /// Whatever happened before, a checkpoint in which nobody fails has all that was ever written.
    fn the_next_one_is_complete(&self) {
        let before = self.fails();
        self.fails.lock().unwrap().fill(Fails::Never);
        for _ in 0..2 {
            self.all_write();
            self.events.lock().unwrap().clear();
            self.checkpoint(false, Commit::Done).unwrap_or_else(|failure| panic!("after {before:?}: {failure}"));
            self.check_settled(true);
            let captured: Vec<_> = self.guests.iter().map(|guest| guest.lock().unwrap().captured.clone()).collect();
            assert_eq!(self.permanent.lock().unwrap().last(), Some(&captured), "after {before:?}");
        }
    }

    /// Nobody knows what somebody who panicked has lost count of, so it is in no checkpoint; and all run on.
    fn there_is_no_next_one(&self) {
        let before = std::mem::replace(&mut *self.fails.lock().unwrap(), vec![Fails::Never; self.guests.len()]);
        self.all_write();
        self.events.lock().unwrap().clear();
        let failure = self.checkpoint(false, Commit::Done).expect_err("somebody is lost");
        for part in failure.others.iter().chain([&failure.part]) {
            let index = NAMES.iter().position(|name| name == part).expect("it is one of the parts");
            assert_ne!(before[index], Fails::Never, "{failure}");
        }
        assert_eq!(failure.phase, "prepare");
        assert!(failure.to_string().contains("panicked in an earlier checkpoint"), "{failure}");
        let prepared = self.events.lock().unwrap().iter().any(|event| matches!(event, Event::Prepare(_)));
        assert!(!prepared, "somebody copied ahead for nothing");
        self.check_settled(false);
        assert!(self.permanent.lock().unwrap().is_empty());
        self.all_write();
    }

    /// Every part was told how it ended, once and in the end.
    fn check_settled(&self, permanent: bool) {
        let events = self.events.lock().unwrap();
        let told = &events[events.len().saturating_sub(self.guests.len())..];
        let expected: Vec<_> = (0..self.guests.len()).map(|index| Event::Settle(index, permanent)).collect();
        assert_eq!(told, expected, "{:?}", self.fails());
        assert_eq!(events.iter().filter(|event| matches!(event, Event::Settle(..))).count(), expected.len(), "{events:?}");
    }
}

impl Fake {
    fn unless(&self, fails: Fails) -> Result<(), Failure> {
        match self.rig.fails()[self.index] == fails {
            // Unlike `panic!` this says nothing on the terminal.
            true if self.rig.panics => resume_unwind(Box::new("a part")),
            true => Err("it does not answer".into()),
            false => Ok(()),
        }
    }

    fn finish(&self, phase: Phase) -> Result<(), Failure> {
        self.rig.tell(Event::Finish(self.index, phase));
        self.unless(Fails::Finish(phase))
    }
}

struct Noted {
    index: usize,
    kind: PartKind,
    base: Pages,
    pages: Pages,
    rig: Arc<Rig>,
}

impl Captured<()> for Noted {
    fn save(self: Box<Self>, (): &mut ()) -> Result<Saved, Failure> {
        self.rig.tell(Event::Save(self.index));
        // However long it takes, nobody waits for it, and none is kept from being stopped or started.
        self.rig.all_write();
        assert!(self.rig.parts.get().and_then(Weak::upgrade).expect("they are there").try_lock().is_ok(), "the parts are held");
        match self.rig.fails()[self.index] {
            Fails::Save(Ending::AtOnce) => return Err("its disk is full".into()),
            Fails::Save(Ending::Late) => {
                (0..3).for_each(|_| self.rig.all_write());
                return Err("it was given up".into());
            }
            Fails::Save(Ending::Panic) => resume_unwind(Box::new("a part")),
            _ => {}
        }
        let mut pages = self.base;
        pages.extend(self.pages);
        let (tables, blobs) = Default::default();
        let state = PartState { name: NAMES[self.index].to_owned(), kind: self.kind, tables, blobs, details: to_value(pages)? };
        Ok(Saved { state, pages: PageCounts::default(), composition: None })
    }
}

const NAMES: [&str; 4] = ["a", "a/disk0", "b", "network"];

impl Part<()> for Fake {
    fn name(&self) -> &str {
        NAMES[self.index]
    }

    fn kind(&self) -> PartKind {
        self.kind
    }

    fn prepare(&mut self, (): &mut ()) -> Result<(), Failure> {
        self.rig.tell(Event::Prepare(self.index));
        self.unless(Fails::Prepare)
    }

    fn catch_up(&mut self) -> Result<(), Failure> {
        self.unless(Fails::CatchUp)
    }

    fn begin(&mut self, phase: Phase) -> Result<(), Failure> {
        self.rig.tell(Event::Begin(self.index, phase));
        if phase == Phase::Thaw && self.rig.fails()[self.index] == Fails::Stuck {
            self.rig.fails.lock().unwrap()[self.index] = Fails::Never;
            resume_unwind(Box::new("a part"));
        }
        // Whether its freezing succeeded or not, from here on it may stand; and however thawing fails, there is no more to be done than to have tried.
        self.rig.guest(self.index).stands = phase != Phase::Thaw;
        self.unless(Fails::Begin(phase))
    }

    fn freeze(&mut self) -> Result<(), Failure> {
        self.finish(Phase::Freeze)
    }

    fn capture(&mut self) -> Result<Box<dyn Captured<()>>, Failure> {
        let mut guest = self.rig.guest(self.index);
        guest.taken = std::mem::take(&mut guest.written);
        guest.captured = guest.pages.clone();
        let pages = guest.taken.iter().map(|page| (*page, guest.pages[page])).collect();
        let base = guest.base.clone();
        drop(guest);
        self.finish(Phase::Capture)?;
        Ok(Box::new(Noted { index: self.index, kind: self.kind, base, pages, rig: self.rig.clone() }))
    }

    fn time(&self) -> Option<VirtualTime> {
        self.time
    }

    fn thaw(&mut self) -> Result<(), Failure> {
        self.finish(Phase::Thaw)
    }

    fn settle(&mut self, outcome: Outcome<'_>) {
        let mut guest = self.rig.guest(self.index);
        let taken = std::mem::take(&mut guest.taken);
        match outcome {
            Outcome::Permanent(state) => guest.base = from_value(state.details.clone()).expect("it was saved so"),
            Outcome::Aborted => guest.written.extend(taken),
        }
        drop(guest);
        self.rig.tell(Event::Settle(self.index, matches!(outcome, Outcome::Permanent(_))));
        if self.rig.fails()[self.index] == Fails::Settle {
            resume_unwind(Box::new("a part"));
        }
    }
}

/// Parts of an experiment that has run for a moment; of two machines, the second is behind.
fn experiment(kinds: &[PartKind], fails: &[Fails], panics: bool) -> (Arc<Rig>, Arc<Mutex<Parts<()>>>) {
    let guests = kinds.iter().map(|_| Mutex::default()).collect();
    let rig = Arc::new(Rig { guests, fails: Mutex::new(fails.to_vec()), panics, ..Rig::default() });
    let time = |index: usize| (kinds[index] == PartKind::Machine).then(|| VirtualTime::from_ns(2000 - 500 * index as u64));
    let part = |index: usize| Box::new(Fake { index, kind: kinds[index], time: time(index), rig: rig.clone() }) as Box<dyn Part<()>>;
    let parts = Arc::new(Mutex::new((0..kinds.len()).map(part).collect::<Vec<_>>()));
    rig.parts.set(Arc::downgrade(&parts)).expect("once");
    rig.clock.go_on(None, monotonic());
    rig.all_write();
    (rig, parts)
}

/// Two machines, one of them with a disk, and the network.
const KINDS: [PartKind; 4] = [PartKind::Machine, PartKind::Disk, PartKind::Machine, PartKind::Network];

fn run(fails: [Fails; 4], in_turn: bool, panics: bool) -> (Result<(), PartFailure>, Vec<Event>) {
    let (rig, _parts) = experiment(&KINDS, &fails, panics);
    let result = rig.checkpoint(in_turn, Commit::Done);
    rig.check_settled(result.is_ok());
    let events = rig.events.lock().unwrap().clone();
    if panics && result.is_err() {
        rig.there_is_no_next_one();
    } else {
        rig.the_next_one_is_complete();
    }
    (result, events)
}

fn check(fails: [Fails; 4], in_turn: bool, panics: bool) {
    let (result, events) = run(fails, in_turn, panics);
    let at = |event: Event| events.iter().position(|found| *found == event);
    for (index, fails_here) in fails.into_iter().enumerate() {
        for phase in PHASES {
            // What was begun is waited for, unless beginning failed; nothing happens twice.
            let (begun, finished) = (at(Event::Begin(index, phase)), at(Event::Finish(index, phase)));
            let expected = begun.is_some() && fails_here != Fails::Begin(phase);
            assert_eq!(finished.is_some(), expected, "{fails:?}: {events:?}");
            assert!(finished.is_none_or(|finished| finished > begun.expect("it was begun")));
            // But for going on, which somebody who panicked tries once more.
            let tries = if panics && phase == Phase::Thaw { 2 } else { 1 };
            let begun = events.iter().filter(|event| **event == Event::Begin(index, phase)).count();
            assert!(begun <= tries, "{fails:?}: {events:?}");
        }
        // Whoever was to be frozen goes on, whatever it or anybody else did.
        let [freeze, thaw] = [Phase::Freeze, Phase::Thaw].map(|phase| at(Event::Begin(index, phase)));
        assert_eq!(freeze.is_some(), thaw.is_some(), "{fails:?}: {events:?}");
        assert!(thaw >= freeze);
    }
    if !in_turn && let [Some(a), Some(b)] = [0, 2].map(|machine| at(Event::Begin(machine, Phase::Freeze))) {
        let waited = [0, 2].into_iter().filter_map(|machine| at(Event::Finish(machine, Phase::Freeze)));
        assert!(waited.min().is_none_or(|first| first > a && first > b), "one is waited for before the other is asked: {events:?}");
    }
    match result {
        Ok(()) => assert!(fails.iter().all(|fails| *fails == Fails::Never)),
        Err(failure) => {
            let index = NAMES.iter().position(|name| *name == failure.part).expect("it is one of the parts");
            assert_ne!(fails[index], Fails::Never, "{failure}");
            // A failure to go on is what people must be told.
            let stands = fails.iter().enumerate().any(|(index, fails)| {
                matches!(fails, Fails::Begin(Phase::Thaw) | Fails::Finish(Phase::Thaw)) && at(Event::Begin(index, Phase::Thaw)).is_some()
            });
            assert_eq!(failure.phase == THAW, stands, "{failure}: {fails:?}");
        }
    }
}

#[test]
fn whoever_fails_wherever_everybody_goes_on() {
    let ways = ways();
    for a in &ways {
        for disk in &ways {
            for b in &ways {
                for network in &ways {
                    check([*a, *disk, *b, *network], false, false);
                }
                check([*a, *disk, *b, Fails::Never], true, false);
                check([*a, *disk, *b, Fails::Never], false, true);
            }
        }
    }
}

/// Every way in which parts can be saved, of which there are one, two or three of any kind: they are saved one after the other, in every order there is.
#[test]
fn whoever_cannot_be_saved_nothing_is_kept_and_nothing_is_lost() {
    let kinds = [PartKind::Machine, PartKind::Disk, PartKind::Network];
    for count in 1..=3 {
        for kinds in choices(&kinds, count) {
            for fails in choices(&SAVES, count) {
                for commit in [Commit::Done, Commit::Refused, Commit::Panic] {
                    check_saving(&kinds, &fails, commit);
                }
            }
        }
    }
}

/// All lists of so many of these.
fn choices<T: Clone>(of: &[T], count: usize) -> Vec<Vec<T>> {
    let longer = |list: Vec<T>| of.iter().map(move |one| [list.as_slice(), std::slice::from_ref(one)].concat());
    (0..count).fold(vec![Vec::new()], |lists, _| lists.into_iter().flat_map(longer).collect())
}

fn check_saving(kinds: &[PartKind], fails: &[Fails], commit: Commit) {
    let (rig, _parts) = experiment(kinds, fails, false);
    let result = rig.checkpoint(false, commit);
    let case = format!("{kinds:?}: {fails:?}, {commit:?}");
    // Disks, then machines, then networks; and nobody after the first that fails.
    let order = [PartKind::Disk, PartKind::Machine, PartKind::Network];
    let order = order.iter().flat_map(|kind| (0..kinds.len()).filter(move |index| kinds[*index] == *kind));
    let order: Vec<_> = order.collect();
    let first = order.iter().position(|index| fails[*index] != Fails::Never);
    let tried: Vec<_> = order.iter().take(first.map_or(order.len(), |first| first + 1)).map(|index| Event::Save(*index)).collect();
    let saved: Vec<_> = rig.events.lock().unwrap().iter().filter(|event| matches!(event, Event::Save(_))).copied().collect();
    assert_eq!(saved, tried, "{case}");
    let expected = match (first, commit) {
        (Some(first), _) => Some((NAMES[order[first]], "save")),
        (None, Commit::Done) => None,
        (None, _) => Some(("the store", "commit")),
    };
    let failure = result.as_ref().err();
    assert_eq!(failure.map(|failure| (failure.part.as_str(), failure.phase)), expected, "{case}");
    assert_eq!(rig.permanent.lock().unwrap().is_empty(), expected.is_some(), "{case}");
    rig.check_settled(expected.is_none());
    rig.the_next_one_is_complete();
}

/// Who begins a phase, in order.
fn begin(events: &[Event], phase: Phase) -> Vec<usize> {
    events.iter().filter_map(|event| if let Event::Begin(part, of) = event { (*of == phase).then_some(*part) } else { None }).collect()
}

#[test]
fn who_stands_earliest_goes_on_first_and_the_network_last() {
    let (result, events) = run([Fails::Never; 4], false, false);
    assert!(result.is_ok());
    assert_eq!(begin(&events, Phase::Thaw), [1, 2, 0, 3]);
    assert_eq!(begin(&events, Phase::Freeze), [3, 0, 2, 1]);
}

#[test]
fn whoever_panicked_when_it_was_captured_goes_on_in_its_turn() {
    let mut fails = [Fails::Never; 4];
    fails[0] = Fails::Finish(Phase::Capture);
    let (result, events) = run(fails, false, true);
    assert_eq!(result.expect_err("it panicked").phase, "capture");
    assert_eq!(begin(&events, Phase::Thaw), [1, 2, 0, 3]);
}

#[test]
fn whoever_panics_before_it_goes_on_does_all_the_same_and_so_do_the_others() {
    for stuck in 0..NAMES.len() {
        let mut fails = [Fails::Never; 4];
        fails[stuck] = Fails::Stuck;
        let (rig, _parts) = experiment(&KINDS, &fails, true);
        let failure = rig.checkpoint(false, Commit::Done).expect_err("it panicked");
        assert_eq!((failure.part.as_str(), failure.phase), (NAMES[stuck], THAW));
        rig.check_settled(false);
        // Fails if anybody stands.
        rig.all_write();
        *rig.fails.lock().unwrap() = fails.to_vec();
        rig.there_is_no_next_one();
    }
}

#[test]
fn whoever_looks_on_and_panics_leaves_nobody_standing() {
    for at in [Moment::Prepared, Moment::Frozen] {
        let (rig, parts) = experiment(&KINDS, &[Fails::Never; 4], false);
        let taken = take(&mut parts.lock().unwrap(), (), Manner::default(), &rig.clock, &mut |moment| {
            if moment == at {
                resume_unwind(Box::new("whoever looks on"));
            }
        });
        let failure = taken.err().expect("somebody panicked");
        assert_eq!(failure.phase, if at == Moment::Prepared { "prepare" } else { "capture" });
        rig.check_settled(false);
        rig.the_next_one_is_complete();
    }
}

#[test]
fn whoever_panics_when_it_is_told_the_end_keeps_nobody_else_from_it() {
    for commit in [Commit::Done, Commit::Refused] {
        let mut fails = [Fails::Never; 4];
        fails[0] = Fails::Settle;
        let (rig, _parts) = experiment(&KINDS, &fails, false);
        let permanent = rig.checkpoint(false, commit).is_ok();
        assert_eq!(permanent, matches!(commit, Commit::Done));
        rig.check_settled(permanent);
        rig.permanent.lock().unwrap().clear();
        rig.there_is_no_next_one();
    }
}

#[test]
fn all_that_fail_together_are_named() {
    let dead = Fails::Finish(Phase::Freeze);
    let (result, _) = run([dead, Fails::Never, dead, Fails::Never], false, false);
    let message = result.expect_err("it fails").to_string();
    assert_eq!(message, "a could not freeze: it does not answer; nor could b");
}

#[test]
fn an_instant_is_waited_for_with_all_held() {
    let held_before = || {
        let (rig, parts) = experiment(&KINDS, &[Fails::Never; 4], false);
        let at = VirtualTime::from_ns(30_000_000);
        let manner = Manner { at: Some(at), ..Manner::default() };
        let (mut held, mut stood) = (VirtualTime::default(), VirtualTime::default());
        let taken = take(&mut parts.lock().unwrap(), (), manner, &rig.clock, &mut |moment| match moment {
            Moment::Prepared => held = rig.clock.at(monotonic()),
            Moment::Frozen => stood = rig.clock.at(monotonic()),
        });
        assert!(taken.is_ok());
        assert!(stood >= at, "{stood}");
        held < at
    };
    // On a busy host whoever waits may lose the processor for longer than that. Not each time.
    assert!((0..100).any(|_| held_before()), "what is to be held is held before the instant");
}

#[test]
fn no_earlier_instant_is_taken_for_one_that_never_comes() {
    let (rig, parts) = experiment(&KINDS, &[Fails::Never; 4], false);
    let manner = Manner { at: Some(VirtualTime::from_ns(30_000_000)), ..Manner::default() };
    let taken = take(&mut parts.lock().unwrap(), (), manner, &rig.clock, &mut |moment| {
        assert_eq!(moment, Moment::Prepared);
        // As by somebody who takes the run elsewhere.
        rig.clock.stop_at(VirtualTime::from_ns(1));
    });
    let failure = taken.err().expect("it never comes");
    assert_eq!(failure.phase, "prepare");
    assert!(failure.to_string().contains("it was stopped at"), "{failure}");
    assert!(!rig.clock.runs(), "nobody but who stopped it has it go on");
    rig.check_settled(false);
    rig.clock.go_on(None, monotonic());
    rig.the_next_one_is_complete();
}
