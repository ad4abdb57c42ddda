//! Answers and failures, as text or as JSON.

use crate::{args::Global, text};
use fermata_api::{
    spec::{FaultKind, SpecError},
    values::Problem,
};
use serde::Serialize;
use std::{
    env,
    io::{self, IsTerminal, Write},
};
use terminal_size::{Width, terminal_size_of};

/// Why a command did not do what it says.
#[derive(Debug)]
pub enum Failure {
    /// It was called in a way that makes no sense.
    Misuse(String),
    /// The specification is wrong. It knows the places.
    Spec(Box<SpecError>),
    /// It was tried, and could not be done.
    Problem(Problem),
    /// Whoever reads our output has seen enough.
    Pipe,
}

impl Failure {
    /// The exit status that tells of it.
    pub fn status(&self) -> u8 {
        match self {
            Self::Misuse(_) => 2,
            Self::Spec(error) if is_misuse(error) => 2,
            Self::Spec(_) | Self::Problem(_) => 1,
            // What a shell says of a program that SIGPIPE ended.
            Self::Pipe => 141,
        }
    }
}

/// A specification that says nonsense, as opposed to one that names a file which is not there.
fn is_misuse(error: &SpecError) -> bool {
    error.faults().iter().any(|fault| fault.kind() != FaultKind::File)
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<SpecError> for Failure {
    fn from(error: SpecError) -> Self {
        Self::Spec(Box::new(error))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::Problem(Problem::new(format!("cannot write the output: {error}"))),
        }
    }
}

/// How text may look where it goes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Style {
    /// Colours are welcome.
    pub color: bool,
    /// Columns of the terminal; none if it is no terminal.
    pub width: Option<usize>,
}

/// What a piece of text is, for its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    Plain,
    Dim,
    Strong,
    Id,
    Name,
    Good,
    Warning,
    Bad,
}

impl Style {
    /// The text, in its colour if there are colours.
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Dim => "2",
            Paint::Strong => "1",
            Paint::Id => "33",
            Paint::Name => "36",
            Paint::Good => "32",
            Paint::Warning => "33;1",
            Paint::Bad => "31;1",
            Paint::Plain => return text.to_owned(),
        };
        if self.color && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Where answers go.
#[derive(Debug, Clone)]
pub struct Out {
    json: bool,
    pub quiet: bool,
    /// A progress bar would be seen, and is wanted.
    pub progress: bool,
    style: Style,
}

impl Out {
    pub fn new(global: &Global) -> Self {
        let stdout = io::stdout();
        let width = stdout.is_terminal().then(|| terminal_size_of(&stdout).map_or(80, |(Width(width), _)| width.into()));
        let progress = io::stderr().is_terminal() && !global.no_progress && !global.quiet;
        Self { json: global.json, quiet: global.quiet, progress, style: Style { color: width.is_some() && colors_welcome(), width } }
    }

    /// For failures before the options are known.
    pub fn json() -> Self {
        Self { json: true, quiet: false, progress: false, style: Style::default() }
    }

    /// Whether JSON is wanted.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a value as JSON, or what it looks like as text.
    pub fn answer<T: Serialize + ?Sized>(&self, value: &T, text: impl FnOnce(&Style) -> String) -> Result<(), Failure> {
        if self.json {
            let json = serde_json::to_string(value).map_err(|error| Problem::new(format!("cannot print the answer: {error}")))?;
            return self.print(format!("{json}\n").as_bytes());
        }
        let mut text = text(&self.style);
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        self.print(text.as_bytes())
    }

    /// Prints bytes as they are.
    pub fn print(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        Ok(stdout.flush()?)
    }

    /// Tells why it failed: on standard error, or as JSON on standard output. There is nobody left to tell if this fails too.
    pub fn fail(&self, failure: &Failure) {
        let message = match failure {
            Failure::Misuse(message) => message.clone(),
            Failure::Spec(error) => error.to_string(),
            Failure::Problem(problem) => problem.message.clone(),
            Failure::Pipe => return,
        };
        if self.json {
            let _ = writeln!(io::stdout(), "{}", serde_json::json!({"error": {"message": message}}));
            return;
        }
        let _ = match failure {
            Failure::Spec(error) => writeln!(io::stderr(), "fermata: {}", diagnose(error)),
            _ => writeln!(io::stderr(), "fermata: {}", text::harmless_lines(&message)),
        };
    }

    /// Tells what went wrong beside an answer, on standard error: also where JSON is wanted, or little is told.
    pub fn complain(&self, message: &str) {
        let _ = writeln!(io::stderr(), "fermata: {}", text::harmless_lines(message));
    }

    /// Tells something beside the answer, on standard error.
    pub fn note(&self, message: &str) {
        if !self.quiet && !self.json {
            self.complain(message);
        }
    }
}

/// The places in the specification, and what is wrong there.
fn diagnose(error: &SpecError) -> String {
    let stderr = io::stderr();
    let color = stderr.is_terminal() && colors_welcome();
    let theme = if color { miette::GraphicalTheme::unicode() } else { miette::GraphicalTheme::unicode_nocolor() };
    let width = terminal_size_of(&stderr).map_or(100, |(Width(width), _)| width.into());
    let mut drawing = String::new();
    let drawn = miette::GraphicalReportHandler::new_themed(theme).with_width(width).render_report(&mut drawing, error);
    if drawn.is_ok() { drawing.trim().to_owned() } else { error.to_string() }
}

/// <https://no-color.org>
fn colors_welcome() -> bool {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|terminal| terminal != "dumb")
}
