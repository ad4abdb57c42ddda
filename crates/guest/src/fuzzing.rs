//! What a fuzzer may feed with any bytes: a guest's memory. See `fuzz/README.md`.

use crate::{
    Told,
    sample::{Descriptor, Sample, Version},
    survey,
};
use fermata_types::{PAGE_SIZE, PageNumber, PageSet, Use};
use std::sync::LazyLock;

const PAGES: u64 = 1024;
/// More reads than this are no survey of so small a memory: every page some hundred times.
const READS_MAX: u64 = 100 * PAGES;
const CHANGES_MAX: usize = 64;

/// A guest's memory: its note, page tables, sections, descriptors and counts, and what the machine was told of it, written over with anything.
///
/// Panics if pages are counted twice or not at all, if a free page lies outside the RAM, or if a survey that takes over what did not change is another one
/// than a whole one.
pub fn guest(data: &[u8]) {
    static GUESTS: LazyLock<[Sample; 4]> = LazyLock::new(|| {
        [(Version::Old, 1024), (Version::Old, 512), (Version::New, 1024), (Version::New, 512)]
            .map(|(version, below)| Sample::new(version, PAGES, below))
    });
    let Some((which, mut data)) = data.split_first() else { return };
    let mut sample = GUESTS[usize::from(which % 4)].clone();
    let mut before = None;
    let mut changed = PageSet::new();
    for _ in 0..CHANGES_MAX {
        let Some(written) = change(&mut sample, &mut data) else { break };
        changed |= written;
        if which & 4 != 0 && before.is_none() {
            let (map, told) = (sample.map, sample.told.clone());
            before = survey(&mut sample, map, &told, None).ok();
            changed.clear();
        }
    }
    let (map, told) = (sample.map, sample.told.clone());
    sample.reads = 0;
    let whole = survey(&mut sample, map, &told, None);
    assert!(sample.reads <= READS_MAX, "{} reads", sample.reads);
    if let Ok(whole) = &whole {
        assert_eq!(whole.composition().total(), PAGES);
        assert_eq!(whole.composition().of(Use::Free), whole.free().len());
        assert!(whole.free().max().is_none_or(|last| u64::from(last) < PAGES));
        assert!(whole.free().iter().all(|page| whole.page(page) == Some(Use::Free)));
    }
    if let Some(before) = &before {
        let again = survey(&mut sample, map, &told, Some((before, &changed)));
        assert_eq!(again, whole, "what did not change was taken over wrongly");
    }
}

/// Takes one change from the data and makes it. Returns the pages written; none at the end.
fn change(sample: &mut Sample, data: &mut &[u8]) -> Option<PageSet> {
    let ([kind, low, high, ..], _) = data.split_at_checked(4)? else { return None };
    let (kind, number) = (*kind, u64::from(u16::from_le_bytes([*low, *high])));
    let argument = data[3];
    *data = &data[4..];
    let mut value = [0; 8];
    let length = data.len().min(8);
    value[..length].copy_from_slice(&data[..length]);
    let word = u64::from_le_bytes(value);
    let page = number % PAGES;
    match kind % 6 {
        0 => {
            let order = u32::from(argument % 12);
            let head = Descriptor { private: order.into(), mapcount: sample.buddy(), ..Descriptor::IDLE };
            (page..(page + (1 << order)).min(PAGES)).for_each(|page| sample.set(page, Descriptor::IDLE));
            sample.set(page, head);
            return Some((page..(page + (1 << order)).min(PAGES)).map(|page| sample.source(page)).collect());
        }
        1 => {
            let at = (u64::from(argument) * 16) % (PAGE_SIZE as u64 - 8);
            sample.write(page * PAGE_SIZE as u64 + at, &value);
            *data = &data[length..];
            return Some(PageSet::from_iter([page as PageNumber]));
        }
        2 => {
            let descriptor = [Descriptor::KERNEL, Descriptor::ANONYMOUS, Descriptor::IDLE, sample.slab(), sample.cache(true)];
            sample.set(page, descriptor[usize::from(argument) % descriptor.len()]);
            return Some(PageSet::from_iter([sample.source(page)]));
        }
        3 => {
            let line = number as usize % sample.text().lines().count();
            let text: Vec<_> = sample.text().lines().enumerate().map(|(at, text)| replaced(text, at == line, argument, word)).collect();
            sample.write_note(&(text.join("\n") + "\n"));
            *data = &data[length..];
            return Some(PageSet::from_iter([1, 2]));
        }
        4 => sample.told = Told { note: (word, number), ..sample.told.clone() },
        _ => sample.told.tables.get_or_insert_default().insert(0, word),
    }
    Some(PageSet::new())
}

fn replaced(line: &str, this: bool, how: u8, word: u64) -> String {
    let key = line.split('=').next().unwrap_or_default();
    match how % 4 {
        _ if !this => line.to_owned(),
        0 => format!("{key}={}", word as i64),
        1 => format!("{key}={word:x}"),
        2 => format!("{key}={}", word % 256),
        _ => String::new(),
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn a_guests_memory_may_hold_anything() {
        super::replay::replay("guest", 5_000, super::guest);
    }
}
