//! A switch that learns which station is at which port.

use crate::{
    direction::{Frame, HEADER},
    topology::Mac,
};
use std::collections::BTreeMap;

/// What was not heard of for this long is forgotten, as IEEE 802.1D advises.
const AGEING_NS: u64 = 300_000_000_000;
/// Stations that are learned at one port. Those behind a port that has more are reached by flooding.
pub(crate) const STATIONS_MAX: u32 = 1024;
/// Between two looks through the table for what is too old.
const SWEEP_NS: u64 = 1_000_000_000;

/// Where a station was heard last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Station {
    pub port: u32,
    pub heard: u64,
}

/// To whom a frame goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Forward {
    Nobody,
    Port(u32),
    AllOthers,
}

/// The table of one switch.
#[derive(Debug, Clone)]
pub(crate) struct Switch {
    pub stations: BTreeMap<Mac, Station>,
    /// When the table was last looked through.
    pub swept: u64,
    counts: Vec<u32>,
}

impl Switch {
    pub fn new(ports: usize) -> Self {
        Self { stations: BTreeMap::new(), swept: 0, counts: vec![0; ports] }
    }

    /// Moves all its times.
    pub fn shift(&mut self, moved: impl Fn(u64) -> u64) {
        self.swept = moved(self.swept);
        self.stations.values_mut().for_each(|station| station.heard = moved(station.heard));
    }

    /// Learns from a frame that came in at a port, and says where it goes. It never goes back to where it came from.
    pub fn forward(&mut self, now: u64, port: u32, frame: &Frame) -> Forward {
        let Some((to, from)) = addresses(frame) else { return Forward::Nobody };
        if !from.is_group() {
            self.learn(now, port, from);
        }
        match self.stations.get(&to) {
            Some(station) if fresh(now, station) && !to.is_group() => {
                if station.port == port {
                    Forward::Nobody
                } else {
                    Forward::Port(station.port)
                }
            }
            _ => Forward::AllOthers,
        }
    }

    /// Takes a station into the table. False if the port has as many as it may.
    pub fn learn(&mut self, now: u64, port: u32, mac: Mac) -> bool {
        let known = self.stations.get(&mac).map(|station| station.port);
        if known != Some(port) {
            if self.counts[port as usize] >= STATIONS_MAX {
                self.sweep(now);
            }
            if self.counts[port as usize] >= STATIONS_MAX {
                return false;
            }
            // The sweep may have forgotten it.
            if let Some(before) = self.stations.remove(&mac) {
                self.counts[before.port as usize] -= 1;
            }
            self.counts[port as usize] += 1;
        }
        self.stations.insert(mac, Station { port, heard: now });
        true
    }

    fn sweep(&mut self, now: u64) {
        if now.saturating_sub(self.swept) < SWEEP_NS {
            return;
        }
        self.swept = now;
        let Self { stations, counts, .. } = self;
        stations.retain(|_, station| {
            let keep = fresh(now, station);
            counts[station.port as usize] -= u32::from(!keep);
            keep
        });
    }
}

fn fresh(now: u64, station: &Station) -> bool {
    now.saturating_sub(station.heard) < AGEING_NS
}

/// Destination and source.
fn addresses(frame: &Frame) -> Option<(Mac, Mac)> {
    let (header, _) = frame.split_first_chunk::<HEADER>()?;
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *header;
    Some((Mac([a, b, c, d, e, f]), Mac([g, h, i, j, k, l])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(number: u32) -> [u8; 6] {
        let [a, b, c, d] = number.to_be_bytes();
        [2, 0, a, b, c, d]
    }

    fn frame(to: [u8; 6], from: [u8; 6]) -> Frame {
        [&to[..], &from, &[8, 0]].concat().into()
    }

    #[test]
    fn stations_are_learned_move_and_are_forgotten() {
        let mut switch = Switch::new(3);
        assert_eq!(switch.forward(0, 0, &frame(mac(2), mac(1))), Forward::AllOthers);
        assert_eq!(switch.forward(1, 1, &frame(mac(1), mac(2))), Forward::Port(0));
        assert_eq!(switch.forward(2, 0, &frame(mac(2), mac(1))), Forward::Port(1));
        assert_eq!(switch.forward(3, 0, &frame(mac(1), mac(3))), Forward::Nobody);
        assert_eq!(switch.forward(4, 0, &frame([0xff; 6], mac(1))), Forward::AllOthers);
        assert_eq!(switch.forward(5, 2, &frame(mac(1), mac(2))), Forward::Port(0));
        assert_eq!(switch.forward(6, 0, &frame(mac(2), mac(1))), Forward::Port(2));
        assert_eq!(switch.forward(AGEING_NS + 5, 0, &frame(mac(2), mac(1))), Forward::AllOthers);
        assert_eq!(switch.forward(7, 1, &frame(mac(1), [0xff; 6])), Forward::Port(0));
        assert!(!switch.stations.contains_key(&Mac([0xff; 6])));
    }

    #[test]
    fn a_port_with_too_many_stations_takes_no_room_from_others() {
        let mut switch = Switch::new(2);
        for number in 0..2 * STATIONS_MAX {
            switch.forward(0, 0, &frame([0xff; 6], mac(number)));
        }
        assert_eq!(switch.stations.len(), STATIONS_MAX as usize);
        assert_eq!(switch.forward(1, 1, &frame(mac(5), mac(STATIONS_MAX + 5))), Forward::Port(0));
        assert_eq!(switch.forward(2, 0, &frame(mac(STATIONS_MAX + 5), mac(5))), Forward::Port(1));
        // The room of those that are too old is free again.
        assert!(switch.learn(AGEING_NS, 0, Mac(mac(9000))));
        assert_eq!(switch.stations.len(), 3);
    }
}
