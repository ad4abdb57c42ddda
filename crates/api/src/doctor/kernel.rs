//! Write tracking and virtualization.

use super::{bad, good, limited, version};
use crate::values::Finding;
use fermata_linux::probe::{self, Reach, Virtualization};
use std::fs;

/// The first kernel with asynchronous write-protection and `PAGEMAP_SCAN`.
const KERNEL_MIN: (u32, u32) = (6, 7);

pub(super) fn examine() -> Vec<Finding> {
    let virtualization = probe::virtualization();
    let reach = probe::write_tracking();
    let with_kvm = matches!(virtualization, Virtualization::Usable);
    vec![release(), pagemap(), tracking(&reach), faults(reach.ok(), with_kvm), acceleration(&virtualization)]
}

fn release() -> Finding {
    const WHAT: &str = "Linux";
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    match version(&release) {
        Some(found) if found >= KERNEL_MIN => good(WHAT, release),
        _ => bad(
            WHAT,
            format!("{release}, needed is 6.7"),
            "install a newer kernel; Debian 12 has one in bookworm-backports (linux-image-amd64)",
        ),
    }
}

fn pagemap() -> Finding {
    const WHAT: &str = "pagemap";
    match fs::File::open("/proc/self/pagemap") {
        Ok(_) => good(WHAT, "/proc/PID/pagemap can be read"),
        Err(error) => bad(
            WHAT,
            format!("/proc/self/pagemap: {error}"),
            "mount /proc without restrictions, and lift the security profile of this container",
        ),
    }
}

fn tracking(reach: &Result<Reach, probe::Refusal>) -> Finding {
    const WHAT: &str = "write tracking";
    match reach {
        Ok(_) => good(WHAT, "userfaultfd with asynchronous write-protection and PAGEMAP_SCAN: tried, works"),
        Err(refusal) => bad(
            WHAT,
            refusal.to_string(),
            "Linux 6.7 or newer built with CONFIG_USERFAULTFD is needed; in a container, a seccomp profile that allows userfaultfd",
        ),
    }
}

fn faults(reach: Option<Reach>, with_kvm: bool) -> Finding {
    const WHAT: &str = "userfaultfd";
    const MEND: &str = "run `sysctl vm.unprivileged_userfaultfd=1`, or give your user access to /dev/userfaultfd";
    match (reach, with_kvm) {
        (Some(Reach::Kernel), _) => good(WHAT, "serves faults of the kernel too, as KVM needs"),
        (Some(Reach::User), true) => bad(WHAT, "serves only faults of user code: machines under KVM cannot be restored lazily", MEND),
        (Some(Reach::User), false) => limited(WHAT, "serves only faults of user code: enough for TCG, not for KVM", MEND),
        (None, _) => bad(WHAT, "does not work at all", "see write tracking"),
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
