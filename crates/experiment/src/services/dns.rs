//! The names of the machines, as DNS tells them (RFC 1035): addresses of interfaces as the specification gives them, and whose an address is. Any other name is refused: so
//! a resolver that knows somebody else to ask asks them.

use crate::spec::Spec;
use fermata_vm::CONTROL_ADDRESS;
use std::{collections::BTreeMap, net::Ipv4Addr};

/// The port of DNS.
pub(crate) const PORT: u16 = 53;

const HEADER: usize = 12;
/// Bytes of a name as it is sent, at most.
const NAME_MAX: usize = 255;
const LABEL_MAX: usize = 63;
/// Below this an address has its name.
const REVERSE: &str = ".in-addr.arpa";

const IS_ANSWER: u16 = 0x8000;
const OPERATION: u16 = 0x7800;
/// What is said is first hand.
const AUTHORITY: u16 = 0x0400;
/// Whoever asks wants others asked, which is sent back and not done.
const RECURSION: u16 = 0x0100;
/// How it went.
const NO_ERROR: u16 = 0;
const FORMAT_ERROR: u16 = 1;
const NOT_IMPLEMENTED: u16 = 4;
const REFUSED: u16 = 5;

const A: u16 = 1;
const PTR: u16 = 12;
const ANY: u16 = 255;
const INTERNET: u16 = 1;
/// The name at the beginning of the question, once more.
const SAME_NAME: [u8; 2] = [0xc0, HEADER as u8];
/// Seconds for which somebody may remember it. Names never change, and whose an address is does neither.
const REMEMBER: u32 = 60;

/// Names and addresses, as one machine sees them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Names {
    addresses: BTreeMap<String, Vec<Ipv4Addr>>,
    names: BTreeMap<Ipv4Addr, String>,
}

impl Names {
    /// `b` and `b.EXPERIMENT` are all addresses of `b`, and `eth1.b` and `eth1.b.EXPERIMENT` that of one interface. The asking machine's control address, which every
    /// machine has for itself, is its own.
    pub fn of(spec: &Spec, asking: &str) -> Self {
        let mut names = Self::default();
        for (machine, node) in &spec.nodes {
            let whole = format!("{machine}.{}", spec.name);
            // It is a name whether it has an address or not.
            let mut all = Vec::new();
            for (interface, ipv4) in node.interfaces.iter().filter_map(|(name, interface)| Some((name, interface.ipv4?))) {
                all.push(ipv4.address);
                names.names.entry(ipv4.address).or_insert_with(|| whole.clone());
                for name in [format!("{interface}.{machine}"), format!("{interface}.{whole}")] {
                    names.addresses.insert(name, vec![ipv4.address]);
                }
            }
            if machine == asking {
                names.names.insert(CONTROL_ADDRESS, whole.clone());
                if all.is_empty() {
                    all.push(CONTROL_ADDRESS);
                }
            }
            names.addresses.insert(whole, all.clone());
            names.addresses.insert(machine.clone(), all);
        }
        names
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub fn trial() -> Self {
        let node = |ipv4: &str| format!("{{image: /i, interfaces: {{eth1: {{ipv4: {ipv4}}}}}}}");
        let links = "links: [{endpoints: [\"a:eth1\", \"b:eth1\"]}]";
        let yaml = format!("name: trial\nnodes:\n  a: {}\n  b: {}\n  c: {{image: /i}}\n{links}", node("10.0.0.1/24"), node("10.0.0.2/24"));
        let spec = Spec::from_yaml(&yaml, std::path::Path::new("trial.yaml"), std::path::Path::new("/"));
        Self::of(&spec.expect("a specification"), "c")
    }
}

/// The answer to a message, if it is a question.
pub(crate) fn answer(message: &[u8], names: &Names) -> Option<Vec<u8>> {
    let header = message.first_chunk::<HEADER>()?;
    let flags = u16::from_be_bytes([header[2], header[3]]);
    if flags & IS_ANSWER != 0 {
        return None;
    }
    let id = [header[0], header[1]];
    let sent_back = IS_ANSWER | flags & (OPERATION | RECURSION);
    if flags & OPERATION != 0 {
        return Some(reply(id, sent_back | NOT_IMPLEMENTED, &[], &[]));
    }
    // One question; nobody asks several in one message.
    let one = u16::from_be_bytes([header[4], header[5]]) == 1;
    let Some(question) = one.then(|| Question::read(&message[HEADER..])).flatten() else {
        return Some(reply(id, sent_back | FORMAT_ERROR, &[], &[]));
    };
    Some(match question.answers(names) {
        Some(answers) => reply(id, sent_back | AUTHORITY | NO_ERROR, question.bytes, &answers),
        None => reply(id, sent_back | REFUSED, question.bytes, &[]),
    })
}

/// The longest has all interfaces of a machine in it, and is shorter than the 512 bytes that everybody takes.
fn reply(id: [u8; 2], flags: u16, question: &[u8], answers: &[Vec<u8>]) -> Vec<u8> {
    let counts = [u16::from(!question.is_empty()), answers.len() as u16, 0, 0].map(u16::to_be_bytes).concat();
    [&id[..], &flags.to_be_bytes(), &counts, question, &answers.concat()].concat()
}

struct Question<'m> {
    /// As it was asked.
    bytes: &'m [u8],
    /// In small letters, without the dot at the end. Empty if no name of ours is like it.
    name: String,
    kind: u16,
    class: u16,
}

impl<'m> Question<'m> {
    /// A question at the beginning of these bytes. A name in it does not point elsewhere: there is nothing before it.
    fn read(bytes: &'m [u8]) -> Option<Self> {
        let (mut at, mut name, mut plain) = (0, String::new(), true);
        loop {
            let length = usize::from(*bytes.get(at)?);
            if length > LABEL_MAX || at + 1 + length > NAME_MAX {
                return None;
            }
            let label = bytes.get(at + 1..at + 1 + length)?;
            at += 1 + length;
            if label.is_empty() {
                break;
            }
            plain &= label.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte));
            if !name.is_empty() {
                name.push('.');
            }
            name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
        }
        if !plain {
            name.clear();
        }
        let [a, b, c, d] = *bytes.get(at..)?.first_chunk::<4>()?;
        Some(Self { bytes: &bytes[..at + 4], name, kind: u16::from_be_bytes([a, b]), class: u16::from_be_bytes([c, d]) })
    }

    /// What there is to say of a name that is ours: nothing, if something else is asked of it.
    fn answers(&self, names: &Names) -> Option<Vec<Vec<u8>>> {
        if self.class != INTERNET && self.class != ANY {
            return None;
        }
        let wants = |kind| self.kind == kind || self.kind == ANY;
        if let Some(address) = self.name.strip_suffix(REVERSE) {
            let mut bytes = address.parse::<Ipv4Addr>().ok()?.octets();
            bytes.reverse();
            let name = names.names.get(&bytes.into())?;
            return Some(if wants(PTR) { vec![record(PTR, &encoded(name))] } else { Vec::new() });
        }
        let addresses = names.addresses.get(&self.name)?;
        Some(if wants(A) { addresses.iter().map(|address| record(A, &address.octets())).collect() } else { Vec::new() })
    }
}

/// What is said of the name that was asked for.
fn record(kind: u16, data: &[u8]) -> Vec<u8> {
    let [kind, class, length] = [kind, INTERNET, data.len() as u16].map(u16::to_be_bytes);
    [&SAME_NAME[..], &kind, &class, &REMEMBER.to_be_bytes(), &length, data].concat()
}

/// A name as it is sent. Ours are short.
fn encoded(name: &str) -> Vec<u8> {
    let mut bytes: Vec<_> =
        name.split('.').filter(|label| !label.is_empty()).flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat()).collect();
    bytes.push(0);
    bytes
}

/// A question.
#[cfg(test)]
pub(crate) fn trial_query(id: u8, name: &str, kind: u16) -> Vec<u8> {
    [&[0, id, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], &encoded(name), &kind.to_be_bytes(), &[0, 1]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AAAA: u16 = 28;

    /// How it went, and what was said.
    fn asked(name: &str, kind: u16) -> (u16, Vec<Vec<u8>>) {
        let question = trial_query(9, name, kind);
        let answer = answer(&question, &Names::trial()).unwrap();
        assert_eq!((&answer[..2], answer[2] & 0x81), (&[0, 9][..], 0x81), "the same question, answered");
        assert_eq!(answer[HEADER..question.len()], question[HEADER..]);
        let (mut data, mut rest) = (Vec::new(), &answer[question.len()..]);
        for _ in 0..u16::from_be_bytes([answer[6], answer[7]]) {
            let length = usize::from(u16::from_be_bytes([rest[10], rest[11]]));
            data.push(rest[12..12 + length].to_vec());
            rest = &rest[12 + length..];
        }
        assert!(rest.is_empty());
        (u16::from_be_bytes([answer[2], answer[3]]) & 0xf, data)
    }

    #[test]
    fn machines_have_addresses() {
        for name in ["a", "a.trial", "A.Trial", "eth1.a", "eth1.a.trial"] {
            assert_eq!(asked(name, A), (NO_ERROR, vec![vec![10, 0, 0, 1]]), "{name}");
            assert_eq!(asked(name, ANY).1.len(), 1);
            assert_eq!(asked(name, AAAA), (NO_ERROR, vec![]), "{name} has no such address");
        }
        assert_eq!(asked("c", A), (NO_ERROR, vec![CONTROL_ADDRESS.octets().to_vec()]), "who asks knows the way to itself");
    }

    #[test]
    fn addresses_have_machines() {
        let name = |name: &str| (NO_ERROR, vec![encoded(name)]);
        assert_eq!(asked("2.0.0.10.in-addr.arpa", PTR), name("b.trial"));
        assert_eq!(asked("15.0.18.198.in-addr.arpa", PTR), name("c.trial"));
        assert_eq!(asked("2.0.0.10.in-addr.arpa", A), (NO_ERROR, vec![]));
        for unknown in ["3.0.0.10.in-addr.arpa", "0.0.10.in-addr.arpa", "x.in-addr.arpa", "in-addr.arpa"] {
            assert_eq!(asked(unknown, PTR).0, REFUSED, "{unknown}");
        }
    }

    #[test]
    fn any_other_name_is_refused() {
        for name in ["d", "a.other", "eth2.a", "example.com", "trial", "a.trial.example", ""] {
            assert_eq!(asked(name, A), (REFUSED, vec![]), "{name}");
        }
        // A dot within a label, and another class.
        let dotted = [&[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x07a.trial\x00", &[0, 1, 0, 1]].concat();
        assert_eq!(answer(&dotted, &Names::trial()).unwrap()[3] & 0xf, REFUSED as u8);
        let mut chaos = trial_query(1, "a", A);
        *chaos.last_mut().unwrap() = 3;
        assert_eq!(answer(&chaos, &Names::trial()).unwrap()[3] & 0xf, REFUSED as u8);
    }

    #[test]
    fn what_is_no_question_is_told_or_ignored() {
        let names = Names::trial();
        let how = |message: &[u8]| answer(message, &names).map(|answer| (u16::from(answer[3] & 0xf), answer.len()));
        let question = trial_query(1, "a", A);
        assert_eq!(how(&question[..HEADER - 1]), None);
        let changed = |at: usize, to: u8| {
            let mut message = question.clone();
            message[at] = to;
            message
        };
        assert_eq!(how(&changed(2, 0x81)), None, "an answer");
        assert_eq!(how(&changed(2, 0x28)), Some((NOT_IMPLEMENTED, HEADER)), "an update");
        for broken in [changed(5, 0), changed(5, 2), changed(HEADER, 0xc0), changed(HEADER, 64), question[..question.len() - 1].to_vec()] {
            assert_eq!(how(&broken), Some((FORMAT_ERROR, HEADER)), "{broken:?}");
        }
        let long = trial_query(1, &["x".repeat(63).as_str(); 4].join("."), A);
        assert_eq!(how(&long), Some((FORMAT_ERROR, HEADER)), "a name of 257 bytes");
        // What resolvers say of themselves behind the question (RFC 6891) is not read.
        let mut with_more = trial_query(1, "a", A);
        with_more[11] = 1;
        with_more.extend([0, 0, 41, 4, 0xd0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(how(&with_more).unwrap().0, NO_ERROR);
    }
}
