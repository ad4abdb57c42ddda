//! What goes over the sockets: frames between a rank and its coordinator, and messages between ranks. All numbers are little-endian.
//!
//! Nothing that comes is believed: lengths have limits, and what does not fit its form is an error.

use super::messages::Parcel;
use fermata_checkpoint::consistent::{Answer, Ccn, Cut, Tell};
use fermata_types::{PAGE_SIZE, PageBuf, PageNumber};
use std::{
    io::{self, Read, Write},
    sync::Arc,
};

/// Bytes of a frame or a message at most: 1 GiB.
pub(super) const BYTES_MAX: u64 = 1 << 30;
/// Why a rank that was captured fails its checkpoint: nobody would read more. It prints how much it is.
pub(super) const TOO_LARGE: &str =
    "more messages belong to it than a checkpoint takes: they wait to be received, or may have to be sent again";
/// Memory for what is promised, before it comes.
const AT_ONCE: u64 = 1 << 20;
/// Messages that a checkpoint may count on a channel. What counts on from there does not come to the end of its numbers.
const MESSAGES_MAX: u64 = 1 << 62;
/// Ranks of a program at most.
pub(super) const RANKS_MAX: usize = 1024;
/// By which those that belong together know each other.
pub(super) type Token = [u8; 16];
/// What is spoken here. A program has the Fermata in it that it was built with, and another one may start it.
pub(super) const VERSION: u16 = 1;

/// What a rank and its coordinator tell each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    // From a rank.
    /// It is there: this process, and where it listens, if it does. Token and version come first in all versions, and of another one nothing else is read.
    Hello { token: Token, version: u16, rank: u32, pid: u32, address: String },
    /// Pages of a capture.
    Pages(Pages),
    /// All else of a capture; `used` is the size of the memory.
    State { ccn: Ccn, used: u64, state: Vec<u8> },
    /// The protocol.
    Answer(Answer<Arc<Parcel>>),
    /// The last of a capture that this rank took by itself: where its channels stood, and messages that it may have to send again.
    Own { ccn: Ccn, cut: Cut, log: Vec<u8> },
    /// What a capture cost.
    Cost(Cost),
    /// The program has done its work.
    Done(String),
    /// It cannot go on, and trying again is of no use.
    Failed(String),
    /// The connection to another rank has ended.
    Lost { peer: u32 },
    /// How many calls it has made at which it can be captured, where it can be at calls only.
    Calls { made: u64 },

    // From the coordinator.
    /// How many ranks there are and where, and what follows: the contents of the memory and what was on its way, if there are any, and [`Frame::Go`]. Between checkpoints are so many
    /// nanoseconds; 0: there are none, and no rank is ever captured.
    Start { mode: u8, every_ns: u64, addresses: Vec<String> },
    /// A piece of the memory.
    Contents { offset: u64, bytes: Vec<u8> },
    /// Messages that were on their way: they come before all others. One frame may not have room for all of them, so there may be several.
    Late(Vec<u8>),
    /// Begin, or go on from here.
    Go { restored: Option<Restored> },
    /// The protocol.
    Tell(Tell),
    /// A capture that the rank took by itself is permanent, or never will be. The receivers of its messages have so many of them for good.
    Over { ccn: Ccn, permanent: bool, received: Vec<u64> },
    /// All are done.
    Exit,
    /// How many calls has it made?
    Ask,
    /// Take part in this checkpoint, at this call or a later one.
    Aim { ccn: Ccn, call: u64 },
}

/// What a capture cost a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cost {
    pub ccn: Ccn,
    pub pages: u64,
    pub copied: u64,
    pub blocked_ns: u64,
    /// Messages from the future that were held until the capture.
    pub held: u64,
}

/// A rank as a checkpoint has it, besides its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Restored {
    pub ccn: Ccn,
    pub used: u64,
    pub state: Vec<u8>,
    /// Messages that it may have to send again. Empty where all were captured together.
    pub log: Vec<u8>,
}

/// Pages: their numbers and contents, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pages {
    pub ccn: Ccn,
    /// The body of the frame as it is sent, for most of what is sent is pages: the number of the checkpoint, then they.
    body: Vec<u8>,
}

const PAGES_HEAD: usize = 8;
const PAGE_ENTRY: usize = 4 + PAGE_SIZE;

impl Pages {
    /// None yet, with room for so many.
    pub fn new(ccn: Ccn, room: usize) -> Self {
        let mut body = Vec::with_capacity(PAGES_HEAD + room * PAGE_ENTRY);
        body.extend(ccn.to_le_bytes());
        Self { ccn, body }
    }

    /// The frame of these pages, without copying them once more.
    pub fn write(&self, into: &mut impl Write) -> io::Result<()> {
        let mut head = Encoder(Vec::with_capacity(FRAME_HEAD));
        head.u8(PAGES).u64(self.body.len() as u64);
        into.write_all(&head.0)?;
        into.write_all(&self.body)
    }

    /// None of them any more; the memory stays.
    pub fn clear(&mut self) {
        self.body.truncate(PAGES_HEAD);
    }

    fn from_body(body: Vec<u8>) -> io::Result<Self> {
        match body.first_chunk() {
            Some(ccn) if (body.len() - PAGES_HEAD).is_multiple_of(PAGE_ENTRY) => Ok(Self { ccn: Ccn::from_le_bytes(*ccn), body }),
            _ => Err(wrong("it ends within a page")),
        }
    }

    pub fn push(&mut self, page: PageNumber, content: &PageBuf) {
        self.body.extend(page.to_le_bytes());
        self.body.extend(content);
    }

    pub fn len(&self) -> usize {
        self.body.len() / PAGE_ENTRY
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = (PageNumber, &PageBuf)> {
        self.body[PAGES_HEAD..].chunks_exact(PAGE_ENTRY).map(|entry| {
            let (number, content) = entry.split_at(4);
            (PageNumber::from_le_bytes(number.try_into().expect("four bytes")), content.try_into().expect("a page"))
        })
    }
}

/// Puts values together.
#[derive(Debug, Default)]
pub(super) struct Encoder(pub Vec<u8>);

impl Encoder {
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u64(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    pub fn numbers(&mut self, numbers: &[u64]) -> &mut Self {
        self.u64(numbers.len() as u64);
        numbers.iter().for_each(|number| _ = self.u64(*number));
        self
    }

    pub fn parcel(&mut self, parcel: &Parcel) -> &mut Self {
        self.u32(parcel.tag).bytes(&parcel.bytes)
    }

    pub fn cut(&mut self, cut: &Cut) -> &mut Self {
        self.numbers(&cut.sent).numbers(&cut.received)
    }
}

/// Takes values apart again.
#[derive(Debug)]
pub(super) struct Decoder<'a>(pub &'a [u8]);

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("what came is not in its form: {what}"))
}

impl<'a> Decoder<'a> {
    fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| wrong("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn u8(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub fn u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    pub fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    pub fn bytes(&mut self) -> io::Result<Vec<u8>> {
        let count = self.u64()?;
        Ok(self.take(usize::try_from(count).map_err(|_| wrong("a length"))?)?.to_vec())
    }

    pub fn text(&mut self) -> io::Result<String> {
        String::from_utf8(self.bytes()?).map_err(|_| wrong("text that is none"))
    }

    pub fn numbers(&mut self) -> io::Result<Vec<u64>> {
        let count = self.u64()?;
        if count > RANKS_MAX as u64 {
            return Err(wrong("too many numbers"));
        }
        (0..count).map(|_| self.u64()).collect()
    }

    pub fn parcel(&mut self) -> io::Result<Arc<Parcel>> {
        Ok(Arc::new(Parcel { tag: self.u32()?, bytes: self.bytes()? }))
    }

    pub fn cut(&mut self) -> io::Result<Cut> {
        let cut = Cut { sent: self.numbers()?, received: self.numbers()? };
        if cut.sent.iter().chain(&cut.received).any(|count| *count > MESSAGES_MAX) {
            return Err(wrong("nobody sends so many messages"));
        }
        Ok(cut)
    }

    /// Nothing may be left.
    pub fn end(self) -> io::Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(wrong("it goes on after its end")) }
    }
}

/// The kind of a frame of pages.
const PAGES: u8 = 1;
/// Bytes before the body of a frame: its kind, and how long it is.
const FRAME_HEAD: usize = 9;

impl Frame {
    pub fn write(&self, into: &mut impl Write) -> io::Result<()> {
        let mut body = Encoder(Vec::with_capacity(64));
        let kind = self.encode(&mut body);
        let mut frame = Encoder(Vec::with_capacity(FRAME_HEAD + body.0.len()));
        frame.u8(kind).u64(body.0.len() as u64).0.extend(&body.0);
        into.write_all(&frame.0)
    }

    /// None where the stream ends between two frames.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; FRAME_HEAD];
        if !read_or_end(from, &mut head)? {
            return Ok(None);
        }
        let length = u64::from_le_bytes(head[1..].try_into().expect("eight bytes"));
        let body = read_body(from, length)?;
        match head[0] {
            PAGES => Pages::from_body(body).map(|pages| Some(Self::Pages(pages))),
            kind => Self::decode(kind, &body).map(Some),
        }
    }

    fn encode(&self, body: &mut Encoder) -> u8 {
        match self {
            Self::Hello { token, version, rank, pid, address } => {
                body.0.extend(token);
                body.0.extend(version.to_le_bytes());
                body.u32(*rank).u32(*pid).bytes(address.as_bytes());
                0
            }
            Self::Pages(pages) => {
                body.0.extend(&pages.body);
                PAGES
            }
            Self::State { ccn, used, state } => {
                body.u64(*ccn).u64(*used).bytes(state);
                2
            }
            Self::Answer(answer) => encode_answer(answer, body),
            Self::Cost(cost) => {
                body.u64(cost.ccn).u64(cost.pages).u64(cost.copied).u64(cost.blocked_ns).u64(cost.held);
                7
            }
            Self::Done(answer) => {
                body.bytes(answer.as_bytes());
                8
            }
            Self::Failed(why) => {
                body.bytes(why.as_bytes());
                9
            }
            Self::Lost { peer } => {
                body.u32(*peer);
                10
            }
            Self::Start { mode, every_ns, addresses } => {
                body.u8(*mode).u64(*every_ns).u32(addresses.len() as u32);
                addresses.iter().for_each(|address| _ = body.bytes(address.as_bytes()));
                11
            }
            Self::Contents { offset, bytes } => {
                body.u64(*offset).bytes(bytes);
                12
            }
            Self::Go { restored } => encode_restored(restored.as_ref(), body),
            Self::Tell(told) => encode_told(told, body),
            Self::Exit => 15,
            Self::Own { ccn, cut, log } => {
                body.u64(*ccn).cut(cut).bytes(log);
                16
            }
            Self::Over { ccn, permanent, received } => {
                body.u64(*ccn).u8((*permanent).into()).numbers(received);
                17
            }
            Self::Calls { made } => {
                body.u64(*made);
                18
            }
            Self::Ask => 19,
            Self::Aim { ccn, call } => {
                body.u64(*ccn).u64(*call);
                20
            }
            Self::Late(late) => {
                body.bytes(late);
                21
            }
        }
    }

    fn decode(kind: u8, body: &[u8]) -> io::Result<Self> {
        let mut from = Decoder(body);
        let frame = match kind {
            0 => {
                let token = from.take(16)?.try_into().expect("16 bytes");
                let version = u16::from_le_bytes(from.take(2)?.try_into().expect("two bytes"));
                if version != VERSION {
                    return Ok(Self::Hello { token, version, rank: 0, pid: 0, address: String::new() });
                }
                Self::Hello { token, version, rank: from.u32()?, pid: from.u32()?, address: from.text()? }
            }
            2 => Self::State { ccn: from.u64()?, used: from.u64()?, state: from.bytes()? },
            3..=6 => Self::Answer(decode_answer(kind, &mut from)?),
            7 => Self::Cost(Cost { ccn: from.u64()?, pages: from.u64()?, copied: from.u64()?, blocked_ns: from.u64()?, held: from.u64()? }),
            8 => Self::Done(from.text()?),
            9 => Self::Failed(from.text()?),
            10 => Self::Lost { peer: from.u32()? },
            11 => {
                let (mode, every_ns, count) = (from.u8()?, from.u64()?, from.u32()?);
                if count as usize > RANKS_MAX {
                    return Err(wrong("too many ranks"));
                }
                Self::Start { mode, every_ns, addresses: (0..count).map(|_| from.text()).collect::<io::Result<_>>()? }
            }
            12 => Self::Contents { offset: from.u64()?, bytes: from.bytes()? },
            13 => Self::Go {
                restored: match from.u8()? {
                    0 => None,
                    _ => Some(Restored { ccn: from.u64()?, used: from.u64()?, state: from.bytes()?, log: from.bytes()? }),
                },
            },
            14 => Self::Tell(decode_told(&mut from)?),
            15 => Self::Exit,
            16 => Self::Own { ccn: from.u64()?, cut: from.cut()?, log: from.bytes()? },
            17 => Self::Over { ccn: from.u64()?, permanent: from.u8()? == 1, received: from.numbers()? },
            18 => Self::Calls { made: from.u64()? },
            19 => Self::Ask,
            20 => Self::Aim { ccn: from.u64()?, call: from.u64()? },
            21 => Self::Late(from.bytes()?),
            _ => return Err(wrong("a kind of frame")),
        };
        from.end()?;
        Ok(frame)
    }
}

fn encode_answer(answer: &Answer<Arc<Parcel>>, body: &mut Encoder) -> u8 {
    match answer {
        Answer::Success { ccn, cut } => {
            body.u64(*ccn).cut(cut);
            3
        }
        Answer::Failure { ccn } => {
            body.u64(*ccn);
            4
        }
        Answer::Late { ccn, from, number, message } => {
            body.u64(*ccn).u32(*from as u32).u64(*number).parcel(message);
            5
        }
        Answer::Ack { ccn } => {
            body.u64(*ccn);
            6
        }
    }
}

fn decode_answer(kind: u8, from: &mut Decoder<'_>) -> io::Result<Answer<Arc<Parcel>>> {
    let ccn = from.u64()?;
    Ok(match kind {
        3 => Answer::Success { ccn, cut: from.cut()? },
        4 => Answer::Failure { ccn },
        5 => Answer::Late { ccn, from: from.u32()? as usize, number: from.u64()?, message: from.parcel()? },
        _ => Answer::Ack { ccn },
    })
}

fn encode_restored(restored: Option<&Restored>, body: &mut Encoder) -> u8 {
    body.u8(restored.is_some().into());
    if let Some(restored) = restored {
        body.u64(restored.ccn).u64(restored.used).bytes(&restored.state).bytes(&restored.log);
    }
    13
}

fn encode_told(told: &Tell, body: &mut Encoder) -> u8 {
    let (which, ccn) = match told {
        Tell::Marker(ccn) => (0, ccn),
        Tell::Commit(ccn) => (1, ccn),
        Tell::Abort(ccn) => (2, ccn),
    };
    body.u8(which).u64(*ccn);
    14
}

fn decode_told(from: &mut Decoder<'_>) -> io::Result<Tell> {
    let (which, ccn) = (from.u8()?, from.u64()?);
    Ok(match which {
        0 => Tell::Marker(ccn),
        1 => Tell::Commit(ccn),
        2 => Tell::Abort(ccn),
        _ => return Err(wrong("what is told")),
    })
}

/// What goes with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Of its sender's last capture, where all are captured together.
    pub ccn: Ccn,
    /// Its number on its channel.
    pub number: u64,
    /// How many messages of the receiver the sender had received, where each is captured by itself.
    pub received: u64,
}

/// A message between ranks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub stamp: Stamp,
    pub parcel: Arc<Parcel>,
}

const MESSAGE_HEAD: usize = 36;

impl Message {
    pub fn write(&self, into: &mut impl Write) -> io::Result<()> {
        let mut head = Encoder(Vec::with_capacity(MESSAGE_HEAD));
        let Stamp { ccn, number, received } = self.stamp;
        head.u64(ccn).u64(number).u64(received).u32(self.parcel.tag).u64(self.parcel.bytes.len() as u64);
        into.write_all(&head.0)?;
        into.write_all(&self.parcel.bytes)
    }

    /// None where the stream ends between two messages.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; MESSAGE_HEAD];
        if !read_or_end(from, &mut head)? {
            return Ok(None);
        }
        let mut head = Decoder(&head);
        let stamp = Stamp { ccn: head.u64()?, number: head.u64()?, received: head.u64()? };
        let (tag, length) = (head.u32()?, head.u64()?);
        Ok(Some(Self { stamp, parcel: Arc::new(Parcel { tag, bytes: read_body(from, length)? }) }))
    }
}

/// Who connects to another rank, and why it may.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub token: Token,
    pub rank: u32,
}

impl Greeting {
    pub fn write(&self, into: &mut impl Write) -> io::Result<()> {
        into.write_all(&[&self.token[..], &self.rank.to_le_bytes()].concat())
    }

    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let (mut token, mut rank) = (Token::default(), [0; 4]);
        from.read_exact(&mut token)?;
        from.read_exact(&mut rank)?;
        Ok(Self { token, rank: u32::from_le_bytes(rank) })
    }
}

/// False if nothing comes any more.
fn read_or_end(from: &mut impl Read, into: &mut [u8]) -> io::Result<bool> {
    let first = loop {
        match from.read(into) {
            Ok(count) => break count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    };
    if first == 0 {
        return Ok(false);
    }
    from.read_exact(&mut into[first..])?;
    Ok(true)
}

fn read_body(from: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    if length > BYTES_MAX {
        return Err(wrong("it is longer than 1 GiB"));
    }
    let mut body = Vec::with_capacity(length.min(AT_ONCE) as usize);
    // Memory grows with what really comes, not with what is promised.
    if from.take(length).read_to_end(&mut body)? as u64 != length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let parcel = Parcel::new(7, &[1.5f64, 2.0]);
        let cut = Cut { sent: vec![1, 2], received: vec![3, 4] };
        let mut pages = Pages::new(5, 1);
        pages.push(9, &[3; PAGE_SIZE]);
        vec![
            Frame::Hello { token: [1; 16], version: VERSION, rank: 2, pid: 7, address: "unix:/x".into() },
            Frame::Pages(pages),
            Frame::State { ccn: 5, used: 8192, state: vec![1, 2, 3] },
            Frame::Answer(Answer::Success { ccn: 5, cut: cut.clone() }),
            Frame::Own { ccn: 5, cut, log: vec![1, 2] },
            Frame::Over { ccn: 5, permanent: true, received: vec![1, 2] },
            Frame::Answer(Answer::Failure { ccn: 5 }),
            Frame::Answer(Answer::Late { ccn: 5, from: 1, number: 3, message: parcel }),
            Frame::Answer(Answer::Ack { ccn: 5 }),
            Frame::Cost(Cost { ccn: 5, pages: 1, copied: 2, blocked_ns: 3, held: 4 }),
            Frame::Done("42".into()),
            Frame::Failed("no".into()),
            Frame::Lost { peer: 3 },
            Frame::Start { mode: 1, every_ns: 10, addresses: vec!["unix:/a".into(), "tcp:h:1".into()] },
            Frame::Contents { offset: 4096, bytes: vec![1; 10] },
            Frame::Late(vec![2]),
            Frame::Go { restored: None },
            Frame::Go { restored: Some(Restored { ccn: 5, used: 4096, state: vec![1], log: vec![3] }) },
            Frame::Tell(Tell::Commit(5)),
            Frame::Exit,
            Frame::Calls { made: 4 },
            Frame::Ask,
            Frame::Aim { ccn: 5, call: 6 },
        ]
    }

    #[test]
    fn counts_that_cannot_go_on_are_refused() {
        for (sent, received) in [(u64::MAX, 0), (0, u64::MAX), (MESSAGES_MAX + 1, 0)] {
            let mut encoder = Encoder::default();
            encoder.cut(&Cut { sent: vec![sent], received: vec![received] });
            assert!(Decoder(&encoder.0).cut().is_err());
        }
    }

    #[test]
    fn frames_arrive_as_they_were_sent_and_cut_ones_do_not() {
        for frame in frames() {
            let mut bytes = Vec::new();
            frame.write(&mut bytes).unwrap();
            assert_eq!(Frame::read(&mut &bytes[..]).unwrap(), Some(frame.clone()));
            if let Frame::Pages(pages) = &frame {
                let mut same = Vec::new();
                pages.write(&mut same).unwrap();
                assert_eq!(same, bytes);
            }
            for end in 1..bytes.len() {
                assert!(Frame::read(&mut &bytes[..end]).is_err(), "{frame:?} cut at {end}");
            }
            // One byte too many within the frame.
            let length = u64::from_le_bytes(bytes[1..9].try_into().unwrap()) + 1;
            bytes[1..9].copy_from_slice(&length.to_le_bytes());
            bytes.push(0);
            assert!(Frame::read(&mut &bytes[..]).is_err(), "{frame:?} with a byte more");
        }
        assert_eq!(Frame::read(&mut &[][..]).unwrap(), None);
        let absurd = [&[2][..], &u64::MAX.to_le_bytes()].concat();
        assert!(Frame::read(&mut &absurd[..]).is_err());
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let message = Message { stamp: Stamp { ccn: 3, number: 9, received: 4 }, parcel: Parcel::new(1, &[1u32, 2, 3]) };
        let mut bytes = Vec::new();
        message.write(&mut bytes).unwrap();
        assert_eq!(Message::read(&mut &bytes[..]).unwrap(), Some(message));
        assert!(Message::read(&mut &bytes[..MESSAGE_HEAD + 2]).is_err());
    }
}
