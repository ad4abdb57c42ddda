//! Which checkpoints a policy keeps: a pure function of their records and names. It removes nothing and looks at no clock.
//!
//! ```text
//! last 20, every 2s for 1m, every 1m for 1h, every 1h for 7d
//! ```
//!
//! Each rule keeps some, and what one keeps stays. They look at each branch by itself. `last N` keeps its newest N. `every E for F` divides wall time into
//! stretches of E and keeps the first checkpoint of each, until that is as old as F; without `for F` it keeps it for ever. Since the first of a stretch stays
//! the first whatever comes later, it does not matter how often somebody prunes: what a rule will want next week is not removed today.
//!
//! Clocks are set back. So what is newer is told by the line alone: a checkpoint is newer than what it grew from, whatever the clock showed. And where the clock
//! shows the same time once more, its stretches begin anew.
//!
//! What people and runs stand on always stays: see [`Why`]. Ages count up to the newest end of a line, or to now if that is earlier: an experiment that rests for a month loses
//! nothing by it, and a record from the future does not make all others old.

use fermata_types::CheckpointId;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{
    collections::{BTreeSet, HashMap},
    fmt, iter,
    str::FromStr,
};

/// Rules that a policy has at most.
const RULES_MAX: usize = 16;
const NS_PER_SECOND: u64 = 1_000_000_000;
/// Units and their seconds.
const UNITS: [(&str, u64); 5] = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400), ("w", 604_800)];

/// Text that is no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {}, found {found:?}", Keep::EXPECTED)]
pub struct ParseKeepError {
    found: String,
}

/// A policy: which checkpoints are kept. As text and as JSON: `last 20, every 2s for 1m, every 1h`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The newest so many.
    Last(u32),
    /// One for each so many seconds, for so many.
    Every { seconds: u64, age: Option<u64> },
}

/// Why a checkpoint stays.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// It is tagged.
    Tagged,
    /// It is the newest of a branch.
    Head,
    /// A run stands on it.
    Run,
    /// Several others grew from it.
    Fork,
    /// Nothing grew from it: without it its line would end earlier.
    End,
    /// By this rule, as it is written.
    Rule(String),
}

/// A checkpoint, as far as a policy has to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its id.
    pub id: CheckpointId,
    /// The nearest ancestor that is there.
    pub parent: Option<CheckpointId>,
    /// The branch that it grew on.
    pub branch: String,
    /// Wall clock of the host, ns since 1970.
    pub created_ns: u64,
    /// It is tagged.
    pub tagged: bool,
    /// It is the newest of a branch.
    pub head: bool,
    /// A run stands on it.
    pub run: bool,
}

impl Keep {
    /// What is expected where a policy is written.
    pub const EXPECTED: &'static str =
        "what is kept, such as `last 20, every 2s for 1m, every 1m for 1h, every 1h`: a number from 1, times with s, m, h, d or w";

    /// Why each of these checkpoints stays, in their order; those that stay for no reason may go. They are all of one experiment.
    pub fn verdicts(&self, candidates: &[Candidate], now_ns: u64) -> Vec<BTreeSet<Why>> {
        let mut verdicts = protected(candidates);
        let ends = candidates.iter().zip(&verdicts).filter(|(_, why)| why.contains(&Why::End));
        let newest = ends.map(|(candidate, _)| candidate.created_ns).max().unwrap_or(now_ns);
        let before = before(candidates);
        for rule in &self.rules {
            for place in rule.keeps(candidates, &before, now_ns.min(newest)) {
                verdicts[place].insert(Why::Rule(rule.to_string()));
            }
        }
        verdicts
    }
}

/// What stays whatever the policy is.
fn protected(candidates: &[Candidate]) -> Vec<BTreeSet<Why>> {
    let mut children: HashMap<CheckpointId, u32> = HashMap::new();
    for parent in candidates.iter().filter_map(|candidate| candidate.parent) {
        *children.entry(parent).or_default() += 1;
    }
    let why = |candidate: &Candidate| {
        let grew = children.get(&candidate.id).copied().unwrap_or(0);
        let reasons = [
            (candidate.tagged, Why::Tagged),
            (candidate.head, Why::Head),
            (candidate.run, Why::Run),
            (grew > 1, Why::Fork),
            // Else its parent, which several grew from, might be one of a line afterwards, and go the next time.
            (grew == 0, Why::End),
        ];
        reasons.into_iter().filter_map(|(holds, why)| holds.then_some(why)).collect()
    };
    candidates.iter().map(why).collect()
}

/// The place of what is before each on its line: the nearest ancestor on the same branch.
fn before(candidates: &[Candidate]) -> Vec<Option<usize>> {
    let places: HashMap<_, _> = candidates.iter().enumerate().map(|(place, candidate)| (candidate.id, place)).collect();
    let parents: Vec<_> = candidates.iter().map(|candidate| places.get(&candidate.parent?).copied()).collect();
    let before = |place: usize| {
        let mut ancestors = iter::successors(parents[place], |at| parents[*at]);
        ancestors.find(|at| candidates[*at].branch == candidates[place].branch)
    };
    (0..candidates.len()).map(before).collect()
}

impl Rule {
    /// What it keeps; `before` says what is before each on its line.
    fn keeps(&self, candidates: &[Candidate], before: &[Option<usize>], now_ns: u64) -> Vec<usize> {
        let places = 0..candidates.len();
        match *self {
            Self::Last(count) => {
                let followed: BTreeSet<_> = before.iter().flatten().copied().collect();
                let ends = places.filter(|place| !followed.contains(place));
                ends.flat_map(|end| iter::successors(Some(end), |at| before[*at]).take(count as usize)).collect()
            }
            Self::Every { seconds, age } => {
                let created = |place: usize| candidates[place].created_ns;
                let stretch = |place: usize| created(place) / (seconds * NS_PER_SECOND);
                let is_first = |place: &usize| before[*place].is_none_or(|before| stretch(before) != stretch(*place));
                let is_young =
                    |place: &usize| age.is_none_or(|age| now_ns.saturating_sub(created(*place)) < age.saturating_mul(NS_PER_SECOND));
                places.filter(is_first).filter(is_young).collect()
            }
        }
    }

    fn read(text: &str) -> Option<Self> {
        let words: Vec<_> = text.split_whitespace().collect();
        match words.as_slice() {
            ["last", count] => number(count).and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0).map(Self::Last),
            ["every", every] => Some(Self::Every { seconds: seconds(every)?, age: None }),
            ["every", every, "for", age] => {
                let (seconds, age) = (seconds(every)?, seconds(age)?);
                // Nothing would ever be kept for as long as it takes until the next one.
                (age >= seconds).then_some(Self::Every { seconds, age: Some(age) })
            }
            _ => None,
        }
    }
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// At least one, and few enough to be counted in nanoseconds.
fn seconds(text: &str) -> Option<u64> {
    let (count, unit) = text.split_at(text.find(|character: char| !character.is_ascii_digit())?);
    let unit = UNITS.iter().find(|(name, _)| *name == unit)?.1;
    let seconds = number(count)?.checked_mul(unit)?;
    (seconds > 0 && seconds.checked_mul(NS_PER_SECOND).is_some()).then_some(seconds)
}

/// The largest unit that loses nothing.
fn written(seconds: u64) -> String {
    let (unit, factor) = UNITS.iter().rev().find(|(_, factor)| seconds.is_multiple_of(*factor)).unwrap_or(&UNITS[0]);
    format!("{}{unit}", seconds / factor)
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Last(count) => write!(f, "last {count}"),
            Self::Every { seconds, age: None } => write!(f, "every {}", written(seconds)),
            Self::Every { seconds, age: Some(age) } => write!(f, "every {} for {}", written(seconds), written(age)),
        }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rules.iter().map(Rule::to_string).collect::<Vec<_>>().join(", "))
    }
}

impl FromStr for Keep {
    type Err = ParseKeepError;

    fn from_str(text: &str) -> Result<Self, ParseKeepError> {
        let rules = text.split(',').take(RULES_MAX + 1).map(Rule::read).collect::<Option<Vec<_>>>();
        let rules = rules.filter(|rules| rules.len() <= RULES_MAX);
        rules.map(|rules| Self { rules }).ok_or_else(|| ParseKeepError { found: text.chars().take(80).collect() })
    }
}

impl Serialize for Keep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
