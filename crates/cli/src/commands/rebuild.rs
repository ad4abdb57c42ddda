//! `fermata rebuild`: a new index for a store that lost its own.

use super::{Context, Result};
use crate::text;
use clap::Args;
use fermata_api::local;

/// Build the store's index again from its packs
///
/// The packs hold every checkpoint; the index says where. When the index is lost or damaged, this makes a new one. No experiment may be running in the store.
/// Tags that only the old index knew are kept if it can still be read.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata rebuild
  fermata rebuild --store /mnt/backup/fermata")]
pub struct Rebuild {}

impl Rebuild {
    pub fn run(self, context: &Context) -> Result {
        let rebuilt = local::rebuild(&local::store_path(context.global.store.clone()))?;
        context.out.answer(&rebuilt, |_| {
            let found = format!("{} found in {}", text::several(rebuilt.checkpoints, "checkpoint"), text::several(rebuilt.packs, "pack"));
            std::iter::once(found)
                .chain(rebuilt.damaged.iter().map(|damaged| format!("left out: {damaged}")))
                .collect::<Vec<_>>()
                .join("\n")
        })?;
        Ok(u8::from(!rebuilt.damaged.is_empty()))
    }
}
