//! Links, LANs, interfaces and events in a specification.
//!
//! - `raw`: as written
//! - `read`: which keys there are and what each takes
//! - `rules`: what must hold among them
//! - `quantities`: rates, times, chances and addresses

mod quantities;
pub(super) mod raw;
pub(super) mod read;
pub(super) mod rules;
#[cfg(test)]
mod tests;

pub use quantities::{Clock, Ipv4, Percent, Rate, Time};

use fermata_net::{Change, Mac, Reshape, Shape, topology::MTU_DEFAULT};
use fermata_types::VirtualTime;
use fermata_vm::NETS_MAX;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value, json};
use std::{fmt, str::FromStr};

/// The last interface: a machine has places for these.
pub(super) const LAST_INTERFACE: u8 = NETS_MAX as u8 - 1;

/// An interface of a machine. As text: `a:eth1`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// The machine's name.
    pub machine: String,
    /// The number of the interface, 1 for `eth1`.
    pub number: u8,
}

impl Endpoint {
    /// `eth1`.
    pub fn interface(&self) -> String {
        format!("eth{}", self.number)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:eth{}", self.machine, self.number)
    }
}

/// Text that names no interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected a machine and its interface, eth0 to eth{LAST_INTERFACE}, such as a:eth1")]
pub struct ParseEndpointError;

impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, ParseEndpointError> {
        let (machine, interface) = text.split_once(':').ok_or(ParseEndpointError)?;
        let number = interface_number(interface).ok_or(ParseEndpointError)?;
        Ok(Self { machine: machine.to_owned(), number })
    }
}

/// 1 for `eth1`.
pub(super) fn interface_number(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("eth")?;
    let number = digits.parse().ok().filter(|number| *number <= LAST_INTERFACE)?;
    // One name for each interface: no zeros in front, no sign.
    (format!("{number}") == digits).then_some(number)
}

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a specification says of an interface.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NodeInterface {
    /// Its address; without it one is derived from the names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// Its IPv4 address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4>,
}

/// A link between two interfaces, or a LAN of any number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The name, if it is a LAN.
    pub lan: Option<String>,
    /// Two interfaces, or those at the LAN, which are at least two.
    pub endpoints: Vec<Endpoint>,
    /// What happens to frames that the first interface sends; of a LAN, to those on their way to the switch.
    pub forward: Shape,
    /// What happens to frames that the second interface sends; of a LAN, to those on their way from the switch.
    pub back: Shape,
    /// The MTU of the interfaces.
    pub mtu: u16,
}

impl Serialize for Link {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = serializer.serialize_map(None)?;
        if let Some(name) = &self.lan {
            keys.serialize_entry("lan", name)?;
        }
        keys.serialize_entry("endpoints", &self.endpoints)?;
        if self.mtu != MTU_DEFAULT {
            keys.serialize_entry("mtu", &self.mtu)?;
        }
        differences(&Shape::default(), &self.forward).iter().try_for_each(|(key, value)| keys.serialize_entry(key, value))?;
        let back = differences(&self.forward, &self.back);
        if !back.is_empty() {
            keys.serialize_entry("back", &back)?;
        }
        keys.end()
    }
}

/// Something that happens at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: VirtualTime,
    /// What.
    pub action: Action,
}

/// What happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The cable of an interface becomes another. What is said for what it sends holds for what it receives too, unless something else is
    /// said there.
    Link {
        /// The interface.
        interface: Endpoint,
        /// What becomes different.
        change: Change,
    },
    /// A command is run in a machine.
    Exec {
        /// The machine's name.
        machine: String,
        /// The command, for the guest's shell.
        run: String,
    },
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = serializer.serialize_map(None)?;
        keys.serialize_entry("at", &Time(self.at.ns))?;
        match &self.action {
            Action::Link { interface, change } => {
                keys.serialize_entry("link", interface)?;
                if let Some(up) = change.up {
                    keys.serialize_entry("down", &!up)?;
                }
                let sent = said(&change.sent);
                sent.iter().try_for_each(|(key, value)| keys.serialize_entry(key, value))?;
                let mut back = said(&change.received);
                back.retain(|key, value| sent.get(key) != Some(value));
                if !back.is_empty() {
                    keys.serialize_entry("back", &back)?;
                }
            }
            Action::Exec { machine, run } => {
                keys.serialize_entry("exec", machine)?;
                keys.serialize_entry("run", run)?;
            }
        }
        keys.end()
    }
}

/// The keys that make one shape of another.
fn differences(from: &Shape, to: &Shape) -> Map<String, Value> {
    let all = |shape: &Shape| {
        said(&Reshape {
            rate: Some(shape.rate.unwrap_or(0)),
            delay_ns: Some(shape.delay_ns),
            jitter_ns: Some(shape.jitter_ns),
            loss: Some(shape.loss),
            duplicate: Some(shape.duplicate),
            reorder: Some(shape.reorder),
            queue: Some(shape.queue),
            discipline: Some(shape.discipline),
        })
    };
    let (from, mut to) = (all(from), all(to));
    to.retain(|key, value| from.get(key) != Some(value));
    to
}

/// The keys of what is said.
fn said(shape: &Reshape) -> Map<String, Value> {
    let Reshape { rate, delay_ns, jitter_ns, loss, duplicate, reorder, queue, discipline } = shape;
    let keys = [
        ("rate", rate.map(|rate| json!(Rate(rate)))),
        ("delay", delay_ns.map(|ns| json!(Time(ns)))),
        ("jitter", jitter_ns.map(|ns| json!(Time(ns)))),
        ("loss", loss.map(|chance| json!(Percent(chance)))),
        ("duplicate", duplicate.map(|chance| json!(Percent(chance)))),
        ("reorder", reorder.map(|chance| json!(Percent(chance)))),
        ("queue", queue.map(|frames| json!(frames))),
        ("discipline", discipline.map(|discipline| json!(discipline))),
    ];
    keys.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

/// What the keys of a shape say on their own.
fn reshape(raw: &raw::RawShape) -> Reshape {
    Reshape {
        rate: raw.rate.as_ref().map(|rate| rate.value.0),
        delay_ns: raw.delay.as_ref().map(|time| time.value.0),
        jitter_ns: raw.jitter.as_ref().map(|time| time.value.0),
        loss: raw.loss.as_ref().map(|chance| chance.value.0),
        duplicate: raw.duplicate.as_ref().map(|chance| chance.value.0),
        reorder: raw.reorder.as_ref().map(|chance| chance.value.0),
        queue: raw.queue.as_ref().map(|frames| frames.value),
        discipline: raw.discipline.as_ref().map(|discipline| discipline.value),
    }
}
