//! `fermata receive`: a backup of programs' critical data areas.

use super::{Context, Result};
use crate::text;
use clap::{Args, ValueHint};
use fermata_api::{
    local,
    receiving::{self, Event, Received, Receiving},
    spec::ByteSize,
};
use std::path::PathBuf;

/// Receive the commits of programs' critical data areas: a second copy, from which an area opens when its program or its host is gone
///
/// A program says `back_up_to` with this socket, and each of its commits goes here, too. It becomes a checkpoint of the store: `fermata log -e AREA` lists them, and when the program has ended, or nothing has been heard of it for half a minute, the area opens from this store as at
/// the last commit. The socket is for this user alone. From another host it is reached by a tunnel of SSH.
///
/// All commits stay, whatever the programs keep of their own. With --keep-last only the last so many of each area do, and what is tagged: older ones go up to ten seconds later and when the program has ended, those that were here before, too, and their space when enough has gone.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata receive /run/user/1000/orders.sock
  fermata receive orders.sock --durable --once
  fermata receive orders.sock --keep-last 20
from another host, whose programs then say back_up_to(\"orders.sock\"):
  ssh -N -L ./orders.sock:/run/user/1000/orders.sock backup.example")]
pub struct Receive {
    /// Where programs come; a socket that is made
    #[arg(value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    socket: PathBuf,

    /// Acknowledge a commit when it is durable, not when it is in memory
    #[arg(long)]
    durable: bool,

    /// How many commits of each area stay, the newest ones [default: all]
    #[arg(long, value_name = "COMMITS", value_parser = clap::value_parser!(u32).range(1..))]
    keep_last: Option<u32>,

    /// End with the first program
    #[arg(long)]
    once: bool,

    /// How large an area may be
    #[arg(long, value_name = "SIZE", default_value = "16G")]
    max: ByteSize,
}

impl Receive {
    pub fn run(self, context: &Context) -> Result {
        let store = local::store_path(context.global.store.clone());
        let how = Receiving { bytes_max: self.max.0, durable: self.durable, keep_last: self.keep_last };
        receiving::listen(&store, &self.socket, &how, self.once, &|event| {
            // Where nobody reads what is printed it receives all the same.
            let _ = context.out.answer(&event, |_| said(&event));
        })?;
        Ok(0)
    }
}

fn said(event: &Event) -> String {
    let at = |received: &Received| received.checkpoint.map_or_else(String::new, |id| format!(", at {}", id.short()));
    match event {
        Event::Began(received) => format!("{}: {} are here\n", text::harmless(&received.area), text::bytes(received.bytes)),
        Event::Ended(received) => {
            format!(
                "{}: its program has ended after {}{}\n",
                text::harmless(&received.area),
                text::several(received.commits, "commit"),
                at(received)
            )
        }
        Event::Failed { problem } => format!("{}\n", text::harmless(problem)),
    }
}
