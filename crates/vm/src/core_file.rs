//! The memory of a machine at a checkpoint as an ELF core, which `gdb`, `crash`, `drgn` and volatility open: what QEMU's `dump-guest-memory` writes of a machine that
//! stands still, without paging (QEMU `dump/dump.c`).
//!
//! A header, the notes, and then the memory by the addresses that the guest sees. Only the header is made; the memory is read from the store when it is asked for. A
//! reader finds a Linux kernel by the last of the notes, which the kernel itself wrote (VMCOREINFO).

use crate::{
    Error, MachineDetails, Result, device_state,
    free::memory_map,
    part::{DEVICES, FIRMWARE, RAM},
    processor::{Processor, processors},
};
use fermata_store::{Contents, EachPiece, Result as StoreResult, Still, Store};
use fermata_types::{PAGE_SIZE, PageNumber, PartState};
use serde::{Deserialize, Serialize};
use std::ops::Range;

const PAGE: u64 = PAGE_SIZE as u64;
/// The firmware ends here.
const FIRMWARE_END: u64 = 4 << 30;

const ELF_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const ET_CORE: u16 = 4;
const EM_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const NT_PRSTATUS: u32 = 1;
/// The longest note of a guest that is put in, as in QEMU (`MAX_GUEST_NOTE_SIZE`).
const NOTE_MAX: u64 = 1 << 20;
const NOTE_HEAD: usize = 12;

/// What a core file has besides the memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreTold {
    /// Processors whose registers are in it.
    pub processors: u32,
    /// Whether the guest's kernel has described itself in it.
    pub vmcoreinfo: bool,
    /// Why not, if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// A core file. What is behind its header is read when it is asked for.
pub struct CoreFile {
    header: Vec<u8>,
    segments: Vec<Segment>,
    ram: Still,
    firmware: Vec<u8>,
    told: CoreTold,
}

/// Neighbouring addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    /// The first, as the guest sees it.
    physical: u64,
    bytes: u64,
    content: Content,
    /// Where it is in the file.
    offset: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    /// RAM from this page on.
    Ram(PageNumber),
    Firmware,
}

impl CoreFile {
    /// The core of a machine, from its part of a checkpoint. The golden images of the checkpoint must be open.
    ///
    /// # Errors
    /// It is no machine of which it is known where its memory is, or the store cannot be read. What can be left out is, and is told by [`told`](Self::told).
    pub fn new(store: &Store, state: &PartState) -> Result<Self> {
        let corrupt = |message: String| Error::Corrupt { machine: state.name.clone(), message };
        let details: MachineDetails = serde_json::from_value(state.details.clone())
            .map_err(|error| corrupt(format!("the checkpoint's part is no machine that this version knows: {error}")))?;
        let config = &details.config;
        let map = memory_map(config)
            .map_err(|why| Error::Unsupported { machine: state.name.clone(), message: format!("it has no core: {why}") })?;
        let ram = state.tables.get(RAM).filter(|ram| ram.pages == map.pages());
        let ram = *ram.ok_or_else(|| corrupt("its memory in the checkpoint is not as large as it is".into()))?;
        let blob = |name| state.blobs.get(name).map(|blob| store.read_blob(blob)).transpose();
        let devices = blob(DEVICES)?.unwrap_or_default();
        let firmware = blob(FIRMWARE)?.unwrap_or_default();
        let ram = Still::new(store.clone(), ram, config.memory);
        let mut segments = ram_segments(map.frames());
        if !firmware.is_empty() && (firmware.len() as u64).is_multiple_of(PAGE) {
            let bytes = firmware.len() as u64;
            let at = segments.iter().filter(|segment| segment.physical < FIRMWARE_END).count();
            segments.insert(at, Segment { physical: FIRMWARE_END.saturating_sub(bytes), bytes, content: Content::Firmware, offset: 0 });
        }
        let processors = processors(&devices, config.cpus);
        let mut core = Self { header: Vec::new(), segments, ram, firmware, told: CoreTold::default() };
        let note = core.guest_note(device_state::note(&devices))?;
        core.told = CoreTold { processors: processors.len() as u32, vmcoreinfo: note.is_ok(), unknown: note.as_ref().err().cloned() };
        core.lay_out(&processors, &note.unwrap_or_default());
        Ok(core)
    }

    /// What is in it besides the memory.
    pub fn told(&self) -> &CoreTold {
        &self.told
    }

    /// Bytes before the memory.
    pub fn header_bytes(&self) -> u64 {
        self.header.len() as u64
    }

    /// The note that the guest's kernel told the device `vmcoreinfo` of, or why there is none.
    fn guest_note(&self, told: Option<(u64, u64)>) -> Result<Result<Vec<u8>, String>> {
        let Some((address, length)) = told else { return Ok(Err("the guest's kernel has not said where its note is".to_owned())) };
        if !(NOTE_HEAD as u64..=NOTE_MAX).contains(&length) {
            return Ok(Err(format!("the note of the guest's kernel is said to have {length} bytes")));
        }
        let mut note = vec![0; length as usize];
        if !self.read_physical(address, &mut note)? {
            return Ok(Err(format!("the note of the guest's kernel is said to be at {address:#x}, where the guest has no memory")));
        }
        let word = |at: usize| u32::from_le_bytes(note[at..at + 4].try_into().expect("four bytes")) as usize;
        let bytes = word(0).next_multiple_of(4).saturating_add(word(4).next_multiple_of(4)).saturating_add(NOTE_HEAD);
        if bytes > note.len() {
            return Ok(Err("where the note of the guest's kernel should be is something else".to_owned()));
        }
        note.truncate(bytes);
        Ok(Ok(note))
    }

    /// Reads RAM by the guest's addresses; false where there is none.
    fn read_physical(&self, mut address: u64, mut into: &mut [u8]) -> Result<bool> {
        while !into.is_empty() {
            let holds = |segment: &&Segment| (segment.physical..segment.physical + segment.bytes).contains(&address);
            let Some((segment, Content::Ram(first))) = self.segments.iter().find(holds).map(|segment| (segment, segment.content)) else {
                return Ok(false);
            };
            let from = address - segment.physical;
            let (now, later) = into.split_at_mut((segment.bytes - from).min(into.len() as u64) as usize);
            self.ram.read_at(u64::from(first) * PAGE + from, now)?;
            address += now.len() as u64;
            into = later;
        }
        Ok(true)
    }

    /// Makes the header, and gives every segment its place behind it.
    fn lay_out(&mut self, processors: &[Processor], guest_note: &[u8]) {
        let mut notes = Vec::new();
        for (number, processor) in (1..).zip(processors) {
            notes.extend(note(b"CORE\0", NT_PRSTATUS, &processor.status(number)));
        }
        for processor in processors {
            notes.extend(note(b"QEMU\0", 0, &processor.qemu_state()));
        }
        notes.extend(guest_note);
        let notes_at = ELF_HEADER + PROGRAM_HEADER * (1 + self.segments.len());
        // Memory begins at a page of the file, so that its zeros are holes of whole blocks, and a page is read at once.
        let mut offset = ((notes_at + notes.len()) as u64).next_multiple_of(PAGE);
        let memory_at = offset;
        for segment in &mut self.segments {
            segment.offset = offset;
            offset += segment.bytes;
        }
        let mut header = elf_header(1 + self.segments.len() as u16);
        header.extend(program_header(PT_NOTE, notes_at as u64, 0, notes.len() as u64));
        for segment in &self.segments {
            header.extend(program_header(PT_LOAD, segment.offset, segment.physical, segment.bytes));
        }
        header.extend(notes);
        header.resize(memory_at as usize, 0);
        self.header = header;
    }

    /// Hands over RAM from a page on, split where its neighbours are elsewhere in the file.
    fn place_ram(&self, at: u64, bytes: &[u8], each: EachPiece<'_>) -> StoreResult<()> {
        for segment in &self.segments {
            let Content::Ram(first) = segment.content else { continue };
            let start = u64::from(first) * PAGE;
            let (from, to) = (at.max(start), (at + bytes.len() as u64).min(start + segment.bytes));
            if from < to {
                each(segment.offset + (from - start), &bytes[(from - at) as usize..(to - at) as usize])?;
            }
        }
        Ok(())
    }
}

/// The stretches of RAM, not yet placed. All of it is there below 1 MiB, too, where a graphics adapter would have a window: no machine of ours has one.
fn ram_segments(frames: [Range<u64>; 2]) -> Vec<Segment> {
    let mut first = 0;
    let segments = frames.map(|frames| {
        let pages = frames.end - frames.start;
        first += pages;
        let content = Content::Ram((first - pages) as PageNumber);
        Segment { physical: frames.start * PAGE, bytes: pages * PAGE, content, offset: 0 }
    });
    segments.into_iter().filter(|segment| segment.bytes > 0).collect()
}

fn elf_header(segments: u16) -> Vec<u8> {
    // ELF of 64 bits, little-endian, version 1, of no particular system.
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    header.extend([ET_CORE, EM_X86_64].into_iter().flat_map(u16::to_le_bytes));
    header.extend(1_u32.to_le_bytes());
    // Nowhere to begin, the program headers at once, and no sections.
    header.extend([0, ELF_HEADER as u64, 0].into_iter().flat_map(u64::to_le_bytes));
    header.extend(0_u32.to_le_bytes());
    header.extend([ELF_HEADER as u16, PROGRAM_HEADER as u16, segments, 0, 0, 0].into_iter().flat_map(u16::to_le_bytes));
    header
}

/// As QEMU does, memory has its physical addresses for virtual ones, and notes have none.
fn program_header(kind: u32, offset: u64, physical: u64, bytes: u64) -> Vec<u8> {
    let mut header = [kind, 0].into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>();
    header.extend([offset, physical, physical, bytes, bytes, 0].into_iter().flat_map(u64::to_le_bytes));
    header
}

fn note(name: &[u8], kind: u32, description: &[u8]) -> Vec<u8> {
    let mut note = [name.len() as u32, description.len() as u32, kind].into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>();
    note.extend(name);
    note.resize(note.len().next_multiple_of(4), 0);
    note.extend(description);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

impl Contents for CoreFile {
    fn bytes(&self) -> u64 {
        self.segments.last().map_or(self.header_bytes(), |segment| segment.offset + segment.bytes)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> StoreResult<()> {
        into.fill(0);
        let end = offset.saturating_add(into.len() as u64);
        let mut take = |at: u64, bytes: u64, read: &dyn Fn(u64, &mut [u8]) -> StoreResult<()>| {
            let (from, to) = (offset.max(at), end.min(at + bytes));
            if from < to { read(from - at, &mut into[(from - offset) as usize..(to - offset) as usize]) } else { Ok(()) }
        };
        let copy = |bytes: &[u8], from: u64, into: &mut [u8]| {
            into.copy_from_slice(&bytes[from as usize..][..into.len()]);
            Ok(())
        };
        take(0, self.header_bytes(), &|from, into| copy(&self.header, from, into))?;
        for segment in &self.segments {
            take(segment.offset, segment.bytes, &|from, into| match segment.content {
                Content::Ram(first) => self.ram.read_at(u64::from(first) * PAGE + from, into),
                Content::Firmware => copy(&self.firmware, from, into),
            })?;
        }
        Ok(())
    }

    fn for_each_piece(&self, each: EachPiece<'_>) -> StoreResult<()> {
        each(0, &self.header)?;
        let mut firmware = self.segments.iter().find(|segment| segment.content == Content::Firmware);
        self.ram.for_each_piece(&mut |at, bytes| {
            self.place_ram(at, bytes, &mut |offset, bytes| {
                // It lies between the stretches of RAM.
                if let Some(segment) = firmware.take_if(|segment| segment.offset < offset) {
                    each(segment.offset, &self.firmware)?;
                }
                each(offset, bytes)
            })
        })?;
        firmware.map_or(Ok(()), |segment| each(segment.offset, &self.firmware))
    }
}

#[cfg(test)]
mod tests;
