//! Keeps checkpoints that each rank takes by itself, and looks for what fits together when one dies.

use super::{
    host::{Aborted, Each, End, Error, Event, Line, Options, Taken, Tally, Way},
    life::Life,
    stable::own::OwnStable,
    wire::{Cost, Frame, Restored, TOO_LARGE},
};
use fermata_checkpoint::consistent::{Answer, Ccn, Cut, Rank};
use fermata_linux::clock::Stopwatch;
use fermata_store::Store;
use std::time::Duration;

/// Nothing is due by the clock here: ranks have clocks of their own.
const LONG: Duration = Duration::from_secs(60);

/// Checkpoints of each rank.
pub(super) struct Apart(OwnStable);

impl Apart {
    pub fn new(store: &Store, options: &Options, spec: serde_json::Value) -> Result<Self, Error> {
        let mut stable = OwnStable::new(store.clone(), &options.name, options.ranks, spec, options.keep)?;
        if options.resume {
            stable.resume()?;
        }
        Ok(Self(stable))
    }
}

impl Way for Apart {
    fn ccn(&self) -> Ccn {
        self.0.line().iter().copied().min().unwrap_or(0)
    }

    fn progress(&self) -> u64 {
        self.0.line().iter().sum()
    }

    fn restore(&self, rank: Rank, each: Each<'_>) -> fermata_store::Result<(Option<Restored>, Vec<Vec<u8>>)> {
        self.0.restore(rank, each)
    }

    fn live(&mut self, life: &mut Life<'_>, tally: &mut Tally, watch: &mut dyn FnMut(Event)) -> Result<End, Error> {
        let current = (0..life.options.ranks).map(|_| None).collect();
        let end = Keeper { life, stable: &mut self.0, current, tally, watch }.live();
        tally.garbage.get_or_insert_default().collected = self.0.collected();
        end
    }

    fn go_back(&mut self) -> Result<Option<Line>, Error> {
        let line = self.0.go_back()?;
        Ok(Some(Line { checkpoints: line.numbers, dropped: line.dropped }))
    }

    fn branch(&self) -> String {
        self.0.branch()
    }
}

/// A checkpoint of a rank on its way.
struct Current {
    ccn: Ccn,
    since: Stopwatch,
    /// Why some of it could not be kept, and so none of it is.
    failed: Option<String>,
    taken: Option<Taken>,
}

/// Keeps what the ranks of one life say.
struct Keeper<'a, 'b> {
    life: &'a mut Life<'b>,
    stable: &'a mut OwnStable,
    current: Vec<Option<Current>>,
    tally: &'a mut Tally,
    watch: &'a mut dyn FnMut(Event),
}

impl Keeper<'_, '_> {
    fn live(mut self) -> Result<End, Error> {
        let end = self.keep();
        // Permanent, though their ranks have not heard of it; they need not any more.
        (0..self.current.len()).for_each(|rank| self.over(rank));
        end
    }

    fn keep(&mut self) -> Result<End, Error> {
        loop {
            match self.life.hear(LONG) {
                Ok(Some((rank, frame))) => {
                    if let Err(why) = self.heard(rank, frame)? {
                        return Ok(End::Died(why));
                    }
                }
                Ok(None) => {}
                Err(why) => return Ok(End::Died(why)),
            }
            if let Some(answers) = self.life.answers() {
                return Ok(End::Done(answers));
            }
        }
    }

    /// What a rank says. Within: who died.
    fn heard(&mut self, rank: Rank, frame: Frame) -> Result<Result<(), String>, Error> {
        match frame {
            Frame::Pages(pages) => {
                if self.goes_on(rank, pages.ccn) {
                    let put = self.stable.put_pages(rank, &pages);
                    self.note(rank, put);
                }
            }
            Frame::State { ccn, used, state } => {
                if self.goes_on(rank, ccn) {
                    let put = self.stable.put_state(rank, ccn, used, state);
                    self.note(rank, put);
                }
            }
            Frame::Own { ccn, cut, log } => return Ok(self.persist(rank, ccn, cut, &log)),
            Frame::Answer(Answer::Failure { ccn }) => return Ok(self.give_up(rank, ccn)),
            Frame::Cost(cost) => self.count(rank, cost),
            Frame::Answer(Answer::Ack { ccn }) if self.current[rank].as_ref().is_some_and(|current| current.ccn == ccn) => self.over(rank),
            // Of one whose successor has overtaken this word.
            Frame::Answer(Answer::Ack { .. }) => {}
            other => return self.life.heard(rank, other),
        }
        Ok(Ok(()))
    }

    /// Whether what comes of a checkpoint is of use. It begins with the first that is heard of it.
    fn goes_on(&mut self, rank: Rank, ccn: Ccn) -> bool {
        if self.current[rank].as_ref().is_none_or(|current| current.ccn != ccn) {
            self.over(rank);
            self.current[rank] = Some(Current { ccn, since: Stopwatch::start(), failed: None, taken: None });
            (self.watch)(Event::Began(ccn));
        }
        self.current[rank].as_ref().is_some_and(|current| current.failed.is_none())
    }

    /// Notes whether all of a checkpoint was kept so far.
    fn note(&mut self, rank: Rank, put: fermata_store::Result<()>) {
        if let (Err(error), Some(current)) = (put, &mut self.current[rank]) {
            current.failed = Some(error.to_string());
        }
    }

    /// All of a checkpoint is there. Fails with who died.
    fn persist(&mut self, rank: Rank, ccn: Ccn, cut: Cut, log: &[u8]) -> Result<(), String> {
        if self.goes_on(rank, ccn) {
            let kept = self.stable.persist(rank, ccn, cut, log);
            if let (Ok(kept), Some(current)) = (&kept, &mut self.current[rank]) {
                current.taken = Some(Taken {
                    rank: Some(rank),
                    ccn,
                    id: kept.id,
                    elapsed_ns: current.since.elapsed().as_nanos() as u64,
                    written_bytes: kept.written,
                    stored_bytes: kept.stored,
                    copied_pages: 0,
                    blocked_ns: 0,
                    blocked_most_ns: 0,
                    late_messages: 0,
                    held_messages: 0,
                });
            }
            self.note(rank, kept.map(drop));
            let garbage = self.tally.garbage.get_or_insert_default();
            garbage.most = garbage.most.max(self.stable.count());
        }
        let permanent = self.current[rank].as_ref().is_some_and(|current| current.taken.is_some());
        self.life.tell(rank, &Frame::Over { ccn, permanent, received: self.stable.received(rank) })
    }

    /// A rank has more than can be saved. Fails with who died.
    fn give_up(&mut self, rank: Rank, ccn: Ccn) -> Result<(), String> {
        if self.goes_on(rank, ccn)
            && let Some(current) = &mut self.current[rank]
        {
            current.failed = Some(TOO_LARGE.to_owned());
        }
        self.life.tell(rank, &Frame::Over { ccn, permanent: false, received: self.stable.received(rank) })
    }

    fn count(&mut self, rank: Rank, cost: Cost) {
        let taken = self.current[rank].as_mut().filter(|current| current.ccn == cost.ccn).and_then(|current| current.taken.as_mut());
        if let Some(taken) = taken {
            taken.copied_pages = cost.copied;
            (taken.blocked_ns, taken.blocked_most_ns) = (cost.blocked_ns, cost.blocked_ns);
        }
    }

    /// A rank knows how its checkpoint ended.
    fn over(&mut self, rank: Rank) {
        let Some(current) = self.current[rank].take() else { return };
        match (current.taken, current.failed) {
            (Some(taken), _) => self.tally.permanent(taken, self.watch),
            (None, Some(why)) => self.tally.aborted(Aborted { ccn: current.ccn, rank: Some(rank), why }, Some(self.watch)),
            // All are done, and it is not needed any more.
            (None, None) => {}
        }
    }
}
