//! The databases of the index, each one tree of LMDB's or two.
//!
//! Names are hashes, so in a large tree each new one falls on a page of its own, and a commit would write more pages the more the store holds. So
//! what is new in the two large databases first goes to a small tree beside the large one, and settles later: many entries at once, in the order of
//! their keys, so that neighbours share pages. So many at once that they share pages by themselves settle at once. See
//! `docs/decisions/0022-fresh-entries.md`.

use super::hidden::{Keys, Values};
use heed::{Database, RoTxn, RwTxn, types::Bytes};
use std::ops::Bound;

/// One tree of LMDB's.
pub(crate) type Tree = Database<'static, Bytes, Bytes>;

/// When a new entry settles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settling {
    Later,
    AtOnce,
}

/// Keys and values in the order of the keys. A key is in one of the trees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Db {
    settled: Tree,
    /// What came of late, in a database that new entries are put aside for.
    fresh: Option<Tree>,
    pub(super) name: &'static str,
    /// In the sum of the small databases.
    pub(super) is_guarded: bool,
    pub(super) keys: Keys,
    pub(super) values: Values,
}

impl Db {
    /// Of names of objects and where they lie; with a tree for fresh entries, or without.
    pub fn of_objects(name: &'static str, settled: Tree, fresh: Option<Tree>) -> Self {
        Self { settled, fresh, name, is_guarded: false, keys: Keys::Names, values: Values::Open }
    }

    /// One whose keys become these where the index is encrypted.
    pub fn new(name: &'static str, settled: Tree, keys: Keys) -> Self {
        Self { settled, fresh: None, name, is_guarded: false, keys, values: Values::Sealed }
    }

    /// The same, with its entries in the sum of the small databases.
    pub fn guarded(self) -> Self {
        Self { is_guarded: true, ..self }
    }

    /// The same, with values that tell nothing.
    pub fn in_the_open(self) -> Self {
        Self { values: Values::Open, ..self }
    }

    pub fn get<'t>(&self, read: &'t RoTxn<'_>, key: &[u8]) -> heed::Result<Option<&'t [u8]>> {
        if let Some(fresh) = self.fresh
            && let Some(value) = fresh.get(read, key)?
        {
            return Ok(Some(value));
        }
        self.settled.get(read, key)
    }

    pub fn put(&self, write: &mut RwTxn<'_>, key: &[u8], value: &[u8]) -> heed::Result<()> {
        match self.fresh {
            Some(fresh) if self.settled.get(write, key)?.is_none() => fresh.put(write, key, value),
            _ => self.settled.put(write, key, value),
        }
    }

    /// The value that was there already, which then stays.
    pub fn put_new<'t>(
        &self,
        write: &'t mut RwTxn<'_>,
        key: &'t [u8],
        value: &'t [u8],
        settling: Settling,
    ) -> heed::Result<Option<&'t [u8]>> {
        let Some(fresh) = self.fresh else { return self.settled.get_or_put(write, key, value) };
        let (own, other) = match settling {
            Settling::Later => (fresh, self.settled),
            Settling::AtOnce => (self.settled, fresh),
        };
        match other.get(write, key)?.is_some() {
            true => other.get(write, key),
            false => own.get_or_put(write, key, value),
        }
    }

    /// Leaves of the tree in which all entries are in the end.
    pub fn leaves(&self, read: &RoTxn<'_>) -> heed::Result<usize> {
        Ok(self.settled.stat(read)?.leaf_pages)
    }

    pub fn delete(&self, write: &mut RwTxn<'_>, key: &[u8]) -> heed::Result<bool> {
        let fresh = self.fresh.map(|fresh| fresh.delete(write, key)).transpose()?.unwrap_or(false);
        Ok(self.settled.delete(write, key)? || fresh)
    }

    pub fn len(&self, read: &RoTxn<'_>) -> heed::Result<u64> {
        Ok(self.settled.len(read)? + self.fresh(read)?)
    }

    /// How many entries have yet to settle.
    pub fn fresh(&self, read: &RoTxn<'_>) -> heed::Result<u64> {
        self.fresh.map_or(Ok(0), |fresh| fresh.len(read))
    }

    /// Every key and value from `from` on, in order, until `each` returns false. LMDB's errors become the caller's by `error`.
    pub fn scan<E>(
        &self,
        read: &RoTxn<'_>,
        from: &[u8],
        mut each: impl FnMut(&[u8], &[u8]) -> Result<bool, E>,
        error: impl Fn(heed::Error) -> E,
    ) -> Result<(), E> {
        let range = (Bound::Included(from), Bound::Unbounded);
        let mut settled = self.settled.range(read, &range).map_err(&error)?;
        let mut fresh = self.fresh.map(|fresh| fresh.range(read, &range)).transpose().map_err(&error)?;
        let mut next_settled = || settled.next().transpose().map_err(&error);
        let mut next_fresh = || fresh.as_mut().and_then(Iterator::next).transpose().map_err(&error);
        let mut heads = (next_settled()?, next_fresh()?);
        loop {
            let (key, value) = match heads {
                (None, None) => return Ok(()),
                (Some(settled), fresh) if fresh.is_none_or(|fresh| settled.0 < fresh.0) => {
                    heads.0 = next_settled()?;
                    settled
                }
                (_, fresh) => {
                    heads.1 = next_fresh()?;
                    fresh.expect("one of the two is there")
                }
            };
            if !each(key, value)? {
                return Ok(());
            }
        }
    }

    /// Settles so many entries at most, those with the lowest keys.
    pub fn settle(&self, write: &mut RwTxn<'_>, most: usize) -> heed::Result<()> {
        let Some(fresh) = self.fresh else { return Ok(()) };
        let own = |(key, value): (&[u8], &[u8])| (key.to_vec(), value.to_vec());
        let entries = fresh.iter(write)?.take(most).map(|entry| entry.map(own)).collect::<heed::Result<Vec<_>>>()?;
        for (key, value) in &entries {
            self.settled.put(write, key, value)?;
        }
        if let Some((last, _)) = entries.last() {
            fresh.delete_range(write, &(Bound::Unbounded, Bound::Included(last.as_slice())))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Settling;
    use crate::{files::FileSystem, index::Index};
    use proptest::prelude::*;
    use std::{collections::BTreeMap, sync::Arc};

    #[derive(Debug, Clone)]
    enum Op {
        Put(u8, u8),
        PutNew(u8, u8, Settling),
        Delete(u8),
        Settle(usize),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            (0..40u8, any::<u8>()).prop_map(|(key, value)| Op::Put(key, value)),
            (0..40u8, any::<u8>()).prop_map(|(key, value)| Op::PutNew(key, value, Settling::Later)),
            (0..40u8, any::<u8>()).prop_map(|(key, value)| Op::PutNew(key, value, Settling::AtOnce)),
            (0..40u8).prop_map(Op::Delete),
            (1..9usize).prop_map(Op::Settle),
        ];
        prop::collection::vec(op, 0..80)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn two_trees_are_one_map(ops in ops()) {
            let directory = tempfile::tempdir().unwrap();
            let index = Index::open(directory.path(), Arc::new(FileSystem), None).unwrap();
            let db = index.pages;
            let mut write = index.env.write_txn().unwrap();
            let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Put(key, value) => {
                        db.put(&mut write, &[key], &[value]).unwrap();
                        model.insert(vec![key], vec![value]);
                    }
                    Op::PutNew(key, value, settling) => {
                        let before = db.put_new(&mut write, &[key], &[value], settling).unwrap().map(<[u8]>::to_vec);
                        prop_assert_eq!(&before, &model.get([key].as_slice()).cloned());
                        model.entry(vec![key]).or_insert(vec![value]);
                    }
                    Op::Delete(key) => {
                        prop_assert_eq!(db.delete(&mut write, &[key]).unwrap(), model.remove([key].as_slice()).is_some());
                    }
                    Op::Settle(most) => {
                        let before = db.fresh(&write).unwrap();
                        db.settle(&mut write, most).unwrap();
                        prop_assert_eq!(db.fresh(&write).unwrap(), before.saturating_sub(most as u64));
                    }
                }
                prop_assert_eq!(db.len(&write).unwrap(), model.len() as u64);
            }
            for from in [0u8, 17] {
                let mut seen = Vec::new();
                let mut note = |key: &[u8], value: &[u8]| Ok::<_, heed::Error>({
                    seen.push((key.to_vec(), value.to_vec()));
                    true
                });
                db.scan(&write, &[from], &mut note, |error| error).unwrap();
                let wanted: Vec<_> = model.range(vec![from]..).map(|(key, value)| (key.clone(), value.clone())).collect();
                prop_assert_eq!(seen, wanted);
            }
            for key in 0..40u8 {
                prop_assert_eq!(db.get(&write, &[key]).unwrap(), model.get([key].as_slice()).map(Vec::as_slice));
            }
        }
    }
}
