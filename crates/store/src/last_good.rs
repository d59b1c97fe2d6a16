//! A copy of the configuration that serves, in one file of JSON, for the day on which the database is damaged.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::seal::{PREFIX, Seal};
use crate::{Item, Key, Listing};

/// Writes and reads the copy. Secrets in it are encrypted as in the database.
#[derive(Debug)]
pub struct LastGood;

#[derive(Deserialize, Serialize)]
struct Copy {
    revision: u64,
    items: Vec<Entry>,
}

#[derive(Deserialize, Serialize)]
struct Entry {
    key: String,
    created: u64,
    modified: u64,
    /// JSON, or a JSON text of what is none.
    value: Box<RawValue>,
}

impl LastGood {
    /// Replaces the copy with the resources at a revision, in one go. After each of them, and in the end, `between` may
    /// take its time, or end it.
    ///
    /// # Errors
    /// The file cannot be written, or `between` failed; the one before is still there.
    pub fn write<'i>(
        path: &Path,
        revision: u64,
        items: impl Iterator<Item = &'i Item>,
        seal: &Seal,
        mut between: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let beside = path.with_extension("new");
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        let mut out = BufWriter::with_capacity(256 * 1024, file);
        // An item a line: the file can be looked at, and compared with another.
        write!(out, "{{\"revision\":{revision},\"items\":[")?;
        for (at, item) in items.enumerate() {
            let sealed = seal.seal(&item.key, &item.value).map_err(io::Error::other)?;
            let value = match RawValue::from_string(sealed) {
                Ok(value) => value,
                // What is no JSON is sealed whole, and is one text here.
                Err(_) => to_raw_value(&seal.seal(&item.key, &item.value).map_err(io::Error::other)?)?,
            };
            let entry = Entry { key: item.key.to_string(), created: item.created, modified: item.modified, value };
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

    /// Reads the copy.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(path: &Path, seal: &Seal) -> Result<Listing, String> {
        let place = path.display();
        let text = fs::read_to_string(path).map_err(|error| format!("cannot read {place}: {error}"))?;
        let copy: Copy = serde_json::from_str(&text).map_err(|error| format!("{place} is damaged: {error}"))?;
        let mut items = Vec::with_capacity(copy.items.len());
        for entry in copy.items {
            let key: Key = entry.key.parse().map_err(|error| format!("{place} is damaged: {error}"))?;
            let raw = entry.value.get();
            let whole = serde_json::from_str::<String>(raw).ok().filter(|text| text.starts_with(PREFIX));
            let value =
                seal.open(&key, whole.as_deref().unwrap_or(raw)).map_err(|error| format!("{place}: {error}"))?;
            items.push(Item { key, value, created: entry.created, modified: entry.modified });
        }
        Ok(Listing { revision: copy.revision, items })
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
            revision: 7,
            items: vec![item("routes/1", r#"{"uri":"/a"}"#, 1), item("routes/2", "{broken", 3)],
        };
        for listing in [listing, Listing::default()] {
            LastGood::write(&path, listing.revision, listing.items.iter(), &seal, || Ok(())).unwrap();
            assert_eq!(LastGood::read(&path, &seal).unwrap(), listing);
            let mut left = listing.items.len();
            let ended = LastGood::write(&path, 8, listing.items.iter(), &seal, || {
                left = left.checked_sub(1).ok_or(std::io::ErrorKind::Interrupted)?;
                Ok(())
            });
            assert!(ended.is_err());
            assert_eq!(LastGood::read(&path, &seal).unwrap(), listing, "it was ended at the last moment");
        }
        std::fs::write(&path, "{\"revision\":7").unwrap();
        assert!(LastGood::read(&path, &seal).unwrap_err().contains("is damaged"));
    }
}
