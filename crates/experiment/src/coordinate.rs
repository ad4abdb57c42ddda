//! One checkpoint over all parts of a run: drives the protocol, measures the pause.

use fermata_checkpoint::{Captured, Failure, Outcome, Part, Protocol, Saved, Step};
use fermata_linux::clock::Stopwatch;
use fermata_store::Writer;
use fermata_types::{Composition, PageCounts};
use std::{collections::BTreeMap, time::Duration};

/// The phase in which a failure leaves a guest standing still.
pub(crate) const THAW: &str = "thaw";

/// The parts of a run.
pub(crate) type Parts = Vec<Box<dyn Part<Writer>>>;

/// A part that failed, and in which phase.
#[derive(Debug, thiserror::Error)]
#[error("{part} could not {phase}: {cause}")]
pub struct PartFailure {
    /// The part.
    pub part: String,
    /// `prepare`, `freeze`, `capture`, `thaw`, `save`.
    pub phase: &'static str,
    /// Why.
    #[source]
    pub cause: Failure,
}

/// A checkpoint whose pause is over, and that is not yet stored.
pub(crate) struct Tentative {
    protocol: Protocol,
    names: Vec<String>,
    captured: Vec<Box<dyn Captured<Writer>>>,
    writer: Writer,
    /// From the first part's freeze to the last one's thaw.
    pub pause: Duration,
    /// What it was spent on: part and step.
    pub steps: BTreeMap<String, Duration>,
    /// How long each part prepared.
    prepared: BTreeMap<String, Duration>,
    /// Bytes that each part has put into the store so far.
    stored: BTreeMap<String, u64>,
}

/// What became of all parts.
pub(crate) struct SavedParts {
    pub saved: Vec<Saved>,
    pub pages: PageCounts,
    /// The same for each part.
    pub parts: BTreeMap<String, PageCounts>,
    /// What the pages of each machine are for.
    pub composition: BTreeMap<String, Composition>,
    /// Steps of the work before and behind the pause: part and step.
    pub background: BTreeMap<String, Duration>,
    /// Bytes that each part put into the store.
    pub stored: BTreeMap<String, u64>,
    pub writer: Writer,
}

/// Prepares, freezes, captures and thaws; `paranoid` looks at the content of all that would be taken as known. On failure the parts have been settled
/// already. `frozen` is called at the end of the pause, before the thaw.
pub(crate) fn take(parts: &mut Parts, mut writer: Writer, paranoid: bool, frozen: &mut dyn FnMut()) -> Result<Tentative, PartFailure> {
    parts.iter_mut().for_each(|part| part.check_content(paranoid));
    let mut protocol = Protocol::new(parts.iter().map(|part| part.kind()));
    let mut captured = Vec::new();
    let mut failure = None;
    let mut watch = None;
    let mut pause = Duration::ZERO;
    let mut prepared = BTreeMap::new();
    let mut stored = BTreeMap::new();
    loop {
        let step = protocol.step().expect("a checkpoint is saved or settled before it is over");
        let result = match &step {
            Step::Prepare(of) => each(parts, of, "prepare", |part| {
                let (watch, before) = (Stopwatch::start(), writer.stored_bytes()?);
                let result = part.prepare(&mut writer);
                prepared.insert(format!("{} prepare", part.name()), watch.elapsed());
                result?;
                stored.insert(part.name().to_owned(), writer.stored_bytes()? - before);
                Ok(())
            }),
            Step::Freeze(of) => {
                watch.get_or_insert_with(Stopwatch::start);
                each(parts, of, "freeze", |part| part.freeze())
            }
            Step::Capture(of) => {
                let result = each(parts, of, "capture", |part| {
                    captured.push(part.capture()?);
                    Ok(())
                });
                frozen();
                result
            }
            Step::Thaw(of) => {
                let result = each(parts, of, THAW, |part| part.thaw());
                pause = watch.map_or(Duration::ZERO, |watch| watch.elapsed());
                result
            }
            Step::Save(_) => break,
            Step::Commit => unreachable!("nothing is committed before it is saved"),
            Step::Settle { .. } => {
                parts.iter_mut().for_each(|part| part.settle(Outcome::Aborted));
                return Err(failure.expect("a checkpoint that is settled so early failed"));
            }
        };
        protocol.done(result.is_ok());
        // The first failure is the cause and later ones follow from it; but that a guest stands still is what people must be told.
        failure = match result.err() {
            Some(stands) if stands.phase == THAW => Some(stands),
            other => failure.or(other),
        };
    }
    let steps =
        parts.iter().flat_map(|part| part.notes().into_iter().map(|note| (format!("{} {}", part.name(), note.step), note.took))).collect();
    let names = parts.iter().map(|part| part.name().to_owned()).collect();
    Ok(Tentative { protocol, names, captured, writer, pause, steps, prepared, stored })
}

/// Runs one phase of some parts. All of them are tried even if one fails: what can be thawed is.
fn each(
    parts: &mut Parts,
    of: &[usize],
    phase: &'static str,
    mut work: impl FnMut(&mut Box<dyn Part<Writer>>) -> Result<(), Failure>,
) -> Result<(), PartFailure> {
    let mut failed = Ok(());
    for index in of {
        let part = &mut parts[*index];
        if let Err(cause) = work(part) {
            failed = failed.and(Err(PartFailure { part: part.name().to_owned(), phase, cause }));
        }
    }
    failed
}

impl Tentative {
    /// Stores every part, behind the guests. The writer comes back for the commit.
    pub fn save(mut self) -> Result<SavedParts, PartFailure> {
        let Some(Step::Save(order)) = self.protocol.step() else { unreachable!("a checkpoint that was taken is to be saved") };
        debug_assert!(!self.protocol.failed());
        let mut captured: Vec<_> = self.captured.into_iter().map(Some).collect();
        let mut saved: Vec<_> = captured.iter().map(|_| None).collect();
        let mut pages = PageCounts::default();
        let mut parts = BTreeMap::new();
        let mut composition = BTreeMap::new();
        let mut background = self.prepared;
        let mut stored = self.stored;
        for index in order {
            let name = self.names[index].clone();
            let captured = captured[index].take().expect("each part is saved once");
            let failed = |cause| PartFailure { part: name.clone(), phase: "save", cause };
            let (watch, before) = (Stopwatch::start(), self.writer.stored_bytes().map_err(|error| failed(error.into()))?);
            let mut part = captured.save(&mut self.writer).map_err(failed)?;
            background.insert(format!("{name} save"), watch.elapsed());
            *stored.entry(name.clone()).or_default() += self.writer.stored_bytes().map_err(|error| failed(error.into()))? - before;
            pages += part.pages;
            composition.extend(part.composition.take().map(|composition| (name.clone(), composition)));
            parts.insert(name, part.pages);
            saved[index] = Some(part);
        }
        let saved = saved.into_iter().map(|part| part.expect("each part is saved")).collect();
        Ok(SavedParts { saved, pages, parts, composition, background, stored, writer: self.writer })
    }
}

/// Tells every part how the checkpoint ended.
pub(crate) fn settle(parts: &mut Parts, saved: Option<&[Saved]>) {
    for (index, part) in parts.iter_mut().enumerate() {
        part.settle(saved.and_then(|saved| saved.get(index)).map_or(Outcome::Aborted, |saved| Outcome::Permanent(&saved.state)));
    }
}
