//! How long a program stands still for a commit behind it: `pause STORE MIB TIMES [TRACKING] [copy-on-write] [again=N]`. `again=N`: one of N pages is written
//! to again at once.

use fermata_process::{CriticalArea, Options};
use fermata_store::Store;
use std::{env, error::Error, path::Path, time::Instant};

const PAGE: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [store, mib, times, more @ ..] = &arguments[..] else {
        return Err("usage: pause STORE MIB TIMES [TRACKING] [copy-on-write] [again=N]".into());
    };
    let (store, mib) = (Store::open(Path::new(store))?, mib.parse::<usize>()?);
    let (mut options, mut again) = (Options::default(), None);
    for argument in more {
        match argument.strip_prefix("again=") {
            Some(number) => again = Some(number.parse::<usize>()?),
            None if argument == "copy-on-write" => options = options.copy_on_write(),
            None => options = options.tracking(argument.parse()?).only_stores(),
        }
    }
    let mut area = CriticalArea::open(&store, "pause", mib << 20, options)?;
    // All of it is there, as in a program that runs.
    area.as_mut_slice().fill(1);
    area.begin()?.commit()?;
    let (mut pauses, mut behind) = (Vec::new(), Vec::new());
    for time in 0..times.parse::<u64>()? {
        let mut cycle = area.begin()?;
        write(&mut cycle, 1, time << 32);
        let pending = cycle.commit_behind()?;
        // What the program is slowed down by what is not copied yet.
        let started = Instant::now();
        write(area.as_mut_slice(), again.unwrap_or(usize::MAX), time << 32 | 1);
        behind.push(started.elapsed().as_secs_f64() * 1e6 / mib as f64);
        let id = pending.wait()?;
        pauses.push(store.record(&id)?.cost.pause_ns as f64 / 1e3 / mib as f64);
    }
    pauses.sort_by(f64::total_cmp);
    behind.sort_by(f64::total_cmp);
    let (least, median) = (pauses.first().ok_or("TIMES is at least 1")?, pauses[pauses.len() / 2]);
    println!("{} pages under {}: {median:.0} us a MiB, at least {least:.0}", mib * 256, area.mechanism());
    if again.is_some() {
        println!("writing again right behind it: {:.0} us a MiB", behind[behind.len() / 2]);
    }
    Ok(())
}

/// A word of each page that is one of so many.
fn write(memory: &mut [u8], of: usize, value: u64) {
    let pages = memory.chunks_exact_mut(PAGE).enumerate().step_by(of);
    pages.for_each(|(page, bytes)| bytes[..8].copy_from_slice(&(value + page as u64).to_le_bytes()));
}
