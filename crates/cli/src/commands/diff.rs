//! `fermata diff`: how two checkpoints differ.

use super::{Context, Result};
use crate::{
    complete,
    out::{Paint, Style},
    pick,
    table::{Cell, Set, Table},
    text,
};
use clap::Args;
use fermata_api::{
    local,
    values::{Difference, PartDifference},
};

/// Stretches that are shown; `--json` has more.
const STRETCHES: usize = 3;

/// Tell how two checkpoints differ
///
/// Part by part: how many pages of RAM and blocks of disks differ, and where the longest stretches of them lie (as page numbers; a page is 4 KiB).
/// Equal subtrees of the page tables are skipped, so that it takes as long as there is difference. Needs no running experiment.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata diff main~1 main
  fermata diff known-good what-if --json")]
pub struct Diff {
    /// The first checkpoint: the beginning of its id, a tag or a branch; each with ~N
    #[arg(value_name = "A", add = complete::checkpoints())]
    a: String,
    /// The second
    #[arg(value_name = "B", add = complete::checkpoints())]
    b: String,
}

impl Diff {
    pub fn run(self, context: &Context) -> Result {
        let stored = pick::stored(context)?;
        let difference = local::diff(&stored.store, Some(&stored.experiment), &self.a, &self.b)?;
        context.out.answer(&difference, |style| text(&difference, style))?;
        Ok(0)
    }
}

fn text(difference: &Difference, style: &Style) -> String {
    let time = difference.time_virtual_ns;
    let later = match time {
        0 => "at the same instant".to_owned(),
        1.. => format!("{} later", text::instant(time.unsigned_abs())),
        _ => format!("{} earlier", text::instant(time.unsigned_abs())),
    };
    let id = |id: fermata_api::types::CheckpointId| style.paint(Paint::Id, &id.short());
    let heading = format!("{} -> {}, {later}\n", id(difference.a), id(difference.b));
    if difference.parts.iter().all(|part| part.pages_differing == 0) {
        return format!("{heading}no difference\n");
    }
    let mut table = Table::new(&[
        ("PART", Set::Left),
        ("OF", Set::Left),
        ("DIFFERENT", Set::Right),
        ("SHARE", Set::Right),
        ("ONLY A", Set::Right),
        ("ONLY B", Set::Right),
        ("LONGEST STRETCHES", Set::Elastic),
    ]);
    for part in &difference.parts {
        table.row(vec![
            text::harmless(&part.name).into(),
            text::harmless(&part.of).into(),
            text::count(part.pages_differing).into(),
            text::percent(part.pages_differing, part.pages).into(),
            text::count(part.only_a).into(),
            text::count(part.only_b).into(),
            Cell::new(Paint::Dim, stretches(part)),
        ]);
    }
    heading + &table.render(style)
}

fn stretches(part: &PartDifference) -> String {
    let mut shown: Vec<_> = part.stretches.iter().take(STRETCHES).map(|(first, count)| format!("{first}+{count}")).collect();
    if part.stretches.len() > STRETCHES {
        shown.push("...".to_owned());
    }
    shown.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::id;

    #[test]
    fn part_by_part() {
        let ram = PartDifference {
            name: "m1".into(),
            of: "ram".into(),
            pages_differing: 3_411,
            pages: 262_144,
            only_a: 12,
            only_b: 400,
            stretches: vec![(4096, 512), (0, 16), (77, 2), (99, 1)],
        };
        let devices =
            PartDifference { of: "devices".into(), pages_differing: 1, pages: 1, only_a: 0, only_b: 0, stretches: vec![], ..ram.clone() };
        let mut difference = Difference { a: id(2), b: id(5), time_virtual_ns: 6_000_000_000, parts: vec![ram, devices] };
        assert_eq!(
            text(&difference, &Style::default()),
            "\
020202020202 -> 050505050505, 6.000s later
PART  OF       DIFFERENT    SHARE  ONLY A  ONLY B  LONGEST STRETCHES
m1    ram          3,411    1.3 %      12     400  4096+512 0+16 77+2 ...
m1    devices          1  100.0 %       0       0
"
        );
        difference.parts.clear();
        difference.time_virtual_ns = -1_000_000;
        assert_eq!(text(&difference, &Style::default()), "020202020202 -> 050505050505, 0.001s earlier\nno difference\n");
    }
}
