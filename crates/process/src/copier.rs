//! The thread that copies what was captured behind the program. Without it a capture would be copied when the line comes to it, which may be long after:
//! until then each page that is written to is copied by the program, and the next capture waits for the others.

use crate::{Capture, Error, Result};
use std::{
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread::JoinHandle,
};

/// Dropped, it copies what it was given first.
#[derive(Debug)]
pub(crate) struct Copier {
    queue: Option<Sender<Arc<Capture>>>,
    thread: Option<JoinHandle<()>>,
}

impl Copier {
    pub fn start(area: &str) -> Result<Self> {
        let (queue, captures) = channel::<Arc<Capture>>();
        let work = move || captures.into_iter().for_each(|capture| capture.finish());
        let thread = std::thread::Builder::new().name("fermata-copy".into()).spawn(work).map_err(Error::io(area, "starting a thread"))?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    pub fn copy(&self, capture: &Arc<Capture>) {
        // Where the thread has ended, whoever needs the capture copies it.
        let _ = self.queue.as_ref().expect("open until dropped").send(capture.clone());
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        drop(self.queue.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Area, Options, Tracking};
    use fermata_types::PAGE_SIZE;

    #[test]
    fn only_large_captures_under_signals_are_copied_behind() {
        for (tracking, pages, behind) in [
            (Tracking::Protect, 100, true),
            (Tracking::Emulate, 100, true),
            (Tracking::Protect, 10, false),
            (Tracking::Compare, 100, false),
        ] {
            let mut area = Area::new("copied", 128 * PAGE_SIZE, Options::default().tracking(tracking)).expect("memory");
            let written = |area: &mut Area, value: u8| area.as_mut_slice()[..pages * PAGE_SIZE].fill(value);
            written(&mut area, 1);
            let capture = area.capture_behind().expect("a capture");
            assert_eq!((capture.is_behind(), capture.pages()), (behind, pages as u64), "{tracking}");
            written(&mut area, 2);
            assert_eq!(capture.each_page().filter(|(_, page)| page.iter().all(|byte| *byte == 1)).count(), pages, "{tracking}");
            let again = area.capture().expect("a capture");
            assert!(!again.is_behind() && again.each_page().all(|(_, page)| page.iter().all(|byte| *byte == 2)), "{tracking}");
        }
    }
}
