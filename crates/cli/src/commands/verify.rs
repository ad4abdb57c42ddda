//! `fermata verify`: whether the store is whole.

use super::{Context, Result};
use crate::{
    out::{Paint, Style},
    progress::Meter,
    text,
};
use clap::Args;
use fermata_api::{
    housekeeping, local,
    values::{Damage, Remedy, Touched, Verified, VerifyOptions},
};

/// Ranges of pages that are shown of a table; --json has all.
const RANGES_MAX: usize = 8;

/// Check that the store is whole
///
/// Reads everything and checks it against its name: packs, index, records, page tables and pages. Says of each damage which checkpoints, machines and pages
/// of the guest it touches, and what to do. Checkpoints go on being taken meanwhile. Exits with 1 when there is damage.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata verify
  fermata verify --quick
  fermata verify --json | jq '.damage[].touches[].checkpoint'")]
pub struct Verify {
    /// Do not read the contents of pages
    #[arg(long)]
    quick: bool,
}

impl Verify {
    pub fn run(self, context: &Context) -> Result {
        let store = local::store_path(context.global.store.clone());
        let meter = Meter::new(&context.out, "verifying");
        let verified = housekeeping::verify(&store, &VerifyOptions { quick: self.quick }, &mut |activity| meter.show(&activity))?;
        drop(meter);
        context.out.answer(&verified, |style| match context.out.quiet {
            true => verified.damage.iter().map(|damage| format!("{}\n", text::harmless(&damage.object))).collect(),
            false => text(&verified, self.quick, style),
        })?;
        Ok(u8::from(!verified.damage.is_empty()))
    }
}

fn text(verified: &Verified, quick: bool, style: &Style) -> String {
    let mut lines: String = verified.damage.iter().map(|damage| damage_text(damage, style)).collect();
    if verified.damage_more > 0 {
        lines += &format!("and {} more\n", text::count(verified.damage_more));
    }
    let read = format!(
        "{} in {}, {}",
        text::bytes(verified.bytes),
        text::several(verified.packs, "pack"),
        text::several(verified.checkpoints, "checkpoint")
    );
    let unread = if quick { "; the contents of pages were not read" } else { "" };
    lines += &match verified.damage.len() as u64 + verified.damage_more {
        0 => format!("{}: {read}{unread}\n", style.paint(Paint::Good, "the store is whole")),
        damage => format!("{}: {read}{unread}\n", style.paint(Paint::Bad, &text::several(damage, "damage"))),
    };
    if !verified.images_unchecked.is_empty() {
        lines += &format!(
            "{} not looked at: that is done when a machine is started\n",
            text::several(verified.images_unchecked.len() as u64, "golden image")
        );
    }
    if verified.packs_unguarded > 0 {
        lines += &format!("{} of an older version, without a checksum\n", text::several(verified.packs_unguarded, "pack"));
    }
    if verified.orphans > 0 {
        lines += &format!(
            "{} that nothing names; `fermata gc` removes that, unless it cannot be read\n",
            text::several(verified.orphans, "pack")
        );
    }
    lines
}

fn damage_text(damage: &Damage, style: &Style) -> String {
    let at = damage.offset.map_or_else(String::new, |offset| format!(" at byte {offset}"));
    let object = style.paint(Paint::Bad, &text::harmless(&damage.object));
    let path = text::harmless(&damage.path.display().to_string());
    let mut lines = format!("{object}: {}\n  in {path}{at}\n", text::harmless(&damage.detail));
    for touched in &damage.touches {
        lines += &format!("  touches {}\n", touched_text(touched, style));
    }
    if damage.touches.is_empty() {
        lines += "  touches no checkpoint\n";
    }
    let mend = match damage.remedy {
        Remedy::Restore => "put the file back from a copy; or `fermata rm` these checkpoints, then `fermata gc`. The others are whole",
        Remedy::Rebuild => "`fermata rebuild`: the packs are right, the index is not",
        Remedy::Image => "put the golden image back as it was",
        Remedy::Collect => "`fermata gc` removes it, or writes it again",
        Remedy::Nothing => "nothing needs to be done; put the file back from a copy to be rid of it",
        Remedy::Remove => "remove the file: what it tells is found again when it is needed",
        _ => "see the documentation of a newer version",
    };
    lines + &format!("  mend: {mend}\n")
}

fn touched_text(touched: &Touched, style: &Style) -> String {
    let checkpoint = style.paint(Paint::Id, &touched.checkpoint.short());
    let of = format!("{checkpoint} ({}, {})", text::harmless(&touched.experiment), text::harmless(&touched.branch));
    if touched.part.is_empty() {
        return format!("{of}: all of it");
    }
    let what = format!("{of}: {} {}", text::harmless(&touched.part), text::harmless(&touched.table));
    if touched.pages.is_empty() {
        return what;
    }
    let range = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let ranges: Vec<_> = touched.pages.iter().take(RANGES_MAX).map(range).collect();
    let more = if touched.pages.len() > RANGES_MAX { ", ..." } else { "" };
    format!("{what} page {}{more}", ranges.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::id;

    #[test]
    fn a_whole_store_is_told_in_a_line() {
        let verified = Verified { packs: 3, bytes: 5 << 20, checkpoints: 2, ..Verified::default() };
        assert_eq!(text(&verified, false, &Style::default()), "the store is whole: 5.0 MiB in 3 packs, 2 checkpoints\n");
        assert!(text(&verified, true, &Style::default()).contains("were not read"));
    }

    #[test]
    fn damage_says_what_it_touches_and_what_to_do() {
        let touched = |part: &str, table: &str, pages: Vec<(u32, u32)>| Touched {
            checkpoint: id(3),
            experiment: "tryout".into(),
            branch: "main".into(),
            part: part.into(),
            table: table.into(),
            pages,
        };
        let touches = vec![touched("m1", "ram", vec![(77, 77), (80, 99)]), touched("m1", "devices", vec![]), touched("", "", vec![])];
        let damage = Damage {
            path: "/store/packs/ab".into(),
            offset: Some(4711),
            object: "page 12ab".into(),
            detail: "its content does not fit its name".into(),
            touches,
            remedy: Remedy::Restore,
        };
        let verified = Verified { damage: vec![damage], packs: 1, ..Verified::default() };
        let expected = "\
page 12ab: its content does not fit its name
  in /store/packs/ab at byte 4711
  touches 030303030303 (tryout, main): m1 ram page 77, 80-99
  touches 030303030303 (tryout, main): m1 devices
  touches 030303030303 (tryout, main): all of it
  mend: put the file back from a copy; or `fermata rm` these checkpoints, then `fermata gc`. The others are whole
1 damage: 0 B in 1 pack, 0 checkpoints
";
        assert_eq!(text(&verified, false, &Style::default()), expected);
    }
}
