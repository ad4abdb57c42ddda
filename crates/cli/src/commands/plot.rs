//! `fermata plot`: pictures of where memory and time go.

use super::{Context, Result};
use crate::{complete, draw, out::Failure, pick};
use clap::{Args, builder::PossibleValuesParser};
use fermata_api::{
    local,
    plots::{self, KINDS},
    values::{Plot as Plotted, Plots, Problem},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

const ALL: &str = "all";

/// Draw where memory and time go, over the checkpoints of a run
///
/// memory: what the guest's pages are for and what became of them, checkpoint by checkpoint, and how much each method of
/// checkpointing has to save. dirty: pages and blocks written since the checkpoint before. duplicates: how much of them was there
/// before, and how long before. pause, background: what the pause and the work around it were spent on. Needs no running
/// experiment. `--json` prints the values that are drawn.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata plot
  fermata plot upgrade -o pictures/
  fermata plot what-if --what memory -o memory.png
  fermata plot --since known-good --what pause --json | jq '.plots[0].panels[0].series'")]
pub struct Plot {
    /// An experiment, or a branch, a tag or a checkpoint of one: the line of checkpoints that leads there [default: the branch main]
    #[arg(value_name = "EXPERIMENT|BRANCH|ID", add = complete::checkpoints())]
    name: Option<String>,
    /// Where to: a .svg or .png with all, or a directory for both of each [default: EXPERIMENT.svg, and nothing with --json]
    #[arg(short, long, value_name = "FILE|DIR")]
    output: Option<PathBuf>,
    /// What to draw
    #[arg(long, value_name = "WHAT", default_value = ALL, value_parser = PossibleValuesParser::new(KINDS.into_iter().chain([ALL])))]
    what: String,
    /// Only what came after this checkpoint
    #[arg(long, value_name = "ID", add = complete::checkpoints())]
    since: Option<String>,
}

impl Plot {
    pub fn run(self, context: &Context) -> Result {
        let (experiment, to) = match self.name {
            Some(name) if context.experiment().is_none() && pick::is_experiment(context, &name)? => (Some(name), None),
            to => (None, to),
        };
        let stored = pick::stored(&context.about(experiment))?;
        let line = local::line(&stored.store, &stored.experiment, to.as_deref(), self.since.as_deref())?;
        if line.is_empty() {
            return Err(Problem::new("there is no checkpoint after the one that --since names: nothing to draw").into());
        }
        let kinds: Vec<_> = KINDS.into_iter().filter(|kind| self.what == ALL || self.what == *kind).collect();
        let mut plots = plots::plots(&stored.experiment, &line, &kinds);
        let output = self.output.or_else(|| (!context.out.is_json()).then(|| format!("{}.svg", stored.experiment).into()));
        if let Some(output) = output {
            plots.files = write(&plots, &output)?;
        }
        context.out.answer(&plots, |_| plots.files.iter().map(|file| format!("{}\n", file.display())).collect())?;
        Ok(0)
    }
}

/// Draws into one file, or each plot into two of a directory.
fn write(plots: &Plots, output: &Path) -> std::result::Result<Vec<PathBuf>, Failure> {
    if !output.is_dir() {
        match output.extension().and_then(|extension| extension.to_str()) {
            Some("svg" | "png") => return Ok(vec![draw_into(plots, &plots.plots, output.to_owned())?]),
            None => {}
            Some(other) => {
                let message = format!("cannot draw a .{other}: name a file that ends with .svg or .png, or a directory for both");
                return Err(Failure::Misuse(message));
            }
        }
    }
    fs::create_dir_all(output).map_err(|error| Problem::new(format!("cannot make the directory {}: {error}", output.display())))?;
    let files = plots.plots.iter().flat_map(|plot| ["svg", "png"].map(|kind| (plot, output.join(format!("{}.{kind}", plot.name)))));
    files.map(|(plot, file)| draw_into(plots, std::slice::from_ref(plot), file)).collect()
}

fn draw_into(of: &Plots, plots: &[Plotted], file: PathBuf) -> std::result::Result<PathBuf, Failure> {
    let picture = match file.extension() {
        Some(extension) if extension == "png" => draw::png(of, plots)?,
        _ => draw::svg(of, plots)?.into_bytes(),
    };
    fs::write(&file, picture).map_err(|error| Problem::new(format!("cannot write the picture {}: {error}", file.display())))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::history;

    #[test]
    fn a_file_has_all_and_a_directory_one_of_each() {
        let plots = plots::plots("tryout", &history(), &["pause", "dirty"]);
        let place = tempfile::tempdir().unwrap();
        let within = |name: &str| place.path().join(name);
        assert_eq!(write(&plots, &within("all.svg")).unwrap(), [within("all.svg")]);
        let names = ["pause.svg", "pause.png", "dirty.svg", "dirty.png"].map(|name| within("new").join(name));
        assert_eq!(write(&plots, &within("new")).unwrap(), names);
        assert!(fs::read(within("all.svg")).unwrap().starts_with(b"<svg") && fs::read(&names[1]).unwrap().starts_with(b"\x89PNG"));
        // A directory may have a point in its name once it is there.
        fs::create_dir(within("a.gif")).unwrap();
        assert_eq!(write(&plots, &within("a.gif")).unwrap().len(), 4);
        assert!(matches!(write(&plots, &within("b.gif")), Err(Failure::Misuse(message)) if message.contains(".gif")));
        assert!(matches!(write(&plots, &within("none/a.svg")), Err(Failure::Problem(problem)) if problem.message.contains("none/a.svg")));
    }
}
