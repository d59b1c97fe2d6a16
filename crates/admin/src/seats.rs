//! Bounded connections of a server: when all places are taken, the connection that has waited longest for a request
//! gives way to a new one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Places for connections, and the connections in them, in the order in which they came to wait for a request.
#[derive(Debug)]
pub struct Seats {
    free: Arc<Semaphore>,
    order: Mutex<VecDeque<Arc<Seat>>>,
    /// Notified when a request is answered, or a connection has ended.
    calmer: Notify,
}

/// A connection's place, which is free again when this is dropped.
#[derive(Debug)]
pub struct Taken {
    seats: Arc<Seats>,
    seat: Arc<Seat>,
    _permit: Option<OwnedSemaphorePermit>,
}

#[derive(Debug, Default)]
struct Seat {
    /// Requests under way on the connection.
    requests: AtomicUsize,
    /// Answers under way that have no end of their own.
    streams: AtomicUsize,
    /// True once there was a request.
    asked: AtomicBool,
    /// Notified when the connection has to close.
    wanted: Arc<Notify>,
}

impl Seats {
    /// Places for so many connections.
    #[must_use]
    pub fn new(connections: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(connections));
        Arc::new(Self { free, order: Mutex::default(), calmer: Notify::new() })
    }

    /// Takes a place for a connection. Where none is free, the connection without a request that has waited longest is
    /// closed; with a request under way on each, this waits.
    pub async fn take(self: &Arc<Self>) -> Taken {
        if self.free.available_permits() == 0 {
            self.vacate();
        }
        // The semaphore is never closed.
        let permit = Arc::clone(&self.free).acquire_owned().await.ok();
        let seat = Arc::<Seat>::default();
        self.lock().push_back(Arc::clone(&seat));
        Taken { seats: Arc::clone(self), seat, _permit: permit }
    }

    /// Waits until no connection is left. `connections` is the number of all places.
    pub async fn all_free(&self, connections: usize) {
        let _ = self.free.acquire_many(connections as u32).await;
    }

    /// Waits until every connection has had a request, and none is under way.
    pub async fn calm(&self) {
        loop {
            let calmer = self.calmer.notified();
            if self.lock().iter().all(|seat| seat.is_calm()) {
                return;
            }
            calmer.await;
        }
    }

    /// Closes the connections that have had no request yet.
    pub fn close_unused(&self) {
        let unused = |seat: &&Arc<Seat>| !seat.asked.load(Ordering::Relaxed);
        self.lock().iter().filter(unused).for_each(|seat| seat.wanted.notify_one());
    }

    fn vacate(&self) {
        let mut seats = self.lock();
        let idle = seats.iter().position(|seat| seat.is_idle());
        if let Some(seat) = idle.and_then(|at| seats.remove(at)) {
            seat.wanted.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Seat>>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Waits until the connection has to close.
    pub async fn wanted(&self) {
        self.seat.wanted.notified().await;
    }

    /// Closes the connection when it is notified.
    pub(crate) fn cut(&self) -> Arc<Notify> {
        Arc::clone(&self.seat.wanted)
    }

    /// Notes that an answer without an end of its own is under way, until the value is dropped.
    pub(crate) fn streaming(&self) -> Streaming {
        self.seat.streams.fetch_add(1, Ordering::Relaxed);
        Streaming(Arc::clone(&self.seat))
    }

    /// Notes that a request is under way.
    pub fn begin(&self) {
        self.seat.requests.fetch_add(1, Ordering::Relaxed);
        self.seat.asked.store(true, Ordering::Relaxed);
    }

    /// Notes that a request has its answer. The connection waits for the next one, and all others have waited longer.
    pub fn end(&self) {
        let mut seats = self.seats.lock();
        if let Some(moved) =
            seats.iter().position(|other| Arc::ptr_eq(other, &self.seat)).and_then(|at| seats.remove(at))
        {
            seats.push_back(moved);
        }
        self.seat.requests.fetch_sub(1, Ordering::Relaxed);
        self.seats.calmer.notify_waiters();
    }

    /// True once there was a request.
    #[must_use]
    pub fn was_asked(&self) -> bool {
        self.seat.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.seats.lock().retain(|other| !Arc::ptr_eq(other, &self.seat));
        self.seats.calmer.notify_waiters();
    }
}

/// An answer that goes on for as long as its reader follows, such as a stream of events: its connection is not idle.
#[derive(Debug)]
pub(crate) struct Streaming(Arc<Seat>);

impl Drop for Streaming {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Seat {
    fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0 && self.streams.load(Ordering::Relaxed) == 0
    }

    fn is_calm(&self) -> bool {
        self.asked.load(Ordering::Relaxed) && self.requests.load(Ordering::Relaxed) == 0
    }
}
