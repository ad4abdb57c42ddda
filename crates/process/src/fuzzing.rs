//! What a fuzzer may feed with any bytes: what checkpoints keep of areas and of ranks. See `fuzz/README.md`.

use crate::{
    Area, CriticalArea, Options, Tracking,
    capture::{pages_of, read_page},
};
use fermata_store::Store;
use fermata_types::{PAGE_SIZE, PartState};
use tempfile::TempDir;

pub use crate::ranks::fuzzing::ranks;

/// Whoever opens an area compares its size first, so larger ones come to nothing.
const PAGES_MAX: u64 = 64;

thread_local! {
    /// A store with one area: there are tables in it that a record may name.
    static STORE: (TempDir, Store) = {
        let place = tempfile::tempdir().expect("a directory");
        let store = Store::open(place.path()).expect("a store");
        let mut area = CriticalArea::open(&store, "fuzz", 4 * PAGE_SIZE, Tracking::Compare).expect("an area");
        area.as_mut_slice()[PAGE_SIZE..2 * PAGE_SIZE].fill(7);
        area.as_mut_slice()[4 * PAGE_SIZE - 1] = 9;
        area.begin().and_then(|cycle| cycle.commit()).expect("a commit");
        (place, store)
    };
}

/// What the record of a checkpoint says of an area, as JSON. Panics if what is opened by it is not what its table names.
pub fn area(data: &[u8]) {
    opened(data);
}

/// Whether there is such an area.
fn opened(data: &[u8]) -> bool {
    let Ok(state) = serde_json::from_slice::<PartState>(data) else { return false };
    let Some(pages) = pages_of(&state).ok().filter(|pages| *pages <= PAGES_MAX) else { return false };
    STORE.with(|(_, store)| {
        let Ok(area) = Area::restore(store, &state, Options::default().tracking(Tracking::Compare).anywhere()) else { return false };
        assert_eq!(area.as_slice().len() as u64, pages * PAGE_SIZE as u64);
        let mut named = [0; PAGE_SIZE];
        for (page, content) in (0..).zip(area.as_slice().chunks(PAGE_SIZE)) {
            read_page(store, &state, page, &mut named).expect("it could be read before");
            assert_eq!(content, named, "page {page}");
        }
        true
    })
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;
    use std::{fs, path::Path};

    /// Those of the corpus are of real checkpoints.
    #[test]
    fn what_real_checkpoints_have_is_taken() {
        let of = |file: &str| fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(file)).unwrap();
        assert!(["area/whole", "area/excluded"].iter().all(|file| super::opened(&of(file))));
        for file in ["record-late", "record-log", "grid-late", "grid-log", "prime-late", "prime-log", "sparse-late", "sparse-log"] {
            assert!(crate::ranks::fuzzing::is_taken(&of(&format!("ranks/{file}"))), "{file}");
        }
    }

    #[test]
    fn areas_of_checkpoints_may_be_anything() {
        replay("area", 5_000, super::area);
    }

    #[test]
    fn ranks_of_checkpoints_may_be_anything() {
        replay("ranks", 20_000, super::ranks);
    }
}
