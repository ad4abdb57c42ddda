use fermata_vm::*;
use fermata_types::*;
use fermata_store::*;
use fermata_checkpoint::{Part, Outcome};
use std::sync::Arc;
use std::time::{Duration, Instant};
fn checkpoint(part: &mut MachinePart, store: &Store, parent: Option<CheckpointId>) -> (CheckpointId, Record) {
    let mut w = store.writer().unwrap();
    let t0 = Instant::now();
    part.prepare(&mut w).unwrap();
    let t1 = Instant::now();
    part.freeze().unwrap();
    let c = part.capture().unwrap();
    part.thaw().unwrap();
    let t2 = Instant::now();
    let s = c.save(&mut w).unwrap();
    let bytes = w.stored_bytes().unwrap();
    let r = Record { parent, experiment: "x".into(), branch: "main".into(), message: None, created_ns: 0, time_virtual_ns: 0, spec: serde_json::Value::Null, parts: vec![s.state.clone()], images: vec![], cost: Cost::default() };
    let id = w.commit(&r).unwrap();
    part.settle(Outcome::Permanent(&s.state));
    println!("prepare {:?} pause {:?} save {:?} bytes {bytes} {:?} {:?} vt {}", t1 - t0, t2 - t1, t2.elapsed(), s.pages, part.notes().iter().map(|n| format!("{} {:?}", n.step, n.took)).collect::<Vec<_>>(), s.state.details["time_virtual"]);
    (id, r)
}
fn main() {
    let config = MachineConfig { name: "m1".into(), memory: 256 << 20, cpus: 1, accel: Accel::auto(), cpu: "max".into(), machine_type: "q35".into(),
        kernel: Some(".guests/vmlinuz".into()), initrd: Some(".guests/tiny.cpio.gz".into()), cmdline: Some("console=ttyS0 quiet panic=-1 fermata.run=tick".into()), deterministic: false, disks: 0 };
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let (m, loaded) = Machine::boot(config.clone(), Place { directory: "/dev/shm/fermata-tryout/a".into() }).unwrap();
    let m = Arc::new(m);
    m.run().unwrap();
    std::thread::sleep(Duration::from_secs(7));
    let mut part = MachinePart::new(m.clone(), m.id(), Root::empty(65536), loaded, vec![]).unwrap();
    let mut parent = None;
    let mut last = None;
    for _ in 0..2 {
        let (id, r) = checkpoint(&mut part, &store, parent);
        parent = Some(id); last = Some(r);
        std::thread::sleep(Duration::from_secs(1));
    }
    let r = last.unwrap();
    for (eager, fresh) in [(false, false), (true, false), (false, true)] {
        let s = Machine::spare(config.clone(), Place { directory: "/dev/shm/fermata-tryout/b".into() }).unwrap();
        let state = &r.parts[0];
        let devices = store.read_blob(&state.blobs["devices"]).unwrap();
        let t = Instant::now();
        let differ = s.restore(&Restore { store: &store, ram: state.tables["ram"], devices: &devices, eager, fresh_randomness: fresh }).unwrap();
        println!("eager {eager} fresh {fresh} restore {:?}, {} pages differ, {:?}", t.elapsed(), differ.len(), s.paging());
        let again = s.device_state().unwrap();
        println!("device state equal: {} ({} bytes differ)", again == devices, again.iter().zip(&devices).filter(|(a, b)| a != b).count());
        std::fs::write("/tmp/dev-a", &devices).unwrap(); std::fs::write("/tmp/dev-b", &again).unwrap();
        if eager { break; }
        if eager {
            let mut d = 0; let mut p = [0; 4096]; let mut q = [0; 4096];
            for page in 0..65536u32 { match store.lookup(&state.tables["ram"], page).unwrap() { Some(n) => store.read_page(&n, &mut p).unwrap(), None => p.fill(0) }; s.ram().read_at(page as u64 * 4096, &mut q).unwrap(); if p != q { d += 1; } }
            println!("{d} pages of RAM differ");
        }
        let t = Instant::now();
        s.run().unwrap();
        println!("run {:?}", t.elapsed());
        std::thread::sleep(Duration::from_secs(2));
        println!("{:?} {:?}", s.status(), s.paging());
        println!("{}", std::fs::read_to_string(s.place().console_log()).unwrap().lines().rev().take(3).collect::<Vec<_>>().join("\n"));
    }
}
