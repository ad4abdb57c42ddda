//! The note: lines of text that the kernel wrote about itself when it booted (Linux `kernel/crash_core.c`, later `kernel/vmcore_info.c`, and
//! `Documentation/admin-guide/kdump/vmcoreinfo.rst`).

use crate::Unknown;
use std::collections::BTreeMap;

/// Longest note that is read. Linux has a page for it.
pub(crate) const NOTE_BYTES_MAX: u64 = 16 << 10;
const LINES_MAX: usize = 1024;
/// The head of an ELF note: lengths of name and description, and a type; then the name, padded to words.
const HEAD: usize = 12;
const NAME: &[u8] = b"VMCOREINFO\0";
/// Where the kernel's image is mapped (`__START_KERNEL_map`).
pub(crate) const IMAGE: u64 = 0xffff_ffff_8000_0000;
/// Bits of `flags` in a descriptor.
const FLAG_BITS: u64 = 64;

/// What says that a page belongs to the allocator of small objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlabMark {
    /// A bit of `flags`, before Linux 6.10.
    Flag(u32),
    /// A value in place of the map count.
    Type(u32),
    /// Nothing.
    None,
}

/// How the descriptor of a page table is marked. The note does not say; it follows from how the mark of free pages is made (`PG_table` beside `PG_buddy` in
/// `include/linux/page-flags.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableMark {
    /// This bit is clear and the ones above are set: to Linux 6.11.
    Clear(u32),
    /// The top byte: since Linux 6.12.
    Top(u8),
    /// Unknown.
    None,
}

/// Where the kernel keeps account of its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// The address of an array of pointers, and its length.
    Array(u64, u64),
    /// The only one.
    One(u64),
}

/// What the note says, as far as it is needed, checked for being possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The kernel's own top page table, guest-physical.
    pub top: u64,
    pub five_levels: bool,
    /// Virtual address of the array of pointers to arrays of sections, and its length.
    pub section_roots: u64,
    pub section_roots_len: u64,
    /// Bytes of a section's description, and where in it the pointer to the descriptors is.
    pub section_size: u64,
    pub section_map: u64,
    /// Pages of a section are 2 to this power.
    pub section_bits: u32,
    /// Bytes of a descriptor, and offsets in it.
    pub size: u64,
    pub flags: usize,
    pub refcount: usize,
    pub mapcount: usize,
    pub mapping: usize,
    pub private: usize,
    pub compound_head: usize,
    /// The map count of the first page of a free block.
    pub buddy: u32,
    /// Orders that free blocks may have.
    pub orders: u64,
    pub lru: u32,
    pub swapbacked: u32,
    pub slab: SlabMark,
    pub table: TableMark,
    pub nodes: Nodes,
    pub node_zones: u64,
    pub nr_zones: u64,
    pub zone_size: u64,
    /// Where a zone counts its free pages.
    pub free_pages: u64,
}

impl Facts {
    /// Reads a note with its head.
    pub fn parse(note: &[u8]) -> Result<Self, Unknown> {
        let lines = Lines::new(description(note)?)?;
        if lines.text("PAGESIZE")? != "4096" {
            return Err("its pages are not of 4096 bytes".to_owned());
        }
        if lines.optional("NUMBER(sme_mask)").is_some_and(|mask| mask != "0") {
            return Err("its memory is encrypted".to_owned());
        }
        let size = lines.within("SIZE(page)", 32, 128)?;
        let field = |name: &str, width: u64| {
            let at = lines.within(&format!("OFFSET(page.{name})"), 0, size - width)?;
            if at % width == 0 { Ok(at as usize) } else { Err(impossible(name)) }
        };
        let buddy = lines.number("NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)")? as u32;
        let section_size = lines.within("SIZE(mem_section)", 8, 4096)?;
        let bit = |name: &str| lines.within(name, 0, FLAG_BITS - 1).map(|bit| bit as u32);
        let facts = Self {
            top: (lines.hex("SYMBOL(init_top_pgt)")?.wrapping_sub(IMAGE)).wrapping_add(lines.number("NUMBER(phys_base)")? as u64),
            five_levels: lines.optional("NUMBER(pgtable_l5_enabled)") == Some("1"),
            section_roots: lines.hex("SYMBOL(mem_section)")?,
            section_roots_len: lines.within("LENGTH(mem_section)", 1, 1 << 24)?,
            section_size,
            section_map: lines.within("OFFSET(mem_section.section_mem_map)", 0, section_size - 8)?,
            section_bits: lines.within("NUMBER(SECTION_SIZE_BITS)", 22, 40)? as u32 - 12,
            size,
            flags: field("flags", 8)?,
            refcount: field("_refcount", 4)?,
            mapcount: field("_mapcount", 4)?,
            mapping: field("mapping", 8)?,
            private: field("private", 8)?,
            compound_head: field("compound_head", 8)?,
            buddy,
            orders: lines.within("LENGTH(zone.free_area)", 1, 32)?,
            lru: bit("NUMBER(PG_lru)")?,
            swapbacked: bit("NUMBER(PG_swapbacked)")?,
            slab: lines.slab()?,
            table: table_mark(buddy),
            nodes: lines.nodes()?,
            node_zones: lines.within("OFFSET(pglist_data.node_zones)", 0, 1 << 20)?,
            nr_zones: lines.within("OFFSET(pglist_data.nr_zones)", 0, 1 << 20)?,
            zone_size: lines.within("SIZE(zone)", 8, 1 << 16)?,
            free_pages: lines.within("OFFSET(zone.vm_stat)", 0, 1 << 16)? + 8 * lines.within("NUMBER(NR_FREE_PAGES)", 0, 256)?,
        };
        // Bits that a map count never has tell a type from a count; a descriptor of a page in use must not look like one of a free block.
        if facts.buddy >> 31 == 0 || facts.buddy == u32::MAX {
            return Err(impossible("PAGE_BUDDY_MAPCOUNT_VALUE"));
        }
        Ok(facts)
    }
}

fn impossible(name: &str) -> Unknown {
    format!("its kernel's note has an impossible {name}")
}

fn table_mark(buddy: u32) -> TableMark {
    match buddy {
        0xffff_ff7f => TableMark::Clear(0x200),
        0xbfff_ffff => TableMark::Clear(0x1000_0000),
        0xf000_0000 => TableMark::Top(0xf2),
        _ => TableMark::None,
    }
}

/// The text in a note.
fn description(note: &[u8]) -> Result<&[u8], Unknown> {
    let word = |at: usize| Some(u32::from_le_bytes(note.get(at..at + 4)?.try_into().ok()?));
    let start = HEAD + NAME.len().next_multiple_of(4);
    let text = || {
        let (name, length, kind) = (word(0)?, word(4)?, word(8)?);
        let named = name as usize == NAME.len() && kind == 0 && note.get(HEAD..HEAD + NAME.len())? == NAME;
        note.get(start..start.checked_add(length as usize)?).filter(|_| named)
    };
    text().ok_or_else(|| "where its kernel's note should be is something else".to_owned())
}

struct Lines<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Lines<'a> {
    fn new(text: &'a [u8]) -> Result<Self, Unknown> {
        let text = std::str::from_utf8(text).map_err(|_| "its kernel's note is no text".to_owned())?;
        let lines = text.lines().take(LINES_MAX).filter_map(|line| line.split_once('='));
        Ok(Self(lines.collect()))
    }

    fn optional(&self, key: &str) -> Option<&'a str> {
        self.0.get(key).copied()
    }

    fn text(&self, key: &str) -> Result<&'a str, Unknown> {
        self.optional(key).ok_or_else(|| format!("its kernel's note does not say {key}"))
    }

    fn number(&self, key: &str) -> Result<i64, Unknown> {
        self.text(key)?.parse().map_err(|_| impossible(key))
    }

    fn hex(&self, key: &str) -> Result<u64, Unknown> {
        u64::from_str_radix(self.text(key)?, 16).map_err(|_| impossible(key))
    }

    fn within(&self, key: &str, least: u64, most: u64) -> Result<u64, Unknown> {
        let number = u64::try_from(self.number(key)?).ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| impossible(key))
    }

    fn slab(&self) -> Result<SlabMark, Unknown> {
        if self.optional("NUMBER(PG_slab)").is_some() {
            return Ok(SlabMark::Flag(self.within("NUMBER(PG_slab)", 0, FLAG_BITS - 1)? as u32));
        }
        match self.optional("NUMBER(PAGE_SLAB_MAPCOUNT_VALUE)") {
            Some(_) => Ok(SlabMark::Type(self.number("NUMBER(PAGE_SLAB_MAPCOUNT_VALUE)")? as u32)),
            None => Ok(SlabMark::None),
        }
    }

    fn nodes(&self) -> Result<Nodes, Unknown> {
        match self.optional("SYMBOL(node_data)") {
            Some(_) => Ok(Nodes::Array(self.hex("SYMBOL(node_data)")?, self.within("LENGTH(node_data)", 1, 1 << 12)?)),
            None => Ok(Nodes::One(self.hex("SYMBOL(contig_page_data)")?)),
        }
    }
}
