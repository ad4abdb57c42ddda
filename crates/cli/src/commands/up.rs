//! `fermata up`: boots an experiment.

use super::{Context, Result};
use crate::{
    out::{Failure, Style},
    progress::Meter,
    text,
};
use clap::Args;
use fermata_api::{
    local::{self, UpRequest},
    spec::{Accel, ByteSize, CaptureMode, Disk, Interval, Keep, SingleOptions, Spec, SpecFile, TrackerChoice},
    values::Experiment,
};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// Boot an experiment and keep it
///
/// What it is comes from a specification in YAML, or from the command line for a single machine. A keeper process in the background holds it and takes
/// its checkpoints; this command returns as soon as the machine runs.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata up machine.yaml --every 2s
  fermata up machine.yaml --every 2s --keep 'last 20, every 2s for 1m, every 1m for 1h'
  fermata up replicas.yaml                # several machines, and links between them: docs/spec.md
  fermata up debian.qcow2 --memory 2G --cpus 2
  fermata up --kernel vmlinuz --initrd initrd.gz --cmdline console=ttyS0 --deterministic

`fermata schema` prints the JSON Schema of the specification.")]
pub struct Up {
    /// A specification (*.yaml, *.yml), or the golden image of the machine's first disk (raw or qcow2), which is never written
    #[arg(value_name = "SPEC.yaml | IMAGE")]
    what: Option<PathBuf>,
    /// Time between two checkpoints, such as 2s or 500ms [default: as in the specification, else only on request]
    #[arg(long, value_name = "TIME")]
    every: Option<Interval>,
    /// Which checkpoints are kept; the others are removed after a while, as `fermata prune` does [default: as in the specification, else all]
    #[arg(long, value_name = "POLICY")]
    keep: Option<Keep>,
    /// When a checkpoint copies memory: in the pause, ahead of it, or after it before the guest writes again
    #[arg(long, value_name = "auto|stop|precopy|cow")]
    capture: Option<CaptureMode>,
    /// Who tells which pages of memory were written; `fermata doctor` says what this host can do
    #[arg(long, value_name = "auto|scan|userfault|compare|kvm-log")]
    tracker: Option<TrackerChoice>,
    /// Keep every page of memory, also those that are free in the guest: for comparing whole memories
    #[arg(long)]
    exact: bool,
    /// Name of the experiment [default: as in the specification, else after the image]
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Serve metrics for Prometheus on a TCP port of this host, such as 127.0.0.1:9464: anybody on it may read them
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Boot though an experiment of this name is swapped out: its record is gone then, and its checkpoints stay
    #[arg(long)]
    force: bool,
    /// Stay, and keep the experiment in this process until it ends
    #[arg(long)]
    foreground: bool,
}

/// Options of a machine that is given on the command line alone.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Options of a machine without a specification")]
struct MachineArgs {
    /// RAM, such as 512M or 1G [default: 1G]
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// Virtual processors [default: 1]
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Linux kernel to boot directly
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Initial RAM disk for the kernel
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,
    /// Command line for the kernel
    #[arg(long, value_name = "TEXT", requires = "kernel")]
    cmdline: Option<String>,
    /// A further disk: a golden image, or a size such as 4G for an empty disk
    #[arg(long, value_name = "IMAGE | SIZE")]
    disk: Vec<PathBuf>,
    /// What executes the machine: auto takes KVM where the processor has it, else TCG
    #[arg(long, value_name = "auto|kvm|tcg", value_parser = accel)]
    accel: Option<Accel>,
    /// QEMU CPU model, such as max
    #[arg(long, value_name = "MODEL")]
    cpu: Option<String>,
    /// Does the same every time, instruction by instruction: no disk, one processor, nothing from outside
    #[arg(long)]
    deterministic: bool,
}

fn accel(text: &str) -> std::result::Result<Accel, String> {
    match text {
        "auto" => Ok(Accel::Auto),
        "kvm" => Ok(Accel::Kvm),
        "tcg" => Ok(Accel::Tcg),
        _ => Err("expected auto, kvm or tcg".to_owned()),
    }
}

impl MachineArgs {
    /// The first option that was given.
    fn first(&self) -> Option<&'static str> {
        let given = [
            (self.memory.is_some(), "--memory"),
            (self.cpus.is_some(), "--cpus"),
            (self.kernel.is_some(), "--kernel"),
            (!self.disk.is_empty(), "--disk"),
            (self.accel.is_some(), "--accel"),
            (self.cpu.is_some(), "--cpu"),
            (self.deterministic, "--deterministic"),
        ];
        given.into_iter().find_map(|(given, option)| given.then_some(option))
    }

    fn into_options(self, name: Option<String>) -> SingleOptions {
        SingleOptions {
            name,
            every: None,
            memory: self.memory,
            cpus: self.cpus,
            disks: self.disk.into_iter().map(disk).collect(),
            kernel: self.kernel,
            initrd: self.initrd,
            cmdline: self.cmdline,
            accel: self.accel.unwrap_or_default(),
            cpu: self.cpu,
            deterministic: self.deterministic,
        }
    }
}

fn disk(given: PathBuf) -> Disk {
    let size = given.to_str().and_then(|text| text.parse().ok()).filter(|_| !given.exists());
    Disk { image: size.is_none().then_some(given), size, format: None, read_only: false }
}

impl Up {
    pub fn run(self, context: &Context) -> Result {
        let (every, capture, tracker, exact) = (self.every, self.capture, self.tracker, self.exact);
        let (keep, metrics, force, foreground) = (self.keep.clone(), self.metrics, self.force, self.foreground);
        let request = UpRequest {
            spec: self.spec()?,
            every_ms: every.map(|every| every.duration().as_millis() as u64),
            capture,
            tracker,
            keep,
            exact,
            store: local::store_path(context.global.store.clone()),
            metrics,
            force,
        };
        let tell = |experiment: &Experiment| context.out.answer(experiment, |style| text(experiment, context.out.quiet, style));
        if foreground {
            let mut told = Ok(());
            local::up_in_foreground(request, &mut |experiment| told = tell(experiment))?;
            told?;
        } else {
            let meter = Meter::new(&context.out, "starting the machine");
            let experiment = local::up(request, &mut |activity| meter.show(&activity))?;
            drop(meter);
            tell(&experiment)?;
        }
        Ok(0)
    }

    fn spec(self) -> std::result::Result<Spec, Failure> {
        match &self.what {
            Some(path) if is_spec(path) => {
                if let Some(option) = self.machine.first() {
                    return Err(Failure::Misuse(format!(
                        "{option} is for a machine without a specification; write it into {}",
                        path.display()
                    )));
                }
                rename(SpecFile::read(path)?.into_spec(), self.name)
            }
            None if self.machine.kernel.is_none() && self.machine.disk.is_empty() => Err(Failure::Misuse(
                "what shall run? Name a specification (machine.yaml), an image (debian.qcow2), a --kernel or a --disk".to_owned(),
            )),
            image => {
                let spec = Spec::single(image.as_deref(), self.machine.into_options(self.name))?;
                spec.check_files()?;
                Ok(spec)
            }
        }
    }
}

fn is_spec(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

fn rename(spec: Spec, name: Option<String>) -> std::result::Result<Spec, Failure> {
    let Some(name) = name else { return Ok(spec) };
    // Through JSON, where the rules for names are applied.
    let renamed = serde_json::to_value(Spec { name, ..spec }).and_then(serde_json::from_value);
    renamed.map_err(|error| Failure::Misuse(format!("--name: {error}")))
}

fn text(experiment: &Experiment, quiet: bool, style: &Style) -> String {
    use crate::out::Paint;
    if quiet {
        return experiment.name.clone();
    }
    let mut lines = String::new();
    for run in &experiment.runs {
        for machine in &run.machines {
            let what = format!(
                "{} runs: {} ({} RAM, {}, {})",
                style.paint(Paint::Name, &experiment.name),
                style.paint(Paint::Name, &machine.name),
                text::bytes(machine.memory_bytes),
                text::several(machine.cpus.into(), "CPU"),
                machine.accel
            );
            lines += &format!("{what}\n");
        }
    }
    let clock = match experiment.every_ms {
        Some(every) => format!("a checkpoint every {}", interval(every)),
        None => "checkpoints on request: `fermata checkpoint`".to_owned(),
    };
    lines + &format!("{clock}, store {}\n", experiment.store.display())
}

/// As it would be written in a specification.
fn interval(ms: u64) -> String {
    Interval::new(Duration::from_millis(ms)).map_or_else(|_| text::ms(ms as f64), |interval| interval.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        args::Cli,
        commands::{Command, samples::experiment},
    };
    use clap::Parser;

    fn parse(line: &str) -> Up {
        match Cli::try_parse_from(line.split(' ')).unwrap().command {
            Command::Up(up) => up,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_machine_from_the_command_line() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("debian.raw");
        std::fs::write(&image, [0; 4096]).unwrap();
        let spec = parse(&format!("fermata up {} --memory 512M --cpus 2 --disk 4G --every 2s", image.display())).spec().unwrap();
        assert_eq!(spec.name, "debian");
        let machine = &spec.nodes["m1"];
        assert_eq!((machine.memory, machine.cpus), (ByteSize::mib(512), 2));
        assert_eq!(machine.disks[0].size, Some(ByteSize::mib(4096)));
    }

    #[test]
    fn misuse_is_told_apart_from_what_is_missing() {
        let status = |line: &str| parse(line).spec().unwrap_err().status();
        assert_eq!(status("fermata up"), 2);
        assert_eq!(status("fermata up machine.yaml --memory 1G"), 2);
        assert_eq!(status("fermata up --kernel /nonexistent/vmlinuz --name UPPER"), 2);
        assert_eq!(status("fermata up /nonexistent/disk.qcow2"), 1);
        assert_eq!(status("fermata up /nonexistent/machine.yaml"), 1);
    }

    #[test]
    fn a_specification_may_be_renamed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("machine.yaml");
        std::fs::write(&path, "name: one\nnodes: {m1: {disks: [{size: 4M}]}}\n").unwrap();
        let up = |more: &str| parse(&format!("fermata up {}{more}", path.display())).spec();
        assert_eq!(up("").unwrap().name, "one");
        assert_eq!(up(" --name two").unwrap().name, "two");
        assert_eq!(up(" --name TWO").unwrap_err().status(), 2);
        std::fs::write(&path, "name: one\nnodes: {m1: {memroy: 1G}}\n").unwrap();
        assert_eq!(up("").unwrap_err().status(), 2);
    }

    #[test]
    fn what_it_says() {
        let said = text(&experiment("tryout"), false, &Style::default());
        assert_eq!(said, "tryout runs: m1 (1.0 GiB RAM, 2 CPUs, tcg)\na checkpoint every 2s, store /store\n");
    }
}
