//! `fermata prune`: removes the checkpoints that a policy does not keep.

use super::{Context, Result, gc, rm};
use crate::{
    out::{Paint, Style},
    pick,
    progress::Meter,
    table::{Cell, Set, Table},
    text,
};
use clap::Args;
use fermata_api::{
    housekeeping::{self, PruneRequest},
    spec::Keep,
    values::{CollectOptions, Pruned, PrunedCheckpoint, Stays},
};

/// Remove the checkpoints that are not to be kept
///
/// What is kept is said by rules, each of which looks at every branch by itself. `last 20` keeps the newest 20, whatever
/// the clock said when they were taken. `every 2s for 1m` keeps one for each two seconds of
/// the last minute, `every 1h` one for each hour for ever. Ages count up to the newest checkpoint, so that nothing goes while an experiment rests. What is tagged,
/// the newest of each branch, the checkpoints where branches part, and what runs stand on always stay.
///
/// Those that go are gone as by `fermata rm`: checkpoints that grew from them stay and can be gone to. `fermata gc` frees the space. With the key `keep` in its
/// specification, or `fermata up --keep`, a running experiment is pruned by itself, once a minute.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata prune --keep 'last 20, every 2s for 1m, every 1m for 1h, every 1h for 7d' --dry-run
  fermata prune --keep 'last 100' --yes --gc
  fermata prune --json | jq -r '.checkpoints[] | select(.stays == []) | .id'")]
pub struct Prune {
    /// What is kept, as in the key `keep` of a specification [default: as its specification says]
    #[arg(long, value_name = "POLICY")]
    keep: Option<Keep>,
    /// Only list what would go, and why the rest stays
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask before anything is removed
    #[arg(short, long)]
    yes: bool,
    /// Free the space, too, as `fermata gc` does
    #[arg(long, conflicts_with = "dry_run")]
    gc: bool,
}

impl Prune {
    pub fn run(self, context: &Context) -> Result {
        let stored = pick::stored(context)?;
        let out = &context.out;
        let request = PruneRequest { experiment: stored.experiment, keep: self.keep, dry_run: self.dry_run };
        if !self.yes && !self.dry_run && rm::can_ask() {
            let would = housekeeping::prune(&stored.store, &PruneRequest { dry_run: true, ..request.clone() })?;
            if would.checkpoints.iter().any(goes) {
                rm::ask(&summary(&would))?;
            }
        }
        let mut pruned = housekeeping::prune(&stored.store, &request)?;
        let mut trouble = None;
        if self.gc {
            let meter = Meter::new(out, "collecting");
            let options = CollectOptions::default();
            match housekeeping::collect(&stored.store, &options, &mut |activity| meter.show(&activity)) {
                Ok(collected) => pruned.collected = Some(collected),
                // What was removed is gone all the same, and is told.
                Err(problem) => trouble = Some(problem),
            }
        }
        out.answer(&pruned, |style| match out.quiet {
            true => pruned.checkpoints.iter().filter(|one| goes(one)).map(|one| format!("{}\n", one.id)).collect(),
            false => text(&pruned, style),
        })?;
        match trouble {
            None => Ok(pruned.collected.map_or(0, |collected| u8::from(!collected.damaged.is_empty()))),
            // There is one value, and it is printed already.
            Some(problem) if out.is_json() => {
                out.complain(&problem.message);
                Ok(1)
            }
            Some(problem) => Err(problem.into()),
        }
    }
}

fn goes(checkpoint: &PrunedCheckpoint) -> bool {
    checkpoint.stays.is_empty()
}

fn text(pruned: &Pruned, style: &Style) -> String {
    let list = if pruned.dry_run { list(&pruned.checkpoints, style) } else { String::new() };
    let freed = match &pruned.collected {
        Some(collected) => gc::text(collected, false),
        None if !pruned.dry_run && pruned.checkpoints.iter().any(goes) => "`fermata gc` frees their space\n".to_owned(),
        None => String::new(),
    };
    list + &summary(pruned) + &freed
}

fn summary(pruned: &Pruned) -> String {
    let all = pruned.checkpoints.len() as u64;
    let going = pruned.checkpoints.iter().filter(|checkpoint| goes(checkpoint)).count() as u64;
    let verb = if pruned.dry_run { "would be removed" } else { "removed" };
    format!(
        "{} of {} {verb}, {} stay (keep: {})\n",
        text::count(going),
        text::several(all, "checkpoint"),
        text::count(all - going),
        pruned.keep
    )
}

fn list(checkpoints: &[PrunedCheckpoint], style: &Style) -> String {
    let mut table = Table::new(&[
        ("", Set::Left),
        ("ID", Set::Left),
        ("TIME", Set::Right),
        ("UTC", Set::Left),
        ("STORED", Set::Right),
        ("BRANCH", Set::Elastic),
        ("WHY", Set::Elastic),
    ]);
    for checkpoint in checkpoints {
        let verdict = if goes(checkpoint) { Cell::new(Paint::Bad, "goes") } else { Cell::new(Paint::Good, "stays") };
        table.row(vec![
            verdict,
            Cell::new(Paint::Id, checkpoint.id.short()),
            text::instant(checkpoint.time_virtual_ns).into(),
            Cell::new(Paint::Dim, text::time_of_day(&checkpoint.created, false)),
            text::bytes(checkpoint.stored_bytes).into(),
            Cell::new(Paint::Name, text::harmless(&checkpoint.branch)),
            checkpoint.stays.iter().map(words).collect::<Vec<_>>().join("; ").into(),
        ]);
    }
    table.render(style)
}

/// Why a checkpoint stays, in words.
fn words(stays: &Stays) -> String {
    let which = text::harmless(&stays.which.join(", "));
    match stays.why.as_str() {
        "tag" => format!("tagged {which}"),
        "head" => format!("newest of {which}"),
        "run" => "a run stands on it".to_owned(),
        "fork" => "branches part here".to_owned(),
        "end" => "its line ends here".to_owned(),
        "rule" => which,
        other => text::harmless(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args::Cli, commands::samples::id};
    use clap::Parser;

    fn pruned(dry_run: bool) -> Pruned {
        let checkpoint = |number: u8, stays: &[(&str, &str)]| PrunedCheckpoint {
            id: id(number),
            branch: "main".into(),
            created: "2026-11-21T08:43:00.000Z".into(),
            time_virtual_ns: u64::from(number) * 1_000_000_000,
            stored_bytes: 3 << 20,
            stays: stays.iter().map(|(why, which)| Stays { why: (*why).into(), which: vec![(*which).into()] }).collect(),
        };
        Pruned {
            experiment: "tryout".into(),
            keep: "last 1, every 1m for 1h".parse().unwrap(),
            dry_run,
            checkpoints: vec![
                checkpoint(3, &[("head", "main"), ("rule", "last 1")]),
                checkpoint(2, &[]),
                checkpoint(1, &[("tag", "good")]),
            ],
            collected: None,
        }
    }

    #[test]
    fn what_would_go_and_why_the_rest_stays() {
        let expected = "
       ID              TIME  UTC           STORED  BRANCH  WHY
stays  030303030303  3.000s  11-21 08:43  3.0 MiB  main    newest of main; last 1
goes   020202020202  2.000s  11-21 08:43  3.0 MiB  main
stays  010101010101  1.000s  11-21 08:43  3.0 MiB  main    tagged good
1 of 3 checkpoints would be removed, 2 stay (keep: last 1, every 1m for 1h)
";
        assert_eq!(text(&pruned(true), &Style::default()), expected.trim_start_matches('\n'));
    }

    #[test]
    fn what_went_is_counted() {
        let expected = "1 of 3 checkpoints removed, 2 stay (keep: last 1, every 1m for 1h)\n`fermata gc` frees their space\n";
        assert_eq!(text(&pruned(false), &Style::default()), expected);
        let freed = Pruned { collected: Some(Default::default()), ..pruned(false) };
        assert!(text(&freed, &Style::default()).contains("0 B freed"), "{}", text(&freed, &Style::default()));
        let nothing = Pruned { checkpoints: vec![], ..pruned(false) };
        assert_eq!(text(&nothing, &Style::default()), "0 of 0 checkpoints removed, 0 stay (keep: last 1, every 1m for 1h)\n");
    }

    #[test]
    fn a_wrong_policy_is_misuse() {
        let parse = |policy: &str| Cli::try_parse_from(["fermata", "prune", "--keep", policy]);
        assert!(parse("last 20, every 2s for 1m").is_ok());
        assert!(parse("lots").unwrap_err().to_string().contains("last 20, every 2s for 1m"));
    }
}
