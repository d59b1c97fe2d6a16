//! The spill file of a channel: batches that could not be sent, in order, until they can be.
//!
//! ```text
//! 8 bytes: where the first batch begins │ 4 bytes: records, 8 bytes: length, the body │ …
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::ChannelOptions;
use super::queue::Batch;

const START: u64 = 8;
const HEADER: u64 = 12;
/// No batch is larger, so a longer one is a broken file.
const LONGEST: u64 = 1 << 30;

/// The spill file of a channel; it is made when it is needed.
#[derive(Debug)]
pub(super) struct Spill {
    path: PathBuf,
    /// Most bytes of the file.
    most: u64,
    file: Option<File>,
    /// The last attempt to use it failed, which was told.
    is_broken: bool,
}

impl Spill {
    pub(super) fn new(folder: &Path, most: u64, options: &ChannelOptions) -> Self {
        let path = folder.join(options.file_name());
        let file = OpenOptions::new().read(true).write(true).open(&path).ok();
        Self { path, most, file, is_broken: false }
    }

    /// Appends a batch; false when there is no room for it.
    pub(super) fn put(&mut self, batch: &Batch) -> bool {
        let done = self.try_put(batch);
        self.tell(done, "reports cannot be spilled").unwrap_or(false)
    }

    /// The first batch.
    pub(super) fn first(&mut self) -> Option<Batch> {
        self.file.as_ref()?;
        let first = self.try_first().map(|found| found.map(|(batch, _)| batch));
        self.tell(first, "spilled reports cannot be read").flatten()
    }

    /// Takes the first batch out.
    pub(super) fn remove_first(&mut self) {
        let done = self.try_remove_first();
        self.tell(done, "spilled reports that were sent cannot be removed");
    }

    fn tell<T>(&mut self, done: io::Result<T>, problem: &'static str) -> Option<T> {
        match done {
            Ok(done) => {
                self.is_broken = false;
                Some(done)
            }
            Err(error) => {
                if !self.is_broken {
                    tracing::error!(file = %self.path.display(), %error, "{problem}");
                }
                self.is_broken = true;
                None
            }
        }
    }

    fn try_put(&mut self, batch: &Batch) -> io::Result<bool> {
        if self.file.is_none() {
            let file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&self.path)?;
            self.file = Some(file);
        }
        let Some(file) = &self.file else { return Ok(false) };
        let mut end = file.metadata()?.len();
        if end < START {
            file.write_all_at(&START.to_le_bytes(), 0)?;
            end = START;
        }
        let len = batch.body.len() as u64;
        if end + HEADER + len > self.most {
            return Ok(false);
        }
        let header = [&(batch.records as u32).to_le_bytes()[..], &len.to_le_bytes()].concat();
        // The header comes last: a body that was cut off is no batch.
        file.write_all_at(&batch.body, end + HEADER)?;
        file.write_all_at(&header, end)?;
        Ok(true)
    }

    fn try_first(&self) -> io::Result<Option<(Batch, u64)>> {
        let Some(file) = &self.file else { return Ok(None) };
        let end = file.metadata()?.len();
        if end <= START {
            return Ok(None);
        }
        let mut first = [0; 8];
        file.read_exact_at(&mut first, 0)?;
        let first = u64::from_le_bytes(first);
        if first + HEADER > end {
            return Ok(None);
        }
        let (mut records, mut len) = ([0; 4], [0; 8]);
        file.read_exact_at(&mut records, first)?;
        file.read_exact_at(&mut len, first + 4)?;
        let (records, len) = (u32::from_le_bytes(records), u64::from_le_bytes(len));
        if len > LONGEST || first + HEADER + len > end || records == 0 {
            // Written by something else, or cut off: nothing behind it can be read either.
            file.set_len(0)?;
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; len as usize];
        file.read_exact_at(&mut body, first + HEADER)?;
        Ok(Some((Batch::spilled(body, records as usize), first + HEADER + len)))
    }

    fn try_remove_first(&self) -> io::Result<()> {
        let (Some(file), Some((_, next))) = (&self.file, self.try_first()?) else { return Ok(()) };
        if next >= file.metadata()?.len() {
            return file.set_len(0);
        }
        file.write_all_at(&next.to_le_bytes(), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Destination, Frame};
    use super::*;
    use std::time::Duration;

    #[test]
    fn batches_come_out_as_they_went_in() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = ChannelOptions {
            plugin: "test",
            name: String::new(),
            destination: Destination::File { path: "/x".into(), mode: 0 },
            frame: Frame::Array,
            batch_records: 1,
            batch_age: Duration::ZERO,
            batch_idle: Duration::ZERO,
            max_pending: None,
            retries: 0,
            retry_delay: Duration::ZERO,
        };
        let batch = |text: &str| Batch { body: text.into(), records: text.len(), ..Batch::default() };
        let body = |batch: Option<Batch>| batch.map(|batch| String::from_utf8(batch.body).expect("text"));
        let mut spill = Spill::new(folder.path(), 60, &options);
        assert_eq!(spill.first(), None);
        assert!(spill.put(&batch("first")) && spill.put(&batch("second")));
        assert!(!spill.put(&batch("one that is too long for it")), "a bound");
        assert_eq!(body(spill.first()).as_deref(), Some("first"));
        spill.remove_first();
        // Another process finds what is left.
        let mut spill = Spill::new(folder.path(), 60, &options);
        assert_eq!(spill.first().map(|batch| (batch.records, batch.is_spilled)), Some((6, true)));
        spill.remove_first();
        assert_eq!(spill.first(), None);
        assert!(spill.put(&batch("third")), "there is room again");
        assert_eq!(body(spill.first()).as_deref(), Some("third"));
        std::fs::write(
            folder.path().join(options.file_name()),
            [8, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9],
        )
        .expect("write");
        assert_eq!(spill.first(), None, "what is broken is given up");
        assert!(spill.put(&batch("fourth")));
        assert_eq!(body(spill.first()).as_deref(), Some("fourth"));
    }
}
