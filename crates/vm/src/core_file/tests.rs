//! A core of a memory that is all made up, read as ELF's specification says.

use super::*;
use crate::{free::tests::config, processor::tests::section};
use fermata_types::{MachineId, PartKind, Root, VirtualTime};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU32, Ordering},
};

const GIB: u64 = 1 << 30;
/// Where the kernel's note is, and what it says.
const NOTE_AT: u64 = 0x1234_5ff8;
const NOTE_TEXT: &[u8] = b"OSRELEASE=6.1\n";

fn guest_note() -> Vec<u8> {
    let mut guest = note(b"VMCOREINFO\0", 0, NOTE_TEXT);
    // The kernel keeps room for more.
    guest.resize(100, 0);
    guest
}

fn devices(note_bytes: u32) -> Vec<u8> {
    devices_with(note_bytes, NOTE_AT)
}

fn devices_with(note_bytes: u32, note_at: u64) -> Vec<u8> {
    let mut devices = b"QEVM\0\0\0\x03".to_vec();
    devices.extend(section(0, 12));
    devices.extend(section(1, 12));
    devices.extend(b"\x04\0\0\0\x07\x0avmcoreinfo\0\0\0\0\0\0\0\x01");
    devices.extend([1, 0, 1, 0, 1]);
    devices.extend(note_bytes.to_be_bytes());
    devices.extend(note_at.to_be_bytes());
    devices.extend(b"\x7e\0\0\0\x07");
    devices
}

/// A machine of which these pages hold their own number, and two the note.
fn machine(store: &Store, memory: u64, pages: &[PageNumber], devices: &[u8], firmware: &[u8]) -> PartState {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut writer = store.writer().unwrap();
    let mut contents: BTreeMap<_, _> = pages.iter().map(|page| (*page, [*page as u8 | 1; PAGE_SIZE])).collect();
    for (at, byte) in (NOTE_AT..).zip(guest_note()) {
        contents.entry((at / PAGE) as PageNumber).or_insert([0; PAGE_SIZE])[(at % PAGE) as usize] = byte;
    }
    let changes: Vec<_> = contents.iter().map(|(page, content)| (*page, Some(writer.put_page(content).unwrap().0))).collect();
    let ram = writer.update_table(&Root::empty(memory / PAGE), &changes).unwrap();
    let mut blobs = BTreeMap::from([(DEVICES.to_owned(), writer.put_blob(devices).unwrap())]);
    if !firmware.is_empty() {
        blobs.insert(FIRMWARE.to_owned(), writer.put_blob(firmware).unwrap());
    }
    let config = crate::MachineConfig { cpus: 2, ..config("pc-q35-7.2", memory) };
    let details = MachineDetails { id: MachineId([1; 16]), time_virtual: VirtualTime::default(), off: false, config };
    let state = PartState {
        name: "m1".into(),
        kind: PartKind::Machine,
        tables: BTreeMap::from([(RAM.to_owned(), ram)]),
        blobs,
        details: serde_json::to_value(&details).unwrap(),
    };
    let record = fermata_store::Record {
        parent: None,
        experiment: "lab".into(),
        branch: format!("b{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        message: None,
        created_ns: 0,
        after_ns: None,
        time_virtual_ns: 0,
        began_ns: None,
        spec: serde_json::Value::Null,
        events: 0,
        waiting: vec![],
        parts: vec![state.clone()],
        images: vec![],
        cost: Default::default(),
    };
    writer.commit(&record).unwrap();
    state
}

/// A program header: kind, offset, physical address, bytes.
type Header = (u32, u64, u64, u64);

fn program_headers(core: &CoreFile) -> Vec<Header> {
    let mut header = vec![0; core.header_bytes() as usize];
    core.read_at(0, &mut header).unwrap();
    assert_eq!(&header[..7], b"\x7fELF\x02\x01\x01");
    let short = |at: usize| u16::from_le_bytes(header[at..at + 2].try_into().unwrap());
    let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap());
    assert_eq!((short(16), short(18), long(32), short(52), short(54)), (ET_CORE, EM_X86_64, 64, 64, 56));
    let headers = (0..usize::from(short(56))).map(|number| 64 + number * 56);
    let read = |at: usize| (long(at) as u32, long(at + 8), long(at + 24), long(at + 32));
    headers
        .inspect(|at| assert_eq!((long(at + 16), long(at + 40)), (long(at + 24), long(at + 32)), "addresses and sizes alike"))
        .map(read)
        .collect()
}

/// Notes: name, kind, description.
fn notes(core: &CoreFile) -> Vec<(String, u32, Vec<u8>)> {
    let (_, offset, _, bytes) = program_headers(core)[0];
    let mut all = vec![0; bytes as usize];
    core.read_at(offset, &mut all).unwrap();
    let (mut notes, mut rest) = (Vec::new(), all.as_slice());
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let (name, description) = (word(0) as usize, word(4) as usize);
        let at = 12 + name.next_multiple_of(4);
        notes.push((String::from_utf8(rest[12..12 + name - 1].to_vec()).unwrap(), word(8), rest[at..at + description].to_vec()));
        rest = &rest[at + description.next_multiple_of(4)..];
    }
    notes
}

#[test]
fn a_large_memory_is_in_two_places_with_the_firmware_between() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let firmware: Vec<_> = (0..256 << 10).map(|at: u32| (at >> 12) as u8 + 1).collect();
    // Around the window that a graphics adapter would have, the last below the hole, the first above, the last of all.
    let pages = [0x9f, 0xa0, 0xbf, 0xc0, 0x7_ffff, 0x8_0000, 0xb_ffff];
    let state = machine(&store, 3 * GIB, &pages, &devices(100), &firmware);
    let core = CoreFile::new(&store, &state).unwrap();
    let headers = program_headers(&core);
    let loads: Vec<_> = headers[1..].iter().map(|(kind, _, physical, bytes)| (*kind, *physical, *bytes)).collect();
    let firmware_at = 4 * GIB - (256 << 10);
    let expected = [(0, 2 * GIB), (firmware_at, 256 << 10), (4 * GIB, GIB)];
    assert_eq!(loads, expected.map(|(physical, bytes)| (PT_LOAD, physical, bytes)));
    assert!(headers.windows(2).skip(1).all(|pair| pair[0].1 + pair[0].3 == pair[1].1) && headers[1].1.is_multiple_of(PAGE));
    let byte_at = |physical: u64| {
        let (_, offset, start, _) = headers[1..].iter().find(|(_, _, start, bytes)| (*start..start + bytes).contains(&physical)).unwrap();
        let mut byte = [0];
        core.read_at(offset + (physical - start), &mut byte).unwrap();
        byte[0]
    };
    for (physical, page) in
        [(0x9_f000, 0x9f), (0xa_0000, 0xa0), (0xc_0000, 0xc0), (0x7fff_ffff, 0x7_ffff), (4 * GIB, 0x8_0000), (5 * GIB - 1, 0xb_ffff)]
    {
        assert_eq!(byte_at(physical), page as u8 | 1, "{physical:#x}");
    }
    assert_eq!((byte_at(firmware_at), byte_at(4 * GIB - 1), byte_at(0x5000)), (1, 64, 0));
    // The same in pieces, and nothing but what is not zero.
    let (mut end, mut pieces, mut bytes) = (0, 0, 0);
    core.for_each_piece(&mut |at, piece| {
        assert!(at >= end, "{at} after {end}");
        let mut same = vec![0; piece.len()];
        core.read_at(at, &mut same).unwrap();
        assert!(same == piece, "at {at}");
        (end, pieces, bytes) = (at + piece.len() as u64, pieces + 1, bytes + piece.len() as u64);
        Ok(())
    })
    .unwrap();
    assert_eq!((end, core.bytes()), (headers[3].1 + GIB, headers[3].1 + GIB));
    // The note is in two pages more.
    assert_eq!((pieces, bytes), (8, core.header_bytes() + 9 * PAGE + (256 << 10)));
}

#[test]
fn notes_tell_of_processors_and_of_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let core = CoreFile::new(&store, &machine(&store, GIB, &[], &devices(100), &[])).unwrap();
    assert_eq!(*core.told(), CoreTold { processors: 2, vmcoreinfo: true, unknown: None });
    let notes = notes(&core);
    let kinds: Vec<_> = notes.iter().map(|(name, kind, description)| (name.as_str(), *kind, description.len())).collect();
    assert_eq!(kinds, [("CORE", 1, 336), ("CORE", 1, 336), ("QEMU", 0, 440), ("QEMU", 0, 440), ("VMCOREINFO", 0, NOTE_TEXT.len())]);
    assert_eq!((notes[0].2[32], notes[1].2[32], notes[4].2.as_slice()), (1, 2, NOTE_TEXT));
    let mut behind = [0xaa; 10];
    core.read_at(core.bytes() - 5, &mut behind).unwrap();
    assert_eq!(behind, [0; 10]);
}

#[test]
fn without_a_note_the_memory_is_there_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let core = |devices: &[u8]| CoreFile::new(&store, &machine(&store, GIB, &[7], devices, &[])).unwrap();
    let why = |devices: &[u8]| core(devices).told().unknown.clone().unwrap();
    assert!(why(b"QEVM\0\0\0\x03").contains("has not said"));
    assert!(why(&devices(20)).contains("something else"), "it is longer");
    assert!(why(&devices(5)).contains("5 bytes"));
    assert!(why(&devices(u32::MAX)).contains("4294967295 bytes"));
    let nowhere = devices_with(100, 7 * GIB);
    assert!(why(&nowhere).contains("0x1c0000000"));
    assert_eq!(core(&nowhere).told().processors, 2);
    let state = machine(&store, GIB, &[7], &devices(100), &[]);
    let other = |change: &dyn Fn(&mut PartState)| {
        let mut state = state.clone();
        change(&mut state);
        CoreFile::new(&store, &state).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(other(&|state| state.details["config"]["machine_type"] = "microvm".into()).contains("microvm"));
    assert!(other(&|state| state.details["config"]["memory"] = (2 * GIB).into()).contains("m1"));
    assert!(other(&|state| state.details = serde_json::Value::Null).contains("no machine"));
}
