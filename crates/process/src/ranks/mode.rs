//! In which way checkpoints of ranks are taken.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// How a rank is captured. All ways but the default are there to be compared with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Written pages only, each copied if the program is about to overwrite it before it was saved.
    #[default]
    Consistent,
    /// The rank stands still until the checkpoint is permanent.
    Blocking,
    /// All pages, whether written or not.
    Full,
    /// Written pages are saved while the program runs, again if it writes to them again, until few are left; then it stands still for those.
    Precopy,
    /// Like the default, but each rank at times of its own. After a failure all go back to what fits together, which may be the beginning.
    Optimistic,
}

/// Names of ways, with other names for the same.
const MODES: [(&str, Mode); 7] = [
    ("consistent", Mode::Consistent),
    ("incremental", Mode::Consistent),
    ("cow", Mode::Consistent),
    ("blocking", Mode::Blocking),
    ("full", Mode::Full),
    ("precopy", Mode::Precopy),
    ("optimistic", Mode::Optimistic),
];

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = MODES.iter().find(|(name, _)| *name == text);
        found.map(|(_, mode)| *mode).ok_or_else(|| {
            let names: Vec<_> = MODES.iter().map(|(name, _)| *name).collect();
            format!("no way to take checkpoints is called \"{text}\"; there are {}", names.join(", "))
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Consistent => "consistent",
            Self::Blocking => "blocking",
            Self::Full => "full",
            Self::Precopy => "precopy",
            Self::Optimistic => "optimistic",
        })
    }
}

impl Mode {
    pub(super) fn to_byte(self) -> u8 {
        match self {
            Self::Consistent => 0,
            Self::Blocking => 1,
            Self::Full => 2,
            Self::Precopy => 3,
            Self::Optimistic => 4,
        }
    }

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        MODES.into_iter().map(|(_, mode)| mode).find(|mode| mode.to_byte() == byte)
    }
}

/// How messages travel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Unix sockets.
    #[default]
    Unix,
    /// TCP: on this host alone, or between several.
    Tcp,
    /// MPI: the program is one of MPI, and started by `mpirun`.
    Mpi,
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "unix" => Ok(Self::Unix),
            "tcp" => Ok(Self::Tcp),
            "mpi" => Ok(Self::Mpi),
            _ => Err(format!("messages cannot travel by \"{text}\"; they can by unix, tcp or mpi")),
        }
    }
}
