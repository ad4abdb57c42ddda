//! The device state: what `xen-save-devices-state` writes, a migration stream of every device and no RAM (QEMU `migration/savevm.c`).
//!
//! We keep it as it is. Two things are read from it: where the VM generation id lies, and the virtual time: with the machine stopped, QEMU's virtual clock is `cpu_clock_offset` of the
//! section `timer` (`softmmu/cpu-timers.c`), and with `-icount` what its subsection counts.

use crate::config::ICOUNT_SHIFT;
use fermata_types::VirtualTime;

const MAGIC: &[u8] = b"QEVM";
/// Magic and version.
const HEADER: usize = 8;
const SECTION_FULL: u8 = 4;
const SECTION_FOOTER: u8 = 0x7e;
const GENERATION_ID: &[u8] = b"\x07vmgenid";
const TIMER: &[u8] = b"\x05timer";
const ICOUNT: &[u8] = b"\x0ctimer/icount";

/// Largest device state that we take: a guard against a runaway, a hundred times what machines have.
pub(crate) const BYTES_MAX: u64 = 64 << 20;

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
    let moved = generation_id(state).map(|section| {
        let (header, rest) = (&state[..HEADER], &state[HEADER..section.start]);
        [header, &state[section.clone()], rest, &state[section.end..]].concat()
    });
    moved.unwrap_or_else(|| state.to_vec())
}

/// Where the section of the VM generation id device lies: a full section, its id, name, instance and version, the address, and a footer with the id again.
fn generation_id(state: &[u8]) -> Option<std::ops::Range<usize>> {
    let name = HEADER + state.get(HEADER..)?.windows(GENERATION_ID.len()).position(|window| window == GENERATION_ID)?;
    let start = name.checked_sub(5).filter(|start| *start >= HEADER)?;
    let footer = name + GENERATION_ID.len() + 8 + 8;
    let whole = state[start] == SECTION_FULL
        && *state.get(footer)? == SECTION_FOOTER
        && state.get(footer + 1..footer + 5)? == &state[start + 1..name];
    whole.then_some(start..footer + 5)
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
    fn the_generation_id_is_loaded_first() {
        let section = b"\x04\0\0\0\x2a\x07vmgenid\0\0\0\0\0\0\0\x01\x28\xf0\xfe\x0f\0\0\0\0\x7e\0\0\0\x2a";
        let before = b"\x04\0\0\0\x01\x03cpu\x7e\0\0\0\x01";
        let stream = [b"QEVM\0\0\0\x03".as_slice(), before, section, b"\0"].concat();
        let expected = [b"QEVM\0\0\0\x03".as_slice(), section, before, b"\0"].concat();
        assert_eq!(without_announcement(&stream), expected);
        // Anything else is left as it is.
        for length in 0..stream.len() - 1 {
            assert_eq!(without_announcement(&stream[..length]), &stream[..length]);
        }
    }

    #[test]
    fn a_cut_stream_has_no_clock() {
        let stream = stream();
        assert_eq!(virtual_time(&stream[..40], false), None);
        assert_eq!(virtual_time(&stream[..stream.len() - 1], true), None);
        assert_eq!(virtual_time(&[], false), None);
    }
}
