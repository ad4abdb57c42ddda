//! What vouches for the small databases of the index. Pages, nodes and blobs lie where packs say, and records fit their ids; but nothing else knows
//! the name of a branch, or which checkpoints were removed. So the index keeps one sum of all those entries: the hashes of each, added up bit by bit
//! without carry, so that one that comes or goes changes the sum without a look at the others.

use super::{COLLECTIONS, Db, Index, NEXT_IMAGE, NEXT_PACK, REMOVED_BYTES, ScanFrom, name};
use crate::Result;
use heed::{RoTxn, RwTxn};

const GUARD: &[u8] = b"guard";
const HASH: usize = 32;

impl Index {
    /// Whether the entries of the small databases are those that were written. An index from before there was a sum is taken for right; it gets one with
    /// the next entry that is written.
    pub fn is_as_written(&self, read: &RoTxn<'_>) -> Result<bool> {
        let mut all_known = true;
        self.scan(read, &self.meta, ScanFrom::Start, |key, _| {
            all_known &= [NEXT_PACK, NEXT_IMAGE, COLLECTIONS, REMOVED_BYTES, GUARD].contains(&key);
            Ok(true)
        })?;
        let kept = self.sum(read)?;
        Ok(all_known && (kept.is_none() || kept == Some(self.sum_of_all(read)?)))
    }

    /// Brings the sum up to date with an entry that is about to be put, or to go.
    pub(super) fn guard(&self, write: &mut RwTxn<'_>, db: &Db, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        if !db.is_guarded {
            return Ok(());
        }
        let mut sum = match self.sum(write)? {
            Some(sum) => sum,
            None => self.sum_of_all(write)?,
        };
        let before = self.get(write, db, key)?;
        before.as_deref().into_iter().chain(value).for_each(|value| add(&mut sum, &self.hash(db, key, value)));
        self.meta.put(write, GUARD, &sum).map_err(self.error())
    }

    /// In an encrypted index one that tells nothing of the entry.
    fn hash(&self, db: &Db, key: &[u8], value: &[u8]) -> [u8; HASH] {
        let mut hasher = self.sealing.as_ref().map_or_else(blake3::Hasher::new, |cipher| cipher.hasher());
        for part in [db.name.as_bytes(), key] {
            hasher.update(&(part.len() as u32).to_le_bytes()).update(part);
        }
        *hasher.update(value).finalize().as_bytes()
    }

    fn sum(&self, read: &RoTxn<'_>) -> Result<Option<[u8; HASH]>> {
        let Some(bytes) = self.get(read, &self.meta, GUARD)? else { return Ok(None) };
        name(&bytes).map(Some).ok_or_else(|| self.corrupt(&"the sum of the small databases", "its entry is no hash"))
    }

    fn sum_of_all(&self, read: &RoTxn<'_>) -> Result<[u8; HASH]> {
        let mut sum = [0; HASH];
        let guarded =
            [&self.packs, &self.pack_numbers, &self.refs, &self.images, &self.meta, &self.removed, &self.trash, &self.hints, &self.recent];
        for db in guarded {
            self.scan(read, db, ScanFrom::Start, |key, value| {
                if key != GUARD {
                    add(&mut sum, &self.hash(db, key, value));
                }
                Ok(true)
            })?;
        }
        Ok(sum)
    }
}

fn add(sum: &mut [u8; HASH], other: &[u8; HASH]) {
    sum.iter_mut().zip(other).for_each(|(byte, other)| *byte ^= other);
}
