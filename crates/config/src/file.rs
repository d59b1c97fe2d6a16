//! Files named in a configuration, read without blocking on a writer.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Most bytes that are read of a file with settings, certificates, keys or addresses. The system's list of authorities
/// has some 250 KiB.
pub const MAX_FILE_BYTES: usize = 16 * 1024 * 1024;

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// The file does not exist, is too large, or is not a regular file, such as a named pipe: reading one would block until
/// a writer comes.
pub fn read(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let bytes = read_beginning(path, most.saturating_add(1))?;
    if bytes.len() > most {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than the {most} bytes that are read"),
        ));
    }
    Ok(bytes)
}

/// Reads a regular file of at most [`MAX_FILE_BYTES`] as text.
///
/// # Errors
/// As [`read`]'s, or it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read(path, MAX_FILE_BYTES)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Reads the beginning of a regular file, `most` bytes of it.
///
/// # Errors
/// There is no such file, or it is something else than a regular file.
pub fn read_beginning(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    // Opening a device may already have an effect, so the kind is checked before, and once more on the open file.
    regular(fs::metadata(path)?.file_type())?;
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    regular(file.metadata()?.file_type())?;
    let mut bytes = Vec::new();
    File::take(file, most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn regular(kind: FileType) -> io::Result<()> {
    let found = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "none",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("expected a regular file, found {found}")))
}
