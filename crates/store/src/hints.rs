//! Hints: bytes beside a checkpoint that make something faster, and that nothing depends on.

use crate::{Error, Result, Store, error::Named};
use fermata_types::CheckpointId;
use std::borrow::Cow;

/// Bytes of a hint at most.
const HINT_MAX: usize = 1 << 20;
/// Bytes of a key at most.
const KEY_MAX: usize = 128;

impl Store {
    /// Keeps a hint beside a checkpoint under a key, in place of the one that was there; at most 1 MiB. It goes with the checkpoint, and is
    /// lost when the index is built again. Missing if there is no such checkpoint.
    pub fn set_hint(&self, id: &CheckpointId, key: &str, bytes: &[u8]) -> Result<()> {
        if bytes.len() > HINT_MAX {
            return Err(Error::refused(format!("a hint of {} bytes", bytes.len()), "keep hints below 1 MiB"));
        }
        let (index, key) = (&self.0.index, hint_key(id, key)?);
        index.write(|write| {
            if !index.has(write, &index.records, id.as_bytes())? {
                return Err(Error::missing(Named("checkpoint", id.as_bytes()).to_string(), "it was removed"));
            }
            index.put(write, &index.hints, &key, bytes)
        })
    }

    /// The hint beside a checkpoint under this key, if there is one. What reads it must check it: nothing vouches for it.
    pub fn hint(&self, id: &CheckpointId, key: &str) -> Result<Option<Vec<u8>>> {
        let index = &self.0.index;
        Ok(index.get(&*index.read()?, &index.hints, &hint_key(id, key)?)?.map(Cow::into_owned))
    }
}

fn hint_key(id: &CheckpointId, key: &str) -> Result<Vec<u8>> {
    if key.is_empty() || key.len() > KEY_MAX {
        return Err(Error::refused(format!("a hint with a key of {} bytes", key.len()), "use 1 to 128 bytes"));
    }
    Ok([id.as_bytes().as_slice(), key.as_bytes()].concat())
}
