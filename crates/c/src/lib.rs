//! Critical data areas and programs of ranks for C. What each function does is said in `include/fermata.h`; here is only how arguments of C become those of Rust.
//!
//! No panic leaves a function: it becomes an error. Nothing of an area is kept in statics but the text of the last error of each thread.

#![allow(unsafe_code)]

mod mpi;
mod ranks;

use fermata_process::{CriticalArea, Heap, Options, Pending, Placed, Tracking};
use fermata_store::Store;
use std::{
    cell::RefCell,
    ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void},
    fmt::Display,
    ops::Range,
    os::unix::ffi::OsStrExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    slice,
};

const ONLY_STORES: c_uint = 1;
const ANYWHERE: c_uint = 2;
const COPY_ON_WRITE: c_uint = 4;
/// In the order of `enum fermata_tracking`.
const TRACKINGS: [Tracking; 7] = [
    Tracking::Auto,
    Tracking::Assisted,
    Tracking::Protect,
    Tracking::Emulate,
    Tracking::SoftDirty,
    Tracking::Compare,
    Tracking::Difference,
];

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// An area, as C has it: a pointer to this.
pub struct FermataArea(CriticalArea);

/// A commit that is being written.
pub struct FermataPending(Pending);

/// Does the work; says what went wrong, and returns nothing then.
fn told<T>(work: impl FnOnce() -> Result<T, String>) -> Option<T> {
    let result =
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("a bug of Fermata: it panicked, see what it wrote to stderr".into()));
    let text = match result {
        Ok(value) => return Some(value),
        Err(text) => text.replace('\0', " "),
    };
    LAST.with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    None
}

fn status(work: impl FnOnce() -> Result<(), String>) -> c_int {
    if told(work).is_some() { 0 } else { -1 }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// # Safety
///
/// A pointer that `fermata_open` has given, and that `fermata_close` has not got; used by nobody else meanwhile. Or NULL.
unsafe fn area<'a>(area: *mut FermataArea) -> Result<&'a mut CriticalArea, String> {
    // SAFETY: as the caller says.
    unsafe { area.as_mut() }.map(|area| &mut area.0).ok_or_else(|| "the area is NULL; fermata_open gives one".to_owned())
}

/// Which bytes of the area these are.
fn within(area: &CriticalArea, from: *const c_void, bytes: usize) -> Result<Range<usize>, String> {
    let (start, size) = (area.range().start, area.as_slice().len());
    let at = (from as u64).checked_sub(start).and_then(|at| usize::try_from(at).ok());
    let end = at.and_then(|at| at.checked_add(bytes)).filter(|end| *end <= size);
    end.map(|end| end - bytes..end).ok_or_else(|| format!("{bytes} bytes at {from:p} are not in the area {}", area.name()))
}

/// # Safety
///
/// `store` and `name` are texts that end with a zero, or NULL where the header allows it; `area` is where a pointer may be put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_open(
    store: *const c_char,
    name: *const c_char,
    bytes: usize,
    tracking: c_int,
    flags: c_uint,
    area: *mut *mut FermataArea,
) -> c_int {
    status(|| {
        if name.is_null() || area.is_null() {
            return Err("the name, or where the area is to be put, is NULL".into());
        }
        // SAFETY: as the caller says.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(text)?;
        let path: PathBuf = match store.is_null() {
            true => Store::default_path().map_err(text)?,
            // SAFETY: as the caller says.
            false => Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(store) }.to_bytes())).to_owned(),
        };
        let tracking = usize::try_from(tracking).ok().and_then(|number| TRACKINGS.get(number));
        let mut options = Options::default().tracking(*tracking.ok_or("there is no tracking of this number")?);
        if flags & ONLY_STORES != 0 {
            options = options.only_stores();
        }
        if flags & ANYWHERE != 0 {
            options = options.anywhere();
        }
        if flags & COPY_ON_WRITE != 0 {
            options = options.copy_on_write();
        }
        let unknown = flags & !(ONLY_STORES | ANYWHERE | COPY_ON_WRITE);
        if unknown != 0 {
            return Err(format!("there are no flags {unknown:#x}"));
        }
        let opened = CriticalArea::open(&Store::open(&path).map_err(text)?, name, bytes, options).map_err(text)?;
        // SAFETY: as the caller says.
        unsafe { area.write(Box::into_raw(Box::new(FermataArea(opened)))) };
        Ok(())
    })
}

/// # Safety
///
/// As for all: an area of `fermata_open`. It is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_close(area: *mut FermataArea) {
    if !area.is_null() {
        // SAFETY: made by `fermata_open` from a box.
        let area = unsafe { Box::from_raw(area) };
        told(|| {
            drop(area);
            Ok(())
        });
    }
}

/// # Safety
///
/// An area of `fermata_open`, in a child of `fork`. It is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_abandon(area: *mut FermataArea) {
    if !area.is_null() {
        // SAFETY: made by `fermata_open` from a box.
        let area = unsafe { Box::from_raw(area) };
        told(|| {
            let FermataArea(area) = *area;
            area.abandon();
            Ok(())
        });
    }
}

/// # Safety
///
/// An area of `fermata_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_memory(of: *mut FermataArea) -> *mut c_void {
    // SAFETY: as the caller says.
    told(|| Ok(unsafe { area(of) }?.range().start as *mut c_void)).or_null()
}

/// # Safety
///
/// An area of `fermata_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_size(of: *const FermataArea) -> usize {
    // SAFETY: as the caller says.
    unsafe { of.as_ref() }.map_or(0, |area| area.0.as_slice().len())
}

/// # Safety
///
/// An area of `fermata_open`; nobody writes to its memory meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_commit(of: *mut FermataArea) -> c_int {
    // SAFETY: as the caller says.
    status(|| unsafe { area(of) }?.begin().and_then(|cycle| cycle.commit()).map(drop).map_err(text))
}

/// # Safety
///
/// An area of `fermata_open`; nobody writes to its memory meanwhile. `message` is a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_commit_message(of: *mut FermataArea, message: *const c_char) -> c_int {
    status(|| {
        if message.is_null() {
            return Err("the message is NULL".into());
        }
        // SAFETY: as the caller says.
        let message = unsafe { CStr::from_ptr(message) }.to_str().map_err(text)?;
        // SAFETY: as the caller says.
        unsafe { area(of) }?.begin().and_then(|cycle| cycle.message(message).commit()).map(drop).map_err(text)
    })
}

/// # Safety
///
/// `areas` is where so many areas of `fermata_open` are; nobody writes to their memory meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_commit_together(areas: *const *mut FermataArea, count: usize) -> c_int {
    status(|| {
        if areas.is_null() {
            return Err("where the areas are is NULL".into());
        }
        // SAFETY: as the caller says.
        let named = unsafe { slice::from_raw_parts(areas, count) };
        if (1..count).any(|at| named[..at].contains(&named[at])) {
            return Err("an area is named twice".into());
        }
        // SAFETY: as the caller says, and each of them is there once.
        let mut open = named.iter().map(|of| unsafe { area(*of) }).collect::<Result<Vec<_>, _>>()?;
        CriticalArea::commit_together(&mut open).map(drop).map_err(text)
    })
}

/// # Safety
///
/// An area of `fermata_open`; nobody writes to its memory meanwhile. `pending` is where a pointer may be put, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_commit_behind(of: *mut FermataArea, pending: *mut *mut FermataPending) -> c_int {
    status(|| {
        if !pending.is_null() {
            // SAFETY: as the caller says.
            unsafe { pending.write(std::ptr::null_mut()) };
        }
        // SAFETY: as the caller says.
        let begun = unsafe { area(of) }?.begin().and_then(|cycle| cycle.commit_behind()).map_err(text)?;
        if !pending.is_null() {
            // SAFETY: as the caller says.
            unsafe { pending.write(Box::into_raw(Box::new(FermataPending(begun)))) };
        }
        Ok(())
    })
}

/// # Safety
///
/// What `fermata_commit_behind` has given, and `fermata_wait` has not got; or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_done(pending: *const FermataPending) -> c_int {
    told(|| {
        // SAFETY: as the caller says.
        let pending = unsafe { pending.as_ref() }.ok_or("the commit is NULL")?;
        Ok(c_int::from(pending.0.poll().is_some()))
    })
    .unwrap_or(-1)
}

/// # Safety
///
/// An area of `fermata_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_drain(of: *mut FermataArea) -> c_int {
    // SAFETY: as the caller says.
    status(|| unsafe { area(of) }?.drain().map_err(text))
}

/// # Safety
///
/// An area of `fermata_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_keep_last(of: *mut FermataArea, commits: u32) -> c_int {
    // SAFETY: as the caller says.
    status(|| unsafe { area(of) }?.keep_last(commits).map_err(text))
}

/// # Safety
///
/// What `fermata_commit_behind` has given. It is gone afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_wait(pending: *mut FermataPending) -> c_int {
    status(|| {
        if pending.is_null() {
            return Err("the commit is NULL".into());
        }
        // SAFETY: made by `fermata_commit_behind` from a box.
        unsafe { Box::from_raw(pending) }.0.wait().map(drop).map_err(text)
    })
}

/// # Safety
///
/// `socket` is a text that ends with a zero, or NULL.
unsafe fn socket_at<'a>(socket: *const c_char) -> Result<&'a Path, String> {
    if socket.is_null() {
        return Err("the socket is NULL".into());
    }
    // SAFETY: as the caller says.
    Ok(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(socket) }.to_bytes())))
}

/// # Safety
///
/// An area of `fermata_open`; nobody writes to its memory meanwhile. `socket` is a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_back_up_to(of: *mut FermataArea, socket: *const c_char) -> c_int {
    // SAFETY: as the caller says.
    status(|| unsafe { area(of)?.back_up_to(socket_at(socket)?) }.map_err(text))
}

/// # Safety
///
/// An area of `fermata_open`. `socket` is a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_stop_backing_up(of: *mut FermataArea, socket: *const c_char) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let (area, socket) = unsafe { (area(of)?, socket_at(socket)?) };
        area.stop_backing_up(socket);
        Ok(())
    })
}

/// # Safety
///
/// An area of `fermata_open`; nobody writes to its memory meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_commit_replicated(of: *mut FermataArea) -> c_int {
    // SAFETY: as the caller says.
    status(|| unsafe { area(of) }?.begin().and_then(|cycle| cycle.commit_replicated()).map(drop).map_err(text))
}

/// # Safety
///
/// An area of `fermata_open`; nobody writes to its memory meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_roll_back(of: *mut FermataArea) -> c_int {
    // SAFETY: as the caller says.
    status(|| unsafe { area(of) }?.begin().and_then(|cycle| cycle.roll_back()).map_err(text))
}

macro_rules! ranges {
    ($($name:ident: $work:expr;)*) => {$(
        /// # Safety
        ///
        /// An area of `fermata_open`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(of: *mut FermataArea, from: *const c_void, bytes: usize) -> c_int {
            status(|| {
                // SAFETY: as the caller says.
                let area = unsafe { area(of) }?;
                let at = within(area, from, bytes)?;
                let work: fn(&mut CriticalArea, Range<usize>) -> fermata_process::Result<()> = $work;
                work(area, at).map_err(text)
            })
        }
    )*};
}

ranges! {
    fermata_exclude: |area, at| area.exclude(at);
    fermata_include: |area, at| area.include(at);
    fermata_expect_writes: |area, at| area.begin()?.expect_writes(at);
    fermata_discard: |area, at| area.begin()?.discard(at);
}

/// # Safety
///
/// An area of `fermata_open`; nobody else allocates in it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_alloc(of: *mut FermataArea, bytes: usize) -> *mut c_void {
    told(|| {
        // SAFETY: as the caller says.
        let area = unsafe { area(of) }?;
        let start = area.range().start;
        let offset = Heap::open_or_format(area.as_mut_slice()).and_then(|mut heap| heap.take(bytes)).map_err(text)?;
        Ok((start + offset) as *mut c_void)
    })
    .or_null()
}

/// # Safety
///
/// An area of `fermata_open`; nobody else allocates in it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_free(of: *mut FermataArea, block: *mut c_void) -> c_int {
    status(|| {
        if block.is_null() {
            return Ok(());
        }
        // SAFETY: as the caller says.
        let area = unsafe { area(of) }?;
        let at = within(area, block, 0)?.start as u64;
        Heap::open_or_format(area.as_mut_slice()).and_then(|mut heap| heap.give(at)).map_err(text)
    })
}

/// # Safety
///
/// An area of `fermata_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_root(of: *mut FermataArea) -> *mut c_void {
    told(|| {
        // SAFETY: as the caller says.
        let area = unsafe { area(of) }?;
        let start = area.range().start;
        let root = Heap::open_or_format(area.as_mut_slice()).map_err(text)?.root::<u8>();
        Ok(root.map_or(std::ptr::null_mut(), |root| (start + root.offset()) as *mut c_void))
    })
    .or_null()
}

/// # Safety
///
/// An area of `fermata_open`; nobody else allocates in it meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fermata_set_root(of: *mut FermataArea, block: *mut c_void) -> c_int {
    status(|| {
        // SAFETY: as the caller says.
        let area = unsafe { area(of) }?;
        let root = if block.is_null() { None } else { Some(Placed::<u8>::at(within(area, block, 1)?.start as u64)) };
        Heap::open_or_format(area.as_mut_slice()).map_err(text)?.set_root(root);
        Ok(())
    })
}

/// The text of the last error of this thread; empty if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn fermata_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// A pointer, or NULL.
trait OrNull {
    fn or_null(self) -> *mut c_void;
}

impl OrNull for Option<*mut c_void> {
    fn or_null(self) -> *mut c_void {
        self.unwrap_or(std::ptr::null_mut())
    }
}
