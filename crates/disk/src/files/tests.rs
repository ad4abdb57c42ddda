//! Real file systems, changed by e2fsprogs, and what was changed.

use super::*;
use crate::still::tests::Plain;
use proptest::prelude::*;
use std::{fs, path::Path, process::Command};

fn run(program: &str, arguments: &[&str], path: &Path) {
    let done = Command::new(program).args(arguments).arg(path).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(done.status.success(), "{program} {arguments:?}: {}{}", text(&done.stdout), text(&done.stderr));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A file system with some directories, files and a link in it.
fn make(path: &Path, options: &[&str]) {
    let from = tempfile::tempdir().unwrap();
    for directory in ["etc", "etc/deep", "many"] {
        fs::create_dir(from.path().join(directory)).unwrap();
    }
    for (name, bytes) in [("etc/passwd", 700), ("etc/deep/large", 300_000), ("etc/shadow", 9), ("kept", 5000), ("empty", 0)] {
        fs::write(from.path().join(name), vec![b'x'; bytes]).unwrap();
    }
    // More than one block of names.
    (0..600).for_each(|number| fs::write(from.path().join(format!("many/{number:0>40}")), "").unwrap());
    std::os::unix::fs::symlink("passwd", from.path().join("etc/link")).unwrap();
    fs::File::create(path).unwrap().set_len(24 << 20).unwrap();
    run("mke2fs", &[&["-q", "-F", "-t", "ext4", "-d", from.path().to_str().unwrap()], options].concat(), path);
}

fn debugfs(path: &Path, script: &str) {
    let file = path.with_extension("script");
    fs::write(&file, script).unwrap();
    run("debugfs", &["-w", "-f", file.to_str().unwrap()], path);
}

fn differing(a: &[u8], b: &[u8]) -> PageSet {
    let blocks = a.chunks(PAGE_SIZE).zip(b.chunks(PAGE_SIZE)).zip(0..);
    blocks.filter(|((a, b), _)| a != b).map(|(_, block)| block).collect()
}

/// What became of which file, in short.
fn told(a: &Plain, b: &Plain) -> Vec<String> {
    let found = compare(a, b, &differing(&a.0, &b.0));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].unread, &found[0].unclear), (0, &None), "{found:?}");
    let sizes = |file: &FileDiffers| [file.size_a, file.size_b].map(|size| size.map_or("-".to_owned(), |size| size.to_string())).join(" ");
    found[0].files.iter().map(|file| format!("{:?} {:?} {} {}", file.change, file.kind, file.path, sizes(file))).collect()
}

#[track_caller]
fn check(options: &[&str]) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image");
    make(&path, options);
    let before = Plain(fs::read(&path).unwrap());
    assert_eq!(told(&before, &before), Vec::<String>::new());
    let new = place.path().join("new");
    fs::write(&new, vec![b'n'; 12_345]).unwrap();
    let last = format!("{:0>40}", 599);
    debugfs(&path, &format!("rm /etc/shadow\nwrite {} /etc/new\nmkdir /var\nrm /many/{last}\nsif /etc/link mode 0120700\n", new.display()));
    let mut after = fs::read(&path).unwrap();
    // Written over where it lies, so that no inode knows of it: at the end of a file of several blocks.
    let large = after.windows(300_000).position(|window| window.iter().all(|byte| *byte == b'x')).expect("the file lies together");
    after[large + 290_000] = b'y';
    let after = Plain(after);
    let expected = [
        "Changed File /etc/deep/large 300000 300000".to_owned(),
        "Changed Link /etc/link 6 6".to_owned(),
        "Added File /etc/new - 12345".to_owned(),
        "Removed File /etc/shadow 9 -".to_owned(),
        format!("Removed File /many/{last} 0 -"),
        "Added Directory /var - 0".to_owned(),
    ];
    let mut found = told(&before, &after);
    // A directory has whole blocks.
    found
        .iter_mut()
        .filter(|line| line.contains("/var"))
        .for_each(|line| *line = line.replace(|c: char| c.is_ascii_digit(), "").trim().to_owned() + " 0");
    assert_eq!(found, expected);
    // The other way round.
    assert!(told(&after, &before).contains(&"Added File /etc/shadow - 9".to_owned()));
}

#[test]
fn files_that_differ_are_found() {
    check(&["-b", "4096"]);
    check(&["-b", "1024"]);
    check(&["-b", "2048", "-O", "^64bit,^metadata_csum", "-I", "128"]);
}

#[test]
fn a_file_system_that_was_made_has_all_its_files() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image");
    make(&path, &[]);
    let after = Plain(fs::read(&path).unwrap());
    let files = told(&Plain(vec![0; after.0.len()]), &after);
    assert!(files.len() > 600 && files.contains(&"Added File /etc/passwd - 700".to_owned()), "{}", files.len());
    assert!(files.iter().all(|file| file.starts_with("Added ")));
    let none = Plain(vec![0; after.0.len()]);
    assert_eq!(compare(&none, &none, &PageSet::new()), []);
}

#[test]
fn what_cannot_be_read_is_told() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image");
    make(&path, &["-b", "4096"]);
    let before = Plain(fs::read(&path).unwrap());
    let why = |script: &str| {
        fs::write(&path, &before.0).unwrap();
        debugfs(&path, script);
        let after = Plain(fs::read(&path).unwrap());
        compare(&before, &after, &differing(&before.0, &after.0)).remove(0)
    };
    // A directory that is its own child is read once.
    let looped = why("link /etc /etc/deep/again\n");
    assert_eq!((looped.unread, looped.files.len()), (0, 1), "{looped:?}");
    let cut = why("sif /etc block[0] 0\n");
    assert!(cut.unread == 1 && cut.unclear.as_ref().is_some_and(|why| why.contains("/etc: ")), "{cut:?}");
    assert!(cut.files.iter().any(|file| file.path == "/etc/passwd" && file.change == FileChange::Removed));
    let nowhere = why("sif /etc/deep/large block[2] 4000000000\nsif /etc/deep/large block[5] 4000000000\n");
    assert!(nowhere.files.iter().any(|file| file.path == "/etc/deep/large"), "{nowhere:?}");
    let rootless = why("sif / mode 0100644\n");
    assert!(rootless.unclear.is_some_and(|why| why.contains("root is no directory")));
}

#[test]
fn there_is_an_end_to_it() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image");
    make(&path, &[]);
    let image = Plain(fs::read(&path).unwrap());
    let disk = Disk(&image);
    let layout = Layout::read(&disk, 0).unwrap().unwrap();
    let recovered = Recovered::read(&disk, &layout).unwrap();
    let why = |budget: Budget| compare_recovered(None, Some(&recovered), &PageSet::new(), budget).unwrap_err().0;
    assert!(compare_recovered(None, Some(&recovered), &PageSet::new(), BUDGET).is_ok());
    assert!(why(Budget { blocks: 20, ..BUDGET }).contains("more blocks"));
    assert!(why(Budget { files: 100, ..BUDGET }).contains("more files"));
    assert!(why(Budget { path_bytes: 1000, ..BUDGET }).contains("more files"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever a guest writes, reading ends, and no file is told twice.
    #[test]
    fn a_spoiled_file_system_is_read_to_an_end(places in prop::collection::vec((0.0..1.0f64, any::<[u8; 4]>()), 1..40)) {
        let image = spoiled();
        let mut after = Plain(image.clone());
        for (place, bytes) in places {
            // Where metadata is: the first groups' descriptors, inodes and directories.
            let at = (place * place * 4e6) as usize;
            after.0[at..at + 4].copy_from_slice(&bytes);
        }
        let before = Plain(image);
        for found in compare(&before, &after, &differing(&before.0, &after.0)) {
            prop_assert!(found.files.windows(2).all(|pair| pair[0].path <= pair[1].path));
        }
    }
}

fn spoiled() -> Vec<u8> {
    static IMAGE: std::sync::LazyLock<Vec<u8>> = std::sync::LazyLock::new(|| {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("image");
        make(&path, &["-b", "1024"]);
        fs::read(&path).unwrap()
    });
    IMAGE.clone()
}
