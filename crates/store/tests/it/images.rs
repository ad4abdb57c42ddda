//! Golden images.

use crate::common::*;
use fermata_store::{Class, Error, ImageReader, Progress};
use fermata_types::*;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// Blocks of seeds; seed 0 is a zero block.
#[derive(Default)]
struct Image {
    seeds: Mutex<Vec<u64>>,
    reads: AtomicU64,
    broken: bool,
    /// Somebody has written to it.
    written: AtomicBool,
}

impl Image {
    fn new(seeds: impl IntoIterator<Item = u64>) -> Arc<Self> {
        Arc::new(Self { seeds: Mutex::new(seeds.into_iter().collect()), ..Self::default() })
    }
}

impl ImageReader for Image {
    fn blocks(&self) -> u64 {
        self.seeds.lock().unwrap().len() as u64
    }

    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> std::io::Result<()> {
        self.reads.fetch_add(1, Relaxed);
        if self.broken && block == 700 {
            return Err(std::io::Error::other("the medium is broken"));
        }
        match self.seeds.lock().unwrap()[block as usize] {
            0 => into.fill(0),
            seed => *into = page(seed),
        }
        Ok(())
    }

    fn check(&self) -> std::io::Result<()> {
        if self.written.load(Relaxed) { Err(std::io::Error::other("it was written to")) } else { Ok(()) }
    }
}

const ID: ImageId = ImageId([7; 32]);

#[test]
fn blocks_of_an_image_are_never_stored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    // Larger than one read, with zero blocks and doubles.
    let image = Image::new((0..1500).map(|block| if block % 10 == 0 { 0 } else { block % 1000 }));
    let (name, own) = {
        let store = open(&path).unwrap();
        let mut seen = Vec::new();
        store.add_image(ID, image.clone(), &mut |progress| seen.push(progress)).unwrap();
        assert_eq!(seen.last(), Some(&Progress { done: 1500, total: 1500 }));
        let mut writer = store.writer().unwrap();
        let before = writer.stored_bytes().unwrap();
        let (name, class) = writer.put_page(&page(999)).unwrap();
        assert_eq!(class, Class::OnDisk);
        assert_eq!(writer.stored_bytes().unwrap(), before);
        let (own, class) = writer.put_page(&page(5000)).unwrap();
        assert_eq!(class, Class::New);
        let error = writer.commit(&record(None, "main", "")).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains(&ID.to_string()), "{error}");
        let mut writer = store.writer().unwrap();
        writer.put_page(&page(999)).unwrap();
        writer.put_page(&page(5000)).unwrap();
        let mut record = record(None, "main", "");
        record.images.push(ID);
        writer.commit(&record).unwrap();
        (name, own)
    };
    let store = open(&path).unwrap();
    // Known, but not open.
    assert!(matches!(read(&store, &name), Err(Error::ImageNotOpen { image: ID, .. })));
    assert_eq!(read(&store, &own).unwrap(), page(5000));
    let reads = image.reads.load(Relaxed);
    store.add_image(ID, image.clone(), &mut |_| panic!("nothing to do")).unwrap();
    assert_eq!(image.reads.load(Relaxed), reads, "hashed only once");
    assert_eq!(read(&store, &name).unwrap(), page(999));
    let both = Mutex::new(Vec::new());
    store
        .read_pages(vec![(1, name), (2, own)], &|number, content| {
            both.lock().unwrap().push((number, *content));
            true
        })
        .unwrap();
    let mut both = both.into_inner().unwrap();
    both.sort_by_key(|(number, _)| *number);
    assert_eq!(both, [(1, page(999)), (2, page(5000))]);
}

#[test]
fn nothing_is_learned_from_an_image_that_changes() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let image = Image::new(1..=100);
    image.seeds.lock().unwrap()[49] = 5000;
    image.written.store(true, Relaxed);
    let error = store.add_image(ID, image.clone(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("was written to"), "{error}");
    // It is put back.
    image.seeds.lock().unwrap()[49] = 50;
    image.written.store(false, Relaxed);
    store.add_image(ID, image, &mut |_| {}).unwrap();
    let mut writer = store.writer().unwrap();
    assert_eq!(writer.put_page(&page(50)).unwrap().1, Class::OnDisk);
    assert_eq!(writer.put_page(&page(5000)).unwrap().1, Class::New, "no block of the image has it");
}

#[test]
fn an_image_that_changed_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let image = Image::new(1..=100);
    store.add_image(ID, image.clone(), &mut |_| {}).unwrap();
    let name = store.writer().unwrap().put_page(&page(50)).unwrap().0;
    assert!(read(&store, &name).is_ok());
    image.seeds.lock().unwrap()[49] = 5000;
    let error = read(&store, &name).unwrap_err();
    assert!(matches!(error, Error::ImageChanged { image: ID, .. }), "{error}");
    assert!(error.to_string().contains("changed under us"), "{error}");
    image.seeds.lock().unwrap().truncate(10);
    assert!(matches!(read(&store, &name), Err(Error::ImageChanged { .. })));
    assert!(matches!(store.add_image(ID, image, &mut |_| {}), Err(Error::ImageChanged { .. })));
}

#[test]
fn a_checkpoint_does_not_come_to_depend_on_an_image_that_it_does_not_stand_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let image = Image::new(1..=100);
    open(&path).unwrap().add_image(ID, image.clone(), &mut |_| {}).unwrap();
    // Another run, without the image.
    let name = {
        let store = open(&path).unwrap();
        let mut writer = store.writer().unwrap();
        let (name, class) = writer.put_page(&page(50)).unwrap();
        assert_eq!(class, Class::New);
        writer.commit(&record(None, "main", "")).unwrap();
        assert_eq!(read(&store, &name).unwrap(), page(50));
        name
    };
    // And with another image that has the same block.
    let store = open(&path).unwrap();
    store.add_image(ImageId([8; 32]), Image::new(40..60), &mut |_| {}).unwrap();
    assert_eq!(read(&store, &name).unwrap(), page(50));
    assert_eq!(store.writer().unwrap().put_page(&page(50)).unwrap().1, Class::Known { distance: 1 });
}

#[test]
fn an_image_cut_short_is_hashed_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let broken = Arc::new(Image { seeds: Mutex::new((1..=1000).collect()), broken: true, ..Image::default() });
    let error = store.add_image(ID, broken, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("the medium is broken"), "{error}");
    let image = Image::new(1..=1000);
    store.add_image(ID, image.clone(), &mut |_| {}).unwrap();
    assert_eq!(image.reads.load(Relaxed), 1000);
    assert_eq!(store.writer().unwrap().put_page(&page(701)).unwrap().1, Class::OnDisk);
}
