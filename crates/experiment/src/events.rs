//! What happens in an experiment by itself at given virtual times: the `events` of its specification.
//!
//! How many have happened belongs to each checkpoint, so that after a `goto` the same ones are still to come. An event and an instant are never half
//! within each other: whoever takes a checkpoint holds the events from before it freezes anything until everything is captured.

use crate::{guest_clock::GuestClock, spec::Event};
use fermata_linux::clock::monotonic;
use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

/// The events of a body, in the order of their times.
#[derive(Debug)]
pub(crate) struct Events {
    list: Vec<Event>,
    happened: Mutex<u64>,
}

impl Events {
    /// None of these has happened.
    pub fn new(mut list: Vec<Event>) -> Self {
        list.sort_by_key(|event| event.at);
        Self { list, happened: Mutex::new(0) }
    }

    /// How many have happened, the first ones in the order of their times. None happens while this is held.
    pub fn hold(&self) -> MutexGuard<'_, u64> {
        self.happened.lock().expect("nobody panics with the lock")
    }

    /// Lets happen what is due by this clock. Returns how long until the next one, if there is one and the guests run.
    pub fn happen(&self, clock: &GuestClock, event: &mut dyn FnMut(&Event)) -> Option<Duration> {
        let mut happened = self.hold();
        loop {
            let next = usize::try_from(*happened).ok().and_then(|next| self.list.get(next))?;
            let left = clock.runs().then(|| clock.until(next.at, monotonic()))?;
            if !left.is_zero() {
                return Some(left);
            }
            event(next);
            *happened += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Action;
    use fermata_types::VirtualTime;

    fn at(seconds: u64, machine: &str) -> Event {
        let action = Action::Exec { machine: machine.to_owned(), run: "true".to_owned() };
        Event { at: VirtualTime::from_ns(seconds * 1_000_000_000), action }
    }

    #[test]
    fn they_happen_once_in_their_order_and_only_while_time_passes() {
        let list = vec![at(3000, "late"), at(2, "second"), at(1, "first"), at(2, "third")];
        let (clock, events) = (GuestClock::default(), Events::new(list.clone()));
        let mut seen = Vec::new();
        let mut look = |clock: &GuestClock, events: &Events| {
            let left = events.happen(clock, &mut |event| match &event.action {
                Action::Exec { machine, .. } => seen.push(machine.clone()),
                Action::Link { .. } => unreachable!("there is none"),
            });
            (left, std::mem::take(&mut seen))
        };
        clock.stop_at(VirtualTime::from_ns(2_500_000_000));
        assert_eq!(look(&clock, &events), (None, vec![]), "the guests stand still");
        clock.go_on(None, monotonic());
        let (left, happened) = look(&clock, &events);
        assert_eq!(happened, ["first", "second", "third"]);
        assert!(left.is_some_and(|left| left > Duration::from_secs(2000)), "{left:?}");
        assert_eq!(look(&clock, &events).1, Vec::<String>::new());
        assert_eq!(*events.hold(), 3);
        let later = Events::new(list);
        *later.hold() = 2;
        assert_eq!(look(&clock, &later).1, ["third"], "two had happened at the checkpoint");
    }
}
