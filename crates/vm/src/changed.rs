//! What the pages are for in which two checkpoints of a machine differ.

use crate::{
    Error, MachineDetails, Result,
    free::told,
    part::{DEVICES, RAM},
};
use fermata_guest::{Memory, Unknown, survey};
use fermata_store::{Still, Store};
use fermata_types::{Composition, PageBuf, PageNumber, PartState, Use};

/// The memory of a checkpoint.
pub(crate) struct Stored(pub Still);

impl Memory for Stored {
    fn read_page(&mut self, page: PageNumber, into: &mut PageBuf) -> Result<(), Unknown> {
        self.0.read_page(page, into).map_err(|error| format!("page {page} of its memory cannot be read: {error}"))
    }
}

/// Counts the pages of RAM that differ by what the guest's kernel has them for in the second checkpoint. The golden images of both must be open.
pub fn changed_by_use(store: &Store, a: &PartState, b: &PartState) -> Result<Composition> {
    let corrupt = |message: String| Error::Corrupt { machine: b.name.clone(), message };
    let details: MachineDetails = serde_json::from_value(b.details.clone())
        .map_err(|error| corrupt(format!("the checkpoint's part is no machine that this version knows: {error}")))?;
    let ram = |state: &PartState| state.tables.get(RAM).copied().ok_or_else(|| corrupt("a checkpoint has none of its memory".into()));
    let (before, after) = (ram(a)?, ram(b)?);
    let devices = b.blobs.get(DEVICES).map(|blob| store.read_blob(blob)).transpose()?.unwrap_or_default();
    let memory = Still::new(store.clone(), after, details.config.memory);
    let survey = match told(&details.config, &devices).and_then(|(map, told)| survey(&mut Stored(memory), map, &told, None)) {
        Ok(survey) => survey,
        Err(why) => return Ok(Composition::unknown(why)),
    };
    let mut composition = Composition::default();
    store.diff(&before, &after, &mut |page, _, _| {
        // The first may have had more memory.
        *composition.pages.entry(survey.page(page).unwrap_or(Use::Absent)).or_default() += 1;
        Ok(())
    })?;
    Ok(composition)
}
