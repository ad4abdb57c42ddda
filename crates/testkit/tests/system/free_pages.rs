//! Pages that are free in the guest are left out of checkpoints, found without its help, and nobody misses them. About a minute.

use crate::matrix::newer_qemu;
use fermata_experiment::{Journey, Run, Status};
use fermata_store::VerifyOptions;
use fermata_testkit::{
    Bench, Cli, Snapshot,
    bench::{await_console, check_file_system, console, shell_output},
    cli::{await_that, count, string},
    guests, is_long, oracle,
};
use fermata_types::{PAGE_SIZE, PageBuf, PageNumber, PageSet, Use, ZERO_PAGE};
use serde_json::Value;
use std::{path::PathBuf, time::Duration};

const BOOT: Duration = Duration::from_secs(120);
const PAUSED: Journey = Journey { eager: true, paused: true, fresh_randomness: false, perturbation: None };
const RUNNING: Journey = Journey { eager: false, paused: false, fresh_randomness: false, perturbation: None };
/// Pages of the file that is written and removed.
const FILE_PAGES: u64 = 12_288;
const INSTANTS: usize = 5;

/// Where Linux lies if nobody moves it (KASLR).
const UNMOVED: &str = "ffffffff81000000";

/// Kernel, what it is told besides, and the QEMU that it needs, where that is not the host's: the translator of QEMU 7 does not run Linux 6.12 reliably.
/// Debian's cloud kernels cannot poison.
fn kernels() -> Vec<(&'static str, &'static str, Option<PathBuf>)> {
    const NEWER: &str = "linux-6.12/";
    let newer = newer_qemu().filter(|_| guests::directory().join(NEWER).join("vmlinuz").exists());
    let mut kernels = vec![("generic/", "page_poison=1", None)];
    // What one kernel does with memory that is given back, the other does, too.
    if is_long() || newer.is_none() {
        kernels.push(("generic/", "init_on_free=1", None));
    }
    match newer {
        Some(qemu) => kernels.push((NEWER, "init_on_free=1", Some(qemu))),
        None => fermata_testkit::skipped!("{NEWER}, for want of what guests/build takes from Debian's backports"),
    }
    kernels
}

#[test]
fn what_was_written_and_given_back_is_not_kept() {
    for (number, (directory, told, qemu)) in kernels().into_iter().enumerate() {
        let mut cli = Cli::new();
        if let Some(qemu) = qemu {
            cli.set("FERMATA_QEMU", qemu);
        }
        let more = format!("    image: {}\n", cli.disk().display());
        let spec = guests::busybox("free", directory, &format!("{told} fermata.run=selfcheck:16:4 fermata.disk=rw"), &more);
        cli.write("machine.yaml", &spec);
        cli.ok(&["up", "machine.yaml"]);
        await_that("the guest is up", BOOT, || cli.run(&["exec", "m1", "--", "true"]).status.success());
        cli.checkpoint("before");
        let bytes = FILE_PAGES * PAGE_SIZE as u64;
        cli.shell(
            "m1",
            &format!("head -c {bytes} /dev/urandom > /run/large; head -c 100000 /run/large > /run/kept; md5sum < /run/kept > /run/sum"),
        );
        cli.shell("m1", "rm /run/large");
        let id = cli.checkpoint("after");
        let seen = cli.json(&["show", &id]);
        let (uses, classes) = (&seen["composition"]["m1"]["pages"], &seen["pages_by_part"]["m1"]);
        assert_eq!(uses.as_object().into_iter().flatten().map(|(_, pages)| count(pages)).sum::<u64>(), 65_536, "{seen}");
        // What the kernel counts itself, in KiB, a moment later.
        let counted =
            |name: &str| cli.shell("m1", &format!("awk '/^{name}:/ {{print $2}}' /proc/meminfo")).parse::<u64>().expect("a number") / 4;
        for (name, of) in [("MemFree", "free"), ("Slab", "slab"), ("PageTables", "page_tables")] {
            let (theirs, ours) = (counted(name), count(&uses[of]));
            assert!(theirs.abs_diff(ours) <= theirs / 10 + 300, "{directory}: {name} has {theirs} pages, and we find {ours}");
        }
        assert!(count(&uses["free"]) > 20_000 && count(&uses["slab"]) > 200 && count(&uses["page_tables"]) > 20, "{uses}");
        assert!(count(&uses["anonymous"]) > 4_000, "{uses}");
        // None of what was in the file can be compressed, nor what the guest's program writes meanwhile, which is a third of it. With `page_poison` nothing of it
        // is left in memory: its pages hold a pattern, which is kept once.
        assert!(count(&classes["new"]) < FILE_PAGES * 3 / 4, "{directory}: {seen}");
        let class = if told.contains("page_poison") { "known" } else { "free" };
        assert!(count(&classes[class]) > FILE_PAGES / 2, "{directory} {class}: {classes}");
        for how in [&["goto", id.as_str()][..], &["goto", "--eager", id.as_str()]] {
            cli.ok(how);
            let wanted = "dmesg | grep -cE 'pagealloc|corruption|Bad page|Oops|BUG:' || true";
            // Free pages are taken again, all of them, and are zero: with `init_on_free` the kernel believes that they are.
            cli.shell("m1", "/work/zeros");
            assert_eq!(cli.shell("m1", &format!("test \"$(md5sum < /run/kept)\" = \"$(cat /run/sum)\" && {wanted}")), "0");
            let rounds = || cli.console("main").matches("selfcheck round").count();
            let before = rounds();
            await_that("it checks itself", BOOT, || cli.console("main").contains("FAIL") || rounds() >= before + 2);
            assert!(!cli.console("main").contains("FAIL"), "{}", cli.console("main"));
            assert_eq!(cli.shell("m1", wanted), "0");
        }
        if number == 0 || is_long() {
            boots_anew(&cli);
        }
        cli.ok(&["down"]);
    }
}

/// Another boot, on the way of which nothing is known of its pages, and after which the kernel lies elsewhere.
fn boots_anew(cli: &Cli) {
    let place = || cli.shell("m1", "awk '$3 == \"_text\" {print $1}' /proc/kallsyms");
    let before = place();
    unknown_before_boot(cli);
    assert!(
        before.len() == UNMOVED.len() && [before, place()].iter().any(|place| place != UNMOVED),
        "the kernel lies where it always does"
    );
}

/// A guest that has not come so far, since its restart, has not told; and it is captured as it is.
fn unknown_before_boot(cli: &Cli) {
    cli.shell("m1", "(sleep 0.2; reboot -f) < /dev/null > /dev/null 2>&1 &");
    let composition = |id: &str| -> Value { cli.json(&["show", id])["composition"]["m1"].clone() };
    await_that("it restarts", BOOT, || {
        let seen = composition(&cli.checkpoint("restarting"));
        seen["unknown"].is_string() && string(&seen["unknown"]).contains("qemu_fw_cfg")
    });
    await_that("it has told again", BOOT, || composition(&cli.checkpoint("restarted"))["pages"].is_object());
}

/// All that is not free comes back as it was, at instants under load; and the guest goes on with a clean file system.
#[test]
fn what_is_not_free_comes_back_as_it_was() {
    let disk = guests::file("tiny-disk.raw");
    let node = format!("    image: {}\n    cpus: 2\n", disk.display());
    let run = "fermata.run=work:32:20000:512,selfcheck:16:4 fermata.disk=rw";
    let bench = Bench::new(&("capture: cow\nfull: true\n".to_owned() + &guests::tiny("not-free", run, &node)));
    let run = bench.boot();
    let rounds = |text: &str| text.matches("selfcheck round").count();
    await_console(&run.body(), BOOT, |text| (text.contains("FAIL") || rounds(text) > 1).then_some(()));
    let (mut newest, mut left_out) = (None, 0);
    for number in 0..INSTANTS {
        std::thread::sleep(Duration::from_millis(170 * number as u64));
        let mut original = None;
        let (id, record) = run.checkpoint_observed(None, &mut |body| original = Some(Snapshot::of(body))).expect("a checkpoint");
        let original = original.expect("the pause was seen");
        // Read at once from the memory that stood still, and behind the guest from what was captured: the same.
        assert_eq!(record.cost.composition["m1"].of(Use::Free), original.free.len(), "{:?}", record.cost.composition);
        let copy = Snapshot::of(&bench.arrive("copy", &id, &record, PAUSED).body());
        let differences = original.differences_beside(&copy, &oracle::left_out(&run.body()));
        assert!(differences.is_empty(), "instant {number}: {differences:?}");
        let kept = original.free.iter().filter(|page| copy.ram[*page as usize] != ZERO_PAGE).count();
        assert_eq!(kept, 0, "instant {number}: free pages that are not zero");
        left_out += record.cost.parts["m1"].free;
        newest = Some((id, record));
    }
    assert!(left_out > 1000, "{left_out} pages");
    what_the_kernel_says_of_each_page(&run);
    let (id, record) = newest.expect("there were some");
    drop(run);
    let back = bench.arrive("back", &id, &record, RUNNING);
    await_console(&back.body(), BOOT, |text| (text.contains("FAIL") || rounds(text) > 2).then_some(()));
    assert!(!console(&back.body()).contains("FAIL"), "{}", console(&back.body()));
    // Its pages are still in the store, and so is what they are for.
    let (_, record) = back.checkpoint(None).expect("a checkpoint after the journey");
    assert!(record.cost.composition["m1"].of(Use::Free) > 1000, "{:?}", record.cost.composition);
    check_file_system(&back.body());
}

/// Bits of `/proc/kpageflags` (`include/uapi/linux/kernel-page-flags.h`).
const KPF_BUDDY: u64 = 1 << 10;
/// Slab, anonymous, a page table. Not the page cache, which comes and goes with the files that the guest's programs write anew.
const KPF_IN_USE: u64 = 1 << 7 | 1 << 12 | 1 << 26;

/// What the guest's kernel itself says of its pages, before and after we look at them from outside.
fn what_the_kernel_says_of_each_page(run: &Run) {
    let body = run.body();
    let flags = || {
        let text = shell_output(body.machine(), BOOT, "od -v -An -t x4 /proc/kpageflags");
        let words = String::from_utf8(text).expect("text");
        let words: Vec<_> = words.split_ascii_whitespace().map(|word| u64::from_str_radix(word, 16).expect("a number")).collect();
        words.as_chunks::<2>().0.iter().map(|[low, high]| low | high << 32).collect::<Vec<_>>()
    };
    // What works on takes and gives back pages between the looks.
    shell_output(body.machine(), BOOT, "killall -STOP work selfcheck && sync");
    let before = flags();
    let mut seen = None;
    run.checkpoint_observed(None, &mut |body| seen = Some(Snapshot::of(body).free)).expect("a checkpoint");
    let free = seen.expect("the pause was seen");
    let after = flags();
    shell_output(body.machine(), BOOT, "killall -CONT work selfcheck");
    assert!(before.len() >= 60_000 && after.len() == before.len(), "{} pages", before.len());
    let throughout = |bits: u64| -> Vec<PageNumber> {
        let pages = (0..before.len()).filter(|page| before[*page] & bits != 0 && after[*page] & bits != 0);
        pages.map(|page| page as PageNumber).collect()
    };
    let (in_use, buddy) = (throughout(KPF_IN_USE), throughout(KPF_BUDDY));
    assert!(in_use.len() > 10_000 && buddy.len() > 1_000, "{} in use, {} free", in_use.len(), buddy.len());
    let wrong: Vec<_> = in_use.iter().filter(|page| free.contains(**page)).collect();
    // Programs end and begin: a page may have been given back and taken again between the two looks.
    assert!(wrong.len() <= in_use.len() / 50, "taken for free, and in use: {wrong:?}");
    let found = buddy.iter().filter(|page| free.contains(**page)).count();
    println!(
        "{} pages in use and {} free by the kernel's word, {found} of these found; {} of the others taken for free",
        in_use.len(),
        buddy.len(),
        wrong.len()
    );
    assert!(found >= buddy.len() * 98 / 100, "{found} of {} free pages were found", buddy.len());
}

/// A guest whose kernel tells what is not so, and another one in the same store.
#[test]
fn a_guest_that_lies_about_its_pages_harms_itself_alone() {
    let bench = Bench::new(&("full: true\n".to_owned() + &guests::tiny("liar", "fermata.run=selfcheck:16:4", "")));
    let (honest, liar) = (bench.boot(), bench.boot_as("liar"));
    [&honest, &liar].into_iter().for_each(|run| await_console(&run.body(), BOOT, ready));
    a_forged_note_harms_nobody(&bench, &honest, &liar);
    pages_that_are_said_to_be_free_are_believed(&bench, &honest, &liar);
}

/// What the console of one says that has looked at its memory twice.
fn ready(text: &str) -> Option<()> {
    (text.contains("FAIL") || text.matches("selfcheck round").count() > 1).then_some(())
}

/// A kernel whose note was written over has its pages told wrongly, or not at all. Checkpoints go on, and another guest in the same store is as it was.
fn a_forged_note_harms_nobody(bench: &Bench, honest: &Run, forger: &Run) {
    let (id, record) = honest.checkpoint(None).expect("a checkpoint");
    let body = forger.body();
    let ram = body.machine().ram();
    let (note, page) = note(forger);
    // Kernels lie elsewhere at each boot (KASLR), and are read all the same.
    let place = |note: &PageBuf| -> Vec<String> {
        let text = String::from_utf8_lossy(note).into_owned();
        text.lines().filter(|line| line.starts_with("KERNELOFFSET=") || line.starts_with("NUMBER(phys_base)=")).map(str::to_owned).collect()
    };
    assert_eq!(place(&page).len(), 2, "{}", String::from_utf8_lossy(&page));
    assert_ne!(place(&page), place(&self::note(honest).1), "both kernels lie at the same place");
    body.machine().stop().expect("it stops");
    let lines: [(&[u8], u8); 3] = [(b"OFFSET(page._mapcount)=", b'5'), (b"SIZE(page)=", b'3'), (b"SYMBOL(init_top_pgt)=", b'1')];
    for (line, by) in lines {
        let at = page.windows(line.len()).position(|window| window == line).expect("a line of the note") + line.len();
        let mut forged = page;
        forged[at] = by;
        ram.write_at(note, &forged).expect("it can be written");
        let (_, record) = forger.checkpoint(None).expect("a checkpoint");
        assert!(record.cost.composition["m1"].unknown.is_some(), "{at}: {:?}", record.cost.composition);
    }
    ram.write_at(note, &page).expect("it can be written");
    let (_, told) = forger.checkpoint(None).expect("a checkpoint");
    assert_eq!(told.cost.composition["m1"].unknown, None);
    assert_eq!(body.machine().status(), Status::Paused);
    let back = bench.arrive("back", &id, &record, RUNNING);
    await_console(&back.body(), BOOT, ready);
    for run in [honest, &back] {
        assert!(!console(&run.body()).contains("FAIL"), "{}", console(&run.body()));
        assert_eq!(run.body().machine().status(), Status::Running);
    }
    body.machine().run().expect("it goes on");
}

/// Where a kernel's note lies in RAM, and the page.
fn note(run: &Run) -> (u64, PageBuf) {
    let body = run.body();
    let ram = body.machine().ram();
    let mut page = [0; PAGE_SIZE];
    let mut pages = (0..ram.bytes()).step_by(PAGE_SIZE);
    let at = pages.find(|at| ram.read_at(*at, &mut page).is_ok() && page[12..].starts_with(b"VMCOREINFO\0")).expect("it has a note");
    (at, page)
}

/// Descriptors of pages in Linux 6.1 and 6.12 for x86-64: 64 bytes each, those of 128 MiB together.
const DESCRIPTOR: u64 = 64;
const SECTION: u64 = (128 << 20) / PAGE_SIZE as u64;
const MAPPING: usize = 24;
const ORDER: usize = 40;
const MAPCOUNT: usize = 48;
const REFCOUNT: usize = 52;
/// The map count of a block of free pages in Linux 6.1.
const BUDDY: u32 = 0xffff_ff7f;
/// Pages that are said to be free: few enough for the kernel's own count to agree.
const LIES: usize = 80;
/// How long it goes on from one checkpoint to the next.
const GOES_ON: Duration = Duration::from_millis(700);

/// A kernel that says that pages are free which its programs use is believed, and has itself to blame.
fn pages_that_are_said_to_be_free_are_believed(bench: &Bench, honest: &Run, liar: &Run) {
    let (honest_id, honest_record) = honest.checkpoint(None).expect("a checkpoint");
    liar.pause().expect("it stops");
    let before = Snapshot::of(&liar.body());
    let lied = lie(liar, &before);
    let (id, record) = liar.checkpoint(None).expect("a checkpoint");
    assert_eq!(record.cost.composition["m1"].of(Use::Free), before.free.len() + LIES as u64, "{:?}", record.cost.composition);
    let copy = Snapshot::of(&bench.arrive("copy", &id, &record, PAUSED).body());
    assert!(lied.iter().all(|page| before.ram[*page as usize] != ZERO_PAGE && copy.ram[*page as usize] == ZERO_PAGE));
    // Wherever it goes from there, nobody else is touched.
    let wrong = bench.arrive("wrong", &id, &record, RUNNING);
    let right = bench.arrive("right", &honest_id, &honest_record, RUNNING);
    await_console(&right.body(), BOOT, ready);
    for run in [honest, &right] {
        assert!(!console(&run.body()).contains("FAIL"), "{}", console(&run.body()));
        assert_eq!(run.body().machine().status(), Status::Running);
    }
    let verified = bench.host.store().verify(&VerifyOptions::default(), &mut |_, _| {}).expect("the store can be read");
    assert!(verified.damage.is_empty(), "{:?}", verified.damage);
    // It goes on itself, and its programs and its kernel write to the same pages; whatever becomes of it, it can be captured.
    liar.resume().expect("it goes on");
    for _ in 0..2 {
        std::thread::sleep(GOES_ON);
        let (id, record) = liar.checkpoint(None).expect("a checkpoint");
        bench.arrive("again", &id, &record, PAUSED);
    }
    await_console(&right.body(), BOOT, |text| (text.contains("FAIL") || text.matches("selfcheck round").count() > 3).then_some(()));
    let (id, record) = honest.checkpoint(None).expect("a checkpoint");
    let honest_again = bench.arrive("honest-again", &id, &record, RUNNING);
    await_console(&honest_again.body(), BOOT, ready);
    for run in [honest, &right, &honest_again] {
        assert!(!console(&run.body()).contains("FAIL"), "{}", console(&run.body()));
    }
    let verified = bench.host.store().verify(&VerifyOptions::default(), &mut |_, _| {}).expect("the store can be read");
    assert!(verified.damage.is_empty(), "{:?}", verified.damage);
    drop(wrong);
}

/// Has the kernel of a machine that stands still say that pages of programs are free. Which ones.
fn lie(run: &Run, seen: &Snapshot) -> Vec<PageNumber> {
    let body = run.body();
    let ram = body.machine().ram();
    let sections = ram.bytes() / PAGE_SIZE as u64 / SECTION;
    let field = |descriptor: &[u8], at: usize| u32::from_le_bytes(descriptor[at..at + 4].try_into().expect("four bytes"));
    let mut lied = Vec::new();
    for section in 0..sections {
        let first = section * SECTION;
        let section = || first as PageNumber..(first + SECTION) as PageNumber;
        let free: PageSet = section().filter(|page| seen.free.contains(*page)).collect();
        let mut descriptors = vec![0; (SECTION * DESCRIPTOR) as usize];
        // They lie where the blocks that they tell of are the section's free pages.
        let mut tells = |at: u64| {
            ram.read_at(at, &mut descriptors).expect("RAM can be read");
            let blocks = section().zip(descriptors.chunks(DESCRIPTOR as usize)).filter(|(_, one)| field(one, MAPCOUNT) == BUDDY);
            let pages: PageSet = blocks.flat_map(|(page, one)| page..page.saturating_add(1 << field(one, ORDER).min(10))).collect();
            pages == free
        };
        let step = (SECTION * DESCRIPTOR) as usize;
        let Some(place) = (0..=ram.bytes() - step as u64).step_by(step).find(|at| !free.is_empty() && tells(*at)) else { continue };
        ram.read_at(place, &mut descriptors).expect("RAM can be read");
        for (page, one) in (first..).zip(descriptors.chunks_mut(DESCRIPTOR as usize)) {
            let anonymous = field(one, REFCOUNT) == 1 && field(one, MAPCOUNT) == 0 && one[MAPPING] & 1 == 1;
            if lied.len() < LIES && anonymous && seen.ram[page as usize] != ZERO_PAGE {
                one[MAPCOUNT..][..4].copy_from_slice(&BUDDY.to_le_bytes());
                one[REFCOUNT..][..4].copy_from_slice(&0_u32.to_le_bytes());
                one[ORDER..][..8].fill(0);
                lied.push(page as PageNumber);
            }
        }
        ram.write_at(place, &descriptors).expect("RAM can be written");
    }
    assert_eq!(lied.len(), LIES);
    lied
}
