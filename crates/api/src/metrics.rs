//! Figures for monitoring, and the text format of Prometheus, version 0.0.4:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.
//!
//! Written by hand: all figures are plain values already, and a client library would count them a second time. Counters begin at nothing with each keeper.

use crate::{
    convert::saved_bytes,
    links,
    values::{Experiment, ExperimentState, LinkEnd, Machine, MachineState, Metric, MetricKind, Run, Sample},
};
use fermata_timeline::{
    Keeper,
    tally::{Histogram, Kind, RunTally, Steps, Tally},
};
use fermata_types::PageCounts;
use std::{collections::BTreeMap, fmt::Write, fs, time::Duration};

/// The media type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The figures of a keeper, which is this process.
pub(crate) fn of(experiment: &Experiment, keeper: &Keeper) -> Vec<Metric> {
    let tally = keeper.counted_so_far();
    let mut touched = BTreeMap::new();
    for run in keeper.runs() {
        for body in run.body().machines() {
            touched.extend(body.machine().paging().map(|paging| ((run.name().to_owned(), body.name().to_owned()), paging.touched)));
        }
    }
    let mut metrics = about_keeper(experiment, &Process::of(std::process::id()));
    metrics.extend(about_journeys(experiment, &tally));
    metrics.extend(about_machines(experiment, &touched));
    metrics.extend(about_checkpoints(experiment, &tally));
    metrics.extend(about_pages(&experiment.name, &tally));
    let links: Vec<_> = keeper.runs().iter().map(|run| (run.name().to_owned(), links::of(run))).collect();
    metrics.extend(about_links(&experiment.name, &links));
    metrics
}

/// The figures as Prometheus reads them.
pub fn text(metrics: &[Metric]) -> String {
    let mut text = String::new();
    for metric in metrics {
        let kind = format!("{:?}", metric.kind).to_lowercase();
        // Writing into a string cannot fail.
        let _ = writeln!(text, "# HELP {} {}\n# TYPE {0} {kind}", metric.name, metric.help.replace('\\', "\\\\").replace('\n', "\\n"));
        for sample in &metric.samples {
            let labels: Vec<_> = sample.labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(text, "{}{labels} {}", sample.name, sample.value);
        }
    }
    text
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

type Labels<'a> = &'a [(&'a str, &'a str)];

impl Metric {
    fn new(name: &str, kind: MetricKind, help: &str) -> Self {
        Self { name: format!("fermata_{name}"), kind, help: help.to_owned(), samples: Vec::new() }
    }

    fn add(&mut self, labels: Labels<'_>, value: f64) {
        self.sample("", labels, value);
    }

    fn sample(&mut self, suffix: &str, labels: Labels<'_>, value: f64) {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.samples.push(Sample { name: format!("{}{suffix}", self.name), labels, value });
    }

    fn with(mut self, labels: Labels<'_>, value: f64) -> Self {
        self.add(labels, value);
        self
    }

    fn histogram(&mut self, labels: Labels<'_>, histogram: &Histogram) {
        let mut below = 0;
        let bounds = histogram.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&histogram.counts) {
            below += count;
            self.sample("_bucket", &[labels, &[("le", bound.as_str())]].concat(), below as f64);
        }
        self.sample("_sum", labels, histogram.sum);
        self.sample("_count", labels, below as f64);
    }
}

/// What goes over links. It is counted in the experiment's world, which goes back with a `goto`: so none of it is a counter for Prometheus.
fn about_links(experiment: &str, runs: &[(String, Vec<LinkEnd>)]) -> Vec<Metric> {
    let new = |name: &str, help: &str| Metric::new(name, MetricKind::Gauge, help);
    let mut frames =
        new("link_frames", "Frames that an interface sent and that arrived, since the experiment began; with a goto it goes back.");
    let mut bytes = new("link_bytes", "Their bytes.");
    let mut dropped = new("link_dropped_frames", "Frames that an interface sent and that were dropped, for whatever reason.");
    let mut flying = new("link_frames_on_the_way", "Frames that an interface sent and that are on their way.");
    for (run, ends) in runs {
        for LinkEnd { interface, to, sent, .. } in ends {
            let of: Labels<'_> = &[("experiment", experiment), ("run", run), ("interface", interface), ("to", to)];
            frames.add(of, sent.counters.arrived.frames as f64);
            bytes.add(of, sent.counters.arrived.bytes as f64);
            dropped.add(of, sent.counters.dropped.total() as f64);
            flying.add(of, sent.in_flight as f64);
        }
    }
    [frames, bytes, dropped, flying].into_iter().filter(|metric| !metric.samples.is_empty()).collect()
}

/// What the kernel says of a process.
#[derive(Debug, Default)]
struct Process {
    resident_bytes: u64,
    open_files: u64,
}

impl Process {
    /// Nothing, if it is gone.
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_ascii_whitespace().next()?.parse::<u64>().ok());
        let open_files = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count() as u64);
        Self { resident_bytes: resident.unwrap_or(0) * 1024, open_files }
    }
}

fn about_keeper(experiment: &Experiment, process: &Process) -> Vec<Metric> {
    use MetricKind::Gauge;
    let of: Labels<'_> = &[("experiment", &experiment.name)];
    let build: Labels<'_> = &[of[0], ("version", env!("CARGO_PKG_VERSION"))];
    let gauge = |name: &str, help: &str, value: f64| Metric::new(name, Gauge, help).with(of, value);
    let mut metrics = vec![
        Metric::new("build_info", Gauge, "Always 1; the version is a label.").with(build, 1.0),
        gauge("runs", "Runs that the keeper holds.", experiment.runs.len() as f64),
        gauge("spare_ready", "1 if a process stands ready for the next goto or fork.", truth(experiment.spare_ready)),
        gauge("trouble", "1 if the last checkpoint by the clock failed.", truth(experiment.trouble.is_some())),
        gauge("keeper_resident_bytes", "Memory of the keeper's process.", process.resident_bytes as f64),
        gauge("keeper_open_files", "File descriptors of the keeper's process.", process.open_files as f64),
    ];
    if let Some(loading) = &experiment.loading {
        metrics.push(gauge("away_bytes", "Bytes that are still on the remote that it was swapped in from.", loading.away_bytes as f64));
        metrics.push(gauge("away_asked", "Objects that machines waited for from that remote.", loading.asked as f64));
        metrics.push(gauge("away_waiting", "1 if machines stand still until that remote can be read.", truth(loading.waiting.is_some())));
    }
    if let Some(every) = experiment.every_ms {
        metrics.push(gauge("interval_seconds", "Time between two checkpoints by the clock.", every as f64 / 1e3));
    }
    metrics
}

fn truth(so: bool) -> f64 {
    f64::from(u8::from(so))
}

fn about_journeys(experiment: &Experiment, tally: &Tally) -> Vec<Metric> {
    let name = experiment.name.as_str();
    let help = "From the request to the guest's first instruction, by what was asked for and whether a spare process stood ready.";
    let mut resumed = Metric::new("resume_seconds", MetricKind::Histogram, help);
    for ((kind, warm), histogram) in &tally.resumed {
        let spare = if *warm { "warm" } else { "cold" };
        resumed.histogram(&[("experiment", name), ("kind", word(*kind)), ("spare", spare)], histogram);
    }
    let mut failed = Metric::new("resume_failures_total", MetricKind::Counter, "Gotos, forks and revivals that failed.");
    for kind in [Kind::Goto, Kind::Fork, Kind::Revive] {
        failed.add(&[("experiment", name), ("kind", word(kind))], tally.not_resumed.get(&kind).copied().unwrap_or(0) as f64);
    }
    vec![resumed, failed]
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Goto => "goto",
        Kind::Fork => "fork",
        Kind::Revive => "revive",
    }
}

const STATES: [(MachineState, &str); 6] = [
    (MachineState::Running, "running"),
    (MachineState::Paused, "paused"),
    (MachineState::Off, "off"),
    (MachineState::Failed, "failed"),
    (MachineState::Silent, "silent"),
    (MachineState::Gone, "gone"),
];

/// `touched`: by run and machine, the pages that the guest had to wait for since it was last restored.
fn about_machines(experiment: &Experiment, touched: &BTreeMap<(String, String), u64>) -> Vec<Metric> {
    let gauge = |name: &str, help: &str| Metric::new(name, MetricKind::Gauge, help);
    let mut state = gauge("machine_state", "1 for the state that the machine is in, 0 for the others.");
    let mut starved = gauge("machine_starved_disks", "Disks whose writes wait for space in the store's file system.");
    let mut missing = gauge("machine_pages_missing", "Pages still to be brought in after a lazy restore.");
    let mut waited = gauge("machine_pages_touched", "Pages that the guest had to wait for since it was last restored.");
    let mut memory = gauge("machine_memory_bytes", "RAM of the guest.");
    let mut resident = gauge("machine_resident_bytes", "Memory of the machine's QEMU process, with the guest's RAM that is in use.");
    for (run, machine) in experiment.runs.iter().flat_map(|run: &Run| run.machines.iter().map(move |machine: &Machine| (run, machine))) {
        let of: Labels<'_> = &[("experiment", &experiment.name), ("run", &run.name), ("machine", &machine.name)];
        for (candidate, word) in STATES {
            state
                .add(&[of, &[("state", word)]].concat(), truth(experiment.state == ExperimentState::Running && candidate == machine.state));
        }
        starved.add(of, machine.starved.len() as f64);
        missing.add(of, machine.pages_missing.unwrap_or(0) as f64);
        waited.add(of, touched.get(&(run.name.clone(), machine.name.clone())).copied().unwrap_or(0) as f64);
        memory.add(of, machine.memory_bytes as f64);
        resident.add(of, Process::of(machine.pid).resident_bytes as f64);
    }
    vec![state, starved, missing, waited, memory, resident]
}

fn about_checkpoints(experiment: &Experiment, tally: &Tally) -> Vec<Metric> {
    use MetricKind::{Counter, Histogram, Summary};
    let mut taken = Metric::new("checkpoints_total", Counter, "Checkpoints taken and stored.");
    let mut failed = Metric::new("checkpoint_failures_total", Counter, "Checkpoints that failed.");
    let mut stored = Metric::new("stored_bytes_total", Counter, "Bytes that checkpoints added to the store.");
    let mut pause = Metric::new("pause_seconds", Histogram, "How long the guests stood still for a checkpoint.");
    let mut skew = Metric::new("skew_seconds", Histogram, "From the first machine's stop, or going on, to the last one's in a pause.");
    let mut save = Metric::new("save_seconds", Histogram, "How long storing a checkpoint took behind the running guests.");
    let mut steps = Metric::new("pause_step_seconds", Summary, "What the pause was spent on.");
    let mut background =
        Metric::new("background_step_seconds", Summary, "What the work around the pause was spent on, while the guests ran.");
    for (run, counted) in &tally.runs {
        let RunTally { failed: failures, pause: pauses, skew: skews, save: saves, steps: pause_steps, background: around, .. } = counted;
        let of: Labels<'_> = &[("experiment", &experiment.name), ("run", run)];
        taken.add(of, pauses.count() as f64);
        failed.add(of, *failures as f64);
        stored.add(of, counted.stored_bytes as f64);
        pause.histogram(of, pauses);
        for (of_what, histogram) in ["stop", "resume"].into_iter().zip(skews).filter(|(_, histogram)| histogram.count() > 0) {
            skew.histogram(&[of, &[("of", of_what)]].concat(), histogram);
        }
        save.histogram(of, saves);
        add_steps(&mut steps, of, pause_steps);
        add_steps(&mut background, of, around);
    }
    vec![taken, failed, stored, pause, skew, save, steps, background]
}

/// How pages fell through the sieve.
fn about_pages(experiment: &str, tally: &Tally) -> Vec<Metric> {
    let counter = |name: &str, help: &str| Metric::new(name, MetricKind::Counter, help);
    let mut sieve = counter("sieve_seconds_total", "What telling each class of pages took, the storing of new ones with it.");
    let mut pages = counter("pages_total", "Pages of checkpoints by part and by the sieve that they stuck in.");
    let mut duplicates = counter("duplicate_pages_total", "Known pages: put before in the same checkpoint, or by an earlier one.");
    let help = "Known pages of earlier checkpoints by how many checkpoints ago they were stored: from the label's value up to, not with, its double.";
    // No histogram: it would have to know the sum of all distances, and what is known of each is its power of two.
    let mut distances = counter("duplicate_distance_pages_total", help);
    let mut saved = counter("saved_bytes_total", "Bytes of written pages that were not stored, by the sieve that kept them out.");
    for (run, RunTally { sieve: times, pages: parts, compressed_away, .. }) in &tally.runs {
        let of: Labels<'_> = &[("experiment", experiment), ("run", run)];
        for (class, ns) in times.classes() {
            sieve.add(&[of, &[("class", class)]].concat(), Duration::from_nanos(ns).as_secs_f64());
        }
        let mut all = PageCounts::default();
        for (part, counts) in parts {
            let of = [of, &[("part", part)]].concat();
            for (class, count) in counts.classes() {
                pages.add(&[of.as_slice(), &[("class", class)]].concat(), count as f64);
            }
            for (of_what, count) in [("same", counts.within), ("earlier", counts.known.saturating_sub(counts.within))] {
                duplicates.add(&[of.as_slice(), &[("checkpoint", of_what)]].concat(), count as f64);
            }
            for (least, count) in counts.distances.iter() {
                distances.add(&[of.as_slice(), &[("distance", &least.to_string())]].concat(), count as f64);
            }
            all += *counts;
        }
        for (of_what, bytes) in saved_bytes(&all, *compressed_away).sieves() {
            saved.add(&[of, &[("sieve", of_what)]].concat(), bytes as f64);
        }
    }
    vec![sieve, pages, duplicates, distances, saved]
}

fn add_steps(metric: &mut Metric, of: Labels<'_>, steps: &Steps) {
    for (step, total) in steps {
        let (part, step) = step.split_once(' ').unwrap_or(("", step));
        let of = [of, &[("part", part), ("step", step)]].concat();
        metric.sample("_sum", &of, total.sum);
        metric.sample("_count", &of, total.count as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_helps_cannot_break_out() {
        let mut metric = Metric::new("odd", MetricKind::Gauge, "a\nb\\c");
        metric.add(&[("run", "say \"hi\"\\\n")], 0.5);
        let expected = "# HELP fermata_odd a\\nb\\\\c\n# TYPE fermata_odd gauge\nfermata_odd{run=\"say \\\"hi\\\"\\\\\\n\"} 0.5\n";
        assert_eq!(text(&[metric]), expected);
    }

    #[test]
    fn buckets_count_all_below() {
        let mut metric = Metric::new("pause_seconds", MetricKind::Histogram, "Pauses.");
        metric.histogram(&[], &Histogram { bounds: &[0.001, 0.01], counts: vec![1, 2, 3], sum: 1.25 });
        let expected = "\
# HELP fermata_pause_seconds Pauses.
# TYPE fermata_pause_seconds histogram
fermata_pause_seconds_bucket{le=\"0.001\"} 1
fermata_pause_seconds_bucket{le=\"0.01\"} 3
fermata_pause_seconds_bucket{le=\"+Inf\"} 6
fermata_pause_seconds_sum 1.25
fermata_pause_seconds_count 6
";
        assert_eq!(text(&[metric]), expected);
    }

    #[test]
    fn pages_are_told_by_distance_and_by_what_kept_them_out() {
        let mut tally = Tally::default();
        let mut ram = PageCounts { zero: 2, known: 5, within: 1, new: 3, ..PageCounts::default() };
        [1, 4, 5, 7].into_iter().for_each(|distance| ram.distances.add(distance));
        let disk = PageCounts { zero: 1, on_disk: 8, ..PageCounts::default() };
        let parts = [("m1".to_owned(), ram), ("m1/disk0".to_owned(), disk)].into();
        tally.runs.insert("main".to_owned(), RunTally { pages: parts, compressed_away: 77, ..RunTally::default() });
        let text = text(&about_pages("tryout", &tally));
        let (of, part) = ("experiment=\"tryout\"", "part=\"m1\",run=\"main\"");
        for line in [
            format!("duplicate_distance_pages_total{{distance=\"1\",{of},{part}}} 1"),
            format!("duplicate_distance_pages_total{{distance=\"4\",{of},{part}}} 3"),
            format!("duplicate_pages_total{{checkpoint=\"same\",{of},{part}}} 1"),
            format!("duplicate_pages_total{{checkpoint=\"earlier\",{of},{part}}} 4"),
            format!("saved_bytes_total{{{of},run=\"main\",sieve=\"zero\"}} {}", 3 * 4096),
            format!("saved_bytes_total{{{of},run=\"main\",sieve=\"on_disk\"}} {}", 8 * 4096),
            format!("saved_bytes_total{{{of},run=\"main\",sieve=\"across\"}} {}", 4 * 4096),
            format!("saved_bytes_total{{{of},run=\"main\",sieve=\"compression\"}} 77"),
        ] {
            assert!(text.contains(&format!("\nfermata_{line}\n")), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn this_process_has_memory_and_files() {
        let process = Process::of(std::process::id());
        assert!(process.resident_bytes > 0 && process.open_files > 0, "{process:?}");
    }
}
