//! Stock QEMU as people use it without us: the rival of the benches. The same guests as ours, on QEMU's own disks.

use fermata_linux::clock::{Stopwatch, monotonic};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(900);
/// Faster than any disk here: a migration is not slowed down on purpose. QEMU's own default is 128 MiB/s.
const BANDWIDTH_MAX: u64 = 16 << 30;

/// What a rival runs.
#[derive(Debug, Clone)]
pub struct Stock {
    /// Its memory, MiB.
    pub memory_mib: u32,
    /// Its kernel, a file of the guests.
    pub kernel: &'static str,
    /// Its first file system, a file of the guests.
    pub initrd: &'static str,
    /// Its disk; none: an empty one, for there is no `savevm` without a disk.
    pub image: Option<&'static str>,
    /// The kernel's command line.
    pub cmdline: String,
}

impl Stock {
    /// The busybox guest, with what it runs.
    pub fn tiny(memory_mib: u32, run: &str) -> Self {
        let cmdline = format!("{} panic=-1 fermata.disk=none fermata.run={run}", crate::guests::CMDLINE);
        Self { memory_mib, kernel: "vmlinuz", initrd: "tiny.cpio", image: None, cmdline }
    }

    /// The Debian guest.
    pub fn debian(memory_mib: u32, cmdline: &str) -> Self {
        Self { memory_mib, kernel: "vmlinuz", initrd: "debian-initrd", image: Some("debian12.raw"), cmdline: cmdline.to_owned() }
    }

    /// Boots it.
    pub fn boot(&self) -> Rival {
        let place = tempfile::tempdir().expect("a directory");
        let disk = place.path().join("disk.qcow2");
        let mut create = Command::new("qemu-img");
        create.args(["create", "-q", "-f", "qcow2"]);
        match self.image {
            Some(image) => create.args(["-F", "raw", "-b"]).arg(crate::guests::file(image)).arg(&disk),
            None => create.arg(&disk).arg("64M"),
        };
        assert!(create.status().expect("qemu-img runs").success(), "qemu-img fails");
        Rival::start(self, place, None)
    }

    /// A process that waits for what a migration wrote: `defer` to be told later by [`Rival::load`], else where from.
    pub fn incoming(&self, from: &str) -> Rival {
        let place = tempfile::tempdir().expect("a directory");
        let disk = place.path().join("disk.qcow2");
        assert!(self.image.is_none(), "the disk's content would be missing");
        let created = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&disk).arg("64M").status();
        assert!(created.expect("qemu-img runs").success(), "qemu-img fails");
        Rival::start(self, place, Some(from))
    }
}

/// How long a migration took.
#[derive(Debug, Clone, Copy)]
pub struct Migrated {
    /// From begin to end.
    pub total: Duration,
    /// Of it the guest stood still.
    pub paused: Duration,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A QEMU that runs it.
pub struct Rival {
    process: Child,
    monitor: BufReader<UnixStream>,
    place: tempfile::TempDir,
    started: Duration,
}

impl Rival {
    fn start(stock: &Stock, place: tempfile::TempDir, incoming: Option<&str>) -> Self {
        let within = |name: &str| place.path().join(name);
        let mut command = Command::new(fermata_vm::qemu_program());
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-cpu", "max", "-accel", "tcg"]);
        command.args(["-m", &stock.memory_mib.to_string()]);
        command.arg("-drive").arg(format!("file={},if=virtio,format=qcow2", within("disk.qcow2").display()));
        command.arg("-kernel").arg(crate::guests::file(stock.kernel)).arg("-initrd").arg(crate::guests::file(stock.initrd));
        command.args(["-append", &stock.cmdline, "-serial"]).arg(format!("file:{}", within("console").display()));
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", within("qmp").display()));
        if let Some(from) = incoming {
            command.args(["-incoming", from]);
        }
        let started = monotonic();
        let process = command.stdin(Stdio::null()).spawn().expect("QEMU starts");
        let watch = Stopwatch::start();
        let stream = loop {
            match UnixStream::connect(within("qmp")) {
                Ok(stream) => break stream,
                Err(error) => assert!(watch.elapsed() < PATIENCE, "QEMU opens no monitor: {error}"),
            }
            thread::sleep(Duration::from_millis(1));
        };
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut rival = Self { process, monitor: BufReader::new(stream), place, started };
        rival.line();
        rival.run("qmp_capabilities", &json!({}));
        rival
    }

    /// When it was started, by the host's monotonic clock.
    pub fn started(&self) -> Duration {
        self.started
    }

    /// What its console printed goes here.
    pub fn console(&self) -> PathBuf {
        self.place.path().join("console")
    }

    /// Waits until the console shows this.
    #[track_caller]
    pub fn await_console(&self, text: &str) {
        let watch = Stopwatch::start();
        while !std::fs::read(self.console()).is_ok_and(|shown| String::from_utf8_lossy(&shown).contains(text)) {
            assert!(watch.elapsed() < PATIENCE, "\"{text}\" is not seen on the console of stock QEMU");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Bytes that its disk takes on the host's, snapshots and all.
    pub fn disk_bytes(&self) -> u64 {
        allocated(&self.place.path().join("disk.qcow2"))
    }

    /// Saves all of the guest into its disk. The guest stands still all the while: how long.
    pub fn savevm(&mut self, name: &str) -> Duration {
        self.human(&format!("savevm {name}"))
    }

    /// Takes the guest back. How long until it runs.
    pub fn loadvm(&mut self, name: &str) -> Duration {
        self.human(&format!("loadvm {name}"))
    }

    fn human(&mut self, line: &str) -> Duration {
        let watch = Stopwatch::start();
        let said = self.run("human-monitor-command", &json!({"command-line": line}));
        let took = watch.elapsed();
        assert_eq!(said, json!(""), "QEMU complains of {line}");
        took
    }

    /// Migrates into a file of this path, and lets the guest go on.
    pub fn migrate(&mut self, to: &Path) -> Migrated {
        self.run("migrate-set-parameters", &json!({"max-bandwidth": BANDWIDTH_MAX}));
        self.run("migrate", &json!({"uri": format!("exec:cat > {}", to.display())}));
        let watch = Stopwatch::start();
        let answer = loop {
            let answer = self.run("query-migrate", &json!({}));
            match answer["status"].as_str() {
                Some("completed") => break answer,
                Some("failed" | "cancelled") => panic!("the migration fails: {answer}"),
                _ => assert!(watch.elapsed() < PATIENCE, "the migration does not end: {answer}"),
            }
            thread::sleep(Duration::from_millis(5));
        };
        self.run("cont", &json!({}));
        let milliseconds = |key: &str| Duration::from_millis(answer[key].as_u64().unwrap_or_else(|| panic!("no {key}: {answer}")));
        Migrated { total: milliseconds("total-time"), paused: milliseconds("downtime"), bytes: allocated(to) }
    }

    /// Loads what a migration wrote to this file. How long until the guest runs.
    pub fn load(&mut self, from: &Path) -> Duration {
        let watch = Stopwatch::start();
        self.run("migrate-incoming", &json!({"uri": format!("exec:cat {}", from.display())}));
        self.await_running();
        watch.elapsed()
    }

    /// Waits until the guest runs.
    pub fn await_running(&mut self) {
        let watch = Stopwatch::start();
        while self.run("query-status", &json!({}))["status"] != "running" {
            assert!(watch.elapsed() < PATIENCE, "the guest does not run");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops the guest.
    pub fn stop(&mut self) {
        self.run("stop", &json!({}));
    }

    /// Lets it go on.
    pub fn cont(&mut self) {
        self.run("cont", &json!({}));
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.monitor.read_line(&mut line).expect("QEMU answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("QMP is JSON: {error} in {line:?}"))
    }

    /// Has all of these do the same at once. How long until the last of them has.
    fn all(rivals: &mut [Self], command: &str, arguments: &Value) -> Duration {
        let watch = Stopwatch::start();
        rivals.iter_mut().for_each(|rival| rival.ask(command, arguments));
        rivals.iter_mut().for_each(|rival| _ = rival.answer(command));
        watch.elapsed()
    }

    /// The least that a checkpoint of several machines has QEMU do, without a look at memory: all stop at once, write their devices' states, and go on.
    pub fn least(rivals: &mut [Self]) -> Duration {
        let state = json!({"filename": "/dev/null", "live": false});
        let steps = [("stop", json!({})), ("xen-save-devices-state", state), ("cont", json!({}))];
        steps.iter().map(|(command, arguments)| Self::all(rivals, command, arguments)).sum()
    }

    fn run(&mut self, command: &str, arguments: &Value) -> Value {
        self.ask(command, arguments);
        self.answer(command)
    }

    fn ask(&mut self, command: &str, arguments: &Value) {
        let request = json!({"execute": command, "arguments": arguments});
        writeln!(self.monitor.get_mut(), "{request}").expect("QEMU listens");
    }

    fn answer(&mut self, command: &str) -> Value {
        loop {
            let answer = self.line();
            if let Some(result) = answer.get("return") {
                return result.clone();
            }
            assert!(answer.get("error").is_none(), "{command}: {answer}");
        }
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Bytes that a file takes on its disk.
fn allocated(path: &Path) -> u64 {
    std::fs::metadata(path).expect("a file").blocks() * 512
}
