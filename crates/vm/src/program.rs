//! Which QEMU is run, and what it understands.

use std::{
    collections::BTreeMap,
    env,
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

/// The QEMU that is run: `$FERMATA_QEMU`, else the one on the path.
pub fn qemu_program() -> String {
    env::var("FERMATA_QEMU").unwrap_or_else(|_| "qemu-system-x86_64".to_owned())
}

/// Variables of a keeper's environment that tell passphrases.
pub(crate) const SECRETS: [&str; 2] = [fermata_store::PASSPHRASE_VARIABLE, "FERMATA_PASSPHRASE"];

/// QEMU's: major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl Version {
    /// The oldest one that we are made for.
    pub const OLDEST: Self = Self(7, 2);

    /// Asks a program, once. One that does not tell counts as the oldest.
    pub fn of(program: &str) -> Self {
        static KNOWN: Mutex<BTreeMap<String, Version>> = Mutex::new(BTreeMap::new());
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(version) = known().get(program) {
            return *version;
        }
        let mut asks = Command::new(program);
        SECRETS.iter().for_each(|variable| _ = asks.env_remove(variable));
        let said = asks.arg("--version").stdin(Stdio::null()).output();
        let Some(version) = said.ok().and_then(|said| Self::in_words(&String::from_utf8_lossy(&said.stdout))) else { return Self::OLDEST };
        known().insert(program.to_owned(), version);
        version
    }

    /// Of what it says: `QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)`.
    pub fn in_words(said: &str) -> Option<Self> {
        let mut numbers = said.split_once("version ")?.1.split(|c: char| !c.is_ascii_digit());
        Some(Self(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }

    /// How a socket that comes back after a second says so. QEMU 9.2 brought the second way, and 10.2 has the first no more.
    pub(crate) fn reconnects(self) -> &'static str {
        if self < Self(9, 2) { "reconnect=1" } else { "reconnect-ms=1000" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_is_told_in_its_words() {
        for (said, version, reconnects) in [
            ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright", Version(7, 2), "reconnect=1"),
            ("QEMU emulator version 9.1.0", Version(9, 1), "reconnect=1"),
            ("QEMU emulator version 9.2.0 (v9.2.0-dirty)", Version(9, 2), "reconnect-ms=1000"),
            ("QEMU emulator version 10.2.50", Version(10, 2), "reconnect-ms=1000"),
        ] {
            let found = Version::in_words(said);
            assert_eq!((found, version.reconnects()), (Some(version), reconnects));
        }
        assert_eq!(Version::in_words("no such thing"), None);
        assert_eq!(Version::of("/nowhere/qemu"), Version::OLDEST);
    }
}
