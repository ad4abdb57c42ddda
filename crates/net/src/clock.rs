//! Virtual time, made of the host's: it stands still while the machines do.
//!
//! Machines do not stop at once, and frames come until the last one stands. So the clock runs until then, and remembers what it showed before the
//! first one was told to stop. That is the instant of a checkpoint, and where it goes on if nobody knows better: what is on its way is never due
//! earlier than its receiver expects it.

use fermata_types::VirtualTime;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The virtual time of an experiment.
#[derive(Debug)]
pub struct Clock {
    /// The host's monotonic clock.
    host: fn() -> Duration,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// The virtual time at the instant `since`, or for as long as there is none.
    at: VirtualTime,
    /// The host's time since when it runs.
    since: Option<Duration>,
    /// What it showed when the machines were about to stop.
    instant: Option<VirtualTime>,
}

impl State {
    fn at(&self, host: Duration) -> VirtualTime {
        let passed = self.since.map_or(Duration::ZERO, |since| host.saturating_sub(since));
        self.at.plus(passed)
    }

    const fn standing(at: VirtualTime) -> Self {
        Self { at, since: None, instant: None }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Clock {
    /// A clock that stands at this time. `host` is the host's monotonic clock.
    pub fn standing(at: VirtualTime, host: fn() -> Duration) -> Self {
        Self { host, state: Mutex::new(State::standing(at)) }
    }

    /// The virtual time.
    pub fn now(&self) -> VirtualTime {
        self.read().0
    }

    /// The virtual time, and the host's.
    pub(crate) fn read(&self) -> (VirtualTime, Duration) {
        let state = self.state();
        // Read under the lock: what one thread reads after another is not before it.
        let host = (self.host)();
        (state.at(host), host)
    }

    /// Whether it runs.
    pub fn runs(&self) -> bool {
        self.state().since.is_some()
    }

    /// The machines are about to be told to stop.
    pub fn stopping(&self) {
        let mut state = self.state();
        if state.since.is_some() {
            state.instant = Some(state.at((self.host)()));
        }
    }

    /// Stands still from now on. Returns the virtual time at which it does.
    pub fn stop(&self) -> VirtualTime {
        let mut state = self.state();
        let at = state.at((self.host)());
        (state.at, state.since) = (at, None);
        at
    }

    /// What it showed when the machines were about to stop; or else what it shows now.
    pub fn instant(&self) -> VirtualTime {
        let state = self.state();
        state.instant.unwrap_or_else(|| state.at((self.host)()))
    }

    /// Goes on from [`instant`](Self::instant), now. One that runs goes on as it does.
    pub fn start(&self) {
        let mut state = self.state();
        if state.since.is_none() {
            *state = State { at: state.instant.unwrap_or(state.at), since: Some((self.host)()), instant: None };
        }
    }

    /// Goes on so that it is `at` at this time of the host.
    pub(crate) fn go_on(&self, at: VirtualTime, host: Duration) {
        *self.state() = State { at, since: Some(host), instant: None };
    }

    /// Stands at another time.
    pub fn set(&self, at: VirtualTime) {
        *self.state() = State::standing(at);
    }

    /// What it shows at a time of the host that may be past, as if it had run since before that.
    pub(crate) fn at(&self, host: Duration) -> VirtualTime {
        let state = self.state();
        let before = state.since.map_or(Duration::ZERO, |since| since.saturating_sub(host));
        VirtualTime::from_ns(state.at(host).ns.saturating_sub(nanoseconds(before)))
    }

    /// The host's time at which it will be so late, if it runs.
    pub(crate) fn host_time(&self, at: VirtualTime) -> Option<Duration> {
        let state = self.state();
        Some(state.since? + Duration::from_nanos(at.ns.saturating_sub(state.at.ns)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is changed in one go, so that a panic leaves a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local!(static HOST: Cell<u64> = const { Cell::new(0) });

    fn host() -> Duration {
        Duration::from_nanos(HOST.get())
    }

    #[test]
    fn time_passes_only_between_start_and_stop() {
        let clock = Clock::standing(VirtualTime::from_ns(1000), host);
        HOST.set(50);
        assert_eq!((clock.now().ns, clock.host_time(VirtualTime::from_ns(1010))), (1000, None));
        clock.start();
        HOST.set(60);
        clock.start();
        assert_eq!((clock.now().ns, clock.host_time(VirtualTime::from_ns(1030))), (1010, Some(Duration::from_nanos(80))));
        assert_eq!(clock.stop().ns, 1010);
        HOST.set(90);
        assert_eq!((clock.stop().ns, clock.now().ns), (1010, 1010));
        clock.start();
        HOST.set(91);
        assert_eq!(clock.now().ns, 1011);
        clock.set(VirtualTime::from_ns(5));
        HOST.set(100);
        assert_eq!(clock.now().ns, 5);
    }

    #[test]
    fn it_goes_on_from_before_the_machines_stopped() {
        let clock = Clock::standing(VirtualTime::from_ns(1000), host);
        clock.stopping();
        assert_eq!(clock.instant().ns, 1000);
        HOST.set(0);
        clock.start();
        HOST.set(10);
        clock.stopping();
        HOST.set(13);
        assert_eq!((clock.now().ns, clock.stop().ns, clock.instant().ns), (1013, 1013, 1010));
        // Told once more while it stands: there is nothing that could stop.
        clock.stopping();
        assert_eq!((clock.now().ns, clock.instant().ns), (1013, 1010));
        HOST.set(50);
        clock.start();
        HOST.set(52);
        assert_eq!((clock.now().ns, clock.instant().ns), (1012, 1012));
        clock.go_on(VirtualTime::from_ns(2000), Duration::from_nanos(55));
        HOST.set(60);
        assert_eq!((clock.now().ns, clock.at(Duration::from_nanos(50)).ns, clock.at(Duration::from_nanos(58)).ns), (2005, 1995, 2003));
    }
}
