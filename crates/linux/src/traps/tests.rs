//! Instructions done by the handler against the same ones done by the processor, and traps among threads, forks and other handlers.

use super::*;
use std::{arch::asm, process::Command, thread};

const AREA: u64 = 64 * PAGE;

/// Numbers that look random and are the same every time (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// What an instruction reads and leaves besides memory. It writes at RDI, may read at RSI, and has a vector in register 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Registers {
    rax: u64,
    rcx: u64,
    rdx: u64,
    rdi: u64,
    rsi: u64,
    flags: u64,
}

type Run = unsafe fn(&mut Registers, *const u8);

macro_rules! instructions {
    ($load:literal; $($text:literal),* $(,)?) => {
        [$(($text, {
            unsafe fn run(registers: &mut Registers, vector: *const u8) {
                // SAFETY: the caller's memory; the flags are arithmetic ones.
                unsafe {
                    asm!(
                        $load, "# {vector}", "push {flags}", "popfq", $text, "pushfq", "pop {flags}",
                        vector = in(reg) vector, flags = inout(reg) registers.flags, inout("rax") registers.rax, inout("rcx") registers.rcx,
                        inout("rdx") registers.rdx, inout("rdi") registers.rdi, inout("rsi") registers.rsi, out("xmm0") _,
                    );
                }
            }
            run as Run
        })),*]
    };
}

/// Does an instruction in closed memory and in memory of nobody, from the same state, and compares what they leave. Returns what was noted.
fn compare(name: &str, run: Run, memory: &mut AreaMemory, trap: &Trap, numbers: &mut Numbers, at: u64, count: u64) -> Vec<(u32, Noted)> {
    let mut plain = memory.as_slice().to_vec();
    plain.resize(plain.len() + 64, 0);
    // As well aligned as an area, where it lies now.
    let offset = plain.as_ptr().align_offset(64);
    plain.copy_within(0..AREA as usize, offset);
    let vector: [u64; 8] = std::array::from_fn(|_| numbers.next());
    let source: Vec<u64> = (0..1024).map(|_| numbers.next()).collect();
    let before = Registers {
        rax: numbers.next(),
        rcx: count,
        rdx: numbers.next(),
        rdi: 0,
        rsi: source.as_ptr() as u64,
        flags: numbers.next() & 0x8d5,
    };
    let (mut ours, mut theirs) = (before, before);
    ours.rdi = memory.range().start + at;
    theirs.rdi = plain.as_ptr() as u64 + offset as u64 + at;
    // A comparison that holds, now and then.
    if numbers.next().is_multiple_of(2) {
        let found = u64::from_le_bytes(memory.as_slice()[at as usize..at as usize + 8].try_into().unwrap());
        (ours.rax, theirs.rax) = (found, found);
    }
    // SAFETY: both are memory of ours, with room behind `at`.
    unsafe {
        run(&mut ours, vector.as_ptr().cast());
        run(&mut theirs, vector.as_ptr().cast());
    }
    let within = |memory: Range<u64>, register: &mut u64| {
        if memory.contains(register) {
            *register -= memory.start;
        }
    };
    let twin = plain.as_ptr() as u64 + offset as u64;
    [&mut ours.rdi, &mut ours.rsi].into_iter().for_each(|register| within(memory.range(), register));
    [&mut theirs.rdi, &mut theirs.rsi].into_iter().for_each(|register| within(twin..twin + AREA, register));
    (ours.flags, theirs.flags) = (ours.flags & 0x8d5, theirs.flags & 0x8d5);
    assert_eq!(ours, theirs, "{name} at {at:#x} from {before:x?}");
    let after = &plain[offset..offset + AREA as usize];
    let wrong: Vec<_> = (0..AREA as usize).filter(|byte| memory.as_slice()[*byte] != after[*byte]).collect();
    assert!(wrong.is_empty(), "{name} at {at:#x}: bytes {wrong:x?}");
    let mut noted = Vec::new();
    trap.take(|page, what| noted.push((page, what))).unwrap();
    noted
}

fn each_instruction(list: &[(&str, Run)], alignment: u64, count: u64, check: fn(&str, &[(u32, Noted)])) {
    let mut memory = AreaMemory::new("instructions", AREA).unwrap();
    let mut numbers = Numbers(count);
    memory.as_mut_slice().chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&numbers.next().to_le_bytes()));
    let trap = Trap::new(&memory, Trapping::Emulate).unwrap();
    trap.arm().unwrap();
    for (name, run) in list {
        for round in 0..12 {
            // Also over the edge of a page, where the alignment lets it.
            let at = if round % 3 == 0 { 9 * PAGE - alignment.max(2) } else { 10 * PAGE + numbers.next() % (20 * PAGE) };
            let noted = compare(name, *run, &mut memory, &trap, &mut numbers, at / alignment * alignment, count);
            check(name, &noted);
        }
    }
}

fn in_words(name: &str, noted: &[(u32, Noted)]) {
    assert!(!noted.is_empty(), "{name} was not noted");
    assert!(noted.iter().all(|(_, what)| matches!(what, Noted::Words(mask) if *mask != [0; 8])), "{name} was not emulated: {noted:?}");
}

fn in_pages(name: &str, noted: &[(u32, Noted)]) {
    assert!(!noted.is_empty() && noted.iter().all(|(_, what)| *what == Noted::Whole), "{name}: {noted:?}");
}

#[test]
fn integer_stores_are_done_as_the_processor_does_them() {
    let list = instructions!["nop";
        "mov byte ptr [rdi], dl", "mov byte ptr [rdi], dh", "mov word ptr [rdi], dx", "mov dword ptr [rdi], edx", "mov qword ptr [rdi], rdx",
        "mov byte ptr [rdi], 7", "mov word ptr [rdi], 777", "mov dword ptr [rdi], 77777", "mov qword ptr [rdi], -5",
        "mov dword ptr [rdi + rcx*8 + 24], edx", "movnti qword ptr [rdi], rdx",
        "add byte ptr [rdi], dl", "add word ptr [rdi], dx", "add dword ptr [rdi], edx", "lock add qword ptr [rdi], rdx", "add qword ptr [rdi], -3",
        "or byte ptr [rdi], dl", "or dword ptr [rdi], 5", "adc word ptr [rdi], dx", "adc qword ptr [rdi], rdx", "sbb byte ptr [rdi], 1",
        "sbb dword ptr [rdi], edx", "and byte ptr [rdi], dh", "and qword ptr [rdi], rdx", "sub word ptr [rdi], 9", "sub dword ptr [rdi], edx",
        "xor byte ptr [rdi], dl", "lock xor dword ptr [rdi], edx", "inc byte ptr [rdi]", "inc word ptr [rdi]", "inc dword ptr [rdi]",
        "lock inc qword ptr [rdi]", "dec byte ptr [rdi]", "dec qword ptr [rdi]", "neg word ptr [rdi]", "neg dword ptr [rdi]", "not byte ptr [rdi]",
        "not qword ptr [rdi]", "shl dword ptr [rdi], cl", "shl byte ptr [rdi], 1", "shr qword ptr [rdi], cl", "shr word ptr [rdi], 5",
        "sar byte ptr [rdi], cl", "sar dword ptr [rdi], 1", "rol word ptr [rdi], cl", "rol qword ptr [rdi], 3", "ror byte ptr [rdi], 2",
        "ror dword ptr [rdi], cl", "bts dword ptr [rdi], 37", "lock btr qword ptr [rdi], 61", "btc word ptr [rdi], 3",
        "xchg byte ptr [rdi], dl", "xchg word ptr [rdi], dx", "xchg dword ptr [rdi], edx", "xchg qword ptr [rdi], rdx",
        "xadd byte ptr [rdi], dh", "lock xadd dword ptr [rdi], edx", "xadd qword ptr [rdi], rdx",
        "cmpxchg byte ptr [rdi], dl", "cmpxchg word ptr [rdi], dx", "lock cmpxchg dword ptr [rdi], edx", "lock cmpxchg qword ptr [rdi], rdx",
        "seto byte ptr [rdi]", "setno byte ptr [rdi]", "setb byte ptr [rdi]", "setae byte ptr [rdi]", "sete byte ptr [rdi]", "setne byte ptr [rdi]",
        "setbe byte ptr [rdi]", "seta byte ptr [rdi]", "sets byte ptr [rdi]", "setns byte ptr [rdi]", "setp byte ptr [rdi]", "setnp byte ptr [rdi]",
        "setl byte ptr [rdi]", "setge byte ptr [rdi]", "setle byte ptr [rdi]", "setg byte ptr [rdi]",
    ];
    // A shift by no bit changes no flag.
    [0, 1, 3, 9].into_iter().for_each(|count| each_instruction(&list, 1, count, in_words));
}

#[test]
fn strings_are_done_as_the_processor_does_them() {
    let once = instructions!["nop"; "stosb", "stosw", "stosd", "stosq", "movsb", "movsw", "movsd", "movsq"];
    each_instruction(&once, 1, 5, in_words);
    let repeated =
        instructions!["nop"; "rep stosb", "rep stosw", "rep stosd", "rep stosq", "rep movsb", "rep movsw", "rep movsd", "rep movsq"];
    [1, 3, 700].into_iter().for_each(|count| each_instruction(&repeated, 1, count, in_words));
    // From where it has just written.
    let onto_itself = instructions!["lea rsi, [rdi - 3]"; "rep movsb", "movsw", "movsd", "movsq", "rep movsw", "rep movsd", "rep movsq"];
    each_instruction(&onto_itself, 1, 100, in_words);
}

#[test]
fn vectors_are_stored_as_the_processor_does_it() {
    let anywhere = instructions!["movdqu xmm0, [{vector}]";
        "movups [rdi], xmm0", "movupd [rdi], xmm0", "movdqu [rdi], xmm0", "movd dword ptr [rdi], xmm0", "movq qword ptr [rdi], xmm0",
        "movss dword ptr [rdi], xmm0", "movsd qword ptr [rdi], xmm0", "movlps qword ptr [rdi], xmm0", "movlpd qword ptr [rdi], xmm0",
        "movhps qword ptr [rdi], xmm0", "movhpd qword ptr [rdi], xmm0",
    ];
    each_instruction(&anywhere, 1, 1, in_words);
    let aligned = instructions!["movdqu xmm0, [{vector}]"; "movaps [rdi], xmm0", "movapd [rdi], xmm0", "movdqa [rdi], xmm0", "movntdq [rdi], xmm0", "movntps [rdi], xmm0"];
    each_instruction(&aligned, 16, 1, in_words);
    if std::arch::is_x86_feature_detected!("avx") {
        let avx = instructions!["vmovdqu ymm0, [{vector}]"; "vmovups [rdi], ymm0", "vmovdqu [rdi], ymm0", "vmovdqu [rdi], xmm0", "vmovss dword ptr [rdi], xmm0", "vmovq qword ptr [rdi], xmm0"];
        each_instruction(&avx, 1, 1, in_words);
        let aligned = instructions!["vmovdqu ymm0, [{vector}]"; "vmovaps [rdi], ymm0", "vmovntdq [rdi], ymm0"];
        each_instruction(&aligned, 32, 1, in_words);
    }
    if std::arch::is_x86_feature_detected!("avx512vl") {
        let wide = instructions!["vmovdqu64 zmm0, [{vector}]"; "vmovdqu64 [rdi], zmm0", "vmovdqu32 [rdi], ymm0", "vmovups [rdi], zmm0"];
        each_instruction(&wide, 1, 1, in_words);
        // The C library copies with these.
        let more = instructions!["vmovdqu64 ymm17, [{vector}]"; "vmovdqu64 [rdi], ymm17", "vmovdqu64 [rdi], xmm17"];
        each_instruction(&more, 1, 1, in_words);
    }
}

#[test]
fn what_is_not_emulated_opens_its_page() {
    let list = instructions!["nop"; "rcl dword ptr [rdi], 3", "shld qword ptr [rdi], rdx, 3", "pop qword ptr [rdi]\nsub rsp, 8", "fld1\nfstp qword ptr [rdi]"];
    each_instruction(&list, 8, 1, in_pages);
}

/// Threads write all the time while somebody takes; what is named is copied, and in the end the copy is the memory.
fn takes_among_writers(trapping: Trapping) {
    let memory = AreaMemory::new("takes", AREA).unwrap();
    let trap = Trap::new(&memory, trapping).unwrap();
    trap.arm().unwrap();
    let start = memory.range().start;
    let mut copy = vec![0_u8; AREA as usize];
    let copy_named = |copy: &mut [u8]| {
        let mut named = Vec::new();
        trap.take(|page, _| named.push(page)).unwrap();
        for page in named {
            let at = page as usize * PAGE as usize;
            memory.file().read_at(at as u64, &mut copy[at..at + PAGE as usize]).unwrap();
        }
    };
    for round in 0..10 {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|nth| {
                    scope.spawn(move || {
                        let mut numbers = Numbers(round << 8 | nth);
                        for _ in 0..3000 {
                            let word = (start + numbers.next() % (AREA / 8) * 8) as *mut u64;
                            // SAFETY: a word of the area, which outlives the scope; all touch it as an atomic.
                            unsafe { AtomicU64::from_ptr(word) }.fetch_add(numbers.next(), SeqCst);
                        }
                    })
                })
                .collect();
            while !threads.iter().all(|thread| thread.is_finished()) {
                copy_named(&mut copy);
            }
        });
        copy_named(&mut copy);
        assert!(memory.as_slice() == copy, "{trapping:?}, round {round}");
    }
}

#[test]
fn takes_among_writers_miss_nothing() {
    takes_among_writers(Trapping::Open);
    takes_among_writers(Trapping::Emulate);
}

/// Whoever opens a page while all are being closed is heard of.
#[test]
fn closing_all_pages_among_writers_misses_nothing() {
    let memory = AreaMemory::new("closings", AREA).unwrap();
    let trap = Trap::new(&memory, Trapping::Open).unwrap();
    let start = memory.range().start;
    let mut copy = vec![0_u8; AREA as usize];
    for round in 0..1000 {
        trap.rest().unwrap();
        thread::scope(|scope| {
            for nth in 0..3 {
                scope.spawn(move || {
                    let mut numbers = Numbers(round << 8 | nth);
                    for _ in 0..1000 {
                        let word = (start + numbers.next() % (AREA / 8) * 8) as *mut u64;
                        // SAFETY: a word of the area, which outlives the scope; all touch it as an atomic.
                        unsafe { AtomicU64::from_ptr(word) }.fetch_add(numbers.next(), SeqCst);
                    }
                });
            }
            trap.arm().unwrap();
            memory.file().read_at(0, &mut copy).unwrap();
        });
        let mut named = Vec::new();
        trap.take(|page, _| named.push(page as usize * PAGE as usize)).unwrap();
        for at in named {
            memory.file().read_at(at as u64, &mut copy[at..at + PAGE as usize]).unwrap();
        }
        assert!(memory.as_slice() == copy, "round {round}");
    }
}

/// Threads write all the time but for the instants at which pages are set down; what is copied behind them is what was there then.
fn copies_among_writers(trapping: Trapping, rests: bool) {
    let mut memory = AreaMemory::new("copies", AREA).unwrap();
    let mut numbers = Numbers(77);
    memory.as_mut_slice().chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&numbers.next().to_le_bytes()));
    let trap = Trap::new(&memory, trapping).unwrap();
    if !rests {
        trap.arm().unwrap();
    }
    let start = memory.range().start;
    let mut buffer = Vec::new();
    for round in 0..60 {
        if !rests {
            trap.take(|_, _| ()).unwrap();
        }
        let pages: Vec<u32> = (0..(AREA / PAGE) as u32).filter(|page| !(page + round).is_multiple_of(5)).collect();
        let expected: Vec<_> =
            pages.iter().flat_map(|page| &memory.as_slice()[*page as usize * PAGE as usize..][..PAGE as usize]).copied().collect();
        let behind = trap.copy_behind(&pages, buffer);
        thread::scope(|scope| {
            for nth in 0..3 {
                scope.spawn(move || {
                    let mut numbers = Numbers(u64::from(round) << 8 | nth);
                    for _ in 0..300 {
                        let word = (start + numbers.next() % (AREA / 8) * 8) as *mut u64;
                        // SAFETY: a word of the area, which outlives the scope; all touch it as an atomic.
                        unsafe { AtomicU64::from_ptr(word) }.fetch_add(numbers.next(), SeqCst);
                    }
                });
            }
            match round % 3 {
                // Nobody copies but who writes, until the end.
                0 => {}
                1 => behind.finish(),
                _ => _ = scope.spawn(|| behind.finish()),
            }
        });
        let wrong: Vec<_> = (0..pages.len())
            .filter(|nth| behind.content().chunks(PAGE as usize).nth(*nth) != expected.chunks(PAGE as usize).nth(*nth))
            .collect();
        assert!(wrong.is_empty(), "{trapping:?}, round {round}: pages {wrong:?} are not as they were");
        // The next set goes into the same buffer, or into one of its own.
        buffer = if round % 2 == 0 { behind.into_buffer() } else { Vec::new() };
    }
}

#[test]
fn what_is_copied_behind_the_writers_is_as_it_was() {
    copies_among_writers(Trapping::Open, false);
    copies_among_writers(Trapping::Emulate, false);
    copies_among_writers(Trapping::Open, true);
}

#[test]
fn a_page_is_copied_before_it_is_opened_written_or_let_go() {
    let set_down = |memory: &mut AreaMemory, trap: &Trap, value: u8| {
        memory.as_mut_slice().fill(value);
        trap.take(|_, _| ()).unwrap();
        let pages: Vec<u32> = (0..(AREA / PAGE) as u32).collect();
        trap.copy_behind(&pages, Vec::new())
    };
    for trapping in [Trapping::Open, Trapping::Emulate] {
        let mut memory = AreaMemory::new("let go", AREA).unwrap();
        let trap = Trap::new(&memory, trapping).unwrap();
        trap.arm().unwrap();
        // For a call of the kernel, and for who takes the memory away.
        let behind = set_down(&mut memory, &trap, 1);
        trap.open(3..5).unwrap();
        memory.discard(3 * PAGE..5 * PAGE).unwrap();
        assert!(behind.content().iter().all(|byte| *byte == 1), "{trapping:?}");
        // For who watches in another way from here on.
        let behind = set_down(&mut memory, &trap, 2);
        trap.rest().unwrap();
        memory.as_mut_slice().fill(3);
        assert!(behind.content().iter().all(|byte| *byte == 2), "{trapping:?}");
        trap.arm().unwrap();
        // For the next ones, while nobody has asked for those before.
        let behind = set_down(&mut memory, &trap, 4);
        let next = set_down(&mut memory, &trap, 5);
        assert!(behind.content().iter().all(|byte| *byte == 4) && next.content().iter().all(|byte| *byte == 5), "{trapping:?}");
        // And when all of it ends.
        let behind = set_down(&mut memory, &trap, 6);
        drop((trap, memory));
        assert!(behind.content().iter().all(|byte| *byte == 6), "{trapping:?}");
    }
}

static FROM_HANDLER: AtomicU64 = AtomicU64::new(0);

/// A handler that writes to the memory, too, wherever the thread is.
extern "C" fn writes_too(_: i32) {
    let at = FROM_HANDLER.load(SeqCst);
    for page in 0..AREA / PAGE {
        // SAFETY: the area of the test, which sends these signals.
        unsafe { AtomicU64::from_ptr((at + page * PAGE + 8) as *mut u64) }.fetch_add(1, SeqCst);
    }
}

#[test]
fn handlers_of_other_signals_write_in_the_midst_of_ours() {
    const SENT: u64 = 2000;
    for trapping in [Trapping::Open, Trapping::Emulate] {
        let mut memory = AreaMemory::new("handlers", AREA).unwrap();
        let trap = Trap::new(&memory, trapping).unwrap();
        trap.arm().unwrap();
        FROM_HANDLER.store(memory.range().start, SeqCst);
        // SAFETY: a handler that touches an area of ours.
        unsafe { libc::signal(libc::SIGUSR2, writes_too as *const () as usize) };
        let start = memory.range().start;
        let (done, behind) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let (sent, writer) = std::sync::mpsc::channel();
            scope.spawn(|| {
                let sent = sent;
                // SAFETY: this thread's own name, and words of the area.
                sent.send(unsafe { libc::pthread_self() }).unwrap();
                while !done.load(SeqCst) {
                    for page in 0..AREA / PAGE {
                        // SAFETY: as above.
                        unsafe { AtomicU64::from_ptr((start + page * PAGE) as *mut u64) }.fetch_add(1, SeqCst);
                    }
                }
            });
            let writer = writer.recv().unwrap();
            for _ in 0..SENT {
                // SAFETY: the thread runs until it is told.
                unsafe { libc::pthread_kill(writer, libc::SIGUSR2) };
                // Closed again, so that both find closed pages. Who writes meanwhile may be copied by half here.
                trap.take(|_, _| ()).unwrap();
                let pages: Vec<u32> = (0..(AREA / PAGE) as u32).collect();
                behind.fetch_add(trap.copy_behind(&pages, Vec::new()).content().len() as u64, SeqCst);
            }
            done.store(true, SeqCst);
        });
        assert_eq!(behind.load(SeqCst), SENT * AREA);
        assert!(memory.as_mut_slice()[8] != 0, "no signal came");
    }
}

/// One sum by several threads: what was one step stays one.
#[test]
fn atomics_stay_atomic() {
    let memory = AreaMemory::new("atomics", PAGE).unwrap();
    let trap = Trap::new(&memory, Trapping::Emulate).unwrap();
    trap.arm().unwrap();
    let at = memory.range().start;
    thread::scope(|scope| {
        for _ in 0..4 {
            // SAFETY: a word of the area, which outlives the scope.
            scope.spawn(move || (0..5000).for_each(|_| _ = unsafe { AtomicU64::from_ptr(at as *mut u64) }.fetch_add(1, SeqCst)));
        }
    });
    assert_eq!(memory.as_slice()[..8], 20_000_u64.to_le_bytes());
    assert_eq!(trap.take_stores(), 20_000);
}

/// Memory that goes out of the mapping keeps its content and its notes.
#[test]
fn dropped_pages_stay_noted() {
    for trapping in [Trapping::Open, Trapping::Emulate] {
        let mut memory = AreaMemory::new("dropped", AREA).unwrap();
        let trap = Trap::new(&memory, trapping).unwrap();
        trap.arm().unwrap();
        memory.as_mut_slice()[5 * PAGE as usize] = 1;
        let start = memory.range().start;
        // SAFETY: our own mapping, borrowed by nobody.
        unsafe { rustix::mm::madvise(start as *mut _, AREA as usize, rustix::mm::Advice::LinuxDontNeed).unwrap() };
        memory.as_mut_slice()[6 * PAGE as usize] = 2;
        let mut named = Vec::new();
        trap.take(|page, _| named.push(page)).unwrap();
        assert_eq!(named, [5, 6], "{trapping:?}");
        assert_eq!((memory.as_slice()[5 * PAGE as usize], memory.as_slice()[6 * PAGE as usize]), (1, 2));
    }
}

/// With every second page open the kernel would run out of mappings; before it does, all are, and the program has what it needs.
#[test]
fn more_open_pages_than_mappings() {
    const PAGES: u64 = 100_000;
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count() as i64;
    let mut memory = AreaMemory::new("many", PAGES * PAGE).unwrap();
    let trap = Trap::new(&memory, Trapping::Open).unwrap();
    trap.arm().unwrap();
    for round in 1..3 {
        let mut most = 0;
        for page in (0..PAGES as usize).step_by(2) {
            memory.as_mut_slice()[page * PAGE as usize] = round;
            if page % 1024 == 0 {
                most = mappings().max(most);
            }
        }
        // Other tests have some, too.
        assert!(most > pieces_max() / 2 && most < pieces_max() + 4096, "round {round}: {most} mappings of {}", pieces_max());
        assert!(mappings() < 4096, "round {round}");
        let mut named = vec![false; PAGES as usize];
        trap.take(|page, _| named[page as usize] = true).unwrap();
        assert!(named.iter().step_by(2).all(|named| *named), "round {round}");
    }
    memory.as_mut_slice()[7] = 7;
    let mut named = Vec::new();
    trap.take(|page, _| named.push(page)).unwrap();
    assert_eq!(named, [0], "single pages again");
}

/// Pages that are opened side by side are one mapping, in whatever order.
#[test]
fn open_pages_that_touch_are_one_mapping() {
    let mut memory = AreaMemory::new("touching", AREA).unwrap();
    let trap = Trap::new(&memory, Trapping::Open).unwrap();
    let range = memory.range();
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let starts = maps.lines().map(|line| u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap());
        starts.filter(|start| range.contains(start)).count() as i64
    };
    for pages in [[20, 21, 22, 30, 10, 11], [20, 22, 21, 30, 32, 31], [5, 4, 3, 8, 7, 6]] {
        trap.arm().unwrap();
        for page in pages {
            memory.as_mut_slice()[page * PAGE as usize] = 1;
            assert_eq!(memory.place().pieces(), mappings() - 1, "{page} of {pages:?}");
        }
    }
    trap.rest().unwrap();
    assert_eq!((memory.place().pieces(), mappings()), (0, 1));
}

/// A child of `fork` has none of it, and so can change none of it.
#[test]
fn a_child_does_not_inherit_an_area() {
    let mut memory = AreaMemory::new("fork", AREA).unwrap();
    let trap = Trap::new(&memory, Trapping::Emulate).unwrap();
    trap.arm().unwrap();
    memory.as_mut_slice()[0] = 1;
    // SAFETY: the child calls nothing but what is safe after a fork, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above. The write is to end the child.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            (memory.range().start as *mut u8).write_volatile(2);
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: our child, waited for once.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
    memory.as_mut_slice()[1] = 3;
    assert_eq!(memory.as_slice()[..2], [1, 3]);
}

/// Faults of this thread so far that were pages which were not mapped.
fn faults() -> i64 {
    // SAFETY: a place for the answer, all of which the kernel fills in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_minflt
    }
}

/// Emulated stores go through the second mapping, of which nothing is mapped in the beginning.
#[test]
fn a_second_mapping_that_is_populated_has_no_faults_and_holes_stay_holes() {
    let mut memory = AreaMemory::new("populated", 2 * AREA).unwrap();
    // Holes behind it.
    memory.as_mut_slice()[..AREA as usize].fill(1);
    let there = memory.file().populated().unwrap();
    let trap = Trap::new(&memory, Trapping::Emulate).unwrap();
    if let Err(error) = trap.populate(&there) {
        // Before Linux 5.14.
        let _ = std::io::Write::write_all(&mut io::stderr(), format!("skipped: {error}\n").as_bytes());
        return;
    }
    trap.arm().unwrap();
    let before = faults();
    (0..AREA).step_by(PAGE as usize).for_each(|at| memory.as_mut_slice()[at as usize] = 2);
    let faults = faults() - before;
    assert!(faults < 32, "{faults} for {} pages", AREA / PAGE);
    assert_eq!(trap.take_stores(), AREA / PAGE);
    assert_eq!(memory.file().populated().unwrap(), there);
}

const ALONE: &str = "FERMATA_TEST_ALONE";

/// The program's own handler was there first, and serves a page of its own; in a process of its own, as there is one first handler.
#[test]
fn handlers_of_the_program_get_what_is_theirs() {
    static THEIRS: AtomicU64 = AtomicU64::new(0);
    static SERVED: AtomicU64 = AtomicU64::new(0);
    extern "C" fn their_handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: what the kernel hands in; the page is ours.
        unsafe {
            let (at, page) = ((*info).si_addr() as u64, THEIRS.load(SeqCst));
            if at & !(PAGE - 1) != page || libc::mprotect(page as *mut _, PAGE as usize, libc::PROT_READ | libc::PROT_WRITE) != 0 {
                libc::_exit(3);
            }
        }
        SERVED.fetch_add(1, SeqCst);
    }
    if std::env::var_os(ALONE).is_none() {
        let name = "traps::tests::handlers_of_the_program_get_what_is_theirs";
        let status = Command::new(std::env::current_exe().unwrap()).args(["--exact", name]).env(ALONE, "1").status().unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    // SAFETY: a mapping of our own; a handler of the right form.
    let own = unsafe {
        let own = libc::mmap(null_mut(), PAGE as usize, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        THEIRS.store(own as u64, SeqCst);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = their_handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, null_mut()), 0);
        own.cast::<u8>()
    };
    let mut memory = AreaMemory::new("handlers", AREA).unwrap();
    let trap = Trap::new(&memory, Trapping::Emulate).unwrap();
    trap.arm().unwrap();
    memory.as_mut_slice()[0] = 1;
    assert_eq!(SERVED.load(SeqCst), 0);
    // SAFETY: the page that their handler opens.
    unsafe { own.write_volatile(5) };
    memory.as_mut_slice()[1] = 1;
    assert_eq!((SERVED.load(SeqCst), memory.as_slice()[1]), (1, 1));
}

/// Memory in huge pages is watched page by page.
#[test]
fn huge_pages_are_watched_by_the_page() {
    const HUGE: u64 = 2 << 20;
    /// `MADV_COLLAPSE`: now, whatever the settings are.
    const COLLAPSE: i32 = 25;
    for trapping in [Trapping::Open, Trapping::Emulate] {
        let mut memory = AreaMemory::new("huge", 2 * HUGE).unwrap();
        memory.as_mut_slice().fill(1);
        let start = memory.range().start;
        // SAFETY: our own mapping; its content stays.
        if unsafe { libc::madvise(start as *mut _, 2 * HUGE as usize, COLLAPSE) } != 0 {
            let _ = std::io::Write::write_all(&mut io::stderr(), b"skipped: the kernel has no huge pages to give\n");
            return;
        }
        let trap = Trap::new(&memory, trapping).unwrap();
        trap.arm().unwrap();
        for page in [0, 1, 511, 512, 700, 1023] {
            memory.as_mut_slice()[page * PAGE as usize + 9] = 2;
        }
        let mut named = Vec::new();
        trap.take(|page, _| named.push(page)).unwrap();
        assert_eq!(named, [0, 1, 511, 512, 700, 1023], "{trapping:?}");
        assert_eq!(memory.as_slice().iter().filter(|byte| **byte == 2).count(), 6);
    }
}
