//! The branching disk against a plain vector of bytes: random requests, cuts, saves, failures and journeys, always with the same content.

mod common;

use common::{Memory, image};
use fermata_disk::{Cut, Disk, DiskOptions, Golden, Settled};
use fermata_types::{PAGE_SIZE, Root};
use proptest::prelude::*;
use std::sync::Arc;

const BLOCKS: usize = 40;

#[derive(Debug, Clone)]
enum Step {
    Read { at: u16, len: u16 },
    Write { at: u16, len: u16, seed: u8 },
    WriteBlocks { block: u8, count: u8, seed: u8 },
    Zero { at: u16, len: u16, unmap: bool },
    Cut,
    Save,
    Settle { permanent: bool },
    Reset { to: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (any::<u16>(), any::<u16>()).prop_map(|(at, len)| Step::Read { at, len }),
        4 => (any::<u16>(), 0..60u16, any::<u8>()).prop_map(|(at, len, seed)| Step::Write { at, len, seed }),
        4 => (any::<u8>(), 0..8u8, 0..4u8).prop_map(|(block, count, seed)| Step::WriteBlocks { block, count, seed }),
        2 => (any::<u16>(), 0..400u16, any::<bool>()).prop_map(|(at, len, unmap)| Step::Zero { at, len, unmap }),
        3 => Just(Step::Cut),
        3 => Just(Step::Save),
        3 => any::<bool>().prop_map(|permanent| Step::Settle { permanent }),
        1 => any::<u8>().prop_map(|to| Step::Reset { to }),
    ]
}

/// Content that is sometimes zero and often the same, so that every class of the sieve occurs.
fn content(len: usize, seed: u8) -> Vec<u8> {
    if seed == 0 { vec![0; len] } else { (0..len).map(|i| seed.wrapping_mul(31).wrapping_add((i / 700) as u8)).collect() }
}

struct Run {
    disk: Disk,
    memory: Arc<Memory>,
    model: Vec<u8>,
    /// The pending cut, what it must hold, and what it was saved as.
    pending: Option<(Cut, Vec<u8>, Option<Root>)>,
    permanent: Vec<(Root, Vec<u8>)>,
    golden: Vec<u8>,
}

impl Run {
    /// Sector and length of a request within the disk, in bytes.
    fn range(&self, at: u16, len: u16) -> (usize, usize) {
        let sectors = self.model.len() / 512;
        let at = at as usize % sectors;
        (at * 512, (len as usize % (sectors - at) + 1) * 512)
    }

    fn check_table(&self, root: &Root, model: &[u8]) {
        let mut whole = vec![0; BLOCKS * PAGE_SIZE];
        whole[..self.golden.len()].copy_from_slice(&self.golden);
        self.memory.apply(root, &mut whole);
        assert!(whole[..model.len()] == *model, "a saved cut is not what the disk was");
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Read { at, len } => {
                let (at, len) = self.range(at, len);
                let mut read = vec![0xaa; len];
                self.disk.read_at(at as u64, &mut read).unwrap();
                assert!(read == self.model[at..at + len], "{len} bytes at {at} differ");
            }
            Step::Write { at, len, seed } => {
                let (at, len) = self.range(at, len);
                let bytes = content(len, seed);
                self.disk.write_at(at as u64, &bytes).unwrap();
                self.model[at..at + len].copy_from_slice(&bytes);
            }
            Step::WriteBlocks { block, count, seed } => {
                let at = block as usize % BLOCKS * PAGE_SIZE;
                let len = ((count as usize + 1) * PAGE_SIZE).min(self.model.len() - at);
                let bytes = content(len, seed);
                self.disk.write_at(at as u64, &bytes).unwrap();
                self.model[at..at + len].copy_from_slice(&bytes);
            }
            Step::Zero { at, len, unmap } => {
                let (at, len) = self.range(at, len);
                self.disk.zero(at as u64, len as u64, unmap).unwrap();
                self.model[at..at + len].fill(0);
            }
            Step::Cut => match self.disk.cut() {
                Ok(cut) => {
                    assert!(self.pending.is_none());
                    self.pending = Some((cut, self.model.clone(), None));
                }
                Err(error) => assert!(self.pending.is_some(), "{error}"),
            },
            Step::Save => {
                if let Some((cut, model, saved)) = &mut self.pending {
                    let (root, counts) = cut.save(&mut &*self.memory).unwrap();
                    assert_eq!(counts.total(), BLOCKS as u64);
                    assert_eq!(counts.written(), cut.written());
                    *saved = Some(root);
                    let model = model.clone();
                    self.check_table(&root, &model);
                }
            }
            Step::Settle { permanent } => {
                if let Some((cut, model, saved)) = self.pending.take() {
                    match saved {
                        Some(root) if permanent => {
                            self.disk.settle(cut.id(), Settled::Permanent(root));
                            self.permanent.push((root, model));
                        }
                        _ => self.disk.settle(cut.id(), Settled::Aborted),
                    }
                }
            }
            Step::Reset { to } => {
                let (root, model) = self.permanent[to as usize % self.permanent.len()].clone();
                self.disk.reset(root).unwrap();
                self.model = model;
                // A cut from before the journey is saved as if nothing had happened, and its end means nothing to the disk.
                if let Some((cut, model, _)) = self.pending.take() {
                    let (root, _) = cut.save(&mut &*self.memory).unwrap();
                    self.check_table(&root, &model);
                    self.disk.settle(cut.id(), Settled::Permanent(root));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn a_disk_is_a_vector_of_bytes(
        image_sectors in 0..300usize, odd_bytes in 0..512usize, short in 0..8usize, steps in prop::collection::vec(step(), 1..60)
    ) {
        let dir = tempfile::tempdir().unwrap();
        let size = (BLOCKS * PAGE_SIZE) - short * 512;
        let image_size = (image_sectors * 512 + odd_bytes).min(size);
        let mut golden = content(image_size, 7);
        golden.iter_mut().skip(3 * PAGE_SIZE).take(2 * PAGE_SIZE).for_each(|byte| *byte = 0);
        let memory = Arc::new(Memory::over(&golden));
        let open = (image_size > 0).then(|| Arc::new(Golden::open(&image(dir.path(), &golden), None, dir.path(), &mut |_| {}).unwrap()));
        let disk = Disk::new(DiskOptions {
            golden: open,
            size: Some(size as u64),
            root: None,
            pages: memory.clone(),
            overlay_dir: dir.path().to_owned(),
            read_only: false,
            drop_freed: true,
        }).unwrap();
        let mut model = golden.clone();
        model.resize(size, 0);
        let permanent = vec![(Root::empty(BLOCKS as u64), model.clone())];
        let mut run = Run { disk, memory, model, pending: None, permanent, golden };
        for step in steps {
            run.step(step);
        }
        run.step(Step::Read { at: 0, len: u16::MAX });
        let mut all = vec![0; size];
        run.disk.read_at(0, &mut all).unwrap();
        prop_assert!(all == run.model);
    }
}

#[test]
fn a_damaged_block_harms_no_neighbour() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::default());
    let disk = |root| {
        let (pages, overlay_dir) = (memory.clone(), dir.path().to_owned());
        let size = Some((BLOCKS * PAGE_SIZE) as u64);
        Disk::new(DiskOptions { golden: None, size, root, pages, overlay_dir, read_only: false, drop_freed: true }).unwrap()
    };
    let block = |number: usize| content(PAGE_SIZE, number as u8 + 1);
    let first = disk(None);
    (0..BLOCKS).for_each(|number| first.write_at((number * PAGE_SIZE) as u64, &block(number)).unwrap());
    let (root, _) = first.cut().unwrap().save(&mut &*memory).unwrap();
    memory.damage(&block(7));
    let second = disk(Some(root));
    for number in 0..BLOCKS {
        let mut found = vec![0; PAGE_SIZE];
        let read = second.read_at((number * PAGE_SIZE) as u64, &mut found);
        assert_eq!(read.is_ok(), number != 7, "block {number}: {read:?}");
        assert!(number == 7 || found == block(number), "block {number}");
    }
}
