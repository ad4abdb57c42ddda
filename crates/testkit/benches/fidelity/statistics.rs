//! Whether two samples are of one distribution.

use fermata_testkit::report::quantile;

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

/// The middle and some of the tail, in microseconds.
pub fn cells(name: &str, nanoseconds: &[f64]) -> Vec<String> {
    let of = |share: f64| format!("{:.0}", quantile(nanoseconds, share) / 1e3);
    [name.to_owned(), nanoseconds.len().to_string()].into_iter().chain([0.0, 0.5, 0.9, 0.97, 0.999, 1.0].map(of)).collect()
}

/// The names of these columns.
pub fn columns(of: &str) -> Vec<String> {
    [of, "number", "least", "p50", "p90", "p97", "p99.9", "worst"].map(str::to_owned).to_vec()
}
