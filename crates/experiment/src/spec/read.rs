//! From the tree of YAML to the specification as written: which keys there are, and what sort of value each takes. Reading goes on after a fault, so
//! that one look shows them all.

use super::{
    Accel, AgentPort, Format,
    error::{Faults, Span},
    network,
    ports::Port,
    raw::{Name, RawDisk, RawNode, RawSpec, Spanned},
    services::Service,
    units::{ByteSize, Interval, shorten},
    yaml::{Data, Entry, Value},
};
use fermata_store::Keep;
use fermata_vm::{CaptureMode, FreePages, TrackerChoice};
use std::{collections::BTreeMap, str::FromStr};

const FREE: [(&str, FreePages); 3] = [("auto", FreePages::Auto), ("keep", FreePages::Keep), ("balloon", FreePages::Balloon)];

/// Reads the whole document; none when it is no experiment, or nothing is known of its machines.
pub(super) fn spec(document: Value, faults: &mut Faults) -> Option<RawSpec> {
    let mut fields = Fields::new(document, "an experiment", faults)?;
    let name = fields.required("name", "name: my-experiment", faults).and_then(|value| name(value, faults));
    // It is refused, and the rest is looked at all the same.
    let name = name.unwrap_or_else(|| Spanned::nowhere(Name("unnamed".to_owned())));
    let every = fields.take("every").and_then(|value| interval(value, faults));
    let keep = fields.take("keep").and_then(|value| parsed(value, false, Keep::EXPECTED, faults));
    let capture = fields.take("capture").and_then(|value| choice(value, &CaptureMode::NAMES, faults));
    let tracker = fields.take("tracker").and_then(|value| choice(value, &TrackerChoice::NAMES, faults));
    let full = fields.take("full").and_then(|value| boolean(value, faults));
    let free = fields.take("free").and_then(|value| choice(value, &FREE, faults));
    let defaults = fields.take("defaults").map(|value| node(value, faults));
    let nodes = fields.required("nodes", "nodes: {m1: {image: disk.qcow2}}", faults).and_then(|value| nodes(value, faults));
    let links = fields.take("links").map(|value| network::read::links(value, faults));
    let events = fields.take("events").and_then(|value| network::read::events(value, faults));
    fields.finish(faults);
    Some(RawSpec { name, every, keep, capture, tracker, full, free, defaults, nodes: nodes?, links, events })
}

fn nodes(value: Value, faults: &mut Faults) -> Option<Spanned<BTreeMap<Spanned<Name>, Option<RawNode>>>> {
    let Data::Mapping(entries) = value.data else {
        expected(&value, "a mapping of machine names to machines", faults);
        return None;
    };
    let mut nodes = BTreeMap::new();
    for entry in entries {
        let key = Value { span: entry.key_span, data: Data::Text(entry.key) };
        let name = name(key, faults);
        let node = match entry.value.data {
            Data::Null => None,
            _ => Some(node(entry.value, faults)),
        };
        if let Some(name) = name {
            nodes.insert(name, node);
        }
    }
    Some(Spanned { value: nodes, span: value.span })
}

fn node(value: Value, faults: &mut Faults) -> RawNode {
    let before = faults.found();
    let Some(mut fields) = Fields::new(value, "a machine", faults) else { return RawNode { partial: true, ..RawNode::default() } };
    let node = RawNode {
        image: fields.take("image").and_then(|value| text(value, "a path", faults)),
        memory: fields.take("memory").and_then(|value| size(value, faults)),
        cpus: fields.take("cpus").and_then(|value| whole(value, "a number of processors from 1 to 64", faults)),
        disks: fields.take_entry("disks").and_then(|entry| disks(entry, faults)),
        kernel: fields.take("kernel").and_then(|value| text(value, "a path", faults)),
        initrd: fields.take("initrd").and_then(|value| text(value, "a path", faults)),
        cmdline: fields.take("cmdline").and_then(|value| text(value, "the kernel's command line", faults)),
        accel: fields
            .take("accel")
            .and_then(|value| choice(value, &[("auto", Accel::Auto), ("kvm", Accel::Kvm), ("tcg", Accel::Tcg)], faults)),
        cpu: fields.take("cpu").and_then(|value| text(value, "a CPU model such as max", faults)),
        deterministic: fields.take("deterministic").and_then(|value| boolean(value, faults)),
        agent: fields.take("agent").and_then(|value| choice(value, &AgentPort::NAMES, faults)),
        clock: fields.take("clock").and_then(|value| network::read::clock(value, faults)),
        interfaces: fields.take("interfaces").and_then(|value| network::read::interfaces(value, faults)),
        ports: fields.take_entry("ports").and_then(|entry| ports(entry, faults)),
        services: fields.take_entry("services").and_then(|entry| services(entry, faults)),
        partial: false,
    };
    fields.finish(faults);
    RawNode { partial: faults.found() != before, ..node }
}

fn disks(entry: Entry, faults: &mut Faults) -> Option<Spanned<Vec<Spanned<RawDisk>>>> {
    let Data::List(values) = entry.value.data else {
        expected(&entry.value, "a list of disks", faults);
        return None;
    };
    let disks = values.into_iter().filter_map(|value| disk(value, faults)).collect();
    // A fault of the whole list is shown at its key: the list's own first line is only its first disk.
    Some(Spanned { value: disks, span: entry.key_span })
}

fn ports(entry: Entry, faults: &mut Faults) -> Option<Spanned<Vec<Spanned<Port>>>> {
    let Data::List(values) = entry.value.data else {
        let message = format!("expected a list of ports such as [22, \"8080:80\"], found {}", entry.value.found());
        faults.invalid(entry.value.span, "unexpected", message);
        return None;
    };
    let ports = values.into_iter().filter_map(|value| parsed(value, true, Port::EXPECTED, faults)).collect();
    Some(Spanned { value: ports, span: entry.key_span })
}

fn services(entry: Entry, faults: &mut Faults) -> Option<Spanned<Vec<Spanned<Service>>>> {
    let Data::List(values) = entry.value.data else {
        let message = format!("expected a list of services such as [ntp, dns], found {}", entry.value.found());
        faults.invalid(entry.value.span, "unexpected", message);
        return None;
    };
    let services = values.into_iter().filter_map(|value| choice(value, &Service::NAMES, faults)).collect();
    Some(Spanned { value: services, span: entry.key_span })
}

fn disk(value: Value, faults: &mut Faults) -> Option<Spanned<RawDisk>> {
    let span = value.span.clone();
    if let Data::Text(_) = value.data {
        faults.invalid(
            span,
            "expected a mapping",
            format!("expected a disk such as `image: data.raw` or `size: 4G`, found {}", value.found()),
        );
        return None;
    }
    let mut fields = Fields::new(value, "a disk", faults)?;
    let disk = RawDisk {
        image: fields.take("image").and_then(|value| text(value, "a path", faults)),
        size: fields.take("size").and_then(|value| size(value, faults)),
        format: fields.take("format").and_then(|value| choice(value, &[("raw", Format::Raw), ("qcow2", Format::Qcow2)], faults)),
        read_only: fields.take("read-only").and_then(|value| boolean(value, faults)),
    };
    fields.finish(faults);
    Some(Spanned { value: disk, span })
}

/// The keys of a mapping. It remembers which were asked for, so a reader is the only list of the keys there are.
pub(super) struct Fields {
    what: &'static str,
    span: Span,
    entries: Vec<Entry>,
    asked: Vec<&'static str>,
}

impl Fields {
    pub fn new(value: Value, what: &'static str, faults: &mut Faults) -> Option<Self> {
        let Data::Mapping(entries) = value.data else {
            expected(&value, &format!("{what} (a mapping of keys to values)"), faults);
            return None;
        };
        Some(Self { what, span: value.span, entries, asked: Vec::new() })
    }

    pub fn take(&mut self, key: &'static str) -> Option<Value> {
        self.take_entry(key).map(|entry| entry.value)
    }

    fn take_entry(&mut self, key: &'static str) -> Option<Entry> {
        self.asked.push(key);
        let index = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.swap_remove(index))
    }

    pub fn required(&mut self, key: &'static str, example: &str, faults: &mut Faults) -> Option<Value> {
        self.required_entry(key, example, faults).map(|entry| entry.value)
    }

    pub fn required_entry(&mut self, key: &'static str, example: &str, faults: &mut Faults) -> Option<Entry> {
        let entry = self.take_entry(key);
        if entry.is_none() {
            let message = format!("{} needs the key `{key}`, such as `{example}`", self.what);
            faults.invalid(self.span.clone(), format!("`{key}` is missing"), message);
        }
        entry
    }

    /// Refuses the keys that nobody asked for.
    pub fn finish(self, faults: &mut Faults) {
        for entry in self.entries {
            let key = shorten(&entry.key);
            let advice = match similar(&entry.key, &self.asked) {
                Some(similar) => format!("did you mean `{similar}`?"),
                None => format!("{} has the keys {}", self.what, self.asked.join(", ")),
            };
            faults.invalid(entry.key_span, "unknown key", format!("unknown key `{key}`; {advice}"));
        }
    }
}

/// The word that was probably meant.
pub(super) fn similar<'w>(found: &str, words: &[&'w str]) -> Option<&'w str> {
    const LENGTH_MAX: usize = 40;
    if found.len() > LENGTH_MAX {
        return None;
    }
    let found = found.to_ascii_lowercase().replace('_', "-");
    let scores = words.iter().map(|word| (strsim::normalized_damerau_levenshtein(&found, word), *word));
    scores.filter(|(score, _)| *score > 0.6).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, word)| word)
}

pub(super) fn expected(value: &Value, what: &str, faults: &mut Faults) {
    let quotes = match value.data {
        Data::Number(_) | Data::Bool(_) => "; put it in quotes if text is meant",
        _ => "",
    };
    faults.invalid(value.span.clone(), "unexpected", format!("expected {what}, found {}{quotes}", value.found()));
}

pub(super) fn text(value: Value, what: &str, faults: &mut Faults) -> Option<Spanned<String>> {
    match value.data {
        Data::Text(text) => Some(Spanned { value: text, span: value.span }),
        _ => {
            expected(&value, what, faults);
            None
        }
    }
}

pub(super) fn name(value: Value, faults: &mut Faults) -> Option<Spanned<Name>> {
    // Rules about the characters are the resolver's: they hold for what does not come from YAML too.
    text(value, "a name", faults).map(|name| Spanned { value: Name(name.value), span: name.span })
}

pub(super) fn boolean(value: Value, faults: &mut Faults) -> Option<Spanned<bool>> {
    match value.data {
        Data::Bool(flag) => Some(Spanned { value: flag, span: value.span }),
        _ => {
            faults.invalid(value.span.clone(), "unexpected", format!("expected true or false, found {}", value.found()));
            None
        }
    }
}

pub(super) fn choice<T: Copy>(value: Value, choices: &[(&'static str, T)], faults: &mut Faults) -> Option<Spanned<T>> {
    if let Data::Text(text) = &value.data
        && let Some((_, choice)) = choices.iter().find(|(word, _)| word == text)
    {
        return Some(Spanned { value: *choice, span: value.span });
    }
    let words: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
    let advice = match &value.data {
        Data::Text(text) => similar(text, &words).map(|word| format!("; did you mean {word}?")).unwrap_or_default(),
        _ => String::new(),
    };
    faults.invalid(value.span.clone(), "unexpected", format!("expected {}, found {}{advice}", words.join(" or "), value.found()));
    None
}

fn size(value: Value, faults: &mut Faults) -> Option<Spanned<ByteSize>> {
    parsed(value, true, ByteSize::EXPECTED, faults)
}

fn interval(value: Value, faults: &mut Faults) -> Option<Spanned<Interval>> {
    parsed(value, false, Interval::EXPECTED, faults)
}

pub(super) fn parsed<T: FromStr>(value: Value, numbers: bool, what: &str, faults: &mut Faults) -> Option<Spanned<T>> {
    let parsed = match &value.data {
        Data::Text(text) => text.parse().ok(),
        Data::Number(text) if numbers => text.parse().ok(),
        _ => None,
    };
    if parsed.is_none() {
        faults.invalid(value.span.clone(), "unexpected", format!("expected {what}, found {}", value.found()));
    }
    Some(Spanned { value: parsed?, span: value.span })
}

/// A number without sign and fraction.
pub(super) fn whole(value: Value, what: &str, faults: &mut Faults) -> Option<Spanned<u32>> {
    let number = match &value.data {
        Data::Number(text) => text.parse().ok(),
        _ => None,
    };
    if number.is_none() {
        faults.invalid(value.span.clone(), "unexpected", format!("expected {what}, found {}", value.found()));
    }
    Some(Spanned { value: number?, span: value.span })
}
