//! Rates, times, chances and addresses as people write them.

use super::super::units::{ParseUnitError, number_and_unit};
use fermata_net::{Chance, Shape};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::json;
use std::{borrow::Cow, fmt, net::Ipv4Addr, str::FromStr};

/// Bits a second. As text: `100Mbit`, or `none` for no limit, which is the number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate(pub u64);

/// Nanoseconds. As text: a whole number with `ns`, `us`, `ms`, `s`, `m` or `h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub u64);

/// A probability. As text: `0.1%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Percent(pub Chance);

/// The clock of a machine. As text: `virtual`, `real`, `+2h`, `real -1500ms`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clock {
    /// It is set to the real time when the machine goes on from a checkpoint or a pause. Else it goes on from where it stood.
    pub real: bool,
    /// By how many milliseconds it is ahead of the right time, or behind it.
    pub ahead_ms: i64,
}

/// An IPv4 address and the length of its network's prefix. As text: `10.0.0.1/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4 {
    /// The address.
    pub address: Ipv4Addr,
    /// 1 to 32.
    pub prefix: u8,
}

const RATES: [(&str, u64); 5] = [("bit", 1), ("kbit", 1000), ("Mbit", 1_000_000), ("Gbit", 1_000_000_000), ("Tbit", 1_000_000_000_000)];
const TIMES: [(&str, u64); 6] =
    [("ns", 1), ("us", 1000), ("ms", 1_000_000), ("s", 1_000_000_000), ("m", 60_000_000_000), ("h", 3_600_000_000_000)];
const NS_PER_MS: u64 = 1_000_000;
/// One percent, in parts of a billion, and the digits that are left behind its point.
const PERCENT: u32 = Chance::ALWAYS.per_billion / 100;
const PERCENT_DIGITS: usize = 7;
/// Ten years.
const OFFSET_MAX: u64 = 87_600 * 3_600_000;

/// The largest unit that loses nothing.
fn with_unit(number: u64, units: &[(&str, u64)], zero: &str) -> String {
    let unit = units.iter().rev().find(|(_, factor)| number != 0 && number.is_multiple_of(*factor));
    unit.map_or(zero.to_owned(), |(unit, factor)| format!("{}{unit}", number / factor))
}

fn from_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (count, unit) = number_and_unit(text)?;
    count.checked_mul(units.iter().find(|(name, _)| *name == unit)?.1)
}

impl Rate {
    pub(in crate::spec) const EXPECTED: &'static str = "a rate up to 1Tbit such as 100Mbit, or none for no limit";

    fn read(text: &str) -> Option<Self> {
        match text {
            "none" => Some(Self(0)),
            _ => from_unit(text, &RATES).filter(|rate| (1..=Shape::RATE_MAX).contains(rate)).map(Self),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_unit(self.0, &RATES, "none"))
    }
}

impl Time {
    pub(in crate::spec) const EXPECTED: &'static str = "a time such as 500us, 10ms or 30s";

    fn read(text: &str) -> Option<Self> {
        from_unit(text, &TIMES).map(Self)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_unit(self.0, &TIMES, "0s"))
    }
}

impl Percent {
    pub(in crate::spec) const EXPECTED: &'static str = "a chance from 0% to 100% such as 0.1%, with at most 7 digits behind the point";

    fn read(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?;
        let (whole, rest) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(rest) || rest.len() > PERCENT_DIGITS {
            return None;
        }
        let per_billion =
            whole.parse::<u32>().ok()?.checked_mul(PERCENT)?.checked_add(format!("{rest:0<PERCENT_DIGITS$}").parse().ok()?)?;
        (per_billion <= Chance::ALWAYS.per_billion).then_some(Self(Chance { per_billion }))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0.per_billion / PERCENT, self.0.per_billion % PERCENT);
        let rest = format!("{rest:0PERCENT_DIGITS$}");
        match rest.trim_end_matches('0') {
            "" => write!(f, "{whole}%"),
            rest => write!(f, "{whole}.{rest}%"),
        }
    }
}

impl Clock {
    pub(in crate::spec) const EXPECTED: &'static str =
        "virtual or real, or a time ahead or behind such as +2h, -1500ms or real +2h, at most 87600h";

    fn read(text: &str) -> Option<Self> {
        let (real, rest) = match text.split_once(' ') {
            Some(("real", rest)) => (true, rest),
            Some(("virtual", rest)) => (false, rest),
            Some(_) => return None,
            None if text == "real" || text == "virtual" => return Some(Self { real: text == "real", ahead_ms: 0 }),
            None => (false, text),
        };
        let (sign, rest) = match rest.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, rest.strip_prefix('+').unwrap_or(rest)),
        };
        let ms = from_unit(rest, &TIMES).filter(|ns| ns.is_multiple_of(NS_PER_MS))? / NS_PER_MS;
        (ms <= OFFSET_MAX).then_some(Self { real, ahead_ms: sign * ms as i64 })
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ahead = Time(self.ahead_ms.unsigned_abs() * NS_PER_MS);
        let sign = if self.ahead_ms < 0 { '-' } else { '+' };
        match (self.real, self.ahead_ms) {
            (true, 0) => f.write_str("real"),
            (false, 0) => f.write_str("virtual"),
            (true, _) => write!(f, "real {sign}{ahead}"),
            (false, _) => write!(f, "{sign}{ahead}"),
        }
    }
}

impl Ipv4 {
    pub(in crate::spec) const EXPECTED: &'static str = "an IPv4 address with the length of its network such as 10.0.0.1/24";

    fn read(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let plain = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = prefix.parse().ok().filter(|prefix| plain && (1..=32).contains(prefix))?;
        Some(Self { address: address.parse().ok()?, prefix })
    }
}

impl fmt::Display for Ipv4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// What is written as text, everywhere in the same way.
macro_rules! text {
    ($type:ident, $description:literal, $pattern:literal, $examples:expr) => {
        impl FromStr for $type {
            type Err = ParseUnitError;

            fn from_str(text: &str) -> Result<Self, ParseUnitError> {
                Self::read(text).ok_or_else(|| ParseUnitError::new(Self::EXPECTED, text))
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                let examples = json!($examples);
                json_schema!({"description": $description, "type": "string", "pattern": $pattern, "examples": examples})
            }
        }
    };
}

text!(Rate, "Bits a second, up to 1Tbit; powers of 1000. Or none.", "^([0-9]+[kMGT]?bit|none)$", ["100Mbit", "1Gbit", "none"]);
text!(
    Time,
    "A whole number of nanoseconds (ns), microseconds (us), milliseconds (ms), seconds (s), minutes (m) or hours (h).",
    "^[0-9]+(ns|us|ms|s|m|h)$",
    ["500us", "10ms", "30s"]
);
text!(Percent, "A chance from 0% to 100%, with at most 7 digits behind the point.", "^[0-9]+(\\.[0-9]{1,7})?%$", ["0.1%", "2%"]);
text!(
    Clock,
    "Which time the machine wakes to when it goes on from a checkpoint or a pause: virtual, that at which it stood, or real. And how far its clock is ahead (+) or behind (-), in whole milliseconds, at most 87600h.",
    "^(real|virtual|((real|virtual) )?[+-]?[0-9]+(ns|us|ms|s|m|h))$",
    ["real", "+2h", "real -1500ms"]
);
text!(Ipv4, "An IPv4 address with the length of its network.", "^[0-9.]+/[0-9]+$", ["10.0.0.1/24"]);
