//! How a checkpoint takes the pages of a machine: when they are copied, and which.

use crate::{Accel, Error, FreePages, MachineConfig, Result};
use fermata_tracker::Choice;
use fermata_types::names::{name_of, named};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// When written pages are copied (Elnozahy, Johnson and Zwaenepoel 1992, section 2.1; Li, Naughton and Plank 1990 for the last).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureMode {
    /// Pre-copy (stop with the tracker `compare`), as far as copying is faster than the guest writes. What is left then is copied after the pause
    /// if the tracker lets us have a page before it is written, else in the pause.
    #[default]
    Auto,
    /// All of them while the machine stands still.
    Stop,
    /// Ahead of the pause while the guest runs, and in the pause those that were written again.
    Precopy,
    /// After the pause; a page that the guest is about to write before its turn is copied first. Needs the tracker `userfault`.
    Cow,
}

impl CaptureMode {
    /// What people call each of them.
    pub const NAMES: [(&str, Self); 4] = [("auto", Self::Auto), ("stop", Self::Stop), ("precopy", Self::Precopy), ("cow", Self::Cow)];
}

impl fmt::Display for CaptureMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(name_of(&Self::NAMES, self))
    }
}

impl FromStr for CaptureMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(&Self::NAMES, text)
    }
}

/// How the memory of machines is watched and captured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CaptureOptions {
    /// Who tells which pages were written.
    pub tracker: Choice,
    /// When they are copied.
    pub mode: CaptureMode,
    /// Take every page each time, not only those that were written: what the others are compared with.
    pub full: bool,
    /// Whether pages that are free in the guest are left out.
    pub free: FreePages,
}

impl CaptureOptions {
    /// What this host can do for this machine, and what fits together.
    pub(crate) fn settle(self, machine: &MachineConfig) -> Result<Self> {
        let refused = |message: String| Error::Unsupported { machine: machine.name.clone(), message };
        let wanted = if self.mode == CaptureMode::Cow && self.tracker == Choice::Auto { Choice::Userfault } else { self.tracker };
        let tracker = wanted.settle().map_err(|why| refused(why.to_string()))?;
        if tracker == Choice::KvmLog && machine.accel != Accel::Kvm {
            return Err(refused(
                "the tracker kvm-log asks KVM what was written, and this machine runs under TCG: choose another tracker".to_owned(),
            ));
        }
        // A page copied ahead between two comparisons may be written back to what the first of them saw, and the second would not name it.
        let (settled, compares) = (Self { tracker, ..self }, tracker == Choice::Compare);
        if self.mode == CaptureMode::Precopy && compares {
            return Err(refused(
                "the tracker compare misses what is written back to what it was while pages are copied ahead: use the capture mode stop, or another tracker".to_owned(),
            ));
        }
        if self.mode == CaptureMode::Auto && compares {
            return Ok(Self { mode: CaptureMode::Stop, ..settled });
        }
        if self.mode == CaptureMode::Cow && !settled.can_hold() {
            return Err(refused(format!(
                "copy-on-write needs to see a write before it happens, and the tracker {tracker} tells of it afterwards: use the tracker userfault, or the capture mode precopy"
            )));
        }
        Ok(settled)
    }

    /// Whether pages can be copied after the pause: somebody is told of a write before it happens.
    pub(crate) fn can_hold(self) -> bool {
        self.tracker == Choice::Userfault
    }
}
