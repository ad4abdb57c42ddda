//! Sizes and intervals as people write them.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

/// Text that is not the quantity it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found \"{}\"", shorten(.found))]
pub struct ParseUnitError {
    expected: &'static str,
    found: String,
}

impl ParseUnitError {
    pub(super) fn new(expected: &'static str, found: &str) -> Self {
        Self { expected, found: found.to_owned() }
    }
}

/// Outside text in a message: a hostile one must not fill the screen or drive the terminal.
pub(super) fn shorten(text: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    let shown: String = text.chars().take(CHARACTERS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(CHARACTERS_MAX).is_some() { shown + "..." } else { shown }
}

/// A number of bytes. As text: a whole number, alone or with `K`, `M`, `G`, `T` (powers of 1024; `KiB` and so on mean the same). As JSON: the number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl ByteSize {
    pub(super) const EXPECTED: &'static str = "a size such as 512M or 1G";

    /// This many bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// This many MiB.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }
}

impl fmt::Display for ByteSize {
    /// The largest unit that loses nothing: `512M`, `1G`, `4097`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = SIZE_UNITS.iter().rev().find(|(_, shift)| self.0 != 0 && self.0.trailing_zeros() >= *shift);
        match unit {
            Some((letter, shift)) => write!(f, "{}{letter}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

const SIZE_UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

impl FromStr for ByteSize {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let parse = || {
            let (count, unit) = number_and_unit(text)?;
            let letter = unit.strip_suffix("iB").unwrap_or(unit);
            let shift = match letter {
                "" if unit.is_empty() => 0,
                _ => SIZE_UNITS.iter().find(|(name, _)| letter.chars().eq([*name]))?.1,
            };
            count.checked_mul(1 << shift).map(Self)
        };
        parse().ok_or_else(|| ParseUnitError::new(Self::EXPECTED, text))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(de::Error::custom),
        }
    }
}

impl JsonSchema for ByteSize {
    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of bytes, alone or with K, M, G or T (powers of 1024; KiB, MiB, GiB, TiB mean the same).",
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": "^[0-9]+([KMGT](iB)?)?$"},
            ],
            "examples": ["512M", "1G"],
        })
    }
}

/// The time between two checkpoints: 100 ms to 24 h, in whole milliseconds. As text: a whole number with `ms`, `s`, `m` or `h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interval(Duration);

impl Interval {
    pub(super) const EXPECTED: &'static str = "an interval from 100ms to 24h, such as 500ms or 2s";
    const MIN: Duration = Duration::from_millis(100);
    const MAX: Duration = Duration::from_secs(24 * 3600);

    /// This interval; a whole number of milliseconds from 100 ms to 24 h.
    pub fn new(duration: Duration) -> Result<Self, ParseUnitError> {
        let good = (Self::MIN..=Self::MAX).contains(&duration) && duration.subsec_nanos().is_multiple_of(1_000_000);
        good.then_some(Self(duration)).ok_or_else(|| ParseUnitError::new(Self::EXPECTED, &format!("{duration:?}")))
    }

    /// The interval as a duration.
    pub const fn duration(self) -> Duration {
        self.0
    }
}

const TIME_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

impl fmt::Display for Interval {
    /// The largest unit that loses nothing: `2s`, `1500ms`, `1m`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis() as u64;
        let (unit, factor) = TIME_UNITS.iter().rev().find(|(_, factor)| ms.is_multiple_of(*factor)).unwrap_or(&TIME_UNITS[0]);
        write!(f, "{}{unit}", ms / factor)
    }
}

impl FromStr for Interval {
    type Err = ParseUnitError;

    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        let parse = || {
            let (count, unit) = number_and_unit(text)?;
            let factor = TIME_UNITS.iter().find(|(name, _)| *name == unit)?.1;
            Self::new(Duration::from_millis(count.checked_mul(factor)?)).ok()
        };
        parse().ok_or_else(|| ParseUnitError::new(Self::EXPECTED, text))
    }
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Interval {
    fn schema_name() -> Cow<'static, str> {
        "Interval".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A whole number of milliseconds (ms), seconds (s), minutes (m) or hours (h), from 100ms to 24h.",
            "type": "string",
            "pattern": "^[0-9]+(ms|s|m|h)$",
            "examples": ["2s", "500ms"],
        })
    }
}

pub(super) fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit))
}
