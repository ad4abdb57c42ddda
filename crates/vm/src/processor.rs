//! The registers of a guest's processors, as QEMU's device state has them (`target/i386/machine.c`), and as the notes of a core file tell them.
//!
//! A section does not say how long it is, so the next one is looked for behind what is read of the one before. A guest that puts what looks like a section into
//! registers of its own that lie further behind gives wrong registers to whoever reads its core file, and no more.

use crate::device_state::{PROCESSOR, PROCESSOR_VERSIONS, SECTION_FULL};
use fermata_guest::InterruptRegisters;

/// What a processor's registers are, numbered as QEMU does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Processor {
    /// ax, cx, dx, bx, sp, bp, si, di, 8 to 15.
    general: [u64; 16],
    instruction: u64,
    flags: u64,
    /// es, cs, ss, ds, fs, gs, and those of the tables: local, task, global, interrupts.
    segments: [Segment; 10],
    /// 0 to 4; there is no 1.
    control: [u64; 5],
    kernel_gs_base: u64,
}

/// A segment register, or that of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Segment {
    selector: u32,
    base: u64,
    limit: u32,
    flags: u32,
}

/// Numbers of general registers.
const AX: usize = 0;
const CX: usize = 1;
const DX: usize = 2;
const BX: usize = 3;
const SP: usize = 4;
const BP: usize = 5;
const SI: usize = 6;
const DI: usize = 7;

/// Numbers of segments.
const ES: usize = 0;
const CS: usize = 1;
const SS: usize = 2;
const DS: usize = 3;
const FS: usize = 4;
const GS: usize = 5;
const LOCAL: usize = 6;
const TASK: usize = 7;
const GLOBAL: usize = 8;
const INTERRUPTS: usize = 9;

/// Bits of control registers 0 and 4, and where 3 says where the page tables are (Intel SDM volume 3, section 2.5).
const PAGING: u64 = 1 << 31;
const LONG_ENTRIES: u64 = 1 << 5;
const FIVE_LEVELS: u64 = 1 << 12;
const TABLES: u64 = 0x000f_ffff_ffff_f000;

/// The section's name is followed by the number of the processor and a version.
const HEAD: usize = 8;
/// Control bits of the translator, and the old floating-point unit: four short registers and eight of ten bytes.
const BEFORE_SEGMENTS: usize = 4 + 4 * 2 + 8 * 10;
/// What system calls of 32 bits need.
const BEFORE_CONTROL: usize = 4 + 2 * 8;
/// Debug registers, a mask of addresses, the control of the vector unit, its registers; then what system calls of 64 bits need.
const BEFORE_KERNEL_GS: usize = 8 * 8 + 4 + 4 + 16 * 16 + 5 * 8;

/// The processors in a device state, in order. None from the first on that cannot be read.
pub(crate) fn processors(state: &[u8], count: u32) -> Vec<Processor> {
    let mut found = Vec::new();
    let mut rest = state;
    while (found.len() as u32) < count
        && let Some(at) = rest.windows(PROCESSOR.len()).position(|window| window == PROCESSOR)
    {
        // Before the name are the kind of the section and its number.
        let is_section = at.checked_sub(5).is_some_and(|kind| rest[kind] == SECTION_FULL);
        let section = &rest[at + PROCESSOR.len()..];
        match Processor::read(section, found.len() as u32).filter(|_| is_section) {
            Some((processor, behind)) => {
                found.push(processor);
                rest = behind;
            }
            None => rest = section,
        }
    }
    found
}

/// Takes numbers off the front of a section, which is big-endian.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn word(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn long(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    fn longs<const N: usize>(&mut self) -> Option<[u64; N]> {
        let mut longs = [0; N];
        for long in &mut longs {
            *long = self.long()?;
        }
        Some(longs)
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }

    fn segment(&mut self) -> Option<Segment> {
        Some(Segment { selector: self.word()?, base: self.long()?, limit: self.word()?, flags: self.word()? })
    }
}

impl Processor {
    /// Reads what follows the section's name, if it is of the processor of this number; and what is behind.
    fn read(section: &[u8], number: u32) -> Option<(Self, &[u8])> {
        let mut fields = Fields(section);
        let (instance, version) = (fields.word()?, fields.word()?);
        debug_assert_eq!(section.len() - fields.0.len(), HEAD);
        if instance != number || !PROCESSOR_VERSIONS.contains(&version) {
            return None;
        }
        let (general, instruction, flags) = (fields.longs()?, fields.long()?, fields.long()?);
        fields.skip(BEFORE_SEGMENTS)?;
        let mut segments = [Segment::default(); 10];
        for segment in &mut segments {
            *segment = fields.segment()?;
        }
        fields.skip(BEFORE_CONTROL)?;
        let [zero, two, three, four] = fields.longs()?;
        fields.skip(BEFORE_KERNEL_GS)?;
        let kernel_gs_base = fields.long()?;
        let processor = Self { general, instruction, flags, segments, control: [zero, 0, two, three, four], kernel_gs_base };
        Some((processor, &section[section.len() - fields.0.len()..]))
    }

    /// What an interrupt reads of it. None if it is not in 64-bit mode, as far as can be seen: it has no page tables of that kind.
    pub fn interrupt_registers(&self) -> Option<InterruptRegisters> {
        let [zero, _, _, three, four] = self.control;
        let base = |which: usize| self.segments[which].base;
        (zero & PAGING != 0 && four & LONG_ENTRIES != 0).then(|| InterruptRegisters {
            tables: three & TABLES,
            five_levels: four & FIVE_LEVELS != 0,
            stack: self.general[SP],
            interrupts: base(INTERRUPTS),
            global: base(GLOBAL),
            task: base(TASK),
        })
    }

    /// The note `NT_PRSTATUS` of Linux on x86-64 (`struct elf_prstatus`): of all that is in it, a machine's processor has its number, in place of a process id, and
    /// registers (`x86_64_elf_prstatus` in QEMU's `target/i386/arch_dump.c`).
    pub fn status(&self, number: u32) -> Vec<u8> {
        const BEFORE_NUMBER: usize = 32;
        const BEFORE_REGISTERS: usize = 76;
        const BEHIND: usize = 8;
        let g = &self.general;
        let selector = |which: usize| u64::from(self.segments[which].selector);
        // Nobody was called by a number.
        let original_ax = 0;
        let registers = [
            g[15],
            g[14],
            g[13],
            g[12],
            g[BP],
            g[BX],
            g[11],
            g[10],
            g[9],
            g[8],
            g[AX],
            g[CX],
            g[DX],
            g[SI],
            g[DI],
            original_ax,
            self.instruction,
            selector(CS),
            self.flags,
            g[SP],
            selector(SS),
            self.segments[FS].base,
            self.segments[GS].base,
            selector(DS),
            selector(ES),
            selector(FS),
            selector(GS),
        ];
        let mut note = vec![0; BEFORE_NUMBER];
        note.extend(number.to_le_bytes());
        note.resize(note.len() + BEFORE_REGISTERS, 0);
        note.extend(registers.iter().flat_map(|register| register.to_le_bytes()));
        note.resize(note.len() + BEHIND, 0);
        note
    }

    /// QEMU's own note (`QEMUCPUState` in the same file), by which `crash` and volatility find a kernel that has told nothing.
    pub fn qemu_state(&self) -> Vec<u8> {
        const VERSION: u32 = 1;
        const BYTES: usize = 8 + 18 * 8 + 10 * 24 + 5 * 8 + 8;
        let g = &self.general;
        let mut note = Vec::with_capacity(BYTES);
        note.extend([VERSION, BYTES as u32].into_iter().flat_map(u32::to_le_bytes));
        let first = [AX, BX, CX, DX, SI, DI, SP, BP].map(|which| g[which]);
        let longs = first.iter().chain(&g[8..]).chain([&self.instruction, &self.flags]);
        note.extend(longs.flat_map(|register| register.to_le_bytes()));
        for which in [CS, DS, ES, FS, GS, SS, LOCAL, TASK, GLOBAL, INTERRUPTS] {
            let Segment { selector, base, limit, flags } = self.segments[which];
            note.extend([selector, limit, flags, 0].into_iter().flat_map(u32::to_le_bytes));
            note.extend(base.to_le_bytes());
        }
        note.extend(self.control.iter().chain([&self.kernel_gs_base]).flat_map(|register| register.to_le_bytes()));
        debug_assert_eq!(note.len(), BYTES);
        note
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The section of a processor in which every field is another number.
    pub(crate) fn section(number: u32, version: u32) -> Vec<u8> {
        let mut section = vec![SECTION_FULL, 0, 0, 0, 9];
        section.extend(PROCESSOR);
        section.extend([number, version].into_iter().flat_map(u32::to_be_bytes));
        let mut next = u64::from(number) << 32;
        let mut long = || {
            next += 1;
            next
        };
        (0..18).for_each(|_| section.extend(long().to_be_bytes()));
        section.resize(section.len() + BEFORE_SEGMENTS, 0xee);
        for _ in 0..10 {
            section.extend((long() as u32).to_be_bytes());
            section.extend(long().to_be_bytes());
            section.extend([long() as u32, long() as u32].into_iter().flat_map(u32::to_be_bytes));
        }
        section.resize(section.len() + BEFORE_CONTROL, 0xee);
        (0..4).for_each(|_| section.extend(long().to_be_bytes()));
        section.resize(section.len() + BEFORE_KERNEL_GS, 0xee);
        section.extend(long().to_be_bytes());
        section.extend([0x7e, 0, 0, 0, 9]);
        section
    }

    #[test]
    fn registers_are_where_they_are() {
        let processors = processors(&[section(0, 12), section(1, 11)].concat(), 2);
        assert_eq!(processors.len(), 2);
        let first = processors[0];
        assert_eq!((first.general[AX], first.general[15], first.instruction, first.flags), (1, 16, 17, 18));
        assert_eq!(first.segments[ES], Segment { selector: 19, base: 20, limit: 21, flags: 22 });
        assert_eq!(first.segments[INTERRUPTS], Segment { selector: 55, base: 56, limit: 57, flags: 58 });
        assert_eq!((first.control, first.kernel_gs_base), ([59, 0, 60, 61, 62], 63));
        assert_eq!(processors[1].instruction, (1 << 32) + 17);
    }

    #[test]
    fn only_a_processor_in_64_bit_mode_has_what_an_interrupt_needs() {
        let mut processor = processors(&section(0, 12), 1)[0];
        assert_eq!(processor.interrupt_registers(), None);
        processor.control = [PAGING, 0, 0, 0x1_2345_6018, LONG_ENTRIES | FIVE_LEVELS];
        let expected = InterruptRegisters { tables: 0x1_2345_6000, five_levels: true, stack: 5, interrupts: 56, global: 52, task: 48 };
        assert_eq!(processor.interrupt_registers(), Some(expected));
        processor.control[4] = FIVE_LEVELS;
        assert_eq!(processor.interrupt_registers(), None);
    }

    #[test]
    fn only_sections_of_processors_count() {
        let good = section(0, 12);
        assert_eq!(processors(&good, 4).len(), 1);
        assert_eq!(processors(&good, 0), []);
        assert_eq!(processors(&section(0, 10), 1), [], "of another version");
        assert_eq!(processors(&section(1, 12), 1), [], "of another processor");
        assert_eq!(processors(&good[1..], 1), [], "in the middle of something");
        // What looks like another one among registers of the vector unit is not looked at.
        let mut odd = good.clone();
        let at = odd.len() - 5 - 8 - 200;
        let fake = &section(1, 12)[..40];
        odd[at..at + fake.len()].copy_from_slice(fake);
        odd.extend(section(1, 12));
        assert_eq!(processors(&odd, 2)[1].instruction, (1 << 32) + 17);
        for length in 0..good.len() - 5 {
            assert_eq!(processors(&good[..length], 1), [], "{length}");
        }
    }

    #[test]
    fn notes_have_the_lengths_that_readers_expect() {
        let processor = processors(&section(0, 12), 1)[0];
        let status = processor.status(1);
        assert_eq!((status.len(), status[32], &status[112 + 16 * 8..][..8]), (336, 1, &17_u64.to_le_bytes()[..]));
        let state = processor.qemu_state();
        assert_eq!((state.len(), &state[..8]), (440, &[1, 0, 0, 0, 0xb8, 1, 0, 0][..]));
    }
}
