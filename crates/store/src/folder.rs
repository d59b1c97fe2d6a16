//! The folder of a store, and the lock that says who may write to it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::database::Lost;
use crate::seal::SealError;

/// The folder of a store: `weir.db`, `key`, `lock` and `last-good.json`.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

/// The right to write. It ends with this value, or with the process.
#[derive(Debug)]
pub struct Lock {
    /// Holds the lock as long as it is open, and says whose it is.
    _file: File,
    /// Holds it too, for the file may be deleted. `None` on a file system that cannot lock folders.
    _folder: Option<File>,
}

/// Why a store cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another process may write.
    #[error("{0}")]
    InUse(String),
    /// Its database is of no use now; a copy of the last good state may be.
    #[error("{0}")]
    Broken(String),
    /// The folder, the key or the version does not fit: something has to be put right first.
    #[error("{0}")]
    Unfit(String),
}

impl Folder {
    /// The folder at a path, which is made, for its owner alone, where it is missing.
    ///
    /// # Errors
    /// [`OpenError::Unfit`].
    pub fn create(path: &Path) -> Result<Self, OpenError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|error| OpenError::Unfit(format!("cannot make the data directory {}: {error}", path.display())))?;
        Self::open(path)
    }

    /// The folder at a path, which must be there.
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

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.path.join("weir.db")
    }

    /// The key that secrets are encrypted with.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.path.join("key")
    }

    /// The copy of the last good state.
    #[must_use]
    pub fn last_good(&self) -> PathBuf {
        self.path.join("last-good.json")
    }

    fn lock_file(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// Takes the lock, if nobody has it.
    ///
    /// # Errors
    /// [`OpenError::InUse`] with the number of the process that has it; [`OpenError::Broken`] where there can be no lock.
    pub fn try_lock(&self) -> Result<Lock, OpenError> {
        let mut file = self.open_lock()?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                // Whoever has the lock may not have written its number yet.
                let _ = file.read_to_string(&mut owner);
                return Err(self.in_use(owner.trim()));
            }
            Err(TryLockError::Error(error)) => return Err(self.no_lock(&error)),
        }
        let folder = self.open_folder()?;
        match folder.try_lock() {
            Ok(()) => Ok(Lock::taken(file, Some(folder))),
            // The lock file is not the one that its owner has: that one was deleted.
            Err(TryLockError::WouldBlock) => Err(self.in_use("")),
            Err(TryLockError::Error(_)) => Ok(Lock::taken(file, None)),
        }
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// [`OpenError::Broken`] where there can be no lock.
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
        // Whoever may only read can have the lock all the same.
        opened.or_else(|error| File::open(&path).map_err(|_| error)).map_err(|error| self.no_lock(&error))
    }

    fn no_lock(&self, error: &io::Error) -> OpenError {
        OpenError::Broken(format!("cannot lock {}: {error}", self.lock_file().display()))
    }
}

impl Lock {
    fn taken(mut file: File, folder: Option<File>) -> Self {
        // For people and for messages; the lock holds without it.
        let told = file.set_len(0).and_then(|()| file.rewind());
        let _ = told.and_then(|()| writeln!(file, "{}", std::process::id()));
        Self { _file: file, _folder: folder }
    }
}

impl From<Lost> for OpenError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Unfit(reason) => Self::Unfit(reason),
            Lost::Damaged(_) | Lost::Unavailable(_) | Lost::Conflict(_) => Self::Broken(lost.to_string()),
        }
    }
}

impl From<SealError> for OpenError {
    fn from(error: SealError) -> Self {
        Self::Unfit(error.to_string())
    }
}
