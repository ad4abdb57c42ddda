//! Records, branches and tags: reading them, moving them, and finding a checkpoint by what a person types.

use crate::{
    Error, Record, Result, Store,
    error::Named,
    index::{Index, ScanFrom},
};
use fermata_types::CheckpointId;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Bytes of a name of an experiment, a branch or a tag at most.
const NAME_MAX: usize = 128;
const BRANCH: u8 = b'b';
const TAG: u8 = b't';
/// Digits of an id prefix at least.
const PREFIX_MIN: usize = 4;
/// Candidates that an error names at most.
const CANDIDATES_MAX: usize = 8;

impl Store {
    /// The record of a checkpoint, checked against its id. Its parent is the nearest ancestor that was not removed.
    pub fn record(&self, id: &CheckpointId) -> Result<Record> {
        let read = self.0.index.read()?;
        if let Some(record) = self.record_in(&read, id)? {
            return Ok(record);
        }
        // A checkpoint that is on its way here. Its parent counts as removed unless it is here.
        let away = self.away().filter(|away| away.id() == *id).ok_or_else(|| no_checkpoint(id))?;
        let mut record = away.record();
        record.parent = remaining(&self.0.index, &read, record.parent)?;
        Ok(record)
    }

    /// The same, in a transaction; none if there is no such checkpoint.
    pub(crate) fn record_in(&self, read: &heed::RoTxn<'_>, id: &CheckpointId) -> Result<Option<Record>> {
        let index = &self.0.index;
        let Some(bytes) = index.get(read, &index.records, id.as_bytes())? else { return Ok(None) };
        let mut record = Record::decode(&bytes, id, index.path())?;
        record.parent = remaining(index, read, record.parent)?;
        Ok(Some(record))
    }

    /// All checkpoints, parents before children, and the older first where that leaves a choice. A parent is the nearest ancestor that was not
    /// removed.
    pub fn records(&self) -> Result<Vec<(CheckpointId, Record)>> {
        let index = &self.0.index;
        let read = index.read()?;
        let mut records = BTreeMap::new();
        index.scan(&read, &index.records, ScanFrom::Start, |key, value| {
            let id = index.checkpoint_id(key, &"a record")?;
            let mut record = Record::decode(value, &id, index.path())?;
            record.parent = remaining(index, &read, record.parent)?;
            records.insert(id, record);
            Ok(true)
        })?;
        Ok(parents_first(records))
    }

    /// Finds a checkpoint by what a person typed: a tag or a branch of `experiment`, `experiment/name`, or at least four digits of an id, in
    /// this order; each may be followed by `~N`, its ancestor N steps back (`~` is `~1`).
    pub fn resolve(&self, text: &str, experiment: Option<&str>) -> Result<CheckpointId> {
        let (name, steps) = match text.split_once('~') {
            None => (text, 0),
            Some((name, "")) => (name, 1),
            Some((name, steps)) => {
                let steps = steps.parse::<u64>();
                (name, steps.map_err(|_| Error::refused(format!("\"{text}\" has no number after ~"), "write ~1, ~2 and so on"))?)
            }
        };
        let read = self.0.index.read()?;
        let mut id = self.resolve_name(&read, name, experiment)?;
        for step in 0..steps {
            let record = self.record_in(&read, &id)?.ok_or_else(|| no_checkpoint(&id))?;
            id = record.parent.ok_or_else(|| {
                Error::missing(format!("checkpoint {text}: {name} has only {step} ancestors, so none"), "count again with `log`")
            })?;
        }
        Ok(id)
    }

    /// The head of a branch.
    pub fn branch(&self, experiment: &str, branch: &str) -> Result<Option<CheckpointId>> {
        self.get_ref(&*self.0.index.read()?, &key(BRANCH, experiment, branch)?)
    }

    /// The same for who is about to grow it. A process that was killed in a commit may have left one that is durable and that readers do not see until the next
    /// one writes; here it is seen.
    pub fn branch_to_grow(&self, experiment: &str, branch: &str) -> Result<Option<CheckpointId>> {
        let key = key(BRANCH, experiment, branch)?;
        self.0.index.write(|write| self.get_ref(write, &key))
    }

    /// All branches of an experiment with their heads.
    pub fn branches(&self, experiment: &str) -> Result<BTreeMap<String, CheckpointId>> {
        self.list_refs(&*self.0.index.read()?, BRANCH, experiment)
    }

    /// The same for who is about to grow one of them, or to begin another: as [`branch_to_grow`](Self::branch_to_grow) sees them.
    pub fn branches_to_grow(&self, experiment: &str) -> Result<BTreeMap<String, CheckpointId>> {
        self.0.index.write(|write| self.list_refs(write, BRANCH, experiment))
    }

    /// Moves a branch to a checkpoint, wherever it was before; makes it if there is none.
    pub fn set_branch(&self, experiment: &str, branch: &str, id: &CheckpointId) -> Result<()> {
        self.set_ref(&key(BRANCH, experiment, branch)?, id, |_| Ok(()))
    }

    /// Gives a checkpoint a name that stays. Refused if another checkpoint has it.
    pub fn tag(&self, experiment: &str, tag: &str, id: &CheckpointId) -> Result<()> {
        self.set_ref(&key(TAG, experiment, tag)?, id, |before| {
            let what = || format!("tag {experiment}/{tag} is already on checkpoint {before}");
            if before == id { Ok(()) } else { Err(Error::refused(what(), "choose another tag, or remove this one first")) }
        })
    }

    /// Removes a tag.
    pub fn untag(&self, experiment: &str, tag: &str) -> Result<()> {
        let (index, key) = (&self.0.index, key(TAG, experiment, tag)?);
        if !index.write(|write| index.delete(write, &index.refs, &key))? {
            return Err(Error::missing(format!("tag {experiment}/{tag}"), "look for the right one with `log`"));
        }
        Ok(())
    }

    /// All tags of an experiment with their checkpoints.
    pub fn tags(&self, experiment: &str) -> Result<BTreeMap<String, CheckpointId>> {
        self.list_refs(&*self.0.index.read()?, TAG, experiment)
    }

    fn set_ref(&self, key: &[u8], id: &CheckpointId, allow: impl FnOnce(&CheckpointId) -> Result<()>) -> Result<()> {
        let index = &self.0.index;
        index.write(|write| {
            if !index.has(write, &index.records, id.as_bytes())? {
                return Err(no_checkpoint(id));
            }
            if let Some(before) = index.get(write, &index.refs, key)? {
                allow(&index.checkpoint_id(&before, &"a ref")?)?;
            }
            index.put(write, &index.refs, key, id.as_bytes())
        })
    }

    fn get_ref(&self, read: &heed::RoTxn<'_>, key: &[u8]) -> Result<Option<CheckpointId>> {
        let index = &self.0.index;
        index.get(read, &index.refs, key)?.map(|bytes| index.checkpoint_id(&bytes, &String::from_utf8_lossy(key))).transpose()
    }

    fn list_refs(&self, read: &heed::RoTxn<'_>, kind: u8, experiment: &str) -> Result<BTreeMap<String, CheckpointId>> {
        check_name("experiment", experiment)?;
        let index = &self.0.index;
        let prefix = prefix(kind, experiment);
        let mut refs = BTreeMap::new();
        index.scan(read, &index.refs, ScanFrom::At(&prefix), |key, value| {
            let Some(name) = key.strip_prefix(prefix.as_slice()) else { return Ok(false) };
            let name = String::from_utf8_lossy(name).into_owned();
            let id = index.checkpoint_id(value, &name)?;
            refs.insert(name, id);
            Ok(true)
        })?;
        Ok(refs)
    }

    fn resolve_name(&self, read: &heed::RoTxn<'_>, name: &str, experiment: Option<&str>) -> Result<CheckpointId> {
        let found = match (name.split_once('/'), experiment) {
            (Some((experiment, name)), _) => self.resolve_ref(read, experiment, name)?,
            (None, Some(experiment)) => self.resolve_ref(read, experiment, name)?,
            (None, None) => None,
        };
        if let Some(id) = found {
            return Ok(id);
        }
        let prefix = name.to_ascii_lowercase();
        let is_prefix = (PREFIX_MIN..=64).contains(&prefix.len()) && prefix.bytes().all(|digit| digit.is_ascii_hexdigit());
        let candidates = if is_prefix { self.with_prefix(read, &prefix)? } else { Vec::new() };
        match candidates.as_slice() {
            [id] => Ok(*id),
            [] => Err(Error::missing(
                format!("checkpoint \"{name}\""),
                "give a tag, a branch, or at least 4 digits of an id as `log` shows them",
            )),
            _ => Err(Error::Ambiguous { text: name.to_owned(), candidates }),
        }
    }

    /// A tag, else a branch. A text that can be neither is none.
    fn resolve_ref(&self, read: &heed::RoTxn<'_>, experiment: &str, name: &str) -> Result<Option<CheckpointId>> {
        for kind in [TAG, BRANCH] {
            let Ok(key) = key(kind, experiment, name) else { return Ok(None) };
            if let Some(id) = self.get_ref(read, &key)? {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// Some checkpoints whose ids begin with these lower-case digits.
    fn with_prefix(&self, read: &heed::RoTxn<'_>, prefix: &str) -> Result<Vec<CheckpointId>> {
        let index = &self.0.index;
        let first = format!("{prefix:0<64}").parse::<CheckpointId>();
        let Ok(first) = first else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        index.scan(read, &index.records, ScanFrom::At(first.as_bytes()), |key, _| {
            let id = index.checkpoint_id(key, &"a record")?;
            let fits = id.to_string().starts_with(prefix);
            if fits {
                found.push(id);
            }
            Ok((fits || !index.is_in_order()) && found.len() < CANDIDATES_MAX)
        })?;
        found.sort();
        Ok(found)
    }
}

/// The nearest of a checkpoint and its ancestors that was not removed.
pub(crate) fn remaining(index: &Index, read: &heed::RoTxn<'_>, mut id: Option<CheckpointId>) -> Result<Option<CheckpointId>> {
    // Each step goes to a parent, and no checkpoint is its own ancestor: an id is the hash of a record that holds the parent's id.
    while let Some(at) = id
        && !index.has(read, &index.records, at.as_bytes())?
    {
        id = parent_of_removed(index, read, &at)?.flatten();
    }
    Ok(id)
}

/// The parent of a removed checkpoint. None: it was not removed from this store, or so long ago that nobody descends from it any more.
pub(crate) fn parent_of_removed(index: &Index, read: &heed::RoTxn<'_>, id: &CheckpointId) -> Result<Option<Option<CheckpointId>>> {
    match index.get(read, &index.removed, id.as_bytes())?.as_deref() {
        None => Ok(None),
        Some([]) => Ok(Some(None)),
        Some(parent) => Ok(Some(Some(index.checkpoint_id(parent, &"a removed checkpoint")?))),
    }
}

/// A ref in the index, taken apart.
pub(crate) struct Ref {
    pub is_branch: bool,
    pub experiment: String,
    pub name: String,
    pub id: CheckpointId,
}

/// Every branch and tag of every experiment.
pub(crate) fn all(index: &Index, read: &heed::RoTxn<'_>) -> Result<Vec<Ref>> {
    let mut refs = Vec::new();
    index.scan(read, &index.refs, ScanFrom::Start, |key, value| {
        let text = String::from_utf8_lossy(key);
        let parts = text.split_once('\0').filter(|_| matches!(key.first(), Some(&BRANCH | &TAG)));
        let (start, name) = parts.ok_or_else(|| index.corrupt(&format!("ref {text:?}"), "it is neither branch nor tag"))?;
        let id = index.checkpoint_id(value, &name)?;
        refs.push(Ref { is_branch: key[0] == BRANCH, experiment: start[1..].to_owned(), name: name.to_owned(), id });
        Ok(true)
    })?;
    Ok(refs)
}

/// The key of a tag in the index.
pub(crate) fn tag_key(experiment: &str, tag: &str) -> Result<Vec<u8>> {
    key(TAG, experiment, tag)
}

pub(crate) fn no_checkpoint(id: &CheckpointId) -> Error {
    Error::missing(Named("checkpoint", id.as_bytes()).to_string(), "look for the right one with `log`")
}

/// The key of a branch in the index.
pub(crate) fn branch_key(experiment: &str, branch: &str) -> Result<Vec<u8>> {
    key(BRANCH, experiment, branch)
}

fn key(kind: u8, experiment: &str, name: &str) -> Result<Vec<u8>> {
    check_name("experiment", experiment)?;
    check_name(if kind == BRANCH { "branch" } else { "tag" }, name)?;
    let mut key = prefix(kind, experiment);
    key.extend(name.as_bytes());
    Ok(key)
}

fn prefix(kind: u8, experiment: &str) -> Vec<u8> {
    [&[kind], experiment.as_bytes(), &[0]].concat()
}

pub(crate) fn check_name(kind: &str, name: &str) -> Result<()> {
    let wrong = |character: char| character.is_whitespace() || character.is_control() || matches!(character, '/' | '~');
    if name.is_empty() || name.len() > NAME_MAX || name.starts_with('-') || name.contains(wrong) {
        return Err(Error::refused(
            format!("{name:?} cannot be the name of the {kind}"),
            "a name has 1 to 128 bytes, no white space, no / or ~, and no - in front",
        ));
    }
    Ok(())
}

pub(crate) fn parents_first(mut records: BTreeMap<CheckpointId, Record>) -> Vec<(CheckpointId, Record)> {
    let mut children: HashMap<CheckpointId, Vec<CheckpointId>> = HashMap::new();
    // By age, so that siblings and unrelated trees come in the order in which they were made.
    let mut ready = BTreeSet::new();
    for (id, record) in &records {
        match record.parent.filter(|parent| records.contains_key(parent)) {
            Some(parent) => children.entry(parent).or_default().push(*id),
            None => _ = ready.insert((record.order_ns(), *id)),
        }
    }
    let mut ordered = Vec::with_capacity(records.len());
    while let Some((_, id)) = ready.pop_first() {
        for child in children.remove(&id).unwrap_or_default() {
            ready.insert((records[&child].order_ns(), child));
        }
        // No record is its own ancestor: an id is the hash of a record that holds the parent's id.
        ordered.extend(records.remove(&id).map(|record| (id, record)));
    }
    ordered
}
