//! Golden images: the same content has the same name however it is stored, and a change is found.

mod common;

use common::image;
use fermata_disk::{Error, Format, Golden};
use fermata_store::ImageReader;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder, FormatDriverBuilder, Storage, StorageCreateOptions, qcow2::Qcow2};
use std::{
    fs::{self, OpenOptions},
    io::{Seek, SeekFrom, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::Duration,
};

fn open(path: &Path, cache: &Path) -> Result<Golden, Error> {
    Golden::open(path, None, cache, &mut |_| {})
}

fn content() -> Vec<u8> {
    let mut content: Vec<u8> = (0..3_000_000u32).map(|i| (i / 97) as u8).collect();
    content[100_000..1_500_000].fill(0);
    content.truncate(2_999_808);
    content
}

type Storages = imago::file::File;

fn make_qcow2(dir: &Path, content: &[u8]) -> PathBuf {
    let path = dir.join("golden.qcow2");
    let storage = Storages::create_open(StorageCreateOptions::new().filename(&path)).unwrap();
    Qcow2::<Storages>::create_builder(storage).size(content.len() as u64).create().unwrap();
    let storage = Storages::open(imago::StorageOpenOptions::new().filename(&path).write(true)).unwrap();
    let image = FormatAccess::new(Qcow2::<Storages>::builder(storage).write(true).open(DenyImplicitOpenGate::default()).unwrap());
    for (i, chunk) in content.chunks(65536).enumerate() {
        if chunk.iter().any(|byte| *byte != 0) {
            image.write(chunk, i as u64 * 65536).unwrap();
        }
    }
    image.flush().unwrap();
    path
}

fn check_content(golden: &Golden, content: &[u8]) {
    assert_eq!(golden.size(), content.len().next_multiple_of(512) as u64);
    let mut all = vec![1; golden.blocks() as usize * 4096];
    golden.read_at(0, &mut all).unwrap();
    assert!(all[..content.len()] == *content && all[content.len()..].iter().all(|byte| *byte == 0));
    let mut block = [1; 4096];
    for number in 0..golden.blocks() as u32 {
        golden.read_block(number, &mut block).unwrap();
        assert!(block == all[number as usize * 4096..][..4096], "block {number}");
    }
}

#[test]
fn the_name_is_that_of_the_content() {
    let dir = tempfile::tempdir().unwrap();
    let content = content();
    let raw = open(&image(dir.path(), &content), dir.path()).unwrap();
    check_content(&raw, &content);

    let sparse = dir.path().join("sparse.raw");
    let mut file = fs::File::create(&sparse).unwrap();
    for (i, chunk) in content.chunks(1000).enumerate().filter(|(_, chunk)| chunk.iter().any(|byte| *byte != 0)) {
        file.seek(SeekFrom::Start(i as u64 * 1000)).unwrap();
        file.write_all(chunk).unwrap();
    }
    file.set_len(content.len() as u64).unwrap();
    assert_eq!(open(&sparse, dir.path()).unwrap().id(), raw.id());

    let qcow2 = open(&make_qcow2(dir.path(), &content), dir.path()).unwrap();
    assert_eq!(qcow2.format(), Format::Qcow2);
    check_content(&qcow2, &content);
    assert_eq!(qcow2.id(), raw.id());

    let mut other = content.clone();
    other[2_000_000] ^= 1;
    let other = open(&image(dir.path(), &other), dir.path()).unwrap();
    assert_ne!(other.id(), raw.id());
    assert!(matches!(other.expect(&raw.id()), Err(Error::Changed { .. })));
    // Zeros at the end are content too.
    let mut longer = content.clone();
    longer.resize(content.len() + 8192, 0);
    assert_ne!(open(&image(dir.path(), &longer), dir.path()).unwrap().id(), raw.id());
}

#[test]
fn the_second_start_reads_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), &content());
    let mut told = 0;
    let id = Golden::open(&path, None, dir.path(), &mut |progress| told = progress.done).unwrap().id();
    assert_eq!(told, content().len() as u64);
    let again = Golden::open(&path, None, dir.path(), &mut |_| panic!("the image is read again")).unwrap();
    assert_eq!(again.id(), id);
    // As another format it is another image: nothing of the cache is believed.
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all(b"changed").unwrap();
    assert_ne!(open(&path, dir.path()).unwrap().id(), id);
}

#[test]
fn a_remembered_id_with_a_flipped_bit_is_found_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), &[1; 10_000]);
    let id = open(&path, dir.path()).unwrap().id();
    let is_cache = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    let cache = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).find(is_cache).unwrap();
    let known = fs::read(&cache).unwrap();
    for at in 0..known.len() {
        let mut flipped = known.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&cache, flipped).unwrap();
        let mut was_read = false;
        let again = Golden::open(&path, None, dir.path(), &mut |_| was_read = true).unwrap();
        assert!(was_read && again.id() == id, "byte {at}");
        assert_eq!(fs::read(&cache).unwrap(), known, "byte {at}: it is remembered again");
    }
}

#[test]
fn a_changed_image_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), &[1; 10_000]);
    let golden = open(&path, dir.path()).unwrap();
    golden.check_unchanged().unwrap();
    fs::hard_link(&path, dir.path().join("link")).unwrap();
    golden.check_unchanged().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    OpenOptions::new().write(true).open(&path).unwrap().write_all(b"x").unwrap();
    let error = golden.check_unchanged().unwrap_err();
    assert!(error.to_string().contains("was written to"), "{error}");

    let golden = open(&path, dir.path()).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(golden.check_unchanged().is_err());
    fs::write(&path, [1; 10_000]).unwrap();
    assert!(golden.check_unchanged().unwrap_err().to_string().contains("another file"));
}

#[test]
fn an_image_is_held_for_as_long_as_it_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), &[1; 10_000]);
    let file = fs::File::open(&path).unwrap();
    let [first, second] = [(); 2].map(|()| open(&path, dir.path()).unwrap());
    first.hold().unwrap();
    second.hold().unwrap();
    drop(first);
    assert!(file.try_lock().is_err());
    drop(second);
    let late = open(&path, dir.path()).unwrap();
    file.try_lock().unwrap();
    fs::remove_file(&path).unwrap();
    drop(file);
    assert!(late.hold().is_err(), "it is gone");
}

/// Overwrites a byte, and gives the file a time of its own, whatever the clock's resolution is. Returns how to take that back.
fn spoil(path: &Path, at: u64) -> impl FnOnce() + use<> {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
    file.set_modified(modified + Duration::from_secs(5)).unwrap();
    move || {
        file.write_all_at(&byte, at).unwrap();
        file.set_modified(modified).unwrap();
    }
}

#[test]
fn a_time_that_was_set_back_hides_nothing_from_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path(), &content());
    let golden = open(&path, dir.path()).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    let mut block = [0; 1000];
    for _ in 0..2 {
        let put_back = spoil(&path, 5000);
        file.set_modified(modified).unwrap();
        let error = golden.check_unchanged().unwrap_err().to_string();
        assert!(error.contains("its time was set back"), "{error}");
        // And what is known then, every reader knows.
        golden.read_at(0, &mut block).unwrap_err();
        golden.check_unchanged().unwrap_err();
        put_back();
        golden.check_unchanged().unwrap();
        check_content(&golden, &content());
    }
}

#[test]
fn what_was_changed_in_place_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let content = content();
    let raw = image(dir.path(), &content);
    let qcow2 = make_qcow2(dir.path(), &content);
    for path in [raw, qcow2] {
        let golden = open(&path, dir.path()).unwrap();
        let (mut block, mut page) = ([0; 1000], [0; 4096]);
        for _ in 0..2 {
            // In the second half of the file: in a qcow2 file behind its tables, but for the last.
            let put_back = spoil(&path, fs::metadata(&path).unwrap().len() / 2);
            for at in [0, 2_000_000] {
                let error = golden.read_at(at, &mut block).unwrap_err().to_string();
                assert!(error.contains("has changed") && error.contains("restore the image"), "{error}");
            }
            // The store compares what it reads with a name.
            golden.read_block(0, &mut page).unwrap();
            put_back();
            check_content(&golden, &content);
        }
        // What lies at the path does not matter to who has the file open. A checkpoint will refuse it.
        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        fs::write(&path, "another").unwrap();
        check_content(&golden, &content);
        golden.check_unchanged().unwrap_err();
    }
}

#[test]
fn tables_that_were_read_while_they_were_damaged_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let content = content();
    let path = make_qcow2(dir.path(), &content);
    let id = open(&path, dir.path()).unwrap().id();
    let bytes = fs::read(&path).unwrap();
    let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    let entries = (number(number(40) as usize) & 0x00ff_ffff_ffff_fe00) as usize;
    // The image's id is remembered, so nothing has been read of it but its header.
    let golden = Golden::open(&path, None, dir.path(), &mut |_| panic!("the image is read")).unwrap();
    assert_eq!(golden.id(), id);
    // The table says now that the first cluster lies where the second does.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(&bytes[entries + 8..entries + 16], entries as u64).unwrap();
    file.set_modified(modified + Duration::from_secs(5)).unwrap();
    let mut page = [0; 4096];
    golden.read_block(0, &mut page).unwrap();
    assert!(page == content[65536..][..4096], "the damaged table was read");
    file.write_all_at(&bytes[entries..entries + 8], entries as u64).unwrap();
    file.set_modified(modified).unwrap();
    check_content(&golden, &content);
}

#[test]
fn what_is_no_good_image_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let refused = |path: &Path| open(path, dir.path()).unwrap_err();
    assert!(matches!(refused(&dir.path().join("missing")), Error::Io { .. }));
    assert!(matches!(refused(dir.path()), Error::Unsupported { .. }));
    assert!(matches!(refused(&path("empty", b"")), Error::Unsupported { .. }));
    assert!(matches!(refused(&path("short", b"QFI\xfb\0\0\0\x03")), Error::Corrupt { .. }));
    assert!(matches!(
        refused(&path("nonsense", &[b"QFI\xfb\0\0\0\x03".to_vec(), vec![0; 500]].concat())),
        Error::Corrupt { .. } | Error::Unsupported { .. }
    ));

    let good = fs::read(make_qcow2(dir.path(), &content())).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut image = good.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        path("bent.qcow2", &image)
    };
    let backing = refused(&with(8, &0x100u64.to_be_bytes()));
    assert!(matches!(&backing, Error::Unsupported { what, .. } if what.contains("backing")), "{backing}");
    assert!(matches!(refused(&with(32, &1u32.to_be_bytes())), Error::Unsupported { .. }));
    assert!(matches!(refused(&with(72, &4u64.to_be_bytes())), Error::Unsupported { .. }));
    assert!(matches!(refused(&with(72, &2u64.to_be_bytes())), Error::Corrupt { .. }));
    // Cut off in the middle of its tables or its data.
    for len in [100, 5000, 65536, 200_000, 300_000] {
        let _ = open(&path("cut.qcow2", &good[..len]), dir.path());
    }
    // The same bytes are a fine raw disk, if one says so.
    let raw = Golden::open(&path("named.raw", &good), Some(Format::Raw), dir.path(), &mut |_| {}).unwrap();
    assert_eq!(raw.format(), Format::Raw);
}
