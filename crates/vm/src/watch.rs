//! Which tracker watches a machine, and what it needs of the machine's userfaultfd.

use crate::{Result, notes::Notes};
use fermata_linux::{Child, MemoryFile, Userfault, Writes};
use fermata_tracker::{Choice, CompareTracker, KvmTracker, ScanTracker, Tracker, UserfaultTracker, WriteLog};
use std::{io, ops::Range, sync::Arc, time::Duration};

static SHIM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shim.so"));
static SHIM_WITH_NOTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/shim-notes.so"));

/// The library to preload into QEMU.
pub(crate) fn shim(tracker: Choice) -> &'static [u8] {
    if tracker == Choice::KvmLog { SHIM_WITH_NOTES } else { SHIM }
}

/// KVM's notes, if the tracker wants them. To be asked for before the userfaultfd: the library sends them in this order.
pub(crate) fn notes(tracker: Choice, child: &Child, ram: &Arc<MemoryFile>, patience: Duration) -> io::Result<Option<Notes>> {
    (tracker == Choice::KvmLog).then(|| Notes::receive(child, ram, patience)).transpose()
}

/// What the kernel is to do when somebody writes.
pub(crate) fn writes(tracker: Choice) -> Writes {
    match tracker {
        Choice::Userfault => Writes::Sync,
        Choice::Compare => Writes::Unwatched,
        _ => Writes::Async,
    }
}

/// Whether everything has to be restored before the guest runs: a comparison cannot tell a page that was brought in from one that was written.
pub(crate) fn needs_all(tracker: Choice) -> bool {
    tracker == Choice::Compare
}

type Watched = (Box<dyn Tracker>, Option<WriteLog>);

/// Watches the memory from now on. Writes that wait for us go through the log.
pub(crate) fn tracker(
    choice: Choice,
    pid: u32,
    range: Range<u64>,
    userfault: &Arc<Userfault>,
    ram: &Arc<MemoryFile>,
    notes: Option<Notes>,
) -> Result<Watched> {
    let scan = || ScanTracker::new(pid, range.clone(), userfault.clone());
    Ok(match (choice, notes) {
        (Choice::Userfault, _) => {
            let (tracker, log) = UserfaultTracker::new(range, userfault.clone())?;
            (Box::new(tracker), Some(log))
        }
        (Choice::Compare, _) => (Box::new(CompareTracker::new(ram.clone())?), None),
        (_, Some(notes)) => (Box::new(KvmTracker::new(choice, scan()?, notes)?), None),
        (_, None) => (Box::new(scan()?), None),
    })
}
