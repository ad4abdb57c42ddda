//! What a remote is, beside where it is: a number that it gets when a place becomes one.
//!
//! An address may lead elsewhere one day: to a directory on which nothing is mounted any more, or to another disk. Whoever remembers the number does not take that
//! place for the remote.

use super::{Remote, check_format, damaged, get, lease::unique, place};
use crate::{Error, Result};

const IDENTITY: &str = "identity";
const IDENTITY_MAX: u64 = 64;
/// Digits of a number, and of those that people are shown.
const DIGITS: usize = 32;
const DIGITS_SHOWN: usize = 12;

/// The identity of a remote. None: the place is empty, or became a remote by an older version.
pub fn identity(remote: &dyn Remote) -> Result<Option<String>> {
    let Some(bytes) = get(remote, IDENTITY, IDENTITY_MAX)? else { return Ok(None) };
    let text = String::from_utf8(bytes).ok().and_then(|text| Some(text.strip_suffix('\n')?.to_owned()));
    let identity = text.filter(|text| text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    identity.map(Some).ok_or_else(|| damaged(remote, IDENTITY, "it is no identity of a remote"))
}

/// Makes a remote of a place that is none yet, and gives an identity to one that has none. Returns it.
pub fn make_remote(remote: &dyn Remote) -> Result<String> {
    if let Some(identity) = identity(remote)? {
        check_format(remote, true)?;
        return Ok(identity);
    }
    if get(remote, super::FORMAT, super::FORMAT_MAX)?.is_some() {
        check_format(remote, false)?;
    }
    let drawn = unique(remote)?;
    let swapped = remote.swap(IDENTITY, None, format!("{drawn}\n").into_bytes());
    let made = match swapped.map_err(Error::io("write", &place(remote, IDENTITY)))? {
        true => {
            check_conditions(remote, &drawn)?;
            drawn
        }
        // Somebody else was faster.
        false => identity(remote)?.ok_or_else(|| damaged(remote, IDENTITY, "it was there a moment ago, and is gone"))?,
    };
    // Last, so that what has a format has an identity.
    check_format(remote, true)?;
    Ok(made)
}

/// Fails where an object is written that was to be written only if there were none: several hosts would overwrite each other's branches there, and prunes their claims.
fn check_conditions(remote: &dyn Remote, identity: &str) -> Result<()> {
    match remote.swap(IDENTITY, None, format!("{identity}\n").into_bytes()).map_err(Error::io("write", &place(remote, IDENTITY)))? {
        false => Ok(()),
        true => Err(Error::refused(
            format!("{remote} does not heed conditions: it wrote an object anew that was to be written only if it was not there"),
            "use a service with conditional writes (If-None-Match and If-Match), or a directory",
        )),
    }
}

/// Fails unless a place is the remote that is expected there.
pub fn check_identity(remote: &dyn Remote, expected: &str) -> Result<()> {
    let found = match identity(remote)? {
        Some(identity) if identity == expected => return Ok(()),
        Some(identity) => format!("remote {}", shown(&identity)),
        None if get(remote, super::FORMAT, super::FORMAT_MAX)?.is_some() => "a remote without an identity".to_owned(),
        None => "nothing".to_owned(),
    };
    Err(Error::refused(
        format!("{remote} is not what it was: remote {} is expected there, and there is {found}", shown(expected)),
        "mount or connect what belongs there; or, to begin anew with what is there, `fermata remote rm` and `fermata remote add` its name",
    ))
}

/// The same for whoever is about to push; where nothing is expected, whatever is there becomes a remote.
pub(super) fn settle(remote: &dyn Remote, expected: Option<&str>) -> Result<()> {
    let Some(expected) = expected else { return make_remote(remote).map(drop) };
    check_identity(remote, expected)?;
    // Whoever made it may have died in between.
    check_format(remote, true)?;
    // One that went since would be another place now, that nobody knows again.
    check_identity(remote, expected)
}

fn shown(identity: &str) -> &str {
    identity.get(..DIGITS_SHOWN).unwrap_or(identity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::{
        PushOptions,
        tests::{Place, history, push, store},
    };

    fn objects(place: &Place) -> usize {
        place.list("").unwrap().len()
    }

    #[test]
    fn a_place_gets_an_identity_once() {
        let place = Place::new();
        assert_eq!(identity(&place).unwrap(), None);
        let made = make_remote(&place).unwrap();
        assert_eq!((make_remote(&place).unwrap(), identity(&place).unwrap()), (made.clone(), Some(made.clone())));
        check_identity(&place, &made).unwrap();
        // One whom somebody else has overtaken between its look and its change.
        let (place, other) = (std::sync::Arc::new(Place::new()), "ab".repeat(16));
        let (faster, text) = (place.clone(), format!("{other}\n").into_bytes());
        place.after(2, move || faster.put(IDENTITY, text).unwrap());
        assert_eq!(make_remote(&place).unwrap(), other);
        for bad in ["", "ab\n", &other, &format!("{other}a\n"), &format!("{}z\n", &other[1..])] {
            place.put(IDENTITY, bad.into()).unwrap();
            assert!(identity(&place).unwrap_err().to_string().contains("no identity"), "{bad:?}");
        }
        // A version that is not known gets none.
        let place = Place::new();
        place.put("format", b"fermata remote 9\n".to_vec()).unwrap();
        make_remote(&place).unwrap_err();
        assert_eq!(objects(&place), 1);
    }

    #[test]
    fn nothing_is_sent_to_another_place_than_is_meant() {
        let (here, place) = (tempfile::tempdir().unwrap(), Place::new());
        let from = store(here.path());
        let ids = history(&from, 2);
        push(&from, &place, &ids[..1]).unwrap();
        let known = identity(&place).unwrap().unwrap();
        let options = PushOptions { identity: Some(known.clone()), ..PushOptions::default() };
        let push_to = |place: &Place| from.push(place, &ids, &options, &mut |_, _| {});
        let (empty, other, older) = (Place::new(), Place::new(), Place::new());
        make_remote(&other).unwrap();
        older.put("format", b"fermata remote 1\n".to_vec()).unwrap();
        for (place, found) in [(&empty, "there is nothing"), (&other, "there is remote "), (&older, "without an identity")] {
            let before = objects(place);
            let error = push_to(place).unwrap_err().to_string();
            assert!(error.contains(&known[..12]) && error.contains(found) && error.contains("fermata remote rm"), "{error}");
            assert_eq!(objects(place), before);
        }
        assert_eq!(push_to(&place).unwrap().checkpoints, 1);
        // One of an older version gets its identity from the next push.
        push(&from, &older, &ids).unwrap();
        assert_ne!(identity(&older).unwrap().unwrap(), known);
    }
}
