//! Golden images that travel, with faults at every step of the way.

use super::*;
use crate::{ImageHasher, ImageReader};
use fermata_types::{ImageId, PAGE_SIZE, PageBuf, PageNumber};
use std::os::unix::fs::MetadataExt as _;

/// An image in memory, which may be cut short in its last block.
pub struct Image(pub Vec<u8>);

impl ImageReader for Image {
    fn blocks(&self) -> u64 {
        self.0.len().div_ceil(PAGE_SIZE) as u64
    }

    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> io::Result<()> {
        let from = &self.0[block as usize * PAGE_SIZE..];
        let length = from.len().min(PAGE_SIZE);
        into.fill(0);
        into[..length].copy_from_slice(&from[..length]);
        Ok(())
    }
}

/// Two levels of table, most of it holes, the last block cut short.
pub fn image() -> Image {
    let mut bytes = vec![0; 1300 * PAGE_SIZE + 512];
    for block in (0..40).chain(700..720) {
        bytes[block * PAGE_SIZE..][..PAGE_SIZE].copy_from_slice(&page(5000 + block as u64));
    }
    bytes[1300 * PAGE_SIZE..].fill(9);
    Image(bytes)
}

fn id_of(image: &Image) -> ImageId {
    let mut hasher = ImageHasher::new(image.bytes());
    let mut content = [0; PAGE_SIZE];
    for block in 0..image.blocks() {
        image.read_block(block as PageNumber, &mut content).unwrap();
        hasher.block(block, &content);
    }
    hasher.finish()
}

/// A checkpoint that stands on an image, and has two pages of it in its memory.
pub fn standing(store: &Store, image: Image) -> (CheckpointId, ImageId) {
    let id = id_of(&image);
    store.add_image(id, Arc::new(image), &mut |_| {}).unwrap();
    let mut writer = store.writer().unwrap();
    writer.stand_on(&[id]);
    let pages = [page(5003), page(5710), page(1)].map(|page| writer.put_page(&page).unwrap().0);
    let changes: Vec<_> = pages.into_iter().zip(0..).map(|(name, number)| (number, Some(name))).collect();
    let ram = writer.update_table(&Root::empty(4000), &changes).unwrap();
    let record = Record { branch: "golden".into(), images: vec![id], ..record(None, 1, ram, BTreeMap::new()) };
    (writer.commit(&record).unwrap(), id)
}

/// Pulls the image as well, as whoever lacks it does.
pub fn pull_both(store: &Store, place: &Place, id: &CheckpointId, image: &ImageId) -> Result<Pulled> {
    let mut pull = store.begin_pull(place, "lab", &[*id], &PullOptions::default())?;
    pull.image(image, &mut |_, _| {})?;
    all_came(pull.finish(&mut |_, _| {})?)
}

pub fn content(store: &Store, image: &ImageId) -> Vec<u8> {
    fs::read(store.own_image(image)).unwrap()
}

#[test]
fn an_image_comes_along_once() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let (id, image_id) = standing(&from, image());
    let pushed = push(&from, &place, &[id]).unwrap();
    // 61 blocks of the image, and the one page that is not in it.
    assert_eq!((pushed.images, pushed.checkpoints, pushed.pages), (1, 1, 62));
    assert_eq!(push(&from, &place, &[id]).unwrap(), Pushed::default());
    assert_eq!(from.remote_images(&place).unwrap(), [image_id].into());
    let pulled = pull_both(&to, &place, &id, &image_id).unwrap();
    assert_eq!((pulled.images, pulled.checkpoints), (1, 1));
    assert!(content(&to, &image_id) == image().0, "it is the same image");
    assert_eq!(to.own_images().into_keys().collect::<Vec<_>>(), [image_id]);
    assert_eq!(pages(&to, &id), pages(&from, &id));
    assert_whole(&to);
    assert!(!to.path().join("remotes/incoming").exists());
    let other = ImageId([7; 32]);
    let mut pull = to.begin_pull(&place, "lab", &[id], &PullOptions::default()).unwrap();
    assert_eq!(pull.image(&other, &mut |_, _| {}).unwrap(), None);
}

#[test]
fn an_image_that_came_goes_when_no_checkpoint_stands_on_it() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let (id, image_id) = standing(&from, image());
    push(&from, &place, &[id]).unwrap();
    pull_both(&to, &place, &id, &image_id).unwrap();
    let is_there = || to.own_image(&image_id).exists();
    let collect = |dry_run| {
        let told = to.collect(&CollectOptions { dry_run, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
        (told.images, told.image_bytes > 0)
    };
    assert_eq!((collect(false), is_there()), ((0, false), true));
    // A checkpoint that was removed, and that somebody holds, is one all the same.
    let held = to.hold(&id).unwrap();
    to.remove(&Removal { checkpoints: vec![id], ..Removal::default() }).unwrap();
    assert_eq!((collect(false), is_there()), ((0, false), true));
    drop(held);
    // So is one that may come.
    let open = fs::File::open(to.own_image(&image_id)).unwrap();
    open.lock_shared().unwrap();
    assert_eq!((collect(false), is_there()), ((0, false), true));
    drop(open);
    assert_eq!((collect(true), is_there()), ((1, true), true));
    assert_eq!((collect(false), is_there()), ((1, true), false));
    assert_whole(&to);
    // Those of a user stay, and this one may come again.
    pull_both(&to, &place, &id, &image_id).unwrap();
    assert!(content(&to, &image_id) == image().0, "it is the same image");
}

/// A pull whose checkpoints are yet to come, beside collections.
#[test]
fn an_image_that_just_came_stays_for_its_checkpoints() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let (id, image_id) = standing(&from, image());
    push(&from, &place, &[id]).unwrap();
    let mut pull = to.begin_pull(&place, "lab", &[id], &PullOptions::default()).unwrap();
    let path = pull.image(&image_id, &mut |_, _| {}).unwrap().unwrap();
    let again = fs::File::open(&path).unwrap();
    assert!(again.try_lock().is_err(), "whoever collects could have it");
    assert!(again.try_lock_shared().is_ok(), "nobody could open it");
    drop(again);
    pull.finish(&mut |_, _| {}).unwrap();
    to.collect(&CollectOptions::default(), &mut |_, _| {}).unwrap();
    assert!(path.exists());
}

/// Of two who fetch the same image the slower one leaves that of the faster as it is: a machine may stand on it, and would take no checkpoint over another file.
#[test]
fn an_image_that_somebody_has_open_stays_the_same_file() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let (id, image_id) = standing(&from, image());
    push(&from, &place, &[id]).unwrap();
    let mut slower = to.begin_pull(&place, "lab", &[id], &PullOptions::default()).unwrap();
    pull_both(&to, &place, &id, &image_id).unwrap();
    let open = fs::File::open(to.own_image(&image_id)).unwrap();
    open.lock_shared().unwrap();
    let path = slower.image(&image_id, &mut |_, _| {}).unwrap().unwrap();
    assert_eq!(path.metadata().unwrap().ino(), open.metadata().unwrap().ino());
    slower.finish(&mut |_, _| {}).unwrap();
    assert_whole(&to);
}

/// Sent without its image, a checkpoint has all its pages there; the image may follow.
#[test]
fn an_image_may_come_later() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let (id, image_id) = standing(&from, image());
    let without = PushOptions { images: false, ..PushOptions::default() };
    let pushed = from.push(&place, &[id], &without, &mut |_, _| {}).unwrap();
    assert_eq!((pushed.images, pushed.pages), (0, 3));
    let there = tempfile::tempdir().unwrap();
    let to = store(there.path());
    pull(&to, &place, &[id]).unwrap();
    assert_whole(&to);
    let pushed = push(&from, &place, &[id]).unwrap();
    assert_eq!((pushed.images, pushed.checkpoints, pushed.pages), (1, 0, 59));
    pull_both(&to, &place, &id, &image_id).unwrap();
    assert!(content(&to, &image_id) == image().0, "it is the same image");
}

#[test]
fn an_image_that_is_not_open_is_missed() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let (id, _) = standing(&store(here.path()), image());
    let error = push(&store(here.path()), &place, &[id]).unwrap_err().to_string();
    assert!(error.contains("not open") && error.contains("--no-images"), "{error}");
}

/// Of an image of another content under this id, and of one that changes while it is sent, nothing can be seen there.
#[test]
fn an_image_that_is_another_one_is_found_out() {
    let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Place::new());
    let (from, to) = (store(here.path()), store(there.path()));
    let (id, image_id) = standing(&from, image());
    let mut other = image();
    other.0[3] ^= 1;
    from.add_image(image_id, Arc::new(other), &mut |_| {}).unwrap();
    assert!(matches!(push(&from, &place, &[id]), Err(Error::ImageChanged { .. })));
    assert_eq!(from.remote_images(&place).unwrap(), [].into());
    from.add_image(image_id, Arc::new(image()), &mut |_| {}).unwrap();
    push(&from, &place, &[id]).unwrap();
    // The right blocks under another image's name.
    let wrong = ImageId([7; 32]);
    let object = place.objects("images/").remove(0);
    fs::copy(object, place.path(&image::name(&wrong, "1"))).unwrap();
    let error = pull_both(&to, &place, &id, &wrong).unwrap_err().to_string();
    assert!(error.contains("another image"), "{error}");
    assert_eq!(to.own_images().len(), 0);
}

#[test]
fn sending_an_image_may_fail_at_any_step() {
    let here = tempfile::tempdir().unwrap();
    let from = store(here.path());
    let (id, image_id) = standing(&from, image());
    for steps in 0.. {
        let place = Place::new();
        place.fail_after(Some(steps));
        let pushed = push(&from, &place, &[id]);
        place.fail_after(None);
        let there = tempfile::tempdir().unwrap();
        let to = store(there.path());
        if place.path(FORMAT).exists() && from.remote_images(&place).unwrap().contains(&image_id) {
            let mut pull = to.begin_pull(&place, "lab", &[], &PullOptions::default()).unwrap();
            assert!(pull.image(&image_id, &mut |_, _| {}).unwrap().is_some(), "after {steps} steps");
            assert!(content(&to, &image_id) == image().0, "after {steps} steps");
        }
        push(&from, &place, &[id]).unwrap();
        pull_both(&to, &place, &id, &image_id).unwrap();
        assert!(content(&to, &image_id) == image().0, "after {steps} steps");
        if pushed.is_ok() {
            assert!(steps > 8, "only {steps} steps");
            return;
        }
    }
}

#[test]
fn fetching_an_image_may_fail_at_any_step() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let (id, image_id) = standing(&from, image());
    push(&from, &place, &[id]).unwrap();
    // Steps of the way, then steps of the disk.
    for on_disk in [false, true] {
        for steps in 0.. {
            let there = tempfile::tempdir().unwrap();
            drop(store(there.path()));
            let pulled = {
                place.fail_after((!on_disk).then_some(steps));
                let medium = Arc::new(Failing::after(on_disk.then_some(steps)));
                open_on(there.path(), medium).and_then(|to| pull_both(&to, &place, &id, &image_id))
            };
            place.fail_after(None);
            let to = store(there.path());
            assert_whole(&to);
            if to.own_image(&image_id).exists() {
                assert!(content(&to, &image_id) == image().0, "after {steps} steps");
            }
            if pulled.is_ok() {
                assert!(steps > 5, "only {steps} steps");
                break;
            }
            pull_both(&to, &place, &id, &image_id).unwrap();
            assert!(content(&to, &image_id) == image().0, "after {steps} steps");
            assert_whole(&to);
        }
    }
}

/// A flipped bit anywhere in what a remote has does not make another image.
#[test]
fn an_image_of_a_remote_that_lies_is_not_made() {
    let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
    let from = store(here.path());
    let (id, image_id) = standing(&from, image());
    push(&from, &place, &[id]).unwrap();
    let mut refused = 0;
    for object in place.objects("packs/").into_iter().chain(place.objects("images/")) {
        let good = fs::read(&object).unwrap();
        for at in (0..good.len()).step_by((good.len() / 40).max(1)) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&object, &bad).unwrap();
            let there = tempfile::tempdir().unwrap();
            let to = store(there.path());
            refused += u32::from(pull_both(&to, &place, &id, &image_id).is_err());
            if to.own_image(&image_id).exists() {
                assert!(content(&to, &image_id) == image().0, "{} at {at}", object.display());
            }
        }
        fs::write(&object, &good).unwrap();
    }
    assert!(refused > 30, "only {refused} lies were found");
}
