//! Ports of a run's machines that are reached from this host: the way in for people, outside the experiment's world.
//!
//! Each is held by the QEMU of its machine, whose user network belongs to no checkpoint. When a run goes to a checkpoint it lives in another QEMU:
//! connections end with the old one, and the same port of the host leads into the new one.

use crate::{
    Body, Error, Result,
    spec::{Port, Spec},
};
use fermata_vm::Machine;
use std::{
    net::{Ipv4Addr, TcpListener},
    num::NonZeroU16,
    sync::{Arc, Weak},
};

/// A free port may be taken by another program before QEMU has it; then another one is tried.
const ATTEMPTS: u32 = 8;

/// A TCP port of a machine that is forwarded from this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    /// The machine.
    pub machine: String,
    /// Its port.
    pub guest: NonZeroU16,
    /// The port of 127.0.0.1 that leads to it; none: at present none does.
    pub host: Option<NonZeroU16>,
}

/// All of a run.
pub(crate) struct Forwards(Vec<Held>);

struct Held {
    machine: String,
    guest: NonZeroU16,
    /// The port of the host, once it is known: it stays the same.
    host: Option<NonZeroU16>,
    /// Who listens there.
    by: Weak<Machine>,
}

impl Forwards {
    /// Those that a specification names; with ports of the host `as_said`, or with any that are free. None of them is open yet.
    pub fn of(spec: &Spec, as_said: bool) -> Self {
        let each = spec.nodes.iter().flat_map(|(machine, node)| node.ports.iter().map(move |port| (machine, port)));
        let held = |(machine, port): (&String, &Port)| Held::new(machine, Port { host: port.host.filter(|_| as_said), ..*port });
        Self(each.map(held).collect())
    }

    /// Fails if a port of the host is not to be had.
    pub fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|held| match held.host.map(|host| TcpListener::bind((Ipv4Addr::LOCALHOST, host.get()))) {
            Some(Err(error)) => Err(held.refused(&error)),
            _ => Ok(()),
        })
    }

    /// Has the machines of a body listen.
    pub fn open(&mut self, body: &Body) -> Result<()> {
        self.0.iter_mut().try_for_each(|held| held.move_into(body))
    }

    /// The same for a run that has arrived there, and goes on with or without.
    pub fn follow(&mut self, body: &Body) {
        for held in &mut self.0 {
            if let Err(error) = held.move_into(body) {
                tracing::warn!("port {} of {} is not forwarded: {error}", held.guest, held.machine);
            }
        }
    }

    /// One more, in a body that the others are in. Asked again for the same, nothing changes.
    pub fn add(&mut self, body: &Body, machine: &str, port: Port) -> Result<Forward> {
        let same = |held: &&mut Held| held.machine == machine && held.guest == port.guest && port.host.is_some() && held.host == port.host;
        if let Some(held) = self.0.iter_mut().find(same) {
            held.move_into(body)?;
            return Ok(held.at(body));
        }
        let mut held = Held::new(machine, port);
        held.move_into(body)?;
        let forward = held.at(body);
        self.0.push(held);
        Ok(forward)
    }

    /// What they are like, seen from a body.
    pub fn list(&self, body: &Body) -> Vec<Forward> {
        self.0.iter().map(|held| held.at(body)).collect()
    }
}

impl Held {
    fn new(machine: &str, port: Port) -> Self {
        Self { machine: machine.to_owned(), guest: port.guest, host: port.host, by: Weak::new() }
    }

    fn at(&self, body: &Body) -> Forward {
        let open = self.by.upgrade().is_some_and(|by| machine_of(body, &self.machine).is_some_and(|now| Arc::ptr_eq(&by, now)));
        Forward { machine: self.machine.clone(), guest: self.guest, host: self.host.filter(|_| open) }
    }

    /// Has the machine of this body listen, instead of whoever does.
    fn move_into(&mut self, body: &Body) -> Result<()> {
        let machine = machine_of(body, &self.machine);
        let by = self.by.upgrade();
        if by.as_ref().zip(machine).is_some_and(|(by, machine)| Arc::ptr_eq(by, machine)) {
            return Ok(());
        }
        if let (Some(by), Some(host)) = (by, self.host) {
            // The run has left it. If it does not let go of the port, its end does.
            by.unforward(host.get()).unwrap_or_else(|_| by.kill());
        }
        self.by = Weak::new();
        let machine = machine.filter(|machine| machine.config().control.is_some()).ok_or_else(|| self.no_way_in())?;
        match self.host {
            Some(host) => machine.forward(host.get(), self.guest.get()).map_err(|error| self.refused(&error))?,
            None => self.host = Some(self.any(machine)?),
        }
        self.by = Arc::downgrade(machine);
        Ok(())
    }

    /// Has the machine listen at a port that is free.
    fn any(&self, machine: &Machine) -> Result<NonZeroU16> {
        let attempt = || -> Result<NonZeroU16> {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
            let free = free.map_err(|error| Error::Refused(format!("this host has no free port: {error}")))?;
            machine.forward(free.port(), self.guest.get())?;
            NonZeroU16::new(free.port()).ok_or_else(|| Error::Refused("this host gave out port 0".to_owned()))
        };
        let mut last = attempt();
        for _ in 1..ATTEMPTS {
            if last.is_ok() {
                break;
            }
            last = attempt();
        }
        last
    }

    fn refused(&self, why: &dyn std::fmt::Display) -> Error {
        let host = self.host.map(NonZeroU16::get).unwrap_or_default();
        Error::Refused(format!(
            "port {host} of 127.0.0.1 cannot lead to port {guest} of {machine}: {why}. `ss -ltnp` shows who has it; name another, or {guest} alone for any \
             that is free",
            guest = self.guest,
            machine = self.machine
        ))
    }

    fn no_way_in(&self) -> Error {
        Error::Refused(format!(
            "{machine} has no control interface, by which its ports could be reached: a machine gets one when it boots, if its part of the specification has \
             `ports: [{guest}]`",
            machine = self.machine,
            guest = self.guest
        ))
    }
}

fn machine_of<'a>(body: &'a Body, name: &str) -> Option<&'a Arc<Machine>> {
    body.machines().iter().find(|of| of.name() == name).map(|of| of.machine())
}
