//! `fermata swapin`: an experiment comes back.

use super::{
    Context, Result, goto,
    push::{only_one, with_passphrase},
    swapout::Line,
};
use crate::{
    complete,
    out::{Failure, Style},
    progress::Meter,
    text,
};
use clap::Args;
use fermata_api::{
    local,
    swapping::{self, SwapInRequest},
    values::{Problem, SwappedIn, SwappedOut},
};

/// Bring back an experiment that was swapped out
///
/// The record that `fermata swapout` left says where it is; --from finds it on a remote, on any host. The guests run as soon as what they need first is here: what they ask for
/// next comes at once, and the rest behind it, as fast as --limit lets it. So do golden images that are not on this host. Until all of it is here there are no new
/// checkpoints, and whoever asks for one waits. If the remote cannot be read and a guest needs something of it, its machine stands still, and goes on by itself. Everything is
/// checked before a guest sees it. If the keeper dies meanwhile, the same command takes up what has come.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata swapin
  fermata swapin replicas
  fermata swapin replicas --from nas --limit 20M
  fermata swapin --from s3://my-bucket/fermata --eager")]
pub struct Swapin {
    /// The experiment [default: the only one that is swapped out]
    #[arg(value_name = "NAME", add = complete::experiments())]
    name: Option<String>,
    /// The name of a remote, or its address [default: as the record here says]
    #[arg(long, value_name = "REMOTE")]
    from: Option<String>,
    /// Fetch everything before the machines run
    #[arg(long)]
    eager: bool,
    /// Leave the machines paused
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    line: Line,
}

impl Swapin {
    pub fn run(self, context: &Context) -> Result {
        let store = local::store_path(context.global.store.clone());
        let Self { name, from, eager, paused, line } = self;
        let is_given = line.is_given();
        let mut copy = line.request();
        let known = swapping::swapped(&store)?;
        let named = name.or_else(|| context.experiment().map(str::to_owned));
        let recorded =
            |name: &str| known.iter().find(|swapped| swapped.experiment == name)?.remote.as_ref().map(|remote| remote.address.clone());
        let mut experiment = named.clone();
        if from.is_none() && experiment.is_none() {
            experiment =
                Some(only_one(known.iter().map(|swapped| swapped.experiment.clone()).collect()).map_err(|failure| match known.len() {
                    0 => {
                        Problem::new("nothing is swapped out here: `fermata swapin NAME --from REMOTE` fetches it from where it is").into()
                    }
                    _ => failure,
                })?);
        }
        copy.remote = from.or_else(|| experiment.as_deref().and_then(recorded));
        if let (true, None, Some(name)) = (is_given, &copy.remote, &experiment) {
            check_elsewhere(&known, name)?;
        }
        if copy.remote.is_some() {
            copy = with_passphrase(&store, copy)?;
        }
        let experiment = match experiment {
            Some(experiment) => experiment,
            None => only_one(swapping::swapped_on(&store, &copy)?)?,
        };
        if experiment.contains('/') || experiment.starts_with('.') {
            return Err(Problem::new(format!("\"{experiment}\" is no name of an experiment")).into());
        }
        let request = SwapInRequest { experiment, copy, eager, paused };
        let meter = Meter::new(&context.out, "swapping in");
        let back = swapping::swap_in(&store, &request, &mut |activity| meter.show(&activity))?;
        drop(meter);
        context.out.answer(&back, |style| text(&back, context.out.quiet, style))?;
        Ok(0)
    }
}

/// What is said of a remote would do nothing for an experiment that stands here.
fn check_elsewhere(known: &[SwappedOut], name: &str) -> std::result::Result<(), Failure> {
    match known.iter().any(|swapped| swapped.experiment == name && swapped.remote.is_none()) {
        true => Err(Failure::Misuse(format!("--limit and --key-file are about a remote, and {name} is in the store: leave them out"))),
        false => Ok(()),
    }
}

fn text(back: &SwappedIn, quiet: bool, style: &Style) -> String {
    let resumed = goto::text(&back.resumed, "is back at", quiet, style);
    match &back.loading {
        None => resumed,
        Some(_) if quiet => resumed,
        Some(loading) if loading.total_bytes == 0 => format!("{resumed}\nthe rest comes from {}", text::harmless(&loading.remote)),
        Some(loading) => {
            format!("{resumed}\n{} still come from {}", text::bytes(loading.away_bytes), text::harmless(&loading.remote))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::id;
    use fermata_api::remotes::{Encryption, RemoteEntry};

    #[test]
    fn what_is_said_of_a_remote_needs_one() {
        let swapped = |name: &str, remote| SwappedOut {
            experiment: name.into(),
            branch: "main".into(),
            checkpoint: id(3),
            time_virtual_ns: 4,
            swapped_ns: 0,
            swapped: "2026-11-23T08:00:00Z".into(),
            remote,
            spec: serde_json::Value::Null,
            machines: vec![],
            working_sets: [].into(),
        };
        let nas = RemoteEntry::new("nas".into(), "/nas".into(), None, Encryption::None);
        let known = [swapped("here", None), swapped("there", Some(nas))];
        assert_eq!(check_elsewhere(&known, "here").unwrap_err().status(), 2);
        assert!(check_elsewhere(&known, "there").is_ok());
        assert!(check_elsewhere(&known, "nowhere").is_ok(), "that it is not swapped out is told later");
    }
}
