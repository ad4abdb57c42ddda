//! Leads checkpoints that all ranks take together.

use super::{
    host::{Aborted, Each, End, Error, Event, Line, Options, Taken, Tally, Way},
    life::Life,
    messages::Parcel,
    mode::Transport,
    stable::{Kept, Stable},
    wire::{Cost, Frame, Restored, TOO_LARGE},
};
use fermata_checkpoint::consistent::{Aim, Answer, Ccn, Coordinator, Order, Rank, Tell, Whole};
use fermata_linux::clock::Stopwatch;
use fermata_store::Store;
use std::{sync::Arc, time::Duration};

/// What the protocol wants done.
type Orders = Vec<Order<Arc<Parcel>>>;

/// How often the protocol is reminded of time.
const TICK: Duration = Duration::from_secs(1);
/// How long one may take to answer what it need not think about.
const ANSWERING: u32 = 30;
/// How often a checkpoint is tried at once to which ranks do not come at their calls.
const MISSES: u32 = 20;

/// Checkpoints of all ranks.
pub(super) struct Together(Stable);

impl Together {
    pub fn new(store: &Store, options: &Options, spec: serde_json::Value) -> Result<Self, Error> {
        let mut stable = Stable::new(store.clone(), &options.name, options.ranks, spec, options.keep)?;
        if options.resume {
            stable.resume()?;
        }
        Ok(Self(stable))
    }
}

impl Way for Together {
    fn ccn(&self) -> Ccn {
        self.0.ccn()
    }

    fn progress(&self) -> u64 {
        self.0.ccn()
    }

    fn restore(&self, rank: Rank, each: Each<'_>) -> fermata_store::Result<(Option<Restored>, Vec<Vec<u8>>)> {
        self.0.restore(rank, each)
    }

    fn live(&mut self, life: &mut Life<'_>, tally: &mut Tally, watch: &mut dyn FnMut(Event)) -> Result<End, Error> {
        let (ccn, options) = (self.0.ccn(), life.options);
        Leader {
            life,
            stable: &mut self.0,
            coordinator: Coordinator::new(options.ranks, ccn, options.patience),
            current: None,
            began: Stopwatch::start(),
            next: options.every.filter(|every| !every.is_zero()),
            next_tick: TICK,
            silent: 0,
            aim: (options.transport == Transport::Mpi).then(|| Aim::new(options.ranks)),
            misses: 0,
            tally,
            watch,
        }
        .live()
    }

    fn go_back(&mut self) -> Result<Option<Line>, Error> {
        self.0.drop_tentative();
        Ok(None)
    }

    fn branch(&self) -> String {
        self.0.branch().to_owned()
    }
}

/// Leads the ranks of one life.
struct Leader<'a, 'b> {
    life: &'a mut Life<'b>,
    stable: &'a mut Stable,
    coordinator: Coordinator<Arc<Parcel>>,
    /// The checkpoint on its way.
    current: Option<Current>,
    began: Stopwatch,
    /// When the next checkpoint begins and the protocol is reminded, since `began`.
    next: Option<Duration>,
    next_tick: Duration,
    /// Ticks for which somebody has not answered.
    silent: u32,
    /// Where ranks are captured at calls of theirs only.
    aim: Option<Aim>,
    /// Checkpoints in a row that were given up for that.
    misses: u32,
    tally: &'a mut Tally,
    watch: &'a mut dyn FnMut(Event),
}

/// A checkpoint on its way.
struct Current {
    since: Stopwatch,
    costs: Vec<Cost>,
    kept: Option<Kept>,
    late: u64,
    /// Why it is given up.
    why: Option<Aborting>,
}

/// Why a checkpoint is given up.
enum Aborting {
    /// A rank does not come to a call of its, or has more than can be saved.
    Missed(Rank),
    /// All else.
    Failed(String),
}

impl Current {
    fn taken(self, ccn: Ccn) -> Option<Taken> {
        let kept = self.kept?;
        let blocked = self.costs.iter().map(|cost| cost.blocked_ns);
        Some(Taken {
            rank: None,
            ccn,
            id: kept.id,
            elapsed_ns: self.since.elapsed().as_nanos() as u64,
            written_bytes: kept.written,
            stored_bytes: kept.stored,
            copied_pages: self.costs.iter().map(|cost| cost.copied).sum(),
            blocked_ns: blocked.clone().sum::<u64>() / self.costs.len().max(1) as u64,
            blocked_most_ns: blocked.max().unwrap_or(0),
            late_messages: self.late,
            held_messages: self.costs.iter().map(|cost| cost.held).sum(),
        })
    }
}

impl Leader<'_, '_> {
    fn live(mut self) -> Result<End, Error> {
        let end = self.lead();
        // Permanent, though not everybody has heard of it; nobody needs to any more.
        let ccn = self.coordinator.ccn();
        if let Some(taken) = self.current.take().and_then(|current| current.taken(ccn)) {
            self.tally.permanent(taken, self.watch);
        }
        end
    }

    fn lead(&mut self) -> Result<End, Error> {
        loop {
            let orders = match self.remind() {
                Ok(orders) => orders,
                Err(why) => return Ok(End::Died(why)),
            };
            if self.silent > ANSWERING {
                return Ok(End::Died(format!("ranks {:?} do not answer", self.coordinator.unanswered())));
            }
            if let Err(why) = self.follow(orders) {
                return Ok(End::Died(why));
            }
            let due = self.next.map_or(self.next_tick, |next| next.min(self.next_tick));
            let orders = match self.life.hear(due.saturating_sub(self.began.elapsed())) {
                Ok(Some((rank, frame))) => match self.heard(rank, frame)? {
                    Ok(orders) => orders,
                    Err(why) => return Ok(End::Died(why)),
                },
                Ok(None) => continue,
                Err(why) => return Ok(End::Died(why)),
            };
            if let Err(why) = self.follow(orders) {
                return Ok(End::Died(why));
            }
            if let Some(answers) = self.life.answers() {
                return Ok(End::Done(answers));
            }
        }
    }

    /// What is due by the clock. Fails with who died.
    fn remind(&mut self) -> Result<Orders, String> {
        let now = self.began.elapsed();
        let mut orders = Vec::new();
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.silent = if self.coordinator.unanswered().is_empty() { 0 } else { self.silent + 1 };
            let missing = self.coordinator.missing();
            let told = self.coordinator.tick();
            self.explain(&told, || Aborting::Failed(impatient(&missing, self.life.options.patience)));
            orders.extend(told);
        }
        if let (Some(next), Some(every)) = (self.next, self.life.options.every)
            && now >= next
        {
            self.next = Some((next + every).max(now));
            if self.coordinator.is_idle() {
                match &mut self.aim {
                    Some(aim) => {
                        if aim.ask() {
                            self.tell_all(&Frame::Ask)?;
                        }
                    }
                    None => orders.extend(self.begin_checkpoint()),
                }
            }
        }
        Ok(orders)
    }

    fn tell_all(&mut self, frame: &Frame) -> Result<(), String> {
        (0..self.life.options.ranks).try_for_each(|rank| self.life.tell(rank, frame))
    }

    /// A rank says how many calls it has made. When all have, the checkpoint begins. Fails with who died.
    fn made(&mut self, rank: Rank, made: u64) -> Result<Orders, String> {
        let Some(call) = self.aim.as_mut().and_then(|aim| aim.heard(rank, made)) else { return Ok(Vec::new()) };
        let orders = self.begin_checkpoint();
        if !orders.is_empty() {
            self.tell_all(&Frame::Aim { ccn: self.coordinator.ccn(), call })?;
        }
        Ok(orders)
    }

    /// A rank did not come to its call. The checkpoint is tried again at once, some times.
    fn missed(&mut self) -> bool {
        let Some(aim) = &mut self.aim else { return false };
        aim.missed();
        self.misses += 1;
        let again = self.misses < MISSES;
        if again {
            self.next = Some(self.began.elapsed());
        } else {
            self.misses = 0;
        }
        again
    }

    fn begin_checkpoint(&mut self) -> Orders {
        let ccn = self.coordinator.ccn() + 1;
        if let Err(error) = self.stable.begin(ccn) {
            self.tally.aborted(Aborted { ccn, rank: None, why: format!("it was not begun: {error}") }, Some(self.watch));
            return Vec::new();
        }
        (self.watch)(Event::Began(ccn));
        self.current = Some(Current { since: Stopwatch::start(), costs: Vec::new(), kept: None, late: 0, why: None });
        self.coordinator.begin()
    }

    /// If these orders give the checkpoint up: that this is why, unless it is known already.
    fn explain(&mut self, orders: &Orders, why: impl FnOnce() -> Aborting) {
        let aborts = orders.iter().any(|order| matches!(order, Order::Tell(_, Tell::Abort(_))));
        if let Some(current) = self.current.as_mut().filter(|_| aborts) {
            current.why.get_or_insert_with(why);
        }
    }

    /// What a rank says. Within: who died.
    fn heard(&mut self, rank: usize, frame: Frame) -> Result<Result<Orders, String>, Error> {
        match frame {
            Frame::Pages(pages) => {
                if let Err(error) = self.stable.put_pages(rank, &pages) {
                    let orders = self.coordinator.abort();
                    self.explain(&orders, || Aborting::Failed(error.to_string()));
                    return Ok(Ok(orders));
                }
            }
            Frame::State { ccn, used, state } => self.stable.put_state(rank, ccn, used, state),
            Frame::Answer(answer) => return Ok(Ok(self.answered(rank, answer))),
            Frame::Calls { made } => return Ok(self.made(rank, made)),
            Frame::Cost(cost) => {
                if let Some(current) = self.current.as_mut().filter(|_| cost.ccn == self.coordinator.ccn()) {
                    current.costs.push(cost);
                }
            }
            other => return Ok(self.life.heard(rank, other)?.map(|()| Vec::new())),
        }
        Ok(Ok(Vec::new()))
    }

    fn answered(&mut self, rank: Rank, answer: Answer<Arc<Parcel>>) -> Orders {
        let failed = matches!(answer, Answer::Failure { .. });
        let orders = self.coordinator.heard(rank, answer);
        self.explain(&orders, || match failed {
            true => Aborting::Missed(rank),
            false => Aborting::Failed(format!("what rank {rank} has received does not fit to what others have sent")),
        });
        orders
    }

    /// Does what the protocol says. Fails with who died.
    fn follow(&mut self, orders: Orders) -> Result<(), String> {
        let mut orders = std::collections::VecDeque::from(orders);
        while let Some(order) = orders.pop_front() {
            match order {
                Order::Tell(rank, told) => {
                    if matches!(told, Tell::Abort(_)) {
                        self.stable.drop_tentative();
                    }
                    self.life.tell(rank, &Frame::Tell(told))?;
                }
                Order::Persist(whole) => orders.extend(self.persist(&whole)),
                Order::Over { ccn, permanent } => {
                    let Some(mut current) = self.current.take() else { continue };
                    let why = current.why.take();
                    match current.taken(ccn).filter(|_| permanent) {
                        Some(taken) => {
                            self.misses = 0;
                            self.tally.permanent(taken, self.watch);
                        }
                        None => self.aborted(ccn, why),
                    }
                }
            }
        }
        Ok(())
    }

    /// A checkpoint was given up, and every rank knows. One that is tried again at once is no event.
    fn aborted(&mut self, ccn: Ccn, why: Option<Aborting>) {
        let (again, why) = match why {
            Some(Aborting::Missed(rank)) if self.aim.is_none() => (false, format!("rank {rank}: {TOO_LARGE}")),
            Some(Aborting::Missed(rank)) => {
                let why = "did not come to the call at which it was to be captured, or printed that it has more messages than can be saved";
                (self.missed(), format!("rank {rank} {why}"))
            }
            Some(Aborting::Failed(why)) => (false, why),
            None => (false, "it did not become whole".to_owned()),
        };
        let watch: Option<&mut dyn FnMut(Event)> = if again { None } else { Some(self.watch) };
        self.tally.aborted(Aborted { ccn, rank: None, why }, watch);
    }

    fn persist(&mut self, whole: &Whole<Arc<Parcel>>) -> Orders {
        match (self.stable.persist(whole), &mut self.current) {
            (Ok(kept), Some(current)) => {
                current.kept = Some(kept);
                current.late = whole.late.iter().map(Vec::len).sum::<usize>() as u64;
                self.coordinator.persisted(true)
            }
            (Ok(_), None) => self.coordinator.persisted(true),
            (Err(error), _) => {
                let orders = self.coordinator.persisted(false);
                self.explain(&orders, || Aborting::Failed(error.to_string()));
                orders
            }
        }
    }
}

/// Why a checkpoint is given up for which these ranks are missing.
fn impatient(missing: &[Rank], seconds: u32) -> String {
    match missing {
        [] => format!("messages that were on their way to it did not arrive within {seconds} s"),
        [one] => format!("rank {one} was not captured and saved within {seconds} s"),
        many => format!(
            "ranks {} were not captured and saved within {seconds} s",
            many.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ")
        ),
    }
}
