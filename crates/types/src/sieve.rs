//! The sieve that every page of a checkpoint goes through: each page falls into exactly one class.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::ops::AddAssign;

/// The classes by the names that they have in JSON, in the order of the sieve.
const CLASSES: [&str; 7] = ["unchanged", "free", "zero", "mapped", "on_disk", "known", "new"];

/// Pages by class, in the order in which the sieve asks. The sum is every page of the part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PageCounts {
    /// Not written since the parent checkpoint.
    pub unchanged: u64,
    /// Free in the guest: nobody would miss the content.
    pub free: u64,
    /// Zero throughout.
    pub zero: u64,
    /// Equal to a block of one of the machine's disks, known from its disk requests: neither copied nor hashed.
    pub mapped: u64,
    /// Equal to a block of a golden image.
    pub on_disk: u64,
    /// Already in the store, known by hash: put before in this checkpoint, or by an earlier one.
    pub known: u64,
    /// Of the known: put before in this very checkpoint.
    #[serde(skip_serializing_if = "is_zero")]
    pub within: u64,
    /// Of the known: how many checkpoints ago the others were first stored.
    #[serde(skip_serializing_if = "Distances::is_empty")]
    pub distances: Distances,
    /// New: written to the store.
    pub new: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl PageCounts {
    /// The classes by the names that they have in JSON, in the order of the sieve.
    pub fn classes(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        CLASSES.into_iter().zip([self.unchanged, self.free, self.zero, self.mapped, self.on_disk, self.known, self.new])
    }

    /// Every page counted.
    pub fn total(&self) -> u64 {
        self.unchanged + self.written()
    }

    /// Pages written since the parent checkpoint.
    pub fn written(&self) -> u64 {
        self.free + self.zero + self.mapped + self.on_disk + self.known + self.new
    }
}

impl AddAssign for PageCounts {
    fn add_assign(&mut self, other: Self) {
        self.unchanged += other.unchanged;
        self.free += other.free;
        self.zero += other.zero;
        self.mapped += other.mapped;
        self.on_disk += other.on_disk;
        self.known += other.known;
        self.within += other.within;
        self.distances += other.distances;
        self.new += other.new;
    }
}

/// Time that it took to tell the pages of each class, ns; of new ones with what it took to compress and write them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassTimes {
    /// Looking which pages were written.
    pub unchanged: u64,
    /// Reading the guest's own account of its pages.
    pub free: u64,
    /// Looking through them.
    pub zero: u64,
    /// Looking which pages still equal a block, and naming them.
    pub mapped: u64,
    /// Hashing and looking up.
    pub on_disk: u64,
    /// Hashing and looking up.
    pub known: u64,
    /// Hashing, looking up, compressing, writing.
    pub new: u64,
}

impl ClassTimes {
    /// Their classes as [`PageCounts::classes`] has them.
    pub fn classes(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        CLASSES.into_iter().zip([self.unchanged, self.free, self.zero, self.mapped, self.on_disk, self.known, self.new])
    }

    /// Whether nobody looked at a clock: an older checkpoint.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl AddAssign for ClassTimes {
    fn add_assign(&mut self, other: Self) {
        self.unchanged += other.unchanged;
        self.free += other.free;
        self.zero += other.zero;
        self.mapped += other.mapped;
        self.on_disk += other.on_disk;
        self.known += other.known;
        self.new += other.new;
    }
}

/// Duplicates of earlier checkpoints by how many checkpoints ago they were first stored, counted in powers of two: place `i` counts the
/// distances from 2^i up to, but not with, 2^(i+1). Written as an array without the zeros at its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Distances([u64; Distances::PLACES]);

impl Distances {
    /// Places that it has: distances have 32 bits.
    pub const PLACES: usize = 32;

    /// Counts a duplicate that was stored this many checkpoints ago; the checkpoint before is 1, and nothing is nearer.
    pub fn add(&mut self, distance: u32) {
        self.0[distance.max(1).ilog2() as usize] += 1;
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(is_zero)
    }

    /// Everything counted.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every power of two that was seen, and how many duplicates are at least so far, and less than twice so far.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.0.iter().enumerate().filter(|(_, count)| **count > 0).map(|(place, count)| (1 << place, *count))
    }

    /// The power of two of which the middle one is, with half of the others before it; none if nothing was counted.
    pub fn median(&self) -> Option<u32> {
        let middle = self.total().div_ceil(2);
        let mut nearer = 0;
        let found = self.iter().find(|(_, count)| {
            nearer += count;
            nearer >= middle
        });
        found.map(|(least, _)| least)
    }
}

impl AddAssign for Distances {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }
}

impl Serialize for Distances {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let used = self.0.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        serializer.collect_seq(&self.0[..used])
    }
}

impl<'de> Deserialize<'de> for Distances {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let counts = Vec::<u64>::deserialize(deserializer)?;
        let mut distances = Self::default();
        let into = distances.0.get_mut(..counts.len()).ok_or_else(|| de::Error::invalid_length(counts.len(), &"32 counts at most"))?;
        into.copy_from_slice(&counts);
        Ok(distances)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted_by_powers_of_two() {
        let mut distances = Distances::default();
        assert!(distances.is_empty());
        [1, 2, 3, 4, 7, 8, u32::MAX].into_iter().for_each(|distance| distances.add(distance));
        assert_eq!(distances.iter().collect::<Vec<_>>(), [(1, 1), (2, 2), (4, 2), (8, 1), (1 << 31, 1)]);
        assert_eq!(distances.total(), 7);
    }

    #[test]
    fn half_of_the_duplicates_are_not_nearer_than_the_median() {
        let median = |of: &[u32]| {
            let mut distances = Distances::default();
            of.iter().for_each(|distance| distances.add(*distance));
            distances.median()
        };
        assert_eq!([median(&[]), median(&[9]), median(&[1, 9]), median(&[1, 5, 6, 900])], [None, Some(8), Some(1), Some(4)]);
        assert_eq!(median(&[u32::MAX; 3]), Some(1 << 31));
    }

    #[test]
    fn classes_are_the_fields_and_add_up_to_all() {
        let counts = PageCounts { unchanged: 1, free: 2, zero: 4, mapped: 64, on_disk: 8, known: 16, new: 32, ..PageCounts::default() };
        let json = serde_json::to_value(counts).unwrap();
        for (name, count) in counts.classes() {
            assert_eq!(json[name], count, "{name}");
        }
        assert_eq!(counts.classes().map(|(_, count)| count).sum::<u64>(), counts.total());
    }

    #[test]
    fn times_have_the_classes_of_counts() {
        let names = |classes: &mut dyn Iterator<Item = (&'static str, u64)>| classes.map(|(name, _)| name).collect::<Vec<_>>();
        let times = ClassTimes { free: 3, new: 5, ..ClassTimes::default() };
        assert_eq!(names(&mut times.classes()), names(&mut PageCounts::default().classes()));
        let json = serde_json::to_value(times).unwrap();
        assert!(times.classes().all(|(name, ns)| json[name] == ns), "{json}");
        assert!(!times.is_empty() && ClassTimes::default().is_empty());
    }

    #[test]
    fn counts_without_duplicates_are_written_as_before() {
        let plain = PageCounts { known: 3, new: 2, ..PageCounts::default() };
        let json = serde_json::to_value(plain).unwrap();
        assert!(json.get("within").is_none() && json.get("distances").is_none(), "{json}");
        assert_eq!(serde_json::from_value::<PageCounts>(json).unwrap(), plain);
        let mut counts = PageCounts { known: 9, within: 4, ..plain };
        counts.distances.add(5);
        let json = serde_json::to_value(counts).unwrap();
        assert_eq!(json["distances"], serde_json::json!([0, 0, 1]));
        assert_eq!(serde_json::from_value::<PageCounts>(json).unwrap(), counts);
        assert!(serde_json::from_value::<Distances>(serde_json::json!(vec![0; 33])).is_err());
    }
}
