//! The places of log files: folders that are made at the start, and what can be known of a file without making it.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Access, OFlags, access};

/// Makes the folder of a log file, and sees that opening the file will not wait for anybody.
///
/// # Errors
/// The folder cannot be made, or the file is a named pipe that nobody reads.
pub(crate) fn prepare(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| named(&error, "cannot make the folder", folder))?;
    }
    match fs::metadata(path) {
        Ok(found) if found.file_type().is_fifo() => open(path),
        _ => Ok(()),
    }
}

/// Tells whether a log file could be opened, and makes nothing.
///
/// # Errors
/// It could not.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    if path.exists() {
        return open(path);
    }
    let above = path.ancestors().skip(1).find(|folder| folder.exists() || folder.as_os_str().is_empty());
    let Some(folder) = above else { return Ok(()) };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let is_folder = fs::metadata(folder)?.is_dir();
    let problem = if is_folder {
        access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from)
    } else {
        Err(io::ErrorKind::NotADirectory.into())
    };
    problem.map_err(|error| named(&error, "cannot make a file in", folder))
}

fn open(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path).map(drop)
}

fn named(error: &io::Error, what: &str, folder: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", folder.display()))
}
