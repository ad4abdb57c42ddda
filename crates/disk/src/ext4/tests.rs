//! Real file systems, made by e2fsprogs, and what e2fsprogs says of them.

use super::{Layout, Source, Unclear, free, journal::Recovered, partitions};
use crate::{Error, Result, freed::Watch};
use fermata_types::PageSet;
use proptest::prelude::*;
use std::{fs, path::Path, process::Command};

struct Image(Vec<u8>);

impl Source for Image {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let (start, len) = (at as usize, into.len());
        let bytes = start.checked_add(len).and_then(|end| self.0.get(start..end));
        into.copy_from_slice(bytes.ok_or(Error::OutOfRange { offset: at, len: len as u64, size: self.size() })?);
        Ok(())
    }
}

fn run(program: &str, arguments: &[&str], path: &Path) -> String {
    let done = Command::new(program).args(arguments).arg(path).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    // Of e2fsck, 1 is success too: something was mended.
    let well = done.status.code().is_some_and(|code| code == 0 || (program == "e2fsck" && code == 1));
    assert!(well, "{program} {arguments:?}: {}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Makes a file system with some files in it, of which some are gone again.
fn make(path: &Path, mib: u64, options: &[&str]) {
    let from = tempfile::tempdir().unwrap();
    for nth in 0..30usize {
        fs::write(from.path().join(format!("f{nth}")), vec![nth as u8 + 1; nth * 7919]).unwrap();
    }
    fs::File::create(path).unwrap().set_len(mib << 20).unwrap();
    let root = from.path().to_str().unwrap();
    run("mke2fs", &[&["-q", "-F", "-t", "ext4", "-d", root], options].concat(), path);
    let script = from.path().join("script");
    fs::write(&script, (0..30).step_by(3).map(|nth| format!("rm f{nth}\n")).collect::<String>()).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap()], path);
}

fn free_blocks(image: &Image, start: u64) -> super::Known<PageSet> {
    let layout = Layout::read(image, start)?.ok_or_else(|| Unclear("no ext4".into()))?;
    let recovered = Recovered::read(image, &layout)?;
    let mut blocks = PageSet::new();
    free::for_each(&recovered, &mut |bytes| {
        let size = u64::from(layout.block_size);
        blocks.insert_range(((bytes.start - start) / size) as u32..((bytes.end - start) / size) as u32);
    })?;
    Ok(blocks)
}

/// The same by `dumpe2fs`: groups of which nothing was ever used left out.
fn told(path: &Path) -> PageSet {
    let mut blocks = PageSet::new();
    let mut passed_over = false;
    let said = run("dumpe2fs", &[], path);
    // Of clusters it names the first block only.
    let value = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok());
    let cluster = value("Cluster size:").map_or(1, |bytes| bytes / value("Block size:").unwrap());
    for line in said.lines() {
        if line.starts_with("Group ") {
            passed_over = line.contains("BLOCK_UNINIT");
        }
        let Some(list) = line.trim_start().strip_prefix("Free blocks: ").filter(|_| !passed_over && line.starts_with("  ")) else {
            continue;
        };
        for range in list.split(", ").filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let [first, last] = [first, last].map(|block| block.parse::<u32>().unwrap());
            blocks.insert_range(first..last + cluster);
        }
    }
    blocks
}

const SHAPES: [(u64, &[&str]); 11] = [
    (24, &["-b", "1024"]),
    (48, &["-b", "2048", "-O", "^64bit"]),
    (64, &["-b", "4096"]),
    (64, &["-b", "4096", "-O", "^metadata_csum,^flex_bg,^uninit_bg"]),
    (64, &["-b", "4096", "-g", "2048", "-O", "metadata_csum_seed,orphan_file"]),
    (48, &["-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"]),
    (96, &["-b", "1024", "-O", "bigalloc", "-C", "16384"]),
    (96, &["-b", "4096", "-O", "bigalloc", "-C", "65536"]),
    (256, &["-b", "65536"]),
    (48, &["-b", "1024", "-O", "sparse_super2,^resize_inode"]),
    (48, &["-b", "4096", "-O", "quota,project,inline_data,casefold,encrypt,verity,ea_inode,mmp"]),
];

#[test]
fn free_blocks_are_those_of_dumpe2fs() {
    let dir = tempfile::tempdir().unwrap();
    for (nth, (mib, options)) in SHAPES.iter().enumerate() {
        let path = dir.path().join(format!("{nth}.raw"));
        make(&path, *mib, options);
        let image = Image(fs::read(&path).unwrap());
        let found = free_blocks(&image, 0).unwrap_or_else(|unclear| panic!("{options:?}: {unclear:?}"));
        assert!(found.len() > 100, "{options:?}: {}", found.len());
        assert!(found == told(&path), "{options:?}: {} against {}", found.len(), told(&path).len());
    }
}

#[test]
fn the_journal_is_replayed_as_e2fsck_does() {
    let dir = tempfile::tempdir().unwrap();
    for (options, journal) in [
        ("^64bit,^metadata_csum", "jo"),
        ("64bit,metadata_csum", "jo -c -v 2"),
        ("64bit,metadata_csum", "jo -c -v 3"),
        ("^64bit,metadata_csum", "jo -c -v 3"),
    ] {
        let path = dir.path().join("journal.raw");
        make(&path, 32, &["-b", "4096", "-O", &format!("^resize_inode,{options}")]);
        let before = Image(fs::read(&path).unwrap());
        let layout = Layout::read(&before, 0).unwrap().unwrap();
        let mut descriptors = vec![0; 4096];
        before.read(layout.byte(1), &mut descriptors).unwrap();
        let bitmap = u64::from(super::le32(&descriptors, 0));
        let mut bits = vec![0; 4096];
        before.read(layout.byte(bitmap), &mut bits).unwrap();
        // Five blocks more are free, in the copies that go into the journal. One block begins like the journal's own.
        let free = free_blocks(&before, 0).unwrap();
        let taken: Vec<u32> = (0..8000u32).filter(|block| !free.contains(*block)).rev().take(5).collect();
        taken.iter().for_each(|block| bits[*block as usize / 8] &= !(1 << (block % 8)));
        let count = super::le16(&descriptors, 0xc) + 5;
        descriptors[0xc..0xe].copy_from_slice(&count.to_le_bytes());
        let mut escaped = vec![3; 4096];
        escaped[..4].copy_from_slice(&0xc03b_3998u32.to_be_bytes());
        for (name, bytes) in [("descriptors", &descriptors), ("bits", &bits), ("escaped", &escaped)] {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        let script = format!(
            "{journal}\njw -b {bitmap} {dir}/escaped\njw -b 1,{bitmap} {dir}/both\njw -b 6000 {dir}/escaped\njw -r 6000 \njw -b 6001 {dir}/escaped\njc\n",
            dir = dir.path().display()
        );
        fs::write(dir.path().join("both"), [&descriptors[..], &bits].concat()).unwrap();
        fs::write(dir.path().join("script"), script).unwrap();
        run("debugfs", &["-w", "-f", dir.path().join("script").to_str().unwrap()], &path);
        let image = Image(fs::read(&path).unwrap());
        let layout = Layout::read(&image, 0).unwrap().unwrap();
        let recovered = Recovered::read(&image, &layout).unwrap();
        run("e2fsck", &["-y", "-E", "journal_only"], &path);
        let replayed = Image(fs::read(&path).unwrap());
        let (mut ours, mut theirs) = (vec![0; 4096], vec![0; 4096]);
        for block in [1, bitmap, 6000, 6001, bitmap + 1] {
            // Where metadata has checksums, which these copies of ours do not fit, e2fsck mends it at once.
            if block < 6000 && !journal.ends_with("jo") {
                continue;
            }
            recovered.block(block, &mut ours).unwrap();
            replayed.read(layout.byte(block), &mut theirs).unwrap();
            assert!(ours == theirs, "{options}, {journal}: block {block}");
        }
        let found = free_blocks(&image, 0).unwrap();
        assert_eq!(found.len(), free.len() + 5, "{options}, {journal}");
        assert!(taken.iter().all(|block| found.contains(*block)));
        // A copy that was changed is noticed where there are checksums, and a record that was changed ends the journal before it.
        if journal.contains("-c") {
            let mut damaged = Image(image.0.clone());
            let at = damaged.0.chunks(4096).rposition(|block| block == bits).unwrap() * 4096;
            damaged.0[at + 4000] ^= 1;
            assert!(free_blocks(&damaged, 0).is_err(), "{options}, {journal}");
        }
    }
}

#[test]
fn what_is_not_understood_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let why = |options: &[&str]| {
        let path = dir.path().join("refused.raw");
        make(&path, 32, options);
        match free_blocks(&Image(fs::read(&path).unwrap()), 0) {
            Err(Unclear(why)) => why,
            Ok(free) => panic!("{options:?}: {} free", free.len()),
        }
    };
    assert!(why(&["-O", "^has_journal"]).contains("no journal"));
    assert!(why(&["-O", "fast_commit"]).contains("fast commits"));
    assert!(why(&["-O", "^extents,^64bit"]).contains("ext3"));
    let nothing = Image(vec![0; 1 << 20]);
    assert_eq!(Layout::read(&nothing, 0).unwrap(), None);
    assert_eq!(Layout::read(&nothing, (1 << 20) - 512).unwrap(), None);
}

#[test]
fn a_journal_that_lies_over_itself_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("folded.raw");
    make(&path, 32, &["-b", "4096"]);
    let mut image = Image(fs::read(&path).unwrap());
    let first = Layout::read(&image, 0).unwrap().unwrap().journal.last().unwrap().block as u32 + 256;
    // The journal's inode is number 8. Behind the head of its map lie the pieces: where in the journal, how many blocks, and where in the file system.
    let table = super::le32(&image.0, 4096 + 8) as usize * 4096;
    let map = table + 7 * usize::from(super::le16(&image.0, 1024 + 0x58)) + 0x28;
    assert_eq!([0, 6].map(|at| super::le16(&image.0, map + at)), [0xf30a, 0], "a map without further nodes");
    image.0[map + 2..map + 4].copy_from_slice(&2u16.to_le_bytes());
    let mut read_with = |second: u32| {
        for (entry, (within, block)) in [(0, first), (256, second)].into_iter().enumerate() {
            let at = map + 12 + 12 * entry;
            image.0[at..at + 12].fill(0);
            image.0[at..at + 4].copy_from_slice(&u32::to_le_bytes(within));
            image.0[at + 4..at + 6].copy_from_slice(&256u16.to_le_bytes());
            image.0[at + 8..at + 12].copy_from_slice(&block.to_le_bytes());
        }
        Layout::read(&image, 0)
    };
    assert!(read_with(first + 256).unwrap().is_some());
    assert!(matches!(read_with(first + 255), Err(Unclear(why)) if why.contains("twice")));
    // The later piece may lie before the earlier one.
    assert!(read_with(first - 256).unwrap().is_some());
    assert!(matches!(read_with(first - 255), Err(Unclear(why)) if why.contains("twice")));
}

#[test]
fn a_journal_that_says_too_much_is_unclear() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("talkative.raw");
    make(&path, 256, &["-b", "65536"]);
    let mut image = Image(fs::read(&path).unwrap());
    let layout = Layout::read(&image, 0).unwrap().unwrap();
    let mut put = |within: u32, fields: &[(usize, u32)]| {
        let block = layout.byte(layout.journal_block(within).unwrap()) as usize;
        fields.iter().for_each(|(at, value)| image.0[block + at..block + at + 4].copy_from_slice(&value.to_be_bytes()));
    };
    // It begins with transaction 1 in its block 1, and has no checksums. There are blocks that revoke sixteen thousand others each.
    put(0, &[(0x18, 1), (0x1c, 1), (0x28, 1)]);
    (1..80).for_each(|within| put(within, &[(0, 0xc03b_3998), (4, 5), (8, 1), (12, 65536)]));
    assert!(matches!(Recovered::read(&image, &layout), Err(Unclear(why)) if why.contains("more entries")));
    // With a third of them it is read to its end.
    image.0[layout.byte(layout.journal_block(25).unwrap()) as usize..][..4].fill(0);
    assert!(Recovered::read(&image, &layout).is_ok());
}

#[test]
fn a_file_system_around_another_is_not_watched() {
    let dir = tempfile::tempdir().unwrap();
    let [inner, outer] = [("inner.raw", 24), ("outer.raw", 64)].map(|(name, mib)| {
        let path = dir.path().join(name);
        make(&path, mib, &["-b", "4096"]);
        fs::read(&path).unwrap()
    });
    let start = 36 << 20;
    let mut image = Image(outer);
    image.0[start..start + inner.len()].copy_from_slice(&inner);
    image.0[446 + 4] = 0x83;
    image.0[446 + 8..446 + 12].copy_from_slice(&(start as u32 / 512).to_le_bytes());
    image.0[510..512].copy_from_slice(&[0x55, 0xaa]);
    let mut watch = Watch::new(true);
    watch.look(&image);
    let headers = watch.headers(&(0..image.size()));
    assert!(!headers.is_empty() && headers.iter().all(|(file_system, at)| *file_system == 1 && *at > start as u64));
    let why = watch.freed(&image).spaces.into_iter().map(|space| space.unclear.unwrap_or_default());
    let why: Vec<_> = why.collect();
    assert!(why[0].contains("begins within it") && why[1].contains("commit twice"), "{why:?}");
}

#[test]
fn partitions_are_found() {
    let mut mbr = Image(vec![0; 8 << 20]);
    mbr.0[510..512].copy_from_slice(&[0x55, 0xaa]);
    for (entry, kind, first) in [(0, 0x83u8, 2048u32), (1, 0x83, 63), (3, 0x82, u32::MAX)] {
        let at = 446 + 16 * entry;
        mbr.0[at + 4] = kind;
        mbr.0[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
    }
    assert_eq!(partitions::starts(&mbr).unwrap(), [0, 63 * 512, 2048 * 512]);
    let mut gpt = Image(vec![0; 8 << 20]);
    gpt.0[510..512].copy_from_slice(&[0x55, 0xaa]);
    gpt.0[450] = 0xee;
    gpt.0[512..520].copy_from_slice(b"EFI PART");
    for (at, value) in [(584, 2u32), (592, 128), (596, 128)] {
        gpt.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    for (entry, first) in [(0, 4096u64), (5, 34)] {
        gpt.0[1024 + 128 * entry] = 1;
        gpt.0[1024 + 128 * entry + 32..][..8].copy_from_slice(&first.to_le_bytes());
    }
    assert_eq!(partitions::starts(&gpt).unwrap(), [0, 34 * 512, 4096 * 512]);
}

#[test]
fn a_file_system_in_a_partition_is_read_as_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("alone.raw");
    make(&path, 32, &["-b", "1024"]);
    let start = 63 * 512;
    let alone = fs::read(&path).unwrap();
    let within = Image([vec![0; start as usize], alone].concat());
    assert!(free_blocks(&within, start).unwrap() == told(&path));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    /// Files written and removed at random, by another program than ours.
    #[test]
    fn each_block_counts(files in prop::collection::vec((0usize..600_000, any::<bool>()), 1..12), shape in 0..SHAPES.len()) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("files.raw");
        let (mib, options) = SHAPES[shape];
        make(&path, mib, options);
        let mut script = String::new();
        for (nth, (size, removed)) in files.iter().enumerate() {
            let file = dir.path().join(format!("n{nth}"));
            fs::write(&file, vec![1; *size]).unwrap();
            script += &format!("write {} n{nth}\n", file.display());
            // One that is there already leaves a gap.
            script += &if *removed { format!("rm f{}\n", nth * 3 + 1) } else { String::new() };
        }
        fs::write(dir.path().join("script"), script).unwrap();
        run("debugfs", &["-w", "-f", dir.path().join("script").to_str().unwrap()], &path);
        let found = free_blocks(&Image(fs::read(&path).unwrap()), 0).unwrap();
        prop_assert!(found == told(&path), "{} against {}", found.len(), told(&path).len());
    }
}
