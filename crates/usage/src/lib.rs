//! Usage: who has called what, how often, how fast and with how many bytes, by minute, hour and day.
//!
//! ```text
//! worker 0: Writer ──► ring ─┐                   each second           each hour
//! worker 1: Writer ──► ring ─┴─► weir-usage: sums ─────────► pieces ──────────────► minutes, hours, days
//!                                                             └───────┬──────────────────┘
//!                                                     usage.db        └──► Query ──► JSON, CSV
//! ```
//!
//! A worker copies a record of fixed size into a ring of its own when an exchange is over: it never waits, takes no lock
//! and allocates nothing. One thread adds up what is in the rings and writes the sums once a second. A record that finds
//! no room is counted as lost.
//!
//! Counts of quotas are kept here as well: see [`KeptCounts`]. Sums go on to other databases by [`Export`].
//!
//! Everything in storage is a sum that may be added to others: nothing is ever replaced, so it does not matter which
//! process writes first, or when the pieces of an hour are put together.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "locks and clocks are those of the thread of the usage and of queries; a worker only writes to its ring"
)]

mod block;
mod counts;
mod database;
mod export;
mod histogram;
mod query;
mod recording;
mod table;
mod totals;

pub use counts::{Count, Counting, KeptCounts, Place};
pub use database::{Keep, UsageError};
pub use export::{Export, ExportOptions, ExportTotals, Minute, Row, Sink};
pub use query::{Answer, Arguments, QUESTIONS, QueryError};
pub use recording::{Options, Record, Usage, Writer};
