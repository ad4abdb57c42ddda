//! The device state: what `xen-save-devices-state` writes, a migration stream of every device and no RAM (QEMU `migration/savevm.c`).
//!
//! We keep it as it is. Read from it are where the VM generation id lies; where the guest's kernel has its note, and which page tables its processors run on;
//! and the virtual time: with the machine stopped, QEMU's virtual clock is `cpu_clock_offset` of the
//! section `timer` (`softmmu/cpu-timers.c`), and with `-icount` what its subsection counts.

use crate::config::ICOUNT_SHIFT;
use fermata_types::{PAGE_SIZE, VirtualTime};
use std::ops::Range;

const MAGIC: &[u8] = b"QEVM";
/// Magic and version.
const HEADER: usize = 8;
pub(crate) const SECTION_FULL: u8 = 4;
const SECTION_FOOTER: u8 = 0x7e;
/// Before the name of a section are its kind and its id, and behind it are instance and version.
const BEFORE_NAME: usize = 5;
const BEFORE_FIELDS: usize = 8;
/// The VM generation id (`hw/acpi/vmgenid.c`): its address.
const GENERATION_ID: &[u8] = b"\x07vmgenid";
const GENERATION_ID_FIELDS: usize = 8;
const TIMER: &[u8] = b"\x05timer";
const ICOUNT: &[u8] = b"\x0ctimer/icount";

/// What the guest told the device `vmcoreinfo` (`hw/misc/vmcoreinfo.c`): whether it told anything, formats of the host and of the guest, length, address.
const VMCOREINFO: &[u8] = b"\x0avmcoreinfo";
const VMCOREINFO_FIELDS: usize = 1 + 2 + 2 + 4 + 8;
/// `FW_CFG_VMCOREINFO_FORMAT_ELF`.
const NOTE_IS_ELF: u16 = 1;
/// A processor (`target/i386/machine.c`), and where its control registers 0, 3 and 4 are in its section's fields: after 16 registers, instruction pointer, flags, the
/// old floating-point unit, ten segments and what system calls need.
pub(crate) const PROCESSOR: &[u8] = b"\x03cpu";
pub(crate) const PROCESSOR_VERSIONS: std::ops::RangeInclusive<u32> = 11..=12;
const CR0: usize = 16 * 8 + 8 + 8 + 4 + 4 * 2 + 8 * 10 + 10 * 20 + 4 + 2 * 8;
const CR3: usize = CR0 + 16;
const CR4: usize = CR3 + 8;
/// Bits of control registers: paging, and with entries of eight bytes.
const CR0_PAGING: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;

/// Largest device state that we take: a guard against a runaway, a hundred times what machines have.
pub(crate) const BYTES_MAX: u64 = 64 << 20;

/// The memory of QEMU's BIOS for PCs, `pc.bios`: `bios-256k.bin` since its version 2.0.
pub(crate) const FIRMWARE_BYTES: usize = 256 << 10;
const FIRMWARE_NAME: &[u8] = b"\x07pc.bios";
/// A section number that no device has.
const FIRMWARE_SECTION: u32 = 0x7fff_0000;
/// Of QEMU's `migration/ram.c`: the list of memories, a page of one, another page of the same, the end.
const RAM_BLOCKS: u64 = 0x04;
const RAM_PAGE: u64 = 0x08;
const RAM_CONTINUE: u64 = 0x20;
const RAM_END: u64 = 0x10;

/// The same state with the firmware's memory before it, as a migration would send it: a section `ram` that lists one memory and brings all its pages.
pub(crate) fn with_firmware(state: &[u8], firmware: &[u8]) -> Vec<u8> {
    if firmware.len() != FIRMWARE_BYTES || state.len() < HEADER {
        return state.to_vec();
    }
    let mut stream = Vec::with_capacity(state.len() + firmware.len() + 1024);
    stream.extend_from_slice(&state[..HEADER]);
    stream.push(SECTION_FULL);
    stream.extend(FIRMWARE_SECTION.to_be_bytes());
    stream.extend(b"\x03ram");
    // Instance and version.
    stream.extend([0u32, 4].into_iter().flat_map(u32::to_be_bytes));
    stream.extend((FIRMWARE_BYTES as u64 | RAM_BLOCKS).to_be_bytes());
    stream.extend(FIRMWARE_NAME);
    stream.extend((FIRMWARE_BYTES as u64).to_be_bytes());
    for (number, page) in firmware.chunks(PAGE_SIZE).enumerate() {
        let again = if number == 0 { 0 } else { RAM_CONTINUE };
        stream.extend(((number * PAGE_SIZE) as u64 | RAM_PAGE | again).to_be_bytes());
        if number == 0 {
            stream.extend(FIRMWARE_NAME);
        }
        stream.extend(page);
    }
    stream.extend(RAM_END.to_be_bytes());
    stream.push(SECTION_FOOTER);
    stream.extend(FIRMWARE_SECTION.to_be_bytes());
    stream.extend_from_slice(&state[HEADER..]);
    stream
}

/// Whether these bytes begin like a device state.
pub(crate) fn is_plausible(state: &[u8]) -> bool {
    state.starts_with(MAGIC)
}

/// The virtual time at which the machine was stopped.
pub(crate) fn virtual_time(state: &[u8], deterministic: bool) -> Option<VirtualTime> {
    let ns = if deterministic {
        let fields = after(state, ICOUNT)?.get(4..)?;
        let (bias, count) = (integer(fields, 0)?, integer(fields, 8)?);
        bias.checked_add(count.checked_shl(ICOUNT_SHIFT)?)?
    } else {
        // Instance and version of the section, then ticks, a field no longer used, and the clock.
        integer(after(state, TIMER)?.get(8..)?, 16)?
    };
    Some(VirtualTime::from_ns(u64::try_from(ns).ok()?))
}

/// The same state, but for who loads it: the guest is not told that it goes on in another process.
///
/// As soon as QEMU has loaded the VM generation id device, it announces the id by an ACPI event (`hw/acpi/vmgenid.c`). Loaded first of all, before anything
/// can raise an interrupt, the event is then overwritten by the states of the devices through which it would travel.
pub(crate) fn without_announcement(state: &[u8]) -> Vec<u8> {
    let moved = section(state, GENERATION_ID, GENERATION_ID_FIELDS).map(|section| {
        let (header, rest) = (&state[..HEADER], &state[HEADER..section.start]);
        [header, &state[section.clone()], rest, &state[section.end..]].concat()
    });
    moved.unwrap_or_else(|| state.to_vec())
}

/// Where the section of a device lies that has so many bytes of fields: a full section, its id, name, instance and version, the fields, and a footer with the id again.
///
/// None if two look like it: one of them is somewhere among the registers or buffers that a guest fills, as any program in it can.
fn section(state: &[u8], name: &[u8], fields: usize) -> Option<Range<usize>> {
    let whole = |at: usize| {
        let start = at.checked_sub(BEFORE_NAME).filter(|start| *start >= HEADER)?;
        let footer = at + name.len() + BEFORE_FIELDS + fields;
        let whole = state[start] == SECTION_FULL
            && *state.get(footer)? == SECTION_FOOTER
            && state.get(footer + 1..footer + 5)? == &state[start + 1..at];
        whole.then_some(start..footer + 5)
    };
    let mut found = state.windows(name.len()).enumerate().filter(|(_, window)| *window == name).filter_map(|(at, _)| whole(at));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// Guest-physical address and length of the note that the guest's kernel has told the device `vmcoreinfo` of; none if it has told nothing.
pub(crate) fn note(state: &[u8]) -> Option<(u64, u64)> {
    let section = section(state, VMCOREINFO, VMCOREINFO_FIELDS)?;
    let fields = state.get(section.start + BEFORE_NAME + VMCOREINFO.len() + BEFORE_FIELDS..section.end)?;
    let (told, format) = (*fields.first()?, u16::from_be_bytes(fields.get(3..5)?.try_into().ok()?));
    let length = u32::from_be_bytes(fields.get(5..9)?.try_into().ok()?);
    (told == 1 && format == NOTE_IS_ELF).then_some((integer(fields, 9)? as u64, length.into()))
}

/// The page tables on which processors run, as CR3 says it; of those that use any.
pub(crate) fn page_tables(state: &[u8]) -> Vec<u64> {
    let mut tables = Vec::new();
    let mut rest = state;
    while let Some(at) = after(rest, PROCESSOR) {
        rest = at;
        let table = || {
            let version = u32::from_be_bytes(at.get(4..8)?.try_into().ok()?);
            let fields = at.get(8..)?;
            let [cr0, cr3, cr4] = [CR0, CR3, CR4].map(|place| integer(fields, place).map(|register| register as u64));
            (PROCESSOR_VERSIONS.contains(&version) && cr0? & CR0_PAGING != 0 && cr4? & CR4_PAE != 0).then_some(cr3?)
        };
        tables.extend(table());
    }
    tables
}

fn after<'a>(state: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    let at = state.windows(mark.len()).position(|window| window == mark)?;
    state.get(at + mark.len()..)
}

fn integer(fields: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(fields.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Vec<u8> {
        let mut stream = b"QEVM\0\0\0\x03\x04\0\0\0\x00\x05timer\0\0\0\0\0\0\0\x02".to_vec();
        for field in [-5i64, 0, 1_234_567_890] {
            stream.extend(field.to_be_bytes());
        }
        stream.extend(b"\x05\x0ctimer/icount\0\0\0\x01");
        for field in [100i64, 1000] {
            stream.extend(field.to_be_bytes());
        }
        stream
    }

    #[test]
    fn the_clock_is_found() {
        assert_eq!(virtual_time(&stream(), false), Some(VirtualTime::from_ns(1_234_567_890)));
        assert_eq!(virtual_time(&stream(), true), Some(VirtualTime::from_ns(8_100)));
    }

    #[test]
    fn the_note_is_found_where_the_guest_put_it() {
        let section = |told: u8, format: u8| {
            let mut stream = b"QEVM\0\0\0\x03\x04\0\0\0\x07\x0avmcoreinfo\0\0\0\0\0\0\0\x01".to_vec();
            stream.extend([told, 0, 1, 0, format, 0, 0, 0x10, 0x24]);
            stream.extend(0x1234_5000_u64.to_be_bytes());
            stream.extend(b"\x7e\0\0\0\x07");
            stream
        };
        let stream = section(1, 1);
        assert_eq!(note(&stream), Some((0x1234_5000, 0x1024)));
        // A program of the guest has another one in its registers, and one that is none.
        assert_eq!(note(&[&stream[..], &section(1, 1)[HEADER..]].concat()), None);
        assert_eq!(note(&[&stream[..HEADER], b"\x04\0\0\0\x01\x03cpu", VMCOREINFO, &stream[HEADER..]].concat()), note(&stream));
        assert_eq!((note(&section(0, 1)), note(&section(1, 0))), (None, None));
        (0..stream.len()).for_each(|length| assert_eq!(note(&stream[..length]), None));
    }

    #[test]
    fn processors_that_use_page_tables_tell_which() {
        let processor = |cr0: u64, cr3: u64, version: u8| {
            let mut section = b"\x04\0\0\0\x02\x03cpu\0\0\0\0\0\0\0".to_vec();
            section.push(version);
            section.resize(section.len() + CR0, 0);
            [cr0, 0, cr3, CR4_PAE].iter().for_each(|register| section.extend(register.to_be_bytes()));
            section
        };
        let running = CR0_PAGING | 1;
        let stream = [
            processor(running, 0x1000, 12),
            b"\x04\0\0\0\x03\x0acpu_common".to_vec(),
            processor(1, 0x2000, 12),
            processor(running, 0x3000, 11),
            processor(running, 0x4000, 9),
        ];
        assert_eq!(page_tables(&stream.concat()), [0x1000, 0x3000]);
        assert_eq!(page_tables(&stream[0][..CR3]), Vec::<u64>::new());
    }

    #[test]
    fn the_generation_id_is_loaded_first() {
        let section = b"\x04\0\0\0\x2a\x07vmgenid\0\0\0\0\0\0\0\x01\x28\xf0\xfe\x0f\0\0\0\0\x7e\0\0\0\x2a";
        let before = b"\x04\0\0\0\x01\x03cpu\x7e\0\0\0\x01";
        let stream = [b"QEVM\0\0\0\x03".as_slice(), before, section, b"\0"].concat();
        let expected = [b"QEVM\0\0\0\x03".as_slice(), section, before, b"\0"].concat();
        assert_eq!(without_announcement(&stream), expected);
        // What any program of the guest may have in its registers.
        let twice = [b"QEVM\0\0\0\x03".as_slice(), before, section, section, b"\0"].concat();
        assert_eq!(without_announcement(&twice), twice);
        let [named, named_expected] = [&stream, &expected].map(|stream| [&stream[..], GENERATION_ID].concat());
        assert_eq!(without_announcement(&named), named_expected);
        // Anything else is left as it is.
        for length in 0..stream.len() - 1 {
            assert_eq!(without_announcement(&stream[..length]), &stream[..length]);
        }
    }

    #[test]
    fn the_firmware_comes_before_everything_and_whole() {
        let firmware: Vec<_> = (0..FIRMWARE_BYTES).map(|at| (at / PAGE_SIZE) as u8).collect();
        let (state, with) = (stream(), with_firmware(&stream(), &firmware));
        assert_eq!((&with[..HEADER], &with[with.len() - (state.len() - HEADER)..]), (&state[..HEADER], &state[HEADER..]));
        // Pages with eight bytes before each, and around them what says what they are.
        let around = HEADER + 1 + 4 + 4 + 8 + 8 + 8 + 8 + 8 + 8 + 5;
        assert_eq!(with.len() - (state.len() - HEADER), around + FIRMWARE_BYTES / PAGE_SIZE * (PAGE_SIZE + 8));
        assert!(firmware.chunks(PAGE_SIZE).all(|page| with.windows(PAGE_SIZE).any(|window| window == page)));
        // What is no firmware of a PC is not sent.
        assert_eq!(with_firmware(&state, &firmware[1..]), state);
        assert_eq!(with_firmware(&state[..4], &firmware), &state[..4]);
    }

    #[test]
    fn a_cut_stream_has_no_clock() {
        let stream = stream();
        assert_eq!(virtual_time(&stream[..40], false), None);
        assert_eq!(virtual_time(&stream[..stream.len() - 1], true), None);
        assert_eq!(virtual_time(&[], false), None);
    }
}
