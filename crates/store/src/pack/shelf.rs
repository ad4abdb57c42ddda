//! A directory of packs: what they are called there, and how they are encrypted.

use crate::{
    Error, Result,
    cipher::{Sealing, hidden, shown},
    rebuild::entries,
};
use fermata_types::PackId;
use std::{fs, io, path::PathBuf};

/// A directory of packs.
#[derive(Clone)]
pub(crate) struct Shelf {
    pub directory: PathBuf,
    pub sealing: Sealing,
}

impl Shelf {
    /// Where a pack lies.
    pub fn place(&self, id: &PackId) -> PathBuf {
        let text = PackId(hidden(&self.sealing, id.as_bytes())).to_string();
        self.directory.join(&text[..2]).join(format!("{text}.pack"))
    }

    /// Every pack. Other files are none of ours; what cannot be looked at may be one of them or not, and must not seem to be gone.
    pub fn list(&self) -> Result<Vec<(PathBuf, PackId)>> {
        let mut found = Vec::new();
        for directory in entries(&self.directory)? {
            match fs::metadata(&directory) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::io("look at", &directory)(error)),
                Ok(about) if about.is_dir() => {}
                _ => continue,
            }
            for path in entries(&directory)? {
                let called = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".pack")?.parse::<PackId>().ok());
                let id = called.map(|called| PackId(shown(&self.sealing, called.as_bytes())));
                found.extend(id.filter(|id| self.place(id) == path).map(|id| (path, id)));
            }
        }
        found.sort();
        Ok(found)
    }
}
