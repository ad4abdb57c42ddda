//! The names of a disk's blocks in a checkpoint, found without reading them, against the hash of what is in them.

mod common;

use common::image;
use fermata_disk::{Disk, DiskOptions, Error, Golden};
use fermata_store::{Class, Store, Writer};
use fermata_types::{PAGE_SIZE, PageName, ZERO_PAGE};
use std::{fs, path::Path, sync::Arc};

const BLOCKS: u32 = 300;

fn golden(dir: &Path, store: &Store) -> Arc<Golden> {
    // Every fifth block is zero, some are doubles, and the last is cut short.
    let content: Vec<u8> = (0..BLOCKS * PAGE_SIZE as u32 - 1024)
        .map(|at| if (at / PAGE_SIZE as u32).is_multiple_of(5) { 0 } else { (at / PAGE_SIZE as u32 % 200) as u8 + 1 })
        .collect();
    let golden = Arc::new(Golden::open(&image(dir, &content), None, dir, &mut |_| {}).unwrap());
    store.add_image(golden.id(), golden.clone(), &mut |_| {}).unwrap();
    golden
}

/// Larger than its image by some blocks.
fn disk(dir: &Path, store: &Store, golden: &Arc<Golden>) -> Disk {
    let options = DiskOptions {
        golden: Some(golden.clone()),
        size: Some(u64::from(BLOCKS + 20) * PAGE_SIZE as u64),
        root: None,
        pages: Arc::new(store.clone()),
        overlay_dir: dir.to_owned(),
        read_only: false,
        drop_freed: false,
    };
    Disk::new(options).unwrap()
}

fn check(disk: &Disk, content: &[u8], writer: &mut Writer) -> Vec<Class> {
    let named = content.chunks_exact(PAGE_SIZE).zip(0..).map(|(block, number)| {
        let (name, class) = disk.block_name(number, writer).unwrap();
        assert_eq!(name, PageName(*blake3::hash(block).as_bytes()), "block {number}");
        assert_eq!(name == ZERO_PAGE, class == Class::Zero);
        class
    });
    named.collect()
}

fn all(disk: &Disk) -> Vec<u8> {
    let mut content = vec![0; disk.size() as usize];
    disk.read_at(0, &mut content).unwrap();
    content
}

#[test]
fn every_block_has_the_name_of_its_content_at_the_cut() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let golden = golden(dir.path(), &store);
    let disk = disk(dir.path(), &store, &golden);
    for round in 0..4u8 {
        let mut writer = store.writer().unwrap();
        let start = u64::from(round) * 7 * PAGE_SIZE as u64;
        disk.write_at(start, &[round + 230; 9000]).unwrap();
        disk.zero(start + 40 * PAGE_SIZE as u64, 3 * PAGE_SIZE as u64, true).unwrap();
        // Written back to what the image holds there, and from one block to another.
        let mut block = [0; PAGE_SIZE];
        golden.read_at(50 * PAGE_SIZE as u64 + 4096, &mut block).unwrap();
        disk.write_at(51 * PAGE_SIZE as u64, &block).unwrap();
        disk.write_at(u64::from(BLOCKS + 3) * PAGE_SIZE as u64, &block).unwrap();
        let (cut, content) = (disk.cut().unwrap(), all(&disk));
        assert!(disk.block_name(0, &mut writer).is_err(), "the cut is not saved yet");
        disk.write_at(0, &[99; 200_000]).unwrap();
        cut.save(&mut writer).unwrap();
        let classes = check(&disk, &content, &mut writer);
        assert!(classes.iter().all(|class| matches!(class, Class::Zero | Class::Mapped)), "{classes:?}");
        // Its own pages are known only to this writer, so the next round begins as if there had been none.
        disk.settle(cut.id(), fermata_disk::Settled::Aborted);
    }
}

#[test]
fn names_that_are_lost_or_damaged_are_found_by_reading() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("store");
    let store = Store::open(&at).unwrap();
    let image = golden(dir.path(), &store);
    let names = at.join("images").join(format!("{}.names", image.id()));
    let good = fs::read(&names).unwrap();
    let named = |store: &Store, image: &Arc<Golden>| {
        let disk = disk(dir.path(), store, image);
        let mut writer = store.writer().unwrap();
        let content = all(&disk);
        disk.cut().unwrap().save(&mut writer).unwrap();
        check(&disk, &content, &mut writer)
    };
    let count = |classes: &[Class], class: Class| classes.iter().filter(|of| **of == class).count();
    let known = named(&store, &image);
    assert_eq!(count(&known, Class::OnDisk), 0);
    for damage in 0..3 {
        let mut bad = good.clone();
        match damage {
            0 => bad[PAGE_SIZE + 100] ^= 1,
            1 => bad.copy_within(0..PAGE_SIZE, PAGE_SIZE),
            _ => bad.fill(0),
        }
        fs::write(&names, &bad).unwrap();
        let store = Store::open(&at).unwrap();
        let image = golden(dir.path(), &store);
        let classes = named(&store, &image);
        assert!(count(&classes, Class::OnDisk) > 0, "damage {damage} was believed");
        assert_eq!(count(&classes, Class::OnDisk) + count(&classes, Class::Mapped), count(&known, Class::Mapped));
    }
    // A lost file is made again.
    fs::remove_file(&names).unwrap();
    let store = Store::open(&at).unwrap();
    let image = golden(dir.path(), &store);
    assert!(fs::read(&names).unwrap() == good);
    assert_eq!(named(&store, &image), known);
}

#[test]
fn an_image_that_changed_is_found_before_a_name_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let golden = golden(dir.path(), &store);
    let disk = disk(dir.path(), &store, &golden);
    disk.check_image().unwrap();
    let mut content = fs::read(golden.path()).unwrap();
    content[5000] ^= 1;
    fs::write(golden.path(), content).unwrap();
    assert!(matches!(disk.check_image(), Err(Error::Changed { .. })));
}
