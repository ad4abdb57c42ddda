//! Numbers for tests and benches that can be repeated.

use std::env;

/// Numbers from a seed (Marsaglia's xorshift).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed, which is not 0.
    pub fn new(seed: u64) -> Self {
        assert_ne!(seed, 0, "all numbers would be 0");
        Self(seed)
    }

    /// From a seed that is another one each time, and printed, so that a failure can be repeated: `FERMATA_SEED` in the environment is taken instead.
    ///
    /// # Panics
    /// If that is no number, or 0.
    pub fn anew() -> Self {
        let given = env::var("FERMATA_SEED").ok().map(|seed| seed.parse().expect("FERMATA_SEED is a number"));
        let seed = given.unwrap_or_else(|| u64::from_le_bytes(fermata_linux::random::bytes::<8>().expect("randomness")) | 1);
        println!("FERMATA_SEED={seed}");
        Self::new(seed)
    }

    /// The next one: any but 0.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// One below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// One of these.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
