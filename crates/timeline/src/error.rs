//! What can go wrong in the timeline.

/// Errors of this room.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no run of that name, or it is not clear which is meant.
    #[error("{0}")]
    WhichRun(String),
    /// It will not be done.
    #[error("{0}")]
    Refused(String),
    /// The experiment failed.
    #[error(transparent)]
    Experiment(#[from] fermata_experiment::Error),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] fermata_store::Error),
}

/// What this room returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
