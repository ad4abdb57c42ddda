//! What can go wrong with an experiment.

use crate::coordinate::{PartFailure, THAW};
use std::{io, path::PathBuf};

/// Errors of this room.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host has too little room for guest memory.
    #[error(
        "no room for the memory of {machines}: {needed} MiB are needed on {}, {free} MiB are free. Use less memory, end another experiment (`fermata ls`), or \
         set FERMATA_RUN_DIR to a larger tmpfs",
        directory.display()
    )]
    NoRoom {
        /// The machines.
        machines: String,
        /// MiB that they need.
        needed: u64,
        /// MiB that are not yet promised to anybody.
        free: u64,
        /// The run directory.
        directory: PathBuf,
    },
    /// The run directory cannot hold guest memory.
    #[error("{} is not on a tmpfs, and guest memory must be: set FERMATA_RUN_DIR to a directory on one, such as /dev/shm", directory.display())]
    NotTmpfs {
        /// The run directory.
        directory: PathBuf,
    },
    /// This version cannot do that.
    #[error("{0}")]
    Unsupported(String),
    /// It will not be done.
    #[error("{0}")]
    Refused(String),
    /// A checkpoint's record is not what this version writes.
    #[error("checkpoint {id}: {what}. It was made by another version, or is damaged")]
    BadRecord {
        /// The checkpoint.
        id: String,
        /// What is wrong.
        what: String,
    },
    /// The file system refused.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A part failed in a checkpoint. All guests go on, and nothing was stored.
    #[error("the checkpoint failed and was dropped, the guests go on: {0}")]
    Checkpoint(#[source] PartFailure),
    /// A part could not go on after the pause of a checkpoint.
    #[error(
        "the checkpoint failed and was dropped, and the guest stands still: {0}. `fermata resume` tries to start it again, `fermata goto ID` goes back"
    )]
    Stopped(#[source] PartFailure),
    /// The run was taken elsewhere while a checkpoint of it was made.
    #[error("run {run} was taken to another checkpoint before this one was finished; it was dropped")]
    Left {
        /// The run.
        run: String,
    },
    /// A machine failed.
    #[error(transparent)]
    Machine(#[from] fermata_vm::Error),
    /// A disk failed.
    #[error(transparent)]
    Disk(#[from] fermata_disk::Error),
    /// The network cannot be served.
    #[error(transparent)]
    Network(#[from] fermata_vhost::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] fermata_store::Error),
}

impl From<PartFailure> for Error {
    fn from(failure: PartFailure) -> Self {
        if failure.phase == THAW { Self::Stopped(failure) } else { Self::Checkpoint(failure) }
    }
}

/// What this room returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
