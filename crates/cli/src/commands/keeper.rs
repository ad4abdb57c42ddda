//! `fermata keeper`: the process that `fermata up` and `fermata goto` leave behind. Not meant to be called by people.

use super::{Context, Result};
use clap::Args;
use fermata_api::local;
use std::path::PathBuf;

/// Keep an experiment whose run directory was prepared
#[derive(Debug, Args)]
#[command(after_long_help = "Example:\n  fermata keeper --run-dir /dev/shm/fermata-1000/tryout")]
pub struct Keeper {
    /// The run directory
    #[arg(long, value_name = "DIR")]
    run_dir: PathBuf,
}

impl Keeper {
    pub fn run(self, _: &Context) -> Result {
        local::keep(&self.run_dir)?;
        Ok(0)
    }
}
