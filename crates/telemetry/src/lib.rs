//! What Weir can be seen by: metrics and the access log.
//!
//! One rule shapes all of it: **nothing that observes may slow or stop a request.** A worker writes only to memory
//! of its own, without a lock, a read-modify-write instruction, a system call or (after the first time) an
//! allocation. Whoever wants to look at the numbers or the lines reads that memory from another thread. What cannot
//! be kept, for want of room, is counted.
//!
//! - [`access_log`]: one line for each request, through a ring per worker and a thread that writes.
//! - [`metrics`]: counters and histograms per worker, added up when Prometheus asks.

#![allow(
    clippy::disallowed_types,
    reason = "locks guard set-up, the first use of a label or series, and the log's own thread"
)]

pub mod access_log;
pub mod metrics;
