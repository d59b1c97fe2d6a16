//! Clients in numbers, added up over all workers.

use super::Metrics;
use super::recorder::{ConnectionState, Counters};
use super::series::Cell;

/// Connections of clients and their requests, as nginx counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clients {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that were served.
    pub handled: u64,
    /// Requests that have begun.
    pub requests: u64,
    /// Connections that are open.
    pub active: u64,
    /// Those on which a request is read.
    pub reading: u64,
    /// Those on which an answer is written.
    pub writing: u64,
    /// Those that wait for a request.
    pub waiting: u64,
}

impl Metrics {
    /// Clients up to now.
    #[must_use]
    pub fn clients(&self) -> Clients {
        let total = |cell: &dyn Fn(&Counters) -> &Cell| {
            self.workers.iter().fold(0u64, |sum, (_, worker)| sum.wrapping_add(cell(&worker.counters).value()))
        };
        // A gauge is the difference of what several workers count; between two reads it may dip below zero.
        let gauge = |cell: &dyn Fn(&Counters) -> &Cell| total(cell).cast_signed().max(0).cast_unsigned();
        Clients {
            accepted: gauge(&|c| &c.accepted),
            handled: gauge(&|c| &c.handled),
            requests: total(&|c| &c.requests),
            active: gauge(&|c| &c.active),
            reading: gauge(&|c| c.connection(ConnectionState::Reading)),
            writing: gauge(&|c| c.connection(ConnectionState::Writing)),
            waiting: gauge(&|c| c.connection(ConnectionState::Waiting)),
        }
    }
}
