//! What has to be built: a specification with all that depends on the host settled.

use crate::{
    Error, Result,
    network::nets,
    services::Names,
    spec::{self, Clock, Event, Service, Spec},
    topology::{mac, topology},
};
use fermata_disk::{DiskDetails, Format};
use fermata_net::{Interface, Topology};
use fermata_store::Record;
use fermata_types::{BlobName, ImageId, PartKind, PartState, VirtualTime};
use fermata_vm::{Accel, CONTROL_ADDRESS, CONTROL_PREFIX, FreePages, MachineConfig, MachineDetails, Net};
use std::{collections::BTreeMap, path::PathBuf};

/// The machine type of new machines; QEMU puts in the version.
const MACHINE_TYPE: &str = "q35";
/// What the control interface of a machine is called where its address is made. No interface of a link has that name.
const CONTROL: &str = "control";

/// The machines of an experiment, by name, and what happens to them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub machines: Vec<MachinePlan>,
    /// What connects them, if anything does.
    pub network: Option<Topology>,
    /// What happens by itself.
    pub events: Vec<Event>,
    /// Addresses that guests are to take.
    pub addresses: Vec<Address>,
}

/// How a guest gives one of its interfaces the address of the specification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// `a:eth1`.
    pub interface: String,
    pub machine: String,
    /// For its shell.
    pub command: String,
}

/// A command for the shell of a guest that has `$n` stand for its interface with this Ethernet address: guests name their interfaces as they like.
fn at_interface(mac: &str, command: &str) -> String {
    format!("for d in /sys/class/net/*; do if [ \"$(cat $d/address)\" = {mac} ]; then n=${{d##*/}}; {command}; fi; done")
}

/// A machine and its disks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MachinePlan {
    pub machine: MachineConfig,
    pub disks: Vec<DiskPlan>,
    pub outside: Outside,
    /// What is in the files that it boots from, by name, where that is known.
    pub boot: BTreeMap<&'static str, BlobName>,
}

/// What a machine sees of the world outside.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Outside {
    /// Which time it wakes to.
    pub clock: Clock,
    /// It is told the time.
    pub ntp: bool,
    /// It is told names.
    pub names: Option<Names>,
}

/// A disk.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DiskPlan {
    /// Its name as a part: `m1/disk0`.
    pub name: String,
    pub image: Option<PathBuf>,
    pub format: Option<Format>,
    /// What is in the image; none: that is yet to be found out.
    pub golden: Option<ImageId>,
    pub bytes: Option<u64>,
    pub read_only: bool,
}

impl Plan {
    /// The plan of a new experiment.
    pub fn new(spec: &Spec) -> Self {
        let topology = topology(spec);
        let control = |name: &str, node: &spec::Node| node.has_control().then(|| mac(&spec.name, name, CONTROL).to_string());
        let machine =
            |(name, node): (&String, &spec::Node)| MachinePlan::new(spec, (name, node), nets(&topology, name), control(name, node));
        let machines: Vec<_> = spec.nodes.iter().map(machine).collect();
        let of_links = topology.interfaces.iter().filter_map(|interface| Address::new(spec, interface));
        let addresses = of_links.chain(machines.iter().filter_map(|machine| Address::of_control(&machine.machine))).collect();
        Self { machines, addresses, network: (!topology.interfaces.is_empty()).then_some(topology), events: spec.events.clone() }
    }

    /// The plan of the machines that a checkpoint holds: as they were then, not as the same specification would make them today.
    pub fn of_checkpoint(record: &Record, id: &str) -> Result<Self> {
        let spec: Spec = serde_json::from_value(record.spec.clone())
            .map_err(|error| Error::BadRecord { id: id.to_owned(), what: format!("the specification in it cannot be read ({error})") })?;
        let mut plan = Self::new(&spec);
        for machine in &mut plan.machines {
            machine.machine = details(record, id, &machine.machine.name)?.config;
            let blobs = &part(record, id, &machine.machine.name)?.blobs;
            // Not in checkpoints of before they were kept.
            machine.boot = machine.machine.boot_files().filter_map(|(name, _)| Some((name, *blobs.get(name)?))).collect();
            for disk in machine.disks.iter_mut().filter(|disk| disk.image.is_some()) {
                disk.golden = DiskDetails::from_state(part(record, id, &disk.name)?)?.image.map(|image| image.id);
            }
        }
        Ok(plan)
    }
}

impl Address {
    fn new(spec: &Spec, interface: &Interface) -> Option<Self> {
        let address = spec.nodes.get(&interface.machine)?.interfaces.get(&interface.name)?.ipv4?;
        let name = &interface.name;
        // A small system's `ip` gives no second names, and a name that is taken stays where it is.
        let named = format!("[ $n = {name} ] || ip link property add dev $n altname {name} 2>/dev/null");
        let command = at_interface(&interface.mac.to_string(), &format!("{named}; ip address add {address} dev $n && ip link set $n up"));
        Some(Self { interface: interface.to_string(), machine: interface.machine.clone(), command })
    }

    /// That of the control interface. A guest that asks by DHCP may have it already.
    fn of_control(machine: &MachineConfig) -> Option<Self> {
        let command = format!(
            "ip link set $n up; ip address show dev $n | grep -qF {CONTROL_ADDRESS} || ip address add {CONTROL_ADDRESS}/{CONTROL_PREFIX} dev $n"
        );
        let (interface, command) = (format!("{}:{CONTROL}", machine.name), at_interface(machine.control.as_ref()?, &command));
        Some(Self { interface, machine: machine.name.clone(), command })
    }
}

impl MachinePlan {
    fn new(spec: &Spec, (name, node): (&str, &spec::Node), nets: Vec<Net>, control: Option<String>) -> Self {
        let accel = match node.accel {
            spec::Accel::Auto if node.deterministic => Accel::Tcg,
            spec::Accel::Auto => Accel::auto(),
            spec::Accel::Kvm => Accel::Kvm,
            spec::Accel::Tcg => Accel::Tcg,
        };
        let cpu = node.cpu.clone().unwrap_or_else(|| default_cpu(accel, node.deterministic).to_owned());
        let disks: Vec<_> = node.all_disks().enumerate().map(|(index, disk)| DiskPlan::new(name, index, &disk)).collect();
        let machine = MachineConfig {
            name: name.to_owned(),
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
            old_agent_port: node.agent == spec::AgentPort::Legacy,
            // One that is to be the same to the last byte has nothing that takes bytes away.
            balloon: spec.capture.free == FreePages::Balloon && !node.deterministic,
            clock_ahead_ms: node.clock.unwrap_or_default().ahead_ms,
            disks: disks.len() as u32,
            nets,
            control,
            services: !node.services.is_empty(),
        };
        let names = node.services.contains(&Service::Dns).then(|| Names::of(spec, name));
        let clock = node.clock.unwrap_or_default();
        let outside = Outside { clock, ntp: node.services.contains(&Service::Ntp), names };
        Self { machine, disks, outside, boot: BTreeMap::new() }
    }
}

/// The state of a part in a checkpoint.
pub(crate) fn part<'a>(record: &'a Record, id: &str, name: &str) -> Result<&'a PartState> {
    let missing = || Error::BadRecord { id: id.to_owned(), what: format!("{name} is not in it") };
    record.parts.iter().find(|part| part.name == name).ok_or_else(missing)
}

/// What a checkpoint tells of one of its machines.
pub(crate) fn details(record: &Record, id: &str, name: &str) -> Result<MachineDetails> {
    let bad = |error| Error::BadRecord { id: id.to_owned(), what: format!("its machine {name} cannot be read ({error})") };
    serde_json::from_value(part(record, id, name)?.details.clone()).map_err(bad)
}

/// The experiment's virtual time in a checkpoint: that of the machine that is furthest. Machines that repeat themselves have a time of their own, which
/// counts only where there is no other.
pub(crate) fn time_virtual(parts: &[PartState], id: &str) -> Result<VirtualTime> {
    let bad = |error| Error::BadRecord { id: id.to_owned(), what: format!("a machine in it cannot be read ({error})") };
    let mut furthest = (false, VirtualTime::default());
    for part in parts.iter().filter(|part| part.kind == PartKind::Machine) {
        let details: MachineDetails = serde_json::from_value(part.details.clone()).map_err(bad)?;
        furthest = furthest.max((!details.config.deterministic, details.time_virtual));
    }
    Ok(furthest.1)
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
            golden: None,
            bytes: disk.size.map(spec::ByteSize::bytes),
            read_only: disk.read_only,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{path::Path, process::Command};

    #[test]
    fn an_interface_gets_its_address_and_its_name() {
        let text = "name: x\ndefaults: {image: i}\nnodes: {a: {interfaces: {eth1: {ipv4: 10.0.0.1/24}}}, b: }\nlinks:\n- {endpoints: [\"a:eth1\", \"b:eth3\"]}\n";
        let plan = Plan::new(&Spec::from_yaml(text, Path::new("x.yaml"), Path::new("/")).unwrap());
        let [address] = &plan.addresses[..] else { panic!("{:?}", plan.addresses) };
        let interface = &plan.network.as_ref().unwrap().interfaces[0];
        // A shell in the place of a guest's, whose interface has a name of its own, and whose `ip` only says what it is told.
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("enp0s17");
        std::fs::create_dir(&device).unwrap();
        std::fs::write(device.join("address"), format!("{}\n", interface.mac)).unwrap();
        let command = address.command.replace("/sys/class/net", directory.path().to_str().unwrap());
        let said = Command::new("/bin/sh").arg("-c").arg(format!("ip() {{ echo \"$*\"; }}\n{command}")).output().unwrap();
        let expected = "link property add dev enp0s17 altname eth1\naddress add 10.0.0.1/24 dev enp0s17\nlink set enp0s17 up\n";
        assert_eq!(String::from_utf8_lossy(&said.stdout), expected, "{command}");
    }
}
