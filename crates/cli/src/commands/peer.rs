//! `fermata peer`: stands before a directory for somebody on another host, who came over SSH. Not meant to be called by people.

use super::{Context, Result};
use clap::Args;
use fermata_api::remotes;
use std::{io, path::PathBuf};

/// Answer for a directory that checkpoints are copied to, on stdin and stdout
#[derive(Debug, Args)]
#[command(after_long_help = "\
Example, of a line of ~/.ssh/authorized_keys, for somebody who may reach this directory and nothing else:
  restrict,command=\"fermata peer /backup\" ssh-ed25519 AAAA...")]
pub struct Peer {
    /// The directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Peer {
    pub fn run(self, _: &Context) -> Result {
        remotes::serve(&self.directory, io::stdin().lock(), io::stdout().lock())?;
        Ok(0)
    }
}
