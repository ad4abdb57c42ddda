//! Text that vouches for itself: at its end is the hash of all that comes before, so that a flipped bit anywhere in it is noticed.

use serde::Serialize;

/// How a text ends: what is before the hash, and what is behind it.
type Ending = (&'static str, &'static str);

/// The last of some lines.
pub(crate) const LINE: Ending = ("check ", "\n");
/// The last key of an object, as it is laid out for people.
const JSON: Ending = (",\n  \"check\": \"", "\"\n}");

/// The text with its ending.
pub(crate) fn seal(text: &str, (before, behind): Ending) -> String {
    format!("{text}{before}{}{behind}", blake3::hash(text.as_bytes()).to_hex())
}

/// Whether these bytes are what [`seal`] returned.
pub(crate) fn is_sealed(bytes: &[u8], ending: Ending) -> bool {
    let length = ending.0.len() + 2 * blake3::OUT_LEN + ending.1.len();
    let text = bytes.len().checked_sub(length).and_then(|end| str::from_utf8(&bytes[..end]).ok());
    text.is_some_and(|text| seal(text, ending).as_bytes() == bytes)
}

/// JSON for people of a value that is an object with keys, and has none named `check`: the last key of the JSON is `check`, the hash of all before it.
/// Files of this form in `images/` of a store are looked at by [`crate::Store::verify`].
pub fn seal_json(object: &impl Serialize) -> serde_json::Result<String> {
    let json = serde_json::to_string_pretty(object)?;
    Ok(seal(json.trim_end_matches("\n}"), JSON))
}

/// Whether these bytes are what [`seal_json`] returned, bit for bit.
pub fn is_sealed_json(bytes: &[u8]) -> bool {
    is_sealed(bytes, JSON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_anywhere_breaks_the_seal() {
        let json = seal_json(&serde_json::json!({ "version": 2, "path": "/images/\u{e9}\n", "inner": { "size": 4096 } })).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["inner"]["size"], 4096);
        let lines = seal("one\ntwo\n", LINE);
        assert!(is_sealed_json(json.as_bytes()) && is_sealed(lines.as_bytes(), LINE) && !is_sealed(b"one\ntwo\n", LINE));
        for (text, ending) in [(json, JSON), (lines, LINE)] {
            for bit in 0..text.len() * 8 {
                let mut bytes = text.clone().into_bytes();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(!is_sealed(&bytes, ending), "bit {bit} of {text}");
            }
            assert!((0..text.len()).all(|length| !is_sealed(&text.as_bytes()[..length], ending)));
        }
    }
}
