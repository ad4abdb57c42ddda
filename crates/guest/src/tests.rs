use crate::{
    InterruptRegisters, Memory, MemoryMap, Survey, Unknown, interrupt_pages,
    sample::{Descriptor, Sample, USED, Version},
    survey,
    walk::{Reader, Tables},
};
use fermata_types::{PAGE_SIZE, PageBuf, PageNumber, PageSet, Use};
use proptest::prelude::*;

const PAGES: u64 = 1024;
const BELOW: u64 = 512;

fn both(test: impl Fn(Sample)) {
    for version in [Version::Old, Version::New] {
        for below in [PAGES, BELOW] {
            test(Sample::new(version, PAGES, below));
        }
    }
}

fn look(sample: &Sample) -> Result<Survey, Unknown> {
    survey(&mut sample.clone(), sample.map, &sample.told, None)
}

#[track_caller]
fn refused(sample: &Sample, why: &str) {
    let refusal = look(sample).expect_err("it cannot be told");
    assert!(refusal.contains(why), "{refusal}");
}

#[test]
fn every_use_is_named() {
    both(|mut sample| {
        let table = Descriptor { mapcount: sample.table(), ..Descriptor::KERNEL };
        let shared = Descriptor { flags: sample.cache(true).flags | 1 << 19, ..sample.cache(true) };
        let uses = [
            (Descriptor::KERNEL, Use::Kernel),
            (Descriptor::IDLE, Use::Kernel),
            (Descriptor::ANONYMOUS, Use::Anonymous),
            (shared, Use::Anonymous),
            (sample.cache(false), Use::CacheClean),
            (sample.cache(true), Use::CacheDirty),
            (sample.slab(), Use::Slab),
            (table, Use::PageTables),
        ];
        let first = PAGES - 100;
        for (page, (descriptor, _)) in (first..).zip(uses) {
            sample.set(page, descriptor);
        }
        // Pages that belong with another are what that one is.
        sample.set(PAGES - 50, sample.slab());
        let head = sample.descriptor_address(PAGES - 50);
        (PAGES - 49..PAGES - 46).for_each(|page| sample.set(page, Descriptor { compound_head: head | 1, ..Descriptor::IDLE }));
        let seen = look(&sample).unwrap();
        for (page, (_, what)) in (first..).zip(uses) {
            assert_eq!(seen.page(page as PageNumber), Some(what), "page {page}");
        }
        assert_eq!(seen.composition().of(Use::Slab), 5);
        assert_eq!(seen.composition().total(), PAGES);
        assert!(seen.free().is_empty());
    });
}

#[test]
fn free_blocks_are_found_whole() {
    both(|mut sample| {
        sample.free(USED, 7);
        sample.free(BELOW, 9);
        let seen = look(&sample).unwrap();
        let expected: PageSet = (USED as u32..USED as u32 + 128).chain(BELOW as u32..BELOW as u32 + 512).collect();
        assert_eq!(*seen.free(), expected);
        assert_eq!(seen.composition().of(Use::Free), 640);
        assert!(seen.sources().contains(sample.source(BELOW)));
    });
}

#[test]
fn what_is_no_block_is_not_free() {
    both(|sample| {
        let head = |order: u64| Descriptor { private: order, mapcount: sample.buddy(), ..Descriptor::IDLE };
        let not_free = |change: &dyn Fn(&mut Sample)| {
            let mut changed = sample.clone();
            change(&mut changed);
            assert_eq!(*look(&changed).unwrap().free(), PageSet::new());
        };
        // Not at a multiple of its size, larger than any, reaching beyond the RAM or across the hole.
        not_free(&|sample| sample.set(USED + 1, head(1)));
        not_free(&|sample| sample.set(USED, head(11)));
        not_free(&|sample| sample.set(USED, head(1 << 40)));
        not_free(&|sample| {
            (PAGES - 512..PAGES).for_each(|page| sample.set(page, Descriptor::IDLE));
            sample.set(PAGES - 512, head(10));
        });
        // With a page in it that somebody uses, or that begins another block.
        not_free(&|sample| {
            sample.set(USED, head(1));
            sample.set(USED + 1, Descriptor::KERNEL);
        });
        not_free(&|sample| {
            (USED..USED + 8).for_each(|page| sample.set(page, Descriptor::IDLE));
            sample.set(USED, head(3));
            sample.set(USED + 4, Descriptor { refcount: 1, ..head(2) });
        });
        // Somebody holds it.
        not_free(&|sample| sample.set(USED, Descriptor { refcount: 1, ..head(0) }));
    });
}

#[test]
fn the_kernels_own_count_has_to_agree() {
    both(|mut sample| {
        sample.free(USED, 7);
        sample.count(1 << 20);
        refused(&sample, "counts 1048576 free pages, and 128 were found");
    });
}

#[test]
fn only_the_kernel_that_runs_is_believed() {
    both(|sample| {
        let told = |tables: Vec<u64>| {
            let mut sample = sample.clone();
            sample.told.tables = Some(tables);
            sample
        };
        refused(&told(vec![]), "no processor runs the kernel");
        // Tables of somebody else's, some of no RAM.
        let own = sample.told.tables.as_ref().unwrap()[0];
        for other in [500 * PAGE_SIZE as u64, 3 << 30, u64::MAX] {
            refused(&told(vec![other]), "a processor runs something else");
            refused(&told(vec![own, other]), "a processor runs something else");
        }
        look(&told(vec![own, own | 0x18])).unwrap();
        // A program's tables, with the kernel's in the page before.
        let mut pair = told(vec![511 * PAGE_SIZE as u64]);
        pair.ram[510] = pair.ram[(own / PAGE_SIZE as u64) as usize].clone();
        look(&pair).unwrap();
    });
}

#[test]
fn a_note_that_lacks_something_says_what() {
    both(|sample| {
        let text = sample.text();
        for line in text.lines() {
            let mut less = sample.clone();
            less.write_note(&text.replace(&format!("{line}\n"), ""));
            let key = line.split('=').next().unwrap();
            match key {
                "OSRELEASE" | "NUMBER(pgtable_l5_enabled)" | "NUMBER(PG_slab)" | "NUMBER(PAGE_SLAB_MAPCOUNT_VALUE)" => {
                    look(&less).unwrap();
                }
                key => refused(&less, &format!("does not say {key}")),
            }
            for value in ["", "-1", "99999999999999999999999", "x"] {
                let mut wrong = sample.clone();
                wrong.write_note(&text.replace(line, &format!("{key}={value}")));
                let _ = look(&wrong);
            }
        }
        let mut encrypted = sample.clone();
        encrypted.write_note(&format!("{text}NUMBER(sme_mask)=47\n"));
        refused(&encrypted, "encrypted");
    });
}

#[test]
fn a_note_elsewhere_is_no_note() {
    both(|sample| {
        for (note, why) in [((0, 8192), "something else"), ((u64::MAX - 9, 64), "no memory"), ((0, 1 << 40), "bytes")] {
            let mut elsewhere = sample.clone();
            elsewhere.told.note = note;
            refused(&elsewhere, why);
        }
    });
}

#[test]
fn memory_maps_have_limits() {
    assert!(MemoryMap::new(1 << 27, 1 << 19).is_some());
    for (pages, below) in [((1 << 27) + 1, 512), (512, 1024), (1 << 21, (1 << 20) + 512), (1024, 100)] {
        assert_eq!(MemoryMap::new(pages, below), None, "{pages} {below}");
    }
}

/// A few words of memory.
struct Words(Vec<(u64, u64)>);

impl Memory for Words {
    fn read_page(&mut self, page: PageNumber, into: &mut PageBuf) -> Result<(), Unknown> {
        into.fill(0);
        for (at, word) in self.0.iter().filter(|(at, _)| at / PAGE_SIZE as u64 == u64::from(page)) {
            let at = (at % PAGE_SIZE as u64) as usize;
            into[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }
}

#[test]
fn five_levels_and_large_pages_are_walked() {
    let address = (3 << 48) | (5 << 39) | (7 << 30) | (9 << 21) | (11 << 12) | 13_u64;
    let mut entries = vec![(0x1000 + 3 * 8, 0x2003), (0x2000 + 5 * 8, 0x3003), (0x3000 + 7 * 8, 0x4003), (0x4000 + 9 * 8, 0x5003)];
    entries.push((0x5000 + 11 * 8, 0x8000_0000_0000_6003));
    let map = MemoryMap::new(1 << 20, 1 << 20).unwrap();
    let walk = |entries: &[(u64, u64)], depth: u32, top: u64| {
        Reader::new(&mut Words(entries.to_vec()), map).translate(Tables { top, depth }, address).unwrap()
    };
    assert_eq!(walk(&entries, 4, 0x1000), Some(0x6000 | 13));
    assert_eq!(walk(&entries, 3, 0x2000), Some(0x6000 | 13));
    // A table entry with the bit of a large page points to one of 2 MiB, and a level above to one of 1 GiB.
    entries[3].1 = 0x4020_0083;
    assert_eq!(walk(&entries, 4, 0x1000), Some(0x4020_0000 | 11 << 12 | 13));
    entries[2].1 = 0x8000_0083;
    assert_eq!(walk(&entries, 4, 0x1000), Some(0x8000_0000 | 9 << 21 | 11 << 12 | 13));
    entries[1].1 = 0;
    assert_eq!(walk(&entries, 4, 0x1000), None);
}

#[test]
fn the_pages_of_an_interrupt_are_found_and_their_tables() {
    let map = MemoryMap::new(1 << 20, 1 << 20).unwrap();
    // One table of each level; page n of the last one leads to the RAM's page 16 + n.
    let mut entries = vec![(0x1000, 0x2003), (0x2000, 0x3003), (0x3000, 0x4003)];
    entries.extend((0..8).map(|page| (0x4000 + page * 8, (16 + page) << 12 | 3)));
    // The task's state crosses a page, and says where the kernel begins.
    let (task, kernel_stack) = (0x1fe0_u64, 0x5000_u64);
    entries.push(((17 << 12) + 0xfe4, kernel_stack));
    let registers = InterruptRegisters { tables: 0x1fff, five_levels: false, stack: 0x7020, interrupts: 0x3000, global: 0x800, task };
    let pages = |registers| interrupt_pages(&mut Words(entries.clone()), map, &registers);
    let expected = [1, 2, 3, 4, 16, 17, 18, 19, 20, 22, 23].into_iter().collect::<PageSet>();
    assert_eq!(pages(registers), expected);
    // Nothing of it is there: the tables that say so were looked at.
    assert_eq!(
        pages(InterruptRegisters { stack: 1 << 40, interrupts: 1 << 41, global: 1 << 42, task: 1 << 43, ..registers }),
        [1].into_iter().collect()
    );
    // Tables where there is no memory.
    assert_eq!(pages(InterruptRegisters { tables: 1 << 60, ..registers }), PageSet::new());
}

proptest! {
    #[test]
    fn what_did_not_change_is_not_read_again(
        new: bool,
        hole: bool,
        first in prop::collection::vec((USED / 4..PAGES / 4, 0_u32..6), 0..40),
        then in prop::collection::vec((USED..PAGES, any::<u8>()), 1..10),
    ) {
        let version = if new { Version::New } else { Version::Old };
        let mut sample = Sample::new(version, PAGES, if hole { BELOW } else { PAGES });
        for (block, order) in first {
            let page = ((block * 4) >> order) << order;
            if page >= USED && page + (1 << order) <= PAGES {
                sample.free(page, order);
            }
        }
        let before = look(&sample).unwrap();
        let mut changed = PageSet::new();
        for (page, what) in then {
            let head = Descriptor { private: u64::from(what % 4), mapcount: sample.buddy(), ..Descriptor::IDLE };
            sample.set(page, [Descriptor::KERNEL, Descriptor::IDLE, head][usize::from(what) % 3]);
            changed.insert(sample.source(page));
        }
        let (whole, mut again) = (look(&sample).unwrap(), sample.clone());
        let incremental = survey(&mut again, sample.map, &sample.told, Some((&before, &changed))).unwrap();
        prop_assert_eq!(incremental.free(), whole.free());
        prop_assert_eq!(incremental.composition(), whole.composition());
        prop_assert_eq!(incremental.sources(), whole.sources());
        for page in 0..PAGES as PageNumber {
            prop_assert_eq!(incremental.page(page), whole.page(page));
        }
    }
}

#[test]
fn pages_and_frames_lead_to_each_other() {
    let map = MemoryMap::new(8 << 18, 2 << 18).unwrap();
    for (page, frame) in [(0, 0), ((2 << 18) - 1, (2 << 18) - 1), (2 << 18, 4 << 18), ((8 << 18) - 1, (10 << 18) - 1)] {
        assert_eq!((map.frame(page), map.page(frame)), (frame, Some(page)));
    }
    assert_eq!((map.page(2 << 18), map.page(10 << 18)), (None, None));
}
