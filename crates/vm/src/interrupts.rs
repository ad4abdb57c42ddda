//! What the first interrupts of a machine need that comes back, so that it is there before they are.
//!
//! A processor that waits for a page while it takes an interrupt has QEMU's lock in QEMU 7.2's translator (`x86_cpu_exec_interrupt` in `target/i386/tcg/sysemu/seg_helper.c`): as long
//! as the page does not come, QEMU answers nothing and cannot be stopped, and the guest's clocks run on.

use crate::{MachineConfig, changed::Stored, free::memory_map, processor::processors};
use fermata_guest::interrupt_pages;
use fermata_store::{Still, Store};
use fermata_types::{PageNumber, PageSet, Root};

/// The pages of RAM that all its processors' next interrupts need. None of those that cannot be found, for whatever reason: they come when they are touched.
pub(crate) fn first_needed(store: &Store, ram: Root, config: &MachineConfig, devices: &[u8]) -> Vec<PageNumber> {
    let Ok(map) = memory_map(config) else { return Vec::new() };
    let mut memory = Stored(Still::new(store.clone(), ram, config.memory));
    let mut pages = PageSet::new();
    for registers in processors(devices, config.cpus).iter().filter_map(|processor| processor.interrupt_registers()) {
        pages |= interrupt_pages(&mut memory, map, &registers);
    }
    pages.iter().collect()
}
