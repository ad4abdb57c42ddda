//! Ethernet, ARP, IPv4 and UDP, as far as somebody needs them who only answers: RFC 826, RFC 791, RFC 768. Whoever asks is a guest, and may send anything.

use fermata_vm::SERVICES_ADDRESS;
use std::net::Ipv4Addr;

/// Who answers. An address that everybody may give himself; each guest is alone with it.
pub(crate) const ETHERNET_ADDRESS: [u8; 6] = [0x02, 0x5f, 0xff, 0, 0, 1];
/// Bytes of the longest frame: there is no MTU but Ethernet's.
pub(crate) const LONGEST: usize = 1514;
/// Bytes of the shortest one, without its check sequence.
const SHORTEST: usize = 60;

#[cfg(any(test, feature = "fuzzing"))]
const ETHERNET: usize = 14;
const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];
/// Ethernet and IPv4, with the lengths of their addresses.
const ARP_KINDS: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
const ARP_REQUEST: [u8; 2] = [0, 1];
const ARP_REPLY: [u8; 2] = [0, 2];
const IP_HEADER: usize = 20;
const UDP: u8 = 17;
const UDP_HEADER: usize = 8;
const HOPS: u8 = 64;

/// What a frame asks.
pub(crate) enum Asked<'f> {
    /// Who has our address.
    Address(WhoHas<'f>),
    /// A service.
    Datagram(Datagram<'f>),
}

/// Who asks who has our address: their addresses of Ethernet and IPv4.
pub(crate) struct WhoHas<'f>(&'f [u8; 6], &'f [u8; 4]);

/// A datagram for us.
pub(crate) struct Datagram<'f> {
    ethernet: &'f [u8; 6],
    source: (Ipv4Addr, u16),
    /// The service that is asked.
    pub port: u16,
    /// What is asked.
    pub payload: &'f [u8],
}

/// What a frame asks of us, if anything.
pub(crate) fn read(frame: &[u8]) -> Option<Asked<'_>> {
    if frame.len() > LONGEST {
        return None;
    }
    let (to, rest) = frame.split_first_chunk::<6>()?;
    let (from, rest) = rest.split_first_chunk::<6>()?;
    let (kind, packet) = rest.split_first_chunk::<2>()?;
    // From a group, or from us, nobody asks.
    if from[0] & 1 != 0 || *from == ETHERNET_ADDRESS {
        return None;
    }
    match *kind {
        ARP if to[0] & 1 != 0 || *to == ETHERNET_ADDRESS => arp(packet, from).map(Asked::Address),
        IPV4 if *to == ETHERNET_ADDRESS => datagram(packet, from).map(Asked::Datagram),
        _ => None,
    }
}

fn arp<'f>(packet: &'f [u8], from: &'f [u8; 6]) -> Option<WhoHas<'f>> {
    let (kinds, rest) = packet.split_first_chunk::<6>()?;
    let (operation, rest) = rest.split_first_chunk::<2>()?;
    let (sender, rest) = rest.split_first_chunk::<6>()?;
    let (its, rest) = rest.split_first_chunk::<4>()?;
    let (_, rest) = rest.split_first_chunk::<6>()?;
    let (target, _) = rest.split_first_chunk::<4>()?;
    let asks = *kinds == ARP_KINDS && *operation == ARP_REQUEST && sender == from && *target == SERVICES_ADDRESS.octets();
    asks.then_some(WhoHas(sender, its))
}

impl WhoHas<'_> {
    /// The frame that says that we have it.
    pub fn answer(&self) -> Vec<u8> {
        let Self(asker, its) = self;
        let mut frame = [&asker[..], &ETHERNET_ADDRESS, &ARP, &ARP_KINDS, &ARP_REPLY].concat();
        frame.extend([&ETHERNET_ADDRESS[..], &SERVICES_ADDRESS.octets(), &asker[..], &its[..]].concat());
        frame.resize(SHORTEST, 0);
        frame
    }
}

/// A whole datagram to us. Parts of one are nobody's here: no question is so long.
fn datagram<'f>(packet: &'f [u8], ethernet: &'f [u8; 6]) -> Option<Datagram<'f>> {
    let header = usize::from(packet.first()? & 0xf) * 4;
    let length = usize::from(u16_at(packet, 2)?);
    if packet[0] >> 4 != 4 || header < IP_HEADER || length < header {
        return None;
    }
    let (head, body) = packet.get(..length)?.split_at(header);
    let fragment = u16_at(head, 6)? & 0x3fff;
    if sum(&[head]) != 0 || fragment != 0 || head[9] != UDP || head[16..20] != SERVICES_ADDRESS.octets() {
        return None;
    }
    let source = Ipv4Addr::new(head[12], head[13], head[14], head[15]);
    let [from, to, length, checksum] = [0, 2, 4, 6].map(|at| u16_at(body, at));
    let (from, to, length) = (from?, to?, usize::from(length?));
    let body = body.get(..length).filter(|_| length >= UDP_HEADER)?;
    // Zero: whoever sent it has not counted.
    if checksum? != 0 && sum(&[&pseudo(source, SERVICES_ADDRESS, body.len()), body]) != 0 {
        return None;
    }
    let good = from != 0 && source != SERVICES_ADDRESS && !source.is_multicast() && !source.is_broadcast() && !source.is_unspecified();
    good.then_some(Datagram { ethernet, source: (source, from), port: to, payload: &body[UDP_HEADER..] })
}

impl Datagram<'_> {
    /// The frame that brings this to whoever asked. Nothing that is longer than a frame has room for is ever said.
    pub fn answer(&self, payload: &[u8]) -> Vec<u8> {
        build((ETHERNET_ADDRESS, *self.ethernet), (SERVICES_ADDRESS, self.port), self.source, payload)
    }
}

fn build(ethernet: ([u8; 6], [u8; 6]), from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let length = (UDP_HEADER + payload.len()) as u16;
    let mut body = [from.1, to.1, length, 0].map(u16::to_be_bytes).concat();
    body.extend(payload);
    let checksum = match sum(&[&pseudo(from.0, to.0, body.len()), &body]) {
        // Zero would say that nobody has counted.
        0 => u16::MAX,
        sum => sum,
    };
    body[6..8].copy_from_slice(&checksum.to_be_bytes());
    // No fragments (0x4000), and so no number among them.
    let mut head = [0x4500, IP_HEADER as u16 + length, 0, 0x4000, u16::from_be_bytes([HOPS, UDP]), 0].map(u16::to_be_bytes).concat();
    head.extend([from.0.octets(), to.0.octets()].concat());
    let checksum = sum(&[&head]);
    head[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = [&ethernet.1[..], &ethernet.0, &IPV4, &head, &body].concat();
    frame.resize(frame.len().max(SHORTEST), 0);
    frame
}

fn pseudo(from: Ipv4Addr, to: Ipv4Addr, length: usize) -> [u8; 12] {
    let ([a, b, c, d], [e, f, g, h], [i, j]) = (from.octets(), to.octets(), (length as u16).to_be_bytes());
    [a, b, c, d, e, f, g, h, 0, UDP, i, j]
}

/// The checksum of RFC 1071: zero over what has its own in it. Each piece but the last is of even length.
fn sum(pieces: &[&[u8]]) -> u16 {
    let word = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    // Of no more than a frame: it does not overflow.
    let mut sum: u32 = pieces.iter().flat_map(|piece| piece.chunks(2)).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
}

/// Panics if an answer is none that a guest takes. Returns what a datagram says.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check(frame: &[u8]) -> Option<&[u8]> {
    assert!((SHORTEST..=LONGEST).contains(&frame.len()));
    let packet = &frame[ETHERNET..];
    if frame[12..14] == ARP {
        return None;
    }
    let length = usize::from(u16_at(packet, 2).unwrap());
    let (head, body) = packet[..length].split_at(IP_HEADER);
    let address = |at: usize| Ipv4Addr::new(head[at], head[at + 1], head[at + 2], head[at + 3]);
    assert_eq!((packet[0], sum(&[head]), address(12)), (0x45, 0, SERVICES_ADDRESS));
    assert_eq!(usize::from(u16_at(body, 4).unwrap()), body.len());
    assert_eq!(sum(&[&pseudo(address(12), address(16), body.len()), body]), 0);
    Some(&body[UDP_HEADER..])
}

/// A datagram of a guest's.
#[cfg(test)]
pub(crate) fn trial_datagram(ethernet: [u8; 6], from: (Ipv4Addr, u16), port: u16, payload: &[u8]) -> Vec<u8> {
    build((ethernet, ETHERNET_ADDRESS), from, (SERVICES_ADDRESS, port), payload)
}

/// A guest that looks for us.
#[cfg(test)]
pub(crate) fn trial_who_has(ethernet: [u8; 6]) -> Vec<u8> {
    let addresses = [&ethernet[..], &[198, 18, 0, 15], &[0; 6], &SERVICES_ADDRESS.octets()].concat();
    [&[0xff; 6][..], &ethernet, &ARP, &ARP_KINDS, &ARP_REQUEST, &addresses].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const FROM: (Ipv4Addr, u16) = (Ipv4Addr::new(198, 18, 0, 15), 1234);

    fn is_read(frame: &[u8]) -> bool {
        read(frame).is_some()
    }

    #[test]
    fn a_guest_that_looks_for_us_finds_us() {
        let frame = trial_who_has(GUEST);
        let Some(Asked::Address(asked)) = read(&frame) else { panic!("it asks") };
        let answer = asked.answer();
        assert_eq!((&answer[..6], &answer[6..12], &answer[20..22]), (&GUEST[..], &ETHERNET_ADDRESS[..], &ARP_REPLY[..]));
        assert_eq!((&answer[22..28], &answer[28..32]), (&ETHERNET_ADDRESS[..], &SERVICES_ADDRESS.octets()[..]));
        assert_eq!((&answer[32..38], &answer[38..42], answer.len()), (&GUEST[..], &[198, 18, 0, 15][..], SHORTEST));
        let mut other = trial_who_has(GUEST);
        other[41] = 2;
        assert!(!is_read(&other), "somebody else is looked for");
        let mut lie = trial_who_has(GUEST);
        lie[27] = 1;
        assert!(!is_read(&lie), "the answer would go to another");
    }

    #[test]
    fn a_datagram_is_read_and_answered() {
        let frame = trial_datagram(GUEST, FROM, 53, b"question");
        let Some(Asked::Datagram(datagram)) = read(&frame) else { panic!("it asks") };
        assert_eq!((datagram.port, datagram.payload, datagram.source), (53, &b"question"[..], FROM));
        let answer = datagram.answer(b"an odd answer");
        assert_eq!(check(&answer), Some(&b"an odd answer"[..]));
        assert_eq!((&answer[..6], &answer[6..12]), (&GUEST[..], &ETHERNET_ADDRESS[..]));
        assert_eq!((&answer[30..34], &answer[34..38]), (&FROM.0.octets()[..], &[[0, 53], 1234_u16.to_be_bytes()].concat()[..]));
        assert!(!is_read(&answer), "nobody answers an answer");
    }

    #[test]
    fn what_is_broken_or_not_for_us_is_nobodys() {
        let frame = trial_datagram(GUEST, FROM, 53, b"question");
        for length in 0..ETHERNET + IP_HEADER + UDP_HEADER + 8 {
            assert!(!is_read(&frame[..length]), "{length} bytes");
        }
        // Addresses, kind, IPv4 with its addresses, and the datagram with what it says: any bit of them is looked at.
        for bit in (0..6 * 8).chain(12 * 8..(ETHERNET + IP_HEADER + UDP_HEADER + 8) * 8) {
            let mut broken = frame.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_read(&broken), "bit {bit}");
        }
        let mut uncounted = frame.clone();
        uncounted[40..42].copy_from_slice(&[0, 0]);
        assert!(is_read(&uncounted), "a checksum may be left out");
        for source in [[224, 0, 0, 1], [255; 4], [0; 4], SERVICES_ADDRESS.octets()] {
            assert!(!is_read(&trial_datagram(GUEST, (source.into(), 1), 53, b"question")), "{source:?}");
        }
        assert!(!is_read(&trial_datagram(GUEST, (FROM.0, 0), 53, b"question")));
        assert!(!is_read(&trial_datagram(ETHERNET_ADDRESS, FROM, 53, b"question")));
        assert!(!is_read(&[frame, vec![0; LONGEST]].concat()), "longer than a frame");
    }
}
