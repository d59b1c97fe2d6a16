//! Spreading connections over the workers.
//!
//! The kernel spreads them by chance, which is uneven where there are few, and clients that keep theirs for hours stay
//! where they came. So a worker that holds more than another hands a connection that it has just accepted over to that
//! one: nothing has been read from it, and its descriptor is all there is of it.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use weir_net::sys::Accepted;

/// Connections that wait for one worker to take them over; with more than these on their way they stay where they are.
const QUEUE: usize = 256;

/// A worker hands over when it has one connection more than another, and for so many that it has, or has accepted
/// since the last tick, one more than that: where there are many, or they come fast, chance spreads them well enough.
const PER_SLACK: usize = 64;

/// All workers, as they see each other.
#[derive(Debug)]
pub(crate) struct Spread {
    seats: Box<[Seat]>,
}

/// One worker. The count is written with every connection, and so has a cache line of its own (two, since processors
/// fetch pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Seat {
    /// Open connections, and those on their way to it.
    connections: AtomicUsize,
    queue: mpsc::Sender<Handed>,
}

/// A connection on its way to another worker, which counts it already.
#[derive(Debug)]
pub(crate) struct Handed {
    pub(crate) accepted: Accepted,
    /// The number of the listener that it came in at.
    pub(crate) entrance: usize,
}

/// Connections handed over to one worker.
pub(crate) type Arrivals = mpsc::Receiver<Handed>;

impl Spread {
    /// The spread over so many workers, and the arrivals of each.
    pub(crate) fn new(workers: usize) -> (Self, Vec<Arrivals>) {
        let (seats, arrivals) = (0..workers)
            .map(|_| {
                let (queue, arrivals) = mpsc::channel(QUEUE);
                (Seat { connections: AtomicUsize::new(0), queue }, arrivals)
            })
            .unzip::<_, _, Vec<_>, Vec<_>>();
        (Self { seats: seats.into() }, arrivals)
    }

    /// Counts a connection that worker `own` has accepted, and hands it over when it is another worker's. Returns a
    /// connection that is the worker's own. `fresh` is the number of connections it has accepted since the last tick.
    pub(crate) fn place(&self, own: usize, fresh: usize, handed: Handed) -> Option<Handed> {
        if let Some(seat) = self.other(own, fresh) {
            seat.connections.fetch_add(1, Ordering::Relaxed);
            match seat.queue.try_send(handed) {
                Ok(()) => return None,
                Err(mpsc::error::TrySendError::Full(handed) | mpsc::error::TrySendError::Closed(handed)) => {
                    seat.connections.fetch_sub(1, Ordering::Relaxed);
                    self.keep(own);
                    return Some(handed);
                }
            }
        }
        self.keep(own);
        Some(handed)
    }

    /// A worker that has markedly fewer connections than `own`: the first with the fewest, from the next one on.
    fn other(&self, own: usize, fresh: usize) -> Option<&Seat> {
        let held = self.seats.get(own)?.connections.load(Ordering::Relaxed);
        let slack = 1 + (held + fresh) / PER_SLACK;
        // Most workers with few connections, and all that are alone, end here.
        let most = held.checked_sub(slack)?;
        let after = self.seats.get(own + 1..).unwrap_or_default();
        let before = self.seats.get(..own).unwrap_or_default();
        let others = after.iter().chain(before).map(|seat| (seat.connections.load(Ordering::Relaxed), seat));
        others.min_by_key(|(count, _)| *count).filter(|(count, _)| *count <= most).map(|(_, seat)| seat)
    }

    /// Counts a connection that worker `worker` has accepted and keeps.
    pub(crate) fn keep(&self, worker: usize) {
        if let Some(seat) = self.seats.get(worker) {
            seat.connections.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A connection of this worker is closed.
    pub(crate) fn closed(&self, worker: usize) {
        if let Some(seat) = self.seats.get(worker) {
            seat.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handed() -> Handed {
        let (socket, _) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        Handed { accepted: Accepted::new(socket.into(), None), entrance: 0 }
    }

    fn counts(spread: &Spread) -> Vec<usize> {
        spread.seats.iter().map(|seat| seat.connections.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn few_connections_are_spread_evenly() {
        for (workers, connections) in [(1, 5), (2, 2), (2, 10), (2, 100), (4, 10), (4, 100), (4, 3), (3, 64)] {
            let (spread, mut arrivals) = Spread::new(workers);
            let mut own = 0;
            for n in 0..connections {
                // All of them come in at the first worker, or at any.
                own += usize::from(spread.place(if n % 3 == 0 { 0 } else { n % workers }, 0, handed()).is_some());
            }
            let counts = counts(&spread);
            let (least, most) = (counts.iter().min().copied(), counts.iter().max().copied());
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{connections}: {counts:?}");
            let taken: usize = arrivals.iter_mut().map(|a| std::iter::from_fn(|| a.try_recv().ok()).count()).sum();
            assert_eq!(own + taken, connections);
        }
    }

    #[test]
    fn many_connections_stay_where_chance_puts_them() {
        let (spread, _arrivals) = Spread::new(2);
        for _ in 0..20 {
            // 640 have come within a tick: a difference of ten is nothing.
            assert!(spread.place(0, 640, handed()).is_some() || counts(&spread)[0] > 10);
        }
        assert_eq!(counts(&spread), [15, 5]);
    }

    #[test]
    fn what_cannot_be_handed_over_stays() {
        let (spread, mut arrivals) = Spread::new(2);
        drop(arrivals.pop());
        for _ in 0..5 {
            assert!(spread.place(0, 0, handed()).is_some());
        }
        assert_eq!(counts(&spread), [5, 0]);
        for _ in 0..5 {
            spread.closed(0);
        }
        let (spread, _arrivals) = Spread::new(2);
        let stayed = (0..3 * QUEUE).filter(|_| spread.place(0, 0, handed()).is_some()).count();
        assert!(stayed >= 2 * QUEUE, "{stayed}");
        assert_eq!(counts(&spread).iter().sum::<usize>(), 3 * QUEUE);
    }
}
