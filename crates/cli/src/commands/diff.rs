//! `fermata diff`: how two checkpoints differ.

use super::{Context, Result};
use crate::{
    complete,
    out::{Paint, Style},
    pick,
    progress::Meter,
    table::{Cell, Set, Table},
    text, wires,
};
use clap::Args;
use fermata_api::{
    local,
    net::Shape,
    types::Composition,
    values::{Difference, FileChange, FileKind, FilesDiffer, LinkDiffers, LinkState, PartDifference},
};

/// Stretches that are shown; `--json` has more.
const STRETCHES: usize = 3;
/// Files that are shown of each file system; `--json` has all.
const FILES_MAX: usize = 40;

/// Tell how two checkpoints differ
///
/// Part by part: how many pages of RAM and blocks of disks differ, and where the longest stretches of them lie (as page numbers; a page is 4 KiB). Then which files
/// differ that are in ext4 on the disks, what the pages of memory are for that differ, as the guest's kernel in the second checkpoint has it, and which links. What a guest has
/// not yet written to its disk is in its memory, and no file. Needs no running experiment, and the golden images unless with --quick.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata diff main~1 main
  fermata diff known-good what-if --json | jq '.disks[].file_systems[].files[].path'
  fermata diff main~1 main --quick")]
pub struct Diff {
    /// The first checkpoint: the beginning of its id, a tag or a branch; each with ~N
    #[arg(value_name = "A", add = complete::checkpoints())]
    a: String,
    /// The second
    #[arg(value_name = "B", add = complete::checkpoints())]
    b: String,
    /// Only count pages, which takes as long as there is difference
    #[arg(long)]
    quick: bool,
}

impl Diff {
    pub fn run(self, context: &Context) -> Result {
        let stored = pick::stored(context)?;
        let meter = Meter::new(&context.out, "comparing");
        let [a, b] = [stored.name(&self.a)?, stored.name(&self.b)?];
        let difference = local::diff(&stored.store, Some(&stored.experiment), [&a, &b], self.quick, &mut |activity| meter.show(&activity))?;
        drop(meter);
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
    if difference.parts.iter().all(|part| part.pages_differing == 0) && difference.links.is_empty() {
        return format!("{heading}no difference\n");
    }
    let memory = difference.memory.iter().map(|(machine, changed)| memory(machine, changed, style));
    let disks = difference.disks.iter().flat_map(|disk| disk.file_systems.iter().map(|files| (disk.name.as_str(), files)));
    let disks = disks.map(|(disk, differ)| files(disk, differ, style));
    heading + &parts(&difference.parts).render(style) + &memory.chain(disks).collect::<String>() + &links(&difference.links, style)
}

fn parts(parts: &[PartDifference]) -> Table {
    let mut table = Table::new(&[
        ("PART", Set::Left),
        ("OF", Set::Left),
        ("DIFFERENT", Set::Right),
        ("SHARE", Set::Right),
        ("ONLY A", Set::Right),
        ("ONLY B", Set::Right),
        ("LONGEST STRETCHES", Set::Elastic),
    ]);
    for part in parts {
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
    table
}

/// What the pages are for that differ, the most first.
fn memory(machine: &str, changed: &Composition, style: &Style) -> String {
    let heading = format!("\n{}: ", style.paint(Paint::Strong, &format!("memory of {}", text::harmless(machine))));
    if let Some(why) = &changed.unknown {
        return format!("{heading}what it is for is not known: {}\n", text::harmless(why));
    }
    let mut uses: Vec<_> = changed.pages.iter().map(|(what, pages)| (*pages, what.name().replace('_', " "))).collect();
    uses.sort_by(|a, b| b.cmp(a));
    let uses: Vec<_> = uses.into_iter().map(|(pages, what)| format!("{what} {}", text::count(pages))).collect();
    format!("{heading}{}\n", uses.join(", "))
}

/// The files of one file system.
fn files(disk: &str, differ: &FilesDiffer, style: &Style) -> String {
    let place = if differ.start == 0 { String::new() } else { format!(" at byte {}", text::count(differ.start)) };
    let count = |change| differ.files.iter().filter(|file| file.change == change).count() as u64;
    let counts = [(FileChange::Changed, "changed"), (FileChange::Added, "added"), (FileChange::Removed, "removed")];
    let counts: Vec<_> = counts.into_iter().map(|(change, word)| format!("{} {word}", text::count(count(change)))).collect();
    let heading = style.paint(Paint::Strong, &format!("files of {}{place}", text::harmless(disk)));
    let mut lines = format!("\n{heading}: {}\n", counts.join(", "));
    for file in differ.files.iter().take(FILES_MAX) {
        let (sign, paint) = match file.change {
            FileChange::Added => ('+', Paint::Good),
            FileChange::Removed => ('-', Paint::Bad),
            FileChange::Changed => ('~', Paint::Warning),
        };
        let size = match (file.kind, file.size_a, file.size_b) {
            (FileKind::File, Some(a), Some(b)) if a != b => format!("  {} -> {}", text::bytes(a), text::bytes(b)),
            (FileKind::File, Some(size), _) | (FileKind::File, None, Some(size)) => format!("  {}", text::bytes(size)),
            (FileKind::Directory, ..) => "/".to_owned(),
            _ => String::new(),
        };
        lines += &format!("{} {}{size}\n", style.paint(paint, &sign.to_string()), text::harmless(&file.path));
    }
    if differ.files.len() > FILES_MAX {
        lines += &format!("and {} more; --json has all\n", text::count((differ.files.len() - FILES_MAX) as u64));
    }
    match (&differ.unclear, differ.unread) {
        (Some(why), 0) => lines = format!("\n{heading}: not known: {}\n", text::harmless(why)),
        (Some(why), unread) => lines += &format!("{} could not be read: {}\n", text::several(unread, "item"), text::harmless(why)),
        (None, _) => {}
    }
    lines
}

fn links(links: &[LinkDiffers], style: &Style) -> String {
    if links.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[("LINK", Set::Left), ("", Set::Left), ("A", Set::Left), ("B", Set::Left)]);
    let cell = |state: &Option<LinkState>, shape: fn(&LinkState) -> &Shape| match state {
        None => Cell::new(Paint::Dim, "not there"),
        Some(LinkState { up: false, .. }) => wires::broken(),
        Some(state) => wires::words(shape(state)),
    };
    for link in links {
        let row = |name: String, way: &str, shape: fn(&LinkState) -> &Shape| {
            vec![name.into(), way.into(), cell(&link.a, shape), cell(&link.b, shape)]
        };
        table.row(row(text::harmless(&link.interface), "sends", |state| &state.sent));
        table.row(row(String::new(), "receives", |state| &state.received));
    }
    format!("\n{}", table.render(style))
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
    use fermata_api::{
        types::Use,
        values::{DiskDifference, FileDiffers},
    };

    fn nothing() -> Difference {
        Difference { a: id(2), b: id(5), time_virtual_ns: 0, parts: vec![], disks: vec![], memory: [].into(), links: vec![] }
    }

    #[test]
    fn what_is_in_memory_and_on_disks() {
        let file = |change, path: &str, size_a, size_b| FileDiffers { path: path.into(), change, kind: FileKind::File, size_a, size_b };
        let mut files = vec![
            file(FileChange::Changed, "/etc/passwd", Some(1024), Some(2048)),
            file(FileChange::Removed, "/etc/shadow", Some(9), None),
            FileDiffers { kind: FileKind::Directory, ..file(FileChange::Added, "/var", None, Some(4096)) },
        ];
        let differ = |files: &[FileDiffers]| FilesDiffer { start: 1 << 20, files: files.to_vec(), unread: 0, unclear: None };
        let expected = "\n\
files of m1/disk0 at byte 1,048,576: 1 changed, 1 added, 1 removed
~ /etc/passwd  1.0 KiB -> 2.0 KiB
- /etc/shadow  9 B
+ /var/
";
        assert_eq!(super::files("m1/disk0", &differ(&files), &Style::default()), expected);
        files = vec![files[0].clone(); FILES_MAX + 2];
        let said =
            super::files("m1/disk0", &FilesDiffer { unread: 1, unclear: Some("/x: damaged".into()), ..differ(&files) }, &Style::default());
        assert!(said.contains("\nand 2 more") && said.ends_with("1 item could not be read: /x: damaged\n"), "{said}");
        let unclear = FilesDiffer { unclear: Some("it has no journal".into()), ..FilesDiffer::default() };
        assert_eq!(super::files("m1/disk0", &unclear, &Style::default()), "\nfiles of m1/disk0: not known: it has no journal\n");
        let changed = Composition { pages: [(Use::Slab, 7), (Use::CacheClean, 1234)].into(), unknown: None };
        assert_eq!(memory("m1", &changed, &Style::default()), "\nmemory of m1: cache clean 1,234, slab 7\n");
        let mut difference = nothing();
        difference.parts = vec![PartDifference {
            name: "m1".into(),
            of: "ram".into(),
            pages_differing: 1,
            pages: 2,
            only_a: 0,
            only_b: 0,
            stretches: vec![],
        }];
        difference.memory = [("m1".to_owned(), Composition::unknown("it says nothing"))].into();
        difference.disks = vec![DiskDifference { name: "m1/disk0".into(), file_systems: vec![unclear] }];
        let said = text(&difference, &Style::default());
        assert!(said.contains("not known: it says nothing\n\nfiles of m1/disk0: "), "{said}");
    }

    #[test]
    fn links_are_told_at_their_ends() {
        let state = |up, delay_ns| Some(LinkState { up, sent: Shape { delay_ns, ..Shape::default() }, received: Shape::default() });
        let links = vec![
            LinkDiffers { interface: "a:eth1".into(), a: state(true, 5_000_000), b: state(false, 0) },
            LinkDiffers { interface: "b:eth1".into(), a: None, b: state(true, 7_000_000) },
        ];
        let said = text(&Difference { links, ..nothing() }, &Style::default());
        let lines: Vec<_> = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert!(lines.iter().any(|line| line == "a:eth1 sends 5ms down"), "{said}");
        assert!(lines.iter().any(|line| line == "b:eth1 sends not there 7ms"), "{said}");
    }

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
        let mut difference = Difference { a: id(2), b: id(5), time_virtual_ns: 6_000_000_000, parts: vec![ram, devices], ..nothing() };
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
