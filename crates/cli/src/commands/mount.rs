//! `fermata mount`: a checkpoint as a directory of files.

use super::{Context, Result};
use crate::{
    complete,
    out::{Failure, Paint, Style},
    pick,
    progress::Meter,
    text,
};
use clap::{Args, ValueHint};
use fermata_api::{
    mounting::{self, MountRequest},
    values::Mounted,
};
use std::path::PathBuf;

/// Show a checkpoint in a directory: disks, memories and the record as files
///
/// MACHINE/disk0.raw is a disk, MACHINE/memory.core its memory as `fermata export --core` writes it, record.json what is kept of the checkpoint. Nothing is copied: a
/// page is read from the store, and checked, when somebody reads it; a damaged one is an I/O error there, and `fermata verify` tells what is damaged. Nobody can
/// write. While it is mounted, `fermata rm` and `fermata gc` take nothing of it away. Other users see nothing of it.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  mkdir then && fermata mount known-good then
  debugfs -R 'cat /etc/passwd' then/m1/disk0.raw
  gdb vmlinux then/m1/memory.core
  fermata umount then

It goes on in the background until `fermata umount DIR`, `umount DIR` or `fusermount3 -u DIR`, and as long as a container that was started meanwhile has a \
copy of the mount. FUSE is needed: /dev/fuse, and fusermount3 (Debian: fuse3) for who is not root.")]
pub struct Mount {
    /// The checkpoint: the beginning of its id, a tag or a branch, each with ~N; EXPERIMENT/ may be before it
    #[arg(value_name = "CHECKPOINT", add = complete::checkpoints())]
    checkpoint: String,
    /// An empty directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    directory: PathBuf,
    /// Stay in the foreground until it is unmounted; Ctrl-C unmounts it
    #[arg(long)]
    foreground: bool,
    /// Leave the terminal, and say in a line when it is ready: for whoever starts it in the background
    #[arg(long, hide = true, requires = "foreground")]
    detached: bool,
}

impl Mount {
    pub fn run(self, context: &Context) -> Result {
        let (stored, checkpoint) = pick::stored_at(context, &self.checkpoint)?;
        let request = MountRequest { checkpoint, directory: self.directory };
        let experiment = Some(stored.experiment.as_str());
        let show = |mounted: &Mounted| {
            context.out.answer(mounted, |style| match context.out.quiet {
                true => format!("{}\n", mounted.directory.display()),
                false => text(mounted, style),
            })
        };
        if self.detached {
            mounting::mount_detached(&stored.store, experiment, &request)?;
        } else if self.foreground {
            let mut shown: std::result::Result<(), Failure> = Ok(());
            mounting::mount_in_foreground(&stored.store, experiment, &request, &mut |mounted| shown = show(mounted))?;
            shown?;
        } else {
            let meter = Meter::new(&context.out, "opening the checkpoint");
            let mounted = mounting::mount(&stored.store, experiment, &request, &mut |activity| meter.show(&activity))?;
            drop(meter);
            show(&mounted)?;
        }
        Ok(0)
    }
}

fn text(mounted: &Mounted, style: &Style) -> String {
    let directory = text::harmless(&mounted.directory.display().to_string());
    let mut lines = format!(
        "{} of {} in {directory}; `fermata umount` takes it away\n",
        style.paint(Paint::Id, &mounted.checkpoint.short()),
        style.paint(Paint::Name, &text::harmless(&mounted.experiment)),
    );
    for file in &mounted.files {
        lines += &format!("  {}\n", text::harmless(&file.display().to_string()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args::Cli, commands::samples::id};
    use clap::Parser;

    #[test]
    fn files_are_listed() {
        let mounted = Mounted {
            directory: "/then".into(),
            checkpoint: id(3),
            experiment: "tryout".into(),
            files: vec!["record.json".into(), "m1/memory.core".into()],
            pid: 7,
        };
        let expected = "\
030303030303 of tryout in /then; `fermata umount` takes it away
  record.json
  m1/memory.core
";
        assert_eq!(text(&mounted, &Style::default()), expected);
    }

    #[test]
    fn nobody_leaves_the_terminal_by_accident() {
        let check = |line: &str, right: bool| assert_eq!(Cli::try_parse_from(line.split(' ')).is_ok(), right, "{line}");
        check("fermata mount main then", true);
        check("fermata mount main", false);
        check("fermata mount main then --foreground --detached", true);
        check("fermata mount main then --detached", false);
    }
}
