//! Garbage is collected by itself when enough was removed, whoever removed it: by the keeper that comes to it first.

use super::{Keeper, wait};
use fermata_linux::priority;
use fermata_store::{Collected, Result};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, PoisonError},
    thread,
    time::Duration,
};

/// Between two looks at whether a collection is worth it. A look reads one number, unless much was removed.
const COLLECT_EVERY: Duration = Duration::from_secs(60);

impl Keeper {
    /// In a thread that nobody waits for in the end: a collection that ends anywhere only leaves work to the next one. It goes after all others.
    pub(super) fn start_collecting(self: &Arc<Self>) {
        let (keeper, ending, store) = (Arc::downgrade(self), self.ending.clone(), self.host.store().clone());
        thread::spawn(move || {
            priority::go_last();
            while !wait(&ending, COLLECT_EVERY) {
                let collected = catch_unwind(AssertUnwindSafe(|| store.collect_if_due(&mut |_, _| {})));
                let Some(keeper) = keeper.upgrade() else { return };
                keeper.note_collected(collected);
            }
        });
    }

    fn note_collected(&self, collected: thread::Result<Result<Option<Collected>>>) {
        let trouble = match collected {
            // Nothing to do, or somebody else does it.
            Ok(Ok(None)) => return,
            Ok(Ok(Some(told))) => {
                let freed = told.bytes_before.saturating_sub(told.bytes_after) + told.orphan_bytes + told.image_bytes;
                tracing::info!("{freed} bytes of what was removed are free again, in {} of {} packs", told.packs_removed, told.packs);
                told.damaged.first().map(|damaged| format!("the space of removed checkpoints cannot all be freed: {damaged}"))
            }
            Ok(Err(error)) => Some(format!("the space of removed checkpoints could not be freed: {error}")),
            Err(_) => Some("collecting garbage panicked. This is a bug, of which the keeper's log tells more".to_owned()),
        };
        if let Some(trouble) = &trouble {
            tracing::warn!("{trouble}");
        }
        *self.collect_trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }
}
