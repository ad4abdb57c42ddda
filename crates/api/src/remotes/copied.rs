//! What was copied to or from a remote, as values.

use crate::values::Problem;
use fermata_store::remote::RefName;
use fermata_types::{CheckpointId, ImageId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What was copied.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Copied {
    /// The remote's address.
    pub remote: String,
    /// The experiment.
    pub experiment: String,
    /// Checkpoints that are there now and were not.
    pub checkpoints: u64,
    /// Packs that travelled.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Golden images that came along, or should have.
    pub images: Vec<CopiedImage>,
    /// What became of each branch and tag.
    pub refs: Vec<CopiedRef>,
    /// Checkpoints that were removed before they could be sent. Branches and tags that were on them are not among `refs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<CheckpointId>,
    /// Checkpoints that the remote has not all of. Branches and tags that are on them there are not among `refs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Broken>,
    /// Why nothing more was copied of this experiment, where others went on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl Copied {
    /// Nothing was copied.
    pub fn failed(remote: String, experiment: String, problem: Problem) -> Self {
        Self { remote, experiment, trouble: Some(problem.message), ..Self::default() }
    }

    /// Whether something is not where it was to be.
    pub fn is_partial(&self) -> bool {
        let is_lacking = |image: &CopiedImage| matches!(image.outcome, ImageOutcome::Lacking { .. } | ImageOutcome::Damaged { .. });
        let is_left = |name: &CopiedRef| matches!(name.outcome, Outcome::Left { .. });
        self.trouble.is_some() || !self.left_out.is_empty() || self.images.iter().any(is_lacking) || self.refs.iter().any(is_left)
    }
}

/// A checkpoint that a remote has not all of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// Which one.
    pub checkpoint: CheckpointId,
    /// What is not there, or is damaged.
    pub why: String,
}

/// What became of a golden image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedImage {
    /// What is in it.
    pub id: ImageId,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: ImageOutcome,
}

/// What became of a golden image that a host or a remote lacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum ImageOutcome {
    /// The remote has it now.
    Sent,
    /// It was made again here.
    Fetched {
        /// Where it lies.
        path: PathBuf,
    },
    /// It is nowhere on this host, and not on the remote.
    Lacking {
        /// Where it was looked for.
        why: String,
    },
    /// It is nowhere on this host, and what the remote has of it is damaged.
    Damaged {
        /// What is wrong with that.
        why: String,
    },
}

/// What became of a branch or a tag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CopiedRef {
    /// Which one.
    #[serde(flatten)]
    pub name: RefName,
    /// Where it is on the side from which was copied.
    pub checkpoint: CheckpointId,
    /// What became of it on the other.
    pub outcome: Outcome,
}

/// What became of a branch or a tag on the other side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was there already, or further.
    Same,
    /// It was not there.
    New,
    /// It was moved along its line, or because that was forced.
    Moved,
    /// It is elsewhere there, and was left; what was copied can be reached by its ids.
    Left {
        /// Where it is there.
        at: CheckpointId,
    },
}
