//! What can go wrong with a disk.

use std::{io, path::PathBuf};

/// What can go wrong with a disk, its golden image or its server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried: `cannot open the image`.
        what: &'static str,
        /// The file or socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Reading or writing in the middle of a disk failed.
    #[error("cannot {what} at byte {offset} of the disk: {source}")]
    Transfer {
        /// `read the golden image`, `write the overlay`.
        what: &'static str,
        /// Byte offset on the disk.
        offset: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The host could not keep what was written to the overlay: it may read back as something else.
    #[error(
        "the host failed to keep what the guest wrote to its disk ({source}): the checkpoints before this one are whole, and no more can be taken of this run. See \
         the kernel's log about the host's disk, then `fermata goto` the last checkpoint"
    )]
    OverlayLost {
        /// The system's answer.
        source: io::Error,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] fermata_store::Error),
    /// The disk cannot be served.
    #[error(transparent)]
    Server(#[from] fermata_vhost::Error),
    /// The golden image is no longer what it was.
    #[error(
        "the golden image {} has changed: {what}; restore the image from its source, or give the changed image another path and start a new experiment",
        path.display()
    )]
    Changed {
        /// The image.
        path: PathBuf,
        /// What differs, with both values.
        what: String,
    },
    /// The image is damaged, or it is not what its header says.
    #[error("the image {} is damaged: {what}; check it with `qemu-img check`", path.display())]
    Corrupt {
        /// The image.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// An image that this room cannot read, though it may be sound.
    #[error("the image {} cannot be used: {what}", path.display())]
    Unsupported {
        /// The image.
        path: PathBuf,
        /// What is not supported, and the way out.
        what: String,
    },
    /// The bytes lie outside the disk.
    #[error("{len} bytes at byte {offset} lie outside the disk of {size} bytes")]
    OutOfRange {
        /// First byte asked for.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// Size of the disk in bytes.
        size: u64,
    },
    /// Not allowed in this state.
    #[error("refused: {0}")]
    Refused(String),
}

/// A result of this room.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    pub(crate) fn transfer(what: &'static str, offset: u64) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Transfer { what, offset, source }
    }

    /// Whether the host has no space left for the disk's overlay.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Io { source, .. } | Self::Transfer { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            _ => false,
        }
    }
}
