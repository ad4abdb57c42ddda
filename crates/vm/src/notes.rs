//! KVM's notes of what a guest's processors write, as the library preloaded into QEMU hands them out: `shim/notes.c`.
//!
//! We send one byte. The answer is one byte, how it went, and a bit for each page of the memory, in words of 64 bits of this host's byte order.

use fermata_linux::{Child, MemoryFile};
use fermata_tracker::KvmNotes;
use fermata_types::PAGE_SIZE;
use std::{
    io::{self, Read, Write},
    ops::Range,
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};

const ALL_WELL: u8 = 0;
/// Whole memory slots are among the pages, which QEMU has taken away.
const MORE_THAN_WRITTEN: u8 = 255;

/// The notes of one machine.
#[derive(Debug)]
pub(crate) struct Notes {
    socket: UnixStream,
    mapping: Range<u64>,
    ram: Arc<MemoryFile>,
}

impl Notes {
    /// The library sends where it has mapped the memory, and a socket, before anything else.
    pub fn receive(child: &Child, ram: &Arc<MemoryFile>, patience: Duration) -> io::Result<Self> {
        let (said, descriptor) = child.receive_descriptor::<9>(patience)?;
        let start = u64::from_ne_bytes(said[1..].try_into().expect("eight of nine bytes"));
        let socket = UnixStream::from(descriptor);
        socket.set_read_timeout(Some(patience))?;
        Ok(Self { socket, mapping: start..start + ram.bytes(), ram: ram.clone() })
    }

    /// Where processors write.
    pub fn mapping(&self) -> Range<u64> {
        self.mapping.clone()
    }
}

impl KvmNotes for Notes {
    fn take(&mut self, each: &mut dyn FnMut(Range<u64>)) -> io::Result<()> {
        let pages = self.ram.bytes() / PAGE_SIZE as u64;
        let mut answer = vec![0; 1 + pages.div_ceil(64) as usize * 8];
        self.socket.write_all(&[0])?;
        self.socket.read_exact(&mut answer)?;
        let (how, words) = (answer[0], &answer[1..]);
        if how != ALL_WELL && how != MORE_THAN_WRITTEN {
            return Err(io::Error::from_raw_os_error(how.into()));
        }
        // A page that is not there was not written, and must not be named while it may still have to be restored.
        let present = if how == MORE_THAN_WRITTEN { self.ram.populated()? } else { vec![(0, self.ram.bytes())] };
        let written = |page: u64| words[page as usize / 8] & 1 << (page % 8) != 0;
        for (from, to) in present {
            let mut page = from / PAGE_SIZE as u64;
            let end = to.div_ceil(PAGE_SIZE as u64).min(pages);
            while page < end {
                // Most words are empty.
                let word = page as usize / 64 * 8;
                if words[word..word + 8] == [0; 8] {
                    page = (page / 64 + 1) * 64;
                    continue;
                }
                if written(page) {
                    each(page * PAGE_SIZE as u64..(page + 1) * PAGE_SIZE as u64);
                }
                page += 1;
            }
        }
        Ok(())
    }
}
