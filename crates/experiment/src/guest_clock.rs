//! What virtual time it is while the guests run, to have something happen at a given one.

use crate::pace::{Pace, Went};
use fermata_linux::clock::monotonic;
use fermata_net::Fabric;
use fermata_types::VirtualTime;
use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

/// The virtual time of an experiment, as seen from outside: what was read from the guests' own clocks when they last stood still, and the host's time since
/// they run.
#[derive(Default)]
pub(crate) struct GuestClock {
    hands: Mutex<Hands>,
    /// What the host's wall clock showed at virtual time zero, once that is known: nanoseconds since 1970.
    began_ns: OnceLock<u64>,
    /// Its clock, by which frames are due, is kept together with the machines'.
    network: OnceLock<Arc<Fabric>>,
    pace: Mutex<Pace>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Hands {
    at: VirtualTime,
    /// The host's time since which the guests run on from there; none if they stand still.
    since: Option<Duration>,
}

impl Hands {
    fn at(self, now: Duration) -> VirtualTime {
        let passed = self.since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.at.plus(passed)
    }
}

impl GuestClock {
    /// The virtual time at this time of the host.
    pub fn at(&self, now: Duration) -> VirtualTime {
        self.hands().at(now)
    }

    /// Virtual time zero was at this time of the host's wall clock: for the guests it is the time of day ever after. Only the first one is taken.
    pub fn begin(&self, wall_ns: u64) {
        let _ = self.began_ns.set(wall_ns);
    }

    /// What the host's wall clock showed at virtual time zero.
    pub fn began_ns(&self) -> Option<u64> {
        self.began_ns.get().copied()
    }

    /// The time of day in the experiment, now: nanoseconds since 1970. However the host's wall clock is set meanwhile, it goes on evenly.
    pub fn wall_ns(&self) -> Option<u64> {
        self.began_ns().map(|began| began.saturating_add(self.at(monotonic()).ns))
    }

    /// Whether the guests run.
    pub fn runs(&self) -> bool {
        self.hands().since.is_some()
    }

    /// How long, at this time of the host, until that virtual time, if the guests run.
    pub fn until(&self, then: VirtualTime, now: Duration) -> Duration {
        Duration::from_nanos(then.ns.saturating_sub(self.at(now).ns))
    }

    /// The guests stand still, at this virtual time.
    pub fn stop_at(&self, at: VirtualTime) {
        *self.hands() = Hands { at, since: None };
    }

    /// The guests stand still.
    pub fn stop(&self, now: Duration) {
        let mut hands = self.hands();
        *hands = Hands { at: hands.at(now), since: None };
    }

    /// The guests go on, from this virtual time if somebody has read it.
    pub fn go_on(&self, read: Option<VirtualTime>, now: Duration) {
        let mut hands = self.hands();
        *hands = Hands { at: read.unwrap_or(hands.at(now)), since: Some(now) };
    }

    /// From now on stops the network's clock with the machines, and lets it go on with them.
    pub fn drive(&self, network: Arc<Fabric>) {
        assert!(self.network.set(network).is_ok(), "a body has one network");
    }

    /// To be called before the first machine is told to stop.
    pub fn machines_stop(&self) {
        if let Some(network) = self.network.get() {
            network.clock().stopping();
        }
    }

    /// To be called when the last machine has stopped.
    pub fn machines_stand(&self) {
        if let Some(network) = self.network.get() {
            network.machines_stand();
        }
    }

    /// To be called when the last machine has gone on.
    pub fn machines_run(&self, machines: &[Went]) {
        if let Some(network) = self.network.get().filter(|network| !network.clock().runs()) {
            let clock = network.clock();
            let (stopping, now) = (clock.instant()..=clock.now(), monotonic());
            // Like the hands it is changed in one go, so that a panic leaves it whole.
            let going = self.pace.lock().unwrap_or_else(PoisonError::into_inner).go_on(&stopping, machines, now);
            network.machines_run(going.at, now, going.later);
        }
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_while_the_guests_do() {
        let (second, time) = (Duration::from_secs, |s: u64| VirtualTime::from_ns(s * 1_000_000_000));
        let clock = GuestClock::default();
        clock.stop_at(time(5));
        assert_eq!((clock.at(second(100)), clock.runs()), (time(5), false));
        clock.go_on(None, second(100));
        assert_eq!((clock.at(second(103)), clock.runs()), (time(8), true));
        assert_eq!((clock.until(time(10), second(103)), clock.until(time(7), second(103))), (second(2), Duration::ZERO));
        clock.stop(second(104));
        assert_eq!(clock.at(second(200)), time(9));
        clock.go_on(Some(time(8)), second(300));
        assert_eq!(clock.at(second(301)), time(9));
    }

    #[test]
    fn the_time_of_day_stands_with_it() {
        let clock = GuestClock::default();
        clock.stop_at(VirtualTime::from_ns(5));
        assert_eq!((clock.began_ns(), clock.wall_ns()), (None, None));
        clock.begin(1_000);
        clock.begin(2_000);
        assert_eq!((clock.began_ns(), clock.wall_ns()), (Some(1_000), Some(1_005)));
        clock.stop_at(VirtualTime::from_ns(3));
        assert_eq!(clock.wall_ns(), Some(1_003), "as after a journey back");
    }
}
