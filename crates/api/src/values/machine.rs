//! A machine, and what is done in it.

use fermata_experiment::spec::Port;
use fermata_types::MachineId;
use serde::{Deserialize, Serialize};
use std::{net::SocketAddrV4, path::PathBuf};

/// A machine of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Which one it is; a fork gets another.
    pub id: MachineId,
    /// `running`, `paused`, `off` (the guest powered off), `failed` (QEMU stopped the guest), `silent` (QEMU does not answer), `gone` (QEMU is).
    pub state: MachineState,
    /// Why it failed, is silent or is gone.
    pub reason: Option<String>,
    /// Its disks whose writes wait until the store's file system has space again.
    #[serde(default)]
    pub starved: Vec<String>,
    /// Process id of QEMU.
    pub pid: u32,
    /// RAM, bytes.
    pub memory_bytes: u64,
    /// Virtual processors.
    pub cpus: u32,
    /// `kvm` or `tcg`.
    pub accel: String,
    /// QEMU's versioned machine type.
    pub machine_type: String,
    /// Where its console is: a Unix socket.
    pub console: PathBuf,
    /// What its console printed so far in this process.
    pub console_log: PathBuf,
    /// Pages still to be brought in after a lazy restore; none if all are in.
    pub pages_missing: Option<u64>,
    /// Its ports that are forwarded from this host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Forward>,
}

/// What a machine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineState {
    /// The guest runs.
    Running,
    /// The guest stands still.
    Paused,
    /// The guest powered off.
    Off,
    /// QEMU stopped the guest, since it cannot go on.
    Failed,
    /// QEMU does not answer.
    Silent,
    /// QEMU is gone.
    Gone,
}

/// A TCP port of a machine that is forwarded from this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    /// The machine's port.
    pub guest_port: u16,
    /// Where this host listens for it; none: at present nowhere.
    pub host: Option<SocketAddrV4>,
}

/// The same with its machine: what `fermata ports` prints many of, and `fermata forward` one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardOf {
    /// The machine, as `run:machine`.
    pub machine: String,
    /// The port.
    #[serde(flatten)]
    pub forward: Forward,
}

/// Forwards a port of a machine from this host, for as long as the run lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardRequest {
    /// `m1`, or `run:m1`; empty if there is only one machine.
    pub machine: String,
    /// Which port: the guest's as a number, or `host:guest`.
    pub port: Port,
}

/// Runs a command in a guest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecRequest {
    /// `m1`, or `run:m1`; empty if there is only one machine.
    pub machine: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// What it reads on its standard input.
    pub input: Option<Vec<u8>>,
    /// How long to wait for the guest agent, milliseconds.
    pub wait_ms: u64,
}

/// How a command in a guest ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Executed {
    /// The machine, as `run:machine`.
    pub machine: String,
    /// Its exit status; 128 and the signal when a signal ended it.
    pub status: i32,
    /// What it printed, with what is not UTF-8 replaced.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
    /// The agent keeps 16 MiB of each; there was more.
    pub truncated: bool,
}
