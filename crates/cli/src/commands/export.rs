//! `fermata export`: a part of a checkpoint as a file for other programs.

use super::{Context, Result};
use crate::{
    complete,
    out::{Paint, Style},
    pick,
    progress::Meter,
    text,
};
use clap::Args;
use fermata_api::{
    exports::{self, ExportRequest},
    on_termination,
    values::{Exported, ImageFormat, Problem},
};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// Write a part of a checkpoint into a file: a disk as an image, a memory as a core
///
/// A core is what QEMU's dump-guest-memory writes: `gdb`, `crash`, `drgn` and volatility open it. It has the registers of every processor and, if the guest's
/// kernel has a driver for QEMU's firmware configuration, the kernel's own note (VMCOREINFO). Pages that were free in the guest are zero, as they are after `goto`. An
/// image of a disk stands on nothing else. Needs the store and the golden images, and no running experiment. Zeros are holes; the file is there when it is whole.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata export main --core -o memory.core
  fermata export known-good --qcow2 -o disk.qcow2
  fermata export 1f0c42 --raw --part m1/disk1 -o disk.raw
  fermata export upgrade/main~3 --core --part m2 -o m2.core
  gdb vmlinux memory.core")]
pub struct Export {
    /// The checkpoint: the beginning of its id, a tag or a branch, each with ~N; EXPERIMENT/ may be before it
    #[arg(value_name = "CHECKPOINT", add = complete::checkpoints())]
    checkpoint: String,
    #[command(flatten)]
    format: Format,
    /// A machine, or a disk such as m1/disk0; needed only if several could be meant
    #[arg(long, value_name = "PART", add = complete::parts())]
    part: Option<String>,
    /// The file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace a file that is there
    #[arg(short, long)]
    force: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Format {
    /// The memory of a machine as an ELF core
    #[arg(long)]
    core: bool,
    /// A disk as a qcow2 image
    #[arg(long)]
    qcow2: bool,
    /// A disk byte by byte
    #[arg(long)]
    raw: bool,
}

impl Export {
    pub fn run(self, context: &Context) -> Result {
        let (stored, checkpoint) = pick::stored_at(context, &self.checkpoint)?;
        let format = match self.format {
            Format { core: true, .. } => ImageFormat::Core,
            Format { qcow2: true, .. } => ImageFormat::Qcow2,
            Format { .. } => ImageFormat::Raw,
        };
        let request = ExportRequest { checkpoint, part: self.part, format, file: self.output, force: self.force };
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        on_termination(move || told.store(true, Ordering::Relaxed))
            .map_err(|error| Problem::new(format!("cannot watch for signals: {error}")))?;
        let meter = Meter::new(&context.out, "writing");
        let exported = exports::export(&stored.store, Some(&stored.experiment), &request, &mut |activity| {
            meter.show(&activity);
            !stop.load(Ordering::Relaxed)
        })?;
        drop(meter);
        context.out.answer(&exported, |style| match context.out.quiet {
            true => format!("{}\n", exported.file.display()),
            false => text(&exported, style),
        })?;
        Ok(0)
    }
}

fn text(exported: &Exported, style: &Style) -> String {
    let Exported { part, checkpoint, bytes, bytes_allocated, .. } = exported;
    let mut lines = format!(
        "{} of {} in {}: {}, {} of them data\n",
        style.paint(Paint::Name, &text::harmless(part)),
        style.paint(Paint::Id, &checkpoint.short()),
        text::harmless(&exported.file.display().to_string()),
        text::bytes(*bytes),
        // A file system may count some of its own.
        text::bytes(*bytes_allocated.min(bytes)),
    );
    if let Some(core) = &exported.core {
        lines += &match core.processors {
            0 => "without registers: they are in a form that is not known here\n".to_owned(),
            processors => format!("with the registers of {}\n", text::several(processors.into(), "processor")),
        };
        lines += &match &core.unknown {
            None => "with the kernel's own note (VMCOREINFO)\n".to_owned(),
            Some(why) => format!("without VMCOREINFO: {}\n", text::harmless(why)),
        };
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args::Cli, commands::samples::id};
    use clap::Parser;
    use fermata_api::values::CoreTold;

    #[test]
    fn one_format_and_a_file_must_be_named() {
        let check = |line: &str, right: bool| assert_eq!(Cli::try_parse_from(line.split(' ')).is_ok(), right, "{line}");
        check("fermata export main --core -o a", true);
        check("fermata export main --qcow2 --part m1/disk0 --force -o a", true);
        check("fermata export main -o a", false);
        check("fermata export main --core --raw -o a", false);
        check("fermata export main --raw", false);
    }

    #[test]
    fn what_is_in_the_file_is_told() {
        let mut exported = Exported {
            file: "memory.core".into(),
            checkpoint: id(3),
            part: "m1".into(),
            format: ImageFormat::Core,
            bytes: 1 << 30,
            bytes_allocated: 300 << 20,
            core: Some(CoreTold { processors: 2, vmcoreinfo: true, unknown: None }),
        };
        let expected = "\
m1 of 030303030303 in memory.core: 1.0 GiB, 300.0 MiB of them data
with the registers of 2 processors
with the kernel's own note (VMCOREINFO)
";
        assert_eq!(text(&exported, &Style::default()), expected);
        exported.core = Some(CoreTold { processors: 0, vmcoreinfo: false, unknown: Some("it has said nothing".into()) });
        let said = text(&exported, &Style::default());
        assert!(said.contains("without registers") && said.ends_with("without VMCOREINFO: it has said nothing\n"), "{said}");
        exported.core = None;
        assert_eq!(text(&exported, &Style::default()).lines().count(), 1);
    }
}
