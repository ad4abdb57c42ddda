//! Random stores from several threads against a plain copy: the words that a capture names make the copy equal to the memory, and a checkpoint holds the memory
//! as it was at its commit.

use crate::common::*;
use fermata_process::{Area, CriticalArea, Error, Options, Tracking};
use std::{fs::File, io::Read, process::Command, thread};

const PAGES: usize = 256;
const THREADS: usize = 3;

/// Stores of all widths, and the copies and fills that compilers and the C library make of vectors and strings.
fn store_at_random(memory: &mut [u8], numbers: &mut Numbers, count: u64) {
    for _ in 0..count {
        let at = numbers.below(memory.len() as u64 - 600) as usize;
        let value = numbers.next();
        match numbers.below(12) {
            0 => memory[at] = value as u8,
            1 => memory[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes()),
            2 => memory[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes()),
            3 => memory[at..at + 8].copy_from_slice(&value.to_le_bytes()),
            4 => memory[at] = memory[at].wrapping_add(value as u8),
            5 => memory[at] ^= value as u8,
            6 => memory[at..at + 16].copy_from_slice(&[value.to_le_bytes(); 2].concat()),
            7 => memory[at..at + (value % 600) as usize].fill(value as u8),
            8 => memory.copy_within(at / 2..at / 2 + (value % 600) as usize, at),
            9 => memory[at..at + 200].iter_mut().for_each(|byte| *byte = byte.wrapping_mul(3).wrapping_add(1)),
            10 => memory.swap(at, at + (value % 600) as usize),
            _ => memory[at..at + 512].copy_from_slice(&[value as u8; 512]),
        }
    }
    // What the C library copies with `rep movsb`, now and then.
    if numbers.below(8) == 0 {
        let (half, value) = (memory.len() / 2, numbers.next() as u8);
        memory[..half].fill(value);
        memory.copy_within(..half, half);
    }
}

/// The same on the area and on the copy, by several threads at once.
fn everybody_writes(memory: &mut [u8], seed: u64, count: u64) {
    let share = memory.len() / THREADS;
    thread::scope(|scope| {
        for (nth, mine) in memory.chunks_mut(share).enumerate().take(THREADS) {
            scope.spawn(move || store_at_random(mine, &mut Numbers(seed << 8 | nth as u64), count));
        }
    });
}

fn words_make_the_copy_equal(tracking: Tracking) {
    let options = Options::default().tracking(tracking).only_stores();
    let mut area = match Area::new("oracle", PAGES * PAGE, options) {
        Err(Error::Tracker { source, .. }) => return skipped(format_args!("{tracking}: {source}")),
        area => area.expect("an area"),
    };
    let (mut plain, mut replica) = (vec![0; PAGES * PAGE], vec![0; PAGES * PAGE]);
    for round in 0..60 {
        let count = [3, 40, 400][round as usize % 3];
        everybody_writes(area.as_mut_slice(), round, count);
        everybody_writes(&mut plain, round, count);
        assert!(area.as_slice() == plain, "{tracking}: a store went wrong in round {round}");
        let capture = area.capture().unwrap();
        apply(&capture, &mut replica);
        let missed: Vec<_> = (0..PAGES).filter(|page| replica[page * PAGE..][..PAGE] != plain[page * PAGE..][..PAGE]).collect();
        assert!(missed.is_empty(), "{tracking}, round {round}: missed in pages {missed:?}");
        assert!(capture.written_bytes() <= (PAGES * PAGE) as u64);
    }
    // Nobody has written.
    assert_eq!(area.capture().unwrap().pages(), 0, "{tracking}");
}

#[test]
fn words_of_every_tracker_make_the_copy_equal() {
    each_tracking(words_make_the_copy_equal);
}

#[test]
fn emulation_names_words_and_not_pages() {
    let mut area = Area::new("few words", PAGES * PAGE, Tracking::Emulate).expect("it needs nothing");
    for page in [0, 7, 255] {
        let at = page * PAGE + 40;
        area.as_mut_slice()[at..at + 8].copy_from_slice(&1_u64.to_le_bytes());
    }
    let capture = area.capture().unwrap();
    assert_eq!((capture.pages(), capture.written_bytes()), (3, 24), "{:?}", capture.words());
}

#[test]
fn checkpoints_hold_the_memory_as_it_was_at_their_commits() {
    each_tracking(|tracking| hold_the_memory(tracking, Options::default()));
}

#[test]
fn so_they_do_where_pages_are_copied_on_write() {
    each_tracking(|tracking| hold_the_memory(tracking, Options::default().copy_on_write()));
}

fn hold_the_memory(tracking: Tracking, options: Options) {
    {
        let (_directory, store) = store();
        let Some(mut area) = open_with(&store, "oracle", PAGES * PAGE, options.tracking(tracking).only_stores().anywhere()) else { return };
        let mut taken = Vec::new();
        for round in 0..6 {
            let mut cycle = area.begin().unwrap();
            everybody_writes(&mut cycle, round, 100);
            let content = cycle.to_vec();
            // The program goes on at once, and writes over what is being written.
            taken.push((cycle.commit_behind().unwrap(), content));
        }
        for (pending, content) in taken {
            let record = store.record(&pending.wait().unwrap()).unwrap();
            let then = Area::restore(&store, &record.parts[0], Options::default().anywhere()).unwrap();
            assert!(then.as_slice() == content, "{tracking}");
        }
    }
}

/// Whatever comes right behind a commit is not in it, and is in the next one.
#[test]
fn what_comes_behind_a_commit_that_is_copied_on_write_is_not_in_it() {
    const CALLED: std::ops::Range<usize> = 10 * PAGE..20 * PAGE;
    each_tracking(|tracking| {
        let (_directory, store) = store();
        let options = Options::default().tracking(tracking).only_stores().anywhere().copy_on_write();
        let Some(mut area) = open_with(&store, "behind", PAGES * PAGE, options) else { return };
        let mut taken = Vec::new();
        for round in 1..30_u8 {
            let mut cycle = area.begin().unwrap();
            cycle.fill(round);
            let content = cycle.to_vec();
            taken.push((cycle.commit_behind().unwrap(), content));
            // Calls of the kernel, pages that are given away or left out, children, and what is undone.
            let mut cycle = area.begin().unwrap();
            match round % 5 {
                0 => {
                    cycle.expect_writes(CALLED).unwrap();
                    let read = File::open("/dev/zero").and_then(|mut file| file.read_exact(&mut cycle[CALLED]));
                    assert!(read.is_ok(), "{tracking}: {read:?}");
                }
                1 => cycle.discard(CALLED).unwrap(),
                2 => {
                    cycle[CALLED].fill(0);
                    assert!(Command::new("true").status().unwrap().success());
                }
                3 => {
                    cycle.fill(0);
                    cycle.roll_back().unwrap();
                    assert!(area.as_slice().iter().all(|byte| *byte == round), "{tracking}");
                    continue;
                }
                _ => {
                    drop(cycle);
                    area.exclude(CALLED).unwrap();
                    area.as_mut_slice()[CALLED].fill(0);
                    area.include(CALLED).unwrap();
                    cycle = area.begin().unwrap();
                }
            }
            assert!(cycle[CALLED].iter().all(|byte| *byte == 0), "{tracking}");
            let content = cycle.to_vec();
            taken.push((cycle.commit_behind().unwrap(), content));
        }
        for (nth, (pending, content)) in taken.into_iter().enumerate() {
            let record = store.record(&pending.wait().unwrap()).unwrap();
            let then = Area::restore(&store, &record.parts[0], Options::default().anywhere()).unwrap();
            assert!(then.as_slice() == content, "{tracking}, commit {nth}");
        }
    });
}

/// A line that is opened again goes on from its head, whatever tracked it before.
#[test]
fn trackers_take_over_from_each_other() {
    let (_directory, store) = store();
    let mut plain = vec![0; PAGES * PAGE];
    for (round, (_, tracking)) in Tracking::NAMES.into_iter().cycle().take(14).enumerate() {
        let _alone = alone(tracking);
        let Some(mut area): Option<CriticalArea> = open(&store, "relay", PAGES * PAGE, tracking) else { continue };
        assert!(area.as_slice() == plain, "{tracking}");
        let mut cycle = area.begin().unwrap();
        everybody_writes(&mut cycle, round as u64, 50);
        everybody_writes(&mut plain, round as u64, 50);
        cycle.commit().unwrap();
    }
}
