//! The machines of an experiment with their disks: what a run lives in, until a `goto` gives it another.

use crate::{
    Error, Host, Result,
    coordinate::Parts,
    events::Events,
    guest_clock::GuestClock,
    machine_body::{Beginning, MachineBody, Return, Stage},
    network::Network,
    plan::{MachinePlan, Plan},
    services::Responder,
    several::side_by_side,
    together::{Start, host_time, run_together, stop_together},
};
use fermata_disk::Disk;
use fermata_linux::clock::{monotonic, wall_ns};
use fermata_net::{Change, Fabric, InterfaceId, TopologyError, World};
use fermata_store::{Hold, Progress, Writer};
use fermata_types::{ImageId, MachineId, PageSet, Perturbation, VirtualTime};
use fermata_vm::{Machine, MachineDetails, PATIENCE, Status};
use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard, OnceLock},
    time::Duration,
};

/// Machines with their disks, in the order of their names. Dropping it ends every QEMU.
pub struct Body {
    // The machines go first: the network's servers see QEMU leave.
    machines: Vec<MachineBody>,
    network: Option<Network>,
    /// Who answers guests behind their control interfaces.
    _responders: Vec<Responder>,
    plan: Plan,
    /// Told by everybody who stops the machines or lets them go on.
    pub(crate) clock: Arc<GuestClock>,
    events: Arc<Events>,
    /// The checkpoint that it was restored from: its pages and blocks are read when they are touched, for as long as this lives. And its specification.
    held: OnceLock<(Hold, serde_json::Value)>,
}

/// What a body was built after, to build another one like it.
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint(pub(crate) Plan);

impl Body {
    /// Machines that are about to boot, and their parts.
    pub(crate) fn boot(host: &Host, plan: &Plan, progress: &mut dyn FnMut(&str, Progress)) -> Result<(Self, Parts<Writer>)> {
        let (body, loaded) = Self::build(host, plan, progress, Beginning::Boot)?;
        let mut parts = body.network_parts();
        for (machine, loaded) in body.machines.iter().zip(loaded) {
            parts.extend(machine.fresh_parts(host, loaded)?);
        }
        Ok((body, parts))
    }

    /// Machines that wait for a state.
    pub(crate) fn spare(host: &Host, plan: &Plan, progress: &mut dyn FnMut(&str, Progress)) -> Result<Self> {
        Ok(Self::build(host, plan, progress, Beginning::Spare)?.0)
    }

    fn build(host: &Host, plan: &Plan, progress: &mut dyn FnMut(&str, Progress), beginning: Beginning) -> Result<(Self, Vec<PageSet>)> {
        // Before any of them starts.
        host.check_room(plan)?;
        let (mut plan, mut with_images) = (plan.clone(), Vec::new());
        for machine in &mut plan.machines {
            let images = machine.disks.iter().map(|disk| host.image(disk, progress)).collect::<Result<Vec<_>>>()?;
            machine.disks.iter_mut().zip(&images).for_each(|(disk, image)| disk.golden = image.as_ref().map(|image| image.id()));
            with_images.push(images);
            if beginning == Beginning::Boot {
                machine.boot = host.boot_files.names(&machine.machine)?;
            }
        }
        let staged =
            plan.machines.iter().map(|machine| Ok((machine, Stage::new(host, machine, beginning)?))).collect::<Result<Vec<_>>>()?;
        let network = plan.network.as_ref().map(|topology| Network::start(topology, &staged)).transpose()?;
        let clock = Arc::<GuestClock>::default();
        let responders = staged.iter().filter_map(|staged| responder(staged, &clock).transpose()).collect::<Result<_>>()?;
        let staged: Vec<_> = staged.into_iter().zip(with_images).collect();
        // One time for all, however long each of them takes to start. It is that of whoever asks for it, too.
        let wall_ns = wall_ns();
        if beginning == Beginning::Boot {
            clock.begin(wall_ns);
        }
        let started = side_by_side(&staged, |(staged, images)| MachineBody::start(host, staged, images, beginning, wall_ns));
        let (machines, loaded): (Vec<_>, _) = started.into_iter().collect::<Result<Vec<_>>>()?.into_iter().unzip();
        if let Some(network) = &network {
            network.tell_page_maps(&machines);
            clock.drive(network.fabric().clone());
        }
        let events = Arc::new(Events::new(plan.events.clone(), plan.addresses.clone()));
        let body = Self { machines, network, _responders: responders, plan: plan.clone(), clock, events, held: OnceLock::new() };
        Ok((body, loaded))
    }

    /// Keeps the checkpoint that it is about to be restored from in the store. `spec` is that checkpoint's.
    pub(crate) fn keep(&self, hold: Hold, spec: serde_json::Value) {
        self.held.set((hold, spec)).expect("a body is restored once");
    }

    /// The specification of the checkpoint that it was restored from, if it was.
    pub(crate) fn spec(&self) -> Option<&serde_json::Value> {
        self.held.get().map(|(_, spec)| spec)
    }

    /// Whether anything happens in it at given times.
    pub fn has_events(&self) -> bool {
        !self.plan.events.is_empty()
    }

    /// Whether time passes in it.
    pub fn time_passes(&self) -> bool {
        self.clock.runs()
    }

    /// What happens, and what has happened.
    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// What it was built after.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How to build another one that can take up its checkpoints.
    pub fn blueprint(&self) -> Result<Blueprint> {
        let machines = self.machines.iter().map(MachineBody::blueprint).collect::<Result<_>>()?;
        Ok(Blueprint(Plan { machines, ..self.plan.clone() }))
    }

    fn network_parts(&self) -> Parts<Writer> {
        self.network.iter().map(|network| Box::new(network.part()) as Box<_>).collect()
    }

    /// The network between the machines, if there is one.
    pub fn fabric(&self) -> Option<&Arc<Fabric>> {
        self.network.as_ref().map(Network::fabric)
    }

    /// What makes its links do otherwise than they would, if anything does.
    pub fn perturbation(&self) -> Option<Perturbation> {
        self.fabric().and_then(|fabric| fabric.look(World::perturbation))
    }

    /// Changes the link of an interface, if there is one, and what the guests at its ends see of it.
    ///
    /// # Errors
    /// No such interface, or a value that cannot be. Then nothing was changed.
    pub fn change_link(&self, interface: InterfaceId, change: &Change) -> std::result::Result<(), TopologyError> {
        self.network.as_ref().map_or(Ok(()), |network| network.change(&self.machines, interface, change))
    }

    /// The same for an event, which waits for no guest. They see it when links are held next.
    pub(crate) fn change_link_unseen(&self, interface: InterfaceId, change: &Change) -> std::result::Result<(), TopologyError> {
        self.network.as_ref().map_or(Ok(()), |network| network.change_unseen(interface, change))
    }

    /// Whether whoever asks is to have guests see what events have changed, by [`hold_links`](Self::hold_links), or somebody else is about to.
    pub(crate) fn claim_showing_links(&self) -> bool {
        self.network.as_ref().is_some_and(Network::claim_telling)
    }

    /// Whoever was to have the guests see it cannot.
    pub(crate) fn give_up_showing_links(&self) {
        if let Some(network) = &self.network {
            network.give_up_telling();
        }
    }

    /// No link changes while this is held, and guests have seen what has changed; but for events, which are held by themselves.
    pub(crate) fn hold_links(&self) -> Option<MutexGuard<'_, Vec<bool>>> {
        self.network.as_ref().map(|network| network.hold_links(&self.machines))
    }

    /// All machines, in the order of their names.
    pub fn machines(&self) -> &[MachineBody] {
        &self.machines
    }

    /// The first machine, by name: the only one of most experiments.
    pub fn machine(&self) -> &Arc<Machine> {
        self.machines[0].machine()
    }

    /// All disks, machine by machine.
    pub fn disks(&self) -> impl Iterator<Item = &Arc<Disk>> {
        self.machines.iter().flat_map(MachineBody::disks)
    }

    /// Golden images that the disks stand on.
    pub(crate) fn images(&self) -> Vec<ImageId> {
        self.machines.iter().flat_map(MachineBody::images).collect()
    }

    /// What each machine does now. Nobody waits long for one that hangs.
    pub fn glance(&self) -> Vec<Status> {
        side_by_side(&self.machines, |body| body.machine().glance())
    }

    /// Lets the machines go on because somebody wants it, and wakes those that have suspended themselves to RAM: nobody has paused them, and no key is there to be pressed.
    pub fn resume_and_wake(&self) -> Result<()> {
        self.resume()?;
        let woken: fermata_vm::Result<()> = side_by_side(&self.machines, |body| body.machine().wake()).into_iter().collect();
        woken.map_err(Error::from)
    }

    /// Lets all machines go on together that were paused, or that do not answer: one that hangs may be yet to stop. If none is paused, all of them are asked, and say why not.
    /// One that sleeps sleeps on.
    pub fn resume(&self) -> Result<()> {
        let seen = self.glance();
        let none = !seen.contains(&Status::Paused);
        let goes = |status: &Status| none || matches!(status, Status::Paused | Status::Silent);
        let chosen: Vec<_> = self.machines.iter().zip(&seen).filter(|(_, status)| goes(status)).map(|(body, _)| body).collect();
        let (went, result) = run_together(chosen.into_iter().map(|body| Start { machine: body.machine().clone(), from: None }).collect());
        self.clock.machines_run(&went);
        if !self.clock.runs() {
            self.clock.go_on(None, monotonic());
        }
        self.thaw_network();
        result
    }

    fn thaw_network(&self) {
        if let Some(fabric) = self.fabric() {
            fabric.thaw();
        }
    }

    /// Stops all machines together. One that is gone is left out, unless nobody is left. Where one cannot be stopped at all, since it sleeps, the others run on.
    pub fn pause(&self) -> Result<()> {
        let ran = self.clock.runs();
        let result = self.pause_within(PATIENCE);
        let sleeps = matches!(&result, Err(Error::Machine(fermata_vm::Error::Unsupported { .. })));
        if ran
            && sleeps
            && let Err(error) = self.resume()
        {
            tracing::warn!("after a pause that could not be: {error}");
        }
        result
    }

    /// The same, and waits no longer than this for one that does not answer. It stops when it comes to itself.
    pub fn pause_within(&self, patience: Duration) -> Result<()> {
        if let Some(fabric) = self.fabric() {
            fabric.freeze();
        }
        self.clock.machines_stop();
        let begun = monotonic();
        // It stands from here on, or what falls due while one is waited for that hangs would happen while the others stand.
        let stood_before = !self.clock.runs();
        self.clock.stop(begun);
        let result = stop_together(self.machines.iter().map(MachineBody::machine), patience);
        self.clock.machines_stand();
        // QEMU knows when; its answer comes some milliseconds later.
        let stopped = self.machines.iter().filter_map(|body| body.machine().stood()).map(|stood| host_time(stood.start, begun)).max();
        if let Some(ran) = stopped.filter(|_| !stood_before).map(|stopped| stopped.saturating_sub(begun)) {
            self.clock.stop_at(self.clock.at(begun).plus(ran));
        }
        result
    }

    /// Puts a checkpoint into spare machines. They are left paused. Returns the parts, and who the machines are now.
    pub(crate) fn restore(&self, state: &Return<'_>) -> Result<(Parts<Writer>, Vec<MachineDetails>)> {
        self.check_images(state)?;
        if state.perturbation.is_some() && self.network.is_none() {
            let id = state.id.short();
            return Err(Error::Refused(format!(
                "checkpoint {id} has no links that could do otherwise: leave --perturb out, or use an experiment whose machines are linked"
            )));
        }
        self.network.iter().try_for_each(|network| network.restore(state))?;
        let restored = side_by_side(&self.machines, |body| body.restore(state));
        let (mut parts, mut details) = (self.network_parts(), Vec::new());
        for machine in restored {
            let (of_machine, detail) = machine?;
            parts.extend(of_machine);
            details.push(detail);
        }
        self.events.restore(state.record.events, &state.record.waiting);
        self.clock.stop_at(VirtualTime::from_ns(state.record.time_virtual_ns));
        // Older checkpoints do not tell. Then it is as if nobody had ever stood still.
        let began = state.record.began_ns.unwrap_or_else(|| state.record.created_ns.saturating_sub(state.record.time_virtual_ns));
        self.clock.begin(began);
        Ok((parts, details))
    }

    /// Lets restored machines go on together, each from its own virtual time; but for those that had powered themselves off.
    pub(crate) fn depart(&self, details: &[MachineDetails]) -> Result<()> {
        let goes = |(body, detail): (&'_ MachineBody, &MachineDetails)| {
            let from = (!detail.config.deterministic).then_some(detail.time_virtual);
            (!detail.off).then(|| Start { machine: body.machine().clone(), from })
        };
        let (went, result) = run_together(self.machines.iter().zip(details).filter_map(goes).collect());
        result?;
        self.clock.machines_run(&went);
        self.clock.go_on(None, monotonic());
        self.thaw_network();
        Ok(())
    }

    /// Disk blocks that a checkpoint took from a golden image would come from these ones.
    fn check_images(&self, state: &Return<'_>) -> Result<()> {
        self.machines.iter().try_for_each(MachineBody::check_images)?;
        if self.images() == state.record.images {
            return Ok(());
        }
        let disks = self.plan.machines.iter().flat_map(|machine| &machine.disks);
        let names: Vec<_> = disks.filter_map(|disk| disk.image.as_ref()).map(|path| path.display().to_string()).collect();
        Err(Error::Refused(format!(
            "checkpoint {} stands on other golden images than {} are now: put the images back as they were when the experiment began",
            state.id.short(),
            names.join(", ")
        )))
    }

    /// Who its machines are.
    pub(crate) fn identities(&self) -> BTreeMap<String, MachineId> {
        self.machines.iter().map(|body| (body.name().to_owned(), body.machine().id())).collect()
    }

    /// Ends every QEMU at once.
    pub fn kill(&self) {
        side_by_side(&self.machines, |body| body.machine().kill());
    }
}

/// Who answers the guest of a machine, if anybody is to.
fn responder((plan, stage): &(&MachinePlan, Stage), clock: &Arc<GuestClock>) -> Result<Option<Responder>> {
    if !plan.machine.services {
        return Ok(None);
    }
    let (ours, theirs) = (stage.place.services_socket(), stage.place.services_answers());
    let started = Responder::start(&ours, theirs, plan.outside.clone(), clock.clone());
    started.map(Some).map_err(|source| Error::Io { what: "listening at", path: ours, source })
}
