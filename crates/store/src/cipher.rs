//! How what a store keeps is encrypted: bytes by XChaCha20-Poly1305, names of things by Threefish, texts in keys of the index by keyed BLAKE3.
//!
//! The nonce of bytes is a keyed hash of them and of where they belong (a synthetic IV). So none is ever used for two contents, whatever becomes of the host: it
//! may be a machine that somebody takes back to a checkpoint, where drawn nonces would be drawn again. All that is told is whether the same bytes
//! were at the same place before.

use blake3::Hasher;
use chacha20poly1305::{AeadInOut, KeyInit, Tag, XChaCha20Poly1305};
use std::sync::Arc;
use threefish::Threefish256;

/// How the files of a store are encrypted; none: not at all.
pub(crate) type Sealing = Option<Arc<Cipher>>;

const NONCE: usize = 24;
const TAG: usize = 16;
/// What sealing adds.
pub(crate) const OVERHEAD: usize = NONCE + TAG;

/// The keys of an open store.
pub(crate) struct Cipher {
    contents: XChaCha20Poly1305,
    nonces: [u8; 32],
    names: Threefish256,
    texts: [u8; 32],
    sums: [u8; 32],
    /// What processes that this one starts have to be told, if it is a passphrase that opened the store.
    passphrase: Option<String>,
}

impl Cipher {
    /// All keys from one.
    pub fn new(key: &[u8; 32], passphrase: Option<String>) -> Self {
        let derive = |what: &str| blake3::derive_key(&format!("fermata sealed store 1 {what}"), key);
        Self {
            contents: XChaCha20Poly1305::new(&derive("contents").into()),
            nonces: derive("nonces"),
            names: Threefish256::new_with_tweak(&derive("names"), &[0; 16]),
            texts: derive("texts"),
            sums: derive("sums"),
            passphrase,
        }
    }

    pub fn passphrase(&self) -> Option<&str> {
        self.passphrase.as_deref()
    }

    /// Appends the sealed form of some bytes, which can be unsealed only with the same `about`.
    pub fn seal(&self, about: &[u8], plain: &[u8], into: &mut Vec<u8>) {
        let mut hasher = Hasher::new_keyed(&self.nonces);
        hasher.update(&(about.len() as u64).to_le_bytes()).update(about).update(plain);
        let nonce: [u8; NONCE] = *hasher.finalize().as_bytes().first_chunk().expect("32 bytes have 24");
        into.reserve(plain.len() + OVERHEAD);
        into.extend(nonce);
        let from = into.len();
        into.extend(plain);
        let tag = self.contents.encrypt_inout_detached(&nonce.into(), about, (&mut into[from..]).into());
        into.extend(tag.expect("far fewer bytes than a nonce is good for"));
    }

    /// The plain bytes, in the place where they are sealed. None: they were changed, or belong elsewhere.
    pub fn unseal<'b>(&self, about: &[u8], sealed: &'b mut [u8]) -> Option<&'b [u8]> {
        let (nonce, rest) = sealed.split_first_chunk_mut::<NONCE>()?;
        let (bytes, tag) = rest.split_last_chunk_mut::<TAG>()?;
        let tag: Tag = (*tag).into();
        self.contents.decrypt_inout_detached(&(*nonce).into(), about, (&mut *bytes).into(), &tag).ok()?;
        Some(bytes)
    }

    /// What a name is called where others can read it: a permutation of all names.
    pub fn hide(&self, name: &[u8; 32]) -> [u8; 32] {
        let mut block = words(name);
        self.names.encrypt_block_u64(&mut block);
        bytes(&block)
    }

    /// The name that is called so.
    pub fn show(&self, hidden: &[u8; 32]) -> [u8; 32] {
        let mut block = words(hidden);
        self.names.decrypt_block_u64(&mut block);
        bytes(&block)
    }

    /// Stands for a text in a key, and tells nothing of it.
    pub fn stand_in(&self, database: &str, text: &[u8]) -> [u8; 32] {
        let mut hasher = Hasher::new_keyed(&self.texts);
        hasher.update(&(database.len() as u64).to_le_bytes()).update(database.as_bytes()).update(text);
        *hasher.finalize().as_bytes()
    }

    /// Makes hashes that only who has the keys can make.
    pub fn hasher(&self) -> Hasher {
        Hasher::new_keyed(&self.sums)
    }
}

/// What a name is called in a store that may be encrypted.
pub(crate) fn hidden(sealing: &Sealing, name: &[u8; 32]) -> [u8; 32] {
    sealing.as_ref().map_or(*name, |cipher| cipher.hide(name))
}

/// The name that is called so in a store that may be encrypted.
pub(crate) fn shown(sealing: &Sealing, hidden: &[u8; 32]) -> [u8; 32] {
    sealing.as_ref().map_or(*hidden, |cipher| cipher.show(hidden))
}

fn words(bytes: &[u8; 32]) -> [u64; 4] {
    std::array::from_fn(|at| u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes")))
}

fn bytes(words: &[u64; 4]) -> [u8; 32] {
    std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_comes_back_where_it_belongs_and_only_there() {
        let (cipher, other) = (Cipher::new(&[1; 32], None), Cipher::new(&[2; 32], None));
        for length in [0, 1, 63, 64, 65, 5000] {
            let plain: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut sealed = Vec::new();
            cipher.seal(b"here", &plain, &mut sealed);
            assert_eq!(sealed.len(), plain.len() + OVERHEAD);
            let unsealed = |cipher: &Cipher, about: &[u8], sealed: &[u8]| cipher.unseal(about, &mut sealed.to_vec()).map(<[u8]>::to_vec);
            assert_eq!(unsealed(&cipher, b"here", &sealed), Some(plain));
            assert_eq!(unsealed(&cipher, b"there", &sealed), None);
            assert_eq!(unsealed(&other, b"here", &sealed), None);
            for at in (0..sealed.len()).step_by(7) {
                let mut bad = sealed.clone();
                bad[at] ^= 0x20;
                assert_eq!(unsealed(&cipher, b"here", &bad), None, "byte {at} of {length}");
                assert_eq!(unsealed(&cipher, b"here", &sealed[..at]), None);
            }
        }
    }

    #[test]
    fn nonces_differ_with_the_bytes_and_with_the_place() {
        let cipher = Cipher::new(&[1; 32], None);
        let nonce = |about: &[u8], plain: &[u8]| {
            let mut sealed = Vec::new();
            cipher.seal(about, plain, &mut sealed);
            sealed[..NONCE].to_vec()
        };
        let all = [nonce(b"a", b"bc"), nonce(b"ab", b"c"), nonce(b"", b"abc"), nonce(b"a", b"bd")];
        assert!((0..4).all(|one| (0..one).all(|other| all[one] != all[other])));
        assert_eq!(nonce(b"a", b"bc"), all[0]);
    }

    #[test]
    fn names_are_hidden_and_found_again() {
        let cipher = Cipher::new(&[1; 32], None);
        for seed in 0..50u8 {
            let name = *blake3::hash(&[seed]).as_bytes();
            let hidden = cipher.hide(&name);
            assert!(hidden != name && cipher.show(&hidden) == name);
            assert_ne!(Cipher::new(&[2; 32], None).hide(&name), hidden);
        }
    }
}
