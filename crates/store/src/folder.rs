//! The folder of a store, and the lock that grants write access to it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::database::DatabaseError;
use crate::seal::SealError;

/// Folder of a store: `weir.db`, `key`, `lock` and `last-good.json`.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// Write access to the store. It ends when the value is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    /// Open and locked lock file, which contains the process id of its holder.
    _file: File,
    /// Lock on the folder as well, because the lock file may be deleted. `None` on a file system that cannot lock
    /// folders.
    _folder: Option<File>,
}

/// Error when opening a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another process has write access.
    #[error("{0}")]
    InUse(String),
    /// The database is unusable now; a copy of the last good state may replace it.
    #[error("{0}")]
    Broken(String),
    /// The folder, the key or the version does not fit; somebody has to correct it first.
    #[error("{0}")]
    Unfit(String),
}

impl Folder {
    /// Creates the folder at a path if it is missing; only the owner may access it.
    ///
    /// # Errors
    /// [`OpenError::Unfit`].
    pub fn create(path: &Path) -> Result<Self, OpenError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|error| OpenError::Unfit(format!("cannot make the data directory {}: {error}", path.display())))?;
        Self::open(path)
    }

    /// Opens the existing folder at a path.
    ///
    /// # Errors
    /// [`OpenError::Unfit`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(Self { path: path.to_owned() }),
            Ok(_) => Err(OpenError::Unfit(format!("the data directory {} is a file", path.display()))),
            Err(error) => Err(OpenError::Unfit(format!("cannot open the data directory {}: {error}", path.display()))),
        }
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the database.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.path.join("weir.db")
    }

    /// Path of the key that encrypts secrets.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.path.join("key")
    }

    /// Path of the copy of the last good state.
    #[must_use]
    pub fn last_good(&self) -> PathBuf {
        self.path.join("last-good.json")
    }

    fn lock_file(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// [`OpenError::InUse`] with the id of the process that holds it; [`OpenError::Broken`] if locking is impossible.
    pub fn try_lock(&self) -> Result<Lock, OpenError> {
        let mut file = self.open_lock()?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                // The holder may not have written its process id yet.
                let _ = file.read_to_string(&mut owner);
                return Err(self.in_use(owner.trim()));
            }
            Err(TryLockError::Error(error)) => return Err(self.no_lock(&error)),
        }
        let folder = self.open_folder()?;
        match folder.try_lock() {
            Ok(()) => Ok(Lock::taken(file, Some(folder))),
            // The holder locked another lock file, which has been deleted since.
            Err(TryLockError::WouldBlock) => Err(self.in_use("")),
            Err(TryLockError::Error(_)) => Ok(Lock::taken(file, None)),
        }
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// [`OpenError::Broken`] if locking is impossible.
    pub fn lock(&self) -> Result<Lock, OpenError> {
        let (file, folder) = (self.open_lock()?, self.open_folder()?);
        file.lock().map_err(|error| self.no_lock(&error))?;
        let locked = folder.lock().is_ok();
        Ok(Lock::taken(file, locked.then_some(folder)))
    }

    fn in_use(&self, owner: &str) -> OpenError {
        let path = self.path.display();
        OpenError::InUse(match owner {
            "" => format!("another process uses the data directory {path}"),
            owner => format!("process {owner} uses the data directory {path}"),
        })
    }

    fn open_folder(&self) -> Result<File, OpenError> {
        File::open(&self.path).map_err(|error| self.no_lock(&error))
    }

    fn open_lock(&self) -> Result<File, OpenError> {
        let path = self.lock_file();
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        // Read permission is enough for locking.
        opened.or_else(|error| File::open(&path).map_err(|_| error)).map_err(|error| self.no_lock(&error))
    }

    fn no_lock(&self, error: &io::Error) -> OpenError {
        OpenError::Broken(format!("cannot lock {}: {error}", self.lock_file().display()))
    }
}

impl Lock {
    fn taken(mut file: File, folder: Option<File>) -> Self {
        // The process id is for people and messages; the lock holds without it.
        let written = file.set_len(0).and_then(|()| file.rewind());
        let _ = written.and_then(|()| writeln!(file, "{}", std::process::id()));
        Self { _file: file, _folder: folder }
    }
}

impl From<DatabaseError> for OpenError {
    fn from(lost: DatabaseError) -> Self {
        match lost {
            DatabaseError::Unfit(reason) => Self::Unfit(reason),
            DatabaseError::Damaged(_) | DatabaseError::Unavailable(_) | DatabaseError::Conflict(_) => {
                Self::Broken(lost.to_string())
            }
        }
    }
}

impl From<SealError> for OpenError {
    fn from(error: SealError) -> Self {
        Self::Unfit(error.to_string())
    }
}
