//! Names and ids. What has content is named by the BLAKE3 hash of its content; what has none gets random bytes.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{fmt, str::FromStr};

/// Text that is not the id it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no {kind}: expected {digits} hexadecimal digits")]
pub struct ParseIdError {
    text: String,
    kind: &'static str,
    digits: usize,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $bytes]);

        impl $name {
            /// The bytes of the id.
            pub const fn as_bytes(&self) -> &[u8; $bytes] {
                &self.0
            }

            /// The first 12 hexadecimal digits: what people are shown.
            pub fn short(&self) -> String {
                self.to_string()[..12].to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.short())
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                parse_hex(text).map(Self).ok_or_else(|| ParseIdError {
                    text: text.chars().take(80).collect(),
                    kind: $kind,
                    digits: $bytes * 2,
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

id!(
    /// A page of RAM or disk, named by the BLAKE3 hash of its 4096 bytes.
    PageName, 32, "page name");
id!(
    /// A node of a page table, named by the BLAKE3 hash of its content.
    NodeName, 32, "node name");
id!(
    /// A run of bytes kept with a checkpoint (device state), named by its BLAKE3 hash.
    BlobName, 32, "blob name");
id!(
    /// A checkpoint: the BLAKE3 hash of its record.
    CheckpointId, 32, "checkpoint id");
id!(
    /// A pack file of the store, named by the BLAKE3 hash of its table of contents.
    PackId, 32, "pack id");
id!(
    /// A golden image, named by the BLAKE3 hash of what a guest sees in it.
    ImageId, 32, "image id");
id!(
    /// One machine of one run. Guests see it as their VM generation id.
    MachineId, 16, "machine id");

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// So many bytes, each as two hexadecimal digits; none if the text is anything else.
pub fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let text = text.as_bytes();
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4) | digit(pair[1])?;
    }
    Some(bytes)
}

fn digit(character: u8) -> Option<u8> {
    (character as char).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text() {
        let id = PageName(std::array::from_fn(|i| (i * 7) as u8));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(serde_json::from_str::<PageName>(&serde_json::to_string(&id).unwrap()).unwrap(), id);
    }

    #[test]
    fn what_is_no_id_is_refused() {
        assert!("12".parse::<PageName>().is_err());
        assert!("g".repeat(64).parse::<PageName>().is_err());
        assert!("é".repeat(32).parse::<PageName>().is_err());
        assert!("a".repeat(65).parse::<PageName>().is_err());
    }
}
