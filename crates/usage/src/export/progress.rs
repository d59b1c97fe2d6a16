//! Progress of the targets of usage, in SQLite: the requests of each minute whose sums may still change.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use crate::database::{UsageError, open_file};

/// `application_id` of the database: the letters `WeEx`.
const APPLICATION: i32 = 0x5765_4578;
const VERSION: i32 = 1;
/// Times are in minutes since 1970.
const TABLES: &str = "
    CREATE TABLE settled (target TEXT PRIMARY KEY, minute INTEGER NOT NULL) STRICT; -- all before is there for good
    CREATE TABLE minutes (
        target TEXT NOT NULL,
        minute INTEGER NOT NULL,
        requests INTEGER NOT NULL,
        PRIMARY KEY (target, minute)
    ) STRICT, WITHOUT ROWID;
";

/// The progress of one target.
#[derive(Debug)]
pub(super) struct Progress {
    connection: Connection,
    target: String,
    settled: u64,
    minutes: BTreeMap<u64, u64>,
}

impl Progress {
    /// Reads the progress of a target.
    pub(super) fn open(path: &Path, target: &str) -> Result<Self, UsageError> {
        let connection = open_file(path, (APPLICATION, VERSION, "exports of usage"), TABLES)?;
        let settled: Option<u64> = connection
            .query_row("SELECT minute FROM settled WHERE target = ?", [target], |row| row.get(0))
            .optional()?;
        let minutes = connection
            .prepare("SELECT minute, requests FROM minutes WHERE target = ?")?
            .query_map([target], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        Ok(Self { connection, target: target.to_owned(), settled: settled.unwrap_or_default(), minutes })
    }

    /// The first minute that may still change, or is missing.
    pub(super) fn settled(&self) -> u64 {
        self.settled
    }

    /// Requests of a minute that are there.
    pub(super) fn handed_over(&self, minute: u64) -> u64 {
        self.minutes.get(&minute).copied().unwrap_or_default()
    }

    /// Notes minutes that are there, with their requests.
    pub(super) fn record(&mut self, minutes: impl Iterator<Item = (u64, u64)>) -> Result<(), UsageError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut done = Vec::new();
        for (minute, requests) in minutes {
            transaction
                .prepare_cached("INSERT OR REPLACE INTO minutes (target, minute, requests) VALUES (?, ?, ?)")?
                .execute(params![self.target, minute, requests])?;
            done.push((minute, requests));
        }
        transaction.commit()?;
        self.minutes.extend(done);
        Ok(())
    }

    /// Notes that nothing before a minute changes any more.
    pub(super) fn settle(&mut self, minute: u64) -> Result<(), UsageError> {
        if minute <= self.settled {
            return Ok(());
        }
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction
            .execute("INSERT OR REPLACE INTO settled (target, minute) VALUES (?, ?)", params![self.target, minute])?;
        transaction.execute("DELETE FROM minutes WHERE target = ? AND minute < ?", params![self.target, minute])?;
        transaction.commit()?;
        self.settled = minute;
        self.minutes = self.minutes.split_off(&minute);
        Ok(())
    }
}
