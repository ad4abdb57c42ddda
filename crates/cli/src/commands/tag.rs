//! `fermata tag`: names for checkpoints.

use super::{Context, Result};
use crate::{
    complete,
    out::{Paint, Style},
    pick,
    table::{Cell, Set, Table},
    text,
};
use clap::Args;
use fermata_api::{local, values};

/// Give a checkpoint a name, take one away, or list them
///
/// A tag can be used wherever a checkpoint is asked for.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata tag main known-good
  fermata tag
  fermata tag --delete known-good")]
pub struct Tag {
    /// The checkpoint: the beginning of its id, a tag or a branch; each with ~N, which alone counts from where the run is
    #[arg(value_name = "ID", requires = "name", add = complete::checkpoints())]
    checkpoint: Option<String>,
    /// Its new name
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Take this tag away; the checkpoint stays
    #[arg(long, value_name = "NAME", conflicts_with_all = ["checkpoint", "name"], add = complete::tags())]
    delete: Option<String>,
}

impl Tag {
    pub fn run(self, context: &Context) -> Result {
        let stored = pick::stored(context)?;
        let (store, experiment) = (&stored.store, Some(stored.experiment.as_str()));
        let out = &context.out;
        match (self.checkpoint, self.name, self.delete) {
            (Some(checkpoint), Some(name), _) => {
                let tag = local::tag(store, experiment, &stored.name(&checkpoint)?, &name)?;
                out.answer(&tag, |style| if out.quiet { tag.tag.clone() } else { list(std::slice::from_ref(&tag), style) })?;
            }
            (.., Some(name)) => {
                let tag = local::untag(store, experiment, &name)?;
                out.answer(&tag, |_| if out.quiet { tag.tag.clone() } else { format!("the tag {} is gone", text::harmless(&tag.tag)) })?;
            }
            _ => {
                let tags = local::tags(store, experiment)?;
                out.answer(&tags, |style| match out.quiet {
                    true => tags.iter().map(|tag| format!("{}\n", tag.tag)).collect(),
                    false => list(&tags, style),
                })?;
            }
        }
        Ok(0)
    }
}

fn list(tags: &[values::Tag], style: &Style) -> String {
    let mut table = Table::bare(&[Set::Left, Set::Left]);
    for tag in tags {
        let id = tag.checkpoint.map(|id| id.short()).unwrap_or_default();
        table.row(vec![Cell::new(Paint::Id, id), Cell::new(Paint::Name, text::harmless(&tag.tag))]);
    }
    table.render(style)
}
