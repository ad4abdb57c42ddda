//! Who descends from whom on a remote, over checkpoints that are not there: an object for each of them names its nearest ancestor.

use super::{REF_MAX, Remote, escape, get, list, parse_ref, place};
use crate::{Error, Result};
use fermata_types::CheckpointId;
use std::collections::HashSet;

/// What the object of one without an ancestor holds.
const NONE: &[u8] = b"-\n";

/// A checkpoint that was removed, and its nearest ancestor.
pub(super) type Link = (CheckpointId, Option<CheckpointId>);

fn name(experiment: &str, id: &CheckpointId) -> String {
    format!("removed/{}/{id}", escape(experiment))
}

/// The checkpoints that were removed from a remote, or from where those after them came from.
pub(super) fn all(remote: &dyn Remote, experiment: &str) -> Result<HashSet<CheckpointId>> {
    let listed = list(remote, &format!("removed/{}/", escape(experiment)))?;
    Ok(listed.into_iter().filter_map(|(name, _)| name.parse().ok()).collect())
}

/// Remembers a checkpoint that is not there, or will soon not be.
pub(super) fn put(remote: &dyn Remote, experiment: &str, (id, ancestor): &Link) -> Result<()> {
    let object = name(experiment, id);
    let bytes = ancestor.map_or_else(|| NONE.to_vec(), |ancestor| format!("{ancestor}\n").into_bytes());
    remote.put(&object, bytes).map_err(Error::io("write", &place(remote, &object)))
}

/// The same, unless it is remembered already.
pub(super) fn remember(remote: &dyn Remote, experiment: &str, link: &Link) -> Result<()> {
    if get(remote, &name(experiment, &link.0), REF_MAX)?.is_some() { Ok(()) } else { put(remote, experiment, link) }
}

/// The nearest of a checkpoint and its ancestors that is there, and the ones between.
pub(super) fn nearest(
    remote: &dyn Remote,
    experiment: &str,
    from: Option<CheckpointId>,
    is_there: impl Fn(&CheckpointId) -> Result<bool>,
) -> Result<(Option<CheckpointId>, Vec<Link>)> {
    let (mut at, mut between, mut seen) = (from, Vec::new(), HashSet::new());
    while let Some(id) = at {
        if is_there(&id)? {
            return Ok((at, between));
        }
        let object = name(experiment, &id);
        let Some(bytes) = get(remote, &object, REF_MAX)?.filter(|_| seen.insert(id)) else { break };
        at = if bytes == NONE { None } else { Some(parse_ref(remote, &object, &bytes)?) };
        between.push((id, at));
    }
    Ok((None, between))
}
