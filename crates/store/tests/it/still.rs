//! A RAM or a disk of a checkpoint, read like a file.

use crate::common::*;
use fermata_store::{Contents, Error, ImageReader, Still};
use fermata_types::*;
use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

const ID: ImageId = ImageId([7; 32]);
/// Windows of 4096 pages, and a bit of another; the last page is cut short.
const PAGES: u64 = 2 * 4096 + 77;
const BYTES: u64 = PAGES * PAGE_SIZE as u64 - 1000;

/// An image with data in some places and holes between them.
struct Image(Mutex<Vec<u8>>);

impl ImageReader for Image {
    fn blocks(&self) -> u64 {
        (self.0.lock().unwrap().len() / PAGE_SIZE) as u64
    }

    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> std::io::Result<()> {
        into.copy_from_slice(&self.0.lock().unwrap()[block as usize * PAGE_SIZE..][..PAGE_SIZE]);
        Ok(())
    }

    fn next_blocks(&self, from: u64) -> std::io::Result<Option<Range<u64>>> {
        let content = self.0.lock().unwrap();
        let (blocks, _) = content.as_chunks::<PAGE_SIZE>();
        let is_data = |block: &u64| blocks[*block as usize] != [0; PAGE_SIZE];
        let all = 0..blocks.len() as u64;
        let start = all.clone().filter(|block| *block >= from).find(is_data);
        Ok(start.map(|start| start..all.clone().filter(|block| *block > start).find(|block| !is_data(block)).unwrap_or(all.end)))
    }
}

/// Zeros, but for pages from some seeds.
fn content(pages: u64, seeds: &[(u64, u64)]) -> Vec<u8> {
    let mut content = vec![0; pages as usize * PAGE_SIZE];
    for (number, seed) in seeds {
        content[*number as usize * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(&page(*seed));
    }
    content
}

/// The whole of it, both ways.
#[track_caller]
fn is(still: &Still, expected: &[u8]) {
    assert_eq!(still.bytes(), expected.len() as u64);
    let (mut pieces, mut end, mut data) = (vec![0; expected.len()], 0, 0);
    still
        .for_each_piece(&mut |at, bytes| {
            assert!(at >= end && at.is_multiple_of(PAGE_SIZE as u64), "in order: {at} after {end}");
            end = at + bytes.len() as u64;
            data += bytes.len();
            pieces[at as usize..end as usize].copy_from_slice(bytes);
            Ok(())
        })
        .unwrap();
    assert!(pieces == expected, "in pieces");
    let (chunks, rest) = expected.as_chunks::<PAGE_SIZE>();
    let pages = chunks.iter().filter(|page| **page != [0; PAGE_SIZE]).count() * PAGE_SIZE;
    assert!(data <= pages + rest.len(), "zeros are left out: {data} of {pages}");
    // Across pages, and past the end.
    let mut read = vec![0xaa; expected.len() + 5000];
    for (number, into) in read.chunks_mut(99_999).enumerate() {
        still.read_at(number as u64 * 99_999, into).unwrap();
    }
    assert!(read[..expected.len()] == *expected && read[expected.len()..].iter().all(|byte| *byte == 0), "at random");
}

#[test]
fn a_memory_is_what_its_table_names() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    let mut writer = store.writer().unwrap();
    let pages = [(0, 1), (1, 2), (77, 3), (4095, 4), (4096, 5), (8191, 6), (8268, 7)];
    let root = put(&mut writer, &Root::empty(PAGES), &pages);
    // One that became zero again.
    let root = writer.update_table(&root, &[(77, None), (78, Some(ZERO_PAGE))]).unwrap();
    writer.commit(&record_of(None, "main", "", root)).unwrap();
    let seeds: Vec<_> = pages.iter().filter(|(page, _)| *page != 77).map(|(page, seed)| (u64::from(*page), *seed)).collect();
    is(&Still::new(store.clone(), root, BYTES), &content(PAGES, &seeds)[..BYTES as usize]);
    is(&Still::new(store, Root::empty(PAGES), BYTES), &vec![0; BYTES as usize]);
}

#[test]
fn a_disk_lies_above_its_image() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    let below: Vec<_> = (0..40).map(|nth| (nth * nth % 5000, nth + 100)).collect();
    let image = Arc::new(Image(Mutex::new(content(5000, &below))));
    store.add_image(ID, image.clone(), &mut |_| {}).unwrap();
    let mut writer = store.writer().unwrap();
    // Over data of the image, between its data, and behind its end; and one that the guest has cleared.
    let root = put(&mut writer, &Root::empty(PAGES), &[(4, 1), (5, 2), (1000, 3), (4500, 4), (8000, 5)]);
    let root = writer.update_table(&root, &[(9, Some(ZERO_PAGE))]).unwrap();
    let mut record = record_of(None, "main", "", root);
    record.images.push(ID);
    writer.commit(&record).unwrap();
    let mut expected = content(5000, &below);
    expected.resize(PAGES as usize * PAGE_SIZE, 0);
    for (number, seed) in [(4, 1), (5, 2), (1000, 3), (4500, 4), (8000, 5)] {
        expected[number * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(&page(seed));
    }
    expected[9 * PAGE_SIZE..][..PAGE_SIZE].fill(0);
    let still = Still::new(store, root, BYTES).above(ID, image.clone());
    is(&still, &expected[..BYTES as usize]);
    // A block of the image that is another one now is not given out.
    image.0.lock().unwrap()[36 * PAGE_SIZE + 5] ^= 1;
    let mut block = [0; PAGE_SIZE];
    assert!(matches!(still.read_page(36, &mut block), Err(Error::ImageChanged { .. })));
    assert!(matches!(still.for_each_piece(&mut |_, _| Ok(())), Err(Error::ImageChanged { .. })));
    still.read_page(25, &mut block).unwrap();
    assert_eq!(block, page(105));
}

#[test]
fn damage_is_told_where_it_is_and_nowhere_else() {
    // In a pack that is encrypted nobody finds a page by its bytes.
    if is_encrypted() {
        return;
    }
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    let mut writer = store.writer().unwrap();
    let noisy: Vec<_> = (0..600).map(|seed| (seed as PageNumber, Some(writer.put_page(&noise(seed)).unwrap().0))).collect();
    let root = writer.update_table(&Root::empty(PAGES), &noisy).unwrap();
    writer.commit(&record_of(None, "main", "", root)).unwrap();
    drop(store);
    let pack = packs(dir.path()).remove(0);
    let mut bytes = std::fs::read(&pack).unwrap();
    let at = bytes.windows(64).position(|window| *window == noise(300)[..64]).expect("noise is stored as it is");
    bytes[at] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let still = Still::new(open(dir.path()).unwrap(), root, BYTES);
    let mut page = [0; PAGE_SIZE];
    assert!(matches!(still.read_page(300, &mut page), Err(Error::Corrupt { .. })));
    assert!(matches!(still.for_each_piece(&mut |_, _| Ok(())), Err(Error::Corrupt { .. })));
    still.read_page(599, &mut page).unwrap();
    assert_eq!(page, noise(599));
}

#[test]
fn who_has_seen_enough_ends_it() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    let mut writer = store.writer().unwrap();
    let root = put(&mut writer, &Root::empty(PAGES), &[(0, 1), (5000, 2)]);
    writer.commit(&record_of(None, "main", "", root)).unwrap();
    let mut seen = 0;
    let error = Still::new(store, root, BYTES)
        .for_each_piece(&mut |_, _| {
            seen += 1;
            Err(std::io::Error::other("the disk is full").into())
        })
        .unwrap_err();
    assert_eq!((seen, error.to_string().as_str()), (1, "the disk is full"));
}
