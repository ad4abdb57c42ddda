//! Programs of ranks for C: a program is four functions, which are called with what `fermata_process::ranks` calls a program with.

use super::{OrNull, status, text, told};
use fermata_process::ranks::{self, Here, Layout, Messages, Next, Program, Ranks, Wants};
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    io, slice,
};

const DONE: c_int = 1;
const STEP: c_int = 0;

/// `struct fermata_here`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FermataHere {
    rank: usize,
    ranks: usize,
}

/// `struct fermata_program`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FermataProgram {
    make: Option<unsafe extern "C" fn(*mut FermataLayout, FermataHere, *mut c_void) -> *mut c_void>,
    begin: Option<unsafe extern "C" fn(*mut c_void, *mut FermataRanks)>,
    wants: Option<unsafe extern "C" fn(*const c_void, *mut FermataWants)>,
    step: Option<unsafe extern "C" fn(*mut c_void, *mut FermataRanks, *const FermataMessages) -> c_int>,
}

/// Where memory is taken from: as long as `make` is running.
pub struct FermataLayout(*mut Layout);

/// What a step waits for, as far as it was said.
pub struct FermataWants {
    here: Here,
    these: Vec<(usize, u32)>,
    any: Option<u32>,
}

/// The messages of a step.
pub struct FermataMessages(Messages);

/// All ranks: as long as `begin` or `step` is running.
pub struct FermataRanks {
    ranks: *mut c_void,
    said: String,
}

struct InC {
    here: Here,
    program: FermataProgram,
    own: *mut c_void,
}

impl InC {
    /// Has a function of the program talk to the others; returns what it returned and said.
    fn talk<T>(ranks: &mut Ranks<'_>, work: impl FnOnce(*mut FermataRanks) -> T) -> (T, String) {
        let mut talk = FermataRanks { ranks: (&raw mut *ranks).cast(), said: String::new() };
        let result = work(&raw mut talk);
        (result, talk.said)
    }
}

impl Program for InC {
    fn begin(&mut self, ranks: &mut Ranks<'_>) {
        let Some(begin) = self.program.begin else { return };
        // SAFETY: the program's own function and pointer, as `fermata_run` got and `make` gave them.
        Self::talk(ranks, |ranks| unsafe { begin(self.own, ranks) });
    }

    fn wants(&self) -> Wants {
        let mut wants = FermataWants { here: self.here, these: Vec::new(), any: None };
        if let Some(say) = self.program.wants {
            // SAFETY: as in `begin`.
            unsafe { say(self.own, &raw mut wants) };
        }
        wants.any.map_or_else(|| Wants::these(wants.these), Wants::any)
    }

    fn step(&mut self, ranks: &mut Ranks<'_>, got: Messages) -> Next {
        let (step, got) = (self.program.step.expect("fermata_run has looked"), FermataMessages(got));
        // SAFETY: as in `begin`.
        let (next, said) = Self::talk(ranks, |ranks| unsafe { step(self.own, ranks, &raw const got) });
        match next {
            STEP => Next::Step,
            DONE => Next::Done(said),
            _ => Next::Failed(said),
        }
    }
}

/// # Safety
///
/// A program whose functions do what the header says of them; or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_run(program: *const FermataProgram, argument: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let program = *unsafe { program.as_ref() }.ok_or("the program is NULL")?;
        let (Some(make), Some(_), Some(_)) = (program.make, program.wants, program.step) else {
            return Err("the program has no make, no wants or no step".into());
        };
        let make = |layout: &mut Layout, here: Here| {
            let mut layout = FermataLayout(&raw mut *layout);
            // SAFETY: as the caller says; the layout is there until it returns.
            let own = unsafe { make(&raw mut layout, FermataHere { rank: here.rank, ranks: here.ranks }, argument) };
            if own.is_null() { Err(io::Error::other("the program's make has failed")) } else { Ok(InC { here, program, own }) }
        };
        ranks::try_run(make).map_err(text)
    })
}

/// # Safety
///
/// What `make` got, while it is running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_take(layout: *mut FermataLayout, bytes: usize) -> *mut c_void {
    told(|| {
        // SAFETY: as the caller says.
        let layout = unsafe { layout.as_ref() }.ok_or("the layout is NULL")?;
        // SAFETY: `make` is running, so it is there, and lent to nobody else.
        let taken = unsafe { &mut *layout.0 }.many::<u8>(bytes).map_err(text)?;
        Ok(taken.as_mut_ptr().cast())
    })
    .or_null()
}

/// # Safety
///
/// What `wants` got, while it is running. What is returned is not used longer.
unsafe fn wanting<'a>(wants: *mut FermataWants) -> Result<&'a mut FermataWants, String> {
    // SAFETY: as the caller says.
    unsafe { wants.as_mut() }.ok_or_else(|| "the wants are NULL".to_owned())
}

/// # Safety
///
/// What `wants` got, while it is running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_want(wants: *mut FermataWants, from: usize, tag: u32) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let wants = unsafe { wanting(wants) }?;
        is_there(wants.here, from)?;
        wants.these.push((from, tag));
        Ok(())
    })
}

/// # Safety
///
/// What `wants` got, while it is running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_want_all(wants: *mut FermataWants, tag: u32) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let wants = unsafe { wanting(wants) }?;
        wants.these.extend((0..wants.here.ranks).map(|from| (from, tag)));
        Ok(())
    })
}

/// # Safety
///
/// What `wants` got, while it is running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_want_any(wants: *mut FermataWants, tag: u32) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        unsafe { wanting(wants) }?.any = Some(tag);
        Ok(())
    })
}

/// # Safety
///
/// What `begin` or `step` got, while that is running. What is returned is not used longer.
unsafe fn talking<'a>(of: *mut FermataRanks) -> Result<&'a mut Ranks<'a>, String> {
    // SAFETY: as the caller says; `begin` or `step` is running, so what it points to is there, and lent to nobody else.
    unsafe { of.as_ref().and_then(|of| of.ranks.cast::<Ranks<'_>>().as_mut()) }.ok_or_else(|| "the ranks are NULL".to_owned())
}

/// # Safety
///
/// `values` is where so many bytes are. What is returned is not used longer than these are there.
unsafe fn bytes_at<'a>(values: *const c_void, bytes: usize) -> Result<&'a [u8], String> {
    match bytes {
        0 => Ok(&[]),
        _ if values.is_null() => Err("what is to be sent is NULL".into()),
        // SAFETY: as the caller says.
        _ => Ok(unsafe { slice::from_raw_parts(values.cast(), bytes) }),
    }
}

/// That there is a rank of this number.
fn is_there(here: Here, rank: usize) -> Result<(), String> {
    let count = here.ranks;
    if rank < count { Ok(()) } else { Err(format!("there is no rank {rank}: they are numbered from 0 to {}", count - 1)) }
}

/// That there is somewhere to put so many bytes.
fn has_room(into: *const c_void, bytes: usize) -> Result<(), String> {
    if bytes == 0 || !into.is_null() { Ok(()) } else { Err("where it is to be put is NULL".into()) }
}

/// # Safety
///
/// What `begin` or `step` got, while that is running; `values` is where so many bytes are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_send(ranks: *mut FermataRanks, to: usize, tag: u32, values: *const c_void, bytes: usize) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (ranks, values) = unsafe { (talking(ranks)?, bytes_at(values, bytes)?) };
        is_there(ranks.here(), to)?;
        ranks.send(to, tag, values);
        Ok(())
    })
}

/// # Safety
///
/// What `begin` or `step` got, while that is running; `values` is where so many bytes are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_broadcast(ranks: *mut FermataRanks, tag: u32, values: *const c_void, bytes: usize) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (ranks, values) = unsafe { (talking(ranks)?, bytes_at(values, bytes)?) };
        ranks.broadcast(tag, values);
        Ok(())
    })
}

/// # Safety
///
/// What `begin` or `step` got, while that is running; `values` is where so many bytes for each rank are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_all_to_all(ranks: *mut FermataRanks, tag: u32, values: *const c_void, bytes_for_each: usize) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let ranks = unsafe { talking(ranks) }?;
        let bytes = bytes_for_each.checked_mul(ranks.here().ranks).ok_or("there is not so much memory")?;
        // SAFETY: as the caller says.
        let values = unsafe { bytes_at(values, bytes) }?;
        ranks.all_to_all(tag, |to| values[to * bytes_for_each..][..bytes_for_each].to_vec());
        Ok(())
    })
}

/// # Safety
///
/// What `begin` or `step` got, while that is running; `values` is where so many bytes are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_reduce(ranks: *mut FermataRanks, root: usize, tag: u32, values: *const c_void, bytes: usize) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (ranks, values) = unsafe { (talking(ranks)?, bytes_at(values, bytes)?) };
        is_there(ranks.here(), root)?;
        ranks.reduce(root, tag, values);
        Ok(())
    })
}

/// # Safety
///
/// What `begin` or `step` got, while that is running; `values` is where so many bytes are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_all_reduce(ranks: *mut FermataRanks, tag: u32, values: *const c_void, bytes: usize) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (ranks, values) = unsafe { (talking(ranks)?, bytes_at(values, bytes)?) };
        ranks.all_reduce(tag, values);
        Ok(())
    })
}

/// # Safety
///
/// What `step` got, while it is running; `said` is a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_say(ranks: *mut FermataRanks, said: *const c_char) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let ranks = unsafe { ranks.as_mut() }.ok_or("the ranks are NULL")?;
        if said.is_null() {
            return Err("what is to be said is NULL".into());
        }
        // SAFETY: as the caller says.
        ranks.said = unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned();
        Ok(())
    })
}

/// # Safety
///
/// What `step` got, while it is running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_count(got: *const FermataMessages) -> usize {
    // SAFETY: as the caller says.
    unsafe { got.as_ref() }.map_or(0, |got| got.0.len())
}

/// # Safety
///
/// What `step` got, while it is running.
unsafe fn message<'a>(got: *const FermataMessages, which: usize) -> Result<&'a Messages, String> {
    // SAFETY: as the caller says.
    let got = &unsafe { got.as_ref() }.ok_or("the messages are NULL")?.0;
    if which < got.len() { Ok(got) } else { Err(format!("there is no message {which}: the step got {}", got.len())) }
}

/// # Safety
///
/// What `step` got, while it is running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_from(got: *const FermataMessages, which: usize) -> usize {
    // SAFETY: as the caller says.
    told(|| unsafe { message(got, which) }.map(|got| got.from(which))).unwrap_or(usize::MAX)
}

/// # Safety
///
/// What `step` got, while it is running.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_length(got: *const FermataMessages, which: usize) -> usize {
    // SAFETY: as the caller says.
    told(|| unsafe { message(got, which) }.map(|got| got.bytes(which).len())).unwrap_or(0)
}

/// # Safety
///
/// What `step` got, while it is running; `into` is where there is room for so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_receive(got: *const FermataMessages, which: usize, into: *mut c_void, bytes: usize) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let message = unsafe { message(got, which) }?.bytes(which);
        if message.len() != bytes {
            return Err(format!("message {which} has {} bytes, where {bytes} are expected", message.len()));
        }
        has_room(into, bytes)?;
        if bytes > 0 {
            // SAFETY: as the caller says; a message lies in no memory of the program.
            unsafe { into.cast::<u8>().copy_from_nonoverlapping(message.as_ptr(), bytes) };
        }
        Ok(())
    })
}

/// # Safety
///
/// What `step` got, while it is running; `into` is where there is room for `count` values of `size` bytes; `put_together` does what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_reduced(
    got: *const FermataMessages,
    into: *mut c_void,
    count: usize,
    size: usize,
    put_together: Option<unsafe extern "C" fn(*mut c_void, *const c_void)>,
) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let got = unsafe { message(got, 0) }?;
        let put_together = put_together.ok_or("what puts values together is NULL")?;
        let bytes = count.checked_mul(size).ok_or("there is not so much memory")?;
        if let Some(other) = (0..got.len()).find(|which| got.bytes(*which).len() != bytes) {
            return Err(format!("message {other} has {} bytes, where {bytes} are expected", got.bytes(other).len()));
        }
        has_room(into, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as the caller says; a message lies in no memory of the program.
        unsafe { into.cast::<u8>().copy_from_nonoverlapping(got.bytes(0).as_ptr(), bytes) };
        // Where any number may lie.
        let mut more = vec![0u128; bytes.div_ceil(size_of::<u128>())];
        for which in 1..got.len() {
            // SAFETY: there is room for so many bytes, as there are in the message.
            unsafe { more.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(got.bytes(which).as_ptr(), bytes) };
            for at in (0..bytes).step_by(size) {
                // SAFETY: both are within what has `bytes` bytes; the program's own function does what the header says.
                unsafe { put_together(into.byte_add(at), more.as_ptr().byte_add(at).cast()) };
            }
        }
        Ok(())
    })
}
