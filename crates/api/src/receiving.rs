//! Backups of programs' critical data areas: their commits received into a store, at a Unix socket.

use crate::{convert::problem, local, values::Problem};
use fermata_process::receive;
use rustix::io::Errno;
use serde::Serialize;
use std::{
    fs::{self, Permissions},
    io, mem,
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
    },
    path::Path,
    thread,
    time::Duration,
};

pub use fermata_process::{Received, Receiving};

/// A program of which nothing is heard for so long is given up, and its area can be opened. It says every five seconds that it is there.
const SILENCE: Duration = Duration::from_secs(30);

/// Before whoever comes is let in again, where that failed for something that may pass.
const REST: Duration = Duration::from_millis(200);

/// What happens while areas are received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A program's area is there, as it was in the beginning.
    Began(Received),
    /// Its program has ended: the area can be opened here, as at its last commit.
    Ended(Received),
    /// What came was refused, broke off, or fell silent, or nobody can come. What was acknowledged is in the store.
    Failed {
        /// Why.
        problem: String,
    },
}

/// Receives areas at a socket that only its user can open, each in a thread of its own, into a store, which is made if there is none. One whose program falls silent for half a minute is given up, and can be opened. With `once` it returns after the first of them.
pub fn listen(store: &Path, socket: &Path, how: &Receiving, once: bool, tell: &(dyn Fn(Event) + Sync)) -> Result<(), Problem> {
    // Of what goes wrong behind the commits.
    local::log_to_stderr();
    let opened = local::made(store)?;
    let listener = bind(socket).map_err(|error| Problem::new(format!("cannot receive at {}: {error}", socket.display())))?;
    let serve = |stream| receive(stream, &opened, how, &mut |received| tell(Event::Began(received.clone())));
    thread::scope(|scope| {
        loop {
            let accept = || listener.accept().and_then(|(stream, _)| stream.set_read_timeout(Some(SILENCE)).map(|()| stream));
            let stream = match next(tell, accept) {
                Ok(stream) => stream,
                Err(error) => {
                    // Those who are here are waited for. Whoever came meanwhile would wait, too, and for nothing.
                    drop(listener);
                    let why = format!("cannot receive at {} any more: {error}", socket.display());
                    tell(Event::Failed { problem: format!("{why}; it ends when the programs that are here have ended") });
                    return Err(Problem::new(format!("{why}; begin it again")));
                }
            };
            if once {
                let Some(received) = serve(stream).map_err(problem)? else { continue };
                tell(Event::Ended(received));
                let _ = fs::remove_file(socket);
                return Ok(());
            }
            let serve = &serve;
            let work = move || match serve(stream) {
                Ok(None) => {}
                Ok(Some(received)) => tell(Event::Ended(received)),
                Err(error) => tell(Event::Failed { problem: error.to_string() }),
            };
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, work) {
                tell(Event::Failed { problem: format!("a program was sent away, for there is no thread for it: {error}") });
                thread::sleep(REST);
            }
        }
    })
}

/// Who comes next. An error that may pass is told, once, and waited for.
fn next<S>(tell: &(dyn Fn(Event) + Sync), mut accept: impl FnMut() -> io::Result<S>) -> io::Result<S> {
    let mut is_told = false;
    loop {
        match accept() {
            Err(error) if may_pass(&error) => {
                if !mem::replace(&mut is_told, true) {
                    let problem = format!(
                        "nobody can come for now: {error}; it is tried again. If that stays so, raise `ulimit -n`, or end what has many files open"
                    );
                    tell(Event::Failed { problem });
                }
                thread::sleep(REST);
            }
            other => return other,
        }
    }
}

/// Whether the next one may come in all the same.
fn may_pass(error: &io::Error) -> bool {
    let passing = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::CONNABORTED];
    Errno::from_io_error(error).is_some_and(|errno| passing.contains(&errno))
}

/// A socket of mode 0600. One that nobody answers at any more is replaced.
fn bind(socket: &Path) -> io::Result<UnixListener> {
    match UnixStream::connect(socket) {
        Ok(_) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "somebody receives there already")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(socket)?,
        Err(_) => {}
    }
    // Until it has its mode nobody can connect: it is made under another name, in a directory that only its user can open.
    let parent = socket.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let aside = tempfile::Builder::new().prefix(".fermata-").tempdir_in(parent)?;
    let path = aside.path().join("s");
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    fs::rename(&path, socket)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn who_cannot_be_let_in_for_now_is_told_of_once_and_let_in_later() {
        let told = Mutex::new(Vec::new());
        let tell = |event: Event| told.lock().unwrap().push(event);
        let mut coming = [Err(Errno::MFILE), Err(Errno::CONNABORTED), Ok(7)].into_iter();
        let accept = || coming.next().expect("nobody else comes").map_err(io::Error::from);
        assert_eq!(next(&tell, accept).unwrap(), 7);
        // And what does not pass ends it.
        next(&tell, || Err::<(), _>(Errno::INVAL.into())).unwrap_err();
        let told = told.lock().unwrap();
        assert!(matches!(&told[..], [Event::Failed { problem }] if problem.contains("Too many open files")), "{told:?}");
    }
}
