//! What a keeper tells Prometheus, read by a strict parser, against what the checkpoints themselves say. Takes about 20 s.

use fermata_testkit::{
    Cli,
    cli::{array, await_that, count, string},
    guests,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    time::Duration,
};

const SOON: Duration = Duration::from_secs(30);

/// Samples by name and labels.
#[derive(Debug)]
struct Scraped {
    samples: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

impl Scraped {
    /// The text format of Prometheus, version 0.0.4, with nothing in it that the format allows and we do not use. Panics at whatever else.
    fn parse(text: &str) -> Self {
        let mut samples = BTreeMap::new();
        let mut families = BTreeSet::new();
        let mut family: Option<(String, String)> = None;
        let mut lines = text.lines();
        assert!(text.ends_with('\n'), "the last line ends too");
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} "))).unwrap_or_else(|| panic!("{line}"));
                assert!(is_name(name) && name.starts_with("fermata_") && !help.is_empty(), "{line}");
                assert!(["counter", "gauge", "histogram", "summary"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(families.insert(name.to_owned()), "twice: {line}");
                family = Some((name.to_owned(), kind.to_owned()));
                continue;
            }
            let (name, labels, value) = sample(line);
            let (of, kind) = family.as_ref().unwrap_or_else(|| panic!("before any family: {line}"));
            let suffix = name.strip_prefix(of.as_str()).unwrap_or_else(|| panic!("not of {of}: {line}"));
            let fits = match kind.as_str() {
                "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix) && labels.contains_key("le") == (suffix == "_bucket"),
                "summary" => ["_sum", "_count"].contains(&suffix),
                _ => suffix.is_empty(),
            };
            assert!(fits && (value >= 0.0), "{kind}: {line}");
            assert_eq!(samples.insert((name, labels), value), None, "twice: {line}");
        }
        let scraped = Self { samples };
        scraped.check_histograms();
        scraped
    }

    /// Buckets rise with their bounds, and the last has all.
    fn check_histograms(&self) {
        let mut buckets: BTreeMap<_, Vec<(f64, f64)>> = BTreeMap::new();
        for ((name, labels), value) in &self.samples {
            if let (Some(name), Some(bound)) = (name.strip_suffix("_bucket"), labels.get("le")) {
                let mut others = labels.clone();
                others.remove("le");
                let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("a bound") };
                buckets.entry((name.to_owned(), others)).or_default().push((bound, *value));
            }
        }
        assert!(!buckets.is_empty());
        for ((name, labels), mut buckets) in buckets {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name} {labels:?}");
            let (bound, all) = buckets[buckets.len() - 1];
            assert_eq!((bound, Some(&all)), (f64::INFINITY, self.samples.get(&(format!("{name}_count"), labels))), "{name}");
        }
    }

    /// The sum of all samples of this name that have these labels.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fits = |of: &BTreeMap<String, String>| labels.iter().all(|(name, value)| of.get(*name).is_some_and(|is| is == value));
        let found: Vec<_> = self.samples.iter().filter(|((is, of), _)| is == name && fits(of)).map(|(_, value)| *value).collect();
        assert!(!found.is_empty(), "no {name} with {labels:?}");
        found.into_iter().sum()
    }
}

fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_lowercase() || c == '_';
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let (name, labels, value) = match line.split_once('{') {
        Some((name, rest)) => {
            let (labels, value) = rest.rsplit_once("} ").unwrap_or_else(|| panic!("{line}"));
            (name, labels, value)
        }
        None => {
            let (name, value) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            (name, "", value)
        }
    };
    let mut parsed = BTreeMap::new();
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (label, value) = label.split_once('=').unwrap_or_else(|| panic!("{line}"));
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or_else(|| panic!("{line}"));
        assert!(is_name(label) && !value.is_empty() && !value.contains(['"', '\\']), "{line}");
        assert_eq!(parsed.insert(label.to_owned(), value.to_owned()), None, "twice: {line}");
    }
    assert!(is_name(name), "{line}");
    (name.to_owned(), parsed, value.parse().unwrap_or_else(|_| panic!("{line}")))
}

fn get(mut stream: impl Read + Write) -> String {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: keeper\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
    body.to_owned()
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap()
}

/// What the checkpoints of the log say together.
fn logged(log: &[Value], figure: impl Fn(&Value) -> f64) -> f64 {
    log.iter().map(figure).sum()
}

#[track_caller]
fn agree(what: &str, a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-6 * b.abs().max(1e-6), "{what}: {a} in the metrics, {b} in the log");
}

#[test]
fn metrics_agree_with_the_log() {
    let cli = Cli::new();
    let image = cli.disk();
    cli.write("machine.yaml", &guests::tiny("watched", "fermata.run=tick fermata.disk=rw", &format!("    image: {}\n", image.display())));
    let address = free_port();
    cli.ok(&["up", "machine.yaml", "--every", "200ms", "--metrics", &address.to_string()]);
    cli.shell("m1", "echo more > /disk/more; sync");
    await_that("some checkpoints are taken", SOON, || array(&cli.json(&["log"])).len() >= 6);
    // A guest that is paused is left alone by the clock.
    cli.ok(&["pause"]);
    let scrape = || Scraped::parse(&get(TcpStream::connect(address).unwrap()));
    let of: [(&str, &str); 2] = [("experiment", "watched"), ("run", "main")];
    let taken = || (scrape().sum("fermata_checkpoints_total", &of), array(&cli.json(&["log"])).len() as f64);
    await_that("the last checkpoint is stored and counted", SOON, || {
        let (counted, listed) = taken();
        std::thread::sleep(Duration::from_millis(500));
        counted == listed && taken() == (counted, listed)
    });
    let (scraped, log) = (scrape(), cli.json(&["log"]));
    let log = array(&log);
    let ms = |value: &Value| value.as_f64().unwrap() / 1e3;
    agree("checkpoints", scraped.sum("fermata_pause_seconds_count", &of), log.len() as f64);
    agree("pauses", scraped.sum("fermata_pause_seconds_sum", &of), logged(log, |checkpoint| ms(&checkpoint["pause_ms"])));
    agree("saves", scraped.sum("fermata_save_seconds_sum", &of), logged(log, |checkpoint| ms(&checkpoint["save_ms"])));
    agree("bytes", scraped.sum("fermata_stored_bytes_total", &of), logged(log, |checkpoint| count(&checkpoint["stored_bytes"]) as f64));
    for class in ["unchanged", "free", "zero", "mapped", "on_disk", "known", "new"] {
        let pages = logged(log, |checkpoint| count(&checkpoint["pages"][class]) as f64);
        agree(class, scraped.sum("fermata_pages_total", &[of[0], of[1], ("class", class)]), pages);
        let blocks = logged(log, |checkpoint| count(&checkpoint["pages_by_part"]["m1/disk0"][class]) as f64);
        agree(class, scraped.sum("fermata_pages_total", &[("part", "m1/disk0"), ("class", class)]), blocks);
    }
    the_sieve_agrees(&scraped, log);
    for (name, figures) in [("pause", "steps_ms"), ("background", "background_ms")] {
        let steps: BTreeSet<_> = log.iter().flat_map(|checkpoint| checkpoint[figures].as_object().unwrap().keys()).collect();
        assert!(!steps.is_empty(), "{figures}");
        for of_step in steps {
            let (part, step) = of_step.split_once(' ').unwrap();
            let sum = scraped.sum(&format!("fermata_{name}_step_seconds_sum"), &[("part", part), ("step", step)]);
            agree(of_step, sum, logged(log, |checkpoint| checkpoint[figures].get(of_step).map_or(0.0, ms)));
        }
    }
    agree("state", scraped.sum("fermata_machine_state", &[("machine", "m1"), ("state", "paused")]), 1.0);
    agree("state", scraped.sum("fermata_machine_state", &[("machine", "m1"), ("state", "running")]), 0.0);
    assert!(scraped.sum("fermata_keeper_resident_bytes", &[]) > 1e6 && scraped.sum("fermata_keeper_open_files", &[]) > 5.0);
    journeys(&cli, string(&log[2]["id"]), &scrape);
}

/// What each class took, duplicates with their distances, and what was not stored.
fn the_sieve_agrees(scraped: &Scraped, log: &[Value]) {
    let run = ("run", "main");
    for class in ["unchanged", "free", "zero", "mapped", "on_disk", "known", "new"] {
        let took = logged(log, |checkpoint| checkpoint["sieve_ms"][class].as_f64().unwrap() / 1e3);
        agree(class, scraped.sum("fermata_sieve_seconds_total", &[run, ("class", class)]), took);
    }
    for (sieve, bytes) in log[0]["saved_bytes"].as_object().unwrap() {
        assert!(bytes.is_u64());
        let bytes = logged(log, |checkpoint| count(&checkpoint["saved_bytes"][sieve]) as f64);
        agree(sieve, scraped.sum("fermata_saved_bytes_total", &[run, ("sieve", sieve)]), bytes);
    }
    // Counts that are nothing are not told.
    let optional = |value: &Value| value.as_u64().unwrap_or(0) as f64;
    let known = logged(log, |checkpoint| count(&checkpoint["pages"]["known"]) as f64);
    let within = logged(log, |checkpoint| optional(&checkpoint["pages"]["within"]));
    agree("within", scraped.sum("fermata_duplicate_pages_total", &[run, ("checkpoint", "same")]), within);
    agree("across", scraped.sum("fermata_duplicate_pages_total", &[run, ("checkpoint", "earlier")]), known - within);
    assert!(known > within && within > 0.0, "the guest's memory has duplicates of both kinds: {known} known, {within} of the same");
    for place in 0..32 {
        let least = (1_u64 << place).to_string();
        let pages = logged(log, |checkpoint| optional(&checkpoint["pages"]["distances"][place]));
        let labels = [run, ("distance", least.as_str())];
        let told = if pages > 0.0 { scraped.sum("fermata_duplicate_distance_pages_total", &labels) } else { 0.0 };
        agree(&format!("distance {least}"), told, pages);
    }
    agree("distances", scraped.sum("fermata_duplicate_distance_pages_total", &[run]), known - within);
}

/// Counts a goto, a fork and a failure; the socket, the command and the port tell the same.
fn journeys(cli: &Cli, id: &str, scrape: &impl Fn() -> Scraped) {
    cli.ok(&["goto", id, "--paused"]);
    cli.ok(&["fork", id, "--name", "what-if", "--paused"]);
    cli.fails(&["goto", "nowhere"], 1, &["nowhere"]);
    let scraped = scrape();
    for kind in ["goto", "fork"] {
        agree(kind, scraped.sum("fermata_resume_seconds_count", &[("kind", kind)]), 1.0);
    }
    agree("failure", scraped.sum("fermata_resume_failures_total", &[("kind", "goto")]), 1.0);
    agree("runs", scraped.sum("fermata_runs", &[]), 2.0);
    assert!(scraped.sum("fermata_machine_pages_missing", &[("run", "what-if")]) + scraped.sum("fermata_machine_pages_touched", &[]) > 0.0);
    let names = |scraped: &Scraped| scraped.samples.keys().map(|(name, _)| name.clone()).collect::<BTreeSet<_>>();
    let socket = UnixStream::connect(cli.run_root().join("watched/keeper.sock")).unwrap();
    assert_eq!(names(&Scraped::parse(&get(socket))), names(&scraped));
    assert_eq!(names(&Scraped::parse(&cli.ok(&["metrics"]))), names(&scraped));
    let json = cli.json(&["metrics", "watched"]);
    let samples = array(&json).iter().flat_map(|metric| array(&metric["samples"]));
    assert_eq!(samples.map(|sample| string(&sample["name"]).to_owned()).collect::<BTreeSet<_>>(), names(&scraped));
    // What ended is not told of any more.
    cli.ok(&["down", "what-if"]);
    assert!(scrape().samples.keys().all(|(_, labels)| labels.get("run").is_none_or(|run| run != "what-if")));
}
