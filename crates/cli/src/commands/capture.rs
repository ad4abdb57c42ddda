//! `fermata capture`: what goes through interfaces, for Wireshark and its kin.

use super::{Context, Result};
use crate::{
    complete,
    out::{Failure, Paint, Style},
    pick,
    table::{Cell, Set, Table},
    text,
};
use clap::Args;
use fermata_api::{
    Client, Service,
    net::{Block, Recorded, pcapng},
    on_termination,
    spec::Time,
    types::VirtualTime,
    values::{CaptureRequest, Captured, CapturedEnd, Problem},
};
use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

/// Pieces that wait to be written; more wait with the keeper.
const PIECES_MAX: usize = 4;
/// Standard output as a file's name.
const STDOUT: &str = "-";

/// Capture what goes through interfaces, as pcapng
///
/// Frames are those that guests send and receive, with the virtual time at which they do; both ways are captured, and Ctrl-C ends it. The file opens in Wireshark,
/// and `-o - | tshark -r -` looks on while it grows. Nothing slows the network down: a reader that is too slow misses frames, and the end of the file says how many.
/// A capture waits while its run is paused, and goes along with `fermata goto`: its times go back there.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  fermata capture a:eth1 -o a.pcapng
  fermata capture a:eth1 b:eth1 -o both.pcapng --for 10s
  fermata capture what-if:a:eth1 -c 100 -o first.pcapng
  fermata capture a:eth1 -o - | tshark -r -")]
pub struct Capture {
    /// The interfaces, of one run. Without RUN the run `main` is meant
    #[arg(required = true, value_name = "[RUN:]MACHINE:INTERFACE", add = complete::interfaces())]
    interfaces: Vec<String>,
    /// The file, which is replaced; - for standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// End after so many frames
    #[arg(short, long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End when so much virtual time has passed, such as 10s
    #[arg(long = "for", value_name = "TIME")]
    time: Option<Time>,
}

/// What may happen to a capture.
enum News {
    Piece(Vec<u8>),
    /// The user has seen enough.
    Stop,
    /// No more comes.
    Over(std::result::Result<(), Problem>),
}

impl Capture {
    pub fn run(self, context: &Context) -> Result {
        let to_stdout = self.output == Path::new(STDOUT);
        if to_stdout && context.out.is_json() {
            return Err(Failure::Misuse("frames are no JSON value: --json goes with -o FILE".to_owned()));
        }
        if to_stdout && io::stdout().is_terminal() {
            return Err(Failure::Misuse(
                "frames are nothing for a terminal: name a file with -o, or pipe them into `tshark -r -`".to_owned(),
            ));
        }
        let (_, keeper) = pick::keeper(context)?;
        let request = CaptureRequest { count: self.count, time_ns: self.time.map(|time| time.0), ..chosen(&self.interfaces)? };
        let news = begin(keeper, request)?;
        let mut film = Film::default();
        let mut target = Target { context, output: &self.output, file: None };
        let ended = loop {
            match news.recv() {
                Ok(News::Piece(piece)) => {
                    let blocks = film.add(&piece)?;
                    target.write(&blocks)?;
                }
                Ok(News::Stop) | Err(_) => break Ok(()),
                Ok(News::Over(result)) => {
                    let brought: u64 = film.ends.iter().map(|end| end.frames).sum();
                    if result.is_ok() && self.time.is_none() && self.count != Some(brought) {
                        context.out.note("the capture is over: its run has ended, or has gone where these interfaces are not");
                    }
                    break result;
                }
            }
        };
        if target.is_begun() {
            target.write(&film.end())?;
        }
        ended?;
        let captured = Captured { file: self.output.clone(), interfaces: film.ends };
        match to_stdout {
            true => context.out.note(&words(&captured)),
            false => context.out.answer(&captured, |style| text(&captured, style))?,
        }
        Ok(0)
    }
}

/// The run and its interfaces that are meant by `[RUN:]MACHINE:INTERFACE`.
fn chosen(names: &[String]) -> std::result::Result<CaptureRequest, Failure> {
    let split = |name: &String| match name.matches(':').count() {
        2 => name.split_once(':').map_or((None, name.clone()), |(run, rest)| (Some(run.to_owned()), rest.to_owned())),
        _ => (None, name.clone()),
    };
    let (runs, interfaces): (Vec<_>, Vec<_>) = names.iter().map(split).unzip();
    if runs.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(Failure::Misuse("a capture is of one run: its times are that run's".to_owned()));
    }
    Ok(CaptureRequest { run: runs.into_iter().next().flatten(), interfaces, ..CaptureRequest::default() })
}

/// Asks the keeper, and looks out for Ctrl-C.
fn begin(keeper: Client, request: CaptureRequest) -> std::result::Result<Receiver<News>, Problem> {
    let failed = |error: io::Error| Problem::new(format!("cannot begin a capture: {error}"));
    let (sender, news) = sync_channel(PIECES_MAX);
    let stop: SyncSender<News> = sender.clone();
    on_termination(move || drop(stop.send(News::Stop))).map_err(failed)?;
    let read = move || {
        let result = keeper.capture(request, &mut |piece| sender.send(News::Piece(piece.to_vec())).is_ok());
        // Nobody may be there any more.
        let _ = sender.send(News::Over(result));
    };
    thread::Builder::new().name("capture".to_owned()).spawn(read).map_err(failed)?;
    Ok(news)
}

/// Where frames go. A file is made, or replaced, when there is something for it.
struct Target<'a> {
    context: &'a Context,
    output: &'a Path,
    file: Option<Box<dyn Write>>,
}

impl Target<'_> {
    fn is_begun(&self) -> bool {
        self.file.is_some()
    }

    fn write(&mut self, blocks: &[u8]) -> std::result::Result<(), Failure> {
        if self.file.is_none() {
            self.file = Some(match self.output == Path::new(STDOUT) {
                true => Box::new(io::stdout()),
                false => Box::new(File::create(self.output).map_err(|error| self.failed(&error))?),
            });
            self.context.out.note("capturing; Ctrl-C ends it");
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        match file.write_all(blocks).and_then(|()| file.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::Pipe),
            Err(error) => Err(self.failed(&error).into()),
            Ok(()) => Ok(()),
        }
    }

    fn failed(&self, error: &io::Error) -> Problem {
        Problem::new(format!("cannot write {}: {error}. The capture has ended", self.output.display()))
    }
}

/// What has come so far. The counts at the end are made here, so that they are right wherever the file ends.
#[derive(Default)]
struct Film {
    /// The beginning of a block.
    rest: Vec<u8>,
    ends: Vec<CapturedEnd>,
    last: VirtualTime,
}

impl Film {
    /// Takes a piece. Returns the blocks that are to be written.
    fn add(&mut self, piece: &[u8]) -> std::result::Result<Vec<u8>, Problem> {
        let all = [std::mem::take(&mut self.rest), piece.to_vec()].concat();
        let (mut at, mut blocks) = (0, Vec::new());
        let strange = |error| Problem::new(format!("the keeper sent something that is no capture ({error}): is it of another version?"));
        while let Some((block, length)) = pcapng::read(&all[at..]).map_err(strange)? {
            let whole = &all[at..at + length];
            at += length;
            match block {
                Block::Interface(interface) => self.ends.push(CapturedEnd { interface, frames: 0, missed: 0 }),
                Block::Packet(packet) => {
                    self.last = packet.at;
                    self.ends.get_mut(packet.interface as usize).into_iter().for_each(|end| end.frames += 1);
                }
                Block::Statistics(interface, _, Recorded { missed, .. }) => {
                    self.ends.get_mut(interface as usize).into_iter().for_each(|end| end.missed = missed);
                    continue;
                }
                Block::Section | Block::Other => {}
            }
            blocks.extend(whole);
        }
        self.rest = all[at..].to_vec();
        Ok(blocks)
    }

    /// How the file ends.
    fn end(&self) -> Vec<u8> {
        let recorded = |end: &CapturedEnd| Recorded { written: end.frames, missed: end.missed };
        let each = (0..).zip(&self.ends);
        each.map(|(number, end)| pcapng::statistics(number, self.last, recorded(end))).collect::<Vec<_>>().concat()
    }
}

fn words(captured: &Captured) -> String {
    let of = |end: &CapturedEnd| format!("{}: {} frames, {} missed", end.interface, end.frames, end.missed);
    captured.interfaces.iter().map(of).collect::<Vec<_>>().join("; ")
}

fn text(captured: &Captured, style: &Style) -> String {
    let mut table = Table::new(&[("INTERFACE", Set::Left), ("FRAMES", Set::Right), ("MISSED", Set::Right)]);
    for CapturedEnd { interface, frames, missed } in &captured.interfaces {
        let paint = if *missed > 0 { Paint::Warning } else { Paint::Plain };
        let missed = Cell::new(paint, missed.to_string());
        table.row(vec![Cell::new(Paint::Name, text::harmless(interface)), frames.to_string().into(), missed]);
    }
    table.render(style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_api::net::{Interface, Mac, Packet, Way};

    #[test]
    fn one_run_is_meant() {
        let chosen = |names: &[&str]| chosen(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let request = chosen(&["fork:a:eth1", "fork:b:eth2"]).unwrap();
        assert_eq!((request.run.as_deref(), request.interfaces), (Some("fork"), vec!["a:eth1".to_owned(), "b:eth2".to_owned()]));
        assert_eq!(chosen(&["a:eth1"]).unwrap().run, None);
        assert!(matches!(chosen(&["a:eth1", "fork:a:eth1"]), Err(Failure::Misuse(_))));
    }

    #[test]
    fn a_file_ends_with_the_counts_wherever_it_ends() {
        let interface = |machine: &str| Interface { machine: machine.into(), name: "eth1".into(), mac: Mac([2; 6]), mtu: 1500 };
        let at = VirtualTime::from_ns(77);
        let packet = pcapng::packet(Packet { interface: 1, at, way: Way::Sent, frame: &[1; 99] });
        let beginning = [pcapng::section(), pcapng::interface(&interface("a")), pcapng::interface(&interface("b"))].concat();
        let missed = |written, missed| pcapng::statistics(1, at, Recorded { written, missed });
        let sent = [&beginning[..], &packet, &missed(1, 3), &packet, &missed(2, 4), &packet[..50]].concat();
        for bytes in [1, 7, 64, sent.len()] {
            let mut film = Film::default();
            let blocks: Vec<_> = sent.chunks(bytes).flat_map(|piece| film.add(piece).unwrap()).collect();
            assert_eq!(blocks, [&beginning[..], &packet, &packet].concat());
            let none = pcapng::statistics(0, at, Recorded::default());
            assert_eq!(film.end(), [none, missed(2, 4)].concat());
        }
        assert!(Film::default().add(&[9; 64]).unwrap_err().message.contains("no capture"));
    }
}
