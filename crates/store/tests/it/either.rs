//! The same tests over stores in the open and over encrypted ones: a program of tests runs once more, and a key file in its environment says of which kind
//! the stores are that it makes.

use super::{Encryption, Error, Result, Secret, Store};
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

const KEY_FILE: &str = "FERMATA_STORE_KEY_FILE";

/// What the key of a store is made of, where stores are encrypted.
pub fn secret() -> Option<(Encryption, Secret)> {
    let file = PathBuf::from(env::var_os(KEY_FILE)?);
    let secret = Secret::read(&file).unwrap();
    Some((Encryption::KeyFile(file), secret))
}

/// Opens a store. Where there is none, one of the kind is made that this run is about.
pub fn open(path: &Path) -> Result<Store> {
    match secret().filter(|_| !path.join("format").exists()) {
        None => Store::open(path),
        Some((encryption, secret)) => match Store::create(path, &encryption, &secret, &[7; 48]) {
            // Another process was faster.
            Err(Error::Refused { .. }) => Store::open(path),
            made => made,
        },
    }
}

/// Whether this run is about encrypted stores.
pub fn is_encrypted() -> bool {
    env::var_os(KEY_FILE).is_some()
}

#[test]
fn all_of_it_holds_for_encrypted_stores() {
    if is_encrypted() {
        return;
    }
    // In memory where there is such a place: on another file system than the first time, and ext4 takes longer for each file that is made after many were removed.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let file = dir.path().join("key");
    std::fs::write(&file, [0x5a; 40]).unwrap();
    let ran = Command::new(env::current_exe().unwrap()).env(KEY_FILE, &file).env("TMPDIR", dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("all_of_it_holds_for_encrypted_stores ... ok"), "{said}");
}
