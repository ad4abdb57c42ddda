//! What `fermata metrics` tells.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A figure for monitoring, as Prometheus has them: <https://prometheus.io/docs/concepts/data_model/>.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Its name, which ends with its unit: `fermata_pause_seconds`.
    pub name: String,
    /// What it counts.
    pub kind: MetricKind,
    /// What it means.
    pub help: String,
    /// Its values.
    pub samples: Vec<Sample>,
}

/// What a metric counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricKind {
    /// Rises until the keeper ends.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts by class, with a sum.
    Histogram,
    /// A count and a sum.
    Summary,
}

/// One value of a metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The metric's name, for histograms and summaries with `_bucket`, `_sum` or `_count` behind it.
    pub name: String,
    /// What it is the value of.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}
