//! `fermata checkpoint`: takes a checkpoint now.

use super::{Context, Result};
use crate::{
    out::{Paint, Style},
    pick, progress, text,
};
use clap::Args;
use fermata_api::{
    Service,
    values::{self, CheckpointRequest},
};

/// Take a checkpoint now
///
/// Returns when the checkpoint is stored for good. The guest stands still only for a few milliseconds of that, and does not see them. If it fails, the
/// guest runs on and nothing is stored.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata checkpoint
  fermata checkpoint -m \"before the upgrade\"
  fermata checkpoint --run what-if --json")]
pub struct Checkpoint {
    /// A word about why
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// The run; needed only if several could be meant
    #[arg(long)]
    run: Option<String>,
    /// Look at each page that is known to equal a block of a disk all the same, and fail if one does not
    ///
    /// Without it such pages are neither copied nor hashed: who moved them between memory and disk has kept book. The guest stands still for longer.
    #[arg(long)]
    paranoid: bool,
}

impl Checkpoint {
    pub fn run(self, context: &Context) -> Result {
        let (_, keeper) = pick::keeper(context)?;
        let request = CheckpointRequest { run: self.run, message: self.message, paranoid: self.paranoid };
        let taken = progress::during(&context.out, "taking a checkpoint", || keeper.activity(), || keeper.checkpoint(request))?;
        context.out.answer(&taken, |style| text(&taken, context.out.quiet, style))?;
        Ok(0)
    }
}

fn text(taken: &values::Checkpoint, quiet: bool, style: &Style) -> String {
    if quiet {
        return taken.id.to_string();
    }
    format!(
        "{}  paused {}, {} written, {} stored, at {}",
        style.paint(Paint::Id, &taken.id.short()),
        text::ms(taken.pause_ms),
        text::several(taken.pages.written(), "page"),
        text::bytes(taken.stored_bytes),
        text::instant(taken.time_virtual_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::checkpoint;

    #[test]
    fn what_it_says() {
        let taken = checkpoint(5, Some(3), "main");
        assert_eq!(
            text(&taken, false, &Style::default()),
            "050505050505  paused 4.21 ms, 3,411 pages written, 12.3 MiB stored, at 10.000s"
        );
        assert_eq!(text(&taken, true, &Style::default()), "05".repeat(32));
    }
}
