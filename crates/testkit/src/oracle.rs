//! All of a machine at one instant, copied the plain way: the RAM file as a whole, every block of every disk, the device state as QEMU writes it.

use fermata_experiment::Body;
use fermata_types::PAGE_SIZE;

/// A machine that stands still, copied.
pub struct Snapshot {
    /// All of RAM.
    pub ram: Vec<u8>,
    /// All of each disk.
    pub disks: Vec<Vec<u8>>,
    /// The device state.
    pub devices: Vec<u8>,
}

impl Snapshot {
    /// Copies a machine that stands still and has all its pages.
    pub fn of(body: &Body) -> Self {
        let ram_file = body.machine().ram();
        let mut ram = vec![0; ram_file.bytes() as usize];
        ram_file.read_at(0, &mut ram).expect("RAM can be read");
        let disk = |disk: &std::sync::Arc<fermata_disk::Disk>| {
            let mut content = vec![0; disk.size() as usize];
            disk.read_at(0, &mut content).expect("the disk can be read");
            content
        };
        Self { ram, disks: body.disks().map(disk).collect(), devices: body.machine().device_state().expect("QEMU writes the device state") }
    }

    /// Where two machines differ, in words; empty when they are identical.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |what: String, a: &[u8], b: &[u8]| {
            if a.len() != b.len() {
                found.push(format!("{what}: {} bytes against {}", a.len(), b.len()));
            }
            let pages: Vec<_> = a.chunks(PAGE_SIZE).zip(b.chunks(PAGE_SIZE)).enumerate().filter(|(_, (a, b))| a != b).map(|(page, _)| page).collect();
            if !pages.is_empty() {
                found.push(format!("{what}: {} pages differ, the first are {:?}", pages.len(), &pages[..pages.len().min(8)]));
            }
        };
        compare("RAM".to_owned(), &self.ram, &other.ram);
        for (index, (a, b)) in self.disks.iter().zip(&other.disks).enumerate() {
            compare(format!("disk {index}"), a, b);
        }
        compare("devices".to_owned(), &self.devices, &other.devices);
        found
    }
}
