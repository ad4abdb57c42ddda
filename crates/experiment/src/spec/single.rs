//! One machine given on the command line alone.

use super::{
    Accel, Disk, Spec, SpecError,
    error::{Fault, FaultKind, Faults},
    raw::{Name, RawDisk, RawNode, RawSpec, Spanned},
    resolve::{self, NAME_MAX, is_name},
    units::{ByteSize, Interval},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

/// Name of an experiment whose image's name cannot be one.
const NAME_DEFAULT: &str = "machine";

/// What the command line says of a machine. What is left out means what it means in YAML.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SingleOptions {
    /// Name of the experiment; without it the image's file name, made valid.
    pub name: Option<String>,
    /// Time between two checkpoints.
    pub every: Option<Duration>,
    /// RAM.
    pub memory: Option<ByteSize>,
    /// Virtual processors.
    pub cpus: Option<u32>,
    /// Further disks.
    pub disks: Vec<Disk>,
    /// Linux kernel to boot directly.
    pub kernel: Option<PathBuf>,
    /// Initial RAM disk for the kernel.
    pub initrd: Option<PathBuf>,
    /// Command line for the kernel.
    pub cmdline: Option<String>,
    /// What executes the machine.
    pub accel: Accel,
    /// QEMU CPU model.
    pub cpu: Option<String>,
    /// Does the same every time.
    pub deterministic: bool,
}

pub(super) fn spec(image: Option<&Path>, options: SingleOptions) -> Result<Spec, SpecError> {
    let mut faults = Faults::default();
    let name = options.name.clone().unwrap_or_else(|| experiment_name(image));
    let every = options.every.and_then(|every| refuse(Interval::new(every), "`every`", &mut faults));
    let node = node(image, options, &mut faults);
    let nodes = BTreeMap::from([(Spanned::nowhere(Name("m1".to_owned())), Some(node))]);
    let raw = RawSpec {
        name: Spanned::nowhere(Name(name)),
        every: every.map(Spanned::nowhere),
        keep: None,
        capture: None,
        tracker: None,
        full: None,
        free: None,
        defaults: None,
        nodes: Spanned::nowhere(nodes),
        links: None,
        events: None,
    };
    let (spec, _) = resolve::spec(raw, None, &mut faults);
    faults.into_result(None).map(|()| spec)
}

fn node(image: Option<&Path>, options: SingleOptions, faults: &mut Faults) -> RawNode {
    let before = faults.found();
    let disks: Vec<_> = options.disks.iter().map(|disk| Spanned::nowhere(raw_disk(disk, faults))).collect();
    RawNode {
        image: image.and_then(|path| path_text("image", path, faults)),
        memory: options.memory.map(Spanned::nowhere),
        cpus: options.cpus.map(Spanned::nowhere),
        disks: Some(Spanned::nowhere(disks)),
        kernel: options.kernel.and_then(|path| path_text("kernel", &path, faults)),
        initrd: options.initrd.and_then(|path| path_text("initrd", &path, faults)),
        cmdline: options.cmdline.map(Spanned::nowhere),
        accel: Some(Spanned::nowhere(options.accel)),
        cpu: options.cpu.map(Spanned::nowhere),
        deterministic: Some(Spanned::nowhere(options.deterministic)),
        agent: None,
        clock: None,
        interfaces: None,
        ports: None,
        services: None,
        partial: faults.found() != before,
    }
}

fn raw_disk(disk: &Disk, faults: &mut Faults) -> RawDisk {
    RawDisk {
        image: disk.image.as_ref().and_then(|path| path_text("image", path, faults)),
        size: disk.size.map(Spanned::nowhere),
        format: disk.format.map(Spanned::nowhere),
        read_only: Some(Spanned::nowhere(disk.read_only)),
    }
}

fn path_text(what: &str, path: &Path, faults: &mut Faults) -> Option<Spanned<String>> {
    let absolute = refuse(std::path::absolute(path), &format!("{what} {}", path.display()), faults)?;
    let text = absolute.into_os_string().into_string();
    let text = refuse(text.map_err(|_| "the path is not UTF-8; rename the file"), &format!("{what} {}", path.display()), faults)?;
    Some(Spanned::nowhere(text))
}

fn refuse<T, E: std::fmt::Display>(result: Result<T, E>, what: &str, faults: &mut Faults) -> Option<T> {
    result.map_err(|error| faults.push(Fault::new(FaultKind::Invalid, 0..0, "", format!("{what}: {error}")))).ok()
}

/// A file's stem with everything that a name cannot have replaced: `Debian 12.qcow2` gives `debian-12`.
fn experiment_name(image: Option<&Path>) -> String {
    let stem = image.and_then(Path::file_stem).map(|stem| stem.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let words = stem.split(|character: char| !character.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let mut name = words.collect::<Vec<_>>().join("-");
    name.truncate(NAME_MAX);
    let name = name.trim_end_matches('-');
    if is_name(name) { name.to_owned() } else { NAME_DEFAULT.to_owned() }
}
