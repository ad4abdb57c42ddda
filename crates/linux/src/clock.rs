//! Clocks of the host.

use std::{
    sync::OnceLock,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The host's wall clock: nanoseconds since 1970, UTC.
pub fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos() as u64
}

/// Time since an arbitrary instant; it never goes back.
pub fn monotonic() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// How long the processor's time stamp counter is watched for its rate.
const WATCHED: Duration = Duration::from_millis(20);
/// A look at two clocks is the best of so many: whoever loses the processor between the two reads a moment that never was.
const LOOKS: usize = 16;

/// The rate of the processor's time stamp counter, measured against the monotonic clock when it is first asked for: kHz, to about one in 10,000. None where the processor has
/// no such counter.
pub fn tsc_khz() -> Option<u64> {
    static RATE: OnceLock<Option<u64>> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (from, first) = tsc_and_time()?;
        thread::sleep(WATCHED);
        let (to, last) = tsc_and_time()?;
        let (ticks, ns) = (to.checked_sub(from)?, last.saturating_sub(first).as_nanos());
        u64::try_from(u128::from(ticks) * 1_000_000 / ns.max(1)).ok().filter(|khz| *khz > 0)
    })
}

/// The time stamp counter, and the monotonic clock at the same moment.
fn tsc_and_time() -> Option<(u64, Duration)> {
    let look = |_| {
        let (before, ticks, after) = (monotonic(), time_stamp()?, monotonic());
        Some((after.saturating_sub(before), ticks, before))
    };
    let (took, ticks, before) = (0..LOOKS).filter_map(look).min()?;
    Some((ticks, before + took / 2))
}

#[cfg(target_arch = "x86_64")]
fn time_stamp() -> Option<u64> {
    // SAFETY: every processor of this architecture has the instruction, and Linux forbids it to nobody who has not asked for that (PR_SET_TSC in prctl(2)).
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn time_stamp() -> Option<u64> {
    None
}

/// Measures how long something takes, on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(std::time::Instant);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_time_stamp_counter_goes_at_the_rate_that_is_told() {
        let khz = tsc_khz().expect("the processor has one");
        assert_eq!(tsc_khz(), Some(khz), "it is measured once");
        let ((from, first), at_least) = (tsc_and_time().expect("a look"), Duration::from_millis(50));
        thread::sleep(at_least);
        let (to, last) = tsc_and_time().expect("a look");
        let by_clock = (last - first).as_secs_f64();
        assert!(last - first >= at_least);
        let by_counter = (to - from) as f64 / (khz as f64 * 1e3);
        assert!((by_counter / by_clock - 1.0).abs() < 0.01, "{by_counter} s by the counter at {khz} kHz, {by_clock} s by the clock");
    }
}
