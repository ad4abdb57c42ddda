//! What the disks' servers know of guest memory, for the machine's checkpoint: which pages equal blocks, and what these are called.

use fermata_checkpoint::Failure;
use fermata_disk::{Disk, PageMap};
use fermata_store::{Class, Writer};
use fermata_types::{Mapped, PageName, PageSet};
use fermata_vm::KnownPages;
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// The disks of a machine by their numbers in its page map.
pub(crate) struct Blocks {
    pub map: Arc<PageMap>,
    /// With their names.
    disks: Vec<(String, Arc<Disk>)>,
    /// How often the images had been read again when the map was last looked at.
    images_read: AtomicU64,
    /// Which blocks of each had no name then.
    left_out: Mutex<Vec<Arc<PageSet>>>,
}

impl Blocks {
    pub fn new(map: Arc<PageMap>, disks: Vec<(String, Arc<Disk>)>) -> Self {
        let blocks = Self { map, disks, images_read: AtomicU64::new(0), left_out: Mutex::default() };
        blocks.images_read.store(blocks.times_read_again(), Ordering::Relaxed);
        blocks
    }

    fn times_read_again(&self) -> u64 {
        self.disks.iter().filter_map(|(_, disk)| disk.golden()).map(|golden| golden.times_read_again()).sum()
    }

    /// Forgets what was learned from an image that may have been another one for a while. A disk looks at its image before each checkpoint. False if that was so.
    fn believe(&self) -> bool {
        let times = self.times_read_again();
        let same = self.images_read.swap(times, Ordering::Relaxed) == times;
        if !same {
            self.map.clear();
        }
        same
    }

    /// The disks that blocks are taken from are still what they were.
    fn check(&self, pages: &[Mapped]) -> Result<(), Failure> {
        let used: BTreeSet<_> = pages.iter().map(|mapped| mapped.disk).collect();
        used.into_iter().try_for_each(|number| self.disks[number as usize].1.check_image())?;
        if self.believe() { Ok(()) } else { Err("something was done to an image while the checkpoint was taken: take it once more".into()) }
    }
}

impl Blocks {
    /// Which blocks of each disk have no name.
    fn left_out(&self) -> Vec<Arc<PageSet>> {
        self.disks.iter().map(|(_, disk)| disk.left_out()).collect()
    }

    /// Takes out of the list what equals a block without a name.
    fn leave_nameless(&self, pages: &mut Vec<Mapped>) {
        let left_out = self.left_out();
        if left_out.iter().any(|blocks| !blocks.is_empty()) {
            pages.retain(|mapped| !left_out[mapped.disk as usize].contains(mapped.block));
        }
    }
}

impl KnownPages for Blocks {
    fn written(&self, pages: &PageSet) {
        self.map.forget(pages);
    }

    fn find(&self, pages: &PageSet) -> Vec<Mapped> {
        self.believe();
        let mut found = self.map.find(pages);
        self.leave_nameless(&mut found);
        found
    }

    fn lost(&self) -> Option<PageSet> {
        self.believe();
        let now = self.left_out();
        let before = std::mem::replace(&mut *self.left_out.lock().unwrap_or_else(PoisonError::into_inner), now.clone());
        let same = before.len() == now.len() && before.iter().zip(&now).all(|(before, now)| Arc::ptr_eq(before, now));
        self.map.lost().filter(|_| same)
    }

    fn name(&self, pages: &[Mapped], storage: &mut Writer, each: &mut dyn FnMut(Mapped, PageName, Class)) -> Result<(), Failure> {
        self.check(pages)?;
        // Neighbouring blocks have their names in the same place.
        let mut sorted = pages.to_vec();
        sorted.sort_unstable_by_key(|mapped| (mapped.disk, mapped.block, mapped.page));
        for same in sorted.chunk_by(|a, b| (a.disk, a.block) == (b.disk, b.block)) {
            let Mapped { disk, block, .. } = same[0];
            let (name, class) = self.disks[disk as usize].1.block_name(block, storage)?;
            same.iter().for_each(|mapped| each(*mapped, name, class));
        }
        self.check(pages)
    }

    fn distrust(&self) {
        self.map.clear();
    }

    fn disk(&self, number: u32) -> String {
        self.disks[number as usize].0.clone()
    }
}
