//! Messages, and what a step waits for.

use super::{Plain, program::Here};
use fermata_linux::own_memory::{bytes_of, fill_from_bytes};
use std::{collections::VecDeque, sync::Arc};

/// A message as it travels: a tag, by which the receiver knows what it is, and bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Parcel {
    pub tag: u32,
    pub bytes: Vec<u8>,
}

impl Parcel {
    pub fn new<T: Plain>(tag: u32, values: &[T]) -> Arc<Self> {
        Arc::new(Self { tag, bytes: bytes_of(values).to_vec() })
    }
}

/// What a step waits for before it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wants(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Each(Vec<(usize, u32)>),
    Any(u32),
}

impl Wants {
    /// Nothing: the step begins at once.
    pub fn nothing() -> Self {
        Self(Kind::Each(Vec::new()))
    }

    /// A message with this tag from this rank.
    pub fn one(from: usize, tag: u32) -> Self {
        Self::each([from], tag)
    }

    /// A message with this tag from each of these ranks, in this order.
    pub fn each(from: impl IntoIterator<Item = usize>, tag: u32) -> Self {
        Self::these(from.into_iter().map(|from| (from, tag)).collect())
    }

    /// Messages from these ranks with these tags, in this order.
    pub fn these(wanted: Vec<(usize, u32)>) -> Self {
        Self(Kind::Each(wanted))
    }

    /// A message with this tag from each rank, the own one among them: what a broadcast to all, a reduction and an all-to-all bring.
    pub fn all(here: Here, tag: u32) -> Self {
        Self::each(0..here.ranks, tag)
    }

    /// One message with this tag, from whoever is first.
    pub fn any(tag: u32) -> Self {
        Self(Kind::Any(tag))
    }

    /// Somebody who is not among so many ranks, if a message is wanted from one.
    pub(super) fn beyond(&self, ranks: usize) -> Option<usize> {
        match &self.0 {
            Kind::Each(wanted) => wanted.iter().map(|(from, _)| *from).find(|from| *from >= ranks),
            Kind::Any(_) => None,
        }
    }
}

/// The messages that a step waited for, in the order in which it wanted them.
#[derive(Debug)]
pub struct Messages(Vec<(usize, Arc<Parcel>)>);

impl Messages {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the step waited for nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Who sent one of them.
    pub fn from(&self, which: usize) -> usize {
        self.0[which].0
    }

    /// The bytes of one of them.
    pub fn bytes(&self, which: usize) -> &[u8] {
        &self.0[which].1.bytes
    }

    /// The values in one of them. Panics if they are of another size.
    pub fn values<T: Plain + Default + Clone>(&self, which: usize) -> Vec<T> {
        let mut values = vec![T::default(); self.bytes(which).len() / size_of::<T>()];
        self.fill(which, &mut values);
        values
    }

    /// Copies the values of one of them to where they belong. Panics if there are more or fewer.
    pub fn fill<T: Plain>(&self, which: usize, into: &mut [T]) {
        let (from, parcel) = &self.0[which];
        let expected = size_of_val(into);
        let fits = fill_from_bytes(into, &parcel.bytes);
        assert!(
            fits,
            "the message with tag {} from rank {from} has {} bytes, where {expected} are expected",
            parcel.tag,
            parcel.bytes.len()
        );
    }

    /// All of them as one: values that stand at the same place are put together, in the order of the messages. Panics if their sizes differ.
    pub fn reduce<T: Plain + Default + Clone>(&self, put_together: impl Fn(T, T) -> T) -> Vec<T> {
        let mut result = self.values::<T>(0);
        for which in 1..self.len() {
            let more = self.values::<T>(which);
            assert_eq!(result.len(), more.len(), "messages of a reduction are of one size");
            result.iter_mut().zip(more).for_each(|(value, more)| *value = put_together(*value, more));
        }
        result
    }
}

/// Messages that have arrived, and which the program has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Inbox(VecDeque<(usize, Arc<Parcel>)>);

impl Inbox {
    pub fn push(&mut self, from: usize, parcel: Arc<Parcel>) {
        self.0.push_back((from, parcel));
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(usize, Arc<Parcel>)> {
        self.0.iter()
    }

    /// The first one that fits, of the `first` that are here; it stays here unless it is taken.
    pub fn find(&mut self, fits: impl Fn(usize, &Parcel) -> bool, first: usize, take: bool) -> Option<(usize, Arc<Parcel>)> {
        let place = self.0.iter().take(first).position(|(from, parcel)| fits(*from, parcel))?;
        if take { self.0.remove(place) } else { self.0.get(place).cloned() }
    }

    /// All that is wanted, or nothing.
    pub fn take(&mut self, wants: &Wants) -> Option<Messages> {
        let places = match &wants.0 {
            Kind::Any(tag) => vec![self.0.iter().position(|(_, parcel)| parcel.tag == *tag)?],
            Kind::Each(wanted) => self.places(wanted)?,
        };
        let taken = places.iter().map(|place| self.0[*place].clone()).collect();
        let mut place = 0..;
        self.0.retain(|_| !places.contains(&place.next().expect("there is no end")));
        Some(Messages(taken))
    }

    /// Where each of these is: of several alike, the one that came first.
    fn places(&self, wanted: &[(usize, u32)]) -> Option<Vec<usize>> {
        let mut places = Vec::with_capacity(wanted.len());
        for (from, tag) in wanted {
            let mut fitting = self.0.iter().enumerate().filter(|(_, (sender, parcel))| sender == from && parcel.tag == *tag);
            places.push(fitting.find(|(place, _)| !places.contains(place))?.0);
        }
        Some(places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_wanted_or_nothing() {
        let mut inbox = Inbox::default();
        inbox.push(1, Parcel::new(7, &[10u64]));
        inbox.push(0, Parcel::new(7, &[20u64]));
        inbox.push(1, Parcel::new(7, &[30u64]));
        let here = Here { rank: 0, ranks: 3 };
        assert!(inbox.take(&Wants::all(here, 7)).is_none());
        inbox.push(2, Parcel::new(8, &[1u64]));
        assert!(inbox.take(&Wants::all(here, 7)).is_none());
        inbox.push(2, Parcel::new(7, &[40u64]));
        let got = inbox.take(&Wants::all(here, 7)).unwrap();
        assert_eq!(got.reduce(|a: u64, b| a * 100 + b), [201_040]);
        let twice = Wants::each([1, 1], 7);
        assert!(inbox.take(&twice).is_none());
        assert_eq!(inbox.take(&Wants::any(8)).unwrap().from(0), 2);
        assert_eq!(inbox.take(&Wants::one(1, 7)).unwrap().values::<u64>(0), [30]);
        assert!(inbox.take(&Wants::nothing()).unwrap().is_empty());
        assert_eq!(inbox.iter().len(), 0);
    }
}
