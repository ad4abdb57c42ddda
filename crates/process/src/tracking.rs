//! How writes to an area are found.

#[cfg(target_arch = "x86_64")]
use crate::auto::AutoTracker;
#[cfg(target_arch = "x86_64")]
use fermata_linux::Trapping;
use fermata_linux::{AreaMemory, Userfault, Writes, probe};
#[cfg(target_arch = "x86_64")]
use fermata_tracker::TrapTracker;
use fermata_tracker::{Choice, CompareTracker, DifferenceTracker, Error, Result, ScanTracker, SoftDirtyTracker, Tracker};
use fermata_types::names::{name_of, named};
#[cfg(not(target_arch = "x86_64"))]
use std::io;
use std::{fmt, str::FromStr, sync::Arc};

/// A mechanism, after the paper's names (hypervisor-assisted application checkpointing, section IV).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tracking {
    /// The cheapest that this host can do. Where only stores write ([`Options::only_stores`](crate::Options::only_stores)) that is measured while the program runs; else it is [`Assisted`](Self::Assisted), and [`Compare`](Self::Compare) where the
    /// kernel takes no note.
    #[default]
    Auto,
    /// Assisted page tracking (PTxen): the kernel takes note of a first write by itself and is asked for them. Linux 6.7.
    Assisted,
    /// Page tracking (PT): a first write to a page is a signal, which opens the page.
    Protect,
    /// Emulation (Emul): each write is a signal, whose handler does the write elsewhere and notes the word. The page stays closed.
    Emulate,
    /// The soft-dirty bits of the page tables (Scanxen), where the kernel has them. Misses written pages that the kernel takes out of the mapping meanwhile: lock the area in memory
    /// (mlock(2)), and have no huge pages there.
    SoftDirty,
    /// Comparison of all pages with what they were, by hash.
    Compare,
    /// Page tracking, and then word by word what differs in the written pages; keeps a second copy of them.
    Difference,
}

impl Tracking {
    /// What people call each of them.
    pub const NAMES: [(&str, Self); 7] = [
        ("auto", Self::Auto),
        ("assisted", Self::Assisted),
        ("protect", Self::Protect),
        ("emulate", Self::Emulate),
        ("soft-dirty", Self::SoftDirty),
        ("compare", Self::Compare),
        ("difference", Self::Difference),
    ];
}

impl fmt::Display for Tracking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(name_of(&Self::NAMES, self))
    }
}

impl FromStr for Tracking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(&Self::NAMES, text)
    }
}

/// Begins to watch memory of this process. `only_stores`: no system call writes there but where [`Tracker::expect_writes`] said so.
pub fn start(tracking: Tracking, memory: &AreaMemory, only_stores: bool) -> Result<Box<dyn Tracker>> {
    Ok(match tracking {
        Tracking::Auto if Choice::Scan.settle().is_err() => without_scan(memory, only_stores)?,
        #[cfg(target_arch = "x86_64")]
        Tracking::Auto if only_stores => Box::new(AutoTracker::new(memory)?),
        Tracking::Auto | Tracking::Assisted => Box::new(assisted(memory)?),
        #[cfg(target_arch = "x86_64")]
        Tracking::Protect => Box::new(TrapTracker::new(memory, Trapping::Open)?),
        #[cfg(target_arch = "x86_64")]
        Tracking::Emulate => Box::new(TrapTracker::new(memory, Trapping::Emulate)?),
        #[cfg(not(target_arch = "x86_64"))]
        Tracking::Protect | Tracking::Emulate => {
            let source = io::Error::new(io::ErrorKind::Unsupported, "only on x86-64");
            return Err(Error::Io { mechanism: "protect", what: "watching writes by signals", source });
        }
        Tracking::SoftDirty => Box::new(SoftDirtyTracker::new(memory.place().clone())?),
        Tracking::Compare => Box::new(CompareTracker::new(memory.file().clone())?),
        Tracking::Difference => {
            let inner = start(if only_stores { Tracking::Auto } else { Tracking::Assisted }, memory, only_stores)?;
            Box::new(DifferenceTracker::new(inner, memory.file().clone()))
        }
    })
}

/// The cheapest way where the kernel takes no note of writes: signals, unless system calls may write there, too.
fn without_scan(memory: &AreaMemory, only_stores: bool) -> Result<Box<dyn Tracker>> {
    #[cfg(target_arch = "x86_64")]
    if only_stores {
        return start(Tracking::Protect, memory, only_stores);
    }
    start(Tracking::Compare, memory, only_stores)
}

pub(crate) fn assisted(memory: &AreaMemory) -> Result<ScanTracker> {
    let failed = |what| move |source| Error::Io { mechanism: "scan", what, source };
    Choice::Scan.settle()?;
    let (descriptor, _) = probe::userfaultfd().map_err(failed("making a userfaultfd"))?;
    let userfault = Userfault::new(descriptor, Writes::Async).map_err(failed("agreeing on asynchronous write-protection"))?;
    userfault.register(memory.range(), false).map_err(failed("registering the memory"))?;
    ScanTracker::new(std::process::id(), memory.range(), Arc::new(userfault))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_stores_is_not_compared_where_the_kernel_takes_no_note() {
        let memory = AreaMemory::new("no scan", 1 << 16).unwrap();
        let mechanism = |only_stores| without_scan(&memory, only_stores).unwrap().mechanism();
        assert_eq!([mechanism(true), mechanism(false)], ["protect", "compare"]);
    }
}
