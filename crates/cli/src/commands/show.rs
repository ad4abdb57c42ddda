//! `fermata show`: everything about a checkpoint.

use super::{Context, Result, log::names};
use crate::{
    complete,
    out::{Paint, Style},
    pick,
    table::{Cell, Set, Table},
    text, wires,
};
use clap::Args;
use fermata_api::{
    local,
    types::{Composition, PAGE_SIZE, PageCounts, Root, Use},
    values::{Checkpoint, Events, FreeSpace, LinkEnd, Part, SavedBytes},
};
use std::collections::BTreeMap;

/// Length of a bar where there is no terminal to fit.
const BAR: usize = 60;
/// Columns that are kept for the words behind a bar.
const BEHIND: usize = 32;
const BAR_LIMITS: (usize, usize) = (20, 120);

/// Tell everything about a checkpoint
///
/// What it consists of, what connects its machines and what went over it, how its pages fell through the sieve, which of them were stored before and how long ago, what the guest's
/// memory was used for, and what the pause and the work behind the guest were spent on. Needs no running experiment.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata show
  fermata show what-if
  fermata show 1f0c42~3
  fermata show known-good --json")]
pub struct Show {
    /// The checkpoint: the beginning of its id, a tag, or a branch for its newest; each with ~N for the N-th before it, ~N alone counting from where the run is
    /// [default: the newest of the run]
    #[arg(value_name = "ID", add = complete::checkpoints())]
    checkpoint: Option<String>,
}

impl Show {
    pub fn run(self, context: &Context) -> Result {
        let stored = pick::stored(context)?;
        let named = self.checkpoint.map(|text| stored.name(&text)).transpose()?.or(stored.head.map(|head| head.to_string()));
        let checkpoint = match named {
            Some(name) => local::show(&stored.store, Some(&stored.experiment), &name),
            None => local::newest(&stored.store, &stored.experiment),
        }?;
        context.out.answer(&checkpoint, |style| if context.out.quiet { checkpoint.id.to_string() } else { text(&checkpoint, style) })?;
        Ok(0)
    }
}

fn text(checkpoint: &Checkpoint, style: &Style) -> String {
    let mut sections = vec![facts(checkpoint, style)];
    if !checkpoint.steps_ms.is_empty() {
        sections.push(format!("{}{}", title("Pause", style), steps(&checkpoint.steps_ms, style)));
    }
    if !checkpoint.background_ms.is_empty() {
        sections.push(format!("{}{}", title("Behind the guest", style), steps(&checkpoint.background_ms, style)));
    }
    sections.push(format!("{}{}", title("Pages", style), pages(&checkpoint.pages, &checkpoint.sieve_ms, style)));
    if checkpoint.pages_by_part.len() > 1 {
        sections.push(format!("{}{}", title("Pages by part", style), pages_by_part(&checkpoint.pages_by_part, style)));
    }
    sections.extend(duplicates_and_saved(&checkpoint.pages, &checkpoint.saved_bytes, style));
    for (machine, composition) in &checkpoint.composition {
        let of = format!("Memory of {}", text::harmless(machine));
        sections.push(format!("{}{}", title(&of, style), memory(composition, style)));
    }
    if let Some(network) = &checkpoint.network {
        sections.push(format!("{}{}", title("Network", style), wires::draw(network, &checkpoint.down, style)));
    }
    if !checkpoint.links.is_empty() {
        sections.push(format!("{}{}", title("Traffic", style), traffic(&checkpoint.links, style)));
    }
    sections.push(format!("{}{}", title("Parts", style), parts(checkpoint, style)));
    sections.join("\n")
}

/// What went over the links since the experiment began, one line for what each interface sent.
fn traffic(links: &[LinkEnd], style: &Style) -> String {
    let columns = ["  INTERFACE", "TO", "FRAMES", "BYTES", "DROPPED", "ON THE WAY"];
    let mut table =
        Table::new(&columns.map(|column| (column, if column == columns[0] || column == "TO" { Set::Left } else { Set::Right })));
    for LinkEnd { interface, to, sent, .. } in links {
        table.row(vec![
            format!("  {}", text::harmless(interface)).into(),
            text::harmless(to).into(),
            text::count(sent.counters.arrived.frames).into(),
            text::bytes(sent.counters.arrived.bytes).into(),
            text::count(sent.counters.dropped.total()).into(),
            text::count(sent.in_flight).into(),
        ]);
    }
    table.render(style)
}

/// How pages fell through the sieve, and what that saved.
pub fn sieve(counts: &PageCounts, saved_bytes: &SavedBytes, style: &Style) -> String {
    let mut sections = vec![format!("{}{}", title("Pages", style), pages(counts, &BTreeMap::new(), style))];
    sections.extend(duplicates_and_saved(counts, saved_bytes, style));
    sections.join("\n")
}

fn duplicates_and_saved(pages: &PageCounts, saved_bytes: &SavedBytes, style: &Style) -> Vec<String> {
    let mut sections = Vec::new();
    // Older checkpoints did not tell.
    if pages.within > 0 || !pages.distances.is_empty() {
        sections.push(format!("{}{}", title("Duplicates", style), duplicates(pages, style)));
    }
    if *saved_bytes != SavedBytes::default() {
        sections.push(format!("{}{}", title("Not stored", style), saved(saved_bytes, style)));
    }
    sections
}

fn title(title: &str, style: &Style) -> String {
    format!("{}\n", style.paint(Paint::Strong, title))
}

fn facts(checkpoint: &Checkpoint, style: &Style) -> String {
    let mut table = Table::bare(&[Set::Left, Set::Left]);
    let mut fact = |name: &str, value: Cell| table.row(vec![Cell::new(Paint::Dim, name), value]);
    fact("checkpoint", Cell::new(Paint::Id, checkpoint.id.to_string()));
    if let Some(parent) = checkpoint.parent {
        fact("parent", Cell::new(Paint::Id, parent.to_string()));
    }
    fact("experiment", text::harmless(&checkpoint.experiment).into());
    fact("branch", text::harmless(&checkpoint.branch).into());
    let names = names(checkpoint);
    if !names.is_empty() {
        fact("at", Cell::new(Paint::Name, names));
    }
    if let Some(message) = &checkpoint.message {
        fact("message", text::harmless(message).into());
    }
    fact("created", text::harmless(&checkpoint.created).into());
    fact("virtual time", text::instant(checkpoint.time_virtual_ns).into());
    if let Some(Events { happened, all, waiting }) = &checkpoint.events {
        let waiting =
            if waiting.is_empty() { String::new() } else { format!("; waiting for the guest: {}", text::harmless(&waiting.join(", "))) };
        fact("events", format!("{happened} of {all} happened{waiting}").into());
    }
    if let Some(perturbation) = &checkpoint.perturbation {
        fact("perturbed", perturbation.to_string().into());
    }
    fact("pause", text::ms(checkpoint.pause_ms).into());
    if let Some(skew) = &checkpoint.skew {
        let [stop, resume, time] = [skew.stop_ms, skew.resume_ms, skew.time_ms].map(text::ms);
        fact("skew", format!("machines stopped within {stop}, {time} apart in virtual time, and went on within {resume}").into());
    }
    fact("stored", format!("{}, in {} behind the guest", text::bytes(checkpoint.stored_bytes), text::ms(checkpoint.save_ms)).into());
    table.render(style)
}

fn steps(steps: &BTreeMap<String, f64>, style: &Style) -> String {
    let mut table = Table::bare(&[Set::Left, Set::Right, Set::Left]);
    let longest = steps.values().copied().fold(f64::MIN_POSITIVE, f64::max);
    for (step, ms) in steps {
        table.row(vec![format!("  {}", text::harmless(step)).into(), text::ms(*ms).into(), bar(ms / longest)]);
    }
    table.render(style)
}

/// A bar of half the usual length for a share of the largest.
fn bar(share: f64) -> Cell {
    Cell::new(Paint::Name, "█".repeat((share * BAR as f64 / 2.0).round().clamp(0.0, BAR as f64) as usize))
}

fn pages_by_part(parts: &BTreeMap<String, PageCounts>, style: &Style) -> String {
    let columns = ["  PART", "UNCHANGED", "FREE", "ZERO", "MAPPED", "ON DISK", "KNOWN", "NEW"];
    let mut table = Table::new(&columns.map(|column| (column, if column == columns[0] { Set::Left } else { Set::Right })));
    for (part, PageCounts { unchanged, free, zero, mapped, on_disk, known, new, .. }) in parts {
        let counts = [unchanged, free, zero, mapped, on_disk, known, new].map(|count| text::count(*count).into());
        table.row(std::iter::once(format!("  {}", text::harmless(part)).into()).chain(counts).collect());
    }
    table.render(style)
}

/// Pages known by hash: where their twins are, and how many checkpoints ago those were stored.
fn duplicates(pages: &PageCounts, style: &Style) -> String {
    let mut table = Table::bare(&[Set::Left, Set::Right, Set::Right, Set::Left]);
    let classes: Vec<_> =
        std::iter::once((None, pages.within)).chain(pages.distances.iter().map(|(least, count)| (Some(least), count))).collect();
    let largest = classes.iter().map(|class| class.1).max().unwrap_or(0).max(1);
    for (least, count) in classes {
        let name = least.map_or_else(|| "in this checkpoint".to_owned(), checkpoints_ago);
        table.row(vec![
            format!("  {name}").into(),
            text::count(count).into(),
            text::percent(count, pages.known).into(),
            bar(count as f64 / largest as f64),
        ]);
    }
    table.render(style)
}

/// A class of distances: from this one up to, but not with, twice as far.
fn checkpoints_ago(least: u32) -> String {
    format!("{} checkpoint{} ago", text::power_of_two(least), if least == 1 { "" } else { "s" })
}

/// Bytes of written pages by the sieve that kept them out of the store.
fn saved(saved: &SavedBytes, style: &Style) -> String {
    let SavedBytes { zero, free, mapped, on_disk, within, across, compression } = *saved;
    let saved = [
        ("zero", zero),
        ("free", free),
        ("mapped", mapped),
        ("on disk", on_disk),
        ("twice in a checkpoint", within),
        ("in earlier ones", across),
        ("compressed away", compression),
    ];
    let mut table = Table::bare(&[Set::Left, Set::Right, Set::Left]);
    let largest = saved.iter().map(|saved| saved.1).max().unwrap_or(0).max(1);
    for (name, bytes) in saved {
        table.row(vec![format!("  {name}").into(), text::bytes(bytes).into(), bar(bytes as f64 / largest as f64)]);
    }
    table.render(style)
}

/// The sieve: what became of every page, and what telling it took where that is known. The bar is of those that were written.
fn pages(pages: &PageCounts, took_ms: &BTreeMap<String, f64>, style: &Style) -> String {
    let classes = [
        ("░", Paint::Dim, "free", "free in the guest", pages.free),
        ("▒", Paint::Dim, "zero", "zero throughout", pages.zero),
        ("▞", Paint::Good, "mapped", "equal to a block of a disk, known from its requests", pages.mapped),
        ("▓", Paint::Good, "on disk", "equal to a block of a golden image", pages.on_disk),
        ("▚", Paint::Name, "known", "in the store already", pages.known),
        ("█", Paint::Warning, "new", "written to the store", pages.new),
    ];
    let written = pages.written();
    let lengths = shares(&classes.map(|class| class.4), length(style));
    let bar: String = classes.iter().zip(lengths).map(|(class, length)| style.paint(class.1, &class.0.repeat(length))).collect();
    let mut table = Table::bare(&[Set::Left, Set::Left, Set::Right, Set::Right, Set::Right, Set::Right, Set::Elastic]);
    let row = |glyph: Cell, name: &str, count: u64, what: &str| {
        let took = took_ms.get(&name.replace(' ', "_")).map_or_else(String::new, |ms| text::ms(*ms));
        let numbers = [text::count(count), text::percent(count, pages.total()), text::bytes(count * PAGE_SIZE as u64), took];
        let numbers = numbers.map(Cell::from);
        std::iter::once(glyph).chain([name.into()]).chain(numbers).chain([Cell::new(Paint::Dim, what)]).collect()
    };
    table.row(row("  ".into(), "unchanged", pages.unchanged, "not written since the parent"));
    for (glyph, paint, name, what, count) in classes {
        table.row(row(Cell::new(paint, format!("  {glyph}")), name, count, what));
    }
    let bar = if written == 0 { String::new() } else { format!("  {bar}  of {} written\n", text::several(written, "page")) };
    format!("{bar}{}", table.render(style))
}

/// How long a bar is: as long as the terminal is wide, but for the words behind it.
fn length(style: &Style) -> usize {
    style.width.map_or(BAR, |width| width.saturating_sub(BEHIND).clamp(BAR_LIMITS.0, BAR_LIMITS.1))
}

/// What the guest's memory was used for.
fn memory(composition: &Composition, style: &Style) -> String {
    if let Some(why) = &composition.unknown {
        return format!("  what its pages are for cannot be told: {}\n", text::harmless(why));
    }
    let uses = [
        ("░", Paint::Dim, Use::Free, "free", "nobody's"),
        ("▒", Paint::Good, Use::CacheClean, "cache, clean", "of files, as on the disk"),
        ("▓", Paint::Warning, Use::CacheDirty, "cache, dirty", "of files, not yet written to the disk"),
        ("█", Paint::Name, Use::Anonymous, "anonymous", "of programs, and files on a tmpfs"),
        ("▚", Paint::Id, Use::Slab, "slab", "small objects of the kernel"),
        ("▞", Paint::Id, Use::PageTables, "page tables", "of programs"),
        ("▙", Paint::Strong, Use::Kernel, "kernel", "its own, and what it does not tell apart"),
        ("·", Paint::Dim, Use::Absent, "absent", "not the kernel's: the firmware's, or set aside at boot"),
    ];
    let lengths = shares(&uses.map(|what| composition.of(what.2)), length(style));
    let bar: String = uses.iter().zip(lengths).map(|(what, length)| style.paint(what.1, &what.0.repeat(length))).collect();
    let mut table = Table::bare(&[Set::Left, Set::Left, Set::Right, Set::Right, Set::Elastic]);
    for (glyph, paint, what, name, meaning) in uses {
        let count = composition.of(what);
        let share = text::percent(count, composition.total());
        let glyph = Cell::new(paint, format!("  {glyph}"));
        table.row(vec![glyph, name.into(), text::count(count).into(), share.into(), Cell::new(Paint::Dim, meaning)]);
    }
    format!("  {bar}  of {}\n{}", text::several(composition.total(), "page"), table.render(style))
}

/// Divides `length` in proportion to the counts. What is there at all gets at least one.
fn shares<const N: usize>(counts: &[u64; N], length: usize) -> [usize; N] {
    let total: u64 = counts.iter().sum();
    let mut shares = counts.map(|count| match count {
        0 => 0,
        count => ((u128::from(count) * length as u128 / u128::from(total)) as usize).max(1),
    });
    // What rounding left over, or took too much, belongs to the largest.
    if let Some(largest) = (0..N).max_by_key(|class| counts[*class]).filter(|_| total > 0) {
        let others: usize = shares.iter().sum::<usize>() - shares[largest];
        shares[largest] = length.saturating_sub(others);
    }
    shares
}

fn parts(checkpoint: &Checkpoint, style: &Style) -> String {
    let mut table = Table::bare(&[Set::Left, Set::Left, Set::Left, Set::Right, Set::Left]);
    for Part { name, kind, tables, blobs, free_space } in &checkpoint.parts {
        let kind = format!("{kind:?}").to_lowercase();
        for (of, root) in tables {
            let Root { pages, node } = root;
            let node = node.map_or_else(|| "empty".to_owned(), |node| node.short());
            table.row(vec![
                format!("  {}", text::harmless(name)).into(),
                kind.clone().into(),
                text::harmless(of).into(),
                text::several(*pages, "page").into(),
                Cell::new(Paint::Dim, node),
            ]);
        }
        for (of, blob) in blobs {
            let cells = vec![format!("  {}", text::harmless(name)).into(), kind.clone().into(), text::harmless(of).into(), "".into()];
            table.row(cells.into_iter().chain([Cell::new(Paint::Dim, blob.short())]).collect());
        }
        for FreeSpace { start, blocks, unclear } in free_space {
            let known = match unclear {
                Some(why) => format!("ext4 at byte {start}: all is kept, {}", text::harmless(why)),
                None => format!("ext4 at byte {start}: known to be free"),
            };
            let name = format!("  {}", text::harmless(name));
            table.row(vec![
                name.into(),
                kind.clone().into(),
                "free".into(),
                text::several(*blocks, "page").into(),
                Cell::new(Paint::Dim, known),
            ]);
        }
    }
    for image in &checkpoint.images {
        table.row(vec!["  golden image".into(), "".into(), "".into(), "".into(), Cell::new(Paint::Dim, image.short())]);
    }
    table.render(style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::samples::history;
    use proptest::prelude::*;

    #[test]
    fn free_blocks_are_told_with_the_reason_where_there_are_none() {
        let mut checkpoint = history()[1].clone();
        checkpoint.parts[1].free_space = vec![
            FreeSpace { start: 0, blocks: 25_600, unclear: None },
            FreeSpace { start: 1 << 20, blocks: 0, unclear: Some("it has no journal".into()) },
        ];
        let shown = parts(&checkpoint, &Style::default());
        for words in
            ["free        25,600 pages  ext4 at byte 0: known to be free", "0 pages  ext4 at byte 1048576: all is kept, it has no journal"]
        {
            assert!(shown.contains(words), "{shown}");
        }
    }

    #[test]
    fn events_are_told_and_what_waits_for_a_guest() {
        let mut checkpoint = history()[1].clone();
        for (waiting, expected) in [
            (vec![], "1 of 3 happened\n"),
            (vec!["event 2", "address of a:eth1"], "1 of 3 happened; waiting for the guest: event 2, address of a:eth1\n"),
        ] {
            checkpoint.events = Some(Events { happened: 1, all: 3, waiting: waiting.into_iter().map(str::to_owned).collect() });
            let shown = facts(&checkpoint, &Style::default());
            assert!(shown.contains(&format!("events        {expected}")), "{shown}");
        }
    }

    #[test]
    fn what_was_measured_is_told_in_sections_of_its_own() {
        let mut checkpoint = history()[1].clone();
        checkpoint.background_ms = BTreeMap::from([("m1 prepare".to_owned(), 30.0), ("m1 save".to_owned(), 90.0)]);
        checkpoint.pages.within = 100;
        (0..300).for_each(|_| checkpoint.pages.distances.add(1));
        (0..100).for_each(|_| checkpoint.pages.distances.add(7));
        checkpoint.pages_by_part = BTreeMap::from([("m1".to_owned(), checkpoint.pages), ("m1/disk0".to_owned(), PageCounts::default())]);
        checkpoint.saved_bytes = SavedBytes { zero: 1 << 20, across: 2 << 20, ..SavedBytes::default() };
        let shown = text(&checkpoint, &Style::default());
        let expected = "\
Behind the guest
  m1 prepare  30.0 ms  ██████████
  m1 save     90.0 ms  ██████████████████████████████
";
        assert!(shown.contains(expected), "{shown}");
        let expected = "\
Pages by part
  PART      UNCHANGED  FREE  ZERO  MAPPED  ON DISK  KNOWN    NEW
  m1          258,733     0   411       0    1,000    500  1,500
  m1/disk0          0     0     0       0        0      0      0

Duplicates
  in this checkpoint      100  20.0 %  ██████████
  1 checkpoint ago        300  60.0 %  ██████████████████████████████
  4 to 7 checkpoints ago  100  20.0 %  ██████████

Not stored
  zero                   1.0 MiB  ███████████████
  free                       0 B
  mapped                     0 B
  on disk                    0 B
  twice in a checkpoint      0 B
  in earlier ones        2.0 MiB  ██████████████████████████████
  compressed away            0 B
";
        assert!(shown.contains(expected), "{shown}");
    }

    #[test]
    fn what_memory_was_used_for_is_told_or_why_not() {
        let mut checkpoint = history()[1].clone();
        let pages = Use::ALL.into_iter().zip([600, 200, 0, 100, 40, 10, 48, 2]).collect();
        let told = Composition { pages, unknown: None };
        checkpoint.composition = BTreeMap::from([("m1".to_owned(), told), ("m2".to_owned(), Composition::unknown("no note"))]);
        let shown = text(&checkpoint, &Style::default());
        let expected = "\
Memory of m1
  ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░▒▒▒▒▒▒▒▒▒▒▒▒██████▚▚▞▙▙·  of 1,000 pages
  ░  free          600  60.0 %  nobody's
  ▒  cache, clean  200  20.0 %  of files, as on the disk
  ▓  cache, dirty    0   0.0 %  of files, not yet written to the disk
  █  anonymous     100  10.0 %  of programs, and files on a tmpfs
  ▚  slab           40   4.0 %  small objects of the kernel
  ▞  page tables    10   1.0 %  of programs
  ▙  kernel         48   4.8 %  its own, and what it does not tell apart
  ·  absent          2   0.2 %  not the kernel's: the firmware's, or set aside at boot

Memory of m2
  what its pages are for cannot be told: no note
";
        assert!(shown.contains(expected), "{shown}");
    }

    #[test]
    fn the_network_is_drawn() {
        let mut checkpoint = history()[1].clone();
        checkpoint.network = Some(crate::commands::samples::network());
        checkpoint.down = [1, 2].map(fermata_api::net::InterfaceId).to_vec();
        let shown = text(&checkpoint, &Style::default());
        let expected = "
Network
  m1:eth1   ◄───►  m2:eth1  down
  backbone
    ├       ◄───►  m1:eth2  down
    └       ◄────  m2:eth2  ideal
            ────►           1% lost

Parts
";
        assert!(shown.contains(expected), "{shown}");
    }

    #[test]
    fn everything_is_told() {
        let expected = "\
checkpoint    0202020202020202020202020202020202020202020202020202020202020202
parent        0101010101010101010101010101010101010101010101010101010101010101
experiment    tryout
branch        main
at            #known-good
message       before the upgrade and more
created       2026-11-21T08:43:00.000Z
virtual time  4.000s
pause         4.21 ms
stored        12.3 MiB, in 120 ms behind the guest

Pause
  m1 devices  2.00 ms  ██████████████████████████████
  m1 stop     0.40 ms  ██████

Pages
  ▒▒▒▒▒▒▒▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▚▚▚▚▚▚▚▚████████████████████████████  of 3,411 pages written
     unchanged  258,733  98.7 %  1010.7 MiB           not written since the parent
  ░  free             0   0.0 %         0 B           free in the guest
  ▒  zero           411   0.2 %     1.6 MiB  0.20 ms  zero throughout
  ▞  mapped           0   0.0 %         0 B           equal to a block of a disk, known from its requests
  ▓  on disk      1,000   0.4 %     3.9 MiB           equal to a block of a golden image
  ▚  known          500   0.2 %     2.0 MiB           in the store already
  █  new          1,500   0.6 %     5.9 MiB  31.0 ms  written to the store

Parts
  m1        machine  ram        262,144 pages  090909090909
  m1        machine  devices                   070707070707
  m1/disk0  disk     blocks   1,048,576 pages  empty
";
        assert_eq!(text(&history()[1], &Style::default()), expected);
    }

    #[test]
    fn a_bar_fits_the_terminal() {
        let width = |columns| length(&Style { color: false, width: columns });
        assert_eq!([None, Some(10), Some(80), Some(500)].map(width), [60, 20, 48, 120]);
        let shown = pages(&history()[1].pages, &history()[1].sieve_ms, &Style { color: false, width: Some(80) });
        assert!(shown.lines().all(|line| text::width(line) <= 80), "{shown}");
    }

    proptest! {
        #[test]
        fn a_bar_is_as_long_as_it_should_be(counts: [u32; 5]) {
            let counts = counts.map(u64::from);
            let shares = shares(&counts, BAR);
            let total: u64 = counts.iter().sum();
            prop_assert_eq!(shares.iter().sum::<usize>(), if total == 0 { 0 } else { BAR });
            prop_assert!(counts.iter().zip(shares).all(|(count, share)| (*count == 0) == (share == 0)));
        }
    }
}
