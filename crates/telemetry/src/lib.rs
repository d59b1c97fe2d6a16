//! Observability: metrics, the access log, and reports of plugins.
//!
//! The crate has one principle: **observing must not slow or stop a request.** A worker writes only to its own
//! memory, without locks, read-modify-write instructions, system calls or (after the first time) allocations. Readers
//! of numbers and lines read that memory from another thread. Data that does not fit is dropped and counted.
//!
//! - [`access_log`]: one line for each request, through a ring per worker and a thread that writes.
//! - [`messages`]: lines of the gateway's own log, reported by plugins.
//! - [`reports`]: records that plugins report, in batches to collectors and files.
//! - [`metrics`]: counters and histograms per worker, summed up when Prometheus scrapes.

#![allow(
    clippy::disallowed_types,
    reason = "locks guard set-up, the first use of a label or series, and the log's own thread"
)]

pub mod access_log;
pub mod messages;
pub mod metrics;
pub mod reports;
