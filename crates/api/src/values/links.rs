//! Links, and what goes over them.

use fermata_experiment::net::{Change, Counters, Mac, Shape};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Asks for the ends of the links of a run, and changes one if it is told how.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkRequest {
    /// Of which run; needed only if there are several.
    pub run: Option<String>,
    /// Only this interface: `a:eth1`; none: all of them.
    pub interface: Option<String>,
    /// What is to become different there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
}

/// An interface, and the cable in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkEnd {
    /// `a:eth1`.
    pub interface: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Bytes of the largest packet.
    pub mtu: u16,
    /// The interface at the other end, or the name of the LAN.
    pub to: String,
    /// Whether the cable is plugged in.
    pub up: bool,
    /// What the interface sends.
    pub sent: Direction,
    /// What it receives.
    pub received: Direction,
}

/// One direction of a cable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Direction {
    /// What happens to frames.
    pub shape: Shape,
    /// What was counted since the experiment began.
    pub counters: Counters,
    /// Frames that are on their way.
    pub in_flight: u64,
}

/// Asks for what goes through some interfaces of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptureRequest {
    /// Of which run; needed only if there are several.
    #[serde(default)]
    pub run: Option<String>,
    /// Which: `a:eth1`.
    pub interfaces: Vec<String>,
    /// End after so many frames.
    #[serde(default)]
    pub count: Option<u64>,
    /// End when so much virtual time has passed.
    #[serde(default)]
    pub time_ns: Option<u64>,
}

/// What a capture has brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// The file.
    pub file: PathBuf,
    /// What it has of each interface.
    pub interfaces: Vec<CapturedEnd>,
}

/// What a capture has of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedEnd {
    /// `a:eth1`.
    pub interface: String,
    /// Frames in the file.
    pub frames: u64,
    /// Frames that are not in the file, since whoever reads it was too slow.
    pub missed: u64,
}
