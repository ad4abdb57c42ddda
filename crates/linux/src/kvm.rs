//! A guest without an operating system under KVM, and KVM's notes of the pages that it writes (Documentation/virt/kvm/api.rst: 4.8, 4.117, 7.37, 8.29).
//!
//! Its processors do nothing but store numbers at addresses from a list. It is there to find out what KVM's dirty log and dirty ring see; machines are
//! run by QEMU.

use crate::Mapping;
use kvm_bindings::{
    KVM_CAP_DIRTY_LOG_RING, KVM_CAP_DIRTY_LOG_RING_ACQ_REL, KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, KVM_CAP_READONLY_MEM,
    KVM_DIRTY_LOG_PAGE_OFFSET, KVM_EXIT_DIRTY_RING_FULL, KVM_MEM_LOG_DIRTY_PAGES, KVM_MEM_READONLY, kvm_clear_dirty_log, kvm_dirty_gfn,
    kvm_enable_cap, kvm_regs, kvm_segment, kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};
use std::{
    io,
    ops::Range,
    os::fd::AsRawFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

const PAGE: u64 = 4096;
const MEMORY_SLOT: u32 = 0;
const PROGRAM_SLOT: u32 = 1;
/// Entries of the ring of one processor. A KVM without help of the processor was seen to go on past the mark at which it must stop, and over entries
/// that nobody had read; so there is room for many more than we leave in it.
const RING_ENTRIES: usize = 16 * 1024;
/// A flat 32-bit program: takes ECX pairs of address and value from EBX on, and stores each value at its address.
#[rustfmt::skip]
const PROGRAM: [u8; 14] = [
    0x8b, 0x03,         // mov eax, [ebx]
    0x8b, 0x53, 0x04,   // mov edx, [ebx+4]
    0x89, 0x10,         // mov [eax], edx
    0x83, 0xc3, 0x08,   // add ebx, 8
    0x49,               // dec ecx
    0x75, 0xf3,         // jnz to the beginning
    0xf4,               // hlt
];
/// Pairs that a processor takes at a time: one page of them.
const PAIRS_MAX: usize = (PAGE / 8) as usize;
/// `_IOWR(KVMIO, 0xc0, struct kvm_clear_dirty_log)`
const KVM_CLEAR_DIRTY_LOG: u64 = (3 << 30) | ((size_of::<kvm_clear_dirty_log>() as u64) << 16) | (0xAE << 8) | 0xC0;
/// `_IO(KVMIO, 0xc7)`
const KVM_RESET_DIRTY_RINGS: u64 = (0xAE << 8) | 0xC7;

/// How KVM notes what processors write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noting {
    /// A bit for each page, fetched and cleared by system calls.
    Log,
    /// A ring of page numbers for each processor, in memory that is shared with the kernel.
    Ring,
    /// Every store: the memory is read-only to the processors, KVM decodes what they want to write, and we write it before they go on.
    Stores,
}

/// The guest. Its memory is a file of ours from address 0 on.
#[derive(Debug)]
pub struct FlatGuest {
    vm: VmFd,
    notes: Notes,
    /// After KVM has let go of them.
    memory: Mapping,
    program: Mapping,
}

#[derive(Debug)]
enum Notes {
    Log {
        separate_clear: bool,
    },
    Ring(Mutex<Rings>),
    /// Byte offsets.
    Stores(Mutex<Vec<Range<u64>>>),
}

#[derive(Debug, Default)]
struct Rings {
    rings: Vec<Ring>,
    /// Taken out of a ring that was full.
    found: Vec<u64>,
}

/// One of the guest's processors.
#[derive(Debug)]
pub struct Processor {
    guest: Arc<FlatGuest>,
    number: u64,
    vcpu: VcpuFd,
}

impl FlatGuest {
    /// A guest with this many processors, whose memory are the first `bytes` of a file. `Unsupported` where KVM cannot note in this way.
    pub fn new(file: impl std::os::fd::AsFd, bytes: u64, processors: u64, noting: Noting) -> io::Result<(Arc<Self>, Vec<Processor>)> {
        let kvm = Kvm::new()?;
        let vm = kvm.create_vm()?;
        let notes = notes(&vm, noting)?;
        let memory = Mapping::new(file, bytes)?;
        let code = memfd_create("fermata-flat", MemfdFlags::CLOEXEC)?;
        // A page of program, and one of pairs for each processor.
        let code_bytes = (1 + processors) * PAGE;
        ftruncate(&code, code_bytes)?;
        rustix::io::pwrite(&code, &PROGRAM, 0)?;
        let program = Mapping::new(&code, code_bytes)?;
        let region = |slot, flags, address, mapping: &Mapping| kvm_userspace_memory_region {
            slot,
            flags,
            guest_phys_addr: address,
            memory_size: mapping.range().end - mapping.range().start,
            userspace_addr: mapping.range().start,
        };
        let watched = if matches!(notes, Notes::Stores(_)) { KVM_MEM_READONLY } else { KVM_MEM_LOG_DIRTY_PAGES };
        // SAFETY: both mappings are dropped after the machine, by the order of the fields, and are never borrowed as plain memory.
        unsafe {
            vm.set_user_memory_region(region(MEMORY_SLOT, watched, 0, &memory))?;
            vm.set_user_memory_region(region(PROGRAM_SLOT, 0, bytes, &program))?;
        }
        let vcpus = (0..processors).map(|number| vm.create_vcpu(number)).collect::<Result<Vec<_>, _>>()?;
        if let Notes::Ring(rings) = &notes {
            let mut rings = rings.lock().expect("nobody panics with the lock");
            rings.rings = vcpus.iter().map(Ring::new).collect::<io::Result<_>>()?;
        }
        let guest = Arc::new(Self { vm, notes, memory, program });
        let processors = (0..).zip(vcpus).map(|(number, vcpu)| Processor { guest: guest.clone(), number, vcpu });
        Ok((guest.clone(), processors.collect()))
    }

    /// Where its memory is mapped here: processors write there, and nobody else does.
    pub fn memory(&self) -> Range<u64> {
        self.memory.range()
    }

    /// Calls `each` with stretches of the memory, as byte offsets, that processors have written since the last call; from now on they are noted again.
    /// What a processor that is running has written last may be left for the next call. Where stores are noted, the stretches are theirs; else they are pages.
    pub fn take_written(&self, mut each: impl FnMut(Range<u64>)) -> io::Result<()> {
        match &self.notes {
            Notes::Log { separate_clear } => {
                let bytes = self.memory.range().end - self.memory.range().start;
                let mut bits = self.vm.get_dirty_log(MEMORY_SLOT, bytes as usize)?;
                if *separate_clear {
                    self.clear(&mut bits, bytes / PAGE)?;
                }
                for (word, bits) in (0_u64..).zip(bits) {
                    (0..64).filter(|bit| bits & 1 << bit != 0).map(|bit| (word * 64 + bit) * PAGE).for_each(|at| each(at..at + PAGE));
                }
            }
            Notes::Ring(rings) => {
                let mut rings = rings.lock().expect("nobody panics with the lock");
                rings.harvest(&self.vm)?;
                rings.found.drain(..).for_each(|page| each(page * PAGE..(page + 1) * PAGE));
            }
            Notes::Stores(stores) => {
                let stores = std::mem::take(&mut *stores.lock().expect("nobody panics with the lock"));
                stores.into_iter().for_each(each);
            }
        }
        Ok(())
    }

    /// So that they never run full.
    fn empty_rings(&self) -> io::Result<()> {
        match &self.notes {
            Notes::Log { .. } | Notes::Stores(_) => Ok(()),
            Notes::Ring(rings) => rings.lock().expect("nobody panics with the lock").harvest(&self.vm),
        }
    }

    /// Does what a processor wanted to write to read-only memory.
    fn store(&self, offset: u64, content: &[u8]) -> io::Result<()> {
        let Notes::Stores(stores) = &self.notes else {
            return Err(io::Error::other(format!("a processor writes to {offset:#x}, where it has no memory")));
        };
        self.memory.store(offset, content);
        // Afterwards: who takes in between has the old content, and must hear of it again.
        stores.lock().expect("nobody panics with the lock").push(offset..offset + content.len() as u64);
        Ok(())
    }

    /// Forgets these bits of the log, and protects their pages: from here on, and not from the reading on, writes are noted anew.
    fn clear(&self, bits: &mut [u64], pages: u64) -> io::Result<()> {
        let mut arg = kvm_clear_dirty_log { slot: MEMORY_SLOT, num_pages: pages as u32, first_page: 0, ..Default::default() };
        arg.__bindgen_anon_1.dirty_bitmap = bits.as_mut_ptr().cast();
        // SAFETY: the kernel reads as many bits as the slot has pages; there are as many, as it has written them there itself.
        match unsafe { libc::ioctl(self.vm.as_raw_fd(), KVM_CLEAR_DIRTY_LOG, &arg) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn notes(vm: &VmFd, noting: Noting) -> io::Result<Notes> {
    let has = |capability: u32| vm.check_extension_raw(capability.into());
    let enable = |capability, value| {
        let mut wanted = kvm_enable_cap { cap: capability, ..Default::default() };
        wanted.args[0] = value;
        vm.enable_cap(&wanted)
    };
    Ok(match noting {
        Noting::Log => {
            let separate_clear = has(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2) > 0;
            if separate_clear {
                // KVM_DIRTY_LOG_MANUAL_PROTECT_ENABLE alone: with INITIALLY_SET every page would count as written at first.
                enable(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2, 1)?;
            }
            Notes::Log { separate_clear }
        }
        Noting::Ring => {
            let capability = [KVM_CAP_DIRTY_LOG_RING_ACQ_REL, KVM_CAP_DIRTY_LOG_RING].into_iter().find(|capability| has(*capability) > 0);
            let capability = capability.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "this KVM has no dirty ring"))?;
            enable(capability, (RING_ENTRIES * size_of::<kvm_dirty_gfn>()) as u64)?;
            Notes::Ring(Mutex::default())
        }
        Noting::Stores if has(KVM_CAP_READONLY_MEM) > 0 => Notes::Stores(Mutex::default()),
        Noting::Stores => return Err(io::Error::new(io::ErrorKind::Unsupported, "this KVM has no read-only memory")),
    })
}

impl Rings {
    /// Takes all entries out, then protects their pages again. A page that is written in between is among them; who copies it does so after this.
    fn harvest(&mut self, vm: &VmFd) -> io::Result<()> {
        let Self { rings, found } = self;
        rings.iter_mut().try_for_each(|ring| ring.drain(|page| found.push(page)))?;
        // SAFETY: the request has no argument.
        match unsafe { libc::ioctl(vm.as_raw_fd(), KVM_RESET_DIRTY_RINGS, 0) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The ring of one processor: the kernel marks entries as dirty, we mark them as taken, and the kernel takes them back.
#[derive(Debug)]
struct Ring {
    start: u64,
    next: usize,
}

impl Ring {
    const BYTES: usize = RING_ENTRIES * size_of::<kvm_dirty_gfn>();
    const DIRTY: u32 = 1;
    const TAKEN: u32 = 2;

    fn new(vcpu: &VcpuFd) -> io::Result<Self> {
        // SAFETY: the descriptor lives through the call, and is only lent to it.
        let vcpu = unsafe { std::os::fd::BorrowedFd::borrow_raw(vcpu.as_raw_fd()) };
        let offset = u64::from(KVM_DIRTY_LOG_PAGE_OFFSET) * PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice; nobody else knows it.
        let start = unsafe { mmap(std::ptr::null_mut(), Self::BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, vcpu, offset)? };
        Ok(Self { start: start as u64, next: 0 })
    }

    fn drain(&mut self, mut each: impl FnMut(u64)) -> io::Result<()> {
        for _ in 0..RING_ENTRIES {
            let entry = (self.start as usize + self.next * size_of::<kvm_dirty_gfn>()) as *mut kvm_dirty_gfn;
            // SAFETY: within the mapping, as `next` stays below the number of entries; the kernel and we share the flags as an atomic.
            let flags = unsafe { AtomicU32::from_ptr(&raw mut (*entry).flags) };
            if flags.load(Ordering::Acquire) & Self::DIRTY == 0 {
                return Ok(());
            }
            // SAFETY: the kernel has written the entry before it set the flag, and leaves it alone until we mark it as taken.
            let (slot, page) = unsafe { ((*entry).slot, (*entry).offset) };
            if slot == MEMORY_SLOT {
                each(page);
            }
            flags.store(Self::TAKEN, Ordering::Release);
            self.next = (self.next + 1) % RING_ENTRIES;
        }
        Err(io::Error::other("a dirty ring is full to the last entry: KVM has written over some"))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`, to which no reference was handed out.
        let _ = unsafe { munmap(self.start as *mut _, Self::BYTES) };
    }
}

impl Processor {
    /// Runs until it has stored all values, each at its offset in the memory.
    pub fn write(&mut self, writes: &[(u64, u32)]) -> io::Result<()> {
        writes.chunks(PAIRS_MAX).try_for_each(|some| {
            self.run(some)?;
            self.guest.empty_rings()
        })
    }

    fn run(&mut self, writes: &[(u64, u32)]) -> io::Result<()> {
        let bytes = self.guest.memory.range().end - self.guest.memory.range().start;
        let pairs = (1 + self.number) * PAGE;
        for (nth, (offset, value)) in (0..).zip(writes) {
            assert!(offset + 4 <= bytes, "{offset:#x} is not in the memory");
            self.guest.program.write(pairs + nth * 8, offset | u64::from(*value) << 32);
        }
        let mut special = self.vcpu.get_sregs()?;
        let flat = kvm_segment { limit: u32::MAX, selector: 16, type_: 3, present: 1, s: 1, db: 1, g: 1, ..Default::default() };
        special.cs = kvm_segment { selector: 8, type_: 11, ..flat };
        [special.ds, special.es, special.ss, special.fs, special.gs] = [flat; 5];
        special.cr0 |= 1;
        self.vcpu.set_sregs(&special)?;
        let start = kvm_regs { rip: bytes, rbx: bytes + pairs, rcx: writes.len() as u64, rflags: 2, ..Default::default() };
        self.vcpu.set_regs(&start)?;
        loop {
            match self.vcpu.run()? {
                VcpuExit::Hlt => return Ok(()),
                VcpuExit::MmioWrite(offset, content) => self.guest.store(offset, content)?,
                VcpuExit::Unsupported(reason) if reason == KVM_EXIT_DIRTY_RING_FULL => {
                    self.guest.empty_rings()?;
                }
                other => return Err(io::Error::other(format!("the processor stopped: {other:?}"))),
            }
        }
    }
}
