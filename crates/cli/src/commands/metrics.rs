//! `fermata metrics`: figures for monitoring.

use super::{Context, Result};
use crate::{complete, pick};
use clap::Args;
use fermata_api::{Service, metrics};

/// Print the figures that a keeper has for Prometheus
///
/// Counters begin at zero when the keeper starts. The same is at /metrics on the keeper's socket, and with `fermata up --metrics ADDRESS` on a TCP port.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata metrics
  fermata metrics -e upgrade | grep pause_seconds
  fermata metrics > /var/lib/node_exporter/fermata.prom
  curl --unix-socket /dev/shm/fermata-0/upgrade/keeper.sock http://keeper/metrics")]
pub struct Metrics {
    /// The experiment, if several run; -e names it too
    #[arg(value_name = "EXPERIMENT", add = complete::experiments())]
    name: Option<String>,
}

impl Metrics {
    pub fn run(self, context: &Context) -> Result {
        let (_, keeper) = pick::keeper(&context.about(self.name))?;
        let figures = keeper.metrics()?;
        context.out.answer(&figures, |_| metrics::text(&figures))?;
        Ok(0)
    }
}
