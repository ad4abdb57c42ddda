//! From the specification as written to what it means: ranges, rules between keys, defaults, absolute paths.

use super::{
    Accel, Disk, Node, Spec,
    error::{Fault, FaultKind, Faults, Span},
    network::{NodeInterface, rules},
    ports::{PORTS_MAX, Taken},
    raw::{Name, RawDisk, RawNode, RawSpec, Spanned},
    units::{ByteSize, shorten},
};
use fermata_vm::{CMDLINE_MAX, CaptureOptions};
use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

/// A machine needs little, and a page table names 16 TiB; in between is what QEMU was tried with.
const MEMORY: RangeInclusive<u64> = 16 << 20..=4 << 40;

/// One leaf of a page table, and a huge page.
const MEMORY_UNIT: u64 = 2 << 20;

/// One page, to what 32-bit page numbers reach.
const DISK: RangeInclusive<u64> = 4 << 10..=16 << 40;

const DISK_UNIT: u64 = 4 << 10;
const DISKS_MAX: usize = 16;
const NODES_MAX: usize = 256;
const CPUS_MAX: u32 = 64;

/// Linux: `PATH_MAX` counts the closing zero.
const PATH_MAX: usize = 4095;

const CPU_MODEL_MAX: usize = 255;
pub(super) const NAME_MAX: usize = 32;

/// A file that the specification names.
#[derive(Debug, Clone)]
pub(super) struct File {
    pub path: PathBuf,
    pub what: &'static str,
    pub span: Span,
}

/// What a specification means, and the files that it names. Relative paths start at `base`; without one they are refused. The meaning is only good when
/// there are no faults.
pub(super) fn spec(raw: RawSpec, base: Option<&Path>, faults: &mut Faults) -> (Spec, Vec<File>) {
    let mut resolver = Resolver { base, files: Vec::new(), faults };
    let mut spec = Spec {
        name: resolver.name(raw.name),
        every: raw.every.map(|every| every.value.duration()),
        keep: raw.keep.map(|keep| keep.value),
        capture: CaptureOptions {
            mode: raw.capture.map(|mode| mode.value).unwrap_or_default(),
            tracker: raw.tracker.map(|tracker| tracker.value).unwrap_or_default(),
            full: raw.full.is_some_and(|full| full.value),
            free: raw.free.map(|free| free.value).unwrap_or_default(),
        },
        nodes: BTreeMap::new(),
        links: Vec::new(),
        events: Vec::new(),
    };
    let defaults = raw.defaults.unwrap_or_default();
    resolver.values(&defaults);
    let Spanned { value: nodes, span } = raw.nodes;
    match nodes.len() {
        0 => resolver.faults.invalid(
            span,
            "no machine",
            "expected at least one machine under `nodes`, such as `nodes: {m1: {image: disk.qcow2}}`",
        ),
        1..=NODES_MAX => {}
        count => {
            resolver.faults.invalid(
                span,
                "too many machines",
                format!("at most {NODES_MAX} machines, found {count}; split the experiment"),
            );
            return (spec, Vec::new());
        }
    }
    let (mut declared, mut taken) = (Vec::new(), Taken::default());
    for (name, node) in nodes {
        let node = node.unwrap_or_default();
        resolver.values(&node);
        let node = node.or(&defaults);
        if !node.partial {
            resolver.rules(&name, &node);
            taken.add(&name, node.ports.as_ref().map_or(&[], |ports| &ports.value), resolver.faults);
        }
        declared.extend(rules::declared(&name, node.interfaces.as_ref(), resolver.faults));
        let name = resolver.name(name);
        let node = resolver.node(node);
        spec.nodes.insert(name, node);
    }
    let Resolver { files, faults, .. } = resolver;
    rules::connect(raw.links.unwrap_or_default(), raw.events.unwrap_or_default(), &declared, &mut spec, faults);
    (spec, files)
}

struct Resolver<'a> {
    base: Option<&'a Path>,
    files: Vec<File>,
    faults: &'a mut Faults,
}

impl Resolver<'_> {
    fn name(&mut self, name: Spanned<Name>) -> String {
        let Spanned { value: Name(name), span } = name;
        if !is_name(&name) {
            let rule = "small letters, digits and hyphens, beginning with a letter or digit, 32 characters at most";
            self.faults.invalid(span, "not a name", format!("expected a name ({rule}), found \"{}\"", shorten(&name)));
        }
        name
    }

    /// Ranges of values, each looked at once where it is written.
    fn values(&mut self, node: &RawNode) {
        let paths = [("image", &node.image), ("kernel", &node.kernel), ("initrd", &node.initrd)];
        for (key, path) in paths {
            self.path_rules(key, path.as_ref());
        }
        if let Some(memory) = &node.memory {
            self.size("memory", memory, MEMORY, MEMORY_UNIT);
        }
        if let Some(cpus) = &node.cpus
            && !(1..=CPUS_MAX).contains(&cpus.value)
        {
            self.faults.invalid(
                cpus.span.clone(),
                "out of range",
                format!("`cpus`: expected 1 to {CPUS_MAX} processors, found {}", cpus.value),
            );
        }
        if let Some(cmdline) = &node.cmdline {
            self.line("cmdline", one_line(&cmdline.value), &cmdline.span, 0..=CMDLINE_MAX);
        }
        if let Some(cpu) = &node.cpu
            && !is_cpu_model(&cpu.value)
        {
            let message = format!("`cpu`: expected a QEMU CPU model such as max or qemu64,-rdrand, found \"{}\"", shorten(&cpu.value));
            self.faults.invalid(cpu.span.clone(), "not a CPU model", message);
        }
        for disk in node.disks.iter().flat_map(|disks| &disks.value) {
            self.disk_rules(disk);
        }
        if let Some(ports) = node.ports.as_ref().filter(|ports| ports.value.len() > PORTS_MAX) {
            let message = format!("`ports`: at most {PORTS_MAX} of a machine, found {}; remove some", ports.value.len());
            self.faults.invalid(ports.span.clone(), "too many ports", message);
        }
    }

    fn size(&mut self, key: &str, size: &Spanned<ByteSize>, range: RangeInclusive<u64>, unit: u64) {
        let ByteSize(bytes) = size.value;
        if !range.contains(&bytes) {
            let (low, high) = (ByteSize(*range.start()), ByteSize(*range.end()));
            self.faults.invalid(size.span.clone(), "out of range", format!("`{key}`: expected {low} to {high}, found {}", size.value));
        } else if !bytes.is_multiple_of(unit) {
            let below = ByteSize(bytes - bytes % unit);
            let message = format!("`{key}`: expected a multiple of {}, found {}; {below} would do", ByteSize(unit), size.value);
            self.faults.invalid(size.span.clone(), "not a multiple", message);
        }
    }

    fn path_rules(&mut self, key: &str, path: Option<&Spanned<String>>) {
        let Some(path) = path else { return };
        self.line(key, &path.value, &path.span, 1..=PATH_MAX);
        if self.base.is_none() && !Path::new(&path.value).is_absolute() {
            let message = format!("`{key}`: expected an absolute path, found \"{}\"", shorten(&path.value));
            self.faults.invalid(path.span.clone(), "relative path", message);
        }
    }

    fn line(&mut self, key: &str, line: &str, span: &Span, length: RangeInclusive<usize>) {
        if line.chars().any(char::is_control) {
            let message = format!(
                "`{key}`: expected one line without control characters, found \"{}\"; long lines can be folded with `>-`",
                shorten(line)
            );
            self.faults.invalid(span.clone(), "control character", message);
        } else if !length.contains(&line.len()) {
            let message = format!("`{key}`: expected {} to {} bytes, found {}", length.start(), length.end(), line.len());
            self.faults.invalid(span.clone(), "wrong length", message);
        }
    }

    fn disk_rules(&mut self, disk: &Spanned<RawDisk>) {
        let RawDisk { image, size, format, read_only } = &disk.value;
        self.path_rules("image", image.as_ref());
        if let Some(size) = size {
            self.size("size", size, DISK, DISK_UNIT);
        }
        match (image, size) {
            (Some(image), Some(size)) => {
                let message = "a disk has an image or a size, not both: an image has its own size; remove one of the two";
                self.faults
                    .push(Fault::new(FaultKind::Invalid, size.span.clone(), "and a size", message).also(image.span.clone(), "an image"));
            }
            (None, None) => self.faults.invalid(
                disk.span.clone(),
                "neither",
                "a disk needs an image or a size, such as `image: data.raw` or `size: 4G`",
            ),
            (None, Some(_)) => {
                if let Some(format) = format {
                    self.faults.invalid(
                        format.span.clone(),
                        "no image",
                        "`format` is for a disk with an image; an empty disk has none; remove it",
                    );
                }
                if let Some(Spanned { value: true, span }) = read_only {
                    self.faults.invalid(
                        span.clone(),
                        "nothing to read",
                        "an empty disk that cannot be written is of no use; give it an image or remove `read-only`",
                    );
                }
            }
            (Some(_), None) => {}
        }
    }

    /// Rules between the keys of a machine, defaults merged.
    fn rules(&mut self, name: &Spanned<Name>, node: &RawNode) {
        let machine = shorten(&name.value.0);
        let disks = node.disks.as_ref().map_or(0, |disks| disks.value.len()) + usize::from(node.image.is_some());
        if disks == 0 && node.kernel.is_none() {
            let message = format!("`{machine}` has nothing to run: a machine needs `image`, `disks` or `kernel`");
            self.faults.invalid(name.span.clone(), "nothing to run", message);
        }
        if disks > DISKS_MAX
            && let Some(list) = &node.disks
        {
            let message = format!("`{machine}`: at most {DISKS_MAX} disks, found {disks}; remove some");
            self.faults.invalid(list.span.clone(), "too many disks", message);
        }
        if node.kernel.is_none() {
            for (key, value) in [("initrd", &node.initrd), ("cmdline", &node.cmdline)] {
                if let Some(value) = value {
                    let message = format!("`{key}` needs a `kernel`, and `{machine}` has none; add one or remove `{key}`");
                    self.faults.invalid(value.span.clone(), "without a kernel", message);
                }
            }
        }
        if let Some(Spanned { value: true, span }) = &node.deterministic {
            self.deterministic_rules(&machine, span, node);
        }
    }

    /// What would let the outside in, or two processors race, ends the exactness.
    fn deterministic_rules(&mut self, machine: &str, because: &Span, node: &RawNode) {
        let mut offenders = Vec::new();
        if let Some(image) = &node.image {
            offenders.push((
                &image.span,
                "its first disk",
                "a disk answers when the host does; remove `image` and boot a `kernel` with an `initrd`",
            ));
        }
        if let Some(disks) = &node.disks
            && !disks.value.is_empty()
        {
            offenders.push((&disks.span, "disks", "a disk answers when the host does; remove them"));
        }
        if let Some(cpus) = node.cpus.as_ref().filter(|cpus| cpus.value > 1) {
            offenders.push((&cpus.span, "several processors", "their order would be the host's; write `cpus: 1`"));
        }
        if let Some(accel) = node.accel.as_ref().filter(|accel| accel.value == Accel::Kvm) {
            offenders.push((&accel.span, "KVM", "only QEMU's translator counts instructions; write `accel: tcg`"));
        }
        if let Some(ports) = node.ports.as_ref().filter(|ports| !ports.value.is_empty()) {
            offenders.push((&ports.span, "ports", "what comes from outside comes when it likes; remove them"));
        }
        if let Some(services) = node.services.as_ref().filter(|services| !services.value.is_empty()) {
            offenders.push((&services.span, "services", "what comes from outside comes when it likes; remove them"));
        }
        if let Some(clock) = node.clock.as_ref().filter(|clock| clock.value.real) {
            offenders.push((&clock.span, "the real time", "its clock counts instructions; write `clock: virtual`"));
        }
        for (span, what, why) in offenders {
            let message = format!("`{machine}` is deterministic and cannot have {what}: {why}");
            let fault = Fault::new(FaultKind::Invalid, span.clone(), "not deterministic", message);
            self.faults.push(fault.also(because.clone(), "asked for here"));
        }
    }

    fn node(&mut self, node: RawNode) -> Node {
        let interfaces = node.interfaces.into_iter().flatten().map(|(name, interface)| {
            let (mac, ipv4) = (interface.mac.map(|mac| mac.value), interface.ipv4.map(|ipv4| ipv4.value));
            (name.value.0, NodeInterface { mac, ipv4 })
        });
        let disks = node.disks.map(|disks| disks.value).unwrap_or_default();
        Node {
            image: self.file("image", node.image),
            memory: node.memory.map_or(Node::MEMORY_DEFAULT, |memory| memory.value),
            cpus: node.cpus.map_or(1, |cpus| cpus.value),
            disks: disks.into_iter().map(|disk| self.disk(disk.value)).collect(),
            kernel: self.file("kernel", node.kernel),
            initrd: self.file("initrd", node.initrd),
            cmdline: node.cmdline.map(|cmdline| one_line(&cmdline.value).to_owned()),
            accel: node.accel.map_or(Accel::Auto, |accel| accel.value),
            cpu: node.cpu.map(|cpu| cpu.value),
            deterministic: node.deterministic.is_some_and(|flag| flag.value),
            agent: node.agent.map(|agent| agent.value).unwrap_or_default(),
            clock: node.clock.map(|clock| clock.value),
            interfaces: interfaces.collect(),
            ports: node.ports.into_iter().flat_map(|ports| ports.value).map(|port| port.value).collect(),
            services: node.services.into_iter().flat_map(|services| services.value).map(|service| service.value).collect(),
        }
    }

    fn disk(&mut self, disk: RawDisk) -> Disk {
        Disk {
            image: self.file("image", disk.image),
            size: disk.size.map(|size| size.value),
            format: disk.format.map(|format| format.value),
            read_only: disk.read_only.is_some_and(|flag| flag.value),
        }
    }

    fn file(&mut self, what: &'static str, path: Option<Spanned<String>>) -> Option<PathBuf> {
        let Spanned { value, span } = path?;
        let joined = self.base.unwrap_or(Path::new("")).join(value);
        // Drops `.` only: what `..` means depends on links.
        let path: PathBuf = joined.components().collect();
        self.files.push(File { path: path.clone(), what, span });
        Some(path)
    }
}

/// A block of YAML text ends in a newline that nobody means.
fn one_line(text: &str) -> &str {
    text.strip_suffix('\n').unwrap_or(text)
}

pub(super) fn is_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(good) && !text.starts_with('-')
}

fn is_cpu_model(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._,+=-".contains(&byte);
    (1..=CPU_MODEL_MAX).contains(&text.len()) && text.bytes().all(good) && text.as_bytes()[0].is_ascii_alphanumeric()
}
