//! The disk of a checkpoint, without a run and a server: as it was, to be read like a file, and as an image for programs that know nothing of checkpoints.

use crate::{
    Error, Golden, Result,
    part::{BLOCKS_TABLE, DiskDetails},
};
use fermata_store::{Contents, Still, Store};
use fermata_types::{PAGE_SIZE, PartState};
use imago::{DenyImplicitOpenGate, FormatAccess, FormatCreateBuilder as _, StorageOpenOptions, qcow2::Qcow2};
use std::{fs::File, sync::Arc};

/// Blocks of a qcow2 image: what it maps at once.
const CLUSTER: usize = 64 << 10;

/// The disk that a part of a checkpoint is. `golden` is the image that its details name, open, and known to the store.
pub fn still(store: &Store, state: &PartState, golden: Option<Arc<Golden>>) -> Result<Still> {
    let refused = |what: String| Error::Refused(format!("the checkpoint's part {} {what}", state.name));
    let details = DiskDetails::from_state(state)?;
    let root = state.tables.get(BLOCKS_TABLE).ok_or_else(|| refused("has no blocks".into()))?;
    if root.pages != details.size.div_ceil(PAGE_SIZE as u64) {
        return Err(refused(format!("has {} bytes and {} blocks, which do not fit each other", details.size, root.pages)));
    }
    let still = Still::new(store.clone(), *root, details.size);
    match (details.image, golden) {
        (None, None) => Ok(still),
        (Some(image), Some(golden)) => {
            golden.expect(&image.id)?;
            Ok(still.above(image.id, golden))
        }
        (Some(image), None) => Err(refused(format!("stands on the golden image {}, which is not open", image.path.display()))),
        (None, Some(_)) => Err(refused("stands on no golden image".into())),
    }
}

/// Writes a disk into an empty file, as a qcow2 image of version 3 that stands on nothing else. Zeros take no room in it. `each` is told how many bytes of the disk
/// are done, and says whether to go on.
pub fn write_qcow2(disk: &dyn Contents, file: File, each: &mut dyn FnMut(u64) -> fermata_store::Result<()>) -> Result<()> {
    let failed = |what| Error::transfer(what, 0);
    let options = StorageOpenOptions::new().write(true);
    let storage = imago::file::File::from_open_file(file, options).map_err(failed("use the new image"))?;
    let image = Qcow2::<imago::file::File>::create_builder(storage)
        .size(disk.bytes())
        .cluster_size(CLUSTER)
        .create_open(DenyImplicitOpenGate::default(), |storage| Ok(Qcow2::builder(storage).backing(None)))
        .map_err(failed("begin the new image"))?;
    let image = FormatAccess::new(image);
    disk.for_each_piece(&mut |at, piece| {
        image.write(piece, at)?;
        each(at + piece.len() as u64)
    })?;
    image.flush().map_err(failed("end the new image"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use fermata_store::{EachPiece, Result as StoreResult};
    use std::{path::Path, process::Command};

    /// A disk in memory. The last byte is in the middle of a sector's cluster.
    pub(crate) struct Plain(pub(crate) Vec<u8>);

    impl Contents for Plain {
        fn bytes(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, offset: u64, into: &mut [u8]) -> StoreResult<()> {
            into.copy_from_slice(&self.0[offset as usize..][..into.len()]);
            Ok(())
        }

        fn for_each_piece(&self, each: EachPiece<'_>) -> StoreResult<()> {
            let data = self.0.chunks(PAGE_SIZE).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
            data.into_iter().try_for_each(|(number, page)| each((number * PAGE_SIZE) as u64, page))
        }
    }

    fn qemu_img(arguments: &[&str], path: &Path) -> String {
        let done = Command::new("qemu-img").args(arguments).arg(path).output().unwrap_or_else(|error| panic!("qemu-img: {error}"));
        assert!(done.status.success(), "qemu-img {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    #[test]
    fn a_disk_becomes_an_image_that_qemu_reads() {
        let mut content = vec![0; (40 << 20) + 512];
        for (nth, at) in (0..200).map(|nth: usize| (nth, nth * nth % 10_240 * PAGE_SIZE)) {
            content[at..at + PAGE_SIZE].fill(nth as u8 | 1);
        }
        let end = content.len();
        content[end - 512..].fill(0xee);
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("image.qcow2");
        let mut told = 0;
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        write_qcow2(&Plain(content.clone()), file, &mut |bytes| {
            assert!(bytes > told);
            told = bytes;
            Ok(())
        })
        .unwrap();
        assert_eq!(told, end as u64);
        qemu_img(&["check", "-q"], &path);
        let raw = place.path().join("raw");
        qemu_img(&["convert", "-f", "qcow2", "-O", "raw", path.to_str().unwrap()], &raw);
        assert!(std::fs::read(&raw).unwrap() == content);
        // 200 pages lie in as many clusters at most, and there are some for the image itself.
        assert!(std::fs::metadata(&path).unwrap().len() < (210 * CLUSTER) as u64);
        // And by the reader that golden images have.
        let golden = Golden::open(&path, None, place.path(), &mut |_| {}).unwrap();
        let mut read = vec![0; end];
        golden.read_at(0, &mut read).unwrap();
        assert!(read == content);
    }

    #[test]
    fn who_has_seen_enough_ends_it() {
        let place = tempfile::tempdir().unwrap();
        let file = File::options().read(true).write(true).create_new(true).open(place.path().join("image")).unwrap();
        let error = write_qcow2(&Plain(vec![1; 1 << 20]), file, &mut |_| Err(std::io::Error::other("enough").into())).unwrap_err();
        assert_eq!(error.to_string(), "enough");
    }
}
