//! What is wrong with a specification, and where.

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};
use std::{fmt, io, ops::Range, path::PathBuf};

/// Bytes `start..end` of the text of the specification.
pub(super) type Span = Range<usize>;

/// Faults reported at once. More would scroll the first ones, the likely causes, out of sight.
const FAULTS_MAX: usize = 20;

/// Faults kept until they are sorted by place. A hostile text can have one in every few bytes.
const FAULTS_KEPT_MAX: usize = 200;

/// Why there is no specification.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// I/O: the file of the specification could not be read.
    #[error("cannot read {}: {source}; name a YAML file that you may read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The specification was read and is refused. [`Fault::kind`] tells apart why.
    #[error(transparent)]
    Refused(Box<Refusal>),
}

impl SpecError {
    /// Each fault that was found, in the order of the text; none when the file could not be read.
    pub fn faults(&self) -> &[Fault] {
        match self {
            Self::Unreadable { .. } => &[],
            Self::Refused(refusal) => &refusal.faults,
        }
    }
}

impl Diagnostic for SpecError {
    fn source_code(&self) -> Option<&dyn SourceCode> {
        match self {
            Self::Unreadable { .. } => None,
            Self::Refused(refusal) => refusal.source_code(),
        }
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        match self {
            Self::Unreadable { .. } => None,
            Self::Refused(refusal) => refusal.labels(),
        }
    }
}

/// The faults of one specification. Its text has a line for each: `machine.yaml:7:13: expected a size such as 512M or 1G, found "1X"`.
#[derive(Debug)]
pub struct Refusal {
    source: Option<NamedSource<String>>,
    faults: Vec<Fault>,
    left_out: usize,
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            if let (Some(source), Some((line, column))) = (&self.source, fault.place) {
                write!(f, "{}:{line}:{column}: ", source.name())?;
            }
            f.write_str(&fault.message)?;
        }
        match self.left_out {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl Diagnostic for Refusal {
    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_ref().map(|source| source as &dyn SourceCode)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.source.as_ref()?;
        let labels = self.faults.iter().flat_map(|fault| &fault.labels);
        Some(Box::new(labels.map(|(span, label)| LabeledSpan::new(Some(label.clone()), span.start, span.len()))))
    }
}

/// What sort of fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// Not YAML at all.
    Syntax,
    /// YAML that breaks a rule of the specification or a limit.
    Invalid,
    /// A file that the specification names is missing or cannot be used.
    File,
}

/// One fault: what happened, to what, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    kind: FaultKind,
    message: String,
    /// The first label is where the fault is, the others are what it has to do with.
    labels: Vec<(Span, String)>,
    place: Option<(usize, usize)>,
}

impl Fault {
    /// A fault at `span` of the text; `label` is the few words put beside the place.
    pub(super) fn new(kind: FaultKind, span: Span, label: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), labels: vec![(span, label.into())], place: None }
    }

    /// Shows another place that the fault has to do with.
    pub(super) fn also(mut self, span: Span, label: impl Into<String>) -> Self {
        self.labels.push((span, label.into()));
        self
    }

    /// What sort of fault it is.
    pub fn kind(&self) -> FaultKind {
        self.kind
    }

    /// What is wrong and what was expected, without the place.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Line and column (in characters), both from 1. None for a specification that is no text: one from the command line.
    pub fn place(&self) -> Option<(usize, usize)> {
        self.place
    }
}

/// Collects faults while reading goes on.
#[derive(Debug, Default)]
pub(super) struct Faults {
    faults: Vec<Fault>,
    left_out: usize,
    found: usize,
}

impl Faults {
    pub fn push(&mut self, fault: Fault) {
        self.found += 1;
        // Values that come from `defaults` or through an alias are looked at once for each node that they reach.
        if self.faults.len() == FAULTS_KEPT_MAX {
            self.left_out += 1;
        } else if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    pub fn invalid(&mut self, span: Span, label: impl Into<String>, message: impl Into<String>) {
        self.push(Fault::new(FaultKind::Invalid, span, label, message));
    }

    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// How often one was found so far, were it the same one: who reads something knows by it whether all of that could be read.
    pub fn found(&self) -> usize {
        self.found
    }

    /// Whether one is just there.
    pub fn is_at(&self, span: &Span) -> bool {
        self.faults.iter().any(|fault| fault.labels[0].0 == *span)
    }

    /// Succeeds when there are none. Faults have places when there is a text.
    pub fn into_result(self, source: Option<(&str, &str)>) -> Result<(), SpecError> {
        let mut faults = self.faults;
        if faults.is_empty() {
            return Ok(());
        }
        faults.sort_by_key(|fault| fault.labels[0].0.start);
        let left_out = self.left_out + faults.len().saturating_sub(FAULTS_MAX);
        faults.truncate(FAULTS_MAX);
        if let Some((_, text)) = source {
            for fault in &mut faults {
                for (span, _) in &mut fault.labels {
                    *span = within_line(text, span);
                }
                fault.place = Some(line_and_column(text, fault.labels[0].0.start));
            }
        }
        let source = source.map(|(origin, text)| NamedSource::new(origin, text.to_owned()));
        Err(SpecError::Refused(Box::new(Refusal { source, faults, left_out })))
    }
}

/// The first line of a span: a label over a whole block of text shows nothing.
fn within_line(text: &str, span: &Span) -> Span {
    let boundary = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let start = boundary(span.start);
    let end = boundary(span.end).max(start);
    let line = text[start..end].split(['\n', '\r']).next().unwrap_or_default();
    start..start + line.trim_end().len()
}

fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..offset];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
