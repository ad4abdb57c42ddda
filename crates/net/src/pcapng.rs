//! Captures of frames as Wireshark reads them: pcapng (draft-ietf-opsawg-pcapng), one interface a file.

use crate::topology::Interface;
use fermata_types::VirtualTime;
use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    },
    thread::{self, JoinHandle},
};

/// Frames that wait to be written.
const WAITING_MAX: usize = 4096;

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

/// Which way a frame goes, as its guest sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The guest sent it.
    Sent,
    /// The guest received it.
    Received,
}

/// How a capture ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Frames in the file.
    pub written: u64,
    /// Frames that are not in the file, since the writer was too slow for them. The file says so too.
    pub missed: u64,
}

/// Writes down the frames of one interface, on a thread of its own. It never holds up whoever has a frame for it: when too many wait to be
/// written, those that come are counted and left out.
///
/// Times in the file are virtual time, from 1970 on. After going back to a checkpoint they go on from there.
#[derive(Debug)]
pub struct Tap {
    queue: SyncSender<Noted>,
    missed: Arc<AtomicU64>,
    writer: JoinHandle<io::Result<Recorded>>,
}

#[derive(Debug)]
struct Noted {
    at: VirtualTime,
    way: Way,
    frame: Vec<u8>,
}

impl Tap {
    /// Begins a capture of an interface.
    ///
    /// # Errors
    /// I/O: the beginning of the file cannot be written, or there is no thread to be had.
    pub fn start(interface: &Interface, mut file: impl Write + Send + 'static) -> io::Result<Self> {
        file.write_all(&beginning(interface))?;
        file.flush()?;
        let (queue, noted) = sync_channel(WAITING_MAX);
        let missed = Arc::new(AtomicU64::new(0));
        let count = missed.clone();
        let writer = thread::Builder::new().name("capture".into()).spawn(move || write(&noted, &count, file))?;
        Ok(Self { queue, missed, writer })
    }

    /// Takes note of a frame.
    pub fn note(&self, at: VirtualTime, way: Way, frame: &[u8]) {
        if self.queue.try_send(Noted { at, way, frame: frame.to_vec() }).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends the capture when all that was noted is written. A tap that is dropped instead ends it as well, later.
    ///
    /// # Errors
    /// I/O: something could not be written, and nothing that was noted after it.
    pub fn finish(self) -> io::Result<Recorded> {
        let Self { queue, writer, .. } = self;
        drop(queue);
        writer.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes the capture is gone")))
    }
}

fn write(noted: &Receiver<Noted>, missed: &AtomicU64, file: impl Write) -> io::Result<Recorded> {
    let mut file = io::BufWriter::new(file);
    let (mut written, mut last) = (0, VirtualTime::default());
    loop {
        let next = match noted.try_recv() {
            // Whoever reads the file along sees all that there is.
            Err(TryRecvError::Empty) => {
                file.flush()?;
                noted.recv().ok()
            }
            other => other.ok(),
        };
        let Some(next) = next else { break };
        file.write_all(&packet(&next))?;
        (written, last) = (written + 1, next.at);
    }
    let captured = Recorded { written, missed: missed.load(Ordering::Relaxed) };
    file.write_all(&statistics(last, captured))?;
    file.flush()?;
    Ok(captured)
}

/// Section header and interface description.
fn beginning(interface: &Interface) -> Vec<u8> {
    let mut section = Block::new(SECTION_HEADER);
    section.u32(BYTE_ORDER);
    VERSION.iter().for_each(|number| section.u16(*number));
    section.u64(LENGTH_UNKNOWN);
    section.option(SHB_USERAPPL, b"fermata");
    let mut description = Block::new(INTERFACE_DESCRIPTION);
    description.u16(ETHERNET);
    description.u16(0);
    // Frames are not cut off.
    description.u32(0);
    description.option(IF_NAME, interface.to_string().as_bytes());
    description.option(IF_MACADDR, &interface.mac.0);
    description.option(IF_TSRESOL, &[NANOSECONDS]);
    [section.end(), description.end()].concat()
}

fn packet(Noted { at, way, frame }: &Noted) -> Vec<u8> {
    let mut block = Block::new(ENHANCED_PACKET);
    block.u32(0);
    block.time(*at);
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

fn statistics(at: VirtualTime, Recorded { written, missed }: Recorded) -> Vec<u8> {
    let mut block = Block::new(INTERFACE_STATISTICS);
    block.u32(0);
    block.time(at);
    block.option(ISB_IFRECV, &(written + missed).to_le_bytes());
    block.option(ISB_IFDROP, &missed.to_le_bytes());
    block.end()
}

/// A block under construction.
struct Block(Vec<u8>);

impl Block {
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
    use std::sync::Mutex;

    /// A file to look into, and one that takes nothing until it is told to.
    #[derive(Clone, Default)]
    struct File {
        bytes: Arc<Mutex<Vec<u8>>>,
        shut: Arc<Mutex<()>>,
    }

    impl Write for File {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _open = self.shut.lock().unwrap();
            self.bytes.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn interface() -> Interface {
        Interface { machine: "a".into(), name: "eth1".into(), mac: Mac([2, 0, 0, 0, 0, 1]), mtu: 1500 }
    }

    fn at(ns: u64) -> VirtualTime {
        VirtualTime::from_ns(ns)
    }

    fn number(bytes: &[u8], place: usize) -> u32 {
        u32::from_le_bytes(bytes[place..place + 4].try_into().unwrap())
    }

    /// Kind and body of each block, whose two lengths agree.
    fn blocks(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut blocks = Vec::new();
        while !bytes.is_empty() {
            let length = number(bytes, 4) as usize;
            assert!(length.is_multiple_of(4));
            assert_eq!(number(bytes, length - 4) as usize, length);
            blocks.push((number(bytes, 0), bytes[8..length - 4].to_vec()));
            bytes = &bytes[length..];
        }
        blocks
    }

    fn options(mut bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let mut options = Vec::new();
        loop {
            let (code, length) = ((number(bytes, 0) & 0xffff) as u16, (number(bytes, 0) >> 16) as usize);
            if code == 0 {
                assert_eq!((length, bytes.len()), (0, 4));
                return options;
            }
            options.push((code, bytes[4..4 + length].to_vec()));
            bytes = &bytes[4 + length.next_multiple_of(4)..];
        }
    }

    #[test]
    fn what_was_noted_is_in_the_file() {
        let file = File::default();
        let tap = Tap::start(&interface(), file.clone()).unwrap();
        let frames: Vec<Vec<u8>> = (60..70_u8).map(|bytes| vec![bytes; bytes.into()]).collect();
        for (index, frame) in frames.iter().enumerate() {
            tap.note(at((index as u64) << 33), if index % 2 == 0 { Way::Sent } else { Way::Received }, frame);
        }
        assert_eq!(tap.finish().unwrap(), Recorded { written: 10, missed: 0 });
        let blocks = blocks(&file.bytes.lock().unwrap());
        assert_eq!(blocks.len(), 13);
        let (kind, section) = &blocks[0];
        assert_eq!((*kind, number(section, 0), number(section, 4)), (0x0a0d_0d0a, 0x1a2b_3c4d, 1));
        assert_eq!(options(&section[16..]), [(4, b"fermata".to_vec())]);
        let (kind, description) = &blocks[1];
        assert_eq!((*kind, number(description, 0), number(description, 4)), (1, 1, 0));
        assert_eq!(options(&description[8..]), [(2, b"a:eth1".to_vec()), (6, vec![2, 0, 0, 0, 0, 1]), (9, vec![9])]);
        for (index, ((kind, block), frame)) in blocks[2..12].iter().zip(&frames).enumerate() {
            let time = u64::from(number(block, 4)) << 32 | u64::from(number(block, 8));
            assert_eq!((*kind, number(block, 0), time), (6, 0, (index as u64) << 33));
            assert_eq!((number(block, 12), number(block, 16)), (frame.len() as u32, frame.len() as u32));
            assert_eq!(block[20..20 + frame.len()], *frame);
            let flags = if index % 2 == 0 { 2 } else { 1 };
            assert_eq!(options(&block[20 + frame.len().next_multiple_of(4)..]), [(2, vec![flags, 0, 0, 0])]);
        }
        let (kind, statistics) = &blocks[12];
        assert_eq!((*kind, number(statistics, 4)), (5, 18));
        assert_eq!(options(&statistics[12..]), [(4, 10_u64.to_le_bytes().to_vec()), (5, vec![0; 8])]);
    }

    #[test]
    fn a_slow_writer_misses_frames_and_says_so() {
        let file = File::default();
        let tap = Tap::start(&interface(), file.clone()).unwrap();
        let total = 3 * WAITING_MAX as u64;
        let shut = file.shut.lock().unwrap();
        // The thread takes some into its own buffer before it has to wait.
        (0..total).for_each(|time| tap.note(at(time), Way::Sent, &[0; 9000]));
        drop(shut);
        let captured = tap.finish().unwrap();
        assert!(captured.missed >= WAITING_MAX as u64, "{captured:?}");
        assert_eq!(captured.written + captured.missed, total);
        let blocks = blocks(&file.bytes.lock().unwrap());
        assert_eq!(blocks.len() as u64, captured.written + 3);
        let said = options(&blocks.last().unwrap().1[12..]);
        assert_eq!(said, [(4, total.to_le_bytes().to_vec()), (5, captured.missed.to_le_bytes().to_vec())]);
    }

    #[test]
    fn a_file_that_takes_nothing_ends_the_capture() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if bytes.len() < 1000 { Ok(bytes.len()) } else { Err(io::ErrorKind::StorageFull.into()) }
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let tap = Tap::start(&interface(), Full).unwrap();
        (0..100).for_each(|time| tap.note(at(time), Way::Sent, &[0; 9000]));
        assert_eq!(tap.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
