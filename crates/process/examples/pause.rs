//! How long a program stands still for a commit behind it, which copies what was written: `pause STORE MIB TIMES`.

use fermata_process::{CriticalArea, Options};
use fermata_store::Store;
use std::{env, error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [store, mib, times] = &arguments[..] else { return Err("usage: pause STORE MIB TIMES".into()) };
    let (store, mib) = (Store::open(Path::new(store))?, mib.parse::<usize>()?);
    let mut area = CriticalArea::open(&store, "pause", mib << 20, Options::default())?;
    // All of it is there, as in a program that runs.
    area.as_mut_slice().fill(1);
    area.begin()?.commit()?;
    let mut pauses = Vec::new();
    for time in 0..times.parse::<u64>()? {
        let mut cycle = area.begin()?;
        cycle
            .chunks_exact_mut(4096)
            .enumerate()
            .for_each(|(page, bytes)| bytes[..8].copy_from_slice(&(time << 32 | page as u64).to_le_bytes()));
        let id = cycle.commit_behind()?.wait()?;
        pauses.push(store.record(&id)?.cost.pause_ns as f64 / 1e3 / mib as f64);
    }
    pauses.sort_by(f64::total_cmp);
    let (least, median) = (pauses.first().ok_or("TIMES is at least 1")?, pauses[pauses.len() / 2]);
    println!("{} pages: {median:.0} us a MiB, at least {least:.0}", mib * 256);
    Ok(())
}
