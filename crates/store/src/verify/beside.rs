//! What is beside packs, nodes and records: the small databases of the index, golden images, and the files that caches and lists are kept in.

use super::{Kind, Name, Remedy, Verification, VerifyStage};
use crate::{
    Error, Progress, Result,
    image_names::{self, image_of},
    index::{Location, ScanFrom},
    rebuild::entries,
    removed, seal,
};
use fermata_types::{ImageId, PAGE_SIZE, PageName};
use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

impl Verification<'_> {
    /// What nothing but the index has is as it was written.
    pub(super) fn small_databases(&mut self) -> Result<()> {
        let index = &self.store.0.index;
        match index.is_as_written(&*index.read()?) {
            Ok(true) => {}
            Ok(false) => {
                let detail = "they are not what was written; `rebuild` keeps branches and tags as they are now: look at their names";
                self.add(index.path(), None, "branches, tags, numbers or hints".into(), detail.into(), Remedy::Rebuild);
            }
            Err(error) => _ = self.add_error(error, Remedy::Rebuild)?,
        }
        Ok(())
    }

    /// Blocks of golden images are what the index says: those of images that are open by their content, those of others by the names kept of them.
    pub(super) fn images(&mut self) -> Result<()> {
        let inner = &self.store.0;
        let open: HashSet<u32> = inner.images.read().unwrap_or_else(|poisoned| poisoned.into_inner()).keys().copied().collect();
        let mut images = HashMap::new();
        let mut blocks = Vec::new();
        {
            let read = inner.index.read()?;
            let (mut ids, mut unchecked) = (Vec::new(), Vec::new());
            inner.index.scan(&read, &inner.index.images, ScanFrom::Start, |key, _| {
                ids.extend(<[u8; 32]>::try_from(key).map(ImageId));
                Ok(true)
            })?;
            for id in ids {
                let entry = inner.index.image(&read, &id)?;
                unchecked.extend((self.quick || !entry.is_some_and(|entry| open.contains(&entry.number))).then_some(id));
                images.extend(entry.map(|entry| (entry.number, (id, entry.blocks))));
            }
            self.report.images_unchecked = unchecked;
            if self.quick {
                return Ok(());
            }
            inner.index.scan(&read, &inner.index.pages, ScanFrom::Start, |key, value| {
                if let (Ok(name), Some(Location::Image { image, block })) = (<[u8; 32]>::try_from(key), Location::decode(value)) {
                    blocks.push((image, block, PageName(name)));
                }
                Ok(true)
            })?;
        }
        blocks.sort_unstable();
        let total = blocks.len() as u64;
        for (done, (image, block, name)) in blocks.into_iter().enumerate() {
            if done.is_multiple_of(1 << 12) {
                (self.progress)(VerifyStage::Images, Progress { done: done as u64, total });
            }
            match open.contains(&image) {
                true => self.open_block(image, block, &name)?,
                false => self.closed_block(images.get(&image), block, &name),
            }
        }
        (self.progress)(VerifyStage::Images, Progress { done: total, total });
        Ok(())
    }

    fn open_block(&mut self, image: u32, block: u32, name: &PageName) -> Result<()> {
        match self.store.0.read_image(image, block, name, &mut [0; PAGE_SIZE]) {
            Ok(()) | Err(Error::ImageNotOpen { .. }) => {}
            Err(Error::ImageChanged { image, detail }) => {
                let path = PathBuf::from(format!("golden image {image}"));
                let at = self.add(&path, Some(u64::from(block) * PAGE_SIZE as u64), format!("block {block}"), detail, Remedy::Image);
                self.bad.insert(page(name), at);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// `image`: its id, and how many blocks it has.
    fn closed_block(&mut self, image: Option<&(ImageId, u64)>, block: u32, name: &PageName) {
        let detail = match image {
            None => "it lies in a golden image that is not registered".into(),
            Some((image, blocks)) if u64::from(block) >= *blocks => format!("golden image {image} has no block {block}"),
            Some((image, _)) if self.store.image_block(image, block).is_none_or(|kept| kept == *name) => return,
            Some((image, _)) => format!("block {block} of golden image {image} has another name"),
        };
        let at = self.add(self.store.0.index.path(), None, format!("page {name}"), detail, Remedy::Rebuild);
        self.bad.insert(page(name), at);
    }

    /// Files that vouch for themselves do so still.
    pub(super) fn files(&mut self) -> Result<()> {
        let store = &self.store.0.path;
        if !removed::is_whole(store, &self.store.0.sealing)? {
            let detail = "it is not what was written; without it, `rebuild` may bring back checkpoints that were removed";
            self.add(&removed::path(store), None, "list of removed checkpoints".into(), detail.into(), Remedy::Collect);
        }
        let images = store.join("images");
        let mut paths = if images.is_dir() { entries(&images)? } else { Vec::new() };
        paths.sort();
        for path in paths {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            match image_of(name, &self.store.0.sealing) {
                Some(image) if !self.quick => {
                    if let Some(offset) = image_names::fault(&path, &image, &self.store.0.sealing).map_err(Error::io("read", &path))? {
                        let detail = "a group of them does not fit its hash, and is not believed".into();
                        self.add(&path, Some(offset), "names of the blocks of a golden image".into(), detail, Remedy::Remove);
                    }
                }
                None if name.starts_with("image-") && name.ends_with(".json") => self.image_id(&path)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The file that remembers the id of a golden image.
    fn image_id(&mut self, path: &Path) -> Result<()> {
        let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
        // Version 1 had nothing to vouch for it, and is not believed any more.
        let is_old = || serde_json::from_slice::<serde_json::Value>(&bytes).is_ok_and(|file| file["version"] == 1);
        if !seal::is_sealed_json(&bytes) && !is_old() {
            let detail = "it is not what was written, and is not believed".into();
            self.add(path, None, "id of a golden image".into(), detail, Remedy::Remove);
        }
        Ok(())
    }
}

fn page(name: &PageName) -> Name {
    (Kind::Pages, name.0)
}
