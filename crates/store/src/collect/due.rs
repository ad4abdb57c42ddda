//! Collecting when it is worth it, for those who do it by themselves.

use super::{CollectOptions, CollectStage, Collected, Collection, Turn};
use crate::{Error, Progress, Result, Store};

/// Worth it is a collection when what was removed had stored one in so many of the bytes of all packs,
const DUE_PART: u64 = 10;
/// and so many at least.
const DUE_MIN: u64 = 16 << 20;

impl Store {
    /// Collects garbage, as [`Store::collect`] does, if enough was removed since the last collection: a tenth of all bytes. None if not, or while somebody else collects
    /// or verifies. How much comes free nobody knows before it is marked: what is counted is what the removed checkpoints had stored, and others may share it. So a
    /// collection that frees little is not tried again before as much was removed once more.
    pub fn collect_if_due(&self, progress: &mut dyn FnMut(CollectStage, Progress)) -> Result<Option<Collected>> {
        if !self.is_collection_due()? {
            return Ok(None);
        }
        let _turn = match Turn::alone(self, false) {
            Err(Error::Refused { .. }) => return Ok(None),
            turn => turn?,
        };
        // Somebody may just have ended a collection.
        if !self.is_collection_due()? {
            return Ok(None);
        }
        self.0.forget();
        Collection::begin(self, &CollectOptions::default(), progress)?.run().map(Some)
    }

    fn is_collection_due(&self) -> Result<bool> {
        let index = &self.0.index;
        let removed = index.removed_bytes(&*index.read()?)?;
        if removed < DUE_MIN {
            return Ok(false);
        }
        let packs = self.0.shelf().list()?;
        let bytes = packs.iter().map(|(path, _)| path.metadata().map_or(0, |file| file.len())).sum::<u64>();
        Ok(removed.saturating_mul(DUE_PART) >= bytes)
    }
}
