//! `fermata fork`: a second run from a checkpoint, beside the first.

use super::{Context, Result, goto};
use crate::{complete, perturb::Perturb, pick, progress};
use clap::Args;
use fermata_api::{Service, values::ForkRequest};

/// Start a second run from a checkpoint, beside the first
///
/// The two do not disturb each other: each has its own memory and disks, and grows its own branch. The new machine gets an identity of its own and, unless
/// you say otherwise, is told so, that it does not repeat the first one's random numbers. --perturb has the links between the machines do otherwise than they did.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata fork
  fermata fork 1f0c42 --name what-if
  fermata fork known-good --same-randomness --paused
  fermata fork main~5 --same-randomness --perturb=7 --vary order --within 5ms")]
pub struct Fork {
    /// The checkpoint: the beginning of its id, a tag or a branch; each with ~N, which alone counts from where the run is [default: the newest of the run]
    #[arg(value_name = "ID", add = complete::checkpoints())]
    from: Option<String>,
    /// Name of the new run and its branch [default: one is made up]
    #[arg(long)]
    name: Option<String>,
    /// The run whose newest checkpoint is meant when no ID is given
    #[arg(long, conflicts_with = "from", add = complete::runs())]
    run: Option<String>,
    /// Do not tell the guest that it is a copy: it draws the same random numbers
    #[arg(long)]
    same_randomness: bool,
    /// Load all memory before the machine runs
    #[arg(long)]
    eager: bool,
    /// Leave the machine paused
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    pub(crate) perturb: Perturb,
}

impl Fork {
    pub fn run(self, context: &Context) -> Result {
        let perturbation = self.perturb.perturbation()?;
        let (_, keeper) = pick::keeper(context)?;
        let Self { from, name, run, same_randomness, eager, paused, .. } = self;
        let request = ForkRequest { from, name, run, same_randomness, eager, paused, perturbation };
        let resumed = progress::during(&context.out, "forking", || keeper.activity(), || keeper.fork(request))?;
        context.out.answer(&resumed, |style| goto::text(&resumed, "runs from", context.out.quiet, style))?;
        Ok(0)
    }
}
