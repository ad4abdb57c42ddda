//! `fermata stats`: what is in the store, and what each sieve saved.

use super::{Context, Result, show};
use crate::{
    complete,
    out::{Paint, Style},
    table::{Cell, Set, Table},
    text,
};
use clap::Args;
use fermata_api::{
    housekeeping, local,
    values::{SavedBytes, Stats as Figures},
};

/// Count what is in the store, and what each sieve saved
///
/// Checkpoints and what was measured when they were taken are those of the experiment, if one is named. What lies in packs is shared by all, and counted
/// for the whole store.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata stats
  fermata stats upgrade
  fermata stats --json | jq .sieve")]
pub struct Stats {
    /// Of this experiment only; -e names it too
    #[arg(value_name = "EXPERIMENT", add = complete::experiments())]
    name: Option<String>,
}

impl Stats {
    pub fn run(self, context: &Context) -> Result {
        let context = context.about(self.name);
        let figures = housekeeping::stats(&local::store_path(context.global.store.clone()), context.experiment())?;
        context.out.answer(&figures, |style| text(&figures, style))?;
        Ok(0)
    }
}

fn text(figures: &Figures, style: &Style) -> String {
    let mut table = Table::bare(&[Set::Left, Set::Left]);
    let mut fact = |name: &str, value: String| table.row(vec![Cell::new(Paint::Dim, name), value.into()]);
    fact("checkpoints", text::count(figures.checkpoints));
    fact("packs", format!("{} in {}", text::bytes(figures.pack_bytes), text::several(figures.packs, "pack")));
    fact("index", text::bytes(figures.index_bytes));
    let compression = figures.compression.map_or_else(String::new, |ratio| format!(", compressed {ratio:.2} times"));
    let pages =
        format!("{} stored once each, {}{compression}", text::several(figures.pages_unique, "page"), text::bytes(figures.pages_bytes));
    fact("pages", pages);
    fact("named", format!("{} by all checkpoints together", text::several(figures.pages_referenced, "time")));
    fact("tables", text::several(figures.nodes, "node"));
    fact("not needed", format!("about {}; `fermata gc` frees that", text::bytes(figures.dead_bytes)));
    let saved = &figures.saved;
    let saved = SavedBytes {
        free: saved.free,
        zero: saved.zero,
        mapped: saved.mapped,
        on_disk: saved.on_disk,
        within: saved.within,
        across: saved.across,
        compression: saved.compression,
    };
    [table.render(style), show::sieve(&figures.sieve, &saved, style)].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_api::types::PageCounts;

    #[test]
    fn the_store_in_figures() {
        let mut sieve = PageCounts { unchanged: 900, zero: 10, known: 50, new: 40, ..PageCounts::default() };
        (0..50).for_each(|_| sieve.distances.add(2));
        let figures = Figures {
            checkpoints: 3,
            packs: 2,
            pack_bytes: 2 << 20,
            pages_unique: 40,
            pages_referenced: 2990,
            compression: Some(2.5),
            sieve,
            ..Figures::default()
        };
        let said = text(&figures, &Style::default());
        for part in
            ["checkpoints  3\n", "2.0 MiB in 2 packs", "compressed 2.50 times", "2,990 times", "2 to 3 checkpoints ago  50  100.0 %"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
