//! How long a worker looks for the next request before it sleeps.
//!
//! To sleep and to be woken takes longer than many a guest takes to its next request, and while somebody looks the guest need not kick. As in QEMU's own threads
//! (`util/aio-posix.c`, `adjust_polling_time`), the time grows while requests come within its limit, and is none when they do not.

use fermata_linux::clock::Stopwatch;
use std::time::Duration;

/// The first time; QEMU's own number.
const FIRST: Duration = Duration::from_micros(4);

pub(crate) struct Spin {
    time: Duration,
    max: Duration,
    idle: Option<Stopwatch>,
}

impl Spin {
    pub fn new(max: Duration) -> Self {
        Self { time: Duration::ZERO, max, idle: None }
    }

    /// There is nothing to do, from now on if there was just before.
    pub fn idle(&mut self) {
        self.idle.get_or_insert_with(Stopwatch::start);
    }

    /// Whether looking on is worth it.
    pub fn goes_on(&self) -> bool {
        self.idle.as_ref().is_some_and(|idle| idle.elapsed() < self.time)
    }

    /// There is a request.
    pub fn found(&mut self) {
        if let Some(idle) = self.idle.take() {
            self.time = adjusted(self.time, self.max, idle.elapsed());
        }
    }
}

fn adjusted(time: Duration, max: Duration, waited: Duration) -> Duration {
    match waited {
        waited if waited > max => Duration::ZERO,
        waited if waited > time => (time * 2).clamp(FIRST.min(max), max),
        _ => time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_for_as_long_as_that_pays() {
        let us = Duration::from_micros;
        let after = |waits: &[u64]| waits.iter().fold(Duration::ZERO, |time, waited| adjusted(time, us(32), us(*waited)));
        assert_eq!(after(&[20]), us(4));
        assert_eq!(after(&[20, 20, 20]), us(16));
        assert_eq!(after(&[20, 20, 20, 20, 20]), us(32));
        assert_eq!(after(&[20, 20, 3, 3]), us(8));
        assert_eq!(after(&[20, 20, 20, 33]), us(0));
        assert_eq!(adjusted(us(0), us(0), us(0)), us(0));
    }

    #[test]
    fn who_has_not_seen_requests_come_soon_does_not_look() {
        let mut spin = Spin::new(Duration::from_secs(1));
        spin.idle();
        assert!(!spin.goes_on());
        spin.found();
        spin.idle();
        std::thread::sleep(Duration::from_millis(1));
        assert!(!spin.goes_on(), "4 us are over");
        (0..20).for_each(|_| {
            spin.idle();
            std::thread::sleep(Duration::from_micros(100));
            spin.found();
        });
        spin.idle();
        assert!(spin.goes_on());
        spin.found();
        assert!(!spin.goes_on(), "there is something to do");
    }
}
