//! What this host can and cannot do, and how to mend it. What can be tried is tried, not deduced from version numbers.
//!
//! - `kernel`: userfaultfd, trackers, virtualization
//! - `qemu`: the program, its version, what it was built with
//! - `mounts`: FUSE
//! - `places`: the run directory and the store

mod kernel;
mod mounts;
mod places;
mod qemu;

use crate::values::{Finding, Verdict};
use std::path::Path;

/// Examines this host for keepers that use this store. Takes about a second, most of it for QEMU.
pub fn examine(store: &Path) -> Vec<Finding> {
    let mut findings = kernel::examine();
    findings.extend(qemu::examine());
    findings.push(mounts::examine());
    findings.push(places::run_directory(&crate::paths::run_root()));
    findings.push(places::store(store));
    findings
}

fn good(what: &str, found: impl Into<String>) -> Finding {
    Finding { what: what.to_owned(), verdict: Verdict::Good, found: found.into(), mend: None }
}

fn limited(what: &str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding { what: what.to_owned(), verdict: Verdict::Limited, found: found.into(), mend: Some(mend.into()) }
}

fn unneeded(what: &str, found: impl Into<String>) -> Finding {
    Finding { what: what.to_owned(), verdict: Verdict::Unneeded, found: found.into(), mend: None }
}

fn bad(what: &str, found: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding { what: what.to_owned(), verdict: Verdict::Bad, found: found.into(), mend: Some(mend.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_comes_with_a_way_out() {
        let store = tempfile::tempdir().unwrap();
        let findings = examine(store.path());
        assert!(findings.len() >= 9);
        for finding in findings {
            assert!(!finding.found.is_empty(), "{}", finding.what);
            assert_eq!(finding.mend.is_none(), matches!(finding.verdict, Verdict::Good | Verdict::Unneeded), "{}", finding.what);
        }
        assert!(std::fs::read_dir(store.path()).unwrap().next().is_none(), "the examination leaves nothing behind");
    }
}
