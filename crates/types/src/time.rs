//! Virtual time: the time that the guests see. It stands still in a pause and goes back with a `goto`.

use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// Nanoseconds of virtual time since the experiment first ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VirtualTime {
    /// Nanoseconds.
    pub ns: u64,
}

impl VirtualTime {
    /// This many nanoseconds after the start.
    pub const fn from_ns(ns: u64) -> Self {
        Self { ns }
    }

    /// So much later, or the last instant that there is.
    pub fn plus(self, time: Duration) -> Self {
        Self { ns: self.ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)) }
    }

    /// The time since the start of the experiment.
    pub const fn since_start(self) -> Duration {
        Duration::from_nanos(self.ns)
    }
}

impl fmt::Display for VirtualTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.since_start().as_secs_f64())
    }
}
