//! What can go wrong in the store.

use fermata_types::{CheckpointId, ImageId};
use std::{
    io,
    path::{Path, PathBuf},
};

/// The result of everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong. Nothing that was permanent before is lost by any of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused: I/O.
    #[error("cannot {action} {path}: {source}{advice}", path = path.display(), advice = advice(source))]
    Io {
        /// What was tried, as a verb: `write`, `sync`.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file does not hold what was written to it.
    #[error("{path} is damaged{at}: {object}: {detail}; {advice}", path = path.display(), at = at(*offset), advice = way_out(path))]
    Corrupt {
        /// The file, or the directory of the index.
        path: PathBuf,
        /// Where in the file; none for the index.
        offset: Option<u64>,
        /// What was being read: `page 12ab...`.
        object: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The index is gone while packs are there.
    #[error("the index {path} is gone, but there are packs; `fermata rebuild` builds it again, all checkpoints are in the packs", path = path.display())]
    IndexLost {
        /// The directory of the index.
        path: PathBuf,
    },
    /// A golden image is not what it was when it was registered.
    #[error("golden image {image} changed under us: {detail}; put the original image back, checkpoints stand on it")]
    ImageChanged {
        /// The image.
        image: ImageId,
        /// What gave it away.
        detail: String,
    },
    /// A page lies in a golden image that nobody has opened.
    #[error("block {block} of golden image {image} is needed, but the image is not open: open it with add_image first")]
    ImageNotOpen {
        /// The image.
        image: ImageId,
        /// The block of it that is needed.
        block: u32,
    },
    /// The store does not have it.
    #[error("no {what} in the store: {advice}")]
    Missing {
        /// What was asked for.
        what: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// An id prefix fits several checkpoints.
    #[error("\"{text}\" fits several checkpoints: {}; give more digits", list(candidates))]
    Ambiguous {
        /// The prefix.
        text: String,
        /// Some of the checkpoints that it fits.
        candidates: Vec<CheckpointId>,
    },
    /// The request breaks a rule of the store. Nothing was changed.
    #[error("refused: {what}; {advice}")]
    Refused {
        /// What was asked and why it cannot be.
        what: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// Written by a version that this one does not know.
    #[error("{path} has {what}, which this version of Fermata cannot read; use the version that wrote it, or a later one", path = path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The format and version found.
        what: String,
    },
    /// A function that the caller handed in failed; the store did not.
    #[error(transparent)]
    Caller(Box<dyn std::error::Error + Send + Sync>),
}

/// For callers' functions that do I/O of their own. The store itself never converts so: its I/O errors name a path.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Caller(Box::new(error))
    }
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn corrupt(path: &Path, offset: impl Into<Option<u64>>, object: impl ToString, detail: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_owned(), offset: offset.into(), object: object.to_string(), detail: detail.into() }
    }

    pub(crate) fn refused(what: impl Into<String>, advice: &'static str) -> Self {
        Self::Refused { what: what.into(), advice }
    }

    pub(crate) fn missing(what: impl Into<String>, advice: &'static str) -> Self {
        Self::Missing { what: what.into(), advice }
    }
}

const EIO: i32 = 5;

/// What to do about a damaged file.
fn way_out(path: &Path) -> &'static str {
    let is = |path: Option<&Path>, name| path.and_then(Path::file_name).is_some_and(|found| found == name);
    if is(Some(path), "index") || is(path.parent(), "index") {
        return "end all that uses the store, then `fermata rebuild` builds the index again: all checkpoints are in the packs";
    }
    if is(Some(path), "removed") {
        return "put the file back from a copy; without it the store is whole, but `rebuild` may bring back checkpoints that were removed";
    }
    if is(Some(path), "format") {
        return "put the file back from a copy, the rest of the store is not affected";
    }
    "put the file back from a copy, or see with `fermata verify` what it touches and whether `fermata rebuild` mends it; \
     checkpoints that do not need it are not affected"
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; the disk of the store is full: free some space there and try again, nothing permanent is lost"
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            "; the store must be writable: check the owner of the directory and how its file system is mounted, or choose another with FERMATA_STORE"
        }
        io::ErrorKind::CrossesDevices => {
            "; the store must be writable and lie on one file system: see what is mounted on its directories, and whether that is read-only"
        }
        // LMDB reports a disk that takes only a part of a write so.
        _ if source.raw_os_error() == Some(EIO) => "; the disk is full or failing: look at its free space and at the kernel's log",
        _ => "",
    }
}

fn at(offset: Option<u64>) -> String {
    offset.map(|offset| format!(" at byte {offset}")).unwrap_or_default()
}

fn list(candidates: &[CheckpointId]) -> String {
    candidates.iter().map(CheckpointId::short).collect::<Vec<_>>().join(", ")
}

/// What kind of thing, and its name, for messages: formatted only when there is something to say.
pub(crate) struct Named<'a>(pub &'static str, pub &'a [u8; 32]);

impl std::fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.0)?;
        self.1.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
