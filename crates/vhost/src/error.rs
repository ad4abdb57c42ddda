//! What can go wrong with a server.

use std::{io, path::PathBuf};

/// What can go wrong with a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried: `cannot listen on`.
        what: &'static str,
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The place of the socket is taken.
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
}
