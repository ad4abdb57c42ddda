//! Captures of frames as Wireshark reads them: pcapng (draft-ietf-opsawg-pcapng), with what it needs of that format and no more. Times are in nanoseconds.

use crate::{state::Unreadable, topology::Interface};
use fermata_types::VirtualTime;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const VERSION: [u16; 2] = [1, 0];
/// The length of the section is not said.
const LENGTH_UNKNOWN: u64 = u64::MAX;
const ETHERNET: u16 = 1;

const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_MACADDR: u16 = 6;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;
/// Times are in units of 10 to the power of -9 s.
const NANOSECONDS: u8 = 9;
/// Kind, length, and length again.
const BLOCK_BYTES_MIN: usize = 12;
/// A block longer than this is none of ours.
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// Which way a frame goes, as its guest sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The guest sent it.
    Sent,
    /// The guest received it.
    Received,
}

/// What became of the frames of an interface that were to be captured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Frames in the file.
    pub written: u64,
    /// Frames that are not in the file, since whoever reads it was too slow for them. The file says so too.
    pub missed: u64,
}

/// A frame in a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Of which interface: they are numbered in the order of their descriptions.
    pub interface: u32,
    /// When.
    pub at: VirtualTime,
    /// Which way.
    pub way: Way,
    /// All of it.
    pub frame: &'a [u8],
}

/// A block of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block<'a> {
    /// The beginning.
    Section,
    /// The next interface, such as `a:eth1`.
    Interface(String),
    /// A frame.
    Packet(Packet<'a>),
    /// What became of the frames of an interface, until this time.
    Statistics(u32, VirtualTime, Recorded),
    /// Something that we do not write.
    Other,
}

/// The first block of a file.
pub fn section() -> Vec<u8> {
    let mut section = Draft::new(SECTION_HEADER);
    section.u32(BYTE_ORDER);
    VERSION.iter().for_each(|number| section.u16(*number));
    section.u64(LENGTH_UNKNOWN);
    section.option(SHB_USERAPPL, b"fermata");
    section.end()
}

/// Describes an interface.
pub fn interface(interface: &Interface) -> Vec<u8> {
    let mut description = Draft::new(INTERFACE_DESCRIPTION);
    description.u16(ETHERNET);
    description.u16(0);
    // Frames are not cut off.
    description.u32(0);
    description.option(IF_NAME, interface.to_string().as_bytes());
    description.option(IF_MACADDR, &interface.mac.0);
    description.option(IF_TSRESOL, &[NANOSECONDS]);
    description.end()
}

/// A frame.
pub fn packet(Packet { interface, at, way, frame }: Packet<'_>) -> Vec<u8> {
    let mut block = Draft::new(ENHANCED_PACKET);
    block.u32(interface);
    block.time(at);
    block.u32(frame.len() as u32);
    block.u32(frame.len() as u32);
    block.padded(frame);
    let flags: u32 = match way {
        Way::Received => 1,
        Way::Sent => 2,
    };
    block.option(EPB_FLAGS, &flags.to_le_bytes());
    block.end()
}

/// Tells what became of the frames of an interface.
pub fn statistics(interface: u32, at: VirtualTime, Recorded { written, missed }: Recorded) -> Vec<u8> {
    let mut block = Draft::new(INTERFACE_STATISTICS);
    block.u32(interface);
    block.time(at);
    block.option(ISB_IFRECV, &(written + missed).to_le_bytes());
    block.option(ISB_IFDROP, &missed.to_le_bytes());
    block.end()
}

/// Reads the first block of a capture that was written here. Returns it with its length; none if there is only the beginning of a block.
///
/// # Errors
/// What is there is no block.
pub fn read(bytes: &[u8]) -> Result<Option<(Block<'_>, usize)>, Unreadable> {
    let Some(length) = bytes.get(4..8) else { return Ok(None) };
    let length = number(length) as usize;
    if !length.is_multiple_of(4) || !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&length) {
        return Err(Unreadable::new(format!("a block of {length} bytes")));
    }
    let Some(block) = bytes.get(..length) else { return Ok(None) };
    if number(&block[length - 4..]) as usize != length {
        return Err(Unreadable::new("the two lengths of a block differ"));
    }
    let block = content(number(block), &block[8..length - 4]).ok_or_else(|| Unreadable::new("a block without what belongs into it"))?;
    Ok(Some((block, length)))
}

fn content(kind: u32, body: &[u8]) -> Option<Block<'_>> {
    let word = |index: usize| body.get(4 * index..4 * index + 4).map(number);
    let at = || Some(VirtualTime::from_ns(u64::from(word(1)?) << 32 | u64::from(word(2)?)));
    match kind {
        SECTION_HEADER => (word(0)? == BYTE_ORDER).then_some(Block::Section),
        INTERFACE_DESCRIPTION => Some(Block::Interface(String::from_utf8_lossy(option(body.get(8..)?, IF_NAME)?).into_owned())),
        ENHANCED_PACKET => {
            let length = word(3)? as usize;
            let (frame, options) = (body.get(20..20 + length)?, body.get(20 + length.next_multiple_of(4)..)?);
            let sent = option(options, EPB_FLAGS)?.first()? & 3 == 2;
            let way = if sent { Way::Sent } else { Way::Received };
            Some(Block::Packet(Packet { interface: word(0)?, at: at()?, way, frame }))
        }
        INTERFACE_STATISTICS => {
            let count = |code| Some(u64::from_le_bytes(option(body.get(12..)?, code)?.try_into().ok()?));
            let missed = count(ISB_IFDROP)?;
            let recorded = Recorded { written: count(ISB_IFRECV)?.checked_sub(missed)?, missed };
            Some(Block::Statistics(word(0)?, at()?, recorded))
        }
        _ => Some(Block::Other),
    }
}

/// The first four bytes.
fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The value of an option.
fn option(mut options: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let head = number(options.get(..4)?);
        let (code, length) = (head as u16, (head >> 16) as usize);
        let value = options.get(4..4 + length)?;
        if code == wanted || code == 0 {
            return (code == wanted).then_some(value);
        }
        options = options.get(4 + length.next_multiple_of(4)..)?;
    }
}

/// A block under construction.
struct Draft(Vec<u8>);

impl Draft {
    fn new(kind: u32) -> Self {
        let mut block = Self(Vec::new());
        block.u32(kind);
        // The length, which the end knows.
        block.u32(0);
        block
    }

    fn u16(&mut self, number: u16) {
        self.0.extend(number.to_le_bytes());
    }

    fn u32(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    /// The upper half first.
    fn time(&mut self, at: VirtualTime) {
        self.u32((at.ns >> 32) as u32);
        self.u32(at.ns as u32);
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.u16(code);
        self.u16(value.len() as u16);
        self.padded(value);
    }

    /// Ends the options, of which every block here has some, and the block.
    fn end(mut self) -> Vec<u8> {
        self.u32(0);
        let length = self.0.len() as u32 + 4;
        self.u32(length);
        self.0[4..8].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Mac;

    fn described() -> Vec<u8> {
        interface(&Interface { machine: "a".into(), name: "eth1".into(), mac: Mac([2, 0, 0, 0, 0, 1]), mtu: 1500 })
    }

    #[test]
    fn blocks_are_as_the_format_says() {
        let section = section();
        assert_eq!(section[..8], [0x0a, 0x0d, 0x0d, 0x0a, 44, 0, 0, 0]);
        assert_eq!(section[8..16], [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0]);
        assert_eq!(section[24..], [&[4, 0, 7, 0][..], b"fermata\0", &[0, 0, 0, 0, 44, 0, 0, 0]].concat());
        let description = described();
        assert_eq!(description[..16], [1, 0, 0, 0, 56, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(description[16..28], [&[2, 0, 6, 0][..], b"a:eth1\0\0"].concat());
        assert_eq!(description[28..40], [6, 0, 6, 0, 2, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(description[40..], [9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 56, 0, 0, 0]);
        let packet = packet(Packet { interface: 3, at: VirtualTime::from_ns(5 << 32 | 6), way: Way::Sent, frame: b"frame" });
        assert_eq!(packet[..28], [6, 0, 0, 0, 52, 0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 5, 0, 0, 0, 5, 0, 0, 0]);
        assert_eq!(packet[28..36], *b"frame\0\0\0");
        assert_eq!(packet[36..], [2, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0, 52, 0, 0, 0]);
        let statistics = statistics(3, VirtualTime::from_ns(5 << 32 | 6), Recorded { written: 7, missed: 2 });
        assert_eq!(statistics[..20], [5, 0, 0, 0, 52, 0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0]);
        assert_eq!(statistics[20..32], [4, 0, 8, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(statistics[32..], [5, 0, 8, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 52, 0, 0, 0]);
    }

    #[test]
    fn what_is_written_can_be_read() {
        let at = VirtualTime::from_ns(1 << 40 | 9);
        let frame = Packet { interface: 1, at, way: Way::Received, frame: &[7; 61] };
        let recorded = Recorded { written: 1, missed: 5 };
        let file = [section(), described(), packet(frame), statistics(1, at, recorded)].concat();
        let mut rest = &file[..];
        let expected = [Block::Section, Block::Interface("a:eth1".into()), Block::Packet(frame), Block::Statistics(1, at, recorded)];
        for block in expected {
            for part in 0..8 {
                assert_eq!(read(&rest[..part]).unwrap(), None);
            }
            let (found, length) = read(rest).unwrap().unwrap();
            assert_eq!(found, block);
            assert_eq!(read(&rest[..length - 1]).unwrap(), None);
            rest = &rest[length..];
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn nonsense_is_no_block() {
        let good = described();
        for (place, byte) in [(4, 55), (4, 8), (7, 1), (good.len() - 4, 60), (18, 255), (16, 8)] {
            let mut bad = good.clone();
            bad[place] = byte;
            bad.resize(256, 0);
            assert!(read(&bad).is_err(), "byte {place} is {byte}");
        }
    }
}
