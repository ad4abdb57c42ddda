//! A machine as a part of an experiment: its RAM and devices at one instant.
//!
//! By default pages written since the last checkpoint are copied before the pause, while the guest runs ("pre-copy", Elnozahy 1992, section 2.1), many of
//! them going straight to the store, and only those written again meanwhile are copied in the pause. So the pause holds: stop, scan, a few pages, device
//! state, go on. Other ways are in [`CaptureMode`].

use crate::{
    BootFiles, CaptureMode, Error, FreePages, KnownPages, Machine, MachineConfig, Result, Status, boot, device_state,
    free::{Instant, Memo, Seen},
    held::HeldPages,
    known::{Aside, CapturedAside},
    machine::{Running, Saving, Stopping},
    staging::Staging,
    untold::{LeftOut, Untold},
};
use fermata_checkpoint::{Captured, Failure, Note, Outcome, Part, Phase, Saved};
use fermata_linux::{clock::Stopwatch, priority::Meanwhile};
use fermata_store::{Class, Writer};
use fermata_types::{MachineId, PAGE_SIZE, PageCounts, PageName, PageNumber, PageSet, PartKind, PartState, Root, VirtualTime, ZERO_PAGE};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Duration};

/// The page table of a machine's RAM in its [`PartState`].
pub const RAM: &str = "ram";
/// The blob of a machine's devices in its [`PartState`].
pub const DEVICES: &str = "devices";
/// The blob of a machine's firmware in its [`PartState`].
pub const FIRMWARE: &str = "firmware";

/// With more pages to copy than this, or than a share of the machine's memory if that is more, they go to the store ahead of the pause instead of into
/// memory. The store is slow: what the guest writes again meanwhile lies in the pack for nothing.
const STAGED_PAGES: u64 = 16 * 1024;
const STAGED_SHARE: u64 = 4;
/// Pages sent to the store at a time.
const BATCH_PAGES: usize = 1024;
/// As few pages as this may be left for the pause.
const LEFT_PAGES: u64 = 128;
/// Rounds of copying ahead, at most; a guest that writes faster than we copy is not chased for ever.
const ROUNDS_MAX: usize = 6;
/// A round is worth another one if it left less than this share of what the one before it left.
const WORTH: f64 = 0.75;
/// The pause may find this many times the pages of the last round, and still ask for no memory.
const SURPRISE: usize = 2;

/// Longest time that all machines of an experiment stand still because one does not answer. An answer takes some milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The step of the pause in which the pages are listed that were written.
pub const SCAN: &str = "scan";
/// The step in which those are set aside that still equal blocks.
pub const MAP: &str = "map";

/// Pages that have been through the sieve.
pub(crate) type Ahead = BTreeMap<PageNumber, (PageName, Class)>;

/// What a checkpoint keeps of a machine besides its RAM and devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineDetails {
    /// How to make the machine again.
    pub config: MachineConfig,
    /// Which machine it is.
    pub id: MachineId,
    /// Its virtual time at the checkpoint.
    pub time_virtual: VirtualTime,
    /// Whether the guest had powered itself off.
    pub off: bool,
}

/// Where else pages of a guest's memory are written: device backends outside QEMU.
pub trait OtherWriters: Send + Sync {
    /// Pages written since the last call.
    fn take_written(&self) -> PageSet;
}

/// What a machine was asked, since when, and what was noted meanwhile.
enum Asked {
    Stop(Stopping, Stopwatch),
    Save(Saving, Option<HeldPages>, CapturedAside),
    Run(Running, Stopwatch),
}

/// A running machine, ready to be checkpointed.
pub struct MachinePart {
    machine: Arc<Machine>,
    id: MachineId,
    config: MachineConfig,
    writers: Vec<Arc<dyn OtherWriters>>,
    /// The RAM at the last permanent checkpoint.
    base: Root,
    /// Pages that differ from `base` and that the tracker will not name again.
    owed: PageSet,
    ahead: Ahead,
    staging: Staging,
    /// Pages that equal blocks of disks.
    aside: Aside,
    /// Pages that nobody told of.
    untold: Untold,
    /// Those that the checkpoint under way leaves out.
    left_out: LeftOut,
    /// The guest writes faster than pages can be copied ahead.
    outrun: bool,
    /// All pages of the checkpoint under way.
    taken: PageSet,
    /// What the machine did before it was frozen.
    before: Status,
    /// What it was asked in this phase.
    asked: Option<Asked>,
    /// Its device state was asked for ahead of its capture.
    saving: Option<Saving>,
    /// It did not answer in this pause.
    silent: bool,
    /// Where its clock stood when it was captured.
    time: Option<VirtualTime>,
    /// From when to when it stood still in the last pause.
    stood: Option<Range<Duration>>,
    notes: Vec<Note>,
    /// What the last checkpoint learned of the guest's pages.
    memo: Memo,
    /// What it boots from.
    boot: BootFiles,
    /// It goes on, and others are yet to.
    held_back: Option<Meanwhile>,
}

impl MachinePart {
    /// A machine whose RAM is `base` but for the pages that it `owes`.
    pub fn new(
        machine: Arc<Machine>,
        id: MachineId,
        base: Root,
        owed: PageSet,
        boot: BootFiles,
        writers: Vec<Arc<dyn OtherWriters>>,
        known: Option<Arc<dyn KnownPages>>,
    ) -> Result<Self> {
        let config = MachineConfig { machine_type: machine.machine_type()?, ..machine.config().clone() };
        Ok(Self {
            machine,
            id,
            config,
            writers,
            base,
            owed,
            ahead: BTreeMap::new(),
            staging: Staging::default(),
            aside: Aside::new(known),
            untold: Untold::default(),
            left_out: LeftOut::default(),
            outrun: false,
            taken: PageSet::new(),
            before: Status::Paused,
            asked: None,
            saving: None,
            silent: false,
            time: None,
            stood: None,
            notes: Vec::new(),
            memo: Memo::default(),
            boot,
            held_back: None,
        })
    }

    /// What was written since we last asked, by whomever.
    fn written(&mut self) -> Result<PageSet> {
        let mut pages = self.machine.take_written()?;
        // Before anything can fail: the tracker names them once.
        self.aside.written(&pages);
        for writer in &self.writers {
            pages |= writer.take_written();
        }
        self.taken |= &pages;
        Ok(pages)
    }

    fn copy(&mut self, pages: &PageSet) -> Result<()> {
        let ram = self.machine.ram();
        self.staging.copy(ram, pages).map_err(|source| Error::Io { what: "copying pages of", path: ram.path().to_owned(), source })
    }

    /// Sends pages to the store while the guest runs. One that is written meanwhile shows up again and is sent or copied again.
    fn send_ahead(&mut self, pages: &PageSet, storage: &mut Writer) -> Result<()> {
        let mut guess = self.memo.guess(&self.machine);
        let pages: Vec<_> = pages.iter().collect();
        for batch in pages.chunks(BATCH_PAGES) {
            let mut copies = Staging::default();
            let ram = self.machine.ram();
            copies.copy(ram, &batch.iter().copied().collect()).map_err(|source| Error::Io {
                what: "copying pages of",
                path: ram.path().to_owned(),
                source,
            })?;
            for (page, content) in copies.iter() {
                if guess.keeps(page, content) {
                    self.staging.put(page, content);
                    continue;
                }
                self.ahead.insert(page, storage.put_page(content)?);
                // What is staged counts for more than what was sent ahead, so an older copy must not stay there.
                self.staging.forget(page);
            }
        }
        Ok(())
    }

    /// Copies ahead while the guest runs, as long as each round leaves much less to the next.
    fn copy_ahead(&mut self, storage: &mut Writer) -> Result<()> {
        let mut pages = std::mem::take(&mut self.owed);
        let mut before = u64::MAX;
        let staged_max = STAGED_PAGES.max(self.config.memory / PAGE_SIZE as u64 / STAGED_SHARE);
        for round in 0..ROUNDS_MAX {
            pages |= self.written()?;
            pages = self.aside.set_aside(pages);
            let left = pages.len();
            let converges = (left as f64) < before as f64 * WORTH;
            // What the store is too slow for, memory may be fast enough for.
            if left > staged_max && round == 0 {
                self.send_ahead(&pages, storage)?;
            } else {
                self.copy(&pages)?;
            }
            before = left;
            self.outrun = left > LEFT_PAGES && !converges;
            if left <= LEFT_PAGES || self.outrun {
                break;
            }
            pages.clear();
        }
        self.staging.reserve((LEFT_PAGES as usize * 8).max(before as usize * SURPRISE));
        Ok(())
    }

    /// Leaves pages to be copied after the pause.
    fn hold(&mut self, pages: PageSet) -> HeldPages {
        // Copies made ahead are of no use: these pages were written again.
        pages.iter().for_each(|page| self.staging.forget(page));
        self.machine.hold_pages(pages)
    }

    /// Everything that the checkpoint has to take and has not copied yet. In the pause.
    fn left(&mut self) -> Result<PageSet> {
        let owed = std::mem::take(&mut self.owed);
        Ok(self.written()? | owed)
    }

    /// Sets aside, for good, what equals a block. Returns what is left to be copied. In the pause.
    fn set_aside(&mut self, pages: PageSet) -> Result<(PageSet, CapturedAside)> {
        let left = self.aside.set_aside(pages);
        Ok((left, self.aside.capture(self.machine.ram())?))
    }

    /// Stopping it, and asking how it stands.
    fn begin_freeze(&mut self) -> Result<()> {
        if self.before == Status::Running {
            self.machine.hold(true);
            let watch = Stopwatch::start();
            let asked = self.machine.begin_stop().inspect_err(|_| self.silent = true)?;
            self.asked = Some(Asked::Stop(asked, watch));
        }
        Ok(())
    }

    /// We look after the pages while QEMU writes the device state. Saving devices does not write to guest memory, so neither waits for the other.
    fn begin_capture(&mut self) -> Result<()> {
        let machine = self.machine.clone();
        let asked = match self.saving.take() {
            Some(asked) => asked,
            None => machine.begin_device_state().inspect_err(|_| self.silent = true)?,
        };
        match self.note_pages(&machine) {
            Ok((held, aside)) => self.asked = Some(Asked::Save(asked, held, aside)),
            Err(error) => {
                machine.forget_device_state(asked);
                return Err(error);
            }
        }
        Ok(())
    }

    fn note_pages(&mut self, machine: &Machine) -> Result<(Option<HeldPages>, CapturedAside)> {
        // From the list of pages to their being held; somebody may be on the way through since before the machine stopped.
        let _nobody_writes = machine.nobody_writes();
        let pages = self.timed(SCAN, Self::left)?;
        let (pages, aside) = self.timed(MAP, |part| part.set_aside(pages))?;
        let held = match machine.capture().mode {
            CaptureMode::Cow => true,
            CaptureMode::Auto => self.outrun && machine.capture().can_hold(),
            CaptureMode::Precopy | CaptureMode::Stop => false,
        };
        if held {
            return Ok((Some(self.timed("hold", |part| Ok(part.hold(pages)))?), aside));
        }
        self.timed("copy", |part| part.copy(&pages))?;
        Ok((None, aside))
    }

    /// Only what ran goes on. One that was silent is told to go on when it comes to itself; nobody waits for that.
    fn begin_thaw(&mut self) -> Result<()> {
        if let Some(asked) = self.saving.take() {
            self.machine.forget_device_state(asked);
        }
        if self.before != Status::Running {
            self.before = Status::Paused;
            self.machine.hold(false);
            return Ok(());
        }
        let watch = Stopwatch::start();
        let asked = self.machine.begin_run();
        // Not before: if we panic on the way there, we are called once more.
        self.before = Status::Paused;
        if self.silent {
            self.machine.hold(false);
            asked.map(|asked| self.machine.forget_run(asked)).unwrap_or_default();
            return Ok(());
        }
        self.asked = Some(Asked::Run(asked.inspect_err(|_| self.machine.hold(false))?, watch));
        Ok(())
    }

    /// Every page that differs from the last checkpoint is among those taken, as far as somebody looked. In the pause.
    fn none_missed(&mut self) -> Result<()> {
        let missed = self.untold.missed(&self.taken);
        let Some(page) = missed.min() else { return Ok(()) };
        // When the checkpoint has failed, all that it took is owed to the next.
        self.taken |= &missed;
        Err(Error::Missed { machine: self.config.name.clone(), page, count: missed.len() })
    }

    fn note(&mut self, step: &'static str, since: Stopwatch) {
        self.notes.push(Note { step, took: since.elapsed() });
    }

    fn timed<T>(&mut self, step: &'static str, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let watch = Stopwatch::start();
        let result = work(self);
        self.note(step, watch);
        result
    }
}

impl Part<Writer> for MachinePart {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn kind(&self) -> PartKind {
        PartKind::Machine
    }

    fn check_content(&mut self, check: bool) {
        self.aside.check = check;
    }

    fn prepare(&mut self, storage: &mut Writer) -> Result<(), Failure> {
        self.notes.clear();
        self.ahead.clear();
        self.taken.clear();
        self.aside.clear();
        self.untold.clear();
        self.staging = Staging::default();
        if self.machine.capture().full {
            self.owed |= self.machine.populated()?;
        }
        self.taken |= &self.owed;
        self.outrun = false;
        (self.silent, self.time, self.stood) = (false, None, None);
        match self.machine.status_within(PATIENCE) {
            Status::Gone(why) => return Err(format!("it is gone ({why}): `fermata goto ID` brings it back").into()),
            Status::Silent => {
                let time = PATIENCE.as_secs();
                return Err(format!(
                    "its QEMU does not answer for {time} s: it hangs, or the host is too busy. `fermata goto ID` brings it back"
                )
                .into());
            }
            status => self.before = status,
        }
        self.machine.check_awake()?;
        if self.aside.check {
            self.untold.look(&self.machine, &self.base, storage.store(), &self.taken)?;
        }
        if matches!(self.machine.capture().mode, CaptureMode::Auto | CaptureMode::Precopy) {
            self.copy_ahead(storage)?;
        }
        if self.before == Status::Running {
            self.machine.prime()?;
        }
        Ok(())
    }

    fn catch_up(&mut self) -> Result<(), Failure> {
        if matches!(self.machine.capture().mode, CaptureMode::Auto | CaptureMode::Precopy) && !self.outrun {
            let pages = self.written()?;
            let pages = self.aside.set_aside(pages);
            self.copy(&pages)?;
        }
        Ok(())
    }

    fn begin(&mut self, phase: Phase) -> Result<(), Failure> {
        self.asked = None;
        match phase {
            Phase::Freeze => self.begin_freeze()?,
            Phase::Capture => self.begin_capture()?,
            Phase::Thaw => self.begin_thaw()?,
        }
        Ok(())
    }

    fn begin_ahead(&mut self) -> Result<(), Failure> {
        self.saving = Some(self.machine.begin_device_state().inspect_err(|_| self.silent = true)?);
        Ok(())
    }

    fn freeze(&mut self) -> Result<(), Failure> {
        if let Some(Asked::Stop(asked, since)) = self.asked.take() {
            let stands = self.machine.finish_stop(asked, PATIENCE).inspect_err(|_| self.silent = true)?;
            self.note("stop", since);
            // Unless it had stopped by itself a moment before.
            if stands != Status::Paused {
                self.before = stands;
            }
        }
        Ok(())
    }

    fn capture(&mut self) -> Result<Box<dyn Captured<Writer>>, Failure> {
        let Some(Asked::Save(asked, held, aside)) = self.asked.take() else { return Err("its capture was not begun".into()) };
        let watch = Stopwatch::start();
        let saved = self.machine.finish_device_state(asked, PATIENCE);
        self.silent = matches!(saved, Err(Error::Gone { .. }));
        let devices = saved?;
        if self.before == Status::Running && self.machine.has_gone_off() {
            self.before = Status::Off;
        }
        self.none_missed()?;
        // What was left to wait for.
        self.note("devices", watch);
        let time = device_state::virtual_time(&devices, self.config.deterministic);
        // Virtual time of a deterministic machine is what it has computed, and nobody else's; and only the clock of one that ran goes on.
        self.time = time.filter(|_| self.before == Status::Running && !self.config.deterministic);
        Ok(Box::new(CapturedMachine {
            config: self.config.clone(),
            id: self.id,
            off: self.before == Status::Off,
            time,
            base: self.base,
            first: self.base.node.is_none(),
            ahead: std::mem::take(&mut self.ahead),
            staging: std::mem::take(&mut self.staging),
            held,
            aside,
            devices,
            firmware: self.machine.firmware(),
            free: self.machine.capture().free,
            memo: self.memo.clone(),
            left_out: self.left_out.clone(),
            boot: self.boot.clone(),
        }))
    }

    fn time(&self) -> Option<VirtualTime> {
        self.time
    }

    fn thaw(&mut self) -> Result<(), Failure> {
        let Some(Asked::Run(asked, since)) = self.asked.take() else { return Ok(()) };
        let resumed = self.machine.finish_run(asked, PATIENCE);
        self.note("resume", since);
        self.machine.hold(false);
        self.stood = self.machine.stood();
        self.held_back = Some(resumed?);
        Ok(())
    }

    fn all_thawed(&mut self) {
        self.held_back = None;
    }

    fn stood(&self) -> Option<Range<Duration>> {
        self.stood.clone()
    }

    fn settle(&mut self, outcome: Outcome<'_>) {
        match outcome {
            Outcome::Permanent(state) => {
                self.base = state.tables.get(RAM).copied().unwrap_or(self.base);
                self.untold.settle(&self.taken, &self.left_out);
                boot::keep(&mut self.boot, &state.blobs);
            }
            Outcome::Aborted => self.owed |= &self.taken,
        }
        self.taken.clear();
        self.ahead.clear();
        self.staging = Staging::default();
    }

    fn notes(&self) -> Vec<Note> {
        self.notes.clone()
    }
}

struct CapturedMachine {
    config: MachineConfig,
    id: MachineId,
    off: bool,
    time: Option<VirtualTime>,
    base: Root,
    /// It has no parent.
    first: bool,
    ahead: Ahead,
    staging: Staging,
    /// Pages that are yet to be copied.
    held: Option<HeldPages>,
    /// Pages that are named by their blocks.
    aside: CapturedAside,
    devices: Vec<u8>,
    firmware: Arc<[u8]>,
    free: FreePages,
    memo: Memo,
    left_out: LeftOut,
    boot: BootFiles,
}

impl Captured<Writer> for CapturedMachine {
    fn save(mut self: Box<Self>, storage: &mut Writer) -> Result<Saved, Failure> {
        self.aside.spare(&mut self.staging);
        let seen = storage.timed(Class::Free, |storage| self.look(storage));
        for (page, content) in self.staging.iter() {
            self.ahead.insert(page, seen.put(page, content, storage)?);
        }
        self.save_held(&seen, storage)?;
        // Before they are named: a file system may have freed the blocks of what is free in memory, and nobody needs to keep them for that.
        let free = self.aside.take(|page| seen.is_free(page));
        self.ahead.extend(free.into_iter().map(|page| (page, (ZERO_PAGE, Class::Free))));
        let aside = std::mem::take(&mut self.aside);
        storage.timed(Class::Mapped, |storage| aside.save(&self.config.name, storage, &mut self.ahead))?;
        seen.leave_out(&mut self.ahead);
        let left_out = self.ahead.iter().filter(|(_, (_, class))| *class == Class::Free).map(|(page, _)| *page).collect();
        *self.left_out.lock().expect("nobody panics with the lock") = left_out;
        let time_virtual = self.time.ok_or_else(|| self.corrupt("QEMU wrote a device state without a clock"))?;
        let changes: Vec<_> = self.ahead.iter().map(|(page, (name, _))| (*page, (*name != ZERO_PAGE).then_some(*name))).collect();
        let ram = storage.update_table(&self.base, &changes)?;
        let pages = self.counts(&seen);
        let composition = self.memo.remember(seen, ram);
        let devices = storage.put_blob(&self.devices)?;
        let mut blobs = BTreeMap::from([(DEVICES.to_owned(), devices)]);
        if !self.firmware.is_empty() {
            blobs.insert(FIRMWARE.to_owned(), storage.put_blob(&self.firmware)?);
        }
        boot::save(&self.boot, storage, &mut blobs)?;
        let details = MachineDetails { id: self.id, time_virtual, off: self.off, config: self.config };
        let state = PartState {
            name: details.config.name.clone(),
            kind: PartKind::Machine,
            tables: BTreeMap::from([(RAM.to_owned(), ram)]),
            blobs,
            details: serde_json::to_value(&details)?,
        };
        Ok(Saved { state, pages, composition: Some(composition) })
    }
}

impl CapturedMachine {
    /// What the guest's pages are for.
    fn look(&mut self, storage: &Writer) -> Seen {
        let (staging, held, ahead) = (&mut self.staging, self.held.as_ref(), &self.ahead);
        let instant = Instant { staging, held, aside: self.aside.pages(), ahead, base: &self.base, store: storage.store() };
        self.memo.look(&self.config, &self.devices, self.free, instant)
    }

    fn save_held(&mut self, seen: &Seen, storage: &mut Writer) -> Result<()> {
        let Some(held) = self.held.take() else { return Ok(()) };
        let failed = |source| Error::Io { what: "copying pages of", path: self.config.name.clone().into(), source };
        while let Some(batch) = held.next(BATCH_PAGES).map_err(failed)? {
            for (page, content) in batch.iter() {
                self.ahead.insert(page, seen.put(page, content, storage)?);
            }
        }
        Ok(())
    }

    fn counts(&self, seen: &Seen) -> PageCounts {
        let mut counts = PageCounts::default();
        self.ahead.values().for_each(|(_, class)| class.count_into(&mut counts));
        let untouched = self.base.pages - counts.written();
        if !self.first {
            counts.unchanged = untouched;
            return counts;
        }
        // Without a parent there is nothing that they could be unchanged since: nobody has touched them, and those that are not free are zero.
        let free = seen.free_beside(&self.ahead);
        counts.free += free;
        counts.zero += untouched - free;
        counts
    }

    fn corrupt(&self, message: &str) -> Error {
        Error::Corrupt { machine: self.config.name.clone(), message: message.to_owned() }
    }
}

/// Pages in a machine of this much RAM.
pub fn ram_pages(config: &MachineConfig) -> u64 {
    config.memory / PAGE_SIZE as u64
}
