//! One QEMU process with the servers of its disks: what a run lives in, until a `goto` gives it another.

use crate::{
    Error, Host, Result,
    blocks::Blocks,
    plan::{Plan, details},
};
use fermata_disk::{DirtyPages, Disk, DiskOptions, DiskPart, Golden, MemoryWatch, PageMap, Region, Server, ServerOptions};
use fermata_linux::clock;
use fermata_store::{Hold, Progress, Record, Store};
use fermata_types::{ImageId, MachineId, PageNumber, PageSet, Root};
use fermata_vm::{DEVICES, FIRMWARE, FreePages, KnownPages, Machine, MachineDetails, MachinePart, OtherWriters, RAM, Restore, ram_pages};
use std::{
    io,
    ops::Range,
    sync::{Arc, OnceLock, Weak, atomic::Ordering},
};

use crate::coordinate::Parts;

/// The page table of a disk in its part's state.
const BLOCKS: &str = "blocks";

/// A machine with its disks. Dropping it ends QEMU.
pub struct Body {
    // The machine goes first: its disks' servers see QEMU leave.
    machine: Arc<Machine>,
    disks: Vec<ServedDisk>,
    /// Pages of guest memory that the disks' servers write.
    dirty: Arc<DirtyPages>,
    /// Which of them equal blocks; none if writes to single pages cannot be watched.
    known: Option<Arc<Blocks>>,
    images: Vec<Arc<Golden>>,
    plan: Plan,
    /// The checkpoint that it was restored from: its pages and blocks are read when they are touched, for as long as this lives.
    held: OnceLock<Hold>,
}

/// What a body was built after, to build another one like it.
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint(pub(crate) Plan);

struct ServedDisk {
    name: String,
    disk: Arc<Disk>,
    server: Server,
}

/// What a body gets back into it.
pub(crate) struct Return<'a> {
    pub store: &'a Store,
    pub id: &'a str,
    pub record: &'a Record,
    pub eager: bool,
    pub fresh_randomness: bool,
    pub working_set: Vec<PageNumber>,
    pub remember: Box<dyn FnOnce(Vec<PageNumber>) + Send>,
}

impl Body {
    /// A machine that is about to boot, and its parts.
    pub(crate) fn boot(host: &Host, plan: &Plan, progress: &mut dyn FnMut(&str, Progress)) -> Result<(Self, Parts)> {
        let (body, loaded) = Self::build(host, plan, progress, |config, place| Machine::boot(config, place, host.capture()))?;
        let parts = body.parts(body.machine.id(), Root::empty(ram_pages(&plan.machine)), loaded)?;
        Ok((body, parts))
    }

    /// A machine that waits for a state.
    pub(crate) fn spare(host: &Host, plan: &Plan, progress: &mut dyn FnMut(&str, Progress)) -> Result<Self> {
        let (body, _) =
            Self::build(host, plan, progress, |config, place| Ok((Machine::spare(config, place, host.capture())?, PageSet::new())))?;
        Ok(body)
    }

    fn build(
        host: &Host,
        plan: &Plan,
        progress: &mut dyn FnMut(&str, Progress),
        start: impl FnOnce(fermata_vm::MachineConfig, fermata_vm::Place) -> fermata_vm::Result<(Machine, PageSet)>,
    ) -> Result<(Self, PageSet)> {
        host.check_room(plan)?;
        let place = host.place(&plan.machine.name);
        std::fs::create_dir_all(&place.directory).map_err(|source| Error::Io { what: "making", path: place.directory.clone(), source })?;
        let memory = Arc::new(GuestMemory::default());
        let dirty = Arc::new(DirtyPages::new());
        let mut disks = Vec::new();
        let mut images = Vec::new();
        for (index, disk) in plan.disks.iter().enumerate() {
            let golden = host.image(disk, progress)?;
            images.extend(golden.clone());
            let options = DiskOptions {
                golden,
                size: disk.bytes,
                root: None,
                pages: Arc::new(host.store().clone()),
                overlay_dir: host.store().live_dir(),
                read_only: disk.read_only,
                drop_freed: host.capture().free == FreePages::Auto,
            };
            let served = Arc::new(Disk::new(options)?);
            let watch: Arc<dyn MemoryWatch> = memory.clone();
            let options = ServerOptions { disk: served.clone(), serial: format!("disk{index}"), dirty: dirty.clone(), watch: Some(watch) };
            let server = Server::start(&place.disk_socket(index as u32), options)?;
            disks.push(ServedDisk { name: disk.name.clone(), disk: served, server });
        }
        let (machine, loaded) = start(plan.machine.clone(), place)?;
        let machine = Arc::new(machine);
        let _ = memory.0.set(Arc::downgrade(&machine));
        let known = (host.page_map() && machine.watches_single_pages()).then(|| map_pages(&disks));
        if !machine.watches_single_pages() && !disks.is_empty() {
            let (machine, tracker) = (&plan.machine.name, machine.capture().tracker);
            tracing::info!(
                "{machine}: no page is taken for equal to a block of a disk, since the tracker {tracker} cannot watch single pages"
            );
        }
        Ok((Self { machine, disks, dirty, known, images, plan: plan.clone(), held: OnceLock::new() }, loaded))
    }

    /// Keeps the checkpoint that it is about to be restored from in the store.
    pub(crate) fn keep(&self, hold: Hold) {
        self.held.set(hold).expect("a body is restored once");
    }

    /// What it was built after.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How to build another one that can take up its checkpoints.
    pub fn blueprint(&self) -> Result<Blueprint> {
        let machine = fermata_vm::MachineConfig { machine_type: self.machine.machine_type()?, ..self.plan.machine.clone() };
        Ok(Blueprint(Plan { machine, disks: self.plan.disks.clone() }))
    }

    /// The machine.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// The disks, in the order of the specification.
    pub fn disks(&self) -> impl Iterator<Item = &Arc<Disk>> {
        self.disks.iter().map(|disk| &disk.disk)
    }

    /// Disks whose writes wait, since the store's file system is full.
    pub fn starved(&self) -> Vec<String> {
        let starved = self.disks.iter().filter(|disk| disk.server.counters().starved.load(Ordering::Relaxed));
        starved.map(|disk| disk.name.clone()).collect()
    }

    /// Golden images that the disks stand on.
    pub(crate) fn images(&self) -> Vec<ImageId> {
        self.images.iter().map(|image| image.id()).collect()
    }

    /// Puts a checkpoint into a spare body. The machine is left paused. Returns the parts, and who the machine is now.
    pub(crate) fn restore(&self, state: Return<'_>) -> Result<(Parts, MachineDetails)> {
        let bad = |what: &str| Error::BadRecord { id: state.id.to_owned(), what: what.to_owned() };
        let mut details = details(state.record, state.id)?;
        self.check_images(&state)?;
        for disk in &self.disks {
            let part =
                state.record.parts.iter().find(|part| part.name == disk.name).ok_or_else(|| bad(&format!("{} is not in it", disk.name)))?;
            disk.disk.reset(*part.tables.get(BLOCKS).ok_or_else(|| bad(&format!("{} has no blocks", disk.name)))?)?;
        }
        self.dirty.take();
        let machine =
            state.record.parts.iter().find(|part| part.name == details.config.name).ok_or_else(|| bad("its machine is not in it"))?;
        let ram = *machine.tables.get(RAM).ok_or_else(|| bad("its machine has no RAM"))?;
        let devices = state.store.read_blob(machine.blobs.get(DEVICES).ok_or_else(|| bad("its machine has no devices"))?)?;
        // Not in checkpoints of before it was kept.
        if let Some(firmware) = machine.blobs.get(FIRMWARE) {
            self.machine.set_firmware(state.store.read_blob(firmware)?);
        }
        let restore = Restore {
            store: state.store,
            ram,
            devices: &devices,
            eager: state.eager,
            off: details.off,
            fresh_randomness: state.fresh_randomness,
            working_set: state.working_set,
            remember: state.remember,
        };
        let owed = self.machine.restore(restore)?;
        if state.fresh_randomness {
            details.id = self.machine.id();
        }
        Ok((self.parts(details.id, ram, owed)?, details))
    }

    /// Disk blocks that a checkpoint took from a golden image would come from this one.
    fn check_images(&self, state: &Return<'_>) -> Result<()> {
        // This body may have waited for long, and the images were looked at when it was made.
        for image in &self.images {
            image.check_unchanged()?;
        }
        if self.images() == state.record.images {
            return Ok(());
        }
        let names: Vec<_> = self.plan.disks.iter().filter_map(|disk| disk.image.as_ref()).map(|path| path.display().to_string()).collect();
        Err(Error::Refused(format!(
            "checkpoint {} stands on other golden images than {} are now: put the images back as they were when the experiment began",
            state.id,
            names.join(", ")
        )))
    }

    fn parts(&self, id: MachineId, ram: Root, owed: PageSet) -> Result<Parts> {
        let writers: Vec<Arc<dyn OtherWriters>> = vec![Arc::new(Backends(self.dirty.clone()))];
        let known = self.known.clone().map(|known| known as Arc<dyn KnownPages>);
        let mut parts: Parts = vec![Box::new(MachinePart::new(self.machine.clone(), id, ram, owed, writers, known)?)];
        let disk_part = |disk: &ServedDisk| DiskPart::new(disk.name.clone(), disk.disk.clone(), disk.server.running(), clock::monotonic);
        parts.extend(self.disks.iter().map(|disk| Box::new(disk_part(disk)) as Box<_>));
        Ok(parts)
    }
}

/// Has the disks' servers note which pages of guest memory equal blocks.
fn map_pages(disks: &[ServedDisk]) -> Arc<Blocks> {
    let map = Arc::new(PageMap::new());
    disks.iter().zip(0..).for_each(|(disk, number)| disk.server.set_page_map(&map, number));
    Arc::new(Blocks { map, disks: disks.iter().map(|disk| (disk.name.clone(), disk.disk.clone())).collect() })
}

/// What the disks' servers write into guest memory, for the machine's checkpoint.
struct Backends(Arc<DirtyPages>);

impl OtherWriters for Backends {
    fn take_written(&self) -> PageSet {
        self.0.take()
    }
}

/// Lets a disk's server touch guest memory that is not yet restored, or that a checkpoint has yet to copy.
#[derive(Default)]
struct GuestMemory(OnceLock<Weak<Machine>>);

impl MemoryWatch for GuestMemory {
    fn mapped(&self, _: &[Region]) {}

    fn before_access(&self, first: PageNumber, pages: u32) -> io::Result<()> {
        match self.0.get().and_then(Weak::upgrade) {
            Some(machine) => machine.before_access(first, pages),
            None => Ok(()),
        }
    }

    fn watch_writes(&self, pages: &[Range<PageNumber>], written: &mut dyn FnMut(Range<PageNumber>)) -> io::Result<()> {
        let machine = self.0.get().and_then(Weak::upgrade).ok_or(io::ErrorKind::Unsupported)?;
        machine.watch_writes(pages, written).map_err(io::Error::other)
    }
}
