//! A golden image that is on its way to this host: it is read from where it comes from, block by block, until it lies here whole.

use crate::{
    Error, Golden, Result,
    golden::{SECTOR_SIZE, SIZE_MAX},
};
use fermata_store::ImageReader;
use fermata_types::{ImageId, PAGE_SIZE, PageBuf, PageNumber};
use fermata_vhost::segments::Output;
use std::{
    io,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

const BLOCK: u64 = PAGE_SIZE as u64;

pub(crate) struct Coming {
    pub id: ImageId,
    /// Where it will lie.
    pub path: PathBuf,
    /// Bytes that the guest sees.
    pub size: u64,
    from: Arc<dyn ImageReader>,
    whole: OnceLock<Arc<Golden>>,
}

impl Coming {
    pub fn new(id: ImageId, path: PathBuf, from: Arc<dyn ImageReader>) -> Result<Self> {
        let size = from.bytes();
        if size == 0 || !size.is_multiple_of(SECTOR_SIZE) || size > SIZE_MAX {
            return Err(Error::Unsupported { path, what: format!("a disk has whole sectors, and up to 16 TiB; this one {size} bytes") });
        }
        Ok(Self { id, path, size, from, whole: OnceLock::new() })
    }

    /// From now on it is read here. Whoever tells the same again is late.
    pub fn came(&self, whole: Arc<Golden>) {
        let _ = self.whole.set(whole);
    }

    /// As it lies here, if it does.
    pub fn whole(&self) -> Option<&Golden> {
        self.whole.get().map(|whole| &**whole)
    }

    /// Fills `len` bytes of `output` with the disk's bytes from `offset` on; zeros behind the end of the image. They come from afar, and whoever asks waits for them.
    pub fn read(&self, offset: u64, len: usize, output: &mut Output<'_>) -> io::Result<()> {
        let within = self.size.saturating_sub(offset).min(len as u64);
        let (mut left, mut at, mut block) = (within as usize, offset, [0; PAGE_SIZE]);
        while left > 0 {
            let from = (at % BLOCK) as usize;
            let count = left.min(PAGE_SIZE - from);
            self.read_block((at / BLOCK) as PageNumber, &mut block)?;
            output.put(&block[from..from + count])?;
            (left, at) = (left - count, at + count as u64);
        }
        output.zero(len - within as usize)
    }

    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> io::Result<()> {
        match (self.from.read_block(block, into), self.whole()) {
            // While it was waited for from there, all of it came.
            (Err(_), Some(whole)) => whole.read_at(u64::from(block) * BLOCK, into),
            (read, _) => read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        sync::atomic::{AtomicBool, Ordering},
    };

    /// An image in memory, until it cannot be reached.
    struct Afar {
        bytes: Vec<u8>,
        is_lost: AtomicBool,
    }

    impl ImageReader for Afar {
        fn blocks(&self) -> u64 {
            self.bytes().div_ceil(BLOCK)
        }

        fn bytes(&self) -> u64 {
            self.bytes.len() as u64
        }

        fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> io::Result<()> {
            if self.is_lost.load(Ordering::Relaxed) {
                return Err(io::Error::other("lost"));
            }
            // Behind the end there may be anything.
            into.fill(0xee);
            let from = &self.bytes[block as usize * PAGE_SIZE..];
            let count = from.len().min(PAGE_SIZE);
            into[..count].copy_from_slice(&from[..count]);
            Ok(())
        }
    }

    fn afar(bytes: Vec<u8>) -> Arc<Afar> {
        Arc::new(Afar { bytes, is_lost: AtomicBool::new(false) })
    }

    #[test]
    fn it_is_read_from_afar_until_it_has_come() {
        let bytes: Vec<_> = (0..3 * PAGE_SIZE + 1024).map(|at| (at / 512 % 251) as u8 + 1).collect();
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("image.raw");
        fs::write(&path, &bytes).unwrap();
        let whole = Arc::new(Golden::open(&path, Some(crate::Format::Raw), place.path(), &mut |_| {}).unwrap());
        let from = afar(bytes.clone());
        let golden = Golden::coming(whole.id(), whole.path().to_owned(), from.clone()).unwrap();
        let assert_same = || {
            assert_eq!((golden.id(), golden.size(), golden.path(), golden.blocks()), (whole.id(), whole.size(), whole.path(), 4));
            for (offset, len) in [(0, PAGE_SIZE), (512, 2 * PAGE_SIZE), (PAGE_SIZE - 512, 1024), (3 * PAGE_SIZE, PAGE_SIZE), (1 << 20, 512)]
            {
                let mut read = vec![0xaa; len];
                golden.read_at(offset as u64, &mut read).unwrap();
                let expected: Vec<_> = (offset..offset + len).map(|at| bytes.get(at).copied().unwrap_or(0)).collect();
                assert!(read == expected, "{len} bytes at {offset}");
            }
            golden.check_unchanged().unwrap();
        };
        assert_same();
        from.is_lost.store(true, Ordering::Relaxed);
        assert_eq!(golden.read_at(0, &mut [0; 512]).unwrap_err().to_string(), "lost");
        golden.came(whole.clone());
        assert_same();
        // From now on it is the file that counts.
        fs::write(&path, b"another").unwrap();
        assert!(matches!(golden.check_unchanged(), Err(Error::Changed { .. })));
    }

    #[test]
    fn whoever_waited_when_it_came_has_it_from_here() {
        let bytes = vec![7; 2 * PAGE_SIZE];
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("image.raw");
        fs::write(&path, &bytes).unwrap();
        let whole = Arc::new(Golden::open(&path, Some(crate::Format::Raw), place.path(), &mut |_| {}).unwrap());
        let from = afar(bytes);
        let coming = Coming::new(whole.id(), path, from.clone()).unwrap();
        from.is_lost.store(true, Ordering::Relaxed);
        coming.came(whole);
        let mut block = [0; PAGE_SIZE];
        coming.read_block(1, &mut block).unwrap();
        assert_eq!(block, [7; PAGE_SIZE]);
    }

    #[test]
    fn no_disk_is_made_of_what_is_none() {
        for bytes in [0, 100, PAGE_SIZE + 1] {
            assert!(Coming::new(ImageId([1; 32]), "image.raw".into(), afar(vec![1; bytes])).is_err(), "{bytes}");
        }
    }
}
