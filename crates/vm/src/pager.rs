//! Lazy restore: the machine runs while its pages still lie in the store.
//!
//! The RAM file starts as one hole, registered with QEMU's userfaultfd. Three ways bring a page in, and the kernel lets exactly one of them win
//! (`UFFDIO_COPY` refuses a page that is there): the guest touches it, a device backend is about to touch it, or the background reader gets to it, in the
//! order in which pages lie in the store. Pages come in write-protected, so the tracker takes them for what they are: clean.

use crate::{Error, Result};
use fermata_linux::{Child, Fault, Installed, MemoryFile, Userfault};
use fermata_store::Store;
use fermata_types::{PAGE_SIZE, PageNumber, Root};
use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Zero pages brought in at a time around one that was touched, as the kernel does for files ("fault-around").
const ZERO_AROUND: u32 = 16;
static ZEROS: [u8; ZERO_AROUND as usize * PAGE_SIZE] = [0; ZERO_AROUND as usize * PAGE_SIZE];

/// How long the server of faults sleeps before it looks whether it should end.
const PATIENCE: Duration = Duration::from_millis(50);

/// `ESRCH`: what userfaultfd answers when the memory that it serves is no more.
const NO_SUCH_PROCESS: i32 = 3;

/// How far a lazy restore is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paging {
    /// Pages that the guest had to wait for.
    pub touched: u64,
    /// Pages that lie in the store; 0 as long as they are not counted.
    pub wanted: u64,
    /// How many of them were brought in.
    pub restored: u64,
    /// All pages that lie in the store are in.
    pub complete: bool,
    /// A page could not be had from the store; the machine was ended before it could see a wrong one.
    pub failure: Option<String>,
}

/// Serves the missing pages of one machine for as long as the machine lives.
pub struct Pager {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    store: Store,
    root: Root,
    ram: Arc<MemoryFile>,
    userfault: Arc<Userfault>,
    /// Where QEMU has mapped the RAM.
    base: u64,
    child: Arc<Child>,
    touched: AtomicU64,
    wanted: AtomicU64,
    restored: AtomicU64,
    complete: AtomicBool,
    ending: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Pager {
    /// Starts serving faults.
    pub(crate) fn start(store: Store, root: Root, ram: Arc<MemoryFile>, userfault: Arc<Userfault>, base: u64, child: Arc<Child>) -> Self {
        let shared = Arc::new(Shared {
            store,
            root,
            ram,
            userfault,
            base,
            child,
            touched: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            restored: AtomicU64::new(0),
            complete: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            failure: Mutex::new(None),
        });
        let server = shared.clone();
        let threads = vec![std::thread::spawn(move || server.serve())];
        Self { shared, threads }
    }

    /// Starts bringing in everything else behind the running guest.
    pub(crate) fn fill_behind(&mut self) {
        let filler = self.shared.clone();
        self.threads.push(std::thread::spawn(move || {
            if let Err(error) = filler.fill() {
                // The guest may never touch the page that cannot be read; if it does, the server of faults ends the machine.
                tracing::warn!("restoring in the background ended early: {error}");
            }
        }));
    }

    /// Brings in everything now.
    pub(crate) fn fill(&self) -> Result<()> {
        self.shared.fill()
    }

    /// Brings in these pages, for a device backend that is about to touch them through a mapping of its own.
    pub fn bring_in(&self, first: PageNumber, pages: u32) -> io::Result<()> {
        if self.shared.complete.load(Ordering::Acquire) {
            return Ok(());
        }
        (first..first.saturating_add(pages)).try_for_each(|page| {
            // A disk that cannot answer would leave the guest hanging without a word.
            self.shared.bring_in(page).inspect_err(|error| self.shared.give_up(page.into(), error)).map_err(io::Error::other)
        })
    }

    /// How far it is.
    pub fn paging(&self) -> Paging {
        Paging {
            touched: self.shared.touched.load(Ordering::Relaxed),
            wanted: self.shared.wanted.load(Ordering::Relaxed),
            restored: self.shared.restored.load(Ordering::Relaxed),
            complete: self.shared.complete.load(Ordering::Acquire),
            failure: self.shared.failure.lock().expect("nobody panics with the lock").clone(),
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut faults = Vec::new();
        while !self.ending.load(Ordering::Acquire) {
            faults.clear();
            if let Err(source) = self.userfault.wait(&mut faults, PATIENCE) {
                let error = Error::Io { what: "waiting for touches of", path: self.ram.path().to_owned(), source };
                return self.give_up(0, &error);
            }
            for Fault { address } in &faults {
                self.touched.fetch_add(1, Ordering::Relaxed);
                let page = (address - self.base) / PAGE_SIZE as u64;
                if let Err(error) = self.bring_in(page as PageNumber) {
                    return self.give_up(page, &error);
                }
            }
        }
    }

    /// The guest waits for a page that we cannot give it. It must not go on with a wrong one, and it cannot go on without.
    fn give_up(&self, page: u64, error: &Error) {
        // A process that is going away takes its memory along before it can be seen to have ended.
        let memory_gone = matches!(error, Error::Io { source, .. } if source.raw_os_error() == Some(NO_SUCH_PROCESS));
        if memory_gone || self.child.ended().is_some() || self.ending.load(Ordering::Acquire) {
            return;
        }
        tracing::error!("page {page} cannot be restored, ending the machine: {error}");
        *self.failure.lock().expect("nobody panics with the lock") = Some(format!("page {page} could not be restored: {error}"));
        self.child.kill();
    }

    fn bring_in(&self, page: PageNumber) -> Result<()> {
        match self.store.lookup(&self.root, page)? {
            Some(name) => {
                let mut content = [0; PAGE_SIZE];
                self.store.read_page(&name, &mut content)?;
                self.install_kept(page, &content)?;
            }
            None => {
                let around = self.zeros_from(page)?;
                self.install(page, &ZEROS[..around as usize * PAGE_SIZE])?;
            }
        }
        Ok(())
    }

    /// How many pages from this zero page on are zero too, within its aligned neighbourhood.
    fn zeros_from(&self, page: PageNumber) -> Result<u32> {
        let end = u64::from(page / ZERO_AROUND + 1) * u64::from(ZERO_AROUND);
        let mut next = page + 1;
        while u64::from(next) < end.min(self.root.pages) && self.store.lookup(&self.root, next)?.is_none() {
            next += 1;
        }
        Ok(next - page)
    }

    fn install_kept(&self, page: PageNumber, content: &[u8]) -> Result<()> {
        if self.install(page, content)? == Installed::New {
            self.restored.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn install(&self, page: PageNumber, content: &[u8]) -> Result<Installed> {
        let address = self.base + u64::from(page) * PAGE_SIZE as u64;
        let installed = self.userfault.install(address, content);
        installed.map_err(|source| Error::Io { what: "installing a page of", path: self.ram.path().to_owned(), source })
    }

    fn fill(&self) -> Result<()> {
        let mut wanted = Vec::new();
        self.store.for_each_page(&self.root, &mut |page, name| {
            wanted.push((page, name));
            Ok(())
        })?;
        self.wanted.store(wanted.len() as u64, Ordering::Relaxed);
        let mut failed = None;
        self.store.read_pages(wanted, &mut |page, content| {
            failed = self.install_kept(page, content).err();
            failed.is_none() && !self.ending.load(Ordering::Acquire)
        })?;
        match failed {
            Some(error) => Err(error),
            None => {
                self.complete.store(!self.ending.load(Ordering::Acquire), Ordering::Release);
                Ok(())
            }
        }
    }
}
