//! An allocator whose books lie in the memory that it gives out: a program's structures go into an area and come back with it.
//!
//! ```text
//!   0        64                    512
//!   ┌────────┬─────────────────────┬───────┬─────────┬───────┬─────────┬─── ─ ─
//!   │ header │ free lists by class │ class │ block   │ class │ block   │ never used
//!   └────────┴─────────────────────┴───────┴─────────┴───────┴─────────┴─── ─ ─
//! ```
//!
//! Blocks have sizes of a few classes (powers of two and half way between), so taking and giving back are a few loads and stores, which is what a commit then has to
//! write. A block that is given back is taken again for the same class, and never joined with its neighbours. Blocks are aligned to 16 bytes.
//!
//! All offsets are checked before use: the memory may come from a checkpoint that somebody else wrote. Byte order is that of x86, little-endian.

use bytemuck::Pod;
use std::{fmt, hash, marker::PhantomData};

const MAGIC: u64 = u64::from_le_bytes(*b"fermheap");
const VERSION: u64 = 1;
/// Of the header, as byte offsets.
const AT_MAGIC: usize = 0;
const AT_VERSION: usize = 8;
const AT_TOP: usize = 16;
const AT_ROOT: usize = 24;
const AT_LISTS: usize = 64;
const CLASSES: usize = 56;
const FIRST: usize = AT_LISTS + CLASSES * 8;
/// Where blocks begin, from the beginning of the memory.
const ALIGN: usize = 16;
/// In front of each block: its class and whether it is taken, and 8 bytes that keep it aligned.
const PREFIX: usize = 16;
const TAKEN: u64 = 0xa110_ca7e_0000_0000;
const FREE: u64 = 0xf7ee_b10c_0000_0000;
const KIND: u64 = 0xffff_ffff_0000_0000;

/// What can be wrong with a heap or a use of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// There is no heap in the memory.
    #[error("there is no heap in this memory; Heap::format makes one")]
    None,
    /// Its books contradict themselves.
    #[error("the heap is damaged at byte {0}")]
    Damaged(u64),
    /// No room is left.
    #[error("the heap has no room for {0} bytes; make the area larger")]
    Full(usize),
    /// No block is so large, however much room there is.
    #[error("a block has 4 GiB at most, and {0} bytes were asked for; take several")]
    TooLarge(usize),
    /// Blocks do not lie where a value of the type would have to.
    #[error(
        "a value of this type has to lie at a multiple of {0} bytes, and blocks lie at multiples of 16 within the memory; use a type that needs less, and memory that begins at such a multiple"
    )]
    Misaligned(usize),
    /// No block begins there.
    #[error("no block that is taken begins at byte {0}")]
    NoBlock(u64),
}

/// The allocator, over memory.
#[derive(Debug)]
pub struct Heap<'a>(&'a mut [u8]);

/// Where a value of a type lies in a heap. As good in the next run of the program as in this one; may itself lie in the heap.
pub struct Placed<T> {
    offset: u64,
    kind: PhantomData<fn() -> T>,
}

impl<T> Placed<T> {
    /// The byte offset in the memory; never 0.
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// A value that lies at this offset, as another `Placed` said.
    pub fn at(offset: u64) -> Self {
        Self { offset, kind: PhantomData }
    }
}

impl<T> Clone for Placed<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Placed<T> {}

impl<T> PartialEq for Placed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.offset == other.offset
    }
}

impl<T> Eq for Placed<T> {}

impl<T> hash::Hash for Placed<T> {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        self.offset.hash(state);
    }
}

impl<T> fmt::Debug for Placed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Placed({:#x})", self.offset)
    }
}

impl<'a> Heap<'a> {
    /// Makes an empty heap of this memory, whatever was in it.
    pub fn format(memory: &'a mut [u8]) -> Result<Self, HeapError> {
        if memory.len() < FIRST + PREFIX {
            return Err(HeapError::Full(0));
        }
        memory[..FIRST].fill(0);
        let mut heap = Self(memory);
        heap.put(AT_VERSION, VERSION);
        heap.put(AT_TOP, FIRST as u64);
        heap.put(AT_MAGIC, MAGIC);
        Ok(heap)
    }

    /// The heap that is in this memory.
    pub fn open(memory: &'a mut [u8]) -> Result<Self, HeapError> {
        let heap = Self(memory);
        if heap.0.len() < FIRST + PREFIX || heap.get(AT_MAGIC) != MAGIC || heap.get(AT_VERSION) != VERSION {
            return Err(HeapError::None);
        }
        heap.top()?;
        Ok(heap)
    }

    /// The same, made if the memory has none yet and is zero where it would be.
    pub fn open_or_format(memory: &'a mut [u8]) -> Result<Self, HeapError> {
        let is_new = memory.get(..FIRST).is_some_and(|header| header.iter().all(|byte| *byte == 0));
        if is_new { Self::format(memory) } else { Self::open(memory) }
    }

    /// Takes a block of at least so many bytes; returns its offset. What is in it is undefined.
    pub fn take(&mut self, bytes: usize) -> Result<u64, HeapError> {
        let class = class_of(bytes).ok_or(HeapError::TooLarge(bytes))?;
        let list = AT_LISTS + class * 8;
        let first = self.get(list);
        if first != 0 {
            let next = self.get(self.block(first, FREE | class as u64)?);
            self.put(list, next);
            self.put(first as usize - PREFIX, TAKEN | class as u64);
            return Ok(first);
        }
        let top = self.top()?;
        let end = top.checked_add(PREFIX + size_of_class(class)).filter(|end| *end <= self.0.len()).ok_or(HeapError::Full(bytes))?;
        self.put(top, TAKEN | class as u64);
        self.put(AT_TOP, end as u64);
        Ok((top + PREFIX) as u64)
    }

    /// Gives a block back.
    pub fn give(&mut self, offset: u64) -> Result<(), HeapError> {
        let (block, class) = self.taken(offset)?;
        let list = AT_LISTS + class * 8;
        self.put(block, self.get(list));
        self.put(block - PREFIX, FREE | class as u64);
        self.put(list, offset);
        Ok(())
    }

    /// Bytes of a block, which may be more than were asked for.
    pub fn size(&self, offset: u64) -> Result<usize, HeapError> {
        Ok(size_of_class(self.taken(offset)?.1))
    }

    /// The bytes of a block.
    pub fn bytes(&mut self, offset: u64) -> Result<&mut [u8], HeapError> {
        let (block, class) = self.taken(offset)?;
        Ok(&mut self.0[block..block + size_of_class(class)])
    }

    /// Puts a value into a block of its own.
    pub fn place<T: Pod>(&mut self, value: T) -> Result<Placed<T>, HeapError> {
        self.check_alignment::<T>()?;
        let placed = Placed::at(self.take(size_of::<T>())?);
        *self.value_mut(placed)? = value;
        Ok(placed)
    }

    /// A value.
    pub fn value<T: Pod>(&self, placed: Placed<T>) -> Result<&T, HeapError> {
        let block = self.fitting::<T>(placed.offset)?;
        Ok(bytemuck::from_bytes(&self.0[block..block + size_of::<T>()]))
    }

    /// A value, to be changed.
    pub fn value_mut<T: Pod>(&mut self, placed: Placed<T>) -> Result<&mut T, HeapError> {
        let block = self.fitting::<T>(placed.offset)?;
        Ok(bytemuck::from_bytes_mut(&mut self.0[block..block + size_of::<T>()]))
    }

    /// Where the program begins to look, after a restart too; none as long as nobody has said.
    pub fn root<T>(&self) -> Option<Placed<T>> {
        Some(self.get(AT_ROOT)).filter(|offset| *offset != 0).map(Placed::at)
    }

    /// Says where to begin.
    pub fn set_root<T>(&mut self, root: Option<Placed<T>>) {
        self.put(AT_ROOT, root.map_or(0, Placed::offset));
    }

    fn fitting<T>(&self, offset: u64) -> Result<usize, HeapError> {
        let (block, class) = self.taken(offset)?;
        self.check_alignment::<T>()?;
        if size_of::<T>() > size_of_class(class) { Err(HeapError::NoBlock(offset)) } else { Ok(block) }
    }

    /// By the type and the memory alone: a value whose block happens to lie right would not do so after a restart elsewhere.
    fn check_alignment<T>(&self) -> Result<(), HeapError> {
        let align = align_of::<T>();
        let fits = align <= ALIGN && (self.0.as_ptr() as usize).is_multiple_of(align);
        if fits { Ok(()) } else { Err(HeapError::Misaligned(align)) }
    }

    fn taken(&self, offset: u64) -> Result<(usize, usize), HeapError> {
        let no_block = HeapError::NoBlock(offset);
        let prefix = usize::try_from(offset).ok().and_then(|block| block.checked_sub(PREFIX)).ok_or(no_block)?;
        if prefix < FIRST || !offset.is_multiple_of(16) || prefix + PREFIX > self.0.len() {
            return Err(no_block);
        }
        let (kind, class) = (self.get(prefix) & KIND, (self.get(prefix) & !KIND) as usize);
        if kind != TAKEN || class >= CLASSES || prefix + PREFIX + size_of_class(class) > self.top()? {
            return Err(no_block);
        }
        Ok((prefix + PREFIX, class))
    }

    /// A block of a free list, with the prefix that it must have.
    fn block(&self, offset: u64, prefix: u64) -> Result<usize, HeapError> {
        let damaged = HeapError::Damaged(offset);
        let block = usize::try_from(offset).map_err(|_| damaged)?;
        let end = block.checked_add(size_of_class((prefix & !KIND) as usize)).ok_or(damaged)?;
        if block < FIRST + PREFIX || !block.is_multiple_of(16) || end > self.top()? || self.get(block - PREFIX) != prefix {
            return Err(damaged);
        }
        Ok(block)
    }

    fn top(&self) -> Result<usize, HeapError> {
        let top = self.get(AT_TOP);
        let fits = (FIRST as u64..=self.0.len() as u64).contains(&top) && top.is_multiple_of(16);
        if fits { Ok(top as usize) } else { Err(HeapError::Damaged(AT_TOP as u64)) }
    }

    fn get(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    fn put(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
}

/// 16, 32, 48, 64, 96, 128, ...: powers of two, and half way between from 32 on.
fn size_of_class(class: usize) -> usize {
    match class {
        0 => 16,
        1 => 32,
        _ if class.is_multiple_of(2) => 48 << (class / 2 - 1),
        _ => 64 << (class / 2 - 1),
    }
}

fn class_of(bytes: usize) -> Option<usize> {
    (0..CLASSES).find(|class| size_of_class(*class) >= bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn numbers() -> impl FnMut(u64) -> u64 {
        let mut state = 1_u64;
        move |end| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        }
    }

    #[test]
    fn classes_grow_and_are_aligned() {
        for class in 1..CLASSES {
            assert!(size_of_class(class) > size_of_class(class - 1) && size_of_class(class).is_multiple_of(16));
        }
        assert!((0..5000).all(|bytes| size_of_class(class_of(bytes).unwrap()) >= bytes));
    }

    #[test]
    fn blocks_never_overlap_and_keep_what_is_in_them() {
        let mut memory = vec![0_u64; 1 << 14];
        let memory: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
        Heap::open_or_format(memory).unwrap();
        let (mut below, mut taken) = (numbers(), BTreeMap::new());
        for round in 0..20_000_u64 {
            // As after a restart: nothing is kept outside.
            let mut heap = Heap::open_or_format(memory).unwrap();
            if below(5) < 3 {
                let bytes = below(600) as usize;
                match heap.take(bytes) {
                    Ok(offset) => {
                        heap.bytes(offset).unwrap().fill(round as u8);
                        assert!(taken.insert(offset, (heap.size(offset).unwrap(), round as u8)).is_none());
                    }
                    Err(error) => assert_eq!(error, HeapError::Full(bytes)),
                }
            } else if let Some((offset, (size, value))) = taken.range(below(1 << 17)..).next().map(|(offset, block)| (*offset, *block)) {
                assert!(heap.bytes(offset).unwrap()[..size].iter().all(|byte| *byte == value));
                heap.give(offset).unwrap();
                assert_eq!(heap.give(offset), Err(HeapError::NoBlock(offset)), "given twice");
                taken.remove(&offset);
            }
        }
        assert!(taken.len() > 50);
        let blocks: Vec<_> = taken.iter().collect();
        assert!(blocks.windows(2).all(|pair| pair[0].0 + pair[0].1.0 as u64 <= *pair[1].0));
    }

    #[test]
    fn structures_are_found_again_from_the_root() {
        let mut memory = vec![0_u64; 4096];
        let memory: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
        let mut heap = Heap::format(memory).unwrap();
        assert_eq!(heap.root::<[u64; 2]>(), None);
        // A list: value and offset of the next.
        let mut first = 0;
        for value in 0..10 {
            first = heap.place([value, first]).unwrap().offset();
        }
        heap.set_root(Some(Placed::<[u64; 2]>::at(first)));
        let mut heap = Heap::open(memory).unwrap();
        let mut at = heap.root::<[u64; 2]>().unwrap().offset();
        for value in (0..10).rev() {
            let found = *heap.value(Placed::<[u64; 2]>::at(at)).unwrap();
            assert_eq!(found[0], value);
            heap.value_mut(Placed::<[u64; 2]>::at(at)).unwrap()[0] += 100;
            at = found[1];
        }
        assert_eq!((at, heap.value(Placed::<[u64; 2]>::at(first)).unwrap()[0]), (0, 109));
        assert!(heap.value(Placed::<[u64; 64]>::at(first)).is_err(), "it is too small for that");
    }

    #[test]
    fn a_value_that_cannot_lie_in_a_block_takes_none() {
        let mut memory = vec![0_u64; 4096];
        let memory: &mut [u8] = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut memory)[4..];
        let mut heap = Heap::format(memory).unwrap();
        assert_eq!(heap.place(1_u64), Err(HeapError::Misaligned(8)));
        assert_eq!(heap.take(8), Ok((FIRST + PREFIX) as u64), "the first block is there still");
        assert!(heap.place(1_u32).is_ok());
    }

    #[test]
    fn a_block_that_no_area_has_room_for_is_not_told_to_need_a_larger_one() {
        let mut memory = vec![0_u64; 1024];
        let mut heap = Heap::format(bytemuck::cast_slice_mut(&mut memory)).unwrap();
        assert_eq!(heap.take(4 << 30), Err(HeapError::Full(4 << 30)));
        for bytes in [(4 << 30) + 1, usize::MAX] {
            assert_eq!(heap.take(bytes), Err(HeapError::TooLarge(bytes)));
        }
    }

    #[test]
    fn a_heap_that_was_tampered_with_is_refused_and_harms_nobody() {
        let mut clean = vec![0_u64; 1024];
        let mut heap = Heap::format(bytemuck::cast_slice_mut(&mut clean)).unwrap();
        let blocks: Vec<_> = (0..20).map(|nth| heap.take(nth * 7).unwrap()).collect();
        blocks.iter().step_by(2).for_each(|block| heap.give(*block).unwrap());
        let mut below = numbers();
        for _ in 0..3000 {
            let mut memory = clean.clone();
            let at = below(memory.len() as u64) as usize;
            memory[at] = [0, 1, u64::MAX, below(1 << 13), memory[at] ^ 1 << below(64)][below(5) as usize];
            let memory: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
            // What counts is that nothing panics and nothing reaches beyond.
            if let Ok(mut heap) = Heap::open(memory) {
                for block in &blocks {
                    let _ = (heap.give(*block), heap.take(100), heap.bytes(*block).map(|bytes| bytes.fill(7)));
                }
            }
        }
    }
}
