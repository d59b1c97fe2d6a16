//! Log files: creating folders at start, checking without creating a file, and opening the files again.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Access, OFlags, access};
use tokio::task::spawn_blocking;
use weir_telemetry::access_log::AccessLogs;

use crate::process::error_log::ErrorLog;

/// Time limit for opening the error log again.
const REOPEN_LIMIT: Duration = Duration::from_secs(5);

/// Creates the folder of a log file, and checks that opening the file will not block.
///
/// # Errors
/// The folder cannot be created, or the file is a named pipe without a reader.
pub(crate) fn prepare(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|error| named(&error, "cannot make the folder", folder))?;
    }
    match fs::metadata(path) {
        Ok(found) if found.file_type().is_fifo() => open(path),
        _ => Ok(()),
    }
}

/// Checks that a log file could be opened, without creating anything.
///
/// # Errors
/// The file could not be opened.
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

/// Opens the log files again. Runs on a thread that may block, because a write to the old file may be in progress.
pub(crate) async fn reopen(access_logs: &AccessLogs, error_log: &Arc<ErrorLog>) {
    let (access_logs, error_log) = (access_logs.clone(), Arc::clone(error_log));
    let work = spawn_blocking(move || {
        let mut outcomes: Vec<_> = access_logs.open().map(|(name, log)| (name, log.reopen())).collect();
        weir_telemetry::reports::reopen();
        outcomes.push(("error_log", error_log.reopen(REOPEN_LIMIT)));
        outcomes
    });
    match work.await {
        Ok(outcomes) => {
            for (log, outcome) in outcomes {
                if let Err(error) = outcome {
                    tracing::error!(log, %error, "cannot open the log file again; the file that is open stays in use");
                }
            }
            tracing::info!("log files were opened again");
        }
        Err(panicked) => tracing::error!(%panicked, "log files were not opened again"),
    }
}

fn open(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path).map(drop)
}

fn named(error: &io::Error, what: &str, folder: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", folder.display()))
}
