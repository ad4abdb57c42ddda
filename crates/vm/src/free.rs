//! What a checkpoint learns of the guest's pages from the guest's own kernel, and which of them it need not keep.
//!
//! Nothing of this happens in the pause. The kernel's descriptors of its pages are themselves in the guest's memory, so their state at the instant is among the
//! pages that the checkpoint took, or unchanged in its parent. Why a page that is free there may be left out: `docs/decisions/0015-free-pages.md`.

use crate::{Machine, MachineConfig, device_state, held::HeldPages, part::Ahead, staging::Staging};
use fermata_guest::{Memory, MemoryMap, Survey, Told, Unknown, survey};
use fermata_linux::MemoryFile;
use fermata_store::{Class, Store, Writer};
use fermata_types::{Composition, PAGE_SIZE, POISON, POISON_PAGE, PageBuf, PageName, PageNumber, PageSet, Root, ZERO_PAGE};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};

/// RAM from which a q35 machine has but [`BELOW`] of it below 4 GiB (QEMU `hw/i386/pc_q35.c`).
const DIVIDED: u64 = 0xb000_0000;
const BELOW: u64 = 0x8000_0000;

/// How the note begins: the length of its name, that of its text, its type, its name.
const NOTE_NAME: &[u8] = b"VMCOREINFO\0";
const NOTE_NAME_AT: usize = 12;
const NOTE_START: usize = NOTE_NAME_AT + NOTE_NAME.len();
const NOTE_BYTES: u64 = 2 * PAGE_SIZE as u64;

/// Pages that are probably free are kept in memory until it is sure, so many at most: 128 MiB.
const DOUBTFUL_MAX: usize = 32 * 1024;

/// Whether a checkpoint keeps pages that are free in the guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FreePages {
    /// Leaves them out where the guest's kernel tells which they are, and keeps every page of a deterministic machine.
    #[default]
    Auto,
    /// Keeps every page.
    Keep,
    /// The same as [`Auto`](Self::Auto), for machines with a balloon, through which their kernels report free pages.
    Balloon,
}

/// The last survey of a machine, for the next checkpoint to take over what did not change.
#[derive(Clone, Default)]
pub(crate) struct Memo(Arc<Mutex<Option<Known>>>);

struct Known {
    survey: Survey,
    told: Told,
    /// The RAM that was surveyed.
    ram: Root,
}

/// What is known of the pages of a captured machine.
pub(crate) struct Seen {
    /// What need not be kept.
    free: PageSet,
    pub composition: Composition,
    known: Option<(Survey, Told)>,
}

/// Guesses before the pause which pages will matter.
#[derive(Default)]
pub(crate) struct Guess {
    survey: Option<Survey>,
    doubtful: usize,
}

/// The pages of a captured machine as they were at the instant.
pub(crate) struct Instant<'a> {
    pub staging: &'a mut Staging,
    pub held: Option<&'a HeldPages>,
    /// Pages that equal blocks of disks: nobody has copied them.
    pub aside: PageSet,
    pub ahead: &'a Ahead,
    pub base: &'a Root,
    pub store: &'a Store,
}

impl Memory for Instant<'_> {
    fn read_page(&mut self, page: PageNumber, into: &mut PageBuf) -> Result<(), Unknown> {
        let failed = |error: &dyn std::error::Error| format!("page {page} of its memory cannot be read: {error}");
        if let Some(held) = self.held {
            held.fetch(page, self.staging).map_err(|error| failed(&error))?;
        }
        if let Some(content) = self.staging.get(page) {
            into.copy_from_slice(content);
            return Ok(());
        }
        if self.aside.contains(page) {
            return Err("what tells of its pages was read from a disk".to_owned());
        }
        match self.ahead.get(&page) {
            Some((ZERO_PAGE, _)) => into.fill(0),
            Some(_) => return Err("what tells of its pages went to the store ahead of the pause; the next checkpoint can tell".to_owned()),
            None => match self.store.lookup(self.base, page).map_err(|error| failed(&error))? {
                Some(name) => self.store.read_page(&name, into).map_err(|error| failed(&error))?,
                None => into.fill(0),
            },
        }
        Ok(())
    }
}

impl Instant<'_> {
    /// Every page that was captured.
    fn changed(&self) -> PageSet {
        let mut pages: PageSet = self.ahead.keys().copied().collect();
        pages |= &self.aside;
        pages.extend(self.staging.iter().map(|(page, _)| page));
        if let Some(held) = self.held {
            pages |= held.pages();
        }
        pages
    }
}

impl Memo {
    /// Looks at a machine's pages as they were at the instant.
    pub fn look(&self, config: &MachineConfig, devices: &[u8], free: FreePages, mut instant: Instant<'_>) -> Seen {
        let result = told(config, devices).and_then(|(map, told)| {
            let changed = instant.changed();
            let before = self.take().filter(|known| known.ram == *instant.base);
            let before = before.as_ref().map(|known| (&known.survey, &changed));
            Ok((survey(&mut instant, map, &told, before)?, told))
        });
        match result {
            Ok((survey, told)) => Seen {
                free: if free != FreePages::Keep && !config.deterministic { survey.free().clone() } else { PageSet::new() },
                composition: survey.composition().clone(),
                known: Some((survey, told)),
            },
            Err(why) => Seen { free: PageSet::new(), composition: Composition::unknown(why), known: None },
        }
    }

    /// Remembers what was seen of this RAM.
    pub fn remember(&self, seen: Seen, ram: Root) -> Composition {
        *self.lock() = seen.known.map(|(survey, told)| Known { survey, told, ram });
        seen.composition
    }

    /// Looks at the memory of a running machine. What it says may be wrong, for the guest writes meanwhile.
    pub fn guess(&self, machine: &Machine) -> Guess {
        let note = self.lock().as_ref().map(|known| known.told.note);
        Guess { survey: glance(machine, note), doubtful: 0 }
    }

    fn take(&self) -> Option<Known> {
        self.lock().take()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Known>> {
        self.0.lock().expect("nobody panics with the lock")
    }
}

impl Seen {
    /// Whether a page need not be kept if it holds no pattern. One that equals a block of a disk was not written since, so it holds none.
    pub fn is_free(&self, page: PageNumber) -> bool {
        self.free.contains(page)
    }

    /// Puts a page through the sieve, unless it is free.
    pub fn put(&self, page: PageNumber, content: &PageBuf, storage: &mut Writer) -> fermata_store::Result<(PageName, Class)> {
        // A guest that fills free pages with a pattern looks for it when it takes them.
        if self.free.contains(page) && content.iter().any(|byte| *byte != POISON) {
            return Ok((ZERO_PAGE, Class::Free));
        }
        storage.put_page(content)
    }

    /// How many pages are free that nobody has captured.
    pub fn free_beside(&self, captured: &Ahead) -> u64 {
        self.free.len() - captured.keys().filter(|page| self.free.contains(**page)).count() as u64
    }

    /// Forgets pages that went to the store ahead of the pause and are free.
    pub fn leave_out(&self, ahead: &mut Ahead) {
        for (page, kept) in ahead.iter_mut() {
            if self.free.contains(*page) && kept.0 != POISON_PAGE {
                *kept = (ZERO_PAGE, Class::Free);
            }
        }
    }
}

impl Guess {
    /// Whether a page should stay in memory until the pause, and not be sent to the store ahead of it.
    pub fn keeps(&mut self, page: PageNumber, content: &PageBuf) -> bool {
        let Some(survey) = &self.survey else { return false };
        // What the next survey will read: descriptors, and the page tables on which processors run.
        if survey.sources().contains(page) || survey.is_top_table(content) {
            return true;
        }
        let keeps = survey.free().contains(page) && self.doubtful < DOUBTFUL_MAX && content.iter().any(|byte| *byte != 0);
        self.doubtful += usize::from(keeps);
        keeps
    }
}

/// The free pages of a machine that stands still and has all its pages, for tests and diagnosis: read at once from its memory, and from a note that may be
/// anybody's. None if they cannot be told.
pub fn free_now(machine: &Machine) -> Option<PageSet> {
    Some(glance(machine, None)?.free().clone())
}

/// Looks at the memory as it is. The note is where it was, or where one is found.
fn glance(machine: &Machine, note: Option<(u64, u64)>) -> Option<Survey> {
    let map = memory_map(machine.config()).ok()?;
    let note = note.or_else(|| find_note(machine.ram(), map, &machine.populated().ok()?))?;
    survey(&mut Live(machine.ram()), map, &Told { note, tables: None }, None).ok()
}

struct Live<'a>(&'a MemoryFile);

impl Memory for Live<'_> {
    fn read_page(&mut self, page: PageNumber, into: &mut PageBuf) -> Result<(), Unknown> {
        self.0.read_at(u64::from(page) * PAGE_SIZE as u64, into).map_err(|error| error.to_string())
    }
}

pub(crate) fn told(config: &MachineConfig, devices: &[u8]) -> Result<(MemoryMap, Told), Unknown> {
    let map = memory_map(config)?;
    if !config.vmcoreinfo {
        return Err("an older version made the machine, without a way for its kernel to say where its note is".to_owned());
    }
    let note = device_state::note(devices)
        .ok_or("its kernel has not said where its note is: Linux says so when it has loaded its driver qemu_fw_cfg")?;
    Ok((map, Told { note, tables: Some(device_state::page_tables(devices)) }))
}

pub(crate) fn memory_map(config: &MachineConfig) -> Result<MemoryMap, Unknown> {
    if config.machine_type != "q35" && !config.machine_type.starts_with("pc-q35-") {
        return Err(format!("where memory is in a machine of type {} is not known", config.machine_type));
    }
    let below = if config.memory >= DIVIDED { BELOW } else { config.memory };
    let pages = |bytes: u64| bytes / PAGE_SIZE as u64;
    MemoryMap::new(pages(config.memory), pages(below)).ok_or_else(|| "it has more memory than can be surveyed".to_owned())
}

/// Looks for the note at the beginning of pages. Anybody in the guest may have put one there, so it is good for guesses only.
fn find_note(ram: &MemoryFile, map: MemoryMap, pages: &PageSet) -> Option<(u64, u64)> {
    let mut start = [0; NOTE_START];
    let page =
        pages.iter().find(|page| ram.read_at(u64::from(*page) * PAGE_SIZE as u64, &mut start).is_ok() && start.ends_with(NOTE_NAME))?;
    Some((map.frame(page) * PAGE_SIZE as u64, NOTE_BYTES))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn config(machine_type: &str, memory: u64) -> MachineConfig {
        MachineConfig {
            name: "m1".to_owned(),
            memory,
            cpus: 1,
            accel: crate::Accel::Tcg,
            cpu: "max".to_owned(),
            machine_type: machine_type.to_owned(),
            kernel: None,
            initrd: None,
            cmdline: None,
            deterministic: false,
            vmcoreinfo: true,
            old_agent_port: false,
            balloon: false,
            clock_ahead_ms: 0,
            disks: 0,
            nets: Vec::new(),
            control: None,
            services: false,
        }
    }

    #[test]
    fn memory_is_divided_as_qemu_does() {
        let map = |memory| memory_map(&config("pc-q35-7.2", memory)).unwrap();
        assert_eq!(Some(map(DIVIDED - 4096 * 512)), MemoryMap::new((DIVIDED >> 12) - 512, (DIVIDED >> 12) - 512));
        assert_eq!(Some(map(8 << 30)), MemoryMap::new(2 << 20, BELOW >> 12));
        assert!(memory_map(&config("pc-i440fx-7.2", 1 << 30)).is_err());
        assert!(memory_map(&config("q35", 4 << 40)).is_err());
    }

    #[test]
    fn a_machine_that_cannot_tell_says_why() {
        let why = |config: &MachineConfig| told(config, b"QEVM\0\0\0\x03").unwrap_err();
        assert!(why(&config("q35", 1 << 30)).contains("qemu_fw_cfg"));
        assert!(why(&MachineConfig { vmcoreinfo: false, ..config("q35", 1 << 30) }).contains("older version"));
    }

    #[test]
    fn pages_filled_with_the_pattern_stay() {
        let store = tempfile::tempdir().unwrap();
        let mut writer = Store::open(store.path()).unwrap().writer().unwrap();
        let seen = Seen { free: (0..4).collect(), composition: Composition::default(), known: None };
        let mut spoiled = [POISON; PAGE_SIZE];
        spoiled[4000] = 0;
        assert_eq!(seen.put(1, &spoiled, &mut writer).unwrap(), (ZERO_PAGE, Class::Free));
        assert_eq!(seen.put(9, &spoiled, &mut writer).unwrap().1, Class::New);
        let poisoned = seen.put(2, &[POISON; PAGE_SIZE], &mut writer).unwrap();
        assert_eq!(poisoned, (POISON_PAGE, Class::New));
        let sent = writer.put_page(&[7; PAGE_SIZE]).unwrap();
        let mut ahead = Ahead::from([(2, poisoned), (3, sent), (4, sent)]);
        seen.leave_out(&mut ahead);
        assert_eq!(ahead, Ahead::from([(2, poisoned), (3, (ZERO_PAGE, Class::Free)), (4, sent)]));
    }
}
