//! One connection of a QEMU: the vhost-user protocol on one thread, the rings on another.
//!
//! Both threads share the [`Link`]: rings, memory table and device behind one lock. The worker holds it for one request at a time, so when the protocol thread has
//! it, nothing is in flight: that is all there is to draining. The protocol thread announces itself first, because a lock is not fair and the
//! worker would take it again at once.
//!
//! Buffers that are yet to be restored when a device has something for them are brought in by the worker, without any lock; then the device is told
//! to try again.

use crate::{
    backend::{Backend, Chain, Device},
    guest::{Entry, GuestRam, Tracking},
    ring::{Next, Offer, RING_SIZE_MAX, Ring},
    spin::Spin,
};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
    time::Timespec,
};
use std::{
    fs::File,
    io::{self, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use vhost::{
    VhostUserMemoryRegionBase,
    vhost_user::{
        Error, Result, VhostUserBackendReqHandlerMut,
        message::{
            VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
            VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg, VhostUserSingleMemoryRegion,
            VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
        },
    },
};

const LOG_ALL: u64 = 1 << 26;
/// Between two attempts at a request for which the host has no space.
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// How a server fares: how many rings QEMU has started and neither stopped nor disabled, and whether somebody still serves them. Zero rings mean that the guest's requests are
/// all done and none will be taken up.
#[derive(Debug, Clone, Default)]
pub struct Running(Arc<Fare>);

#[derive(Debug, Default)]
struct Fare {
    rings: AtomicUsize,
    failure: Mutex<Option<String>>,
}

impl Running {
    /// Rings started, and neither stopped nor disabled. QEMU may disable one and never stop it, if the guest has moved it in between.
    pub fn rings(&self) -> usize {
        self.0.rings.load(Ordering::Acquire)
    }

    /// Why requests are served no more, though QEMU had not hung up. Forgotten when the next QEMU connects.
    pub fn failure(&self) -> Option<String> {
        self.0.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn set_failure(&self, failure: Option<String>) {
        *self.0.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = failure;
    }
}

/// What both threads of a connection share.
pub struct Link {
    state: Mutex<State>,
    /// How many threads wait for `state` and go before the worker.
    waiting: AtomicUsize,
    wake: File,
    closing: AtomicBool,
    /// Buffers that the worker is to bring in.
    absent: Mutex<Vec<(GuestRam, Absent)>>,
    backend: Arc<dyn Backend>,
    tracking: Arc<Tracking>,
    running: Running,
}

/// Buffers, as guest addresses and lengths, that are yet to be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent(pub Vec<(u64, u32)>);

struct State {
    rings: Vec<Ring>,
    ram: GuestRam,
    device: Box<dyn Device>,
}

impl State {
    /// The rings that are to be served, and where their guest kicks.
    fn kicks(&self) -> Vec<(usize, Arc<File>)> {
        self.rings.iter().enumerate().filter_map(|(i, ring)| Some((i, ring.kick()?))).collect()
    }
}

impl Link {
    /// A connection without memory and with all rings stopped.
    pub fn new(backend: Arc<dyn Backend>, tracking: Arc<Tracking>, running: Running) -> io::Result<Arc<Self>> {
        let device = backend.device();
        let rings = (0..backend.rings()).map(|_| Ring::new()).collect();
        running.set_failure(None);
        Ok(Arc::new(Self {
            state: Mutex::new(State { rings, ram: GuestRam::new(tracking.clone()), device }),
            waiting: AtomicUsize::new(0),
            wake: File::from(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            closing: AtomicBool::new(false),
            absent: Mutex::default(),
            backend,
            tracking,
            running,
        }))
    }

    /// Enables all rings.
    pub(crate) fn enable_rings(&self) {
        self.change(|state| state.rings.iter_mut().for_each(|ring| ring.set_enabled(true)));
    }

    /// Stops all rings and ends the worker.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.change(|state| {
            for ring in &mut state.rings {
                ring.stop();
            }
        });
        self.wake();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Changes the state with no request in flight. The worker has a look if other rings are to be served then: of the dozen messages and more with which QEMU goes on after a
    /// pause two say so, and each look keeps QEMU and its guest from a processor.
    fn change<R>(&self, with: impl FnOnce(&mut State) -> R) -> R {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let mut state = self.lock();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        let before = state.kicks();
        let result = with(&mut state);
        let after = state.kicks();
        let is_known = after.len() == before.len() && after.iter().zip(&before).all(|((a, to), (b, from))| a == b && Arc::ptr_eq(to, from));
        let started = state.rings.iter().filter(|ring| ring.is_started()).count();
        self.running.0.rings.store(started, Ordering::Release);
        drop(state);
        if !is_known {
            self.wake();
        }
        result
    }

    /// Has the worker look what there is to do.
    fn wake(&self) {
        // Cannot fail but for a full counter, which wakes the worker as well.
        let _ = (&self.wake).write(&1u64.to_ne_bytes());
    }

    fn with_ring<R>(&self, index: u32, with: impl FnOnce(&mut Ring) -> R) -> Result<R> {
        self.change(|state| Ok(with(state.rings.get_mut(index as usize).ok_or(Error::InvalidParam)?)))
    }

    /// Serves the rings until the connection closes, and says so if it ends before: the worker thread's work. True if it came to its right end.
    pub fn work(&self) -> bool {
        let failure = match catch_unwind(AssertUnwindSafe(|| self.serve_all())) {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => format!("it cannot wait for requests: {error}"),
            Err(_) => "its worker panicked, which is a fault of Fermata's: the keeper's log tells more".to_owned(),
        };
        tracing::error!(failure, "a device's worker has ended");
        self.running.set_failure(Some(failure));
        false
    }

    fn serve_all(&self) -> io::Result<()> {
        let mut kicks: Vec<(usize, Arc<File>)> = Vec::new();
        let mut spin = Spin::new(self.backend.patience());
        let mut next = vec![Next::Wait; self.backend.rings()];
        while !self.closing.load(Ordering::Acquire) {
            let time = match () {
                () if next.contains(&Next::Again) => Some(Duration::ZERO),
                () if next.contains(&Next::Later) => Some(BETWEEN_TRIES),
                () => None,
            };
            let (woken, kicked) = poll_for(&self.wake, &kicks, time)?;
            if woken {
                Ring::take_kick(&self.wake);
                kicks = self.lock().kicks();
                // A ring that was just started may hold requests whose kick went to somebody else.
                kicks.iter().for_each(|(i, _)| next[*i] = Next::Again);
            }
            kicked.iter().for_each(|i| next[*i] = Next::Again);
            if next.iter().any(|next| *next != Next::Wait) {
                spin.found();
            }
            let mut served = woken && self.bring_in();
            for (i, next) in next.iter_mut().enumerate().filter(|(_, next)| **next != Next::Wait) {
                *next = self.serve(i);
                served = true;
            }
            if served {
                self.backend.served();
            }
            self.look(&mut next, &mut spin);
        }
        Ok(())
    }

    /// Looks for more in the rings whose guest was asked not to kick, then has it kick again.
    fn look(&self, next: &mut [Next], spin: &mut Spin) {
        if next.contains(&Next::Again) {
            // They are all looked after in the next round.
            return;
        }
        spin.idle();
        while spin.goes_on() && self.waiting.load(Ordering::Acquire) == 0 {
            let State { rings, ram, .. } = &*self.lock();
            for (_, next) in rings.iter().zip(&mut *next).filter(|(ring, next)| **next == Next::Look && ring.has_more(ram)) {
                *next = Next::Again;
            }
            if next.contains(&Next::Again) {
                return;
            }
        }
        for (i, next) in next.iter_mut().enumerate().filter(|(_, next)| **next == Next::Look) {
            *next = self.rest(i);
        }
    }

    /// Brings in what somebody waits for. True if that is there now.
    fn bring_in(&self) -> bool {
        let absent = std::mem::take(&mut *self.absent.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        // Whoever cannot bring a page in ends the machine: there is nothing to try again.
        let brought = |(ram, Absent(buffers)): (GuestRam, Absent)| ram.bring_in(&buffers).is_ok();
        absent.into_iter().map(brought).fold(false, |any, brought| any | brought)
    }

    /// The state, for one request, and after those who wait for it to change it.
    fn take_turn(&self) -> MutexGuard<'_, State> {
        while self.waiting.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        self.lock()
    }

    /// Serves one ring.
    pub(crate) fn serve(&self, ring: usize) -> Next {
        if self.backend.is_inbound(ring) {
            return Next::Wait;
        }
        let (ram, Absent(buffers)) = {
            let State { rings, ram, device } = &mut *self.take_turn();
            let next = rings[ring].serve(ring, ram, &mut **device, || self.waiting.load(Ordering::Acquire) > 0);
            let Some(absent) = rings[ring].take_absent() else { return next };
            (ram.clone(), absent)
        };
        // Those before it are served. Without the lock: others have something to say to this guest, or have to stop the ring.
        self.backend.served();
        if ram.bring_in(&buffers).is_ok() { Next::Again } else { Next::Later }
    }

    /// Has the guest kick for the next request of a ring.
    pub(crate) fn rest(&self, ring: usize) -> Next {
        let State { rings, ram, device } = &mut *self.take_turn();
        rings[ring].rest(ram, &mut **device)
    }

    /// Has `fill` write into the next buffers that the driver has laid into an inbound ring. It returns how many bytes it wrote, or buffers that it
    /// would have to wait for: [`Backend::served`] is called when they are there.
    pub fn offer(&self, ring: usize, fill: impl FnOnce(&GuestRam, Chain<'_>) -> std::result::Result<u32, Absent>) -> Offer {
        let (offer, absent) = {
            let State { rings, ram, device } = &mut *self.take_turn();
            let offer = rings[ring].offer(ram, &mut **device, |chain| fill(ram, chain));
            (offer, rings[ring].take_absent().map(|absent| (ram.clone(), absent)))
        };
        if let Some(absent) = absent {
            self.absent.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(absent);
            self.wake();
        }
        offer
    }
}

/// Waits for a wake-up or a kick, at most so long. Takes the kicks, and says whose they were.
fn poll_for(wake: &File, kicks: &[(usize, Arc<File>)], time: Option<Duration>) -> io::Result<(bool, Vec<usize>)> {
    let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(kicks.len() + 1);
    polled.push(PollFd::new(wake, PollFlags::IN));
    polled.extend(kicks.iter().map(|(_, kick)| PollFd::new(&**kick, PollFlags::IN)));
    let time = time.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() });
    match poll(&mut polled, time.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok((false, Vec::new())),
        Err(error) => return Err(error.into()),
    }
    let mut kicked = Vec::new();
    for ((ring, kick), polled) in kicks.iter().zip(&polled[1..]) {
        if polled.revents().contains(PollFlags::IN) {
            Ring::take_kick(kick);
            kicked.push(*ring);
        }
    }
    Ok((!polled[0].revents().is_empty(), kicked))
}

/// The backend's side of the vhost-user protocol.
pub struct Protocol(pub Arc<Link>);

fn not_offered<T>() -> Result<T> {
    Err(Error::InvalidOperation("this backend does not offer it"))
}

impl Protocol {
    fn features(&self) -> u64 {
        self.0.backend.features() | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() | LOG_ALL
    }

    /// Brings in a ring that is about to be started, without the lock: whoever has something for this guest would wait as well, and others for them.
    fn bring_in(&self, index: u8) -> Result<()> {
        let (ram, places) = self.0.change(|State { rings, ram, .. }| {
            let ring = rings.get(usize::from(index)).ok_or(Error::InvalidParam)?;
            Ok::<_, Error>((ram.clone(), ring.places(ram)))
        })?;
        // What cannot be had is found to be so when the ring is started.
        let _ = ram.bring_in(&places);
        Ok(())
    }

    fn set_ram(&self, with: impl FnOnce(&GuestRam) -> io::Result<GuestRam>) -> Result<()> {
        self.0.change(|state| {
            state.ram = with(&state.ram).map_err(Error::ReqHandlerError)?;
            Ok::<_, Error>(())
        })?;
        if self.0.running.rings() > 0 {
            // What could not be had before may be had now.
            self.0.wake();
        }
        Ok(())
    }
}

impl VhostUserBackendReqHandlerMut for Protocol {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.0.change(|state| state.rings.iter_mut().for_each(|ring| *ring = Ring::new()));
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.features() != 0 {
            return Err(Error::InvalidParam);
        }
        let has = |bit: u32| features & 1 << bit != 0;
        let event_idx = has(virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX);
        // Without the protocol's own features there is no message that enables a ring.
        let enabled = features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0;
        self.0.change(|state| {
            for ring in &mut state.rings {
                ring.set_event_idx(event_idx);
                if enabled {
                    ring.set_enabled(true);
                }
            }
        });
        self.0.tracking.set_logging(features & LOG_ALL != 0);
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        table: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let entries = table.iter().zip(files).map(|(region, file)| Entry {
            guest: region.guest_phys_addr,
            len: region.memory_size,
            qemu: region.user_addr,
            file_offset: region.mmap_offset,
            file,
        });
        let entries = entries.collect();
        self.set_ram(|ram| ram.with_table(entries))?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.0.with_ring(index, |ring| ring.set_size(num))
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.0.with_ring(index, |ring| ring.set_addresses(descriptor, available, used))
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let left = self.0.with_ring(index, |ring| {
            let left = ring.runs_on();
            ring.set_base(base as u16);
            left
        })?;
        left.into_iter().for_each(|position| self.0.backend.stopped(index as usize, position));
        self.0.backend.goes_on(index as usize, base as u16);
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let base = self.0.with_ring(index, |ring| {
            ring.set_call(None);
            ring.stop()
        })?;
        self.0.backend.stopped(index as usize, base);
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        if file.is_some() {
            self.bring_in(index)?;
        }
        self.0.change(|State { rings, ram, device }| {
            let ring = rings.get_mut(usize::from(index)).ok_or(Error::InvalidParam)?;
            ring.start(file, ram, &mut **device).map_err(Error::ReqHandlerError)
        })
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        self.0.with_ring(index.into(), |ring| ring.set_call(file))
    }

    fn set_vring_err(&mut self, _index: u8, _file: Option<File>) -> Result<()> {
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        let common = VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::LOG_SHMFD;
        Ok(if self.0.backend.config().is_some() { common | VhostUserProtocolFeatures::CONFIG } else { common })
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.0.backend.rings() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.0.with_ring(index, |ring| ring.set_enabled(enable))
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let Some(config) = self.0.backend.config() else { return not_offered() };
        let known = config.into_iter().chain(std::iter::repeat(0));
        Ok(known.skip(offset as usize).take(size as usize).collect())
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        // No device here has a field that is written.
        Ok(())
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        self.0.tracking.set_log(file, log.mmap_offset, log.mmap_size).map_err(Error::ReqHandlerError)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        not_offered()
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        not_offered()
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        not_offered()
    }

    fn set_gpu_socket(&mut self, _gpu: vhost::vhost_user::GpuBackend) -> Result<()> {
        not_offered()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        not_offered()
    }

    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        not_offered()
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        not_offered()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        not_offered()
    }

    fn check_device_state(&mut self) -> Result<()> {
        not_offered()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        not_offered()
    }
}

const _: () = assert!(RING_SIZE_MAX.is_power_of_two());
