//! What a fuzzer may feed with any bytes: records, nodes of page tables, and packs. See `fuzz/README.md`.

use crate::{
    Record, hash,
    node::{Node, Stored},
    pack::{
        Frame, Kind, PackFile, Shelf,
        contents::{self, Contents},
        u32_at,
    },
};
use fermata_types::{FANOUT, PackId};
use std::{cell::RefCell, fs, path::Path};
use zstd::bulk::Decompressor;

/// A record that a store hands out under its right name. Panics if one that can be read cannot be written and read again.
pub fn record(data: &[u8]) {
    let source = Path::new("fuzz");
    let id = hash::record(data);
    if let Ok(record) = Record::decode(data, &id, source) {
        let bytes = record.encode().expect("what was read can be written");
        let again = Record::decode(&bytes, &hash::record(&bytes), source).expect("what was written can be read");
        assert_eq!((again.parent, &again.branch, again.parts.len()), (record.parent, &record.branch, record.parts.len()));
    }
}

/// A node of a page table in either form. Panics if one that can be read has another encoding than the one it was read from.
pub fn node(data: &[u8]) {
    let Ok(stored) = Stored::decode(data) else { return };
    assert_eq!(stored.encode(), data, "two encodings of one node");
    match stored {
        Stored::Full(node) => {
            assert_eq!(Node::new(node.level, &node.entries()).as_ref(), Some(&node));
            for index in 0..FANOUT {
                assert_eq!(node.get(index), node.entries()[index]);
            }
        }
        Stored::Delta(delta) => {
            let mut entries = [None; FANOUT];
            entries.iter_mut().step_by(3).for_each(|entry| *entry = Some([7; 32]));
            for level in 0..4 {
                let base = Node::new(level, &entries).expect("it has entries");
                if let Ok(node) = delta.apply(&base) {
                    assert_eq!(node.level, delta.level);
                    assert_eq!(Stored::decode(&Stored::encode_full(&node)), Ok(Stored::Full(node)));
                }
            }
        }
    }
}

/// A frame, a table of contents, or a whole pack whose trailer fits its table, so that the reader gets to what is in it.
pub fn pack(data: &[u8]) {
    let Some((shape, data)) = data.split_first() else { return };
    match shape % 4 {
        0 => frame(data),
        1 => {
            for at in [contents::HEADER as u64, 16 + data.len() as u64] {
                if let Ok(contents) = Contents::decode(data, at) {
                    assert_eq!(contents.encode(), data, "two encodings of one table of contents");
                }
            }
        }
        2 => file(data, Fit::Trailer),
        _ => file(data, Fit::Nothing),
    }
}

fn frame(data: &[u8]) {
    thread_local!(static UNPACKER: RefCell<Decompressor<'static>> = RefCell::new(Decompressor::new().expect("memory for it")));
    let Ok(frame) = UNPACKER.with_borrow_mut(|unpacker| Frame::decode(data, unpacker)) else { return };
    for place in (0..frame.objects).chain([frame.objects, usize::MAX]) {
        if let Ok(object) = frame.object(place)
            && frame.kind == Kind::Nodes
        {
            node(object);
        }
    }
}

enum Fit {
    Trailer,
    Nothing,
}

/// A pack on a shelf, read as `rebuild` reads it.
fn file(data: &[u8], fit: Fit) {
    thread_local!(static SHELF: tempfile::TempDir = tempfile::tempdir().expect("a temporary directory"));
    let (id, bytes) = match fit {
        // First how long the table of contents is, then frames and table.
        Fit::Trailer if data.len() >= 4 => {
            let body = &data[4..];
            let (frames, table) = body.split_at(body.len().saturating_sub(u32_at(data, 0) as usize));
            let mut sum = crc32fast::Hasher::new();
            sum.update(&contents::header());
            sum.update(frames);
            let (id, trailer) = contents::trailer(table, (contents::HEADER + frames.len()) as u64, sum);
            (id, [&contents::header(), body, &trailer].concat())
        }
        _ => (PackId([7; 32]), data.to_vec()),
    };
    SHELF.with(|shelf| {
        let shelf = Shelf { directory: shelf.path().to_owned(), sealing: None };
        let path = shelf.place(&id);
        fs::create_dir_all(path.parent().expect("a pack has a directory")).expect("a directory");
        fs::write(&path, bytes).expect("the temporary directory takes a small file");
        if let Ok(pack) = PackFile::open(&shelf, &id)
            && let Ok(contents) = pack.contents(&id)
        {
            for entry in &contents.entries {
                let _ = pack.frame(entry.offset, entry.length, &"a frame");
            }
            let _ = crate::rebuild::read(&shelf, &id);
        }
        fs::remove_file(&path).expect("the file is there");
    });
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn records_may_be_anything() {
        replay("record", 10_000, super::record);
    }

    #[test]
    fn nodes_may_be_anything() {
        replay("node", 10_000, super::node);
    }

    #[test]
    fn packs_may_be_anything() {
        replay("pack", 5_000, super::pack);
    }
}
