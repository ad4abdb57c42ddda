//! Serves an image on a socket, for tests by hand: `serve SOCKET IMAGE [--size BYTES] [--read-only]`.
//!
//! Writes go to an overlay in the temporary directory and are gone at the end. It ends when its standard input does; each line of input prints the counters,
//! the rings that are running and the guest pages written since the last line.

use fermata_disk::{Disk, DiskOptions, EachBlock, Golden, Pages, Server, ServerOptions};
use fermata_store::Result as StoreResult;
use fermata_types::{PageName, PageNumber, Root};
use fermata_vhost::DirtyPages;
use std::{error::Error, io::BufRead as _, ops::Range, path::Path, sync::Arc};

/// A disk that starts at its image asks for no block of a store.
struct NoPages;

impl Pages for NoPages {
    fn lookup(&self, _: &Root, _: PageNumber) -> StoreResult<Option<PageName>> {
        Ok(None)
    }

    fn named(&self, _: &Root, _: &mut dyn FnMut(PageNumber)) -> StoreResult<()> {
        Ok(())
    }

    fn along(&self, _: &Root, blocks: Range<PageNumber>, _: &dyn Fn(PageNumber) -> bool) -> StoreResult<Range<PageNumber>> {
        Ok(blocks)
    }

    fn read(&self, _: Vec<(PageNumber, PageName)>, _: EachBlock<'_>) -> StoreResult<()> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(socket), Some(image)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve SOCKET IMAGE [--size BYTES] [--read-only]".into());
    };
    let (mut size, mut read_only) = (None, false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--size" => size = Some(arguments.next().ok_or("--size needs bytes")?.parse()?),
            "--read-only" => read_only = true,
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let temp = tempfile::tempdir()?;
    let golden = Golden::open(Path::new(&image), None, temp.path(), &mut |_| {})?;
    println!("image {} of {} bytes, {:?}", golden.id(), golden.size(), golden.format());
    let options = DiskOptions {
        golden: Some(Arc::new(golden)),
        size,
        root: None,
        pages: Arc::new(NoPages),
        overlay_dir: temp.path().to_owned(),
        read_only,
        drop_freed: true,
    };
    let disk = Arc::new(Disk::new(options)?);
    let options = ServerOptions { disk, serial: "fermata".into(), dirty: Arc::new(DirtyPages::new()), watch: None };
    let server = Server::start(Path::new(&socket), options)?;
    println!("listening");
    for line in std::io::stdin().lock().lines() {
        line?;
        println!(
            "{:?}, {} rings running, {} guest pages written",
            server.counters(),
            server.running().rings(),
            server.dirty().take().len()
        );
    }
    server.stop();
    Ok(())
}
