//! Page tables as trees of nodes: looking up, walking, comparing and changing them. Where nodes come from and go to is behind [`Nodes`] and
//! [`NodesMut`].

use crate::{
    Error, Result,
    index::Location,
    node::{Entries, Name, Node},
};
use fermata_types::{FANOUT, NodeName, PageName, PageNumber, Root};
use std::sync::Arc;

/// A page and what becomes of it; none: no longer named.
pub(crate) type Change = (PageNumber, Option<PageName>);

/// Pages that page numbers can tell apart.
const PAGES_MAX: u64 = 1 << 32;

/// A node and how it is stored.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub node: Node,
    /// The base that it is stored against; none: it is stored full.
    pub base: Option<NodeName>,
    /// Where it was read from; none: it was just written.
    pub at: Option<Location>,
}

/// Where nodes come from.
pub(crate) trait Nodes {
    /// The node of this name, checked against it.
    fn load(&self, name: &NodeName) -> Result<Arc<Loaded>>;

    /// A node does not belong where it is named.
    fn misplaced(&self, name: &NodeName, detail: String) -> Error;

    fn load_level(&self, name: &NodeName, level: u8) -> Result<Arc<Loaded>> {
        let loaded = self.load(name)?;
        if loaded.node.level != level {
            return Err(self.misplaced(name, format!("of level {}, where level {level} belongs", loaded.node.level)));
        }
        Ok(loaded)
    }
}

/// Where nodes go to.
pub(crate) trait NodesMut: Nodes {
    /// Keeps a node that came of `old` by a change.
    fn save(&mut self, node: Node, old: Option<(NodeName, Arc<Loaded>)>) -> Result<NodeName>;
}

/// Pages below one entry of a node of this level.
pub(crate) fn span(level: u8) -> u64 {
    (FANOUT as u64).pow(level.into())
}

/// The level of the node that a root names.
pub(crate) fn top_level(root: &Root) -> Result<u8> {
    if root.pages > PAGES_MAX {
        return Err(Error::refused(format!("a page table of {} pages", root.pages), "a RAM or disk may have 16 TiB at most"));
    }
    Ok((root.levels() - 1) as u8)
}

pub(crate) fn lookup(nodes: &impl Nodes, root: &Root, page: PageNumber) -> Result<Option<PageName>> {
    let top = top_level(root)?;
    if u64::from(page) >= root.pages {
        return Ok(None);
    }
    let mut at = root.node;
    for level in (1..=top).rev() {
        let Some(name) = at else { return Ok(None) };
        at = nodes.load_level(&name, level)?.node.get(index(page, level)).map(NodeName);
    }
    let Some(leaf) = at else { return Ok(None) };
    Ok(nodes.load_level(&leaf, 0)?.node.get(index(page, 0)).map(PageName))
}

fn index(page: PageNumber, level: u8) -> usize {
    (u64::from(page) / span(level) % FANOUT as u64) as usize
}

pub(crate) fn for_each(nodes: &impl Nodes, root: &Root, each: &mut dyn FnMut(PageNumber, PageName) -> Result<()>) -> Result<()> {
    match root.node {
        Some(node) => walk(nodes, root.pages, &node, top_level(root)?, 0, each),
        None => Ok(()),
    }
}

fn walk(
    nodes: &impl Nodes,
    pages: u64,
    name: &NodeName,
    level: u8,
    first: u64,
    each: &mut dyn FnMut(PageNumber, PageName) -> Result<()>,
) -> Result<()> {
    let loaded = nodes.load_level(name, level)?;
    for (index, entry) in loaded.node.iter() {
        let page = first + index as u64 * span(level);
        if page >= pages {
            return Err(nodes.misplaced(name, format!("it names page {page} of {pages}")));
        }
        match level {
            0 => each(page as PageNumber, PageName(entry))?,
            _ => walk(nodes, pages, &NodeName(entry), level - 1, page, each)?,
        }
    }
    Ok(())
}

/// One of two tables being compared: a subtree, which may be lower than the other.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Side {
    node: Option<NodeName>,
    level: u8,
}

impl Side {
    fn of(root: &Root) -> Result<Self> {
        Ok(Self { node: root.node, level: top_level(root)? })
    }

    /// The entries of the node of this level that the subtree is, or is the first entry of.
    fn entries(&self, nodes: &impl Nodes, level: u8) -> Result<Entries> {
        let mut entries = [None; FANOUT];
        match self.node {
            Some(name) if self.level == level => return Ok(nodes.load_level(&name, level)?.node.entries()),
            Some(name) => entries[0] = Some(name.0),
            None => {}
        }
        Ok(entries)
    }

    fn child(&self, entry: Option<Name>, level: u8) -> Self {
        Self { node: entry.map(NodeName), level: self.level.min(level - 1) }
    }
}

/// Told of a page in which two tables differ, with what each says of it.
pub(crate) type EachDifference<'a> = &'a mut dyn FnMut(PageNumber, Option<PageName>, Option<PageName>) -> Result<()>;

pub(crate) fn diff(nodes: &impl Nodes, a: &Root, b: &Root, each: EachDifference<'_>) -> Result<()> {
    let (a, b) = (Side::of(a)?, Side::of(b)?);
    compare(nodes, a, b, a.level.max(b.level), 0, each)
}

fn compare(nodes: &impl Nodes, a: Side, b: Side, level: u8, first: u64, each: EachDifference<'_>) -> Result<()> {
    if a.node == b.node {
        return Ok(());
    }
    let (in_a, in_b) = (a.entries(nodes, level)?, b.entries(nodes, level)?);
    for (index, (entry_a, entry_b)) in in_a.into_iter().zip(in_b).enumerate() {
        if entry_a == entry_b {
            continue;
        }
        let page = first + index as u64 * span(level);
        match level {
            0 => each(page as PageNumber, entry_a.map(PageName), entry_b.map(PageName))?,
            _ => compare(nodes, a.child(entry_a, level), b.child(entry_b, level), level - 1, page, each)?,
        }
    }
    Ok(())
}

pub(crate) fn update(nodes: &mut impl NodesMut, base: &Root, changes: &[Change]) -> Result<Root> {
    let top = top_level(base)?;
    if let Some(pair) = changes.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        let what = format!("changes of a page table with page {} before page {}", pair[0].0, pair[1].0);
        return Err(Error::refused(what, "sort them and name each page once"));
    }
    if let Some((page, _)) = changes.last().filter(|(page, _)| u64::from(*page) >= base.pages) {
        return Err(Error::refused(format!("page {page} in a table of {} pages", base.pages), "name only pages that exist"));
    }
    if changes.is_empty() {
        return Ok(*base);
    }
    let node = update_node(nodes, base.node, top, 0, changes)?;
    Ok(Root { pages: base.pages, node })
}

fn update_node(
    nodes: &mut impl NodesMut,
    old: Option<NodeName>,
    level: u8,
    first: u64,
    mut changes: &[Change],
) -> Result<Option<NodeName>> {
    let old = old.map(|name| Ok::<_, Error>((name, nodes.load_level(&name, level)?))).transpose()?;
    let before = old.as_ref().map_or([None; FANOUT], |(_, loaded)| loaded.node.entries());
    let mut entries = before;
    while let Some((page, _)) = changes.first() {
        let index = ((u64::from(*page) - first) / span(level)) as usize;
        let from = first + index as u64 * span(level);
        let below = changes.partition_point(|(page, _)| u64::from(*page) < from + span(level));
        let (here, rest) = changes.split_at(below);
        entries[index] = match level {
            0 => here[0].1.map(|name| name.0),
            _ => update_node(nodes, before[index].map(NodeName), level - 1, from, here)?.map(|name| name.0),
        };
        changes = rest;
    }
    if entries == before {
        return Ok(old.map(|(name, _)| name));
    }
    Node::new(level, &entries).map(|node| nodes.save(node, old)).transpose()
}
