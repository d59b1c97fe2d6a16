//! Resources and their history in one SQLite database.
//!
//! The database is in WAL mode with `synchronous=FULL`: a commit that [`Database::commit`] has confirmed survives a
//! crash of the process and of the machine. Values are JSON with encrypted secrets, so everything else can be
//! inspected with any SQLite tool.

mod records;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::backup::Backup;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use crate::seal::{Seal, SealError};
use crate::{Change, Commit, Item, Key, Kind, Listing, StoreError};

/// `application_id` of a store: the letters `Weir`.
const APPLICATION: i32 = 0x5765_6972;

/// Schema version that this program writes. [`Database::migrate`] upgrades a database of an older version; a database
/// of a newer version is refused.
const VERSION: i32 = 1;

/// Number of prepared statements that are cached: those of a commit and some more.
const PREPARED: usize = 32;

/// Longest wait for the lock of another connection. Only commands that read meet such a lock.
const BUSY: Duration = Duration::from_secs(5);

const TABLES: &str = "
    CREATE TABLE store (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        revision INTEGER NOT NULL,      -- of the last commit
        forgotten INTEGER NOT NULL,     -- the history knows what happened after this revision
        seal TEXT NOT NULL              -- the id of the key that secrets are encrypted with
    ) STRICT;
    CREATE TABLE items (
        number INTEGER PRIMARY KEY,     -- in the order of creation
        key TEXT NOT NULL UNIQUE,       -- routes/1
        value TEXT NOT NULL,            -- JSON, secrets encrypted
        created INTEGER NOT NULL,       -- revisions
        modified INTEGER NOT NULL,
        expires INTEGER                 -- milliseconds since 1970
    ) STRICT;
    CREATE INDEX items_by_expiry ON items (expires) WHERE expires IS NOT NULL;
    CREATE TABLE commits (
        revision INTEGER PRIMARY KEY,
        time INTEGER NOT NULL,          -- milliseconds since 1970
        author TEXT NOT NULL
    ) STRICT;
    CREATE TABLE changes (
        number INTEGER PRIMARY KEY,
        revision INTEGER NOT NULL,
        key TEXT NOT NULL,
        created INTEGER NOT NULL,       -- the revision that created the item
        old TEXT,                       -- NULL: there was none
        new TEXT                        -- NULL: it was deleted
    ) STRICT;
    CREATE INDEX changes_by_revision ON changes (revision);
    CREATE INDEX changes_by_key ON changes (key, revision);
";

/// Bytes charged to a change in the history beside its texts: its row, its index entries and its share of the commit.
const CHANGE_ROW: u64 = 128;

/// SQL expression for the bytes of a change's texts. SQLite reports the lengths without reading the texts.
const CHANGE_BYTES: &str = "octet_length(key) + coalesce(octet_length(old), 0) + coalesce(octet_length(new), 0)";

/// An open database.
#[derive(Debug)]
pub struct Database {
    connection: Connection,
    seal: Arc<Seal>,
    path: PathBuf,
    /// Device and inode of the open file.
    file: (u64, u64),
    history: History,
    /// Data version of the database and the bytes of its history at that version. Another process may have written
    /// since.
    known: Option<(i64, u64)>,
}

/// Bounds of a history. The oldest commits beyond either bound are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// Maximum number of changes.
    pub changes: u64,
    /// Maximum total size of the changes in bytes.
    pub bytes: u64,
}

/// Error that makes a database unusable, or that an operation on it failed with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseError {
    /// The file is damaged or no database; a retry does not help.
    #[error("{0}")]
    Damaged(String),
    /// The database cannot be read or written at the moment: a full disk, a read-only file.
    #[error("{0}")]
    Unavailable(String),
    /// The database is intact, but this program or this key cannot use it.
    #[error("{0}")]
    Unfit(String),
    /// Another writer changed a resource.
    #[error("{0} was changed by somebody else")]
    Conflict(Key),
}

/// Result of a commit.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    /// Revision that the commit made.
    pub(crate) revision: u64,
    /// Resources that changed, with their new state; empty if the commit changed nothing.
    pub(crate) changes: Vec<(Key, Option<Item>)>,
    /// Bytes that the commit adds to the history.
    bytes: u64,
}

impl Database {
    /// Opens a database for writing and creates it if it is missing. Only the owner may access its files.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub fn open(path: &Path, seal: Arc<Seal>, history: History) -> Result<Self, DatabaseError> {
        make(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let database = Self::connect(path, flags, seal, history)?;
        database.migrate()?;
        database.check_seal()?;
        Ok(database)
    }

    /// Opens an existing database for reading; other processes may write to it at the same time.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub fn read_only(path: &Path, seal: Arc<Seal>) -> Result<Self, DatabaseError> {
        let database = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, seal, History { changes: 0, bytes: 0 })?;
        database.version()?;
        database.check_seal()?;
        Ok(database)
    }

    fn connect(path: &Path, flags: OpenFlags, seal: Arc<Seal>, history: History) -> Result<Self, DatabaseError> {
        let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(BUSY)?;
        connection.set_prepared_statement_cache_capacity(PREPARED);
        let read_only = connection.is_readonly("main")?;
        if !read_only {
            // Reads the first page, and so detects a file that is no database.
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)?;
        }
        connection.pragma_update(None, "trusted_schema", false)?;
        let file = identity(path).map_err(|error| DatabaseError::Unavailable(error.to_string()))?;
        Ok(Self { connection, seal, path: path.to_owned(), file, history, known: None })
    }

    /// Schema version; 0 if there are no tables yet.
    fn version(&self) -> Result<i32, DatabaseError> {
        let pragma = |name: &str| self.connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        let (application, version) = (pragma("application_id")?, pragma("user_version")?);
        match (application, version) {
            (0, 0) => Ok(0),
            (APPLICATION, 1..=VERSION) => Ok(version),
            (APPLICATION, _) => Err(DatabaseError::Unfit(format!(
                "{} was written by a newer version of the gateway (its tables have version {version}, known is {VERSION})",
                self.path.display()
            ))),
            _ => Err(DatabaseError::Damaged(format!("{} is a database of another program", self.path.display()))),
        }
    }

    /// Creates the tables of a new database, and upgrades those of an older version.
    pub(crate) fn migrate(&self) -> Result<(), DatabaseError> {
        if self.version()? == 0 {
            let transaction = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
            transaction.execute_batch(TABLES)?;
            transaction.execute("INSERT INTO store VALUES (1, 0, 0, ?)", [self.seal.id()])?;
            transaction.pragma_update(None, "application_id", APPLICATION)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
            transaction.commit()?;
        }
        Ok(())
    }

    fn check_seal(&self) -> Result<(), DatabaseError> {
        let needed: String = self.connection.query_row("SELECT seal FROM store", [], |row| row.get(0))?;
        if needed == self.seal.id() {
            return Ok(());
        }
        Err(DatabaseError::Unfit(format!(
            "{} was written with the key {needed}, and this is the key {}: put the right key into the file `key` beside it, \
             or into the setting store.key",
            self.path.display(),
            self.seal.id()
        )))
    }

    /// True if the database cannot be written to.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub fn is_read_only(&self) -> Result<bool, DatabaseError> {
        Ok(self.connection.is_readonly("main")?)
    }

    /// Revision of the last commit; 0 if nothing was ever committed.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub fn revision(&self) -> Result<u64, DatabaseError> {
        let mut statement = self.connection.prepare_cached("SELECT revision FROM store")?;
        Ok(statement.query_row([], |row| row.get(0)).map(i64::cast_unsigned)?)
    }

    /// Reads one resource.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub fn get(&self, key: &Key) -> Result<Option<Item>, DatabaseError> {
        let sql = "SELECT key, value, created, modified FROM items WHERE key = ?";
        let found = self.connection.prepare_cached(sql)?.query_row([key.to_string()], stored).optional()?;
        found.map(|stored| self.item(stored)).transpose()
    }

    /// Lists the resources of one kind, or of all kinds, in the order of their creation.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub fn list(&self, kind: Option<Kind>) -> Result<Listing, DatabaseError> {
        let transaction = self.connection.unchecked_transaction()?;
        let revision = self.revision()?;
        // '0' is the character after '/', so it ends the range of a directory.
        let (from, to) = match kind {
            Some(kind) => (format!("{}/", kind.directory()), format!("{}0", kind.directory())),
            None => (String::new(), "~".to_owned()),
        };
        let sql = "SELECT key, value, created, modified FROM items WHERE key >= ? AND key < ? ORDER BY number";
        let mut statement = transaction.prepare(sql)?;
        let mut items = Vec::new();
        for found in statement.query_map([from, to], stored)? {
            let item = self.item(found?)?;
            if kind.is_none_or(|kind| item.key.kind() == kind) {
                items.push(item);
            }
        }
        Ok(Listing { cluster: 0, revision, items })
    }

    /// Makes changes as one durable commit and returns its revision. The caller must hold the [`Lock`](crate::Lock).
    ///
    /// # Errors
    /// [`DatabaseError`]; then nothing was changed.
    pub fn change_all(&mut self, commit: &Commit) -> Result<u64, DatabaseError> {
        let committed = self.commit_all(std::slice::from_ref(commit))?;
        Ok(committed.last().map_or(0, |committed| committed.revision))
    }

    /// Makes several commits, each with its own revision, with one durable write: all or none.
    pub(crate) fn commit_all(&mut self, commits: &[Commit]) -> Result<Vec<Committed>, DatabaseError> {
        self.is_in_place()?;
        let transaction = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
        let (version, before) = self.history_bytes(&transaction)?;
        let committed: Vec<Committed> =
            commits.iter().map(|commit| self.commit_in(&transaction, commit)).collect::<Result<_, _>>()?;
        if committed.iter().any(|committed| !committed.changes.is_empty()) {
            let bytes = before + committed.iter().map(|committed| committed.bytes).sum::<u64>();
            let forgotten = self.forget(&transaction, bytes)?;
            transaction.commit()?;
            self.known = Some((version, bytes.saturating_sub(forgotten)));
        }
        Ok(committed)
    }

    /// Data version and bytes of the history. The data version differs once another connection has written.
    fn history_bytes(&self, transaction: &Transaction<'_>) -> Result<(i64, u64), DatabaseError> {
        let version = transaction.pragma_query_value(None, "data_version", |row| row.get::<_, i64>(0))?;
        if let Some((_, bytes)) = self.known.filter(|(known, _)| *known == version) {
            return Ok((version, bytes));
        }
        let sql = format!("SELECT coalesce(sum({CHANGE_ROW} + {CHANGE_BYTES}), 0) FROM changes");
        let bytes = transaction.query_row(&sql, [], |row| row.get::<_, i64>(0))?;
        Ok((version, bytes.cast_unsigned()))
    }

    fn commit_in(&self, transaction: &Transaction<'_>, commit: &Commit) -> Result<Committed, DatabaseError> {
        for expectation in &commit.expect {
            let sql = "SELECT modified FROM items WHERE key = ?";
            let mut statement = transaction.prepare_cached(sql)?;
            let modified: Option<i64> =
                statement.query_row([expectation.key.to_string()], |row| row.get(0)).optional()?;
            if modified.map(i64::cast_unsigned) != expectation.modified {
                return Err(DatabaseError::Conflict(expectation.key.clone()));
            }
        }
        let revision = self.revision()? + 1;
        let (mut changes, mut bytes) = (Vec::with_capacity(commit.changes.len()), 0);
        for change in &commit.changes {
            if let Some((key, becomes, of_change)) = self.change(transaction, change, revision)? {
                changes.push((key, becomes));
                bytes += of_change;
            }
        }
        if changes.is_empty() {
            return Ok(Committed { revision: revision - 1, changes, bytes });
        }
        let (author, number) = (commit.author.as_str(), revision.cast_signed());
        let now = millis(SystemTime::now());
        transaction.prepare_cached("INSERT INTO commits VALUES (?, ?, ?)")?.execute(params![number, now, author])?;
        transaction.prepare_cached("UPDATE store SET revision = ?")?.execute([number])?;
        Ok(Committed { revision, changes, bytes })
    }

    /// Applies one change; returns the new state of the resource and the bytes the change takes in the history, or
    /// `None` if it changes nothing.
    fn change(
        &self,
        transaction: &Transaction<'_>,
        change: &Change,
        revision: u64,
    ) -> Result<Option<(Key, Option<Item>, u64)>, DatabaseError> {
        let place = change.key.to_string();
        let sql = "SELECT value, created FROM items WHERE key = ?";
        let mut statement = transaction.prepare_cached(sql)?;
        let before: Option<(String, i64)> =
            statement.query_row([&place], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let sealed = change.value.as_deref().map(|value| self.seal.seal(&change.key, value)).transpose();
        let sealed = sealed.map_err(|error| DatabaseError::Unavailable(error.to_string()))?;
        let created = before.as_ref().map_or(revision.cast_signed(), |(_, created)| *created);
        let now = revision.cast_signed();
        let expires = change.expires.map(millis);
        match (&before, &sealed) {
            (None, None) => return Ok(None),
            (_, None) => transaction.prepare_cached("DELETE FROM items WHERE key = ?")?.execute([&place])?,
            (None, Some(value)) => transaction
                .prepare_cached("INSERT INTO items (key, value, created, modified, expires) VALUES (?, ?, ?, ?, ?)")?
                .execute(params![place, value, created, now, expires])?,
            (Some(_), Some(value)) => transaction
                .prepare_cached("UPDATE items SET value = ?, modified = ?, expires = ? WHERE key = ?")?
                .execute(params![value, now, expires, place])?,
        };
        let length = |text: Option<&String>| text.map_or(0, |text| text.len() as u64);
        let old = before.map(|(old, _)| old);
        let bytes = CHANGE_ROW + place.len() as u64 + length(old.as_ref()) + length(sealed.as_ref());
        transaction
            .prepare_cached("INSERT INTO changes (revision, key, created, old, new) VALUES (?, ?, ?, ?, ?)")?
            .execute(params![now, place, created, old, sealed])?;
        let key = change.key.clone();
        let item = change.value.clone().map(|value| Item {
            key: key.clone(),
            value,
            created: created.cast_unsigned(),
            modified: revision,
        });
        Ok(Some((key, item, bytes)))
    }

    /// Deletes the oldest commits, each as a whole, until the history is within its bounds. `bytes` is the present
    /// size of the history; the result is the number of bytes deleted.
    fn forget(&self, transaction: &Transaction<'_>, bytes: u64) -> Result<u64, DatabaseError> {
        let mut statement = transaction.prepare_cached("SELECT max(number) FROM changes")?;
        let newest: i64 = statement.query_row([], |row| row.get(0))?;
        let mut last = newest.saturating_sub(self.history.changes.cast_signed());
        let excess = bytes.saturating_sub(self.history.bytes);
        if excess > 0 {
            let sql = format!("SELECT number, {CHANGE_ROW} + {CHANGE_BYTES} FROM changes ORDER BY number");
            let mut statement = transaction.prepare_cached(&sql)?;
            let (mut oldest, mut found) = (statement.query([])?, 0);
            while found < excess
                && let Some(row) = oldest.next()?
            {
                last = last.max(row.get(0)?);
                found += row.get::<_, i64>(1)?.cast_unsigned();
            }
        }
        let sql = "SELECT revision FROM changes WHERE number <= ? ORDER BY number DESC LIMIT 1";
        let mut statement = transaction.prepare_cached(sql)?;
        let Some(revision) = statement.query_row([last], |row| row.get::<_, i64>(0)).optional()? else {
            return Ok(0);
        };
        let sql = format!("SELECT coalesce(sum({CHANGE_ROW} + {CHANGE_BYTES}), 0) FROM changes WHERE revision <= ?");
        let gone: i64 = transaction.prepare_cached(&sql)?.query_row([revision], |row| row.get(0))?;
        transaction.prepare_cached("DELETE FROM changes WHERE revision <= ?")?.execute([revision])?;
        transaction.prepare_cached("DELETE FROM commits WHERE revision <= ?")?.execute([revision])?;
        transaction.prepare_cached("UPDATE store SET forgotten = ?")?.execute([revision])?;
        Ok(gone.cast_unsigned())
    }

    /// Keys of the resources that have expired.
    pub(crate) fn expired(&self, now: SystemTime) -> Result<Vec<Key>, DatabaseError> {
        let mut statement = self.connection.prepare("SELECT key FROM items WHERE expires <= ?")?;
        let keys = statement.query_map([millis(now)], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
        Ok(keys.iter().filter_map(|key| key.parse().ok()).collect())
    }

    /// Time at which the next resource expires.
    pub(crate) fn next_expiry(&self) -> Result<Option<SystemTime>, DatabaseError> {
        let sql = "SELECT min(expires) FROM items WHERE expires IS NOT NULL";
        let next: Option<i64> = self.connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        Ok(next.map(moment))
    }

    /// Fills an empty database with resources and their revisions. Their earlier history is not known.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub fn fill(&mut self, listing: &Listing) -> Result<(), DatabaseError> {
        let transaction = Transaction::new_unchecked(&self.connection, TransactionBehavior::Immediate)?;
        for item in &listing.items {
            let value = self.seal.seal(&item.key, &item.value)?;
            transaction.execute(
                "INSERT INTO items (key, value, created, modified) VALUES (?, ?, ?, ?)",
                params![item.key.to_string(), value, item.created.cast_signed(), item.modified.cast_signed()],
            )?;
        }
        let revision = listing.revision.cast_signed();
        transaction.execute("UPDATE store SET revision = ?1, forgotten = ?1", [revision])?;
        Ok(transaction.commit()?)
    }

    /// Writes a complete and consistent copy while others read and write. An existing file is replaced.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub fn backup(&self, to: &Path) -> Result<u64, DatabaseError> {
        const PAGES: i32 = 1024;
        let beside = to.with_extension("new");
        let _ = fs::remove_file(&beside);
        make(&beside)?;
        let mut copy = Connection::open(&beside)?;
        Backup::new(&self.connection, &mut copy)?.run_to_completion(PAGES, Duration::from_millis(1), None)?;
        // A copy is a single file, without WAL and shared memory beside it.
        copy.pragma_update(None, "journal_mode", "DELETE")?;
        let revision: i64 = copy.query_row("SELECT revision FROM store", [], |row| row.get(0))?;
        copy.close().map_err(|(_, error)| error)?;
        let renamed = fs::File::open(&beside).and_then(|file| file.sync_all()).and_then(|()| fs::rename(&beside, to));
        renamed.map_err(|error| DatabaseError::Unavailable(format!("cannot write {}: {error}", to.display())))?;
        Ok(revision.cast_unsigned())
    }

    /// Lists all damage that an integrity check finds.
    ///
    /// # Errors
    /// [`DatabaseError`], if the check itself fails.
    pub fn check(&self) -> Result<Vec<String>, DatabaseError> {
        let mut found = Vec::new();
        let mut statement = self.connection.prepare("PRAGMA integrity_check(100)")?;
        for line in statement.query_map([], |row| row.get::<_, String>(0))? {
            found.push(line?);
        }
        found.retain(|line| line != "ok");
        let mut statement = self.connection.prepare("SELECT key, value, created, modified FROM items")?;
        for stored in statement.query_map([], stored)? {
            let (key, value, ..) = stored?;
            let item = key.parse::<Key>().map_err(|error| error.to_string()).and_then(|key| {
                let value = self.seal.open(&key, &value).map_err(|error| error.to_string())?;
                serde_json::from_str::<serde::de::IgnoredAny>(&value).map_err(|error| format!("{key}: {error}"))
            });
            found.extend(item.err());
        }
        Ok(found)
    }

    fn item(&self, (key, value, created, modified): Stored) -> Result<Item, DatabaseError> {
        let key: Key = key.parse().map_err(|error| DatabaseError::Damaged(format!("{error}")))?;
        let value = self.seal.open(&key, &value)?;
        Ok(Item { key, value, created: created.cast_unsigned(), modified: modified.cast_unsigned() })
    }

    /// Fails if the file was removed or replaced: SQLite would go on writing to the removed file.
    fn is_in_place(&self) -> Result<(), DatabaseError> {
        match identity(&self.path) {
            Ok(file) if file == self.file => Ok(()),
            _ => Err(DatabaseError::Unavailable(format!(
                "{} was removed or replaced while the gateway runs; start it anew",
                self.path.display()
            ))),
        }
    }
}

/// A row of the table: key, value, created and modified.
type Stored = (String, String, i64, i64);

fn stored(row: &Row<'_>) -> rusqlite::Result<Stored> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Creates an empty database file that only its owner may access: other values are private too, not just the secrets.
/// SQLite gives the files beside it the same mode. A database that others may read, as earlier versions restored it,
/// has its mode corrected.
fn make(path: &Path) -> Result<(), DatabaseError> {
    const OWNER: u32 = 0o600;
    let cannot = |error: io::Error| DatabaseError::Unavailable(format!("cannot make {}: {error}", path.display()));
    match OpenOptions::new().write(true).create_new(true).mode(OWNER).open(path) {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(cannot(error)),
    }
    for suffix in ["", "-wal", "-shm"] {
        let file = PathBuf::from(format!("{}{suffix}", path.display()));
        if fs::metadata(&file).is_ok_and(|found| found.mode() & 0o077 != 0) {
            // A file that belongs to another user cannot be changed, and still works.
            let _ = fs::set_permissions(&file, fs::Permissions::from_mode(OWNER));
        }
    }
    Ok(())
}

fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn moment(millis: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis.max(0).cast_unsigned())
}

impl From<rusqlite::Error> for DatabaseError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error.to_string()),
            // The tables or columns differ from the schema.
            Some(ErrorCode::Unknown) | None => Self::Damaged(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<SealError> for DatabaseError {
    fn from(error: SealError) -> Self {
        match error {
            SealError::OtherKey { .. } => Self::Unfit(error.to_string()),
            _ => Self::Damaged(error.to_string()),
        }
    }
}

impl From<DatabaseError> for StoreError {
    fn from(lost: DatabaseError) -> Self {
        match lost {
            DatabaseError::Conflict(key) => Self::Conflict { key },
            DatabaseError::Damaged(reason) => Self::Unavailable(format!("the store is damaged: {reason}")),
            DatabaseError::Unavailable(reason) => Self::Unavailable(format!("the store cannot be used: {reason}")),
            DatabaseError::Unfit(reason) => Self::Unavailable(reason),
        }
    }
}
