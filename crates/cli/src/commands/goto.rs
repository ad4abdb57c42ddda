//! `fermata goto`: takes a run to a checkpoint, or to an instant.

use super::{Context, Result};
use crate::{
    complete,
    instant::Instant,
    out::{Failure, Paint, Style},
    perturb::{self, Perturb},
    pick,
    progress::{self, Meter},
    text,
};
use clap::Args;
use fermata_api::{
    Service, local,
    values::{GotoRequest, Problem, Reached, Resumed, When},
};

/// Take a run back, or forward, to a checkpoint or an instant
///
/// The machine is there again, running, in milliseconds: memory comes when it is touched. What it did since its last checkpoint is lost; all checkpoints
/// stay. If nobody keeps the experiment any more (its keeper died, the host restarted), a keeper is started.
///
/// An instant is a virtual time, as the log shows it: 95.3s. The run goes to the nearest checkpoint at or before it, on its own line (the checkpoints that
/// lead to the one it stands on) or that of --branch, runs until then, and stands still there; it says how late it stopped. From a checkpoint on a guest is the same
/// again, but what comes from outside may come at another time. An instant that is still to come is waited for, and nothing is lost: so is +5s. Ctrl-C
/// stops the run where it is.
///
/// Links do what they did, with the same luck. With --perturb they do otherwise within bounds, drawn from a seed that `log` and `show` tell: the same seed is the same variation of
/// the links. What the guests make of it is theirs.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata goto 1f0c42
  fermata goto main~3 --run what-if
  fermata goto ~1
  fermata goto known-good --eager --paused
  fermata goto 95.3s
  fermata goto 1m35.3s --branch main --go-on
  fermata goto +5s
  fermata goto main~3 --perturb
  fermata goto 95.3s --perturb=7 --vary timing,luck --within 0.5ms")]
pub struct Goto {
    /// The checkpoint: the beginning of its id, a tag, or a branch for its newest, each with ~N for the N-th before it, ~N alone counting from where the run is; or an
    /// instant such as 95.3s, unless a tag or a branch is called that
    #[arg(value_name = "ID|TIME", add = complete::checkpoints())]
    to: String,
    /// The run; needed only if several could be meant
    #[arg(long, add = complete::runs())]
    run: Option<String>,
    /// The instant on the line that leads to the newest checkpoint of this branch, instead of the run's own
    #[arg(long, value_name = "NAME", add = complete::branches())]
    branch: Option<String>,
    /// Load all memory before the machine runs
    #[arg(long)]
    eager: bool,
    /// Leave the machine paused
    #[arg(long)]
    paused: bool,
    /// Let the machine go on from the instant
    #[arg(long, conflicts_with = "paused")]
    go_on: bool,
    #[command(flatten)]
    perturb: Perturb,
}

impl Goto {
    pub fn run(self, context: &Context) -> Result {
        let stored = pick::stored(context)?;
        let request = self.request(|name| local::resolve(&stored.store, Some(&stored.experiment), name).is_ok())?;
        let resumed = if stored.lives {
            let keeper = local::client(&stored.experiment)?;
            progress::during(&context.out, "going there", || keeper.activity(), || keeper.goto(request, &|| true))?
        } else if let Some(run) = &request.run {
            let message =
                format!("{} has no run \"{run}\": nobody keeps it. Without --run it is brought back as a new run", stored.experiment);
            return Err(Problem::new(message).into());
        } else {
            let meter = Meter::new(&context.out, "starting a keeper");
            local::revive(&stored.store, &stored.experiment, &request, &mut |activity| meter.show(&activity))?
        };
        context.out.answer(&resumed, |style| text(&resumed, "is at", context.out.quiet, style))?;
        Ok(0)
    }

    /// What is asked for. A checkpoint that is called like an instant goes before it.
    fn request(self, is_checkpoint: impl Fn(&str) -> bool) -> std::result::Result<GotoRequest, Failure> {
        let perturbation = self.perturb.perturbation()?;
        let Self { to, run, branch, eager, paused, go_on, .. } = self;
        let when = to.parse::<Instant>().ok().map(|Instant(when)| when).filter(|_| !is_checkpoint(&to));
        let misuse = match when {
            None if branch.is_some() => Some("--branch says on which line an instant is meant, such as 95.3s"),
            None if go_on => Some("--go-on is for instants such as 95.3s: from a checkpoint the run goes on unless it is --paused"),
            Some(When::AfterNs(_)) if branch.is_some() => Some("a time from now is on the run's own line: leave --branch out"),
            _ => None,
        };
        if let Some(misuse) = misuse {
            return Err(Failure::Misuse(misuse.to_owned()));
        }
        let to = if when.is_some() { branch.unwrap_or_default() } else { to };
        Ok(GotoRequest { to, run, eager, paused, when, go_on, perturbation })
    }
}

/// Where a run is now.
pub fn text(resumed: &Resumed, verb: &str, quiet: bool, style: &Style) -> String {
    if quiet {
        return resumed.run.clone();
    }
    let run = style.paint(Paint::Name, &text::harmless(&resumed.run));
    let checkpoint = style.paint(Paint::Id, &resumed.checkpoint.short());
    let branch = style.paint(Paint::Name, &text::harmless(&resumed.branch));
    let warm = if resumed.warm { "" } else { " (no spare process stood ready)" };
    let (took, perturbed) = (text::ms(resumed.resume_ms), perturb::told(resumed.perturbation.as_ref()));
    match &resumed.reached {
        None => {
            let at = text::instant(resumed.time_virtual_ns);
            format!("{run} {verb} {checkpoint}, {at}, on branch {branch}; resumed in {took}{warm}{perturbed}")
        }
        Some(reached) => {
            let (there, ran) = (arrived(reached), text::instant(reached.ran_ns));
            if reached.went {
                format!("{run} {there}, {ran} behind {checkpoint}, on branch {branch}; resumed in {took}{warm}{perturbed}")
            } else {
                format!("{run} {there}, on branch {branch}; it ran on for {ran}{perturbed}")
            }
        }
    }
}

/// How a run is at an instant, and how far from it.
fn arrived(reached: &Reached) -> String {
    let how = if reached.paused { "stands at" } else { "goes on from" };
    let late = match reached.late_ns {
        0 => "to the nanosecond".to_owned(),
        late => format!("{} late", text::ms(late as f64 / 1e6)),
    };
    format!("{how} {} ({late})", text::instant(reached.time_virtual_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        args::Cli,
        commands::{Command, samples::id},
    };
    use clap::Parser;

    fn resumed() -> Resumed {
        Resumed {
            run: "main".into(),
            checkpoint: id(2),
            resume_ms: 21.44,
            warm: true,
            time_virtual_ns: 4_000_000_000,
            branch: "main.1".into(),
            reached: None,
            perturbation: None,
        }
    }

    #[test]
    fn what_it_says() {
        let mut resumed = resumed();
        assert_eq!(
            text(&resumed, "is at", false, &Style::default()),
            "main is at 020202020202, 4.000s, on branch main.1; resumed in 21.4 ms"
        );
        resumed.warm = false;
        assert!(text(&resumed, "is at", false, &Style::default()).ends_with("(no spare process stood ready)"));
        assert_eq!(text(&resumed, "is at", true, &Style::default()), "main");
    }

    #[test]
    fn what_it_says_of_an_instant() {
        let reached = Reached {
            asked_ns: 5_250_000_000,
            time_virtual_ns: 5_250_800_000,
            late_ns: 800_000,
            ran_ns: 1_250_800_000,
            went: true,
            paused: true,
        };
        let says = |reached| text(&Resumed { reached: Some(reached), ..resumed() }, "is at", false, &Style::default());
        assert_eq!(says(reached), "main stands at 5.250s (0.80 ms late), 1.250s behind 020202020202, on branch main.1; resumed in 21.4 ms");
        let ahead = Reached { went: false, paused: false, late_ns: 0, ..reached };
        assert_eq!(says(ahead), "main goes on from 5.250s (to the nanosecond), on branch main.1; it ran on for 1.250s");
    }

    #[test]
    fn an_instant_is_told_from_a_checkpoint() {
        let request = |line: &str, named: bool| match Cli::try_parse_from(line.split(' ')).unwrap().command {
            Command::Goto(goto) => goto.request(|_| named).map_err(|failure| failure.status()),
            other => panic!("{other:?}"),
        };
        let at = |to: &str, when| Ok(GotoRequest { to: to.into(), when: Some(when), ..GotoRequest::default() });
        assert_eq!(request("fermata goto 95.3s", false), at("", When::AtNs(95_300_000_000)));
        assert_eq!(request("fermata goto 1m --branch main", false), at("main", When::AtNs(60_000_000_000)));
        assert_eq!(request("fermata goto +5s", false), at("", When::AfterNs(5_000_000_000)));
        let named = request("fermata goto 95s --paused", true).unwrap();
        assert_eq!((named.to.as_str(), named.when, named.paused), ("95s", None, true));
        assert_eq!(request("fermata goto ~3", false).unwrap().to, "~3");
        for wrong in ["fermata goto main --go-on", "fermata goto main --branch main", "fermata goto +5s --branch main"] {
            assert_eq!(request(wrong, false).unwrap_err(), 2, "{wrong}");
        }
        assert!(Cli::try_parse_from(["fermata", "goto", "5s", "--go-on", "--paused"]).is_err());
    }
}
