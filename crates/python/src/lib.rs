//! Critical data areas for Python: the native module `fermata._native`. What Python does better is in `python/fermata/__init__.py`: arrays, transactions, `with`.
//!
//! - The memory is lent as a buffer. As long as somebody has one, it is not taken away.
//! - Captures are made under the interpreter's lock, so that no other thread runs Python meanwhile; the lock is given up while it is waited for the store.
//! - A child of `fork` has the object, but neither the memory nor the thread that writes, and must not use the store that its parent has open (LMDB): every call there is an error.

#![allow(unsafe_code)]

use fermata_process::{CriticalArea, Options, Pending, Tracking};
use fermata_store::Store;
use pyo3::{
    buffer::PyUntypedBuffer,
    create_exception,
    exceptions::{PyBufferError, PyOSError, PyValueError},
    ffi,
    prelude::*,
    sync::MutexExt,
    types::PySlice,
};
use std::{
    ffi::{c_int, c_void},
    io, iter,
    ops::Range,
    path::PathBuf,
    process,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

create_exception!(
    fermata,
    Error,
    PyOSError,
    "What went wrong with an area or its store. `errno` is that of the system where it refused. The memory stays as it is, and so do the checkpoints."
);

/// With the number of the system's error, where one is behind it.
fn told(error: impl std::error::Error + 'static) -> PyErr {
    let text = error.to_string();
    let number = iter::successors(Some(&error as &(dyn std::error::Error + 'static)), |error| error.source()).find_map(|error| {
        let shared = || error.downcast_ref::<Arc<io::Error>>().map(|error| &**error);
        error.downcast_ref::<io::Error>().or_else(shared)?.raw_os_error()
    });
    match number {
        Some(number) => Error::new_err((number, text)),
        None => Error::new_err(text),
    }
}

/// The process that has areas: the first that opened one. Its children have its stores half, and can have none.
static OWNER: OnceLock<u32> = OnceLock::new();

fn is_owner() -> bool {
    *OWNER.get_or_init(process::id) == process::id()
}

/// First in every call: in a child of `fork` even the locks may be held by threads that are not there.
fn here() -> PyResult<()> {
    let what = "this process is a child of one that opened areas, and cannot have any";
    let text = || format!("{what}; fork before the first is opened, or start the child anew (multiprocessing: \"spawn\")");
    is_owner().then_some(()).ok_or_else(|| Error::new_err(text()))
}

/// An area: memory that comes back after a crash as it was at the last commit.
#[pyclass(frozen, subclass, module = "fermata._native")]
struct Area {
    name: String,
    /// Where its memory is, as long as `area` is there.
    memory: Range<usize>,
    area: Mutex<Option<CriticalArea>>,
    /// Taken after `area`, never before.
    lent: Mutex<Lent>,
}

#[derive(Default)]
struct Lent {
    /// Buffers that somebody has.
    buffers: usize,
    /// No more buffers, and no more calls.
    closed: bool,
}

impl Area {
    fn lent(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn area(&self, py: Python<'_>) -> MutexGuard<'_, Option<CriticalArea>> {
        self.area.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> PyErr {
        PyValueError::new_err(format!("area {} is closed", self.name))
    }

    /// One thread at a time; others wait, without holding the interpreter up.
    fn with<T>(&self, py: Python<'_>, work: impl FnOnce(&mut CriticalArea) -> PyResult<T>) -> PyResult<T> {
        here()?;
        let mut area = self.area(py);
        let closed = self.lent().closed;
        work(area.as_mut().filter(|_| !closed).ok_or_else(|| self.is_closed())?)
    }

    /// Which bytes of the area these are: a slice of it in bytes, or a buffer that lies in it.
    fn range_of(&self, part: &Bound<'_, PyAny>) -> PyResult<Range<usize>> {
        let size = self.memory.len();
        if let Ok(slice) = part.cast::<PySlice>() {
            let at = slice.indices(size as isize)?;
            if at.step != 1 {
                return Err(PyValueError::new_err("a part of an area is a slice without steps"));
            }
            return Ok(at.start as usize..at.stop.max(at.start) as usize);
        }
        let buffer = PyUntypedBuffer::get(part)?;
        if !buffer.is_c_contiguous() && !buffer.is_fortran_contiguous() {
            return Err(PyValueError::new_err("the array has gaps; name a part that lies in one piece, or a slice of the area in bytes"));
        }
        let start = (buffer.buf_ptr() as usize).checked_sub(self.memory.start);
        let range = start.and_then(|start| Some(start..start.checked_add(buffer.len_bytes())?)).filter(|range| range.end <= size);
        range.ok_or_else(|| PyValueError::new_err(format!("it does not lie in the area {}", self.name)))
    }

    fn on_part(&self, part: &Bound<'_, PyAny>, work: fn(&mut CriticalArea, Range<usize>) -> fermata_process::Result<()>) -> PyResult<()> {
        here()?;
        let range = self.range_of(part)?;
        self.with(part.py(), |area| work(area, range).map_err(told))
    }

    /// Closes it, if nobody has its memory or the last who has it will; says what was not written.
    fn end(&self, py: Python<'_>, leave_to_buffers: bool) -> PyResult<()> {
        here()?;
        let mut area = self.area(py);
        let Some(open) = area.as_mut() else { return Ok(()) };
        let are_left = |lent: &Lent| {
            let text = || format!("area {}: arrays or buffers of it are still there ({}); delete them first", self.name, lent.buffers);
            if lent.buffers > 0 && !leave_to_buffers { Err(PyBufferError::new_err(text())) } else { Ok(()) }
        };
        // Before anything is asked that is told only once.
        are_left(&self.lent())?;
        let written = py.detach(|| open.drain()).map_err(told);
        let mut lent = self.lent();
        if let Err(left) = are_left(&lent) {
            return written.and(Err(left));
        }
        lent.closed = true;
        if lent.buffers == 0 {
            drop(area.take());
        }
        written
    }
}

#[pymethods]
impl Area {
    #[new]
    fn new(
        py: Python<'_>,
        name: String,
        nbytes: isize,
        store: Option<PathBuf>,
        tracking: &str,
        only_stores: bool,
        copy_on_write: bool,
    ) -> PyResult<Self> {
        let bytes = usize::try_from(nbytes).ok().filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| PyValueError::new_err(format!("an area cannot have {nbytes} bytes")))?;
        here()?;
        let tracking = tracking.parse::<Tracking>().map_err(|known| PyValueError::new_err(format!("no tracking {tracking:?}: {known}")))?;
        // Nothing that Python or NumPy keeps in it points into it.
        let options = Options::default().tracking(tracking).anywhere();
        let options = if only_stores { options.only_stores() } else { options };
        let options = if copy_on_write { options.copy_on_write() } else { options };
        let area = py.detach(|| {
            let path = store.map_or_else(Store::default_path, Ok).map_err(told)?;
            CriticalArea::open(&Store::open(&path).map_err(told)?, &name, bytes, options).map_err(told)
        })?;
        let memory = area.range().start as usize..area.range().end as usize;
        Ok(Self { name, memory, area: Mutex::new(Some(area)), lent: Mutex::default() })
    }

    /// Its name, and that of its checkpoints: `fermata log -e NAME`.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes it has: whole pages of 4096.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.len()
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.lent().closed
    }

    /// The id of the checkpoint that was made durable last; None before the first.
    #[getter]
    fn head(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with(py, |area| Ok(area.head().map(|id| id.to_string())))
    }

    /// How writes are found at the moment.
    #[getter]
    fn mechanism(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.with(py, |area| Ok(area.mechanism()))
    }

    #[pyo3(signature = (message=None))]
    fn commit(&self, py: Python<'_>, message: Option<&str>) -> PyResult<String> {
        self.with(py, |area| {
            let done = match behind(py, area, message) {
                // Told here; the next commit need not say it again.
                Ok(pending) => py.detach(|| pending.wait().inspect_err(|_| _ = area.drain())),
                // A backup was lost before. What was committed is durable when this returns.
                Err(error @ fermata_process::Error::Backup { .. }) => Err(py.detach(|| area.drain()).err().unwrap_or(error)),
                Err(error) => Err(error),
            };
            done.map(|id| id.to_string()).map_err(told)
        })
    }

    #[pyo3(signature = (message=None))]
    fn commit_behind(&self, py: Python<'_>, message: Option<&str>) -> PyResult<Commit> {
        self.with(py, |area| behind(py, area, message).map(Commit).map_err(told))
    }

    #[pyo3(signature = (message=None))]
    fn commit_replicated(&self, py: Python<'_>, message: Option<&str>) -> PyResult<Commit> {
        self.with(py, |area| {
            if !area.is_backed_up() {
                return Err(PyValueError::new_err(format!("area {} has no backup: name one with back_up_to, or use commit", self.name)));
            }
            let pending = behind(py, area, message).map_err(told)?;
            py.detach(|| pending.wait_replicated()).map_err(told)?;
            Ok(Commit(pending))
        })
    }

    /// Commits, and has each commit from this one on go to a backup, too: to `fermata receive` at this socket. Returns when the backup has all of the area.
    fn back_up_to(&self, py: Python<'_>, socket: PathBuf) -> PyResult<()> {
        self.with(py, |area| area.back_up_to(&socket).map_err(told))
    }

    /// No commit goes to this backup any more. What it has stays there.
    fn stop_backing_up(&self, py: Python<'_>, socket: PathBuf) -> PyResult<()> {
        self.with(py, |area| {
            area.stop_backing_up(&socket);
            Ok(())
        })
    }

    fn roll_back(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |area| {
            // What takes long, before the lock of the interpreter is kept.
            match py.detach(|| area.drain()) {
                // A backup has nothing to do with it.
                Ok(()) | Err(fermata_process::Error::Backup { .. }) => {}
                Err(error) => return Err(told(error)),
            }
            area.begin().and_then(|cycle| cycle.roll_back()).map_err(told)
        })
    }

    /// Waits until all that was committed is durable and every backup has it; raises what of it was not written and not told of, or not sent.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |area| py.detach(|| area.drain()).map_err(told))
    }

    /// Removes what is older than the last so many commits from now on, behind the program; what is tagged stays.
    fn keep_last(&self, py: Python<'_>, commits: u32) -> PyResult<()> {
        self.with(py, |area| area.keep_last(commits).map_err(told))
    }

    /// Leaves a part out of checkpoints from the next one on: the pages that lie in it wholly.
    ///
    /// `part` is a slice of the area in bytes, or an array in it. After a restart these pages are zero.
    fn exclude(&self, part: &Bound<'_, PyAny>) -> PyResult<()> {
        self.on_part(part, CriticalArea::exclude)
    }

    /// Takes up again what `exclude` left out.
    fn include(&self, part: &Bound<'_, PyAny>) -> PyResult<()> {
        self.on_part(part, CriticalArea::include)
    }

    /// The kernel writes here before the next commit; to be said before each call, where signals find the writes, and of pinned memory always.
    fn expect_writes(&self, part: &Bound<'_, PyAny>) -> PyResult<()> {
        self.on_part(part, |area, at| area.begin()?.expect_writes(at))
    }

    /// Sets the pages that lie in a part wholly to zero, and gives their memory back to the system.
    fn discard(&self, part: &Bound<'_, PyAny>) -> PyResult<()> {
        self.on_part(part, |area, at| area.begin()?.discard(at))
    }

    /// Waits for what is being written, and takes the memory away. What was not committed is lost.
    ///
    /// BufferError as long as somebody has a buffer or an array of it.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, false)
    }

    /// The same, but the memory stays for the arrays that somebody has, and goes with the last of them.
    fn _leave(&self, py: Python<'_>) -> PyResult<()> {
        self.end(py, true)
    }

    /// In a child of `fork`: lets go of the area's lock, so that whoever comes after the parent can open it while the child lives.
    fn _abandon(&self) {
        // Who has it now is a thread of the parent's, and not here.
        let area = self.area.try_lock().ok().and_then(|mut area| area.take());
        if let Some(area) = area {
            area.abandon();
        }
    }

    /// # Safety
    ///
    /// As Python says: `view` is where a buffer may be described.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        // SAFETY: as the caller says. Python wants no object here when this fails.
        unsafe { (*view).obj = std::ptr::null_mut() };
        here()?;
        let mut lent = this.lent();
        if lent.closed {
            return Err(this.is_closed());
        }
        let (start, size) = (this.memory.start as *mut c_void, this.memory.len() as isize);
        // SAFETY: as the caller says. The memory is mapped as long as a buffer of it is counted, and each holds a reference to this object.
        if unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, size, 0, flags) } != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        lent.buffers += 1;
        Ok(())
    }

    /// # Safety
    ///
    /// As Python says: once for each buffer of `__getbuffer__`.
    unsafe fn __releasebuffer__(slf: &Bound<'_, Self>, _view: *mut ffi::Py_buffer) {
        let this = slf.get();
        let last = {
            let mut lent = this.lent();
            lent.buffers -= 1;
            lent.closed && lent.buffers == 0
        };
        if last && is_owner() {
            drop(this.area(slf.py()).take());
        }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if !is_owner() {
            self._abandon();
        }
    }
}

fn behind(py: Python<'_>, area: &mut CriticalArea, message: Option<&str>) -> fermata_process::Result<Pending> {
    // What takes long, before the lock of the interpreter is kept.
    py.detach(|| area.wait_for_room());
    let cycle = area.begin()?;
    let cycle = if let Some(message) = message { cycle.message(message) } else { cycle };
    cycle.commit_behind()
}

/// A commit that is being written.
#[pyclass(frozen, module = "fermata._native")]
struct Commit(Pending);

#[pymethods]
impl Commit {
    /// Waits until it is durable and every backup has it; the id of its checkpoint. Raises Error if it was not written, or not sent.
    fn wait(&self, py: Python<'_>) -> PyResult<String> {
        here()?;
        py.detach(|| self.0.wait()).map(|id| id.to_string()).map_err(told)
    }

    /// Whether it is written and sent, or has failed.
    fn done(&self) -> PyResult<bool> {
        here()?;
        Ok(self.0.poll().is_some())
    }
}

/// Commits several areas at one instant: their ids, when all are durable.
#[pyfunction]
#[pyo3(signature = (*areas))]
fn commit_together(py: Python<'_>, areas: Vec<Bound<'_, Area>>) -> PyResult<Vec<String>> {
    here()?;
    let mut order: Vec<usize> = (0..areas.len()).collect();
    // All who take several locks take them in one order.
    order.sort_by_key(|at| areas[*at].as_ptr());
    if order.windows(2).any(|pair| areas[pair[0]].is(&areas[pair[1]])) {
        return Err(PyValueError::new_err("an area is named twice"));
    }
    let mut held: Vec<_> = order.iter().map(|at| areas[*at].get().area(py)).collect();
    let mut open = Vec::new();
    for (at, area) in order.iter().zip(&mut held) {
        let of = areas[*at].get();
        let closed = of.lent().closed;
        open.push(area.as_mut().filter(|_| !closed).ok_or_else(|| of.is_closed())?);
    }
    py.detach(|| open.iter_mut().for_each(|area| area.wait_for_room()));
    let done = match CriticalArea::commit_together_behind(&mut open) {
        Ok(pending) => py.detach(|| {
            let done: Vec<_> = pending.iter().map(Pending::wait).collect();
            // Told here; the next commit need not say it again.
            if done.iter().any(Result::is_err) {
                open.iter_mut().for_each(|area| _ = area.drain());
            }
            done.into_iter().collect()
        }),
        // A backup was lost before. What was committed is durable when this returns.
        Err(error @ fermata_process::Error::Backup { .. }) => {
            let failed: Vec<_> = py.detach(|| open.iter_mut().filter_map(|area| area.drain().err()).collect());
            Err(failed.into_iter().next().unwrap_or(error))
        }
        Err(error) => Err(error),
    };
    let done: Vec<_> = done.map_err(told)?;
    let mut ids = vec![String::new(); areas.len()];
    order.into_iter().zip(done).for_each(|(at, id)| ids[at] = id.to_string());
    Ok(ids)
}

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{Area, Commit, Error, commit_together};
}
