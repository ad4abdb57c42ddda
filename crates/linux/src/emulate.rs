//! Doing a store elsewhere: decodes the instruction that faulted, and does what it would have done to the same byte of a second mapping.
//!
//! What is done: moves of integers and vector registers, read-modify-write of integers (locked or not; here always in one step), conditions into bytes, and
//! strings. What is not (masked vectors, x87, the stack, far too rare forms) is refused, and the caller opens the page. Nothing has been changed then.
//!
//! Runs in a signal handler: allocates nothing, takes no lock. Registers are those of the signal's context (Intel SDM vol. 1, 13.4: the layout of XSAVE).

use iced_x86::{Code, ConditionCode, Decoder, DecoderError, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use libc::ucontext_t;
use std::{
    arch::{asm, x86_64::__cpuid_count},
    ops::Range,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Carry, parity, adjust, zero, sign, overflow.
const ARITHMETIC: u64 = 0x8d5;
const DIRECTION: u64 = 0x400;
const INSTRUCTION_MAX: usize = 15;
const PAGE: u64 = 4096;
/// In the bytes that the legacy area leaves to software: they say how much there is in all (`FP_XSTATE_MAGIC1`).
const EXTENDED: u32 = 0x4650_5853;
/// Bytes of the legacy area. A processor without XSAVE has no more, and the frame ends there.
const LEGACY: u64 = 512;

const ZERO: u64 = 0x40;

/// One instruction on memory under the flags in `$flags`, which get what it leaves. `$operands` are the operands in assembler, with the memory at `{to}`.
macro_rules! flagged {
    ($text:expr, $to:expr, $flags:expr, $($more:tt)*) => {
        asm!("push {flags}", "popfq", $text, "pushfq", "pop {flags}", to = in(reg) $to, flags = inout(reg) $flags, $($more)*)
    };
}

macro_rules! with_register {
    ($name:literal, $to:expr, $bytes:expr, $value:expr, $flags:expr) => {
        match $bytes {
            1 => flagged!(concat!($name, " byte ptr [{to}], {value}"), $to, $flags, value = in(reg_byte) $value as u8),
            2 => flagged!(concat!($name, " word ptr [{to}], {value:x}"), $to, $flags, value = in(reg) $value),
            4 => flagged!(concat!($name, " dword ptr [{to}], {value:e}"), $to, $flags, value = in(reg) $value),
            _ => flagged!(concat!($name, " qword ptr [{to}], {value}"), $to, $flags, value = in(reg) $value),
        }
    };
}

macro_rules! giving_back {
    ($name:literal, $to:expr, $bytes:expr, $value:expr, $flags:expr) => {
        match $bytes {
            1 => {
                let mut byte = $value as u8;
                flagged!(concat!($name, " byte ptr [{to}], {value}"), $to, $flags, value = inout(reg_byte) byte);
                $value = byte.into();
            }
            2 => flagged!(concat!($name, " word ptr [{to}], {value:x}"), $to, $flags, value = inout(reg) $value),
            4 => flagged!(concat!($name, " dword ptr [{to}], {value:e}"), $to, $flags, value = inout(reg) $value),
            _ => flagged!(concat!($name, " qword ptr [{to}], {value}"), $to, $flags, value = inout(reg) $value),
        }
    };
}

macro_rules! compare {
    ($to:expr, $bytes:expr, $value:expr, $expected:expr, $flags:expr) => {
        match $bytes {
            1 => flagged!("lock cmpxchg byte ptr [{to}], {value}", $to, $flags, value = in(reg_byte) $value as u8, inout("rax") $expected),
            2 => flagged!("lock cmpxchg word ptr [{to}], {value:x}", $to, $flags, value = in(reg) $value, inout("rax") $expected),
            4 => flagged!("lock cmpxchg dword ptr [{to}], {value:e}", $to, $flags, value = in(reg) $value, inout("rax") $expected),
            _ => flagged!("lock cmpxchg qword ptr [{to}], {value}", $to, $flags, value = in(reg) $value, inout("rax") $expected),
        }
    };
}

macro_rules! alone {
    ($name:literal, $to:expr, $bytes:expr, $flags:expr) => {
        match $bytes {
            1 => flagged!(concat!($name, " byte ptr [{to}]"), $to, $flags,),
            2 => flagged!(concat!($name, " word ptr [{to}]"), $to, $flags,),
            4 => flagged!(concat!($name, " dword ptr [{to}]"), $to, $flags,),
            _ => flagged!(concat!($name, " qword ptr [{to}]"), $to, $flags,),
        }
    };
}

/// The processor has no locked shifts: what other threads write to the same bytes meanwhile may be lost, as without us.
macro_rules! by_count {
    ($name:literal, $to:expr, $bytes:expr, $count:expr, $flags:expr) => {
        match $bytes {
            1 => flagged!(concat!($name, " byte ptr [{to}], cl"), $to, $flags, in("rcx") $count),
            2 => flagged!(concat!($name, " word ptr [{to}], cl"), $to, $flags, in("rcx") $count),
            4 => flagged!(concat!($name, " dword ptr [{to}], cl"), $to, $flags, in("rcx") $count),
            _ => flagged!(concat!($name, " qword ptr [{to}], cl"), $to, $flags, in("rcx") $count),
        }
    };
}

macro_rules! bit {
    ($name:literal, $to:expr, $bytes:expr, $bit:expr, $flags:expr) => {
        match ($bytes, $bit % ($bytes as u64 * 8)) {
            (2, bit) => flagged!(concat!($name, " word ptr [{to}], {bit:x}"), $to, $flags, bit = in(reg) bit),
            (4, bit) => flagged!(concat!($name, " dword ptr [{to}], {bit:e}"), $to, $flags, bit = in(reg) bit),
            (_, bit) => flagged!(concat!($name, " qword ptr [{to}], {bit}"), $to, $flags, bit = in(reg) bit),
        }
    };
}

/// Where the parts of the registers lie in the signal's frame: AVX (2), upper halves of ZMM0-15 (6), ZMM16-31 (7). 0: this processor has none.
static AVX: AtomicU64 = AtomicU64::new(0);
static ZMM_HIGH: AtomicU64 = AtomicU64::new(0);
static ZMM_MORE: AtomicU64 = AtomicU64::new(0);

/// Context registers by the processor's number.
const GENERAL: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// What must be done once before a handler calls [`store`]: tables of the decoder, which allocate.
pub(crate) fn prepare() {
    let mut instruction = Instruction::default();
    Decoder::new(64, &[0x48, 0x89, 0x07], DecoderOptions::NONE).decode_out(&mut instruction);
    if __cpuid_count(0, 0).eax >= 0xd {
        for (place, component) in [(&AVX, 2), (&ZMM_HIGH, 6), (&ZMM_MORE, 7)] {
            let found = __cpuid_count(0xd, component);
            place.store(if found.eax == 0 { 0 } else { found.ebx.into() }, Relaxed);
        }
    }
}

/// The store at which a thread faulted, being done.
struct Store<'a> {
    context: &'a mut ucontext_t,
    instruction: Instruction,
    /// What to add to an address of the area.
    delta: u64,
    /// Addresses that the store may reach.
    area: Range<u64>,
    /// Is told what is about to be written.
    before: &'a dyn Fn(Range<u64>),
}

/// Does the store that faulted at `address`, and moves the thread behind it. Returns the addresses that it would have written; none if this cannot be done
/// here. Tells `before` what it may write, if it does.
///
/// # Safety
///
/// `context` is of a thread that stands at an instruction which faulted by writing to `address` in `area`, and all of `area` is mapped writable `delta` further on.
pub(crate) unsafe fn store(
    context: &mut ucontext_t,
    address: u64,
    area: &Range<u64>,
    delta: u64,
    before: &dyn Fn(Range<u64>),
) -> Option<Range<u64>> {
    let ip = context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64;
    // SAFETY: the thread was just about to execute there.
    let instruction = unsafe { decode(ip)? };
    let mut store = Store { context, instruction, delta, area: area.clone(), before };
    if store.instruction.is_string_instruction() {
        // SAFETY: as above.
        return unsafe { store.string(address) };
    }
    let bytes = store.instruction.memory_size().size() as u64;
    let at = store.address()?;
    if bytes == 0 || at < area.start || at.checked_add(bytes)? > area.end || !(at..at + bytes).contains(&address) {
        return None;
    }
    before(at..at + bytes);
    // SAFETY: the bytes lie within the area.
    unsafe { store.plain(at, bytes as usize)? };
    store.context.uc_mcontext.gregs[libc::REG_RIP as usize] = store.instruction.next_ip() as i64;
    Some(at..at + bytes)
}

/// # Safety
///
/// A thread is about to execute what lies at `ip`.
unsafe fn decode(ip: u64) -> Option<Instruction> {
    // The next page may not be there, and is only needed if the instruction reaches into it.
    let near = ((PAGE - ip % PAGE) as usize).min(INSTRUCTION_MAX);
    for bytes in [near, INSTRUCTION_MAX] {
        // SAFETY: within the page of the instruction; or the instruction itself goes on behind it.
        let code = unsafe { std::slice::from_raw_parts(ip as *const u8, bytes) };
        let mut decoder = Decoder::with_ip(64, code, ip, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        decoder.decode_out(&mut instruction);
        match decoder.last_error() {
            DecoderError::None if instruction.code() != Code::INVALID => return Some(instruction),
            DecoderError::NoMoreBytes => {}
            _ => return None,
        }
    }
    None
}

impl Store<'_> {
    fn general(&self, register: Register) -> Option<u64> {
        let whole = register.full_register();
        if !whole.is_gpr64() {
            return None;
        }
        let value = self.context.uc_mcontext.gregs[GENERAL[whole.number()] as usize] as u64;
        Some(match register {
            Register::AH | Register::CH | Register::DH | Register::BH => value >> 8 & 0xff,
            _ if register.size() == 8 => value,
            _ => value & ((1 << (register.size() * 8)) - 1),
        })
    }

    fn set_general(&mut self, register: Register, value: u64) {
        let place = &mut self.context.uc_mcontext.gregs[GENERAL[register.full_register().number()] as usize];
        let old = *place as u64;
        let new = match register {
            Register::AH | Register::CH | Register::DH | Register::BH => old & !0xff00 | (value & 0xff) << 8,
            _ => match register.size() {
                1 => old & !0xff | value & 0xff,
                2 => old & !0xffff | value & 0xffff,
                // The upper half becomes zero.
                4 => value & 0xffff_ffff,
                _ => value,
            },
        };
        *place = new as i64;
    }

    fn flags(&mut self) -> &mut i64 {
        &mut self.context.uc_mcontext.gregs[libc::REG_EFL as usize]
    }

    fn arithmetic(&mut self) -> u64 {
        *self.flags() as u64 & ARITHMETIC
    }

    fn set_arithmetic(&mut self, flags: u64) {
        let place = self.flags();
        *place = (*place as u64 & !ARITHMETIC | flags & ARITHMETIC) as i64;
    }

    /// The address of the memory operand; none where segments or halves of registers are in it.
    fn address(&self) -> Option<u64> {
        let instruction = &self.instruction;
        if matches!(instruction.memory_segment(), Register::FS | Register::GS) {
            return None;
        }
        if instruction.is_ip_rel_memory_operand() {
            return Some(instruction.ip_rel_memory_address());
        }
        let value = |register: Register| match register {
            Register::None => Some(0),
            _ if register.is_gpr64() => self.general(register),
            _ => None,
        };
        let index = value(instruction.memory_index())?.wrapping_mul(instruction.memory_index_scale().into());
        Some(value(instruction.memory_base())?.wrapping_add(index).wrapping_add(instruction.memory_displacement64()))
    }

    /// An operand that is a register or a constant.
    fn operand(&self, number: u32) -> Option<u64> {
        match self.instruction.op_kind(number) {
            OpKind::Register => self.general(self.instruction.op_register(number)),
            OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64 => Some(self.instruction.immediate(number)),
            _ => None,
        }
    }

    /// # Safety
    ///
    /// So many bytes from `at` lie within the area.
    unsafe fn plain(&mut self, at: u64, bytes: usize) -> Option<()> {
        let to = at.wrapping_add(self.delta);
        // SAFETY: the same bytes in the second mapping, which is writable.
        unsafe {
            if matches!(bytes, 1 | 2 | 4 | 8) && (self.moves(to, bytes).is_some() || self.changes(to, bytes).is_some()) {
                return Some(());
            }
            self.vector(to, bytes)
        }
    }

    /// What only writes.
    ///
    /// # Safety
    ///
    /// So many bytes from `to` are writable.
    unsafe fn moves(&mut self, to: u64, bytes: usize) -> Option<()> {
        if self.instruction.op0_kind() != OpKind::Memory {
            return None;
        }
        let value = match self.instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movnti => self.operand(1)?,
            // With memory as its first operand: a condition into a byte. Comparing additions (CMPccXADD) have one, too, and write four or eight.
            _ if bytes == 1 => self.condition()?.into(),
            _ => return None,
        };
        // SAFETY: as above.
        unsafe {
            match bytes {
                1 => (to as *mut u8).write_volatile(value as u8),
                2 if to.is_multiple_of(2) => (to as *mut u16).write_volatile(value as u16),
                4 if to.is_multiple_of(4) => (to as *mut u32).write_volatile(value as u32),
                8 if to.is_multiple_of(8) => (to as *mut u64).write_volatile(value),
                _ => std::ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), to as *mut u8, bytes),
            }
        }
        Some(())
    }

    fn condition(&mut self) -> Option<bool> {
        let flags = self.arithmetic();
        let [carry, parity, zero, sign, overflow] = [0, 2, 6, 7, 11].map(|bit| flags & 1 << bit != 0);
        Some(match self.instruction.condition_code() {
            ConditionCode::o => overflow,
            ConditionCode::no => !overflow,
            ConditionCode::b => carry,
            ConditionCode::ae => !carry,
            ConditionCode::e => zero,
            ConditionCode::ne => !zero,
            ConditionCode::be => carry || zero,
            ConditionCode::a => !carry && !zero,
            ConditionCode::s => sign,
            ConditionCode::ns => !sign,
            ConditionCode::p => parity,
            ConditionCode::np => !parity,
            ConditionCode::l => sign != overflow,
            ConditionCode::ge => sign == overflow,
            ConditionCode::le => zero || sign != overflow,
            ConditionCode::g => !zero && sign == overflow,
            _ => return None,
        })
    }

    /// What reads, computes and writes. The processor does it, with the flags of the thread, in one step where it can.
    ///
    /// # Safety
    ///
    /// So many bytes from `to` are writable.
    unsafe fn changes(&mut self, to: u64, bytes: usize) -> Option<()> {
        if self.instruction.mnemonic() == Mnemonic::Xchg {
            // SAFETY: as above.
            return unsafe { self.exchange(to, bytes) };
        }
        if self.instruction.op0_kind() != OpKind::Memory {
            return None;
        }
        let mut flags = self.arithmetic();
        let operand = if self.instruction.op_count() > 1 { self.operand(1)? } else { 0 };
        let by_register = self.instruction.op_count() > 1 && self.instruction.op1_kind() == OpKind::Register;
        // SAFETY: as above.
        unsafe {
            match self.instruction.mnemonic() {
                Mnemonic::Add => with_register!("lock add", to, bytes, operand, flags),
                Mnemonic::Or => with_register!("lock or", to, bytes, operand, flags),
                Mnemonic::Adc => with_register!("lock adc", to, bytes, operand, flags),
                Mnemonic::Sbb => with_register!("lock sbb", to, bytes, operand, flags),
                Mnemonic::And => with_register!("lock and", to, bytes, operand, flags),
                Mnemonic::Sub => with_register!("lock sub", to, bytes, operand, flags),
                Mnemonic::Xor => with_register!("lock xor", to, bytes, operand, flags),
                Mnemonic::Inc => alone!("lock inc", to, bytes, flags),
                Mnemonic::Dec => alone!("lock dec", to, bytes, flags),
                Mnemonic::Neg => alone!("lock neg", to, bytes, flags),
                Mnemonic::Not => alone!("lock not", to, bytes, flags),
                Mnemonic::Shl | Mnemonic::Sal => by_count!("shl", to, bytes, operand, flags),
                Mnemonic::Shr => by_count!("shr", to, bytes, operand, flags),
                Mnemonic::Sar => by_count!("sar", to, bytes, operand, flags),
                Mnemonic::Rol => by_count!("rol", to, bytes, operand, flags),
                Mnemonic::Ror => by_count!("ror", to, bytes, operand, flags),
                // From a register the bit may lie beside the operand.
                Mnemonic::Bts if !by_register && bytes > 1 => bit!("lock bts", to, bytes, operand, flags),
                Mnemonic::Btr if !by_register && bytes > 1 => bit!("lock btr", to, bytes, operand, flags),
                Mnemonic::Btc if !by_register && bytes > 1 => bit!("lock btc", to, bytes, operand, flags),
                Mnemonic::Xadd => {
                    let mut value = operand;
                    giving_back!("lock xadd", to, bytes, value, flags);
                    self.set_general(self.instruction.op1_register(), value);
                }
                Mnemonic::Cmpxchg => {
                    let mut expected = self.context.uc_mcontext.gregs[libc::REG_RAX as usize] as u64;
                    compare!(to, bytes, operand, expected, flags);
                    if flags & ZERO == 0 {
                        let accumulator = [Register::AL, Register::AX, Register::EAX, Register::RAX][bytes.trailing_zeros() as usize];
                        self.set_general(accumulator, expected);
                    }
                }
                _ => return None,
            }
        }
        self.set_arithmetic(flags);
        Some(())
    }

    /// # Safety
    ///
    /// So many bytes from `to` are writable.
    unsafe fn exchange(&mut self, to: u64, bytes: usize) -> Option<()> {
        let number = u32::from(self.instruction.op0_kind() == OpKind::Memory);
        let mut value = self.operand(number)?;
        let mut flags = self.arithmetic();
        // SAFETY: as above.
        unsafe { giving_back!("xchg", to, bytes, value, flags) };
        self.set_arithmetic(flags);
        self.set_general(self.instruction.op_register(number), value);
        Some(())
    }

    /// A vector register, or a part of one, as it is.
    ///
    /// # Safety
    ///
    /// So many bytes from `to` are writable.
    unsafe fn vector(&mut self, to: u64, bytes: usize) -> Option<()> {
        use Mnemonic::*;
        let instruction = &self.instruction;
        let two = instruction.op0_kind() == OpKind::Memory && instruction.op_count() == 2 && instruction.op1_kind() == OpKind::Register;
        if !two || instruction.has_op_mask() {
            return None;
        }
        let skip = match instruction.mnemonic() {
            Movaps | Movups | Movapd | Movupd | Movdqa | Movdqu | Movntdq | Movntps | Movntpd | Movd | Movq | Movss | Movsd | Movlps
            | Movlpd | Vmovaps | Vmovups | Vmovapd | Vmovupd | Vmovdqa | Vmovdqu | Vmovntdq | Vmovntps | Vmovntpd | Vmovd | Vmovq
            | Vmovss | Vmovsd | Vmovlps | Vmovlpd | Vmovdqa32 | Vmovdqa64 | Vmovdqu8 | Vmovdqu16 | Vmovdqu32 | Vmovdqu64 => 0,
            Movhps | Movhpd | Vmovhps | Vmovhpd => 8,
            _ => return None,
        };
        // SAFETY: the context is the signal's.
        let content = unsafe { self.vector_register(instruction.op1_register())? };
        let content = content.get(skip..skip + bytes)?;
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(content.as_ptr(), to as *mut u8, bytes) };
        Some(())
    }

    /// # Safety
    ///
    /// The context is that of a signal.
    unsafe fn vector_register(&self, register: Register) -> Option<[u8; 64]> {
        if !(register.is_xmm() || register.is_ymm() || register.is_zmm()) {
            return None;
        }
        let number = register.number();
        let frame = self.context.uc_mcontext.fpregs as *const u8;
        let mut content = [0; 64];
        // SAFETY: the kernel has laid the frame there: 512 bytes, and behind them what their own last bytes say. A component that is not in the frame's
        // bit field is as after a reset: zero.
        unsafe {
            let said = frame.add(464).cast::<u32>().read_unaligned() == EXTENDED;
            let size = if said { u64::from(frame.add(480).cast::<u32>().read_unaligned()) } else { LEGACY };
            let extended = size > LEGACY;
            let features = if extended { frame.add(LEGACY as usize).cast::<u64>().read_unaligned() } else { 0 };
            let mut part = |component: u32, place: &AtomicU64, stride: u64, nth: usize, at: usize, bytes: usize| {
                let offset = place.load(Relaxed);
                if features & 1 << component != 0 && offset != 0 && offset + (nth as u64 + 1) * stride <= size {
                    let from = frame.add((offset + nth as u64 * stride) as usize);
                    std::ptr::copy_nonoverlapping(from, content[at..at + bytes].as_mut_ptr(), bytes);
                }
            };
            if number >= 16 {
                part(7, &ZMM_MORE, 64, number - 16, 0, 64);
            } else {
                part(2, &AVX, 16, number, 16, 16);
                part(6, &ZMM_HIGH, 32, number, 32, 32);
                // The legacy area has these, unless they are as after a reset, too.
                if !extended || features & 2 != 0 {
                    std::ptr::copy_nonoverlapping(frame.add(160 + 16 * number), content.as_mut_ptr(), 16);
                }
            }
        }
        Some(content)
    }

    /// `movs` and `stos`, once or as often as RCX says. What lies behind the area is left to the processor.
    ///
    /// # Safety
    ///
    /// As for [`store`].
    unsafe fn string(&mut self, address: u64) -> Option<Range<u64>> {
        let instruction = self.instruction;
        let (copies, size) = string_kind(&instruction)?;
        if *self.flags() as u64 & DIRECTION != 0 {
            return None;
        }
        let read = |store: &Self, register: i32| store.context.uc_mcontext.gregs[register as usize] as u64;
        let (to, from) = (read(self, libc::REG_RDI), read(self, libc::REG_RSI));
        let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        let wanted = if repeats { read(self, libc::REG_RCX) } else { 1 };
        if !self.area.contains(&to) || !self.area.contains(&address) || wanted == 0 {
            return None;
        }
        let done = wanted.min((self.area.end - to) / size);
        if done == 0 {
            return None;
        }
        let bytes = done * size;
        let into = to.wrapping_add(self.delta) as *mut u8;
        (self.before)(to..to + bytes);
        // SAFETY: the bytes lie in the area, and so in the second mapping. What is read is what the thread was about to read.
        unsafe {
            if !copies {
                let value = read(self, libc::REG_RAX).to_le_bytes();
                (0..done).for_each(|nth| std::ptr::copy_nonoverlapping(value.as_ptr(), into.add((nth * size) as usize), size as usize));
            } else if to.wrapping_sub(from) >= bytes && from.wrapping_sub(to) >= bytes {
                std::ptr::copy_nonoverlapping(from as *const u8, into, bytes as usize);
            } else {
                // What was just written is read again, element by element, as the processor does it.
                let mut element = [0; 8];
                for at in (0..bytes).step_by(size as usize) {
                    std::ptr::copy_nonoverlapping((from + at) as *const u8, element.as_mut_ptr(), size as usize);
                    std::ptr::copy_nonoverlapping(element.as_ptr(), into.add(at as usize), size as usize);
                }
            }
        }
        let registers = &mut self.context.uc_mcontext.gregs;
        registers[libc::REG_RDI as usize] = (to + bytes) as i64;
        if copies {
            registers[libc::REG_RSI as usize] = from.wrapping_add(bytes) as i64;
        }
        if repeats {
            registers[libc::REG_RCX as usize] = (wanted - done) as i64;
        }
        if done == wanted {
            registers[libc::REG_RIP as usize] = instruction.next_ip() as i64;
        }
        Some(to..to + bytes)
    }
}

/// Whether a string instruction copies or fills, and the size of its elements; none for others, and where its addresses are of other forms.
fn string_kind(instruction: &Instruction) -> Option<(bool, u64)> {
    if instruction.op0_kind() != OpKind::MemoryESRDI {
        return None;
    }
    let size = instruction.memory_size().size() as u64;
    match instruction.mnemonic() {
        Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => Some((false, size)),
        Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsd | Mnemonic::Movsq
            if instruction.op1_kind() == OpKind::MemorySegRSI && !matches!(instruction.memory_segment(), Register::FS | Register::GS) =>
        {
            Some((true, size))
        }
        _ => None,
    }
}
