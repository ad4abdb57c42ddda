//! Which checkpoint of a line to try next, to find the first bad one: a binary search that can skip.

/// What a trial says of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Not as it should be.
    Bad,
    /// It cannot be told.
    Skip,
}

impl Verdict {
    /// What a script's exit status says: 0 good, 125 skip, else bad, as for `git bisect run`.
    pub fn of(status: i32) -> Self {
        match status {
            0 => Self::Good,
            125 => Self::Skip,
            _ => Self::Bad,
        }
    }
}

/// A search on a line of checkpoints, by their places. The first is known to be good, the last to be bad.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    good: usize,
    bad: usize,
    skipped: Vec<usize>,
}

impl Search {
    /// On a line of so many, two at least.
    pub fn new(length: usize) -> Option<Self> {
        (length >= 2).then(|| Self { good: 0, bad: length - 1, skipped: Vec::new() })
    }

    /// The newest that is known to be good.
    pub fn good(&self) -> usize {
        self.good
    }

    /// The oldest that is known to be bad.
    pub fn bad(&self) -> usize {
        self.bad
    }

    /// Those between the two of which nobody knows anything yet.
    pub fn left(&self) -> usize {
        self.open().count()
    }

    /// The one to try next: that nearest to the middle of what is left. None: the search is over.
    pub fn next(&self) -> Option<usize> {
        let middle = self.good.midpoint(self.bad);
        self.open().min_by_key(|place| place.abs_diff(middle))
    }

    /// Places at which the first bad one may be: only one, unless some were skipped.
    pub fn suspects(&self) -> Vec<usize> {
        (self.good + 1..=self.bad).collect()
    }

    /// Takes in what a trial said of a place between the two.
    pub fn tell(&mut self, place: usize, verdict: Verdict) {
        match verdict {
            Verdict::Good => self.good = self.good.max(place),
            Verdict::Bad => self.bad = self.bad.min(place),
            Verdict::Skip => self.skipped.push(place),
        }
    }

    fn open(&self) -> impl Iterator<Item = usize> {
        (self.good + 1..self.bad).filter(|place| !self.skipped.contains(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches; the first bad one is at `first`, and some cannot be told.
    fn search(length: usize, first: usize, skip: &dyn Fn(usize) -> bool) -> (Vec<usize>, usize) {
        let mut search = Search::new(length).unwrap();
        let mut tried = 0;
        while let Some(place) = search.next() {
            assert!(place > search.good() && place < search.bad());
            let verdict = match skip(place) {
                true => Verdict::Skip,
                false if place >= first => Verdict::Bad,
                false => Verdict::Good,
            };
            search.tell(place, verdict);
            tried += 1;
            assert!(tried <= length, "it does not end");
        }
        (search.suspects(), tried)
    }

    #[test]
    fn the_first_bad_one_is_found_in_few_steps() {
        for length in 2..200 {
            for first in 1..length {
                let (suspects, tried) = search(length, first, &|_| false);
                assert_eq!(suspects, [first], "of {length}");
                assert!(tried <= length.ilog2() as usize + 1, "{tried} of {length}");
            }
        }
    }

    #[test]
    fn what_is_skipped_stays_suspect() {
        for first in 1..50 {
            let (suspects, _) = search(50, first, &|place| place % 3 == 1);
            assert!(suspects.contains(&first), "{first}: {suspects:?}");
            // All but the last were skipped, else they would be known.
            assert!(suspects[..suspects.len() - 1].iter().all(|place| place % 3 == 1), "{first}: {suspects:?}");
        }
        assert_eq!(search(5, 3, &|_| true), (vec![1, 2, 3, 4], 3));
    }

    #[test]
    fn a_line_has_two_ends() {
        assert_eq!((Search::new(0), Search::new(1)), (None, None));
        let search = Search::new(2).unwrap();
        assert_eq!((search.next(), search.suspects(), search.left()), (None, vec![1], 0));
        assert_eq!([0, 125, 1, 130, -1].map(Verdict::of), [Verdict::Good, Verdict::Skip, Verdict::Bad, Verdict::Bad, Verdict::Bad]);
    }
}
