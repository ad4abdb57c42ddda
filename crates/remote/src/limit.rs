//! How fast bytes may travel.

use fermata_linux::clock::monotonic;
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// What is no larger goes before what waits already: signs of life must not come minutes late because packs travel slowly.
const SMALL: usize = 256;

/// So many bytes a second, all that travel together.
#[derive(Debug)]
pub(crate) struct Limit {
    bytes_per_second: u64,
    /// When the next byte may travel.
    next: Mutex<Duration>,
}

impl Limit {
    pub fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), next: Mutex::default() }
    }

    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    /// For how long so many bytes have to wait. Their time is taken.
    pub fn wait(&self, bytes: usize) -> Duration {
        self.wait_at(monotonic(), bytes)
    }

    fn wait_at(&self, now: Duration, bytes: usize) -> Duration {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let from = (*next).max(now);
        let own = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        *next = from + own;
        // They have travelled when their time is over.
        if bytes <= SMALL { own } else { next.saturating_sub(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_long_run_it_is_kept() {
        let (limit, mut now) = (Limit::new(1000), Duration::from_secs(5));
        for _ in 0..100 {
            now += limit.wait_at(now, 70);
        }
        assert_eq!(now.as_millis(), 12_000);
        // What nobody used is not saved up.
        assert_eq!(limit.wait_at(now + Duration::from_secs(60), 1000), Duration::from_secs(1));
    }

    #[test]
    fn what_is_small_does_not_wait_for_what_is_large() {
        let (limit, now) = (Limit::new(10_000), Duration::from_secs(5));
        for packs in 1..4 {
            assert_eq!(limit.wait_at(now, 5_000_000), Duration::from_secs(500) * packs + Duration::from_millis(10) * (packs - 1));
            assert_eq!(limit.wait_at(now, 100), Duration::from_millis(10));
        }
    }
}
