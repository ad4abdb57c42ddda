//! One QEMU process and the guest in it.
//!
//! ```text
//!   boot ──> paused ──run──> running ──stop──> paused ...
//!   spare ──restore──> paused                            any state ──(guest powers off)──> off
//! ```

mod start;

use crate::{
    Agent, Error, Result,
    capture::CaptureOptions,
    config::{CONTROL, CONTROL_ADDRESS, MachineConfig, Place, net_id},
    device_state,
    faults::{FaultServer, Memory},
    held::HeldPages,
    holes::Puncher,
    interrupts::first_needed,
    monitor::{Monitor, Ticket},
    pager::{Pager, Paging},
    watch,
};
use fermata_linux::{
    Child, MemoryFile,
    clock::{Stopwatch, wall_ns},
    priority::{self, Meanwhile},
};
use fermata_store::Store;
use fermata_tracker::{Protector, Tracker};
use fermata_types::{MachineId, PAGE_SIZE, PageNumber, PageSet, Root};
use qapi::qmp;
use std::{
    fs::File,
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown},
    ops::Range,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

/// QEMU's descriptor for the device state; the shim has it too.
const STATE_IN: u32 = 100;

/// Longest time for the shim to hand over, for a device state to be loaded, and for an answer that nobody stands still for.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long somebody waits for a machine who wants to know how it is.
pub const GLANCE: Duration = Duration::from_secs(1);
/// One that is silent for this long learns nothing of its carrier; a checkpoint may wait for it.
const CARRIER_PATIENCE: Duration = Duration::from_secs(5);
/// QEMU writes all of a memory, on a host that may be busy.
const DUMP_PATIENCE: Duration = Duration::from_secs(120);
/// For an answer about forwarded ports.
const CONTROL_PATIENCE: Duration = Duration::from_secs(5);

/// What a machine does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// The guest runs.
    Running,
    /// Stopped by us.
    Paused,
    /// The guest powered itself off. Its last state is still there.
    Off,
    /// QEMU stopped the guest, since it cannot go on: QEMU's name of the state.
    Failed(&'static str),
    /// QEMU does not answer: it hangs, or the host is too busy.
    Silent,
    /// QEMU is gone, and why.
    Gone(String),
}

/// A stop that was set off.
#[derive(Debug)]
pub struct Stopping {
    asked: Ticket,
    /// When, by the host's wall clock.
    at: Duration,
}

/// A going on that was set off.
#[derive(Debug)]
pub struct Running(Ticket, Meanwhile);

/// Device state that is being written.
#[derive(Debug)]
pub(crate) struct Saving(Ticket);

/// What a machine gets back into it.
pub struct Restore<'a> {
    /// Where the pages are.
    pub store: &'a Store,
    /// The RAM.
    pub ram: Root,
    /// The device state.
    pub devices: &'a [u8],
    /// Load every page before the guest runs.
    pub eager: bool,
    /// The guest had powered itself off, which QEMU does not keep in the device state.
    pub off: bool,
    /// Let the guest see a new VM generation id, on which it reseeds its random numbers; otherwise it sees nothing.
    pub fresh_randomness: bool,
    /// Pages to bring in first, most urgent first.
    pub working_set: Vec<PageNumber>,
    /// Told, when everything is in, which pages somebody had to wait for meanwhile.
    pub remember: Box<dyn FnOnce(Vec<PageNumber>) + Send>,
}

/// A machine. Dropping it ends QEMU and removes its RAM.
pub struct Machine {
    config: MachineConfig,
    id: MachineId,
    place: Place,
    child: Arc<Child>,
    monitor: Arc<Monitor>,
    /// On which it is stopped and let go on.
    pause: Monitor,
    /// On which its devices' state is asked for.
    save: Monitor,
    memory: Arc<Memory>,
    tracker: Mutex<Box<dyn Tracker>>,
    protector: Option<Arc<dyn Protector>>,
    capture: CaptureOptions,
    /// Runs from when there is something to serve: at once if writes wait for us, else when a state is being restored.
    faults: OnceLock<FaultServer>,
    _puncher: Option<Puncher>,
    agent: Agent,
    /// Threads of its processors.
    processors: Vec<u32>,
    /// It came back powered off, or went off in the moment in which it was stopped: QEMU does not keep it so.
    off: AtomicBool,
    /// Odd while it is held for a checkpoint; it counts how often that began and ended.
    held: AtomicU32,
    /// What is in the firmware's read-only memory.
    firmware: OnceLock<Arc<[u8]>>,
}

impl Machine {
    fn serve_faults(&self) {
        self.faults.get_or_init(|| FaultServer::start(self.memory.clone()));
    }

    /// What it is.
    pub fn config(&self) -> &MachineConfig {
        &self.config
    }

    /// Its own id. A guest restored with fresh randomness sees it as its VM generation id.
    pub fn id(&self) -> MachineId {
        self.id
    }

    /// Where it lives.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Process id of QEMU.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// The guest's memory, as it is now. Pages not yet restored read as zeros: see [`Machine::paging`].
    pub fn ram(&self) -> &MemoryFile {
        &self.memory.ram
    }

    /// How its memory is watched and captured, with the tracker chosen.
    pub fn capture(&self) -> CaptureOptions {
        self.capture
    }

    /// Pages that are there: written, or brought in.
    pub(crate) fn populated(&self) -> Result<PageSet> {
        let mut pages = PageSet::new();
        for (from, to) in self.ram().populated().map_err(self.memory.io("reading the extents of"))? {
            pages.insert_range((from / PAGE_SIZE as u64) as u32..to.div_ceil(PAGE_SIZE as u64) as u32);
        }
        Ok(pages)
    }

    /// As long as this is held, nobody is let through to write to a protected page.
    pub(crate) fn nobody_writes(&self) -> MutexGuard<'_, ()> {
        self.memory.let_through()
    }

    /// Notes pages that are to be copied later, each before it is written again.
    pub(crate) fn hold_pages(&self, pages: PageSet) -> HeldPages {
        self.memory.held.hold(pages)
    }

    /// The guest agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// The name that QEMU gives its machine type when asked for an alias such as `q35`.
    pub fn machine_type(&self) -> Result<String> {
        let kind = self.monitor.run(&qmp::qom_get { path: "/machine".into(), property: "type".into() })?;
        let kind = kind.as_str().and_then(|kind| kind.strip_suffix("-machine"));
        Ok(kind.unwrap_or(&self.config.machine_type).to_owned())
    }

    /// Lets the guest run. One that has powered itself off does not go on from there.
    pub fn run(&self) -> Result<()> {
        let asked = self.begin_run()?;
        let _held_back = self.finish_run(asked, PATIENCE)?;
        priority::after_you();
        Ok(())
    }

    /// Sets off [`run`](Self::run): what begins several machines at once asks all of them before it waits for any.
    pub fn begin_run(&self) -> Result<Running> {
        if self.has_gone_off() {
            let message = "it has powered itself off, and cannot go on from there: `fermata goto` an earlier checkpoint".to_owned();
            return Err(Error::Unsupported { machine: self.config.name.clone(), message });
        }
        // Else the processors, once woken, push aside the thread that has woken them and is yet to answer: until the next tick, by which time the guest has
        // run for milliseconds and everything that waits for it, the network for one, has stood still.
        let held_back = priority::hold_back(&self.processors);
        Ok(Running(self.pause.ask(&qmp::cont {})?, held_back))
    }

    /// Waits until the guest runs, at most so long.
    ///
    /// QEMU answers before it gives up the lock that its processors wait for, and whoever reads the answer on QEMU's own processor keeps it from doing so. So who
    /// has read the last answer of all is to let others go first ([`priority::after_you`]), and then to drop what keeps the guests' processors behind them.
    pub fn finish_run(&self, Running(asked, held_back): Running, patience: Duration) -> Result<Meanwhile> {
        self.pause.answer::<qmp::cont>(asked, patience).inspect_err(|_| self.pause.forget(asked))?;
        Ok(held_back)
    }

    /// Nobody waits for it any more.
    pub(crate) fn forget_run(&self, Running(asked, _): Running) {
        self.pause.forget(asked);
    }

    /// Stops the guest: no instruction, no device, no clock goes on.
    pub fn stop(&self) -> Result<()> {
        let asked = self.begin_stop()?;
        self.finish_stop(asked, PATIENCE)?;
        Ok(())
    }

    /// Has QEMU read what it will be asked in the pause, while the guest runs: each command but for its last byte.
    pub(crate) fn prime(&self) -> Result<()> {
        self.pause.prime(&qmp::stop {})?;
        self.save.prime(&self.save_command())
    }

    /// Sets off [`stop`](Self::stop).
    pub fn begin_stop(&self) -> Result<Stopping> {
        let at = Duration::from_nanos(wall_ns());
        let asked = self.pause.ask(&qmp::stop {})?;
        Ok(Stopping { asked, at })
    }

    /// Waits until the guest stands still, at most so long. Returns why it does: paused, unless it had stopped by itself.
    ///
    /// A machine that does not answer in time stops when it comes to itself.
    pub fn finish_stop(&self, Stopping { asked, at }: Stopping, patience: Duration) -> Result<Status> {
        self.pause.answer::<qmp::stop>(asked, patience).inspect_err(|_| self.pause.forget(asked))?;
        // QEMU tells to the microsecond. One that did not stop for us, as far as we can see, is asked why it stands.
        let stopped_for_us = self.pause.stopped().is_some_and(|stopped| stopped.saturating_add(Duration::from_micros(1)) > at);
        let state = match stopped_for_us {
            true => qmp::RunState::paused,
            false => self.monitor.run_within(&qmp::query_status {}, patience)?.status,
        };
        if state == qmp::RunState::suspended || self.pause.sleeps() {
            return Err(self.asleep());
        }
        Ok(self.stands(state))
    }

    /// Fails if the guest has suspended itself to RAM. QEMU (7.2) does not stop one that sleeps: its devices and clocks go on, and a state of them would be torn. Later
    /// ones stop it, but nobody has looked whether it would sleep on after a restore.
    pub(crate) fn check_awake(&self) -> Result<()> {
        let sleeps = match self.monitor.run(&qmp::query_status {})?.status {
            qmp::RunState::running => false,
            qmp::RunState::suspended => true,
            // As it was when it was stopped.
            qmp::RunState::paused => self.pause.sleeps(),
            _ => false,
        };
        if sleeps { Err(self.asleep()) } else { Ok(()) }
    }

    fn asleep(&self) -> Error {
        let message = "it has suspended itself to RAM, and can be neither paused nor checkpointed: `fermata resume` wakes it".to_owned();
        Error::Unsupported { machine: self.config.name.clone(), message }
    }

    /// Wakes the guest if it has suspended itself to RAM. One that does not tell in time is left alone.
    pub fn wake(&self) -> Result<()> {
        match self.monitor.glance(&qmp::query_status {}, GLANCE) {
            Ok(Some(info)) if info.status == qmp::RunState::suspended => self.monitor.run(&qmp::system_wakeup {}).map(drop),
            _ => Ok(()),
        }
    }

    /// When the guest last stopped and last went on: wall clock of the host. None if it never did both.
    pub fn stood(&self) -> Option<Range<Duration>> {
        self.pause.stood()
    }

    /// When the guest last went on: wall clock of the host.
    pub fn went_on(&self) -> Option<Duration> {
        self.pause.went_on()
    }

    /// While it is held for a checkpoint, it counts as running: nobody stopped it, and it goes on in a moment. One checkpoint at a time says it.
    pub(crate) fn hold(&self, held: bool) {
        let before = self.held.load(Ordering::Relaxed);
        self.held.store(before + u32::from(is_odd(before) != held), Ordering::Release);
    }

    /// Has the guest see a network interface with a carrier, or without. The interface is named and not what it is connected to: so its rings run on.
    pub fn set_carrier(&self, net: u32, up: bool) -> Result<()> {
        self.monitor.run_within(&qmp::set_link { name: net_id(net), up }, CARRIER_PATIENCE).map(drop)
    }

    /// Forwards a TCP port of this host's own address, 127.0.0.1, to one of the guest's, by the control interface.
    ///
    /// # Errors
    /// The port is taken, or the machine has no control interface.
    pub fn forward(&self, host: u16, guest: u16) -> Result<()> {
        self.control("hostfwd_add", format!("{}-{CONTROL_ADDRESS}:{guest}", at(host)))
    }

    /// Forwards it no more. Connections that came that way go on.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn unforward(&self, host: u16) -> Result<()> {
        self.control("hostfwd_remove", at(host))
    }

    /// These commands are for people only: what they say is text, and nothing when all went well.
    fn control(&self, command: &'static str, what: String) -> Result<()> {
        let command_line = format!("{command} {CONTROL} {what}");
        let said = self.monitor.run_within(&qmp::human_monitor_command { command_line, cpu_index: None }, CONTROL_PATIENCE)?;
        let said = said.trim();
        match said.is_empty() || said.ends_with("removed") {
            true => Ok(()),
            false => Err(Error::Command { machine: self.config.name.clone(), command, message: said.to_owned() }),
        }
    }

    /// What it does now.
    pub fn status(&self) -> Status {
        self.status_within(PATIENCE)
    }

    /// The same for whoever does not want to wait for a machine that hangs.
    pub fn glance(&self) -> Status {
        self.status_within(GLANCE)
    }

    /// The same; one that does not answer for so long is silent.
    pub fn status_within(&self, patience: Duration) -> Status {
        if let Some(failure) = self.memory.fate.failure() {
            return Status::Gone(failure);
        }
        // One that hung when it was told to stop and to go on does both when it comes to itself. QEMU may answer other monitors between the two.
        if !self.pause.hear_out(patience) {
            return Status::Silent;
        }
        let before = self.held.load(Ordering::Acquire);
        match self.monitor.glance(&qmp::query_status {}, patience) {
            Ok(None) => Status::Silent,
            // One that sleeps wakes by itself: nobody has stopped it.
            Ok(Some(info)) if matches!(info.status, qmp::RunState::running | qmp::RunState::suspended) => Status::Running,
            Ok(Some(info)) => match self.stands(info.status) {
                // It may have been held, and gone on, since QEMU answered.
                Status::Paused if is_odd(before) || self.held.load(Ordering::Acquire) != before => Status::Running,
                other => other,
            },
            Err(error) => Status::Gone(error.to_string()),
        }
    }

    /// Why a guest that does not run stands still, by QEMU's name for it.
    fn stands(&self, state: qmp::RunState) -> Status {
        match state {
            qmp::RunState::shutdown | qmp::RunState::guest_panicked => Status::Off,
            qmp::RunState::internal_error => Status::Failed("internal-error"),
            qmp::RunState::io_error => Status::Failed("io-error"),
            qmp::RunState::watchdog => Status::Failed("watchdog"),
            _ if self.has_gone_off() => Status::Off,
            _ => Status::Paused,
        }
    }

    /// Whether the guest has powered itself off. If it did while it was being stopped, it counts as paused in QEMU, which only tells so once it has answered the stop, and
    /// would let it go on behind its end. So what is asked after the stop is to be answered before.
    pub(crate) fn has_gone_off(&self) -> bool {
        if self.monitor.is_off() || self.save.is_off() {
            self.off.store(true, Ordering::Relaxed);
        }
        self.off.load(Ordering::Relaxed)
    }

    /// Pages written by the guest and by QEMU since the last call, and those that the guest has given back. For one instant of all of them the machine must be
    /// stopped.
    pub fn take_written(&self) -> Result<PageSet> {
        let written = self.tracker.lock().expect("nobody panics with the lock").take()?;
        Ok(written | self.memory.holes.take_written())
    }

    /// Whether [`watch_writes`](Self::watch_writes) can be had: the tracker decides.
    pub fn watches_single_pages(&self) -> bool {
        self.protector.is_some()
    }

    /// From now on [`take_written`](Self::take_written) names those of these pages that are written after this call began, and no others of them. Those written
    /// before are told to `written`, for whoever asks to remember.
    pub fn watch_writes(&self, pages: &[Range<PageNumber>], written: &mut dyn FnMut(Range<PageNumber>)) -> Result<()> {
        match &self.protector {
            Some(protector) => Ok(protector.protect(pages, written)?),
            None => {
                let message = format!("the tracker {} cannot watch single pages", self.capture.tracker);
                Err(Error::Unsupported { machine: self.config.name.clone(), message })
            }
        }
    }

    /// The state of the stopped machine's devices, as QEMU writes it.
    pub fn device_state(&self) -> Result<Vec<u8>> {
        let asked = self.begin_device_state()?;
        self.finish_device_state(asked, PATIENCE)
    }

    /// QEMU's own core of the stopped machine's memory, for tests and diagnosis.
    pub fn dump(&self, path: &Path) -> Result<()> {
        let protocol = format!("file:{}", path.display());
        let dump = qmp::dump_guest_memory { paging: false, protocol, begin: None, length: None, detach: None, format: None };
        self.monitor.run_within(&dump, DUMP_PATIENCE).map(drop)
    }

    /// Has QEMU write the state of the stopped machine's devices.
    pub(crate) fn begin_device_state(&self) -> Result<Saving> {
        let asked = self.save.ask(&self.save_command())?;
        // QEMU reads it beside what it was asked, and not before it or others have stopped.
        self.pause.prime(&qmp::cont {}).inspect_err(|_| self.save.forget(asked))?;
        Ok(Saving(asked))
    }

    fn save_command(&self) -> qmp::xen_save_devices_state {
        let filename = self.place.device_state().to_string_lossy().into_owned();
        // live: false leaves the machine stopped, and its clocks as they are.
        qmp::xen_save_devices_state { filename, live: Some(false) }
    }

    /// Waits for it, at most so long.
    pub(crate) fn finish_device_state(&self, Saving(asked): Saving, patience: Duration) -> Result<Vec<u8>> {
        self.save.answer::<qmp::xen_save_devices_state>(asked, patience).inspect_err(|_| self.save.forget(asked))?;
        let path = self.place.device_state();
        read_at_most(&path, device_state::BYTES_MAX).map_err(|source| Error::Io { what: "reading the device state", path, source })
    }

    /// Nobody waits for it any more.
    pub(crate) fn forget_device_state(&self, Saving(asked): Saving) {
        self.save.forget(asked);
    }

    /// What is in the firmware's read-only memory: the BIOS that a reset begins with. Empty if nobody said.
    pub fn firmware(&self) -> Arc<[u8]> {
        self.firmware.get().cloned().unwrap_or_default()
    }

    /// Says what a spare machine's firmware is to be, before it is restored. A QEMU that waits for a state leaves that memory empty (`rom_reset` in QEMU's
    /// `hw/core/loader.c`): without it, the guest could not even restart.
    pub fn set_firmware(&self, firmware: Vec<u8>) {
        // A machine gets its state once.
        let _ = self.firmware.set(firmware.into());
    }

    /// Puts a state into a spare machine and leaves it paused.
    ///
    /// Returns the pages in which its RAM differs from the checkpoint's: none, but for what fresh randomness changes.
    pub fn restore(&self, state: Restore<'_>) -> Result<PageSet> {
        let corrupt = |message: &str| Error::Corrupt { machine: self.config.name.clone(), message: message.to_owned() };
        if !device_state::is_plausible(state.devices) {
            return Err(corrupt("the checkpoint's device state does not begin like one"));
        }
        if state.ram.pages != self.config.memory / PAGE_SIZE as u64 {
            return Err(corrupt("the checkpoint's RAM is of another size than the machine's"));
        }
        let pager = Pager::new(state.store.clone(), state.ram, &self.memory);
        self.memory.pager.set(pager).map_err(|_| corrupt("this machine already got a state"))?;
        let pager = self.memory.pager.get().expect("it was just set");
        self.serve_faults();
        let eager = state.eager || watch::needs_all(self.capture.tracker);
        if eager {
            pager.fill()?;
        }
        if watch::needs_all(self.capture.tracker) {
            // It counts from here.
            self.take_written()?;
        }
        // The working set while the devices are loaded: whatever is in by then, nobody waits for. The rest later, for it would take the processors.
        let fill = (!eager).then(|| {
            let (store, ram, config, devices) = (state.store.clone(), state.ram, self.config.clone(), state.devices.to_vec());
            pager.fill_behind(move || first_needed(&store, ram, &config, &devices), state.working_set, state.remember)
        });
        // A deterministic machine has nothing that would be announced, and what looks like it is its guest's.
        if state.fresh_randomness || self.config.deterministic {
            self.load_devices(state.devices)?;
        } else {
            self.load_devices(&device_state::without_announcement(state.devices))?;
        }
        let mut differing = self.take_written()?;
        if !state.fresh_randomness {
            self.undo(&differing, state.store, &state.ram)?;
            differing.clear();
        }
        self.off.store(state.off, Ordering::Relaxed);
        if let Some(fill) = fill {
            fill.go_on();
        }
        Ok(differing)
    }

    fn load_devices(&self, devices: &[u8]) -> Result<()> {
        // Of one that was ended for want of a page it is known why.
        let why = |error| match self.memory.fate.failure() {
            Some(message) => Error::Corrupt { machine: self.config.name.clone(), message },
            None => error,
        };
        self.send_devices(devices).map_err(why)
    }

    /// The socket that the shim was given is the way in for the migration stream, too.
    fn send_devices(&self, devices: &[u8]) -> Result<()> {
        let devices = &device_state::with_firmware(devices, &self.firmware());
        self.monitor.run(&qmp::migrate_incoming { uri: Some(format!("fd:{STATE_IN}")), channels: None, exit_on_error: None })?;
        let broken = |_| self.monitor.gone("did not take the device state");
        self.child.channel.set_write_timeout(Some(PATIENCE)).map_err(broken)?;
        (&self.child.channel).write_all(devices).map_err(broken)?;
        self.child.channel.shutdown(Shutdown::Write).map_err(broken)?;
        let waited = Stopwatch::start();
        while self.monitor.run(&qmp::query_status {})?.status == qmp::RunState::inmigrate {
            if waited.elapsed() > PATIENCE {
                return Err(self.monitor.gone("does not answer the device state"));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Takes back what QEMU wrote into the guest's memory while it loaded: the VM generation id of this process.
    fn undo(&self, written: &PageSet, store: &Store, root: &Root) -> Result<()> {
        for page in written {
            let mut content = [0; PAGE_SIZE];
            if let Some(name) = store.lookup(root, page)? {
                store.read_page(&name, &mut content)?;
            }
            self.ram().write_at(u64::from(page) * PAGE_SIZE as u64, &content).map_err(self.memory.io("writing"))?;
        }
        Ok(())
    }

    /// How far a lazy restore is; none for a machine that booted.
    pub fn paging(&self) -> Option<Paging> {
        self.memory.pager.get().map(|pager| Paging { failure: self.memory.fate.failure(), ..pager.paging() })
    }

    /// To be called before a device backend touches pages through its own mapping: brings them in, and has them copied for a checkpoint under way.
    pub fn before_access(&self, first: PageNumber, pages: u32) -> std::io::Result<()> {
        self.memory.before_access(first, pages)
    }

    /// Whether [`before_access`](Self::before_access) has nothing to wait for.
    pub fn is_there(&self, first: PageNumber, pages: u32) -> bool {
        self.memory.is_there(first, pages)
    }

    /// Ends QEMU at once.
    pub fn kill(&self) {
        self.child.kill();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.memory.fate.ending.store(true, Ordering::Release);
        self.child.kill();
        self.faults.take();
        if let Some(pager) = self.memory.pager.get() {
            pager.join();
        }
        self.place.remove();
    }
}

/// A port of this host, in the words of QEMU's user network.
fn at(port: u16) -> String {
    format!("tcp:{}:{port}", Ipv4Addr::LOCALHOST)
}

fn read_at_most(path: &Path, bytes: u64) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if file.metadata()?.len() > bytes {
        return Err(std::io::Error::other(format!("it has more than {bytes} bytes")));
    }
    let mut content = Vec::new();
    file.take(bytes).read_to_end(&mut content)?;
    Ok(content)
}

fn is_odd(count: u32) -> bool {
    count % 2 == 1
}

#[cfg(test)]
mod tests;
