//! Resources and their history in one SQLite database.
//!
//! The database is in WAL mode and synchronous: what [`Database::commit`] has answered for survives the process and the
//! machine. Values are JSON with their secrets encrypted, so the rest can be looked at with any SQLite tool.

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

/// Says that a file is a store of Weir's: the letters `Weir`.
const APPLICATION: i32 = 0x5765_6972;

/// The version of the tables that this program writes. A database of an older one is brought up to it by
/// [`Database::migrate`]; that of a newer one is refused.
const VERSION: i32 = 1;

/// Statements that are kept prepared: those of a commit, and then some.
const PREPARED: usize = 32;

/// How long a connection waits for another one's lock. Only commands that read meet one.
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

/// What a change takes in the history beside its texts: its row, its entries in indexes, and its share of the commit.
const CHANGE_ROW: u64 = 128;

/// The bytes of a change in the history, in SQL. Lengths are told without the texts being read.
const CHANGE_BYTES: &str = "octet_length(key) + coalesce(octet_length(old), 0) + coalesce(octet_length(new), 0)";

/// An open database.
#[derive(Debug)]
pub struct Database {
    connection: Connection,
    seal: Arc<Seal>,
    path: PathBuf,
    /// Device and inode of the file that is open.
    file: (u64, u64),
    history: History,
    /// The bytes of the history, at a version of the data: somebody else may have written since.
    known: Option<(i64, u64)>,
}

/// The bounds of a history. The oldest commits beyond either are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// Changes that are kept at most.
    pub changes: u64,
    /// Bytes that they take at most.
    pub bytes: u64,
}

/// Why a database is of no use, or an operation on it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// It is damaged, or no database at all: trying again does not help.
    #[error("{0}")]
    Damaged(String),
    /// It cannot be read or written now: a full disk, a read-only file.
    #[error("{0}")]
    Unavailable(String),
    /// It cannot be used by this program, or with this key, whole as it may be.
    #[error("{0}")]
    Unfit(String),
    /// Somebody else changed a resource.
    #[error("{0} was changed by somebody else")]
    Conflict(Key),
}

/// What became of a commit.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    /// The revision from then on.
    pub(crate) revision: u64,
    /// What changed; nothing when all was so before.
    pub(crate) changes: Vec<(Key, Option<Item>)>,
    /// What that adds to the history.
    bytes: u64,
}

impl Database {
    /// Opens a database to write to it, or makes one. Its files are their owner's alone.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn open(path: &Path, seal: Arc<Seal>, history: History) -> Result<Self, Lost> {
        make(path)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let database = Self::connect(path, flags, seal, history)?;
        database.migrate()?;
        database.check_seal()?;
        Ok(database)
    }

    /// Opens a database that is there to read from it, whoever else writes to it.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn read_only(path: &Path, seal: Arc<Seal>) -> Result<Self, Lost> {
        let database = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, seal, History { changes: 0, bytes: 0 })?;
        database.version()?;
        database.check_seal()?;
        Ok(database)
    }

    fn connect(path: &Path, flags: OpenFlags, seal: Arc<Seal>, history: History) -> Result<Self, Lost> {
        let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(BUSY)?;
        connection.set_prepared_statement_cache_capacity(PREPARED);
        let read_only = connection.is_readonly("main")?;
        if !read_only {
            // Reads the first page: what is no database is found here.
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)?;
        }
        connection.pragma_update(None, "trusted_schema", false)?;
        let file = identity(path).map_err(|error| Lost::Unavailable(error.to_string()))?;
        Ok(Self { connection, seal, path: path.to_owned(), file, history, known: None })
    }

    /// The version of the tables; 0 when there are none yet.
    fn version(&self) -> Result<i32, Lost> {
        let pragma = |name: &str| self.connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        let (application, version) = (pragma("application_id")?, pragma("user_version")?);
        match (application, version) {
            (0, 0) => Ok(0),
            (APPLICATION, 1..=VERSION) => Ok(version),
            (APPLICATION, _) => Err(Lost::Unfit(format!(
                "{} was written by a newer version of the gateway (its tables have version {version}, known is {VERSION})",
                self.path.display()
            ))),
            _ => Err(Lost::Damaged(format!("{} is a database of another program", self.path.display()))),
        }
    }

    /// Makes the tables of a new database, and brings those of an older version up to this one.
    pub(crate) fn migrate(&self) -> Result<(), Lost> {
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

    fn check_seal(&self) -> Result<(), Lost> {
        let needed: String = self.connection.query_row("SELECT seal FROM store", [], |row| row.get(0))?;
        if needed == self.seal.id() {
            return Ok(());
        }
        Err(Lost::Unfit(format!(
            "{} was written with the key {needed}, and this is the key {}: put the right key into the file `key` beside it, \
             or into the setting store.key",
            self.path.display(),
            self.seal.id()
        )))
    }

    /// Whether it cannot be written to.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn is_read_only(&self) -> Result<bool, Lost> {
        Ok(self.connection.is_readonly("main")?)
    }

    /// The revision of the last commit; 0 in a store that nothing was ever put in.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn revision(&self) -> Result<u64, Lost> {
        let mut statement = self.connection.prepare_cached("SELECT revision FROM store")?;
        Ok(statement.query_row([], |row| row.get(0)).map(i64::cast_unsigned)?)
    }

    /// One resource.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn get(&self, key: &Key) -> Result<Option<Item>, Lost> {
        let sql = "SELECT key, value, created, modified FROM items WHERE key = ?";
        let found = self.connection.prepare_cached(sql)?.query_row([key.to_string()], stored).optional()?;
        found.map(|stored| self.item(stored)).transpose()
    }

    /// All resources of a kind, or of all kinds, in the order of their creation.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn list(&self, kind: Option<Kind>) -> Result<Listing, Lost> {
        let transaction = self.connection.unchecked_transaction()?;
        let revision = self.revision()?;
        // '0' is what follows '/' in the order of characters.
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

    /// Makes changes as one, durably, and gives their revision. Whoever calls it has the [`Lock`](crate::Lock).
    ///
    /// # Errors
    /// [`Lost`]; then nothing was changed.
    pub fn change_all(&mut self, commit: &Commit) -> Result<u64, Lost> {
        let committed = self.commit_all(std::slice::from_ref(commit))?;
        Ok(committed.last().map_or(0, |committed| committed.revision))
    }

    /// Makes commits one after the other, each with a revision of its own, and durably with one write: all or none.
    pub(crate) fn commit_all(&mut self, commits: &[Commit]) -> Result<Vec<Committed>, Lost> {
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

    /// The bytes of the history with the version of the data, which is another when somebody else has written.
    fn history_bytes(&self, transaction: &Transaction<'_>) -> Result<(i64, u64), Lost> {
        let version = transaction.pragma_query_value(None, "data_version", |row| row.get::<_, i64>(0))?;
        if let Some((_, bytes)) = self.known.filter(|(known, _)| *known == version) {
            return Ok((version, bytes));
        }
        let sql = format!("SELECT coalesce(sum({CHANGE_ROW} + {CHANGE_BYTES}), 0) FROM changes");
        let bytes = transaction.query_row(&sql, [], |row| row.get::<_, i64>(0))?;
        Ok((version, bytes.cast_unsigned()))
    }

    fn commit_in(&self, transaction: &Transaction<'_>, commit: &Commit) -> Result<Committed, Lost> {
        for expectation in &commit.expect {
            let sql = "SELECT modified FROM items WHERE key = ?";
            let mut statement = transaction.prepare_cached(sql)?;
            let modified: Option<i64> =
                statement.query_row([expectation.key.to_string()], |row| row.get(0)).optional()?;
            if modified.map(i64::cast_unsigned) != expectation.modified {
                return Err(Lost::Conflict(expectation.key.clone()));
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

    /// Gives the new state of a resource and what the change takes in the history, if there is one.
    fn change(
        &self,
        transaction: &Transaction<'_>,
        change: &Change,
        revision: u64,
    ) -> Result<Option<(Key, Option<Item>, u64)>, Lost> {
        let place = change.key.to_string();
        let sql = "SELECT value, created FROM items WHERE key = ?";
        let mut statement = transaction.prepare_cached(sql)?;
        let before: Option<(String, i64)> =
            statement.query_row([&place], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let sealed = change.value.as_deref().map(|value| self.seal.seal(&change.key, value)).transpose();
        let sealed = sealed.map_err(|error| Lost::Unavailable(error.to_string()))?;
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

    /// Forgets the oldest commits, whole ones, so that the history keeps its bounds. `bytes` are in it; gives how many
    /// of them are gone.
    fn forget(&self, transaction: &Transaction<'_>, bytes: u64) -> Result<u64, Lost> {
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

    /// The resources that have expired.
    pub(crate) fn expired(&self, now: SystemTime) -> Result<Vec<Key>, Lost> {
        let mut statement = self.connection.prepare("SELECT key FROM items WHERE expires <= ?")?;
        let keys = statement.query_map([millis(now)], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
        Ok(keys.iter().filter_map(|key| key.parse().ok()).collect())
    }

    /// When the next resource expires.
    pub(crate) fn next_expiry(&self) -> Result<Option<SystemTime>, Lost> {
        let sql = "SELECT min(expires) FROM items WHERE expires IS NOT NULL";
        let next: Option<i64> = self.connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        Ok(next.map(moment))
    }

    /// Puts everything into a database that is empty, with its revisions; what was before is not known.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn fill(&mut self, listing: &Listing) -> Result<(), Lost> {
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

    /// Writes a copy that is whole and consistent, while others read and write. A file that is there is replaced.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn backup(&self, to: &Path) -> Result<u64, Lost> {
        const PAGES: i32 = 1024;
        let beside = to.with_extension("new");
        let _ = fs::remove_file(&beside);
        make(&beside)?;
        let mut copy = Connection::open(&beside)?;
        Backup::new(&self.connection, &mut copy)?.run_to_completion(PAGES, Duration::from_millis(1), None)?;
        // The copy is one file, not three.
        copy.pragma_update(None, "journal_mode", "DELETE")?;
        let revision: i64 = copy.query_row("SELECT revision FROM store", [], |row| row.get(0))?;
        copy.close().map_err(|(_, error)| error)?;
        let renamed = fs::File::open(&beside).and_then(|file| file.sync_all()).and_then(|()| fs::rename(&beside, to));
        renamed.map_err(|error| Lost::Unavailable(format!("cannot write {}: {error}", to.display())))?;
        Ok(revision.cast_unsigned())
    }

    /// Everything that is wrong with it.
    ///
    /// # Errors
    /// [`Lost`], when it cannot even be looked at.
    pub fn check(&self) -> Result<Vec<String>, Lost> {
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

    fn item(&self, (key, value, created, modified): Stored) -> Result<Item, Lost> {
        let key: Key = key.parse().map_err(|error| Lost::Damaged(format!("{error}")))?;
        let value = self.seal.open(&key, &value)?;
        Ok(Item { key, value, created: created.cast_unsigned(), modified: modified.cast_unsigned() })
    }

    /// Whether the file is still there. SQLite would go on writing to one that was removed.
    fn is_in_place(&self) -> Result<(), Lost> {
        match identity(&self.path) {
            Ok(file) if file == self.file => Ok(()),
            _ => Err(Lost::Unavailable(format!(
                "{} was removed or replaced while the gateway runs; start it anew",
                self.path.display()
            ))),
        }
    }
}

/// Key, value, created and modified, as they stand in the table.
type Stored = (String, String, i64, i64);

fn stored(row: &Row<'_>) -> rusqlite::Result<Stored> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
}

fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Makes an empty file for a database, for its owner alone: what is not a secret is still nobody else's business. SQLite
/// makes the files beside it with the same mode. A database that others may read, as earlier versions restored it, is
/// taken from them.
fn make(path: &Path) -> Result<(), Lost> {
    const OWNER: u32 = 0o600;
    let cannot = |error: io::Error| Lost::Unavailable(format!("cannot make {}: {error}", path.display()));
    match OpenOptions::new().write(true).create_new(true).mode(OWNER).open(path) {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(cannot(error)),
    }
    for suffix in ["", "-wal", "-shm"] {
        let file = PathBuf::from(format!("{}{suffix}", path.display()));
        if fs::metadata(&file).is_ok_and(|found| found.mode() & 0o077 != 0) {
            // Somebody else's file serves all the same.
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

impl From<rusqlite::Error> for Lost {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error.to_string()),
            // Tables or columns are not what they should be.
            Some(ErrorCode::Unknown) | None => Self::Damaged(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<SealError> for Lost {
    fn from(error: SealError) -> Self {
        match error {
            SealError::OtherKey { .. } => Self::Unfit(error.to_string()),
            _ => Self::Damaged(error.to_string()),
        }
    }
}

impl From<Lost> for StoreError {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Conflict(key) => Self::Conflict { key },
            Lost::Damaged(reason) => Self::Unavailable(format!("the store is damaged: {reason}")),
            Lost::Unavailable(reason) => Self::Unavailable(format!("the store cannot be used: {reason}")),
            Lost::Unfit(reason) => Self::Unavailable(reason),
        }
    }
}
