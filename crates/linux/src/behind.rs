//! Pages that are copied behind the program, as they were when they were set down: each at the latest before it is written to.
//!
//! ```text
//!   copied ──set_down()──> waiting ──save()──> being copied ──> copied
//!                          (closed)
//! ```
//!
//! Whoever comes first copies a page: a thread behind the program, who wants what was copied, or the program itself, whose write to a closed page is a
//! signal: its handler saves the page before it lets the write through. Who finds a page being copied waits, for as long as a page takes.
//!
//! One set of pages at a time: the next one is set down when the one before is copied. Nothing here is locked or allocated where a handler runs. No signal is
//! served in a thread that copies, or its handler could wait for a page that this thread is copying.

// Only traps set pages down.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

use crate::{Place, zeroed::Zeroed};
use std::{
    io,
    mem::{ManuallyDrop, MaybeUninit},
    ops::Range,
    ptr::null_mut,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicPtr, AtomicU64,
            Ordering::{Acquire, Relaxed, Release, SeqCst},
        },
    },
};

const PAGE: u64 = 4096;
/// The lowest bits of what is noted of a page, below its place among those that were set down. 0: it is copied, or was never set down.
const WAITING: u64 = 1;
const COPYING: u64 = 2;
const STATE: u64 = 3;

/// What is to be copied of some memory.
pub(crate) struct Shelf {
    place: Arc<Place>,
    /// The same memory, to read from: nobody closes or writes to this mapping but those who save before.
    second: Place,
    /// What is noted of each page of the memory.
    pages: Zeroed,
    /// Those that were set down, in the order of their places, and how many there are.
    list: Zeroed,
    count: AtomicU64,
    into: AtomicPtr<u8>,
    /// Of the set that was set down last.
    number: AtomicU64,
    /// Addresses that are closed for the sake of one set, and are opened when it is copied.
    closed: Mutex<Option<(u64, Range<u64>)>>,
}

/// Pages that are copied, or will be when somebody asks for them. In memory of its own, which is filled meanwhile.
pub struct Behind {
    shelf: Arc<Shelf>,
    number: u64,
    start: *mut u8,
    capacity: usize,
    bytes: usize,
}

// SAFETY: the buffer is this value's own. It is written to by whoever saves a page, once for each byte, and read only after all pages are saved.
unsafe impl Send for Behind {}
// SAFETY: as above.
unsafe impl Sync for Behind {}

impl Shelf {
    /// Of memory that is mapped in two places.
    pub fn new(place: Arc<Place>, second: Place) -> Self {
        let pages = (place.range().end - place.range().start).div_ceil(PAGE);
        let (pages, list) = (Zeroed::new(pages), Zeroed::new(pages));
        let (count, into, number) = (AtomicU64::new(0), AtomicPtr::new(null_mut()), AtomicU64::new(0));
        Self { place, second, pages, list, count, into, number, closed: Mutex::new(None) }
    }

    /// The second mapping.
    pub fn second(&self) -> &Place {
        &self.second
    }

    /// Sets pages of the memory down, to be copied into this buffer as they are now. Each at most once, and none is written to from here on but by who has
    /// saved it.
    pub fn set_down(self: &Arc<Self>, pages: &[u32], mut buffer: Vec<u8>) -> Behind {
        self.finish(self.number.load(SeqCst));
        buffer.clear();
        buffer.reserve(pages.len() * PAGE as usize);
        let mut buffer = ManuallyDrop::new(buffer);
        let (start, capacity, bytes) = (buffer.as_mut_ptr(), buffer.capacity(), pages.len() * PAGE as usize);
        let number = self.number.fetch_add(1, SeqCst) + 1;
        self.into.store(start, Release);
        pages.iter().enumerate().for_each(|(nth, page)| self.list.at(nth).store((*page).into(), Release));
        self.count.store(pages.len() as u64, Release);
        // Last: from here on they are saved.
        pages.iter().enumerate().for_each(|(nth, page)| self.pages.at(*page as usize).store((nth as u64) << 2 | WAITING, Release));
        Behind { shelf: self.clone(), number, start, capacity, bytes }
    }

    /// Closes these addresses until what was set down last is copied.
    pub fn close(&self, range: Range<u64>) -> io::Result<()> {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        self.place.protect(range.clone(), true)?;
        *closed = Some((self.number.load(SeqCst), range));
        Ok(())
    }

    /// Whatever is closed stays so, for reasons of somebody else's.
    pub fn leave_closed(&self) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn open_again(&self, number: u64) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if closed.as_ref().is_some_and(|(of, _)| *of == number) {
            let (_, range) = closed.take().expect("it was just seen");
            // What stays closed is opened when it is written to.
            let _ = self.place.protect(range, false);
        }
    }

    /// Has a page copied, if it is to be and is not yet. For handlers, too.
    pub fn save(&self, page: u64) {
        let noted = self.pages.at(page as usize);
        let mut tries = 0_u32;
        loop {
            let found = noted.load(Acquire);
            match found & STATE {
                WAITING if noted.compare_exchange(found, found ^ (WAITING | COPYING), Acquire, Relaxed).is_ok() => {
                    let nth = found >> 2;
                    // SAFETY: a page of the second mapping, and its place in a buffer that has room for all that were set down. The buffer is there, for who
                    // has it waits for this page.
                    unsafe {
                        let (from, into) = ((self.second.range().start + page * PAGE) as *const u8, self.into.load(Acquire));
                        std::ptr::copy_nonoverlapping(from, into.add((nth * PAGE) as usize), PAGE as usize);
                    }
                    return noted.store(0, Release);
                }
                WAITING => {}
                COPYING if tries < 1000 => std::hint::spin_loop(),
                // Who copies was put aside.
                COPYING => std::thread::yield_now(),
                _ => return,
            }
            tries += 1;
        }
    }

    /// Has all pages copied that are yet to be. For handlers, too.
    pub fn save_all(&self) {
        (0..self.count.load(Acquire) as usize).for_each(|nth| self.save(self.list.at(nth).load(Acquire)));
    }

    /// Has all that was set down copied. For no handler.
    pub fn finish_last(&self) {
        self.finish(self.number.load(SeqCst));
    }

    fn finish(&self, number: u64) {
        // An earlier set was finished before the next one was set down.
        if self.number.load(SeqCst) == number {
            let _unheard = Unheard::new();
            self.save_all();
        }
        self.open_again(number);
    }
}

impl Behind {
    /// How many bytes they make up.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies what is not copied yet.
    pub fn finish(&self) {
        self.shelf.finish(self.number);
    }

    /// All of them, one behind the other. Waits until they are copied.
    pub fn content(&self) -> &[u8] {
        self.finish();
        // SAFETY: all pages are copied, so all of these bytes were written, and nobody writes to them any more.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// The same in the buffer that was given.
    pub fn into_buffer(self) -> Vec<u8> {
        self.finish();
        let behind = ManuallyDrop::new(self);
        // SAFETY: never touched again: the value is not dropped.
        drop(unsafe { std::ptr::read(&behind.shelf) });
        // SAFETY: from a vector, whose first bytes were written as all pages are copied.
        unsafe { Vec::from_raw_parts(behind.start, behind.bytes, behind.capacity) }
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        // Nobody shall write there any more.
        self.finish();
        // SAFETY: from a vector.
        drop(unsafe { Vec::from_raw_parts(self.start, 0, self.capacity) });
    }
}

impl std::fmt::Debug for Behind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Behind({} bytes)", self.bytes)
    }
}

/// No signal is served in this thread, but those that it causes.
pub(crate) struct Unheard(libc::sigset_t);

impl Unheard {
    pub(crate) fn new() -> Self {
        let (all, mut before) = (all_but_own(), MaybeUninit::uninit());
        // SAFETY: sets of signals on the stack. The call cannot fail with this argument, and writes the mask that was.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        // SAFETY: the mask that was.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, null_mut()) };
    }
}

/// All signals but those that a thread causes by what it does: blocked, they would end the process.
pub(crate) fn all_but_own() -> libc::sigset_t {
    let mut all = MaybeUninit::uninit();
    // SAFETY: a set on the stack, filled by the first call.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        let own = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
        own.into_iter().for_each(|signal| _ = libc::sigdelset(all.as_mut_ptr(), signal));
        all.assume_init()
    }
}
