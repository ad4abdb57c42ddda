//! `fermata goto`: takes a run to a checkpoint.

use super::{Context, Result};
use crate::{
    complete,
    out::{Paint, Style},
    pick,
    progress::{self, Meter},
    text,
};
use clap::Args;
use fermata_api::{
    Service, local,
    values::{GotoRequest, Problem, Resumed},
};

/// Take a run back, or forward, to a checkpoint
///
/// The machine is there again, running, in milliseconds: memory comes when it is touched. What it did since its last checkpoint is lost; all checkpoints
/// stay. If nobody keeps the experiment any more (its keeper died, the host restarted), a keeper is started.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata goto 1f0c42
  fermata goto main~3 --run what-if
  fermata goto known-good --eager --paused")]
pub struct Goto {
    /// The checkpoint: the beginning of its id, a tag, or a branch for its newest; each with ~N for the N-th before it
    #[arg(value_name = "ID", add = complete::checkpoints())]
    to: String,
    /// The run; needed only if several could be meant
    #[arg(long, add = complete::runs())]
    run: Option<String>,
    /// Load all memory before the machine runs
    #[arg(long)]
    eager: bool,
    /// Leave the machine paused
    #[arg(long)]
    paused: bool,
}

impl Goto {
    pub fn run(self, context: &Context) -> Result {
        let request = GotoRequest { to: self.to, run: self.run, eager: self.eager, paused: self.paused };
        let stored = pick::stored(context)?;
        let resumed = if stored.lives {
            let keeper = local::client(&stored.experiment)?;
            progress::during(&context.out, "going there", || keeper.activity(), || keeper.goto(request))?
        } else if let Some(run) = &request.run {
            let message =
                format!("{} has no run \"{run}\": nobody keeps it. Without --run it is brought back as a new run", stored.experiment);
            return Err(Problem::new(message).into());
        } else {
            let meter = Meter::new(&context.out, "starting a keeper");
            local::revive(&stored.store, Some(&stored.experiment), &request, &mut |activity| meter.show(&activity))?
        };
        context.out.answer(&resumed, |style| text(&resumed, "is at", context.out.quiet, style))?;
        Ok(0)
    }
}

/// Where a run is now.
pub fn text(resumed: &Resumed, verb: &str, quiet: bool, style: &Style) -> String {
    if quiet {
        return resumed.run.clone();
    }
    let warm = if resumed.warm { "" } else { " (no spare process stood ready)" };
    format!(
        "{} {verb} {}, {}, on branch {}; resumed in {}{warm}",
        style.paint(Paint::Name, &text::harmless(&resumed.run)),
        style.paint(Paint::Id, &resumed.checkpoint.short()),
        text::instant(resumed.time_virtual_ns),
        style.paint(Paint::Name, &text::harmless(&resumed.branch)),
        text::ms(resumed.resume_ms)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::id;

    #[test]
    fn what_it_says() {
        let mut resumed = Resumed {
            run: "main".into(),
            checkpoint: id(2),
            resume_ms: 21.44,
            warm: true,
            time_virtual_ns: 4_000_000_000,
            branch: "main.1".into(),
        };
        assert_eq!(
            text(&resumed, "is at", false, &Style::default()),
            "main is at 020202020202, 4.000s, on branch main.1; resumed in 21.4 ms"
        );
        resumed.warm = false;
        assert!(text(&resumed, "is at", false, &Style::default()).ends_with("(no spare process stood ready)"));
        assert_eq!(text(&resumed, "is at", true, &Style::default()), "main");
    }
}
