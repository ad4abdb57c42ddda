//! From the tree of YAML to links, interfaces and events as written.

use super::{
    super::{
        error::Faults,
        raw::{Name, Spanned},
        read::{Fields, boolean, choice, expected, name, parsed, text, whole},
        yaml::{Data, Entry, Value},
    },
    quantities::{Clock, Ipv4, Percent, Rate, Time},
    raw::{InterfaceName, RawBack, RawEndpoint, RawEvent, RawInterface, RawLink, RawShape},
};
use fermata_net::Discipline;
use std::collections::BTreeMap;

const ENDPOINT: &str = "an interface such as \"a:eth1\"";
const MAC: &str = "an Ethernet address such as 02:5f:00:00:00:01";

/// The key `links`. A link that could not be read is among them.
pub(in crate::spec) fn links(value: Value, faults: &mut Faults) -> Vec<Spanned<RawLink>> {
    let Data::List(values) = value.data else {
        expected(&value, "a list of links", faults);
        return vec![Spanned { value: RawLink::unread(), span: value.span }];
    };
    let link = |value: Value| {
        let span = value.span.clone();
        Spanned { value: link(value, faults).unwrap_or_else(RawLink::unread), span }
    };
    values.into_iter().map(link).collect()
}

/// The key `events`.
pub(in crate::spec) fn events(value: Value, faults: &mut Faults) -> Option<Vec<Spanned<RawEvent>>> {
    let Data::List(values) = value.data else {
        expected(&value, "a list of events", faults);
        return None;
    };
    let event = |value: Value| {
        let span = value.span.clone();
        event(value, faults).map(|value| Spanned { value, span })
    };
    Some(values.into_iter().filter_map(event).collect())
}

/// The key `clock` of a machine.
pub(in crate::spec) fn clock(value: Value, faults: &mut Faults) -> Option<Spanned<Clock>> {
    parsed(value, false, Clock::EXPECTED, faults)
}

/// The key `interfaces` of a machine.
pub(in crate::spec) fn interfaces(value: Value, faults: &mut Faults) -> Option<BTreeMap<Spanned<InterfaceName>, RawInterface>> {
    let Data::Mapping(entries) = value.data else {
        expected(&value, "a mapping of interfaces such as eth1 to their addresses", faults);
        return None;
    };
    let read = |Entry { key, key_span, value }, faults: &mut Faults| {
        let mut fields = Fields::new(value, "an interface", faults)?;
        let interface = RawInterface {
            mac: fields.take("mac").and_then(|value| parsed(value, false, MAC, faults)),
            ipv4: fields.take("ipv4").and_then(|value| parsed(value, false, Ipv4::EXPECTED, faults)),
        };
        fields.finish(faults);
        Some((Spanned { value: InterfaceName(key), span: key_span }, interface))
    };
    Some(entries.into_iter().filter_map(|entry| read(entry, faults)).collect())
}

fn link(value: Value, faults: &mut Faults) -> Option<RawLink> {
    let mut fields = Fields::new(value, "a link", faults)?;
    let lan = fields.take("lan").and_then(|value| name(value, faults));
    let before = faults.found();
    let endpoints =
        fields.required_entry("endpoints", "endpoints: [\"a:eth1\", \"b:eth1\"]", faults).and_then(|entry| endpoints(entry, faults));
    let lost = faults.found() != before;
    let mtu = fields.take("mtu").and_then(|value| whole(value, "a number of bytes from 68 to 9216", faults));
    let before = faults.found();
    let mut shape = shape(&mut fields, faults);
    let back = fields.take("back").and_then(|value| back(value, faults));
    fields.finish(faults);
    // A key that is none may have been meant for one of these.
    shape.partial = faults.found() != before;
    Some(RawLink { lan, endpoints: endpoints.unwrap_or_else(|| Spanned::nowhere(Vec::new())), mtu, shape, back, lost })
}

fn endpoints(entry: Entry, faults: &mut Faults) -> Option<Spanned<Vec<Spanned<RawEndpoint>>>> {
    let Data::List(values) = entry.value.data else {
        expected(&entry.value, "a list of interfaces such as [\"a:eth1\", \"b:eth1\"]", faults);
        return None;
    };
    let endpoints = values.into_iter().filter_map(|value| endpoint(value, faults)).collect();
    Some(Spanned { value: endpoints, span: entry.key_span })
}

fn endpoint(value: Value, faults: &mut Faults) -> Option<Spanned<RawEndpoint>> {
    // Without quotes and with a space, `a: eth1` is a mapping.
    text(value, ENDPOINT, faults).map(|text| Spanned { value: RawEndpoint(text.value), span: text.span })
}

fn back(value: Value, faults: &mut Faults) -> Option<RawBack> {
    let mut fields = Fields::new(value, "the way back", faults)?;
    let before = faults.found();
    let shape = shape(&mut fields, faults);
    fields.finish(faults);
    Some(RawBack { shape: RawShape { partial: faults.found() != before, ..shape } })
}

fn shape(fields: &mut Fields, faults: &mut Faults) -> RawShape {
    RawShape {
        rate: fields.take("rate").and_then(|value| parsed(value, false, Rate::EXPECTED, faults)),
        delay: fields.take("delay").and_then(|value| parsed(value, false, Time::EXPECTED, faults)),
        jitter: fields.take("jitter").and_then(|value| parsed(value, false, Time::EXPECTED, faults)),
        loss: fields.take("loss").and_then(|value| parsed(value, false, Percent::EXPECTED, faults)),
        duplicate: fields.take("duplicate").and_then(|value| parsed(value, false, Percent::EXPECTED, faults)),
        reorder: fields.take("reorder").and_then(|value| parsed(value, false, Percent::EXPECTED, faults)),
        queue: fields.take("queue").and_then(|value| whole(value, "a number of frames from 1 to 100000", faults)),
        discipline: fields.take("discipline").and_then(|value| choice(value, &Discipline::NAMES, faults)),
        partial: false,
    }
}

fn event(value: Value, faults: &mut Faults) -> Option<RawEvent> {
    let before = faults.found();
    let mut fields = Fields::new(value, "an event", faults)?;
    let at = fields.required("at", "at: 30s", faults).and_then(|value| parsed(value, false, Time::EXPECTED, faults));
    let link = fields.take("link").and_then(|value| endpoint(value, faults));
    let down = fields.take("down").and_then(|value| boolean(value, faults));
    let shape = shape(&mut fields, faults);
    let back = fields.take("back").and_then(|value| back(value, faults));
    let exec: Option<Spanned<Name>> = fields.take("exec").and_then(|value| name(value, faults));
    let run = fields.take("run").and_then(|value| text(value, "a command", faults));
    fields.finish(faults);
    Some(RawEvent { at: at?, link, down, shape, back, exec, run, partial: faults.found() != before })
}
