//! What a fuzzer may feed with any bytes: what checkpoints keep of ranks, and what comes over their sockets.

use super::{
    messages::Parcel,
    mode::Mode,
    runtime::{decode_late, decode_state},
    side::{Side, decode_log, encode_log},
    stable::part::Part,
    wire::{Decoder, Frame, Greeting, Message, Restored, Stamp},
};
use fermata_checkpoint::{consistent::Tell, optimistic::History};
use fermata_types::PartState;
use std::iter;

const RANKS_MAX: u8 = 6;

/// What it is, of how many ranks, and then the thing itself. Panics if a rank is made from it that loses or doubles a message, or if what was read is another when it is written and read again.
pub fn ranks(data: &[u8]) {
    is_taken(data);
}

/// Whether what a checkpoint has of a rank is in its form.
pub(crate) fn is_taken(data: &[u8]) -> bool {
    let [shape, ranks, data @ ..] = data else { return false };
    let ranks = usize::from(ranks % RANKS_MAX) + 1;
    match shape % 5 {
        0 => return part(data),
        1 => return rank(data, ranks).is_some(),
        2 => frames(data),
        3 => messages(data),
        _ => _ = history(data, ranks),
    }
    false
}

/// What a record says of a rank, as JSON.
fn part(data: &[u8]) -> bool {
    let Ok(state) = serde_json::from_slice::<PartState>(data) else { return false };
    let read = |messages: &str| {
        let (ccn, part) = Part::read(&state, messages).ok()?;
        let again = part.write(0, ccn, messages).expect("what was read can be written");
        assert_eq!(Part::read(&again, messages).expect("what was written can be read"), (ccn, part));
        Some(())
    };
    [read("late"), read("log")].iter().any(Option::is_some)
}

/// What a checkpoint keeps of a rank beside its memory: its state, what was on its way to it, and its log.
fn rank(data: &[u8], ranks: usize) -> Option<()> {
    const CCN: u64 = 7;
    let mut data = Decoder(data);
    let mut blob = || data.bytes().ok();
    let (state, late, log) = (blob()?, blob()?, blob()?);
    let (mut cut, _, mut inbox) = decode_state(&state, ranks).ok()?;
    decode_late(&late, &mut cut, &mut inbox).ok()?;
    assert!(inbox.iter().all(|(sender, _)| *sender < ranks), "a message of nobody");
    if let Ok(read) = decode_log(&log, ranks) {
        assert_eq!(encode_log(&read), log, "two encodings of one log");
    }
    let restored = Restored { ccn: CCN, used: 0, state, log };
    for mode in [Mode::Consistent, Mode::Optimistic] {
        let Ok(mut side) = Side::restored(mode, Some(&restored), cut.clone()) else { continue };
        let parcel = Parcel::new(1, &[2u64]);
        for peer in 0..ranks {
            let sent = side.sending(peer, &parcel);
            assert_eq!(sent.number, cut.sent[peer] + 1);
            // What comes next from everybody, twice.
            let stamp = Stamp { ccn: sent.ccn, number: cut.received[peer] + 1, received: cut.sent[peer] };
            side.arrived(peer, stamp, parcel.clone());
            side.arrived(peer, stamp, parcel.clone());
        }
        assert_eq!(iter::from_fn(|| side.deliver()).count(), ranks, "{mode}: each once");
        side.due();
        side.told(Tell::Marker(CCN + 1));
        let captured = side.captured().expect("it is wanted");
        assert_eq!((captured.ccn, captured.cut.sent[0]), (CCN + 1, cut.sent[0] + 1));
        side.over(CCN + 1, &cut.sent);
    }
    Some(())
}

/// What a coordinator or a rank says.
fn frames(mut data: &[u8]) {
    while let Ok(Some(frame)) = Frame::read(&mut data) {
        let mut bytes = Vec::new();
        frame.write(&mut bytes).expect("memory takes all");
        assert_eq!(Frame::read(&mut &bytes[..]).expect("what was written can be read"), Some(frame));
    }
}

/// What another rank says.
fn messages(mut data: &[u8]) {
    let Ok(greeting) = Greeting::read(&mut data) else { return };
    let mut bytes = Vec::new();
    greeting.write(&mut bytes).expect("memory takes all");
    assert_eq!(Greeting::read(&mut &bytes[..]).expect("what was written can be read"), greeting);
    while let Ok(Some(message)) = Message::read(&mut data) {
        let mut bytes = Vec::new();
        message.write(&mut bytes).expect("memory takes all");
        assert_eq!(Message::read(&mut &bytes[..]).expect("what was written can be read"), Some(message));
    }
}

/// Checkpoints that ranks took by themselves, in any order: where all go back to is a line.
fn history(data: &[u8], ranks: usize) -> Option<()> {
    let (mut data, mut history) = (Decoder(data), History::new(ranks));
    let mut number = 0;
    loop {
        let (what, rank) = (data.u8().ok()?, usize::from(data.u8().ok()?) % ranks);
        match what % 4 {
            0 | 1 => {
                number += 1;
                let cut = data.cut().ok()?;
                let fits = cut.sent.len() == ranks && cut.received.len() == ranks;
                assert_eq!(history.add(rank, number, cut), fits);
            }
            2 => history.forget(rank, data.u8().ok()?.into()),
            _ => _ = history.collect(),
        }
        if let Some(line) = history.clone().go_back() {
            let cut = |rank: usize| history.cut(rank, line.numbers[rank]).expect("it is on the line");
            let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
            assert!(pairs.into_iter().all(|(from, to)| cut(to).received[from] <= cut(from).sent[to]), "{line:?} of {history:?}");
        }
    }
}
