//! Sums in SQLite.
//!
//! The database is in WAL mode with `synchronous=FULL`: what was written survives a crash of the process and of the
//! machine. A write is one transaction a second.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, params};

use crate::block::{Block, Slots, encode};
use crate::table::{CALLER, Cell, OTHERS, Table};

/// `application_id` of the database: the letters `WeUs`.
const APPLICATION: i32 = 0x5765_5573;
/// Version of the tables.
const VERSION: i32 = 1;

/// Longest wait for another process that writes.
const BUSY: Duration = Duration::from_secs(5);
/// Time after the end of an hour at which its pieces are put together.
const GRACE: u64 = 90;

const HOUR: u64 = 60;
const DAY: u64 = 24 * HOUR;

/// Times are in minutes since 1970.
const TABLES: &str = "
    CREATE TABLE pieces (
        number INTEGER PRIMARY KEY,
        minute INTEGER NOT NULL,
        data BLOB NOT NULL
    ) STRICT;
    CREATE INDEX pieces_by_minute ON pieces (minute);
    CREATE TABLE minutes (hour INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT; -- a slot for each minute of an hour
    -- apis has the sums of all callers, for questions that do not ask for them; it is read without the rest of the row
    CREATE TABLE hours (hour INTEGER PRIMARY KEY, apis BLOB NOT NULL, data BLOB NOT NULL) STRICT;
    CREATE TABLE days (day INTEGER PRIMARY KEY, apis BLOB NOT NULL, data BLOB NOT NULL) STRICT;
";

/// Time that sums are kept, and room that they may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Days that sums of minutes are kept.
    pub minutes: u64,
    /// Days that sums of hours are kept.
    pub hours: u64,
    /// Days that sums of days are kept.
    pub days: u64,
    /// Bytes of the database beyond which the oldest sums of minutes, and then of hours, are deleted.
    pub size: u64,
}

/// The usage cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// The database cannot be opened, read or written.
    #[error("{0}")]
    Database(String),
    /// The file belongs to another program or to a later version of this one.
    #[error("{0}")]
    Unfit(String),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(String),
}

impl From<rusqlite::Error> for UsageError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error.to_string())
    }
}

impl From<crate::block::Damaged> for UsageError {
    fn from(error: crate::block::Damaged) -> Self {
        Self::Database(error.to_string())
    }
}

/// An open database.
#[derive(Debug)]
pub(crate) struct Database {
    connection: Connection,
}

/// A resolution that sums are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Minute,
    Hour,
    Day,
}

impl Level {
    /// Its length in minutes.
    pub(crate) fn minutes(self) -> u64 {
        match self {
            Self::Minute => 1,
            Self::Hour => HOUR,
            Self::Day => DAY,
        }
    }
}

impl Database {
    /// Opens the database at a path, and makes it if it is missing. Only the owner may read it.
    ///
    /// # Errors
    /// It cannot be opened, or is none of this program's.
    pub(crate) fn open(path: &Path) -> Result<Self, UsageError> {
        Ok(Self { connection: open_file(path, (APPLICATION, VERSION, "usage"), TABLES)? })
    }

    /// Opens an existing database for reading.
    pub(crate) fn open_to_read(path: &Path) -> Result<Self, UsageError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY)?;
        // A query sees one state of all tables.
        connection.execute_batch("BEGIN")?;
        Ok(Self { connection })
    }

    /// The first minute from this one on that may have sums, of those that are kept by the minute.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(crate) fn next_minute(&self, from: u64) -> Result<Option<u64>, UsageError> {
        let first = |sql: &str, from: u64| self.connection.query_row(sql, [from], |row| row.get::<_, Option<u64>>(0));
        let sealed = first("SELECT min(hour) FROM minutes WHERE hour >= ?", from / HOUR)?;
        let sealed = sealed.map(|hour| (hour * HOUR).max(from));
        let pieces = first("SELECT min(minute) FROM pieces WHERE minute >= ?", from)?;
        Ok(sealed.into_iter().chain(pieces).min())
    }

    /// Writes sums of minutes, in one transaction.
    ///
    /// # Errors
    /// Nothing was written.
    pub(crate) fn add(&mut self, pieces: &[(u64, Slots)]) -> Result<(), UsageError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for (minute, slots) in pieces {
            transaction
                .prepare_cached("INSERT INTO pieces (minute, data) VALUES (?, ?)")?
                .execute(params![minute, encode(slots)])?;
        }
        Ok(transaction.commit()?)
    }

    /// Puts the pieces of past minutes and hours together, and deletes what is no longer kept. `most` is the number of
    /// series with callers of their own in an hour or a day.
    ///
    /// # Errors
    /// The database cannot be read or written; what was done before stays done.
    pub(crate) fn tidy(&mut self, now: u64, most: usize, keep: &Keep) -> Result<(), UsageError> {
        let now = now / 60;
        let first = "SELECT min(minute) FROM pieces";
        while let Some(minute) = self.connection.query_row(first, [], |row| row.get::<_, Option<u64>>(0))?
            && (minute / HOUR + 1) * HOUR + GRACE / 60 < now
        {
            self.seal_hour(minute / HOUR, most)?;
        }
        let several = "SELECT minute FROM pieces WHERE minute < ? GROUP BY minute HAVING count(*) > 1";
        let minutes: Vec<u64> = self
            .connection
            .prepare_cached(several)?
            .query_map([now.saturating_sub(1)], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        for minute in minutes {
            self.join_minute(minute, most)?;
        }
        self.forget(now, keep)
    }

    /// Makes one piece of all of a minute.
    fn join_minute(&mut self, minute: u64, most: usize) -> Result<(), UsageError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut slots = Slots::new();
        take_pieces(&transaction, minute..minute + 1, |_, block| block.add_to(&mut slots, |_| 0))?;
        fold(&mut slots, most);
        transaction.execute("INSERT INTO pieces (minute, data) VALUES (?, ?)", params![minute, encode(&slots)])?;
        Ok(transaction.commit()?)
    }

    /// Adds the pieces of an hour to the sums of its minutes, of the hour and of its day.
    fn seal_hour(&mut self, hour: u64, most: usize) -> Result<(), UsageError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut slots = Slots::new();
        let start = hour * HOUR;
        take_pieces(&transaction, start..start + HOUR, |minute, block| {
            block.add_to(&mut slots, |_| (minute - start) as u8)
        })?;
        let mut sum = Slots::new();
        for (series, cells) in &slots {
            let mut whole = Cell::default();
            cells.values().for_each(|cell| whole.merge(cell));
            sum.entry(series.clone()).or_default().insert(0, whole);
        }
        merge_into(&transaction, ("minutes", "hour", hour), slots, None)?;
        merge_into(&transaction, ("hours", "hour", hour), sum.clone(), Some(most))?;
        merge_into(&transaction, ("days", "day", start / DAY), sum, Some(most))?;
        Ok(transaction.commit()?)
    }

    /// Deletes what is no longer kept.
    fn forget(&mut self, now: u64, keep: &Keep) -> Result<(), UsageError> {
        let before = |days: u64, unit: u64| now.saturating_sub(days * DAY) / unit;
        let connection = &self.connection;
        let mut gone = connection.execute("DELETE FROM minutes WHERE hour < ?", [before(keep.minutes, HOUR)])?;
        gone += connection.execute("DELETE FROM hours WHERE hour < ?", [before(keep.hours, HOUR)])?;
        gone += connection.execute("DELETE FROM days WHERE day < ?", [before(keep.days, DAY)])?;
        while self.bytes()? > keep.size {
            let oldest = |table| format!("DELETE FROM {table} WHERE hour = (SELECT min(hour) FROM {table})");
            let deleted = match connection.execute(&oldest("minutes"), [])? {
                0 => connection.execute(&oldest("hours"), [])?,
                deleted => deleted,
            };
            if deleted == 0 {
                break;
            }
            gone += deleted;
        }
        if gone > 0 {
            connection.execute_batch("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")?;
        }
        Ok(())
    }

    /// Bytes in use.
    fn bytes(&self) -> Result<u64, UsageError> {
        let number = |name: &str| self.connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, u64>(0));
        Ok((number("page_count")?.saturating_sub(number("freelist_count")?)) * number("page_size")?)
    }

    /// Hands over the sums of a level for a range of minutes since 1970, block by block, with the first minute of the
    /// block. Slots are minutes at [`Level::Minute`]; other blocks have one. A block of minutes may begin before the range
    /// and end after it. Without `callers`, blocks may lack who has called.
    pub(crate) fn read(
        &self,
        level: Level,
        range: std::ops::Range<u64>,
        callers: bool,
        mut take: impl FnMut(u64, &Block<'_>) -> Result<(), UsageError>,
    ) -> Result<(), UsageError> {
        let (table, column, unit) = match level {
            Level::Minute => ("minutes", "hour", HOUR),
            Level::Hour => ("hours", "hour", HOUR),
            Level::Day => ("days", "day", DAY),
        };
        let data = if callers || level == Level::Minute { "data" } else { "apis" };
        let sql =
            format!("SELECT {column}, {data} FROM {table} WHERE {column} >= ? AND {column} < ? ORDER BY {column}");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query([range.start / unit, range.end.div_ceil(unit)])?;
        while let Some(row) = rows.next()? {
            take(
                row.get::<_, u64>(0)? * unit,
                &Block::open(row.get_ref(1)?.as_blob().map_err(|error| unreadable(&error))?)?,
            )?;
        }
        let mut statement =
            self.connection.prepare_cached("SELECT minute, data FROM pieces WHERE minute >= ? AND minute < ?")?;
        let mut rows = statement.query([range.start, range.end])?;
        while let Some(row) = rows.next()? {
            take(row.get(0)?, &Block::open(row.get_ref(1)?.as_blob().map_err(|error| unreadable(&error))?)?)?;
        }
        Ok(())
    }
}

/// Opens a database of the number of an application, a version and a name, and makes it with these tables if it is missing.
/// Only the owner may read it.
///
/// # Errors
/// It cannot be opened, or is another one.
pub(crate) fn open_file(path: &Path, kind: (i32, i32, &str), tables: &str) -> Result<Connection, UsageError> {
    // SQLite gives its other files the permissions of this one.
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(UsageError::Database(format!("cannot make {}: {error}", path.display())));
        }
        _ => {}
    }
    prepare(path, kind, tables).map_err(|error| match error {
        UsageError::Database(text) => UsageError::Database(format!("{}: {text}", path.display())),
        UsageError::Unfit(text) => UsageError::Unfit(format!("{}: {text}", path.display())),
        other => other,
    })
}

fn prepare(
    path: &Path,
    (application, version, name): (i32, i32, &str),
    tables: &str,
) -> Result<Connection, UsageError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let number = |name: &str| transaction.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i32>(0));
    match (number("application_id")?, number("user_version")?) {
        found if found == (application, version) => {}
        (0, 0) if transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)) == Ok(0) => {
            transaction.execute_batch(tables)?;
            transaction.pragma_update(None, "application_id", application)?;
            transaction.pragma_update(None, "user_version", version)?;
        }
        (found, version) if found == application => {
            return Err(UsageError::Unfit(format!("version {version} of {name} is later than this program's")));
        }
        _ => return Err(UsageError::Unfit(format!("it is no database of {name}"))),
    }
    transaction.commit()?;
    Ok(connection)
}

fn unreadable(error: &rusqlite::types::FromSqlError) -> UsageError {
    UsageError::Database(error.to_string())
}

/// Hands over the pieces of these minutes and deletes them.
fn take_pieces(
    transaction: &Transaction<'_>,
    minutes: std::ops::Range<u64>,
    mut take: impl FnMut(u64, &Block<'_>) -> Result<(), crate::block::Damaged>,
) -> Result<(), UsageError> {
    let mut statement =
        transaction.prepare_cached("SELECT minute, data FROM pieces WHERE minute >= ? AND minute < ?")?;
    let mut rows = statement.query([minutes.start, minutes.end])?;
    while let Some(row) = rows.next()? {
        take(row.get(0)?, &Block::open(row.get_ref(1)?.as_blob().map_err(|error| unreadable(&error))?)?)?;
    }
    transaction.execute("DELETE FROM pieces WHERE minute >= ? AND minute < ?", [minutes.start, minutes.end])?;
    Ok(())
}

/// Adds sums to the row of a table.
fn merge_into(
    transaction: &Transaction<'_>,
    (table, column, at): (&str, &str, u64),
    mut slots: Slots,
    most: Option<usize>,
) -> Result<(), UsageError> {
    let mut statement = transaction.prepare_cached(&format!("SELECT data FROM {table} WHERE {column} = ?"))?;
    let mut rows = statement.query([at])?;
    if let Some(row) = rows.next()? {
        Block::open(row.get_ref(0)?.as_blob().map_err(|error| unreadable(&error))?)?.add_to(&mut slots, |slot| slot)?;
    }
    drop(rows);
    if let Some(most) = most {
        fold(&mut slots, most);
    }
    if most.is_none() {
        let sql = format!("INSERT OR REPLACE INTO {table} ({column}, data) VALUES (?, ?)");
        transaction.prepare_cached(&sql)?.execute(params![at, encode(&slots)])?;
    } else {
        let sql = format!("INSERT OR REPLACE INTO {table} ({column}, apis, data) VALUES (?, ?, ?)");
        transaction.prepare_cached(&sql)?.execute(params![at, encode(&without_callers(&slots)), encode(&slots)])?;
    }
    Ok(())
}

/// The sums of all callers, by API, route and class of status.
fn without_callers(slots: &Slots) -> Slots {
    let nobody: Arc<str> = "".into();
    let mut sums = Slots::new();
    for (series, cells) in slots {
        let mut series = series.clone();
        series.values.get_mut(CALLER).unwrap_or_default().fill(Arc::clone(&nobody));
        let to = sums.entry(series).or_default();
        cells.iter().for_each(|(slot, cell)| to.entry(*slot).or_default().merge(cell));
    }
    sums
}

/// Leaves `most` series with callers of their own in a block of one slot.
fn fold(slots: &mut Slots, most: usize) {
    if slots.len() <= most {
        return;
    }
    let mut table = Table::default();
    for (series, cells) in std::mem::take(slots) {
        cells.values().for_each(|cell| table.cell(series.clone()).merge(cell));
    }
    table.fold(most, &OTHERS.into());
    for (series, cell) in table.cells {
        slots.entry(series).or_default().insert(0, cell);
    }
}

#[cfg(test)]
mod tests;
