//! One node of a page table: its full encoding, and the two forms in which packs hold it. See `docs/formats/page-table.md`.

use crate::{
    hash,
    pack::{name_at, u16_at},
};
use fermata_types::{FANOUT, NodeName};

/// The highest level: 512^4 pages are more than page numbers reach.
pub(crate) const LEVEL_MAX: u8 = 3;
/// Changes in a delta at most. Beyond, a full node is nearly as small and ends the growth of the deltas that follow.
pub(crate) const CHANGES_MAX: usize = 64;

const BITMAP: usize = FANOUT / 8;
const FULL_HEADER: usize = 1 + BITMAP;
const FORM_FULL: u8 = 0;
const FORM_DELTA: u8 = 1;
const REMOVED: u16 = 1 << 15;

/// The name of a page or of a node, as the level says.
pub(crate) type Name = [u8; 32];

/// All entries of a node, spread out for changing.
pub(crate) type Entries = [Option<Name>; FANOUT];

/// A node, never without entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub level: u8,
    present: [u64; FANOUT / 64],
    names: Vec<Name>,
}

impl Node {
    /// None if there is no entry.
    pub fn new(level: u8, entries: &Entries) -> Option<Self> {
        let mut node = Self { level, present: [0; FANOUT / 64], names: Vec::new() };
        for (index, name) in entries.iter().enumerate() {
            if let Some(name) = name {
                node.present[index / 64] |= 1 << (index % 64);
                node.names.push(*name);
            }
        }
        (!node.names.is_empty()).then_some(node)
    }

    pub fn get(&self, index: usize) -> Option<Name> {
        let (word, bit) = (index / 64, index % 64);
        if self.present[word] >> bit & 1 == 0 {
            return None;
        }
        let before: u32 = self.present[..word].iter().map(|word| word.count_ones()).sum();
        let within = (self.present[word] & ((1 << bit) - 1)).count_ones();
        Some(self.names[(before + within) as usize])
    }

    /// The present entries in order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, Name)> + '_ {
        (0..FANOUT).filter(|index| self.present[index / 64] >> (index % 64) & 1 == 1).zip(self.names.iter().copied())
    }

    pub fn entries(&self) -> Entries {
        let mut entries = [None; FANOUT];
        self.iter().for_each(|(index, name)| entries[index] = Some(name));
        entries
    }

    /// The encoding that the name is the hash of.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FULL_HEADER + self.names.len() * 32);
        bytes.push(self.level);
        self.present.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend_from_slice(self.names.as_flattened());
        bytes
    }

    pub fn name(&self) -> NodeName {
        hash::node(&self.encode())
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() < FULL_HEADER {
            return Err("a node without a header".into());
        }
        let level = check_level(bytes[0])?;
        let present = std::array::from_fn(|word| crate::pack::u64_at(bytes, 1 + word * 8));
        let count: u32 = present.iter().map(|word| word.count_ones()).sum();
        let (names, rest) = bytes[FULL_HEADER..].as_chunks();
        if count == 0 || names.len() != count as usize || !rest.is_empty() {
            return Err(format!("a node of {count} entries in {} bytes", bytes.len()));
        }
        Ok(Self { level, present, names: names.to_vec() })
    }
}

/// A node as a pack holds it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Full(Node),
    Delta(Delta),
}

/// What a node differs in from a base.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Delta {
    pub level: u8,
    /// A node that is stored full.
    pub base: NodeName,
    changes: Vec<(u16, Option<Name>)>,
}

impl Delta {
    /// None if the nodes differ in too many entries, or not at all.
    pub fn between(base: &Node, base_name: NodeName, node: &Node) -> Option<Self> {
        if base.level != node.level {
            return None;
        }
        let mut changes = Vec::new();
        for index in 0..FANOUT {
            let new = node.get(index);
            if new != base.get(index) {
                if changes.len() == CHANGES_MAX {
                    return None;
                }
                changes.push((index as u16, new));
            }
        }
        (!changes.is_empty()).then_some(Self { level: node.level, base: base_name, changes })
    }

    /// The node, if this is its base.
    pub fn apply(&self, base: &Node) -> Result<Node, String> {
        if base.level != self.level {
            return Err(format!("a base of level {} under a node of level {}", base.level, self.level));
        }
        let mut entries = base.entries();
        self.changes.iter().for_each(|(index, name)| entries[usize::from(*index)] = *name);
        Node::new(self.level, &entries).ok_or_else(|| "a node without entries".into())
    }
}

impl Stored {
    pub fn encode_full(node: &Node) -> Vec<u8> {
        [&[FORM_FULL], node.encode().as_slice()].concat()
    }

    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Full(node) => Self::encode_full(node),
            Self::Delta(delta) => {
                let mut bytes = vec![FORM_DELTA, delta.level];
                bytes.extend(delta.base.as_bytes());
                bytes.extend((delta.changes.len() as u16).to_le_bytes());
                for (index, name) in &delta.changes {
                    match name {
                        Some(name) => {
                            bytes.extend(index.to_le_bytes());
                            bytes.extend(name);
                        }
                        None => bytes.extend((index | REMOVED).to_le_bytes()),
                    }
                }
                bytes
            }
        }
    }

    /// The error says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        match bytes.first() {
            Some(&FORM_FULL) => Node::decode(&bytes[1..]).map(Self::Full),
            Some(&FORM_DELTA) => decode_delta(bytes).map(Self::Delta),
            form => Err(format!("a node of form {form:?}")),
        }
    }
}

fn decode_delta(bytes: &[u8]) -> Result<Delta, String> {
    const HEADER: usize = 36;
    if bytes.len() < HEADER {
        return Err("a delta without a header".into());
    }
    let level = check_level(bytes[1])?;
    let base = NodeName(name_at(bytes, 2));
    let count = usize::from(u16_at(bytes, 34));
    if !(1..=CHANGES_MAX).contains(&count) {
        return Err(format!("a delta of {count} changes"));
    }
    let mut rest = &bytes[HEADER..];
    let mut changes = Vec::with_capacity(count);
    for _ in 0..count {
        let (index, after) = rest.split_first_chunk::<2>().ok_or("a delta that ends early")?;
        let index = u16::from_le_bytes(*index);
        let (at, name) = (index & !REMOVED, index & REMOVED == 0);
        let rising = changes.last().is_none_or(|(last, _)| *last < at);
        if usize::from(at) >= FANOUT || !rising {
            return Err(format!("a delta with a change at {at}"));
        }
        rest = after;
        let name = if name {
            let (name, after) = rest.split_first_chunk::<32>().ok_or("a delta that ends early")?;
            rest = after;
            Some(*name)
        } else {
            None
        };
        changes.push((at, name));
    }
    if !rest.is_empty() {
        return Err("a delta with more than its changes".into());
    }
    Ok(Delta { level, base, changes })
}

fn check_level(level: u8) -> Result<u8, String> {
    if level > LEVEL_MAX { Err(format!("a node of level {level}")) } else { Ok(level) }
}
