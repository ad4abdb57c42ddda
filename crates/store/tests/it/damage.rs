//! Damaged and foreign files: an error that names the file, never a wrong page, never a panic.

use crate::common::*;
use fermata_store::{CollectOptions, Error, Removal, Result, Store};
use fermata_types::*;
use std::path::{Path, PathBuf};

/// A small store with everything in it: pages that compress and pages that do not, nodes full and as deltas, a blob, records.
struct Sample {
    pages: Vec<(PageName, PageBuf)>,
    roots: Vec<(Root, Vec<(PageNumber, PageName)>)>,
    blob: (BlobName, Vec<u8>),
    ids: Vec<CheckpointId>,
}

fn sample(path: &Path) -> Sample {
    let store = open(path).unwrap();
    let blob: Vec<u8> = (0..3000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
    let mut sample = Sample { pages: Vec::new(), roots: Vec::new(), blob: (BlobName([0; 32]), blob), ids: Vec::new() };
    let mut root = Root::empty(10_000);
    for step in 0..2u64 {
        let mut writer = store.writer().unwrap();
        let mut changes = Vec::new();
        for i in 0..(if step == 0 { 20 } else { 3 }) {
            let content = if i == 1 { noise(step) } else { page(step * 100 + i) };
            let (name, _) = writer.put_page(&content).unwrap();
            sample.pages.push((name, content));
            changes.push(((i * 37) as PageNumber, Some(name)));
        }
        root = writer.update_table(&root, &changes).unwrap();
        sample.blob.0 = writer.put_blob(&sample.blob.1).unwrap();
        let mut record = record_of(sample.ids.last().copied(), "main", "", root);
        record.created_ns += step;
        sample.ids.push(writer.commit(&record).unwrap());
        let mut named = Vec::new();
        let each = &mut |page, name| {
            named.push((page, name));
            Ok(())
        };
        store.for_each_page(&root, each).unwrap();
        sample.roots.push((root, named));
    }
    sample
}

impl Sample {
    /// Reads everything. What is read is right; returns the errors.
    fn read(&self, store: &Store) -> Vec<Error> {
        let mut errors = Vec::new();
        let mut note = |result: Result<()>| errors.extend(result.err());
        for (name, content) in &self.pages {
            note(read(store, name).map(|found| assert_eq!(&found, content, "a wrong page")));
        }
        let wanted = self.pages.iter().zip(0..).map(|((name, _), number)| (number, *name)).collect();
        note(store.read_pages(wanted, &|number, found| {
            assert_eq!(found, &self.pages[number as usize].1, "a wrong page");
            true
        }));
        for (root, named) in &self.roots {
            let mut found = Vec::new();
            let each = &mut |page, name| {
                found.push((page, name));
                Ok(())
            };
            let result = store.for_each_page(root, each);
            assert!(named.starts_with(&found) && (result.is_err() || found.len() == named.len()), "a wrong table");
            note(result);
            note(store.lookup(root, 37).map(|found| assert_eq!(found, Some(named[1].1))));
        }
        note(store.read_blob(&self.blob.0).map(|found| assert_eq!(found, self.blob.1)));
        note(store.records().map(|records| assert_eq!(records.len(), self.ids.len())));
        errors
    }
}

/// Puts back what a test did to a file.
struct Original {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Original {
    fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), bytes: std::fs::read(path).unwrap() }
    }

    fn with(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.bytes.clone();
        change(&mut bytes);
        std::fs::write(&self.path, bytes).unwrap();
    }
}

impl Drop for Original {
    fn drop(&mut self) {
        std::fs::write(&self.path, &self.bytes).unwrap();
    }
}

#[test]
fn a_flipped_bit_anywhere_in_a_pack_gives_an_error_or_nothing_and_never_a_wrong_page() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let sample = sample(&path);
    assert!(sample.read(&open(&path).unwrap()).is_empty());
    let mut noticed = 0;
    for pack in packs(&path) {
        let original = Original::of(&pack);
        let length = original.bytes.len();
        for at in (0..length).filter(|at| at % 29 == 0 || *at < 40 || at + 80 > length) {
            original.with(|bytes| bytes[at] ^= 1 << (at % 8));
            let errors = sample.read(&open(&path).unwrap());
            for error in &errors {
                assert!(matches!(error, Error::Corrupt { .. } | Error::Unsupported { .. }), "byte {at}: {error}");
                assert!(error.to_string().contains(pack.to_str().unwrap()), "byte {at}: {error}");
            }
            noticed += usize::from(!errors.is_empty());
        }
    }
    assert!(noticed > 50, "{noticed}");
    assert!(sample.read(&open(&path).unwrap()).is_empty());
}

#[test]
fn a_pack_cut_short_or_gone_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let sample = sample(&path);
    for pack in packs(&path) {
        let original = Original::of(&pack);
        for length in (0..original.bytes.len()).step_by(101) {
            original.with(|bytes| bytes.truncate(length));
            for error in sample.read(&open(&path).unwrap()) {
                assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains(pack.to_str().unwrap()), "{error}");
            }
        }
        std::fs::remove_file(&pack).unwrap();
        let errors = sample.read(&open(&path).unwrap());
        assert!(!errors.is_empty());
        assert!(errors.iter().all(|error| matches!(error, Error::Corrupt { .. }) && error.to_string().contains(pack.to_str().unwrap())));
    }
}

#[test]
fn a_pack_of_another_version_is_not_guessed_at() {
    // In a pack that is encrypted nobody can change a byte so that it means anything else.
    if is_encrypted() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let sample = sample(&path);
    let original = Original::of(&packs(&path)[0]);
    original.with(|bytes| bytes[8] = 3);
    let errors = sample.read(&open(&path).unwrap());
    assert!(errors.iter().any(|error| matches!(error, Error::Unsupported { .. })), "{errors:?}");
}

#[test]
fn the_index_is_built_again_from_packs_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let sample = sample(&path);
    {
        let store = open(&path).unwrap();
        assert!(matches!(Store::rebuild_index(&path), Err(Error::Refused { .. })), "it is open");
        store.tag("lab", "good", &sample.ids[0]).unwrap();
        store.set_branch("lab", "main", &sample.ids[0]).unwrap();
    }
    let check = |tag: bool, head: usize| {
        let rebuilt = Store::rebuild_index(&path).unwrap();
        assert_eq!((rebuilt.packs, rebuilt.checkpoints, rebuilt.damaged.len()), (2, 2, 0));
        let store = open(&path).unwrap();
        assert!(sample.read(&store).is_empty());
        assert_eq!(store.branch("lab", "main").unwrap(), Some(sample.ids[head]));
        assert_eq!(store.tags("lab").unwrap().contains_key("good"), tag);
        // It goes on.
        let mut writer = store.writer().unwrap();
        assert!(matches!(writer.put_page(&sample.pages[0].1).unwrap().1, fermata_store::Class::Known { .. }));
    };
    check(true, 0);
    std::fs::remove_dir_all(path.join("index")).unwrap();
    assert!(matches!(open(&path), Err(Error::IndexLost { .. })));
    check(false, 1);
    std::fs::write(path.join("index/data.mdb"), "no index at all").unwrap();
    assert!(open(&path).is_err());
    check(false, 1);
}

#[test]
fn building_the_index_again_tells_which_packs_are_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let sample = sample(&path);
    for pack in packs(&path) {
        let original = Original::of(&pack);
        let length = original.bytes.len();
        for at in (0..length).filter(|at| at % 501 == 0 || at + 64 > length) {
            original.with(|bytes| bytes[at] ^= 1 << (at % 8));
            let rebuilt = Store::rebuild_index(&path).unwrap();
            assert_eq!(rebuilt.packs + rebuilt.damaged.len() as u64, 2);
            assert!(rebuilt.damaged.iter().all(|(path, _)| *path == pack));
            // Records of the damaged pack are gone, so only what is read is checked.
            let store = open(&path).unwrap();
            for (name, content) in &sample.pages {
                assert!(read(&store, name).map_or(true, |found| &found == content), "a wrong page");
            }
        }
    }
    Store::rebuild_index(&path).unwrap();
    assert!(sample.read(&open(&path).unwrap()).is_empty());
}

#[test]
fn a_flipped_bit_in_the_format_is_refused_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let sample = sample(&path);
    let format = Original::of(&path.join("format"));
    for bit in 0..format.bytes.len() * 8 {
        format.with(|bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        match open(&path) {
            // White space at the end says nothing.
            Ok(store) => assert!(sample.read(&store).is_empty()),
            Err(error) => assert!(error.to_string().contains(path.to_str().unwrap()), "bit {bit}: {error}"),
        }
    }
    drop(format);
    assert!(sample.read(&open(&path).unwrap()).is_empty());
}

/// The list of removed checkpoints is asked only when an index is built again.
#[test]
fn a_flipped_bit_in_the_list_of_the_removed_costs_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let sample = sample(&path);
    {
        let store = open(&path).unwrap();
        store.remove(&Removal { checkpoints: vec![sample.ids[0]], ..Removal::default() }).unwrap();
        // Writes the list; the removed record lies in a pack that others need.
        store.collect(&CollectOptions { rewrite_below: 0, wait: true, dry_run: false }, &mut |_, _| {}).unwrap();
    }
    let list = Original::of(&path.join("removed"));
    assert!(!list.bytes.is_empty());
    for at in 0..list.bytes.len() {
        list.with(|bytes| bytes[at] ^= 1 << (at % 8));
        // Away, for it remembers too.
        std::fs::remove_dir_all(path.join("index")).unwrap();
        assert!(Store::rebuild_index(&path).unwrap().damaged.is_empty(), "byte {at}");
        let records = open(&path).unwrap().records().unwrap();
        let there: Vec<_> = records.iter().map(|(id, _)| *id).collect();
        assert!(there.contains(&sample.ids[1]), "byte {at}: {there:?}");
    }
}

#[test]
fn packs_that_cannot_be_looked_at_do_not_count_as_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    sample(&path);
    // A link to itself is neither a directory nor none.
    let link = path.join("packs/link");
    std::os::unix::fs::symlink("link", &link).unwrap();
    assert!(matches!(Store::rebuild_index(&path), Err(Error::Io { .. })));
    std::fs::remove_file(link).unwrap();
    assert_eq!(Store::rebuild_index(&path).unwrap().checkpoints, 2);
}
