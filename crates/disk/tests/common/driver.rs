//! The driver of all back ends' tests, with requests to a disk.

#![allow(dead_code, unused_imports, reason = "each test file uses its own part")]

#[path = "../../../vhost/tests/common/driver.rs"]
mod base;

pub use base::*;
use std::time::Duration;

impl Driver {
    /// A request: what is given goes where the third element says; `answer` is a place and a length. Returns status and length.
    pub fn request(&mut self, kind: u32, sector: u64, given: &[(u64, u32)], answer: &[(u64, u32)]) -> (u8, u32) {
        self.prepare(kind, sector, given, answer);
        self.kick();
        let len = self.wait(Duration::from_secs(10)).expect("the request was answered");
        (self.read(HEADERS + 0x100, 1)[0], len)
    }

    pub fn prepare(&mut self, kind: u32, sector: u64, given: &[(u64, u32)], answer: &[(u64, u32)]) {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.write(HEADERS, &header);
        self.write(HEADERS + 0x100, &[0xff]);
        let head = [(HEADERS, 16, 0)];
        let given = given.iter().map(|(at, len)| (*at, *len, 0));
        let answer = answer.iter().map(|(at, len)| (*at, *len, WRITE));
        let buffers: Vec<_> = head.into_iter().chain(given).chain(answer).chain([(HEADERS + 0x100, 1, WRITE)]).collect();
        let last = buffers.len() - 1;
        let chain: Vec<_> = buffers
            .into_iter()
            .enumerate()
            .map(|(i, (at, len, flags))| Descriptor { at, len, flags: if i == last { flags } else { flags | NEXT }, next: i as u16 + 1 })
            .collect();
        self.put_chain(&chain);
        self.offer(0);
    }
}
