//! Takes orders, and goes on behind the last one that it kept when it is started again, however it ended: `orders STORE COUNT`.

use fermata_process::{CriticalArea, Heap, Options, Placed};
use fermata_store::Store;
use std::{env, error::Error, path::Path};

/// The number of an order, and where the one before it lies in the heap; 0: it is the first.
type Order = [u64; 2];

/// What it does with these arguments.
pub fn program(store: &str, count: u64) -> Result<(), Box<dyn Error>> {
    let store = Store::open(Path::new(store))?;
    let mut area = CriticalArea::open(&store, "orders", 1 << 20, Options::default())?;
    for _ in 0..count {
        let mut cycle = area.begin()?;
        let mut heap = Heap::open_or_format(&mut cycle)?;
        let last = heap.root::<Order>();
        let number = last.map_or(Ok(0), |last| heap.value(last).map(|order| order[0]))? + 1;
        let order = heap.place([number, last.map_or(0, Placed::offset)])?;
        heap.set_root(Some(order));
        cycle.commit()?;
        println!("order {number} is kept");
    }
    Ok(())
}

#[allow(dead_code)]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [store, count] = &arguments[..] else { return Err("usage: orders STORE COUNT".into()) };
    program(store, count.parse()?)
}
