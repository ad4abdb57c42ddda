//! `fermata init` and `fermata rekey`: a store, and what opens it.

use super::{Context, Result};
use crate::{out::Failure, text};
use clap::Args;
use fermata_api::{
    local,
    secrets::{self, Encryption, Locked},
    values::Problem,
};
use std::{env, io::IsTerminal as _, path::PathBuf};

/// Make a store, encrypted if you like
///
/// Other commands make a store by themselves where there is none, in the open: whoever can read its files can read all memory and disks in it. One that is encrypted shows
/// only how much there is, and when it came. It opens for whoever has the key file, which is found where it was or where $FERMATA_STORE_KEY_FILE says, or knows the
/// passphrase: that of $FERMATA_STORE_PASSPHRASE, or what is typed when it is needed. Without the secret it cannot be read again, by anybody.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata init --passphrase
  head -c 32 /dev/urandom > ~/fermata.key && fermata init --key-file ~/fermata.key
  fermata init --store /mnt/disk/fermata")]
pub struct Init {
    #[command(flatten)]
    encrypt: Encrypt,
}

/// Change what opens an encrypted store
///
/// The passphrase or the key file that opened it so far opens it no more. What is in the store is not written again: whoever has a copy of its file \"keys\" from before, and
/// the secret from before, can open it still. A new passphrase is that of $FERMATA_STORE_NEW_PASSPHRASE, or what is typed twice.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata rekey --passphrase
  fermata rekey --key-file ~/other.key")]
pub struct Rekey {
    #[command(flatten)]
    encrypt: Encrypt,
}

/// What something is encrypted with.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(super) struct Encrypt {
    /// Encrypt with a passphrase
    #[arg(long)]
    passphrase: bool,
    /// Encrypt with the bytes of this file, at least 32
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl Encrypt {
    /// Without either, with nothing.
    pub fn chosen(self) -> Encryption {
        match self {
            Self { key_file: Some(file), .. } => Encryption::KeyFile(file),
            Self { passphrase: true, .. } => Encryption::Passphrase,
            _ => Encryption::None,
        }
    }
}

/// A passphrase that is new: of the environment, or typed twice.
fn new_passphrase(variable: &str) -> std::result::Result<String, Problem> {
    if let Some(words) = env::var(variable).ok().filter(|words| !words.is_empty()) {
        return Ok(words);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Problem::new(format!("there is no terminal to ask for the passphrase: set {variable}")));
    }
    let ask = |what| rpassword::prompt_password(what).map_err(|error| Problem::new(format!("cannot read a passphrase: {error}")));
    let words = ask("new passphrase of the store: ")?;
    match ask("once more: ")? == words {
        true => Ok(words),
        false => Err(Problem::new("these are two different ones; nothing was changed")),
    }
}

impl Init {
    pub fn run(self, context: &Context) -> Result {
        let store = local::store_path(context.global.store.clone());
        let made = secrets::init(&store, self.encrypt.chosen(), || new_passphrase("FERMATA_STORE_PASSPHRASE"))?;
        context.out.answer(&made, |_| if context.out.quiet { made.store.display().to_string() } else { text(&made) })?;
        Ok(0)
    }
}

impl Rekey {
    pub fn run(self, context: &Context) -> Result {
        let encryption = self.encrypt.chosen();
        if encryption == Encryption::None {
            return Err(Failure::Misuse("say --passphrase or --key-file FILE: what is to open it from now on".into()));
        }
        let store = local::store_path(context.global.store.clone());
        let changed = secrets::rekey(&store, encryption, || new_passphrase("FERMATA_STORE_NEW_PASSPHRASE"))?;
        context.out.answer(&changed, |_| if context.out.quiet { changed.store.display().to_string() } else { text(&changed) })?;
        Ok(0)
    }
}

fn text(locked: &Locked) -> String {
    let how = match &locked.encryption {
        Encryption::None => "not encrypted".to_owned(),
        Encryption::Passphrase => "encrypted with a passphrase".to_owned(),
        Encryption::KeyFile(file) => format!("encrypted with {}: keep a copy of it elsewhere", text::harmless(&file.display().to_string())),
    };
    format!("{} is {how}", text::harmless(&locked.store.display().to_string()))
}
