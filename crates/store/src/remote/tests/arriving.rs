//! Golden images that are read from a remote before they are here.

use super::{
    away::{assert_same_pages, fetch_so_far, no_image},
    images::{Image, content, image, standing},
    *,
};
use crate::{ImageReader, hash, remote::Away};
use fermata_types::{ImageId, PageBuf, PageNumber};
use std::{os::unix::fs::MetadataExt, time::Duration};

/// A store without an image, and a remote that has it with a checkpoint that stands on it.
struct Scene {
    _here: tempfile::TempDir,
    _there: tempfile::TempDir,
    from: Store,
    to: Store,
    place: Arc<Place>,
    id: CheckpointId,
    image: ImageId,
}

impl Scene {
    fn new() -> Self {
        let (here, there, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), Arc::new(Place::new()));
        let (from, to) = (store(there.path()), store(here.path()));
        let (id, image) = standing(&from, super::images::image());
        push(&from, &place, &[id]).unwrap();
        Self { _here: here, _there: there, from, to, place, id, image }
    }

    fn begin(&self) -> Arc<Away> {
        self.to.begin_away(Box::new(self.place.clone()), "lab", &self.id, || Duration::ZERO, &mut |_, _| {}).unwrap()
    }

    /// Reads it there from now on.
    fn open(&self, image: &ImageId, path: &Path) -> Result<()> {
        assert_eq!((image, path), (&self.image, self.to.own_image(&self.image).as_path()));
        assert!(fs::File::open(path).unwrap().try_lock().is_err(), "whoever collects could have it");
        self.to.add_image(*image, Arc::new(Image(fs::read(path).unwrap())), &mut |_| {})
    }

    /// The pack that has a block of the image.
    fn pack_of(&self, number: PageNumber) -> PathBuf {
        let going = lease::Going::look(&self.place).unwrap();
        let catalog = catalog::Catalog::read(&self.from, &self.place, 1, &going, false, &mut |_| {}).unwrap();
        let at = catalog.find(hash::page(&block(&image(), number)).as_bytes()).unwrap();
        self.place.path(&catalog::pack_name(&catalog.packs[at.pack as usize].id))
    }

    /// The object that says what the image is.
    fn record(&self) -> PathBuf {
        let name = self.image.to_string();
        let of_image = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&name);
        self.place.objects("images/").into_iter().find(of_image).unwrap()
    }
}

fn block(reader: &dyn ImageReader, number: PageNumber) -> PageBuf {
    let mut into = [0xaa; PAGE_SIZE];
    reader.read_block(number, &mut into).unwrap();
    into
}

#[test]
fn an_image_is_read_before_it_is_here_and_then_it_is() {
    let scene = Scene::new();
    let away = scene.begin();
    assert!(away.image(&ImageId([7; 32])).unwrap().is_none(), "the checkpoint does not stand on it");
    let reader = away.image(&scene.image).unwrap().unwrap();
    let expected = image();
    assert_eq!((reader.bytes(), reader.blocks()), (expected.bytes(), expected.blocks()));
    // Blocks of content, of zeros, and the last one, which is cut short.
    for number in 0..expected.blocks() as PageNumber {
        assert!(block(&*reader, number) == block(&expected, number), "block {number}");
    }
    assert_same_pages(&scene.to, &scene.from, &scene.id);
    assert_eq!(scene.to.own_images().len(), 0);
    let mut came = 0;
    let mut open = |image: &ImageId, path: &Path| {
        came += 1;
        assert!(scene.to.away().is_some(), "nobody may build upon it yet");
        scene.open(image, path)
    };
    away.fetch(&scene.place, &mut open, &mut || Ok(())).unwrap();
    assert!(came == 1 && scene.to.away().is_none());
    assert!(content(&scene.to, &scene.image) == expected.0, "it is the same image");
    // It does not need the remote any more.
    scene.place.fail_after(Some(0));
    assert_same_pages(&scene.to, &scene.from, &scene.id);
    assert_whole(&scene.to);
}

#[test]
fn whoever_needs_a_block_of_a_remote_that_is_lost_waits_for_it() {
    let scene = Scene::new();
    let away = scene.begin();
    let reader = away.image(&scene.image).unwrap().unwrap();
    scene.place.fail_after(Some(0));
    thread::scope(|scope| {
        let reads = scope.spawn(|| block(&*reader, 700));
        while !away.state().waited_for {
            thread::yield_now();
        }
        scene.place.fail_after(None);
        assert!(reads.join().unwrap() == block(&image(), 700), "it is the same block");
    });
    assert!(!away.state().waited_for);
    away.end();
    // Somebody who waits when all ends is told.
    let away = scene.begin();
    let reader = away.image(&scene.image).unwrap().unwrap();
    scene.place.fail_after(Some(0));
    thread::scope(|scope| {
        let reads = scope.spawn(|| reader.read_block(10, &mut [0; PAGE_SIZE]));
        while !away.state().waited_for {
            thread::yield_now();
        }
        away.end();
        let error = reads.join().unwrap().unwrap_err().to_string();
        assert!(error.contains(&scene.image.short()) && error.contains("the place"), "{error}");
    });
}

/// Whatever pack is gone before it begins. Who answered that nobody has a block would let its guest see a disk that fails.
#[test]
fn whoever_needs_a_block_that_a_remote_has_lost_waits_until_it_is_there_again() {
    let (scene, expected) = (Scene::new(), image());
    let blocks = expected.blocks() as PageNumber;
    let mut waits = 0;
    for pack in scene.place.objects("packs/") {
        let here = tempfile::tempdir().unwrap();
        let to = store(here.path());
        let begin = || to.begin_away(Box::new(scene.place.clone()), "lab", &scene.id, || Duration::ZERO, &mut |_, _| {}).unwrap();
        // The top of the table is known from before: without it nobody would stand on the image.
        let before = begin();
        before.image(&scene.image).unwrap().unwrap();
        before.end();
        let bytes = fs::read(&pack).unwrap();
        fs::remove_file(&pack).unwrap();
        let away = begin();
        let reader = away.image(&scene.image).unwrap().unwrap();
        let (state, same) = thread::scope(|scope| {
            let reads = scope.spawn(|| (0..blocks).all(|number| block(&*reader, number) == block(&expected, number)));
            while !away.state().waited_for && !reads.is_finished() {
                thread::yield_now();
            }
            let state = away.state();
            fs::write(&pack, &bytes).unwrap();
            (state, reads.join().unwrap())
        });
        assert!(same, "they are the same blocks");
        if state.waited_for {
            let trouble = state.trouble.unwrap();
            assert!(trouble.contains("is in no pack there") && trouble.contains("verify --repair"), "{trouble}");
            waits += 1;
        }
        assert_eq!((away.state().waited_for, away.state().trouble), (false, None));
        away.end();
    }
    // That of the blocks, and that of the nodes.
    assert!(waits >= 2, "only {waits} of the packs were waited for");
}

#[test]
fn a_block_that_a_remote_has_lost_comes_when_it_is_there_again_and_so_does_all() {
    let scene = Scene::new();
    let (pack, lost) = (scene.pack_of(700), scene.place.path("lost"));
    fs::rename(&pack, &lost).unwrap();
    let away = scene.begin();
    let reader = away.image(&scene.image).unwrap().unwrap();
    thread::scope(|scope| {
        let reads = scope.spawn(|| block(&*reader, 700));
        let fetches = scope.spawn(|| away.fetch(&scene.place, &mut |image, path| scene.open(image, path), &mut || Ok(())).is_some());
        while !away.state().waited_for && !reads.is_finished() {
            thread::yield_now();
        }
        let waited_for = away.state().waited_for;
        fs::rename(&lost, &pack).unwrap();
        assert!(reads.join().unwrap() == block(&image(), 700), "it is the same block");
        assert!(fetches.join().unwrap() && waited_for);
    });
    assert!(content(&scene.to, &scene.image) == image().0, "it is the same image");
    assert_same_pages(&scene.to, &scene.from, &scene.id);
    assert_whole(&scene.to);
}

#[test]
fn nobody_stands_on_an_image_that_lies_in_a_pack_that_cannot_be_read() {
    let scene = Scene::new();
    // What it has in its memory is not in the image.
    let mut writer = scene.from.writer().unwrap();
    writer.stand_on(&[scene.image]);
    let ram = writer.put_page(&page(2)).unwrap().0;
    let ram = writer.update_table(&Root::empty(4000), &[(0, Some(ram))]).unwrap();
    let record = Record { branch: "other".into(), images: vec![scene.image], ..record(None, 2, ram, BTreeMap::new()) };
    let id = writer.commit(&record).unwrap();
    push(&scene.from, &scene.place, &[id]).unwrap();
    let begin = || scene.to.begin_away(Box::new(scene.place.clone()), "lab", &id, || Duration::ZERO, &mut |_, _| {}).unwrap();
    let pack = scene.pack_of(700);
    let good = fs::read(&pack).unwrap();
    fs::write(&pack, &good[..good.len() - 1]).unwrap();
    let away = begin();
    let error = away.image(&scene.image).err().unwrap().to_string();
    assert!(error.contains("is in no pack at the place"), "{error}");
    away.end();
    fs::write(&pack, good).unwrap();
    let away = begin();
    let reader = away.image(&scene.image).unwrap().unwrap();
    assert!(block(&*reader, 700) == block(&image(), 700), "it is the same block");
    away.end();
}

/// The remote is cut off, and all ends, after any number of steps: what is there is whole, and the next one has it come.
#[test]
fn an_image_may_be_cut_off_at_any_step() {
    let scene = Scene::new();
    for steps in 0.. {
        let away = scene.begin();
        away.image(&scene.image).unwrap().unwrap();
        let done = fetch_so_far(&away, &scene.place, steps, &mut |image, path| scene.open(image, path));
        if scene.to.own_image(&scene.image).exists() {
            assert!(content(&scene.to, &scene.image) == image().0, "after {steps} steps");
        }
        assert_whole(&scene.to);
        if done {
            assert!(steps > 3, "only {steps} steps");
            break;
        }
    }
    assert_same_pages(&scene.to, &scene.from, &scene.id);
}

#[test]
fn an_image_that_somebody_else_has_open_by_then_stays_where_it_is() {
    let scene = Scene::new();
    let away = scene.begin();
    away.image(&scene.image).unwrap().unwrap();
    let mut pull = scene.to.begin_pull(&scene.place, "lab", &[scene.id], &PullOptions::default()).unwrap();
    let path = pull.image(&scene.image, &mut |_, _| {}).unwrap().unwrap();
    let inode = || fs::metadata(&path).unwrap().ino();
    let before = inode();
    away.fetch(&scene.place, &mut |image, path| scene.open(image, path), &mut || Ok(())).unwrap();
    assert_eq!(inode(), before);
    drop(pull);
    assert!(content(&scene.to, &scene.image) == image().0, "it is the same image");
    assert_whole(&scene.to);
}

/// Fetches from a remote that says something else of the image.
fn assert_found_out(scene: &Scene, away: &Away) {
    assert_eq!(away.fetch(&scene.place, &mut no_image, &mut || Ok(())), None);
    let state = away.state();
    assert!(state.waited_for, "the machines could go on");
    let lie = state.lie.unwrap();
    assert!(lie.contains(&scene.image.to_string()) && lie.contains("the place"), "{lie}");
    assert_eq!(state.trouble, Some(lie));
    assert!(!scene.to.await_away(&|| true), "nobody waits for what never comes");
    assert!(scene.to.own_images().is_empty() && scene.to.records().unwrap().is_empty());
    away.end();
    assert_whole(&scene.to);
}

#[test]
fn another_image_under_its_name_is_found_out_in_the_end() {
    let scene = Scene::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let mut other = image();
    other.0[3] ^= 1;
    let expected = block(&other, 0);
    let before = scene.place.objects("images/");
    let liar = store(elsewhere.path());
    let (id, _) = standing(&liar, other);
    push(&liar, &scene.place, &[id]).unwrap();
    let its = scene.place.objects("images/").into_iter().find(|object| !before.contains(object)).unwrap();
    fs::copy(its, scene.record()).unwrap();
    let away = scene.begin();
    let reader = away.image(&scene.image).unwrap().unwrap();
    assert!(block(&*reader, 0) == expected, "nobody can know yet");
    assert_found_out(&scene, &away);
}

#[test]
fn a_table_of_another_size_is_found_out() {
    const BLOCK: usize = PAGE_SIZE;
    let scene = Scene::new();
    let good = fs::read_to_string(scene.record()).unwrap();
    let bytes = image().bytes().to_string();
    // It names blocks behind the end; or is as it should be, of an image that is longer.
    for wrong in [1300 * BLOCK, 710 * BLOCK, 1302 * BLOCK, 512 * 512 * BLOCK] {
        fs::write(scene.record(), good.replace(&bytes, &wrong.to_string())).unwrap();
        let away = scene.begin();
        away.image(&scene.image).unwrap().unwrap();
        assert_found_out(&scene, &away);
    }
    // A node does not belong there.
    for wrong in [1, 512 * BLOCK, 512 * 512 * BLOCK + 1] {
        fs::write(scene.record(), good.replace(&bytes, &wrong.to_string())).unwrap();
        let away = scene.begin();
        assert!(away.image(&scene.image).is_err(), "{wrong} bytes");
        away.end();
    }
    fs::remove_file(scene.record()).unwrap();
    let away = scene.begin();
    assert!(away.image(&scene.image).unwrap().is_none());
    away.end();
}
