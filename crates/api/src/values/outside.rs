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

/// A checkpoint that is shown in a directory: what `fermata mount` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounted {
    /// The directory.
    pub directory: PathBuf,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// Of which experiment.
    pub experiment: String,
    /// The files in the directory.
    pub files: Vec<PathBuf>,
    /// Process id of who serves it.
    pub pid: u32,
}

/// A directory that no longer shows a checkpoint: what `fermata umount` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmounted {
    /// The directory.
    pub directory: PathBuf,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
}
