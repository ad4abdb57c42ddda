//! What lies in the way of an interrupt: the memory that a processor reads and writes until the kernel's handler begins (Intel SDM volume 3, sections 4.5 and 6.14).

use crate::{
    Memory, MemoryMap,
    walk::{Reader, Tables},
};
use fermata_types::PageSet;

/// Bytes of the table of interrupts, and what a kernel uses of the global one.
const TABLE: u64 = 256 * 16;
const GLOBAL: u64 = 16 * 8;
/// Bytes of a task's state, and where in it the stack is that the kernel begins on when it interrupts a program.
const TASK: u64 = 0x68;
const KERNEL_STACK: u64 = 4;
/// What an interrupt pushes: five words, a code, and room to align them.
const PUSHED: u64 = 64;

/// Registers of a processor in 64-bit mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterruptRegisters {
    /// Guest-physical address of its page tables (CR3).
    pub tables: u64,
    /// They have five levels (CR4.LA57).
    pub five_levels: bool,
    /// Its stack pointer.
    pub stack: u64,
    /// Address of the table of interrupts (IDTR).
    pub interrupts: u64,
    /// Of the global table (GDTR).
    pub global: u64,
    /// Of the task's state (TR).
    pub task: u64,
}

/// The pages that its next interrupt needs, and the page tables that lead to them. What leads nowhere is left out: nobody is to believe this to be all.
pub fn interrupt_pages(memory: &mut dyn Memory, map: MemoryMap, registers: &InterruptRegisters) -> PageSet {
    let mut reader = Reader::new(memory, map);
    let tables = Tables { top: registers.tables & !0xfff, depth: if registers.five_levels { 4 } else { 3 } };
    // It is on one of these: the stack of who is interrupted, or the one that the kernel begins on.
    let kernel_stack = reader.word(tables, registers.task.wrapping_add(KERNEL_STACK));
    let stacks = [Some(registers.stack), kernel_stack.ok()].into_iter().flatten().map(|top| (top.wrapping_sub(PUSHED), PUSHED));
    let whole = [(registers.interrupts, TABLE), (registers.global, GLOBAL), (registers.task, TASK)].into_iter().chain(stacks);
    for (from, bytes) in whole {
        for address in [from, from.wrapping_add(bytes - 1)] {
            // Looked at, it is among the pages; what it says is nothing to us.
            let _ = reader.virtually(tables, address, &mut [0]);
        }
    }
    reader.looked_at
}
