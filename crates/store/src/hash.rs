//! Names of things: BLAKE3, kept apart by domain, so that a node can never pass for a blob. Pages are plain BLAKE3, as everybody expects.

use blake3::Hasher;
use fermata_types::{BlobName, CheckpointId, ImageId, NodeName, PackId, PageBuf, PageName};
use std::sync::LazyLock;

static NODE: LazyLock<Hasher> = LazyLock::new(|| Hasher::new_derive_key("fermata store 1 node"));
static BLOB: LazyLock<Hasher> = LazyLock::new(|| Hasher::new_derive_key("fermata store 1 blob"));
static RECORD: LazyLock<Hasher> = LazyLock::new(|| Hasher::new_derive_key("fermata store 1 record"));
static CONTENTS: LazyLock<Hasher> = LazyLock::new(|| Hasher::new_derive_key("fermata store 1 pack contents"));

fn of(domain: &Hasher, bytes: &[u8]) -> [u8; 32] {
    // A clone carries the derived key: deriving it again would cost as much as hashing a small object.
    domain.clone().update(bytes).finalize().into()
}

pub(crate) fn page(page: &PageBuf) -> PageName {
    PageName(blake3::hash(page).into())
}

pub(crate) fn node(encoding: &[u8]) -> NodeName {
    NodeName(of(&NODE, encoding))
}

/// The name that a run of bytes has as a blob.
pub fn blob(bytes: &[u8]) -> BlobName {
    BlobName(of(&BLOB, bytes))
}

pub(crate) fn record(bytes: &[u8]) -> CheckpointId {
    CheckpointId(of(&RECORD, bytes))
}

pub(crate) fn contents(bytes: &[u8]) -> PackId {
    PackId(of(&CONTENTS, bytes))
}

/// Finds out the id of a golden image: the hash of its size and of every block that is not zero, each after its number (`docs/formats/golden.md`).
pub struct ImageHasher(Hasher);

impl ImageHasher {
    /// Of an image that a guest sees as a disk of so many bytes.
    pub fn new(bytes: u64) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(&bytes.to_le_bytes());
        Self(hasher)
    }

    /// The next block. Blocks come in order; those of zeros may be left out.
    pub fn block(&mut self, number: u64, block: &PageBuf) {
        if !is_zero(block) {
            self.0.update(&number.to_le_bytes()).update(block);
        }
    }

    /// The id, when all blocks were there.
    pub fn finish(self) -> ImageId {
        ImageId(*self.0.finalize().as_bytes())
    }
}

/// Whether a page is zero throughout. Far cheaper than hashing it, and nearly free when it is not: the first block tells.
pub(crate) fn is_zero(page: &PageBuf) -> bool {
    page.chunks_exact(128).all(|block| block.iter().fold(0, |seen, byte| seen | byte) == 0)
}
