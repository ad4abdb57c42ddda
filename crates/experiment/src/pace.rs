//! How the network's time and the machines' stay one.
//!
//! Machines neither stop nor go on at once. Each stands still from its own stop to its own start, and to each of them what is on a cable must have
//! come no farther meanwhile than by its own clock. So over a pause the network stands for as long as the machine does that stands longest: what is
//! on its way is late for the others by what they were apart, and early for nobody. Its clock is then that of the machine that is furthest behind,
//! and what is on its way moves along.
//!
//! ```text
//!   a   ───────┤ stands    ├────────────────
//!   b   ─────────┤ stands      ├────────────    the longest
//!   net ─────────┤ stands      ├──── ── ── ─
//! ```

use fermata_types::VirtualTime;
use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

/// A machine that has gone on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Went {
    pub machine: String,
    /// Its virtual time while it stood, if somebody has read it.
    pub from: Option<VirtualTime>,
    /// The host's time at which it went on.
    pub at: Duration,
}

/// How the network goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Going {
    /// The virtual time now.
    pub at: VirtualTime,
    /// By so many nanoseconds that time has moved against what is on its way, which is due later by as much.
    pub later: i64,
}

/// By how much each machine was ahead of the network when it last went on; none of one whose clock nobody has read.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    leads: BTreeMap<String, u64>,
}

impl Pace {
    /// How the network goes on when all these machines have, at this time of the host. Its own clock showed the first of `stopping` before any was
    /// told to stop, and the last when all stood.
    pub fn go_on(&mut self, stopping: &RangeInclusive<VirtualTime>, machines: &[Went], now: Duration) -> Going {
        let (first, last) = (signed(*stopping.start()), signed(*stopping.end()));
        let since = |went: &Went| i128::try_from(now.saturating_sub(went.at).as_nanos()).unwrap_or(i128::MAX);
        let stood_from = |went: &Went| {
            let lead = self.leads.get(&went.machine).zip(went.from);
            lead.map_or(first, |(lead, from)| (signed(from) - i128::from(*lead)).clamp(first, last.max(first)))
        };
        let continued = machines.iter().map(|went| stood_from(went) + since(went)).min().unwrap_or(first);
        let times: BTreeMap<_, _> =
            machines.iter().filter_map(|went| Some((went.machine.clone(), signed(went.from?) + since(went)))).collect();
        let at = times.values().min().copied().unwrap_or(continued);
        self.leads = times.into_iter().map(|(machine, time)| (machine, unsigned(time - at))).collect();
        Going { at: VirtualTime::from_ns(unsigned(at)), later: i64::try_from(at - continued).unwrap_or(0) }
    }
}

fn signed(time: VirtualTime) -> i128 {
    i128::from(time.ns)
}

fn unsigned(ns: i128) -> u64 {
    u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
