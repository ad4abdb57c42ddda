//! What comes through an interface, captured by the network itself: stamped in virtual time, and at no cost to the guest.

use super::traffic::beside;
use fermata_experiment::Run;
use fermata_net::{Block, Capture, World, pcapng};
use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const LOOK: Duration = Duration::from_millis(50);
/// Of each frame the headers are kept.
const KEPT: usize = 96;
/// Of the classic format: times in nanoseconds, version 2.4, Ethernet.
const MAGIC: u32 = 0xa1b2_3c4d;
const VERSION: [u16; 2] = [2, 4];
const ETHERNET: u32 = 1;

/// Captures what goes through `eth1` of a machine while something is done, which leaves it silent, as a file that `tshark` reads. Also, how many frames it missed.
pub fn during<T>(run: &Run, machine: &str, file: &Path, work: impl FnOnce() -> T) -> (T, u64) {
    let body = run.body();
    let fabric = body.fabric().expect("there is a network");
    let topology = fabric.look(World::topology);
    let interface = topology.find(machine, "eth1").expect("it has this interface");
    let capture = Arc::new(Capture::new(vec![topology.interfaces[interface.index()].clone()], None));
    let mut out = BufWriter::new(File::create(file).expect("a file"));
    out.write_all(&head()).expect("room for the capture");
    assert!(fabric.capture(&capture, None), "there are captures already");
    let read = |ended: &AtomicBool| {
        loop {
            // Asked before the last of what comes is read.
            let goes_on = !ended.load(Ordering::Relaxed);
            let piece = capture.read(LOOK);
            write(&piece, &mut out);
            if piece.is_empty() && !goes_on {
                return;
            }
        }
    };
    let (done, ()) = beside(read, work);
    out.flush().expect("room for the capture");
    (done, missed(&capture.end()))
}

fn blocks(mut bytes: &[u8], mut see: impl FnMut(Block<'_>)) {
    while let Some((block, length)) = pcapng::read(bytes).expect("our own capture") {
        see(block);
        bytes = &bytes[length..];
    }
}

fn missed(end: &[u8]) -> u64 {
    let mut missed = 0;
    blocks(end, |block| {
        if let Block::Statistics(_, _, recorded) = block {
            missed += recorded.missed;
        }
    });
    missed
}

fn head() -> Vec<u8> {
    let mut head = MAGIC.to_le_bytes().to_vec();
    head.extend(VERSION.iter().flat_map(|number| number.to_le_bytes()));
    // The time zone and how exact times are: nobody fills them in.
    head.extend([0; 8]);
    head.extend([KEPT as u32, ETHERNET].iter().flat_map(|number| number.to_le_bytes()));
    head
}

/// The frames of these blocks, cut off. The format of our own captures keeps them whole, and some hundred seconds of them would fill a disk.
fn write(piece: &[u8], out: &mut impl Write) {
    blocks(piece, |block| {
        if let Block::Packet(packet) = block {
            let (seconds, ns) = (packet.at.ns / 1_000_000_000, packet.at.ns % 1_000_000_000);
            let kept = &packet.frame[..packet.frame.len().min(KEPT)];
            let numbers = [seconds as u32, ns as u32, kept.len() as u32, packet.frame.len() as u32];
            let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            out.write_all(&numbers).and_then(|()| out.write_all(kept)).expect("room for the capture");
        }
    });
}
