//! What is told of checkpoints that are shown to other programs.

pub use fermata_experiment::{CoreTold, ImageFormat};
use fermata_types::CheckpointId;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A file that was made of a part of a checkpoint: what `fermata export` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// The file.
    pub file: PathBuf,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The part.
    pub part: String,
    /// `core`, `qcow2`, `raw`.
    pub format: ImageFormat,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes that it takes on its file system: holes take none.
    pub bytes_allocated: u64,
    /// What a core has besides the memory; of disks nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreTold>,
}
