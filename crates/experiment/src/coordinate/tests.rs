//! Every way in which several parts can fail together, with parts that do nothing but note what they are asked.

use super::*;
use std::sync::{Arc, Mutex};

/// Parts here keep nothing.
impl Storage for () {
    fn stored_bytes(&mut self) -> Result<u64, Failure> {
        Ok(0)
    }
}

/// Where a part fails: when a phase is begun, or when it is waited for, as one does that dies or does not answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fails {
    Never,
    Prepare,
    CatchUp,
    Begin(Phase),
    Finish(Phase),
}

const PHASES: [Phase; 3] = [Phase::Freeze, Phase::Capture, Phase::Thaw];

fn ways() -> Vec<Fails> {
    let phases = PHASES.into_iter().flat_map(|phase| [Fails::Begin(phase), Fails::Finish(phase)]);
    [Fails::Never, Fails::Prepare, Fails::CatchUp].into_iter().chain(phases).collect()
}

/// What a part was asked, in the order of all parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Begin(usize, Phase),
    Finish(usize, Phase),
    Settle(usize),
}

type Events = Arc<Mutex<Vec<Event>>>;

struct Fake {
    index: usize,
    kind: PartKind,
    fails: Fails,
    time: Option<VirtualTime>,
    events: Events,
}

impl Fake {
    fn tell(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn unless(&self, fails: Fails) -> Result<(), Failure> {
        if self.fails == fails { Err("it does not answer".into()) } else { Ok(()) }
    }

    fn finish(&self, phase: Phase) -> Result<(), Failure> {
        self.tell(Event::Finish(self.index, phase));
        self.unless(Fails::Finish(phase))
    }
}

struct Nothing;

impl Captured<()> for Nothing {
    fn save(self: Box<Self>, (): &mut ()) -> Result<Saved, Failure> {
        Err("nothing is saved here".into())
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
        self.unless(Fails::Prepare)
    }

    fn catch_up(&mut self) -> Result<(), Failure> {
        self.unless(Fails::CatchUp)
    }

    fn begin(&mut self, phase: Phase) -> Result<(), Failure> {
        self.tell(Event::Begin(self.index, phase));
        self.unless(Fails::Begin(phase))
    }

    fn freeze(&mut self) -> Result<(), Failure> {
        self.finish(Phase::Freeze)
    }

    fn capture(&mut self) -> Result<Box<dyn Captured<()>>, Failure> {
        self.finish(Phase::Capture)?;
        Ok(Box::new(Nothing))
    }

    fn time(&self) -> Option<VirtualTime> {
        self.time
    }

    fn thaw(&mut self) -> Result<(), Failure> {
        self.finish(Phase::Thaw)
    }

    fn settle(&mut self, _: Outcome<'_>) {
        self.tell(Event::Settle(self.index));
    }
}

/// Two machines, one of them with a disk, and the network; `b` is behind `a` by a moment.
fn parts(fails: [Fails; 4]) -> (Parts<()>, Events) {
    let events = Events::default();
    let kinds = [PartKind::Machine, PartKind::Disk, PartKind::Machine, PartKind::Network];
    let times = [Some(VirtualTime::from_ns(2000)), None, Some(VirtualTime::from_ns(1000)), None];
    let part = |index: usize| {
        Box::new(Fake { index, kind: kinds[index], fails: fails[index], time: times[index], events: events.clone() }) as Box<dyn Part<()>>
    };
    ((0..4).map(part).collect(), events)
}

fn run(fails: [Fails; 4], in_turn: bool) -> (Result<Tentative<()>, PartFailure>, Vec<Event>) {
    let (mut parts, events) = parts(fails);
    let clock = GuestClock::default();
    clock.go_on(None, monotonic());
    let result = take(&mut parts, (), Manner { in_turn, ..Manner::default() }, &clock, &mut |_| {});
    assert!(clock.runs(), "time stands still after {fails:?}");
    let events = events.lock().unwrap().clone();
    (result, events)
}

fn check(fails: [Fails; 4], in_turn: bool) {
    let (result, events) = run(fails, in_turn);
    let at = |event: Event| events.iter().position(|found| *found == event);
    for (index, fails_here) in fails.into_iter().enumerate() {
        for phase in PHASES {
            // What was begun is waited for, unless beginning failed; nothing happens twice.
            let (begun, finished) = (at(Event::Begin(index, phase)), at(Event::Finish(index, phase)));
            let expected = begun.is_some() && fails_here != Fails::Begin(phase);
            assert_eq!(finished.is_some(), expected, "{fails:?}: {events:?}");
            assert!(finished.is_none_or(|finished| finished > begun.expect("it was begun")));
            assert!(events.iter().filter(|event| **event == Event::Begin(index, phase)).count() < 2, "{fails:?}: {events:?}");
        }
        // Whoever was to be frozen goes on, whatever it or anybody else did.
        let [freeze, thaw] = [Phase::Freeze, Phase::Thaw].map(|phase| at(Event::Begin(index, phase)));
        assert_eq!(freeze.is_some(), thaw.is_some(), "{fails:?}: {events:?}");
        assert!(thaw >= freeze);
        assert_eq!(at(Event::Settle(index)).is_some(), result.is_err(), "{fails:?}: {events:?}");
    }
    if !in_turn && let [Some(a), Some(b)] = [0, 2].map(|machine| at(Event::Begin(machine, Phase::Freeze))) {
        let waited = [0, 2].into_iter().filter_map(|machine| at(Event::Finish(machine, Phase::Freeze)));
        assert!(waited.min().is_none_or(|first| first > a && first > b), "one is waited for before the other is asked: {events:?}");
    }
    match result {
        Ok(tentative) => {
            assert!(fails.iter().all(|fails| *fails == Fails::Never));
            assert_eq!(tentative.captured.len(), 4);
        }
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
                    check([*a, *disk, *b, *network], false);
                }
                check([*a, *disk, *b, Fails::Never], true);
            }
        }
    }
}

#[test]
fn who_stands_earliest_goes_on_first_and_the_network_last() {
    let (result, events) = run([Fails::Never; 4], false);
    assert!(result.is_ok());
    let thawed: Vec<_> =
        events.iter().filter_map(|event| if let Event::Begin(part, Phase::Thaw) = event { Some(*part) } else { None }).collect();
    assert_eq!(thawed, [1, 2, 0, 3]);
    let frozen: Vec<_> =
        events.iter().filter_map(|event| if let Event::Begin(part, Phase::Freeze) = event { Some(*part) } else { None }).collect();
    assert_eq!(frozen, [3, 0, 2, 1]);
}

#[test]
fn all_that_fail_together_are_named() {
    let dead = Fails::Finish(Phase::Freeze);
    let (result, _) = run([dead, Fails::Never, dead, Fails::Never], false);
    let message = result.err().expect("it fails").to_string();
    assert_eq!(message, "a could not freeze: it does not answer; nor could b");
}

#[test]
fn an_instant_is_waited_for() {
    let (mut parts, _) = parts([Fails::Never; 4]);
    let clock = GuestClock::default();
    clock.go_on(None, monotonic());
    let at = VirtualTime::from_ns(30_000_000);
    let manner = Manner { at: Some(at), ..Manner::default() };
    let mut prepared = VirtualTime::default();
    let taken = take(&mut parts, (), manner, &clock, &mut |moment| {
        if moment == Moment::Prepared {
            prepared = clock.at(monotonic());
        }
    });
    assert!(taken.is_ok());
    assert!(prepared >= at, "{prepared}");
}
