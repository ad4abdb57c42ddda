//! Memory of huge pages: what is named are pages of 4 KiB all the same, whatever becomes of a huge one under the area. Not so under the soft-dirty bits.

use crate::common::*;
use fermata_linux::trials::{collapse, drop_from_mapping, mapped_huge, write_in_child};
use fermata_process::{Area, Error, Options, Tracking};
use std::{collections::BTreeSet, fs, ops::Range};

/// Of a huge page.
const HUGE: usize = 512;
const PAGES: usize = 4 * HUGE;
const ROUNDS: u64 = 60;

/// What is found in a capture, in pages.
fn capture(area: &mut Area, replica: &mut [u8], when: &str) -> BTreeSet<usize> {
    let capture = area.capture().unwrap();
    apply(&capture, replica);
    let missed: Vec<_> = (0..PAGES).filter(|page| replica[page * PAGE..][..PAGE] != area.as_slice()[page * PAGE..][..PAGE]).collect();
    assert!(missed.is_empty(), "{when}: {} pages were missed, among them {:?}", missed.len(), &missed[..missed.len().min(8)]);
    capture.each_page().map(|(page, _)| page as usize).collect()
}

/// Stores to some pages, some of them side by side and across the ends of huge ones.
fn stores(memory: &mut [u8], numbers: &mut Numbers) -> BTreeSet<usize> {
    let mut touched = BTreeSet::new();
    for _ in 0..1 + numbers.below(12) {
        let at = numbers.below((PAGES * PAGE - 8) as u64) as usize;
        memory[at..at + 8].copy_from_slice(&numbers.next().to_le_bytes());
        touched.extend([at / PAGE, (at + 7) / PAGE]);
    }
    let edge = (1 + numbers.below(3) as usize) * HUGE * PAGE;
    memory[edge - 4..edge + 4].copy_from_slice(&numbers.next().to_le_bytes());
    touched.extend([edge / PAGE - 1, edge / PAGE]);
    touched
}

/// KiB of shared memory that lies in huge pages, mapped as such or not.
fn huge_kib() -> u64 {
    let memory = fs::read_to_string("/proc/meminfo").unwrap();
    let line = memory.lines().find_map(|line| line.strip_prefix("ShmemHugePages:"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Some pages within a huge one, or a whole one.
fn part_of_a_huge_page(numbers: &mut Numbers) -> Range<usize> {
    let first = numbers.below(4) as usize * HUGE;
    if numbers.below(4) == 0 {
        return first * PAGE..(first + HUGE) * PAGE;
    }
    let from = first + numbers.below(HUGE as u64 - 40) as usize;
    from * PAGE..(from + 1 + numbers.below(39) as usize) * PAGE
}

fn tracked_page_by_page(tracking: Tracking) {
    if tracking == Tracking::SoftDirty {
        // Its notes are of huge pages where these are mapped, and are lost where such a mapping is made or split.
        return;
    }
    let mut area = match Area::new("huge", PAGES * PAGE, Options::default().tracking(tracking).only_stores().anywhere()) {
        Err(Error::Tracker { source, .. }) => return skipped(format_args!("{tracking}: {source}")),
        area => area.expect("an area"),
    };
    let (mut numbers, mut replica, range) = (Numbers(9), vec![0; PAGES * PAGE], area.range());
    area.as_mut_slice().fill(1);
    capture(&mut area, &mut replica, "before");
    let (mut mapped, mut made, mut refused) = (0, 0, None);
    for round in 0..ROUNDS {
        let when = format!("{tracking}, round {round}");
        // Before the stores and behind them: pages that are written become part of a huge one, too.
        if round % 4 == 0 {
            refused = collapse(area.as_mut_slice()).err();
            (mapped, made) = (mapped_huge(&range).unwrap().max(mapped), huge_kib().max(made));
        }
        let mut touched = stores(area.as_mut_slice(), &mut numbers);
        match round % 6 {
            1 => refused = collapse(area.as_mut_slice()).err(),
            2 => drop_from_mapping(&mut area.as_mut_slice()[part_of_a_huge_page(&mut numbers)]).unwrap(),
            3 => {
                let part = part_of_a_huge_page(&mut numbers);
                area.discard(part.clone()).unwrap();
                assert!(area.as_slice()[part.clone()].iter().all(|byte| *byte == 0), "{when}");
                touched.extend(part.start / PAGE..part.end / PAGE);
            }
            4 => assert_eq!(
                write_in_child(&mut area.as_mut_slice()[numbers.below(PAGES as u64) as usize * PAGE..]).unwrap(),
                Some(11),
                "{when}"
            ),
            _ => {}
        }
        touched.extend(stores(area.as_mut_slice(), &mut numbers));
        let named = capture(&mut area, &mut replica, &when);
        let more = named.difference(&touched).count();
        assert_eq!(more, 0, "{when}: pages were named that nobody touched, of {}", touched.len());
    }
    // Where the kernel notes writes by itself, it splits the mapping of a huge page, and maps none.
    let splits = matches!(tracking, Tracking::Auto | Tracking::Assisted | Tracking::Difference);
    if made == 0 || (mapped == 0 && !splits) {
        skipped(format_args!("{tracking}: {made} KiB of huge pages were made, and {} mapped: {refused:?}", mapped / 1024));
    }
}

#[test]
fn huge_pages_are_tracked_page_by_page() {
    each_tracking(tracked_page_by_page);
}
