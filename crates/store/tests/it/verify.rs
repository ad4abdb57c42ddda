//! Verifying: damage is found, and traced to exactly the pages that cannot be read.

use crate::common::*;
use fermata_store::{CollectOptions, ImageReader, Remedy, Removal, Report, Store, VerifyOptions};
use fermata_types::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex},
};

fn verify(store: &Store, quick: bool) -> Report {
    store.verify(&VerifyOptions { quick }, &mut |_, _| {}).unwrap()
}

/// Three checkpoints that share pages, and nodes as deltas; the second one's RAM is other than the first one's in few pages.
fn sample(path: &Path) -> Vec<CheckpointId> {
    let store = open(path).unwrap();
    let mut parent = None;
    let mut root = Root::empty(1000);
    let steps: [&[u64]; 3] = [&[0, 40], &[10, 14], &[600, 620]];
    let mut ids = Vec::new();
    for (step, range) in steps.into_iter().enumerate() {
        let mut writer = store.writer().unwrap();
        let pages: Vec<_> = (range[0]..range[1]).map(|page| (page as PageNumber, page + step as u64 * 1000)).collect();
        root = put(&mut writer, &root, &pages);
        let blob = writer.put_blob(&[step as u8; 3000]).unwrap();
        let mut record = record_of(parent, "main", &step.to_string(), root);
        record.parts[0].blobs.insert("devices".into(), blob);
        parent = Some(writer.commit(&record).unwrap());
        ids.extend(parent);
    }
    ids
}

type Touched = BTreeMap<CheckpointId, BTreeSet<PageNumber>>;

/// Pages of all checkpoints that cannot be read, and checkpoints whose blobs cannot.
fn unreadable(store: &Store) -> (Touched, BTreeSet<CheckpointId>) {
    let (mut pages, mut blobs) = (Touched::new(), BTreeSet::new());
    for (id, record) in store.records().unwrap() {
        let part = &record.parts[0];
        let root = part.tables["ram"];
        for number in 0..root.pages as PageNumber {
            let readable = store.lookup(&root, number).and_then(|name| name.map_or(Ok(()), |name| read(store, &name).map(|_| ())));
            if readable.is_err() {
                pages.entry(id).or_default().insert(number);
            }
        }
        if store.read_blob(&part.blobs["devices"]).is_err() {
            blobs.insert(id);
        }
    }
    (pages, blobs)
}

fn reported(report: &Report) -> (Touched, BTreeSet<CheckpointId>) {
    let (mut pages, mut blobs) = (Touched::new(), BTreeSet::new());
    for touched in report.damage.iter().flat_map(|damage| &damage.touches) {
        assert_eq!((touched.experiment.as_str(), touched.branch.as_str()), ("lab", "main"));
        match touched.table.as_str() {
            "ram" => {
                let into = pages.entry(touched.checkpoint).or_default();
                touched.pages.iter().for_each(|(first, last)| into.extend(*first..=*last));
            }
            "devices" => _ = blobs.insert(touched.checkpoint),
            _ => assert!(touched.part.is_empty(), "{touched:?}"),
        }
    }
    (pages, blobs)
}

#[test]
fn a_store_that_is_whole_has_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let ids = sample(dir.path());
    let store = open(dir.path()).unwrap();
    let report = verify(&store, false);
    assert_eq!(report.damage, []);
    assert_eq!((report.packs, report.checkpoints, report.pages, report.orphans), (3, 3, 64, 0));
    let quick = verify(&store, true);
    assert_eq!((quick.damage, quick.pages, quick.objects), (vec![], 0, report.objects));
    store.remove(&Removal { checkpoints: ids[..1].to_vec(), ..Removal::default() }).unwrap();
    assert_eq!(verify(&store, false).damage, []);
    for rewrite_below in [0, 100] {
        store.collect(&CollectOptions { rewrite_below, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
        assert_eq!(verify(&store, false).damage, []);
    }
}

#[test]
fn damage_is_traced_to_the_pages_that_it_touches() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    sample(&path);
    let (mut harmless, mut harmful) = (0, 0);
    for pack in packs(&path) {
        let content = std::fs::read(&pack).unwrap();
        let ends = (0..16).chain(content.len() - 64..content.len()).step_by(5);
        let places: BTreeSet<_> = ends.chain((16..content.len()).step_by(content.len() / 40)).collect();
        for at in places {
            let mut flipped = content.clone();
            flipped[at] ^= 1 << (at % 8);
            std::fs::write(&pack, flipped).unwrap();
            let store = open(&path).unwrap();
            let (report, lost) = (verify(&store, false), unreadable(&store));
            assert_eq!(reported(&report), lost, "byte {at} of {}: {report:?}", pack.display());
            assert!(!report.damage.is_empty(), "byte {at} of {} was not noticed", pack.display());
            // Some bits of compressed data mean nothing, and the checksum guards itself.
            let is_harmless = lost == Default::default();
            let remedy = if is_harmless { Remedy::Nothing } else { Remedy::Restore };
            // A chunk that cannot be decrypted may have a frame in it that nobody needs.
            let beside = if is_encrypted() { Remedy::Collect } else { Remedy::Restore };
            let known = |damage: &fermata_store::Damage| damage.path == pack && [remedy, Remedy::Restore, beside].contains(&damage.remedy);
            assert!(report.damage.iter().all(known), "byte {at}: {report:?}");
            *(if report.damage[0].remedy == Remedy::Nothing { &mut harmless } else { &mut harmful }) += 1;
        }
        std::fs::write(&pack, content).unwrap();
    }
    assert!(harmful > 50 && (harmless > 0 || is_encrypted()), "{harmful} and {harmless}");
}

/// Removes the first of three checkpoints, and has every pack rewritten that something dead lies in.
fn rewrite(store: &Store, ids: &[CheckpointId]) {
    store.remove(&Removal { checkpoints: ids[..1].to_vec(), ..Removal::default() }).unwrap();
    let told = store.collect(&CollectOptions { rewrite_below: 100, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
    assert!(told.packs_rewritten > 0 && told.damaged.is_empty(), "{told:?}");
}

#[test]
fn a_flip_that_harms_no_object_is_named_and_goes_when_the_pack_is_rewritten() {
    // In a pack that is encrypted nobody can change a byte so that it means anything else.
    if is_encrypted() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let ids = sample(&path);
    // The pack of the first checkpoint, and in it the checksum.
    let pack = packs(&path).into_iter().max_by_key(|pack| pack.metadata().unwrap().len()).unwrap();
    let mut content = std::fs::read(&pack).unwrap();
    let sum = content.len() - 12;
    content[sum] ^= 1;
    std::fs::write(&pack, content).unwrap();
    let store = open(&path).unwrap();
    let report = verify(&store, false);
    assert_eq!((report.damage.len(), &report.damage[0].path, report.damage[0].remedy), (1, &pack, Remedy::Nothing));
    assert!(report.damage[0].touches.is_empty() && unreadable(&store) == Default::default());
    rewrite(&store, &ids);
    assert_eq!(verify(&store, false).damage, []);
}

#[test]
fn packs_of_the_version_without_a_checksum_are_read_and_counted_until_they_are_rewritten() {
    // In a pack that is encrypted nobody can change a byte so that it means anything else.
    if is_encrypted() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let ids = sample(&path);
    for pack in packs(&path) {
        let mut content = std::fs::read(&pack).unwrap();
        let trailer = content.len() - 64;
        assert_eq!((content[8], content[trailer + 48]), (2, 2));
        (content[8], content[trailer + 48]) = (1, 1);
        content[trailer + 52..trailer + 56].fill(0);
        std::fs::write(&pack, content).unwrap();
    }
    let store = open(&path).unwrap();
    let report = verify(&store, false);
    assert_eq!((report.damage, report.packs_unguarded), (vec![], 3));
    assert_eq!(unreadable(&store), Default::default());
    rewrite(&store, &ids);
    let report = verify(&store, false);
    assert!(report.damage.is_empty() && report.packs_unguarded < 3, "{report:?}");
    drop(store);
    assert!(Store::rebuild_index(&path).unwrap().damaged.is_empty());
}

#[test]
fn a_pack_that_is_gone_or_cut_short_is_named_with_what_it_touches() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    sample(&path);
    for pack in packs(&path) {
        let content = std::fs::read(&pack).unwrap();
        for length in [None, Some(0), Some(content.len() / 2), Some(content.len() - 1)] {
            match length {
                None => std::fs::remove_file(&pack).unwrap(),
                Some(length) => std::fs::write(&pack, &content[..length]).unwrap(),
            }
            let store = open(&path).unwrap();
            let (report, lost) = (verify(&store, false), unreadable(&store));
            assert_eq!(report.damage.len(), 1, "{length:?}: {report:?}");
            assert_eq!((&report.damage[0].path, report.damage[0].remedy), (&pack, Remedy::Restore));
            assert_eq!(reported(&report), lost, "{length:?}");
        }
        std::fs::write(&pack, content).unwrap();
    }
}

#[test]
fn what_nobody_needs_is_left_to_a_collection() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let ids = sample(&path);
    let pack = packs(&path).into_iter().max_by_key(|pack| pack.metadata().unwrap().len()).unwrap();
    let mut content = std::fs::read(&pack).unwrap();
    content[100] ^= 1;
    std::fs::write(&pack, content).unwrap();
    let store = open(&path).unwrap();
    assert_eq!(verify(&store, false).damage[0].remedy, Remedy::Restore);
    store.remove(&Removal { checkpoints: ids, ..Removal::default() }).unwrap();
    let report = verify(&store, false);
    assert_eq!((report.damage.len(), report.damage[0].remedy), (1, Remedy::Collect));
    store.collect(&CollectOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(verify(&store, false).damage, []);
    assert!(packs(&path).is_empty());
}

struct Image(Mutex<Vec<u64>>);

impl ImageReader for Image {
    fn blocks(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> std::io::Result<()> {
        *into = page(self.0.lock().unwrap()[block as usize]);
        Ok(())
    }
}

#[test]
fn a_golden_image_that_is_open_is_read_too() {
    const ID: ImageId = ImageId([3; 32]);
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let image = Arc::new(Image(Mutex::new((500..540).collect())));
    store.add_image(ID, image.clone(), &mut |_| {}).unwrap();
    let mut writer = store.writer().unwrap();
    let root = put(&mut writer, &Root::empty(1000), &[(3, 510), (4, 1), (700, 520)]);
    let mut record = record_of(None, "main", "first", root);
    record.images.push(ID);
    let id = writer.commit(&record).unwrap();
    let report = verify(&store, false);
    assert_eq!((report.damage, report.images_unchecked), (vec![], vec![]));
    image.0.lock().unwrap()[20] = 0;
    let report = verify(&store, false);
    assert_eq!((report.damage.len(), report.damage[0].remedy), (1, Remedy::Image));
    let touched = &report.damage[0].touches[0];
    assert_eq!((touched.checkpoint, touched.pages.as_slice()), (id, [(700, 700)].as_slice()));
    drop(store);
    let report = verify(&open(dir.path()).unwrap(), false);
    assert_eq!((report.damage, report.images_unchecked), (vec![], vec![ID]));
}
