//! Events over checkpoints, journeys and forks at any time around them: none is early, and each happens once in every line of checkpoints.

use super::*;
use fermata_types::VirtualTime;
use proptest::prelude::*;

/// How far a guest's own clock may be from what was thought of it while it ran.
const APART: u64 = 2_000;
const END: u64 = 100_000;

#[derive(Debug, Clone)]
enum Step {
    /// Host time passes.
    Pass(u64),
    /// Lets happen what is due.
    Look,
    /// Commands that wait begin, as far as this many.
    Begin(usize),
    /// Time passes between the moment from which events are held and that at which the guests stand, and while they stand. And their clocks show so much more or
    /// less than was thought.
    Checkpoint {
        held: u64,
        stood: u64,
        apart: i64,
    },
    Goto(prop::sample::Index),
    /// The run goes on in a copy, and the first one is left where it is. Then the other one has its turn.
    Fork(prop::sample::Index),
    Pause,
    Resume,
}

/// What a checkpoint has of it, with what had come to pass in its line.
#[derive(Clone, Default)]
struct Kept {
    at: VirtualTime,
    happened: u64,
    waiting: Vec<Waiting>,
    past: Past,
}

/// The events of a line, and the commands that began in it, in the order in which they did.
#[derive(Debug, Clone, Default, PartialEq)]
struct Past {
    happened: Vec<u64>,
    begun: Vec<Waiting>,
}

/// A body.
struct Life {
    events: Events,
    clock: GuestClock,
    past: Past,
}

impl Life {
    /// One that goes on from a checkpoint, as a body that is restored does.
    fn at(list: &[Event], kept: &Kept, host: u64) -> Self {
        let life = Self { events: Events::new(list.to_vec(), Vec::new()), clock: GuestClock::default(), past: kept.past.clone() };
        life.events.restore(kept.happened, &kept.waiting);
        life.clock.stop_at(kept.at);
        life.clock.go_on(None, Duration::from_nanos(host));
        life
    }

    /// Returns how long until the next one.
    fn look(&mut self, host: u64) -> Option<Duration> {
        let Self { events, clock, past } = self;
        let now = Duration::from_nanos(host);
        let left = events.happen(clock, &|| now, &mut |event, waiting, late| {
            let Waiting::Event(number) = waiting else { panic!("no event: {waiting:?}") };
            assert!(clock.at(now) >= event.at, "early: {} at {}", event.at, clock.at(now));
            assert_eq!(event.at.ns + late.as_nanos() as u64, clock.at(now).ns, "it says how late it is");
            past.happened.push(number);
        });
        let at = clock.at(now);
        if clock.runs() {
            let due = self.events.list.iter().filter(|event| event.at <= at).count();
            assert!(self.past.happened.len() >= due, "something is due at {at} and did not happen");
            let next = self.events.list.get(self.past.happened.len());
            assert_eq!(left.map(|left| at.ns + left.as_nanos() as u64), next.map(|next| next.at.ns), "it says when the next one is due");
        }
        left
    }

    fn begin(&mut self, count: usize) {
        for waiting in self.events.waiting().into_iter().take(count) {
            assert_eq!(self.events.begin(&waiting, || ()), Some(()));
            self.past.begun.push(waiting);
        }
    }

    fn checkpoint(&mut self, host: &mut u64, held: u64, stood: u64, apart: i64) -> Kept {
        let ran = self.clock.runs();
        let progress = self.events.hold();
        *host += held;
        self.clock.stop(Duration::from_nanos(*host));
        let thought = self.clock.at(Duration::from_nanos(*host)).ns;
        let at = VirtualTime::from_ns(if ran { thought.saturating_add_signed(apart) } else { thought });
        let kept = Kept { at, happened: progress.happened, waiting: progress.waiting.iter().cloned().collect(), past: self.past.clone() };
        drop(progress);
        *host += stood;
        if ran {
            self.clock.go_on(Some(at), Duration::from_nanos(*host));
        }
        kept
    }

    /// Whatever became of it, each came to pass once, in its order; and each command that is due has begun or waits.
    fn check(&self) {
        let count = self.past.happened.len() as u64;
        assert_eq!(self.past.happened, (0..count).collect::<Vec<_>>(), "each once, in order");
        assert_eq!(self.events.hold().happened, count);
        let is_command = |number: &u64| matches!(self.events.list[*number as usize].action, Action::Exec { .. });
        let due: Vec<_> = self.past.happened.iter().copied().filter(is_command).map(Waiting::Event).collect();
        let mut known = [self.past.begun.clone(), self.events.waiting()].concat();
        known.sort();
        assert_eq!(known, due, "a command began twice, or was forgotten");
    }
}

fn list() -> impl Strategy<Value = Vec<Event>> {
    let command = Action::Exec { machine: "a".to_owned(), run: "true".to_owned() };
    let link = Action::Link { interface: "a:eth1".parse().expect("an endpoint"), change: fermata_net::Change::default() };
    let action = prop_oneof![Just(command), Just(link)];
    // Some of them at the same time.
    let at = prop_oneof![0..END, Just(END / 2), Just(END / 2 + 1)];
    prop::collection::vec((at, action).prop_map(|(at, action)| Event { at: VirtualTime::from_ns(at), action }), 1..8)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let time = || prop_oneof![0..10_u64, 0..END / 4];
    let apart = prop_oneof![Just(0), -(APART as i64)..=APART as i64];
    let step = prop_oneof![
        6 => time().prop_map(Step::Pass),
        6 => Just(Step::Look),
        2 => (0..4_usize).prop_map(Step::Begin),
        4 => (time(), time(), apart).prop_map(|(held, stood, apart)| Step::Checkpoint { held, stood, apart }),
        3 => any::<prop::sample::Index>().prop_map(Step::Goto),
        2 => any::<prop::sample::Index>().prop_map(Step::Fork),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn in_every_line_each_event_happens_once_and_none_is_early(list in list(), steps in steps()) {
        let mut host = 1_000;
        // Everything has a beginning to go back to.
        let mut kept = vec![Kept::default()];
        let mut lives = std::collections::VecDeque::from([Life::at(&list, &kept[0], host)]);
        for step in &steps {
            let life = &mut lives[0];
            match step {
                Step::Pass(time) => host += time,
                Step::Look => {
                    life.look(host);
                }
                Step::Begin(count) => life.begin(*count),
                Step::Checkpoint { held, stood, apart } => kept.push(life.checkpoint(&mut host, *held, *stood, *apart)),
                Step::Goto(to) => *life = Life::at(&list, to.get(&kept), host),
                Step::Fork(of) => lives.push_front(Life::at(&list, of.get(&kept), host)),
                Step::Pause => life.clock.stop(Duration::from_nanos(host)),
                Step::Resume if !life.clock.runs() => life.clock.go_on(None, Duration::from_nanos(host)),
                Step::Resume => lives.rotate_left(1),
            }
            lives.iter().for_each(Life::check);
        }
        // All come to their end.
        for life in &mut lives {
            if !life.clock.runs() {
                life.clock.go_on(None, Duration::from_nanos(host));
            }
            prop_assert_eq!(life.look(host + 2 * END + APART), None, "nothing is left");
            prop_assert_eq!(life.past.happened.len(), list.len());
            life.begin(list.len());
            life.check();
        }
    }

    /// Whoever looks when he was told to is not late by a nanosecond, whatever checkpoints were taken in between.
    #[test]
    fn whoever_looks_when_he_was_told_to_is_never_late(list in list(), pauses in prop::collection::vec((0..END / 8, 0..END), 0..12)) {
        let mut host = 1_000;
        let mut life = Life::at(&list, &Kept::default(), host);
        let mut pauses = pauses.into_iter();
        let mut last = 0;
        while let Some(left) = life.look(host).map(|left| left.as_nanos() as u64) {
            let before = match pauses.next() {
                Some((after, stood)) if after < left => {
                    host += after;
                    life.checkpoint(&mut host, 0, stood, 0);
                    left - after
                }
                _ => left,
            };
            host += before;
            last = life.clock.at(Duration::from_nanos(host)).ns;
            let due = life.events.list[life.past.happened.len()].at.ns;
            prop_assert_eq!(last, due);
        }
        prop_assert_eq!(life.past.happened.len(), list.len());
        prop_assert!(list.iter().all(|event| event.at.ns <= last));
    }
}
