//! A store in memory, and images to test with.
#![allow(dead_code, reason = "each test file uses its own part")]

use fermata_disk::{EachBlock, Pages, Sink};
use fermata_store::{Class, Error, Result};
use fermata_types::{NodeName, PAGE_SIZE, PageBuf, PageName, PageNumber, Root, ZERO_PAGE};
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Mutex,
};

type Table = BTreeMap<PageNumber, PageName>;

/// Pages and page tables, as a store would keep them.
#[derive(Default)]
pub struct Memory {
    pages: Mutex<HashMap<PageName, PageBuf>>,
    tables: Mutex<HashMap<NodeName, Table>>,
    on_disk: HashSet<PageName>,
    damaged: Mutex<HashSet<PageName>>,
}

fn name(page: &[u8]) -> PageName {
    PageName(*blake3::hash(page).as_bytes())
}

impl Memory {
    /// An empty store that knows the blocks of an image.
    pub fn over(image: &[u8]) -> Self {
        let memory = Self::default();
        let mut on_disk = HashSet::new();
        for block in image.chunks(PAGE_SIZE) {
            let mut page = [0; PAGE_SIZE];
            page[..block.len()].copy_from_slice(block);
            on_disk.insert(name(&page));
            memory.pages.lock().unwrap().insert(name(&page), page);
        }
        Self { on_disk, ..memory }
    }

    /// From now on a page cannot be read.
    pub fn damage(&self, page: &[u8]) {
        self.damaged.lock().unwrap().insert(name(page));
    }

    /// Lays a table over the content of an image.
    pub fn apply(&self, root: &Root, content: &mut [u8]) {
        let Some(node) = root.node else { return };
        let pages = self.pages.lock().unwrap();
        for (block, name) in &self.tables.lock().unwrap()[&node] {
            let at = *block as usize * PAGE_SIZE;
            let zero = [0; PAGE_SIZE];
            let page = if *name == ZERO_PAGE { &zero } else { &pages[name] };
            content[at..at + PAGE_SIZE].copy_from_slice(page);
        }
    }

    fn table(&self, root: &Root) -> Table {
        root.node.map_or_else(Table::new, |node| self.tables.lock().unwrap()[&node].clone())
    }
}

impl Pages for Memory {
    fn lookup(&self, root: &Root, block: PageNumber) -> Result<Option<PageName>> {
        Ok(root.node.and_then(|node| self.tables.lock().unwrap()[&node].get(&block).copied()))
    }

    fn named(&self, root: &Root, each: &mut dyn FnMut(PageNumber)) -> Result<()> {
        self.table(root).into_keys().for_each(each);
        Ok(())
    }

    /// Two blocks come along on either side.
    fn along(&self, root: &Root, blocks: Range<PageNumber>, wanted: &dyn Fn(PageNumber) -> bool) -> Result<Range<PageNumber>> {
        let before = (1..=2).map_while(|step| blocks.start.checked_sub(step)).take_while(|block| wanted(*block)).count();
        let behind = (blocks.end..root.pages as PageNumber).take(2).take_while(|block| wanted(*block)).count();
        Ok(blocks.start - before as PageNumber..blocks.end + behind as PageNumber)
    }

    fn read(&self, mut wanted: Vec<(PageNumber, PageName)>, each: EachBlock<'_>) -> Result<()> {
        // In some other order, as a store does.
        wanted.sort_by_key(|(_, name)| *name);
        let pages = self.pages.lock().unwrap();
        for (block, name) in wanted {
            if self.damaged.lock().unwrap().contains(&name) {
                return Err(Error::Io { action: "read", path: "a pack".into(), source: io::Error::other("it is damaged") });
            }
            if !each(block, &pages[&name]) {
                break;
            }
        }
        Ok(())
    }
}

impl Sink for &Memory {
    fn put(&mut self, block: &PageBuf) -> Result<(PageName, Class)> {
        let name = name(block);
        let class = if name == ZERO_PAGE {
            Class::Zero
        } else if self.on_disk.contains(&name) {
            Class::OnDisk
        } else if self.pages.lock().unwrap().insert(name, *block).is_some() {
            Class::Known { distance: 1 }
        } else {
            Class::New
        };
        Ok((name, class))
    }

    fn update(&mut self, base: &Root, changes: &[(PageNumber, Option<PageName>)]) -> Result<Root> {
        assert!(changes.is_sorted_by(|a, b| a.0 < b.0));
        let mut table = self.table(base);
        for (block, name) in changes {
            match name {
                Some(name) => table.insert(*block, *name),
                None => table.remove(block),
            };
        }
        if table.is_empty() {
            return Ok(Root::empty(base.pages));
        }
        let mut hasher = blake3::Hasher::new();
        for (block, name) in &table {
            hasher.update(&block.to_le_bytes()).update(name.as_bytes());
        }
        let node = NodeName(*hasher.finalize().as_bytes());
        self.tables.lock().unwrap().insert(node, table);
        Ok(Root { pages: base.pages, node: Some(node) })
    }
}

/// A raw image with this content.
pub fn image(dir: &Path, content: &[u8]) -> PathBuf {
    let path = dir.join("golden.raw");
    fs::write(&path, content).unwrap();
    path
}
