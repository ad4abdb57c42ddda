//! `fermata gc`: frees the space of what was removed.

use super::{Context, Result};
use crate::{progress::Meter, text};
use clap::Args;
use fermata_api::{
    housekeeping, local,
    values::{CollectOptions, Collected},
};

/// Free the space of removed checkpoints
///
/// Packs that no checkpoint needs are removed. Packs that are mostly unneeded are written anew, and so are small ones if there are many, in the order in which
/// they will be read. Checkpoints go on being taken and gone to meanwhile. It may be interrupted at any time; the next one goes on. A keeper does it by itself
/// once checkpoints were removed that had stored a tenth of what the store takes.
/// Golden images that came from a remote go, too, once no checkpoint stands on them; and what a pull fetched that was cut off, after a day.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata gc
  fermata gc --dry-run
  fermata gc --rewrite-below 100")]
pub struct Gc {
    /// Only say what would be freed
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Write a pack anew when less than this part of it is needed; 0: none, however small, 100: whenever anything in it is not
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    rewrite_below: u8,
    /// Do not wait for checkpoints that are being written, nor for another collection
    #[arg(long)]
    no_wait: bool,
}

impl Gc {
    pub fn run(self, context: &Context) -> Result {
        let store = local::store_path(context.global.store.clone());
        let options = CollectOptions { rewrite_below: self.rewrite_below, wait: !self.no_wait, dry_run: self.dry_run };
        let meter = Meter::new(&context.out, "collecting");
        let collected = housekeeping::collect(&store, &options, &mut |activity| meter.show(&activity))?;
        drop(meter);
        context.out.answer(&collected, |_| match context.out.quiet {
            true => String::new(),
            false => text(&collected, self.dry_run),
        })?;
        Ok(u8::from(!collected.damaged.is_empty()))
    }
}

/// What was freed, or would be.
pub fn text(collected: &Collected, would: bool) -> String {
    let Collected { packs, packs_removed, packs_rewritten, packs_written, bytes_before, bytes_after, .. } = collected;
    let beside = [collected.orphan_bytes, collected.image_bytes, collected.abandoned_bytes];
    let freed = beside.into_iter().fold(bytes_before.saturating_sub(*bytes_after), u64::saturating_add);
    let verb = if would { "would be freed" } else { "freed" };
    let mut lines = format!(
        "{} {verb}: {} of {} removed, {} of them copied into {}\n",
        text::bytes(freed),
        text::count(*packs_removed),
        text::several(*packs, "pack"),
        text::count(*packs_rewritten),
        text::several(*packs_written, "new one"),
    );
    lines += &format!(
        "{} {} for {}",
        text::bytes(*bytes_after),
        if would { "would remain" } else { "remain" },
        text::several(collected.checkpoints, "checkpoint")
    );
    lines += &match collected.bytes_dead {
        0 => "\n".to_owned(),
        dead => format!(", about {} of it not needed (--rewrite-below 100 frees that too)\n", text::bytes(dead)),
    };
    if collected.orphans > 0 {
        lines += &format!("{} of a process that died, {}\n", text::several(collected.orphans, "pack"), text::bytes(collected.orphan_bytes));
    }
    if collected.images > 0 {
        let (images, bytes) = (text::several(collected.images, "golden image"), text::bytes(collected.image_bytes));
        lines += &format!("{images} from a remote that no checkpoint stands on, {bytes}\n");
    }
    if collected.abandoned_bytes > 0 {
        lines += &format!("packs of a pull that was cut off and nobody took up for a day, {}\n", text::bytes(collected.abandoned_bytes));
    }
    if collected.waiting_for > 0 {
        let being = text::several(collected.waiting_for, "checkpoint");
        lines += &format!("{being} being written may need some of it: run `fermata gc` again when it is stored\n");
    }
    lines + &collected.damaged.iter().map(|damaged| format!("left alone: {}\n", text::harmless(damaged))).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_freed_is_told() {
        let mut collected = Collected {
            checkpoints: 7,
            packs: 20,
            packs_removed: 12,
            packs_rewritten: 3,
            packs_written: 1,
            bytes_before: 300 << 20,
            bytes_after: 100 << 20,
            ..Collected::default()
        };
        let expected = "\
200.0 MiB freed: 12 of 20 packs removed, 3 of them copied into 1 new one
100.0 MiB remain for 7 checkpoints
";
        assert_eq!(text(&collected, false), expected);
        collected.bytes_dead = 1 << 20;
        collected.waiting_for = 1;
        (collected.images, collected.image_bytes, collected.abandoned_bytes) = (1, 5 << 20, 9 << 20);
        collected.damaged = vec!["packs/ab: no pack".into()];
        let said = text(&collected, true);
        for part in [
            "about 1.0 MiB of it",
            "1 checkpoint being written",
            "214.0 MiB would be freed",
            "1 golden image from a remote that no checkpoint stands on, 5.0 MiB",
            "a pull that was cut off and nobody took up for a day, 9.0 MiB",
            "left alone: packs/ab: no pack\n",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }
}
