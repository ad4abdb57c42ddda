//! What links are to do otherwise in a replay, as people say it.

use crate::{instant::span, out::Failure};
use clap::Args;
use fermata_api::{local, types::Perturbation};
use std::str::FromStr;

/// A seed, or one that is yet to be drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seed {
    Said(u64),
    Drawn,
}

/// What stands for a seed that nobody has said.
const DRAWN: &str = "drawn";

/// Options of whatever lives through a checkpoint once more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Perturb {
    /// Have the links do otherwise than they did, as drawn from this seed: the same again is the same variation [default: a seed is drawn, and told]
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true, default_missing_value = DRAWN)]
    perturb: Option<Seed>,
    /// What they do otherwise: timing (each frame is later by up to --within), order (the same, and frames overtake each other), luck (other frames are lost, doubled and
    /// late, as often as the links say) [default: timing]
    #[arg(long, value_name = "WHAT,...", value_delimiter = ',')]
    vary: Vec<Vary>,
    /// By how much a frame is later at most, in virtual time, up to 10s [default: 1ms]
    #[arg(long, value_name = "TIME", value_parser = span)]
    within: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Vary {
    Timing,
    Order,
    Luck,
}

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            DRAWN => Ok(Self::Drawn),
            _ => seed(text).map(Self::Said),
        }
    }
}

/// A seed as it is written.
pub fn seed(text: &str) -> Result<u64, String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten().ok_or_else(|| format!("\"{text}\" is no seed: write a whole number, such as 7"))
}

impl Perturb {
    /// What is asked for, if anything is.
    pub fn perturbation(&self) -> Result<Option<Perturbation>, Failure> {
        let seed = match self.perturb {
            Some(Seed::Said(seed)) => seed,
            Some(Seed::Drawn) => local::seed()?,
            None if self.vary.is_empty() && self.within.is_none() => return Ok(None),
            None => {
                return Err(Failure::Misuse("--vary and --within say what --perturb does: add --perturb, or --perturb=SEED".to_owned()));
            }
        };
        self.by(seed).map(Some)
    }

    /// The same by another seed, whether one was said or not.
    pub fn by(&self, seed: u64) -> Result<Perturbation, Failure> {
        let varies = |what| self.vary.contains(&what);
        let timing = varies(Vary::Timing) || self.vary.is_empty();
        let late = timing || varies(Vary::Order);
        let within_ns = if late { self.within.unwrap_or(Perturbation::WITHIN_DEFAULT_NS) } else { 0 };
        let perturbation = Perturbation { seed, timing, order: varies(Vary::Order), luck: varies(Vary::Luck), within_ns };
        let misuse = match self.within {
            Some(_) if !late => "--within is for --vary timing and --vary order: nothing is later by other luck",
            _ if late && !(1..=Perturbation::WITHIN_MAX_NS).contains(&within_ns) => "--within takes times up to 10s, and more than none",
            _ => return Ok(perturbation),
        };
        Err(Failure::Misuse(misuse.to_owned()))
    }

    /// Whether a seed was said, or one is to be drawn.
    pub fn has_seed(&self) -> bool {
        self.perturb.is_some()
    }
}

/// How it is told behind where a run is: nothing where all is as it was.
pub fn told(perturbation: Option<&Perturbation>) -> String {
    perturbation.map_or_else(String::new, |perturbation| format!("; perturbed, {perturbation}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{args::Cli, commands::Command};
    use clap::Parser;

    fn fork(line: &str) -> Result<Option<Perturbation>, i32> {
        match Cli::try_parse_from(format!("fermata fork {line}").split_whitespace()) {
            Ok(cli) => match cli.command {
                Command::Fork(fork) => fork.perturb.perturbation().map_err(|failure| failure.status().into()),
                other => panic!("{other:?}"),
            },
            Err(error) => Err(error.exit_code()),
        }
    }

    #[test]
    fn what_is_varied() {
        let timing = Perturbation { seed: 7, timing: true, within_ns: 1_000_000, ..Perturbation::default() };
        assert_eq!(fork(""), Ok(None));
        assert_eq!(fork("--perturb=7"), Ok(Some(timing)));
        assert_eq!(fork("--perturb=7 main~2"), Ok(Some(timing)));
        assert_eq!(fork("--perturb=7 --within 2.5ms"), Ok(Some(Perturbation { within_ns: 2_500_000, ..timing })));
        let order = Perturbation { timing: false, order: true, ..timing };
        assert_eq!(fork("--perturb=7 --vary order"), Ok(Some(order)));
        assert_eq!(fork("--perturb=7 --vary order,luck"), Ok(Some(Perturbation { luck: true, ..order })));
        let luck = Perturbation { order: false, luck: true, within_ns: 0, ..order };
        assert_eq!(fork("--perturb=7 --vary luck"), Ok(Some(luck)));
        let drawn = fork("--perturb main").unwrap().unwrap();
        assert_eq!(drawn, Perturbation { seed: drawn.seed, ..timing });
        for wrong in ["--vary luck", "--within 1ms", "--perturb=x", "--perturb=-1", "--perturb=+1", "--perturb=7 --vary taste"] {
            assert_eq!(fork(wrong), Err(2), "{wrong}");
        }
        for wrong in ["--perturb=7 --vary luck --within 1ms", "--perturb=7 --within 11s", "--perturb=7 --within 0s"] {
            assert_eq!(fork(wrong), Err(2), "{wrong}");
        }
    }

    #[test]
    fn how_it_is_told() {
        assert_eq!(told(None), "");
        let timing = Perturbation { seed: 7, timing: true, within_ns: 1_000_000, ..Perturbation::default() };
        assert_eq!(told(Some(&timing)), "; perturbed, seed 7: timing within 1 ms");
    }
}
