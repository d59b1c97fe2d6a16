//! Queries of the commit history in the database.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{OptionalExtension, Row, params};

use super::{Database, DatabaseError, moment};
use crate::{Difference, Event, HistoryQuery, Item, Key, Recorded, StoreError};

/// Failure of a history query: of the database, or of the query itself.
pub(crate) enum HistoryError {
    Database(DatabaseError),
    Forgotten(String),
}

impl Database {
    /// Lists the recorded commits, latest first.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub fn history(&self, query: &HistoryQuery) -> Result<Vec<Recorded>, DatabaseError> {
        let transaction = self.connection.unchecked_transaction()?;
        let key = query.key.as_ref().map(ToString::to_string);
        let mut statement = transaction.prepare(
            "SELECT revision, time, author FROM commits
             WHERE revision < ?1 AND (?2 IS NULL OR revision IN (SELECT revision FROM changes WHERE key = ?2))
             ORDER BY revision DESC LIMIT ?3",
        )?;
        let before = query.before.map_or(i64::MAX, u64::cast_signed);
        let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
        let mut changes =
            transaction.prepare("SELECT key, old, new FROM changes WHERE revision = ? ORDER BY number")?;
        let commits = statement.query_map(params![before, key, limit], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, String>(2)?))
        })?;
        let mut found = Vec::new();
        for commit in commits {
            let (revision, time, author) = commit?;
            let changed = changes.query_map([revision], changed)?.collect::<Result<Vec<_>, _>>()?;
            let changes = changed.into_iter().map(|changed| self.difference_of(changed)).collect::<Result<_, _>>()?;
            found.push(Recorded {
                revision: revision.cast_unsigned(),
                time: Some(moment(time)),
                author: Some(author),
                changes,
            });
        }
        Ok(found)
    }

    /// Lists the differences between two revisions.
    ///
    /// # Errors
    /// As [`Store::difference`](crate::Store::difference).
    pub fn difference(&self, from: u64, to: u64) -> Result<Vec<Difference>, StoreError> {
        match self.compare(from, to) {
            Ok(found) => Ok(found),
            Err(HistoryError::Database(lost)) => Err(lost.into()),
            Err(HistoryError::Forgotten(reason)) => Err(StoreError::Refused(reason)),
        }
    }

    fn compare(&self, from: u64, to: u64) -> Result<Vec<Difference>, HistoryError> {
        let transaction = self.connection.unchecked_transaction()?;
        let sql = "SELECT forgotten, revision FROM store";
        let (forgotten, last): (i64, i64) = transaction.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let known = forgotten.cast_unsigned()..=last.cast_unsigned();
        if let Some(unknown) = [from, to].into_iter().find(|revision| !known.contains(revision)) {
            let (first, last) = known.into_inner();
            return Err(HistoryError::Forgotten(format!(
                "revision {unknown} is not known: the history goes from {first} to {last}"
            )));
        }
        let (early, late) = (from.min(to), from.max(to));
        let sql = "SELECT key, old, new FROM changes WHERE revision > ? AND revision <= ? ORDER BY number";
        let mut statement = transaction.prepare(sql)?;
        // For each resource, its value before the first change and after the last.
        let mut states: BTreeMap<String, (Option<String>, Option<String>)> = BTreeMap::new();
        for found in statement.query_map([early.cast_signed(), late.cast_signed()], changed)? {
            let (key, old, new) = found?;
            states.entry(key).or_insert((old, None)).1 = new;
        }
        let mut differences = Vec::new();
        for (key, (old, new)) in states {
            let (old, new) = if from <= to { (old, new) } else { (new, old) };
            let difference = self.difference_of((key, old, new))?;
            if difference.old != difference.new {
                differences.push(difference);
            }
        }
        Ok(differences)
    }

    /// Commits after a revision, one event per commit; `None` if some were deleted from the history, or if there are
    /// more than `most`.
    pub(crate) fn events_after(&self, revision: u64, most: usize) -> Result<Option<Vec<Event>>, DatabaseError> {
        let transaction = self.connection.unchecked_transaction()?;
        let forgotten: i64 = transaction.query_row("SELECT forgotten FROM store", [], |row| row.get(0))?;
        let sql = "SELECT count(*) FROM commits WHERE revision > ?";
        let count: i64 =
            transaction.query_row(sql, [revision.cast_signed()], |row| row.get(0)).optional()?.unwrap_or(0);
        if revision < forgotten.cast_unsigned() || usize::try_from(count).is_ok_and(|count| count > most) {
            return Ok(None);
        }
        let sql = "SELECT revision, key, created, new FROM changes WHERE revision > ? ORDER BY number";
        let mut statement = transaction.prepare(sql)?;
        let rows = statement.query_map([revision.cast_signed()], |row| {
            Ok((
                row.get::<_, i64>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, i64>(2)?,
                row.get::<_, Option<String>>(3)?,
            ))
        })?;
        let mut events: Vec<Event> = Vec::new();
        for row in rows {
            let (at, key, created, new) = row?;
            let at = at.cast_unsigned();
            let key: Key = key.parse().map_err(|error| DatabaseError::Damaged(format!("{error}")))?;
            let value = new.map(|new| self.seal.open(&key, &new)).transpose()?;
            let created = created.cast_unsigned();
            let item = value.map(|value| Item { key: key.clone(), value, created, modified: at });
            match events.last_mut() {
                Some(Event::Committed { revision, changes }) if *revision == at => changes.push((key, item)),
                _ => events.push(Event::Committed { revision: at, changes: vec![(key, item)] }),
            }
        }
        Ok(Some(events))
    }

    fn difference_of(&self, (key, old, new): Changed) -> Result<Difference, DatabaseError> {
        let key: Key = key.parse().map_err(|error| DatabaseError::Damaged(format!("{error}")))?;
        let open = |text: Option<String>| -> Result<Option<Arc<str>>, DatabaseError> {
            text.map(|text| self.seal.open(&key, &text)).transpose().map_err(DatabaseError::from)
        };
        let (old, new) = (open(old)?, open(new)?);
        Ok(Difference { key, old, new })
    }
}

/// A row of the table: key, old value and new value.
type Changed = (String, Option<String>, Option<String>);

fn changed(row: &Row<'_>) -> rusqlite::Result<Changed> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?))
}

impl From<DatabaseError> for HistoryError {
    fn from(lost: DatabaseError) -> Self {
        Self::Database(lost)
    }
}

impl From<rusqlite::Error> for HistoryError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error.into())
    }
}
