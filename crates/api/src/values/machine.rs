//! A machine, and what is done in it.

use base64::{Engine, prelude::BASE64_STANDARD as STANDARD};
use fermata_experiment::spec::Port;
use fermata_types::MachineId;
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, net::SocketAddrV4, path::PathBuf};

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
    /// What it printed, byte for byte in base64 (RFC 4648), where that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// What it complained about, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// The agent keeps 16 MiB of each; there was more.
    pub truncated: bool,
}

impl Executed {
    /// From what the guest agent tells.
    pub fn new(machine: String, status: i32, stdout: Vec<u8>, stderr: Vec<u8>, truncated: bool) -> Self {
        let ((stdout, stdout_base64), (stderr, stderr_base64)) = (told(stdout), told(stderr));
        Self { machine, status, stdout, stderr, stdout_base64, stderr_base64, truncated }
    }

    /// What it printed, byte for byte.
    pub fn stdout_bytes(&self) -> Cow<'_, [u8]> {
        bytes(&self.stdout, self.stdout_base64.as_deref())
    }

    /// What it complained about, byte for byte.
    pub fn stderr_bytes(&self) -> Cow<'_, [u8]> {
        bytes(&self.stderr, self.stderr_base64.as_deref())
    }
}

fn told(bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), Some(STANDARD.encode(error.as_bytes()))),
    }
}

fn bytes<'a>(text: &'a str, base64: Option<&str>) -> Cow<'a, [u8]> {
    base64.and_then(|base64| STANDARD.decode(base64).ok()).map_or(Cow::Borrowed(text.as_bytes()), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_prints_comes_byte_for_byte() {
        let executed = Executed::new("m1".into(), 0, b"\xff\x00\n".to_vec(), b"plain".to_vec(), false);
        let read: Executed = serde_json::from_str(&serde_json::to_string(&executed).unwrap()).unwrap();
        assert_eq!((&*read.stdout_bytes(), &*read.stderr_bytes()), (&b"\xff\x00\n"[..], &b"plain"[..]));
        assert_eq!((read.stdout.as_str(), read.stderr_base64), ("\u{fffd}\0\n", None));
        let older: Executed =
            serde_json::from_str(r#"{"machine": "m1", "status": 0, "stdout": "a", "stderr": "", "truncated": false}"#).unwrap();
        assert_eq!(&*older.stdout_bytes(), b"a");
    }
}
