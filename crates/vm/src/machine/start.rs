//! How a machine comes to be: QEMU's process and all that is there before its guest runs.

use super::{Machine, PATIENCE, read_at_most};
use crate::{
    Agent, Error, Result,
    capture::CaptureOptions,
    config::{Accel, MONITOR, MachineConfig, PAUSE_MONITOR, Place, SAVE_MONITOR, Start, arguments},
    device_state,
    faults::{Fate, Memory},
    held::Held,
    holes::{self, Holes, Puncher},
    monitor::Monitor,
    notes::Notes,
    program::{SECRETS, Version, qemu_program},
    watch,
};
use fermata_linux::{Child, MemoryFile, Userfault, launch, maps, priority, random};
use fermata_tracker::Choice;
use fermata_types::{MachineId, PageSet};
use qapi::qmp;
use std::{
    fs::{self, File},
    io::{self, Write},
    ops::Range,
    os::unix::{
        fs::{DirBuilderExt, OpenOptionsExt},
        net::UnixStream,
    },
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32},
    },
};

/// Where the firmware's memory ends: the processor starts just below 4 GiB.
const FIRMWARE_END: u64 = 1 << 32;

impl Machine {
    /// Starts a machine that is about to boot, paused. The disks' servers must be listening.
    ///
    /// `wall_ns` is the time of the host, which machines that begin together are all given. Also returns the pages that hold something before the guest's first
    /// instruction.
    pub fn boot(config: MachineConfig, place: Place, capture: CaptureOptions, wall_ns: u64) -> Result<(Self, PageSet)> {
        let machine = Self::start(config, place, capture, Start::Boot { wall_ns })?;
        machine.set_firmware(machine.read_firmware()?);
        let loaded = machine.populated()?;
        Ok((machine, loaded))
    }

    /// Starts a machine that waits, empty, for a state to be restored into it.
    pub fn spare(config: MachineConfig, place: Place, capture: CaptureOptions) -> Result<Self> {
        Self::start(config, place, capture, Start::Incoming)
    }

    fn start(config: MachineConfig, place: Place, capture: CaptureOptions, start: Start) -> Result<Self> {
        let capture = capture.settle(&config)?;
        let directories = place.clone();
        let kind = config.machine_type.clone();
        Self::start_in(config, place, capture, start).inspect_err(|_| directories.remove()).map_err(|error| too_new(error, &kind))
    }

    fn start_in(config: MachineConfig, place: Place, capture: CaptureOptions, start: Start) -> Result<Self> {
        let name = config.name.clone();
        lay_out(&place, capture.tracker)?;
        let ram = Arc::new(MemoryFile::create(&place.ram(), config.memory).map_err(failed("making guest memory in", &place.ram()))?);
        let id = MachineId(random::bytes().map_err(failed("drawing a machine id for", &place.directory))?);
        let child = Arc::new(spawn(&config, &id, &place, start, capture.tracker)?);
        let (notes, punches, userfault) = handed_out(&config, &place, &child, capture.tracker, &ram)?;
        let connect = |monitor| Monitor::connect(&name, &place.monitor_socket(monitor), place.log(), child.clone());
        let (monitor, pause, save) = (Arc::new(connect(MONITOR)?), connect(PAUSE_MONITOR)?, connect(SAVE_MONITOR)?);
        let base = maps::address_of(child.pid(), ram.path(), config.memory, notes.as_ref().map(|notes| notes.mapping().start))
            .map_err(failed("looking for the mapping of", ram.path()))?
            .ok_or_else(|| monitor.gone("did not map the guest memory"))?;
        let memory = base..base + config.memory;
        let userfault = Arc::new(userfault);
        register(&userfault, &ram, memory.clone(), notes.as_ref(), start)?;
        let (tracker, log) = watch::tracker(capture.tracker, child.pid(), memory.clone(), &userfault, &ram, notes)?;
        let processors = processors(&monitor)?;
        // Monitor and main loop, which a pause waits for, beside processors that compute all the time.
        priority::answer_soon_in(child.pid(), &processors);
        let agent = Agent::new(name, place.agent_socket(), child.clone(), monitor.clone());
        let held = Arc::new(Held::new(ram.clone()));
        let memory = Arc::new(Memory {
            ram,
            range: memory,
            userfault,
            log,
            held,
            holes: Holes::default(),
            letting_through: Mutex::new(()),
            pager: OnceLock::new(),
            fate: Fate::new(child.clone()),
        });
        let machine = Self {
            config,
            id,
            place,
            child,
            monitor,
            pause,
            save,
            _puncher: punches.map(|socket| Puncher::start(socket, memory.clone())),
            memory,
            protector: tracker.protector(),
            tracker: Mutex::new(tracker),
            capture,
            faults: OnceLock::new(),
            agent,
            processors,
            off: AtomicBool::new(false),
            held: AtomicU32::new(0),
            firmware: OnceLock::new(),
        };
        if machine.memory.log.is_some() {
            machine.serve_faults();
        }
        Ok(machine)
    }

    /// Reads the firmware from a machine that is about to boot.
    fn read_firmware(&self) -> Result<Vec<u8>> {
        let path = self.place.file("firmware");
        let (val, size) = (FIRMWARE_END - device_state::FIRMWARE_BYTES as u64, device_state::FIRMWARE_BYTES as u64);
        let save = qmp::pmemsave { val, size, filename: path.to_string_lossy().into_owned() };
        self.monitor.run(&save)?;
        let firmware = read_at_most(&path, size);
        let _ = fs::remove_file(&path);
        firmware.map_err(|source| Error::Io { what: "reading the firmware", path, source })
    }
}

/// Makes its directories, and in them what QEMU is to find.
fn lay_out(place: &Place, tracker: Choice) -> Result<()> {
    for directory in [&place.directory, &place.logs] {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed("making", directory))?;
    }
    // QEMU appends to it, and an earlier process may have had the same number.
    File::create(place.console_log()).map_err(failed("making", &place.console_log()))?;
    write_private(&place.shim(), watch::shim(tracker)).map_err(failed("writing", &place.shim()))
}

fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o700).open(path)?.write_all(content)
}

fn spawn(config: &MachineConfig, id: &MachineId, place: &Place, start: Start, tracker: Choice) -> Result<Child> {
    let program = qemu_program();
    let log = File::create(place.log()).map_err(failed("making", &place.log()))?;
    let mut command = Command::new(&program);
    command.args(arguments(config, id, place, start, Version::of(&program))).env("LD_PRELOAD", place.shim());
    // What a guest breaks out into is not to find what opens the store.
    SECRETS.iter().for_each(|variable| _ = command.env_remove(variable));
    if tracker == Choice::KvmLog {
        command.env("FERMATA_MEMORY", place.ram());
    }
    if config.balloon {
        command.env("FERMATA_PUNCHES", place.ram());
    }
    command.stdout(Stdio::null()).stderr(log);
    launch(command).map_err(|source| Error::NoQemu { machine: config.name.clone(), program, source })
}

/// Has userfaultfd see what happens to the memory. A spare's begins empty.
fn register(userfault: &Userfault, ram: &MemoryFile, memory: Range<u64>, notes: Option<&Notes>, start: Start) -> Result<()> {
    let spare = start == Start::Incoming;
    let base = memory.start;
    if spare {
        // QEMU has loaded its firmware into the RAM; what the guest had there comes from the checkpoint.
        ram.clear().map_err(failed("emptying", ram.path()))?;
    }
    userfault.register(memory, spare).map_err(failed("watching", ram.path()))?;
    if let Some(notes) = notes.filter(|_| spare) {
        userfault.register_alias(notes.mapping(), base).map_err(failed("watching", ram.path()))?;
    }
    Ok(())
}

/// Threads of a machine's processors. One thread may serve all of them.
fn processors(monitor: &Monitor) -> Result<Vec<u32>> {
    let thread = |processor: qmp::CpuInfoFast| match processor {
        qmp::CpuInfoFast::x86_64(processor) => u32::try_from(processor.thread_id).ok(),
        _ => None,
    };
    Ok(monitor.run(&qmp::query_cpus_fast {})?.into_iter().filter_map(thread).collect())
}

/// What the library preloaded into QEMU sends, in its order: KVM's notes if the tracker wants them, a socket for holes if there is a balloon, the userfaultfd.
fn handed_out(
    config: &MachineConfig,
    place: &Place,
    child: &Child,
    tracker: Choice,
    ram: &Arc<MemoryFile>,
) -> Result<(Option<Notes>, Option<UnixStream>, Userfault)> {
    let name = &config.name;
    let lost = |what| move |error| not_handed_over(name, place, child, what, &error);
    let notes = watch::notes(tracker, child, ram, PATIENCE).map_err(lost("KVM's notes"))?;
    let punches = holes::receive(config, child, PATIENCE).map_err(lost("a socket for holes in its memory"))?;
    let ([how], descriptor) = child.receive_descriptor(PATIENCE).map_err(lost("userfaultfd"))?;
    if how == b'u' && config.accel == Accel::Kvm {
        return Err(unsupported(
            name,
            "a full userfaultfd, which KVM needs: run `sysctl vm.unprivileged_userfaultfd=1` or give access to /dev/userfaultfd",
        ));
    }
    let userfault = Userfault::new(descriptor, watch::writes(tracker))
        .map_err(|error| unsupported(name, &format!("what the tracker {tracker} needs of userfaultfd ({error})")))?;
    Ok((notes, punches, userfault))
}

fn unsupported(machine: &str, what: &str) -> Error {
    Error::Unsupported { machine: machine.to_owned(), message: format!("this host lacks {what}; `fermata doctor` tells more") }
}

fn not_handed_over(machine: &str, place: &Place, child: &Child, what: &str, error: &io::Error) -> Error {
    match child.ended() {
        Some(status) => {
            let log = fs::read_to_string(place.log()).unwrap_or_default().lines().last().unwrap_or_default().to_owned();
            Error::Gone { machine: machine.to_owned(), how: format!("ended at once: {status}"), log }
        }
        None => unsupported(machine, &format!("{what} in QEMU ({error})")),
    }
}

/// Puts what QEMU says of a machine type that it does not have into words that help.
fn too_new(error: Error, kind: &str) -> Error {
    match error {
        Error::Gone { machine, log, .. } if log.contains("unsupported machine type") => {
            let program = qemu_program();
            let message = format!(
                "{program} has no machine type {kind}: a checkpoint of a newer QEMU needs one at least as new. Install it, or set FERMATA_QEMU to its path"
            );
            Error::Unsupported { machine, message }
        }
        error => error,
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}
