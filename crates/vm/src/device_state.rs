//! The device state: what `xen-save-devices-state` writes, a migration stream of every device and no RAM (QEMU `migration/savevm.c`).
//!
//! We keep it as it is. All that is read from it is the virtual time: with the machine stopped, QEMU's virtual clock is `cpu_clock_offset` of the
//! section `timer` (`softmmu/cpu-timers.c`), and with `-icount` what its subsection counts.

use crate::config::ICOUNT_SHIFT;
use fermata_types::VirtualTime;

const MAGIC: &[u8] = b"QEVM";
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
    fn a_cut_stream_has_no_clock() {
        let stream = stream();
        assert_eq!(virtual_time(&stream[..40], false), None);
        assert_eq!(virtual_time(&stream[..stream.len() - 1], true), None);
        assert_eq!(virtual_time(&[], false), None);
    }
}
