//! Whether two samples are of one distribution, and whether few values are farther up among many than any others would be.

use crate::{Random, report::quantile};

/// How far apart two samples are that are to be compared, and two that differ by nothing but the time at which they were taken.
pub struct Told {
    /// Kolmogorov and Smirnov's distance.
    pub distance: f64,
    /// How likely it is to be as large as that by chance, if all values were independent.
    pub chance: f64,
    /// The distance of the two of the same kind.
    pub of_same: f64,
}

/// Below this chance two samples are told apart, unless two of the same kind are as far apart.
const CHANCE_MIN: f64 = 0.01;

impl Told {
    /// Compares `with` to both samples `without`, taken together, and these two to each other.
    pub fn new(with: &[f64], without: [&[f64]; 2]) -> Self {
        let (distance, chance) = kolmogorov_smirnov(with, &without.concat());
        Self { distance, chance, of_same: kolmogorov_smirnov(without[0], without[1]).0 }
    }

    /// Whether nobody can tell. Values that follow each other on one host are not independent, so chance alone would tell two of the same kind apart.
    pub fn cannot_be_told(&self) -> bool {
        self.chance >= CHANCE_MIN || self.distance <= self.of_same
    }
}

/// The largest distance between the two distributions, and how likely one as large is by chance (two-sample test, by its asymptotic distribution).
fn kolmogorov_smirnov(a: &[f64], b: &[f64]) -> (f64, f64) {
    let sorted = |values: &[f64]| {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values
    };
    let (a, b) = (sorted(a), sorted(b));
    let (mut i, mut j, mut distance) = (0, 0, 0.0_f64);
    while i < a.len() && j < b.len() {
        let value = a[i].min(b[j]);
        while i < a.len() && a[i] <= value {
            i += 1;
        }
        while j < b.len() && b[j] <= value {
            j += 1;
        }
        distance = distance.max((i as f64 / a.len() as f64 - j as f64 / b.len() as f64).abs());
    }
    let size = (a.len() as f64 * b.len() as f64 / (a.len() + b.len()) as f64).sqrt();
    let lambda = (size + 0.12 + 0.11 / size) * distance;
    let term = |k: i32| 2.0 * (-1.0_f64).powi(k - 1) * (-2.0 * f64::from(k * k) * lambda * lambda).exp();
    (distance, if lambda < 0.3 { 1.0 } else { (1..100).map(term).sum::<f64>().clamp(0.0, 1.0) })
}

/// Few values, at certain times, beside as many drawn from all: what the times have to do with the values (a permutation test). The largest of few values is
/// seldom as large as the largest of many, so it says nothing beside that one.
pub struct Drawn {
    /// The largest of as many values as there are at these times, in the median of all draws.
    pub worst: f64,
    /// How likely it is to draw one as large as the largest at these times.
    pub worst_chance: f64,
    /// How likely it is to draw values that are as large on the whole, by the sum of their ranks.
    pub ranks_chance: f64,
}

const DRAWS: usize = 9_999;
/// The same draws for the same values.
const SEED: u64 = 0x5eed;

impl Drawn {
    /// Of each round the values at these times, and the others. From each round are drawn as many as it has at these times: what a slow minute of the host does
    /// is in all of its values.
    pub fn new(rounds: &[[Vec<f64>; 2]]) -> Self {
        let ranks = Ranks::new(rounds.iter().flatten().flatten().copied().collect());
        let all = rounds
            .iter()
            .map(|[at, others]| (at.len(), [at.as_slice(), others].concat().into_iter().map(|value| (value, ranks.of(value))).collect()));
        let mut all: Vec<(usize, Vec<(f64, f64)>)> = all.collect();
        assert!(all.iter().any(|(count, values)| (1..values.len()).contains(count)), "values at these times, and others");
        let look = |all: &[(usize, Vec<(f64, f64)>)]| {
            let first = all.iter().flat_map(|(count, values)| &values[..*count]);
            first.fold((f64::NEG_INFINITY, 0.0), |(worst, sum), (value, rank)| (value.max(worst), sum + rank))
        };
        let seen = look(&all);
        let mut random = Random::new(SEED);
        let mut draw = |_| {
            for (count, values) in &mut all {
                for place in 0..*count {
                    let other = place + random.below((values.len() - place) as u64) as usize;
                    values.swap(place, other);
                }
            }
            look(&all)
        };
        let draws: Vec<_> = (0..DRAWS).map(&mut draw).collect();
        let chance = |as_large: usize| (1 + as_large) as f64 / (1 + DRAWS) as f64;
        Self {
            worst: quantile(&draws.iter().map(|draw| draw.0).collect::<Vec<_>>(), 0.5),
            worst_chance: chance(draws.iter().filter(|draw| draw.0 >= seen.0).count()),
            ranks_chance: chance(draws.iter().filter(|draw| draw.1 >= seen.1).count()),
        }
    }
}

/// The place of each value among all; equal ones share theirs.
struct Ranks(Vec<f64>);

impl Ranks {
    fn new(mut all: Vec<f64>) -> Self {
        all.sort_by(f64::total_cmp);
        Self(all)
    }

    fn of(&self, value: f64) -> f64 {
        let (below, up_to) = (self.0.partition_point(|other| *other < value), self.0.partition_point(|other| *other <= value));
        (below + up_to) as f64 / 2.0
    }
}

/// The middle and some of the tail, in microseconds.
pub fn cells(name: &str, nanoseconds: &[f64]) -> Vec<String> {
    let of = |share: f64| format!("{:.0}", quantile(nanoseconds, share) / 1e3);
    [name.to_owned(), nanoseconds.len().to_string()].into_iter().chain([0.0, 0.5, 0.9, 0.97, 0.999, 1.0].map(of)).collect()
}

/// The names of these columns.
pub fn columns(of: &str) -> Vec<String> {
    [of, "number", "least", "p50", "p90", "p97", "p99.9", "worst"].map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// Numbers evenly spread from 0 to 1.
    fn even(random: &mut Random) -> f64 {
        (random.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn sample(random: &mut Random, count: usize, of: fn(f64) -> f64) -> Vec<f64> {
        (0..count).map(|_| of(even(random))).collect()
    }

    fn grid(count: u32, from: f64) -> Vec<f64> {
        (0..count).map(|number| from + f64::from(number) / f64::from(count)).collect()
    }

    #[test]
    fn the_distance_is_the_largest_between_the_distributions() {
        assert_eq!(kolmogorov_smirnov(&grid(50, 0.0), &grid(50, 0.0)), (0.0, 1.0));
        let (distance, chance) = kolmogorov_smirnov(&grid(50, 0.0), &grid(80, 2.0));
        assert!(distance == 1.0 && chance < 1e-12, "{distance} {chance}");
        // Ties are in both at once: {1, 1, 2} and {1, 2, 2} differ by a third at 1.
        let (distance, _) = kolmogorov_smirnov(&[1.0, 2.0, 1.0], &[2.0, 1.0, 2.0]);
        assert!((distance - 1.0 / 3.0).abs() < 1e-12, "{distance}");
        let (distance, _) = kolmogorov_smirnov(&grid(200, 0.0), &grid(400, 0.1));
        assert!((distance - 0.1).abs() < 0.006, "{distance}");
    }

    /// The asymptotic distribution has 5 % above 1.3581 and 1 % above 1.6276.
    #[test]
    fn the_chance_is_that_of_the_tables() {
        let size = 500.0_f64.sqrt();
        for (lambda, expected) in [(1.3581, 0.05), (1.6276, 0.01), (0.8276, 0.5)] {
            let wanted = lambda / (size + 0.12 + 0.11 / size);
            let (distance, chance) = kolmogorov_smirnov(&grid(1000, 0.0), &grid(1000, wanted));
            // Distances of such samples are whole thousandths.
            assert!((distance - wanted).abs() <= 1e-3 && (chance / expected - 1.0).abs() < 0.15, "{distance} {chance}");
        }
    }

    #[test]
    fn samples_of_one_distribution_are_told_apart_as_seldom_as_they_should() {
        let mut random = Random::new(11);
        for of in [|even: f64| even, |even: f64| -even.ln(), |even: f64| (even * 8.0).floor()] {
            let low = (0..400).filter(|_| {
                let (a, b) = (sample(&mut random, 300, of), sample(&mut random, 200, of));
                kolmogorov_smirnov(&a, &b).1 < 0.05
            });
            // 20 are expected; with ties fewer.
            let low = low.count();
            assert!(low <= 35, "{low} of 400");
        }
    }

    #[test]
    fn what_differs_is_told_unless_two_of_a_kind_differ_as_much() {
        let mut random = Random::new(7);
        let mut same = || sample(&mut random, 1000, |even| -even.ln());
        let (with, without) = (same(), [same(), same()]);
        assert!(Told::new(&with, [&without[0], &without[1]]).cannot_be_told());
        let slower: Vec<_> = with.iter().map(|value| value * 1.3).collect();
        assert!(!Told::new(&slower, [&without[0], &without[1]]).cannot_be_told());
        let drifted: Vec<_> = without[1].iter().map(|value| value * 1.5).collect();
        assert!(Told::new(&slower, [&without[0], &drifted]).cannot_be_told());
    }

    /// Rounds in which the host is more and more slow, with few values at some times, which are changed by `at`.
    fn rounds(random: &mut Random, at: fn(f64) -> f64) -> Vec<[Vec<f64>; 2]> {
        let mut round = |slow: u32| {
            let mut values = |count, of: fn(f64) -> f64| {
                let values = sample(random, count, |even| -even.ln()).into_iter().map(|value| of(value) + f64::from(slow));
                values.collect::<Vec<_>>()
            };
            [values(6, at), values(200, |value| value)]
        };
        (0..6).map(&mut round).collect()
    }

    #[test]
    fn few_values_like_all_others_are_told_apart_as_seldom_as_they_should() {
        let mut random = Random::new(5);
        let (mut worst, mut ranks) = (0, 0);
        for _ in 0..100 {
            let drawn = Drawn::new(&rounds(&mut random, |value| value));
            worst += usize::from(drawn.worst_chance < 0.1);
            ranks += usize::from(drawn.ranks_chance < 0.1);
        }
        // 10 are expected, with a deviation of 3.
        assert!((1..=22).contains(&worst) && (1..=22).contains(&ranks), "{worst} and {ranks} of 100");
    }

    #[test]
    fn few_values_that_are_larger_are_told() {
        let mut random = Random::new(3);
        let larger = Drawn::new(&rounds(&mut random, |value| value + 1.0));
        assert!(larger.ranks_chance < 1e-3, "{}", larger.ranks_chance);
        let one_of_ten = |value: f64| if value > 2.3 { value * 100.0 } else { value };
        let drawn = Drawn::new(&rounds(&mut random, one_of_ten));
        // The largest of all is one of 36 among 1236.
        assert!(drawn.worst_chance < 0.04 && drawn.worst < 20.0, "{} {}", drawn.worst_chance, drawn.worst);
    }
}
