//! What keys are made of. Remotes and stores make theirs alike, each under a name of its own.

use argon2::Argon2;
use std::{fmt, fs, io, path::Path};

/// What Argon2id takes: 64 MiB, three times over (RFC 9106, the second choice).
const MEMORY_KIB: u32 = 64 << 10;
const PASSES: u32 = 3;
/// Of a key file at least: what can be guessed is no key.
const KEY_FILE_MIN: usize = 32;
const KEY_FILE_MAX: u64 = 1 << 20;

/// What keys are made of.
#[derive(Clone)]
pub enum Secret {
    /// What a person remembers.
    Passphrase(String),
    /// The bytes of a file, as random as they can be.
    KeyFile(Vec<u8>),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

impl Secret {
    /// Reads a key file: at least 32 bytes, of which none is a person's idea.
    pub fn read(path: &Path) -> io::Result<Self> {
        let length = fs::metadata(path)?.len();
        if length < KEY_FILE_MIN as u64 || length > KEY_FILE_MAX {
            let what = format!(
                "{} has {length} bytes; a key has at least {KEY_FILE_MIN}: `head -c 32 /dev/urandom > FILE` makes one",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(Self::KeyFile(fs::read(path)?))
    }

    /// What it is, for people and for files that say how keys are made.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Passphrase(_) => PASSPHRASE,
            Self::KeyFile(_) => KEY_FILE,
        }
    }

    /// The key from which others are derived: Argon2id of a passphrase, which takes a tenth of a second or so; the BLAKE3 key derivation of a file. `name` says of
    /// what it is the key, `salt` is drawn for each.
    pub fn master(&self, name: &str, salt: &[u8; 16]) -> io::Result<[u8; 32]> {
        match self {
            Self::Passphrase(words) => {
                let mut key = [0; 32];
                let costs = argon2::Params::new(MEMORY_KIB, PASSES, 1, Some(key.len())).map_err(io::Error::other)?;
                let argon = Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, costs);
                argon.hash_password_into(words.as_bytes(), salt, &mut key).map_err(io::Error::other)?;
                Ok(key)
            }
            Self::KeyFile(bytes) => Ok(blake3::derive_key(&format!("{name} key file"), &[&salt[..], bytes].concat())),
        }
    }
}

pub(crate) const PASSPHRASE: &str = "passphrase";
pub(crate) const KEY_FILE: &str = "key file";
