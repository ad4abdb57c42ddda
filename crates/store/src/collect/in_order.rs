//! Entries of the index, changed by the hundred thousand in the order of the index.
//!
//! Names are hashes: in the order of a pack each falls on a page of its own of the index, and each transaction writes nearly all of the index anew. In the order of the
//! index each of its pages is written once.

use super::{CollectStage, Collection, Fate};
use crate::{
    Progress, Result,
    index::{Db, Index, Location, ScanFrom},
    pack::{Kind, PackFile, contents::Contents},
};
use heed::RwTxn;

/// Entries changed in one transaction: commits of others do not wait long for that.
pub(super) const BATCH: usize = if cfg!(test) { 16 } else { 1 << 14 };
/// Objects that are in memory at once, about. Few in tests, so that they are not all there are.
const AT_ONCE: usize = if cfg!(test) { 64 } else { 1 << 18 };

/// An object of a pack.
pub(super) struct Object {
    pub kind: Kind,
    pub name: [u8; 32],
    pub pack: u32,
    pub location: Location,
    pub is_alive: bool,
    /// Where its entry is in the index, about: by the first bytes of what it is called there.
    order: u64,
}

impl Object {
    /// All that this pack's table of contents names.
    pub fn all<'c>(
        index: &'c Index,
        pack: u32,
        contents: &'c Contents,
        is_alive: impl Fn(usize) -> bool + 'c,
    ) -> impl Iterator<Item = Self> + 'c {
        contents.objects().enumerate().map(move |(at, (entry, place, name))| {
            let location = Location::Pack { pack, offset: entry.offset, place, length: entry.length };
            let order = u64::from_be_bytes(*index.called(name).first_chunk().expect("a name is longer"));
            Self { kind: entry.kind, name: *name, pack, location, is_alive: is_alive(at), order }
        })
    }

    /// Which of so many equal parts of the index its entry is in.
    fn part(&self, parts: usize) -> usize {
        ((u128::from(self.order) * parts as u128) >> 64) as usize
    }
}

/// Of an object, as the index has it.
type Name = Vec<u8>;

impl Collection<'_> {
    /// Calls `change` for each of these, in transactions of bounded length.
    pub(super) fn in_order(&self, mut objects: Vec<Object>, mut change: impl FnMut(&mut RwTxn<'_>, &Object) -> Result<()>) -> Result<()> {
        objects.sort_unstable_by_key(|object| (object.kind.to_byte(), object.order));
        let index = &self.store.0.index;
        objects.chunks(BATCH).try_for_each(|batch| index.write(|write| batch.iter().try_for_each(|object| change(write, object))))
    }

    /// Calls `change` for what `wanted` picks of these packs and the index finds there, and tells it whether the entry is doomed. Of packs that stay, what is alive is
    /// not looked at.
    pub(super) fn each_entry(
        &mut self,
        stage: CollectStage,
        packs: &[u32],
        wanted: impl Fn(&Object) -> bool,
        mut change: impl FnMut(&mut RwTxn<'_>, &Object, bool) -> Result<()>,
    ) -> Result<()> {
        let (index, shelf) = (&self.store.0.index, self.store.0.shelf());
        let goes = |pack: &u32| self.fates[pack] != Fate::Keep;
        let most = packs.iter().map(|pack| (goes(pack), &self.marker.packs[pack]));
        let most: usize = most.map(|(goes, marks)| if goes { marks.objects() } else { marks.objects() - marks.alive() }).sum();
        let parts = most.div_ceil(AT_ONCE);
        for part in 0..parts {
            (self.progress)(stage, Progress { done: (most * part / parts) as u64, total: most as u64 });
            let mut objects = Vec::new();
            for pack in packs {
                let marks = &self.marker.packs[pack];
                let contents = PackFile::open(&shelf, &marks.id)?.contents(&marks.id)?;
                let all = Object::all(index, *pack, &contents, |at| marks.is_alive(at));
                objects.extend(all.filter(|object| object.part(parts) == part && (!object.is_alive || goes(pack)) && wanted(object)));
            }
            self.in_order(objects, |write, object| {
                let Some(bytes) = index.get(write, index.of_kind(object.kind), &object.name)? else { return Ok(()) };
                match Location::decode(&bytes) == Some(object.location) {
                    true => change(write, object, Location::is_doomed(&bytes)),
                    false => Ok(()),
                }
            })?;
        }
        (self.progress)(stage, Progress { done: most as u64, total: most as u64 });
        Ok(())
    }

    /// Dooms all that the index finds in packs that cannot be read. No table of contents tells what that is, so all of the index is looked through.
    pub(super) fn doom_damaged(&self) -> Result<()> {
        if self.marker.damaged.is_empty() {
            return Ok(());
        }
        let index = &self.store.0.index;
        [Kind::Pages, Kind::Nodes, Kind::Blob].into_iter().try_for_each(|kind| {
            let db = index.of_kind(kind);
            let mut last: Option<Name> = None;
            loop {
                let (names, reached) = self.damaged_behind(db, last.as_deref())?;
                for batch in names.chunks(BATCH) {
                    index.write(|write| batch.iter().try_for_each(|name| self.doom(write, db, name)))?;
                }
                match reached {
                    Some(reached) => last = Some(reached),
                    None => return Ok(()),
                }
            }
        })
    }

    /// What is to be doomed of some thousand entries behind a name, and the last one of them; none: there are no more.
    fn damaged_behind(&self, db: &Db, last: Option<&[u8]>) -> Result<(Vec<Name>, Option<Name>)> {
        let index = &self.store.0.index;
        let (mut names, mut reached, mut seen) = (Vec::new(), None, 0);
        index.scan(&*index.read()?, db, last.map_or(ScanFrom::Start, ScanFrom::Behind), |name, at| {
            seen += 1;
            names.extend(self.is_to_be_doomed(at).then(|| name.to_vec()));
            reached = (seen == AT_ONCE).then(|| name.to_vec());
            Ok(seen < AT_ONCE)
        })?;
        Ok((names, reached))
    }

    fn is_to_be_doomed(&self, at: &[u8]) -> bool {
        let lies = matches!(Location::decode(at), Some(Location::Pack { pack, .. }) if self.marker.damaged.contains_key(&pack));
        lies && !Location::is_doomed(at)
    }

    /// Dooms an object, unless somebody stored it again meanwhile.
    fn doom(&self, write: &mut RwTxn<'_>, db: &Db, name: &[u8]) -> Result<()> {
        let index = &self.store.0.index;
        let found = index.get(write, db, name)?.filter(|at| self.is_to_be_doomed(at)).as_deref().and_then(Location::decode);
        match found {
            Some(location) => index.put(write, db, name, location.encode_doomed(true).as_ref()),
            None => Ok(()),
        }
    }
}
