//! Questions about usage: tables and time series, with filters and groups.

mod answer;
mod arguments;
mod gather;

use std::path::Path;

pub use answer::Answer;
pub use arguments::{Arguments, QUESTIONS};

use crate::database::{Database, Keep, UsageError};

/// Reasons for a question without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The question is wrong.
    #[error("{0}")]
    Bad(String),
    /// The usage cannot be read.
    #[error(transparent)]
    Usage(#[from] UsageError),
}

/// Answers a question at this time, in seconds since 1970.
pub(crate) fn answer(path: &Path, keep: &Keep, arguments: &Arguments, now: u64) -> Result<Answer, QueryError> {
    let question = arguments.parse(keep, now)?;
    let database = Database::open_to_read(path)?;
    let found = gather::gather(&database, &question)?;
    Ok(answer::write(&question, &found))
}
