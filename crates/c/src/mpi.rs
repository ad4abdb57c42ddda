//! A rank of a program of MPI, for `mpi/fermata_mpi*.c`, which carry the messages. What each function does is said there; a process is one rank, so they need no handle.

use super::{OrNull, status, text, told};
use fermata_process::ranks::{
    Here,
    mpi::{Arrival, HEAD, MpiRank, Which},
};
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    io, slice,
    sync::{Mutex, PoisonError},
};

/// This process.
struct This {
    rank: MpiRank,
    /// Where the captured memory begins: with how many calls were made.
    start: usize,
}

static THIS: Mutex<Option<This>> = Mutex::new(None);

/// `struct fermata_arrival`.
#[repr(C)]
pub struct FermataArrival {
    from: usize,
    context: u32,
    tag: c_int,
    bytes: *const c_void,
    length: usize,
    owner: *mut Arrival,
}

fn with<T>(work: impl FnOnce(&mut This) -> io::Result<T>) -> Result<T, String> {
    let mut this = THIS.lock().unwrap_or_else(PoisonError::into_inner);
    work(this.as_mut().ok_or("MPI_Init comes first")?).map_err(text)
}

#[unsafe(no_mangle)]
pub extern "C" fn fermata_rank_join(rank: usize, ranks: usize) -> c_int {
    status(|| {
        let mut rank = MpiRank::join(Here { rank, ranks }).map_err(text)?;
        let start = rank.take(size_of::<u64>()).map_err(text)?.as_mut_ptr() as usize;
        *THIS.lock().unwrap_or_else(PoisonError::into_inner) = Some(This { rank, start });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fermata_rank_take(bytes: usize) -> *mut c_void {
    told(|| with(|this| Ok(this.rank.take(bytes)?.as_mut_ptr().cast()))).or_null()
}

#[unsafe(no_mangle)]
pub extern "C" fn fermata_rank_begin() -> c_int {
    status(|| {
        with(|this| {
            let (start, used) = (this.start as *mut u8, this.rank.used() as usize);
            // SAFETY: all pieces together, from the first on. The program is in this function, and Rust has no references to them.
            let clear = || unsafe { start.write_bytes(0, used) };
            let mut cleared = false;
            let restored = this.rank.begin(&mut |offset, bytes| {
                if !std::mem::replace(&mut cleared, true) {
                    clear();
                }
                let at = usize::try_from(offset)
                    .ok()
                    .filter(|at| *at <= used)
                    .ok_or_else(|| io::Error::other("the checkpoint is of another program"))?;
                // The last page may go on behind the last piece.
                let count = bytes.len().min(used - at);
                // SAFETY: as above, and within.
                unsafe { start.add(at).copy_from_nonoverlapping(bytes.as_ptr(), count) };
                Ok(())
            })?;
            if restored && !cleared {
                clear();
            }
            Ok(())
        })
    })
}

/// # Safety
///
/// `head` is where `HEAD` bytes may be put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_rank_head(to: usize, context: u32, tag: c_int, head: *mut u8) -> c_int {
    status(|| {
        let bytes = with(|this| this.rank.head(to, context, tag))?;
        // SAFETY: as the caller says.
        unsafe { head.copy_from_nonoverlapping(bytes.as_ptr(), HEAD) };
        Ok(())
    })
}

/// # Safety
///
/// `message` is where so many bytes are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_rank_arrived(from: usize, message: *const u8, bytes: usize) -> c_int {
    // SAFETY: as the caller says.
    status(|| with(|this| this.rank.arrived(from, unsafe { slice::from_raw_parts(message, bytes) })))
}

#[unsafe(no_mangle)]
pub extern "C" fn fermata_rank_look() -> c_int {
    status(|| {
        with(|this| {
            this.rank.look();
            Ok(())
        })
    })
}

/// # Safety
///
/// `arrival` is where one may be put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_rank_find(from: c_int, context: u32, tag: c_int, take: c_int, arrival: *mut FermataArrival) -> c_int {
    let which = Which { from: usize::try_from(from).ok(), context, tag: (tag >= 0).then_some(tag) };
    let found = told(|| with(|this| Ok(this.rank.find(which, take != 0))));
    let Some(found) = found else { return -1 };
    let Some(found) = found else { return 0 };
    let found = Box::new(found);
    let (from, context, tag) = (found.from, found.context(), found.tag());
    let (bytes, length) = (found.bytes().as_ptr().cast(), found.bytes().len());
    // SAFETY: as the caller says. The bytes stay where they are as long as their owner.
    unsafe { arrival.write(FermataArrival { from, context, tag, bytes, length, owner: Box::into_raw(found) }) };
    1
}

/// # Safety
///
/// The owner that `fermata_rank_find` gave, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_rank_release(owner: *mut Arrival) {
    // SAFETY: as the caller says.
    drop(unsafe { Box::from_raw(owner) });
}

#[unsafe(no_mangle)]
pub extern "C" fn fermata_rank_in_vain(from: c_int) -> c_int {
    status(|| {
        with(|this| {
            this.rank.in_vain(usize::try_from(from).ok());
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fermata_rank_call() -> c_int {
    status(|| {
        with(|this| {
            let made = this.start as *mut u64;
            // SAFETY: the first piece, aligned, of which only this function knows.
            let made = unsafe {
                made.write(made.read() + 1);
                made.read()
            };
            this.rank.call(made);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn fermata_rank_finish() -> c_int {
    status(|| with(|this| this.rank.finish()))
}

/// # Safety
///
/// A text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_rank_fail(why: *const c_char) {
    // SAFETY: as the caller says.
    let why = unsafe { CStr::from_ptr(why) }.to_string_lossy();
    told(|| {
        with(|this| {
            this.rank.fail(&why);
            Ok(())
        })
    });
}
