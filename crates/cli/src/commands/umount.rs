//! `fermata umount`: takes a checkpoint's directory away.

use super::{Context, Result};
use crate::{complete, out::Paint, text};
use clap::{Args, ValueHint};
use fermata_api::mounting;
use std::path::PathBuf;

/// Take away what `fermata mount` shows in a directory
///
/// The checkpoint stays in the store, and is no longer kept from `fermata rm` and `fermata gc`. A directory that somebody uses stays as it is.
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  fermata umount then")]
pub struct Umount {
    /// The directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath, add = complete::mounts())]
    directory: PathBuf,
}

impl Umount {
    pub fn run(self, context: &Context) -> Result {
        let unmounted = mounting::unmount(&self.directory)?;
        context.out.answer(&unmounted, |style| match context.out.quiet {
            true => format!("{}\n", unmounted.directory.display()),
            false => format!(
                "{} is no longer in {}\n",
                style.paint(Paint::Id, &unmounted.checkpoint.short()),
                text::harmless(&unmounted.directory.display().to_string())
            ),
        })?;
        Ok(0)
    }
}
