//! Who answers when somebody touches guest memory that is not there, or writes to a page that is watched: one thread reads the machine's userfaultfd.
//!
//! A touch goes to the pager, which brings the page in. A write first lets a checkpoint under way copy the page ([`Held`]), then is noted by the tracker,
//! which lets it through. With asynchronous tracking the kernel lets writes through by itself, and only touches come here.

use crate::{Error, held::Held, holes::Holes, pager::Pager};
use fermata_linux::{Child, Fault, FaultKind, MemoryFile, Userfault, priority};
use fermata_tracker::WriteLog;
use fermata_types::{PAGE_SIZE, PageNumber};
use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// How long the server sleeps before it looks whether it should end.
const PATIENCE: Duration = Duration::from_millis(50);

/// `ESRCH`: what userfaultfd answers when the memory that it serves is no more.
const NO_SUCH_PROCESS: i32 = 3;

/// A guest's memory: the file, where QEMU has mapped it, and who has to be asked before it is touched.
pub(crate) struct Memory {
    pub ram: Arc<MemoryFile>,
    /// Addresses in QEMU.
    pub range: Range<u64>,
    pub userfault: Arc<Userfault>,
    /// Notes writes, if they wait for us.
    pub log: Option<WriteLog>,
    pub held: Arc<Held>,
    pub holes: Holes,
    /// Held from the copy of a page to the write that it was made for. Two may fault on one page, and when the second is answered the page may be
    /// protected again, for a checkpoint that was not there when the page was preserved.
    pub letting_through: Mutex<()>,
    /// Brings in what is not there; none as long as nothing is being restored.
    pub pager: OnceLock<Pager>,
    pub fate: Fate,
}

/// How a machine ends whose memory cannot be served: it must not go on with a wrong page, and it cannot go on without.
pub(crate) struct Fate {
    pub child: Arc<Child>,
    /// We end it ourselves.
    pub ending: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Fate {
    pub fn new(child: Arc<Child>) -> Self {
        Self { child, ending: AtomicBool::new(false), failure: Mutex::default() }
    }

    /// Ends the machine, unless it has ended already and that is all that is wrong.
    pub fn give_up(&self, page: u64, error: &Error) {
        // A process that is going away takes its memory along before it can be seen to have ended.
        let memory_gone = matches!(error, Error::Io { source, .. } if source.raw_os_error() == Some(NO_SUCH_PROCESS));
        if memory_gone || self.child.ended().is_some() || self.ending.load(Ordering::Acquire) {
            return;
        }
        self.end(format!("page {page} could not be restored: {error}"));
    }

    fn end(&self, why: String) {
        tracing::error!("ending the machine: {why}");
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        self.child.kill();
    }

    /// Does what the guest waits for. If that panics nobody does it any more, and the guest would wait for ever.
    fn ends_with(&self, serve: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(serve)).is_err() && !self.ending.load(Ordering::Acquire) {
            self.end("whoever serves its pages panicked, which is a fault of Fermata's: the keeper's log tells more".to_owned());
        }
    }

    /// Why it was ended, if it was.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Memory {
    /// A device backend is about to touch these pages through a mapping of its own, which the userfaultfd does not watch.
    pub fn before_access(&self, first: PageNumber, pages: u32) -> std::io::Result<()> {
        if let Some(pager) = self.pager.get() {
            pager.bring_in(first, pages)?;
        }
        self.held.preserve(first, pages);
        Ok(())
    }

    /// Whether they can be touched without waiting.
    pub fn is_there(&self, first: PageNumber, pages: u32) -> bool {
        self.pager.get().is_none_or(|pager| pager.is_there(first, pages))
    }

    pub fn io(&self, what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = self.ram.path().to_owned();
        move |source| Error::Io { what, path, source }
    }

    /// There is nothing behind this lock that a panic could spoil.
    pub fn let_through(&self) -> MutexGuard<'_, ()> {
        self.letting_through.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False when the page cannot be had yet: nobody has begun to restore.
    fn answer(&self, fault: &Fault) -> crate::Result<bool> {
        let page = ((fault.address - self.range.start) / PAGE_SIZE as u64) as PageNumber;
        match (fault.kind, &self.log, self.pager.get()) {
            (FaultKind::Write, Some(log), _) => {
                let _one_after_the_other = self.let_through();
                self.held.preserve(page, 1);
                log.wrote(fault.address).map_err(self.io("letting a write through to"))?;
            }
            // With asynchronous tracking the kernel sends none; there is nobody to keep it waiting for.
            (FaultKind::Write, None, _) => {}
            (FaultKind::Missing, _, Some(pager)) => pager.touched(page)?,
            (FaultKind::Missing, _, None) => return Ok(false),
        }
        Ok(true)
    }

    fn serve(&self) {
        let mut faults = Vec::new();
        while !self.fate.ending.load(Ordering::Acquire) {
            if let Err(source) = self.userfault.wait(&mut faults, PATIENCE) {
                return self.fate.give_up(0, &self.io("waiting for touches of")(source));
            }
            let mut failed = None;
            faults.retain(|fault| match self.answer(fault) {
                Ok(answered) => !answered,
                Err(error) => {
                    failed.get_or_insert((fault.address, error));
                    true
                }
            });
            if let Some((address, error)) = failed {
                return self.fate.give_up((address - self.range.start) / PAGE_SIZE as u64, &error);
            }
        }
    }
}

/// The thread. Ends when dropped.
pub(crate) struct FaultServer {
    memory: Arc<Memory>,
    thread: Option<JoinHandle<()>>,
}

impl FaultServer {
    pub fn start(memory: Arc<Memory>) -> Self {
        let served = memory.clone();
        let serve = move || {
            priority::answer_soon();
            served.fate.ends_with(|| served.serve());
        };
        Self { memory, thread: Some(std::thread::spawn(serve)) }
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        self.memory.fate.ending.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
