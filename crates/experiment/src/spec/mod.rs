//! The specification of an experiment: the YAML that people write, what it means, its errors and its schema.
//!
//! ```text
//! text --yaml--> tree --read--> as written --resolve--> Spec --> JSON in each checkpoint
//!                                    ^                              |
//!                                    +------------------------------+
//! ```
//!
//! - `yaml`: a tree of values with their places, and limits on it
//! - `raw`: the specification as written; the JSON Schema comes from it
//! - `read`: which keys there are and what each takes
//! - `resolve`: ranges, rules between keys, defaults, absolute paths
//! - `units`: sizes and intervals
//! - `network`: links, LANs, interfaces and events
//! - `ports`: ports of machines that are forwarded from this host; `services`: what answers them there
//! - `error`: faults, each with its place
//! - `file`: a specification with the places of its values still known
//! - `single`: one machine given on the command line alone
//!
//! It does not know what an engine can run, what is in an image, or whether the host has KVM. It reads no file but the specification itself, and
//! looks at others only when asked to check that they are there.

mod error;
mod file;
mod network;
mod ports;
mod raw;
mod read;
mod resolve;
mod services;
mod single;
mod units;
mod yaml;

#[cfg(test)]
mod tests;

pub use fermata_store::Keep;
pub use fermata_vm::{CaptureMode, CaptureOptions, FreePages, TrackerChoice};

pub use error::{Fault, FaultKind, Refusal, SpecError};
pub use file::SpecFile;
pub use network::{Action, Clock, Endpoint, Event, Ipv4, Link, NodeInterface, ParseEndpointError, Percent, Rate, Time};
pub use ports::Port;
pub use services::Service;
pub use single::SingleOptions;
pub use units::{ByteSize, Interval, ParseUnitError};

use error::Faults;
use schemars::{JsonSchema, Schema, generate::SchemaSettings, transform::RecursiveTransform};
use serde::{Deserialize, Serialize, Serializer, ser::SerializeMap};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

/// An experiment: `defaults` merged into every machine, every path absolute.
///
/// Its JSON is canonical: equal specifications have equal JSON. That JSON is itself a specification in YAML, and is checked by the same rules when it is
/// read back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "raw::RawSpec")]
pub struct Spec {
    /// The experiment's name: 1 to 32 of `a-z`, `0-9` and `-`.
    pub name: String,
    /// Time between two checkpoints, 100 ms to 24 h in whole milliseconds; none when they are made by hand.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "interval")]
    pub every: Option<Duration>,
    /// Which checkpoints are kept; none: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<Keep>,
    /// How memory is watched and captured: the keys `capture`, `tracker`, `full` and `free`.
    #[serde(flatten, serialize_with = "capture")]
    pub capture: CaptureOptions,
    /// The machines by name; 1 to 256.
    pub nodes: BTreeMap<String, Node>,
    /// Links and LANs. Each interface is at one of them at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// What happens when, in any order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Golden image of the first disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<PathBuf>,
    /// RAM: a multiple of 2 MiB from 16 MiB to 4 TiB.
    pub memory: ByteSize,
    /// Virtual processors, 1 to 64.
    pub cpus: u32,
    /// The disks after that of `image`; see [`Node::all_disks`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Disk>,
    /// Linux kernel to boot directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// Initial RAM disk for the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initrd: Option<PathBuf>,
    /// Command line for the kernel, one line of at most 2047 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<String>,
    /// What executes the machine.
    pub accel: Accel,
    /// QEMU CPU model; none leaves the choice to the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Does the same every time. Such a machine has no disk, one processor and no KVM.
    pub deterministic: bool,
    /// On what the guest agent's port is.
    #[serde(skip_serializing_if = "AgentPort::is_modern")]
    pub agent: AgentPort,
    /// How far its clock is off, and which time it wakes to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// What is said of its interfaces, by name (`eth1`). Those that a link connects and that are not here are left to themselves.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub interfaces: BTreeMap<String, NodeInterface>,
    /// Ports that are forwarded from this host. A machine with any has a control interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// What answers it behind its control interface, which a machine with any has too.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub services: BTreeSet<Service>,
}

impl Node {
    /// Whether it has an interface outside the experiment's world.
    pub fn has_control(&self) -> bool {
        !self.ports.is_empty() || !self.services.is_empty()
    }

    /// RAM of a machine that does not say.
    pub const MEMORY_DEFAULT: ByteSize = ByteSize::mib(1024);

    /// Every disk in the guest's order: first that of `image`, if there is one, then `disks`; 16 at most.
    pub fn all_disks(&self) -> impl Iterator<Item = Disk> {
        let first = self.image.clone().map(|image| Disk { image: Some(image), size: None, format: None, read_only: false });
        first.into_iter().chain(self.disks.iter().cloned())
    }
}

/// A disk: exactly one of `image` and `size` is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Disk {
    /// Its golden image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<PathBuf>,
    /// Size of an empty disk: a multiple of 4 KiB up to 16 TiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// Format of the image; none when its first bytes are to tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// The guest may not write to it. Only with an image.
    pub read_only: bool,
}

/// What executes a machine's instructions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Accel {
    /// KVM where the processor has it, else TCG.
    #[default]
    Auto,
    /// The processor's own virtualization.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

/// The device on which the guest agent's port is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum AgentPort {
    /// Of virtio 0.9: takes less of each pause.
    Legacy,
    /// Of virtio 1.0.
    #[default]
    Modern,
}

impl AgentPort {
    pub(super) const NAMES: [(&'static str, Self); 2] = [("legacy", Self::Legacy), ("modern", Self::Modern)];

    fn is_modern(&self) -> bool {
        *self == Self::Modern
    }
}

/// How an image file is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Format {
    /// The bytes of the disk, as they are.
    Raw,
    /// QEMU's format.
    Qcow2,
}

impl Spec {
    /// Reads a specification. `origin` is what errors call the text; relative paths in it start at `base`.
    ///
    /// Use [`SpecFile`] to check, with places in errors, that the files are there.
    pub fn from_yaml(text: &str, origin: &Path, base: &Path) -> Result<Self, SpecError> {
        SpecFile::parse(text, origin, base).map(SpecFile::into_spec)
    }

    /// An experiment of one machine, `m1`, from what the command line says. Relative paths start at the current directory.
    pub fn single(image: Option<&Path>, options: SingleOptions) -> Result<Self, SpecError> {
        single::spec(image, options)
    }

    /// Checks that every image, kernel and initial RAM disk is a file that can be read.
    pub fn check_files(&self) -> Result<(), SpecError> {
        file::check(&self.files(), None)
    }

    /// The JSON Schema of the YAML: draft 2020-12.
    pub fn json_schema() -> Value {
        let settings = SchemaSettings::draft2020_12().with_transform(RecursiveTransform(forbid_null));
        settings.into_generator().into_root_schema_for::<raw::RawSpec>().to_value()
    }

    fn files(&self) -> Vec<resolve::File> {
        let mut files = Vec::new();
        let mut add = |what, path: &Option<PathBuf>| files.extend(path.clone().map(|path| resolve::File { path, what, span: 0..0 }));
        for node in self.nodes.values() {
            add("image", &node.image);
            node.disks.iter().for_each(|disk| add("image", &disk.image));
            add("kernel", &node.kernel);
            add("initrd", &node.initrd);
        }
        files
    }
}

impl TryFrom<raw::RawSpec> for Spec {
    type Error = SpecError;

    fn try_from(raw: raw::RawSpec) -> Result<Self, SpecError> {
        let mut faults = Faults::default();
        let (spec, _) = resolve::spec(raw, None, &mut faults);
        faults.into_result(None).map(|()| spec)
    }
}

fn interval<S: Serializer>(every: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    let every = every.map(Interval::new).transpose().map_err(serde::ser::Error::custom)?;
    every.serialize(serializer)
}

/// Only what was said.
fn capture<S: Serializer>(options: &CaptureOptions, serializer: S) -> Result<S::Ok, S::Error> {
    let CaptureOptions { tracker, mode, full, free } = options;
    let mut keys = serializer.serialize_map(None)?;
    if *mode != CaptureMode::Auto {
        keys.serialize_entry("capture", mode)?;
    }
    if *tracker != TrackerChoice::Auto {
        keys.serialize_entry("tracker", tracker)?;
    }
    if *full {
        keys.serialize_entry("full", full)?;
    }
    if *free != FreePages::Auto {
        keys.serialize_entry("free", free)?;
    }
    keys.end()
}

/// A key that may be left out is not one that may be null, which is all that the derived schema knows to say.
fn forbid_null(schema: &mut Schema) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    for property in properties.values_mut().filter_map(Value::as_object_mut) {
        if let Some(Value::Array(types)) = property.get_mut("type") {
            types.retain(|name| name != "null");
            if let [only] = types.as_slice() {
                let only = only.clone();
                property.insert("type".to_owned(), only);
            }
        }
        if let Some(Value::Array(choices)) = property.get_mut("enum") {
            choices.retain(|choice| !choice.is_null());
        }
        if let Some(Value::Array(mut choices)) = property.remove("anyOf") {
            choices.retain(|choice| choice["type"] != "null");
            match choices.as_mut_slice() {
                // What the field says of itself goes before what its type says.
                [Value::Object(only)] => {
                    let mut own = std::mem::take(property);
                    property.append(only);
                    property.append(&mut own);
                }
                _ => drop(property.insert("anyOf".to_owned(), Value::Array(choices))),
            }
        }
    }
}
