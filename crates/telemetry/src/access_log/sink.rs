//! Target of an access log.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use super::Target;

/// Writer of batches of complete lines.
#[derive(Debug)]
pub(crate) struct Sink<W = File> {
    /// Name in the log.
    name: &'static str,
    target: Target,
    file: W,
    /// Permissions of a created file.
    mode: u32,
    /// Maximum size of a write of several lines in bytes.
    most: usize,
    /// True if the last line in the file lacks its line end.
    torn: bool,
    /// True if the last batch could not be written.
    failing: bool,
}

/// Maximum size of an atomic write to a pipe in bytes (POSIX requires 512, Linux's `PIPE_BUF` is this). Into a longer
/// write, another process that writes to the pipe, such as the new process of an upgrade, may insert its own lines.
const PIPE: usize = 4096;

/// Delay before a retry at a full target that is set to non-blocking.
const RETRY: Duration = Duration::from_millis(10);

impl Sink {
    pub(crate) fn open(name: &'static str, target: Target, mode: u32) -> io::Result<Self> {
        let file = match &target {
            // Uses the descriptor itself: `io::Stdout` would search for line ends and copy once more.
            Target::Stdout => File::from(io::stdout().as_fd().try_clone_to_owned()?),
            Target::File(path) => append_to(path, mode)?,
        };
        let most = if file.metadata()?.file_type().is_fifo() { PIPE } else { usize::MAX };
        Ok(Self { name, target, file, mode, most, torn: false, failing: false })
    }

    /// Opens the path anew when another file is there by now, or none.
    pub(crate) fn follow(&mut self) -> io::Result<()> {
        let Target::File(path) = &self.target else { return Ok(()) };
        let own = self.file.metadata()?;
        let is_own = std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino()));
        if is_own { Ok(()) } else { self.reopen() }
    }

    pub(crate) fn reopen(&mut self) -> io::Result<()> {
        if let Target::File(path) = &self.target {
            self.file = append_to(path, self.mode)?;
            self.torn = false;
        }
        Ok(())
    }
}

fn append_to(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(mode).open(path)
}

impl<W: Write> Sink<W> {
    /// Writes complete lines; returns the number of lines that were not written.
    pub(crate) fn write(&mut self, lines: &[u8]) -> u64 {
        if lines.is_empty() {
            return 0;
        }
        let (written, result) = self.write_out(lines);
        let (done, left) = lines.split_at_checked(written).unwrap_or((lines, &[]));
        if let Some(last) = done.last() {
            self.torn = *last != b'\n';
        }
        match result {
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!(target = ?self.target, "{} is written again", self.name);
            }
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::error!(target = ?self.target, %error, "{} cannot be written; lines are dropped", self.name);
            }
            _ => {}
        }
        left.iter().filter(|byte| **byte == b'\n').count() as u64
    }

    /// Writes as much as the file accepts.
    fn write_out(&mut self, lines: &[u8]) -> (usize, io::Result<()>) {
        if self.torn {
            // Ends the line that a failure truncated, so that the next line starts on its own.
            match self.write_all(b"\n") {
                (_, Ok(())) => self.torn = false,
                (_, error) => return (0, error),
            }
        }
        self.write_all(lines)
    }

    fn write_all(&mut self, bytes: &[u8]) -> (usize, io::Result<()>) {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            match self.file.write(whole_lines(rest, self.most)) {
                Ok(0) => return (written, Err(ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Standard output may be a pipe that another program has set to non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(RETRY),
                Err(error) => return (written, Err(error)),
            }
        }
        (written, Ok(()))
    }
}

/// As many lines as fit into `most` bytes, but at least one.
fn whole_lines(bytes: &[u8], most: usize) -> &[u8] {
    let Some((head, tail)) = bytes.split_at_checked(most) else { return bytes };
    let end = |within: &[u8]| within.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
    let first = || tail.iter().position(|byte| *byte == b'\n').map(|at| most + at + 1);
    end(head).or_else(first).and_then(|len| bytes.get(..len)).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts `room` bytes, then fails until `room` is increased.
    #[derive(Default)]
    struct Disk {
        content: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.room -= count;
            self.content.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_costs_lines_but_never_joins_two() {
        // Room before each batch, the batch, lines lost; then the content of the disk.
        type Batch = (usize, &'static str, u64);
        let cases: [(&[Batch], &str); 5] = [
            (&[(100, "a\nb\n", 0), (0, "c\n", 0)], "a\nb\nc\n"),
            (&[(0, "a\nb\n", 2), (100, "c\n", 0)], "c\n"),
            (&[(2, "a\nb\n", 1), (100, "c\n", 0)], "a\nc\n"),
            (&[(3, "aa\nbb\n", 1), (100, "c\n", 0)], "aa\nc\n"),
            (&[(4, "aa\nbb\n", 1), (0, "cc\n", 1), (100, "d\n", 0)], "aa\nb\nd\n"),
        ];
        for (batches, content) in cases {
            let file = Disk::default();
            let mut sink = Sink {
                name: "a log",
                target: Target::Stdout,
                file,
                mode: 0o600,
                most: usize::MAX,
                torn: false,
                failing: false,
            };
            for (room, batch, lost) in batches {
                sink.file.room += room;
                assert_eq!(sink.write(batch.as_bytes()), *lost, "{batch:?} of {batches:?}");
            }
            assert_eq!(String::from_utf8_lossy(&sink.file.content), content, "{batches:?}");
        }
    }

    #[test]
    fn a_pipe_gets_whole_lines() {
        for (bytes, most, piece) in [
            ("a\nb\nc\n", 10, "a\nb\nc\n"),
            ("a\nb\nc\n", 6, "a\nb\nc\n"),
            ("a\nb\nc\n", 5, "a\nb\n"),
            ("a\nb\nc\n", 4, "a\nb\n"),
            ("long line\nb\n", 4, "long line\n"),
            ("long line\n", 4, "long line\n"),
            ("no end", 4, "no end"),
        ] {
            let found = whole_lines(bytes.as_bytes(), most);
            assert_eq!(String::from_utf8_lossy(found), piece, "{bytes:?} by {most}");
        }
    }
}
