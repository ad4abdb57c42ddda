//! Entries of the index, changed by the hundred thousand in the order of the index.
//!
//! Names are hashes: in the order of a pack each falls on a page of its own of the index, and each transaction writes nearly all of the index anew. In the order of the
//! index each of its pages is written once.

use super::{CollectStage, Collection, Fate};
use crate::{
    Progress, Result,
    index::{Index, Location},
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
}
