//! Encrypted stores: what their files tell, and who can open them. All else about them is in the other tests, which run once more over encrypted stores.

use crate::common::*;
use fermata_store::{CollectOptions, Encryption, Error, ImageReader, Removal, Secret, Store, VerifyOptions, ask_passphrases_with};
use fermata_types::*;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

const RANDOM: [u8; 48] = [9; 48];

fn key_file(directory: &Path, name: &str, byte: u8) -> (Encryption, Secret) {
    let path = directory.join(name);
    std::fs::write(&path, [byte; 32]).unwrap();
    (Encryption::KeyFile(path.clone()), Secret::read(&path).unwrap())
}

struct Image;

impl ImageReader for Image {
    fn blocks(&self) -> u64 {
        200
    }

    fn read_block(&self, block: PageNumber, into: &mut PageBuf) -> std::io::Result<()> {
        *into = noise(5000 + u64::from(block));
        Ok(())
    }
}

/// Something of everything, with what of it must not be seen in an encrypted store.
fn fill(store: &Store) -> Vec<(String, Vec<u8>)> {
    const IMAGE: ImageId = ImageId([0x77; 32]);
    let mut seen: Vec<(String, Vec<u8>)> = Vec::new();
    let mut name = |what: &str, bytes: &[u8; 32]| {
        seen.push((format!("name of {what}"), bytes.to_vec()));
    };
    store.add_image(IMAGE, Arc::new(Image), &mut |_| {}).unwrap();
    let mut writer = store.writer().unwrap();
    let mut secret = noise(1);
    secret[100..130].copy_from_slice(b"the guest's password is hunter");
    let mut changes: Vec<_> = (0..40).map(|seed| (seed as PageNumber, Some(writer.put_page(&noise(seed)).unwrap().0))).collect();
    changes.push((50, Some(writer.put_page(&secret).unwrap().0)));
    changes.push((60, Some(writer.put_page(&noise(5007)).unwrap().0)));
    let ram = writer.update_table(&Root::empty(1000), &changes).unwrap();
    let blob = writer.put_blob(&noise(900)[..]).unwrap();
    let mut record = record_of(None, "a-branch-of-mine", "what I said about it", ram);
    record.experiment = "a-lab-of-mine".into();
    record.parts[0].blobs.insert("devices".into(), blob);
    record.images = vec![IMAGE];
    let first = writer.commit(&record).unwrap();
    record.parent = Some(first);
    record.created_ns += 1;
    let second = store.writer().unwrap().commit(&record).unwrap();
    store.remove(&Removal { checkpoints: vec![first], ..Removal::default() }).unwrap();
    store.collect(&CollectOptions { rewrite_below: 0, ..CollectOptions::default() }, &mut |_, _| {}).unwrap();
    store.tag("a-lab-of-mine", "a-tag-of-mine", &second).unwrap();
    store.set_hint(&second, "a-hint-of-mine", b"what is hinted at").unwrap();
    name("a page", &changes[7].1.unwrap().0);
    name("a page with a secret", &changes[40].1.unwrap().0);
    name("a block of an image", &changes[41].1.unwrap().0);
    name("the table", &ram.node.unwrap().0);
    name("the blob", &blob.0);
    name("a removed checkpoint", &first.0);
    name("a checkpoint", &second.0);
    seen.push(("id of an image in the name of a file".into(), format!("{IMAGE}.names").into_bytes()));
    seen.push(("a page".into(), noise(7)[1000..1064].to_vec()));
    seen.push(("the blob".into(), noise(900)[64..128].to_vec()));
    for text in ["password is hunter", "what I said about it", "a-lab-of-mine", "a-branch-of-mine", "a-tag-of-mine", "a-hint-of-mine"] {
        seen.push((text.into(), text.as_bytes().to_vec()));
    }
    seen.push(("the removed one in a list".into(), first.to_string().into_bytes()));
    seen.push(("what is hinted at".into(), b"what is hinted at".to_vec()));
    seen
}

/// Which of these is in a file below a directory, or in the name of one.
fn found(directory: &Path, wanted: &[(String, Vec<u8>)]) -> Vec<String> {
    let mut all = Vec::new();
    for path in files(directory) {
        all.push(path.strip_prefix(directory).unwrap().as_os_str().as_encoded_bytes().to_vec());
        all.push(std::fs::read(&path).unwrap());
    }
    let is_there = |bytes: &[u8]| all.iter().any(|file| file.windows(bytes.len()).any(|window| window == bytes));
    wanted.iter().filter(|(_, bytes)| is_there(bytes)).map(|(what, _)| what.clone()).collect()
}

#[test]
fn files_tell_neither_contents_nor_names() {
    if is_encrypted() {
        return;
    }
    let dir = memory_dir();
    let (encryption, secret) = key_file(dir.path(), "key", 1);
    let (plain, sealed) = (dir.path().join("plain"), dir.path().join("sealed"));
    let store = Store::open(&plain).unwrap();
    let wanted = fill(&store);
    let all: Vec<_> = wanted.iter().map(|(what, _)| what.clone()).collect();
    assert_eq!(found(&plain, &wanted), all, "what is looked for can be found where nothing hides it");
    let store = Store::create(&sealed, &encryption, &secret, &RANDOM).unwrap();
    let again = fill(&store);
    assert_eq!(again, wanted, "names are the same inside");
    assert_eq!(found(&sealed, &wanted), Vec::<String>::new());
    // While something is being written, and held.
    let (_, id) = wanted.iter().find(|(what, _)| what == "name of a checkpoint").unwrap();
    let id = CheckpointId(id.as_slice().try_into().unwrap());
    let _hold = store.hold(&id).unwrap();
    let mut writer = store.writer().unwrap();
    for seed in 2000..2100 {
        writer.put_page(&noise(seed)).unwrap();
    }
    let written =
        [("a page that is being written".to_owned(), noise(2000)[..64].to_vec()), ("held".to_owned(), id.to_string().into_bytes())];
    assert_eq!(found(&sealed, &written), Vec::<String>::new());
    assert_eq!(store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap().damage, []);
}

fn refusal(opened: fermata_store::Result<Store>) -> String {
    match opened {
        Err(error @ Error::Refused { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_the_right_key_opens_and_a_wrong_one_costs_nothing() {
    if is_encrypted() {
        return;
    }
    let dir = memory_dir();
    let path = dir.path().join("store");
    let (encryption, secret) = key_file(dir.path(), "key", 1);
    let Encryption::KeyFile(key) = &encryption else { unreachable!() };
    drop(Store::create(&path, &encryption, &secret, &RANDOM).map(|store| fill(&store)).unwrap());
    assert_eq!(Store::encryption(&path).unwrap(), Some(encryption.clone()));
    let whole = || {
        let store = Store::open(&path).unwrap();
        assert_eq!(store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap().damage, []);
        assert_eq!((store.records().unwrap().len(), store.tags("a-lab-of-mine").unwrap().len()), (1, 1));
    };
    whole();
    std::fs::write(key, [2; 32]).unwrap();
    assert!(refusal(Store::open(&path)).contains("this is not the key file that the store"));
    assert!(Store::rebuild_index(&path).unwrap_err().to_string().contains("this is not the key file"));
    std::fs::remove_file(key).unwrap();
    let lost = refusal(Store::open(&path));
    assert!(lost.contains(key.to_str().unwrap()) && lost.contains("FERMATA_STORE_KEY_FILE"), "{lost}");
    std::fs::write(key, [1; 32]).unwrap();
    whole();
    // A store is not made again, and not made to seem what it is not.
    assert!(refusal(Store::create(&path, &encryption, &secret, &RANDOM)).contains("already"));
    let plain = dir.path().join("plain");
    drop(Store::open(&plain).unwrap());
    assert!(refusal(Store::create(&plain, &encryption, &secret, &RANDOM)).contains("not encrypted"));
    let (format, keys) = (path.join("format"), path.join("keys"));
    let (said, kept) = (std::fs::read(&format).unwrap(), std::fs::read(&keys).unwrap());
    std::fs::copy(plain.join("format"), &format).unwrap();
    assert!(matches!(Store::open(&path), Err(Error::Corrupt { path, .. }) if path == format));
    std::fs::write(&format, said).unwrap();
    for at in 0..kept.len() {
        let mut flipped = kept.clone();
        flipped[at] ^= 1;
        std::fs::write(&keys, flipped).unwrap();
        assert!(matches!(Store::open(&path), Err(Error::Corrupt { path, .. }) if path == keys), "byte {at}");
    }
    std::fs::remove_file(&keys).unwrap();
    assert!(matches!(Store::open(&path), Err(Error::Corrupt { path, .. }) if path == keys));
    std::fs::write(&keys, kept).unwrap();
    whole();
}

#[test]
fn an_init_that_was_cut_off_is_ended_by_its_own_secret() {
    if is_encrypted() {
        return;
    }
    let dir = memory_dir();
    let path = dir.path().join("store");
    let (first, secret) = key_file(dir.path(), "first", 1);
    let (second, other) = key_file(dir.path(), "second", 2);
    drop(Store::create(&path, &first, &secret, &RANDOM).unwrap());
    let keys = std::fs::read(path.join("keys")).unwrap();
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("keys"), keys).unwrap();
    ["keys-x7a9Zq", "format-x7a9Zq"].iter().for_each(|left| std::fs::write(path.join(left), "left").unwrap());
    assert!(refusal(Store::create(&path, &second, &other, &RANDOM)).contains("cut off"));
    assert!(!path.join("format").exists());
    drop(Store::create(&path, &first, &secret, &RANDOM).unwrap());
    drop(Store::open(&path).unwrap());
    assert!(files(&path).iter().all(|file| !file.to_str().unwrap().contains("x7a9Zq")), "swept");
}

#[test]
fn the_secret_changes_and_all_else_stays() {
    static TYPED: Mutex<&str> = Mutex::new("");
    if is_encrypted() {
        return;
    }
    ask_passphrases_with(|_| Ok(TYPED.lock().unwrap().to_string()));
    let dir = memory_dir();
    let path = dir.path().join("store");
    let (first, secret) = key_file(dir.path(), "first", 1);
    drop(Store::create(&path, &first, &secret, &RANDOM).map(|store| fill(&store)).unwrap());
    let packs_before: Vec<_> = packs(&path).into_iter().map(|pack| (std::fs::read(&pack).unwrap(), pack)).collect();
    Store::change_secret(&path, &Encryption::Passphrase, &Secret::Passphrase("correct horse".into()), &[4; 16]).unwrap();
    assert_eq!(Store::encryption(&path).unwrap(), Some(Encryption::Passphrase));
    *TYPED.lock().unwrap() = "wrong horse";
    assert!(refusal(Store::open(&path)).contains("this is not the passphrase that the store"));
    *TYPED.lock().unwrap() = "correct horse";
    {
        let store = Store::open(&path).unwrap();
        assert_eq!(store.passphrase(), Some("correct horse"));
        assert_eq!(store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap().damage, []);
    }
    assert!(packs_before.iter().all(|(bytes, pack)| std::fs::read(pack).unwrap() == *bytes));
    let (second, secret) = key_file(dir.path(), "second", 2);
    Store::change_secret(&path, &second, &secret, &[5; 16]).unwrap();
    assert_eq!(Store::open(&path).unwrap().records().unwrap().len(), 1);
}

/// A store of two checkpoints, each with pages of its own, whose packs are equally long.
fn two_packs(path: &Path, encryption: &Encryption, secret: &Secret) -> Vec<(PageName, u64)> {
    let store = Store::create(path, encryption, secret, &RANDOM).unwrap();
    let mut pages = Vec::new();
    for branch in 0..2u64 {
        let mut writer = store.writer().unwrap();
        let changes: Vec<_> = (0..40u32)
            .map(|number| {
                let seed = branch * 100 + u64::from(number);
                let name = writer.put_page(&noise(seed)).unwrap().0;
                pages.push((name, seed));
                (number, Some(name))
            })
            .collect();
        let ram = writer.update_table(&Root::empty(1000), &changes).unwrap();
        writer.commit(&record_of(None, &format!("branch{branch}"), "", ram)).unwrap();
    }
    pages
}

#[test]
fn what_is_exchanged_between_packs_is_refused_and_never_a_wrong_page() {
    if is_encrypted() {
        return;
    }
    let dir = memory_dir();
    let path = dir.path().join("store");
    let (encryption, secret) = key_file(dir.path(), "key", 1);
    let pages = two_packs(&path, &encryption, &secret);
    let packs: Vec<(PathBuf, Vec<u8>)> = packs(&path).into_iter().map(|pack| (pack.clone(), std::fs::read(&pack).unwrap())).collect();
    let [(one, of_one), (_, of_other)] = &packs[..] else { panic!("{packs:?}") };
    let length = of_one.len().min(of_other.len());
    let mut refused = 0;
    // Chunk by chunk, frame by frame or so, and all of it.
    let cuts = (0..8).map(|nth| (56 + nth * 4136, 56 + (nth + 1) * 4136));
    for (from, to) in cuts.chain([(56, length), (0, length)]).filter(|(_, to)| *to <= length) {
        let mut mixed = of_one.clone();
        mixed[from..to].copy_from_slice(&of_other[from..to]);
        std::fs::write(one, mixed).unwrap();
        let store = Store::open(&path).unwrap();
        let mut lost = 0;
        for (name, seed) in &pages {
            match read(&store, name) {
                Ok(found) => assert!(found == noise(*seed), "a wrong page"),
                Err(Error::Corrupt { path, .. }) => lost += usize::from(path == *one),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(lost > 0, "bytes {from} to {to} of another pack were taken for those of this one");
        refused += 1;
        assert!(!store.verify(&VerifyOptions::default(), &mut |_, _| {}).unwrap().damage.is_empty());
    }
    assert!(refused >= 9, "{refused}");
    std::fs::write(one, of_one).unwrap();
    let store = Store::open(&path).unwrap();
    assert!(pages.iter().all(|(name, seed)| read(&store, name).unwrap() == noise(*seed)));
}
