//! Writes to memory that is closed, as signals (mprotect(2), SIGSEGV): the handler opens the page, or does the write itself through a second mapping.
//!
//! ```text
//!   program ──store──> closed page ──SIGSEGV──> handler ──┬─ Open:    note the page, open it, let the store happen
//!                                                        └─ Emulate: do the store through the second mapping, note its words, go on behind it
//! ```
//!
//! One handler serves all traps of the process. A fault that is none of theirs goes to the handler that was there before, as if ours were not. Who installs a
//! handler afterwards must hand on what is not its own, as we do.
//!
//! The handler touches only memory that was there before it ran: bits in tables that are made with the trap, and the buffer of [`Trap::copy_behind`]. It
//! takes no lock and allocates nothing. Other signals wait until it is done: their handlers may write to the memory, too.
//!
//! A write of the kernel (`read(2)` into the memory) is no signal: the call fails with `EFAULT`. Pages must be opened for it with [`Trap::open`].

use crate::{
    AreaMemory, Behind, Place,
    area_memory::pieces_max,
    behind::{Shelf, Unheard},
    emulate,
    zeroed::Zeroed,
};
use std::{
    cell::UnsafeCell,
    io,
    mem::MaybeUninit,
    ops::Range,
    ptr::null_mut,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

const PAGE: u64 = 4096;
/// Traps of one process at a time.
const TRAPS_MAX: usize = 256;
/// The kernel's word for a fault by access, not by absence (`SEGV_ACCERR`).
const NO_ACCESS: i32 = 2;
/// How many the kernel has.
const SIGNALS: i32 = 64;
/// In the processor's error code: it was a write.
const WRITING: i64 = 2;

/// The words of one page, of 8 bytes each: bit `n % 64` of number `n / 64`.
pub type WordMask = [u64; 8];

/// What a write to a closed page leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trapping {
    /// The page is open from then on.
    Open,
    /// The write is done elsewhere, and the page stays closed. What cannot be decoded opens the page.
    Emulate,
}

/// What was written to a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noted {
    /// Nobody knows where: it was open.
    Whole,
    /// These words.
    Words(WordMask),
}

/// Memory whose writes are signals.
#[derive(Debug)]
pub struct Trap {
    watched: *mut Watched,
    slot: usize,
}

// SAFETY: what it points to is atomics, and made and freed by the one owner.
unsafe impl Send for Trap {}

struct Watched {
    range: Range<u64>,
    /// What to add to an address of the range to come to the same byte in the second mapping.
    delta: u64,
    emulates: AtomicU8,
    /// Opening single pages failed (too many mappings); all are open.
    all_open: AtomicBool,
    /// Nothing is watched; pages may be closed for a while only, to be copied.
    rests: AtomicBool,
    touched: Bits,
    opened: Bits,
    /// Eight numbers for each page.
    words: Zeroed,
    stores: AtomicU64,
    /// Stores that are emulated at most between two calls of `take_stores`.
    budget: AtomicU64,
    // Mapped as long as somebody may fault there.
    place: Arc<Place>,
    /// Has the second mapping, and what is to be copied before it is written to.
    shelf: Arc<Shelf>,
}

/// A set of pages that is found quickly when it has few: a bit for each, and one for each 64 of them.
struct Bits {
    pages: Zeroed,
    groups: Zeroed,
}

impl Bits {
    fn new(pages: u64) -> Self {
        Self { pages: Zeroed::new(pages.div_ceil(64)), groups: Zeroed::new(pages.div_ceil(64 * 64)) }
    }

    fn has(&self, page: u64) -> bool {
        let group = (page / 64) as usize;
        group < self.pages.len() && self.pages.at(group).load(SeqCst) & 1 << (page % 64) != 0
    }

    fn set(&self, page: u64) {
        let group = page / 64;
        // In this order: who takes looks at the groups first.
        self.pages.at(group as usize).fetch_or(1 << (page % 64), SeqCst);
        self.groups.at((group / 64) as usize).fetch_or(1 << (group % 64), SeqCst);
    }

    fn take(&self, page: u64) -> bool {
        self.pages.at((page / 64) as usize).fetch_and(!(1 << (page % 64)), SeqCst) & 1 << (page % 64) != 0
    }

    fn take_all(&self, mut each: impl FnMut(u64)) {
        for high in 0..self.groups.len() {
            if self.groups.at(high).load(SeqCst) == 0 {
                continue;
            }
            ones(self.groups.at(high).swap(0, SeqCst)).for_each(|low| {
                let group = high as u64 * 64 + low;
                ones(self.pages.at(group as usize).swap(0, SeqCst)).for_each(|bit| each(group * 64 + bit));
            });
        }
    }
}

fn ones(mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let first = (bits != 0).then(|| u64::from(bits.trailing_zeros()))?;
        bits &= bits - 1;
        Some(first)
    })
}

static TRAPS: [AtomicPtr<Watched>; TRAPS_MAX] = [const { AtomicPtr::new(null_mut()) }; TRAPS_MAX];
/// Slots that were ever used.
static SLOTS: AtomicUsize = AtomicUsize::new(0);
/// Handlers that may be looking at a trap.
static INSIDE: AtomicUsize = AtomicUsize::new(0);
static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));
static INSTALLED: Mutex<bool> = Mutex::new(false);

/// The handler that was there before. Written once, before ours is installed.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written under a lock before anybody can read it, and only read afterwards.
unsafe impl Sync for Previous {}

impl Trap {
    /// Watches memory from the first [`arm`](Self::arm) on.
    pub fn new(memory: &AreaMemory, trapping: Trapping) -> io::Result<Self> {
        install()?;
        let (place, second) = (memory.place().clone(), memory.second()?);
        let range = place.range();
        let pages = (range.end - range.start).div_ceil(PAGE);
        let watched = Box::into_raw(Box::new(Watched {
            delta: second.range().start.wrapping_sub(range.start),
            range,
            emulates: AtomicU8::new(u8::from(trapping == Trapping::Emulate)),
            all_open: AtomicBool::new(true),
            rests: AtomicBool::new(true),
            touched: Bits::new(pages),
            opened: Bits::new(pages),
            words: Zeroed::new(pages * 8),
            stores: AtomicU64::new(0),
            budget: AtomicU64::new(u64::MAX),
            shelf: Arc::new(Shelf::new(place.clone(), second)),
            place,
        }));
        for (slot, place) in TRAPS.iter().enumerate() {
            if place.compare_exchange(null_mut(), watched, SeqCst, SeqCst).is_ok() {
                SLOTS.fetch_max(slot + 1, SeqCst);
                return Ok(Self { watched, slot });
            }
        }
        // SAFETY: made above, and nobody else has seen it.
        drop(unsafe { Box::from_raw(watched) });
        Err(io::Error::other(format!("{TRAPS_MAX} areas of this process are watched by signals already")))
    }

    fn watched(&self) -> &Watched {
        // SAFETY: made in `new`, freed in `drop`.
        unsafe { &*self.watched }
    }

    /// What a write leads to from now on.
    pub fn set(&self, trapping: Trapping) {
        self.watched().emulates.store(u8::from(trapping == Trapping::Emulate), SeqCst);
    }

    /// Closes all pages: from now on writes are noted. What was noted before is forgotten.
    pub fn arm(&self) -> io::Result<()> {
        let watched = self.watched();
        watched.shelf.leave_closed();
        watched.rests.store(false, SeqCst);
        watched.all_open.store(true, SeqCst);
        self.take(|_, _| ())
    }

    /// Opens all pages: from now on nothing is noted.
    pub fn rest(&self) -> io::Result<()> {
        let watched = self.watched();
        watched.shelf.finish_last();
        watched.rests.store(true, SeqCst);
        watched.place.protect(watched.range.clone(), false)
    }

    /// Has pages copied into this buffer as they are now, behind the program: each before it is written to. Nobody may write until this returns, nor at any
    /// time past the handler, but for pages that were [opened](Self::open) before.
    ///
    /// Where nothing is watched, all memory from the first to the last of them is closed until they are copied.
    pub fn copy_behind(&self, pages: &[u32], buffer: Vec<u8>) -> Behind {
        let watched = self.watched();
        let behind = watched.shelf.set_down(pages, buffer);
        let at = |page: &u32| watched.range.start + u64::from(*page) * PAGE;
        let (Some(first), Some(last)) = (pages.iter().min(), pages.iter().max()) else { return behind };
        let is_closed = match watched.rests.load(SeqCst) {
            true => {
                watched.opened.take_all(|_| ());
                watched.shelf.close(at(first)..at(last) + PAGE).is_ok()
            }
            false => !watched.all_open.load(SeqCst),
        };
        if !is_closed {
            // At once, then: nobody writes yet.
            behind.finish();
        }
        behind
    }

    /// Opens pages for writers that cannot be trapped. They count as written whole.
    pub fn open(&self, pages: Range<u32>) -> io::Result<()> {
        let watched = self.watched();
        // A handler of the program's that writes to a page that is just being copied would wait for this thread.
        let _unheard = Unheard::new();
        watched.open(u64::from(pages.start)..u64::from(pages.end))
    }

    /// Calls `each` with every page that was written since the last call, in order, and watches them again. What others write meanwhile is named now or by
    /// the next call; who copies does so after this.
    ///
    /// After an error nothing was forgotten.
    pub fn take(&self, mut each: impl FnMut(u32, Noted)) -> io::Result<()> {
        let watched = self.watched();
        if watched.all_open.swap(false, SeqCst) {
            // Before they are closed: whoever opens one from then on has marked it, and it stays marked.
            watched.touched.take_all(|page| _ = watched.take_words(page));
            watched.opened.take_all(|_| ());
            watched.place.protect(watched.range.clone(), true).inspect_err(|_| watched.all_open.store(true, SeqCst))?;
            let pages = (watched.range.end - watched.range.start) / PAGE;
            (0..pages as u32).for_each(|page| each(page, Noted::Whole));
            return Ok(());
        }
        let mut found = Vec::new();
        let (mut first, mut end) = (u64::MAX, 0);
        watched.touched.take_all(|page| {
            let words = watched.take_words(page);
            let noted = if watched.opened.take(page) { Noted::Whole } else { Noted::Words(words) };
            if noted == Noted::Whole {
                (first, end) = (first.min(page), page + 1);
            }
            found.push((page, noted));
        });
        if first < end {
            // In one call: the kernel passes over what is closed already.
            let at = |page: u64| watched.range.start + page * PAGE;
            if let Err(error) = watched.place.protect(at(first)..at(end), true) {
                found.iter().for_each(|(page, _)| watched.note_open(*page));
                return Err(error);
            }
        }
        found.into_iter().for_each(|(page, noted)| each(page as u32, noted));
        Ok(())
    }

    /// Maps what the memory holds in the second mapping, too, or the first emulated store to each page is a fault more. These stretches must not have holes.
    pub fn populate(&self, stretches: &[(u64, u64)]) -> io::Result<()> {
        self.watched().shelf.second().populate(stretches)
    }

    /// After so many stores pages are opened instead, for one that goes on and on; until this is called again.
    pub fn limit(&self, stores: u64) {
        self.watched().budget.store(stores, SeqCst);
    }

    /// How many stores were emulated since the last call.
    pub fn take_stores(&self) -> u64 {
        self.watched().stores.swap(0, SeqCst)
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        // Nobody shall fault there any more, unless the memory goes, too.
        let _ = self.rest();
        TRAPS[self.slot].store(null_mut(), SeqCst);
        while INSIDE.load(SeqCst) != 0 {
            std::thread::yield_now();
        }
        // SAFETY: made in `new`; no handler finds it any more, and none has it.
        drop(unsafe { Box::from_raw(self.watched) });
    }
}

impl Watched {
    fn note_open(&self, page: u64) {
        self.opened.set(page);
        self.touched.set(page);
    }

    fn take_words(&self, page: u64) -> WordMask {
        std::array::from_fn(|nth| {
            let words = self.words.at(page as usize * 8 + nth);
            if words.load(SeqCst) == 0 { 0 } else { words.swap(0, SeqCst) }
        })
    }

    fn note_words(&self, from: u64, bytes: u64) {
        let (first, last) = ((from - self.range.start) / 8, (from + bytes - 1 - self.range.start) / 8);
        let mut word = first;
        while word <= last {
            let end = (last + 1).min((word / 64 + 1) * 64);
            let bits = (u64::MAX >> (64 - (end - word))) << (word % 64);
            self.words.at((word / 64) as usize).fetch_or(bits, SeqCst);
            self.touched.set(word / 512);
            word = end;
        }
    }

    /// Serves a write to a closed page. False: this is beyond it.
    ///
    /// # Safety
    ///
    /// `context` is that of the signal which the write led to.
    unsafe fn serve(&self, address: u64, context: *mut libc::ucontext_t) -> bool {
        if self.emulates.load(SeqCst) != 0 && !self.rests.load(SeqCst) && self.stores.load(SeqCst) < self.budget.load(SeqCst) {
            let page = |address: u64| (address - self.range.start) / PAGE;
            let before = |at: Range<u64>| (page(at.start)..=page(at.end - 1)).for_each(|page| self.shelf.save(page));
            // SAFETY: the context is the signal's, and the second mapping has all of the range.
            if let Some(stored) = unsafe { emulate::store(&mut *context, address, &self.range, self.delta, &before) } {
                // Afterwards: who takes in between has the old content, and must hear of it again.
                self.note_words(stored.start, stored.end - stored.start);
                self.stores.fetch_add(1, SeqCst);
                return true;
            }
        }
        let page = (address - self.range.start) / PAGE;
        self.open(page..page + 1).is_ok()
    }

    /// Opens pages, or all of them where there would be too many mappings. They count as written whole. For handlers, too.
    fn open(&self, pages: Range<u64>) -> io::Result<()> {
        let mark = || pages.clone().for_each(|page| self.note_open(page));
        pages.clone().for_each(|page| self.shelf.save(page));
        mark();
        let at = |page: u64| self.range.start + page * PAGE;
        let beside = [pages.start.wrapping_sub(1), pages.end].into_iter().filter(|page| self.opened.has(*page)).count();
        if self.place.open(at(pages.start)..at(pages.end), beside as i64).is_ok() {
            // Again, for whoever took and closed in between.
            mark();
            return Ok(());
        }
        self.shelf.save_all();
        self.all_open.store(true, SeqCst);
        let opened = self.place.protect(self.range.clone(), false);
        self.all_open.store(true, SeqCst);
        opened
    }
}

fn install() -> io::Result<()> {
    let mut installed = INSTALLED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if *installed {
        return Ok(());
    }
    emulate::prepare();
    // Where no handler has to read it.
    pieces_max();
    // SAFETY: the previous action is written while nobody reads it, as ours is not yet installed; ours is a function of the right form.
    unsafe {
        if libc::sigaction(libc::SIGSEGV, std::ptr::null(), (*PREVIOUS.0.get()).as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = on_fault as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        ours.sa_mask = crate::behind::all_but_own();
        if libc::sigaction(libc::SIGSEGV, &ours, null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    *installed = true;
    Ok(())
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands in what belongs to the signal; errno is this thread's own.
    unsafe {
        let errno = *libc::__errno_location();
        let context = context.cast::<libc::ucontext_t>();
        let address = (*info).si_addr() as u64;
        let writing = (*context).uc_mcontext.gregs[libc::REG_ERR as usize] & WRITING != 0;
        INSIDE.fetch_add(1, SeqCst);
        let served = writing && (*info).si_code == NO_ACCESS && {
            let traps = TRAPS[..SLOTS.load(SeqCst)].iter().map(|slot| slot.load(SeqCst));
            let mut ours = traps.filter(|trap| !trap.is_null() && (**trap).range.contains(&address));
            ours.next().is_some_and(|trap| (*trap).serve(address, context))
        };
        INSIDE.fetch_sub(1, SeqCst);
        *libc::__errno_location() = errno;
        if !served {
            hand_on(signal, info, context);
        }
    }
}

/// To whom it would have come without us.
///
/// # Safety
///
/// The arguments are those of the signal.
unsafe fn hand_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: written before our handler was installed. What it names was the handler of this signal, and gets what a handler gets. The signals that it
    // wanted blocked are blocked; the kernel sets them back when the signal returns.
    unsafe {
        let previous = (*PREVIOUS.0.get()).assume_init_ref();
        let handler = previous.sa_sigaction;
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            // The instruction faults again, and the kernel does what it does without a handler. It ignores no such fault.
            libc::signal(signal, libc::SIG_DFL);
            return;
        }
        // Ours are all blocked.
        let mut blocked = (*context).uc_sigmask;
        (1..=SIGNALS).filter(|nth| libc::sigismember(&previous.sa_mask, *nth) == 1).for_each(|nth| _ = libc::sigaddset(&mut blocked, nth));
        if previous.sa_flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut blocked, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, null_mut());
        if previous.sa_flags & libc::SA_SIGINFO != 0 {
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t) = std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(i32) = std::mem::transmute(handler);
            handler(signal);
        }
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x?} of {:?}", self.range, self.place)
    }
}

#[cfg(test)]
mod tests;
