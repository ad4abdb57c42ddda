//! What can go wrong with a machine.

use fermata_types::{PageName, PageNumber};
use std::{io, path::PathBuf};

/// Errors of this room.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// QEMU could not be started.
    #[error("{machine}: cannot start {program}: {source}. Install QEMU (Debian: qemu-system-x86), or set FERMATA_QEMU to its path")]
    NoQemu {
        /// The machine.
        machine: String,
        /// The program that was to be run.
        program: String,
        /// Why not.
        source: io::Error,
    },
    /// QEMU ended, or does not answer.
    #[error("{machine}: QEMU {how}{}", tail(log))]
    Gone {
        /// The machine.
        machine: String,
        /// `ended with signal 9`, `does not answer`.
        how: String,
        /// The last lines it printed.
        log: String,
    },
    /// QEMU refused a command.
    #[error("{machine}: QEMU refused {command}: {message}")]
    Command {
        /// The machine.
        machine: String,
        /// The QMP command.
        command: &'static str,
        /// What QEMU says.
        message: String,
    },
    /// The guest agent does not answer or refuses.
    #[error("{machine}: {message}")]
    Agent {
        /// The machine.
        machine: String,
        /// What happened and what to do.
        message: String,
    },
    /// This host cannot do what was asked.
    #[error("{machine}: {message}")]
    Unsupported {
        /// The machine.
        machine: String,
        /// What is missing and how to mend it.
        message: String,
    },
    /// A saved state is not what it should be.
    #[error("{machine}: {message}")]
    Corrupt {
        /// The machine.
        machine: String,
        /// What is wrong with it.
        message: String,
    },
    /// A page that was taken to equal a block of a disk does not.
    #[error(
        "{machine}: page {page} of its memory was taken to equal block {block} of {disk}, {}, and holds {}. No checkpoint was made. Either the golden image was \
         changed in a way that does not show, or this is a fault of Fermata's, to be reported; checkpoints of this run that were made without --paranoid may be \
         wrong. Nothing is taken for known any more until it is moved again, so the next checkpoint looks at every page",
        expected.short(),
        found.short()
    )]
    Mistaken {
        /// The machine.
        machine: String,
        /// The page.
        page: PageNumber,
        /// The block.
        block: PageNumber,
        /// The disk that it is on.
        disk: String,
        /// The name of the block.
        expected: PageName,
        /// The name of what the page holds.
        found: PageName,
    },
    /// Pages were written of which the tracker has not told.
    #[error(
        "{machine}: {count} of the pages of its memory that are said not to have been written since the last checkpoint hold something else, the first is page \
         {page}. No checkpoint was made. This is a fault of Fermata's, to be reported, or somebody else writes to the machine's memory; checkpoints of this run that \
         were made without --paranoid may be wrong. The next checkpoint takes these pages as they are"
    )]
    Missed {
        /// The machine.
        machine: String,
        /// The first of them.
        page: PageNumber,
        /// How many there are.
        count: u64,
    },
    /// The file system or the kernel refused.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] fermata_store::Error),
    /// The tracker failed.
    #[error(transparent)]
    Tracker(#[from] fermata_tracker::Error),
}

fn tail(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; it said: {log}") }
}

/// What this room returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
