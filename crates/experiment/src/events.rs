//! What happens in an experiment by itself: the `events` of its specification at given virtual times, and addresses that guests are given.
//!
//! How many events have happened belongs to each checkpoint, so that after a `goto` the same ones are still to come. An event and an instant are
//! never half within each other: whoever takes a checkpoint holds the events from before it freezes anything until everything is captured.
//!
//! A command that is due waits until its guest's agent answers, and then begins there, once. What waits belongs to the checkpoint too. What has begun
//! is the guest's: it goes on there after a `goto`, and nobody waits for its end.

use crate::{
    guest_clock::GuestClock,
    plan::Address,
    spec::{Action, Event},
};
use fermata_store::Waiting;
use std::{
    collections::BTreeSet,
    sync::{Condvar, Mutex, MutexGuard},
    time::Duration,
};

/// A checkpoint waits no longer for commands that are just beginning in guests: one that does not answer must not hold it up.
const BEGINNING_MAX: Duration = Duration::from_secs(1);

/// The events of a body, in the order of their times, and the addresses of its guests.
#[derive(Debug)]
pub(crate) struct Events {
    list: Vec<Event>,
    addresses: Vec<Address>,
    progress: Mutex<Progress>,
    begun: Condvar,
}

/// How far they are.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// How many have happened, the first ones in the order of their times.
    pub happened: u64,
    /// Commands that are due and have not begun.
    pub waiting: BTreeSet<Waiting>,
    /// How many are just beginning: their guests were told, and have not answered.
    beginning: u32,
}

impl Events {
    /// None of these has happened, and no guest has its address.
    pub fn new(mut list: Vec<Event>, addresses: Vec<Address>) -> Self {
        list.sort_by_key(|event| event.at);
        let waiting = addresses.iter().map(|address| Waiting::Address(address.interface.clone())).collect();
        Self { list, addresses, progress: Mutex::new(Progress { waiting, ..Progress::default() }), begun: Condvar::new() }
    }

    /// They are as far as in a checkpoint.
    pub fn restore(&self, happened: u64, waiting: &[Waiting]) {
        let mut progress = self.progress();
        (progress.happened, progress.waiting) = (happened, waiting.iter().cloned().collect());
    }

    /// How far they are. None happens and no command begins while this is held.
    pub fn hold(&self) -> MutexGuard<'_, Progress> {
        let progress = self.progress();
        let held = self.begun.wait_timeout_while(progress, BEGINNING_MAX, |progress| progress.beginning > 0);
        held.expect("nobody panics with the lock").0
    }

    /// Commands that are due and have not begun.
    pub fn waiting(&self) -> Vec<Waiting> {
        self.progress().waiting.iter().cloned().collect()
    }

    /// The machine that is to run a command, and the command.
    pub fn command(&self, waiting: &Waiting) -> Option<(&str, &str)> {
        match waiting {
            Waiting::Event(number) => match &self.list.get(usize::try_from(*number).ok()?)?.action {
                Action::Exec { machine, run } => Some((machine.as_str(), run.as_str())),
                Action::Link { .. } => None,
            },
            Waiting::Address(interface) => {
                let address = self.addresses.iter().find(|address| address.interface == *interface)?;
                Some((address.machine.as_str(), address.command.as_str()))
            }
        }
    }

    /// Lets a command begin that waits. In a checkpoint it either has or has not; unless its guest takes very long to say so.
    pub fn begin<R>(&self, waiting: &Waiting, begin: impl FnOnce() -> R) -> Option<R> {
        let mut progress = self.progress();
        if !progress.waiting.remove(waiting) {
            return None;
        }
        progress.beginning += 1;
        drop(progress);
        let begun = begin();
        self.progress().beginning -= 1;
        self.begun.notify_all();
        Some(begun)
    }

    /// A command cannot begin, and nobody will try again.
    pub fn give_up(&self, waiting: &Waiting) {
        self.progress().waiting.remove(waiting);
    }

    /// Lets happen what is due by this clock; `now` reads the host's. A command waits from then on, and `event` is told so, and by how much of
    /// virtual time the event is late. Returns how long until the next one, if there is one and the guests run.
    pub fn happen(
        &self,
        clock: &GuestClock,
        now: &dyn Fn() -> Duration,
        event: &mut dyn FnMut(&Event, Waiting, Duration),
    ) -> Option<Duration> {
        let mut progress = self.progress();
        loop {
            let number = progress.happened;
            let next = usize::try_from(number).ok().and_then(|next| self.list.get(next))?;
            let at = clock.runs().then(|| clock.at(now()))?;
            if at < next.at {
                return Some(next.at.since_start().saturating_sub(at.since_start()));
            }
            let late = at.since_start().saturating_sub(next.at.since_start());
            if matches!(next.action, Action::Exec { .. }) {
                progress.waiting.insert(Waiting::Event(number));
            }
            event(next, Waiting::Event(number), late);
            progress.happened += 1;
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("nobody panics with the lock")
    }
}

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_linux::clock::monotonic;
    use fermata_types::VirtualTime;
    use std::{sync::mpsc, thread};

    fn at(seconds: u64, machine: &str) -> Event {
        let action = Action::Exec { machine: machine.to_owned(), run: "true".to_owned() };
        Event { at: VirtualTime::from_ns(seconds * 1_000_000_000), action }
    }

    fn address() -> Address {
        Address { interface: "a:eth1".into(), machine: "a".into(), command: "ip".into() }
    }

    fn list() -> Vec<Event> {
        vec![at(3000, "late"), at(2, "second"), at(1, "first"), at(2, "third")]
    }

    fn clock() -> GuestClock {
        let clock = GuestClock::default();
        clock.stop_at(VirtualTime::from_ns(2_500_000_000));
        clock
    }

    #[test]
    fn they_happen_once_in_their_order_and_only_while_time_passes() {
        let (clock, events) = (clock(), Events::new(list(), Vec::new()));
        let mut seen = Vec::new();
        let mut look = |clock: &GuestClock, events: &Events| {
            let left = events.happen(clock, &monotonic, &mut |event, waiting, _| match &event.action {
                Action::Exec { machine, .. } => {
                    assert_eq!(events.command(&waiting), Some((machine.as_str(), "true")));
                    seen.push(machine.clone());
                }
                Action::Link { .. } => unreachable!("there is none"),
            });
            (left, std::mem::take(&mut seen))
        };
        assert_eq!(look(&clock, &events), (None, vec![]), "the guests stand still");
        clock.go_on(None, monotonic());
        let (left, happened) = look(&clock, &events);
        assert_eq!(happened, ["first", "second", "third"]);
        assert!(left.is_some_and(|left| left > Duration::from_secs(2000)), "{left:?}");
        assert_eq!(look(&clock, &events).1, Vec::<String>::new());
        assert_eq!(events.hold().happened, 3);
        let later = Events::new(list(), Vec::new());
        later.restore(2, &[]);
        assert_eq!(look(&clock, &later).1, ["third"], "two had happened at the checkpoint");
    }

    #[test]
    fn what_is_due_waits_in_checkpoints_until_it_has_begun() {
        let (clock, events) = (clock(), Events::new(list(), vec![address()]));
        let address = Waiting::Address("a:eth1".into());
        assert_eq!(events.command(&address), Some(("a", "ip")));
        clock.go_on(None, monotonic());
        events.happen(&clock, &monotonic, &mut |_, _, _| {});
        let all = [0, 1, 2].map(Waiting::Event);
        assert_eq!(events.waiting(), [&all[..], std::slice::from_ref(&address)].concat());
        assert_eq!(events.begin(&all[1], || "begun"), Some("begun"));
        assert_eq!(events.begin(&all[1], || "again"), None, "nothing is run twice");
        events.give_up(&all[0]);
        let restored = Events::new(list(), vec![self::address()]);
        let waiting = events.hold().waiting.iter().cloned().collect::<Vec<_>>();
        restored.restore(3, &waiting);
        assert_eq!(restored.waiting(), [all[2].clone(), address]);
        // One of another specification is nobody's.
        assert_eq!(restored.command(&Waiting::Event(4)), None);
        assert_eq!(restored.command(&Waiting::Address("b:eth1".into())), None);
    }

    #[test]
    fn an_instant_waits_for_a_command_that_is_just_beginning_and_none_begins_in_it() {
        let events = Events::new(Vec::new(), vec![address(), Address { interface: "b:eth1".into(), ..address() }]);
        let [a, b] = ["a:eth1", "b:eth1"].map(|interface| Waiting::Address(interface.into()));
        let (told, hears) = mpsc::channel();
        let (answer, answered) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let events = &events;
            scope.spawn(move || {
                events.begin(&a, || {
                    told.send(()).unwrap();
                    answered.recv().unwrap();
                })
            });
            hears.recv().unwrap();
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(20));
                answer.send(()).unwrap();
            });
            let held = events.hold();
            assert_eq!((held.beginning, held.waiting.len()), (0, 1));
            let late = scope.spawn(move || events.begin(&b, || ()));
            thread::sleep(Duration::from_millis(20));
            assert!(held.waiting.len() == 1 && !late.is_finished());
            drop(held);
        });
        assert!(events.waiting().is_empty());
    }
}
