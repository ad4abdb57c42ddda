//! Several machines stopped, or started, as near together as can be: all are asked before any is waited for.

use crate::{Error, Result, pace::Went};
use fermata_linux::{
    clock::{Stopwatch, monotonic, wall_ns},
    priority,
};
use fermata_types::VirtualTime;
use fermata_vm::{Machine, PATIENCE};
use std::{sync::Arc, time::Duration};

/// Waits shorter than this are not slept, for sleeping takes longer than it is told.
const AWAKE: Duration = Duration::from_micros(200);

/// So much by which a clock is ahead is made good in one pause, and of more at least the half: then what pauses leave machines apart does not add up.
const AT_ONCE: Duration = Duration::from_millis(20);
/// But nobody is held back for longer than this in one pause, for what is on its way then is late by as much. TCP waits for 200 ms longer than usual, at the least, before it takes a segment for
/// lost (`TCP_RTO_MIN` in Linux).
const AT_MOST: Duration = Duration::from_millis(100);

/// For how long whoever is so far ahead is held back in one pause.
fn held_back(ahead: Duration) -> Duration {
    ahead.min((ahead / 2).clamp(AT_ONCE, AT_MOST))
}

/// How long after the earliest of these, each is to start, so that all clocks show the same from then on. Whoever has no clock starts at once.
pub(crate) fn delays(times: &[Option<VirtualTime>]) -> Vec<Duration> {
    let earliest = times.iter().flatten().map(|time| time.ns).min().unwrap_or(0);
    let ahead = |time: &Option<VirtualTime>| time.map_or(Duration::ZERO, |time| held_back(Duration::from_nanos(time.ns - earliest)));
    times.iter().map(ahead).collect()
}

/// Waits until so much has passed on the watch, to a few microseconds.
pub(crate) fn wait_until(watch: &Stopwatch, passed: Duration) {
    loop {
        let left = passed.saturating_sub(watch.elapsed());
        match left {
            Duration::ZERO => return,
            left if left > AWAKE => std::thread::sleep(left - AWAKE),
            _ => std::hint::spin_loop(),
        }
    }
}

/// A machine that is to go on.
pub(crate) struct Start {
    pub machine: Arc<Machine>,
    /// The virtual time at which it does, if it shares that with the others.
    pub from: Option<VirtualTime>,
}

/// The host's monotonic time of something that happened after `begun`, by a clock of the host that may be set: QEMU's timestamps are of that.
pub(crate) fn host_time(wall: Duration, begun: Duration) -> Duration {
    moment(wall, begun, monotonic(), Duration::from_nanos(wall_ns()))
}

/// The same at the time `now`, when the wall clock shows `wall_now`. Whoever sets that clock meanwhile makes it wrong by no more than has passed since `begun`.
fn moment(wall: Duration, begun: Duration, now: Duration, wall_now: Duration) -> Duration {
    now.saturating_sub(wall_now.saturating_sub(wall)).max(begun).min(now.max(begun))
}

/// Lets machines go on. All are tried; the first that cannot is told. Returns those that did, too.
pub(crate) fn run_together(starts: Vec<Start>) -> (Vec<Went>, Result<()>) {
    let delays = delays(&starts.iter().map(|start| start.from).collect::<Vec<_>>());
    let mut starts: Vec<_> = delays.into_iter().zip(starts).collect();
    starts.sort_by_key(|(delay, _)| *delay);
    let (watch, before) = (Stopwatch::start(), monotonic());
    let mut begun = Vec::with_capacity(starts.len());
    for (delay, start) in &starts {
        wait_until(&watch, *delay);
        begun.push(start.machine.begin_run());
    }
    let finish = |((_, start), begun): (&(Duration, Start), fermata_vm::Result<_>)| {
        let held_back = start.machine.finish_run(begun?, PATIENCE)?;
        let at = start.machine.went_on().map_or_else(monotonic, |wall| host_time(wall, before));
        Ok((Went { machine: start.machine.config().name.clone(), from: start.from, at }, held_back))
    };
    let results: Vec<fermata_vm::Result<_>> = starts.iter().zip(begun).map(finish).collect();
    if starts.len() == 1 {
        priority::after_you();
    }
    let (mut went, mut failed) = (Vec::new(), None);
    for result in results {
        match result {
            Ok((machine, _held_back)) => went.push(machine),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    (went, failed.map_or(Ok(()), |error| Err(error.into())))
}

/// Stops machines, and waits so long for each that does not answer. All are tried; the first that cannot is told, unless it is gone and another is
/// not.
pub(crate) fn stop_together<'a>(machines: impl Iterator<Item = &'a Arc<Machine>>, patience: Duration) -> Result<()> {
    let begun: Vec<_> = machines.map(|machine| (machine, machine.begin_stop())).collect();
    let results: Vec<_> = begun.into_iter().map(|(machine, begun)| machine.finish_stop(begun?, patience)).collect();
    let one_stands = results.iter().any(Result::is_ok);
    let failed = results.into_iter().filter_map(Result::err);
    let mut told = failed.filter(|error| !(one_stands && matches!(error, fermata_vm::Error::Gone { .. })));
    told.next().map_or(Ok(()), |error| Err(Error::from(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whoever_is_ahead_waits_for_the_others() {
        let at = |us: u64| Some(VirtualTime::from_ns(us * 1000));
        let us = Duration::from_micros;
        assert_eq!(delays(&[at(500), at(200), None, at(230)]), [us(300), us(0), us(0), us(30)]);
        assert_eq!(delays(&[at(0), at(19_000), at(39_000)]), [us(0), us(19_000), AT_ONCE]);
        assert_eq!(delays(&[at(0), at(120_000), at(9_000_000)]), [us(0), us(60_000), AT_MOST]);
        assert_eq!(delays(&[None]), [us(0)]);
        assert_eq!(delays(&[]), []);
    }

    proptest! {
        /// In every pause one of two machines stops later than the other by up to as much.
        #[test]
        fn what_pauses_leave_machines_apart_does_not_add_up(late in proptest::collection::vec(0..100_000_000_u64, 1..100)) {
            let most = late.iter().max().copied().unwrap_or(0);
            let mut apart = 0;
            for late in late {
                apart += late;
                prop_assert!(apart <= 2 * most.max(AT_ONCE.as_nanos() as u64), "{}", apart);
                apart -= held_back(Duration::from_nanos(apart)).as_nanos() as u64;
            }
        }

        /// The host's wall clock is set by anything, forth or back, between what QEMU told and our look at it.
        #[test]
        fn a_wall_clock_that_jumps_moves_no_moment_out_of_its_pause(
            begun in 0..1_000_000_000_000_u64,
            (behind, left) in (0..50_000_000_u64, 0..50_000_000_u64),
            wall in 1_000_000_000_000_000_000..2_000_000_000_000_000_000_u64,
            jump in any::<i64>(),
        ) {
            let ns = Duration::from_nanos;
            let (happened, now) = (begun + behind, begun + behind + left);
            let at = |jump: i64| moment(ns(wall), ns(begun), ns(now), ns((wall + left).saturating_add_signed(jump)));
            prop_assert_eq!(at(0), ns(happened));
            prop_assert!((ns(begun)..=ns(now)).contains(&at(jump)), "{:?}", at(jump));
        }
    }

    #[test]
    fn a_wait_is_never_too_short() {
        for passed in [0, 50, 900].map(Duration::from_micros) {
            let watch = Stopwatch::start();
            wait_until(&watch, passed);
            assert!(watch.elapsed() >= passed);
        }
    }
}
