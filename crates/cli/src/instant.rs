//! Instants of virtual time, as people write them.

use fermata_api::values::When;
use std::str::FromStr;

/// Units and their nanoseconds.
const UNITS: [(&str, u64); 4] = [("ms", 1_000_000), ("s", 1_000_000_000), ("m", 60_000_000_000), ("h", 3_600_000_000_000)];
/// Digits after the point, which is as exact as virtual time is.
const DIGITS_MAX: usize = 9;

/// A time to come: `+5s` from now, or `12.5s` as `fermata log` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instant(pub When);

impl FromStr for Instant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (after, time) = text.strip_prefix('+').map_or((false, text), |time| (true, time));
        let ns = nanoseconds(time).ok_or_else(|| {
            format!("\"{text}\" is no instant: write +5s for five seconds from now, or 12.5s for that virtual time (ms, s, m, h)")
        })?;
        Ok(Self(if after { When::AfterNs(ns) } else { When::AtNs(ns) }))
    }
}

/// How much virtual time, in nanoseconds: `20s`, `1m30s`.
pub fn span(text: &str) -> Result<u64, String> {
    nanoseconds(text).ok_or_else(|| format!("\"{text}\" is no time: write 20s, 1m30s or 250ms (ms, s, m, h)"))
}

/// Numbers with units that get smaller: `1h02m05.5s`.
fn nanoseconds(text: &str) -> Option<u64> {
    let (mut sum, mut rest, mut before) = (0u64, text, u64::MAX);
    while !rest.is_empty() || before == u64::MAX {
        let (number, behind) = rest.split_at(rest.find(|character: char| character.is_ascii_alphabetic())?);
        let end = behind.find(|character: char| !character.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (name, next) = behind.split_at(end);
        let unit = UNITS.iter().find(|(unit, _)| *unit == name)?.1;
        if unit >= before {
            return None;
        }
        sum = sum.checked_add(in_units(number, unit)?)?;
        (rest, before) = (next, unit);
    }
    Some(sum)
}

fn in_units(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse::<u64>().ok())?;
    if fraction.len() > DIGITS_MAX {
        return None;
    }
    let part = u128::from(digits(fraction)?) * u128::from(unit) / 10u128.pow(fraction.len() as u32);
    digits(whole)?.checked_mul(unit)?.checked_add(u64::try_from(part).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants() {
        let at = |text: &str| text.parse::<Instant>().map(|Instant(when)| when);
        assert_eq!(at("+5s"), Ok(When::AfterNs(5_000_000_000)));
        assert_eq!(at("12.5s"), Ok(When::AtNs(12_500_000_000)));
        assert_eq!(at("250ms"), Ok(When::AtNs(250_000_000)));
        assert_eq!(at("+1.000000001h"), Ok(When::AfterNs(3_600_000_003_600)));
        assert_eq!(at("1h02m05.500s"), Ok(When::AtNs(3_725_500_000_000)));
        for wrong in [
            "5s5s",
            "5s1m",
            "1m5",
            "",
            "5",
            "s",
            "+s",
            ".5s",
            "5.s",
            "-5s",
            "++5s",
            "5 s",
            "1.0000000000s",
            "99999999999999999999s",
            "9999999999h",
        ] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }
}
