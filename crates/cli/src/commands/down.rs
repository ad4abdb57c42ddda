//! `fermata down`: ends runs and experiments.

use super::{Context, Result};
use crate::{complete, out::Failure, pick, progress, text};
use clap::Args;
use fermata_api::{
    Service, local,
    values::{Ended, Experiment, ExperimentState, Problem},
};

/// End a run, or an experiment with all its runs
///
/// The machines are switched off as if the power failed; what they did since their last checkpoint is lost. All checkpoints stay in the store, and
/// `fermata goto ID` brings the experiment back.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata down
  fermata down what-if
  fermata down --all")]
pub struct Down {
    /// The run [default: all of the experiment]
    #[arg(add = complete::runs())]
    run: Option<String>,
    /// End every experiment
    #[arg(long, conflicts_with = "run")]
    all: bool,
}

impl Down {
    pub fn run(self, context: &Context) -> Result {
        let out = &context.out;
        if self.all {
            return all(context);
        }
        let ended = end(context, &meant(context)?, self.run)?;
        out.answer(&ended, |_| text(&ended, out.quiet))?;
        Ok(0)
    }
}

/// Ends all experiments. One that does not end keeps none of the others.
fn all(context: &Context) -> Result {
    let out = &context.out;
    let experiments = local::experiments(context.global.store.as_deref())?;
    let (ended, stay) = sorted(experiments.iter().map(|experiment| (experiment.name.as_str(), end(context, experiment, None))));
    out.answer(&ended, |_| ended.iter().map(|ended| text(ended, out.quiet)).collect())?;
    match stay {
        None => Ok(0),
        // There is one value, and it is printed already.
        Some(problem) if out.is_json() => {
            out.complain(&problem.message);
            Ok(1)
        }
        Some(problem) => Err(problem.into()),
    }
}

/// The experiment that lives, or the remains of the only one that died.
fn meant(context: &Context) -> std::result::Result<Experiment, Failure> {
    let mut dead = local::experiments(context.global.store.as_deref())?;
    dead.retain(|experiment| experiment.state == ExperimentState::Dead && context.experiment().is_none_or(|name| name == experiment.name));
    pick::living(context).or_else(|failure| if dead.len() == 1 { Ok(dead.swap_remove(0)) } else { Err(failure) })
}

/// What has ended; and what stays, with the reasons, if anything does.
fn sorted<'a>(results: impl Iterator<Item = (&'a str, std::result::Result<Ended, Problem>)>) -> (Vec<Ended>, Option<Problem>) {
    let (mut ended, mut stay) = (Vec::new(), Vec::new());
    for (name, result) in results {
        match result {
            Ok(one) => ended.push(one),
            Err(problem) => stay.push(format!("{name} did not end: {problem}")),
        }
    }
    let problem = (!stay.is_empty()).then(|| Problem::new(stay.join("\n")));
    (ended, problem)
}

fn end(context: &Context, experiment: &Experiment, run: Option<String>) -> std::result::Result<Ended, Problem> {
    let name = &experiment.name;
    if experiment.state == ExperimentState::Dead {
        if let Some(run) = run {
            return Err(Problem::new(format!("{name} is dead, and run {run} with it; `fermata down -e {name}` clears away what is left")));
        }
        return local::bury(name);
    }
    let keeper = local::client(name)?;
    progress::during(&context.out, "ending", || keeper.activity(), || local::end(&keeper, name, run))
}

fn text(ended: &Ended, quiet: bool) -> String {
    if quiet {
        return format!("{}\n", ended.experiment);
    }
    let runs = if ended.runs.is_empty() { String::new() } else { format!(": {}", text::harmless(&ended.runs.join(", "))) };
    format!("{} ended{runs}\n", text::harmless(&ended.experiment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_fails_does_not_keep_the_others() {
        let ended = |name: &str| Ended { experiment: name.into(), runs: vec!["main".into()] };
        let results = [("a", Ok(ended("a"))), ("b", Err(Problem::new("it hangs"))), ("c", Ok(ended("c")))];
        let (done, stay) = sorted(results.into_iter());
        assert_eq!(done, [ended("a"), ended("c")]);
        assert_eq!(stay.unwrap().message, "b did not end: it hangs");
        assert_eq!(sorted([("a", Ok(ended("a")))].into_iter()), (vec![ended("a")], None));
    }
}
