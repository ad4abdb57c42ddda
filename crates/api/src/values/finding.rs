//! What `fermata doctor` tells.

use serde::{Deserialize, Serialize};

/// One thing that `doctor` looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at: `QEMU`, `userfaultfd`.
    pub what: String,
    /// Whether it is as it should be.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// How to mend it, if it is not.
    pub mend: Option<String>,
}

/// How a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, with less.
    Limited,
    /// Nothing works without it.
    Bad,
    /// Not there, and nothing needs it.
    Unneeded,
}
