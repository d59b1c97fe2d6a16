//! The state of one address: four counters and where they have led, in one word that changes as a whole, so that
//! workers and the checker count without a lock and every change of state is seen by exactly one of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// State of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Healthy,
    /// Healthy, and has failed since its last success.
    MostlyHealthy,
    /// Unhealthy, and has succeeded since its last failure.
    MostlyUnhealthy,
    Unhealthy,
}

/// Outcome of a check or of a request at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Success,
    HttpFailure,
    TcpFailure,
    Timeout,
}

/// Number of events of each kind that change a state; 0: events of this kind do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Thresholds {
    pub(crate) successes: u8,
    pub(crate) http_failures: u8,
    pub(crate) tcp_failures: u8,
    pub(crate) timeouts: u8,
}

/// Events counted since the last reset: a success resets the failures, a failure the successes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Successes.
    pub success: u8,
    /// Statuses that count as a failure, and answers that are not HTTP.
    pub http_failure: u8,
    /// Connections that were refused or reset.
    pub tcp_failure: u8,
    /// Timeouts.
    pub timeout_failure: u8,
}

/// The counters in the lower bytes, the status in the one above.
#[derive(Debug, Default)]
pub(crate) struct State(AtomicU64);

const SUCCESSES: u64 = 0xff;
const FAILURES: u64 = 0xffff_ff00;
const STATUS_SHIFT: u32 = 32;

impl Status {
    /// True if requests are sent to the address.
    pub(crate) fn is_up(self) -> bool {
        matches!(self, Self::Healthy | Self::MostlyHealthy)
    }

    /// APISIX's name of the state.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::MostlyHealthy => "mostly_healthy",
            Self::MostlyUnhealthy => "mostly_unhealthy",
            Self::Unhealthy => "unhealthy",
        }
    }

    fn of(word: u64) -> Self {
        match word >> STATUS_SHIFT {
            0 => Self::Healthy,
            1 => Self::MostlyHealthy,
            2 => Self::MostlyUnhealthy,
            _ => Self::Unhealthy,
        }
    }

    fn bits(self) -> u64 {
        let number = match self {
            Self::Healthy => 0,
            Self::MostlyHealthy => 1,
            Self::MostlyUnhealthy => 2,
            Self::Unhealthy => 3,
        };
        number << STATUS_SHIFT
    }
}

impl Event {
    /// Position of its counter.
    fn shift(self) -> u32 {
        match self {
            Self::Success => 0,
            Self::HttpFailure => 8,
            Self::TcpFailure => 16,
            Self::Timeout => 24,
        }
    }

    fn threshold(self, thresholds: &Thresholds) -> u8 {
        match self {
            Self::Success => thresholds.successes,
            Self::HttpFailure => thresholds.http_failures,
            Self::TcpFailure => thresholds.tcp_failures,
            Self::Timeout => thresholds.timeouts,
        }
    }
}

impl State {
    /// The status. A thread that has changed one address and then looks at all sees every change made before.
    pub(crate) fn status(&self) -> Status {
        Status::of(self.0.load(Ordering::SeqCst))
    }

    /// The status together with the counters that belong to it.
    pub(crate) fn read(&self) -> (Status, Counters) {
        let word = self.0.load(Ordering::Relaxed);
        let [success, http_failure, tcp_failure, timeout_failure, ..] = word.to_le_bytes();
        (Status::of(word), Counters { success, http_failure, tcp_failure, timeout_failure })
    }

    /// Sets the status as if enough events had been counted. True if the status is another one now.
    pub(crate) fn set(&self, is_up: bool) -> bool {
        let status = if is_up { Status::Healthy } else { Status::Unhealthy };
        Status::of(self.0.swap(status.bits(), Ordering::SeqCst)) != status
    }

    /// Counts an event; whether the status is another one now. Seeing what is known already (a success of a healthy
    /// address) writes nothing.
    pub(crate) fn count(&self, event: Event, thresholds: &Thresholds) -> bool {
        let threshold = event.threshold(thresholds);
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let Some(next) = after(word, event, threshold) else { return false };
            match self.0.compare_exchange_weak(word, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return Status::of(word) != Status::of(next),
                Err(now) => word = now,
            }
        }
    }
}

/// The word after an event; `None` if the event changes nothing.
fn after(word: u64, event: Event, threshold: u8) -> Option<u64> {
    let status = Status::of(word);
    let settled = if event == Event::Success { Status::Healthy } else { Status::Unhealthy };
    if threshold == 0 || status == settled {
        return None;
    }
    let count = ((word >> event.shift()) as u8).saturating_add(1);
    let others = if event == Event::Success { 0 } else { word & FAILURES & !(SUCCESSES << event.shift()) };
    let status = match status {
        _ if count >= threshold => settled,
        Status::Healthy => Status::MostlyHealthy,
        Status::Unhealthy => Status::MostlyUnhealthy,
        other => other,
    };
    Some(status.bits() | others | u64::from(count) << event.shift())
}

#[cfg(test)]
mod tests {
    use super::{Counters, Event, State, Status, Thresholds};

    const THRESHOLDS: Thresholds = Thresholds { successes: 2, http_failures: 3, tcp_failures: 2, timeouts: 1 };

    /// `+` success, `h` status, `t` connection, `o` timeout.
    fn run(events: &str, thresholds: &Thresholds) -> (State, usize) {
        let state = State::default();
        let mut changes = 0;
        for event in events.chars() {
            let event = match event {
                '+' => Event::Success,
                'h' => Event::HttpFailure,
                't' => Event::TcpFailure,
                _ => Event::Timeout,
            };
            changes += usize::from(state.count(event, thresholds));
        }
        (state, changes)
    }

    #[test]
    fn counters_lead_from_state_to_state() {
        for (events, status, [success, http_failure, tcp_failure, timeout_failure], changes) in [
            ("", Status::Healthy, [0, 0, 0, 0], 0),
            ("++++", Status::Healthy, [0, 0, 0, 0], 0),
            ("h", Status::MostlyHealthy, [0, 1, 0, 0], 1),
            ("hh", Status::MostlyHealthy, [0, 2, 0, 0], 1),
            ("hhh", Status::Unhealthy, [0, 3, 0, 0], 2),
            ("hhhhh", Status::Unhealthy, [0, 3, 0, 0], 2),
            // Failures of different kinds are counted apart.
            ("hht", Status::MostlyHealthy, [0, 2, 1, 0], 1),
            ("hhtt", Status::Unhealthy, [0, 2, 2, 0], 2),
            ("o", Status::Unhealthy, [0, 0, 0, 1], 1),
            // A success forgets them all, and needs another to be healthy again.
            ("hht+", Status::MostlyHealthy, [1, 0, 0, 0], 1),
            ("hht++", Status::Healthy, [2, 0, 0, 0], 2),
            ("hh+hh+hh+", Status::MostlyHealthy, [1, 0, 0, 0], 1),
            ("hh++h", Status::MostlyHealthy, [0, 1, 0, 0], 3),
            ("tt+", Status::MostlyUnhealthy, [1, 0, 0, 0], 3),
            ("tt++", Status::Healthy, [2, 0, 0, 0], 4),
            ("tt+h", Status::MostlyUnhealthy, [0, 1, 0, 0], 3),
            ("tt+h+", Status::MostlyUnhealthy, [1, 0, 0, 0], 3),
            ("tt+hhh", Status::Unhealthy, [0, 3, 0, 0], 4),
            ("tt+tt", Status::Unhealthy, [0, 0, 2, 0], 4),
        ] {
            let (state, seen) = run(events, &THRESHOLDS);
            let counters = Counters { success, http_failure, tcp_failure, timeout_failure };
            assert_eq!((state.read(), seen), ((status, counters), changes), "{events:?}");
        }
    }

    #[test]
    fn what_has_no_threshold_does_not_count() {
        let none = Thresholds::default();
        let (state, changes) = run("hhhttoo++", &none);
        assert_eq!((state.read(), changes), ((Status::Healthy, Counters::default()), 0));
        let only_timeouts = Thresholds { timeouts: 254, ..none };
        let (state, _) = run(&"o".repeat(253), &only_timeouts);
        assert_eq!(state.status(), Status::MostlyHealthy);
        assert!(state.count(Event::Timeout, &only_timeouts));
        assert_eq!(state.status(), Status::Unhealthy);
    }

    #[test]
    fn of_many_threads_one_sees_the_change() {
        let (state, thresholds) = (State::default(), Thresholds { http_failures: 200, ..Thresholds::default() });
        let changes: usize = std::thread::scope(|scope| {
            let count = || (0..100).filter(|_| state.count(Event::HttpFailure, &thresholds)).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
        });
        // To mostly_healthy and to unhealthy.
        assert_eq!((state.status(), changes), (Status::Unhealthy, 2));
    }
}
