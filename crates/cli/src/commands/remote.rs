//! `fermata remote`: the places that checkpoints are copied to.

use super::{
    Context, Result,
    init::Encrypt,
    push::{Pace, with_passphrase},
    rm,
};
use crate::{
    out::{Failure, Paint, Style},
    progress::Meter,
    table::{Cell, Set, Table},
    text,
};
use clap::{Args, Subcommand};
use fermata_api::{
    local,
    remote_prune::{self, RemotePruneRequest},
    remote_verify::{self, RemoteVerified},
    remotes::{self, CopyRequest, Encryption, RemoteEntry},
    spec::{ByteSize, Keep},
    values::RemotePruned,
};
use std::path::Path;

/// Name places that checkpoints are copied to, or list them
///
/// A place is a directory, of this host or of one that has Fermata, too, and is reached by `ssh` or where `fermata peer --listen` answers, with the token of
/// FERMATA_PEER_TOKEN; or a bucket of S3 or of what speaks like it, whose keys, region and endpoint come from the environment: AWS_ACCESS_KEY_ID,
/// AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL.
///
/// Memory and disks have whatever the guests have, passwords and keys among them. So what is put there is encrypted with a passphrase, that of $FERMATA_PASSPHRASE or what is typed when it is needed, or with a key file, contents and
/// names, unless --plain says that whoever can read the place may read it. Without the secret it cannot be read again, by anybody.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata remote add origin s3://my-bucket/fermata --passphrase
  head -c 32 /dev/urandom > fermata.key
  fermata remote add backup s3://my-bucket/fermata --key-file fermata.key
  fermata remote add vault ssh://me@vault.example/srv/fermata --passphrase
  fermata remote add peer https://vault.example --passphrase
  fermata remote add nas /mnt/nas/fermata --plain --limit 50M
  fermata remote
  fermata push nas
  fermata remote prune nas --keep 'last 20, every 1d'
  fermata remote verify nas")]
pub struct Remote {
    #[command(subcommand)]
    what: Option<What>,
}

const PRUNE_EXAMPLES: &str = "\
Examples:
  fermata remote prune nas --keep 'last 20, every 1h for 7d, every 1d' --dry-run
  fermata remote prune nas 3f2a9c1b 77e0a1c2
  fermata remote prune nas";

const VERIFY_EXAMPLES: &str = "\
Examples:
  fermata remote verify nas
  fermata remote verify nas --repair
  fermata remote verify nas -e replicas --json";

#[derive(Debug, Subcommand)]
enum What {
    /// Give a place a name
    Add {
        /// Its name here
        name: String,
        /// s3://BUCKET/PREFIX, ssh://HOST/DIRECTORY, https://HOST/PATH, or the path of a directory
        address: String,
        /// How many bytes a second may travel there and back: 50M
        #[arg(long, value_name = "SIZE")]
        limit: Option<ByteSize>,
        #[command(flatten)]
        secrecy: Secrecy,
    },
    /// Remove checkpoints from a place, and all that none of the others there needs
    ///
    /// Removed is what is named, and with --keep what the rules do not keep, of each experiment there or of the one of -e: as `fermata prune` does it here, so that what a branch or
    /// a tag is on stays. Without either only what no checkpoint needs goes, such as the beginnings of pushes that were never finished. Other hosts may push meanwhile: they are
    /// waited for. One that gives no sign of life for five minutes is taken for dead; should it live all the same, it fails and says so, and is to be pushed again.
    #[command(after_long_help = PRUNE_EXAMPLES)]
    Prune(Prune),
    /// Look whether all that the checkpoints at a place are made of is still there
    ///
    /// Of each experiment there, or of the one of -e, every page, node and blob is looked for in what the packs there say that they have. A pack that is gone, cut short or not to be read
    /// is found so; what is within one is checked when it is fetched. The exit status is 1 if a checkpoint is not whole. With --repair what it lacks is sent again, as far as it is here: a
    /// mere `fermata push` sends nothing of a checkpoint that is there. Golden images that are on this host come along.
    #[command(after_long_help = VERIFY_EXAMPLES)]
    Verify(Verify),
    /// Forget a place; what is there stays
    Rm {
        /// Its name here
        name: String,
    },
}

#[derive(Debug, Args)]
struct Prune {
    /// Its name here [default: the only one, or origin]
    name: Option<String>,
    /// Checkpoints, by the beginnings of their ids
    #[arg(value_name = "ID")]
    checkpoints: Vec<String>,
    /// What is kept: 'last 20, every 1m for 1h, every 1d'
    #[arg(long, value_name = "POLICY")]
    keep: Option<Keep>,
    /// Only say what would go
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask before anything is removed
    #[arg(short, long)]
    yes: bool,
    /// Take pushes under way for dead at once, where you know that they are
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    pace: Pace,
}

impl Prune {
    fn run(self, context: &Context, store: &Path) -> std::result::Result<(), Failure> {
        let Self { name, checkpoints, keep, dry_run, yes, no_wait, pace } = self;
        let out = &context.out;
        let experiment = context.experiment().unwrap_or_default().to_owned();
        let copy = CopyRequest { remote: name, names: checkpoints, experiment, ..pace.request() };
        let copy = with_passphrase(store, copy)?;
        let request = RemotePruneRequest { copy, keep, dry_run, take_pushes_for_dead: no_wait };
        if !yes && !dry_run && rm::can_ask() {
            let would = remote_prune::prune(store, &RemotePruneRequest { dry_run: true, ..request.clone() }, &mut |_| {})?;
            if !would.removed.is_empty() {
                rm::ask(&pruned_text(&would, &Style::default()))?;
            }
        }
        let meter = Meter::new(out, "looking what is there");
        let pruned = remote_prune::prune(store, &request, &mut |activity| meter.show(&activity))?;
        drop(meter);
        out.answer(&pruned, |style| match out.quiet {
            true => pruned.removed.iter().map(|gone| format!("{}\n", gone.id)).collect(),
            false => pruned_text(&pruned, style),
        })?;
        Ok(())
    }
}

#[derive(Debug, Args)]
struct Verify {
    /// Its name here [default: the only one, or origin]
    name: Option<String>,
    /// Send again what is not there, as far as it is here
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    pace: Pace,
}

impl Verify {
    fn run(self, context: &Context, store: &Path) -> Result {
        let Self { name, repair, pace } = self;
        let out = &context.out;
        let experiment = context.experiment().unwrap_or_default().to_owned();
        let request = with_passphrase(store, CopyRequest { remote: name, experiment, ..pace.request() })?;
        let meter = Meter::new(out, "looking what is there");
        let found = remote_verify::verify(store, &request, repair, &mut |activity| meter.show(&activity))?;
        drop(meter);
        out.answer(&found, |style| match out.quiet {
            true => found.broken().map(|broken| format!("{}\n", broken.checkpoint)).collect(),
            false => verified_text(&found, style),
        })?;
        Ok(u8::from(found.broken().next().is_some()))
    }
}

#[derive(Debug, Args)]
struct Secrecy {
    #[command(flatten)]
    encrypt: Encrypt,
    /// Do not encrypt
    #[arg(long, conflicts_with_all = ["passphrase", "key_file"])]
    plain: bool,
}

impl Secrecy {
    fn chosen(self) -> std::result::Result<Encryption, Failure> {
        match (self.encrypt.chosen(), self.plain) {
            (Encryption::None, false) => {
                Err(Failure::Misuse("say --passphrase or --key-file FILE for it to be encrypted, or --plain".into()))
            }
            (encryption, _) => Ok(encryption),
        }
    }
}

impl Remote {
    pub fn run(self, context: &Context) -> Result {
        let store = local::store_path(context.global.store.clone());
        let out = &context.out;
        match self.what {
            Some(What::Add { name, address, limit, secrecy }) => {
                let encryption = secrecy.chosen()?;
                let entry = remotes::add(&store, RemoteEntry::new(name, address, limit.map(ByteSize::bytes), encryption))?;
                out.answer(&entry, |style| if out.quiet { entry.name.clone() } else { list(std::slice::from_ref(&entry), style) })?;
            }
            Some(What::Prune(prune)) => prune.run(context, &store)?,
            Some(What::Verify(verify)) => return verify.run(context, &store),
            Some(What::Rm { name }) => {
                let entry = remotes::forget(&store, &name)?;
                out.answer(&entry, |_| match out.quiet {
                    true => entry.name.clone(),
                    false => {
                        format!("{} is forgotten; what is at {} stays there", text::harmless(&entry.name), text::harmless(&entry.address))
                    }
                })?;
            }
            None => {
                let all = remotes::remotes(&store)?;
                out.answer(&all, |style| match out.quiet {
                    true => all.iter().map(|entry| format!("{}\n", entry.name)).collect(),
                    false => list(&all, style),
                })?;
            }
        }
        Ok(0)
    }
}

fn pruned_text(pruned: &RemotePruned, style: &Style) -> String {
    let RemotePruned { remote, dry_run, removed, kept, freed } = pruned;
    let mut table = Table::bare(&[Set::Left, Set::Left, Set::Left, Set::Left]);
    for gone in removed {
        table.row(vec![
            Cell::new(Paint::Id, gone.id.short()),
            Cell::new(Paint::Name, text::harmless(&gone.experiment)),
            text::harmless(&gone.branch).into(),
            text::time_of_day(&gone.created, false).into(),
        ]);
    }
    let images = if freed.images > 0 { format!(" and {}", text::several(freed.images, "golden image")) } else { String::new() };
    let mut lines = if removed.is_empty() { String::new() } else { table.render(style) };
    lines += &format!(
        "{} {}{images}, {} in {}, of which {} written anew; {} kept ({})\n",
        text::several(freed.checkpoints, "checkpoint"),
        if *dry_run { "would be removed" } else { "removed" },
        text::bytes(freed.bytes),
        text::several(freed.packs, "pack"),
        text::bytes(freed.rewritten_bytes),
        text::several(*kept, "checkpoint"),
        text::harmless(remote)
    );
    if freed.dead_pushes > 0 {
        lines += &format!("pushes that were taken for dead: {}; what they sent goes the next time\n", text::count(freed.dead_pushes));
    }
    lines
}

fn verified_text(found: &RemoteVerified, style: &Style) -> String {
    let RemoteVerified { remote, experiments, unreadable, repaired } = found;
    let mut table = Table::bare(&[Set::Left, Set::Left, Set::Left]);
    for experiment in experiments {
        for broken in &experiment.broken {
            table.row(vec![
                Cell::new(Paint::Id, broken.checkpoint.short()),
                Cell::new(Paint::Name, text::harmless(&experiment.experiment)),
                Cell::new(Paint::Bad, text::harmless(&broken.why)),
            ]);
        }
    }
    let (all, broken) = (experiments.iter().map(|experiment| experiment.checkpoints).sum::<u64>(), found.broken().count() as u64);
    let mut lines = if broken == 0 { String::new() } else { table.render(style) };
    for why in unreadable {
        lines += &format!("of no use: {}\n", text::harmless(why));
    }
    if let Some(repaired) = repaired {
        for failed in &repaired.failed {
            let line = format!("{} could not be sent again: {}\n", failed.checkpoint.short(), text::harmless(&failed.why));
            lines += &style.paint(Paint::Bad, &line);
        }
        lines += &format!(
            "{} whole again, {} sent in {}\n",
            text::several(repaired.checkpoints, "checkpoint"),
            text::bytes(repaired.bytes),
            text::several(repaired.packs, "pack")
        );
    }
    lines += &format!("{}, of which {} not whole ({})\n", text::several(all, "checkpoint"), text::count(broken), text::harmless(remote));
    lines
}

fn list(all: &[RemoteEntry], style: &Style) -> String {
    let mut table = Table::bare(&[Set::Left, Set::Left, Set::Left, Set::Left]);
    for entry in all {
        let encrypted = match &entry.encryption {
            Encryption::None => "not encrypted".to_owned(),
            Encryption::Passphrase => "encrypted with a passphrase".to_owned(),
            Encryption::KeyFile(file) => format!("encrypted with {}", text::harmless(&file.display().to_string())),
        };
        let limit = entry.limit_bytes.map_or_else(String::new, |bytes| format!("at most {} a second", text::bytes(bytes)));
        table.row(vec![
            Cell::new(Paint::Name, text::harmless(&entry.name)),
            text::harmless(&entry.address).into(),
            encrypted.into(),
            Cell::new(Paint::Dim, limit),
        ]);
    }
    table.render(style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::id;
    use fermata_api::{
        remote_verify::{ExperimentThere, Repaired},
        remotes::Broken,
    };

    #[test]
    fn what_a_remote_lacks_is_told() {
        let broken = |checkpoint, why: &str| Broken { checkpoint: id(checkpoint), why: why.into() };
        let of = |experiment: &str, checkpoints, broken| ExperimentThere { experiment: experiment.into(), checkpoints, broken };
        let mut found = RemoteVerified {
            remote: "/nas".into(),
            experiments: vec![of("lab", 3, vec![]), of("other", 2, vec![broken(7, "a page is in no pack")])],
            unreadable: ["a pack is damaged".to_owned()].into(),
            repaired: None,
        };
        let words = |found: &RemoteVerified| {
            let text = verified_text(found, &Style::default());
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        let mut expected =
            vec!["070707070707 other a page is in no pack", "of no use: a pack is damaged", "5 checkpoints, of which 1 not whole (/nas)"];
        assert_eq!(words(&found), expected);
        found.repaired = Some(Repaired { checkpoints: 1, packs: 2, bytes: 5 << 20, failed: vec![broken(7, "it is not here")] });
        expected.insert(2, "070707070707 could not be sent again: it is not here");
        expected.insert(3, "1 checkpoint whole again, 5.0 MiB sent in 2 packs");
        assert_eq!(words(&found), expected);
    }
}
