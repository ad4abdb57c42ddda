//! Blocks that the guest's file system has freed, against a model of a kernel: allocations in memory, transactions that commit behind them, and data that is
//! written before the bitmaps on the disk know of it. What that kernel's memory relies on must come back from every cut.

mod common;

use common::{Memory, image};
use fermata_disk::{Disk, DiskOptions, Golden, Settled};
use fermata_types::{PAGE_SIZE, PageCounts, Root};
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::Command,
    sync::Arc,
};

const MAGIC: u32 = 0xc03b_3998;
/// Blocks of the journal that one transaction of the model takes: descriptor, two copies, record.
const TRANSACTION: u32 = 4;

/// A file system of one group, as `mke2fs` makes it.
struct Made {
    block_size: usize,
    image: Vec<u8>,
    first_data_block: u64,
    descriptors: u64,
    bitmap: u64,
    journal: Vec<u64>,
}

fn made(dir: &Path, block_size: usize) -> Made {
    let path = dir.join("made.raw");
    std::fs::write(&path, []).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(8192 * block_size as u64 / 2).unwrap();
    let features = "^64bit,^metadata_csum,^resize_inode";
    let size = block_size.to_string();
    // 1024 blocks, the fewest that a journal may have.
    let journal = format!("size={}", block_size / 1024);
    let done = Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-b", &size, "-O", features, "-J", &journal]).arg(&path).status();
    assert!(done.expect("mke2fs runs").success());
    let image = std::fs::read(&path).unwrap();
    let le32 = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
    let first_data_block = u64::from(le32(1024 + 0x14));
    let descriptors = first_data_block + 1;
    let bitmap = le32(descriptors as usize * block_size).into();
    let told = Command::new("debugfs").args(["-R", "blocks <8>"]).arg(&path).output().expect("debugfs runs");
    let journal = String::from_utf8_lossy(&told.stdout).split_whitespace().map(|block| block.parse().unwrap()).collect();
    Made { block_size, image, first_data_block, descriptors, bitmap, journal }
}

/// What is in the kernel's memory.
#[derive(Clone)]
struct Kernel {
    used: BTreeSet<u64>,
    /// What was written to blocks in use, by block.
    written: BTreeMap<u64, u8>,
    /// Freed in a transaction that has not committed: not given away yet.
    leaving: Vec<(u32, u64)>,
    running: u32,
    /// The transaction that is being committed, and the bitmap as it was at its end.
    committing: Option<(u32, BTreeSet<u64>)>,
    committed: BTreeSet<u64>,
    head: u32,
    tail: (u32, u32),
}

#[derive(Debug, Clone)]
enum Event {
    Allocate(u8),
    Write(u8, u8),
    AllocateAndWrite(u8),
    Free(u8),
    BeginCommit,
    EndCommit,
    /// What is committed is written to its place; the journal's tail moves if told to.
    Checkpoint(bool),
    Cut,
    Goto(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => any::<u8>().prop_map(Event::Allocate),
        3 => any::<(u8, u8)>().prop_map(|(which, what)| Event::Write(which, what)),
        4 => any::<u8>().prop_map(Event::AllocateAndWrite),
        4 => any::<u8>().prop_map(Event::Free),
        4 => Just(Event::BeginCommit),
        5 => Just(Event::EndCommit),
        1 => any::<bool>().prop_map(Event::Checkpoint),
        3 => Just(Event::Cut),
        1 => any::<u8>().prop_map(Event::Goto),
    ]
}

struct Guest<'a> {
    made: &'a Made,
    store: Arc<Memory>,
    golden: Arc<Golden>,
    dir: &'a Path,
    disk: Disk,
    kernel: Kernel,
    checkpoints: Vec<(Root, Kernel)>,
}

impl<'a> Guest<'a> {
    fn mount(made: &'a Made, dir: &'a Path) -> Self {
        let golden = Arc::new(Golden::open(&image(dir, &made.image), None, dir, &mut |_| {}).unwrap());
        let store = Arc::new(Memory::over(&made.image));
        let disk = open(&store, &golden, dir, None);
        let at = made.bitmap as usize * made.block_size;
        let bits = &made.image[at..at + made.block_size];
        let used: BTreeSet<u64> = (0..8192 / 2 - made.first_data_block)
            .filter(|bit| bits[*bit as usize / 8] & 1 << (bit % 8) != 0)
            .map(|bit| bit + made.first_data_block)
            .collect();
        let kernel = Kernel {
            committed: used.clone(),
            used,
            written: BTreeMap::new(),
            leaving: Vec::new(),
            running: 1,
            committing: None,
            head: 1,
            tail: (1, 1),
        };
        let guest = Self { made, store, golden, dir, disk, kernel, checkpoints: Vec::new() };
        guest.write_tail();
        guest.disk.flush().unwrap();
        guest
    }

    fn put(&self, block: u64, bytes: &[u8]) {
        self.disk.write_at(block * self.made.block_size as u64, bytes).unwrap();
    }

    /// The journal's own superblock.
    fn write_tail(&self) {
        let at = self.made.journal[0] as usize * self.made.block_size;
        let mut superblock = self.made.image[at..at + self.made.block_size].to_vec();
        let (start, sequence) = self.kernel.tail;
        superblock[0x18..0x1c].copy_from_slice(&sequence.to_be_bytes());
        superblock[0x1c..0x20].copy_from_slice(&start.to_be_bytes());
        self.put(self.made.journal[0], &superblock);
    }

    /// Descriptors and bitmap for these blocks in use.
    fn metadata(&self, used: &BTreeSet<u64>) -> [Vec<u8>; 2] {
        let Made { block_size, descriptors, bitmap, first_data_block, .. } = *self.made;
        let [mut groups, mut bits] =
            [descriptors, bitmap].map(|block| self.made.image[block as usize * block_size..][..block_size].to_vec());
        let all = 8192 / 2 - first_data_block;
        (0..all).for_each(|bit| {
            let mask = 1 << (bit % 8);
            let byte = &mut bits[bit as usize / 8];
            *byte = if used.contains(&(bit + first_data_block)) { *byte | mask } else { *byte & !mask };
        });
        groups[0xc..0xe].copy_from_slice(&((all - used.len() as u64) as u16).to_le_bytes());
        [groups, bits]
    }

    fn log(&mut self, bytes: &[u8]) {
        self.put(self.made.journal[self.kernel.head as usize], bytes);
        self.kernel.head = if self.kernel.head as usize + 1 == self.made.journal.len() { 1 } else { self.kernel.head + 1 };
    }

    fn header(&self, kind: u32, sequence: u32) -> Vec<u8> {
        let mut block = vec![0; self.made.block_size];
        for (at, value) in [(0, MAGIC), (4, kind), (8, sequence)] {
            block[at..at + 4].copy_from_slice(&value.to_be_bytes());
        }
        block
    }

    fn begin_commit(&mut self) {
        if self.kernel.committing.is_some() {
            return;
        }
        let used = self.kernel.used.clone();
        let mut descriptor = self.header(1, self.kernel.running);
        // Two tags: number, flags. The first is followed by the journal's name, the second says that it is the last.
        for (at, block, flags) in [(12, self.made.descriptors, 0u16), (36, self.made.bitmap, 2 | 8)] {
            descriptor[at..at + 4].copy_from_slice(&(block as u32).to_be_bytes());
            descriptor[at + 6..at + 8].copy_from_slice(&flags.to_be_bytes());
        }
        let copies = self.metadata(&used);
        self.log(&descriptor);
        copies.iter().for_each(|copy| self.log(copy));
        self.kernel.committing = Some((self.kernel.running, used));
        self.kernel.running += 1;
    }

    fn end_commit(&mut self) {
        let Some((sequence, used)) = self.kernel.committing.take() else { return };
        self.disk.flush().unwrap();
        let record = self.header(2, sequence);
        self.log(&record);
        self.kernel.committed = used;
        self.kernel.leaving.retain(|(freed_in, _)| *freed_in > sequence);
        // Long before the log is full.
        if (sequence + 1 - self.kernel.tail.1) * TRANSACTION > self.made.journal.len() as u32 / 2 {
            self.checkpoint(true);
        }
    }

    fn checkpoint(&mut self, move_tail: bool) {
        let [groups, bits] = self.metadata(&self.kernel.committed);
        self.put(self.made.descriptors, &groups);
        self.put(self.made.bitmap, &bits);
        if move_tail && self.kernel.committing.is_none() {
            self.kernel.tail = (self.kernel.head, self.kernel.running);
            self.write_tail();
        }
    }

    fn allocate(&mut self, nth: u8) -> Option<u64> {
        let leaving = |block: &u64| self.kernel.leaving.iter().any(|(_, other)| other == block);
        // Few enough to come back soon, and with neighbours in one page.
        let free = (3000..3064).filter(|block| !self.kernel.used.contains(block) && !leaving(block));
        let free: Vec<u64> = free.collect();
        let block = *free.get(usize::from(nth) % free.len().max(1))?;
        self.kernel.used.insert(block);
        Some(block)
    }

    fn write(&mut self, block: u64, what: u8) {
        self.put(block, &vec![what | 1; self.made.block_size]);
        self.kernel.written.insert(block, what | 1);
    }

    fn nth(&self, nth: u8) -> Option<u64> {
        let ours: Vec<u64> = self.kernel.used.range(3000..3064).copied().collect();
        ours.get(usize::from(nth) % ours.len().max(1)).copied()
    }

    fn free(&mut self, block: u64) {
        self.kernel.used.remove(&block);
        self.kernel.written.remove(&block);
        self.kernel.leaving.push((self.kernel.running, block));
    }

    fn cut(&mut self) -> PageCounts {
        let cut = self.disk.cut().unwrap();
        let (root, counts) = cut.save(&mut &*self.store).unwrap();
        self.disk.settle(cut.id(), Settled::Permanent(root));
        assert_eq!(counts.total(), u64::from(self.disk.blocks()));
        self.check(&root);
        self.checkpoints.push((root, self.kernel.clone()));
        counts
    }

    /// All that the kernel relies on is on the disk of a checkpoint.
    fn check(&self, root: &Root) {
        let back = open(&self.store, &self.golden, self.dir, Some(*root));
        let [mut then, mut now] = [&back, &self.disk].map(|disk| {
            let mut all = vec![0; disk.size() as usize];
            disk.read_at(0, &mut all).unwrap();
            all
        });
        let size = self.made.block_size;
        for (block, what) in &self.kernel.written {
            let at = *block as usize * size;
            assert!(then[at..at + size].iter().all(|byte| byte == what), "block {block} is in use, and lost");
        }
        for block in 3000..3064 {
            let at = block as usize * size;
            [&mut then, &mut now].iter_mut().for_each(|content| content[at..at + size].fill(0));
        }
        assert!(then == now, "something else than data was lost");
    }

    fn step(&mut self, event: &Event) {
        match event {
            Event::Allocate(nth) => _ = self.allocate(*nth),
            Event::Write(nth, what) => _ = self.nth(*nth).map(|block| self.write(block, *what)),
            Event::AllocateAndWrite(nth) => _ = self.allocate(*nth).map(|block| self.write(block, *nth)),
            Event::Free(nth) => _ = self.nth(*nth).map(|block| self.free(block)),
            Event::BeginCommit => self.begin_commit(),
            Event::EndCommit => self.end_commit(),
            Event::Checkpoint(move_tail) => self.checkpoint(*move_tail),
            Event::Cut => _ = self.cut(),
            Event::Goto(nth) => {
                if let Some((root, kernel)) = self.checkpoints.get(usize::from(*nth) % self.checkpoints.len().max(1)).cloned() {
                    self.disk.reset(root).unwrap();
                    self.kernel = kernel;
                }
            }
        }
    }

    fn commit(&mut self) {
        self.begin_commit();
        self.end_commit();
    }
}

fn open(store: &Arc<Memory>, golden: &Arc<Golden>, dir: &Path, root: Option<Root>) -> Disk {
    let options = DiskOptions {
        golden: Some(golden.clone()),
        size: None,
        root,
        pages: store.clone(),
        overlay_dir: dir.to_owned(),
        read_only: false,
        drop_freed: true,
    };
    Disk::new(options).unwrap()
}

#[test]
fn freed_blocks_are_left_out_two_commits_later() {
    let dir = tempfile::tempdir().unwrap();
    for block_size in [1024, 4096] {
        let made = made(dir.path(), block_size);
        let mut guest = Guest::mount(&made, dir.path());
        let blocks: Vec<u64> = (0..64).map_while(|_| guest.allocate(0)).collect();
        assert_eq!(blocks.len(), 64);
        blocks.iter().for_each(|block| guest.write(*block, 7));
        let pages = (64 * block_size / PAGE_SIZE) as u64;
        (0..3).for_each(|_| guest.commit());
        assert_eq!(guest.cut().free, 0, "they are in use");
        let with_them = guest.disk.root();
        blocks.iter().for_each(|block| guest.free(*block));
        assert_eq!(guest.cut().free, 0, "no commit knows of it");
        guest.commit();
        // They were written long ago, so one commit is enough: it frees them.
        let counts = guest.cut();
        assert_eq!(counts.free, pages, "those that were stored leave the table");
        assert_ne!(guest.disk.root(), with_them);
        // Written and freed between two checkpoints: never stored.
        let blocks: Vec<u64> = (0..64).map_while(|_| guest.allocate(0)).collect();
        blocks.iter().for_each(|block| guest.write(*block, 9));
        blocks.iter().for_each(|block| guest.free(*block));
        guest.commit();
        assert_eq!(guest.cut().free, 0, "written since the last commit but one");
        guest.commit();
        assert_eq!(guest.cut().free, pages);
    }
}

#[test]
fn a_disk_that_just_came_back_waits_for_two_commits() {
    let dir = tempfile::tempdir().unwrap();
    let made = made(dir.path(), 4096);
    let mut guest = Guest::mount(&made, dir.path());
    let block = guest.allocate(0).unwrap();
    guest.write(block, 7);
    (0..2).for_each(|_| guest.commit());
    guest.cut();
    guest.free(block);
    guest.step(&Event::Goto(0));
    guest.free(block);
    guest.commit();
    assert_eq!(guest.cut().free, 0);
    guest.commit();
    assert_eq!(guest.cut().free, 1);
}

#[test]
fn a_block_counts_as_left_out_until_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let made = made(dir.path(), 4096);
    let mut guest = Guest::mount(&made, dir.path());
    let block = guest.allocate(0).unwrap();
    guest.write(block, 7);
    guest.free(block);
    (0..2).for_each(|_| guest.commit());
    assert_eq!(guest.cut().free, 1);
    let has_no_name = |guest: &Guest<'_>| guest.disk.left_out().contains(block as u32);
    assert!(has_no_name(&guest));
    // It is given away again. What lies there is what lay there, and the table still has no name for that.
    assert_eq!(guest.allocate(0), Some(block));
    guest.commit();
    assert_eq!(guest.cut().free, 0);
    assert!(has_no_name(&guest));
    guest.write(block, 9);
    guest.cut();
    assert!(!has_no_name(&guest));
}

#[test]
fn what_is_unclear_keeps_everything() {
    let dir = tempfile::tempdir().unwrap();
    let made = made(dir.path(), 4096);
    let mut guest = Guest::mount(&made, dir.path());
    let freed = |guest: &mut Guest<'_>| {
        let block = guest.allocate(0).unwrap();
        guest.write(block, 7);
        guest.free(block);
        (0..2).for_each(|_| guest.commit());
        guest.cut().free
    };
    assert!(freed(&mut guest) > 0);
    // A block that no bitmap has room for: the count of the group says one less than the bitmap.
    guest.kernel.used.insert(5000);
    assert_eq!(freed(&mut guest), 0, "a count that does not fit");
    guest.kernel.used.remove(&5000);
    assert!(freed(&mut guest) > 0);
    // The file system is marked as having errors.
    let mut state = [0; 2];
    guest.disk.read_at(1024 + 0x3a, &mut state).unwrap();
    guest.disk.write_at(1024 + 0x3a, &[state[0] | 2, state[1]]).unwrap();
    assert_eq!(freed(&mut guest), 0, "a file system with errors");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn what_the_kernel_relies_on_comes_back(events in prop::collection::vec(event(), 1..120), small in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let made = made(dir.path(), if small { 1024 } else { 4096 });
        let mut guest = Guest::mount(&made, dir.path());
        for event in &events {
            guest.step(event);
        }
        guest.cut();
    }
}
