//! A copy of the configuration that serves, in one JSON file, used when the database is damaged.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::seal::{PREFIX, Seal};
use crate::{Item, Key, Listing};

/// Reads and writes the copy. Its secrets are encrypted as in the database.
#[derive(Debug)]
pub struct LastGood;

/// Resources that a process served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// All resources.
    pub listing: Listing,
    /// Keys of the resources that were left out because they were invalid.
    pub left_out: HashSet<Key>,
}

#[derive(Deserialize, Serialize)]
struct Copy {
    #[serde(default)]
    cluster: u64,
    revision: u64,
    items: Vec<Entry>,
}

#[derive(Deserialize, Serialize)]
struct Entry {
    key: String,
    created: u64,
    modified: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    left_out: bool,
    /// JSON of the resource; a JSON string for a value that is no JSON.
    value: Box<RawValue>,
}

impl LastGood {
    /// Replaces the copy atomically with the resources at a revision of a cluster (0 for a store that is not shared),
    /// each with a flag for being left out. `between` is called after each resource and at the end; it may block for
    /// a while, and an error from it aborts the write.
    ///
    /// # Errors
    /// The file cannot be written, or `between` failed; the previous copy is unchanged.
    pub fn write<'i>(
        path: &Path,
        (cluster, revision): (u64, u64),
        items: impl Iterator<Item = (&'i Item, bool)>,
        seal: &Seal,
        mut between: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let beside = path.with_extension("new");
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        let mut out = BufWriter::with_capacity(256 * 1024, file);
        // One item per line, so that people can read and compare copies.
        write!(out, "{{\"cluster\":{cluster},\"revision\":{revision},\"items\":[")?;
        for (at, (item, left_out)) in items.enumerate() {
            let sealed = seal.seal(&item.key, &item.value).map_err(io::Error::other)?;
            let value = match RawValue::from_string(sealed) {
                Ok(value) => value,
                // A value that is no JSON is encrypted as a whole, and becomes one string here.
                Err(_) => to_raw_value(&seal.seal(&item.key, &item.value).map_err(io::Error::other)?)?,
            };
            let key = item.key.to_string();
            let entry = Entry { key, created: item.created, modified: item.modified, left_out, value };
            out.write_all(if at == 0 { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut out, &entry)?;
            between()?;
        }
        out.write_all(b"\n]}\n")?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        between()?;
        fs::rename(&beside, path)
    }

    /// Reads the resources of the copy.
    ///
    /// # Errors
    /// Description of the damage.
    pub fn read(path: &Path, seal: &Seal) -> Result<Listing, String> {
        Self::served(path, seal).map(|served| served.listing)
    }

    /// Reads the copy.
    ///
    /// # Errors
    /// Description of the damage.
    pub fn served(path: &Path, seal: &Seal) -> Result<Served, String> {
        let place = path.display();
        let text = fs::read_to_string(path).map_err(|error| format!("cannot read {place}: {error}"))?;
        let copy: Copy = serde_json::from_str(&text).map_err(|error| format!("{place} is damaged: {error}"))?;
        let (mut items, mut left_out) = (Vec::with_capacity(copy.items.len()), HashSet::new());
        for entry in copy.items {
            let key: Key = entry.key.parse().map_err(|error| format!("{place} is damaged: {error}"))?;
            let raw = entry.value.get();
            let whole = serde_json::from_str::<String>(raw).ok().filter(|text| text.starts_with(PREFIX));
            let value =
                seal.open(&key, whole.as_deref().unwrap_or(raw)).map_err(|error| format!("{place}: {error}"))?;
            if entry.left_out {
                left_out.insert(key.clone());
            }
            items.push(Item { key, value, created: entry.created, modified: entry.modified });
        }
        let listing = Listing { cluster: copy.cluster, revision: copy.revision, items };
        Ok(Served { listing, left_out })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::LastGood;
    use crate::seal::{NoSecrets, Seal};
    use crate::{Item, Listing};

    #[test]
    fn a_copy_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("last-good.json");
        let seal = Seal::from_hex(&"a".repeat(64), "test", Arc::new(NoSecrets)).unwrap();
        let item = |key: &str, value: &str, at| Item {
            key: key.parse().unwrap(),
            value: value.into(),
            created: at,
            modified: at + 1,
        };
        let listing = Listing {
            cluster: u64::MAX,
            revision: 7,
            items: vec![item("routes/1", r#"{"uri":"/a"}"#, 1), item("routes/2", "{broken", 3)],
        };
        for listing in [listing, Listing::default()] {
            let at = (listing.cluster, listing.revision);
            let is_broken = |item: &Item| &*item.value == "{broken";
            let items = || listing.items.iter().map(|item| (item, is_broken(item)));
            LastGood::write(&path, at, items(), &seal, || Ok(())).unwrap();
            assert_eq!(LastGood::read(&path, &seal).unwrap(), listing);
            let mut left = listing.items.len();
            let ended = LastGood::write(&path, (listing.cluster, 8), items(), &seal, || {
                left = left.checked_sub(1).ok_or(std::io::ErrorKind::Interrupted)?;
                Ok(())
            });
            assert!(ended.is_err());
            assert_eq!(LastGood::read(&path, &seal).unwrap(), listing, "it was ended at the last moment");
            let broken = listing.items.iter().filter(|item| is_broken(item)).map(|item| item.key.clone());
            assert_eq!(LastGood::served(&path, &seal).unwrap().left_out, broken.collect());
        }
        std::fs::write(&path, "{\"revision\":7,\"items\":[]}").unwrap();
        let of_before = Listing { revision: 7, ..Listing::default() };
        assert_eq!(LastGood::read(&path, &seal), Ok(of_before), "a copy of a version that named no cluster");
        std::fs::write(&path, "{\"revision\":7").unwrap();
        assert!(LastGood::read(&path, &seal).unwrap_err().contains("is damaged"));
    }
}
