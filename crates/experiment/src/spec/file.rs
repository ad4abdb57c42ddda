//! A specification with the places of its values still known.

use super::{
    Spec, SpecError,
    error::{Fault, FaultKind, Faults},
    read,
    resolve::{self, File},
    yaml,
};
use std::{
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Bytes of a specification. 256 machines with everything said take a tenth of it.
const TEXT_MAX: usize = 1 << 20;

/// A specification and the text that it came from.
#[derive(Debug, Clone)]
pub struct SpecFile {
    origin: String,
    text: String,
    spec: Spec,
    files: Vec<File>,
}

impl SpecFile {
    /// Reads and parses a file of at most 1 MiB, and looks for the files that it names. Relative paths in it start at its directory.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        let unreadable = |source| SpecError::Unreadable { path: path.to_owned(), source };
        let text = read_text(path).map_err(unreadable)?;
        let base = std::path::absolute(path).map_err(unreadable)?;
        Self::parse_and(&text, path, base.parent().unwrap_or(Path::new("/")), look_for)
    }

    /// Parses a specification. `origin` is what errors call the text; relative paths in it start at `base`. The files that it names are left to
    /// [`check_files`](Self::check_files).
    pub fn parse(text: &str, origin: &Path, base: &Path) -> Result<Self, SpecError> {
        Self::parse_and(text, origin, base, |_, _| {})
    }

    fn parse_and(text: &str, origin: &Path, base: &Path, look: impl FnOnce(&[File], &mut Faults)) -> Result<Self, SpecError> {
        let origin = origin.display().to_string();
        let base = std::path::absolute(base).map_err(|source| SpecError::Unreadable { path: base.to_owned(), source })?;
        let mut faults = Faults::default();
        let parsed = resolved(text, &base, &mut faults);
        if let Some((_, files)) = &parsed {
            look(files, &mut faults);
        }
        faults.into_result(Some((&origin, text)))?;
        let (spec, files) = parsed.expect("what could not be read left a fault");
        Ok(Self { origin, text: text.to_owned(), spec, files })
    }

    /// The specification.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The specification, its text forgotten.
    pub fn into_spec(self) -> Spec {
        self.spec
    }

    /// Checks that every image, kernel and initial RAM disk is a file that can be read. Errors point at the values that name them.
    pub fn check_files(&self) -> Result<(), SpecError> {
        check(&self.files, Some((&self.origin, &self.text)))
    }
}

fn resolved(text: &str, base: &Path, faults: &mut Faults) -> Option<(Spec, Vec<File>)> {
    if text.len() > TEXT_MAX {
        faults.invalid(0..0, "too long", format!("expected at most {} MiB of YAML, found {} bytes", TEXT_MAX >> 20, text.len()));
        return None;
    }
    if base.to_str().is_none() {
        faults.invalid(0..0, "its directory", format!("the directory {} is not UTF-8; rename it or move the file", base.display()));
        return None;
    }
    match yaml::parse(text, faults) {
        Ok(Some(document)) => {
            let raw = read::spec(document, faults)?;
            Some(resolve::spec(raw, Some(base), faults))
        }
        Ok(None) => {
            faults.invalid(0..0, "nothing here", "the file is empty; an experiment needs the keys `name` and `nodes`");
            None
        }
        Err(fault) => {
            faults.push(fault);
            None
        }
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    // One byte more than is allowed shows that there is more.
    fs::File::open(path)?.take(TEXT_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

pub(super) fn check(files: &[File], source: Option<(&str, &str)>) -> Result<(), SpecError> {
    let mut faults = Faults::default();
    look_for(files, &mut faults);
    faults.into_result(source)
}

fn look_for(files: &[File], faults: &mut Faults) {
    for File { path, what, span } in files {
        // A path that can be none has its fault, if it has a place.
        let is_told = !span.is_empty() && faults.is_at(span);
        if let (false, Err(problem)) = (is_told, usable(path)) {
            let message = format!("{what} {}: {problem}", path.display());
            faults.push(Fault::new(FaultKind::File, span.clone(), "cannot be used", message));
        }
    }
}

fn usable(path: &PathBuf) -> Result<(), String> {
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "no such file; correct the path or put the file there".to_owned(),
        _ => format!("cannot be looked at: {error}"),
    })?;
    if !metadata.is_file() {
        return Err("not a regular file; name a file".to_owned());
    }
    fs::File::open(path).map(drop).map_err(|error| format!("cannot be opened: {error}; let its owner give you the right to read it"))
}
