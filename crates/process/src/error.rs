//! What can go wrong with areas.

use std::{io, sync::Arc};

/// What can go wrong. The memory of an area stays as it is in every case, and so do its checkpoints.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused.
    #[error("area {area}: {what} failed: {source}{advice}")]
    Io {
        /// The area.
        area: String,
        /// What was asked of the kernel.
        what: &'static str,
        /// Its answer.
        source: Arc<io::Error>,
        /// What to do about it, after a semicolon; may be empty.
        advice: &'static str,
    },
    /// The tracker cannot be had here, or failed.
    #[error("area {area}: {source}")]
    Tracker {
        /// The area.
        area: String,
        /// What it said.
        source: Arc<fermata_tracker::Error>,
    },
    /// The store refused.
    #[error(transparent)]
    Store(Arc<fermata_store::Error>),
    /// What the store has of the area cannot be an area.
    #[error("checkpoint of area {area}: {what}; it is damaged, or of something else with this name: choose another name")]
    Foreign {
        /// The area.
        area: String,
        /// What is wrong with it.
        what: String,
    },
    /// The request breaks a rule. Nothing was changed.
    #[error("area {area}: {what}; {advice}")]
    Refused {
        /// The area.
        area: String,
        /// What was asked and why it cannot be.
        what: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// A commit that was being written behind the program has failed. What it held is not lost: the commit after this one writes it too.
    #[error("area {area}: an earlier commit was not written: {source}; commit again, the memory still has all of it")]
    Earlier {
        /// The area.
        area: String,
        /// Why.
        source: Box<Error>,
    },
    /// A backup has not got a commit, which is a checkpoint here all the same. Nor does it get a later one.
    #[error(
        "area {area}: its backup at {backup} has not got a commit, which is in the store here: {source}; back_up_to sends all of it anew, stop_backing_up does without"
    )]
    Backup {
        /// The area.
        area: String,
        /// The socket of the backup.
        backup: String,
        /// Why.
        source: Arc<io::Error>,
    },
    /// Nothing is heard of a program any more whose commits are received: its host may have lost its power, or the way from there is cut.
    #[error(
        "area {area}: nothing is heard of its program any more, and it is given up; the area opens here as at its last acknowledged commit"
    )]
    Silent {
        /// The area.
        area: String,
    },
}

/// What everything here returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<fermata_store::Error> for Error {
    fn from(error: fermata_store::Error) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl Error {
    pub(crate) fn io(area: &str, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let area = area.to_owned();
        move |source| Self::Io { area, what, source: Arc::new(source), advice: "" }
    }

    pub(crate) fn tracker(area: &str) -> impl FnOnce(fermata_tracker::Error) -> Self {
        let area = area.to_owned();
        move |source| Self::Tracker { area, source: Arc::new(source) }
    }

    pub(crate) fn refused(area: &str, what: impl Into<String>, advice: &'static str) -> Self {
        Self::Refused { area: area.to_owned(), what: what.into(), advice }
    }

    pub(crate) fn foreign(area: &str, what: impl Into<String>) -> Self {
        Self::Foreign { area: area.to_owned(), what: what.into() }
    }
}
