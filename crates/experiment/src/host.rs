//! What an experiment uses of this host: the store, its run directory, golden images.

use crate::{
    Error, Result,
    boot::Known,
    images,
    plan::{DiskPlan, Plan},
};
use fermata_disk::{Format, Golden};
use fermata_linux::memory_file;
use fermata_store::{Progress, Store};
use fermata_types::{CheckpointId, ImageId, PageNumber, PageSet};
use fermata_vm::{CaptureOptions, Place, WORKING_SET_MAX};
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// This part of what is free on the tmpfs is left to others.
const SPARE_ROOM_DIVISOR: u64 = 16;
/// Longest path of a Unix socket (unix(7)), and what is needed below the run directory: a machine's name and number, and `console.sock`.
const SOCKET_PATH_MAX: usize = 107;
const SOCKET_NAME_MAX: usize = 48;
const MIB: u64 = 1 << 20;
/// Begins the name of the hint of a checkpoint that holds page numbers of a machine, 4 bytes each, little-endian; the machine's name ends it.
const WORKING_SET: &str = "working-set.";
/// So many machines are named when there is no room for them; more are counted.
const NAMED_MAX: usize = 4;

/// The place of one experiment on this host.
pub struct Host {
    store: Store,
    run_dir: PathBuf,
    images: Mutex<Vec<Arc<Golden>>>,
    /// What is in the files that guests boot from.
    pub(crate) boot_files: Known,
    bodies: AtomicU64,
    capture: CaptureOptions,
    page_map: bool,
    /// Pages of each machine that were touched first after the last restore: a good guess for a checkpoint that was never restored.
    working_sets: Mutex<BTreeMap<String, Vec<PageNumber>>>,
}

impl Host {
    /// Settles in a run directory, which is made with mode 0700 if need be. It must be on tmpfs.
    pub fn new(store: Store, run_dir: PathBuf) -> Result<Self> {
        let failed = |what| {
            let path = run_dir.clone();
            move |source| Error::Io { what, path, source }
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&run_dir).map_err(failed("making the run directory"))?;
        let longest = run_dir.as_os_str().len() + SOCKET_NAME_MAX;
        if longest > SOCKET_PATH_MAX {
            return Err(Error::Refused(format!(
                "the run directory {} is too deep: sockets in it would have paths of {longest} bytes, and Linux takes {SOCKET_PATH_MAX}. Set FERMATA_RUN_DIR to a shorter one",
                run_dir.display()
            )));
        }
        let (_, tmpfs) = memory_file::room(&run_dir).map_err(failed("examining the run directory"))?;
        if !tmpfs {
            return Err(Error::NotTmpfs { directory: run_dir });
        }
        let host = Self {
            store,
            run_dir,
            images: Mutex::default(),
            boot_files: Known::default(),
            bodies: AtomicU64::new(0),
            capture: CaptureOptions::default(),
            page_map: true,
            working_sets: Mutex::default(),
        };
        // What a keeper that was killed left behind.
        let _ = fs::remove_dir_all(host.logs());
        Ok(host)
    }

    /// Watches and captures the memory of its machines in this way.
    pub fn capturing(self, capture: CaptureOptions) -> Self {
        Self { capture, ..self }
    }

    /// Keeps no book of pages that equal blocks of disks: for measurements of what that saves and costs.
    pub fn without_page_map(self) -> Self {
        Self { page_map: false, ..self }
    }

    /// Whether it keeps book of pages that equal blocks of disks.
    pub(crate) fn page_map(&self) -> bool {
        self.page_map
    }

    /// How the memory of its machines is watched and captured.
    pub(crate) fn capture(&self) -> CaptureOptions {
        self.capture
    }

    /// Pages of a machine that were touched first when this checkpoint was restored before, or else when another one was.
    pub(crate) fn working_set(&self, id: &CheckpointId, machine: &str) -> Vec<PageNumber> {
        match remembered_working_set(&self.store, id, machine) {
            Some(pages) => pages,
            None => self.working_sets.lock().expect("nobody panics with the lock").get(machine).cloned().unwrap_or_default(),
        }
    }

    /// Remembers which pages of a machine were touched first: what was known, and what came to it.
    pub(crate) fn remember_working_set(&self, id: &CheckpointId, machine: &str, known: Vec<PageNumber>, touched: Vec<PageNumber>) {
        let mut seen = PageSet::new();
        let pages: Vec<_> = known.into_iter().chain(touched).filter(|page| seen.insert(*page)).take(WORKING_SET_MAX).collect();
        let bytes: Vec<u8> = pages.iter().flat_map(|page| page.to_le_bytes()).collect();
        if let Err(error) = self.store.set_hint(id, &hint(machine), &bytes) {
            tracing::info!("the working set of {machine} at {} is not kept: {error}", id.short());
        }
        self.working_sets.lock().expect("nobody panics with the lock").insert(machine.to_owned(), pages);
    }

    /// Takes these pages of a machine for those that will be touched first, when nobody remembers better.
    pub fn expect_working_set(&self, machine: &str, pages: Vec<PageNumber>) {
        self.working_sets.lock().expect("nobody panics with the lock").insert(machine.to_owned(), pages);
    }

    /// Where what the guests print goes: to a disk, since it must not take the room of their memory.
    fn logs(&self) -> PathBuf {
        self.store.live_dir().join("logs").join(self.run_dir.file_name().unwrap_or_default())
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The run directory.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// A fresh directory for one QEMU process.
    pub(crate) fn place(&self, machine: &str) -> Place {
        let number = self.bodies.fetch_add(1, Ordering::Relaxed);
        let name = format!("{machine}.{number}");
        Place { directory: self.run_dir.join(&name), logs: self.logs().join(name), boot: BTreeMap::new() }
    }

    /// The golden image of a disk, opened once and known to the store. Fails if it changed since. Where it is known what is in it, it is found wherever it lies, be it on
    /// the remote that its checkpoint comes from.
    pub(crate) fn image(&self, disk: &DiskPlan, progress: &mut dyn FnMut(&str, Progress)) -> Result<Option<Arc<Golden>>> {
        let Some(path) = &disk.image else { return Ok(None) };
        let mut images = self.images.lock().expect("nobody panics with the lock");
        let is_wanted = |image: &Arc<Golden>| disk.golden.is_none_or(|id| image.id() == id);
        let at_path = fs::canonicalize(path).ok().and_then(|path| images.iter().find(|image| image.path() == path));
        let elsewhere = || images.iter().find(|image| disk.golden == Some(image.id()));
        if let Some(image) = at_path.filter(|image| is_wanted(image)).or_else(elsewhere).cloned() {
            image.check_unchanged()?;
            return Ok(Some(image));
        }
        let image = match &disk.golden {
            None => open_image(&self.store, path, disk.format, None, progress)?,
            Some(id) => match images::find(&self.store, id, (path, disk.format), progress) {
                Ok(image) => image,
                Err(error) => images::coming(&self.store, id)?.ok_or_else(|| other_image(path, error))?,
            },
        };
        images.push(image.clone());
        Ok(Some(image))
    }

    /// A golden image that was read from a remote lies here now: from now on it is read here.
    pub fn image_came(&self, id: &ImageId, path: &Path) -> Result<()> {
        let coming = self.images.lock().expect("nobody panics with the lock").iter().find(|image| image.id() == *id).cloned();
        if let Some(coming) = coming {
            coming.came(open_image(&self.store, path, Some(Format::Raw), Some(id), &mut |_, _| {})?);
        }
        Ok(())
    }

    /// Fails unless the tmpfs can hold all of these machines, counting what was promised to the ones that run.
    pub(crate) fn check_room(&self, plan: &Plan) -> Result<()> {
        let failed = |source| Error::Io { what: "examining the run directory", path: self.run_dir.clone(), source };
        let (free, _) = memory_file::room(&self.run_dir).map_err(failed)?;
        let promised = promised(self.run_dir.parent().unwrap_or(&self.run_dir));
        let free = (free - free / SPARE_ROOM_DIVISOR).saturating_sub(promised);
        let needed = plan.machines.iter().fold(0u64, |sum, plan| sum.saturating_add(plan.machine.memory));
        if free < needed {
            let names: Vec<_> = plan.machines.iter().map(|plan| plan.machine.name.as_str()).collect();
            let machines = if names.len() > NAMED_MAX { format!("{} machines", names.len()) } else { names.join(", ") };
            return Err(Error::NoRoom { machines, needed: needed / MIB, free: free / MIB, directory: self.run_dir.clone() });
        }
        Ok(())
    }
}

/// Opens a golden image and makes it known to the store; only if it is the one that is expected, if one is.
pub(crate) fn open_image(
    store: &Store,
    path: &Path,
    format: Option<Format>,
    expected: Option<&ImageId>,
    progress: &mut dyn FnMut(&str, Progress),
) -> Result<Arc<Golden>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let cache = store.images_dir();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&cache).map_err(|source| Error::Io {
        what: "making",
        path: cache.clone(),
        source,
    })?;
    let reading = format!("reading {name}");
    let image = Arc::new(Golden::open(path, format, &cache, &mut |done| progress(&reading, done))?);
    if let Some(id) = expected {
        image.expect(id)?;
    }
    // One of the store's own may be collected.
    if fs::canonicalize(&cache).is_ok_and(|own| image.path().starts_with(own)) {
        image.hold()?;
    }
    let hashing = format!("learning the blocks of {name}");
    store.add_image(image.id(), image.clone(), &mut |done| progress(&hashing, done))?;
    Ok(image)
}

/// What there is to do where the image at a path is not the one that a checkpoint stands on.
fn other_image(path: &Path, error: Error) -> Error {
    match error {
        Error::Disk(fermata_disk::Error::Changed { what, .. }) => Error::Refused(format!(
            "the checkpoint stands on other golden images than {} is now ({what}): put the images back as they were when the experiment began, or `fermata pull` from \
             a remote that they were pushed to",
            path.display()
        )),
        error => error,
    }
}

/// Pages of a machine that were touched first when this checkpoint was restored before, if that is remembered.
pub fn remembered_working_set(store: &Store, id: &CheckpointId, machine: &str) -> Option<Vec<PageNumber>> {
    let bytes = store.hint(id, &hint(machine)).ok()??;
    let page = |bytes: &[u8]| PageNumber::from_le_bytes(bytes.try_into().expect("four bytes"));
    Some(bytes.chunks_exact(size_of::<PageNumber>()).map(page).collect())
}

fn hint(machine: &str) -> String {
    format!("{WORKING_SET}{machine}")
}

/// Bytes that the RAM files of all experiments may still grow by: they are made of holes, and guests fill them later.
fn promised(root: &Path) -> u64 {
    let directories = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    directories(root)
        .flat_map(|experiment| directories(&experiment).collect::<Vec<_>>())
        .filter_map(|machine| fs::metadata(machine.join("ram")).ok())
        .map(|ram| ram.size().saturating_sub(ram.blocks() * 512))
        .sum()
}
