//! What a machine is, and the QEMU command line that makes it.

use crate::{agent, program::Version};
use fermata_linux::{clock::tsc_khz, probe};
use fermata_types::MachineId;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    net::Ipv4Addr,
    path::{Path, PathBuf},
};

/// What executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// The processor's own virtualization.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

impl Accel {
    /// KVM where the processor has it and we may use it, TCG otherwise. `/dev/kvm` alone proves nothing: it may be there on a host whose processor
    /// cannot run a stock kernel under it.
    pub fn auto() -> Self {
        match probe::virtualization() {
            probe::Virtualization::Usable => Self::Kvm,
            _ => Self::Tcg,
        }
    }
}

/// Everything that QEMU must be told to make the same machine again. Kept with each checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineConfig {
    /// The machine's name in its experiment.
    pub name: String,
    /// RAM in bytes.
    pub memory: u64,
    /// Virtual processors.
    pub cpus: u32,
    /// What executes it.
    pub accel: Accel,
    /// QEMU's CPU model.
    pub cpu: String,
    /// QEMU's machine type. A checkpoint names the version (`pc-q35-7.2`), so that another QEMU makes the same one.
    pub machine_type: String,
    /// Linux kernel to boot directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// Its initial RAM disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<PathBuf>,
    /// Its command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<String>,
    /// One instruction, one tick; nothing random, nothing from outside.
    #[serde(default)]
    pub deterministic: bool,
    /// The guest's kernel can say where it has described itself: QEMU's device `vmcoreinfo`. Machines of older checkpoints have none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub vmcoreinfo: bool,
    /// It has a balloon, through which its kernel reports free pages: those lose their content at once. Machines of older checkpoints have none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub balloon: bool,
    /// The guest agent's port is on a device of virtio 0.9. Of one of virtio 1.0 QEMU writes 1,024 rings into each device state, used or not (`vmstate_virtio_virtqueues`
    /// in `hw/virtio/virtio.c`): half of the state, and of the time for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub old_agent_port: bool,
    /// Milliseconds by which its clock is ahead of the host's when it boots. The clock is set to the second.
    #[serde(default, skip_serializing_if = "is_right")]
    pub clock_ahead_ms: i64,
    /// How many disks it has.
    pub disks: u32,
    /// Its network interfaces. Machines of older checkpoints have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nets: Vec<Net>,
    /// The Ethernet address of its control interface, by which people come in from this host. Most machines have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
    /// Behind its control interface somebody answers the guest: see [`Place::services_socket`]. Most machines have nobody there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub services: bool,
}

fn is_right(ahead_ms: &i64) -> bool {
    *ahead_ms == 0
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    /// Its number among the machine's places for network interfaces, below [`NETS_MAX`].
    pub number: u32,
    /// Its Ethernet address: `02:5f:00:00:00:01`.
    pub mac: String,
    /// Bytes of the largest packet that a frame may carry.
    pub mtu: u16,
}

/// Network interfaces that a machine may have: one for each place on its bus from [`NET_SLOT`] on, but for the last, which is the chipset's.
pub const NETS_MAX: usize = 15;
/// The place on the PCI bus of network interface 0. The places are fixed: a guest that names its interfaces by them finds the same ones, whatever else
/// the machine has.
const NET_SLOT: u32 = 16;

/// QEMU's name for the network behind the control interface.
pub(crate) const CONTROL: &str = "control";
/// QEMU's name for what leads to whoever answers the guest there.
const SERVICES: &str = "services";
/// The place of the control interface on the PCI bus: beside functions of the chipset, behind all others. So a guest that counts its interfaces counts it last.
const CONTROL_PLACE: &str = "0x1f.6";
/// The place of the balloon on the PCI bus: there too, where it takes nobody's.
const BALLOON_PLACE: &str = "0x1f.5";
/// The network behind it. No experiment should use these addresses, which are set aside for trials of routers (RFC 2544).
const CONTROL_NET: &str = "198.18.0.0/24";
/// The guest's address there. It is given to a guest that asks by DHCP.
pub const CONTROL_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 15);
/// The address there of whoever answers the guest. QEMU's own network has others (2, 3 and 4).
pub const SERVICES_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Bits of that network's prefix.
pub const CONTROL_PREFIX: u8 = 24;

/// Virtual nanoseconds an instruction takes in a deterministic machine: 2 to this power.
pub(crate) const ICOUNT_SHIFT: u32 = 3;

/// The monitor for everything but the pause.
pub(crate) const MONITOR: &str = "qmp";
/// The monitor on which the guest is stopped and let go on. One for both: what is asked on one is done in its order, also by a QEMU that was silent meanwhile.
pub(crate) const PAUSE_MONITOR: &str = "pause";
/// The monitor on which the state of the devices is asked for.
pub(crate) const SAVE_MONITOR: &str = "save";
const MONITORS: [&str; 3] = [MONITOR, PAUSE_MONITOR, SAVE_MONITOR];

/// QEMU's name for a network interface.
pub(crate) fn net_id(number: u32) -> String {
    format!("eth{number}")
}

/// The directory of one QEMU process: its sockets, its RAM, its logs.
#[derive(Debug, Clone)]
pub struct Place {
    /// Mode 0700, on tmpfs.
    pub directory: PathBuf,
    /// Mode 0700, not on tmpfs: what the guest prints must not take the room of its memory.
    pub logs: PathBuf,
    /// Files that it boots from, by name, where they are not what the configuration names.
    pub boot: BTreeMap<&'static str, PathBuf>,
}

impl Place {
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Where the vhost-user-blk server of a disk listens.
    pub fn disk_socket(&self, disk: u32) -> PathBuf {
        self.file(&format!("disk{disk}.sock"))
    }

    /// Where the vhost-user-net server of a network interface listens.
    pub fn net_socket(&self, net: u32) -> PathBuf {
        self.file(&format!("net{net}.sock"))
    }

    /// Where whoever answers the guest behind its control interface gets its frames: a datagram each.
    pub fn services_socket(&self) -> PathBuf {
        self.file("services.sock")
    }

    /// Where QEMU takes frames for the guest from there.
    pub fn services_answers(&self) -> PathBuf {
        self.file("answers.sock")
    }

    /// The serial console.
    pub fn console_socket(&self) -> PathBuf {
        self.file("console.sock")
    }

    /// What the serial console printed.
    pub fn console_log(&self) -> PathBuf {
        self.logs.join("console.log")
    }

    /// Removes all of it. What cannot be removed stays.
    pub(crate) fn remove(&self) {
        for directory in [&self.directory, &self.logs] {
            let _ = std::fs::remove_dir_all(directory);
        }
    }

    pub(crate) fn agent_socket(&self) -> PathBuf {
        self.file("agent.sock")
    }

    pub(crate) fn monitor_socket(&self, monitor: &str) -> PathBuf {
        self.file(&format!("{monitor}.sock"))
    }

    pub(crate) fn ram(&self) -> PathBuf {
        self.file("ram")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.file("qemu.log")
    }

    pub(crate) fn device_state(&self) -> PathBuf {
        self.file("devices")
    }

    pub(crate) fn shim(&self) -> PathBuf {
        self.file("shim.so")
    }
}

/// How a QEMU process begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Paused before the guest's first instruction, at this time of the host.
    Boot { wall_ns: u64 },
    /// Waiting for a device state.
    Incoming,
}

/// QEMU's arguments (qemu-system-x86_64(1)).
pub(crate) fn arguments(config: &MachineConfig, id: &MachineId, place: &Place, start: Start, qemu: Version) -> Vec<OsString> {
    let mut line = Line::default();
    let path = |path: &Path| escape(&path.to_string_lossy());
    line.add("-name", format!("{},debug-threads=on", config.name));
    line.flag("-nodefaults").flag("-no-user-config").flag("-S");
    line.add("-display", "none").add("-vga", "none");
    line.add("-machine", format!("{},memory-backend=ram", config.machine_type));
    line.add("-m", format!("size={}B", config.memory));
    line.add("-object", format!("memory-backend-file,id=ram,mem-path={},size={}B,share=on", path(&place.ram()), config.memory));
    line.add("-smp", config.cpus.to_string());
    line.add("-cpu", &config.cpu);
    line.add(
        "-accel",
        match config.accel {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg",
        },
    );
    clocks(&mut line, config, start);
    // The guest's power-off pauses it: its last state can still be looked at and checkpointed.
    line.add("-action", "shutdown=pause");
    // xen-save-devices-state writes no configuration section.
    line.add("-global", "migration.send-configuration=off");
    // A machine that comes back tells the network nothing that its guest does not.
    line.add("-global", "migration.announce-rounds=0");
    line.add("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    for monitor in MONITORS {
        line.add("-chardev", format!("socket,id={monitor},path={},server=on,wait=off", path(&place.monitor_socket(monitor))));
        line.add("-mon", format!("chardev={monitor},mode=control"));
    }
    line.add(
        "-chardev",
        format!(
            "socket,id=console,path={},server=on,wait=off,logfile={},logappend=on",
            path(&place.console_socket()),
            path(&place.console_log())
        ),
    );
    line.add("-serial", "chardev:console");
    for (name, path) in config.boot_files() {
        line.add(&format!("-{name}"), place.boot.get(name).map_or(path, PathBuf::as_path));
    }
    if let Some(told) = kernel_is_told(config, tsc_khz) {
        line.add("-append", told);
    }
    if config.vmcoreinfo {
        line.add("-device", "vmcoreinfo");
    }
    if !config.deterministic {
        devices(&mut line, config, id, place, qemu);
    }
    if start == Start::Incoming {
        line.add("-incoming", "defer");
    }
    line.0
}

/// The RTC runs on virtual time, which stands still in a pause, as all other clocks of a guest do; but for the TSC under KVM, which `cont` does not set back (`kvm_put_msrs` in QEMU).
fn clocks(line: &mut Line, config: &MachineConfig, start: Start) {
    if config.deterministic {
        line.add("-icount", format!("shift={ICOUNT_SHIFT},align=off,sleep=off"));
        line.add("-rtc", "base=2026-01-01T00:00:00,clock=vm").add("-seed", "1");
    } else {
        let base = match start {
            Start::Boot { wall_ns } => clock_base(config.clock_ahead_ms, wall_ns),
            // Its clock comes with its state.
            Start::Incoming => None,
        };
        line.add("-rtc", format!("base={},clock=vm", base.as_deref().unwrap_or("utc")));
    }
}

/// What the rate of the time stamp counter is called on a kernel's command line (Linux 5.7, `Documentation/admin-guide/kernel-parameters.txt`). Older kernels pass it to
/// their first process, as they do with all that they do not know.
const TSC_RATE: &str = "tsc_early_khz=";
/// Bytes of a command line that Linux on x86 reads: `COMMAND_LINE_SIZE` counts the closing zero.
pub const CMDLINE_MAX: usize = 2047;

/// The command line of a kernel that is booted directly. QEMU's translator hands the host's time stamp counter on to the guest, whose kernel measures its rate with loops beside a
/// timer; on a busy host both stand still at times, and what it finds may be many times too little. Then all of its time goes too fast. So it is told.
fn kernel_is_told(config: &MachineConfig, tsc_khz: impl FnOnce() -> Option<u64>) -> Option<String> {
    let own = config.cmdline.as_deref().unwrap_or_default();
    // What is behind two hyphens is the first process's.
    let (kernels, firsts) = own.find(" -- ").map_or((own, ""), |at| own.split_at(at));
    let said = kernels.split_ascii_whitespace().any(|word| word.starts_with(TSC_RATE));
    let guesses = config.kernel.is_some() && config.accel == Accel::Tcg && !config.deterministic && !said;
    // Measured, which takes a moment, for those alone that are told.
    let rate = if guesses { tsc_khz() } else { None };
    let told = rate.map(|khz| format!("{kernels} {TSC_RATE}{khz}{firsts}").trim_start().to_owned());
    told.filter(|told| told.len() <= CMDLINE_MAX).or_else(|| config.cmdline.clone())
}

/// What QEMU's clock begins with, this long after 1970. Left to itself, each QEMU would take the second in which it happens to start. None: a time that it cannot say.
fn clock_base(ahead_ms: i64, wall_ns: u64) -> Option<String> {
    let begin = i128::from(wall_ns) + i128::from(ahead_ms) * 1_000_000;
    Some(jiff::Timestamp::from_nanosecond(begin).ok()?.strftime("%Y-%m-%dT%H:%M:%S").to_string())
}

/// What connects the machine to the world outside it. A deterministic machine has none of it.
fn devices(line: &mut Line, config: &MachineConfig, id: &MachineId, place: &Place, qemu: Version) {
    line.add("-device", format!("vmgenid,guid={}", uuid(id)));
    // Without eventfds: QEMU makes one for each of its 64 rings whenever the guest goes on, and the guest's clock runs meanwhile.
    let age = if config.old_agent_port { ",disable-modern=on" } else { "" };
    line.add("-device", format!("virtio-serial-pci,id=serial,ioeventfd=off{age}"));
    line.add("-chardev", format!("socket,id={},path={},server=on,wait=off", agent::PORT, escape(&place.agent_socket().to_string_lossy())));
    line.add("-device", format!("virtserialport,bus=serial.0,chardev={},name=org.qemu.guest_agent.0", agent::PORT));
    for disk in 0..config.disks {
        let socket = escape(&place.disk_socket(disk).to_string_lossy());
        // QEMU hangs up when it cannot map a ring that its guest has named. It comes back after a second, so that a guest that resets the disk has it again.
        line.add("-chardev", format!("socket,id=disk{disk},path={socket},{}", qemu.reconnects()));
        // Boot index 0 is the direct kernel's.
        let boot = disk + 1;
        line.add("-device", format!("vhost-user-blk-pci,chardev=disk{disk},num-queues=1,queue-size=256,bootindex={boot}"));
    }
    // Without KVM, QEMU (7.2) takes a guest that masks an interrupt vector of a vhost-user interface to KVM's tables, which are not there, and crashes. A pin
    // has no vectors.
    let vectors = if config.accel == Accel::Tcg { ",vectors=0" } else { "" };
    for Net { number, mac, mtu } in &config.nets {
        let socket = escape(&place.net_socket(*number).to_string_lossy());
        line.add("-chardev", format!("socket,id=net{number},path={socket}"));
        line.add("-netdev", format!("vhost-user,id=net{number},chardev=net{number},queues=1"));
        let slot = NET_SLOT.saturating_add(*number);
        // No ROM to boot from, and nothing that the machine would say by itself when it comes back from a checkpoint.
        line.add(
            "-device",
            format!(
                "virtio-net-pci,id={},netdev=net{number},mac={mac},host_mtu={mtu},addr={slot:#x},romfile=,guest_announce=off,disable-legacy=on{vectors}",
                net_id(*number)
            ),
        );
    }
    if config.balloon {
        // Nobody inflates it: what it is there for are the reports. A guest that expects a pattern in free pages says so (page-poison, QEMU's default), and its
        // reports are not acted upon; one that expects zeros gets them.
        line.add("-device", format!("virtio-balloon-pci,id=balloon,addr={BALLOON_PLACE},free-page-reporting=on,disable-legacy=on"));
    }
    if let Some(mac) = &config.control {
        // Restricted: nothing comes in but through ports that are forwarded, and nothing gets out.
        line.add("-netdev", format!("user,id={CONTROL},net={CONTROL_NET},dhcpstart={CONTROL_ADDRESS},restrict=on,ipv6=off"));
        let behind = if config.services { services(line, place) } else { CONTROL.to_owned() };
        let quiet = "romfile=,guest_announce=off,disable-legacy=on";
        line.add("-device", format!("virtio-net-pci,id={CONTROL}0,netdev={behind},mac={mac},addr={CONTROL_PLACE},{quiet}"));
    }
}

/// A hub before QEMU's user network, at which there is somebody else too: the user network, restricted, drops every datagram of the guest's. The guest's device is the
/// same as without. Returns the hub's port for it.
fn services(line: &mut Line, place: &Place) -> String {
    let path = |path: PathBuf| escape(&path.to_string_lossy());
    let (from, to) = (path(place.services_answers()), path(place.services_socket()));
    line.add("-netdev", format!("dgram,id={SERVICES},local.type=unix,local.path={from},remote.type=unix,remote.path={to}"));
    let port = |name: &str| format!("hub-{name}");
    for name in [CONTROL, SERVICES] {
        line.add("-netdev", format!("hubport,id={},hubid=0,netdev={name}", port(name)));
    }
    line.add("-netdev", format!("hubport,id={},hubid=0", port("guest")));
    port("guest")
}

#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    fn add(&mut self, option: &str, value: impl Into<OsString>) -> &mut Self {
        self.0.push(option.into());
        self.0.push(value.into());
        self
    }

    fn flag(&mut self, option: &str) -> &mut Self {
        self.0.push(option.into());
        self
    }
}

fn uuid(id: &MachineId) -> String {
    let hex = id.to_string();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// A comma inside a value is written twice in QEMU's option syntax.
fn escape(value: &str) -> String {
    value.replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_may_be_ahead_or_behind() {
        let day = 86_400_000_000_000;
        let base = |ahead_ms, wall_ns| clock_base(ahead_ms, wall_ns).unwrap();
        assert_eq!(base(0, day + 999_999_999), "1970-01-02T00:00:00");
        assert_eq!(base(7_200_000, day), "1970-01-02T02:00:00");
        assert_eq!(base(-1_000, day), "1970-01-01T23:59:59");
    }

    #[test]
    fn a_kernel_that_would_guess_the_rate_of_its_counter_is_told() {
        let of = |cmdline: Option<&str>| MachineConfig {
            kernel: Some("vmlinuz".into()),
            cmdline: cmdline.map(str::to_owned),
            accel: Accel::Tcg,
            ..crate::free::tests::config("q35", 1 << 30)
        };
        let told = |cmdline| kernel_is_told(&of(cmdline), || Some(2_445_404));
        assert_eq!(told(Some("quiet")).as_deref(), Some("quiet tsc_early_khz=2445404"));
        assert_eq!(told(None).as_deref(), Some("tsc_early_khz=2445404"));
        assert_eq!(told(Some("quiet -- single")).as_deref(), Some("quiet tsc_early_khz=2445404 -- single"));
        let left_alone = ["tsc_early_khz=1 quiet".to_owned(), "x".repeat(CMDLINE_MAX - 10)];
        left_alone.iter().for_each(|own| assert_eq!(told(Some(own)).as_ref(), Some(own)));
        let no_guess = [
            MachineConfig { accel: Accel::Kvm, ..of(Some("quiet")) },
            MachineConfig { deterministic: true, ..of(Some("quiet")) },
            MachineConfig { kernel: None, ..of(Some("quiet")) },
        ];
        for config in no_guess {
            assert_eq!(kernel_is_told(&config, || panic!("nobody needs to know")).as_deref(), Some("quiet"));
        }
        assert_eq!(kernel_is_told(&of(None), || None), None, "no such counter");
    }

    #[test]
    fn machines_that_begin_together_begin_at_one_time_and_each_qemu_is_told_in_its_words() {
        let place = Place { directory: "/run/m".into(), logs: "/logs".into(), boot: BTreeMap::new() };
        let config = MachineConfig { disks: 1, ..crate::free::tests::config("q35", 1 << 30) };
        let told = |start, qemu| {
            let line = arguments(&config, &MachineId([0; 16]), &place, start, qemu);
            line.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        let begins = told(Start::Boot { wall_ns: 86_400_000_000_000 }, Version(7, 2));
        assert!(begins.contains("-rtc base=1970-01-02T00:00:00,clock=vm") && begins.contains("disk0.sock,reconnect=1 "), "{begins}");
        let waits = told(Start::Incoming, Version(10, 2));
        assert!(waits.contains("-rtc base=utc,clock=vm") && waits.contains("disk0.sock,reconnect-ms=1000 "), "{waits}");
    }
}
