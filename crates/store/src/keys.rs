//! Whether a store is encrypted, and how it is opened then: the files `format` and `keys`.
//!
//! The keys of a store come from one that was drawn when it was made. It lies in `keys`, encrypted with a key from the secret; so the secret can be changed, and
//! nothing else has to be written again. Layout in `docs/formats/pack.md`.

use crate::{
    Error, Result,
    cipher::{Cipher, Sealing},
    files::{self, Medium},
    seal,
    secret::{KEY_FILE, PASSPHRASE, Secret},
};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use fermata_types::id::{hex, parse_hex};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

const PLAIN: &str = "fermata store 1\n";
const ENCRYPTED: &str = "fermata store 1 encrypted\n";
const FORMAT_START: &str = "fermata store ";
const VERSION: &str = "fermata sealed store 1";
const KEYS_MAX: u64 = 8192;
/// Begin the names of what becomes a store's first files.
const TEMPORARY: [&str; 2] = ["format-", "keys-"];
/// Stands for the path of a key file that nobody wrote down.
const NO_PATH: &str = "-";

/// Whether what lies at a place can be read there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encryption {
    /// By whoever can read the place.
    #[default]
    None,
    /// By whoever knows a passphrase.
    Passphrase,
    /// By whoever has this file.
    KeyFile(PathBuf),
}

/// Asks a person for the passphrase of the store in a directory.
pub type Ask = fn(&Path) -> io::Result<String>;

static ASK: OnceLock<Ask> = OnceLock::new();

/// From now on, when a store needs a passphrase that `FERMATA_STORE_PASSPHRASE` does not tell, somebody is asked. For programs with a terminal.
pub fn ask_passphrases_with(ask: Ask) {
    let _ = ASK.set(ask);
}

/// What the environment says about secrets, unless it is empty.
fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

const KEY_FILE_VARIABLE: &str = "FERMATA_STORE_KEY_FILE";
/// What tells the passphrase of a store.
pub const PASSPHRASE_VARIABLE: &str = "FERMATA_STORE_PASSPHRASE";

/// What the file `keys` says.
struct Keys {
    encryption: Encryption,
    salt: [u8; 16],
    /// The key of all keys, and what vouches for it.
    wrapped: [u8; 48],
}

impl Keys {
    /// Wraps a key with one from the secret.
    fn new(key: &[u8; 32], encryption: &Encryption, secret: &Secret, salt: [u8; 16]) -> io::Result<Self> {
        let mut keys = Self { encryption: encryption.clone(), salt, wrapped: [0; 48] };
        let head = keys.head();
        let payload = Payload { msg: key, aad: head.as_bytes() };
        // Each salt makes a key that wraps this once, so any nonce will do.
        let wrapped = keys.wrapping(secret)?.encrypt(&XNonce::default(), payload).map_err(io::Error::other)?;
        keys.wrapped.copy_from_slice(&wrapped);
        Ok(keys)
    }

    fn wrapping(&self, secret: &Secret) -> io::Result<XChaCha20Poly1305> {
        Ok(XChaCha20Poly1305::new(&secret.master(VERSION, &self.salt)?.into()))
    }

    /// The key of all keys; none: this is not the secret.
    fn unwrap(&self, secret: &Secret) -> io::Result<Option<[u8; 32]>> {
        let head = self.head();
        let payload = Payload { msg: &self.wrapped, aad: head.as_bytes() };
        let key = self.wrapping(secret)?.decrypt(&XNonce::default(), payload).ok();
        Ok(key.and_then(|key| key.try_into().ok()))
    }

    /// What is said in the open, and vouched for.
    fn head(&self) -> String {
        let (kind, path) = match &self.encryption {
            Encryption::KeyFile(path) => (KEY_FILE, path.to_str().filter(|path| !path.contains('\n')).unwrap_or(NO_PATH)),
            _ => (PASSPHRASE, NO_PATH),
        };
        format!("{VERSION}\n{kind}\n{path}\n{}\n", hex(&self.salt))
    }

    fn encode(&self) -> String {
        seal::seal(&format!("{}{}\n", self.head(), hex(&self.wrapped)), seal::LINE)
    }

    fn read(store: &Path) -> Result<Self> {
        let path = path(store);
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(KEYS_MAX).read_to_end(&mut bytes));
        let damaged = |detail: &str| Error::corrupt(&path, 0, "the key of the store", detail);
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(damaged("the file is not there")),
            read => _ = read.map_err(Error::io("read", &path))?,
        }
        if !seal::is_sealed(&bytes, seal::LINE) {
            return Err(damaged("it is not what was written"));
        }
        let text = String::from_utf8_lossy(&bytes);
        let [version, kind, remembered, salt, wrapped, _check] = text.lines().collect::<Vec<_>>()[..] else {
            return Err(damaged("it has not as many lines as it should"));
        };
        if version != VERSION {
            return Err(Error::Unsupported { path, what: format!("the encryption \"{version}\"") });
        }
        let encryption = match kind {
            PASSPHRASE => Encryption::Passphrase,
            KEY_FILE => Encryption::KeyFile(remembered.into()),
            _ => return Err(damaged("it says neither passphrase nor key file")),
        };
        match (parse_hex(salt), parse_hex(wrapped)) {
            (Some(salt), Some(wrapped)) => Ok(Self { encryption, salt, wrapped }),
            _ => Err(damaged("there are no keys in it")),
        }
    }

    /// The secret as the environment, the file itself, or a person tells it.
    fn find_secret(&self, store: &Path) -> Result<Secret> {
        match &self.encryption {
            Encryption::KeyFile(remembered) => {
                let path = variable(KEY_FILE_VARIABLE).map_or_else(|| remembered.clone(), PathBuf::from);
                Secret::read(&path).map_err(|error| {
                    let what =
                        format!("the store {} is encrypted with a key file, and {} is of no use: {error}", store.display(), path.display());
                    Error::refused(
                        what,
                        "put the key file back, or say in FERMATA_STORE_KEY_FILE where it is: without it nothing here can be read",
                    )
                })
            }
            _ => {
                let told = variable(PASSPHRASE_VARIABLE).map(|words| words.to_string_lossy().into_owned());
                let words = match (told, ASK.get()) {
                    (Some(words), _) => words,
                    (None, Some(ask)) => ask(store).map_err(Error::io("ask for the passphrase of", store))?,
                    (None, None) => {
                        let what = format!("the store {} is encrypted with a passphrase", store.display());
                        return Err(Error::refused(what, "say it in FERMATA_STORE_PASSPHRASE"));
                    }
                };
                Ok(Secret::Passphrase(words))
            }
        }
    }

    /// The key of all keys.
    fn open(&self, store: &Path, secret: &Secret) -> Result<[u8; 32]> {
        let refused =
            |what: String| Error::refused(what, "look for the right one: without it nothing here can be read, and nothing was changed");
        let kind = match &self.encryption {
            Encryption::KeyFile(_) => KEY_FILE,
            _ => PASSPHRASE,
        };
        if kind != secret.kind() {
            return Err(refused(format!("the store {} is encrypted with a {kind}, not with a {}", store.display(), secret.kind())));
        }
        let key = self.unwrap(secret).map_err(Error::io("make the key of", store))?;
        key.ok_or_else(|| refused(format!("this is not the {kind} that the store {} is encrypted with", store.display())))
    }
}

fn path(store: &Path) -> PathBuf {
    store.join("keys")
}

/// What is to become of a directory that is no store yet.
pub(crate) struct Birth<'a> {
    pub encryption: &'a Encryption,
    pub secret: &'a Secret,
    /// As random as can be.
    pub random: &'a [u8; 48],
}

/// Opens the file that says what the directory is, and finds the keys; writes both if the directory is empty.
pub(crate) fn open(store: &Path, medium: &dyn Medium, birth: Option<&Birth<'_>>) -> Result<(File, Sealing)> {
    let path = store.join("format");
    let (mut file, is_new) = match File::open(&path) {
        Ok(file) => (file, false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create(store, &path, medium, birth)?;
            (File::open(&path).map_err(Error::io("open", &path))?, true)
        }
        Err(error) => return Err(Error::io("open", &path)(error)),
    };
    let is_encrypted = is_encrypted(&mut file, &path)?;
    match (is_encrypted, birth) {
        (false, Some(_)) => Err(Error::refused(
            format!("there is a store in {} already, which is not encrypted", store.display()),
            "make another one, and copy there what you need by `fermata push` and `pull`",
        )),
        (true, Some(_)) if !is_new => Err(Error::refused(
            format!("there is an encrypted store in {} already", store.display()),
            "use it as it is, or make another one",
        )),
        (false, None) if self::path(store).exists() => {
            Err(Error::corrupt(&path, 0, "format of the store", "it says that the store is not encrypted, and there is a key beside it"))
        }
        (false, None) => Ok((file, None)),
        (true, birth) => {
            let keys = Keys::read(store)?;
            let secret = birth.map_or_else(|| keys.find_secret(store), |birth| Ok(birth.secret.clone()))?;
            let key = keys.open(store, &secret)?;
            let passphrase = if let Secret::Passphrase(words) = secret { Some(words) } else { None };
            Ok((file, Some(Arc::new(Cipher::new(&key, passphrase)))))
        }
    }
}

fn is_encrypted(file: &mut File, path: &Path) -> Result<bool> {
    let mut text = Vec::new();
    file.take(64).read_to_end(&mut text).map_err(Error::io("read", path))?;
    if text == PLAIN.as_bytes() || text == ENCRYPTED.as_bytes() {
        return Ok(text == ENCRYPTED.as_bytes());
    }
    let text = String::from_utf8_lossy(&text);
    if text.starts_with(FORMAT_START) && text.ends_with('\n') {
        return Err(Error::Unsupported { path: path.to_owned(), what: format!("the format \"{}\"", text.trim_end()) });
    }
    Err(Error::corrupt(path, 0, "format of the store", "it does not say which format the store has"))
}

/// How a store is encrypted, without opening it. None where there is no store.
pub(crate) fn encryption(store: &Path) -> Result<Option<Encryption>> {
    let path = store.join("format");
    match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("open", &path)(error)),
        Ok(mut file) => Ok(Some(if is_encrypted(&mut file, &path)? { Keys::read(store)?.encryption } else { Encryption::None })),
    }
}

/// Encrypts the key of a store with another secret than the one it was opened with.
pub(crate) fn change(store: &Path, medium: &dyn Medium, encryption: &Encryption, secret: &Secret, salt: &[u8; 16]) -> Result<()> {
    let keys = Keys::read(store)?;
    let key = keys.open(store, &keys.find_secret(store)?)?;
    let keys = Keys::new(&key, encryption, secret, *salt).map_err(Error::io("make the key of", store))?;
    let (path, tmp) = (path(store), store.join("tmp"));
    // What a crash leaves of it is swept there: nobody is to open the store by a secret that was never told to be its own.
    files::make_directory(medium, &tmp)?;
    let (_lock, temp) = written(&tmp, "keys-", &keys.encode(), medium).map_err(Error::io("write", &path))?;
    medium.rename(&temp, &path).and_then(|()| medium.sync_directory(store)).map_err(Error::io("write", &path))
}

fn create(store: &Path, path: &Path, medium: &dyn Medium, birth: Option<&Birth<'_>>) -> Result<()> {
    let entries = std::fs::read_dir(store).map_err(Error::io("list", store))?;
    // What a crash in this very function may have left begins with our prefixes.
    let ours: &[&[u8]] = if birth.is_some() { &[b"format", b"keys"] } else { &[b"format"] };
    let is_ours = |name: &[u8]| ours.iter().any(|prefix| name.starts_with(prefix));
    if entries.filter_map(io::Result::ok).any(|entry| !is_ours(entry.file_name().as_encoded_bytes())) {
        if path.exists() {
            // Somebody else has made it meanwhile.
            return Ok(());
        }
        return Err(Error::refused(
            format!("{} is not empty and no store", store.display()),
            "choose another directory for the store with FERMATA_STORE, or empty this one",
        ));
    }
    for prefix in TEMPORARY {
        files::sweep(medium, store, prefix)?;
    }
    let Some(birth) = birth else {
        if variable(KEY_FILE_VARIABLE).is_some() || variable(PASSPHRASE_VARIABLE).is_some() {
            let what = format!("there is no store in {}, and a new one would not be encrypted though a key is set", store.display());
            return Err(Error::refused(what, "make one with `fermata init`, or unset FERMATA_STORE_KEY_FILE and FERMATA_STORE_PASSPHRASE"));
        }
        return place(store, path, PLAIN, medium).map(drop);
    };
    let (key, salt) = birth.random.split_first_chunk().expect("48 bytes have 32");
    let salt = *salt.first_chunk().expect("48 bytes have 16 behind 32");
    let keys = Keys::new(key, birth.encryption, birth.secret, salt).map_err(Error::io("make the key of", store))?;
    // The key comes first: a store that says that it is encrypted has one. Where somebody else was faster, his is used.
    let key_path = self::path(store);
    if !place(store, &key_path, &keys.encode(), medium)?
        && Keys::read(store)?.unwrap(birth.secret).map_err(Error::io("make the key of", store))?.is_none()
    {
        return Err(Error::refused(
            format!("{} is there already, and another secret opens it: an `init` that was cut off has left it", key_path.display()),
            "do it with that secret; or remove the file, as long as there is no file `format` beside it: nothing is encrypted with it then",
        ));
    }
    place(store, path, ENCRYPTED, medium).map(drop)
}

/// Writes a file, durably, unless it is there. True if it was not.
fn place(store: &Path, path: &Path, text: &str, medium: &dyn Medium) -> Result<bool> {
    let failed = |error| Error::io("create", path)(error);
    let prefix = format!("{}-", path.file_name().and_then(|name| name.to_str()).unwrap_or_default());
    let (lock, temp) = written(store, &prefix, text, medium).map_err(failed)?;
    let placed = medium.rename_new(temp, path);
    // Not held for longer: who opens a store locks its format.
    drop(lock);
    match placed {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        placed => placed.and_then(|()| medium.sync_directory(store)).map(|()| true).map_err(failed),
    }
}

/// Writes a file that has yet to get its name. It is locked, so that nobody takes it for what a crash has left.
fn written(directory: &Path, prefix: &str, text: &str, medium: &dyn Medium) -> io::Result<(File, tempfile::TempPath)> {
    loop {
        let (file, temp) = tempfile::Builder::new().prefix(prefix).make_in(directory, |path| medium.create(path))?.into_parts();
        file.lock()?;
        // Else somebody has, between its creation and its lock.
        if file.metadata()?.nlink() > 0 {
            medium.write_at(&file, text.as_bytes(), 0)?;
            medium.sync(&file)?;
            return Ok((file, temp));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store, rebuild::entries, tests::is_encrypted};

    /// Leaves behind what a crash would where a file was about to get its name.
    struct Dying;

    impl Medium for Dying {
        fn rename(&self, from: &Path, _: &Path) -> io::Result<()> {
            std::fs::copy(from, from.with_extension("left"))?;
            Err(io::ErrorKind::Interrupted.into())
        }
    }

    #[test]
    fn what_a_change_of_the_secret_leaves_behind_is_swept() {
        if is_encrypted() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = (dir.path().join("store"), dir.path().join("key"));
        std::fs::write(&file, [1; 32]).unwrap();
        let (encryption, secret) = (Encryption::KeyFile(file.clone()), Secret::read(&file).unwrap());
        drop(Store::create(&path, &encryption, &secret, &[9; 48]).unwrap());
        let other = Secret::KeyFile(vec![2; 32]);
        change(&path, &Dying, &encryption, &other, &[4; 16]).unwrap_err();
        let is_left = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "left");
        let left = || [path.clone(), path.join("tmp")].iter().flat_map(|directory| entries(directory).unwrap()).filter(is_left).count();
        assert_eq!(left(), 1);
        drop(Store::open(&path).unwrap());
        assert_eq!(left(), 0);
    }
}
