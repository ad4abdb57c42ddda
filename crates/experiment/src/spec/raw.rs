//! A specification as it is written: every key optional that may be left out, `defaults` apart.
//!
//! One set of types has three users: the reader of YAML fills it, the JSON Schema is derived from it, and a [`Spec`](super::Spec) kept as JSON comes
//! back through it. So the three cannot disagree about keys. Doc comments of the fields are what users see in the schema.

use super::{
    Accel, AgentPort, Clock, Format,
    error::Span,
    network::raw::{InterfaceName, RawEvent, RawInterface, RawLink},
    ports::Port,
    services::Service,
    units::{ByteSize, Interval},
};
use fermata_store::Keep;
use fermata_vm::{CaptureMode, FreePages, TrackerChoice};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer};
use std::{borrow::Cow, cmp::Ordering, collections::BTreeMap};

/// A value and where it stands. What does not come from a text stands at `0..0`.
#[derive(Debug, Clone)]
pub(super) struct Spanned<T> {
    pub value: T,
    pub span: Span,
}

impl<T> Spanned<T> {
    pub fn nowhere(value: T) -> Self {
        Self { value, span: 0..0 }
    }
}

impl<T: PartialEq> PartialEq for Spanned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Spanned<T> {}

impl<T: Ord> PartialOrd for Spanned<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord> Ord for Spanned<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.value.cmp(&other.value)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Spanned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::nowhere)
    }
}

impl<T: JsonSchema> JsonSchema for Spanned<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}

/// A name of an experiment or a machine: a small letter or digit, then small letters, digits and hyphens; 32 characters at most.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub(super) struct Name(#[schemars(regex(pattern = "^[a-z0-9][a-z0-9-]{0,31}$"))] pub String);

/// An experiment: named machines that are checkpointed together.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Experiment", title = "Fermata experiment")]
pub(super) struct RawSpec {
    /// The experiment's name: small letters, digits and hyphens; 32 characters at most.
    pub name: Spanned<Name>,
    /// Time between two checkpoints. Without it checkpoints are made by hand.
    pub every: Option<Spanned<Interval>>,
    /// Which checkpoints are kept; the others go after a while, unless they are tagged, end or divide a branch, or a run stands on them. Of each branch: the newest N (`last N`),
    /// and one for so much time, for as long (`every 2s for 1m`) or for ever (`every 1h`). Without it all are kept.
    #[schemars(with = "Option<String>", extend("examples" = ["last 20, every 2s for 1m, every 1m for 1h, every 1h for 7d"]))]
    pub keep: Option<Spanned<Keep>>,
    /// When a checkpoint copies memory: `stop` in the pause, `precopy` ahead of it, `cow` after it, before the guest writes again.
    #[schemars(with = "Option<String>", extend("enum" = CaptureMode::NAMES.map(|(name, _)| name), "default" = "auto"))]
    pub capture: Option<Spanned<CaptureMode>>,
    /// Who tells which pages of memory were written. `fermata doctor` says what this host can do.
    #[schemars(with = "Option<String>", extend("enum" = TrackerChoice::NAMES.map(|(name, _)| name), "default" = "auto"))]
    pub tracker: Option<Spanned<TrackerChoice>>,
    /// Take all of the memory in each checkpoint, not only what was written. It is only good for comparing.
    #[schemars(extend("default" = false))]
    pub full: Option<Spanned<bool>>,
    /// Whether checkpoints leave out pages that are free in the guest: `keep` keeps them, for those who compare whole memories; `balloon` gives machines a
    /// balloon as well, for kernels that report free pages and do not tell where they have described them.
    #[schemars(with = "Option<String>", extend("enum" = ["auto", "keep", "balloon"], "default" = "auto"))]
    pub free: Option<Spanned<FreePages>>,
    /// What holds for every machine that does not say otherwise.
    pub defaults: Option<RawNode>,
    /// The machines by name. A machine may be left empty when `defaults` say all.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 256))]
    pub nodes: Spanned<BTreeMap<Spanned<Name>, Option<RawNode>>>,
    /// What connects the machines.
    pub links: Option<Vec<Spanned<RawLink>>>,
    /// What happens when, in virtual time.
    #[schemars(extend("maxItems" = 10000))]
    pub events: Option<Vec<Spanned<RawEvent>>>,
}

/// A machine.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Node")]
pub(super) struct RawNode {
    /// Golden image of the first disk (raw or qcow2), relative to this file. It is never written.
    #[schemars(extend("minLength" = 1, "maxLength" = 4095))]
    pub image: Option<Spanned<String>>,
    /// RAM: a multiple of 2M from 16M to 4T.
    #[schemars(extend("default" = "1G"))]
    pub memory: Option<Spanned<ByteSize>>,
    /// Virtual processors.
    #[schemars(range(min = 1, max = 64), extend("default" = 1))]
    pub cpus: Option<Spanned<u32>>,
    /// Further disks; with `image`, 16 in all.
    #[schemars(extend("maxItems" = 16))]
    pub disks: Option<Spanned<Vec<Spanned<RawDisk>>>>,
    /// Linux kernel to boot directly, relative to this file.
    #[schemars(extend("minLength" = 1, "maxLength" = 4095))]
    pub kernel: Option<Spanned<String>>,
    /// Initial RAM disk for `kernel`, relative to this file.
    #[schemars(extend("minLength" = 1, "maxLength" = 4095))]
    pub initrd: Option<Spanned<String>>,
    /// Command line for `kernel`.
    // One more than the limit: the newline that ends a block of YAML text is dropped.
    #[schemars(extend("maxLength" = 2048))]
    pub cmdline: Option<Spanned<String>>,
    /// What executes the machine: `auto` takes KVM where the processor has it, else TCG, QEMU's translator.
    #[schemars(extend("default" = "auto"))]
    pub accel: Option<Spanned<Accel>>,
    /// QEMU CPU model, such as `max` or `qemu64,-rdrand`.
    #[schemars(extend("pattern" = "^[A-Za-z0-9][A-Za-z0-9._,+=-]{0,254}$"))]
    pub cpu: Option<Spanned<String>>,
    /// Run the machine so that it does the same every time: TCG, one instruction a tick, fixed clock and seed. Allows no disk, one processor.
    #[schemars(extend("default" = false))]
    pub deterministic: Option<Spanned<bool>>,
    /// The device on which the guest agent's port is: `legacy` for virtio 0.9, `modern` for virtio 1.0.
    #[schemars(extend("default" = "modern"))]
    pub agent: Option<Spanned<AgentPort>>,
    /// Which time the machine wakes to when it goes on from a checkpoint or a pause: `virtual`, that at which it stood, or `real`. And how far its clock is ahead (+) or
    /// behind (-).
    pub clock: Option<Spanned<Clock>>,
    /// Addresses of interfaces that `links` connect.
    #[schemars(with = "Option<BTreeMap<InterfaceName, RawInterface>>")]
    pub interfaces: Option<BTreeMap<Spanned<InterfaceName>, RawInterface>>,
    /// TCP ports that are reached from this host, by an interface that is no part of the experiment.
    #[schemars(extend("maxItems" = 64))]
    pub ports: Option<Spanned<Vec<Spanned<Port>>>>,
    /// What answers the machine at 198.18.0.1, by an interface that is no part of the experiment: `ntp` with the time, virtual or real as `clock` says, `dns` with the
    /// addresses of the machines.
    pub services: Option<Spanned<Vec<Spanned<Service>>>>,
    /// Something in it could not be read: rules between its keys would blame the wrong place.
    #[serde(skip)]
    pub partial: bool,
}

/// A disk: an image, or an empty one of a size.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[schemars(rename = "Disk", extend("oneOf" = [{"required": ["image"]}, {"required": ["size"]}]))]
pub(super) struct RawDisk {
    /// Golden image (raw or qcow2), relative to this file. It is never written.
    #[schemars(extend("minLength" = 1, "maxLength" = 4095))]
    pub image: Option<Spanned<String>>,
    /// Size of an empty disk: a multiple of 4K from 4K to 16T.
    pub size: Option<Spanned<ByteSize>>,
    /// Format of the image. Without it the image's first bytes tell.
    pub format: Option<Spanned<Format>>,
    /// The guest may not write to the disk.
    #[schemars(extend("default" = false))]
    pub read_only: Option<Spanned<bool>>,
}

impl RawNode {
    /// Takes from `defaults` what the machine does not say.
    pub fn or(self, defaults: &Self) -> Self {
        let Self {
            image,
            memory,
            cpus,
            disks,
            kernel,
            initrd,
            cmdline,
            accel,
            cpu,
            deterministic,
            agent,
            clock,
            interfaces,
            ports,
            services,
            partial,
        } = defaults.clone();
        Self {
            image: self.image.or(image),
            memory: self.memory.or(memory),
            cpus: self.cpus.or(cpus),
            disks: self.disks.or(disks),
            kernel: self.kernel.or(kernel),
            initrd: self.initrd.or(initrd),
            cmdline: self.cmdline.or(cmdline),
            accel: self.accel.or(accel),
            cpu: self.cpu.or(cpu),
            deterministic: self.deterministic.or(deterministic),
            agent: self.agent.or(agent),
            clock: self.clock.or(clock),
            interfaces: self.interfaces.or(interfaces),
            ports: self.ports.or(ports),
            services: self.services.or(services),
            partial: self.partial || partial,
        }
    }
}
