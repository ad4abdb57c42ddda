//! What a fuzzer may feed with any bytes: the specification, and whoever answers guests behind their control interfaces. See `fuzz/README.md`.

use crate::spec::{ByteSize, Clock, Endpoint, Interval, Ipv4, Percent, Rate, Spec, SpecFile, Time};
use std::path::Path;

/// A specification, or a quantity in one. Panics if one that is accepted cannot be read back from its JSON, or if the errors in one that is refused
/// cannot be shown.
pub fn spec(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match SpecFile::parse(text, Path::new("fuzz.yaml"), Path::new("/somewhere")) {
        Ok(file) => {
            let json = serde_json::to_string(file.spec()).expect("a specification is plain");
            let again: Spec = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
            assert_eq!(&again, file.spec());
            let as_yaml = SpecFile::parse(&json, Path::new("fuzz.json"), Path::new("/elsewhere"));
            assert_eq!(as_yaml.expect("its JSON is a specification too").spec(), file.spec());
        }
        Err(error) => {
            let report = miette::Report::new(error);
            let _ = format!("{report} {report:?}");
        }
    }
    let _ = (text.parse::<ByteSize>(), text.parse::<Interval>(), text.parse::<Rate>(), text.parse::<Time>());
    let _ = (text.parse::<Percent>(), text.parse::<Clock>(), text.parse::<Ipv4>(), text.parse::<Endpoint>());
}

/// A frame of a guest's. Panics if it is answered with anything but a sound frame to whoever asked.
pub fn services(data: &[u8]) {
    crate::services::trial::answers(data);
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
#[test]
fn specifications_may_be_anything() {
    replay::replay("spec", 2_000, spec);
}

#[cfg(test)]
#[test]
fn guests_may_ask_anything() {
    replay::replay("services", 20_000, services);
}
