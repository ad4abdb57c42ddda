//! How long a Debian guest that compiles stands still for a checkpoint every 2 s, beside QEMU's savevm.

use fermata_linux::clock::Stopwatch;
use fermata_testkit::{
    Bench, guests,
    report::{Figure, Report, quantile},
};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

const CHECKPOINTS: usize = 50;
const SAVES: usize = 8;
const INTERVAL: Duration = Duration::from_secs(2);
/// Until the guest has booted and compiles; what comes before is not measured.
const BOOT: Duration = Duration::from_secs(25);
/// Both guests get the same work from the kernel's command line, so that nobody has to talk to them.
const CMDLINE: &str = "root=/dev/vda rw console=ttyS0 quiet systemd.run_success_action=none systemd.run_failure_action=none \
    systemd.run=\"/bin/sh -c 'while :; do make -C /src clean; make -C /src; done'\"";

fn main() {
    let (pauses, stored) = ours();
    let rival = savevm();
    let median = quantile(&pauses, 0.5);
    let mut report = Report::new("pause");
    let mut add = |name: &str, value: f64, unit, rival_value: Option<f64>, at_least: &str, holds| {
        let figure =
            Figure { name: name.to_owned(), value, unit, rival: "savevm".to_owned(), rival_value, at_least: at_least.to_owned(), holds };
        report.figures.push(figure);
    };
    let worst = quantile(&pauses, 0.99);
    let theirs = quantile(&rival, 0.5);
    add("pause p50", median, "ms", Some(theirs), "under 5 ms", median < 5.0);
    add("pause p99", worst, "ms", Some(quantile(&rival, 0.99)), "under 15 ms", worst < 15.0);
    add("savevm's pause is longer by", theirs / median, "x", None, "150 times", theirs / median >= 150.0);
    add("stored a checkpoint, p50", quantile(&stored, 0.5), "MiB", None, "reported", true);
    report.print();
}

/// Pauses in ms and bytes stored in MiB.
fn ours() -> (Vec<f64>, Vec<f64>) {
    let yaml = guests::debian("pause", "debian12.raw", "").replace("root=/dev/vda rw console=ttyS0 quiet", &format!("{:?}", CMDLINE));
    let bench = Bench::new(&yaml);
    let run = bench.boot();
    std::thread::sleep(BOOT);
    // The first holds all that the guest has; it is not what a guest meets every two seconds.
    run.checkpoint(None).expect("a checkpoint");
    let measured = (0..CHECKPOINTS).map(|_| {
        std::thread::sleep(INTERVAL);
        let (_, record) = run.checkpoint(None).expect("a checkpoint");
        (record.cost.pause_ns as f64 / 1e6, record.cost.stored_bytes as f64 / f64::from(1 << 20))
    });
    measured.unzip()
}

/// How long `savevm` takes in ms: the guest stands still all the while.
fn savevm() -> Vec<f64> {
    let place = tempfile::tempdir().expect("a directory");
    let overlay = place.path().join("overlay.qcow2");
    let created = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .arg(guests::file("debian12.raw"))
        .arg(&overlay)
        .status();
    assert!(created.expect("qemu-img runs").success());
    let mut qemu = Qemu::start(&overlay, &place.path().join("qmp"));
    std::thread::sleep(BOOT);
    (0..SAVES)
        .map(|number| {
            std::thread::sleep(INTERVAL);
            let watch = Stopwatch::start();
            let said = qemu.run("human-monitor-command", &json!({"command-line": format!("savevm s{number}")}));
            assert_eq!(said, json!(""), "savevm complains");
            watch.elapsed().as_secs_f64() * 1e3
        })
        .collect()
}

struct Qemu {
    process: Child,
    monitor: BufReader<UnixStream>,
}

impl Qemu {
    fn start(disk: &Path, socket: &Path) -> Self {
        let process = Command::new(fermata_vm::qemu_program())
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-m", "1G", "-cpu", "max", "-accel", "tcg"])
            .arg("-drive")
            .arg(format!("file={},if=virtio,format=qcow2", disk.display()))
            .arg("-kernel")
            .arg(guests::file("vmlinuz"))
            .arg("-initrd")
            .arg(guests::file("debian-initrd"))
            .args(["-append", CMDLINE, "-serial", "null", "-qmp"])
            .arg(format!("unix:{},server=on,wait=off", socket.display()))
            .stdin(Stdio::null())
            .spawn()
            .expect("QEMU starts");
        let stream = (0..200).find_map(|_| {
            std::thread::sleep(Duration::from_millis(50));
            UnixStream::connect(socket).ok()
        });
        let mut qemu = Self { process, monitor: BufReader::new(stream.expect("QEMU opens its monitor")) };
        qemu.line();
        qemu.run("qmp_capabilities", &json!({}));
        qemu
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.monitor.read_line(&mut line).expect("QEMU answers");
        serde_json::from_str(&line).expect("QMP is JSON")
    }

    fn run(&mut self, command: &str, arguments: &Value) -> Value {
        let request = json!({"execute": command, "arguments": arguments});
        writeln!(self.monitor.get_mut(), "{request}").expect("QEMU listens");
        loop {
            let answer = self.line();
            if let Some(result) = answer.get("return") {
                return result.clone();
            }
            assert!(answer.get("error").is_none(), "{answer}");
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
