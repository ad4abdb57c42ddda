//! The time, as NTP tells it (RFC 5905): whoever asks as a client is answered as by a server. That a version 1 to 4 asks makes no difference to it; what follows the
//! header, as keys and extensions do, is not read.

/// The port of NTP.
pub(crate) const PORT: u16 = 123;

const HEADER: usize = 48;
const CLIENT: u8 = 3;
const SERVER: u8 = 4;
const VERSIONS: std::ops::RangeInclusive<u8> = 1..=4;
/// There is no clock above this one.
const STRATUM: u8 = 1;
/// What that clock is: one of nobody's.
const REFERENCE: [u8; 4] = *b"LOCL";
/// Of the clock's readings: 2 to this power, in seconds. About a microsecond.
const PRECISION: i8 = -20;
/// How far the time may be from the guests' own, in parts of 65536 of a second: a millisecond. It is read from outside while they run.
const DISPERSION: u32 = 66;
/// From 1900, when NTP's time begins, to 1970.
const SINCE_1900: u64 = 2_208_988_800;
const NS_PER_SECOND: u64 = 1_000_000_000;

/// The answer to a question for the time. None if it is no question, or if nobody knows.
pub(crate) fn answer(request: &[u8], now: &dyn Fn() -> Option<u64>) -> Option<[u8; HEADER]> {
    let header = request.first_chunk::<HEADER>()?;
    let (version, mode) = (header[0] >> 3 & 7, header[0] & 7);
    if mode != CLIENT || !VERSIONS.contains(&version) {
        return None;
    }
    let now = now()?;
    let (set, at) = (timestamp(now - now % NS_PER_SECOND), timestamp(now));
    let mut answer = [0; HEADER];
    answer[..4].copy_from_slice(&[version << 3 | SERVER, STRATUM, header[2], PRECISION as u8]);
    answer[8..12].copy_from_slice(&DISPERSION.to_be_bytes());
    answer[12..16].copy_from_slice(&REFERENCE);
    answer[16..24].copy_from_slice(&set);
    // Which of its questions this answers.
    answer[24..32].copy_from_slice(&header[40..48]);
    answer[32..40].copy_from_slice(&at);
    answer[40..48].copy_from_slice(&at);
    Some(answer)
}

/// Seconds since 1900, of which the highest bits are left out, and parts of 2^32 of one.
fn timestamp(unix_ns: u64) -> [u8; 8] {
    let seconds = (unix_ns / NS_PER_SECOND).wrapping_add(SINCE_1900) as u32;
    let fraction = ((unix_ns % NS_PER_SECOND) << 32) / NS_PER_SECOND;
    (u64::from(seconds) << 32 | fraction).to_be_bytes()
}

/// A client that asks.
#[cfg(test)]
pub(crate) fn trial_request(version: u8) -> [u8; HEADER] {
    let mut request = [0; HEADER];
    (request[0], request[2]) = (version << 3 | CLIENT, 6);
    request[40..].copy_from_slice(b"question");
    request
}

/// What a timestamp of this century means, to the next nanosecond.
#[cfg(test)]
pub(crate) fn trial_time(bytes: &[u8]) -> u64 {
    let [seconds, fraction] = [&bytes[..4], &bytes[4..]].map(|half| u64::from(u32::from_be_bytes(half.try_into().unwrap())));
    (seconds - SINCE_1900) * NS_PER_SECOND + (fraction * NS_PER_SECOND).div_ceil(1 << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_told_the_time() {
        for version in VERSIONS {
            let answer = answer(&trial_request(version), &|| Some(1_700_000_000_250_000_000)).unwrap();
            assert_eq!(answer[..4], [version << 3 | SERVER, 1, 6, 0xec]);
            assert_eq!((&answer[12..16], &answer[24..32]), (&b"LOCL"[..], &b"question"[..]));
            assert_eq!(
                [16, 32, 40].map(|at| trial_time(&answer[at..at + 8])),
                [1_700_000_000_000_000_000, 1_700_000_000_250_000_000, 1_700_000_000_250_000_000]
            );
            assert_eq!(answer[36..40], [0x40, 0, 0, 0], "a quarter");
        }
        let with_key = [&trial_request(4)[..], &[0; 20]].concat();
        assert!(answer(&with_key, &|| Some(0)).is_some());
    }

    #[test]
    fn nobody_else_is() {
        let request = trial_request(4);
        let known = || Some(1);
        assert!(answer(&request[..47], &known).is_none());
        assert!(answer(&request, &|| None).is_none());
        for first in 0..=u8::MAX {
            let asks = first & 7 == CLIENT && VERSIONS.contains(&(first >> 3 & 7));
            let mut request = request;
            request[0] = first;
            assert_eq!(answer(&request, &known).is_some(), asks, "{first:#x}");
        }
    }

    #[test]
    fn times_of_any_century() {
        assert_eq!(timestamp(0), [0x83, 0xaa, 0x7e, 0x80, 0, 0, 0, 0]);
        // The next era begins on 7 February 2036.
        assert_eq!(timestamp(2_085_978_496 * NS_PER_SECOND), [0; 8]);
        assert_eq!(timestamp(2_085_978_496 * NS_PER_SECOND - 1)[..4], [0xff; 4]);
        let _ = timestamp(u64::MAX);
    }
}
