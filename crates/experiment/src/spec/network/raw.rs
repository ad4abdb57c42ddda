//! Links, interfaces and events as they are written.

use super::{
    super::raw::{Name, Spanned},
    quantities::{Ipv4, Percent, Rate, Time},
};
use fermata_net::{Discipline, Mac};
use schemars::JsonSchema;
use serde::Deserialize;

/// An interface of a machine, such as `a:eth1`: eth0 to eth14.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub(in crate::spec) struct RawEndpoint(#[schemars(regex(pattern = "^[a-z0-9][a-z0-9-]{0,31}:eth([0-9]|1[0-4])$"))] pub String);

/// A name of an interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub(in crate::spec) struct InterfaceName(#[schemars(regex(pattern = "^eth([0-9]|1[0-4])$"))] pub String);

/// An interface of a machine.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Interface")]
pub(in crate::spec) struct RawInterface {
    /// Ethernet address. Without it one is derived from the names of experiment, machine and interface.
    #[schemars(with = "Option<String>", extend("pattern" = "^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$"))]
    pub mac: Option<Spanned<Mac>>,
    /// IPv4 address and the length of its network.
    pub ipv4: Option<Spanned<Ipv4>>,
}

/// A link between two interfaces, or a LAN (a switch) of any number.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Link")]
pub(in crate::spec) struct RawLink {
    /// The name of a LAN. Without it, it is a link between two interfaces.
    pub lan: Option<Spanned<Name>>,
    /// The interfaces, each as MACHINE:INTERFACE.
    #[schemars(extend("minItems" = 2))]
    pub endpoints: Spanned<Vec<Spanned<RawEndpoint>>>,
    /// Bytes of the largest packet, without the Ethernet header.
    #[schemars(range(min = 68, max = 9216), extend("default" = 1500))]
    pub mtu: Option<Spanned<u32>>,
    #[serde(flatten)]
    pub shape: RawShape,
    /// What is different for frames that the second endpoint sends; at a LAN, for those on their way from the switch.
    pub back: Option<RawBack>,
    /// An endpoint could not be read.
    #[serde(skip)]
    pub lost: bool,
}

impl RawLink {
    /// One of which nothing could be read.
    pub fn unread() -> Self {
        let endpoints = Spanned::nowhere(Vec::new());
        Self { lan: None, endpoints, mtu: None, shape: RawShape::default(), back: None, lost: true }
    }
}

/// What is different in the other direction.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Back")]
pub(in crate::spec) struct RawBack {
    #[serde(flatten)]
    pub shape: RawShape,
}

/// What happens to frames in one direction.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub(in crate::spec) struct RawShape {
    /// Bits a second; without it there is no limit.
    pub rate: Option<Spanned<Rate>>,
    /// Time from the end of a frame's transmission to its arrival, at most 1h.
    pub delay: Option<Spanned<Time>>,
    /// The delay is spread evenly over as much below `delay` and above. It does not change the order of frames.
    pub jitter: Option<Spanned<Time>>,
    /// The chance of a frame to be lost.
    pub loss: Option<Spanned<Percent>>,
    /// The chance of a frame to be sent twice.
    pub duplicate: Option<Spanned<Percent>>,
    /// The chance of a frame to skip the delay, and so to overtake others.
    pub reorder: Option<Spanned<Percent>>,
    /// Frames that wait for the transmitter at most.
    #[schemars(range(min = 1, max = 100000), extend("default" = 1000))]
    pub queue: Option<Spanned<u32>>,
    /// `drop-tail` drops what comes when the queue is full; `codel` drops earlier while frames wait too long (RFC 8289).
    #[schemars(with = "Option<String>", extend("enum" = ["drop-tail", "codel"], "default" = "drop-tail"))]
    pub discipline: Option<Spanned<Discipline>>,
    /// A value could not be read: rules between them would blame the wrong one.
    #[serde(skip)]
    pub partial: bool,
}

/// Something that happens at a time: a change of a link, or a command in a machine.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Event", extend("oneOf" = [{"required": ["link"]}, {"required": ["exec", "run"]}]))]
pub(in crate::spec) struct RawEvent {
    /// When: virtual time since the experiment began.
    pub at: Spanned<Time>,
    /// An interface whose cable changes, in both directions.
    pub link: Option<Spanned<RawEndpoint>>,
    /// `true`: the cable is pulled out, and what is on it is lost; `false`: it is plugged in.
    pub down: Option<Spanned<bool>>,
    #[serde(flatten)]
    pub shape: RawShape,
    /// What is different for frames that the interface receives.
    pub back: Option<RawBack>,
    /// A machine in which a command is run.
    pub exec: Option<Spanned<Name>>,
    /// The command, for the guest's shell.
    #[schemars(extend("minLength" = 1, "maxLength" = 4096))]
    pub run: Option<Spanned<String>>,
    /// Something in it could not be read.
    #[serde(skip)]
    pub partial: bool,
}
