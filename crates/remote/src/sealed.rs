//! A place whose owner can read nothing of what is put there: neither contents nor names.
//!
//! What is put there is laid out as in `docs/formats/remote.md`, "Encrypted". Keys come from a passphrase or a file and never leave this host.

use aead_stream::{NewStream, StreamBE32, StreamPrimitive};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305,
    aead::{Aead, Payload},
};
use fermata_linux::random;
use fermata_store::{Secret, remote::Remote};
use std::{fmt, io};

/// The object that says how keys are made, in the open.
const KEYS: &str = "keys";
const KEYS_MAX: u64 = 4096;
const VERSION: &str = "fermata sealed remote 1";
/// Plain bytes that are sealed together.
const CHUNK: usize = 64 << 10;
/// What sealing adds to each.
const TAG: usize = 16;
const NONCE: usize = 19;
/// Behind the chunks: the nonce, and how many plain bytes there are.
const FOOTER: usize = NONCE + 8;
/// A place of which only those who know the secret can read what is there.
pub struct Sealed<P> {
    place: P,
    contents: XChaCha20Poly1305,
    names: XChaCha20Poly1305,
    /// Makes the nonce of a name from the name, so that a name always looks the same there.
    name_nonces: [u8; 32],
}

impl<P: Remote> Sealed<P> {
    /// Reaches a place with a secret. One that is empty becomes such a place; one that has something in the open, or was made with another secret, is refused.
    pub fn open(place: P, secret: &Secret) -> io::Result<Self> {
        let keys = match place.get(KEYS, KEYS_MAX)? {
            Some(keys) => keys,
            None => {
                if !place.list("packs/")?.is_empty() || place.get("format", KEYS_MAX)?.is_some() {
                    return Err(io::Error::other(
                        "what is there is not encrypted, and is not mixed with what is: choose an empty place, or say --plain",
                    ));
                }
                let salt = random::bytes::<16>()?;
                let master = secret.master(VERSION, &salt)?;
                let keys = format!("{VERSION}\n{}\n{}\n{}\n", secret.kind(), hex(&salt), hex(&check(&master)));
                // Somebody else may have been faster, with another salt.
                match place.swap(KEYS, None, keys.clone().into_bytes())? {
                    true => keys.into_bytes(),
                    false => {
                        place.get(KEYS, KEYS_MAX)?.ok_or_else(|| io::Error::other("what tells how its keys are made is gone again"))?
                    }
                }
            }
        };
        let keys = String::from_utf8_lossy(&keys);
        let [version, kind, salt, check_of] = keys.lines().collect::<Vec<_>>()[..] else {
            return Err(io::Error::other("what tells how its keys are made is damaged: put the object \"keys\" back from a copy"));
        };
        if version != VERSION {
            return Err(io::Error::other(format!("it is encrypted as in \"{version}\", which this version of Fermata does not know")));
        }
        let salt = unhex(salt)
            .and_then(|salt| salt.try_into().ok())
            .ok_or_else(|| io::Error::other("what tells how its keys are made is damaged: put the object \"keys\" back from a copy"))?;
        if kind != secret.kind() {
            return Err(io::Error::other(format!("it is encrypted with a {kind}, not with a {}", secret.kind())));
        }
        let master = secret.master(VERSION, &salt)?;
        if hex(&check(&master)) != check_of {
            return Err(io::Error::other(format!("this is not the {kind} that it is encrypted with")));
        }
        let key = |what: &str| blake3::derive_key(&format!("fermata sealed remote 1 {what}"), &master);
        Ok(Self {
            place,
            contents: XChaCha20Poly1305::new(&key("contents").into()),
            names: XChaCha20Poly1305::new(&key("names").into()),
            name_nonces: key("nonces of names"),
        })
    }

    /// Whether what is at a place is encrypted.
    pub fn is_sealed(place: &P) -> io::Result<bool> {
        Ok(place.get(KEYS, KEYS_MAX)?.is_some())
    }

    /// What an object is called there: all but the first part of its name is hidden.
    fn outer(&self, name: &str) -> io::Result<String> {
        let (kind, rest) = name.split_once('/').unwrap_or(("", name));
        let nonce: [u8; 24] = *blake3::keyed_hash(&self.name_nonces, name.as_bytes()).as_bytes().first_chunk().expect("32 bytes have 24");
        let payload = Payload { msg: rest.as_bytes(), aad: kind.as_bytes() };
        let sealed = self.names.encrypt(&nonce.into(), payload).map_err(|_| io::Error::other("a name that is too long"))?;
        let text = BASE64_URL_SAFE_NO_PAD.encode([&nonce[..], &sealed].concat());
        Ok(if kind.is_empty() { text } else { format!("{kind}/{text}") })
    }

    /// What an object of the place is; none: it is not ours.
    fn inner(&self, name: &str) -> Option<String> {
        let (kind, text) = name.split_once('/').unwrap_or(("", name));
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_first_chunk::<24>()?;
        let rest = self.names.decrypt(&(*nonce).into(), Payload { msg: sealed, aad: kind.as_bytes() }).ok()?;
        let rest = String::from_utf8(rest).ok()?;
        Some(if kind.is_empty() { rest } else { format!("{kind}/{rest}") })
    }

    fn seal(&self, name: &str, plain: &[u8]) -> io::Result<Vec<u8>> {
        let nonce = random::bytes::<NONCE>()?;
        let stream = StreamBE32::from_aead(self.contents.clone(), &nonce.into());
        let about = about(name, plain.len() as u64);
        let chunks = chunks(plain.len() as u64);
        let mut sealed = Vec::with_capacity(sealed_length(plain.len() as u64) as usize);
        for number in 0..chunks {
            let from = number as usize * CHUNK;
            let msg = &plain[from..plain.len().min(from + CHUNK)];
            let chunk =
                stream.encrypt(number, number + 1 == chunks, Payload { msg, aad: &about }).map_err(|_| io::Error::other("too long"))?;
            sealed.extend(chunk);
        }
        sealed.extend(nonce);
        sealed.extend((plain.len() as u64).to_le_bytes());
        Ok(sealed)
    }

    /// The plain bytes of neighbouring chunks, of which this is the first.
    fn unseal_chunks(&self, name: &str, footer: &[u8; FOOTER], first: u64, sealed: &[u8]) -> io::Result<Vec<u8>> {
        let wrong = || damaged("it is damaged, or was sealed for another place or with another key");
        let (nonce, length) = footer.split_first_chunk::<NONCE>().expect("a footer has its length");
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
        let (about, chunks) = (about(name, length), chunks(length));
        let stream = StreamBE32::from_aead(self.contents.clone(), &(*nonce).into());
        let mut plain = Vec::with_capacity(sealed.len());
        for (msg, number) in sealed.chunks(CHUNK + TAG).zip(first as u32..) {
            let chunk = stream.decrypt(number, number + 1 == chunks, Payload { msg, aad: &about }).map_err(|_| wrong())?;
            plain.extend(chunk);
        }
        Ok(plain)
    }

    /// The plain bytes of the chunks that are whole in the end of an object. `whole`: it is all of it.
    fn unseal(&self, name: &str, end: &[u8], whole: bool) -> io::Result<Vec<u8>> {
        let wrong = || damaged("it is damaged, or was sealed for another place or with another key");
        let (body, footer) = end.split_last_chunk::<FOOTER>().ok_or_else(wrong)?;
        let (nonce, length) = footer.split_first_chunk::<NONCE>().expect("a footer has its length");
        let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
        let missing = sealed_length(length).checked_sub(end.len() as u64).filter(|missing| !whole || *missing == 0).ok_or_else(wrong)?;
        let sealed_chunk = (CHUNK + TAG) as u64;
        let first = missing.div_ceil(sealed_chunk);
        let (about, chunks) = (about(name, length), u64::from(chunks(length)));
        let stream = StreamBE32::from_aead(self.contents.clone(), &(*nonce).into());
        let mut plain = Vec::with_capacity(body.len());
        for number in first..chunks {
            let from = (number * sealed_chunk - missing) as usize;
            let msg = body.get(from..body.len().min(from + sealed_chunk as usize)).ok_or_else(wrong)?;
            let chunk = stream.decrypt(number as u32, number + 1 == chunks, Payload { msg, aad: &about }).map_err(|_| wrong())?;
            plain.extend(chunk);
        }
        Ok(plain)
    }
}

impl<P: Remote> fmt::Display for Sealed<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

impl<P: Remote> Remote for Sealed<P> {
    fn get(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let sealed = self.place.get(&self.outer(name)?, sealed_length(most))?;
        sealed.map(|sealed| self.unseal(name, &sealed, true)).transpose()
    }

    fn tail(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        // One chunk more, for the first is cut.
        let sealed = self.place.tail(&self.outer(name)?, sealed_length(most.saturating_add(CHUNK as u64)))?;
        let plain = sealed.map(|sealed| self.unseal(name, &sealed, false)).transpose()?;
        Ok(plain.map(|plain| plain[plain.len().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX))..].to_vec()))
    }

    fn range(&self, name: &str, from: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        let outer = self.outer(name)?;
        // The nonce and the length are at its end, and vouch for each chunk.
        let Some(footer) = self.place.tail(&outer, FOOTER as u64)? else { return Ok(None) };
        let footer: &[u8; FOOTER] = footer.as_slice().try_into().map_err(|_| damaged("it is too short"))?;
        let whole = u64::from_le_bytes(*footer.last_chunk().expect("a footer has its length"));
        let end = from.saturating_add(length).min(whole);
        if from >= end {
            return Ok(Some(Vec::new()));
        }
        let sealed_chunk = (CHUNK + TAG) as u64;
        let (first, last) = (from / CHUNK as u64, (end - 1) / CHUNK as u64);
        let body_end = sealed_length(whole) - FOOTER as u64;
        let span = first * sealed_chunk..((last + 1) * sealed_chunk).min(body_end);
        let Some(sealed) = self.place.range(&outer, span.start, span.end - span.start)? else { return Ok(None) };
        let plain = self.unseal_chunks(name, footer, first, &sealed)?;
        let within = (from - first * CHUNK as u64) as usize;
        let piece = plain.get(within..within + (end - from) as usize).ok_or_else(|| damaged("it is shorter than it says"))?;
        Ok(Some(piece.to_vec()))
    }

    fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        self.place.put(&self.outer(name)?, self.seal(name, &bytes)?)
    }

    fn swap(&self, name: &str, before: Option<&[u8]>, bytes: Vec<u8>) -> io::Result<bool> {
        let outer = self.outer(name)?;
        // The same plain bytes are sealed otherwise each time: what is compared there is what was read there.
        let most = sealed_length(before.map_or(0, <[u8]>::len) as u64);
        // Of what is longer than it should be a byte more tells that it is something else.
        let sealed = self.place.range(&outer, 0, most + 1)?;
        if sealed.as_ref().is_some_and(|sealed| sealed.len() as u64 > most) {
            return Ok(false);
        }
        let now = sealed.as_ref().map(|sealed| self.unseal(name, sealed, true)).transpose()?;
        if now.as_deref() != before {
            return Ok(false);
        }
        self.place.swap(&outer, sealed.as_deref(), self.seal(name, &bytes)?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.place.remove(&self.outer(name)?)
    }

    fn unique(&self) -> io::Result<[u8; 16]> {
        self.place.unique()
    }

    fn list(&self, prefix: &str) -> io::Result<Vec<(String, u64)>> {
        let kind = prefix.split_once('/').map_or("", |(kind, _)| kind);
        let listed = self.place.list(&format!("{kind}/"))?;
        let ours = |(name, bytes): (String, u64)| Some((self.inner(&name).filter(|name| name.starts_with(prefix))?, plain_length(bytes)?));
        Ok(listed.into_iter().filter_map(ours).collect())
    }
}

/// What whoever reads can tell from a place that cannot be reached.
fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What each chunk vouches for besides itself: of which object it is, so that none can be put in another's place, and how long that is.
fn about(name: &str, length: u64) -> Vec<u8> {
    [&length.to_le_bytes()[..], name.as_bytes()].concat()
}

/// An empty object has a chunk, too.
fn chunks(length: u64) -> u32 {
    u32::try_from(length.div_ceil(CHUNK as u64).max(1)).unwrap_or(u32::MAX)
}

fn sealed_length(length: u64) -> u64 {
    length.saturating_add(u64::from(chunks(length)) * TAG as u64 + FOOTER as u64)
}

/// None: nothing that was sealed has this length.
fn plain_length(sealed: u64) -> Option<u64> {
    let body = sealed.checked_sub(FOOTER as u64)?;
    let chunks = body.div_ceil((CHUNK + TAG) as u64).max(1);
    let plain = body.checked_sub(chunks * TAG as u64)?;
    (sealed_length(plain) == sealed).then_some(plain)
}

/// Tells whether a secret is the right one, and nothing of it.
fn check(master: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("fermata sealed remote 1 check", master)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Connection;
    use std::{fs, path::Path};

    fn passphrase(words: &str) -> Secret {
        Secret::Passphrase(words.into())
    }

    fn plain(directory: &Path) -> Connection {
        Connection::directory(directory, None).unwrap()
    }

    /// Every file below a directory: its path from there, and its bytes.
    fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
        let place = plain(directory);
        let names = ["packs/", "records/", "refs/"].iter().flat_map(|prefix| place.list(prefix).unwrap());
        names.map(|(name, bytes)| (name.clone(), place.get(&name, bytes).unwrap().unwrap())).collect()
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 31 % 251) as u8).collect()
    }

    #[test]
    fn what_is_put_comes_back_and_cannot_be_read_there() {
        let directory = tempfile::tempdir().unwrap();
        let place = Sealed::open(plain(directory.path()), &passphrase("correct horse")).unwrap();
        let lengths = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 7];
        for length in lengths {
            let (name, content) = (format!("packs/ab/pack-{length}"), bytes(length));
            place.put(&name, content.clone()).unwrap();
            assert_eq!(place.get(&name, length as u64).unwrap().unwrap(), content);
            for most in [1, 100, CHUNK, CHUNK + 1, 2 * CHUNK, 10 * CHUNK] {
                let from = length.saturating_sub(most);
                assert_eq!(place.tail(&name, most as u64).unwrap().unwrap(), content[from..], "{most} of {length}");
                for from in [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 5] {
                    let expected: Vec<_> = content.iter().copied().skip(from).take(most).collect();
                    let piece = place.range(&name, from as u64, most as u64).unwrap().unwrap();
                    assert_eq!(piece, expected, "{most} of {length} from {from} on");
                }
            }
        }
        let mut listed = place.list("packs/ab/").unwrap();
        listed.sort_by_key(|(_, length)| *length);
        assert_eq!(listed, lengths.map(|length| (format!("packs/ab/pack-{length}"), length as u64)));
        place.put("packs/ab/secret", b"a secret that is easily found".to_vec()).unwrap();
        for (name, content) in files(directory.path()) {
            let text = String::from_utf8_lossy(&content);
            assert!(!text.contains("secret") && !name.contains("secret") && !name.contains("pack-"), "{name}: {text}");
        }
        assert_eq!(place.get("packs/none", 1).unwrap(), None);
        assert!(place.swap("refs/a", None, b"1".to_vec()).unwrap());
        assert!(!place.swap("refs/a", None, b"2".to_vec()).unwrap());
        assert!(place.swap("refs/a", Some(b"1"), b"2".to_vec()).unwrap());
        assert_eq!(place.get("refs/a", 9).unwrap().unwrap(), b"2");
    }

    #[test]
    fn only_the_right_secret_opens() {
        let directory = tempfile::tempdir().unwrap();
        drop(Sealed::open(plain(directory.path()), &passphrase("right")).unwrap());
        let refused = |secret: &Secret| Sealed::open(plain(directory.path()), secret).err().unwrap().to_string();
        assert!(refused(&passphrase("wrong")).contains("not the passphrase"));
        assert!(refused(&Secret::KeyFile(vec![7; 32])).contains("with a passphrase, not with a key file"));
        assert!(Sealed::open(plain(directory.path()), &passphrase("right")).is_ok());
        let open = tempfile::tempdir().unwrap();
        plain(open.path()).put("packs/one", vec![1]).unwrap();
        let error = Sealed::open(plain(open.path()), &passphrase("right")).err().unwrap().to_string();
        assert!(error.contains("not encrypted"), "{error}");
        let key = open.path().join("key");
        fs::write(&key, [7; 31]).unwrap();
        assert!(Secret::read(&key).unwrap_err().to_string().contains("31 bytes"));
        fs::write(&key, [7; 32]).unwrap();
        let other = tempfile::tempdir().unwrap();
        let secret = Secret::read(&key).unwrap();
        Sealed::open(plain(other.path()), &secret).unwrap().put("packs/x", vec![5]).unwrap();
        assert_eq!(Sealed::open(plain(other.path()), &secret).unwrap().get("packs/x", 1).unwrap().unwrap(), [5]);
    }

    #[test]
    fn what_was_changed_there_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let place = Sealed::open(plain(directory.path()), &Secret::KeyFile(vec![9; 64])).unwrap();
        place.put("packs/a", bytes(CHUNK + 100)).unwrap();
        place.put("packs/b", bytes(CHUNK + 100)).unwrap();
        let stored = files(directory.path());
        let open = plain(directory.path());
        let (name, good) = &stored[0];
        let inner = place.inner(name).unwrap();
        for at in (0..good.len()).step_by(97).chain(good.len() - FOOTER..good.len()) {
            let mut bad = good.clone();
            bad[at] ^= 4;
            open.put(name, bad).unwrap();
            assert_eq!(place.get(&inner, u64::MAX >> 1).unwrap_err().kind(), io::ErrorKind::InvalidData, "byte {at}");
        }
        // Cut off, and in another's place.
        for bad in [good[..good.len() - 1].to_vec(), good[1..].to_vec(), good[CHUNK + TAG..].to_vec(), Vec::new(), stored[1].1.clone()] {
            open.put(name, bad).unwrap();
            assert!(place.get(&inner, u64::MAX >> 1).is_err());
        }
        open.put(name, good.clone()).unwrap();
        assert!(place.get(&inner, u64::MAX >> 1).is_ok());
    }

    #[test]
    fn lengths_are_known_from_sealed_ones() {
        for length in (0..300_000).step_by(13).chain([CHUNK as u64 - 1, CHUNK as u64, CHUNK as u64 + 1]) {
            assert_eq!(plain_length(sealed_length(length)), Some(length));
        }
        assert_eq!(plain_length(3), None);
    }
}
