//! A disk through checkpoints in a real store, and back.

mod common;

use common::image;
use fermata_checkpoint::{Outcome, Part};
use fermata_disk::{Disk, DiskDetails, DiskOptions, DiskPart, Golden, part::BLOCKS_TABLE};
use fermata_store::{Cost, Record, Store, Writer};
use fermata_types::PartState;
use fermata_vhost::Running;
use std::{sync::Arc, time::Duration};

fn now() -> Duration {
    Duration::ZERO
}

struct Bench {
    dir: tempfile::TempDir,
    store: Store,
    golden: Arc<Golden>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        let content: Vec<u8> = (0..600_064u32).map(|i| (i / 4096 + 1) as u8).collect();
        let golden = Arc::new(Golden::open(&image(dir.path(), &content), None, dir.path(), &mut |_| {}).unwrap());
        store.add_image(golden.id(), golden.clone(), &mut |_| {}).unwrap();
        Self { dir, store, golden }
    }

    fn disk(&self, state: Option<&PartState>) -> Arc<Disk> {
        let options = DiskOptions {
            golden: Some(self.golden.clone()),
            size: None,
            root: state.map(|state| state.tables[BLOCKS_TABLE]),
            pages: Arc::new(self.store.clone()),
            overlay_dir: self.dir.path().to_owned(),
            read_only: false,
            drop_freed: true,
        };
        Arc::new(Disk::new(options).unwrap())
    }
}

impl Bench {
    fn commit(&self, writer: Writer, state: &PartState, branch: &str) {
        let record = Record {
            parent: None,
            experiment: "e".into(),
            branch: branch.into(),
            message: None,
            created_ns: 0,
            after_ns: None,
            time_virtual_ns: 0,
            began_ns: None,
            events: 0,
            waiting: Vec::new(),
            spec: serde_json::Value::Null,
            parts: vec![state.clone()],
            images: vec![self.golden.id()],
            cost: Cost::default(),
        };
        writer.commit(&record).unwrap();
    }
}

fn content(disk: &Disk) -> Vec<u8> {
    let mut all = vec![0; disk.size() as usize];
    disk.read_at(0, &mut all).unwrap();
    all
}

#[test]
fn a_checkpoint_of_a_disk_brings_it_back() {
    let bench = Bench::new();
    let disk = bench.disk(None);
    let mut part = DiskPart::new("m1/disk0", disk.clone(), Running::default(), now);
    let mut checkpoints = Vec::new();
    for round in 0..4u8 {
        disk.write_at(4096 * u64::from(round), &[100 + round; 9000]).unwrap();
        disk.zero(40 * 4096, 8192, true).unwrap();
        disk.write_at(disk.size() - 512, &[round; 512]).unwrap();
        let mut writer = bench.store.writer().unwrap();
        part.prepare(&mut writer).unwrap();
        part.freeze().unwrap();
        let before = content(&disk);
        let captured = part.capture().unwrap();
        part.thaw().unwrap();
        // The guest goes on before the cut is saved.
        disk.write_at(0, &[200 + round; 30_000]).unwrap();
        let saved = captured.save(&mut writer).unwrap();
        assert_eq!(saved.pages.total(), u64::from(disk.blocks()));
        assert_eq!(DiskDetails::from_state(&saved.state).unwrap(), DiskDetails::of(&disk));
        bench.commit(writer, &saved.state, &format!("b{round}"));
        part.settle(Outcome::Permanent(&saved.state));
        checkpoints.push((saved.state, before));
    }
    let now = content(&disk);
    for (state, before) in &checkpoints {
        assert!(content(&bench.disk(Some(state))) == *before);
    }
    for (state, before) in checkpoints.iter().rev() {
        let again = bench.disk(Some(state));
        // Part of a block, over one that only the store has.
        again.write_at(4096 + 512, &[1; 512]).unwrap();
        let mut expected = before.clone();
        expected[4608..5120].fill(1);
        assert!(content(&again) == expected);
    }
    assert!(content(&disk) == now, "a fork disturbed its parent");
    disk.reset(checkpoints[1].0.tables[BLOCKS_TABLE]).unwrap();
    assert!(content(&disk) == checkpoints[1].1);
}

#[test]
fn a_lost_checkpoint_leaves_its_blocks_to_the_next() {
    let bench = Bench::new();
    let disk = bench.disk(None);
    let mut part = DiskPart::new("m1/disk0", disk.clone(), Running::default(), now);
    disk.write_at(0, &[9; 4096]).unwrap();
    drop(part.capture().unwrap());
    part.settle(Outcome::Aborted);
    assert_eq!(disk.written(), 1);
    let mut writer = bench.store.writer().unwrap();
    let saved = part.capture().unwrap().save(&mut writer).unwrap();
    assert_eq!(saved.pages.written(), 1);
    // A second cut while one is pending is refused, and changes nothing.
    assert!(part.capture().is_err());
    part.settle(Outcome::Permanent(&saved.state));
    assert_eq!((disk.written(), disk.root()), (0, saved.state.tables[BLOCKS_TABLE]));
}

#[test]
fn a_block_written_back_is_no_longer_in_the_table() {
    let bench = Bench::new();
    let disk = bench.disk(None);
    let original = content(&disk);
    let mut part = DiskPart::new("m1/disk0", disk.clone(), Running::default(), now);
    let mut roots = vec![disk.root()];
    for bytes in [&[77; 4096][..], &original[8192..12288]] {
        disk.write_at(8192, bytes).unwrap();
        let mut writer = bench.store.writer().unwrap();
        let saved = part.capture().unwrap().save(&mut writer).unwrap();
        bench.commit(writer, &saved.state, &format!("b{}", roots.len()));
        part.settle(Outcome::Permanent(&saved.state));
        roots.push(disk.root());
    }
    assert_ne!(roots[0], roots[1]);
    assert_eq!(roots[0], roots[2]);
}
