//! Conditions that are tried: what is different, and the values it has.

use crate::perturb::seed;
use fermata_api::{
    net::{Change, Discipline, Reshape},
    spec::{Percent, Rate, Time},
};
use std::{fmt::Display, str::FromStr};

/// What seeds are given for.
const PERTURB: &str = "perturb";
/// What numbers of processors are given for.
const CPUS: &str = "cpus";
/// As many as a machine can have.
const CPUS_MAX: u32 = 64;
/// Conditions at once, at most: each is a fork.
const VALUES_MAX: usize = 256;

/// What is different, and the values that are tried: `loss=0%,1%,5%`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Each {
    /// A property of a link, or a variable.
    pub key: String,
    values: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    text: String,
    /// Of a property of a link.
    reshape: Option<Reshape>,
    /// By which all links do otherwise than they did.
    seed: Option<u64>,
    /// How many processors are online.
    cpus: Option<u32>,
}

/// One combination of values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Condition {
    /// What is different, in the order in which it was given.
    pub values: Vec<(String, String)>,
    /// What becomes different at the link, if anything does.
    pub change: Option<Change>,
    /// By which all links do otherwise than they did, if they do.
    pub seed: Option<u64>,
    /// How many processors of each machine are online, if not as many as were.
    pub cpus: Option<u32>,
}

impl Condition {
    /// For the environment of scripts: names in capitals.
    pub fn variables(&self) -> Vec<(String, String)> {
        self.values.iter().map(|(key, value)| (key.to_uppercase(), value.clone())).collect()
    }

    /// `loss=5%, CC=bbr`.
    pub fn words(&self) -> String {
        let words: Vec<_> = self.values.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if words.is_empty() { "as it was".to_owned() } else { words.join(", ") }
    }

    fn with(&self, key: &str, value: &Value) -> Self {
        let mut all = self.clone();
        all.values.push((key.to_owned(), value.text.clone()));
        all.seed = value.seed.or(all.seed);
        all.cpus = value.cpus.or(all.cpus);
        if let Some(reshape) = &value.reshape {
            let change = all.change.get_or_insert_default();
            change.sent = both(&change.sent, reshape);
            change.received = change.sent.clone();
        }
        all
    }
}

/// All combinations; the values of the last one change fastest.
pub fn product(each: &[Each]) -> Vec<Condition> {
    each.iter().fold(vec![Condition::default()], |conditions, each| {
        conditions.iter().flat_map(|condition| each.values.iter().map(|value| condition.with(&each.key, value))).collect()
    })
}

/// What either of them changes.
fn both(one: &Reshape, other: &Reshape) -> Reshape {
    Reshape {
        rate: other.rate.or(one.rate),
        delay_ns: other.delay_ns.or(one.delay_ns),
        jitter_ns: other.jitter_ns.or(one.jitter_ns),
        loss: other.loss.or(one.loss),
        duplicate: other.duplicate.or(one.duplicate),
        reorder: other.reorder.or(one.reorder),
        queue: other.queue.or(one.queue),
        discipline: other.discipline.or(one.discipline),
    }
}

impl FromStr for Each {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = text.split_once('=').ok_or("write what is different and its values: loss=0%,1%,5%")?;
        let values: Vec<_> = values.split(',').map(str::trim).collect();
        if values.len() > VALUES_MAX {
            return Err(format!("at most {VALUES_MAX} values, found {}", values.len()));
        }
        let read = |value: &str| -> Result<_, String> {
            let seed = (key == PERTURB).then(|| seed(value)).transpose()?;
            let cpus = (key == CPUS).then(|| cpus(value)).transpose()?;
            let reshape = if seed.or(cpus.map(u64::from)).is_some() { None } else { reshape(key, value)? };
            Ok(Value { text: value.to_owned(), reshape, seed, cpus })
        };
        let values = values.into_iter().map(read);
        Ok(Self { key: key.to_owned(), values: values.collect::<Result<_, String>>()? })
    }
}

/// How many processors are online.
fn cpus(value: &str) -> Result<u32, String> {
    let cpus = value.parse().ok().filter(|cpus| (1..=CPUS_MAX).contains(cpus));
    cpus.ok_or_else(|| format!("expected a number of processors from 1 to {CPUS_MAX}, found \"{value}\""))
}

/// What a value means for a link; nothing if it is one of a variable.
fn reshape(key: &str, value: &str) -> Result<Option<Reshape>, String> {
    let (none, share) = (Reshape::default(), |value: &str| read::<Percent>(value).map(|share| Some(share.0)));
    let time = |value: &str| read::<Time>(value).map(|time| Some(time.0));
    Ok(Some(match key {
        "rate" if value == "0" => Reshape { rate: Some(0), ..none },
        "rate" => Reshape { rate: Some(read::<Rate>(value)?.0), ..none },
        "delay" => Reshape { delay_ns: time(value)?, ..none },
        "jitter" => Reshape { jitter_ns: time(value)?, ..none },
        "loss" => Reshape { loss: share(value)?, ..none },
        "duplicate" => Reshape { duplicate: share(value)?, ..none },
        "reorder" => Reshape { reorder: share(value)?, ..none },
        "queue" => Reshape { queue: Some(read(value)?), ..none },
        "discipline" => Reshape { discipline: Some(read::<Discipline>(value)?), ..none },
        name if is_variable(name) => return Ok(None),
        _ => {
            return Err(format!(
                "\"{key}\" is no property of a link (rate, delay, jitter, loss, duplicate, reorder, queue, discipline), not {PERTURB} and not {CPUS}, and no variable, which is in capitals"
            ));
        }
    }))
}

fn read<T: FromStr<Err: Display>>(value: &str) -> Result<T, String> {
    value.parse().map_err(|error: T::Err| error.to_string())
}

fn is_variable(name: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    !name.is_empty() && name.bytes().all(good) && !name.as_bytes()[0].is_ascii_digit() && !name.starts_with("FERMATA_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each(text: &str) -> Each {
        text.parse().unwrap()
    }

    #[test]
    fn all_combinations() {
        let conditions = product(&[each("loss=0%,5%"), each("CC=bbr, cubic"), each("delay=10ms")]);
        let words: Vec<_> = conditions.iter().map(Condition::words).collect();
        assert_eq!(
            words,
            [
                "loss=0%, CC=bbr, delay=10ms",
                "loss=0%, CC=cubic, delay=10ms",
                "loss=5%, CC=bbr, delay=10ms",
                "loss=5%, CC=cubic, delay=10ms"
            ]
        );
        let change = conditions[2].change.as_ref().unwrap();
        assert_eq!((change.sent.delay_ns, change.sent.loss.unwrap().per_billion, change.up), (Some(10_000_000), 50_000_000, None));
        assert_eq!(change.sent, change.received);
        assert_eq!(
            conditions[0].variables(),
            [("LOSS", "0%"), ("CC", "bbr"), ("DELAY", "10ms")].map(|(a, b)| (a.to_owned(), b.to_owned()))
        );
        assert_eq!((product(&[]), Condition::default().words().as_str()), (vec![Condition::default()], "as it was"));
        assert_eq!(product(&[each("CC=bbr")])[0].change, None);
    }

    #[test]
    fn a_seed_is_a_condition() {
        let conditions = product(&[each("perturb=1,2"), each("loss=1%")]);
        assert_eq!(conditions.iter().map(|condition| condition.seed).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert_eq!(conditions[1].words(), "perturb=2, loss=1%");
        assert_eq!(conditions[1].variables()[0], ("PERTURB".to_owned(), "2".to_owned()));
        assert!(conditions[0].change.is_some());
        assert_eq!(product(&[each("perturb=1")])[0].change, None);
    }

    #[test]
    fn a_number_of_processors_is_a_condition() {
        let conditions = product(&[each("cpus=1,2"), each("CC=bbr")]);
        assert_eq!(conditions.iter().map(|condition| condition.cpus).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert_eq!((conditions[1].words().as_str(), &conditions[1].change), ("cpus=2, CC=bbr", &None));
        assert_eq!(conditions[1].variables()[0], ("CPUS".to_owned(), "2".to_owned()));
        assert_eq!(product(&[each("loss=1%")])[0].cpus, None);
    }

    #[test]
    fn wrong_values_are_told() {
        for wrong in [
            "loss",
            "loss=",
            "loss=lots",
            "delay=5",
            "queue=-1",
            "discipline=red",
            "cpus=0",
            "cpus=65",
            "cpus=all",
            "nonsense=1",
            "cc=bbr",
            "=1",
            "1A=2",
            "FERMATA_RUN=x",
        ] {
            assert!(wrong.parse::<Each>().is_err(), "{wrong}");
        }
        for right in ["rate=0,100Mbit", "jitter=1ms", "duplicate=1%", "reorder=2%", "queue=10,20", "discipline=codel", "A_1=,x"] {
            assert!(right.parse::<Each>().is_ok(), "{right}");
        }
    }
}
