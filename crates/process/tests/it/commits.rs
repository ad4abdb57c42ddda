//! The plain use: begin, write, commit, come back.

use crate::common::*;
use fermata_process::{Area, CriticalArea, Error, Options, Pending, Tracking};
use fermata_store::{Cost, Record};
use fermata_types::{PartKind, PartState, Root};
use std::fs;

#[test]
fn an_area_comes_back_as_it_was_at_the_last_commit() {
    each_tracking(|tracking| {
        let (_directory, store) = store();
        let Some(mut area) = open_with(&store, "an-address-of-its-own", 64 * PAGE, Options::default().tracking(tracking).only_stores())
        else {
            return;
        };
        let (range, mut numbers) = (area.range(), Numbers(1));
        let mut expected = vec![0; 64 * PAGE];
        for _ in 0..20 {
            let mut cycle = area.begin().unwrap();
            for _ in 0..numbers.below(200) {
                let at = numbers.below(64 * PAGE as u64) as usize;
                cycle[at] = numbers.next() as u8;
                expected[at] = cycle[at];
            }
            let id = cycle.commit().unwrap();
            assert_eq!(area.head(), Some(id));
        }
        // Never committed.
        let mut cycle = area.begin().unwrap();
        cycle[0] = !expected[0];
        drop(cycle);
        drop(area);
        let area = open_with(&store, "an-address-of-its-own", 64 * PAGE, Options::default().tracking(tracking).only_stores()).unwrap();
        assert!(area.as_slice() == expected, "{tracking}");
        assert_eq!(area.range(), range, "pointers into it must hold");
    });
}

#[test]
fn what_is_rolled_back_was_never_written() {
    each_tracking(|tracking| {
        let (_directory, store) = store();
        let Some(mut area) = open(&store, "orders", 16 * PAGE, tracking) else { return };
        let mut cycle = area.begin().unwrap();
        cycle[5 * PAGE..6 * PAGE].fill(5);
        drop(cycle.commit_behind().unwrap());
        let mut cycle = area.begin().unwrap();
        cycle[4 * PAGE..9 * PAGE].fill(9);
        cycle.roll_back().unwrap();
        let after = |area: &CriticalArea| (0..16).map(|page| area.as_slice()[page * PAGE + 7]).collect::<Vec<_>>();
        assert_eq!(after(&area), [0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "{tracking}");
        area.begin().unwrap().commit().unwrap();
        drop(area);
        assert_eq!(after(&open(&store, "orders", 16 * PAGE, tracking).unwrap()), [0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    });
}

#[test]
fn a_commit_that_cannot_be_written_is_an_error_and_no_checkpoint() {
    let (directory, store) = store();
    let mut area = open(&store, "orders", 16 * PAGE, Tracking::Auto).unwrap();
    let mut cycle = area.begin().unwrap();
    cycle[0] = 1;
    let first = cycle.commit().unwrap();
    let (packs, away) = (directory.path().join("store/packs"), directory.path().join("away"));
    fs::rename(&packs, &away).unwrap();
    let mut cycle = area.begin().unwrap();
    cycle[PAGE] = 2;
    let pending = cycle.commit_behind().unwrap();
    assert!(pending.wait().is_err());
    assert_eq!(area.head(), Some(first));
    fs::rename(&away, &packs).unwrap();
    let mut cycle = area.begin().unwrap();
    cycle[2 * PAGE] = 3;
    assert!(matches!(cycle.commit(), Err(Error::Earlier { .. })));
    assert_eq!(area.head(), Some(first));
    // Once told, all of it is in the next one.
    area.begin().unwrap().commit().unwrap();
    drop(area);
    let area = open(&store, "orders", 16 * PAGE, Tracking::Auto).unwrap();
    assert_eq!([area.as_slice()[0], area.as_slice()[PAGE], area.as_slice()[2 * PAGE]], [1, 2, 3]);
}

#[test]
fn what_stands_on_a_commit_that_failed_fails_with_it() {
    let (directory, store) = store();
    let mut area = open(&store, "orders", 16 * PAGE, Tracking::Auto).unwrap();
    area.begin().unwrap().commit().unwrap();
    let (packs, away) = (directory.path().join("store/packs"), directory.path().join("away"));
    fs::rename(&packs, &away).unwrap();
    let mut pending = Vec::new();
    for value in 1..=4 {
        let mut cycle = area.begin().unwrap();
        cycle[value * PAGE] = value as u8;
        // A failure that was quick enough is told here.
        pending.extend(cycle.commit_behind());
    }
    assert!(pending.iter().all(|pending| pending.wait().is_err()));
    fs::rename(&away, &packs).unwrap();
    while area.begin().unwrap().commit().is_err() {}
    drop(area);
    let area = open(&store, "orders", 16 * PAGE, Tracking::Auto).unwrap();
    assert_eq!((0..5).map(|page| area.as_slice()[page * PAGE]).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn who_waits_for_all_commits_is_told_what_failed_once() {
    let (directory, store) = store();
    let mut area = open(&store, "orders", 16 * PAGE, Tracking::Auto).unwrap();
    area.begin().unwrap().commit().unwrap();
    area.drain().unwrap();
    let (packs, away) = (directory.path().join("store/packs"), directory.path().join("away"));
    fs::rename(&packs, &away).unwrap();
    area.as_mut_slice()[0] = 1;
    let pending = area.begin().unwrap().commit_behind().unwrap();
    assert!(matches!(area.drain(), Err(Error::Earlier { .. })));
    assert!(pending.wait().is_err());
    fs::rename(&away, &packs).unwrap();
    area.drain().unwrap();
    area.begin().unwrap().commit().unwrap();
    drop(area);
    assert_eq!(open(&store, "orders", 16 * PAGE, Tracking::Auto).unwrap().as_slice()[0], 1);
}

#[test]
fn an_area_that_is_abandoned_can_be_opened_by_others() {
    let (_directory, store) = store();
    let mut area = open(&store, "orders", PAGE, Tracking::Auto).unwrap();
    area.as_mut_slice()[0] = 1;
    area.begin().unwrap().commit().unwrap();
    area.abandon();
    assert_eq!(open(&store, "orders", PAGE, Tracking::Auto).unwrap().as_slice()[0], 1);
}

#[test]
fn one_process_opens_an_area_and_with_its_own_size() {
    let (_directory, store) = store();
    let mut area = open(&store, "orders", 100, Tracking::Auto).unwrap();
    assert_eq!(area.as_slice().len(), PAGE);
    assert!(matches!(CriticalArea::open(&store, "orders", 100, Tracking::Auto), Err(Error::Refused { .. })));
    area.begin().unwrap().commit().unwrap();
    drop(area);
    assert!(matches!(CriticalArea::open(&store, "orders", 2 * PAGE, Tracking::Auto), Err(Error::Refused { .. })));
    for name in ["", "a/b", "-a", "a b"] {
        assert!(CriticalArea::open(&store, name, 100, Tracking::Auto).is_err(), "{name:?}");
    }
    open(&store, "orders", 100, Tracking::Auto).unwrap();
}

#[test]
fn what_is_excluded_is_in_no_checkpoint() {
    let (_directory, store) = store();
    let mut area = open(&store, "orders", 8 * PAGE, Tracking::Auto).unwrap();
    let fill = |area: &mut CriticalArea, value: u8| {
        let mut cycle = area.begin().unwrap();
        cycle.fill(value);
        cycle.commit().unwrap();
    };
    fill(&mut area, 1);
    // Two whole pages, and parts of two more.
    area.exclude(PAGE - 1..3 * PAGE + 1).unwrap();
    fill(&mut area, 2);
    drop(area);
    let mut area = open(&store, "orders", 8 * PAGE, Tracking::Auto).unwrap();
    let of = |area: &CriticalArea| (0..8).map(|page| area.as_slice()[page * PAGE]).collect::<Vec<_>>();
    assert_eq!(of(&area), [2, 0, 0, 2, 2, 2, 2, 2]);
    fill(&mut area, 3);
    area.include(2 * PAGE..2 * PAGE + 1).unwrap();
    area.begin().unwrap().commit().unwrap();
    drop(area);
    assert_eq!(of(&open(&store, "orders", 8 * PAGE, Tracking::Auto).unwrap()), [3, 0, 3, 3, 3, 3, 3, 3]);
    assert!(matches!(open(&store, "orders", 8 * PAGE, Tracking::Auto).unwrap().exclude(0..9 * PAGE), Err(Error::Refused { .. })));
}

#[test]
fn undoing_leaves_what_is_excluded() {
    each_tracking(|tracking| {
        let (_directory, store) = store();
        let Some(mut area) = open(&store, "orders", 4 * PAGE, tracking) else { return };
        area.as_mut_slice().fill(1);
        area.begin().unwrap().commit().unwrap();
        area.exclude(PAGE..2 * PAGE).unwrap();
        let mut cycle = area.begin().unwrap();
        cycle.fill(2);
        cycle.roll_back().unwrap();
        assert_eq!((0..4).map(|page| area.as_slice()[page * PAGE]).collect::<Vec<_>>(), [1, 2, 1, 1], "{tracking}");
    });
}

#[test]
fn discarded_pages_are_zero_afterwards() {
    each_tracking(|tracking| {
        let (_directory, store) = store();
        let Some(mut area) = open(&store, "orders", 8 * PAGE, tracking) else { return };
        let mut cycle = area.begin().unwrap();
        cycle.fill(1);
        cycle.commit().unwrap();
        let mut cycle = area.begin().unwrap();
        cycle.discard(2 * PAGE..5 * PAGE).unwrap();
        cycle[3 * PAGE] = 7;
        cycle.commit().unwrap();
        // As it was before, and not as it was at the last commit.
        let mut cycle = area.begin().unwrap();
        cycle[4 * PAGE..5 * PAGE].fill(1);
        cycle.commit().unwrap();
        drop(area);
        let area = open(&store, "orders", 8 * PAGE, tracking).unwrap();
        assert_eq!((0..8).map(|page| area.as_slice()[page * PAGE]).collect::<Vec<_>>(), [1, 1, 0, 7, 1, 1, 1, 1], "{tracking}");
        assert_eq!(area.as_slice()[3 * PAGE + 1], 0);
    });
}

/// Each commit that is not written yet has a copy of its own.
#[test]
fn commits_behind_the_program_wait_when_there_are_many() {
    let (_directory, store) = store();
    let mut area = open_with(&store, "orders", 1024 * PAGE, Options::default().anywhere()).unwrap();
    let mut numbers = Numbers(5);
    let mut pending: Vec<Pending> = Vec::new();
    for _ in 0..12 {
        let mut cycle = area.begin().unwrap();
        cycle.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&numbers.next().to_le_bytes()));
        pending.push(cycle.commit_behind().unwrap());
        let unwritten = pending.iter().filter(|pending| pending.poll().is_none()).count();
        assert!(unwritten <= 4, "{unwritten}");
    }
    area.drain().unwrap();
    pending.iter().for_each(|pending| _ = pending.wait().unwrap());
}

#[test]
fn areas_commit_together() {
    let (_directory, store) = store();
    let mut areas: Vec<_> = ["a", "b", "c"].map(|name| open(&store, name, 4 * PAGE, Tracking::Auto).unwrap()).into();
    for (nth, area) in areas.iter_mut().enumerate() {
        area.begin().unwrap()[nth] = 1 + nth as u8;
    }
    let mut together: Vec<_> = areas.iter_mut().collect();
    let ids = CriticalArea::commit_together(&mut together).unwrap();
    for ((nth, area), id) in areas.iter().enumerate().zip(ids) {
        assert_eq!((area.head(), area.as_slice()[nth]), (Some(id), 1 + nth as u8));
    }
    drop(areas);
    assert_eq!(open(&store, "b", 4 * PAGE, Tracking::Auto).unwrap().as_slice()[1], 2);
}

fn record_of(experiment: &str, state: PartState) -> Record {
    Record {
        parent: None,
        experiment: experiment.into(),
        branch: "main".into(),
        message: None,
        created_ns: 0,
        after_ns: None,
        time_virtual_ns: 0,
        began_ns: None,
        spec: serde_json::Value::Null,
        events: 0,
        waiting: Vec::new(),
        parts: vec![state],
        images: Vec::new(),
        cost: Cost::default(),
    }
}

/// What trackers make of memory grows with the area: it must not be made first, and refused then.
#[test]
fn an_area_that_claims_to_be_huge_is_refused_before_anything_is_made_of_it() {
    let (_directory, store) = store();
    let tables = [("memory".to_owned(), Root::empty(1 << 32))].into();
    let details = serde_json::json!({ "address": 1_u64 << 44 });
    let state = PartState { name: "orders".into(), kind: PartKind::Process, tables, blobs: Default::default(), details };
    store.writer().unwrap().commit(&record_of("orders", state)).unwrap();
    for (_, tracking) in Tracking::NAMES {
        let refused = CriticalArea::open(&store, "orders", PAGE, Options::default().tracking(tracking).only_stores()).unwrap_err();
        assert!(matches!(&refused, Error::Refused { what, .. } if what.contains("17592186044416 bytes")), "{tracking}: {refused}");
    }
}

#[test]
fn a_capture_can_go_into_a_record_of_others_and_come_back() {
    let (_directory, store) = store();
    let mut area = Area::new("rank-0", 4 * PAGE, Tracking::Auto).unwrap();
    area.as_mut_slice()[PAGE + 3] = 9;
    let lost = area.capture().unwrap();
    assert_eq!(lost.pages(), 1);
    // As if it had not been written: the next one has it.
    area.give_back(lost);
    area.as_mut_slice()[0] = 8;
    let mut writer = store.writer().unwrap();
    let (state, counts) = area.capture().unwrap().put(None, &mut writer).unwrap();
    assert_eq!((counts.new, counts.unchanged), (2, 2));
    area.as_mut_slice()[0] = 7;
    let (state, _) = area.capture().unwrap().put(Some(&state), &mut writer).unwrap();
    writer.commit(&record_of("program", state.clone())).unwrap();
    // Its address is taken as long as the first one lives.
    assert!(Area::restore(&store, &state, Tracking::Auto).is_err());
    let moved = Area::restore(&store, &state, Options::default().anywhere()).unwrap();
    assert_eq!((moved.as_slice()[0], moved.as_slice()[PAGE + 3]), (7, 9));
    let full = area.capture_all().unwrap();
    assert_eq!(full.pages(), 2);
}
