//! What `fermata plot` tells.

use fermata_types::CheckpointId;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Figures over a line of checkpoints, from the oldest to the newest: what `fermata plot` prints and draws.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plots {
    /// The experiment.
    pub experiment: String,
    /// The checkpoints; each series has one value for each of them.
    pub checkpoints: Vec<PlottedCheckpoint>,
    /// What there is to draw.
    pub plots: Vec<Plot>,
    /// Pictures that were written.
    pub files: Vec<PathBuf>,
}

/// A checkpoint on the axis of a plot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlottedCheckpoint {
    /// Its id.
    pub id: CheckpointId,
    /// Virtual time at the instant.
    pub time_virtual_ns: u64,
}

/// Panels about one matter, one below the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    /// `memory`, `dirty`, `duplicates`, `pause`, `background`.
    pub name: String,
    /// Its panels.
    pub panels: Vec<Panel>,
}

/// Series of one unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// What is shown.
    pub title: String,
    /// Unit of all values: `MiB`, `pages`, `blocks`, `ms`, `%`.
    pub unit: String,
    /// The series are parts of a whole, and add up to it. Else each stands for itself.
    pub stacked: bool,
    /// The series.
    pub series: Vec<Series>,
}

/// One value for each checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// What was counted.
    pub name: String,
    /// The values; none where the checkpoint does not tell.
    pub values: Vec<Option<f64>>,
}
