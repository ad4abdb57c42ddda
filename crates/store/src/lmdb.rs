//! Reads the file of the index without LMDB, and trusts nothing in it.
//!
//! LMDB maps its file and follows whatever it finds there: it has no checksums, and one flipped bit can make it read or write outside its map,
//! which kills the process and the guests that it serves. So the whole structure is checked here before LMDB sees the file. Layout as in
//! LMDB 0.9, `mdb.c`: `MDB_meta`, `MDB_page`, `MDB_node`, `MDB_db`. See `docs/decisions/0014-index-check.md`.

use crate::pack::{u16_at, u32_at, u64_at};
use std::{
    cmp,
    fs::File,
    io,
    os::unix::fs::FileExt,
    panic::resume_unwind,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

const MAGIC: u32 = 0xbeef_c0de;
const VERSION: u32 = 1;
const METAS: u64 = 2;
/// Bytes of the header of a page, and of a node.
const PAGE_HEADER: usize = 16;
const NODE_HEADER: usize = 8;
const META_LENGTH: usize = 136;
const DB_LENGTH: usize = 48;
pub(crate) const KEY_MAX: usize = 511;
/// LMDB's cursors reach no deeper.
const DEPTH_MAX: u16 = 32;
/// Far more than any map of ours.
const MAP_MAX: u64 = 1 << 46;
const NO_PAGE: u64 = u64::MAX;

const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;
const META: u16 = 8;
const BIG: u16 = 1;
const SUB: u16 = 2;
const INTEGER_KEY: u16 = 8;

/// Entries of a tree that is worth several threads.
const LARGE: u64 = if cfg!(test) { 1 } else { 20_000 };

/// Looks at a file that others write to meanwhile.
const TRIES: u32 = 8;

/// What is wrong with the file.
#[derive(Debug)]
pub(crate) enum Fault {
    /// At this byte.
    Damaged(u64, String),
    /// Written by another LMDB.
    Version(u32),
    Io(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

type Checked<T> = Result<T, Fault>;
/// Keys with their values.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Checks all that LMDB will follow: both meta pages, every page in use, every free page. `names` are the databases that there may be.
///
/// Costs time in proportion to the file. An empty file is whole: LMDB begins it.
pub(crate) fn check(path: &Path, names: &[&str]) -> Checked<()> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(());
    }
    let mut last = None;
    for _ in 0..TRIES {
        let found = Walk::begin(&file).and_then(|(meta, walk)| {
            walk.databases(&meta, &mut |name, _| match names.iter().any(|known| known.as_bytes() == name) {
                true => Ok(()),
                false => Err(format!("there is no database \"{}\"", name.escape_ascii())),
            })?;
            walk.free(&meta.free)
        });
        let metas = read(&file, 0, 2 * 4096)?;
        match found {
            // Pages are used again while a writer is at work, and this look holds none back.
            Err(Fault::Damaged(..)) if last.as_ref() != Some(&metas) => last = Some(metas),
            found => return found,
        }
    }
    // Somebody commits all the time, so at least the pages that commits touch are whole.
    Ok(())
}

/// Every key and value of one database, as far as they can be read, whatever else is damaged. None that LMDB would not find.
pub(crate) fn salvage(path: &Path, name: &str) -> (Entries, Checked<()>) {
    let mut found = Vec::new();
    let mut all = || {
        let file = File::open(path)?;
        let (meta, walk) = Walk::begin(&file)?;
        let mut wanted = None;
        let listed = walk.tree(&meta.main, &mut |_, key, value| {
            if let (true, Value::Sub(db)) = (key == name.as_bytes(), value) {
                wanted = Some(db);
            }
            Ok(())
        });
        // Whatever is wrong with the others.
        let Some(db) = wanted else { return listed };
        walk.tree(&db, &mut |_, key, value| {
            if let Value::Here(value) = value {
                found.push((key.to_vec(), value.to_vec()));
            }
            Ok(())
        })
    };
    let ended = all();
    (found, ended)
}

/// What the newest meta page says.
struct Meta {
    free: Db,
    main: Db,
}

/// A tree, as LMDB describes it.
#[derive(Debug, Clone, Copy)]
struct Db {
    flags: u16,
    depth: u16,
    branch_pages: u64,
    leaf_pages: u64,
    overflow_pages: u64,
    entries: u64,
    root: u64,
}

impl Db {
    fn decode(bytes: &[u8]) -> Self {
        Self {
            flags: u16_at(bytes, 4),
            depth: u16_at(bytes, 6),
            branch_pages: u64_at(bytes, 8),
            leaf_pages: u64_at(bytes, 16),
            overflow_pages: u64_at(bytes, 24),
            entries: u64_at(bytes, 32),
            root: u64_at(bytes, 40),
        }
    }

    /// Its root, unless it is empty.
    fn root(&self) -> Checked<Option<u64>> {
        if self.root == NO_PAGE {
            return Ok(None);
        }
        if self.depth == 0 || self.depth > DEPTH_MAX {
            return Err(Fault::Damaged(0, format!("a tree of depth {}", self.depth)));
        }
        Ok(Some(self.root))
    }
}

/// A value in a leaf.
enum Value<'a> {
    Here(&'a [u8]),
    /// On pages of its own: the first, and its length.
    Big(u64, usize),
    Sub(Db),
}

/// What to do with each key and value: also gets the byte where the page begins.
type Each<'a> = dyn FnMut(u64, &[u8], Value<'_>) -> Result<(), String> + 'a;

/// What to do with each database.
type EachDb<'a> = dyn FnMut(&[u8], &Db) -> Result<(), String> + 'a;

/// What was counted in one tree, and where the walk through it is.
#[derive(Default)]
struct Count {
    branch_pages: u64,
    leaf_pages: u64,
    overflow_pages: u64,
    entries: u64,
    integer_keys: bool,
    floor: Vec<u8>,
    /// The next key may be equal to the floor: it is a separator, not a key.
    inclusive: bool,
}

impl Count {
    /// Nothing of this tree yet.
    fn new(db: &Db) -> Self {
        Self { integer_keys: db.flags & INTEGER_KEY != 0, ..Self::default() }
    }

    /// Adds what was counted behind all this, from a separator on.
    fn join(&mut self, separator: Option<&[u8]>, behind: Self) -> Result<(), String> {
        separator.map_or(Ok(()), |key| self.next(key, true))?;
        self.branch_pages += behind.branch_pages;
        self.leaf_pages += behind.leaf_pages;
        self.overflow_pages += behind.overflow_pages;
        self.entries += behind.entries;
        (self.floor, self.inclusive) = (behind.floor, behind.inclusive);
        Ok(())
    }

    /// Whether that is what LMDB says.
    fn check(&self, db: &Db) -> Checked<()> {
        let counted = (self.branch_pages, self.leaf_pages, self.overflow_pages, self.entries);
        let claimed = (db.branch_pages, db.leaf_pages, db.overflow_pages, db.entries);
        if counted == claimed && (db.root == NO_PAGE) == (db.depth == 0) {
            return Ok(());
        }
        Err(Fault::Damaged(0, format!("a tree has {counted:?} branches, leaves, overflow pages and entries instead of {claimed:?}")))
    }

    /// Keys rise through the whole tree.
    fn next(&mut self, key: &[u8], separator: bool) -> Result<(), String> {
        let order = match self.integer_keys {
            true if key.len() != 8 => return Err(format!("a key of {} bytes instead of a number", key.len())),
            true if self.floor.is_empty() => cmp::Ordering::Greater,
            true => u64_at(key, 0).cmp(&u64_at(&self.floor, 0)),
            false => key.cmp(self.floor.as_slice()),
        };
        if order.is_lt() || (order.is_eq() && !self.inclusive) {
            return Err("its keys are not in order".into());
        }
        self.floor.clear();
        self.floor.extend_from_slice(key);
        self.inclusive = separator;
        Ok(())
    }
}

/// Where a branch leads, and the least key that may be there, but for the first.
struct Child<'p> {
    key: Option<&'p [u8]>,
    page: u64,
}

struct Walk<'f> {
    file: &'f File,
    page_size: usize,
    /// Pages that may be used: as many as the meta page says, and as the file has.
    pages: u64,
    pages_claimed: u64,
    /// A bit a page that was met.
    seen: Vec<AtomicU64>,
}

fn read(file: &File, at: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut done = 0;
    while done < length {
        match file.read_at(&mut bytes[done..], at + done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

impl<'f> Walk<'f> {
    fn begin(file: &'f File) -> Checked<(Meta, Self)> {
        let first = read(file, 0, PAGE_HEADER + META_LENGTH)?;
        check_meta(&first, 0, 0)?;
        let page_size = u32_at(&first, PAGE_HEADER + 24) as usize;
        if !page_size.is_power_of_two() || !(4096..=32768).contains(&page_size) {
            return Err(Fault::Damaged(0, format!("a page size of {page_size}")));
        }
        let second = read(file, page_size as u64, PAGE_HEADER + META_LENGTH)?;
        check_meta(&second, 1, page_size as u64)?;
        if u32_at(&second, PAGE_HEADER + 24) as usize != page_size {
            return Err(Fault::Damaged(page_size as u64, "the meta pages do not agree on the page size".into()));
        }
        let transaction = |meta: &[u8]| u64_at(meta, PAGE_HEADER + 128);
        let (even, odd) = (transaction(&first), transaction(&second));
        // Transaction n is written to meta page n mod 2, so the two hold neighbours. A new file has 0 in both.
        if (even, odd) != (0, 0) && (even % 2 != 0 || odd % 2 != 1 || even.abs_diff(odd) != 1) {
            return Err(Fault::Damaged(0, format!("its meta pages are of transactions {even} and {odd}")));
        }
        let (newest, number) = if odd > even { (&second, 1) } else { (&first, 0) };
        let meta = &newest[PAGE_HEADER..];
        let (map, last) = (u64_at(meta, 16), u64_at(meta, 120));
        let fault = |detail| Err(Fault::Damaged(number * page_size as u64, detail));
        if map > MAP_MAX || last >= map / page_size as u64 || last + 1 < METAS {
            return fault(format!("page {last} is the last, in a map of {map} bytes"));
        }
        let (free, main) = (Db::decode(&meta[24..]), Db::decode(&meta[24 + DB_LENGTH..]));
        if free.flags != INTEGER_KEY || main.flags != 0 {
            return fault(format!("flags {:#x} and {:#x} are not of this index", free.flags, main.flags));
        }
        let pages = (last + 1).min(file.metadata()?.len() / page_size as u64);
        let seen = (0..(last as usize + 64) / 64).map(|_| AtomicU64::new(0)).collect();
        Ok((Meta { free, main }, Self { file, page_size, pages, pages_claimed: last + 1, seen }))
    }

    /// Walks the main database and every database in it. `each` may refuse one.
    fn databases(&self, meta: &Meta, each: &mut EachDb<'_>) -> Checked<()> {
        let mut databases = Vec::new();
        self.tree(&meta.main, &mut |_, key, value| {
            let Value::Sub(db) = value else { return Err("a value where a database should be".into()) };
            if db.flags != 0 {
                return Err(format!("a database with flags {:#x}", db.flags));
            }
            each(key, &db)?;
            databases.push(db);
            Ok(())
        })?;
        databases.iter().try_for_each(|db| self.tree_of_values(db))
    }

    /// The free pages: LMDB hands them out for new content, so none may be in use, or twice free.
    fn free(&self, free: &Db) -> Checked<()> {
        let mut lists = Vec::new();
        let mut bigs = Vec::new();
        self.tree(free, &mut |at, _, value| match value {
            Value::Here(list) => {
                lists.push((at, list.to_vec()));
                Ok(())
            }
            Value::Big(page, length) => {
                bigs.push((page, length));
                Ok(())
            }
            Value::Sub(_) => Err("a database among the free pages".into()),
        })?;
        for (page, length) in bigs {
            let at = page * self.page_size as u64;
            lists.push((at, read(self.file, at + PAGE_HEADER as u64, length)?));
        }
        for (at, list) in lists {
            let count = if list.len() < 8 || list.len() % 8 != 0 { u64::MAX } else { u64_at(&list, 0) };
            if count > list.len() as u64 / 8 - 1 {
                return Err(Fault::Damaged(at, "a list of free pages of the wrong length".into()));
            }
            let mut above = u64::MAX;
            for place in 1..=count as usize {
                let page = u64_at(&list, place * 8);
                if page >= above {
                    return Err(Fault::Damaged(at, "a list of free pages that is not in order".into()));
                }
                above = page;
                self.meet(page, 1, self.pages_claimed).map_err(|detail| Fault::Damaged(at, format!("among the free pages, {detail}")))?;
            }
        }
        Ok(())
    }

    /// Walks a tree down to its values.
    fn tree(&self, db: &Db, each: &mut Each<'_>) -> Checked<()> {
        let mut count = Count::new(db);
        if let Some(root) = db.root()? {
            self.page(root, db.depth, &mut count, each)?;
        }
        count.check(db)
    }

    /// The same with a tree that holds no other, by all processors if it is large.
    fn tree_of_values(&self, db: &Db) -> Checked<()> {
        let each = |_: u64, _: &[u8], value: Value<'_>| match value {
            Value::Sub(_) => Err("a database within a database".to_owned()),
            _ => Ok(()),
        };
        let Some(root) = db.root()?.filter(|_| db.entries >= LARGE && db.depth > 1) else { return self.tree(db, &mut { each }) };
        let page = self.read_page(root)?;
        let children = self.children(root, &page)?;
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let shares: Vec<_> = children.chunks(children.len().div_ceil(threads)).collect();
        let counted: Vec<_> = thread::scope(|scope| {
            let walk = |share: &'_ [Child<'_>]| {
                let mut count = Count::new(db);
                self.below(root, share, db.depth, &mut count, &mut { each }).map(|()| count)
            };
            let walks: Vec<_> = shares.iter().map(|share| scope.spawn(move || walk(share))).collect();
            walks.into_iter().map(|walk| walk.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        });
        let mut count = Count { branch_pages: 1, ..Count::new(db) };
        for (share, counted) in shares.iter().zip(counted) {
            count.join(share[0].key, counted?).map_err(|detail| self.fault(root, detail))?;
        }
        count.check(db)
    }

    fn fault(&self, page: u64, detail: String) -> Fault {
        Fault::Damaged(page.saturating_mul(self.page_size as u64), detail)
    }

    fn read_page(&self, number: u64) -> Checked<Vec<u8>> {
        self.meet(number, 1, self.pages).map_err(|detail| self.fault(number, detail))?;
        Ok(read(self.file, number * self.page_size as u64, self.page_size)?)
    }

    /// Walks the part of a tree below one page. `depth` is 1 for a leaf.
    fn page(&self, number: u64, depth: u16, count: &mut Count, each: &mut Each<'_>) -> Checked<()> {
        let page = self.read_page(number)?;
        if depth > 1 {
            count.branch_pages += 1;
            return self.below(number, &self.children(number, &page)?, depth, count, each);
        }
        count.leaf_pages += 1;
        for place in pointers(&page, number, LEAF).map_err(|detail| self.fault(number, detail))? {
            count.entries += 1;
            self.entry(&page, number * self.page_size as u64, place, count, each)?;
        }
        Ok(())
    }

    /// What a branch leads to.
    fn children<'p>(&self, number: u64, page: &'p [u8]) -> Checked<Vec<Child<'p>>> {
        let child = |(index, place)| {
            let (node, key) = node(page, place)?;
            // The first key of a branch stands for everything below the second.
            let key = if index > 0 { Some(key) } else { None };
            Ok(Child { key, page: u64::from(u32_at(node, 0)) | u64::from(u16_at(node, 4)) << 32 })
        };
        let children = pointers(page, number, BRANCH).and_then(|places| places.into_iter().enumerate().map(child).collect());
        children.map_err(|detail| self.fault(number, detail))
    }

    /// Walks what some children of a branch lead to.
    fn below(&self, number: u64, children: &[Child<'_>], depth: u16, count: &mut Count, each: &mut Each<'_>) -> Checked<()> {
        for child in children {
            child.key.map_or(Ok(()), |key| count.next(key, true)).map_err(|detail| self.fault(number, detail))?;
            self.page(child.page, depth - 1, count, each)?;
        }
        Ok(())
    }

    /// One node of a leaf, and the pages of its own that its value may have.
    fn entry(&self, page: &[u8], at: u64, place: usize, count: &mut Count, each: &mut Each<'_>) -> Checked<()> {
        let fault = |detail: String| Fault::Damaged(at, detail);
        let (node, key) = node(page, place).map_err(fault)?;
        if key.is_empty() {
            return Err(fault("an empty key".into()));
        }
        count.next(key, false).map_err(fault)?;
        let length = u32_at(node, 0) as usize;
        let rest = &node[NODE_HEADER + key.len()..];
        let here = |length: usize| rest.get(..length).ok_or_else(|| fault("a value reaches beyond its page".into()));
        let value = match u16_at(node, 4) {
            0 => Value::Here(here(length)?),
            SUB if length == DB_LENGTH => Value::Sub(Db::decode(here(length)?)),
            BIG => {
                let first = u64_at(here(8)?, 0);
                count.overflow_pages += self.overflow(first, length).map_err(|error| match error {
                    Fault::Damaged(_, detail) => fault(detail),
                    error => error,
                })?;
                Value::Big(first, length)
            }
            flags => return Err(fault(format!("a node with flags {flags:#x} and {length} bytes"))),
        };
        each(at, key, value).map_err(fault)
    }

    /// Pages that a large value has to itself; returns how many.
    fn overflow(&self, first: u64, length: usize) -> Checked<u64> {
        let at = first.saturating_mul(self.page_size as u64);
        if first >= self.pages {
            return Err(Fault::Damaged(at, format!("page {first} is not there")));
        }
        let header = read(self.file, at, PAGE_HEADER)?;
        let pages = u64::from(u32_at(&header, 12));
        let needed = (PAGE_HEADER + length).div_ceil(self.page_size) as u64;
        if u64_at(&header, 0) != first || u16_at(&header, 10) != OVERFLOW || pages < needed {
            return Err(Fault::Damaged(at, format!("page {first} does not begin a value of {length} bytes")));
        }
        self.meet(first, pages, self.pages).map_err(|detail| Fault::Damaged(at, detail))?;
        Ok(pages)
    }

    /// Notes pages, each of which may be met once.
    fn meet(&self, first: u64, count: u64, limit: u64) -> Result<(), String> {
        if first < METAS || first.checked_add(count).is_none_or(|end| end > limit) {
            return Err(format!("pages {first} + {count} are not there"));
        }
        for page in first..first + count {
            let bit = 1 << (page % 64);
            if self.seen[(page / 64) as usize].fetch_or(bit, Ordering::Relaxed) & bit != 0 {
                return Err(format!("page {page} is used twice"));
            }
        }
        Ok(())
    }
}

fn check_meta(page: &[u8], number: u64, at: u64) -> Checked<()> {
    if page.len() < PAGE_HEADER + META_LENGTH {
        return Err(Fault::Damaged(at, "the file ends too early".into()));
    }
    let meta = &page[PAGE_HEADER..];
    if u64_at(page, 0) != number || u16_at(page, 10) != META || u32_at(meta, 0) != MAGIC {
        return Err(Fault::Damaged(at, "this is no meta page of LMDB".into()));
    }
    match u32_at(meta, 4) {
        VERSION => Ok(()),
        version => Err(Fault::Version(version)),
    }
}

/// Where the nodes of a page begin.
fn pointers(page: &[u8], number: u64, kind: u16) -> Result<Vec<usize>, String> {
    let (lower, upper) = (usize::from(u16_at(page, 12)), usize::from(u16_at(page, 14)));
    if u64_at(page, 0) != number || u16_at(page, 10) != kind {
        return Err(format!("page {number} is not the {} that it should be", if kind == LEAF { "leaf" } else { "branch" }));
    }
    // LMDB joins branches that have one child left, but for a moment a leaf may be empty only as a root, and then it is freed.
    let least = if kind == LEAF { 1 } else { 2 };
    if lower % 2 != 0 || lower < PAGE_HEADER + 2 * least || lower > upper || upper > page.len() {
        return Err(format!("page {number} has its free space from {lower} to {upper}"));
    }
    let pointers = (PAGE_HEADER..lower).step_by(2).map(|at| usize::from(u16_at(page, at)));
    pointers
        .map(|place| match place >= upper && place % 2 == 0 && place + NODE_HEADER <= page.len() {
            true => Ok(place),
            false => Err(format!("page {number} has a node at {place}")),
        })
        .collect()
}

/// A node with all that follows it in its page, and its key.
fn node(page: &[u8], place: usize) -> Result<(&[u8], &[u8]), String> {
    let node = &page[place..];
    let length = usize::from(u16_at(node, 6));
    let key = node.get(NODE_HEADER..NODE_HEADER + length).filter(|_| length <= KEY_MAX);
    Ok((node, key.ok_or_else(|| format!("a key of {length} bytes reaches beyond its page"))?))
}
