//! Sweeps over more than one piece: several threads read, and what they do together is what one would have done.

use crate::common::*;
use fermata_store::{Error, ImageReader, Result, Store};
use fermata_types::*;
use std::{
    collections::{BTreeMap, HashSet},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread::{self, ThreadId},
};

/// Pages of each pack, and of the image: 6 MiB, which is six pieces.
const PAGES: u64 = 1536;
const IMAGE: ImageId = ImageId([9; 32]);
/// Threads of a sweep at most.
const HANDS_MAX: usize = 16;

struct Image {
    changed: Mutex<Option<PageNumber>>,
}

impl ImageReader for Image {
    fn blocks(&self) -> u64 {
        PAGES
    }

    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> std::io::Result<()> {
        *into = noise(seed_of_block(block) + u64::from(*self.changed.lock().unwrap() == Some(block)));
        Ok(())
    }
}

fn seed_of_block(block: PageNumber) -> u64 {
    1_000_000 + 2 * u64::from(block)
}

struct Sample {
    store: Store,
    image: Arc<Image>,
    /// Names in the order of their numbers, and the seeds of their contents.
    pages: Vec<(PageName, u64)>,
}

/// Two packs and an image of pages that do not compress; a fifth of them is wanted twice.
fn sample(path: &Path) -> Sample {
    let store = open(path).unwrap();
    let image = Arc::new(Image { changed: Mutex::default() });
    store.add_image(IMAGE, image.clone(), &mut |_| {}).unwrap();
    let mut pages = Vec::new();
    for pack in 0..2 {
        let mut writer = store.writer().unwrap();
        let mut put = |seed| pages.push((writer.put_page(&noise(seed)).unwrap().0, seed));
        (pack * PAGES..(pack + 1) * PAGES).for_each(&mut put);
        if pack == 1 {
            (0..PAGES as PageNumber).for_each(|block| put(seed_of_block(block)));
        }
        let mut record = record(None, &format!("b{pack}"), "");
        record.images.push(IMAGE);
        writer.commit(&record).unwrap();
    }
    pages.extend_from_within(..pages.len() / 5);
    Sample { store, image, pages }
}

impl Sample {
    fn sweep(&self, each: &(dyn Fn(PageNumber, &PageBuf) -> bool + Sync)) -> Result<()> {
        // Not in the order in which they lie.
        let mut wanted: Vec<_> = self.pages.iter().zip(0..).map(|((name, _), number)| (number, *name)).collect();
        wanted.reverse();
        self.store.read_pages(wanted, each)
    }

    fn assert_right(&self, number: PageNumber, found: &PageBuf) {
        assert!(*found == noise(self.pages[number as usize].1), "page {number} is a wrong one");
    }
}

/// Lets nobody on before two threads have come.
#[derive(Default)]
struct Meeting {
    came: Mutex<HashSet<ThreadId>>,
    news: Condvar,
}

impl Meeting {
    fn come(&self) {
        let mut came = self.came.lock().unwrap();
        came.insert(thread::current().id());
        self.news.notify_all();
        drop(self.news.wait_while(came, |came| came.len() < 2).unwrap());
    }
}

#[test]
fn all_pages_come_once_and_right_by_several_threads() {
    let dir = memory_dir();
    let sample = sample(dir.path());
    let (meeting, seen) = (Meeting::default(), Mutex::new(BTreeMap::new()));
    sample
        .sweep(&|number, found| {
            meeting.come();
            sample.assert_right(number, found);
            *seen.lock().unwrap().entry(number).or_insert(0) += 1;
            true
        })
        .unwrap();
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), sample.pages.len());
    assert!(seen.values().all(|times| *times == 1));
}

#[test]
fn it_ends_early_when_told_to() {
    let dir = memory_dir();
    let sample = sample(dir.path());
    let (calls, meeting) = (AtomicUsize::new(0), Meeting::default());
    sample
        .sweep(&|_, _| {
            calls.fetch_add(1, Relaxed);
            meeting.come();
            false
        })
        .unwrap();
    // Each thread is told once.
    assert!((2..=HANDS_MAX).contains(&calls.load(Relaxed)), "{calls:?}");
}

#[test]
fn one_damaged_page_among_many_gives_its_error() {
    // In a pack that is encrypted nobody finds a page by its bytes.
    if is_encrypted() {
        return;
    }
    let dir = memory_dir();
    let sample = sample(dir.path());
    let (damaged, seed) = sample.pages[PAGES as usize + 700];
    let content = noise(seed);
    let mut hit = None;
    for pack in packs(dir.path()) {
        let mut bytes = std::fs::read(&pack).unwrap();
        if let Some(at) = bytes.windows(PAGE_SIZE).position(|window| window == content) {
            bytes[at + 1000] ^= 4;
            std::fs::write(&pack, bytes).unwrap();
            hit = Some(pack);
        }
    }
    let error = sample
        .sweep(&|number, found| {
            sample.assert_right(number, found);
            true
        })
        .unwrap_err();
    let Error::Corrupt { path, object, .. } = error else { panic!("{error}") };
    assert_eq!((Some(path), object), (hit, format!("page {damaged}")));
}

#[test]
fn one_changed_block_of_an_image_is_noticed() {
    let dir = memory_dir();
    let sample = sample(dir.path());
    *sample.image.changed.lock().unwrap() = Some(1100);
    let error = sample
        .sweep(&|number, found| {
            sample.assert_right(number, found);
            true
        })
        .unwrap_err();
    let Error::ImageChanged { image, detail } = error else { panic!("{error}") };
    assert!(image == IMAGE && detail.contains("block 1100"), "{detail}");
}

#[test]
fn a_panic_in_any_thread_is_passed_on() {
    let dir = memory_dir();
    let sample = sample(dir.path());
    let caller = thread::current().id();
    for in_caller in [true, false] {
        let meeting = Meeting::default();
        let swept = catch_unwind(AssertUnwindSafe(|| {
            sample.sweep(&|_, _| {
                meeting.come();
                assert!((thread::current().id() == caller) != in_caller, "who takes pages gave up");
                true
            })
        }));
        let panic = swept.expect_err("it is not swallowed");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"who takes pages gave up"), "in the caller's thread: {in_caller}");
    }
}

#[test]
fn what_lies_in_a_frame_comes_along() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    let mut root = Root::empty(100);
    // A frame has sixteen pages: 0 to 15, 16 to 31, and in a pack of its own 40 alone. Between them lies nothing, and one page is another's.
    for pages in [0..33, 40..41] {
        let mut writer = store.writer().unwrap();
        let all: Vec<_> = pages.map(|page| (page, if page == 20 { 3 } else { u64::from(page) })).collect();
        root = put(&mut writer, &root, &all);
        writer.commit(&record_of(None, &format!("b{}", root.node.unwrap()), "", root)).unwrap();
    }
    let along = |pages| store.along(&root, pages, |_| true).unwrap();
    assert_eq!((along(0..1), along(7..9), along(15..16)), (0..16, 0..16, 0..16));
    // Page 20 names what lies in the first frame, and so there is one page more in the second one.
    assert_eq!((along(16..17), along(21..22), along(20..21)), (16..20, 21..33, 20..21));
    assert_eq!((along(40..41), along(50..51), along(99..100), along(14..18)), (40..41, 50..51, 99..100, 0..20));
    assert_eq!(store.along(&root, 7..8, |page| !(6..10).contains(&page)).unwrap(), 7..8);
    assert_eq!(store.along(&root, 7..8, |page| page != 10).unwrap(), 0..10);
}
