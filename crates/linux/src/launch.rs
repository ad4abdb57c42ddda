//! Child processes that hand over descriptors and die with us.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::ExitStatusExt as _},
    },
    process::{Command, ExitStatus},
    sync::{Mutex, OnceLock, mpsc},
    time::Duration,
};

/// The signal for memory that is mapped and cannot be had, as of a file on a full tmpfs.
const SIGBUS: i32 = rustix::process::Signal::BUS.as_raw();

/// A running child, and our end of the socket that is its standard input.
#[derive(Debug)]
pub struct Child {
    process: Mutex<std::process::Child>,
    pid: u32,
    /// The other end is the child's descriptor 0.
    pub channel: UnixStream,
}

type Job = (Command, mpsc::SyncSender<io::Result<std::process::Child>>);

/// Starts the command with one end of a socket pair as its standard input.
///
/// All children are started by one thread that never ends: `PR_SET_PDEATHSIG`, by which a child asks to die with its parent, is about the parent
/// *thread* (prctl(2)).
pub fn launch(mut command: Command) -> io::Result<Child> {
    static LAUNCHER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    command.stdin(theirs);
    let launcher = LAUNCHER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in jobs {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (answer, process) = mpsc::sync_channel(1);
    launcher.send((command, answer)).map_err(|_| io::Error::other("the launching thread is gone"))?;
    let process = process.recv().map_err(|_| io::Error::other("the launching thread is gone"))??;
    Ok(Child { pid: process.id(), process: Mutex::new(process), channel: UnixStream::from(ours) })
}

impl Child {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Takes over a descriptor that the child sends with some bytes on its standard input; one byte without a descriptor is an errno.
    pub fn receive_descriptor<const N: usize>(&self, time: Duration) -> io::Result<([u8; N], OwnedFd)> {
        self.channel.set_read_timeout(Some(time))?;
        let mut bytes = [0; N];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = recvmsg(&self.channel, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if message.bytes == 0 || message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for received in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = received
                && let Some(descriptor) = descriptors.next()
                && message.bytes == N
            {
                return Ok((bytes, descriptor));
            }
        }
        // In place of a descriptor comes the reason why there is none.
        Err(io::Error::from_raw_os_error(bytes[0].into()))
    }

    /// Whether it ended, and how.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.process.lock().expect("nobody panics with the lock").try_wait().ok().flatten()
    }

    /// Whether it ended because its memory could not be had.
    pub fn found_no_memory(&self) -> bool {
        self.ended().is_some_and(|status| status.signal() == Some(SIGBUS))
    }

    /// Ends it at once and waits until it is gone.
    pub fn kill(&self) {
        let mut process = self.process.lock().expect("nobody panics with the lock");
        let _ = process.kill();
        let _ = process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
