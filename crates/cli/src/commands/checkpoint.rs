//! `fermata checkpoint`: takes a checkpoint now.

use super::{Context, Result};
use crate::{
    complete,
    instant::Instant,
    out::{Paint, Style},
    pick, progress, text,
};
use clap::Args;
use fermata_api::{
    Service,
    values::{self, CheckpointRequest, When},
};

/// Take a checkpoint, now or at an instant
///
/// Returns when the checkpoint is stored for good. All machines stand still together, only for a few milliseconds of that, and do not see them. If it
/// fails, they run on and nothing is stored.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata checkpoint
  fermata checkpoint -m \"before the upgrade\"
  fermata checkpoint --at +5s
  fermata checkpoint --gentle
  fermata checkpoint --run what-if --json")]
pub struct Checkpoint {
    /// A word about why
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// The run; needed only if several could be meant
    #[arg(long, add = complete::runs())]
    run: Option<String>,
    /// Look at all pages that are not stored, and fail if one is not what it is taken for
    ///
    /// Without it a page that is known to equal a block of a disk is neither copied nor hashed: who moved it between memory and disk has kept book. Nor is a page that nobody is known
    /// to have written since the last checkpoint. All of memory is hashed while the guest runs, and it stands still for longer.
    #[arg(long)]
    paranoid: bool,
    /// Store it without hurry, for guests that keep the processors busy
    ///
    /// The pause is the same. What is stored behind it is stored with rests, eight times as long as the work between them, for as long as others want the processors.
    #[arg(long)]
    gentle: bool,
    /// Wait for this instant of the machines' virtual time: +5s from now, or 12.5s as the log counts
    ///
    /// No virtual time passes while the run is paused. Ctrl-C gives it up.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    at: Option<Instant>,
}

impl Checkpoint {
    pub fn run(self, context: &Context) -> Result {
        let (_, keeper) = pick::keeper(context)?;
        let when = self.at.map(|Instant(when)| when);
        if let Some(when) = when {
            context.out.note(&awaited(when));
        }
        let request = CheckpointRequest { run: self.run, message: self.message, paranoid: self.paranoid, gentle: self.gentle, when };
        let taken = progress::during(&context.out, "taking a checkpoint", || keeper.activity(), || keeper.checkpoint(request, &|| true))?;
        context.out.answer(&taken, |style| text(&taken, context.out.quiet, style))?;
        Ok(0)
    }
}

fn text(taken: &values::Checkpoint, quiet: bool, style: &Style) -> String {
    if quiet {
        return taken.id.to_string();
    }
    let skew = taken.skew.map_or_else(String::new, |skew| format!(" (stopped within {})", text::ms(skew.stop_ms)));
    format!(
        "{}  paused {}{skew}, {} written, {} stored, at {}",
        style.paint(Paint::Id, &taken.id.short()),
        text::ms(taken.pause_ms),
        text::several(taken.pages.written(), "page"),
        text::bytes(taken.stored_bytes),
        text::instant(taken.time_virtual_ns)
    )
}

/// What is waited for.
fn awaited(when: When) -> String {
    match when {
        When::AfterNs(ns) => format!("a checkpoint is taken {} of virtual time from now", text::instant(ns)),
        When::AtNs(ns) => format!("a checkpoint is taken when it is {} in the machines", text::instant(ns)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::checkpoint;
    use fermata_api::values::Skew;

    #[test]
    fn what_it_says() {
        let taken = checkpoint(5, Some(3), "main");
        assert_eq!(
            text(&taken, false, &Style::default()),
            "050505050505  paused 4.21 ms, 3,411 pages written, 12.3 MiB stored, at 10.000s"
        );
        let taken = values::Checkpoint { skew: Some(Skew { stop_ms: 0.21, resume_ms: 0.3, time_ms: 0.25 }), ..taken };
        assert!(text(&taken, false, &Style::default()).contains("paused 4.21 ms (stopped within 0.21 ms), "));
        assert_eq!(text(&taken, true, &Style::default()), "05".repeat(32));
    }
}
