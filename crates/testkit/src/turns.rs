//! Programs by turns on one host: what the host does meanwhile, such as growing slower for others that it serves, it does to each of them alike. Of runs one after
//! another each meets another host.

use crate::measure::processor_seconds;
use fermata_linux::{
    clock::Stopwatch,
    signals::{continue_group, end_group, has_ended, on_termination, stop_group},
};
use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus},
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// How long one runs before it is the next one's turn: long for what is lost when caches change hands, short for changes of the host.
const TURN: Duration = Duration::from_millis(500);
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// A program that had its turns.
#[derive(Debug, Clone, Copy)]
pub struct Had {
    /// How it ended.
    pub status: ExitStatus,
    /// How long it ran, all turns together.
    pub ran: Duration,
    /// How long processors have worked for it and for whom it has started and waited for, s.
    pub worked: f64,
}

/// Somebody wants this process to end.
static ASKED_TO_END: AtomicBool = AtomicBool::new(false);

/// Runs each to its end, with whom it starts, while the others stand still (SIGSTOP); what the kernel does for it, such as writing to a disk, goes on. Returns them in the same
/// order. When this process is asked to end they are ended, and this fails: they hear nothing of a Ctrl-C themselves.
pub fn by_turns(commands: Vec<Command>) -> io::Result<Vec<Had>> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Who cannot be told so is ended at once, as others are.
        let _ = on_termination(|| ASKED_TO_END.store(true, Ordering::Relaxed));
    });
    let mut players = Vec::new();
    for mut command in commands {
        let player = Player { child: command.process_group(0).spawn()?, ran: Duration::ZERO, had: None };
        stop_group(&player.child)?;
        players.push(player);
    }
    while players.iter().any(|player| player.had.is_none()) {
        for player in players.iter_mut().filter(|player| player.had.is_none()) {
            player.play()?;
        }
    }
    Ok(players.iter().filter_map(|player| player.had).collect())
}

struct Player {
    child: Child,
    ran: Duration,
    had: Option<Had>,
}

impl Player {
    fn play(&mut self) -> io::Result<()> {
        let watch = Stopwatch::start();
        continue_group(&self.child)?;
        let mut ended = false;
        while !ended && watch.elapsed() < TURN {
            thread::sleep(BETWEEN_LOOKS);
            if ASKED_TO_END.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            ended = has_ended(&self.child)?;
        }
        self.ran += watch.elapsed();
        if !ended {
            return stop_group(&self.child);
        }
        // Before somebody asks how it ended, when the kernel forgets it.
        let worked = processor_seconds(self.child.id());
        self.had = Some(Had { status: self.child.wait()?, ran: self.ran, worked });
        Ok(())
    }
}

/// Nobody is left standing.
impl Drop for Player {
    fn drop(&mut self) {
        if self.had.is_none() {
            let _ = continue_group(&self.child);
            let _ = end_group(&mut self.child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn while_one_runs_the_other_stands_still() {
        let place = tempfile::tempdir().unwrap();
        // Each says that it is there, over and over, for a while of its own; whom it has started does, too.
        let loops = |word: &str| {
            let mut command = Command::new("/bin/sh");
            let script = "(i=0; while [ $i -lt 40 ]; do echo $0 >>words; sleep 0.05; i=$((i+1)); done) & wait; exit 3";
            command.args(["-c", script, word]).current_dir(place.path());
            command
        };
        let had = by_turns(vec![loops("ping"), loops("pong")]).unwrap();
        assert_eq!(had.iter().map(|had| had.status.code()).collect::<Vec<_>>(), [Some(3), Some(3)]);
        let words = fs::read_to_string(place.path().join("words")).unwrap();
        let words: Vec<_> = words.lines().collect();
        assert_eq!(words.len(), 80);
        // Each has several turns, and says several words in most of them: side by side they would take turns at every word.
        let changes = words.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!((2..40).contains(&changes), "{words:?}");
        assert!(had.iter().all(|had| had.ran > TURN && had.worked < had.ran.as_secs_f64()), "{had:?}");
    }
}
