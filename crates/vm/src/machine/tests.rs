//! A machine whose QEMU is threads of ours, which answer on its monitors.

use super::*;
use crate::{
    BootFiles, CaptureMode, MachinePart,
    config::{MONITOR, PAUSE_MONITOR, SAVE_MONITOR},
    faults::Fate,
    held::Held,
    holes::Holes,
};
use fermata_checkpoint::{Captured, Part, Phase};
use fermata_linux::{Userfault, Writes, launch, probe};
use fermata_store::Writer;
use fermata_tracker::CompareTracker;
use serde_json::{Deserializer, Value, json};
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::net::{UnixListener, UnixStream},
    process::{Command, Stdio},
    thread,
};

const PAGES: u64 = 16;
const BYTES: u64 = PAGES * PAGE_SIZE as u64;

/// A QEMU whose guest powers itself off while it is being stopped: it is paused, and tells of the other on each monitor before its next answer.
struct Qemu {
    place: Place,
    asked: Mutex<Vec<String>>,
}

impl Qemu {
    fn start(place: &Place) -> Arc<Self> {
        let qemu = Arc::new(Self { place: place.clone(), asked: Mutex::default() });
        for monitor in [MONITOR, PAUSE_MONITOR, SAVE_MONITOR] {
            let listener = UnixListener::bind(place.monitor_socket(monitor)).unwrap();
            let qemu = qemu.clone();
            thread::spawn(move || listener.incoming().for_each(|stream| qemu.talk(stream.unwrap())));
        }
        qemu
    }

    fn was_asked(&self, command: &str) -> bool {
        self.asked.lock().unwrap().iter().any(|asked| asked == command)
    }

    fn talk(&self, stream: UnixStream) {
        let mut answers = stream.try_clone().unwrap();
        // Nobody may hear it any more.
        let mut say = |line: Value| writeln!(answers, "{line}").unwrap_or_default();
        let event = |name: &str| json!({"event": name, "timestamp": {"seconds": 9_999_999_999_u64, "microseconds": 0}});
        say(json!({"QMP": {"capabilities": ["oob"]}}));
        let mut told = false;
        for command in Deserializer::from_reader(stream).into_iter::<Value>().map_while(|command| command.ok()) {
            let command = command["execute"].as_str().unwrap_or_default().to_owned();
            let stands = self.was_asked("stop");
            if stands && !told {
                say(event("SHUTDOWN"));
                told = true;
            }
            let answer = match command.as_str() {
                "qom-get" => json!("pc-q35-7.2-machine"),
                "query-status" => json!({"running": !stands, "status": if stands { "paused" } else { "running" }}),
                _ => json!({}),
            };
            match command.as_str() {
                "stop" => say(event("STOP")),
                "xen-save-devices-state" => fs::write(self.place.device_state(), devices()).unwrap(),
                _ => {}
            }
            self.asked.lock().unwrap().push(command);
            say(json!({"return": answer}));
        }
    }
}

/// A device state with no device but the clock.
fn devices() -> Vec<u8> {
    let mut stream = b"QEVM\0\0\0\x03\x04\0\0\0\x00\x05timer\0\0\0\0\0\0\0\x02".to_vec();
    [0_i64, 0, 1].into_iter().for_each(|field| stream.extend(field.to_be_bytes()));
    stream
}

/// None, with a word, where this host cannot do it.
fn machine(place: &Place) -> Option<Arc<Machine>> {
    let Ok((descriptor, _)) = probe::userfaultfd() else {
        // Past what holds a test's output back. Nobody needs to hear it.
        let _ = writeln!(io::stderr(), "skipped: no userfaultfd can be had");
        return None;
    };
    let config = crate::free::tests::config("q35", BYTES);
    let ram = Arc::new(MemoryFile::unnamed("machine", BYTES).unwrap());
    let mut command = Command::new("cat");
    command.stdout(Stdio::null());
    let child = Arc::new(launch(command).unwrap());
    let connect = |monitor| Monitor::connect(&config.name, &place.monitor_socket(monitor), place.log(), child.clone()).unwrap();
    let (monitor, pause, save) = (Arc::new(connect(MONITOR)), connect(PAUSE_MONITOR), connect(SAVE_MONITOR));
    let memory = Arc::new(Memory {
        ram: ram.clone(),
        range: 0..BYTES,
        userfault: Arc::new(Userfault::new(descriptor, Writes::Unwatched).unwrap()),
        log: None,
        held: Arc::new(Held::new(ram.clone())),
        holes: Holes::default(),
        letting_through: Mutex::new(()),
        pager: OnceLock::new(),
        fate: Fate::new(child.clone()),
    });
    Some(Arc::new(Machine {
        agent: Agent::new(config.name.clone(), place.agent_socket(), child.clone(), monitor.clone()),
        config,
        id: MachineId([7; 16]),
        place: place.clone(),
        child,
        monitor,
        pause,
        save,
        memory,
        tracker: Mutex::new(Box::new(CompareTracker::new(ram).unwrap())),
        protector: None,
        capture: CaptureOptions { mode: CaptureMode::Stop, ..CaptureOptions::default() },
        faults: OnceLock::new(),
        _puncher: None,
        processors: Vec::new(),
        off: AtomicBool::new(false),
        held: AtomicU32::new(0),
        firmware: OnceLock::new(),
    }))
}

fn place(directory: &Path) -> Place {
    Place { directory: directory.to_owned(), logs: directory.join("logs"), boot: BTreeMap::new() }
}

#[test]
fn a_guest_that_powers_off_as_it_is_stopped_for_a_checkpoint_is_off_in_it_and_behind_it() {
    let (directory, store) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let place = place(directory.path());
    let qemu = Qemu::start(&place);
    let Some(machine) = machine(&place) else { return };
    let ram = Root::empty(PAGES);
    let mut part = MachinePart::new(machine.clone(), machine.id(), ram, PageSet::new(), BootFiles::new(), Vec::new(), None).unwrap();
    let mut writer = Store::open(store.path()).unwrap().writer().unwrap();
    part.prepare(&mut writer).unwrap();
    part.begin(Phase::Freeze).unwrap();
    part.freeze().unwrap();
    part.begin(Phase::Capture).unwrap();
    let captured: Box<dyn Captured<Writer>> = part.capture().unwrap();
    part.begin(Phase::Thaw).unwrap();
    part.thaw().unwrap();
    assert_eq!(captured.save(&mut writer).unwrap().state.details["off"], true);
    assert_eq!(machine.status(), Status::Off);
    assert!(machine.run().is_err());
    assert!(!qemu.was_asked("cont"), "it would go on behind its end");
}

#[test]
fn a_guest_that_powers_off_as_it_is_paused_is_off() {
    let directory = tempfile::tempdir().unwrap();
    let place = place(directory.path());
    let qemu = Qemu::start(&place);
    let Some(machine) = machine(&place) else { return };
    assert_eq!(machine.status(), Status::Running);
    machine.stop().unwrap();
    assert_eq!(machine.status(), Status::Off);
    assert!(machine.run().is_err());
    assert!(!qemu.was_asked("cont"), "it would go on behind its end");
}
