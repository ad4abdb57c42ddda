//! Userfaultfd, trackers and virtualization.

use super::{bad, good, limited, unneeded};
use crate::values::Finding;
use fermata_experiment::spec::TrackerChoice;
use fermata_linux::probe::{self, Reach, Virtualization};
use std::fs;

/// The first kernel with asynchronous write-protection and `PAGEMAP_SCAN`, for the tracker `scan`.
const KERNEL_GOOD: (u32, u32) = (6, 7);

pub(super) fn examine() -> Vec<Finding> {
    let virtualization = probe::virtualization();
    let with_kvm = matches!(virtualization, Virtualization::Usable);
    let mut findings = vec![release(), faults(probe::userfaultfd().map(|(_, reach)| reach), with_kvm), acceleration(&virtualization)];
    findings.extend(TrackerChoice::survey().into_iter().map(tracker));
    findings
}

fn release() -> Finding {
    const WHAT: &str = "Linux";
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    match version(&release) {
        Some(found) if found >= KERNEL_GOOD => good(WHAT, release),
        _ => limited(
            WHAT,
            format!("{release}; from 6.7 on checkpoints cost the guest least"),
            "install a newer kernel; Debian 12 has one in bookworm-backports (linux-image-amd64)",
        ),
    }
}

/// Major and minor: of `6.18.44-custom`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn tracker(standing: fermata_experiment::TrackerStanding) -> Finding {
    let tracker = standing.tracker;
    let what = format!("tracker {tracker}");
    match (standing.missing, tracker) {
        (None, _) if standing.chosen => good(&what, format!("taken by default: {}", tracker.about())),
        (None, _) => good(&what, tracker.about()),
        (Some(missing), TrackerChoice::KvmLog | TrackerChoice::KvmRing | TrackerChoice::KvmStore) => unneeded(&what, missing),
        (Some(missing), _) => limited(
            &what,
            missing,
            "Linux 6.7 or newer built with CONFIG_USERFAULTFD has it (the tracker userfault: 5.19); /proc must show pagemap, and in a container the \
             seccomp profile must allow userfaultfd",
        ),
    }
}

fn faults(reach: std::io::Result<Reach>, with_kvm: bool) -> Finding {
    const WHAT: &str = "userfaultfd";
    const MEND: &str = "run `sysctl vm.unprivileged_userfaultfd=1`, or give your user access to /dev/userfaultfd";
    match (reach, with_kvm) {
        (Ok(Reach::Kernel), _) => good(WHAT, "serves faults of the kernel too, as KVM needs"),
        (Ok(Reach::User), true) => bad(WHAT, "serves only faults of user code: machines under KVM cannot be restored lazily", MEND),
        (Ok(Reach::User), false) => limited(WHAT, "serves only faults of user code: enough for TCG, not for KVM", MEND),
        (Err(error), _) => bad(
            WHAT,
            format!("cannot be had: {error}"),
            "a kernel built with CONFIG_USERFAULTFD is needed; in a container, a seccomp profile that allows userfaultfd",
        ),
    }
}

fn acceleration(virtualization: &Virtualization) -> Finding {
    const WHAT: &str = "acceleration";
    match virtualization {
        Virtualization::Usable => good(WHAT, "KVM: the processor virtualizes, and /dev/kvm opens"),
        Virtualization::NoProcessor => limited(
            WHAT,
            "TCG, which translates: /proc/cpuinfo shows neither vmx nor svm",
            "switch on virtualization in the firmware or, if this host is a virtual machine itself, nested virtualization. TCG works, but is slower",
        ),
        Virtualization::NoDevice(error) => limited(
            WHAT,
            format!("TCG, which translates: the processor virtualizes, but /dev/kvm does not open ({error})"),
            "load the module kvm_intel or kvm_amd, and add yourself to the group that owns /dev/kvm (Debian: `adduser $USER kvm`)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_tells_the_version() {
        assert_eq!(version("6.18.44-custom"), Some((6, 18)));
        assert_eq!(version("no version at all"), None);
        assert_eq!(version(""), None);
    }
}
