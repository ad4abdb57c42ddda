//! `fermata remote`: the places that checkpoints are copied to.

use super::{Context, Result};
use crate::{
    out::{Failure, Paint, Style},
    table::{Cell, Set, Table},
    text,
};
use clap::{Args, Subcommand};
use fermata_api::{
    local,
    remotes::{self, Encryption, RemoteEntry},
    spec::ByteSize,
};
use std::path::PathBuf;

/// Name places that checkpoints are copied to, or list them
///
/// A place is a directory, or a bucket of S3 or of what speaks like it, whose keys, region and endpoint come from the environment: AWS_ACCESS_KEY_ID,
/// AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL.
///
/// Memory and disks have whatever the guests have, passwords and keys among them. So what is put there is encrypted with a passphrase or a key file, contents and
/// names, unless --plain says that whoever can read the place may read it. Without the secret it cannot be read again, by anybody.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata remote add origin s3://my-bucket/fermata --passphrase
  head -c 32 /dev/urandom > fermata.key
  fermata remote add backup s3://my-bucket/fermata --key-file fermata.key
  fermata remote add nas /mnt/nas/fermata --plain --limit 50M
  fermata remote
  fermata push nas")]
pub struct Remote {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Give a place a name
    Add {
        /// Its name here
        name: String,
        /// s3://BUCKET/PREFIX, or the path of a directory
        address: String,
        /// How many bytes a second may travel there and back: 50M
        #[arg(long, value_name = "SIZE")]
        limit: Option<ByteSize>,
        #[command(flatten)]
        encryption: Encrypt,
    },
    /// Forget a place; what is there stays
    Rm {
        /// Its name here
        name: String,
    },
}

#[derive(Debug, Args)]
#[group(multiple = false)]
struct Encrypt {
    /// Encrypt with a passphrase: that of $FERMATA_PASSPHRASE, or what is typed when it is needed
    #[arg(long)]
    passphrase: bool,
    /// Encrypt with the bytes of this file, at least 32
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Do not encrypt
    #[arg(long)]
    plain: bool,
}

impl Encrypt {
    fn chosen(self) -> std::result::Result<Encryption, Failure> {
        match self {
            Self { key_file: Some(file), .. } => Ok(Encryption::KeyFile(file)),
            Self { passphrase: true, .. } => Ok(Encryption::Passphrase),
            Self { plain: true, .. } => Ok(Encryption::None),
            _ => Err(Failure::Misuse("say --passphrase or --key-file FILE for it to be encrypted, or --plain".into())),
        }
    }
}

impl Remote {
    pub fn run(self, context: &Context) -> Result {
        let store = local::store_path(context.global.store.clone());
        let out = &context.out;
        match self.what {
            Some(What::Add { name, address, limit, encryption }) => {
                let encryption = encryption.chosen()?;
                let entry = remotes::add(&store, RemoteEntry { name, address, limit_bytes: limit.map(ByteSize::bytes), encryption })?;
                out.answer(&entry, |style| if out.quiet { entry.name.clone() } else { list(std::slice::from_ref(&entry), style) })?;
            }
            Some(What::Rm { name }) => {
                let entry = remotes::forget(&store, &name)?;
                out.answer(&entry, |_| match out.quiet {
                    true => entry.name.clone(),
                    false => {
                        format!("{} is forgotten; what is at {} stays there", text::harmless(&entry.name), text::harmless(&entry.address))
                    }
                })?;
            }
            None => {
                let all = remotes::remotes(&store)?;
                out.answer(&all, |style| match out.quiet {
                    true => all.iter().map(|entry| format!("{}\n", entry.name)).collect(),
                    false => list(&all, style),
                })?;
            }
        }
        Ok(0)
    }
}

fn list(all: &[RemoteEntry], style: &Style) -> String {
    let mut table = Table::bare(&[Set::Left, Set::Left, Set::Left, Set::Left]);
    for entry in all {
        let encrypted = match &entry.encryption {
            Encryption::None => "not encrypted".to_owned(),
            Encryption::Passphrase => "encrypted with a passphrase".to_owned(),
            Encryption::KeyFile(file) => format!("encrypted with {}", text::harmless(&file.display().to_string())),
        };
        let limit = entry.limit_bytes.map_or_else(String::new, |bytes| format!("at most {} a second", text::bytes(bytes)));
        table.row(vec![
            Cell::new(Paint::Name, text::harmless(&entry.name)),
            text::harmless(&entry.address).into(),
            encrypted.into(),
            Cell::new(Paint::Dim, limit),
        ]);
    }
    table.render(style)
}
