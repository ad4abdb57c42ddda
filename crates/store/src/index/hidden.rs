//! What an encrypted index looks like: who reads its file can tell neither names nor contents, nor whether something that he knows is there.
//!
//! LMDB sees other keys, which stand for the real ones, in the order of those where somebody needs it. Where objects lie may be seen; all other values are
//! sealed together with their real keys.

use super::Db;
use crate::cipher::{Cipher, Sealing};
use std::borrow::Cow;

/// A real key and its value.
pub(super) type Entry<'e> = (Cow<'e, [u8]>, Cow<'e, [u8]>);

/// What becomes of the keys of a database.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keys {
    /// They tell nothing.
    Open,
    /// Names, each of which has another one. In no order.
    Names,
    /// Some bytes by which a key belongs to others, and so many behind them by which those are in order.
    Groups { head: fn(&[u8]) -> usize, ordered: usize },
}

/// What becomes of the values of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// They tell nothing.
    Open,
    Sealed,
}

/// Up to the first NUL, and with it.
pub(super) fn experiment(key: &[u8]) -> usize {
    key.iter().position(|byte| *byte == 0).map_or(key.len(), |at| at + 1)
}

/// A checkpoint id.
pub(super) fn id(key: &[u8]) -> usize {
    key.len().min(32)
}

/// The key that LMDB sees. Of a group: how all keys in it begin.
pub(super) fn key<'k>(sealing: &Sealing, db: &Db, key: &'k [u8]) -> Cow<'k, [u8]> {
    match (sealing, db.keys) {
        (None, _) | (_, Keys::Open) => key.into(),
        (Some(cipher), Keys::Names) => match key.try_into() {
            Ok(name) => cipher.hide(name).to_vec().into(),
            Err(_) => cipher.stand_in(db.name, key).to_vec().into(),
        },
        (Some(cipher), Keys::Groups { head, ordered }) => {
            let (head, rest) = key.split_at(head(key));
            let mut hidden = cipher.stand_in(db.name, head).to_vec();
            if !rest.is_empty() {
                hidden.extend(&rest[..ordered.min(rest.len())]);
                hidden.extend(cipher.stand_in(db.name, key));
            }
            hidden.into()
        }
    }
}

/// The value that LMDB sees.
pub(super) fn value<'v>(sealing: &Sealing, db: &Db, key: &[u8], hidden: &[u8], value: &'v [u8]) -> Cow<'v, [u8]> {
    let Some(cipher) = sealing.as_ref().filter(|_| db.values == Values::Sealed) else { return value.into() };
    let mut sealed = Vec::new();
    let entry = [&(key.len() as u16).to_le_bytes(), key, value].concat();
    cipher.seal(&about(db.name, hidden), &entry, &mut sealed);
    sealed.into()
}

/// The real key and value of an entry; none: it is not what was written.
pub(super) fn entry<'e>(sealing: &Sealing, db: &Db, key: &'e [u8], value: &'e [u8]) -> Option<Entry<'e>> {
    match (sealing, db.values, db.keys) {
        (None, ..) => Some((key.into(), value.into())),
        (Some(cipher), Values::Sealed, _) => {
            let (key, value) = unseal(cipher, db.name, key, value)?;
            Some((key.into(), value.into()))
        }
        (Some(cipher), Values::Open, Keys::Names) => {
            let name = key.try_into().map_or_else(|_| key.into(), |hidden| Cow::from(cipher.show(hidden).to_vec()));
            Some((name, value.into()))
        }
        (Some(_), Values::Open, _) => Some((key.into(), value.into())),
    }
}

/// The real key and value of a sealed one.
pub(super) fn unseal(cipher: &Cipher, database: &str, hidden: &[u8], sealed: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut bytes = sealed.to_vec();
    let (length, rest) = cipher.unseal(&about(database, hidden), &mut bytes)?.split_first_chunk()?;
    let (key, value) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
    Some((key.to_vec(), value.to_vec()))
}

/// What a value vouches for besides itself: where it is.
fn about(database: &str, hidden: &[u8]) -> Vec<u8> {
    [database.as_bytes(), &[0], hidden].concat()
}
