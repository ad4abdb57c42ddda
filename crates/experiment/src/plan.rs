//! What has to be built: a specification with all that depends on the host settled.

use crate::{
    Error, Result,
    spec::{self, Spec},
};
use fermata_disk::Format;
use fermata_store::Record;
use fermata_types::PartKind;
use fermata_vm::{Accel, MachineConfig, MachineDetails};
use std::path::PathBuf;

/// The machine type of new machines; QEMU puts in the version.
const MACHINE_TYPE: &str = "q35";

/// A machine and its disks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub machine: MachineConfig,
    pub disks: Vec<DiskPlan>,
}

/// A disk.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DiskPlan {
    /// Its name as a part: `m1/disk0`.
    pub name: String,
    pub image: Option<PathBuf>,
    pub format: Option<Format>,
    pub bytes: Option<u64>,
    pub read_only: bool,
}

impl Plan {
    /// The plan of a new experiment.
    pub fn new(spec: &Spec) -> Result<Self> {
        let mut nodes = spec.nodes.iter();
        let (Some((name, node)), None) = (nodes.next(), nodes.next()) else {
            return Err(Error::Unsupported(format!(
                "{}: this version runs experiments of exactly one machine, this one has {}",
                spec.name,
                spec.nodes.len()
            )));
        };
        let accel = match node.accel {
            spec::Accel::Auto if node.deterministic => Accel::Tcg,
            spec::Accel::Auto => Accel::auto(),
            spec::Accel::Kvm => Accel::Kvm,
            spec::Accel::Tcg => Accel::Tcg,
        };
        let cpu = node.cpu.clone().unwrap_or_else(|| default_cpu(accel, node.deterministic).to_owned());
        let disks: Vec<_> = node.all_disks().enumerate().map(|(index, disk)| DiskPlan::new(name, index, &disk)).collect();
        let machine = MachineConfig {
            name: name.clone(),
            memory: node.memory.bytes(),
            cpus: node.cpus,
            accel,
            cpu,
            machine_type: MACHINE_TYPE.to_owned(),
            kernel: node.kernel.clone(),
            initrd: node.initrd.clone(),
            cmdline: node.cmdline.clone(),
            deterministic: node.deterministic,
            vmcoreinfo: true,
            disks: disks.len() as u32,
            nets: Vec::new(),
        };
        Ok(Self { machine, disks })
    }

    /// The plan of the machine that a checkpoint holds: as it was then, not as the same specification would make it today.
    pub fn of_checkpoint(record: &Record, id: &str) -> Result<Self> {
        let spec: Spec = serde_json::from_value(record.spec.clone())
            .map_err(|error| Error::BadRecord { id: id.to_owned(), what: format!("the specification in it cannot be read ({error})") })?;
        Ok(Self { machine: details(record, id)?.config, ..Self::new(&spec)? })
    }
}

/// What a checkpoint tells of its machine.
pub(crate) fn details(record: &Record, id: &str) -> Result<MachineDetails> {
    let bad = |what: String| Error::BadRecord { id: id.to_owned(), what };
    let machine = record.parts.iter().find(|part| part.kind == PartKind::Machine).ok_or_else(|| bad("there is no machine in it".into()))?;
    serde_json::from_value(machine.details.clone()).map_err(|error| bad(format!("its machine cannot be read ({error})")))
}

/// Under TCG `max` is what QEMU can translate; without randomness of the host for machines that must repeat themselves.
fn default_cpu(accel: Accel, deterministic: bool) -> &'static str {
    match accel {
        Accel::Kvm => "host",
        Accel::Tcg if deterministic => "qemu64,-rdrand",
        Accel::Tcg => "max",
    }
}

impl DiskPlan {
    fn new(machine: &str, index: usize, disk: &spec::Disk) -> Self {
        Self {
            name: format!("{machine}/disk{index}"),
            image: disk.image.clone(),
            format: disk.format.map(|format| match format {
                spec::Format::Raw => Format::Raw,
                spec::Format::Qcow2 => Format::Qcow2,
            }),
            bytes: disk.size.map(spec::ByteSize::bytes),
            read_only: disk.read_only,
        }
    }
}
