//! All of a machine at one instant, looked at the plain way: the RAM file as a whole, every block of every disk, the device state as QEMU writes it.

use fermata_experiment::{Body, MachineBody};
use fermata_types::{PAGE_SIZE, PageName, PageSet, ZERO_PAGE};
use fermata_vm::free::free_now;
use std::sync::Arc;

/// Bytes read at a time.
const CHUNK: usize = 4 << 20;

/// A machine that stands still, page by page, by the hash of each.
pub struct Snapshot {
    /// All of RAM.
    pub ram: Vec<PageName>,
    /// All of each disk.
    pub disks: Vec<Vec<PageName>>,
    /// The device state.
    pub devices: Vec<u8>,
    /// Pages of RAM that are free in the guest, if its kernel tells.
    pub free: PageSet,
}

impl Snapshot {
    /// Looks at the only machine of a body, which stands still and has all its pages.
    pub fn of(body: &Body) -> Self {
        assert_eq!(body.machines().len(), 1, "which machine is meant?");
        Self::of_machine(&body.machines()[0])
    }

    /// The same of one of several.
    pub fn of_machine(body: &MachineBody) -> Self {
        let ram = body.machine().ram();
        let disk = |disk: &Arc<fermata_disk::Disk>| hashes(disk.size(), |at, into| disk.read_at(at, into).expect("the disk can be read"));
        Self {
            ram: hashes(ram.bytes(), |at, into| ram.read_at(at, into).expect("RAM can be read")),
            disks: body.disks().map(disk).collect(),
            free: free_now(body.machine()).unwrap_or_default(),
            devices: body.machine().device_state().expect("QEMU writes the device state"),
        }
    }

    /// Where two machines differ, in words; empty when they are identical.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        self.differences_but(other, &PageSet::new(), &[])
    }

    /// The same, but for what a checkpoint of this machine may leave out: pages that are free in it may be zero in the other, and of the blocks of each disk those
    /// may differ that its file system had freed, as [`left_out`] tells of the checkpoint.
    pub fn differences_beside(&self, other: &Self, left_out: &[Arc<PageSet>]) -> Vec<String> {
        self.differences_but(other, &self.free, left_out)
    }

    fn differences_but(&self, other: &Self, free: &PageSet, left_out: &[Arc<PageSet>]) -> Vec<String> {
        let mut ram = self.ram.clone();
        for page in free {
            if other.ram.get(page as usize) == Some(&ZERO_PAGE) {
                ram[page as usize] = ZERO_PAGE;
            }
        }
        let pages = [("RAM".to_owned(), &ram, &other.ram, None)];
        let disks = self.disks.iter().zip(&other.disks).enumerate();
        let disks = disks.map(|(index, (a, b))| (format!("disk {index}"), a, b, left_out.get(index)));
        let mut found = Vec::new();
        for (what, a, b, may) in pages.into_iter().chain(disks) {
            let may = |page: &usize| may.is_some_and(|may| may.contains(*page as u32));
            let differing: Vec<_> = differing(a, b).into_iter().filter(|page| !may(page)).collect();
            if !differing.is_empty() {
                let first = &differing[..differing.len().min(8)];
                found.push(format!("{what}: {} pages differ, the first are {first:?}", differing.len()));
            }
        }
        if self.devices != other.devices {
            let at = self.devices.iter().zip(&other.devices).position(|(a, b)| a != b);
            found.push(format!("devices: {} bytes against {}, the first that differs is {at:?}", self.devices.len(), other.devices.len()));
        }
        found
    }
}

/// Blocks of each disk that are not in the last checkpoint, since their file system has freed them. To be asked before the next one is taken.
pub fn left_out(body: &Body) -> Vec<Arc<PageSet>> {
    body.disks().map(|disk| disk.left_out()).collect()
}

/// The pages in which two memories differ; all those that only one has, too.
pub fn differing(a: &[PageName], b: &[PageName]) -> Vec<usize> {
    (0..a.len().max(b.len())).filter(|page| a.get(*page) != b.get(*page)).collect()
}

fn hashes(bytes: u64, mut read: impl FnMut(u64, &mut [u8])) -> Vec<PageName> {
    let mut chunk = vec![0; CHUNK];
    // Most pages of a large machine: hashing them all would take most of the time.
    let (zeros, of_zeros) = ([0; PAGE_SIZE], PageName(*blake3::hash(&[0; PAGE_SIZE]).as_bytes()));
    let name = |page: &[u8]| if page == zeros { of_zeros } else { PageName(*blake3::hash(page).as_bytes()) };
    let mut hashes = Vec::new();
    for at in (0..bytes).step_by(CHUNK) {
        let part = &mut chunk[..(bytes - at).min(CHUNK as u64) as usize];
        read(at, part);
        hashes.extend(part.chunks(PAGE_SIZE).map(name));
    }
    hashes
}
