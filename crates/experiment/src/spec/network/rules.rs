//! What must hold among links, interfaces, machines and events, and what they mean.

use super::{
    super::{
        Spec,
        error::{Fault, FaultKind, Faults, Span},
        raw::{Name, Spanned},
        read::similar,
        resolve::is_name,
        units::shorten,
    },
    Action, Endpoint, Event, LAST_INTERFACE, Link,
    quantities::{Ipv4, Rate, Time},
    raw::{InterfaceName, RawEndpoint, RawEvent, RawInterface, RawLink, RawShape},
    reshape,
};
use crate::topology::{mac, topology};
use fermata_net::{Chance, Change, InterfaceId, Mac, Reshape, Shape, World, topology::MTU_DEFAULT, topology::MTU_MAX, topology::MTU_MIN};
use fermata_types::VirtualTime;
use std::collections::{BTreeMap, btree_map::Entry};

/// Interfaces of one machine: what finds room beside its disks.
const INTERFACES_MAX: usize = 8;
const EVENTS_MAX: usize = 10_000;
/// Bytes of a command.
const RUN_MAX: usize = 4096;

/// What a machine says of one of its interfaces.
pub(in crate::spec) struct Declared {
    endpoint: Endpoint,
    span: Span,
    mac: Option<Spanned<Mac>>,
    ipv4: Option<Spanned<Ipv4>>,
}

/// The key `interfaces` of a machine.
pub(in crate::spec) fn declared(
    machine: &Spanned<Name>,
    interfaces: Option<&BTreeMap<Spanned<InterfaceName>, RawInterface>>,
    faults: &mut Faults,
) -> Vec<Declared> {
    let read = |(name, interface): (&Spanned<InterfaceName>, &RawInterface)| {
        let Some(number) = super::interface_number(&name.value.0) else {
            let message = format!("expected the name of an interface, eth0 to eth{LAST_INTERFACE}, found \"{}\"", shorten(&name.value.0));
            faults.invalid(name.span.clone(), "not an interface", message);
            return None;
        };
        if let Some(mac) = &interface.mac
            && (mac.value.is_group() || mac.value == Mac([0; 6]))
        {
            let message =
                format!("`mac`: {} is not an address of one station; its first byte must be even, and some byte not 0", mac.value);
            faults.invalid(mac.span.clone(), "of no station", message);
        }
        let endpoint = Endpoint { machine: machine.value.0.clone(), number };
        Some(Declared { endpoint, span: name.span.clone(), mac: interface.mac.clone(), ipv4: interface.ipv4.clone() })
    };
    interfaces.into_iter().flatten().filter_map(read).collect()
}

/// Fills in the links and events of a specification whose machines are known. Rules between keys are only looked at where those could be read.
pub(in crate::spec) fn connect(
    links: Vec<Spanned<RawLink>>,
    events: Vec<Spanned<RawEvent>>,
    declared: &[Declared],
    spec: &mut Spec,
    faults: &mut Faults,
) {
    let mut wiring = Wiring { spec, declared, faults, lans: BTreeMap::new(), connected: BTreeMap::new(), lost: false };
    for (index, link) in links.into_iter().enumerate() {
        wiring.link(index, link);
    }
    wiring.interfaces();
    if events.len() > EVENTS_MAX {
        let message = format!("at most {EVENTS_MAX} events, found {}; put what repeats itself into a script", events.len());
        wiring.faults.invalid(events[EVENTS_MAX].span.clone(), "too many events", message);
        return;
    }
    let mut spans = Vec::new();
    for event in events {
        let span = event.span.clone();
        if let Some(event) = wiring.event(event) {
            wiring.spec.events.push(event);
            spans.push(span);
        }
    }
    if wiring.faults.is_empty() {
        wiring.foresee(&spans);
    }
}

struct Wiring<'a> {
    spec: &'a mut Spec,
    declared: &'a [Declared],
    faults: &'a mut Faults,
    lans: BTreeMap<String, Span>,
    /// By interface: where it is connected, and at which link.
    connected: BTreeMap<Endpoint, (Span, usize)>,
    /// Some endpoint could not be read, so what is not connected may well be.
    lost: bool,
}

impl Wiring<'_> {
    fn link(&mut self, index: usize, link: Spanned<RawLink>) {
        let Spanned { value: RawLink { lan, endpoints, mtu, shape, back, lost }, span } = link;
        self.lost |= lost;
        let lan = lan.map(|lan| self.lan(lan));
        let forward = self.shape(&shape, &Shape::default());
        let partial = shape.partial;
        let back = back.map_or_else(
            || forward.clone(),
            |back| self.shape(&RawShape { partial: partial || back.shape.partial, ..back.shape }, &forward),
        );
        let mtu = mtu.and_then(|mtu| self.mtu(&mtu)).unwrap_or(MTU_DEFAULT);
        let ends: Vec<_> = endpoints.value.iter().filter_map(|endpoint| self.endpoint(endpoint)).collect();
        if !lost {
            self.count(lan.is_some(), &endpoints, &span);
        }
        ends.iter().for_each(|(endpoint, span)| self.plug(endpoint, span, index));
        if let ([(one, at), (other, _)], None) = (ends.as_slice(), &lan)
            && one.machine == other.machine
            && one.number != other.number
        {
            let message = format!("a link from `{}` to itself; connect it with another machine, or name a `lan`", one.machine);
            self.faults.invalid(at.clone(), "to itself", message);
        }
        let endpoints = ends.into_iter().map(|(endpoint, _)| endpoint).collect();
        self.spec.links.push(Link { lan, endpoints, forward, back, mtu });
    }

    fn lan(&mut self, name: Spanned<Name>) -> String {
        let Spanned { value: Name(name), span } = name;
        if !is_name(&name) {
            let rule = "small letters, digits and hyphens, beginning with a letter or digit, 32 characters at most";
            self.faults.invalid(span, "not a name", format!("expected a name ({rule}), found \"{}\"", shorten(&name)));
        } else if let Some(first) = self.lans.get(&name) {
            let message = format!("there is a LAN `{name}` already; give this one another name, or put all its endpoints into one list");
            self.faults.push(Fault::new(FaultKind::Invalid, span, "again here", message).also(first.clone(), "first here"));
        } else {
            self.lans.insert(name.clone(), span);
        }
        name
    }

    fn count(&mut self, lan: bool, endpoints: &Spanned<Vec<Spanned<RawEndpoint>>>, link: &Span) {
        let message = match (lan, endpoints.value.len()) {
            (true, count @ 0..2) => format!("a LAN has at least two endpoints, found {count}; add some"),
            (false, count) if count < 2 => format!("a link has two endpoints, found {count}; add the missing ones"),
            (false, count) if count > 2 => {
                format!("a link has two endpoints, found {count}; name it, as in `lan: backbone`, to make it a switch")
            }
            _ => return,
        };
        let span = if endpoints.span.is_empty() { link.clone() } else { endpoints.span.clone() };
        self.faults.invalid(span, "the endpoints", message);
    }

    /// The interface that is meant, if it can be one.
    fn endpoint(&mut self, raw: &Spanned<RawEndpoint>) -> Option<(Endpoint, Span)> {
        let Spanned { value: RawEndpoint(text), span } = raw;
        match text.parse::<Endpoint>() {
            Ok(endpoint) => {
                let known = self.machine(&endpoint.machine, span);
                known.then(|| (endpoint, span.clone()))
            }
            Err(error) => {
                self.faults.invalid(span.clone(), "not an interface", format!("{error}, found \"{}\"", shorten(text)));
                self.lost = true;
                None
            }
        }
    }

    fn machine(&mut self, machine: &str, span: &Span) -> bool {
        if self.spec.nodes.contains_key(machine) {
            return true;
        }
        let names: Vec<_> = self.spec.nodes.keys().map(String::as_str).collect();
        let advice = match similar(machine, &names) {
            Some(similar) => format!("did you mean `{similar}`?"),
            None => "add it under `nodes`, or name one that is there".to_owned(),
        };
        let message = format!("there is no machine `{}`; {advice}", shorten(machine));
        self.faults.invalid(span.clone(), "unknown machine", message);
        false
    }

    fn plug(&mut self, endpoint: &Endpoint, span: &Span, link: usize) {
        match self.connected.entry(endpoint.clone()) {
            Entry::Occupied(first) => {
                let message = format!("`{endpoint}` is connected already; an interface has one cable: take another interface");
                let fault = Fault::new(FaultKind::Invalid, span.clone(), "again here", message);
                self.faults.push(fault.also(first.get().0.clone(), "first here"));
            }
            Entry::Vacant(place) => {
                place.insert((span.clone(), link));
                let machine = &endpoint.machine;
                if self.spec.nodes.get(machine).is_some_and(|node| node.deterministic) {
                    let message = format!(
                        "`{machine}` is deterministic and cannot be at a link: frames come when the host brings them; remove it here"
                    );
                    self.faults.invalid(span.clone(), "not deterministic", message);
                }
                let count = self.connected.keys().filter(|other| other.machine == *machine).count();
                if count == INTERFACES_MAX + 1 {
                    let message = format!("`{machine}` has more than {INTERFACES_MAX} interfaces; connect fewer");
                    self.faults.invalid(span.clone(), "one too many", message);
                }
            }
        }
    }

    fn mtu(&mut self, mtu: &Spanned<u32>) -> Option<u16> {
        let good = u16::try_from(mtu.value).ok().filter(|bytes| (MTU_MIN..=MTU_MAX).contains(bytes));
        if good.is_none() {
            let message = format!("`mtu`: expected {MTU_MIN} to {MTU_MAX} bytes, found {}", mtu.value);
            self.faults.invalid(mtu.span.clone(), "out of range", message);
        }
        good
    }

    /// A shape that differs from another in what is said.
    fn shape(&mut self, raw: &RawShape, base: &Shape) -> Shape {
        self.ranges(raw);
        let said = reshape(raw);
        let (delay, jitter) = (said.delay_ns.unwrap_or(base.delay_ns), said.jitter_ns.unwrap_or(base.jitter_ns));
        if let Some(span) = raw.jitter.as_ref().map(|time| &time.span).or(raw.delay.as_ref().map(|time| &time.span))
            && jitter > delay
            && !raw.partial
        {
            let message = format!("`jitter` is {} and `delay` is {}: a frame cannot arrive before it is sent", Time(jitter), Time(delay));
            self.faults.invalid(span.clone(), "more than the delay", message);
        }
        if let Some(reorder) = &raw.reorder
            && reorder.value.0 != Chance::NEVER
            && delay == 0
            && !raw.partial
        {
            let message = "`reorder` lets frames skip the delay, and there is none; add a `delay`";
            self.faults.invalid(reorder.span.clone(), "no delay to skip", message);
        }
        let shape = said.apply(base).unwrap_or_else(|_| base.clone());
        self.holds(raw, &shape);
        shape
    }

    /// A link that is used as its rate allows loses nothing but what its shape says. What a checkpoint keeps has no places, and is taken as it is.
    fn holds(&mut self, raw: &RawShape, shape: &Shape) {
        let times = [&raw.delay, &raw.jitter].map(|time| time.as_ref().map(|time| &time.span));
        let said = raw.rate.as_ref().map(|rate| &rate.span).into_iter().chain(times.into_iter().flatten()).next();
        if let (Some(span), Some(rate), Some(bytes)) = (said, shape.rate, shape.on_its_way())
            && bytes > Shape::HELD_MAX
            && !span.is_empty()
            && !raw.partial
        {
            let longest = Time(shape.delay_ns.saturating_add(shape.jitter_ns));
            let [bytes, most] = [bytes, Shape::HELD_MAX].map(|bytes| bytes.div_ceil(1 << 20));
            let message = format!(
                "at {} frames that take up to {longest} are up to {bytes} MiB on their way, and one direction holds {most} MiB; lower `rate` or `delay`",
                Rate(rate)
            );
            self.faults.invalid(span.clone(), "more than is held", message);
        }
    }

    /// What each number may be.
    fn ranges(&mut self, raw: &RawShape) {
        for (key, time) in [("delay", &raw.delay), ("jitter", &raw.jitter)] {
            if let Some(time) = time
                && time.value.0 > Shape::DELAY_MAX_NS
            {
                let message = format!("`{key}`: expected at most {}, found {}", Time(Shape::DELAY_MAX_NS), time.value);
                self.faults.invalid(time.span.clone(), "too long", message);
            }
        }
        if let Some(queue) = &raw.queue
            && !(1..=Shape::QUEUE_MAX).contains(&queue.value)
        {
            let message = format!("`queue`: expected 1 to {} frames, found {}", Shape::QUEUE_MAX, queue.value);
            self.faults.invalid(queue.span.clone(), "out of range", message);
        }
    }

    /// What machines say of their interfaces, now that it is known where those are.
    fn interfaces(&mut self) {
        let said: BTreeMap<_, _> = self.declared.iter().map(|declared| (&declared.endpoint, declared)).collect();
        for Declared { endpoint, span, .. } in self.declared {
            if !self.lost && !self.connected.contains_key(endpoint) {
                let message = format!("`{endpoint}` is at no link; connect it under `links` or remove it");
                self.faults.invalid(span.clone(), "not connected", message);
            }
        }
        let (mut macs, mut addresses) = (BTreeMap::new(), BTreeMap::new());
        for (endpoint, (place, link)) in &self.connected {
            let said = said.get(endpoint);
            let (address, at) = match said.and_then(|said| said.mac.as_ref()) {
                Some(mac) => (mac.value, &mac.span),
                None => (mac(&self.spec.name, &endpoint.machine, &endpoint.interface()), place),
            };
            if let Some((other, there)) = macs.insert(address, (endpoint, at)) {
                let message = format!("`{endpoint}` has the address {address}, and so has `{other}`; change or remove one `mac`");
                self.faults.push(Fault::new(FaultKind::Invalid, at.clone(), "again here", message).also(Span::clone(there), "first here"));
            }
            if let Some(Spanned { value: ipv4, span }) = said.and_then(|said| said.ipv4.as_ref())
                && let Some((other, there)) = addresses.insert((*link, ipv4.address), (endpoint, span))
            {
                let message = format!("`{endpoint}` has the address {}, and so has `{other}` at the same link; change one", ipv4.address);
                let fault = Fault::new(FaultKind::Invalid, span.clone(), "again here", message);
                self.faults.push(fault.also(Span::clone(there), "first here"));
            }
        }
    }

    fn event(&mut self, event: Spanned<RawEvent>) -> Option<Event> {
        let Spanned { value: RawEvent { at, link, down, shape, back, exec, run, partial }, span } = event;
        let at = VirtualTime::from_ns(at.value.0);
        self.ranges(&shape);
        let sent = reshape(&shape);
        let received = back.map_or_else(
            || sent.clone(),
            |back| {
                self.ranges(&back.shape);
                or(reshape(&back.shape), &sent)
            },
        );
        let change = Change { up: down.map(|down| !down.value), sent, received };
        let action = match (link, exec, run) {
            (Some(link), None, None) => {
                if !partial && change == Change::default() {
                    self.faults.invalid(
                        span,
                        "nothing changes",
                        "the event changes nothing; say what becomes different, such as `down: true` or `delay: 50ms`",
                    );
                }
                self.link_event(&link, change)?
            }
            (None, Some(exec), Some(run)) => self.exec_event(exec, run, &change)?,
            _ if !partial => {
                let message = "an event changes a link or runs a command: `{at: 30s, link: \"a:eth1\", down: true}` or `{at: 60s, exec: a, run: \"...\"}`";
                self.faults.invalid(span, "neither, or both", message);
                return None;
            }
            _ => return None,
        };
        Some(Event { at, action })
    }

    fn link_event(&mut self, link: &Spanned<RawEndpoint>, change: Change) -> Option<Action> {
        let (interface, at) = self.endpoint(link)?;
        if !self.lost && !self.connected.contains_key(&interface) {
            let of_machine = self.connected.keys().filter(|other| other.machine == interface.machine);
            let advice = match of_machine.map(ToString::to_string).collect::<Vec<_>>() {
                none if none.is_empty() => "connect it under `links`".to_owned(),
                some => format!("connect it under `links`, or name one that is there: {}", some.join(", ")),
            };
            self.faults.invalid(at, "unknown link", format!("`{interface}` is at no link; {advice}"));
        }
        Some(Action::Link { interface, change })
    }

    fn exec_event(&mut self, exec: Spanned<Name>, run: Spanned<String>, change: &Change) -> Option<Action> {
        if *change != Change::default() {
            self.faults.invalid(
                exec.span.clone(),
                "runs a command",
                "an event that runs a command cannot change a link as well; write two events",
            );
        }
        if !(1..=RUN_MAX).contains(&run.value.len()) || run.value.contains('\0') {
            let message = format!("`run`: expected a command of 1 to {RUN_MAX} bytes without a zero byte, found {} bytes", run.value.len());
            self.faults.invalid(run.span, "not a command", message);
        }
        let Name(machine) = exec.value;
        self.machine(&machine, &exec.span).then_some(Action::Exec { machine, run: run.value })
    }

    /// Lets all changes of links happen, in their order, to find those that cannot.
    fn foresee(&mut self, spans: &[Span]) {
        let topology = topology(self.spec);
        let ids: BTreeMap<_, _> = self.connected.keys().zip((0..).map(InterfaceId)).collect();
        let mut world = match World::new(&topology, 0) {
            Ok(world) => world,
            Err(error) => return self.faults.invalid(0..0, "the links", format!("the links cannot be: {error}")),
        };
        let mut order: Vec<_> = self.spec.events.iter().zip(spans).collect();
        order.sort_by_key(|(event, _)| event.at);
        for (event, span) in order {
            if let Action::Link { interface, change } = &event.action
                && let Some(id) = ids.get(interface)
                && let Err(error) = world.set(event.at, *id, change)
            {
                self.faults.invalid(span.clone(), "cannot be", format!("the event cannot be at that time: {error}"));
            }
        }
    }
}

/// What is said, and else what is said there.
fn or(said: Reshape, there: &Reshape) -> Reshape {
    Reshape {
        rate: said.rate.or(there.rate),
        delay_ns: said.delay_ns.or(there.delay_ns),
        jitter_ns: said.jitter_ns.or(there.jitter_ns),
        loss: said.loss.or(there.loss),
        duplicate: said.duplicate.or(there.duplicate),
        reorder: said.reorder.or(there.reorder),
        queue: said.queue.or(there.queue),
        discipline: said.discipline.or(there.discipline),
    }
}
