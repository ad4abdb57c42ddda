//! Which interfaces an experiment has, what connects them, and how each connection treats frames. Plain data.

use crate::direction::Memory;
use fermata_types::names::named;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The interfaces of all machines and what is between them. Each interface is at one end of one link, or at one port of one LAN.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The interfaces; an [`InterfaceId`] is an index into them.
    #[serde(default)]
    pub interfaces: Vec<Interface>,
    /// Cables between two interfaces.
    #[serde(default)]
    pub links: Vec<Link>,
    /// Switches with any number of interfaces.
    #[serde(default)]
    pub lans: Vec<Lan>,
}

/// The place of an interface in [`Topology::interfaces`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InterfaceId(pub u32);

impl InterfaceId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A network interface of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// The machine's name.
    pub machine: String,
    /// The interface's name in its machine: `eth1`. `eth0` is left to whatever leads out of the experiment.
    pub name: String,
    /// Its address.
    pub mac: Mac,
    /// Bytes of the largest packet that a frame may carry, without the Ethernet header: [`MTU_MIN`] to [`MTU_MAX`].
    pub mtu: u16,
}

impl fmt::Display for Interface {
    /// `a:eth1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.machine, self.name)
    }
}

/// A cable between two interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The two interfaces.
    pub ends: [InterfaceId; 2],
    /// `shapes[0]` is what happens to frames that `ends[0]` sends, `shapes[1]` to those that `ends[1]` sends.
    #[serde(default)]
    pub shapes: [Shape; 2],
}

/// A switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lan {
    /// Its name.
    pub name: String,
    /// What is plugged into it.
    pub ports: Vec<Port>,
}

/// One interface at a switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The interface.
    pub interface: InterfaceId,
    /// What happens to frames on their way to the switch.
    #[serde(default)]
    pub to_switch: Shape,
    /// What happens to frames on their way from the switch.
    #[serde(default)]
    pub from_switch: Shape,
}

/// What happens to frames in one direction of a cable. The default is an ideal cable: no limit, no delay, no loss.
///
/// A frame passes, in this order: loss, duplication, the queue, the transmitter with its rate, the delay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shape {
    /// Bits a second, at least 1; none for no limit. A frame counts with the bytes that the guest hands over: no preamble, no check
    /// sequence, no gap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Nanoseconds from the end of a frame's transmission to its arrival.
    pub delay_ns: u64,
    /// The delay is spread evenly over as many nanoseconds below `delay_ns` and above. It never lets a frame overtake another.
    pub jitter_ns: u64,
    /// The chance of a frame to be lost before it reaches the queue.
    pub loss: Chance,
    /// The chance of a frame to be sent twice.
    pub duplicate: Chance,
    /// The chance of a frame to skip the delay, and so to overtake those before it.
    pub reorder: Chance,
    /// Frames that wait for the transmitter; what comes when as many wait is dropped.
    pub queue: u32,
    /// Which of the waiting frames are dropped before that.
    pub discipline: Discipline,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            rate: None,
            delay_ns: 0,
            jitter_ns: 0,
            loss: Chance::NEVER,
            duplicate: Chance::NEVER,
            reorder: Chance::NEVER,
            queue: Self::QUEUE_DEFAULT,
            discipline: Discipline::DropTail,
        }
    }
}

impl Shape {
    /// Waiting frames where nobody says how many.
    pub const QUEUE_DEFAULT: u32 = 1000;
    /// The longest delay, and the most jitter: an hour.
    pub const DELAY_MAX_NS: u64 = 3_600_000_000_000;
    /// The highest rate in bits a second.
    pub const RATE_MAX: u64 = 1_000_000_000_000;
    /// The longest queue in frames.
    pub const QUEUE_MAX: u32 = 100_000;
    /// Bytes of frames that one direction holds, as long as the others hold little; each frame counts some more than its own.
    pub const HELD_MAX: u64 = Memory::MAX as u64 / 2;

    /// Bytes that are on their way at once, behind the transmitter, if that never rests. None: as many as are sent.
    pub fn on_its_way(&self) -> Option<u64> {
        let bits = u128::from(self.rate?) * u128::from(self.delay_ns.saturating_add(self.jitter_ns)) / 1_000_000_000;
        Some(u64::try_from(bits / 8).unwrap_or(u64::MAX))
    }
}

/// A queue discipline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// None is dropped before the queue is full.
    #[default]
    DropTail,
    /// Controlled delay (RFC 8289) with its usual 5 ms and 100 ms: frames are dropped while all have waited too long for some time.
    Codel,
}

impl Discipline {
    /// What people call each of them, also in JSON.
    pub const NAMES: [(&str, Self); 2] = [("drop-tail", Self::DropTail), ("codel", Self::Codel)];
}

impl FromStr for Discipline {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(&Self::NAMES, text)
    }
}

/// A probability, in parts of a billion, so that what people write in percent is exact.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Chance {
    /// 0 to 1,000,000,000.
    pub per_billion: u32,
}

impl Chance {
    /// 0 %.
    pub const NEVER: Self = Self { per_billion: 0 };
    /// 100 %.
    pub const ALWAYS: Self = Self { per_billion: 1_000_000_000 };
}

/// An Ethernet address. As text, also in JSON: `02:5f:00:00:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Whether it names several stations: such an address is never one of an interface.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> Self {
        mac.to_string()
    }
}

/// Text that is no Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected an Ethernet address such as 02:5f:00:00:00:01")]
pub struct ParseMacError;

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let mut bytes = [0; 6];
        let mut pairs = text.split(':');
        for byte in &mut bytes {
            let pair = pairs.next().filter(|pair| pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit()));
            *byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).ok_or(ParseMacError)?;
        }
        if pairs.next().is_some() { Err(ParseMacError) } else { Ok(Self(bytes)) }
    }
}

impl TryFrom<String> for Mac {
    type Error = ParseMacError;

    fn try_from(text: String) -> Result<Self, ParseMacError> {
        text.parse()
    }
}

/// The smallest MTU: what every IPv4 host can take.
pub const MTU_MIN: u16 = 68;
/// The largest MTU: jumbo frames.
pub const MTU_MAX: u16 = 9216;
/// The MTU where nobody says.
pub const MTU_DEFAULT: u16 = 1500;
/// Interfaces of a topology at most.
pub const INTERFACES_MAX: usize = 4096;
/// Bytes of a machine's, an interface's or a LAN's name at most.
const NAME_MAX: usize = 64;

/// What is wrong with a topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TopologyError(pub(crate) String);

impl TopologyError {
    pub(crate) fn no_interface(id: InterfaceId) -> Self {
        Self(format!("there is no interface {}", id.0))
    }
}

impl Topology {
    /// The interface of this name.
    pub fn find(&self, machine: &str, name: &str) -> Option<InterfaceId> {
        let index = self.interfaces.iter().position(|interface| interface.machine == machine && interface.name == name)?;
        Some(InterfaceId(index as u32))
    }

    /// Checks what everybody relies on who is given a topology: limits, no interface twice, each connected once, every number in its range.
    /// A topology that was made from a specification is right; one from a file may be anything.
    pub fn check(&self) -> Result<(), TopologyError> {
        if self.interfaces.len() > INTERFACES_MAX {
            return wrong(format!("{} interfaces, and at most {INTERFACES_MAX} can be", self.interfaces.len()));
        }
        let mut names: Vec<_> = self.interfaces.iter().map(|interface| (&interface.machine, &interface.name)).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return wrong(format!("the interface {}:{} is there twice", pair[0].0, pair[0].1));
        }
        for interface in &self.interfaces {
            if interface.machine.len() > NAME_MAX || interface.name.len() > NAME_MAX {
                return wrong("the name of an interface is too long");
            }
            if !(MTU_MIN..=MTU_MAX).contains(&interface.mtu) || interface.mac.is_group() {
                return wrong(format!("{interface} has the MTU {} and the address {}", interface.mtu, interface.mac));
            }
        }
        if self.lans.iter().any(|lan| lan.name.len() > NAME_MAX || lan.ports.is_empty()) {
            return wrong("a LAN has too long a name, or no port");
        }
        self.check_connections()?;
        let links = self.links.iter().flat_map(|link| &link.shapes);
        let ports = self.lans.iter().flat_map(|lan| &lan.ports).flat_map(|port| [&port.to_switch, &port.from_switch]);
        links.chain(ports).try_for_each(Shape::check)
    }

    fn check_connections(&self) -> Result<(), TopologyError> {
        let mut connected = vec![0; self.interfaces.len()];
        let ports = self.lans.iter().flat_map(|lan| &lan.ports).map(|port| port.interface);
        for id in self.links.iter().flat_map(|link| link.ends).chain(ports) {
            match connected.get_mut(id.index()) {
                Some(count) => *count += 1,
                None => return wrong(format!("interface {} is connected and does not exist", id.0)),
            }
        }
        match connected.iter().position(|count| *count != 1) {
            Some(index) => wrong(format!("{} is connected {} times", self.interfaces[index], connected[index])),
            None => Ok(()),
        }
    }
}

impl Shape {
    /// Whether every number is in its range.
    pub fn check(&self) -> Result<(), TopologyError> {
        if !self.rate.is_none_or(|rate| (1..=Self::RATE_MAX).contains(&rate)) {
            return wrong(format!("a rate is 1 to {} bits a second, or no limit", Self::RATE_MAX));
        }
        if self.delay_ns > Self::DELAY_MAX_NS {
            return wrong(format!("a delay is an hour at most, and this one is {} ns", self.delay_ns));
        }
        if self.jitter_ns > self.delay_ns {
            return wrong(format!("a jitter of {} ns is more than the delay of {} ns", self.jitter_ns, self.delay_ns));
        }
        if [self.loss, self.duplicate, self.reorder].iter().any(|chance| *chance > Chance::ALWAYS) {
            return wrong("a chance is more than 100 %");
        }
        if !(1..=Self::QUEUE_MAX).contains(&self.queue) {
            return wrong(format!("a queue is 1 to {} frames long, and this one {}", Self::QUEUE_MAX, self.queue));
        }
        Ok(())
    }
}

fn wrong<T>(what: impl Into<String>) -> Result<T, TopologyError> {
    Err(TopologyError(what.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(machine: &str) -> Interface {
        Interface { machine: machine.into(), name: "eth1".into(), mac: Mac([2, 0, 0, 0, 0, 1]), mtu: MTU_DEFAULT }
    }

    fn pair() -> Topology {
        let link = Link { ends: [InterfaceId(0), InterfaceId(1)], shapes: Default::default() };
        Topology { interfaces: vec![interface("a"), interface("b")], links: vec![link], lans: Vec::new() }
    }

    #[test]
    fn json_and_back_is_the_same() {
        let mut topology = pair();
        topology.links[0].shapes[0] = Shape { rate: Some(100_000_000), delay_ns: 5, discipline: Discipline::Codel, ..Shape::default() };
        let json = serde_json::to_string(&topology).unwrap();
        assert!(json.contains(r#""mac":"02:00:00:00:00:01""#), "{json}");
        assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), topology);
        let short = r#"{"interfaces":[],"links":[{"ends":[0,1]}]}"#;
        assert_eq!(serde_json::from_str::<Topology>(short).unwrap().links[0].shapes, [Shape::default(), Shape::default()]);
    }

    #[test]
    fn disciplines_have_the_names_of_their_json() {
        for (name, discipline) in Discipline::NAMES {
            assert_eq!((name.parse(), serde_json::json!(discipline)), (Ok(discipline), serde_json::json!(name)));
        }
        assert!("red".parse::<Discipline>().unwrap_err().contains("drop-tail, codel"));
    }

    #[test]
    fn addresses_are_text() {
        assert_eq!("02:5f:00:AB:00:01".parse(), Ok(Mac([2, 0x5f, 0, 0xab, 0, 1])));
        for text in ["", "02:5f:00:00:00", "02:5f:00:00:00:01:02", "2:5f:00:00:00:01", "02:5f:00:00:00:+1", "02-5f-00-00-00-01"] {
            assert_eq!(text.parse::<Mac>(), Err(ParseMacError), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(pair().check(), Ok(()));
        assert_eq!(Topology::default().check(), Ok(()));
        let spoils: [fn(&mut Topology); 10] = [
            |topology| topology.interfaces.push(interface("c")),
            |topology| topology.interfaces[1].machine = "a".into(),
            |topology| topology.interfaces[1].mtu = 67,
            |topology| topology.interfaces[1].mac.0[0] = 1,
            |topology| topology.links[0].ends[1] = InterfaceId(2),
            |topology| topology.links[0].ends[1] = InterfaceId(0),
            |topology| topology.links[0].shapes[1].rate = Some(0),
            |topology| topology.links[0].shapes[1].jitter_ns = 1,
            |topology| topology.links[0].shapes[1].loss.per_billion = 1_000_000_001,
            |topology| topology.lans.push(Lan { name: "x".into(), ports: Vec::new() }),
        ];
        for (number, spoil) in spoils.iter().enumerate() {
            let mut topology = pair();
            spoil(&mut topology);
            assert!(topology.check().is_err(), "{number}");
        }
        assert_eq!(pair().find("b", "eth1"), Some(InterfaceId(1)));
        assert_eq!(pair().find("b", "eth2"), None);
    }
}
