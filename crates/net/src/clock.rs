//! Virtual time, made of the host's: it stands still while the machines do.

use fermata_types::VirtualTime;
use std::{
    sync::{Mutex, MutexGuard},
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
}

impl State {
    fn at(&self, host: Duration) -> VirtualTime {
        let passed = self.since.map_or(Duration::ZERO, |since| host.saturating_sub(since));
        VirtualTime::from_ns(self.at.ns.saturating_add(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Clock {
    /// A clock that stands at this time. `host` is the host's monotonic clock.
    pub fn standing(at: VirtualTime, host: fn() -> Duration) -> Self {
        Self { host, state: Mutex::new(State { at, since: None }) }
    }

    /// The virtual time.
    pub fn now(&self) -> VirtualTime {
        let state = self.state();
        // Read under the lock: what one thread reads after another is not before it.
        state.at((self.host)())
    }

    /// Stands still from now on. Returns the virtual time at which it does.
    pub fn stop(&self) -> VirtualTime {
        let mut state = self.state();
        let at = state.at((self.host)());
        *state = State { at, since: None };
        at
    }

    /// Goes on, from now on.
    pub fn start(&self) {
        let mut state = self.state();
        if state.since.is_none() {
            state.since = Some((self.host)());
        }
    }

    /// Stands at another time.
    pub fn set(&self, at: VirtualTime) {
        *self.state() = State { at, since: None };
    }

    /// The host's time at which it will be so late, if it runs.
    pub(crate) fn host_time(&self, at: VirtualTime) -> Option<Duration> {
        let state = self.state();
        Some(state.since? + Duration::from_nanos(at.ns.saturating_sub(state.at.ns)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with the lock")
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
}
