//! One QEMU process with the servers of its disks.

use crate::{
    Error, Host, Result,
    blocks::Blocks,
    coordinate::Parts,
    plan::{MachinePlan, details, part},
    spec::Clock,
};
use fermata_disk::{Disk, DiskOptions, DiskPart, Golden, PageMap, Server, ServerOptions};
use fermata_linux::clock;
use fermata_store::{Record, Writer};
use fermata_types::{CheckpointId, ImageId, MachineId, PageNumber, PageSet, Perturbation, Root};
use fermata_vhost::{DirtyPages, MemoryWatch, Region};
use fermata_vm::{
    BootFile, BootFiles, DEVICES, FIRMWARE, FreePages, KnownPages, Machine, MachineConfig, MachineDetails, MachinePart, OtherWriters,
    Place, RAM, Restore, ram_pages,
};
use std::{
    io,
    ops::Range,
    sync::{Arc, OnceLock, Weak, atomic::Ordering},
};

/// The page table of a disk in its part's state.
const BLOCKS: &str = "blocks";

/// A machine with its disks. Dropping it ends QEMU.
pub struct MachineBody {
    // The machine goes first: its disks' servers see QEMU leave.
    machine: Arc<Machine>,
    disks: Vec<ServedDisk>,
    /// Pages of guest memory that the servers of disks and network interfaces write.
    dirty: Arc<DirtyPages>,
    /// Which of them equal blocks; none if writes to single pages cannot be watched.
    known: Option<Arc<Blocks>>,
    images: Vec<Arc<Golden>>,
    plan: MachinePlan,
}

/// What the servers of one machine share. It is made before them, and they before QEMU, which connects to them.
pub(crate) struct Stage {
    pub place: Place,
    /// Asked before they touch guest memory.
    pub memory: Arc<GuestMemory>,
    /// Pages of it that they write.
    pub dirty: Arc<DirtyPages>,
}

impl Stage {
    pub fn new(host: &Host, plan: &MachinePlan, beginning: Beginning) -> Result<Self> {
        let mut place = host.place(&plan.machine.name);
        std::fs::create_dir_all(&place.directory).map_err(|source| Error::Io { what: "making", path: place.directory.clone(), source })?;
        if beginning == Beginning::Spare {
            host.boot_files.put_in_place(&plan.machine, &plan.boot, host.store(), &mut place)?;
        }
        Ok(Self { place, memory: Arc::default(), dirty: Arc::default() })
    }
}

struct ServedDisk {
    name: String,
    disk: Arc<Disk>,
    server: Server,
}

/// How a machine begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// About to boot.
    Boot,
    /// Waiting for a state.
    Spare,
}

impl Beginning {
    fn machine(self, config: MachineConfig, place: Place, host: &Host, wall_ns: u64) -> fermata_vm::Result<(Machine, PageSet)> {
        match self {
            Self::Boot => Machine::boot(config, place, host.capture(), wall_ns),
            Self::Spare => Ok((Machine::spare(config, place, host.capture())?, PageSet::new())),
        }
    }
}

/// What a body gets back into it.
pub(crate) struct Return<'a> {
    pub host: &'a Arc<Host>,
    pub id: &'a CheckpointId,
    pub record: &'a Record,
    pub eager: bool,
    pub fresh_randomness: bool,
    /// What the links are to do otherwise.
    pub perturbation: Option<Perturbation>,
}

impl MachineBody {
    /// Starts a machine with its disks, above these golden images; one that boots takes this for the time of the host. Returns the pages that hold something before the
    /// guest's first instruction, too.
    pub(crate) fn start(
        host: &Host,
        (plan, stage): &(&MachinePlan, Stage),
        images: &[Option<Arc<Golden>>],
        beginning: Beginning,
        wall_ns: u64,
    ) -> Result<(Self, PageSet)> {
        let Stage { place, memory, dirty } = stage;
        let mut disks = Vec::new();
        for (index, (disk, golden)) in plan.disks.iter().zip(images).enumerate() {
            let options = DiskOptions {
                golden: golden.clone(),
                size: disk.bytes,
                root: None,
                pages: Arc::new(host.store().clone()),
                overlay_dir: host.store().live_dir(),
                read_only: disk.read_only,
                drop_freed: host.capture().free != FreePages::Keep,
            };
            let served = Arc::new(Disk::new(options)?);
            let watch: Arc<dyn MemoryWatch> = memory.clone();
            let options = ServerOptions { disk: served.clone(), serial: format!("disk{index}"), dirty: dirty.clone(), watch: Some(watch) };
            let server = Server::start(&place.disk_socket(index as u32), options)?;
            disks.push(ServedDisk { name: disk.name.clone(), disk: served, server });
        }
        let (machine, loaded) = beginning.machine(plan.machine.clone(), place.clone(), host, wall_ns)?;
        let machine = Arc::new(machine);
        // QEMU has read them.
        place.boot.values().for_each(|path| _ = std::fs::remove_file(path));
        let _ = memory.0.set(Arc::downgrade(&machine));
        let known = (host.page_map() && machine.watches_single_pages()).then(|| map_pages(&disks));
        if !machine.watches_single_pages() && !disks.is_empty() {
            let (machine, tracker) = (&plan.machine.name, machine.capture().tracker);
            tracing::info!(
                "{machine}: no page is taken for equal to a block of a disk, since the tracker {tracker} cannot watch single pages"
            );
        }
        let images = images.iter().flatten().cloned().collect();
        Ok((Self { machine, disks, dirty: dirty.clone(), known, images, plan: (*plan).clone() }, loaded))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.plan.machine.name
    }

    /// What its clock is to show.
    pub(crate) fn clock(&self) -> Clock {
        self.plan.outside.clock
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

    /// Who is to know which pages are written otherwise than whole from a block of a disk.
    pub(crate) fn page_map(&self) -> Option<Arc<PageMap>> {
        self.known.as_ref().map(|known| known.map.clone())
    }

    /// How to build another one that can take up its checkpoints.
    pub(crate) fn blueprint(&self) -> Result<MachinePlan> {
        let machine = MachineConfig { machine_type: self.machine.machine_type()?, ..self.plan.machine.clone() };
        Ok(MachinePlan { machine, ..self.plan.clone() })
    }

    /// Golden images that the disks stand on.
    pub(crate) fn images(&self) -> impl Iterator<Item = ImageId> {
        self.images.iter().map(|image| image.id())
    }

    /// This body may have waited for long, and the images were looked at when it was made.
    pub(crate) fn check_images(&self) -> Result<()> {
        Ok(self.images.iter().try_for_each(|image| image.check_unchanged())?)
    }

    /// Puts its part of a checkpoint into a spare machine, which is left paused. Returns the parts, and who the machine is now.
    pub(crate) fn restore(&self, state: &Return<'_>) -> Result<(Parts<Writer>, MachineDetails)> {
        let (id, store) = (state.id.short(), state.host.store());
        let bad = |what: &str| Error::BadRecord { id: id.clone(), what: what.to_owned() };
        let mut details = details(state.record, &id, self.name())?;
        for disk in &self.disks {
            let part = part(state.record, &id, &disk.name)?;
            disk.disk.reset(*part.tables.get(BLOCKS).ok_or_else(|| bad(&format!("{} has no blocks", disk.name)))?)?;
        }
        self.dirty.take();
        let machine = part(state.record, &id, self.name())?;
        let boot = self.plan.boot.iter().map(|(name, blob)| (*name, BootFile::Kept(*blob))).collect();
        let ram = *machine.tables.get(RAM).ok_or_else(|| bad(&format!("its machine {} has no RAM", self.name())))?;
        let devices = machine.blobs.get(DEVICES).ok_or_else(|| bad(&format!("its machine {} has no devices", self.name())))?;
        let devices = store.read_blob(devices)?;
        // Not in checkpoints of before it was kept.
        if let Some(firmware) = machine.blobs.get(FIRMWARE) {
            self.machine.set_firmware(store.read_blob(firmware)?);
        }
        let working_set = state.host.working_set(state.id, self.name());
        let remember = {
            let (host, id, name, known) = (state.host.clone(), *state.id, self.name().to_owned(), working_set.clone());
            move |touched| host.remember_working_set(&id, &name, known, touched)
        };
        let restore = Restore {
            store,
            ram,
            devices: &devices,
            eager: state.eager,
            off: details.off,
            fresh_randomness: state.fresh_randomness,
            working_set,
            remember: Box::new(remember),
        };
        let owed = self.machine.restore(restore)?;
        if state.fresh_randomness {
            details.id = self.machine.id();
        }
        Ok((self.parts(details.id, ram, owed, boot)?, details))
    }

    /// The parts of a machine that is about to boot, with what was loaded into it.
    pub(crate) fn fresh_parts(&self, host: &Host, loaded: PageSet) -> Result<Parts<Writer>> {
        let boot = host.boot_files.read(&self.plan.machine, &self.plan.boot)?;
        self.parts(self.machine.id(), Root::empty(ram_pages(&self.plan.machine)), loaded, boot)
    }

    fn parts(&self, id: MachineId, ram: Root, owed: PageSet, boot: BootFiles) -> Result<Parts<Writer>> {
        let writers: Vec<Arc<dyn OtherWriters>> = vec![Arc::new(Backends(self.dirty.clone()))];
        let known = self.known.clone().map(|known| known as Arc<dyn KnownPages>);
        let mut parts: Parts<Writer> = vec![Box::new(MachinePart::new(self.machine.clone(), id, ram, owed, boot, writers, known)?)];
        let disk_part = |disk: &ServedDisk| DiskPart::new(disk.name.clone(), disk.disk.clone(), disk.server.running(), clock::monotonic);
        parts.extend(self.disks.iter().map(|disk| Box::new(disk_part(disk)) as Box<_>));
        Ok(parts)
    }
}

/// Has the disks' servers note which pages of guest memory equal blocks.
fn map_pages(disks: &[ServedDisk]) -> Arc<Blocks> {
    let map = Arc::new(PageMap::new());
    disks.iter().zip(0..).for_each(|(disk, number)| disk.server.set_page_map(&map, number));
    Arc::new(Blocks::new(map, disks.iter().map(|disk| (disk.name.clone(), disk.disk.clone())).collect()))
}

/// What the servers write into guest memory, for the machine's checkpoint.
struct Backends(Arc<DirtyPages>);

impl OtherWriters for Backends {
    fn take_written(&self) -> PageSet {
        self.0.take()
    }
}

/// Lets a server touch guest memory that is not yet restored, or that a checkpoint has yet to copy.
#[derive(Default)]
pub(crate) struct GuestMemory(OnceLock<Weak<Machine>>);

impl MemoryWatch for GuestMemory {
    fn mapped(&self, _: &[Region]) {}

    fn before_access(&self, first: PageNumber, pages: u32) -> io::Result<()> {
        match self.0.get().and_then(Weak::upgrade) {
            Some(machine) => machine.before_access(first, pages),
            None => Ok(()),
        }
    }

    fn is_there(&self, first: PageNumber, pages: u32) -> bool {
        self.0.get().and_then(Weak::upgrade).is_none_or(|machine| machine.is_there(first, pages))
    }

    fn watch_writes(&self, pages: &[Range<PageNumber>], written: &mut dyn FnMut(Range<PageNumber>)) -> io::Result<()> {
        let machine = self.0.get().and_then(Weak::upgrade).ok_or(io::ErrorKind::Unsupported)?;
        machine.watch_writes(pages, written).map_err(io::Error::other)
    }
}
