//! Seeded randomness, whose state is a number.

use crate::topology::Chance;
use chacha20::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use std::fmt;

/// The random numbers of one direction: ChaCha with 8 rounds under the seed of the world. Each direction has a stream of its own, so what
/// one draws changes nothing for another, and the place in the stream is all there is to remember.
pub(crate) struct Random {
    seed: u64,
    generator: ChaCha8Rng,
}

impl Random {
    /// The numbers of a stream from a position on.
    pub fn new(seed: u64, stream: u64, position: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(stream);
        generator.set_word_pos(position.into());
        Self { seed, generator }
    }

    /// 32-bit words drawn so far.
    pub fn position(&self) -> u64 {
        self.generator.get_word_pos() as u64
    }

    /// Draws only if the outcome is open.
    pub fn happens(&mut self, chance: Chance) -> bool {
        if chance == Chance::NEVER {
            return false;
        }
        let drawn = u64::from(self.generator.next_u32()) * u64::from(Chance::ALWAYS.per_billion);
        (drawn >> 32) < u64::from(chance.per_billion)
    }

    /// A number from 0 to `most`, all as likely as each other.
    pub fn up_to(&mut self, most: u64) -> u64 {
        if most == 0 {
            return 0;
        }
        ((u128::from(self.generator.next_u64()) * (u128::from(most) + 1)) >> 64) as u64
    }
}

impl Clone for Random {
    fn clone(&self) -> Self {
        Self::new(self.seed, self.generator.get_stream(), self.position())
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Random({}, {}, {})", self.seed, self.generator.get_stream(), self.position())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_the_whole_state() {
        let mut random = Random::new(7, 3, 0);
        for draws in 0..200 {
            let mut again = Random::new(7, 3, random.position());
            let mut clone = random.clone();
            let drawn = if draws % 3 == 0 { random.up_to(u64::MAX) } else { random.happens(Chance { per_billion: 500_000_000 }).into() };
            for other in [&mut again, &mut clone] {
                let repeated =
                    if draws % 3 == 0 { other.up_to(u64::MAX) } else { other.happens(Chance { per_billion: 500_000_000 }).into() };
                assert_eq!(repeated, drawn);
            }
        }
        assert_ne!(Random::new(7, 4, 0).up_to(u64::MAX), Random::new(7, 3, 0).up_to(u64::MAX));
    }

    #[test]
    fn what_is_certain_is_not_drawn() {
        let mut random = Random::new(1, 0, 0);
        assert!((0..1000).all(|_| !random.happens(Chance::NEVER) && random.up_to(0) == 0));
        assert_eq!(random.position(), 0);
        assert!((0..1000).all(|_| random.happens(Chance::ALWAYS)));
        assert!((0..1000).all(|_| random.up_to(3) <= 3));
    }

    /// The numbers of a checkpoint must go on after an update of the crate.
    #[test]
    fn the_numbers_stay_what_they_are() {
        let mut random = Random::new(42, 1, 0);
        assert_eq!([random.up_to(u64::MAX), random.up_to(u64::MAX)], [14_330_608_400_789_313_726, 3_725_791_316_648_749_897]);
    }
}
