//! `fermata push`, `fermata pull` and `fermata clone`: copies checkpoints to another place, and from one.

use super::{Context, Result};
use crate::{
    complete,
    out::{Failure, Out, Paint, Style},
    pick,
    progress::Meter,
    text,
};
use clap::Args;
use fermata_api::{
    local,
    remotes::{self, Broken, Copied, CopiedImage, CopiedRef, CopyRequest, Encryption, ImageOutcome, Outcome, RefName, RemoteEntry},
    spec::ByteSize,
    values::Problem,
};
use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
};

/// Copy checkpoints to a remote
///
/// Only what the remote lacks travels: pages that any checkpoint there has are not sent again. A checkpoint can be seen there once all of it is there, and what was
/// sent before an interruption is not sent again. Branches move along their lines; one that is elsewhere on the remote is left, and the exit status is 1.
/// The machines go on meanwhile. The golden images that the checkpoints stand on are sent once, in the same packs.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata push
  fermata push nas main --limit 20M
  fermata push /mnt/usb/fermata known-good")]
pub struct Push {
    #[command(flatten)]
    what: What,
}

/// Copy checkpoints from a remote
///
/// Only what this store lacks travels. All that comes is checked before it is believed, and what was fetched before an interruption is not fetched again. Branches move
/// along their lines; one that is elsewhere here, or that a run grows, is left, and the exit status is 1. Golden images that are nowhere on this host are made again among
/// the images of the store, where checkpoints find them. What is damaged there keeps nothing from the rest: checkpoints that need it are left out, as if they had been removed,
/// and golden images are not made; the exit status is 1 then, too, and where one lacks on both sides, unless --no-images. `fermata remote verify --repair` mends the remote.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata pull
  fermata pull nas main -e replicas
  fermata pull origin 3f2a9c1b -e replicas")]
pub struct Pull {
    #[command(flatten)]
    what: What,
}

/// Copy all checkpoints of a place into this store, and remember the place
///
/// The same as `fermata remote add origin ADDRESS` and `fermata pull` of each experiment that is there. One that fails keeps nothing from the others, and the exit status is 1.
/// It can be called again, and fetches what is still lacking.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata clone s3://my-bucket/fermata
  fermata clone /mnt/nas/fermata --store /srv/fermata -e replicas")]
pub struct Clone {
    /// The path of a directory, ssh://HOST/PATH, https://HOST/PATH, or s3://BUCKET/PREFIX
    address: String,
    /// The name that the place has here from now on
    #[arg(long, value_name = "NAME", default_value = "origin")]
    name: String,
    #[command(flatten)]
    pace: Pace,
    /// Leave golden images where they are: whoever goes to the checkpoints has to have them
    #[arg(long)]
    no_images: bool,
}

#[derive(Debug, Args)]
struct What {
    /// The name of the remote, or an address [default: the only one, or origin]
    remote: Option<String>,
    /// Branches, tags, or checkpoints by the beginnings of their ids, with those before them [default: every branch and tag]
    #[arg(value_name = "NAME", add = complete::checkpoints())]
    names: Vec<String>,
    /// Move branches and tags that are elsewhere on the other side, too
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    pace: Pace,
    /// Leave golden images where they are: whoever goes to the checkpoints has to have them
    #[arg(long)]
    no_images: bool,
}

#[derive(Debug, Args)]
pub(super) struct Pace {
    /// How many bytes a second may travel: 50M [default: what `fermata remote add` was told]
    #[arg(long, value_name = "SIZE")]
    limit: Option<ByteSize>,
    /// Transfers at a time
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// What the remote is encrypted with, if it was not named with it; a passphrase is taken from $FERMATA_PASSPHRASE, or asked for
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl Pace {
    pub(super) fn request(self) -> CopyRequest {
        let passphrase = remotes::passphrase();
        let limit_bytes = self.limit.map(ByteSize::bytes);
        CopyRequest { limit_bytes, jobs: self.jobs.into(), key_file: self.key_file, passphrase, ..CopyRequest::default() }
    }
}

/// Asks for the passphrase that is needed and not there.
pub(super) fn with_passphrase(store: &Path, mut request: CopyRequest) -> std::result::Result<CopyRequest, Failure> {
    let may_be_asked = request.passphrase.is_none() && std::io::stdin().is_terminal();
    if may_be_asked && remotes::encryption(store, &request)? == Encryption::Passphrase {
        let asked = rpassword::prompt_password("passphrase of the remote: ");
        request.passphrase = Some(asked.map_err(|error| Problem::new(format!("cannot read a passphrase: {error}")))?);
    }
    Ok(request)
}

impl What {
    fn request(self, experiment: String) -> CopyRequest {
        let Self { remote, names, force, pace, no_images } = self;
        CopyRequest { remote, experiment, names, force, without_images: no_images, ..pace.request() }
    }
}

impl Push {
    pub fn run(self, context: &Context) -> Result {
        let stored = pick::stored(context)?;
        let request = with_passphrase(&stored.store, self.what.request(stored.experiment))?;
        let meter = Meter::new(&context.out, "comparing");
        let copied = remotes::push(&stored.store, &request, &mut |activity| meter.show(&activity))?;
        drop(meter);
        tell(context, &copied, "sent")
    }
}

impl Pull {
    pub fn run(self, context: &Context) -> Result {
        let store = local::store_path(context.global.store.clone());
        let mut request = with_passphrase(&store, self.what.request(String::new()))?;
        request.experiment = match context.experiment() {
            Some(name) => name.to_owned(),
            None => only_one(remotes::experiments_on(&store, &request)?)?,
        };
        let meter = Meter::new(&context.out, "comparing");
        let copied = remotes::pull(&store, &request, &mut |activity| meter.show(&activity))?;
        drop(meter);
        tell(context, &copied, "fetched")
    }
}

impl Clone {
    pub fn run(self, context: &Context) -> Result {
        let store = local::store_path(context.global.store.clone());
        let request = CopyRequest { remote: Some(self.address.clone()), without_images: self.no_images, ..self.pace.request() };
        let request = with_passphrase(&store, request)?;
        let mut wanted = remotes::experiments_on(&store, &request)?;
        if let Some(experiment) = context.experiment() {
            if !wanted.iter().any(|name| name == experiment) {
                let there = wanted.join(", ");
                return Err(Problem::new(format!("there is no checkpoint of {experiment} at {}, only of {there}", self.address)).into());
            }
            wanted = vec![experiment.to_owned()];
        }
        let encryption = remotes::encryption(&store, &request)?;
        let entry = remotes::add_again(&store, RemoteEntry::new(self.name, self.address, request.limit_bytes, encryption))?;
        let mut copied = Vec::new();
        for experiment in wanted {
            let meter = Meter::new(&context.out, "comparing");
            let request = CopyRequest { experiment: experiment.clone(), ..request.clone() };
            let pulled = remotes::pull(&store, &request, &mut |activity| meter.show(&activity));
            copied.push(pulled.unwrap_or_else(|problem| Copied::failed(entry.address.clone(), experiment, problem)));
        }
        let out = &context.out;
        let line = |copied: &Copied, style: &Style| match (out.quiet, &copied.trouble) {
            (false, _) => text(copied, "fetched", style),
            (true, None) => format!("{}\n", copied.experiment),
            (true, Some(_)) => String::new(),
        };
        complain(out, &copied, "fetched");
        out.answer(&copied, |style| copied.iter().map(|copied| line(copied, style)).collect())?;
        Ok(u8::from(copied.iter().any(Copied::is_partial)))
    }
}

pub(super) fn only_one(names: Vec<String>) -> std::result::Result<String, Failure> {
    match names.as_slice() {
        [only] => Ok(only.clone()),
        [] => Err(Problem::new("nothing is there yet: `fermata push` puts checkpoints there").into()),
        several => {
            Err(Problem::new(format!("several experiments are there: say which with -e NAME, one of {}", several.join(", "))).into())
        }
    }
}

fn tell(context: &Context, copied: &Copied, verb: &str) -> Result {
    let out = &context.out;
    complain(out, std::slice::from_ref(copied), verb);
    out.answer(copied, |style| match out.quiet {
        true => String::new(),
        false => text(copied, verb, style),
    })?;
    Ok(u8::from(copied.is_partial()))
}

/// Where nothing else is told, what was not done is.
pub(super) fn complain(out: &Out, copied: &[Copied], verb: &str) {
    if out.quiet && !out.is_json() {
        let partial = copied.iter().filter(|copied| copied.is_partial());
        partial.for_each(|copied| out.complain(text(copied, verb, &Style::default()).trim_end()));
    }
}

pub(super) fn text(copied: &Copied, verb: &str, style: &Style) -> String {
    let Copied { remote, experiment, checkpoints, packs, bytes, images, refs, gone, left_out, trouble } = copied;
    if let Some(trouble) = trouble {
        return style.paint(Paint::Bad, &format!("{}: nothing was {verb}: {}\n", text::harmless(experiment), text::harmless(trouble)));
    }
    let mut lines = format!(
        "{}: {} {verb}, {} in {} ({})\n",
        style.paint(Paint::Name, &text::harmless(experiment)),
        text::several(*checkpoints, "checkpoint"),
        text::bytes(*bytes),
        text::several(*packs, "pack"),
        text::harmless(remote)
    );
    for CopiedImage { id, outcome } in images {
        lines += &match outcome {
            ImageOutcome::Sent => format!("  golden image {} was sent\n", id.short()),
            ImageOutcome::Fetched { path } => {
                format!("  golden image {} is {} now\n", id.short(), text::harmless(&path.display().to_string()))
            }
            ImageOutcome::Lacking { why } => style.paint(Paint::Bad, &format!("  not on the remote either: {}\n", text::harmless(why))),
            ImageOutcome::Damaged { why } => {
                style.paint(Paint::Bad, &format!("  golden image {} was not made: {}\n", id.short(), text::harmless(why)))
            }
        };
    }
    for Broken { checkpoint, why } in left_out {
        lines += &style.paint(Paint::Bad, &format!("  {} was left out: {}\n", checkpoint.short(), text::harmless(why)));
    }
    for CopiedRef { name, checkpoint, outcome } in refs {
        let name = match name {
            RefName::Branch(name) => name.clone(),
            RefName::Tag(name) => format!("#{name}"),
        };
        let (name, id) = (text::harmless(&name), checkpoint.short());
        lines += &match outcome {
            Outcome::Same => continue,
            Outcome::New => format!("  {name} is new, at {id}\n"),
            Outcome::Moved => format!("  {name} moved to {id}\n"),
            Outcome::Left { at } => {
                let left = format!(
                    "  {name} was left at {}: {id} is not on its line, or a run grows it; --force moves it all the same\n",
                    at.short()
                );
                style.paint(Paint::Bad, &left)
            }
        };
    }
    if !gone.is_empty() {
        lines += &format!("  removed here before they could be sent: {}\n", text::several(gone.len() as u64, "checkpoint"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::id;
    use fermata_api::types::ImageId;

    #[test]
    fn what_was_copied_is_told() {
        let of = |name, checkpoint, outcome| CopiedRef { name, checkpoint: id(checkpoint), outcome };
        let refs = vec![
            of(RefName::Branch("main".into()), 3, Outcome::Moved),
            of(RefName::Branch("old".into()), 1, Outcome::Same),
            of(RefName::Branch("what-if".into()), 4, Outcome::Left { at: id(9) }),
            of(RefName::Tag("good".into()), 2, Outcome::New),
        ];
        let images = [
            ImageOutcome::Sent,
            ImageOutcome::Fetched { path: "/store/images/b.raw".into() },
            ImageOutcome::Lacking { why: "golden image c is not on this host".into() },
            ImageOutcome::Damaged { why: "a block is gone".into() },
        ];
        let images = images.into_iter().zip(1..).map(|(outcome, id)| CopiedImage { id: ImageId([id; 32]), outcome }).collect();
        let (remote, experiment) = ("/nas".into(), "tryout".into());
        let left_out = vec![Broken { checkpoint: id(8), why: "a page is in no pack".into() }];
        let mut copied = Copied {
            remote,
            experiment,
            checkpoints: 3,
            packs: 1,
            bytes: 5 << 20,
            images,
            refs,
            gone: vec![id(7)],
            left_out,
            ..Copied::default()
        };
        let expected = "\
tryout: 3 checkpoints sent, 5.0 MiB in 1 pack (/nas)
  golden image 010101010101 was sent
  golden image 020202020202 is /store/images/b.raw now
  not on the remote either: golden image c is not on this host
  golden image 040404040404 was not made: a block is gone
  080808080808 was left out: a page is in no pack
  main moved to 030303030303
  what-if was left at 090909090909: 040404040404 is not on its line, or a run grows it; --force moves it all the same
  #good is new, at 020202020202
  removed here before they could be sent: 1 checkpoint
";
        assert_eq!(text(&copied, "sent", &Style::default()), expected);
        // What is not where it was to be, one after the other.
        assert!(copied.is_partial());
        copied.refs.remove(2);
        assert!(copied.is_partial());
        copied.left_out.clear();
        assert!(copied.is_partial());
        copied.images.pop();
        assert!(copied.is_partial());
        copied.images.pop();
        assert!(!copied.is_partial());
        let failed = Copied::failed("/nas".into(), "other".into(), Problem::new("it is gone"));
        assert!(failed.is_partial());
        assert_eq!(text(&failed, "fetched", &Style::default()), "other: nothing was fetched: it is gone\n");
    }
}
