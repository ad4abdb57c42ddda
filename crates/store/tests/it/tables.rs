//! Page tables against a plain map.

use crate::common::*;
use fermata_store::Store;
use fermata_types::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Model = BTreeMap<PageNumber, PageName>;
type Changes = BTreeMap<PageNumber, Option<PageName>>;

fn name(seed: u8) -> PageName {
    if seed == 0 { ZERO_PAGE } else { PageName([seed; 32]) }
}

/// Sizes of one to four levels, and pages that crowd together as well as pages far apart.
fn tables() -> impl Strategy<Value = (u64, Vec<Changes>)> {
    let sizes = prop_oneof![Just(1), Just(512), Just(513), Just(70_000), Just(262_144), Just(300_000), Just(1 << 28), Just(1 << 32)];
    sizes.prop_flat_map(|pages: u64| {
        let last = (pages - 1) as PageNumber;
        let near = (0..2000u32).prop_map(move |page| page.min(last));
        let number = prop_oneof![3 => near, 1 => 0..=last, 1 => Just(last)];
        let value = prop_oneof![1 => Just(None), 2 => (0..5u8).prop_map(|seed| Some(name(seed)))];
        let changes = prop::collection::btree_map(number, value, 0..200);
        (Just(pages), prop::collection::vec(changes, 1..8))
    })
}

fn apply(model: &mut Model, changes: &Changes) {
    for (page, name) in changes {
        match name {
            Some(name) => _ = model.insert(*page, *name),
            None => _ = model.remove(page),
        }
    }
}

fn listed(store: &Store, root: &Root) -> Model {
    let mut found = Vec::new();
    let each = &mut |page, name| {
        found.push((page, name));
        Ok(())
    };
    store.for_each_page(root, each).unwrap();
    assert!(found.is_sorted_by_key(|(page, _)| *page));
    found.into_iter().collect()
}

fn difference(a: &Model, b: &Model) -> Vec<(PageNumber, Option<PageName>, Option<PageName>)> {
    let pages: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let all = pages.into_iter().map(|page| (*page, a.get(page).copied(), b.get(page).copied()));
    all.filter(|(_, a, b)| a != b).collect()
}

fn diff(store: &Store, a: &Root, b: &Root) -> Vec<(PageNumber, Option<PageName>, Option<PageName>)> {
    let mut found = Vec::new();
    let each = &mut |page, a, b| {
        found.push((page, a, b));
        Ok(())
    };
    store.diff(a, b, each).unwrap();
    found
}

fn flat(changes: &Changes) -> Vec<(PageNumber, Option<PageName>)> {
    changes.iter().map(|(page, name)| (*page, *name)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_table_is_a_map((pages, steps) in tables()) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let mut states = vec![(Root::empty(pages), Model::new())];
        let mut parent = None;
        for (step, changes) in steps.iter().enumerate() {
            // Reopened each time: nothing may hang on what is cached.
            let store = open(&path).unwrap();
            let mut writer = store.writer().unwrap();
            let (base, mut model) = states.last().unwrap().clone();
            // In two parts, so that the second stands on a table that is not yet committed.
            let changes = flat(changes);
            let (a, b) = changes.split_at(changes.len() / 2);
            let root = writer.update_table(&base, a).unwrap();
            let root = writer.update_table(&root, b).unwrap();
            apply(&mut model, &steps[step]);
            prop_assert_eq!(root.node.is_none(), model.is_empty());
            parent = Some(writer.commit(&record_of(parent, "main", &step.to_string(), root)).unwrap());
            states.push((root, model));
        }
        let store = open(&path).unwrap();
        for (root, model) in &states {
            prop_assert_eq!(&listed(&store, root), model);
            for page in model.keys().flat_map(|page| [page.saturating_sub(1), *page, page.saturating_add(1)]) {
                prop_assert_eq!(store.lookup(root, page).unwrap(), model.get(&page).copied());
            }
        }
        for (a, in_a) in &states {
            for (b, in_b) in &states {
                prop_assert_eq!(diff(&store, a, b), difference(in_a, in_b));
                prop_assert_eq!(a == b, in_a == in_b);
            }
        }
        // Whatever led to a table, its root is the same: here, all at once from nothing.
        let mut writer = store.writer().unwrap();
        for (root, model) in &states {
            let all: Vec<_> = model.iter().map(|(page, name)| (*page, Some(*name))).collect();
            prop_assert_eq!(writer.update_table(&Root::empty(pages), &all).unwrap(), *root);
        }
    }

    #[test]
    fn tables_of_different_sizes_are_compared_too((pages, steps) in tables(), (other_pages, other_steps) in tables()) {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        let mut writer = store.writer().unwrap();
        let (mut a, mut b) = (Model::new(), Model::new());
        apply(&mut a, &steps[0]);
        apply(&mut b, &other_steps[0]);
        let root_a = writer.update_table(&Root::empty(pages), &flat(&steps[0])).unwrap();
        let root_b = writer.update_table(&Root::empty(other_pages), &flat(&other_steps[0])).unwrap();
        writer.commit(&record(None, "main", "")).unwrap();
        prop_assert_eq!(diff(&store, &root_a, &root_b), difference(&a, &b));
    }
}

#[test]
fn a_few_changes_in_many_leaves_cost_little_and_stay_readable_at_any_depth() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let pages = 128 * 512u32;
    let all: Vec<_> = (0..pages).map(|page| (page, Some(PageName(*blake3::hash(&page.to_le_bytes()).as_bytes())))).collect();
    let mut model: Model = all.iter().map(|(page, name)| (*page, name.unwrap())).collect();
    let mut root;
    let mut parent;
    {
        let store = open(&path).unwrap();
        let mut writer = store.writer().unwrap();
        root = writer.update_table(&Root::empty(pages.into()), &all).unwrap();
        parent = writer.commit(&record_of(None, "main", "full", root)).unwrap();
    }
    let mut cost = Vec::new();
    for step in 0..40u32 {
        let store = open(&path).unwrap();
        let mut writer = store.writer().unwrap();
        // Four pages in each leaf.
        let changes: Vec<_> = (0..pages)
            .filter(|page| (page.wrapping_mul(2_654_435_761) >> 16).wrapping_add(step) % 128 == 0)
            .map(|page| (page, Some(PageName(*blake3::hash(&[page, step + 1].map(u32::to_le_bytes).concat()).as_bytes()))))
            .collect();
        model.extend(changes.iter().map(|(page, name)| (*page, name.unwrap())));
        root = writer.update_table(&root, &changes).unwrap();
        cost.push(writer.stored_bytes().unwrap());
        parent = writer.commit(&record_of(Some(parent), "main", &step.to_string(), root)).unwrap();
    }
    let full = 128 * 512 * 32;
    assert!(cost[0] < full / 10, "the first change cost {} of {full}", cost[0]);
    let mean = cost.iter().sum::<u64>() / cost.len() as u64;
    assert!(mean < full / 3, "a change cost {mean} of {full} at the mean: {cost:?}");
    assert_eq!(listed(&open(&path).unwrap(), &root), model);
}

#[test]
fn a_base_is_found_full_even_if_somebody_else_stored_it_as_a_delta_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let all: Changes = (0..400).map(|page| (page, Some(name((page % 200) as u8 + 1)))).collect();
    let with = |changes: &[(PageNumber, u8)]| {
        let mut all = all.clone();
        all.extend(changes.iter().map(|(page, seed)| (*page, Some(name(*seed)))));
        flat(&all)
    };
    let store = open(&path).unwrap();
    let mut writer = store.writer().unwrap();
    let old = writer.update_table(&Root::empty(512), &with(&[])).unwrap();
    writer.commit(&record(None, "first", "")).unwrap();
    // Both write the same node: one as a delta, one full and with another that stands on it.
    let (mut a, mut b) = (store.writer().unwrap(), store.writer().unwrap());
    let as_delta = a.update_table(&old, &[(7, Some(name(250)))]).unwrap();
    let full = b.update_table(&Root::empty(512), &with(&[(7, 250)])).unwrap();
    assert_eq!(as_delta, full);
    let above = b.update_table(&full, &[(8, Some(name(251)))]).unwrap();
    a.commit(&record(None, "a", "")).unwrap();
    b.commit(&record(None, "b", "")).unwrap();
    drop(store);
    let check = || {
        let store = open(&path).unwrap();
        assert_eq!(store.lookup(&above, 7).unwrap(), Some(name(250)));
        assert_eq!(store.lookup(&above, 8).unwrap(), Some(name(251)));
        assert_eq!(listed(&store, &full).len(), 400);
    };
    check();
    Store::rebuild_index(&path).unwrap();
    check();
}
