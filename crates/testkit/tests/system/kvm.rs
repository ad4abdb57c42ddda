//! Machines under KVM, whatever the processor is said to have: a guest without an operating system, that writes without end, comes back as it was with every
//! tracker, from the firmware's first instructions on. Two minutes and a half on a machine busy with other things.

use fermata_experiment::{Journey, Run};
use fermata_linux::{clock::Stopwatch, probe};
use fermata_testkit::{Bench, Snapshot, is_long, oracle::differing};
use std::{fs, path::Path, time::Duration};

const PAUSED: Journey = Journey { eager: true, paused: true, fresh_randomness: false, perturbation: None };
const RUNNING: Journey = Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None };

/// Where the guest is loaded, and where it writes: 16 MiB from 2 MiB on.
const LOADED_AT: u32 = 0x10_0000;
/// Between checkpoints under the firmware, which moves memory about, and under the guest. The first four, and all with `FERMATA_LONG=1`.
const PAUSES_MS: [u64; 6] = [3, 40, 10, 200, 5, 100];
const BOOT: Duration = Duration::from_secs(90);
/// The guest has written to most of its pages.
const AT_WORK: u64 = 12 << 20;

/// A kernel by the Multiboot specification (0.6.96, section 3.1), in flat 32-bit code: stores a count at the start of one page after the other, in an order that
/// looks random.
fn guest() -> Vec<u8> {
    #[rustfmt::skip]
    let code: [u8; 38] = [
        0xb8, 0x39, 0x30, 0x00, 0x00,       // mov eax, 12345
        0x31, 0xc9,                         // xor ecx, ecx
        0x69, 0xc0, 0x0d, 0x66, 0x19, 0x00, // next: imul eax, eax, 1664525
        0x05, 0x5f, 0xf3, 0x6e, 0x3c,       // add eax, 1013904223
        0x89, 0xc3,                         // mov ebx, eax
        0xc1, 0xeb, 0x07,                   // shr ebx, 7
        0x81, 0xe3, 0x00, 0xf0, 0xff, 0x00, // and ebx, 0xfff000
        0x89, 0x8b, 0x00, 0x00, 0x20, 0x00, // mov [ebx+0x200000], ecx
        0x41,                               // inc ecx
        0xeb, 0xe1,                         // jmp next
    ];
    const MAGIC: u32 = 0x1bad_b002;
    /// The header says where everything is.
    const ADDRESSES: u32 = 1 << 16;
    let header_bytes = 32;
    let end = LOADED_AT + header_bytes + code.len() as u32;
    let checksum = 0_u32.wrapping_sub(MAGIC).wrapping_sub(ADDRESSES);
    let header = [MAGIC, ADDRESSES, checksum, LOADED_AT, LOADED_AT, end, end, LOADED_AT + header_bytes];
    header.iter().flat_map(|word| word.to_le_bytes()).chain(code).collect()
}

/// Checkpoints under way come back as the memory was in the pause. Returns how many pages changed between the last two.
fn instants(bench: &Bench, run: &Run) -> usize {
    let mut memories: Vec<Snapshot> = Vec::new();
    let count = if is_long() { PAUSES_MS.len() } else { 4 };
    for (number, pause) in PAUSES_MS.into_iter().take(count).enumerate() {
        std::thread::sleep(Duration::from_millis(pause));
        let mut original = None;
        let (id, record) = run.checkpoint_observed(None, &mut |body| original = Some(Snapshot::of(body))).expect("a checkpoint");
        let original = original.expect("the pause was seen");
        let copy = bench.arrive("copy", &id, &record, PAUSED);
        let differing = differing(&original.ram, &Snapshot::of(&copy.body()).ram);
        let first = &differing[..differing.len().min(8)];
        assert!(differing.is_empty(), "instant {number} of {}: {} pages differ, the first are {first:x?}", run.name(), differing.len());
        memories.push(original);
    }
    let [.., before, last] = memories.as_slice() else { panic!("two instants at least") };
    differing(&before.ram, &last.ram).len()
}

/// Bytes of memory that are not holes.
fn there(run: &Run) -> u64 {
    run.body().machine().ram().populated().expect("memory can be read").iter().map(|(from, to)| to - from).sum()
}

fn comes_back(tracker: &str) {
    if let Err(error) = probe::kvm() {
        return fermata_testkit::skipped!("/dev/kvm: {error}");
    }
    let place = tempfile::tempdir().expect("a directory");
    let kernel = place.path().join("guest");
    fs::write(&kernel, guest()).expect("room for a kernel");
    let bench = Bench::new(&yaml(tracker, &kernel));
    let run = bench.boot();
    instants(&bench, &run);
    let watch = Stopwatch::start();
    while there(&run) < AT_WORK {
        assert!(watch.elapsed() < BOOT, "the guest does not start: {} bytes of memory are there", there(&run));
        std::thread::sleep(Duration::from_millis(20));
    }
    let changed = instants(&bench, &run);
    assert!(changed > 1000, "the guest writes: {changed} pages");
    let (id, record) = run.checkpoint(None).expect("a checkpoint");
    drop(run);
    // Restored lazily, it goes on, and is tracked again from there.
    let restored = bench.arrive("restored", &id, &record, RUNNING);
    // Only a memory that is all there can be looked at from outside.
    while restored.body().machine().paging().is_some_and(|paging| !paging.complete) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let changed = instants(&bench, &restored);
    assert!(changed > 1000, "the restored guest writes: {changed} pages");
}

/// A KVM on AMD's processors may say that it has the register of IA32_ARCH_CAPABILITIES and refuse to set it, and QEMU gives up then: the guest does without.
fn yaml(tracker: &str, kernel: &Path) -> String {
    format!(
        "name: kvm-{tracker}\ntracker: {tracker}\nnodes:\n  m1:\n    kernel: {}\n    memory: 64M\n    accel: kvm\n    cpu: host,arch-capabilities=off\n",
        kernel.display()
    )
}

#[test]
fn with_the_scan() {
    comes_back("scan");
}

#[test]
fn with_write_faults() {
    comes_back("userfault");
}

#[test]
fn with_comparison() {
    comes_back("compare");
}

#[test]
fn with_the_log_of_kvm() {
    comes_back("kvm-log");
}
