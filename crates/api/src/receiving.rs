//! Backups of programs' critical data areas: their commits received into a store, at a Unix socket.

use crate::{convert::problem, local, values::Problem};
use fermata_process::receive;
use serde::Serialize;
use std::{
    fs::{self, Permissions},
    io,
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

/// What happens while areas are received.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A program's area is there, as it was in the beginning.
    Began(Received),
    /// Its program has ended: the area can be opened here, as at its last commit.
    Ended(Received),
    /// What came was refused, broke off, or fell silent. What was acknowledged is in the store.
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
            let stream = listener.accept().and_then(|(stream, _)| stream.set_read_timeout(Some(SILENCE)).map(|()| stream));
            let stream = stream.map_err(|error| Problem::new(format!("cannot receive at {}: {error}", socket.display())))?;
            if once {
                let Some(received) = serve(stream).map_err(problem)? else { continue };
                tell(Event::Ended(received));
                let _ = fs::remove_file(socket);
                return Ok(());
            }
            let serve = &serve;
            scope.spawn(move || match serve(stream) {
                Ok(None) => {}
                Ok(Some(received)) => tell(Event::Ended(received)),
                Err(error) => tell(Event::Failed { problem: error.to_string() }),
            });
        }
    })
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
