//! Statistics.

use crate::common::*;
use fermata_store::{Removal, Stats};
use fermata_types::*;

#[test]
fn a_store_tells_what_is_in_it_and_what_was_saved() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    assert_eq!(store.stats(None).unwrap(), Stats { index_bytes: store.stats(None).unwrap().index_bytes, ..Stats::default() });
    let mut parent = None;
    let mut root = Root::empty(1000);
    // 20 pages; 5 of them again elsewhere; 2 new, one of them twice, and one of zeros.
    let steps: [Vec<(PageNumber, u64)>; 3] = [
        (0..20).map(|page| (page, page.into())).collect(),
        (30..35).map(|page| (page, u64::from(page) - 30)).collect(),
        vec![(50, 50), (51, 51), (52, 50)],
    ];
    for (step, pages) in steps.iter().enumerate() {
        let mut writer = store.writer().unwrap();
        let mut counts = PageCounts { unchanged: 900, ..PageCounts::default() };
        let mut changes = Vec::new();
        for (number, seed) in pages {
            let (name, class) = writer.put_page(&page(*seed)).unwrap();
            class.count_into(&mut counts);
            changes.push((*number, Some(name)));
        }
        writer.put_page(&[0; PAGE_SIZE]).unwrap().1.count_into(&mut counts);
        root = writer.update_table(&root, &changes).unwrap();
        let mut record = record_of(parent, "main", &step.to_string(), root);
        record.cost.pages = counts;
        parent = Some(writer.commit(&record).unwrap());
    }
    let stats = store.stats(Some("lab")).unwrap();
    assert_eq!((stats.checkpoints, stats.packs, stats.pages_unique, stats.pages_referenced), (3, 3, 22, 20 + 25 + 28));
    let sieve = &stats.sieve;
    assert_eq!((sieve.unchanged, sieve.zero, sieve.known, sieve.within, sieve.new), (2700, 3, 6, 1, 22));
    assert_eq!(sieve.distances.iter().collect::<Vec<_>>(), [(1, 5)]);
    assert_eq!((stats.saved.unchanged, stats.saved.within, stats.saved.across), (2700 << 12, 1 << 12, 5 << 12));
    assert_eq!(stats.saved.compression, (22 << 12) - stats.pages_bytes);
    assert!(stats.compression.unwrap() > 1.5, "{stats:?}");
    let length: u64 = packs(dir.path()).iter().map(|pack| pack.metadata().unwrap().len()).sum();
    assert_eq!((stats.pack_bytes, stats.dead_bytes), (length, 0));
    assert!(stats.index_bytes > 0);
    let other = store.stats(Some("other")).unwrap();
    assert_eq!((other.checkpoints, other.pages_referenced, other.pages_unique), (0, 0, 22));
    store.remove(&Removal { experiments: vec!["lab".into()], ..Removal::default() }).unwrap();
    let stats = store.stats(None).unwrap();
    assert_eq!((stats.checkpoints, stats.pages_referenced), (0, 0));
    assert!(stats.dead_bytes > stats.pages_bytes && stats.dead_bytes < stats.pack_bytes, "{stats:?}");
}
