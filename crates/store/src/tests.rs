//! Faults and crashes at every operation on files; and decoders that are fed anything.

mod commits;
mod crash;
mod disk;
#[path = "../tests/it/either.rs"]
mod either;
mod flips;
mod full;
mod walk;

use crate::{
    CollectOptions, Cost, Encryption, Error, Record, Removal, Result, Secret, Store, VerifyOptions,
    files::{FileSystem, Medium},
    keys::Birth,
    node::Stored,
    pack::{
        Frame, Kind,
        contents::{Contents, Entry},
        frame::{self, Encoder},
        unpack_entry,
    },
    table::{Loaded, Nodes as _},
};
use fermata_types::*;
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

pub(crate) use either::{is_encrypted, open};

/// Opens a store as [`open`] does, on a medium.
pub(crate) fn open_on(path: &Path, medium: Arc<dyn Medium>) -> Result<Store> {
    match either::secret().filter(|_| !path.join("format").exists()) {
        None => Store::open_on(path, medium),
        Some((encryption, secret)) => {
            let birth = Birth { encryption: &encryption, secret: &secret, random: &[7; 48] };
            Store::born_on(path, medium, Some(&birth))
        }
    }
}

/// Does what is asked until `left` runs out, then tears a write in two and fails everything.
pub(crate) struct Failing {
    left: Mutex<Option<u32>>,
}

impl Failing {
    /// Fails after so many operations; none: never.
    pub(crate) fn after(operations: Option<u32>) -> Self {
        Self { left: Mutex::new(operations) }
    }

    fn step(&self) -> io::Result<()> {
        match &mut *self.left.lock().unwrap() {
            None => Ok(()),
            Some(0) => Err(io::ErrorKind::StorageFull.into()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

impl Medium for Failing {
    fn create(&self, path: &Path) -> io::Result<File> {
        self.step().and_then(|()| FileSystem.create(path))
    }
    fn make_directory(&self, path: &Path) -> io::Result<()> {
        self.step().and_then(|()| FileSystem.make_directory(path))
    }
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        let result = self.step();
        let length = if result.is_ok() { bytes.len() } else { bytes.len() / 2 };
        file.write_all_at(&bytes[..length], offset).and(result)
    }
    fn sync(&self, _file: &File) -> io::Result<()> {
        self.step()
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step().and_then(|()| FileSystem.rename(from, to))
    }
    fn rename_new(&self, from: tempfile::TempPath, to: &Path) -> io::Result<()> {
        self.step().and_then(|()| FileSystem.rename_new(from, to))
    }
    fn sync_directory(&self, _directory: &Path) -> io::Result<()> {
        self.step()
    }
    fn commit(&self, transaction: heed::RwTxn<'_>) -> heed::Result<()> {
        self.step()?;
        transaction.commit()
    }
}

pub(crate) fn page(seed: u64) -> PageBuf {
    let mut page = [seed as u8; PAGE_SIZE];
    page[..8].copy_from_slice(&(seed + 1).to_le_bytes());
    page
}

/// Grows the branch by a checkpoint with 40 pages of its own.
pub(crate) fn grow(store: &Store, parent: Option<CheckpointId>, step: u64) -> Result<CheckpointId> {
    let base = match parent {
        Some(parent) => store.record(&parent)?.parts[0].tables["ram"],
        None => Root::empty(4000),
    };
    let mut writer = store.writer()?;
    let mut changes = Vec::new();
    for i in 0..40 {
        changes.push(((i * 97) as PageNumber, Some(writer.put_page(&page(step * 100 + i))?.0)));
    }
    let ram = writer.update_table(&base, &changes)?;
    let blob = writer.put_blob(&step.to_le_bytes())?;
    writer.commit(&record(parent, step, ram, [("devices".to_owned(), blob)].into()))
}

pub(crate) fn record(parent: Option<CheckpointId>, step: u64, ram: Root, blobs: BTreeMap<String, BlobName>) -> Record {
    let part = PartState {
        name: "m1".into(),
        kind: PartKind::Machine,
        tables: [("ram".to_owned(), ram)].into(),
        blobs,
        details: serde_json::Value::Null,
    };
    Record {
        parent,
        experiment: "lab".into(),
        branch: "main".into(),
        message: Some(step.to_string()),
        created_ns: step,
        after_ns: None,
        time_virtual_ns: step,
        began_ns: None,
        events: 0,
        waiting: Vec::new(),
        spec: serde_json::Value::Null,
        parts: vec![part],
        images: Vec::new(),
        cost: Cost::default(),
    }
}

/// Reads all of every checkpoint; returns how many there are.
fn check(store: &Store) -> usize {
    let records = store.records().unwrap();
    for (_, record) in &records {
        let step: u64 = record.message.as_deref().unwrap().parse().unwrap();
        let mut found = 0;
        let each = &mut |number: PageNumber, name| {
            let mut content = [0; PAGE_SIZE];
            store.read_page(&name, &mut content)?;
            assert_eq!(content, page(step * 100 + u64::from(number) / 97));
            found += 1;
            Ok(())
        };
        store.for_each_page(&record.parts[0].tables["ram"], each).unwrap();
        assert_eq!(found, 40);
        assert_eq!(store.read_blob(&record.parts[0].blobs["devices"]).unwrap(), step.to_le_bytes());
    }
    records.len()
}

#[test]
fn a_writer_that_failed_once_writes_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let medium = Arc::new(Failing { left: Mutex::new(None) });
    let store = open_on(dir.path(), medium.clone()).unwrap();
    let mut writer = store.writer().unwrap();
    writer.put_page(&page(1)).unwrap();
    *medium.left.lock().unwrap() = Some(0);
    assert!(matches!(writer.stored_bytes(), Err(Error::Io { .. })));
    *medium.left.lock().unwrap() = None;
    assert!(matches!(writer.put_blob(b"x"), Err(Error::Refused { .. })));
    assert!(matches!(writer.stored_bytes(), Err(Error::Refused { .. })));
}

/// Another process, or a collection, may have stored a node full that is known here as a delta.
#[test]
fn a_base_that_is_cached_as_a_delta_is_looked_for_where_it_lies() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let first = grow(&store, None, 1).unwrap();
    let second = grow(&store, Some(first), 2).unwrap();
    let [base, delta] = [first, second].map(|id| store.record(&id).unwrap().parts[0].tables["ram"].node.unwrap());
    let inner = &store.0;
    let node = inner.load(&base).unwrap().node.clone();
    inner.forget();
    inner.nodes.insert(base, Arc::new(Loaded { node, base: Some(delta), at: None }));
    assert_eq!(inner.load(&delta).unwrap().base, Some(base));
    assert_eq!(check(&store), 2);
}

#[test]
fn an_ambiguous_prefix_names_the_candidates() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    let ids = [0xab_cd_10, 0xab_cd_1f, 0xab_ce_00u32].map(|start| {
        let mut id = [0x55; 32];
        id[..3].copy_from_slice(&start.to_be_bytes()[1..]);
        CheckpointId(id)
    });
    let index = &store.0.index;
    index.write(|write| ids.iter().try_for_each(|id| index.put(write, &index.records, id.as_bytes(), b"{}"))).unwrap();
    for (text, expected) in [("abcd", &ids[..2]), ("ABCD1", &ids[..2])] {
        let error = store.resolve(text, None).unwrap_err();
        assert!(error.to_string().contains(&ids[1].short()), "{error}");
        assert!(matches!(&error, Error::Ambiguous { candidates, .. } if candidates == expected), "{error}");
    }
    for (text, expected) in [("abce", 2), ("abcd10", 0), ("abcd1f5555", 1)] {
        assert_eq!(store.resolve(text, None).unwrap(), ids[expected]);
    }
    // Three digits would fit, but are too few to be an id.
    assert!(matches!(store.resolve("abc", None), Err(Error::Missing { .. })));
    assert!(matches!(store.resolve("abcd2", None), Err(Error::Missing { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decoders_take_anything(bytes in prop::collection::vec(any::<u8>(), 0..600), kind in 0..6u8, codec in 0..3u8, objects in 0..20u16) {
        let mut unpacker = zstd::bulk::Decompressor::new().unwrap();
        let _ = Frame::decode(&bytes, &mut unpacker);
        let mut frame = vec![kind, codec];
        frame.extend(objects.to_le_bytes());
        frame.extend((bytes.len() as u32).to_le_bytes());
        frame.extend((bytes.len() as u32).to_le_bytes());
        frame.extend(&bytes);
        if let Ok(frame) = Frame::decode(&frame, &mut unpacker) {
            for place in 0..25 {
                let _ = frame.object(place);
            }
        }
        let _ = Contents::decode(&bytes, 16);
        for form in 0..3u8 {
            let mut node = bytes.clone();
            if let Some(first) = node.first_mut() {
                *first = form;
            }
            let _ = Stored::decode(&node);
        }
    }

    #[test]
    fn a_node_survives_its_encoding(entries in prop::collection::btree_map(0..512usize, any::<[u8; 32]>(), 1..512), level in 0..4u8) {
        let mut spread = [None; FANOUT];
        entries.iter().for_each(|(index, name)| spread[*index] = Some(*name));
        let node = crate::node::Node::new(level, &spread).unwrap();
        prop_assert_eq!(node.entries(), spread);
        let encoded = Stored::encode_full(&node);
        prop_assert_eq!(Stored::decode(&encoded), Ok(Stored::Full(node)));
        for length in (0..encoded.len()).step_by(31) {
            prop_assert!(Stored::decode(&encoded[..length]).is_err());
        }
    }
}

#[test]
fn a_frame_that_asks_for_more_than_it_may_have_is_refused_before_it_is_unpacked() {
    let mut unpacker = zstd::bulk::Decompressor::new().unwrap();
    let frame = Encoder::new().unwrap().encode(Kind::Pages, 2, &[0; 2 * PAGE_SIZE]).unwrap().to_vec();
    assert_eq!(Frame::decode(&frame, &mut unpacker).unwrap().raw, [0; 2 * PAGE_SIZE]);
    for (at, value) in [(2, 3), (3, 1), (4, 1), (7, 0xff), (8, 0), (0, 3), (1, 0), (1, 7)] {
        let mut wrong = frame.clone();
        wrong[at] = value;
        assert!(Frame::decode(&wrong, &mut unpacker).is_err(), "byte {at} as {value}");
    }
}

/// What was unpacked of another kind would be kept, and a blob may take thousands of times as much memory as is stored of it.
#[test]
fn a_frame_of_another_kind_than_its_table_says_is_not_unpacked() {
    let mut frame = Encoder::new().unwrap().encode(Kind::Pages, 2, &[0; 2 * PAGE_SIZE]).unwrap().to_vec();
    let entry = |kind| Entry { kind, offset: 16, length: 0, names: Vec::new() };
    assert_eq!(unpack_entry(&frame, &entry(Kind::Pages)).unwrap().raw, [0; 2 * PAGE_SIZE]);
    // If it were tried, it would be found to be no zstd.
    frame[frame::HEADER..].fill(0xff);
    for (kind, told) in [(Kind::Pages, "not decompressible"), (Kind::Nodes, "another kind"), (Kind::Blob, "another kind")] {
        let error = unpack_entry(&frame, &entry(kind)).unwrap_err();
        assert!(error.contains(told), "{kind:?}: {error}");
    }
    unpack_entry(&[], &entry(Kind::Pages)).unwrap_err();
}

#[test]
fn a_table_of_contents_has_no_frame_that_is_larger_than_its_kind_may_be() {
    const HEADER: usize = frame::HEADER;
    const SMALL: usize = HEADER + (64 << 10);
    for (kind, objects, length, is_one) in [
        (Kind::Pages, 16, SMALL, true),
        (Kind::Pages, 1, HEADER, true),
        (Kind::Pages, 1, HEADER - 1, false),
        (Kind::Pages, 0, SMALL, false),
        (Kind::Pages, 17, SMALL, false),
        (Kind::Pages, 16, SMALL + 1, false),
        (Kind::Nodes, 4096, SMALL, true),
        (Kind::Nodes, 4097, SMALL, false),
        (Kind::Nodes, 4096, u32::MAX as usize, false),
        (Kind::Blob, 1, HEADER + frame::BLOB_MAX, true),
        (Kind::Blob, 2, HEADER, false),
        (Kind::Blob, 1, HEADER + frame::BLOB_MAX + 1, false),
        (Kind::Record, 1, HEADER + frame::RECORD_MAX, true),
        (Kind::Record, 1, HEADER + frame::RECORD_MAX + 1, false),
    ] {
        let mut contents = Contents::default();
        contents.push(Entry { kind, offset: 16, length: length as u32, names: vec![[1; 32]; objects] });
        let read = Contents::decode(&contents.encode(), 16 + length as u64);
        assert_eq!(read.is_ok_and(|read| read == contents), is_one, "{kind:?}: {objects} objects in {length} bytes");
    }
}
