use fermata_vm::*;
use std::time::{Duration, Instant};
fn main() {
    let config = MachineConfig { name: "m1".into(), memory: 256 << 20, cpus: 1, accel: Accel::auto(), cpu: "max".into(), machine_type: "q35".into(),
        kernel: Some(".guests/vmlinuz".into()), initrd: Some(".guests/tiny.cpio.gz".into()), cmdline: Some("console=ttyS0 quiet panic=-1 fermata.run=tick".into()), deterministic: false, disks: 0 };
    let place = Place { directory: "/dev/shm/fermata-tryout/a".into() };
    let t = Instant::now();
    let (m, loaded) = Machine::boot(config.clone(), place).unwrap();
    println!("boot ready {:?}, {} pages loaded, type {}", t.elapsed(), loaded.len(), m.machine_type().unwrap());
    println!("arm: {} written", m.take_written().unwrap().len());
    m.run().unwrap();
    std::thread::sleep(Duration::from_secs(7));
    for _ in 0..6 {
        let t = Instant::now(); m.stop().unwrap(); let a = t.elapsed();
        let t = Instant::now(); let n = m.take_written().unwrap().len(); let b = t.elapsed();
        let t = Instant::now(); let d = m.device_state().unwrap().len(); let c = t.elapsed();
        let t = Instant::now(); m.run().unwrap();
        println!("stop {a:?} scan {b:?} ({n} pages) devices {c:?} ({d} bytes) cont {:?}", t.elapsed());
        std::thread::sleep(Duration::from_secs(1));
    }
    println!("{:?}", m.agent().execute(&["uname".into(), "-a".into()], None, Duration::from_secs(10)));
    println!("{}", std::fs::read_to_string(m.place().console_log()).unwrap().lines().rev().take(3).collect::<Vec<_>>().join("\n"));
    let t = Instant::now();
    let s = Machine::spare(config, Place { directory: "/dev/shm/fermata-tryout/b".into() }).unwrap();
    println!("spare {:?} {:?}", t.elapsed(), s.status());
}
