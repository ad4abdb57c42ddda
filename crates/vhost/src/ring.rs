//! One virtqueue: started and stopped by QEMU, served by the worker.
//!
//! ```text
//!            SET_VRING_KICK, enabled           unusable
//!  stopped ---------------------------> running ------> broken
//!     ^                                    |              |
//!     +------- GET_VRING_BASE, disconnect -+--------------+
//! ```
//! A broken ring is what a guest gets that writes nonsense into it, or says that it lies where none can lie: it stays silent until the guest resets the device.

use crate::{
    Absent,
    backend::{Chain, Device, Handled},
    guest::GuestRam,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::{
    fs::File,
    io::{self, Read, Write},
    sync::{Arc, atomic::Ordering},
};
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes as _, GuestAddress};

/// Requests served before other rings get their turn.
const BATCH: usize = 64;
/// Requests served before the guest is told of them.
const NOTIFY_EVERY: usize = 8;

/// Descriptors that a ring may have.
pub const RING_SIZE_MAX: u16 = 1024;

/// Bytes of a ring (VIRTIO 1.2, section 2.7): of a descriptor; of the beginning and the end of the other two parts, and of an entry of each.
const DESCRIPTOR_BYTES: u32 = 16;
/// Of a descriptor: where its length and its flags are.
const DESCRIPTOR_LEN: usize = 8;
const DESCRIPTOR_FLAGS: usize = 12;
const DESCRIPTOR_NEXT: usize = 14;
const RING_BYTES: u32 = 6;
const AVAILABLE_BYTES: u32 = 2;
const USED_BYTES: u32 = 8;

/// What the worker does next with a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Waits for the guest's kick.
    Wait,
    /// All is done, and the guest was asked not to kick: [`Ring::has_more`] tells of more, and [`Ring::rest`] asks for kicks again.
    Look,
    /// Comes back soon: there is more.
    Again,
    /// Comes back later: the host has no space for the next request, or could not bring in its buffers.
    Later,
}

/// What became of something that the device had to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// The driver has it.
    Taken,
    /// The driver has laid in no buffers for it. It kicks when there are some.
    NoBuffers,
    /// There are buffers for it that are yet to be restored.
    Absent,
    /// The ring does not run.
    Stopped,
}

/// A virtqueue and its event descriptors.
pub struct Ring {
    queue: Queue,
    kick: Option<Arc<File>>,
    call: Option<File>,
    /// There was something to tell the guest since the ring was started.
    told: bool,
    enabled: bool,
    running: bool,
    /// The ring said that there is more.
    promised: bool,
    /// There may be so many descriptors as QEMU said.
    size_fits: bool,
    /// The addresses that QEMU sent, in its own memory: descriptors, available ring, used ring.
    addresses: Option<[u64; 3]>,
    /// What the next chain waits for.
    absent: Option<Absent>,
}

impl Ring {
    /// A stopped ring.
    pub fn new() -> Self {
        Self {
            queue: Queue::new(RING_SIZE_MAX).expect("the size is a power of two within bounds"),
            kick: None,
            call: None,
            told: false,
            enabled: false,
            running: false,
            promised: false,
            size_fits: true,
            addresses: None,
            absent: None,
        }
    }

    /// Sets the number of descriptors. It is the guest's word: with one that cannot be, the ring will be silent.
    pub fn set_size(&mut self, size: u32) {
        let size = u16::try_from(size).ok().filter(|size| *size <= RING_SIZE_MAX && size.is_power_of_two());
        self.size_fits = size.is_some();
        self.queue.set_size(size.unwrap_or(RING_SIZE_MAX));
    }

    /// The number of descriptors.
    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// Sets where the ring lies, as addresses in QEMU.
    pub fn set_addresses(&mut self, descriptors: u64, available: u64, used: u64) {
        self.addresses = Some([descriptors, available, used]);
    }

    /// Sets which request comes next.
    pub fn set_base(&mut self, base: u16) {
        self.queue.set_next_avail(base);
    }

    /// Whether positions in the ring tell when to notify.
    pub fn set_event_idx(&mut self, enabled: bool) {
        self.queue.set_event_idx(enabled);
    }

    /// Sets the descriptor that tells the guest. QEMU starts a ring before it names one, or while it still names one that nobody reads
    /// (`vhost_virtqueue_start`): so what there was to tell until now is told once more.
    pub fn set_call(&mut self, call: Option<File>) {
        self.call = call;
        if self.told {
            self.tell();
        }
    }

    /// Enables the ring, or silences it without stopping it.
    pub fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Starts the ring. With no kick descriptor it stays stopped: polling is not offered. Where no ring can be it stays silent, and the device is told.
    pub fn start(&mut self, kick: Option<File>, ram: &GuestRam, device: &mut dyn Device) -> io::Result<()> {
        self.stop();
        let Some(kick) = kick else { return Ok(()) };
        // A kick that somebody else has consumed must not leave the worker waiting for ever.
        fcntl_setfl(&kick, fcntl_getfl(&kick)? | OFlags::NONBLOCK)?;
        self.kick = Some(Arc::new(kick));
        (self.told, self.promised) = (false, false);
        match () {
            () if !self.size_fits => device.note_unusable(&"its number of descriptors is no power of two, or too large"),
            () if self.locate(ram).is_none() => device.note_unusable(&"it is not aligned, or does not lie in guest memory"),
            () => self.running = true,
        }
        Ok(())
    }

    /// Finds the ring in guest memory, and goes on where the used ring ends: what was completed is told there and nowhere else.
    fn locate(&mut self, ram: &GuestRam) -> Option<()> {
        let [descriptors, available, used] = self.addresses?;
        let at = |address: u64| ram.guest_address(address).map(GuestAddress);
        self.queue.try_set_desc_table_address(at(descriptors)?).ok()?;
        self.queue.try_set_avail_ring_address(at(available)?).ok()?;
        self.queue.try_set_used_ring_address(at(used)?).ok()?;
        // All of them now: whoever has something to say may have a lock that others wait for.
        ram.bring_in(&self.places(ram)).ok()?;
        let used = self.queue.used_idx(ram, Ordering::Acquire).ok()?;
        self.queue.set_next_used(used.0);
        self.queue.set_ready(true);
        self.queue.is_valid(ram).then_some(())
    }

    /// Where its parts lie that lie in guest memory, as guest addresses and lengths.
    pub fn places(&self, ram: &GuestRam) -> Vec<(u64, u32)> {
        let size = u32::from(self.queue.size());
        let lengths = [DESCRIPTOR_BYTES * size, RING_BYTES + AVAILABLE_BYTES * size, RING_BYTES + USED_BYTES * size];
        let parts = self.addresses.into_iter().flatten().zip(lengths);
        parts.filter_map(|(address, length)| Some((ram.guest_address(address)?, length))).collect()
    }

    /// Stops the ring. Returns which request would have come next.
    pub fn stop(&mut self) -> u16 {
        self.queue.set_ready(false);
        self.running = false;
        self.kick = None;
        self.queue.next_avail()
    }

    /// The position of a ring that QEMU has started and not stopped, as it does not if the guest has moved it in between.
    pub fn runs_on(&self) -> Option<u16> {
        self.kick.is_some().then(|| self.queue.next_avail())
    }

    /// Whether requests may be served.
    pub fn is_running(&self) -> bool {
        self.running && self.enabled
    }

    /// Whether QEMU has started the ring, and neither stopped nor disabled it since.
    pub fn is_started(&self) -> bool {
        self.kick.is_some() && self.enabled
    }

    /// The kick descriptor of a running ring.
    pub fn kick(&self) -> Option<Arc<File>> {
        self.kick.clone().filter(|_| self.is_running())
    }

    /// Forgets a kick that has come.
    pub fn take_kick(kick: &File) {
        let mut count = [0; 8];
        // Nothing to read is fine: somebody else has been faster.
        let mut kick = kick;
        let _ = kick.read(&mut count);
    }

    /// Serves requests until there are none, `yield_now` says so, or others should have their turn. `index` is what the device knows the ring by.
    pub fn serve(&mut self, index: usize, ram: &GuestRam, device: &mut dyn Device, yield_now: impl Fn() -> bool) -> Next {
        if !self.is_running() {
            return Next::Wait;
        }
        let served = self.try_serve(index, ram, device, yield_now);
        self.or_give_up(device, served)
    }

    /// Whether there is a request, by its index.
    pub fn has_more(&self, ram: &GuestRam) -> bool {
        // What cannot be read is found to be unusable when it is served.
        self.is_running() && self.queue.avail_idx(ram, Ordering::Acquire).map_or(true, |next| next.0 != self.queue.next_avail())
    }

    /// Has the guest kick for the next request. Tells to come back if there is one already.
    pub fn rest(&mut self, ram: &GuestRam, device: &mut dyn Device) -> Next {
        if !self.is_running() {
            return Next::Wait;
        }
        let more = self.queue.enable_notification(ram);
        self.promised |= matches!(more, Ok(true));
        self.or_give_up(device, more.map(|more| if more { Next::Again } else { Next::Wait }))
    }

    /// An error means that the ring is unusable.
    fn or_give_up(&mut self, device: &mut dyn Device, next: Result<Next, virtio_queue::Error>) -> Next {
        next.unwrap_or_else(|error| {
            self.give_up(device, &error);
            Next::Wait
        })
    }

    fn give_up(&mut self, device: &mut dyn Device, error: &virtio_queue::Error) {
        device.note_unusable(error);
        self.running = false;
    }

    fn try_serve(
        &mut self,
        index: usize,
        ram: &GuestRam,
        device: &mut dyn Device,
        yield_now: impl Fn() -> bool,
    ) -> Result<Next, virtio_queue::Error> {
        let (mut served, mut untold) = (0, 0);
        self.queue.disable_notification(ram)?;
        while let Some(chain) = self.queue.iter(ram)?.next() {
            self.promised = false;
            let head = self.head(&chain)?;
            let handled = match self.absent_table(ram, head) {
                Some(table) => Handled::Absent(table),
                None => device.handle(index, ram, chain, &yield_now),
            };
            let written = match handled {
                Handled::Done(written) => written,
                // It goes back into the ring, where whoever stops the ring finds it not yet taken up. Those behind it wait too.
                put_off => {
                    self.queue.set_next_avail(self.queue.next_avail().wrapping_sub(1));
                    self.notify(ram)?;
                    let next = if put_off == Handled::Starved { Next::Later } else { Next::Again };
                    if let Handled::Absent(absent) = put_off {
                        self.absent = Some(absent);
                    }
                    return Ok(next);
                }
            };
            self.queue.add_used(ram, head, written)?;
            served += 1;
            untold += 1;
            if served >= BATCH || yield_now() {
                self.notify(ram)?;
                return Ok(Next::Again);
            }
            if untold == NOTIFY_EVERY {
                self.notify(ram)?;
                untold = 0;
            }
        }
        if untold > 0 {
            self.notify(ram)?;
        }
        if std::mem::take(&mut self.promised) {
            // The ring said that there is more, and then there was not: its index moves back and forth, or it cannot be read. Going on would never
            // end.
            return Err(virtio_queue::Error::InvalidAvailRingIndex);
        }
        Ok(Next::Look)
    }

    /// The buffers that the next chain waited for when it was last tried.
    pub fn take_absent(&mut self) -> Option<Absent> {
        self.absent.take()
    }

    /// The table that a chain has its descriptors in, if it is yet to be restored.
    fn absent_table(&self, ram: &GuestRam, head: u16) -> Option<Absent> {
        let mut descriptor = [0; DESCRIPTOR_BYTES as usize];
        let mut index = head;
        // What cannot be, or cannot be read, is found to be unusable by whoever walks the chain.
        for _ in 0..self.queue.size() {
            let at = self.queue.desc_table() + u64::from(DESCRIPTOR_BYTES) * u64::from(index);
            ram.read_slice(&mut descriptor, GuestAddress(at)).ok()?;
            let short = |at: usize| u16::from_le_bytes([descriptor[at], descriptor[at + 1]]);
            let has = |flag: u32| u32::from(short(DESCRIPTOR_FLAGS)) & flag != 0;
            if has(VRING_DESC_F_INDIRECT) {
                let (address, rest) = descriptor.split_at(DESCRIPTOR_LEN);
                let table = (u64::from_le_bytes(address.try_into().ok()?), u32::from_le_bytes(rest[..4].try_into().ok()?));
                let can_be = table.1.is_multiple_of(DESCRIPTOR_BYTES) && table.1 / DESCRIPTOR_BYTES <= u32::from(RING_SIZE_MAX);
                return (can_be && !ram.are_there(&[table])).then(|| Absent(vec![table]));
            }
            if !has(VRING_DESC_F_NEXT) || short(DESCRIPTOR_NEXT) >= self.queue.size() {
                return None;
            }
            index = short(DESCRIPTOR_NEXT);
        }
        None
    }

    /// Has `fill` write into the next buffers that the driver has laid into the ring, and gives them back. `fill` returns how many bytes it wrote; if
    /// nothing, since buffers are yet to be restored, they stay in the ring.
    pub fn offer(&mut self, ram: &GuestRam, device: &mut dyn Device, fill: impl FnOnce(Chain<'_>) -> Result<u32, Absent>) -> Offer {
        if !self.is_running() {
            return Offer::Stopped;
        }
        self.try_offer(ram, fill).unwrap_or_else(|error| {
            self.give_up(device, &error);
            Offer::Stopped
        })
    }

    fn try_offer(&mut self, ram: &GuestRam, fill: impl FnOnce(Chain<'_>) -> Result<u32, Absent>) -> Result<Offer, virtio_queue::Error> {
        let mut chain = self.queue.iter(ram)?.next();
        // The driver is to kick when there are buffers again; it may have laid some in just before it was asked to.
        if chain.is_none() && self.queue.enable_notification(ram)? {
            chain = self.queue.iter(ram)?.next();
        }
        let Some(chain) = chain else { return Ok(Offer::NoBuffers) };
        let head = self.head(&chain)?;
        let written = match self.absent_table(ram, head).map_or_else(|| fill(chain), Err) {
            Ok(written) => written,
            Err(absent) => {
                self.queue.set_next_avail(self.queue.next_avail().wrapping_sub(1));
                self.absent = Some(absent);
                return Ok(Offer::Absent);
            }
        };
        self.queue.add_used(ram, head, written)?;
        self.notify(ram)?;
        Ok(Offer::Taken)
    }

    /// The descriptor that a chain begins with. One that the ring does not have could not be given back.
    fn head(&self, chain: &Chain<'_>) -> Result<u16, virtio_queue::Error> {
        Some(chain.head_index()).filter(|head| *head < self.queue.size()).ok_or(virtio_queue::Error::InvalidDescriptorIndex)
    }

    fn notify(&mut self, ram: &GuestRam) -> Result<(), virtio_queue::Error> {
        if self.queue.needs_notification(ram)? {
            self.tell();
        }
        Ok(())
    }

    fn tell(&mut self) {
        self.told = true;
        if let Some(mut call) = self.call.as_ref() {
            // A full counter has told the guest already.
            let _ = call.write(&1u64.to_ne_bytes());
        }
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tracking, guest::Entry};
    use rustix::{
        event::{EventfdFlags, eventfd},
        fs::MemfdFlags,
    };
    use std::{fmt::Display, os::unix::fs::FileExt};

    const SIZE: u16 = 256;
    const AVAILABLE: u64 = 0x1000;
    const USED: u64 = 0x2000;
    const RAM: u64 = 0x3000;

    /// Does every request at once.
    struct Willing;

    impl Device for Willing {
        fn handle(&mut self, _ring: usize, _ram: &GuestRam, _chain: Chain<'_>, _yield_now: &dyn Fn() -> bool) -> Handled {
            Handled::Done(0)
        }

        fn note_unusable(&mut self, error: &dyn Display) {
            panic!("{error}");
        }
    }

    /// However many requests come between the last look into a ring and the wish to be kicked, and whoever wants his turn while they are served: a driver that does
    /// no wrong keeps its ring.
    #[test]
    fn a_ring_that_said_there_is_more_goes_on_when_that_is_done() {
        for count in [1, 2, BATCH - 1, BATCH, BATCH + 1, 2 * BATCH, usize::from(SIZE)] {
            for somebody_waits in [false, true] {
                let file = File::from(rustix::fs::memfd_create("ring", MemfdFlags::CLOEXEC).unwrap());
                file.set_len(RAM).unwrap();
                let entry = Entry { guest: 0, len: RAM, qemu: 0, file_offset: 0, file: file.try_clone().unwrap() };
                let ram = GuestRam::new(Arc::new(Tracking::new(Arc::default()))).with_table(vec![entry]).unwrap();
                let mut ring = Ring::new();
                ring.set_size(SIZE.into());
                ring.set_addresses(0, AVAILABLE, USED);
                ring.set_event_idx(true);
                ring.set_enabled(true);
                ring.start(Some(eventfd(0, EventfdFlags::CLOEXEC).unwrap().into()), &ram, &mut Willing).unwrap();
                assert_eq!(ring.serve(0, &ram, &mut Willing, || somebody_waits), Next::Look);
                // All of them are descriptor 0, which is an empty buffer.
                file.write_all_at(&(count as u16).to_le_bytes(), AVAILABLE + 2).unwrap();
                assert_eq!(ring.rest(&ram, &mut Willing), Next::Again);
                let rounds = if somebody_waits { count } else { count / BATCH };
                for _ in 0..rounds {
                    assert_eq!(ring.serve(0, &ram, &mut Willing, || somebody_waits), Next::Again);
                }
                assert_eq!(ring.serve(0, &ram, &mut Willing, || somebody_waits), Next::Look);
                assert_eq!(ring.rest(&ram, &mut Willing), Next::Wait);
                assert!(ring.is_running());
                let mut used = [0; 2];
                file.read_exact_at(&mut used, USED + 2).unwrap();
                assert_eq!(usize::from(u16::from_le_bytes(used)), count);
            }
        }
    }
}
