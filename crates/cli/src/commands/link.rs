//! `fermata link`: what the links of a run are like, and changing them while it runs.

use super::{Context, Result};
use crate::{
    complete,
    out::{Paint, Style},
    pick, progress,
    table::{Cell, Set, Table},
    text, wires,
};
use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use fermata_api::{
    Service,
    net::{Change, Discipline, Reshape},
    spec::{Percent, Rate, Time},
    values::{Direction, LinkEnd, LinkRequest},
};

/// Show the links of a run, or change one while it runs
///
/// A change holds from now on, for both directions unless one is named, and belongs to the checkpoints that are taken from then on: `fermata goto` brings back
/// each link as it was. Frames that are already on their way keep the time at which they are due. The guests at a link that is
/// down see no carrier.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata link
  fermata link a:eth1
  fermata link a:eth1 --delay 50ms --loss 2%
  fermata link a:eth1 --rate 10Mbit --queue 50 --received
  fermata link a:eth1 --discipline codel
  fermata link a:eth1 --down
  fermata link what-if:a:eth1 --up --json")]
pub struct Link {
    /// One end of the link; without it all are shown. Without RUN the run `main` is meant
    #[arg(value_name = "[RUN:]MACHINE:INTERFACE", add = complete::interfaces())]
    interface: Option<String>,
    /// Bits a second, such as 100Mbit; 0 for no limit
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<u64>,
    /// How long a frame is on its way, such as 50ms
    #[arg(long, value_name = "TIME")]
    delay: Option<Time>,
    /// The delay varies by as much, up and down
    #[arg(long, value_name = "TIME")]
    jitter: Option<Time>,
    /// The share of frames that are lost, such as 2%
    #[arg(long, value_name = "PERCENT")]
    loss: Option<Percent>,
    /// The share of frames that arrive twice
    #[arg(long, value_name = "PERCENT")]
    duplicate: Option<Percent>,
    /// The share of frames that overtake others
    #[arg(long, value_name = "PERCENT")]
    reorder: Option<Percent>,
    /// Frames that may wait for the link
    #[arg(long, value_name = "FRAMES")]
    queue: Option<u32>,
    /// Which of the frames that wait are dropped before the queue is full
    #[arg(long, value_parser = PossibleValuesParser::new(Discipline::NAMES.map(|(name, _)| name)).try_map(|name| name.parse::<Discipline>()))]
    discipline: Option<Discipline>,
    /// Only for what this interface sends
    #[arg(long, conflicts_with = "received")]
    sent: bool,
    /// Only for what this interface receives
    #[arg(long)]
    received: bool,
    /// Pull the cable out: what is on it is lost, in both directions
    #[arg(long, conflicts_with = "up")]
    down: bool,
    /// Plug it in again
    #[arg(long)]
    up: bool,
}

/// A rate, or 0 for none.
fn rate(text: &str) -> std::result::Result<u64, String> {
    if text == "0" {
        return Ok(0);
    }
    text.parse::<Rate>().map(|rate| rate.0).map_err(|error| error.to_string())
}

impl Link {
    pub fn run(self, context: &Context) -> Result {
        let (_, keeper) = pick::keeper(context)?;
        let change = self.change();
        let (run, interface) = match self.interface.as_deref().map(|name| (name, name.matches(':').count())) {
            Some((name, 2)) => name.split_once(':').map_or((None, None), |(run, rest)| (Some(run.to_owned()), Some(rest.to_owned()))),
            other => (None, other.map(|(name, _)| name.to_owned())),
        };
        let request = LinkRequest { run, interface, change };
        let ends = progress::during(&context.out, "asking the network", || keeper.activity(), || keeper.link(request))?;
        context.out.answer(&ends, |style| text(&ends, style))?;
        Ok(0)
    }

    /// What is to change, if anything.
    fn change(&self) -> Option<Change> {
        let shape = Reshape {
            rate: self.rate,
            delay_ns: self.delay.map(|time| time.0),
            jitter_ns: self.jitter.map(|time| time.0),
            loss: self.loss.map(|share| share.0),
            duplicate: self.duplicate.map(|share| share.0),
            reorder: self.reorder.map(|share| share.0),
            queue: self.queue,
            discipline: self.discipline,
        };
        let one_way = |wanted: bool| if wanted { shape.clone() } else { Reshape::default() };
        let up = (self.up || self.down).then_some(self.up);
        let change = Change { up, sent: one_way(!self.received), received: one_way(!self.sent) };
        (change != Change::default()).then_some(change)
    }
}

fn text(ends: &[LinkEnd], style: &Style) -> String {
    let mut table = Table::new(&[
        ("INTERFACE", Set::Left),
        ("", Set::Left),
        ("TO", Set::Left),
        ("FRAMES", Set::Right),
        ("BYTES", Set::Right),
        ("DROPPED", Set::Right),
        ("ON THE WAY", Set::Right),
        ("LINK", Set::Elastic),
    ]);
    for end in ends {
        let row = |name: String, arrow: &str, to: String, direction: &Direction| {
            let counters = &direction.counters;
            let link = if end.up { wires::words(&direction.shape) } else { wires::broken() };
            vec![
                Cell::new(Paint::Name, name),
                arrow.into(),
                to.into(),
                counters.arrived.frames.to_string().into(),
                text::bytes(counters.arrived.bytes).into(),
                counters.dropped.total().to_string().into(),
                direction.in_flight.to_string().into(),
                link,
            ]
        };
        table.row(row(text::harmless(&end.interface), "────►", text::harmless(&end.to), &end.sent));
        table.row(row(String::new(), "◄────", String::new(), &end.received));
    }
    table.render(style)
}
