//! How the pause grows with the number of machines on one LAN that stand still together: beside stopping them one by one, and savevm on each.
//!
//! Arguments say how many machines, for a part of it: `./bench many 2 16`.

use fermata_experiment::{Asked, Run};
use fermata_net::World;
use fermata_store::Record;
use fermata_testkit::{
    Bench,
    bench::{await_console_of, console_of},
    guests,
    measure::{at_every, pick},
    report::{Report, Table, quantile},
    rival::{Rival, Stock},
};
use std::{collections::BTreeMap, thread, time::Duration};

const INTERVAL: Duration = Duration::from_secs(1);
const BOOT: Duration = Duration::from_secs(300);
const MEMORY_MIB: u32 = 128;
/// Each writes 8 MiB of memory over and over, some hundred pages a second: all of them together leave the host's processors some rest.
const WORK: &str = "work:8:300";
/// Each sends datagrams to the next one, in a ring, and gets them back: so many a second.
const DATAGRAMS: u32 = 5;
/// The name of the network as a part of a checkpoint.
const NETWORK: &str = "network";
/// From the smallest to the largest number of machines, the pause may grow by this share of how much they grow.
const GROWTH_MAX: f64 = 0.5;

/// Machines that are so near to each other are together.
const APART: Duration = Duration::from_millis(20);
/// Checkpoints that bring them there, at most.
const EVENED_MAX: usize = 60;

/// All in ms, but for bytes and frames.
struct Measured {
    machines: usize,
    together: Vec<Record>,
    in_turn: Vec<f64>,
    /// What the machines received from the LAN meanwhile.
    frames: u64,
    /// On each, one after the other.
    savevm: f64,
    /// What QEMU alone needs for all at once.
    least: f64,
}

impl Measured {
    fn pause(&self, share: f64) -> f64 {
        quantile(&self.together.iter().map(|record| record.cost.pause_ns as f64 / 1e6).collect::<Vec<_>>(), share)
    }

    /// Of stops, of goings on, and of virtual times.
    fn skews(&self, share: f64) -> [f64; 3] {
        let all: Vec<_> = self.together.iter().filter_map(|record| record.cost.skew).collect();
        let of =
            |value: fn(&fermata_store::Skew) -> u64| quantile(&all.iter().map(|skew| value(skew) as f64 / 1e6).collect::<Vec<_>>(), share);
        [of(|skew| skew.stop_ns), of(|skew| skew.resume_ns), of(|skew| skew.time_ns)]
    }

    /// The steps of the pause by name: what they took in all machines together, which overlap, and in the one in which it took longest.
    fn steps(&self) -> BTreeMap<String, [f64; 2]> {
        let mut steps = BTreeMap::<String, Vec<[f64; 2]>>::new();
        for record in &self.together {
            let mut of_one = BTreeMap::<&str, [f64; 2]>::new();
            for (name, ns) in &record.cost.steps_ns {
                let (ms, [sum, most]) = (*ns as f64 / 1e6, of_one.entry(name.rsplit(' ').next().unwrap_or_default()).or_default());
                (*sum, *most) = (*sum + ms, most.max(ms));
            }
            of_one.into_iter().for_each(|(step, values)| steps.entry(step.to_owned()).or_default().push(values));
        }
        let medians = |values: Vec<[f64; 2]>| [0, 1].map(|place| quantile(&values.iter().map(|pair| pair[place]).collect::<Vec<_>>(), 0.5));
        steps.into_iter().map(|(step, values)| (step, medians(values))).collect()
    }

    fn stored_kib(&self) -> f64 {
        quantile(&self.together.iter().map(|record| record.cost.stored_bytes as f64 / 1024.0).collect::<Vec<_>>(), 0.5)
    }

    /// Of them those of the network, with the frames in it.
    fn network_kib(&self, share: f64) -> f64 {
        let of = |record: &Record| record.cost.stored_by_part.get(NETWORK).copied().expect("the network is a part") as f64 / 1024.0;
        quantile(&self.together.iter().map(of).collect::<Vec<_>>(), share)
    }
}

fn main() {
    let mut report = Report::new("many");
    let mut all = Vec::new();
    let wanted: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    for machines in if wanted.is_empty() { pick(vec![2, 4, 8, 16, 32], vec![2, 8]) } else { wanted } {
        let measured = measure(machines);
        tell(&measured, &mut report);
        all.push(measured);
    }
    let (first, last) = (&all[0], &all[all.len() - 1]);
    let (growth, machines) = (last.pause(0.5) / first.pause(0.5), last.machines as f64 / first.machines as f64);
    let mark = (&*format!("less than {:.0} times", machines * GROWTH_MAX), growth < machines * GROWTH_MAX);
    report.mark(&format!("pause grows, at {machines} times the machines"), growth, "x", Some(("machines", machines)), mark);
    let least = last.least / first.least;
    let mark = ("no more than QEMU alone", growth <= least);
    report.mark(&format!("pause grows, at {machines} times the machines"), growth, "x", Some(("QEMU alone", least)), mark);
    let shorter = quantile(&last.in_turn, 0.5) / last.pause(0.5);
    report.mark(&format!("{} machines: one by one takes longer by", last.machines), shorter, "x", None, ("more than 1", shorter > 1.0));
    let shorter = last.savevm / last.pause(0.5);
    report.mark(&format!("{} machines: savevm on each takes longer by", last.machines), shorter, "x", None, ("more than 1", shorter > 1.0));
    report.tables.push(table(&all));
    report.note(format!("{MEMORY_MIB} MiB and one processor each; {WORK}; a checkpoint every {} s", INTERVAL.as_secs()));
    report.note(format!(
        "all on one LAN with a delay of 5 ms: each sends {DATAGRAMS} datagrams a second to the next and gets them back; every one came, once and in order"
    ));
    report.note("one by one: the same checkpoints, each machine stopped, captured and started before the next is asked");
    report.note("QEMU alone: the same guests in stock QEMU, stopped, their devices' states written and let go on, all at once: without a LAN or a look at memory");
    report.note("savevm on each: the same guests in stock QEMU, one after the other, the sum of their pauses; they have no LAN, which savevm could not save");
    report.print();
}

/// As soon as it is known: the larger ones take minutes.
fn tell(measured: &Measured, report: &mut Report) {
    let of = |what: &str| format!("{} machines: {what}", measured.machines);
    let in_turn = quantile(&measured.in_turn, 0.5);
    report.tell(&of("pause p50"), measured.pause(0.5), "ms", Some(("one by one", in_turn)));
    report.tell(&of("pause worst"), measured.pause(1.0), "ms", Some(("one by one", quantile(&measured.in_turn, 1.0))));
    report.tell(&of("pause p50"), measured.pause(0.5), "ms", Some(("savevm on each", measured.savevm)));
    report.tell(&of("pause p50"), measured.pause(0.5), "ms", Some(("QEMU alone", measured.least)));
    for (what, place) in [("stops apart", 0), ("goings on apart", 1), ("virtual times apart", 2)] {
        report.tell(&of(&format!("{what}, p50")), measured.skews(0.5)[place], "ms", None);
        report.tell(&of(&format!("{what}, worst")), measured.skews(1.0)[place], "ms", None);
    }
    report.tell(&of("stored a checkpoint, p50"), measured.stored_kib(), "KiB", None);
    report.tell(&of("of which the network, p50"), measured.network_kib(0.5), "KiB", None);
    report.tell(&of("of which the network, most"), measured.network_kib(1.0), "KiB", None);
    for (step, [sum, most]) in measured.steps() {
        report.tell(&of(&format!("{step}, all machines, p50")), sum, "ms", Some(("one of them", most)));
    }
    report.tell(&of("frames received meanwhile"), measured.frames as f64, "", None);
}

fn table(all: &[Measured]) -> Table {
    let columns = [
        "machines",
        "pause",
        "QEMU alone",
        "one by one",
        "savevm on each",
        "stops apart",
        "virtual times apart",
        "stored",
        "of the network",
    ];
    let mut rows = vec![columns.map(str::to_owned).to_vec()];
    for measured in all {
        let [stop, _, time] = measured.skews(0.5);
        let values = [measured.pause(0.5), measured.least, quantile(&measured.in_turn, 0.5), measured.savevm, stop, time];
        let bytes = [measured.stored_kib(), measured.network_kib(0.5)].map(|kib| format!("{kib:.1} KiB"));
        rows.push(std::iter::once(measured.machines.to_string()).chain(values.map(|ms| format!("{ms:.2} ms"))).chain(bytes).collect());
    }
    Table { title: "Medians".to_owned(), rows }
}

fn measure(machines: usize) -> Measured {
    let (together, in_turn, frames) = ours(machines);
    let (savevm, least) = stock(machines);
    Measured { machines, together, in_turn, frames, savevm, least }
}

/// Says how far it is, to whoever watches.
fn progress(machines: usize, what: &str) {
    eprintln!("{machines} machines {what}");
}

/// Machines on one LAN, each of which sends to the next.
fn lan(machines: usize) -> Bench {
    let address = |number: usize| format!("10.0.0.{}", number % machines + 1);
    let named = |number: usize| {
        let wire = format!("wire:listen,wire:send:{}:{DATAGRAMS}", address(number + 1));
        (format!("m{number:02}"), format!("fermata.run={WORK},{wire} fermata.ip=eth1:{}/24", address(number)))
    };
    let named: Vec<_> = (0..machines).map(named).collect();
    let nodes: Vec<_> = named.iter().map(|(name, run)| (name.as_str(), run.as_str(), "")).collect();
    let ends: Vec<_> = named.iter().map(|(name, _)| format!("\"{name}:eth1\"")).collect();
    let link = format!("links:\n  - {{lan: all, endpoints: [{}], delay: 5ms}}\n", ends.join(", "));
    Bench::new(&format!("{}{link}", guests::several("many", MEMORY_MIB, &nodes)))
}

fn ours(machines: usize) -> (Vec<Record>, Vec<f64>, u64) {
    let bench = lan(machines);
    let run = bench.boot();
    progress(machines, "boot");
    for word in ["work second 3", "wire sent"] {
        for body in run.body().machines() {
            await_console_of(body.machine(), BOOT, |text| text.contains(word).then_some(()));
        }
    }
    progress(machines, "work; checkpoints begin");
    // The first holds all that the guests have. The second is of what was written meanwhile.
    for _ in 0..2 {
        run.checkpoint(None).expect("a checkpoint");
    }
    let (before, begin) = (received(&run), run.time_virtual().ns);
    // In blocks that alternate, so that what the host does besides is shared.
    let (blocks, each) = pick((4, 6), (2, 3));
    let (mut together, mut in_turn) = (Vec::new(), Vec::new());
    for _ in 0..blocks {
        // One by one they went on one by one, too, and each pause brings them together by some of that.
        for _ in 0..EVENED_MAX {
            if taken(&run, false).cost.skew.is_none_or(|skew| u128::from(skew.time_ns) < APART.as_nanos()) {
                break;
            }
        }
        together.extend(at_every(INTERVAL, each, || taken(&run, false)));
        in_turn.extend(at_every(INTERVAL, each, || taken(&run, true).cost.pause_ns as f64 / 1e6));
    }
    for body in run.body().machines() {
        let said = console_of(body.machine());
        assert!(!said.contains("FERMATA FAIL"), "{said}");
    }
    let (received, passed) = (received(&run) - before, (run.time_virtual().ns - begin) as f64 / 1e9);
    // Each of a machine's datagrams comes to another and back; a tenth of them where guests hardly come to sending.
    let least = (machines as f64 * f64::from(DATAGRAMS) * 2.0 * passed / 10.0) as u64;
    assert!(received >= least, "{received} frames in {passed} s: the LAN did not carry what was sent");
    (together, in_turn, received)
}

/// Frames that all machines have received.
fn received(run: &Run) -> u64 {
    let body = run.body();
    let fabric = body.fabric().expect("there is a network");
    let topology = fabric.look(World::topology);
    let ends = body.machines().iter().filter_map(|machine| topology.find(machine.name(), "eth1"));
    fabric.look(|world| ends.filter_map(|end| world.counters(end)).map(|[_, into]| into.arrived.frames).sum())
}

fn taken(run: &Run, in_turn: bool) -> Record {
    run.checkpoint_as(Asked { in_turn, ..Asked::default() }, &|| true).expect("a checkpoint").1
}

/// `savevm` on each, the sum over all of them, and the least that QEMU does for a checkpoint of all at once; medians of some rounds.
fn stock(machines: usize) -> (f64, f64) {
    progress(machines, "are done with checkpoints; stock QEMU begins");
    let mut rivals: Vec<_> = (0..machines).map(|_| Stock::tiny(MEMORY_MIB, WORK).boot()).collect();
    rivals.iter().for_each(|rival| rival.await_console("work second 3"));
    let mut round = |_: usize| {
        thread::sleep(INTERVAL);
        Rival::least(&mut rivals).as_secs_f64() * 1e3
    };
    let least = quantile(&(0..pick(24, 6)).map(&mut round).collect::<Vec<_>>(), 0.5);
    let mut round = |number: usize| {
        thread::sleep(INTERVAL);
        rivals.iter_mut().map(|rival| rival.savevm(&format!("s{number}")).as_secs_f64() * 1e3).sum::<f64>()
    };
    (quantile(&(0..pick(3, 1)).map(&mut round).collect::<Vec<_>>(), 0.5), least)
}
