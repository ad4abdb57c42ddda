//! Guests that are to have the real time are told it when they go on after they stood still; the others never learn that they did.

use crate::{Body, machine_body::MachineBody};
use fermata_linux::clock::wall_ns;
use std::{
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

/// How long a guest's agent is waited for. Whoever has none asks for the time by NTP.
const AGENT_WAIT: Duration = Duration::from_secs(60);

/// Sets the clocks of the guests of a body that runs, each when its agent answers; but for those that keep virtual time. Nobody waits for that.
pub(crate) fn set_clocks(run: &str, body: &Arc<Body>) {
    for (of, ahead_ms) in body.machines().iter().filter_map(|of| Some((of, of.real_clock()?))) {
        let (name, machine, body) = (format!("{run}:{}", of.name()), of.machine().clone(), Arc::downgrade(body));
        let work = move || {
            let time = || i64::try_from(wall_ns()).unwrap_or(i64::MAX).saturating_add(ahead_ms.saturating_mul(1_000_000));
            let wanted = || Weak::strong_count(&body) > 0;
            match machine.agent().visit(AGENT_WAIT, &wanted).and_then(|visit| visit.set_time(&time)) {
                Ok(moved) => tracing::info!("{name}: its clock was set on by {:.3} s, to the real time", moved as f64 / 1e9),
                // The run is elsewhere, and has set the clock there.
                Err(_) if !wanted() => {}
                Err(error) => tracing::warn!("{name}: its clock was not set to the real time, which it can ask for by NTP: {error}"),
            }
        };
        if let Err(error) = thread::Builder::new().name("clock".to_owned()).spawn(work) {
            tracing::warn!("run {run}: no thread to set the clock of {}: {error}", of.name());
        }
    }
}

impl MachineBody {
    /// By how many milliseconds its clock is ahead of the real time, if it is to be set by that.
    fn real_clock(&self) -> Option<i64> {
        let clock = self.clock();
        clock.real.then_some(clock.ahead_ms)
    }
}
