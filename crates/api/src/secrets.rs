//! Encrypted stores: making one, changing what opens it, and handing that on to processes of ours.

use crate::{convert::problem, local, values::Problem};
pub use fermata_store::{Encryption, ask_passphrases_with};
use fermata_store::{PASSPHRASE_VARIABLE, Secret, Store};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A store, and what opens it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locked {
    /// Where it is.
    pub store: PathBuf,
    /// Who can read it.
    pub encryption: Encryption,
}

/// Makes a store where there is none. `passphrase` is asked for one if that is to open it.
pub fn init(store: &Path, encryption: Encryption, passphrase: impl FnOnce() -> Result<String, Problem>) -> Result<Locked, Problem> {
    if Store::encryption(store).map_err(problem)?.is_some() {
        return Err(Problem::new(format!(
            "there is a store in {} already: name another directory by --store or FERMATA_STORE",
            store.display()
        )));
    }
    let made = match secret(encryption, passphrase)? {
        None => (Store::open(store).map_err(problem)?, Encryption::None),
        Some((encryption, secret)) => {
            let random = fermata_linux::random::bytes().map_err(no_randomness)?;
            (Store::create(store, &encryption, &secret, &random).map_err(problem)?, encryption)
        }
    };
    Ok(Locked { store: made.0.path().to_owned(), encryption: made.1 })
}

/// From now on something else opens a store that is encrypted. What is in it is not written again.
pub fn rekey(store: &Path, encryption: Encryption, passphrase: impl FnOnce() -> Result<String, Problem>) -> Result<Locked, Problem> {
    match Store::encryption(store).map_err(problem)? {
        None => return Err(Problem::new(format!("there is no store in {}: `fermata init` makes one", store.display()))),
        Some(Encryption::None) => {
            let what = format!(
                "the store {} is not encrypted, and what is in it does not become so: make another with `fermata init`, and copy it there by `fermata push` and `pull`",
                store.display()
            );
            return Err(Problem::new(what));
        }
        Some(_) => {}
    }
    let (encryption, secret) = secret(encryption, passphrase)?.ok_or_else(|| Problem::new("say what is to open it"))?;
    let salt = fermata_linux::random::bytes().map_err(no_randomness)?;
    Store::change_secret(store, &encryption, &secret, &salt).map_err(problem)?;
    Ok(Locked { store: store.to_owned(), encryption })
}

/// What a store is to be opened by, as it can be written down, and itself; none: it is in the open.
fn secret(encryption: Encryption, passphrase: impl FnOnce() -> Result<String, Problem>) -> Result<Option<(Encryption, Secret)>, Problem> {
    Ok(match encryption {
        Encryption::None => None,
        Encryption::Passphrase => match passphrase()? {
            words if words.is_empty() => return Err(Problem::new("an empty passphrase protects nothing")),
            words => Some((Encryption::Passphrase, Secret::Passphrase(words))),
        },
        Encryption::KeyFile(file) => {
            let failed = |error| Problem::new(format!("cannot use the key file {}: {error}", file.display()));
            let path = file.canonicalize().map_err(failed)?;
            let secret = Secret::read(&path).map_err(failed)?;
            Some((Encryption::KeyFile(path), secret))
        }
    })
}

fn no_randomness(error: std::io::Error) -> Problem {
    Problem::new(format!("this host has no randomness: {error}"))
}

/// What a process of ours has to be told in its environment to open a store: the passphrase, which somebody may have typed. Others of the same user can read that there,
/// as they can read this process.
pub(crate) fn handed_on(store: &Path) -> Result<Option<(&'static str, String)>, Problem> {
    if Store::encryption(store).map_err(problem)? != Some(Encryption::Passphrase) {
        return Ok(None);
    }
    let opened = local::made(store)?;
    Ok(opened.passphrase().map(|words| (PASSPHRASE_VARIABLE, words.to_owned())))
}
