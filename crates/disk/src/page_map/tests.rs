//! The map against a model that keeps everything that ever happened to a page and a block.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const PAGES: u32 = 12;
const BLOCKS: u32 = 8;

#[derive(Debug, Clone)]
enum Event {
    Begin {
        disk: u32,
        page: u32,
        block: u32,
        count: u32,
    },
    /// The nth of those under way.
    End {
        nth: usize,
        well: bool,
    },
    Written(u32),
    BlockChanges {
        disk: u32,
        first: u32,
        count: u32,
    },
    Clear,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..2u32, 0..PAGES, 0..BLOCKS, 1..4u32).prop_map(|(disk, page, block, count)| Event::Begin { disk, page, block, count }),
        4 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(nth, well)| Event::End { nth, well }),
        2 => (0..PAGES).prop_map(Event::Written),
        2 => (0..2u32, 0..BLOCKS, 1..30u32).prop_map(|(disk, first, count)| Event::BlockChanges { disk, first, count }),
        1 => Just(Event::Clear),
    ]
}

/// A transfer under way, in the map and in the model.
struct Moving {
    transfer: Transfer,
    disk: u32,
    run: Run,
    /// Pages of it that nothing has happened to.
    clean: PageSet,
}

#[derive(Default)]
struct Model {
    entries: BTreeMap<u32, (u32, u32)>,
    moving: Vec<Moving>,
}

impl Model {
    fn disturb(&mut self, page: u32) {
        self.entries.remove(&page);
        self.moving.iter_mut().for_each(|moving| _ = moving.clean.remove(page));
    }

    fn apply(&mut self, map: &PageMap, event: Event) {
        match event {
            Event::Begin { disk, page, block, count } => {
                let run = Run { page, block, count };
                let busy = |page: &u32| self.moving.iter().any(|moving| moving.run.pages().contains(page));
                let clean: PageSet = run.pages().filter(|page| !busy(page)).collect();
                run.pages().for_each(|page| self.disturb(page));
                self.moving.push(Moving { transfer: map.begin(&[run]), disk, run, clean });
            }
            Event::End { nth, well } => {
                if self.moving.is_empty() {
                    return;
                }
                let Moving { transfer, disk, run, clean } = self.moving.swap_remove(nth % self.moving.len());
                map.finish(transfer, &[run], well.then_some(disk));
                let pairs = run.pages().zip(run.block..).filter(|(page, _)| well && clean.contains(*page));
                self.entries.extend(pairs.map(|(page, block)| (page, (disk, block))));
            }
            Event::Written(page) => {
                map.forget(&PageSet::from_iter([page]));
                self.disturb(page);
            }
            Event::BlockChanges { disk, first, count } => {
                map.block_changes(disk, first..first + count);
                self.entries.retain(|_, (of, block)| *of != disk || !(first..first + count).contains(block));
            }
            Event::Clear => {
                map.clear();
                (0..PAGES + 4).for_each(|page| self.disturb(page));
            }
        }
    }
}

fn cases() -> u32 {
    if std::env::var_os("FERMATA_LONG").is_some() { 5000 } else { 500 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]
    #[test]
    fn the_map_is_what_happened(events in prop::collection::vec(event(), 0..80)) {
        let (map, mut model) = (PageMap::new(), Model::default());
        let all: PageSet = (0..PAGES + 4).collect();
        let (mut before, mut is_first) = (Vec::new(), true);
        for event in events {
            let was_clear = matches!(event, Event::Clear);
            model.apply(&map, event);
            let expected: Vec<_> = model.entries.iter().map(|(page, (disk, block))| Mapped { page: *page, disk: *disk, block: *block }).collect();
            let found = map.find(&all);
            prop_assert_eq!(&found, &expected);
            let gone: PageSet = before.iter().filter(|mapped| !found.contains(mapped)).map(|mapped| mapped.page).collect();
            match map.lost() {
                Some(lost) => prop_assert_eq!(lost, gone),
                None => prop_assert!(is_first || was_clear),
            }
            is_first = false;
            before = found;
        }
        // Links lead to every page of a block, and nothing is left of those that went.
        let state = map.0.lock().unwrap();
        let mut linked = 0;
        for (place, first) in &state.blocks {
            let mut page = *first;
            while page != NONE {
                let entry = state.entries[page as usize];
                prop_assert_eq!((entry.disk - 1, entry.block), *place);
                (page, linked) = (entry.next, linked + 1);
            }
        }
        prop_assert_eq!(linked, before.len());
        prop_assert_eq!(state.under_way.values().map(|under_way| under_way.count).sum::<u32>(), model.moving.iter().map(|moving| moving.run.count).sum::<u32>());
    }
}

/// The example of the paper's section 5.3.1.
#[test]
fn two_pages_of_a_block_go_when_a_third_is_written_to_it() {
    let map = PageMap::new();
    let transfer = |page: u32, block: u32, writes: bool| {
        let runs = [Run { page, block, count: 1 }];
        let transfer = map.begin(&runs);
        if writes {
            map.block_changes(0, block..block + 1);
        }
        map.finish(transfer, &runs, Some(0));
    };
    transfer(1, 16, false);
    transfer(3, 16, false);
    assert_eq!(map.find(&(0..10).collect()).len(), 2);
    transfer(2, 16, true);
    assert_eq!(map.find(&(0..10).collect()), [Mapped { page: 2, disk: 0, block: 16 }]);
}

#[test]
fn a_map_that_panicked_is_not_believed_and_nobody_stops_for_it() {
    let map = PageMap::new();
    let (known, under_way) = ([Run { page: 1, block: 16, count: 2 }], [Run { page: 5, block: 20, count: 1 }]);
    map.finish(map.begin(&known), &known, Some(0));
    let all = (0..10).collect();
    assert_eq!(map.lost(), None);
    assert_eq!(map.find(&all).len(), 2);
    assert_eq!(map.lost(), Some(PageSet::new()));
    let transfer = map.begin(&under_way);
    // A link that leads astray, as a panic at a worse place would leave it, is one over which the next that goes that way panics.
    map.0.lock().unwrap().entries[1].next = 1 << 20;
    map.forget(&PageSet::from_iter([1]));
    assert!(map.find(&all).is_empty());
    assert_eq!(map.lost(), None);
    // What the disk does goes on, and nothing is learned from it.
    map.finish(transfer, &under_way, Some(0));
    map.finish(map.begin(&known), &known, Some(0));
    map.block_changes(0, 16..18);
    map.forget_stretch(0..4);
    map.clear();
    assert!(map.find(&all).is_empty());
}
