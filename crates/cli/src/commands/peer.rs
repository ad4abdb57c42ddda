//! `fermata peer`: stands before a directory for somebody on another host, who came over SSH or HTTP.

use super::{Context, Result};
use clap::Args;
use fermata_api::remotes;
use serde::Serialize;
use std::{io, net::SocketAddr, path::PathBuf};

/// Answer for a directory that checkpoints are copied to, on stdin and stdout or over HTTP
///
/// On stdin and stdout it is what `ssh://` remotes begin by themselves. With --listen it answers for `https://` remotes, over HTTP and on this host alone: a proxy
/// that speaks TLS stands before it. Both sides have the same secret in FERMATA_PEER_TOKEN; who knows it can read, change and remove what is in the directory, and nothing else.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  export FERMATA_PEER_TOKEN=$(openssl rand -hex 32)
  fermata peer /backup --listen 127.0.0.1:8391
  caddy reverse-proxy --from vault.example --to 127.0.0.1:8391
and on another host, with the same token:
  fermata remote add vault https://vault.example --passphrase

A line of ~/.ssh/authorized_keys, for somebody who may reach this directory and nothing else:
  restrict,command=\"fermata peer /backup\" ssh-ed25519 AAAA...")]
pub struct Peer {
    /// The directory; made if there is none, when something is put there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Answer over HTTP, on this address of this host; port 0 is any that is free
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
}

/// Where somebody listens.
#[derive(Debug, Serialize)]
struct Listening {
    address: String,
}

impl Peer {
    pub fn run(self, context: &Context) -> Result {
        let Some(address) = self.listen else {
            remotes::serve(&self.directory, io::stdin().lock(), io::stdout().lock())?;
            return Ok(0);
        };
        remotes::listen(&self.directory, address, |address| {
            let listening = Listening { address: format!("http://{address}") };
            // Where nobody reads what is printed it answers all the same.
            let _ = context.out.answer(&listening, |_| format!("{} at {}\n", self.directory.display(), listening.address));
        })?;
        Ok(0)
    }
}
