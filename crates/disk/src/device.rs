//! The virtio block device: one request after the other, from a chain of descriptors to a status byte (VIRTIO 1.2, section 5.2).
//!
//! A guest may put anything into its descriptors. A request that cannot be served ends with an I/O error in its status byte; a chain that is no request, or
//! has no place for a status, is given back untouched. Nothing is read or written outside the guest's RAM and the disk.
//!
//! A write for which the host has no space is no I/O error, for that would cost the guest its file system: it stays in the ring until there is space.

use crate::{Disk, Error, PageMap, golden::SECTOR_SIZE, page_map::Transfer, pairs::Pairs};
use fermata_vhost::{Backend, Chain, Device, GuestRam, Handled, Input, Output, Pieces, worth_telling};
use std::{
    fmt::Display,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use virtio_bindings::{
    virtio_blk::{
        VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD,
        VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
    },
    virtio_config::VIRTIO_F_VERSION_1,
    virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC},
};
use vm_memory::{Bytes, GuestAddress};

/// Rings that a disk may have: QEMU takes one for each CPU.
const RINGS_MAX: usize = 64;
/// How long the worker may look for the next request: as long as QEMU's own I/O threads (`poll-max-ns`).
const PATIENCE: Duration = Duration::from_micros(32);
/// Descriptors in a chain. QEMU allows 1024.
const DESCRIPTORS_MAX: usize = 1024;
/// Bytes of one request. Linux asks for 1.3 MiB at most by itself.
const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// Data segments of a request: a ring of 256, less header and status. QEMU's own virtio-blk says the same; its vhost-user-blk has rings of 128 unless told
/// `queue-size=256`, where drivers reach this number by indirect descriptors only.
const SEGMENTS_MAX: u32 = 254;
/// Ranges in one discard or write-zeroes request.
const ZERO_RANGES_MAX: u32 = 32;
/// Sectors in one such range: 1 GiB.
const ZERO_SECTORS_MAX: u32 = 1 << 21;
/// Discarded or zeroed in one go. Between two of them a pause gets its turn: a request may name 32 GiB.
const ZERO_STEP_BYTES: u64 = 16 << 20;
/// Bytes of a serial number.
const SERIAL_BYTES: usize = 20;
const HEADER_BYTES: usize = 16;

/// What a server has done. Requests, and how they ended.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads served.
    pub reads: AtomicU64,
    /// Writes served.
    pub writes: AtomicU64,
    /// Bytes read by the guest.
    pub read_bytes: AtomicU64,
    /// Bytes written by the guest.
    pub written_bytes: AtomicU64,
    /// Flushes.
    pub flushes: AtomicU64,
    /// Discards and write-zeroes.
    pub discards: AtomicU64,
    /// Requests that ended with an error.
    pub failed: AtomicU64,
    /// Writes of the guest wait, since there is no space for them.
    pub starved: AtomicBool,
    /// Chains that were no request, and rings that were unusable.
    pub malformed: AtomicU64,
}

/// Why a request failed.
enum Failure {
    Io(String),
    Unsupported(u32),
    /// The host has no space for it now.
    NoSpace(String),
    /// Somebody waits who goes first.
    Interrupted,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if error.is_no_space() { Self::NoSpace(error.to_string()) } else { Self::Io(error.to_string()) }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

/// A disk, as it is served.
pub(crate) struct BlockBackend {
    disk: Arc<Disk>,
    serial: [u8; SERIAL_BYTES],
    counters: Arc<Counters>,
}

impl BlockBackend {
    /// Of the serial number the first 20 bytes are shown to the guest.
    pub fn new(disk: Arc<Disk>, serial: &str, counters: Arc<Counters>) -> Self {
        let mut bytes = [0; SERIAL_BYTES];
        for (byte, from) in bytes.iter_mut().zip(serial.bytes()) {
            *byte = from;
        }
        Self { disk, serial: bytes, counters }
    }
}

impl Backend for BlockBackend {
    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn features(&self) -> u64 {
        let mut bits = vec![
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_TOPOLOGY,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_MQ,
        ];
        if self.disk.read_only() {
            bits.push(VIRTIO_BLK_F_RO);
        } else {
            bits.extend([VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]);
        }
        bits.into_iter().fold(0, |all, bit| all | 1 << bit)
    }

    /// `struct virtio_blk_config`.
    fn config(&self) -> Option<Vec<u8>> {
        let mut config = vec![0; 60];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.disk.size() / SECTOR_SIZE).to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        put(20, &(SECTOR_SIZE as u32).to_le_bytes());
        // A physical block is 2^3 sectors, and so is the smallest good request.
        put(24, &[3]);
        put(26, &8u16.to_le_bytes());
        put(34, &(RINGS_MAX as u16).to_le_bytes());
        put(36, &ZERO_SECTORS_MAX.to_le_bytes());
        put(40, &ZERO_RANGES_MAX.to_le_bytes());
        put(44, &8u32.to_le_bytes());
        put(48, &ZERO_SECTORS_MAX.to_le_bytes());
        put(52, &ZERO_RANGES_MAX.to_le_bytes());
        put(56, &[1]);
        Some(config)
    }

    fn rings(&self) -> usize {
        RINGS_MAX
    }

    fn device(&self) -> Box<dyn Device> {
        Box::new(BlockDevice::new(self))
    }
}

/// A virtio block device over a disk.
pub(crate) struct BlockDevice {
    disk: Arc<Disk>,
    serial: [u8; SERIAL_BYTES],
    counters: Arc<Counters>,
    /// What the guest gives, and room for its answer: reused from request to request.
    given: Pieces,
    given_at: Vec<(u64, u32)>,
    wanted: Pieces,
    answer: Vec<(u64, u32)>,
    pairs: Pairs,
}

impl Device for BlockDevice {
    fn handle(&mut self, _ring: usize, ram: &GuestRam, chain: Chain<'_>, yield_now: &dyn Fn() -> bool) -> Handled {
        let mut room = std::mem::take(&mut self.given);
        let handled = match self.gather(chain).and_then(|status_at| Some((status_at, ram.input(&self.given_at, &mut room).ok()?))) {
            Some((status_at, given)) => self.respond(ram, given, status_at, yield_now),
            None => {
                if let Some(malformed) = worth_telling(&self.counters.malformed) {
                    tracing::debug!(malformed, "a chain of descriptors that is no request was ignored");
                }
                Handled::Done(0)
            }
        };
        self.given = room;
        handled
    }

    fn note_unusable(&mut self, error: &dyn Display) {
        if let Some(malformed) = worth_telling(&self.counters.malformed) {
            tracing::warn!(%error, malformed, "a ring is unusable: it stays silent until the guest resets the disk");
        }
    }
}

impl BlockDevice {
    /// A device over a disk.
    pub fn new(backend: &BlockBackend) -> Self {
        Self {
            disk: backend.disk.clone(),
            serial: backend.serial,
            counters: backend.counters.clone(),
            given: Pieces::new(),
            given_at: Vec::new(),
            wanted: Pieces::new(),
            answer: Vec::new(),
            pairs: Pairs::default(),
        }
    }

    /// Serves one request and says in its status how it ended.
    fn respond(&mut self, ram: &GuestRam, given: Input<'_>, status_at: u64, yield_now: &dyn Fn() -> bool) -> Handled {
        let (status, filled) = match self.serve(ram, given, yield_now) {
            Ok(filled) => (VIRTIO_BLK_S_OK, filled),
            Err(Failure::Interrupted) => return Handled::Interrupted,
            Err(Failure::NoSpace(error)) => {
                if !self.counters.starved.swap(true, Ordering::Relaxed) {
                    tracing::warn!(error, "the disk of the store is full: writes of the guest wait until there is space");
                }
                return Handled::Starved;
            }
            Err(Failure::Io(error)) => {
                if let Some(failed) = worth_telling(&self.counters.failed) {
                    tracing::warn!(error, failed, "a disk request failed");
                }
                (VIRTIO_BLK_S_IOERR, 0)
            }
            Err(Failure::Unsupported(kind)) => {
                if let Some(failed) = worth_telling(&self.counters.failed) {
                    tracing::debug!(kind, failed, "a disk request of a kind that is not offered");
                }
                (VIRTIO_BLK_S_UNSUPP, 0)
            }
        };
        if self.counters.starved.swap(false, Ordering::Relaxed) {
            tracing::info!("there is space again: writes of the guest go on");
        }
        match ram.write_obj(status as u8, GuestAddress(status_at)) {
            Ok(()) => Handled::Done(filled + 1),
            Err(_) => Handled::Done(0),
        }
    }

    /// Collects the buffers of a chain: what the guest gives into `given_at`, where it wants its answer into `answer`. Returns where the status goes.
    fn gather(&mut self, chain: Chain<'_>) -> Option<u64> {
        self.given_at.clear();
        self.answer.clear();
        let (mut count, mut given_bytes, mut goes_on) = (0, 0, false);
        for descriptor in chain {
            count += 1;
            goes_on = descriptor.has_next();
            let (at, len) = (descriptor.addr().0, descriptor.len());
            if descriptor.is_write_only() {
                if len > 0 {
                    self.answer.push((at, len));
                }
            } else {
                given_bytes += u64::from(len);
                // All that the device reads comes before all that it writes.
                if !self.answer.is_empty() || given_bytes > REQUEST_BYTES_MAX + HEADER_BYTES as u64 {
                    return None;
                }
                self.given_at.push((at, len));
            }
            if count > DESCRIPTORS_MAX {
                return None;
            }
        }
        // The iterator ends early where a link leads nowhere, in a circle, or out of memory.
        if goes_on {
            return None;
        }
        let (at, len) = self.answer.last_mut()?;
        *len -= 1;
        at.checked_add(u64::from(*len))
    }

    fn serve(&mut self, ram: &GuestRam, mut given: Input<'_>, yield_now: &dyn Fn() -> bool) -> Result<u32, Failure> {
        let mut header = [0; HEADER_BYTES];
        given.take(&mut header)?;
        let kind = u32::from_le_bytes(header[..4].try_into().expect("four bytes of the header"));
        let sector = u64::from_le_bytes(header[8..].try_into().expect("eight bytes of the header"));
        let answer_bytes: u64 = self.answer.iter().map(|(_, len)| u64::from(*len)).sum();
        let count = |counter: &AtomicU64, by: u64| counter.fetch_add(by, Ordering::Relaxed);
        let counters = self.counters.clone();
        match kind {
            VIRTIO_BLK_T_IN => {
                let offset = start(sector, answer_bytes)?;
                let filled = self.fill(ram, Some(offset), |disk, output| Ok(disk.read(offset, output)?))?;
                count(&counters.reads, 1);
                count(&counters.read_bytes, answer_bytes);
                Ok(filled)
            }
            VIRTIO_BLK_T_OUT => {
                let bytes = given.left() as u64;
                let offset = start(sector, bytes)?;
                let noted = Noted::begin(&self.disk, &mut self.pairs, ram, (&self.given_at, HEADER_BYTES as u64), Some(offset));
                let result = self.disk.write(offset, &mut given);
                if let Some(noted) = noted {
                    noted.end(&self.pairs, result.is_ok());
                }
                result?;
                count(&counters.writes, 1);
                count(&counters.written_bytes, bytes);
                Ok(0)
            }
            VIRTIO_BLK_T_FLUSH => {
                self.disk.flush()?;
                count(&counters.flushes, 1);
                Ok(0)
            }
            VIRTIO_BLK_T_GET_ID => {
                let serial = self.serial;
                self.fill(ram, None, |_, output| Ok(output.put(&serial[..SERIAL_BYTES.min(output.left())])?))
            }
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES if !self.disk.read_only() => {
                let mut ranges = [0; 16 * ZERO_RANGES_MAX as usize];
                let bytes = given.left();
                if bytes == 0 || !bytes.is_multiple_of(16) || bytes > ranges.len() {
                    return Err(Failure::Io(format!("{bytes} bytes of ranges to discard or zero")));
                }
                given.take(&mut ranges[..bytes])?;
                self.zero(kind, &ranges[..bytes], yield_now)?;
                count(&counters.discards, 1);
                Ok(0)
            }
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES => Err(Failure::Io("the disk is read-only".into())),
            other => Err(Failure::Unsupported(other)),
        }
    }

    /// Lets `with` fill the guest's answer, and notes those pages as written. `offset` is where on the disk it comes from, if it does. Returns the bytes of it.
    fn fill(
        &mut self,
        ram: &GuestRam,
        offset: Option<u64>,
        with: impl FnOnce(&Disk, &mut Output<'_>) -> Result<(), Failure>,
    ) -> Result<u32, Failure> {
        let bytes: u64 = self.answer.iter().map(|(_, len)| u64::from(*len)).sum();
        if bytes > REQUEST_BYTES_MAX {
            return Err(Failure::Io(format!("{bytes} bytes in one request")));
        }
        let (disk, pairs, answer) = (&self.disk, &mut self.pairs, &self.answer);
        let filled = ram.fill_known(answer, &mut self.wanted, |output| {
            let noted = Noted::begin(disk, pairs, ram, (answer, 0), offset);
            (with(disk, output), noted)
        });
        let (result, noted) = filled.map_err(|error| Failure::Io(error.to_string()))?;
        if let Some(noted) = noted {
            // What was filled in part, or with something else.
            self.pairs.rest.iter().for_each(|pages| noted.map.forget_stretch(pages.clone()));
            noted.end(&self.pairs, result.is_ok());
        }
        // Fits: it is at most REQUEST_BYTES_MAX.
        result.map(|()| bytes as u32)
    }

    /// Discards or zeroes all ranges, or none if one of them is wrong.
    fn zero(&self, kind: u32, ranges: &[u8], yield_now: &dyn Fn() -> bool) -> Result<(), Failure> {
        let mut checked = [(0, 0, false); ZERO_RANGES_MAX as usize];
        let count = ranges.len() / 16;
        for (checked, range) in checked.iter_mut().zip(ranges.chunks_exact(16)) {
            let number = |at: usize| u32::from_le_bytes(range[at..at + 4].try_into().expect("four bytes of a range"));
            let sector = u64::from_le_bytes(range[..8].try_into().expect("eight bytes of a range"));
            let (sectors, flags) = (number(8), number(12));
            let unmap = kind == VIRTIO_BLK_T_DISCARD || flags & 1 == 1;
            let flags_known = if kind == VIRTIO_BLK_T_DISCARD { 0 } else { 1 };
            if flags & !flags_known != 0 {
                return Err(Failure::Unsupported(kind));
            }
            if sectors > ZERO_SECTORS_MAX {
                return Err(Failure::Io(format!("{sectors} sectors to discard or zero in one range")));
            }
            let bytes = u64::from(sectors) * SECTOR_SIZE;
            let range = self.disk.writable_range(start(sector, bytes)?, bytes)?;
            *checked = (range.start, range.end, unmap);
        }
        for (mut at, end, unmap) in checked.into_iter().take(count) {
            while at < end {
                // Steps end where blocks do, or the block in between would be written twice.
                let step_end = end.min((at + ZERO_STEP_BYTES) / ZERO_STEP_BYTES * ZERO_STEP_BYTES);
                self.disk.zero(at, step_end - at, unmap)?;
                at = step_end;
                if at < end && yield_now() {
                    return Err(Failure::Interrupted);
                }
            }
        }
        Ok(())
    }
}

/// A transfer between pages and blocks that the page map has been told of.
struct Noted {
    map: Arc<PageMap>,
    transfer: Transfer,
    disk: u32,
    /// Writes to its pages are noticed.
    watched: bool,
}

impl Noted {
    /// To be called before a byte is moved. `buffers` are the request's, and how many bytes of them are not for the disk.
    fn begin(disk: &Disk, pairs: &mut Pairs, ram: &GuestRam, buffers: (&[(u64, u32)], u64), offset: Option<u64>) -> Option<Self> {
        let (map, number) = disk.page_map()?;
        // A request that does not lie on the disk moves nothing.
        let offset = offset.filter(|offset| *offset < disk.size());
        pairs.collect(ram, buffers.0, buffers.1, offset);
        let transfer = map.begin(&pairs.runs);
        let watched = !pairs.runs.is_empty() && ram.watch_writes(&pairs.watched);
        Some(Self { map, transfer, disk: number, watched })
    }

    fn end(self, pairs: &Pairs, well: bool) {
        self.map.finish(self.transfer, &pairs.runs, (well && self.watched).then_some(self.disk));
    }
}

/// The byte where a transfer of whole sectors starts. The disk checks that it ends within.
fn start(sector: u64, bytes: u64) -> Result<u64, Failure> {
    match sector.checked_mul(SECTOR_SIZE) {
        Some(start) if bytes.is_multiple_of(SECTOR_SIZE) => Ok(start),
        _ => Err(Failure::Io(format!("{bytes} bytes at sector {sector}"))),
    }
}
