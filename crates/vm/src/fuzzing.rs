//! What a fuzzer may feed with any bytes: answers of QEMU and of the guest agent, and QEMU's device state. See `fuzz/README.md`.

use crate::{agent, device_state, monitor::Talk, processor};
use qapi::{qga, qmp};
use std::{io::Write, net::Shutdown, os::unix::net::UnixStream, time::Duration};

/// More than this does not fit into a socket that nobody reads yet.
const BYTES_MAX: usize = 64 << 10;
const COMMANDS: usize = 8;
const PROCESSORS: u32 = 4;
/// Whoever has hung up says nothing more.
const PATIENCE: Duration = Duration::from_secs(1);

/// A socket at whose other end somebody has said all this and hung up. He takes in what he is told, and never answers.
fn heard(data: &[u8]) -> (UnixStream, UnixStream) {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    theirs.write_all(&data[..data.len().min(BYTES_MAX)]).expect("it fits");
    theirs.shutdown(Shutdown::Write).expect("a socket");
    (ours, theirs)
}

/// What QEMU says on its monitor: greeting, answers, events.
pub fn qmp(data: &[u8]) {
    let (stream, _theirs) = heard(data);
    let Ok(mut talk) = Talk::begin(stream, PATIENCE) else { return };
    for _ in 0..COMMANDS {
        let [Ok(forgotten), Ok(wanted)] = [talk.ask(&qmp::query_status {}), talk.ask(&qmp::stop {})] else { return };
        talk.forget(forgotten);
        let _ = talk.answer(wanted, PATIENCE);
        assert!(talk.waiting() <= 2 * COMMANDS, "nobody asked so much");
    }
    talk.stood();
}

/// What a guest says where its agent should be.
pub fn agent(data: &[u8]) {
    let (stream, _theirs) = heard(data);
    let Ok((mut connection, _)) = agent::greet(stream, 1) else { return };
    for _ in 0..COMMANDS {
        let _ = connection.execute(&qga::guest_exec { path: "true".into(), arg: None, env: None, input_data: None, capture_output: None });
        if let Ok(status) = connection.execute(&qga::guest_exec_status { pid: 1 }) {
            agent::execution(status);
        }
    }
}

/// A device state. Panics if anything but the order of its bytes changes when the announcement of the generation id is moved.
pub fn device_state(data: &[u8]) {
    device_state::is_plausible(data);
    device_state::note(data);
    device_state::page_tables(data);
    for processor in processor::processors(data, PROCESSORS) {
        let notes = (processor.status(1), processor.qemu_state());
        assert!(notes.0.len() % 4 == 0 && notes.1.len() % 4 == 0, "notes are whole words");
    }
    for deterministic in [false, true] {
        device_state::virtual_time(data, deterministic);
    }
    let mut moved = device_state::without_announcement(data);
    assert_eq!(device_state::without_announcement(&moved), moved, "it is first already");
    let mut original = data.to_vec();
    original.sort_unstable();
    moved.sort_unstable();
    assert!(moved == original, "bytes were lost");
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn a_monitor_may_say_anything() {
        replay("qmp", 5_000, super::qmp);
    }

    #[test]
    fn an_agent_may_say_anything() {
        replay("agent", 5_000, super::agent);
    }

    #[test]
    fn a_device_state_may_be_anything() {
        replay("device-state", 10_000, super::device_state);
    }
}
